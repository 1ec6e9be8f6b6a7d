//! The table of an index: its rows as CREATE INDEX sees them, and whether an address is that of a
//! row.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use laser_index::meta::Parameters;
use laser_index::metric::Metric;
use pgrx::{PgRelation, PgSqlErrorCode as Code, pg_sys};

use super::bufpage;
use super::element::{self, Element, TextBatch};
use super::rights::AsOwner;
use crate::pg::errors::raise_hint;
use crate::pg::interrupts::pause;
use crate::pg::tid::pack;

/// A sequential scan that leaves the buffer cache to others, as `table_beginscan_strat` begins it.
const SCAN: u32 = pg_sys::ScanOptions::SO_TYPE_SEQSCAN
    | pg_sys::ScanOptions::SO_ALLOW_STRAT
    | pg_sys::ScanOptions::SO_ALLOW_SYNC
    | pg_sys::ScanOptions::SO_ALLOW_PAGEMODE;

/// The table of an index, and a snapshot that says which of its rows count. Whoever reads the index
/// after this was made finds every one of them there: entries of rows that a registered snapshot
/// sees stay.
pub struct Table {
    index: pg_sys::Relation,
    relation: PgRelation,
    snapshot: pg_sys::Snapshot,
}

impl Table {
    /// Opens the table of an index and takes a snapshot.
    ///
    /// Raises an error where the transaction's snapshot is older than the index and may see rows
    /// that the index need not hold (`indcheckxmin`, as amcheck's `bt_check_every_level` does it).
    ///
    /// # Safety
    /// `index` is open and stays so.
    pub unsafe fn new(index: pg_sys::Relation) -> Self {
        // SAFETY: by contract.
        unsafe {
            let form = &*(*index).rd_index;
            let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
            let relation = PgRelation::with_lock(form.indrelid, lock);
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot());
            let header = (*(*index).rd_indextuple).t_data;
            let made = (*header).t_choice.t_heap.t_xmin;
            let old = pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as c_int
                && form.indcheckxmin
                && !pg_sys::TransactionIdPrecedes(made, (*snapshot).xmin);
            if old {
                raise_hint(
                    Code::ERRCODE_T_R_SERIALIZATION_FAILURE,
                    "the index cannot be compared with its table by the snapshot of this transaction",
                    "The index is newer than the snapshot: call the function in a new transaction.",
                );
            }
            Self {
                index,
                relation,
                snapshot,
            }
        }
    }

    /// Shows the address and the value, if it is not NULL, of every row that the snapshot sees and
    /// that satisfies the predicate of the index. Expressions are evaluated as the owner of the
    /// table and under a safe search path, see [`AsOwner`].
    pub fn rows(&self, mut look: impl FnMut(u64, Option<pg_sys::Datum>)) {
        let mut look: &mut dyn FnMut(u64, Option<pg_sys::Datum>) = &mut look;
        // SAFETY: both relations are open. The range scan ends the scan that it is given. What an
        // error leaves behind, the abort of the transaction restores.
        unsafe {
            let heap = self.relation.as_ptr();
            // From here on: to make the index info may already evaluate what is constant in an
            // expression.
            let owner = AsOwner::of(heap);
            let info = pg_sys::BuildIndexInfo(self.index);
            (*info).ii_Concurrent = true;
            let method = &*(*heap).rd_tableam;
            let begin = method.scan_begin.expect("every table has it");
            let range_scan = method.index_build_range_scan.expect("every table has it");
            let state = std::ptr::from_mut(&mut look).cast::<c_void>();
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                let scan = begin(
                    heap,
                    self.snapshot,
                    0,
                    std::ptr::null_mut(),
                    std::ptr::null_mut(),
                    SCAN,
                );
                range_scan(
                    heap,
                    self.index,
                    info,
                    true,
                    false,
                    false,
                    0,
                    u32::MAX,
                    Some(show),
                    state,
                    scan,
                )
            });
            drop(owner);
        }
    }

    /// As [`Table::rows`], with the vectors of those rows that have a place in the graph.
    pub fn vectors(&self, parameters: &Parameters, mut look: impl FnMut(u64, &[f32])) {
        let element = element::of(parameters);
        let mut look = |tid, x: &[f32]| {
            if parameters.metric != Metric::Cosine || x.iter().any(|x| *x != 0.0) {
                look(tid, x);
            }
        };
        let mut texts = TextBatch::default();
        self.rows(|tid, value| {
            let Some(value) = value else { return };
            // SAFETY: the value is that of a row, of the type that the index is on, not NULL.
            unsafe {
                if element != Element::Text {
                    element::with_vector(element, value, |x| look(tid, x));
                } else if texts.push(tid, element::text(value)) {
                    texts.embed(parameters, &mut look);
                }
            }
        });
        texts.embed(parameters, &mut look);
    }

    /// Reports addresses of entries that cannot be addresses of rows; they ascend. The caller
    /// keeps VACUUM away from the index, and with it from line pointers that entries refer to.
    pub fn wrong_addresses(&self, tids: &[u64], mut report: impl FnMut(u64, String)) {
        let heap = self.relation.as_ptr();
        // SAFETY: the table is open and locked; a buffer is pinned and locked while its page is
        // read, and offsets are compared with the page's number of line pointers.
        unsafe {
            if !std::ptr::eq((*heap).rd_tableam, pg_sys::GetHeapamTableAmRoutine()) {
                return;
            }
            // Nothing keeps recovery from freeing line pointers and giving them to other rows.
            let recovery = pg_sys::RecoveryInProgress();
            let main = pg_sys::ForkNumber::MAIN_FORKNUM;
            let blocks = pg_sys::RelationGetNumberOfBlocksInFork(heap, main);
            for tids in tids.chunk_by(|a, b| a >> 16 == b >> 16) {
                pause();
                let block = tids[0] >> 16;
                if block >= u64::from(blocks) {
                    for &tid in tids {
                        report(tid, format!("the table has {blocks} blocks"));
                    }
                    continue;
                }
                if recovery {
                    continue;
                }
                let buffer = pg_sys::ReadBuffer(heap, block as u32);
                pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
                let page = pg_sys::BufferGetPage(buffer);
                let items = bufpage::line_pointers(page);
                for &tid in tids {
                    let offset = tid as u16;
                    if offset == 0 || offset > items {
                        report(tid, format!("the page has {items} line pointers"));
                        continue;
                    }
                    let pointer = bufpage::line_pointer(page, offset);
                    let flags = pointer.lp_flags();
                    if flags == pg_sys::LP_UNUSED {
                        report(tid, "the line pointer is not in use".into());
                    }
                    if flags == pg_sys::LP_NORMAL {
                        let row =
                            bufpage::item(page, pointer).cast::<pg_sys::HeapTupleHeaderData>();
                        if u32::from((*row).t_infomask2) & pg_sys::HEAP_ONLY_TUPLE != 0 {
                            report(
                                tid,
                                "the row is a later version of a row in the index".into(),
                            );
                        }
                    }
                }
                pg_sys::UnlockReleaseBuffer(buffer);
            }
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: registered in `new`.
            unsafe { pg_sys::UnregisterSnapshot(self.snapshot) };
        }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn show(
    _index: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    values: *mut pg_sys::Datum,
    isnull: *mut bool,
    _alive: bool,
    state: *mut c_void,
) {
    // SAFETY: the server passes one value, and the state that the range scan was given.
    unsafe {
        let look = &mut *state.cast::<&mut dyn FnMut(u64, Option<pg_sys::Datum>)>();
        look(pack(tid), (!*isnull).then_some(*values));
    }
}
