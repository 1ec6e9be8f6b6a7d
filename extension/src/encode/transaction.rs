//! What a procedure that commits needs to know of its transactions and of what it works on.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};

use pgrx::prelude::*;
use pgrx::{PgSqlErrorCode as Code, pg_sys};

use super::labels;
use crate::pg::catalogs::owns;
use crate::pg::encoding;
use crate::pg::errors::{raise, raise_hint};

/// Whether the session is inside a transaction block, an implicit one of several statements
/// included: the condition under which `CALL` lets no procedure commit.
#[pg_extern(sql = "")]
fn laser_in_transaction_block() -> bool {
    // SAFETY: reads a state of this backend.
    unsafe { pg_sys::IsTransactionBlock() }
}

/// Locks a table as UPDATE does, or so that nobody else labels its columns (*alone*), until the transaction ends, and
/// returns its name as statements are to write it. A procedure that commits has no lock in between, so that the name it
/// was given may belong to another table by now, or to one that somebody has put before it in the search path.
///
/// The name is that of the locked table: nobody can rename, move or drop it. The owner of its schema can still
/// put another one in its place, by renaming that: statements that have the name have a mark ([`crate::pg::trust`]).
#[pg_extern(sql = "")]
fn laser_lock_table(table: pg_sys::Oid, alone: bool) -> CString {
    // SAFETY: look-ups in system caches within a transaction, which is where a lock is taken too. What
    // they return is null or a C string.
    unsafe {
        // Before anything is locked: nobody holds up a table that he may not update, or the maintenance of one that
        // is not his.
        may_lock(table, alone);
        if alone {
            labels::lock(table);
        } else {
            pg_sys::LockRelationOid(table, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
        }
        may_lock(table, alone);
        let (relation, schema) = (
            pg_sys::get_rel_name(table),
            pg_sys::get_namespace_name(pg_sys::get_rel_namespace(table)),
        );
        if relation.is_null() || schema.is_null() {
            is_gone(table);
        }
        let name = pg_sys::quote_qualified_identifier(schema, relation);
        CStr::from_ptr(name).to_owned()
    }
}

/// Raises an error unless there is a table that the current role owns (*alone*), or may update a column of.
fn may_lock(table: pg_sys::Oid, alone: bool) {
    // SAFETY: plain questions to the server.
    unsafe {
        let name = pg_sys::get_rel_name(table);
        if name.is_null() {
            is_gone(table);
        }
        let kind = pg_sys::get_rel_relkind(table) as u8;
        if ![pg_sys::RELKIND_RELATION, pg_sys::RELKIND_PARTITIONED_TABLE].contains(&kind) {
            raise(
                Code::ERRCODE_WRONG_OBJECT_TYPE,
                format!("\"{}\" is not a table", encoding::shown(name)),
            );
        }
        if alone {
            if !owns(table) {
                raise(
                    Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                    format!("must be owner of table {}", encoding::shown(name)),
                );
            }
            return;
        }
        let (role, update) = (pg_sys::GetUserId(), pg_sys::ACL_UPDATE as pg_sys::AclMode);
        let granted = |check| check == pg_sys::AclResult::ACLCHECK_OK;
        let any = pg_sys::AclMaskHow::ACLMASK_ANY;
        if !granted(pg_sys::pg_class_aclcheck(table, role, update))
            && !granted(pg_sys::pg_attribute_aclcheck_all(table, role, update, any))
        {
            raise(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("permission denied for table {}", encoding::shown(name)),
            );
        }
    }
}

fn is_gone(table: pg_sys::Oid) -> ! {
    raise_hint(
        Code::ERRCODE_UNDEFINED_TABLE,
        format!("there is no table with OID {} any more", table.to_u32()),
        "It was dropped meanwhile. Rows that were embedded before are committed.",
    )
}
