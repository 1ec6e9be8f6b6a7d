//! The tables of papers, trained and measured again: a table is a list of contestants, each of which a few runs of
//! this program train and measure.

pub mod outcome;
pub mod runner;
pub mod table;

pub use outcome::Outcomes;
pub use table::{PaperTable, Scale};
