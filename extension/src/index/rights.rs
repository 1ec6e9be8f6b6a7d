//! Whose rights: what a role may ask of an index, and whose code runs how.
//!
//! Rights are looked up in the catalogs before anything is locked, so that nobody waits for, or
//! holds up, a table that is none of his business, and once more under the lock, since the owner
//! may have changed while it was waited for.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};

use pgrx::pg_sys::{self, Oid};
use pgrx::{PgLogLevel, PgSqlErrorCode as Code};

use crate::pg::catalogs::{self, owns, reads_all_statistics};
use crate::pg::encoding;
use crate::pg::errors::{raise, raise_hint};

/// What a function does with an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// It tells of its size and parameters.
    Look,
    /// It tells of them as of a part of a partitioned index that the role may look at ([`parts_of`]).
    LookAtPart,
    /// It reads or changes all of it, and may evaluate its expressions as the owner.
    Maintain,
}

/// Hint where a relation is not a laser index.
pub const NAME_AN_INDEX: &str = "Give the name of an index that was created with USING laser.";

/// A role that may run what reads whole tables to report on them, as pgstattuple does.
const STAT_SCAN_TABLES: u32 = pg_sys::ROLE_PG_STAT_SCAN_TABLES;

/// Name and kind of an index, and its table. Locks nothing.
fn look_up(index: Oid) -> (String, u8, Oid) {
    // SAFETY: look-ups in system caches, within a transaction. The name is copied at once.
    let (name, kind, table) = unsafe {
        let name = pg_sys::get_rel_name(index);
        let name = (!name.is_null()).then(|| encoding::shown(name));
        let kind = pg_sys::get_rel_relkind(index) as u8;
        (name, kind, pg_sys::IndexGetRelation(index, true))
    };
    let Some(name) = name else {
        raise_hint(
            Code::ERRCODE_UNDEFINED_OBJECT,
            format!("there is no index with OID {}", index.to_u32()),
            NAME_AN_INDEX,
        );
    };
    (name, kind, table)
}

/// The indexes with pages that a partitioned index consists of, if the current role may look at it; `None`
/// for any other relation. Locks nothing. Whoever may read a partitioned table may read its partitions
/// through it, and needs no right to each.
pub fn parts_of(index: Oid) -> Option<Vec<Oid>> {
    let (name, kind, table) = look_up(index);
    if kind != pg_sys::RELKIND_PARTITIONED_INDEX {
        return None;
    }
    if !catalogs::is_of_method(index, c"laser") {
        raise_hint(
            Code::ERRCODE_WRONG_OBJECT_TYPE,
            format!("\"{name}\" is not a laser index"),
            NAME_AN_INDEX,
        );
    }
    if !(owns(index) || maintains(table) || reads(table)) {
        deny_look(&name);
    }
    let mut below = catalogs::all_below(index);
    // SAFETY: a look-up in a system cache.
    below.retain(|part| unsafe { pg_sys::get_rel_relkind(*part) } as u8 == pg_sys::RELKIND_INDEX);
    Some(below)
}

fn deny_look(name: &str) -> ! {
    raise_hint(
        Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
        format!("permission denied for index {name}"),
        "It needs SELECT on its table, or the role pg_stat_scan_tables.",
    )
}

/// The table of an index, if the current role may use the index so; an error otherwise. Locks
/// nothing.
pub fn table_of(index: Oid, wanted: Use) -> Oid {
    let (name, kind, table) = look_up(index);
    if kind == pg_sys::RELKIND_PARTITIONED_INDEX {
        raise_hint(
            Code::ERRCODE_WRONG_OBJECT_TYPE,
            format!("\"{name}\" is a partitioned index, which has no pages of its own"),
            "Call the function on the index of each partition: FROM pg_partition_tree('…') AS p, laser_index_check(p.relid) WHERE p.isleaf",
        );
    }
    if kind != pg_sys::RELKIND_INDEX || table == pg_sys::InvalidOid {
        raise_hint(
            Code::ERRCODE_WRONG_OBJECT_TYPE,
            format!("\"{name}\" is not a laser index"),
            NAME_AN_INDEX,
        );
    }
    if owns(index) || maintains(table) {
        return table;
    }
    match wanted {
        Use::LookAtPart => table,
        Use::Look if reads(table) => table,
        Use::Look => deny_look(&name),
        Use::Maintain => raise(
            Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!("must be owner of index {name}"),
        ),
    }
}

/// Whether the current role hears what the server does with an index: as its owner, in its database, or
/// as one who reads all statistics.
pub fn sees_statistics(database: Oid, index: Oid) -> bool {
    // SAFETY: plain questions to the server, about a relation that is there.
    unsafe {
        reads_all_statistics()
            || (database == pg_sys::MyDatabaseId
                && pg_sys::get_rel_relkind(index) as u8 == pg_sys::RELKIND_INDEX
                && owns(index))
    }
}

/// Whether the current role may maintain a table that is not its own, as it may REINDEX it.
#[cfg(any(feature = "pg17", feature = "pg18"))]
fn maintains(table: Oid) -> bool {
    granted(table, pg_sys::ACL_MAINTAIN)
}

/// Before PostgreSQL 17 there is no such privilege.
#[cfg(not(any(feature = "pg17", feature = "pg18")))]
fn maintains(_table: Oid) -> bool {
    false
}

fn reads(table: Oid) -> bool {
    // SAFETY: a plain question to the server.
    let scans =
        unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), Oid::from(STAT_SCAN_TABLES)) };
    scans || granted(table, pg_sys::ACL_SELECT)
}

fn granted(table: Oid, privilege: u32) -> bool {
    // SAFETY: a plain question to the server.
    unsafe {
        let mode = privilege as pg_sys::AclMode;
        pg_sys::pg_class_aclcheck(table, pg_sys::GetUserId(), mode)
            == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// The search path under which code of a table's owner runs: objects of whoever calls are not on
/// it, and temporary ones come last (`GUC_SAFE_SEARCH_PATH` in `src/include/utils/guc.h`, which
/// REINDEX and others set from PostgreSQL 17 on).
const SAFE_SEARCH_PATH: &CStr = c"pg_catalog, pg_temp";

/// While it exists, the session has the rights of a table's owner, may not change roles or leave
/// anything behind (`SECURITY_RESTRICTED_OPERATION`), and has a search path of the server's own:
/// so expressions of an index run, whoever asks for it. What an error leaves behind, the abort of
/// the transaction restores.
pub struct AsOwner {
    user: Oid,
    context: c_int,
    level: c_int,
}

impl AsOwner {
    /// Becomes the owner of a table.
    ///
    /// # Safety
    /// `table` is open. The value is not kept beyond the statement.
    pub unsafe fn of(table: pg_sys::Relation) -> Self {
        let (mut user, mut context) = (pg_sys::InvalidOid, 0);
        // SAFETY: by contract. The settings are those of a nest level that `drop` ends.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
            let restricted = context | pg_sys::SECURITY_RESTRICTED_OPERATION as c_int;
            pg_sys::SetUserIdAndSecContext((*(*table).rd_rel).relowner, restricted);
            let level = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"search_path".as_ptr(),
                SAFE_SEARCH_PATH.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                PgLogLevel::ERROR as c_int,
                false,
            );
            Self {
                user,
                context,
                level,
            }
        }
    }
}

impl Drop for AsOwner {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: what `of` found, and the nest level that it began.
            unsafe {
                pg_sys::AtEOXact_GUC(false, self.level);
                pg_sys::SetUserIdAndSecContext(self.user, self.context);
            }
        }
    }
}
