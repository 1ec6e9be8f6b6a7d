//! What one pass through the body of a model works on.

use std::ops::Range;

use laser_kernels::training::Arithmetic;

use super::parameters::Parameters;
use super::regularization::Regularization;
use crate::data::Ragged;
use crate::ops::lstm_device::LstmDevice;

/// The parameters of a model, how it computes, and some sentences of a batch.
#[derive(Clone)]
pub(super) struct Pass<'a> {
    pub parameters: &'a Parameters,
    /// Positions of the body's dense parameters; sparse ones are before them.
    pub dense: Range<usize>,
    pub arithmetic: Arithmetic,
    /// Where the LSTM runs, if not here.
    pub device: Option<&'a LstmDevice>,
    pub batch: &'a Ragged,
    pub sentences: Range<usize>,
    pub regularization: Regularization,
}
