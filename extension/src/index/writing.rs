//! Which of the queries under way write to tables.
//!
//! Expressions that a table is stored by (keys of its partitions and indexes, generated columns,
//! constraints) are evaluated as part of the query that writes to it. They must have the same value
//! whenever they are evaluated, so they hear nothing of the distances that a scan has found ([`super::given`]).
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};

use pgrx::{PgMemoryContexts, pg_sys};

thread_local! {
    static NEXT_HOOK: Cell<pg_sys::ExecutorStart_hook_type> = const { Cell::new(None) };
    /// Memory contexts of queries that write (`es_query_cxt`), as long as they exist.
    static WRITING: RefCell<Vec<pg_sys::MemoryContext>> = const { RefCell::new(Vec::new()) };
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_HOOK.set(pg_sys::ExecutorStart_hook);
        pg_sys::ExecutorStart_hook = Some(start);
    }
}

/// Whether a query writes, by the memory context of its execution.
pub fn is(query: pg_sys::MemoryContext) -> bool {
    WRITING.with_borrow(|writing| writing.contains(&query))
}

/// Takes a query off the list when its memory goes, after an error too.
struct Listed(pg_sys::MemoryContext);

impl Drop for Listed {
    fn drop(&mut self) {
        // When the session ends, thread-locals may be gone before the last contexts.
        let _ = WRITING.try_with(|writing| writing.borrow_mut().retain(|other| *other != self.0));
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn start(query: *mut pg_sys::QueryDesc, flags: i32) {
    // SAFETY: called by the server with a query; afterwards it has a state.
    unsafe {
        match NEXT_HOOK.get() {
            Some(next) => pg_sys::ffi::pg_guard_ffi_boundary(|| next(query, flags)),
            None => pg_sys::standard_ExecutorStart(query, flags),
        }
        let writes = (*query).operation != pg_sys::CmdType::CMD_SELECT
            || (*(*query).plannedstmt).hasModifyingCTE;
        if writes {
            let context = (*(*query).estate).es_query_cxt;
            PgMemoryContexts::For(context).leak_and_drop_on_delete(Listed(context));
            WRITING.with_borrow_mut(|writing| writing.push(context));
        }
    }
}
