//! Who may embed with a model: everybody, unless a foreign server of the wrapper `laser_model` has the model's name; then
//! those who have USAGE on that server.
//!
//! The server keeps such privileges: `GRANT` and `REVOKE`, members of roles, owners, dumps, and plans that are made again
//! when they change. A model with an encoder for each language (`MODEL@LANGUAGE`) goes by the name before the `@`.
//!
//! It is asked whenever a text is embedded, of the role that the function runs as, and when an index on text is built. Rows
//! that come into such an index later are embedded whoever inserts them, as nobody needs a privilege for what a
//! constraint of a table does.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int};

use laser_protocol::model_and_language;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::SysCacheIdentifier::{FOREIGNDATAWRAPPEROID, FOREIGNSERVERNAME};
use pgrx::pg_sys::{self, Datum, Oid};

use crate::pg::catalogs;
use crate::pg::errors::raise_hint;
use crate::pg::statement;

/// The wrapper of the servers that stand for models; only superusers make wrappers.
const WRAPPER: &CStr = c"laser_model";

/// Raises a SQL error unless the role that the session runs as may embed with a model.
pub fn check_model(name: &str) {
    // SAFETY: a plain question to the server.
    check(name, &[unsafe { pg_sys::GetUserId() }]);
}

/// The same of an index on text that is being built, or is to have a model: for its owner, as whom the server builds it, or
/// for whoever runs the statement, since pg_dump restores privileges after indexes. Not for the caller of a function that
/// runs with the rights of its owner, nor for whoever has the server run code of a table's owner, as by ANALYZE: those
/// could be made to lend theirs. An empty name is that of a default that the session does not know, which is asked for
/// again when it does.
pub fn check_build(name: &str) {
    if name.is_empty() {
        return;
    }
    // SAFETY: plain questions to the server.
    let roles = unsafe { [pg_sys::GetUserId(), pg_sys::GetOuterUserId()] };
    let own = statement::is_of_user();
    check(name, if own { &roles } else { &roles[..1] });
}

fn check(name: &str, roles: &[Oid]) {
    let (model, _) = model_and_language(name);
    let Some(server) = server(model) else { return };
    if !roles.iter().any(|role| may_use(server, *role)) {
        raise_hint(
            Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!("permission denied for model \"{model}\""),
            format!("It needs a privilege: GRANT USAGE ON FOREIGN SERVER \"{model}\" TO …;"),
        );
    }
}

/// The foreign server that stands for a model.
fn server(model: &str) -> Option<Oid> {
    // No name has a zero.
    let name = CString::new(model).ok()?;
    // SAFETY: look-ups in system caches, within a transaction. The row is released after what is in it was copied.
    unsafe {
        let none = Datum::from(0);
        let row = pg_sys::SearchSysCache(
            FOREIGNSERVERNAME as c_int,
            Datum::from(name.as_ptr()),
            none,
            none,
            none,
        );
        if row.is_null() {
            return None;
        }
        let found = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_foreign_server>();
        let (server, wrapper) = (found.oid, found.srvfdw);
        pg_sys::ReleaseSysCache(row);
        let is_ours = |wrapper: &pg_sys::FormData_pg_foreign_data_wrapper| {
            CStr::from_ptr(wrapper.fdwname.data.as_ptr()) == WRAPPER
        };
        catalogs::row(FOREIGNDATAWRAPPEROID, wrapper, is_ours)
            .unwrap_or(false)
            .then_some(server)
    }
}

fn may_use(server: Oid, role: Oid) -> bool {
    let mode = pg_sys::ACL_USAGE as pg_sys::AclMode;
    // SAFETY: a plain question to the server.
    let answer = unsafe {
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let answer = pg_sys::pg_foreign_server_aclcheck(server, role, mode);
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let answer = pg_sys::object_aclcheck(pg_sys::ForeignServerRelationId, server, role, mode);
        answer
    };
    answer == pg_sys::AclResult::ACLCHECK_OK
}
