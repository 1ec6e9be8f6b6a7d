//! The model of an index on text, as its storage parameter.
//!
//! An index that is rebuilt (REINDEX, TRUNCATE, VACUUM FULL, a table that is rewritten) is rebuilt by its definition,
//! by a role with settings of its own. So CREATE INDEX without `WITH (model = …)` writes down which model it took.
#![allow(unsafe_code)]

use std::ffi::CString;

use laser_index::meta::Parameters;
use pgrx::pg_sys::{self, Datum};

use super::{element, options};
use crate::encode;
use crate::pg::encoding::to_server;

/// Whether an index that is built is new, and takes no inserts yet. Otherwise it is built again, perhaps by a role that is
/// not the owner.
///
/// # Safety
/// The index is open.
pub unsafe fn is_new(index: pg_sys::Relation) -> bool {
    // SAFETY: by contract. CREATE INDEX builds in the transaction that makes the index, or, CONCURRENTLY, before it takes
    // inserts.
    unsafe { (*index).rd_createSubid != 0 || !(*(*index).rd_index).indisready }
}

/// Parameters for an index that is built, by a role that may do that with its model.
///
/// # Safety
/// The index is open, and of this access method.
pub unsafe fn parameters(index: pg_sys::Relation) -> Parameters {
    // SAFETY: by contract.
    unsafe {
        let is_by_default = element::is_of_text(index) && options::of(index).model.is_none();
        if is_by_default {
            // Before it is loaded.
            encode::check_default(&encode::model_name(None));
        }
        let parameters = element::parameters(index);
        if is_by_default {
            encode::check_default(&parameters.model);
        }
        parameters
    }
}

/// Makes `model` the storage parameter of an index that is being created and has none. Called when the index is built:
/// from then until the transaction ends nobody else changes its parameters.
///
/// # Safety
/// An open index of this access method at the end of its build, and the server is not in parallel mode.
pub unsafe fn remember(index: pg_sys::Relation, model: &str) {
    // SAFETY: by contract.
    unsafe {
        // A name that the database's encoding may not have cannot be written down.
        let writable = to_server(model) == model;
        if !is_new(index) || !writable {
            return;
        }
        // Whoever alters an index that is created CONCURRENTLY has this lock, and is waited for.
        let lock = pg_sys::ShareUpdateExclusiveLock as pg_sys::LOCKMODE;
        pg_sys::LockRelationOid((*index).rd_id, lock);
        if options::of(index).model.is_some() {
            return;
        }
        set(index, model);
        // The parser of parameters sees it from now on, and so does whoever updates the index's row after the build.
        pg_sys::CommandCounterIncrement();
    }
}

/// As `ATExecSetRelOptions` (`src/backend/commands/tablecmds.c`) does.
///
/// # Safety
/// As for [`remember`].
unsafe fn set(index: pg_sys::Relation, model: &str) {
    let name = CString::new(model).expect("names of models have no zeros");
    // SAFETY: by contract; a row of pg_class is copied, changed and written back, and what the copies are made of
    // lives in the context of the build. Lists and nodes are the server's.
    unsafe {
        let lock = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;
        let catalog = pg_sys::table_open(pg_sys::RelationRelationId, lock);
        let (cache, none) = (pg_sys::SysCacheIdentifier::RELOID as i32, Datum::from(0));
        let row = pg_sys::SearchSysCacheCopy(cache, (*index).rd_id.into(), none, none, none);
        assert!(!row.is_null(), "an open relation is in the catalog");
        let mut column = pg_sys::Anum_pg_class_reloptions as i32;
        let mut is_null = false;
        let old = pg_sys::SysCacheGetAttr(cache, row, column as i16, &mut is_null);
        let value = pg_sys::makeString(pg_sys::pstrdup(name.as_ptr()));
        let parameter = pg_sys::makeDefElem(c"model".as_ptr().cast_mut(), value.cast(), -1);
        let mut new = pg_sys::transformRelOptions(
            if is_null { none } else { old },
            pg_sys::lappend(std::ptr::null_mut(), parameter.cast()),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            false,
            false,
        );
        is_null = false;
        // Raw pointers, which become constant ones where it takes those, from PostgreSQL 18 on.
        let changed = pg_sys::heap_modify_tuple_by_cols(
            row,
            (*catalog).rd_att,
            1,
            &raw mut column,
            &raw mut new,
            &raw mut is_null,
        );
        pg_sys::CatalogTupleUpdate(catalog, &mut (*changed).t_self, changed);
        pg_sys::table_close(catalog, lock);
    }
}
