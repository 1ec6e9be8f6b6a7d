//! The rows that scans of text indexes have just given, for the operator `<=>`.
//!
//! A query that is ordered by `body <=> 'what is searched for'` has that expression among its columns,
//! hidden or not, so the executor computes it of every row that the scan gives. The scan knows the
//! distance already, and to compute it again would mean to embed the row's text. So the operator asks
//! here first.
//!
//! It has texts and no addresses: whether they are those of the row is looked up in the table, which
//! costs less than any embedding. The row is there as the scan's snapshot sees it, its page was read a
//! moment ago, and all versions of a row that an index entry stands for have the same indexed value.
//!
//! Invariants:
//! - What is recorded is dropped with its scan, and so within the life of the scan's snapshot.
//! - It is given to expressions of the query alone that the scan is part of. A cursor that is left open
//!   says nothing to functions that run meanwhile, which may be those of other roles.
//! - Nor to queries that write ([`writing`]): the distance of a scan is that of what the index has stored,
//!   which differs from that of the texts by its rounding. For the same reason not where row-level security
//!   may ask for distances.
//! - No code but the server's own runs for it ([`is_builtin`]).
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use pgrx::pg_sys::{self, NodeTag};
use pgrx::{PgMemoryContexts, varlena};

use super::build::unpack;
use super::{element, writing};
use crate::encode::Known;

/// Scans that may be asked, the last ones to give a row; a search over more partitions than that
/// is served as well, since a row is asked for before the next one comes.
const ASKED: usize = 4;

/// What a scan is looking for.
#[derive(Debug)]
pub struct Asked {
    /// As `laser.model` was set.
    pub model: String,
    /// The text, in the encoding of the database.
    pub text: Vec<u8>,
    /// Its embedding.
    pub known: Rc<Known>,
}

/// The last row of a scan.
#[derive(Debug)]
struct Row {
    asked: Rc<Asked>,
    tid: u64,
    distance: f64,
}

/// What is there to evaluate the index's column of a row. After an error in it, it is made anew: none of
/// what the executor has made for an expression may be used again then.
enum Column {
    Known {
        info: *mut pg_sys::IndexInfo,
        estate: *mut pg_sys::EState,
    },
    /// An expression that may run somebody's code.
    Opaque,
}

struct Scan {
    index: pg_sys::Oid,
    /// That of the query which the scan is part of (`es_query_cxt`): scans begin in it, and what expressions
    /// need of the functions that they call is made in it. It lives longer than the scan.
    query: pg_sys::MemoryContext,
    column: Option<Column>,
    row: Option<Row>,
}

/// A scan's place here.
#[derive(Default)]
pub struct Given(Option<Rc<RefCell<Scan>>>);

thread_local! {
    /// The last one to give a row comes last.
    static SCANS: RefCell<Vec<Weak<RefCell<Scan>>>> = const { RefCell::new(Vec::new()) };
}

impl Given {
    /// For a scan of this index, which has begun in the memory context of its query.
    ///
    /// # Safety
    /// The index is open, and its table is locked.
    pub unsafe fn new(index: pg_sys::Relation, query: pg_sys::MemoryContext) -> Self {
        // SAFETY: by contract.
        let index = unsafe {
            if writing::is(query) || has_foreign_policies((*(*index).rd_index).indrelid) {
                return Self(None);
            }
            (*index).rd_id
        };
        Self(Some(Rc::new(RefCell::new(Scan {
            index,
            query,
            column: None,
            row: None,
        }))))
    }

    /// Records the row that the scan gives now.
    pub fn row(&self, asked: &Rc<Asked>, tid: u64, distance: f64) {
        let Some(scan) = &self.0 else { return };
        scan.borrow_mut().row = Some(Row {
            asked: Rc::clone(asked),
            tid,
            distance,
        });
        let this = Rc::downgrade(scan);
        SCANS.with_borrow_mut(|scans| {
            if !scans.last().is_some_and(|last| last.ptr_eq(&this)) {
                scans.retain(|other| !other.ptr_eq(&this) && other.strong_count() > 0);
                scans.push(this);
            }
        });
    }

    /// The scan gives a row without a distance, or none.
    pub fn nothing(&self) {
        if let Some(scan) = &self.0 {
            scan.borrow_mut().row = None;
        }
    }
}

/// The distance of two texts by the session's model, if they are the text of a row that a scan of the same
/// query has just given and what it searched for.
///
/// # Safety
/// The datums are texts, not null; `query` is the memory context of the function that asks.
pub unsafe fn distance(
    query: pg_sys::MemoryContext,
    a: pg_sys::Datum,
    b: pg_sys::Datum,
) -> Option<f64> {
    let scans: [Option<Rc<RefCell<Scan>>>; ASKED] = SCANS.with_borrow(|scans| {
        let mut last = scans.iter().rev().filter_map(Weak::upgrade);
        std::array::from_fn(|_| last.next())
    });
    scans[0].as_ref()?;
    let model = crate::encode::model_name(None);
    scans.iter().flatten().find_map(|scan| {
        let scan = &mut *scan.try_borrow_mut().ok()?;
        if scan.query != query {
            return None;
        }
        let row = scan.row.as_ref().filter(|row| row.asked.model == model)?;
        let (distance, tid) = (row.distance, row.tid);
        // SAFETY: by contract.
        unsafe {
            let other = if is(b, &row.asked.text) {
                a
            } else if is(a, &row.asked.text) {
                b
            } else {
                return None;
            };
            has(scan, tid, other).then_some(distance)
        }
    })
}

/// Whether a text is this one.
///
/// # Safety
/// The datum is a text, not null.
unsafe fn is(datum: pg_sys::Datum, text: &[u8]) -> bool {
    // SAFETY: by contract. The length of a text that is stored elsewhere is known without fetching it.
    unsafe {
        pg_sys::toast_raw_datum_size(datum) - pg_sys::VARHDRSZ == text.len()
            && element::text(datum) == text
    }
}

/// Whether two texts are equal.
///
/// # Safety
/// The datums are texts, not null.
unsafe fn equal(a: pg_sys::Datum, b: pg_sys::Datum) -> bool {
    // SAFETY: by contract; the size is that of what the datum points to. Equal pointers to where a text
    // is stored are equal texts.
    unsafe {
        let stored = |datum: pg_sys::Datum| {
            let pointer = datum.cast_mut_ptr::<pg_sys::varlena>();
            std::slice::from_raw_parts(pointer.cast::<u8>(), varlena::varsize_any(pointer))
        };
        stored(a) == stored(b)
            || (pg_sys::toast_raw_datum_size(a) == pg_sys::toast_raw_datum_size(b)
                && element::text(a) == element::text(b))
    }
}

/// Whether the indexed value of the row at an address is this text.
///
/// # Safety
/// The scan is under way, has given that address, and its relations are open and locked by the statement.
unsafe fn has(scan: &mut Scan, tid: u64, text: pg_sys::Datum) -> bool {
    // SAFETY: by contract. What an error leaves behind, the abort of the (sub)transaction releases:
    // references to relations, pins of buffers, memory of the call.
    unsafe {
        if !pg_sys::ActiveSnapshotSet() {
            return false;
        }
        let known = scan.column.take();
        let known = known.unwrap_or_else(|| column(scan.index, scan.query));
        let Column::Known { info, estate } = known else {
            scan.column = Some(known);
            return false;
        };
        let index = pg_sys::RelationIdGetRelation(scan.index);
        let heap = pg_sys::RelationIdGetRelation((*(*index).rd_index).indrelid);
        let slot = pg_sys::table_slot_create(heap, std::ptr::null_mut());
        let expressions = per_tuple(estate);
        (*expressions).ecxt_scantuple = slot;
        let mut found = false;
        if fetch(heap, tid, slot) {
            let mut memory = PgMemoryContexts::For((*expressions).ecxt_per_tuple_memory);
            found = memory.switch_to(|_| {
                let mut value = pg_sys::Datum::null();
                let mut null = true;
                pg_sys::FormIndexDatum(info, slot, estate, &mut value, &mut null);
                !null && equal(value, text)
            });
            pg_sys::MemoryContextReset((*expressions).ecxt_per_tuple_memory);
        }
        (*expressions).ecxt_scantuple = std::ptr::null_mut();
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::RelationClose(heap);
        pg_sys::RelationClose(index);
        scan.column = Some(known);
        found
    }
}

/// Makes what evaluates the index's column.
///
/// # Safety
/// As [`has`].
unsafe fn column(index: pg_sys::Oid, context: pg_sys::MemoryContext) -> Column {
    // SAFETY: by contract; the context lives as long as what is made here.
    unsafe {
        PgMemoryContexts::For(context).switch_to(|_| {
            let index = pg_sys::RelationIdGetRelation(index);
            let info = pg_sys::BuildIndexInfo(index);
            pg_sys::RelationClose(index);
            if !is_builtin((*info).ii_Expressions.cast()) {
                return Column::Opaque;
            }
            Column::Known {
                info,
                estate: pg_sys::CreateExecutorState(),
            }
        })
    }
}

/// Whether row-level security of a table asks more than functions of the server's own. It may ask for a
/// distance, and which rows a role sees depends on no plan.
///
/// # Safety
/// The table is locked.
unsafe fn has_foreign_policies(table: pg_sys::Oid) -> bool {
    // SAFETY: by contract; policies are kept with the relation as long as it is open.
    unsafe {
        let table = pg_sys::RelationIdGetRelation(table);
        let policies = (*table)
            .rd_rsdesc
            .as_ref()
            .map(|security| security.policies);
        let found = policies.and_then(|list| list.as_ref()).is_some_and(|list| {
            let cells = std::slice::from_raw_parts(list.elements, list.length as usize);
            cells.iter().any(|cell| {
                let policy = &*cell.ptr_value.cast::<pg_sys::RowSecurityPolicy>();
                !is_builtin(policy.qual.cast())
            })
        });
        pg_sys::RelationClose(table);
        found
    }
}

/// Objects with smaller OIDs come with the server (`FirstGenbkiObjectId` in `transam.h`).
const FIRST_OTHER: u32 = 10_000;

/// Whether an expression of an index consists of the server's own functions on the server's own types, in
/// which case evaluating it runs no code of anybody else. Null is one.
///
/// # Safety
/// An expression or a list of some, as the relation cache has it.
unsafe fn is_builtin(node: *mut pg_sys::Node) -> bool {
    // SAFETY: a node is what its tag says.
    unsafe {
        if node.is_null() {
            return true;
        }
        let all = |list: *mut pg_sys::List| is_builtin(list.cast());
        let tag = (*node).type_;
        if tag == NodeTag::T_List {
            let list = &*node.cast::<pg_sys::List>();
            let cells = std::slice::from_raw_parts(list.elements, list.length as usize);
            return cells.iter().all(|cell| is_builtin(cell.ptr_value.cast()));
        }
        let own = |oid: pg_sys::Oid| oid.to_u32() < FIRST_OTHER;
        own(pg_sys::exprType(node))
            && match tag {
                NodeTag::T_Var | NodeTag::T_Const => true,
                NodeTag::T_FuncExpr => {
                    let call = &*node.cast::<pg_sys::FuncExpr>();
                    own(call.funcid) && all(call.args)
                }
                NodeTag::T_OpExpr => {
                    let call = &*node.cast::<pg_sys::OpExpr>();
                    own(call.opno) && own(call.opfuncid) && all(call.args)
                }
                NodeTag::T_BoolExpr => all((*node.cast::<pg_sys::BoolExpr>()).args),
                NodeTag::T_NullTest => is_builtin((*node.cast::<pg_sys::NullTest>()).arg.cast()),
                NodeTag::T_SQLValueFunction => true,
                NodeTag::T_ScalarArrayOpExpr => {
                    let call = &*node.cast::<pg_sys::ScalarArrayOpExpr>();
                    own(call.opno) && own(call.opfuncid) && all(call.args)
                }
                NodeTag::T_ArrayExpr => all((*node.cast::<pg_sys::ArrayExpr>()).elements),
                NodeTag::T_CoalesceExpr => all((*node.cast::<pg_sys::CoalesceExpr>()).args),
                NodeTag::T_RelabelType => {
                    is_builtin((*node.cast::<pg_sys::RelabelType>()).arg.cast())
                }
                NodeTag::T_CollateExpr => {
                    is_builtin((*node.cast::<pg_sys::CollateExpr>()).arg.cast())
                }
                NodeTag::T_CoerceViaIO => {
                    is_builtin((*node.cast::<pg_sys::CoerceViaIO>()).arg.cast())
                }
                _ => false,
            }
    }
}

/// The context for expressions of one row (`GetPerTupleExprContext` in `executor.h`).
///
/// # Safety
/// The state is valid.
unsafe fn per_tuple(estate: *mut pg_sys::EState) -> *mut pg_sys::ExprContext {
    // SAFETY: by contract.
    unsafe {
        if (*estate).es_per_tuple_exprcontext.is_null() {
            pg_sys::MakePerTupleExprContext(estate)
        } else {
            (*estate).es_per_tuple_exprcontext
        }
    }
}

/// Fetches the row that an index entry stands for.
///
/// # Safety
/// The table is open, the slot is one of its own, and a snapshot is active.
unsafe fn fetch(heap: pg_sys::Relation, tid: u64, slot: *mut pg_sys::TupleTableSlot) -> bool {
    // SAFETY: by contract. The page stays pinned by the slot.
    unsafe {
        let method = &*(*heap).rd_tableam;
        let begin = method.index_fetch_begin.expect("every table has it");
        let end = method.index_fetch_end.expect("every table has it");
        let tuple = method.index_fetch_tuple.expect("every table has it");
        let mut tid = unpack(tid);
        let snapshot = pg_sys::GetActiveSnapshot();
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let mut again = false;
            let mut dead = false;
            let fetch = begin(heap);
            let found = tuple(fetch, &mut tid, snapshot, slot, &mut again, &mut dead);
            end(fetch);
            found
        })
    }
}
