//! The server's lists (`src/include/nodes/pg_list.h`).
#![allow(unsafe_code)]

use pgrx::pg_sys;

/// The members of a list of pointers.
///
/// # Safety
/// The list is a valid one of pointers, or null for an empty one.
pub unsafe fn members<'a>(list: *mut pg_sys::List) -> &'a [pg_sys::ListCell] {
    // SAFETY: by contract; a list has as many cells as its length.
    unsafe {
        list.as_ref().map_or(&[], |list| {
            std::slice::from_raw_parts(list.elements, list.length as usize)
        })
    }
}

/// The node in a cell.
///
/// # Safety
/// A cell of a list of nodes.
pub unsafe fn node(cell: &pg_sys::ListCell) -> *mut pg_sys::Node {
    // SAFETY: by contract.
    unsafe { cell.ptr_value.cast() }
}
