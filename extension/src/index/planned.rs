//! What is kept of a query while it is planned.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::HashMap;
use std::thread::LocalKey;

use pgrx::{PgMemoryContexts, pg_sys};

/// Something for each query that is being planned.
pub type PerQuery<T> = HashMap<*const pg_sys::PlannerInfo, T>;

/// Dropped with the memory of a query's structures, which stay where they are until then: others may come to lie there.
struct Forget<T: 'static>(
    *const pg_sys::PlannerInfo,
    &'static LocalKey<RefCell<PerQuery<T>>>,
);

impl<T> Drop for Forget<T> {
    fn drop(&mut self) {
        // As when a run ends ([`super::runs`]): thread-locals may be gone before, and one is borrowed where memory has run out.
        let _ = self.1.try_with(|kept| {
            if let Ok(mut kept) = kept.try_borrow_mut() {
                kept.remove(&self.0);
            }
        });
    }
}

/// Calls `use_it` with what is kept of a query, which is nothing at first.
///
/// # Safety
/// The planner's structures of a query.
pub unsafe fn of_query<T: Default, R>(
    kept: &'static LocalKey<RefCell<PerQuery<T>>>,
    root: *mut pg_sys::PlannerInfo,
    use_it: impl FnOnce(&mut T) -> R,
) -> R {
    if !kept.with_borrow(|kept| kept.contains_key(&root.cast_const())) {
        // SAFETY: by contract. `subquery_planner` makes a query's structures in the memory that they name.
        unsafe {
            PgMemoryContexts::For((*root).planner_cxt).leak_and_drop_on_delete(Forget(root, kept));
        }
    }
    kept.with_borrow_mut(|kept| use_it(kept.entry(root).or_default()))
}
