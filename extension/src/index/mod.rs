//! The access method `laser`.
//!
//! ```text
//!  handler    what the access method can do, and its callbacks
//!  options    settings and storage parameters
//!  element    indexed columns: their types, metrics and values
//!  model      the model of an index on text, which rebuilding does not change
//!  altered    what ALTER INDEX may have made of an index
//!  undecided  indexes on columns without a declared number of dimensions
//!  unlogged   indexes of UNLOGGED tables: what they begin with, and after a crash
//!  pages      buffers and generic WAL records: the store of the crate `laser-index`
//!  bufpage    layout of the server's pages, from `storage/bufpage.h`
//!  cache      opened segments of this session, and their files
//!  build insert scan vacuum cost
//!             the callbacks
//!  time_left  how much longer a build will take
//!  wanted     how many rows a query wants of a scan, and how deep they lie
//!  merge      merges, when they are begun and what becomes of those that fail
//!  maintenance
//!             the worker that merges in the background
//!  info       functions that look into an index
//!  statistics what scans and merges have done
//!  recall     how much of exact search a search finds, and how wide it must be for that
//!  size       how large an index will be
//!  storage    where the server keeps a relation, and the names of its files of segments
//!  table      the table of an index
//!  rights     what a role may ask of an index, and whose code runs how
//!  resources  threads and memory of builds and merges
//!  sample     vectors by which a build decides how they are stored
//!  validate   operator classes
//!  kinds      their support functions
//!  text       the distance of two texts
//!  rewrite    plans in which a scan has computed that distance already
//!  mentions   how often the nodes of a plan have an operator, which decides that
//!  constants  which parameter of a statement a constant of its plan was
//!  distance_param
//!             the distances of scans for such plans
//!  cutoff     how far the rows of a scan may be, by the filters of its plan
//!  rows       rows of the table, as scans look at them: filters and distances
//!  runs       the scans of running plans, and what each knows of its plan
//!  expression expressions of plans
//!  work       what the searches of a scan have done
//!  explain    what EXPLAIN says of the indexes that a plan searches
//!  explain_scans
//!             ... and of its scans, from PostgreSQL 18 on
//!  notice     notices of plans and scans, once a statement
//!  errors     errors of `laser-index` as SQL errors
//! ```
//!
//! Pages, segments, the pending list and searching are the crate `laser-index`; what is here brings
//! them together with relations, snapshots and transactions.

mod altered;
mod asked;
mod bufpage;
mod build;
mod cache;
mod constants;
mod cost;
mod cutoff;
mod distance_param;
mod element;
mod errors;
mod explain;
#[cfg(feature = "pg18")]
mod explain_scans;
mod expression;
mod handler;
mod info;
mod insert;
mod joined;
mod kinds;
mod maintenance;
mod mentions;
mod merge;
mod model;
mod notice;
pub mod options;
mod pages;
mod planned;
mod recall;
mod resources;
mod rewrite;
mod rights;
mod rows;
mod runs;
mod same_value;
mod sample;
mod scan;
mod shared;
mod size;
mod sorted;
mod statistics;
mod storage;
mod summary;
mod table;
mod text;
mod time_left;
mod uncompared;
mod undecided;
mod unlogged;
mod vacuum;
mod validate;
mod wanted;
mod work;

pub use altered::check_altered;

/// Registers settings and storage parameters.
pub fn init() {
    options::init();
    cache::init();
    statistics::init();
    rewrite::init();
    sorted::init();
    explain::init();
    #[cfg(feature = "pg18")]
    explain_scans::init();
    asked::init();
    runs::init();
}
