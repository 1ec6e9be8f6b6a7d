//! Indexes on columns without a declared number of dimensions, as `ALTER TABLE … TYPE embedding`
//! and dumps of such tables leave them: the first vector decides.
//!
//! Until then the metapage says that its number of dimensions is none yet, by a bit beside the type
//! of the column, and the index holds no entries: rows that are NULL are left out of it. What was decided stays until the index is built
//! anew.

use laser_index::meta::{Meta, Parameters};
use laser_index::raw::RawForm;
use laser_index::store::PageStore;

use super::element::{self, Element};
use super::errors::OrReport;

/// The bit in [`Parameters::element`], and the dimensions that stand in its place meanwhile.
pub const UNDECIDED: u8 = 0x80;
/// See [`UNDECIDED`].
pub const NO_DIMENSIONS: usize = 1;

/// Whether no vector has come yet that says how many dimensions the index has.
pub fn is_undecided(parameters: &Parameters) -> bool {
    parameters.element & UNDECIDED != 0
}

/// Gives an index the dimensions of its first vector, unless another session has come first.
/// Returns the parameters as they are now.
pub fn decide(store: &impl PageStore, dims: usize) -> Parameters {
    Meta::update(store, |meta| {
        let parameters = &mut meta.parameters;
        if is_undecided(parameters) {
            parameters.element &= !UNDECIDED;
            let half = element::of(parameters) == Element::HalfEmbedding;
            parameters.raw = RawForm::choose(dims, half, parameters.quantization)?;
            parameters.dims = dims;
        }
        Ok(())
    })
    .or_report()
    .parameters
}

/// Notes that the index lacks a row without a vector.
pub fn leave_out(store: &impl PageStore) {
    let meta = Meta::read(store).or_report();
    if meta.complete {
        Meta::update(store, |meta| {
            meta.complete = false;
            Ok(())
        })
        .or_report();
    }
}
