//! Mining with laser indexes, for tables whose rows are too many to be compared with each other.
//!
//! For each row the index on the table of the other side proposes candidates. Their cosines are
//! computed exactly from the embeddings, as in the exact search, so scores are exact and only
//! candidates can be missed.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};

use laser_mining::{Neighbourhoods, Neighbours, Side, knn};
use pgrx::pg_sys::{self, Datum, NodeTag, Oid};
use pgrx::{PgLogLevel, PgSqlErrorCode, check_for_interrupts};

use super::call::{Call, MemoryBudget};
use super::load::{self, Loaded, Rows, content_hash, each_row, push_batch};
use super::progress::Progress;
use super::query::{self, Kind, Query, Spi, bytes_of, integer_of};
use super::{errors, lists};
use crate::pg::catalogs;
use crate::pg::errors::{raise, raise_hint};
use crate::pg::memory::{entry, insert, or_raise, push};
use crate::types::pgvector;

/// The neighbours that the laser indexes on the tables of both queries find, and both sides.
pub fn neighbours(
    queries: [&[u8]; 2],
    k: usize,
    unify: bool,
    call: &mut Call,
) -> (Neighbourhoods, Loaded, Loaded) {
    let (source_query, target_query) = load::parse(queries, &call.spi, call.namespace);
    if source_query.type_of(1) != target_query.type_of(1) {
        raise_hint(
            PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
            "both queries must return values of the same type to be mined with an index",
            "Cast one of them, or use method => 'exact'.",
        );
    }
    let prepare = |query, name| Nearest::prepare(&call.spi, query, name, k, unify, call.namespace);
    let nearest_target = prepare(&target_query, "target");
    let nearest_source = prepare(&source_query, "source");
    let mut read = |phase, query, side, nearest| {
        call.progress.phase(phase);
        Candidates::read(
            query,
            side,
            unify,
            nearest,
            &mut call.progress,
            &call.budget,
        )
    };
    let source = read(
        "reading source, searching target index",
        &source_query,
        Side::Source,
        &nearest_target,
    );
    let target = read(
        "reading target, searching source index",
        &target_query,
        Side::Target,
        &nearest_source,
    );

    call.progress.phase("scoring");
    load::common_dimensions(source.loaded.dimensions(), target.loaded.dimensions());
    load::check_lists(source.loaded.ids.len(), target.loaded.ids.len(), k);
    let found = Neighbourhoods {
        forward: source.score(&target, k),
        backward: target.score(&source, k),
    };
    (found, source.loaded, target.loaded)
}

/// What is kept of a row whose candidates were found: its id, and where they end.
const KEPT: usize = size_of::<(i64, usize)>();
/// What is kept of a text, so that it is searched for once.
const SEEN: usize = MemoryBudget::per_hash_entry::<([u8; 16], i64)>();
/// What a row of a result takes beside its values: the tuple's place, its id, a hash.
const ROW: usize = 64 + size_of::<i64>() + MemoryBudget::per_hash_entry::<[u8; 16]>();

/// What an index found.
struct Asked {
    /// Nearest first.
    ids: Vec<i64>,
    /// How many candidates they are.
    different: usize,
    /// Memory that the answer took.
    bytes: usize,
}

/// The ids of the rows nearest to a value, by an index.
struct Nearest {
    /// The search, but for the number of rows.
    sql: Vec<u8>,
    /// The plans for the numbers of rows that were asked for so far. The planner has to know the
    /// number: an index is for few rows.
    plans: RefCell<Vec<(usize, pg_sys::SPIPlanPtr)>>,
    /// The generation of the plan for [`Nearest::limit`] rows that an index is known to serve.
    served: Cell<Option<i32>>,
    /// What messages call the query.
    name: String,
    /// Types of its columns.
    columns: [Oid; 2],
    /// Candidates to ask for.
    limit: usize,
    /// Whether equal texts are one candidate.
    unify: bool,
}

impl Nearest {
    /// Plans the search for the nearest rows of a query; raises a SQL error if no index serves it.
    fn prepare(
        spi: &Spi,
        query: &Query<'_>,
        name: &str,
        k: usize,
        unify: bool,
        namespace: Oid,
    ) -> Self {
        let _ = spi;
        // More than k, since quantised distances are not exact.
        let limit = k.saturating_mul(2).saturating_add(8);
        let unify = unify && query.kind(1) == Kind::Text;
        // The operator is of the schema of its type.
        let namespace = pgvector(query.type_of(1)).map_or(namespace, |theirs| theirs.namespace);
        // SAFETY: a schema has a name; the result is a C string.
        let schema = unsafe {
            let name = pg_sys::get_namespace_name(namespace);
            CStr::from_ptr(pg_sys::quote_identifier(name)).to_bytes()
        };
        let sql = [
            b"SELECT id".as_slice(),
            if unify { b", value" } else { b"" },
            b" FROM (\n",
            query.sql(),
            b"\n) AS query (id, value) ORDER BY value OPERATOR(",
            schema,
            b".<=>) $1 LIMIT ",
        ]
        .concat();
        let nearest = Nearest {
            sql,
            plans: RefCell::new(Vec::new()),
            served: Cell::new(None),
            name: name.to_owned(),
            columns: [query.type_of(0), query.type_of(1)],
            limit,
            unify,
        };
        if !with_index(|| nearest.is_served()) {
            raise_hint(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("no laser index can search the {name} query"),
                "Create one with CREATE INDEX ... USING laser on the column that the query \
                 returns, lower k if it is a large part of the rows, or use method => 'exact'.",
            );
        }
        nearest
    }

    /// Whether an index finds the rows, by the plan as it is now under the settings of [`with_index`].
    fn is_served(&self) -> bool {
        // SAFETY: SPI is connected. The plan is released to the owner that holds it.
        unsafe {
            let plan = self.plan(self.limit);
            let cached = pg_sys::SPI_plan_get_cached_plan(plan);
            if cached.is_null() {
                return false;
            }
            let generation = (*cached).generation;
            if self.served.get() != Some(generation) {
                let statements = (*cached).stmt_list;
                let first = (*(*statements).elements)
                    .ptr_value
                    .cast::<pg_sys::PlannedStmt>();
                let served = scans_index((*first).planTree);
                self.served.set(served.then_some(generation));
            }
            pg_sys::ReleaseCachedPlan(cached, pg_sys::CurrentResourceOwner);
        }
        self.served.get().is_some()
    }

    /// The plan for `limit` rows.
    fn plan(&self, limit: usize) -> pg_sys::SPIPlanPtr {
        let mut plans = self.plans.borrow_mut();
        if let Some((_, plan)) = plans.iter().find(|(known, _)| *known == limit) {
            return *plan;
        }
        let limit_text = i64::try_from(limit).unwrap_or(i64::MAX).to_string();
        let sql = CString::new([&self.sql, limit_text.as_bytes()].concat())
            .expect("a text datum has no zero byte");
        let mut types = [self.columns[1]];
        // SAFETY: SPI is connected.
        let plan = unsafe {
            pg_sys::SPI_prepare_cursor(
                sql.as_ptr(),
                types.len() as i32,
                types.as_mut_ptr(),
                pg_sys::CURSOR_OPT_GENERIC_PLAN as i32,
            )
        };
        if plan.is_null() {
            raise(
                PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                "could not prepare a query",
            );
        }
        plans.push((limit, plan));
        // SAFETY: a plan of this connection, freed when `self` is dropped. Plans that are not kept are
        // not made again when something that they use is dropped.
        unsafe { pg_sys::SPI_keepplan(plan) };
        plan
    }

    /// Ids of rows near `value`, nearest first.
    fn search(&self, value: Datum, budget: &MemoryBudget) -> Vec<i64> {
        const MORE: usize = 4;
        let mut limit = self.limit;
        loop {
            let asked = self.ask(value, limit, budget);
            // Copies of a text crowd others out.
            if asked.ids.len() < limit || asked.different >= self.limit / 2 {
                return asked.ids;
            }
            budget.check(&self.name, asked.bytes.saturating_mul(MORE));
            limit = limit.saturating_mul(MORE);
        }
    }

    #[cold]
    fn gone(&self) -> ! {
        raise_hint(
            PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
            format!(
                "the index that searches the {} query was dropped or altered meanwhile",
                self.name
            ),
            "Functions in the queries must not drop or alter the indexes that the queries are searched with.",
        )
    }

    /// Up to `limit` rows near `value`.
    fn ask(&self, value: Datum, limit: usize, budget: &MemoryBudget) -> Asked {
        check_for_interrupts!();
        let mut values = [value];
        let plan = self.plan(limit);
        let mut ids = Vec::new();
        let mut texts = HashSet::new();
        let mut bytes = 0;
        // One row more than there is room for, to tell.
        let most = budget.left() / ROW + 1;
        // SAFETY: the plan has one parameter, of the value's type; rows have an integer column and, if
        // texts are unified, a text column.
        unsafe {
            let memory = pg_sys::CurrentMemoryContext;
            // Statistics that change meanwhile have it planned again.
            let code = with_index(|| {
                if !self.is_served() {
                    self.gone();
                }
                pg_sys::SPI_execute_plan(
                    plan,
                    values.as_mut_ptr(),
                    std::ptr::null(),
                    true,
                    most as _,
                )
            });
            if code != pg_sys::SPI_OK_SELECT as i32 {
                raise(
                    PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
                    "could not search an index",
                );
            }
            let table = pg_sys::SPI_tuptable;
            budget.check(&self.name, pg_sys::SPI_processed as usize * ROW);
            // It is planned again where functions of the other query have replaced what it names.
            let count = 1 + usize::from(self.unify);
            let descriptor = (*table).tupdesc;
            if (0..count).any(|at| query::base_type(descriptor, at) != self.columns[at]) {
                query::columns_changed(&self.name);
            }
            let kind = self.columns[0];
            for row in 0..pg_sys::SPI_processed as usize {
                let mut null = false;
                let tuple = *(*table).vals.add(row);
                bytes += (*tuple).t_len as usize + ROW;
                let datum = pg_sys::SPI_getbinval(tuple, (*table).tupdesc, 1, &mut null);
                if null {
                    continue;
                }
                push(&mut ids, integer_of(kind, datum));
                if self.unify {
                    let text = pg_sys::SPI_getbinval(tuple, (*table).tupdesc, 2, &mut null);
                    if !null {
                        insert(&mut texts, content_hash(b"", bytes_of(text)));
                    }
                }
            }
            pg_sys::SPI_freetuptable(table);
            // SPI leaves its own context as the current one.
            pg_sys::MemoryContextSwitchTo(memory);
        }
        let different = if self.unify { texts.len() } else { ids.len() };
        Asked {
            ids,
            different,
            bytes,
        }
    }
}

impl Drop for Nearest {
    fn drop(&mut self) {
        for (_, plan) in self.plans.get_mut().drain(..) {
            // SAFETY: a plan that was kept and that nobody executes. Raises no errors.
            unsafe { pg_sys::SPI_freeplan(plan) };
        }
    }
}

/// Calls `f` with settings under which the planner takes an index wherever one serves.
fn with_index<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: the settings go back to what they were when the nest level ends, and with the
    // transaction if an error comes first.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        for name in [c"enable_seqscan", c"enable_sort"] {
            pg_sys::set_config_option(
                name.as_ptr(),
                c"off".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                PgLogLevel::ERROR as i32,
                false,
            );
        }
        let result = f();
        pg_sys::AtEOXact_GUC(true, level);
        result
    }
}

/// Whether the rows of a plan come from index scans in the order of a distance, if there are any.
///
/// # Safety
/// `plan` is null or a plan tree.
unsafe fn scans_index(plan: *mut pg_sys::Plan) -> bool {
    if plan.is_null() {
        return false;
    }
    // SAFETY: the tag of a node tells its type.
    unsafe {
        match (*plan).type_ {
            NodeTag::T_IndexScan => {
                let scan = &*plan.cast::<pg_sys::IndexScan>();
                !scan.indexorderby.is_null() && is_laser(scan.indexid)
            }
            NodeTag::T_SubqueryScan => scans_index((*plan.cast::<pg_sys::SubqueryScan>()).subplan),
            NodeTag::T_MergeAppend => {
                let parts = (*plan.cast::<pg_sys::MergeAppend>()).mergeplans;
                !parts.is_null()
                    && (0..(*parts).length as usize)
                        .all(|at| scans_index((*(*parts).elements.add(at)).ptr_value.cast()))
            }
            // Without a plan below there are no rows, or one, to be sorted.
            NodeTag::T_Result if (*plan).lefttree.is_null() => true,
            NodeTag::T_Sort | NodeTag::T_IncrementalSort => {
                let below = (*plan).lefttree;
                (*below).type_ == NodeTag::T_Result && (*below).lefttree.is_null()
            }
            _ => scans_index((*plan).lefttree),
        }
    }
}

/// Whether an index is one of ours: pgvector's types have other ones that order.
fn is_laser(index: Oid) -> bool {
    let look = |form: &pg_sys::FormData_pg_class| form.relam;
    // SAFETY: rows of this cache, and a look-up by name.
    unsafe {
        catalogs::row(pg_sys::SysCacheIdentifier::RELOID, index, look)
            .is_some_and(|method| method == pg_sys::get_index_am_oid(c"laser".as_ptr(), true))
    }
}

/// One side with the candidates that the index of the other side proposed.
struct Candidates {
    loaded: Loaded,
    /// Ids of the other side, those for one row after those for another.
    proposed: Vec<i64>,
    /// Where the ids for each row end.
    ends: Vec<usize>,
    /// Rows that were unified with another one.
    aliases: HashMap<i64, i64>,
}

impl Candidates {
    fn read(
        query: &Query<'_>,
        side: Side,
        unify: bool,
        nearest: &Nearest,
        progress: &mut Progress,
        budget: &MemoryBudget,
    ) -> Self {
        let kind = query.kind(1);
        let limit = load::memory_of_side();
        let mut loaded = Loaded {
            side,
            ids: Vec::new(),
            rows: Rows::default(),
        };
        let (mut proposed, mut ends, mut aliases) = (Vec::new(), Vec::new(), HashMap::new());
        let (name, place) = (side.to_string(), format!("the {side} query"));
        let mut seen: HashMap<[u8; 16], i64> = HashMap::new();
        each_row(query, side, progress, |batch, rows| {
            let mut chosen = rows.to_vec();
            if unify && kind == Kind::Text {
                chosen.retain(|&(id, row)| {
                    let hash = content_hash(b"", batch.bytes(row, 1).unwrap_or_default());
                    let known = seen.len() + aliases.len();
                    let first = *entry(&mut seen, hash).or_insert(id);
                    if first != id {
                        entry(&mut aliases, id).or_insert(first);
                    }
                    budget.reserve(&name, (seen.len() + aliases.len() - known) * SEEN);
                    first == id
                });
            }
            budget.reserve(&name, chosen.len() * KEPT);
            push_batch(&mut loaded.rows, side, kind, batch, &chosen, limit);
            for &(id, row) in &chosen {
                push(&mut loaded.ids, id);
                if let Some(value) = batch.datum(row, 1) {
                    let ids = nearest.search(value, budget);
                    or_raise(laser_memory::extend_from_slice(&mut proposed, &ids));
                    lists::check_room(&place, proposed.len());
                }
                push(&mut ends, proposed.len());
            }
        });
        Candidates {
            loaded,
            proposed,
            ends,
            aliases,
        }
    }

    /// Exact cosines of the candidates, of which the best k are the neighbours.
    fn score(&self, other: &Candidates, k: usize) -> Neighbours {
        let k = k.min(other.loaded.ids.len());
        let mut found = or_raise(Neighbours::empty(self.loaded.ids.len(), k));
        let mut start = 0;
        let row = |side: &Loaded, at: usize| match side.rows.row(at) {
            Ok(row) => row.into_owned(),
            Err(error) => errors::search_failed(error, &[], &[]),
        };
        for (at, &end) in self.ends.iter().enumerate() {
            let proposed = &self.proposed[std::mem::replace(&mut start, end)..end];
            check_for_interrupts!();
            let own = row(&self.loaded, at);
            let mut positions: Vec<usize> = proposed
                .iter()
                .filter_map(|id| other.loaded.position(*other.aliases.get(id).unwrap_or(id)))
                .collect();
            positions.sort_unstable();
            positions.dedup();
            for position in positions {
                let cosine = knn::cosine(&own, &row(&other.loaded, position));
                if cosine.is_nan() {
                    let id = self.loaded.ids[at];
                    raise(
                        PgSqlErrorCode::ERRCODE_DATA_EXCEPTION,
                        format!(
                            "{} id {id} or a neighbour has no direction",
                            self.loaded.side
                        ),
                    );
                }
                found.insert(at, position as u32, cosine);
            }
        }
        found
    }
}
