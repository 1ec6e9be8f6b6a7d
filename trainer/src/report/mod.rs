//! Tables and learning curves.

pub mod curves;
pub mod table;
