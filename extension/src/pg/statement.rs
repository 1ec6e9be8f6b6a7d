//! In whose name the statement runs that the server is executing: the session's user's, or that of somebody whose code is
//! run for another, as of a function with the rights of its owner (SECURITY DEFINER), or of an index expression that
//! ANALYZE evaluates (`SECURITY_RESTRICTED_OPERATION` in `miscadmin.h`).
//!
//! The server changes the user itself while it builds an index, so that the security context then does not tell: it is
//! noted when the statement begins. Statements within statements have all restrictions of those around them. Where one
//! ended by an error its context stays noted, which has more restrictions than that of the statement around it.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_char, c_int};

use pgrx::pg_sys;

use super::unguarded::standard_ProcessUtility;

thread_local! {
    static NEXT_HOOK: Cell<pg_sys::ProcessUtility_hook_type> = const { Cell::new(None) };
    /// The security context in which the innermost utility statement began, if one has since the library was loaded.
    static CONTEXT: Cell<Option<c_int>> = const { Cell::new(None) };
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_HOOK.set(pg_sys::ProcessUtility_hook);
        pg_sys::ProcessUtility_hook = Some(run);
    }
}

/// Whether the utility statement that runs is the session's user's, and no code of another's that is run for him. Where
/// the library was loaded by the statement itself that is not known, and denied.
pub fn is_of_user() -> bool {
    let restrictions = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
    CONTEXT
        .get()
        .is_some_and(|context| context & restrictions as c_int == 0)
}

/// Errors pass over this function as over one in C, for the reasons that [`super::unguarded`] has.
unsafe extern "C-unwind" fn run(
    statement: *mut pg_sys::PlannedStmt,
    text: *const c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: called by the server, whose arguments are handed on.
    unsafe {
        let (mut user, mut restrictions) = (pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&raw mut user, &raw mut restrictions);
        let around = CONTEXT.replace(Some(restrictions));
        let next = NEXT_HOOK.get().unwrap_or(standard_ProcessUtility);
        next(
            statement,
            text,
            read_only,
            context,
            parameters,
            environment,
            destination,
            completion,
        );
        CONTEXT.set(around);
    }
}
