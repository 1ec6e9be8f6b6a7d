//! Functions that look into an index, and the two that work on it by hand. The declarations are in
//! `sql/index.sql`.
#![allow(unsafe_code)]

use laser_index::maintain::Plan;
use laser_index::meta::Meta;
use laser_index::page::row_name;
use laser_index::{IndexError, Result, check, sweep};
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::{PgRelation, PgSqlErrorCode as Code};

use super::element::{self, Element};
use super::errors::OrReport;
use super::pages::{MergeLock, RelationStore};
use super::rights::{self, Use};
use super::table::Table;
use super::{build, cache, merge, unlogged};
use crate::encode::hex;
use crate::pg::encoding;
use crate::pg::errors::raise_hint;
use crate::pg::interrupts::pause;

/// An open index of this access method. Its locks are given back when it is dropped: nothing that
/// is done with it waits for the transaction to commit.
pub struct Opened {
    relation: PgRelation,
    table: pg_sys::Oid,
}

/// The lock that the table of an [`Opened`] index is held with.
const TABLE_LOCK: pg_sys::LOCKMODE = pg_sys::AccessShareLock as pg_sys::LOCKMODE;

impl Opened {
    /// Opens and locks an index that the current role may use so.
    pub fn new(oid: pg_sys::Oid, wanted: Use, lock: u32) -> Self {
        let table = rights::table_of(oid, wanted);
        let mode = lock as pg_sys::LOCKMODE;
        // SAFETY: the table is locked first, as everybody else does it. Whom that has waited for may have dropped the
        // index, of which `table_of` then raises an error; from then on it stays.
        let (opened, table_now) = unsafe {
            pg_sys::LockRelationOid(table, TABLE_LOCK);
            pg_sys::LockRelationOid(oid, mode);
            let table_now = rights::table_of(oid, wanted);
            let opened = Self {
                relation: PgRelation::with_lock(oid, mode),
                table,
            };
            pg_sys::UnlockRelationOid(oid, mode);
            (opened, table_now)
        };
        // Both may be others by now, or another's.
        if table_now != table {
            raise_hint(
                Code::ERRCODE_OBJECT_IN_USE,
                format!("index {} was replaced while it was opened", opened.name()),
                "Run the statement again.",
            );
        }
        let relation = &opened.relation;
        let name = opened.name();
        // SAFETY: the relation is open; partitioned indexes have no routine of their own.
        let ours = unsafe {
            let class = &*(*relation.as_ptr()).rd_rel;
            class.relkind as u8 == pg_sys::RELKIND_INDEX && build::is_laser(relation.as_ptr())
        };
        if !ours {
            raise_hint(
                Code::ERRCODE_WRONG_OBJECT_TYPE,
                format!("\"{name}\" is not a laser index"),
                rights::NAME_AN_INDEX,
            );
        }
        // SAFETY: the relation is open.
        let other = unsafe {
            (*relation.as_ptr()).rd_backend != INVALID_BACKEND
                && !(*relation.as_ptr()).rd_islocaltemp
        };
        if other {
            raise_hint(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot access temporary indexes of other sessions",
                "Call the function in the session that has created the index.",
            );
        }
        // SAFETY: the relation is open; a plain question to the server.
        let absent = unsafe {
            let kind = (*(*relation.as_ptr()).rd_rel).relpersistence as u8;
            kind != pg_sys::RELPERSISTENCE_PERMANENT && pg_sys::RecoveryInProgress()
        };
        if absent {
            raise_hint(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot access temporary or unlogged indexes during recovery",
                "Call the function on the primary server.",
            );
        }
        opened
    }

    /// As [`Opened::new`], if nobody has a lock against it and it is still there.
    pub fn at_once(oid: pg_sys::Oid, wanted: Use, lock: u32) -> Option<Self> {
        // SAFETY: look-ups in system caches; locks that were got are given back.
        unsafe {
            let table = pg_sys::IndexGetRelation(oid, true);
            if table == pg_sys::InvalidOid || !pg_sys::ConditionalLockRelationOid(table, TABLE_LOCK)
            {
                return None;
            }
            let mode = lock as pg_sys::LOCKMODE;
            let locked = pg_sys::ConditionalLockRelationOid(oid, mode);
            // As the catalogs are now that nobody can drop it any more.
            let opened = (locked && pg_sys::IndexGetRelation(oid, true) == table)
                .then(|| Self::new(oid, wanted, lock));
            if locked {
                pg_sys::UnlockRelationOid(oid, mode);
            }
            pg_sys::UnlockRelationOid(table, TABLE_LOCK);
            opened
        }
    }

    /// As [`Opened::new`], for changing the index: not during recovery.
    fn to_change(oid: pg_sys::Oid) -> Self {
        // SAFETY: a plain question to the server.
        if unsafe { pg_sys::RecoveryInProgress() } {
            raise_hint(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "recovery is in progress: the index cannot be changed",
                "Call the function on the primary server; standbys replay what it does.",
            );
        }
        Self::new(oid, Use::Maintain, pg_sys::RowExclusiveLock)
    }

    /// The relation, open and locked for as long as this is.
    pub fn raw(&self) -> pg_sys::Relation {
        self.relation.as_ptr()
    }

    /// Whether its build has ended: CREATE INDEX CONCURRENTLY and REINDEX CONCURRENTLY show an
    /// index to others before.
    pub fn is_ready(&self) -> bool {
        // SAFETY: the relation is open, and an index.
        unsafe { (*(*self.raw()).rd_index).indisready }
    }

    /// Its name, for messages.
    pub fn name(&self) -> String {
        // SAFETY: the relation is open.
        unsafe { encoding::name_of(self.raw()) }
    }

    /// Whether queries may use it.
    fn is_valid(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*(*self.raw()).rd_index).indisvalid }
    }

    /// Raises an error for an index whose pages are not there yet, or never will be.
    pub fn expect_ready(&self) {
        if !self.is_ready() {
            raise_hint(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("index \"{}\" is not ready", self.name()),
                "It is being built, or building it has failed: then REINDEX or drop it.",
            );
        }
    }

    /// Its pages.
    pub fn store(&self) -> RelationStore {
        // SAFETY: the relation stays open as long as `self`, and locked longer.
        unsafe {
            unlogged::reset_unlogged(self.raw());
            RelationStore::new(self.raw())
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Where an error unwinds, the abort of the transaction gives the lock back.
        if !std::thread::panicking() {
            // SAFETY: taken by `new`. The index is closed, and its lock given back, after this.
            unsafe { pg_sys::UnlockRelationOid(self.table, TABLE_LOCK) };
        }
    }
}

const INVALID_BACKEND: i32 = -1;

/// Tries again when a merge comes in between.
pub fn retry<R>(mut look: impl FnMut() -> Result<R>) -> R {
    let mut attempts = 0;
    loop {
        match look() {
            Err(IndexError::Moved { .. }) if attempts < 100 => attempts += 1,
            result => return result.or_report(),
        }
    }
}

/// Name and fingerprint of the model of an index on text. No row for other indexes, and for one that somebody
/// has locked: a view over all indexes waits for none.
#[pg_extern(sql = "")]
fn laser_index_model(
    index: pg_sys::Oid,
) -> TableIterator<'static, (name!(model, String), name!(fingerprint, String))> {
    let row = Opened::at_once(index, Use::Look, TABLE_LOCK as u32).and_then(|opened| {
        let p = opened
            .is_ready()
            .then(|| retry(|| Meta::read(&opened.store())).parameters)?;
        (element::of(&p) == Element::Text).then(|| (p.model.clone(), hex(&p.fingerprint)))
    });
    TableIterator::new(row)
}

const NOT_VALID: &str =
    "the index is not valid: it is being built, or CREATE INDEX CONCURRENTLY or REINDEX has failed";

/// Missing rows that are named; of the others only their number is said.
const MISSING_NAMED: usize = 20;

#[pg_extern(sql = "")]
fn laser_index_check(index: pg_sys::Oid, heapallindexed: bool) -> SetOfIterator<'static, String> {
    // Merges and vacuums are kept away, inserts are not.
    let opened = Opened::new(index, Use::Maintain, pg_sys::RowExclusiveLock);
    // It may have no pages yet.
    if !opened.is_ready() && !opened.is_valid() {
        return SetOfIterator::once(NOT_VALID.into());
    }
    let store = opened.store();
    // SAFETY: the index is open. The snapshot of the table is taken before the index is read.
    let table = unsafe { Table::new(opened.raw()) };
    // A standby takes no such locks, and needs none: there nobody but recovery changes the index,
    // and a merge in between is noticed and the check done again.
    // SAFETY: the index is open.
    let lock = unsafe { (!pg_sys::RecoveryInProgress()).then(|| MergeLock::wait(opened.raw())) };
    let folder = cache::folder();
    let mut report = retry(|| {
        let meta = Meta::read(&store)?;
        let mut report = check::check(&store, &folder)?;
        // SAFETY: the index is open.
        let mismatch = unsafe { element::mismatch(opened.raw(), &meta.parameters) };
        report.problems.extend(mismatch);
        Ok(report)
    });
    table.wrong_addresses(&report.rows, |tid, what| {
        let name = row_name(tid);
        report
            .problems
            .push(format!("{name} is in the index, but {what}"));
    });
    drop(lock);
    if !opened.is_valid() {
        report.problems.push(NOT_VALID.into());
    } else if heapallindexed {
        let complete = Meta::read(&store).or_report().complete;
        let mut missing = 0;
        let mut compare = |tid| {
            if report.rows.binary_search(&tid).is_err() {
                missing += 1;
                if missing <= MISSING_NAMED {
                    let name = row_name(tid);
                    report
                        .problems
                        .push(format!("{name} of the table is not in the index"));
                }
            }
        };
        if complete {
            table.rows(|tid, _| compare(tid));
        } else {
            // The first format left out what has no vector, or none with a direction.
            let parameters = Meta::read(&store).or_report().parameters;
            table.vectors(&parameters, |tid, _| compare(tid));
        }
        if missing > MISSING_NAMED {
            let more = missing - MISSING_NAMED;
            report.problems.push(format!(
                "{more} more rows of the table are not in the index"
            ));
        }
    }
    SetOfIterator::new(report.problems)
}

#[pg_extern(sql = "")]
fn laser_merge(index: pg_sys::Oid) -> i32 {
    let opened = Opened::to_change(index);
    opened.expect_ready();
    let store = opened.store();
    if !opened.is_valid() {
        raise_hint(
            Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("index \"{}\" is not valid", opened.name()),
            "It is being built, or building it has failed: then REINDEX or drop it.",
        );
    }
    // SAFETY: the index is open.
    let lock = unsafe { MergeLock::wait(opened.raw()) };
    sweep::sweep(&store).or_report();
    // SAFETY: the index is open, and its lock is held.
    let made = unsafe { merge::merge(opened.raw(), &store, Plan::All) }.or_report();
    sweep::sweep(&store).or_report();
    drop(lock);
    made as i32
}

#[pg_extern(sql = "")]
fn laser_prewarm(index: pg_sys::Oid) -> i64 {
    let opened = Opened::new(index, Use::Maintain, pg_sys::AccessShareLock);
    opened.expect_ready();
    let store = opened.store();
    let bytes: usize = retry(|| {
        let meta = Meta::read(&store)?;
        // SAFETY: the index is open.
        let views = unsafe { cache::views(opened.raw(), &store, &meta) }?;
        views.iter().for_each(|view| view.load(&pause));
        Ok(views.iter().map(|view| view.bytes().len()).sum())
    });
    bytes as i64
}
