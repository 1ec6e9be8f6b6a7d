//! Rows of the system catalogs, by the server's caches.
#![allow(unsafe_code)]

use pgrx::pg_sys::{self, Oid};

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
