//! TIDs as `laser-index` stores them: the block number above 16 bits of the offset number.
#![allow(unsafe_code)]

use pgrx::pg_sys;

/// The address of a row as one number.
///
/// # Safety
/// `tid` is valid.
pub unsafe fn pack(tid: pg_sys::ItemPointer) -> u64 {
    // SAFETY: by contract.
    let (block, offset) = unsafe { pgrx::itemptr::item_pointer_get_both(*tid) };
    u64::from(block) << 16 | u64::from(offset)
}

/// The reverse of [`pack`].
pub fn unpack(tid: u64) -> pg_sys::ItemPointerData {
    let mut pointer = pg_sys::ItemPointerData::default();
    pgrx::itemptr::item_pointer_set_all(&mut pointer, (tid >> 16) as u32, tid as u16);
    pointer
}
