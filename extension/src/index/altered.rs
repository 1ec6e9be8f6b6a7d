//! What ALTER has made of an index, where the parser of storage parameters ([`super::options`]) could not know of which kind
//! that is, nor whether they are new: it reads those of an index whose model is gone, too.
#![allow(unsafe_code)]

use pgrx::pg_sys;

use super::{build, element, options};
use crate::encode;

/// Raises an error if a relation is an index that has a model and no use for it, or one that is not there, with which it
/// could not be built again. Called where one was set of the relation, which is locked.
pub fn check_altered(relation: pg_sys::Oid) {
    // SAFETY: look-ups within a transaction; a relation of these kinds is an index, which is closed again.
    unsafe {
        let kinds = [pg_sys::RELKIND_INDEX, pg_sys::RELKIND_PARTITIONED_INDEX];
        if !kinds.contains(&(pg_sys::get_rel_relkind(relation) as u8)) {
            return;
        }
        let no_lock = pg_sys::NoLock as pg_sys::LOCKMODE;
        let index = pg_sys::index_open(relation, no_lock);
        let (model, has_use) = match build::is_laser(index) {
            true => (options::of(index).model, element::is_of_text(index)),
            false => (None, false),
        };
        pg_sys::index_close(index, no_lock);
        match model {
            Some(model) if has_use => encode::check_installed(&model),
            Some(_) => element::refuse_model(),
            None => {}
        }
    }
}
