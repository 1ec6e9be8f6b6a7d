//! Real servers for end-to-end tests and benchmarks.
//!
//! [`Cluster`] is a PostgreSQL server of its own: a private copy of the installation with laser in
//! it (see `scripts/pg-tree.sh`), a data folder copied from a template that `initdb` made once, a
//! Unix socket in a short temporary folder, no TCP. Any number of clusters run side by side, as an
//! unprivileged account when the tests are started by root, and nothing is left behind: a cluster
//! is removed when it is dropped, and a watchdog process removes it if the test is killed.
//!
//! [`model`] writes small model folders with random weights, [`slt`] runs sqllogictest files,
//! [`SmallDisk`] fills up, [`segment_files`] lists files of segments, [`failure`] tells what a statement fails with, [`skipped`] that a test
//! cannot run here, [`text`] what a program printed, [`pgvector`] gets that extension, [`bench`] has what benchmarks share, [`curve`] draws.

mod account;
pub mod bench;
mod cluster;
pub mod curve;
mod disk;
mod failure;
mod log;
pub mod model;
mod output;
pub mod pgvector;
mod segments;
mod skipped;
pub mod slt;
mod tree;

pub use account::Account;
pub use cluster::{Builder, Cluster, Notices, process_exists, signal, wait_until};
pub use disk::SmallDisk;
pub use failure::{failure, was_ended};
pub use output::text;
pub use segments::{passing_folder, segment_files, segment_folder};
pub use skipped::skipped;
pub use tree::Tree;
