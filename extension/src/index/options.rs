//! Settings and storage parameters.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::addr_of_mut;

use laser_index::quantization::Quantization;
use laser_index::scan::Iterate;
use laser_protocol::valid_model_name;
use pgrx::PgSqlErrorCode as Code;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use pgrx::pg_sys;

use crate::encode;
use crate::pg::errors::raise_hint;

/// What a scan does when its first search is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum IterativeScan {
    /// It ends.
    #[name = c"off"]
    Off,
    /// It searches wider; rows may come out of order.
    #[name = c"relaxed_order"]
    RelaxedOrder,
    /// It searches wider and leaves out rows that would come out of order.
    #[name = c"strict_order"]
    StrictOrder,
}

static EF_SEARCH: GucSetting<i32> = GucSetting::<i32>::new(0);
static ITERATIVE_SCAN: GucSetting<IterativeScan> =
    GucSetting::<IterativeScan>::new(IterativeScan::StrictOrder);
static MAX_SCAN_TUPLES: GucSetting<i32> = GucSetting::<i32>::new(0);
static SCAN_NOTICES: GucSetting<bool> = GucSetting::<bool>::new(true);
static TRACK_QUERIES: GucSetting<bool> = GucSetting::<bool>::new(false);
static BACKGROUND_MAINTENANCE: GucSetting<bool> = GucSetting::<bool>::new(true);
static MAINTENANCE_WORKERS: GucSetting<i32> = GucSetting::<i32>::new(3);

thread_local! {
    /// Whether a session, and not a default for many of them, has set `laser.ef_search`.
    static EF_SEARCH_IS_ASKED: Cell<bool> = const { Cell::new(false) };
}

/// The width of a search in an index whose storage parameter is `own`; zero leaves it to the segments.
///
/// What comes from the server's configuration, ALTER DATABASE or ALTER ROLE is a default for all indexes, so
/// that an index's own width takes precedence; what the session has asked for (SET, SET LOCAL, options of its
/// connection, the SET of a function) takes precedence over both.
pub fn ef_search(own: usize) -> usize {
    let setting = EF_SEARCH.get() as usize;
    match own {
        0 => setting,
        _ if EF_SEARCH_IS_ASKED.get() => setting,
        own => own,
    }
}

/// Keeps beside a value where it comes from: the server brings back both when it brings back a value, at the
/// end of a transaction or function. Nothing in it panics or raises.
unsafe extern "C-unwind" fn check_ef_search(
    _value: *mut c_int,
    extra: *mut *mut c_void,
    source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: guc.c passes a place for what belongs to the value, and frees that as it allocates itself.
    unsafe {
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let place = libc::malloc(size_of::<bool>()).cast::<bool>();
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let place =
            pg_sys::guc_malloc(pgrx::PgLogLevel::LOG as c_int, size_of::<bool>()).cast::<bool>();
        if place.is_null() {
            return false;
        }
        *place = source >= pg_sys::GucSource::PGC_S_CLIENT;
        *extra = place.cast();
        true
    }
}

/// Nothing in it panics or raises.
unsafe extern "C-unwind" fn assign_ef_search(_value: c_int, extra: *mut c_void) {
    // SAFETY: what `check_ef_search` has left, or nothing.
    let asked = unsafe { extra.cast::<bool>().as_ref() };
    EF_SEARCH_IS_ASKED.set(asked.copied().unwrap_or(false));
}

/// `laser.max_scan_tuples`; `usize::MAX` where there is no limit.
pub fn max_scan_tuples() -> usize {
    match MAX_SCAN_TUPLES.get() {
        0 => usize::MAX,
        most => most as usize,
    }
}

/// `laser.scan_notices`.
pub fn scan_notices() -> bool {
    SCAN_NOTICES.get()
}

/// `laser.track_queries`.
pub fn track_queries() -> bool {
    TRACK_QUERIES.get()
}

/// `laser.background_maintenance`.
pub fn background_maintenance() -> bool {
    BACKGROUND_MAINTENANCE.get()
}

/// `laser.maintenance_workers`.
pub fn maintenance_workers() -> usize {
    MAINTENANCE_WORKERS.get().max(0) as usize
}

/// `laser.iterative_scan`.
pub fn iterate() -> Iterate {
    match ITERATIVE_SCAN.get() {
        IterativeScan::Off => Iterate::Off,
        IterativeScan::RelaxedOrder => Iterate::Relaxed,
        IterativeScan::StrictOrder => Iterate::Strict,
    }
}

/// Storage parameters as the server stores them (`rd_options`).
#[repr(C)]
struct Stored {
    header: i32,
    m: c_int,
    ef_construction: c_int,
    pending_list_limit: c_int,
    quantization: c_int,
    model: c_int,
    ef_search: c_int,
}

const LARGEST_EF_SEARCH: c_int = 10_000;
const M: c_int = 16;
const EF_CONSTRUCTION: c_int = 64;
const PENDING_LIST_LIMIT: c_int = 4096;

/// Storage parameters of an index.
#[derive(Debug, Clone)]
pub struct Options {
    /// Neighbours of a node.
    pub m: usize,
    /// Candidates while a node is added.
    pub ef_construction: usize,
    /// Bytes of the pending list at which it is merged.
    pub pending_list_limit: u64,
    /// How segments store vectors; `None`: as the data need it.
    pub quantization: Option<Quantization>,
    /// Model for text, if one was named.
    pub model: Option<String>,
    /// Candidates that a search keeps in each segment; zero for as many as the segment needs.
    pub ef_search: usize,
}

/// Reads the storage parameters of an index.
///
/// # Safety
/// `relation` is an open index of this access method.
pub unsafe fn of(relation: pg_sys::Relation) -> Options {
    // SAFETY: rd_options is null or what amoptions has made.
    let stored = unsafe { (*relation).rd_options.cast::<Stored>().as_ref() };
    let Some(stored) = stored else {
        return Options {
            m: M as usize,
            ef_construction: EF_CONSTRUCTION as usize,
            pending_list_limit: PENDING_LIST_LIMIT as u64 * 1024,
            quantization: None,
            model: None,
            ef_search: 0,
        };
    };
    Options {
        m: stored.m as usize,
        ef_construction: stored.ef_construction as usize,
        pending_list_limit: stored.pending_list_limit as u64 * 1024,
        quantization: Quantization::from_u8(stored.quantization as u8),
        model: model_of(stored),
        ef_search: stored.ef_search as usize,
    }
}

/// The model that storage parameters name.
fn model_of(stored: &Stored) -> Option<String> {
    let offset = usize::try_from(stored.model).ok().filter(|at| *at > 0)?;
    // SAFETY: string options lie behind the struct, at this offset, and end with a zero.
    let name = unsafe { CStr::from_ptr(std::ptr::from_ref(stored).cast::<c_char>().add(offset)) };
    Some(name.to_string_lossy().into_owned()).filter(|name| !name.is_empty())
}

static mut KIND: pg_sys::relopt_kind::Type = 0;

/// The parser of storage parameters (`amoptions`).
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn parse(
    reloptions: pg_sys::Datum,
    validate: bool,
) -> *mut pg_sys::bytea {
    use pg_sys::relopt_type::{RELOPT_TYPE_ENUM, RELOPT_TYPE_INT, RELOPT_TYPE_STRING};
    let int = RELOPT_TYPE_INT;
    let element = |optname: &CStr, opttype, offset: usize| pg_sys::relopt_parse_elt {
        optname: optname.as_ptr(),
        opttype,
        offset: offset as c_int,
        #[cfg(feature = "pg18")]
        isset_offset: 0,
    };
    let table = [
        element(c"m", int, std::mem::offset_of!(Stored, m)),
        element(
            c"ef_construction",
            int,
            std::mem::offset_of!(Stored, ef_construction),
        ),
        element(
            c"pending_list_limit",
            int,
            std::mem::offset_of!(Stored, pending_list_limit),
        ),
        element(
            c"quantization",
            RELOPT_TYPE_ENUM,
            std::mem::offset_of!(Stored, quantization),
        ),
        element(
            c"model",
            RELOPT_TYPE_STRING,
            std::mem::offset_of!(Stored, model),
        ),
        element(c"ef_search", int, std::mem::offset_of!(Stored, ef_search)),
    ];
    // SAFETY: the table describes `Stored`, whose first field is the varlena header.
    unsafe {
        let options = pg_sys::build_reloptions(
            reloptions,
            validate,
            KIND,
            size_of::<Stored>(),
            table.as_ptr(),
            table.len() as c_int,
        );
        // Of a statement that sets them, together with those that the index had.
        if validate && let Some(model) = options.cast::<Stored>().as_ref().and_then(model_of) {
            encode::check_parameter(&model);
        }
        options.cast()
    }
}

/// Number of the quantization that is left to the data; no [`Quantization`] has it.
const AUTO: c_int = 255;

const fn quantization(string_val: *const c_char, symbol_val: c_int) -> pg_sys::relopt_enum_elt_def {
    pg_sys::relopt_enum_elt_def {
        string_val,
        symbol_val,
    }
}

/// Names of the quantizations, ended by a null name. The server keeps a pointer to them.
static mut QUANTIZATIONS: [pg_sys::relopt_enum_elt_def; 7] = [
    quantization(c"auto".as_ptr(), AUTO),
    quantization(c"f32".as_ptr(), Quantization::F32 as c_int),
    quantization(c"f16".as_ptr(), Quantization::F16 as c_int),
    quantization(c"bf16".as_ptr(), Quantization::Bf16 as c_int),
    quantization(c"i8".as_ptr(), Quantization::I8 as c_int),
    quantization(c"b1".as_ptr(), Quantization::B1 as c_int),
    quantization(std::ptr::null(), Quantization::F32 as c_int),
];

/// Registers settings and storage parameters.
pub fn init() {
    let flags = GucFlags::default();
    // SAFETY: hooks as guc.c calls them.
    unsafe {
        GucRegistry::define_int_guc_with_hooks(
            c"laser.ef_search",
            c"Sets how many candidates a search keeps in each segment of an index.",
            c"More of them find more of the nearest rows and take longer. A sixteenth more are kept. 0 takes as many as each segment was measured to need for 99 % of the ten nearest. The storage parameter ef_search of an index takes precedence unless the session has set this.",
            &EF_SEARCH,
            0,
            LARGEST_EF_SEARCH,
            GucContext::Userset,
            flags,
            Some(check_ef_search),
            Some(assign_ef_search),
            None,
        );
    }
    GucRegistry::define_enum_guc(
        c"laser.iterative_scan",
        c"Sets how an index scan continues when its first search is exhausted.",
        c"A filter may leave fewer rows than LIMIT asks for; the search then becomes wider.",
        &ITERATIVE_SCAN,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_int_guc(
        c"laser.max_scan_tuples",
        c"Sets how many rows an index scan visits at most.",
        c"A query that needs more rows does not use an index, and a scan that reaches the limit sends a notice. 0 means no limit: a scan continues until the query has enough rows.",
        &MAX_SCAN_TUPLES,
        0,
        i32::MAX,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_bool_guc(
        c"laser.scan_notices",
        c"Sends a notice when an index scan ends at laser.max_scan_tuples, or an index is of another model.",
        c"Sent once per statement; the query may then return fewer rows than there are, or take longer.",
        &SCAN_NOTICES,
        GucContext::Userset,
        flags,
    );
    // What others search for is theirs: no role decides for itself to have it kept, or to fill the sample of others.
    GucRegistry::define_bool_guc(
        c"laser.track_queries",
        c"Keeps a sample of what indexes are searched for, to measure their recall with.",
        c"It is in shared memory, and needs laser in shared_preload_libraries. laser_index_recall and laser_index_tune search for it.",
        &TRACK_QUERIES,
        GucContext::Suset,
        flags,
    );
    GucRegistry::define_bool_guc(
        c"laser.background_maintenance",
        c"Merges pending lists in a background worker of the database.",
        c"If off, or if the server has no free worker process, the insert that fills a list merges it.",
        &BACKGROUND_MAINTENANCE,
        GucContext::Userset,
        flags,
    );
    GucRegistry::define_int_guc(
        c"laser.maintenance_workers",
        c"Sets how many databases may have a maintenance worker at once.",
        c"Each uses one of max_worker_processes. In the other databases the insert that fills a list merges it.",
        &MAINTENANCE_WORKERS,
        0,
        1024,
        GucContext::Sighup,
        flags,
    );
    // Changing these needs no stronger lock than a REINDEX that makes them effective.
    let lock = pg_sys::AccessExclusiveLock as pg_sys::LOCKMODE;
    // SAFETY: called once, when the library is loaded.
    unsafe {
        let kind = pg_sys::add_reloption_kind();
        KIND = kind;
        let int = |name: &CStr, about: &CStr, value, min, max| {
            pg_sys::add_int_reloption(kind, name.as_ptr(), about.as_ptr(), value, min, max, lock);
        };
        int(c"m", c"Neighbours of a node in the graph", M, 2, 128);
        int(
            c"ef_construction",
            c"Candidates while a node is added to the graph",
            EF_CONSTRUCTION,
            4,
            2000,
        );
        int(
            c"pending_list_limit",
            c"Size of the pending list, in kilobytes, at which it is merged into the graph",
            PENDING_LIST_LIMIT,
            64,
            c_int::MAX / 1024,
        );
        pg_sys::add_enum_reloption(
            kind,
            c"quantization".as_ptr(),
            c"How vectors are stored".as_ptr(),
            addr_of_mut!(QUANTIZATIONS).cast(),
            AUTO,
            c"Valid values are \"auto\", \"f32\", \"f16\", \"bf16\", \"i8\" and \"b1\".".as_ptr(),
            lock,
        );
        // It is read when a search begins, and nothing on disk depends on it.
        pg_sys::add_int_reloption(
            kind,
            c"ef_search".as_ptr(),
            c"Candidates that a search keeps in each segment; 0: as many as it was measured to need".as_ptr(),
            0,
            0,
            LARGEST_EF_SEARCH,
            pg_sys::ShareUpdateExclusiveLock as pg_sys::LOCKMODE,
        );
        pg_sys::add_string_reloption(
            kind,
            c"model".as_ptr(),
            c"Model that embeds the text".as_ptr(),
            std::ptr::null(),
            Some(check_model),
            lock,
        );
    }
}

/// Called by the server for what `model` is set to, and for its default. What an old cluster has is no matter of an upgrade.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn check_model(name: *const c_char) {
    // SAFETY: null, or a C string of the server.
    unsafe {
        if name.is_null() || pg_sys::IsBinaryUpgrade {
            return;
        }
        let name = CStr::from_ptr(name).to_str();
        if !name.is_ok_and(|name| name.is_empty() || valid_model_name(name)) {
            raise_hint(
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                "invalid name of a model",
                "View laser_models lists those that are installed.",
            );
        }
    }
}
