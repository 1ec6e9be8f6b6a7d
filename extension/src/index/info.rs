//! Functions that look into an index, and the two that work on it by hand. The declarations are in
//! `sql/index.sql`.
#![allow(unsafe_code)]

use laser_index::codec::Metric;
use laser_index::maintain::{self, Plan, row_name};
use laser_index::meta::Meta;
use laser_index::page::DEAD;
use laser_index::{IndexError, Result, pending};
use pgrx::pg_sys;
use pgrx::prelude::*;
use pgrx::{PgRelation, PgSqlErrorCode as Code};

use super::element::{self, Element};
use super::errors::OrReport;
use super::pages::{MergeLock, RelationStore, vacuum_free_space_map};
use super::table::Table;
use super::{build, cache, merge};
use crate::types::{raise, raise_hint};

/// An open index of this access method.
pub struct Opened {
    relation: PgRelation,
}

impl Opened {
    /// Opens and locks an index, until the end of the transaction.
    pub fn new(oid: pg_sys::Oid, lock: u32) -> Self {
        // SAFETY: raises an error for what is not an index. The table is locked first, as everybody
        // else does it. Locks are kept: letting them go while an error unwinds would let them go
        // twice.
        let relation = unsafe {
            let table = pg_sys::IndexGetRelation(oid, true);
            if table != pg_sys::InvalidOid {
                pg_sys::LockRelationOid(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            }
            PgRelation::with_lock(oid, lock as pg_sys::LOCKMODE)
        };
        let name = relation.name().to_owned();
        // SAFETY: the relation is open; partitioned indexes have no routine of their own.
        let ours = unsafe {
            let class = &*(*relation.as_ptr()).rd_rel;
            let routine = (*relation.as_ptr()).rd_indam;
            class.relkind as u8 == pg_sys::RELKIND_INDEX
                && !routine.is_null()
                && (*routine)
                    .ambuild
                    .is_some_and(|f| f as usize == build::build as *const () as usize)
        };
        if !ours {
            raise(
                Code::ERRCODE_WRONG_OBJECT_TYPE,
                format!("\"{name}\" is not a laser index"),
            );
        }
        // SAFETY: the relation is open.
        let other = unsafe {
            (*relation.as_ptr()).rd_backend != INVALID_BACKEND
                && !(*relation.as_ptr()).rd_islocaltemp
        };
        if other {
            raise(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot access temporary indexes of other sessions",
            );
        }
        Self { relation }
    }

    /// As [`Opened::new`], for changing the index: its owner alone, and not during recovery.
    fn to_change(oid: pg_sys::Oid) -> Self {
        // SAFETY: a plain question to the server.
        if unsafe { pg_sys::RecoveryInProgress() } {
            raise(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "recovery is in progress: the index cannot be changed",
            );
        }
        let opened = Self::new(oid, pg_sys::RowExclusiveLock);
        // SAFETY: plain questions to the server.
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let owner = unsafe { pg_sys::pg_class_ownercheck(oid, pg_sys::GetUserId()) };
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        // SAFETY: as above.
        let owner = unsafe {
            pg_sys::object_ownercheck(pg_sys::RelationRelationId, oid, pg_sys::GetUserId())
        };
        if !owner {
            raise(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("must be owner of index {}", opened.relation.name()),
            );
        }
        opened
    }

    /// The relation.
    pub fn raw(&self) -> pg_sys::Relation {
        self.relation.as_ptr()
    }

    /// Whether its build has ended: CREATE INDEX CONCURRENTLY and REINDEX CONCURRENTLY show an
    /// index to others before.
    fn is_ready(&self) -> bool {
        // SAFETY: the relation is open, and an index.
        unsafe { (*(*self.raw()).rd_index).indisready }
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
                format!("index \"{}\" is not ready", self.relation.name()),
                "It is being built, or building it has failed: then REINDEX or drop it.",
            );
        }
    }

    /// Its pages.
    pub fn store(&self) -> RelationStore {
        // SAFETY: the relation stays open as long as `self`, and locked longer.
        unsafe { RelationStore::new(self.raw()) }
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

/// Addresses and stored forms of the live pending entries.
pub fn pending_entries(store: &RelationStore, meta: &Meta) -> Result<Vec<(u64, Vec<u8>)>> {
    let mut entries = Vec::new();
    pending::read(
        store,
        &meta.parameters.codec,
        &meta.pending,
        true,
        |tid, stored| {
            if tid & DEAD == 0 {
                entries.push((tid, stored.to_vec()));
            }
        },
    )?;
    Ok(entries)
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
        name!(dimensions, i32),
        name!(metric, String),
        name!(quantization, String),
        name!(m, i32),
        name!(ef_construction, i32),
        name!(model, Option<String>),
        name!(fingerprint, Option<String>),
        name!(generation, i64),
        name!(format_version, i32),
    ),
> {
    let opened = Opened::new(index, pg_sys::AccessShareLock);
    opened.expect_ready();
    let store = opened.store();
    let (meta, list) = retry(|| {
        let meta = Meta::read(&store)?;
        let list = pending_entries(&store, &meta)?.len();
        Ok((meta, list))
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
        match element {
            Element::Embedding => "embedding",
            Element::HalfEmbedding => "halfembedding",
            Element::Text => "text",
        }
        .to_owned(),
        p.codec.dims as i32,
        p.codec.metric.name().to_owned(),
        p.codec.quantization.name().to_owned(),
        p.m as i32,
        p.ef_construction as i32,
        text.then(|| p.model.clone()),
        text.then(|| p.fingerprint.iter().map(|b| format!("{b:02x}")).collect()),
        meta.generation as i64,
        laser_index::page::FORMAT_VERSION as i32,
    );
    TableIterator::once(row)
}

const NOT_VALID: &str =
    "the index is not valid: it is being built, or CREATE INDEX CONCURRENTLY or REINDEX has failed";

/// Missing rows that are named; of the others only their number is said.
const MISSING_NAMED: usize = 20;

#[pg_extern(sql = "")]
fn laser_index_check(index: pg_sys::Oid, heapallindexed: bool) -> SetOfIterator<'static, String> {
    // Merges and vacuums are kept away, inserts are not.
    let opened = Opened::new(index, pg_sys::RowExclusiveLock);
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
    let mut report = retry(|| maintain::check(&store));
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
        let parameters = Meta::read(&store).or_report().parameters;
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
        if parameters.codec.metric == Metric::Cosine && element::of(&parameters) != Element::Text {
            // Vectors without a direction are not indexed.
            table.vectors(&parameters, |tid, _| compare(tid));
        } else {
            table.rows(|tid, _| compare(tid));
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
    let store = opened.store();
    opened.expect_ready();
    if !opened.is_valid() {
        raise_hint(
            Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("index \"{}\" is not valid", opened.relation.name()),
            "It is being built, or building it has failed: then REINDEX or drop it.",
        );
    }
    // SAFETY: the index is open.
    let lock = unsafe { MergeLock::wait(opened.raw()) };
    maintain::sweep(&store).or_report();
    // SAFETY: the index is open.
    unsafe { vacuum_free_space_map(opened.raw()) };
    // SAFETY: the index is open, and its lock is held.
    let made = unsafe { merge::merge(opened.raw(), &store, Plan::All) }.or_report();
    maintain::sweep(&store).or_report();
    drop(lock);
    // SAFETY: the index is open.
    unsafe { vacuum_free_space_map(opened.raw()) };
    made as i32
}

#[pg_extern(sql = "")]
fn laser_prewarm(index: pg_sys::Oid) -> i64 {
    let opened = Opened::new(index, pg_sys::AccessShareLock);
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
