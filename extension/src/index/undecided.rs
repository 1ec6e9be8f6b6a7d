//! Indexes on columns without a declared number of dimensions, as `ALTER TABLE … TYPE embedding`
//! and dumps of such tables leave them: the first vector decides.
//!
//! Until then the metapage says that its number of dimensions is none yet, by a bit beside the type
//! of the column, and the index has rows without a vector alone, as addresses in its pending list.
//! What was decided stays until the index is rebuilt.

use laser_index::meta::{Meta, Parameters, UNDECIDED};
use laser_index::raw::RawForm;
use laser_index::store::PageStore;

use super::element;
use super::errors::OrReport;

/// Gives an index the dimensions of its first vector, unless another session has come first.
/// Returns the parameters as they are now.
pub fn decide(store: &impl PageStore, dims: usize) -> Parameters {
    let mut element = None;
    let decided = Meta::update(store, |meta| {
        let parameters = &mut meta.parameters;
        if parameters.is_undecided() {
            parameters.element &= !UNDECIDED;
            let own = *element.insert(element::of(parameters));
            parameters.raw = RawForm::choose(dims, own.is_half(), parameters.quantization)?;
            parameters.dims = dims;
        }
        Ok(())
    });
    match (decided, element) {
        (Err(error), Some(element)) => element.report(error),
        (decided, _) => decided.or_report().parameters,
    }
}
