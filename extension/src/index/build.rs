//! CREATE INDEX and REINDEX.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::time::{Duration, Instant};

use laser_index::builder::{BuildOptions, SegmentBuilder};
use laser_index::encoding::Encoding;
use laser_index::forecast::Steady;
use laser_index::meta::{Meta, Parameters};
use laser_index::page::{NULL, UNDIRECTED, row_name};
use laser_index::segment::write_pages;
use laser_index::{maintain, pending, space};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Datum};
use pgrx::{PgLogLevel, PgSqlErrorCode as Code, function_name};

use super::cache;
use super::element::{self, Element, TextBatch};
use super::errors::OrReport;
use super::pages::{MergeLock, RelationStore};
use super::resources::build_options;
use super::sample::Known;
use super::time_left::TimeLeft;
use super::{model, sample, statistics, undecided};
use crate::encode;
use crate::pg::encoding;
use crate::pg::errors::raise_hint;
use crate::pg::interrupts::pause;
use crate::pg::tid::pack;

/// `PROGRESS_CREATEIDX_SUBPHASE`, `…_TUPLES_TOTAL`, `…_TUPLES_DONE` and their values.
const SUBPHASE: i32 = pg_sys::PROGRESS_CREATEIDX_SUBPHASE as i32;
const TUPLES_TOTAL: i32 = pg_sys::PROGRESS_CREATEIDX_TUPLES_TOTAL as i32;
const TUPLES_DONE: i32 = pg_sys::PROGRESS_CREATEIDX_TUPLES_DONE as i32;
const LOADING: i64 = 2;
const REFINING: i64 = 3;
const WRITING: i64 = 4;
const SAMPLING: i64 = 5;

fn progress(parameter: i32, value: i64) {
    // SAFETY: writes to this backend's entry, if it has one.
    unsafe { pg_sys::pgstat_progress_update_param(parameter, value) };
}

/// Names of phases for `pg_stat_progress_create_index`.
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn phase_name(phase: i64) -> *mut c_char {
    let name = match phase {
        1 => c"initializing",
        SAMPLING => c"sampling vectors",
        LOADING => c"loading vectors",
        REFINING => c"refining graph",
        WRITING => c"writing segment",
        _ => return std::ptr::null_mut(),
    };
    name.as_ptr().cast_mut()
}

struct Build {
    index: pg_sys::Relation,
    store: RelationStore,
    options: BuildOptions,
    element: Element,
    /// How vectors are stored, once enough of them are known.
    encoding: Option<Encoding>,
    /// Vectors that came before that, with their rows and [`space::direction_error`], and rows without a place in the graph.
    held: Vec<(u64, Vec<f32>, f64)>,
    held_unplaced: Vec<u64>,
    /// Vectors longer than `encoding` is for, which a segment of their own holds.
    long: Vec<(u64, Vec<f32>)>,
    builder: Option<SegmentBuilder>,
    texts: TextBatch,
    /// Embeddings of texts that are still to come.
    known: Known,
    /// Rows of the table, by its statistics.
    rows: usize,
    time_left: Option<TimeLeft>,
    finished: usize,
    reported: usize,
    segments: usize,
    /// Segments that were ended because there was no memory for more.
    filled: usize,
}

impl Build {
    fn push(&mut self, tid: u64, x: &[f32]) {
        if self.options.parameters.is_undecided() {
            self.options.parameters = undecided::decide(&self.store, x.len());
        }
        let Parameters { metric, dims, .. } = self.options.parameters;
        if x.len() != dims {
            let row = row_name(tid);
            raise_hint(
                Code::ERRCODE_DATA_EXCEPTION,
                format!("{row} has {} dimensions, others have {dims}", x.len()),
                self.element.own_index_hint(dims),
            );
        }
        match space::prepare(metric, dims, x).or_report() {
            None => self.push_unplaced(tid | UNDIRECTED),
            Some(unit) if self.encoding.is_some() => {
                self.push_prepared(tid, &unit, space::direction_error(metric, x));
                // There should be about one for each time that the table is as large as the sample.
                if self.long.len() >= self.options.sample_size() {
                    self.push_long();
                }
            }
            Some(unit) => {
                self.held
                    .push((tid, unit, space::direction_error(metric, x)));
                if self.held.len() >= self.options.sample_size() {
                    self.decide();
                }
            }
        }
    }

    /// Settles how vectors are stored by those that have come so far.
    fn decide(&mut self) {
        if self.encoding.is_none() {
            let sample: Vec<Vec<f32>> = self.held.iter().map(|(_, x, _)| x.clone()).collect();
            self.encoding = Some(self.options.choose(&sample, &pause));
        }
        for (tid, x, error) in std::mem::take(&mut self.held) {
            self.push_prepared(tid, &x, error);
        }
        for tid in std::mem::take(&mut self.held_unplaced) {
            self.push_unplaced(tid);
        }
    }

    fn builder(&mut self) -> &mut SegmentBuilder {
        if self.builder.is_none() {
            let encoding = self.encoding.clone().expect("decided before");
            let builder = SegmentBuilder::new(self.options.clone(), encoding, None).or_report();
            let (most, passes) = (builder.most(), builder.work());
            self.builder = Some(builder);
            (self.time_left).get_or_insert_with(|| TimeLeft::new(self.rows, most, passes));
        }
        self.builder.as_mut().expect("made above")
    }

    fn push_prepared(&mut self, tid: u64, x: &[f32], error: f64) {
        let encoding = self.encoding.as_ref().expect("decided before");
        if !encoding.takes(x) {
            // Inner products are those of vectors as they came: there is no error.
            self.long.push((tid, x.to_vec()));
            return;
        }
        let builder = self.builder();
        builder.push_prepared(tid, x, error, &pause).or_report();
        let (full, added, adding) = (builder.is_full(), builder.added(), builder.adding());
        let added = self.finished + added;
        if added >= self.reported + 500 {
            self.reported = added;
            progress(TUPLES_DONE, added as i64);
            if let Some(time) = &self.time_left {
                time.added(added - self.finished, adding);
            }
        }
        if full {
            self.filled += 1;
            self.flush();
        }
    }

    /// Begins a segment that is for long vectors too with those that there are; some may be too long for
    /// it, but not all ([`laser_index::choice::choose`]).
    fn push_long(&mut self) {
        if self.long.is_empty() {
            return;
        }
        self.flush();
        let long = std::mem::take(&mut self.long);
        let sample: Vec<Vec<f32>> = long.iter().map(|(_, x)| x.clone()).collect();
        self.encoding = Some(self.options.choose(&sample, &pause));
        for (tid, x) in long {
            self.push_prepared(tid, &x, 0.0);
        }
    }

    /// Adds a row without a place in the graph: NULL, or a vector without a direction.
    fn push_unplaced(&mut self, tid: u64) {
        if self.encoding.is_none() {
            self.held_unplaced.push(tid);
            return;
        }
        self.builder().push_unplaced(tid);
        if self.builder().is_full() {
            self.filled += 1;
            self.flush();
        }
    }

    /// Puts all rows on the pending list of an index that knows of no vector yet.
    fn list_unplaced(&mut self) {
        for tid in std::mem::take(&mut self.held_unplaced) {
            pause();
            pending::append(&self.store, &self.options.parameters, tid, None).or_report();
            self.finished += 1;
        }
    }

    fn push_texts(&mut self) {
        let mut texts = std::mem::take(&mut self.texts);
        let parameters = self.options.parameters.clone();
        let (count, began, mut pushing) = (texts.len(), Instant::now(), Duration::ZERO);
        texts.embed(&parameters, |tid, x| {
            let began = Instant::now();
            self.push(tid, x);
            pushing += began.elapsed();
        });
        if let Some(time) = &mut self.time_left {
            time.embedded(count, began.elapsed().saturating_sub(pushing));
        }
    }

    /// Turns what has been collected into a segment of the index.
    fn flush(&mut self) {
        let Some(builder) = self.builder.take() else {
            return;
        };
        if builder.is_empty() {
            return;
        }
        progress(SUBPHASE, REFINING);
        let (before, refined, len) = (self.finished, builder.refined(), builder.len());
        // An estimate may be too low, and a small table that was never analyzed has none.
        self.rows = self.rows.max(before + len);
        progress(TUPLES_TOTAL, self.rows as i64);
        if let Some(time) = &mut self.time_left {
            time.refines(len);
        }
        let time = self.time_left.as_ref();
        let steady = Steady::default();
        let refining = || {
            pause();
            let share = refined.share();
            let done = (steady.show(share) * len as f64) as i64;
            progress(TUPLES_DONE, before as i64 + done);
            if let Some(time) = time {
                time.refined(share, len);
            }
        };
        let built = builder.finish(&refining).or_report();
        progress(SUBPHASE, WRITING);
        let entry = write_pages(
            &self.store,
            &built.header,
            &built.bytes,
            &built.dead,
            |_| (),
        )
        .or_report();
        maintain::replace(&self.store, &[], &[entry], None).or_report();
        self.finished += entry.count as usize;
        self.segments += 1;
        progress(TUPLES_DONE, self.finished as i64);
        if let Some(time) = &mut self.time_left {
            time.finishes(len);
        }
        // SAFETY: the index is open.
        unsafe { cache::keep(self.index, &entry, built) };
        progress(SUBPHASE, LOADING);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn collect(
    _index: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    values: *mut Datum,
    isnull: *mut bool,
    _alive: bool,
    state: *mut c_void,
) {
    // SAFETY: the server passes one value, and the state that ambuild gave it.
    unsafe {
        let build = &mut *state.cast::<Build>();
        let tid = pack(tid);
        if *isnull {
            build.push_unplaced(tid | NULL);
        } else if build.element == Element::Text {
            let text = element::text(*values);
            if let Some(x) = build.known.take(tid, &text) {
                build.push(tid, &x);
            } else if build.texts.push(tid, text) {
                build.push_texts();
            }
        } else {
            element::with_vector(build.element, *values, |x| build.push(tid, x));
        }
    }
}

/// Rows to prepare for, by an estimate that may be old.
fn expected(estimate: usize) -> usize {
    (estimate + estimate / 8).max(10_000)
}

/// Whether an index is of this access method.
///
/// # Safety
/// The relation is open.
pub unsafe fn is_laser(index: pg_sys::Relation) -> bool {
    // SAFETY: by contract; what an index's access method consists of lives as long as the relation is open.
    let method = unsafe { (*index).rd_indam.as_ref() };
    let build_of = method.and_then(|method| method.ambuild);
    build_of.is_some_and(|f| std::ptr::eq(f as *const (), build as *const ()))
}

/// Warns of an expression that embeds by the setting: entries would be of whichever model that names when their rows
/// are written, and so would the queries.
///
/// # Safety
/// The index is open, `info` describes it.
unsafe fn warn_of_setting(index: pg_sys::Relation, info: *mut pg_sys::IndexInfo) {
    // SAFETY: by contract; a handler is a function that exists.
    unsafe {
        let namespace = pg_sys::get_func_namespace((*index).rd_amhandler);
        if encode::embeds_by_setting((*info).ii_Expressions, namespace) {
            let message = format!(
                "index \"{}\" embeds by the model that laser.model names when a row is written",
                encoding::shown((*(*index).rd_rel).relname.data.as_ptr())
            );
            ErrorReport::new(Code::ERRCODE_WARNING, message, function_name!())
                .set_hint(
                    "Name the model in the expression, and in queries: laser_embed(column, 'model').",
                )
                .report(PgLogLevel::WARNING);
        }
    }
}

/// `ambuild`
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn build(
    heap: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
) -> *mut pg_sys::IndexBuildResult {
    // SAFETY: the server passes open relations and their index info.
    unsafe {
        if pg_sys::IsBinaryUpgrade {
            // The files of the old cluster take the place of what would be made here of no rows, which may lack what these
            // have, as a model that is not installed yet, and would keep a whole cluster from being upgraded.
            return pg_sys::palloc0(size_of::<pg_sys::IndexBuildResult>()).cast();
        }
        if (*index).rd_createSubid != 0 {
            statistics::forget((*index).rd_id);
        }
        let began = Instant::now();
        let parameters = model::parameters(index);
        let element = element::of(&parameters);
        let model = (element == Element::Text).then(|| parameters.model.clone());
        if model::is_new(index) {
            warn_of_setting(index, info);
        }
        let store = RelationStore::new(index);
        // Segments in the making are on nobody's list: a sweep would take their pages.
        let lock = MergeLock::wait(index);
        Meta::create(&store, parameters.clone()).or_report();
        let estimate = (*(*heap).rd_rel).reltuples.max(0.0) as usize;
        let mut state = Build {
            index,
            store,
            options: build_options(&parameters, expected(estimate)),
            element,
            encoding: None,
            held: Vec::new(),
            held_unplaced: Vec::new(),
            long: Vec::new(),
            builder: None,
            texts: TextBatch::default(),
            known: Known::default(),
            rows: estimate,
            time_left: None,
            finished: 0,
            reported: 0,
            segments: 0,
            filled: 0,
        };
        progress(TUPLES_TOTAL, estimate as i64);
        progress(SUBPHASE, SAMPLING);
        if let Some(mut sample) = sample::draw(heap, index, info, element, &state.options) {
            state.known = std::mem::take(&mut sample.known);
            if sample.is_enough() {
                // One of its vectors decides as well as the first of all.
                if parameters.is_undecided() {
                    state.options.parameters = undecided::decide(&state.store, sample.dims());
                }
                // A table that was not analyzed yet, as one that has just been restored, has no estimate.
                if estimate == 0 {
                    state.rows = sample.table_rows();
                    progress(TUPLES_TOTAL, state.rows as i64);
                    state.options.expected = expected(state.rows);
                }
                state.encoding = Some(state.options.choose(&sample.vectors, &pause));
            }
        }
        progress(SUBPHASE, LOADING);
        let scan = (*(*heap).rd_tableam)
            .index_build_range_scan
            .expect("every table has it");
        let pointer = std::ptr::from_mut(&mut state).cast::<c_void>();
        let tuples = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            scan(
                heap,
                index,
                info,
                true,
                false,
                true,
                0,
                u32::MAX,
                Some(collect),
                pointer,
                std::ptr::null_mut(),
            )
        });
        state.push_texts();
        if state.options.parameters.is_undecided() {
            state.list_unplaced();
        } else {
            state.decide();
            // Some of them may be too long for the others.
            while !state.long.is_empty() {
                state.options.expected = state.long.len();
                state.push_long();
            }
        }
        state.flush();
        drop(lock);
        cache::remove_obsolete(index, &state.store, began);
        if let Some(model) = model {
            model::remember(index, &model);
        }
        if state.filled > 0 && state.segments > 1 {
            pgrx::notice!(
                "index has {} segments because maintenance_work_mem holds only a part of it; more memory makes searches faster",
                state.segments
            );
        }
        let result = pg_sys::palloc0(size_of::<pg_sys::IndexBuildResult>())
            .cast::<pg_sys::IndexBuildResult>();
        (*result).heap_tuples = tuples;
        (*result).index_tuples = state.finished as f64;
        result
    }
}
