//! The storage under a double: everything an index does, without PostgreSQL.

mod build;
mod common;
mod curves;
mod cutoff;
mod damage;
mod familiar;
mod inner_products;
mod model;
mod nearest;
mod recall;
mod unplaced;
mod wanted;
