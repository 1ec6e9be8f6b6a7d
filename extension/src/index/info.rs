//! Functions that look into an index, and the two that work on it by hand. The declarations are in
//! `sql/index.sql`.
#![allow(unsafe_code)]

use std::collections::BTreeMap;

use laser_index::codec::Format;
use laser_index::maintain::{self, Plan};
use laser_index::meta::Meta;
use laser_index::page::row_name;
use laser_index::{IndexError, Result, check, pending, sweep};
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
        // SAFETY: raises an error for an index that is gone. The table is locked first, as everybody
        // else does it.
        let opened = unsafe {
            pg_sys::LockRelationOid(table, TABLE_LOCK);
            Self {
                relation: PgRelation::with_lock(oid, lock as pg_sys::LOCKMODE),
                table,
            }
        };
        // Both may be others by now, or another's.
        if rights::table_of(oid, wanted) != table {
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

/// Live entries of the pending list.
fn pending_len(store: &RelationStore, meta: &Meta) -> Result<usize> {
    let mut len = 0;
    pending::read(store, &meta.parameters, &meta.pending, true, |entry| {
        len += usize::from(entry.is_live());
    })?;
    Ok(len)
}

/// What the segments of an index have taken as quantization, and why.
fn taken(store: &RelationStore, meta: &Meta) -> Result<Option<String>> {
    let mut kinds: BTreeMap<&str, (usize, Option<f32>)> = BTreeMap::new();
    for entry in &meta.segments {
        let encoding = maintain::encoding(store, &meta.parameters, entry)?;
        let mut name = encoding.codec.quantization.name();
        if encoding.codec.format == Format::First {
            name = "i8 of format 1";
        }
        let (count, noise) = kinds.entry(name).or_default();
        *count += 1;
        *noise = match (*noise, encoding.noise) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
    }
    let words: Vec<String> = kinds
        .into_iter()
        .map(|(name, (count, noise))| {
            let segments = if count == 1 { "segment" } else { "segments" };
            match noise {
                Some(noise) => format!(
                    "{name} in {count} {segments} (8 bits blur distances by {:.1} % of the gap between near neighbors, {:.0} % are allowed)",
                    100.0 * noise,
                    100.0 * laser_index::choice::LARGEST_NOISE
                ),
                None => format!("{name} in {count} {segments}"),
            }
        })
        .collect();
    Ok((!words.is_empty()).then(|| words.join("; ")))
}

#[pg_extern(sql = "")]
#[allow(clippy::type_complexity)]
fn laser_index_info(
    index: pg_sys::Oid,
) -> TableIterator<
    'static,
    (
        name!(segments, i32),
        name!(live, i64),
        name!(dead, i64),
        name!(pending, i64),
        name!(pending_bytes, i64),
        name!(bytes, i64),
        name!(type_name, String),
        name!(dimensions, Option<i32>),
        name!(metric, String),
        name!(quantization, String),
        name!(m, i32),
        name!(ef_construction, i32),
        name!(model, Option<String>),
        name!(fingerprint, Option<String>),
        name!(generation, i64),
        name!(format_version, i32),
        name!(stored_as, Option<String>),
    ),
> {
    let opened = Opened::new(index, Use::Look, pg_sys::AccessShareLock);
    opened.expect_ready();
    let store = opened.store();
    let (meta, list, taken) = retry(|| {
        let meta = Meta::read(&store)?;
        let list = pending_len(&store, &meta)?;
        let taken = taken(&store, &meta)?;
        Ok((meta, list, taken))
    });
    let p = &meta.parameters;
    let element = element::of(p);
    let text = element == Element::Text;
    let page = i64::from(pg_sys::BLCKSZ);
    let live: i64 = meta.segments.iter().map(|s| i64::from(s.live())).sum();
    let dead: i64 = meta.segments.iter().map(|s| i64::from(s.dead)).sum();
    use laser_index::store::PageStore;
    let row = (
        meta.segments.len() as i32,
        live,
        dead,
        list as i64,
        meta.pending.pages() as i64 * page,
        i64::from(store.blocks()) * page,
        element.type_name().to_owned(),
        (!p.is_undecided()).then_some(p.dims as i32),
        p.metric.name().to_owned(),
        p.quantization.map_or("auto", |q| q.name()).to_owned(),
        p.m as i32,
        p.ef_construction as i32,
        text.then(|| p.model.clone()),
        text.then(|| hex(&p.fingerprint)),
        meta.generation as i64,
        meta.format as i32,
        taken,
    );
    TableIterator::once(row)
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
        Ok(views.iter().map(|view| view.bytes().len()).sum())
    });
    bytes as i64
}
