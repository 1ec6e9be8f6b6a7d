//! Trains, evaluates, imports and exports the sentence encoders of laser.
//!
//! Text flows from [`data`] readers through a [`tokenizer`] into a packed corpus; [`train`] draws
//! batches from it and optimises [`models`] by [`objectives`]; [`eval`] measures what came out and
//! [`report`] prints it. The program `laser` ([`cli`]) is a thin layer over these.

pub mod cli;
pub mod data;
pub mod eval;
pub mod export;
pub mod mapping;
pub mod models;
pub mod objectives;
pub mod ops;
pub mod optim;
pub mod pack;
pub mod papers;
pub mod report;
pub mod tokenizer;
pub mod train;
