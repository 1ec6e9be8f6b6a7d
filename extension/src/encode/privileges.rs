//! Who may embed with a model: everybody, unless a foreign server of the extension's wrapper, `laser_model`, has the model's
//! name; then those who have USAGE on that server.
//!
//! The server keeps such privileges: `GRANT` and `REVOKE`, members of roles, owners, dumps, and plans that are made again
//! when they change. A model with an encoder for each language (`MODEL@LANGUAGE`) goes by the name before the `@`.
//!
//! It is asked whenever a text is embedded, of the role that the function runs as, and when an index on text is given its
//! model. An index that names its model has been let have it: rows that come into it later are embedded whoever inserts
//! them, as nobody needs a privilege for what a constraint of a table does, and so they are when it is built again.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_int};

use laser_protocol::model_and_language;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::SysCacheIdentifier::{FOREIGNDATAWRAPPEROID, FOREIGNSERVERNAME};
use pgrx::pg_sys::{self, Datum, Oid};

use crate::pg::catalogs;
use crate::pg::errors::raise_hint;
use crate::pg::statement;

/// The wrapper of the servers that stand for models, by the name that the extension gives it; only superusers make wrappers.
const WRAPPER: &CStr = c"laser_model";
const EXTENSION: &CStr = c"laser";

/// Raises a SQL error unless the role that the session runs as may embed with a model.
pub fn check_model(name: &str) {
    // SAFETY: a plain question to the server.
    check(name, &[unsafe { pg_sys::GetUserId() }], "");
}

/// The same of a model that a storage parameter of an index names, unless the statement leaves that as it was: for the role that
/// runs, which is the owner where the server makes the index, or for whoever runs the statement, since pg_dump restores
/// privileges after indexes. Not for the caller of a function that runs with the rights of its owner, nor for whoever has the
/// server run code of a table's owner, as by ANALYZE: those could be made to lend theirs.
pub fn check_parameter(name: &str) {
    if !statement::leaves_parameter() {
        check_build(name, statement::is_of_user(), "");
    }
}

/// The same of the default model, which an index that names none is built with. Whoever builds an index again lends his to
/// nobody: the default may have become another since, or the index never have had one. An empty name is that of a default
/// that the session does not know, which is asked for again when it does.
pub fn check_default(name: &str) {
    if name.is_empty() {
        return;
    }
    match statement::makes_indexes() {
        true => check_build(name, statement::is_of_user(), ""),
        false => check_build(
            name,
            false,
            " Or name the model of the index: ALTER INDEX … SET (model = …).",
        ),
    }
}

/// `lends` says whether who runs the statement is asked beside the owner of the index.
fn check_build(name: &str, lends: bool, further_hint: &str) {
    // SAFETY: plain questions to the server.
    let roles = unsafe { [pg_sys::GetUserId(), pg_sys::GetOuterUserId()] };
    check(name, if lends { &roles } else { &roles[..1] }, further_hint);
}

fn check(name: &str, roles: &[Oid], further_hint: &str) {
    let (model, _) = model_and_language(name);
    let Some(server) = server(model) else { return };
    if !roles.iter().any(|role| may_use(server, *role)) {
        raise_hint(
            Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!("permission denied for model \"{model}\""),
            format!(
                "It needs a privilege: GRANT USAGE ON FOREIGN SERVER \"{model}\" TO …;{further_hint}"
            ),
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
        let is_ours = catalogs::row(FOREIGNDATAWRAPPEROID, wrapper, is_ours).unwrap_or(false);
        // Under whatever name: a search, for servers of wrappers of other names.
        let is_of_extension =
            || catalogs::is_of_extension(pg_sys::ForeignDataWrapperRelationId, wrapper, EXTENSION);
        (is_ours || is_of_extension()).then_some(server)
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
