//! The settings of the encoder.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_void};

use laser_protocol::valid_model_name;
use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};
use pgrx::{pg_guard, pg_sys};

/// Sets what happens to a text that is longer than its model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum LongText {
    /// It is cut, with a warning.
    #[name = c"warn"]
    Warn,
    /// It is refused.
    #[name = c"error"]
    Error,
}

/// `laser.encode_in_backend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum InBackend {
    /// Sessions ask the encoder process.
    #[name = c"off"]
    Off,
    /// Sessions embed with the model that the server has loaded for them.
    #[name = c"on"]
    On,
    /// Sessions embed themselves whatever it takes, and the encoder process is never asked.
    #[name = c"always"]
    Always,
    // What a setting that was a boolean may stand as in configuration files.
    #[doc(hidden)]
    #[name = c"false"]
    #[hidden = true]
    False,
    #[doc(hidden)]
    #[name = c"no"]
    #[hidden = true]
    No,
    #[doc(hidden)]
    #[name = c"0"]
    #[hidden = true]
    Zero,
    #[doc(hidden)]
    #[name = c"true"]
    #[hidden = true]
    True,
    #[doc(hidden)]
    #[name = c"yes"]
    #[hidden = true]
    Yes,
    #[doc(hidden)]
    #[name = c"1"]
    #[hidden = true]
    One,
}

/// Arithmetic of the encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum EncoderPrecision {
    /// The fastest that agrees with f32 on the model's check sentences.
    #[name = c"auto"]
    Auto,
    /// 32-bit floats.
    #[name = c"f32"]
    F32,
    /// Brain floats.
    #[name = c"bf16"]
    Bf16,
    /// Row-wise int8.
    #[name = c"i8"]
    I8,
}

impl EncoderPrecision {
    /// The name as the encoder program takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
        }
    }
}

static MODEL: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static MODEL_PATH: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static DEVICE: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c"auto"));
/// `laser.long_text`.
pub static LONG_TEXT: GucSetting<LongText> = GucSetting::<LongText>::new(LongText::Warn);
/// `laser.encoder_precision`.
pub static PRECISION: GucSetting<EncoderPrecision> =
    GucSetting::<EncoderPrecision>::new(EncoderPrecision::Auto);
/// `laser.encoder_threads`.
pub static THREADS: GucSetting<i32> = GucSetting::<i32>::new(0);
/// `laser.encoder_memory` in megabytes.
pub static MEMORY: GucSetting<i32> = GucSetting::<i32>::new(4096);
/// `laser.encoder_queue` in texts.
pub static QUEUE: GucSetting<i32> = GucSetting::<i32>::new(10_000);
/// `laser.encoder_start_timeout` in milliseconds.
pub static START_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(15_000);
static ENCODE_IN_BACKEND: GucSetting<InBackend> = GucSetting::<InBackend>::new(InBackend::On);
/// `laser.encoder_timeout` in milliseconds.
pub static TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(60_000);
/// `laser.encoder_busy_timeout` in milliseconds.
pub static BUSY_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(10_000);

fn string(setting: &GucSetting<Option<CString>>) -> String {
    setting
        .get()
        .map(|s| s.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// `laser.model`; empty: the encoder's default.
pub fn model() -> String {
    string(&MODEL)
}

/// `laser.model` as the session began: as the server, the role, the database or the connection has it.
pub fn configured_model() -> String {
    // SAFETY: the setting has been defined; guc.c returns its C string, which is copied at once.
    unsafe {
        let value = pg_sys::GetConfigOptionResetString(c"laser.model".as_ptr());
        if value.is_null() {
            return String::new();
        }
        CStr::from_ptr(value).to_string_lossy().into_owned()
    }
}

/// `laser.encode_in_backend`: one of the three that it may be.
pub fn in_backend() -> InBackend {
    match ENCODE_IN_BACKEND.get() {
        InBackend::Off | InBackend::False | InBackend::No | InBackend::Zero => InBackend::Off,
        InBackend::On | InBackend::True | InBackend::Yes | InBackend::One => InBackend::On,
        InBackend::Always => InBackend::Always,
    }
}

/// `laser.device`.
pub fn device() -> String {
    string(&DEVICE)
}

/// `laser.model_path`, split at colons.
pub fn model_path() -> Vec<String> {
    string(&MODEL_PATH)
        .split(':')
        .filter(|s| !s.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Defines all settings of this module.
pub fn define() {
    // SAFETY: the hooks below have the signatures that guc.c calls, and are guarded.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            c"laser.model",
            c"Name of the model that embeds texts where no other model is given.",
            c"Empty: the model that ships with laser, laser-mean-384. See view laser_models.",
            &MODEL,
            GucContext::Userset,
            GucFlags::default(),
            Some(check_model),
            Some(assign_model),
            None,
        );
        GucRegistry::define_string_guc_with_hooks(
            c"laser.device",
            c"Device that the encoder runs on: auto, cpu, cuda or cuda:N.",
            c"",
            &DEVICE,
            GucContext::Sighup,
            GucFlags::default(),
            Some(check_device),
            None,
            None,
        );
        GucRegistry::define_string_guc_with_hooks(
            c"laser.model_path",
            c"Directories with model folders, separated by colons.",
            c"They are searched before the models that ship with laser.",
            &MODEL_PATH,
            GucContext::Sighup,
            GucFlags::SUPERUSER_ONLY,
            Some(check_model_path),
            None,
            None,
        );
    }
    GucRegistry::define_enum_guc(
        c"laser.long_text",
        c"Sets what happens to a text that is longer than its model reads.",
        c"warn: it is truncated, with one warning per statement; error: it is refused.",
        &LONG_TEXT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"laser.encoder_precision",
        c"Arithmetic of the encoder.",
        c"auto: the fastest that agrees with f32 on the model's own check sentences.",
        &PRECISION,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"laser.encoder_threads",
        c"Threads of the encoder process.",
        c"0: one for each core.",
        &THREADS,
        0,
        1024,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"laser.encoder_memory",
        c"Memory for models that stay loaded.",
        c"Beyond it the least recently used ones are dropped. 0: no limit.",
        &MEMORY,
        0,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_MB,
    );
    GucRegistry::define_int_guc(
        c"laser.encoder_queue",
        c"Texts of all sessions that may wait for the encoder.",
        c"",
        &QUEUE,
        1,
        10_000_000,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"laser.encoder_start_timeout",
        c"How long a call waits for the encoder process to start.",
        c"",
        &START_TIMEOUT,
        1,
        3_600_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"laser.encoder_timeout",
        c"How long the encoder process may neither answer nor compute before it is started again.",
        c"One that computes all the while has ten times as long.",
        &TIMEOUT,
        1000,
        86_400_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_enum_guc(
        c"laser.encode_in_backend",
        c"Whether sessions encode texts themselves where the model is cheap.",
        c"on: with the default model, where laser is in shared_preload_libraries; always: each with a copy of \
          its own where that is not loaded, and never by the encoder process; off: by the encoder process, \
          and with off at its start, the server loads no model for its sessions.",
        &ENCODE_IN_BACKEND,
        // A model that a session loads is beyond the limits of the encoder process: whether any is, is the
        // administrator's to say.
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"laser.encoder_busy_timeout",
        c"How long a call waits for room in the encoder's queue.",
        c"0: a full queue is an error at once.",
        &BUSY_TIMEOUT,
        0,
        3_600_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
}

/// Refuses settings below `laser.` that nobody has defined.
pub fn reserve_prefix() {
    // SAFETY: called while the library is loaded, with a constant C string.
    unsafe {
        #[cfg(feature = "pg14")]
        pg_sys::EmitWarningsOnPlaceholders(c"laser".as_ptr());
        #[cfg(not(feature = "pg14"))]
        pg_sys::MarkGUCPrefixReserved(c"laser".as_ptr());
    }
}

/// The new value of a string setting; guc.c never passes null for settings with a default.
unsafe fn new_value<'a>(value: *mut *mut c_char) -> &'a str {
    // SAFETY: guc.c passes a valid pointer to a C string or to null.
    unsafe {
        if value.is_null() || (*value).is_null() {
            return "";
        }
        CStr::from_ptr(*value).to_str().unwrap_or("\u{fffd}")
    }
}

fn refuse(detail: &'static CStr) -> bool {
    // SAFETY: guc.c reads the string in the report and never writes or frees it; the type is not
    // const only because it is a plain C variable.
    unsafe { pg_sys::GUC_check_errdetail_string = detail.as_ptr().cast_mut() };
    false
}

#[pg_guard]
unsafe extern "C-unwind" fn check_model(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: called by guc.c.
    let name = unsafe { new_value(value) };
    name.is_empty()
        || valid_model_name(name)
        || refuse(
            c"Model names have up to 63 letters, digits, dots, underscores and hyphens, and @LANGUAGE behind \
              those of models with an encoder for each language; folders are set in laser.model_path.",
        )
}

thread_local! {
    static MODEL_CHANGES: Cell<u64> = const { Cell::new(0) };
}

/// How often `laser.model` has got another value in this session: where that is the same, so is the value.
pub fn model_changes() -> u64 {
    MODEL_CHANGES.get()
}

/// Which indexes on text serve a query depends on the model, so plans that are kept are made again, as
/// the server does for `session_replication_role`.
#[pg_guard]
unsafe extern "C-unwind" fn assign_model(value: *const c_char, _extra: *mut c_void) {
    // SAFETY: called by guc.c with a C string or null, before the setting gets that value. The cache
    // may be reset at any time, and raises no errors.
    unsafe {
        let new = if value.is_null() {
            c""
        } else {
            CStr::from_ptr(value)
        };
        if MODEL.get().unwrap_or_default().as_c_str() != new {
            MODEL_CHANGES.set(MODEL_CHANGES.get().wrapping_add(1));
            pg_sys::ResetPlanCache();
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn check_device(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: called by guc.c.
    let name = unsafe { new_value(value) };
    matches!(name, "auto" | "cpu" | "cuda")
        || name
            .strip_prefix("cuda:")
            .is_some_and(|n| n.parse::<u16>().is_ok())
        || refuse(c"Devices are auto, cpu, cuda and cuda:N.")
}

#[pg_guard]
unsafe extern "C-unwind" fn check_model_path(
    value: *mut *mut c_char,
    _extra: *mut *mut c_void,
    _source: pg_sys::GucSource::Type,
) -> bool {
    // SAFETY: called by guc.c.
    let path = unsafe { new_value(value) };
    path.split(':').all(|p| p.is_empty() || p.starts_with('/'))
        || refuse(c"Directories must be absolute paths, separated by colons.")
}
