//! Margin-based bitext mining (Artetxe & Schwenk, "Margin-based Parallel Corpus Mining with
//! Multilingual Sentence Embeddings", ACL 2019): nearest neighbours of two sets of
//! embeddings by cosine in both directions, exact or approximate, margins, selection of pairs, and the measures built on them.
//!
//! Nothing here knows of PostgreSQL or of an encoder. Matrices are flat row-major `f32` slices,
//! one embedding per row, and are L2-normalised inside.
//!
//! ```
//! use laser_mining::{Margin, Retrieval, knn, select};
//!
//! let source = [1.0, 0.0, 0.0, 1.0]; // two rows of two dimensions
//! let target = [0.0, 2.0, 3.0, 0.1];
//! let (forward, backward) = knn::both(&source, &target, 2, 1, &knn::Options::default())?;
//! let pairs = select(&forward, &backward, Margin::Absolute, Retrieval::Max, 0.0);
//! assert_eq!((pairs[0].source, pairs[0].target), (1, 0));
//! # Ok::<(), laser_mining::Error>(())
//! ```
//!
//! # Map
//!
//! * [`knn`] – the search; `block`, `tile`, `engine`, `run` – its blocks of rows, the candidates of a tile, the threads
//! * [`approximate`] – the search of rows in cells; `cells` – cells
//! * `kernel` – approximate cosines with a bound on their error; `cosine` – exact ones
//! * `neighbours` – lists; `update` – lists that follow their sets
//! * `margin`, `select` – scores and pairs; `evaluate` – measures
//! * `rows` – embeddings in memory or in a file; `sort`, `control` – sorting and searching that can be cancelled
//!
//! # Order among equals
//!
//! Neighbours are ordered by cosine, highest first, and equal cosines by position, lowest first.
//! Cosines are computed in `f64` from the `f32` rows and rounded to multiples of 2⁻⁴⁰ (about
//! 1e-12), so that rounding noise never decides and identical rows tie exactly. Among a
//! row's neighbours the best margin wins, then the lowest position. Pairs are ordered by score,
//! highest first, then by source position, then by target position.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_macros))]

pub mod approximate;
mod block;
mod cells;
mod control;
mod cosine;
mod engine;
mod error;
mod evaluate;
mod kernel;
pub mod knn;
mod margin;
mod neighbours;
mod rows;
mod run;
mod select;
mod sort;
mod tile;
mod update;

pub use error::{Error, Side};
pub use evaluate::{Bucc, Candidate, bucc, bucc_at, bucc_watched, similarity_error};
pub use kernel::{Device, Kernel};
pub use margin::Margin;
pub use neighbours::Neighbours;
pub use rows::{RowStore, Rows, temporary_file};
pub use select::{Pair, Retrieval, best, select, select_watched};
pub use sort::{Watch, sort_by, unwatched};
pub use update::{Growth, Neighbourhoods, extend, remove};
