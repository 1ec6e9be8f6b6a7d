//! What `storage/bufpage.h` has as macros or inline functions, which pgrx does not have for all
//! versions of the server.
#![allow(unsafe_code)]

use pgrx::pg_sys;

/// `PageIsNew`: nobody has initialised the page.
///
/// # Safety
/// The page is pinned and locked.
pub(super) unsafe fn is_new(page: pg_sys::Page) -> bool {
    // SAFETY: every page begins with this header.
    unsafe { (*page.cast::<pg_sys::PageHeaderData>()).pd_upper == 0 }
}

/// `PageGetLSN`: the end of the last WAL record that changed the page.
///
/// # Safety
/// As [`is_new`].
#[cfg(any(feature = "pg14", feature = "pg15", feature = "pg16"))]
pub(super) unsafe fn lsn(page: pg_sys::Page) -> pg_sys::XLogRecPtr {
    // SAFETY: every page begins with this header.
    let pd_lsn = unsafe { (*page.cast::<pg_sys::PageHeaderData>()).pd_lsn };
    u64::from(pd_lsn.xlogid) << 32 | u64::from(pd_lsn.xrecoff)
}

/// `PageGetMaxOffsetNumber`: the number of line pointers.
///
/// # Safety
/// As [`is_new`].
pub(super) unsafe fn line_pointers(page: pg_sys::Page) -> u16 {
    let header = std::mem::offset_of!(pg_sys::PageHeaderData, pd_linp);
    // SAFETY: every page begins with this header.
    let lower = unsafe { (*page.cast::<pg_sys::PageHeaderData>()).pd_lower };
    let bytes = usize::from(lower).saturating_sub(header);
    (bytes / size_of::<pg_sys::ItemIdData>()) as u16
}

/// `PageGetItemId`: a copy of a line pointer.
///
/// # Safety
/// As [`is_new`]; `offset` is 1 to [`line_pointers`].
pub(super) unsafe fn line_pointer(page: pg_sys::Page, offset: u16) -> pg_sys::ItemIdData {
    // SAFETY: the caller vouches for the offset.
    unsafe {
        let first = &raw const (*page.cast::<pg_sys::PageHeaderData>()).pd_linp;
        *first
            .cast::<pg_sys::ItemIdData>()
            .add(usize::from(offset) - 1)
    }
}

/// `PageGetItem`: where a line pointer with storage points to.
///
/// # Safety
/// As [`is_new`]; the line pointer is the page's own and in use.
pub(super) unsafe fn item(page: pg_sys::Page, pointer: pg_sys::ItemIdData) -> pg_sys::Item {
    // SAFETY: the caller vouches for the line pointer.
    unsafe { page.add(pointer.lp_off() as usize) }
}
