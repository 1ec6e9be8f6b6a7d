//! Readers of parallel text. Every format is turned into a stream of [`Group`](super::Group)s, in memory that
//! does not grow with the file.

mod keyed;
mod lines;
mod problems;
mod reader;
mod tmx;
mod tsv;

pub use keyed::Keyed;
pub use lines::AlignedLines;
pub use problems::Problems;
pub use reader::{MAX_ROWS, Reader, is_language};
pub use tmx::Tmx;
pub use tsv::Tsv;

#[cfg(test)]
use reader::read_all;
