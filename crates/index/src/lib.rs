//! Storage and search of the laser index, without PostgreSQL.
//!
//! WAL-logged pages are the truth, mapped graphs are caches of them. New entries go to a *pending
//! list* of pages, which scans read exactly; merging turns it into *segments*, immutable graphs
//! whose bytes are kept in pages and searched in a mapped file. Entries die by a bit in a segment's
//! bitmap, or in their pending entry.
//!
//! * [`page`] – layouts of pages, [`meta`] – the metapage
//! * [`store`] – where pages live; [`memory`] – in memory, for tests
//! * [`metric`], [`quantization`], [`arithmetic`] – what distances are, and how precise
//! * [`space`], [`codec`], [`encoding`], [`raw`], [`kernels`] – the space of a segment, its stored form, distances
//! * [`query`] – queries, and what is known of a distance; [`choice`] – how many bits data need
//! * [`pending`] – the pending list; [`segment`], [`graph`], [`walk`], [`view`], [`cache`] – segments
//! * `seeds` – where walks begin; `lengths` – how lengths vary, by which those for inner products begin elsewhere
//! * `appendix` – what a cached file has besides the segment; `stamp` – whether it was verified lately
//! * [`trial`] – which graph suits inner products; [`width`] – how wide a search must be, `stranded` – what does not tell, `familiar` – for
//!   which queries
//! * [`refine`] – the second pass over a graph; [`reach`] – linking what a walk cannot get to
//! * [`forecast`] – how much longer a build will take
//! * [`background`] – work that cannot be interrupted, on a thread
//! * [`builder`], [`assemble`], [`maintain`], [`sweep`], [`check`] – building, the file of a segment, merging and deleting,
//!   giving back pages, checking; `disk_space` – whether there is room for a merge
//! * [`scan`] – searching; [`reorder`] – rows that wait for their exact distances
//! * [`budget`] – what a build may take; [`size`] – how large an index will be

mod appendix;
pub mod arithmetic;
pub mod assemble;
pub mod background;
mod between;
mod blocks;
pub mod budget;
pub mod builder;
pub mod bytes;
pub mod cache;
pub mod check;
pub mod choice;
pub mod codec;
mod disk_space;
pub mod encoding;
pub mod error;
mod familiar;
pub mod faults;
pub mod forecast;
pub mod graph;
mod growing;
mod join;
pub mod kernels;
mod lengths;
pub mod maintain;
pub mod memory;
pub mod meta;
pub mod metric;
mod missed;
mod nodes;
mod order;
pub mod page;
pub mod pending;
pub mod quantization;
pub mod query;
pub mod raw;
pub mod reach;
pub mod refine;
pub mod reorder;
pub mod scan;
pub mod scratch;
mod seeds;
pub mod segment;
mod settle;
mod shape;
pub mod size;
pub mod space;
mod stamp;
pub mod store;
mod stranded;
pub mod sweep;
mod table;
pub mod trial;
pub mod view;
pub mod walk;
pub mod width;

pub use error::{IndexError, Result};
