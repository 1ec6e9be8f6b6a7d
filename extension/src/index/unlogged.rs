//! What indexes of UNLOGGED tables begin with, when they are made and after a crash.
#![allow(unsafe_code)]

use laser_index::meta::Meta;
use pgrx::pg_sys;

use super::element;
use super::errors::OrReport;
use super::pages::{self, RelationStore};

/// `ambuildempty`: the init fork of an unlogged index.
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn build_empty(index: pg_sys::Relation) {
    // SAFETY: the server passes an open index without an init fork.
    unsafe {
        if pg_sys::IsBinaryUpgrade {
            // As in a build: the first VACUUM or ANALYZE of the new cluster fills it.
            return;
        }
        let parameters = element::parameters(index);
        pages::write_init_fork(index, |body| Meta::new(parameters).write(body)).or_report();
    }
}

/// Fills the init fork that an upgrade has left empty, with what the index knows by now.
///
/// # Safety
/// The index is open, and nobody else vacuums or analyzes its table.
pub unsafe fn fill_init_fork(index: pg_sys::Relation) {
    // SAFETY: by contract.
    unsafe {
        if !pages::lacks_init_fork(index) {
            return;
        }
        let mut parameters = Meta::read(&RelationStore::new(index))
            .or_report()
            .parameters;
        if element::is_undeclared(index) {
            // What is copied from it has no vectors.
            parameters.forget_dimensions();
        }
        // Nothing else may give this transaction a number, without which its commit waits for no WAL.
        pg_sys::ForceSyncCommit();
        pages::write_init_fork(index, |body| Meta::new(parameters).write(body)).or_report();
    }
}

/// Makes an index that a crash has left without a page what it was when it was new, as its table is: an unlogged one
/// whose init fork an upgrade has left empty, and nobody has filled ([`fill_init_fork`]).
///
/// # Safety
/// The index is open.
pub unsafe fn reset_unlogged(index: pg_sys::Relation) {
    // SAFETY: by contract.
    unsafe {
        // One with a page in its init fork has lost others by damage, and one that is being built has no such fork.
        if pages::lacks_pages(index) && pages::lacks_init_fork(index) {
            let parameters = element::parameters(index);
            pages::write_main_fork(index, |body| Meta::new(parameters).write(body)).or_report();
        }
    }
}
