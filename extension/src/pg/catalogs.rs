//! Rows of the system catalogs.
#![allow(unsafe_code)]

use std::ffi::CStr;

use pgrx::pg_sys::{self, Oid};

use super::lists::members;

unsafe extern "C-unwind" {
    /// OIDs of a relation and all below it (`src/backend/catalog/pg_inherits.c`), a list in the current context.
    fn find_all_inheritors(
        relation: Oid,
        lock: pg_sys::LOCKMODE,
        parents: *mut *mut pg_sys::List,
    ) -> *mut pg_sys::List;
}

/// What `look` copies from the row with this key, of a cache that has one key; `None` where there is no such row.
///
/// # Safety
/// Rows of the cache are of the type `T`, and `look` raises nothing.
pub unsafe fn row<T, R>(
    cache: pg_sys::SysCacheIdentifier::Type,
    key: Oid,
    look: impl FnOnce(&T) -> R,
) -> Option<R> {
    // SAFETY: by contract; the row is released after what is in it was copied.
    unsafe {
        let row = pg_sys::SearchSysCache1(cache as i32, key.into());
        if row.is_null() {
            return None;
        }
        let copied = look(&*pg_sys::GETSTRUCT(row).cast::<T>());
        pg_sys::ReleaseSysCache(row);
        Some(copied)
    }
}

/// One of the columns of a description, which versions of PostgreSQL keep in different places.
///
/// # Safety
/// The description has the column.
pub unsafe fn attribute(
    description: pg_sys::TupleDesc,
    column: usize,
) -> pg_sys::FormData_pg_attribute {
    // SAFETY: by contract; what wraps the description neither counts nor frees it.
    let description = unsafe { pgrx::PgTupleDesc::from_pg_unchecked(description) };
    *description.get(column).expect("a column of the table")
}

/// Indexes of an access method, but for those of temporary tables.
///
/// # Safety
/// Called in a transaction.
pub unsafe fn indexes_of(method: &CStr) -> Vec<Oid> {
    let mut found = Vec::new();
    // SAFETY: rows of pg_class, which are read before the next one is fetched.
    unsafe {
        let method = pg_sys::get_am_oid(method.as_ptr(), true);
        if method == pg_sys::InvalidOid {
            return found;
        }
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let relation = pg_sys::table_open(pg_sys::RelationRelationId, lock);
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::InvalidOid,
            false,
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        loop {
            let row = pg_sys::systable_getnext(scan);
            if row.is_null() {
                break;
            }
            let class = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_class>();
            if class.relam == method
                && class.relkind as u8 == pg_sys::RELKIND_INDEX
                && class.relpersistence as u8 != pg_sys::RELPERSISTENCE_TEMP
            {
                found.push(class.oid);
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, lock);
    }
    found
}

/// Whether an index, also one without pages, is of an access method; not so where it is gone.
pub fn is_of_method(index: Oid, method: &CStr) -> bool {
    // SAFETY: look-ups in caches, rows of this cache.
    unsafe {
        let method = pg_sys::get_am_oid(method.as_ptr(), true);
        let look = |form: &pg_sys::FormData_pg_class| form.relam == method;
        row(pg_sys::SysCacheIdentifier::RELOID, index, look) == Some(true)
    }
}

/// A table, or an index, and all that inherit from it, its partitions at every level among them. Locks none: what
/// has become of them meanwhile is found out when they are opened.
pub fn all_below(relation: Oid) -> Vec<Oid> {
    let no_lock = pg_sys::NoLock as pg_sys::LOCKMODE;
    // SAFETY: a scan of a catalog, whose result is a list of OIDs in the current context.
    unsafe {
        let list = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            find_all_inheritors(relation, no_lock, std::ptr::null_mut())
        });
        members(list).iter().map(|cell| cell.oid_value).collect()
    }
}

/// Whether the current role owns a relation: as a member of the owner's role, or as a superuser.
pub fn owns(relation: Oid) -> bool {
    // SAFETY: plain questions to the server.
    unsafe {
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let owner = pg_sys::pg_class_ownercheck(relation, pg_sys::GetUserId());
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let owner =
            pg_sys::object_ownercheck(pg_sys::RelationRelationId, relation, pg_sys::GetUserId());
        owner
    }
}

/// Whether the current role hears of what others do (`pg_read_all_stats`).
pub fn reads_all_statistics() -> bool {
    // SAFETY: plain questions to the server.
    unsafe {
        let all = Oid::from(pg_sys::ROLE_PG_READ_ALL_STATS);
        pg_sys::has_privs_of_role(pg_sys::GetUserId(), all)
    }
}

/// Whether the transaction sees a row with this OID in the catalog of a system cache.
pub fn is_cached(cache: pg_sys::SysCacheIdentifier::Type, oid: pg_sys::Oid) -> bool {
    let (oid, none) = (pg_sys::Datum::from(oid), pg_sys::Datum::from(0));
    // SAFETY: a look-up in a system cache, within a transaction.
    unsafe { pg_sys::SearchSysCacheExists(cache as i32, oid, none, none, none) }
}

/// Whether an object of a catalogue belongs to an extension: a search in a catalogue, within a transaction.
pub fn is_of_extension(catalog: Oid, object: Oid, extension: &CStr) -> bool {
    // SAFETY: look-ups; the name ends with a zero.
    unsafe {
        let extension = pg_sys::get_extension_oid(extension.as_ptr(), true);
        extension != pg_sys::InvalidOid
            && pg_sys::getExtensionOfObject(catalog, object) == extension
    }
}
