//! The model that sessions encode with themselves.
//!
//! Embedding a text with a mean of word vectors takes some microseconds, asking the encoder process
//! for it twenty times as long. With `shared_preload_libraries`, the postmaster therefore loads the
//! default model, if it is that cheap, before it forks any session; the sessions share its pages.
//!
//! Invariants:
//! - The postmaster starts no thread ([`LocalEncoder`] starts none), and no session does here.
//! - Whatever goes wrong while the model is loaded is a line in the log; the server starts, and its
//!   sessions ask the encoder process.
//! - What is loaded lies apart from the heap ([`arena`]), which sessions write to.
//! - The model is never loaded again in this server's life. As soon as the encoder process would
//!   use another one (other settings, changed files), sessions ask that process.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use laser_model::catalog::{self, RECHECK, Stamp};
use laser_model::shared::Shared;
use laser_model::{LocalEncoder, installed, languages};
use laser_protocol::{ErrorCode, Failure, Role};
use pgrx::{check_for_interrupts, pg_sys};

use super::embedded::{Cut, Embedded, Model};
use super::error::CallError;
use super::guc::InBackend;
use super::log::log;
use super::{arena, guc, installation};

static RESIDENT: OnceLock<Arc<Resident>> = OnceLock::new();

/// A model in the postmaster's memory, or in that of one session.
pub struct Resident {
    name: String,
    stamp: Stamp,
    encoder: LocalEncoder,
    /// Of what it embeds ([`languages::fingerprint`]).
    fingerprint: [u8; 32],
    sentences: Counter,
}

/// Loads the default model if the library is being preloaded and the model is cheap.
pub fn load_at_start() {
    // SAFETY: reads a variable of the postmaster.
    let preload = unsafe { pg_sys::process_shared_preload_libraries_in_progress };
    if !preload || guc::in_backend() == InBackend::Off || !on_cpu() {
        return;
    }
    let folders = installation::model_folders();
    // A model that is missing is reported to those who ask for it.
    let Some(name) = catalog::default_name(&guc::model(), &folders) else {
        return;
    };
    let Some(path) = catalog::find(&folders, &name) else {
        return;
    };
    match load(name, Stamp::of(&path)) {
        Ok(Some(resident)) => {
            log(format!(
                "laser: sessions encode texts for model \"{}\" themselves",
                resident.name
            ));
            // Nobody was faster: the postmaster comes here once.
            let _ = RESIDENT.set(Arc::new(resident));
        }
        Ok(None) => {}
        Err(why) => log(format!(
            "laser: sessions cannot encode texts themselves, they ask the encoder process: {why}"
        )),
    }
}

fn load(name: String, stamp: Stamp) -> Result<Option<Resident>, String> {
    let Some(encoder) = LocalEncoder::load(stamp.path()).map_err(|e| e.to_string())? else {
        return Ok(None);
    };
    let encoder = arena::filled_by(|| encoder.compacted());
    new(name, stamp, encoder).map(Some)
}

/// A model whose folder was in the state of `stamp` before it was loaded, and must be still.
pub fn new(name: String, stamp: Stamp, encoder: LocalEncoder) -> Result<Resident, String> {
    if Stamp::of(stamp.path()) != stamp {
        return Err(format!("the files of model \"{name}\" are being replaced"));
    }
    let sentences = Counter::new().map_err(|e| format!("could not map memory: {e}"))?;
    let fingerprint = languages::fingerprint(&name, stamp.path(), encoder.fingerprint())
        .map_err(|e| e.to_string())?;
    Ok(Resident {
        name,
        stamp,
        encoder,
        fingerprint,
        sentences,
    })
}

/// Whether `laser.device` leaves cheap models on the CPU.
fn on_cpu() -> bool {
    matches!(&*guc::device(), "auto" | "cpu")
}

/// The resident model, if the encoder process would use the same one for this name (empty: its
/// default) and the session wants to encode itself.
pub fn serving(name: &str) -> Option<&'static Arc<Resident>> {
    let resident = RESIDENT.get()?;
    if guc::in_backend() == InBackend::Off || !(name.is_empty() || name == resident.name) {
        return None;
    }
    let check = Check::recent(resident);
    (check.current && (check.is_default || !name.is_empty())).then_some(resident)
}

/// The resident model, whether or not it serves, with the texts it has embedded in all sessions.
pub fn statistics() -> Option<(String, u64)> {
    RESIDENT.get().map(|resident| resident.statistics())
}

/// What a session has found out about the resident model; checked as often as the encoder
/// process looks, and after each reload.
#[derive(Clone, Copy)]
struct Check {
    at: Instant,
    reload: pg_sys::TimestampTz,
    /// The settings and files are still those of the start.
    current: bool,
    /// It is the session's default.
    is_default: bool,
}

impl Check {
    fn recent(resident: &Resident) -> Self {
        static LAST: Mutex<Option<Check>> = Mutex::new(None);
        // SAFETY: reads a variable of the process.
        let reload = unsafe { pg_sys::PgReloadTime };
        let mut last = LAST.lock().unwrap_or_else(|e| e.into_inner());
        match *last {
            Some(check) if check.reload == reload && check.at.elapsed() < RECHECK => check,
            _ => *last.insert(Self::new(resident, reload)),
        }
    }

    fn new(resident: &Resident, reload: pg_sys::TimestampTz) -> Self {
        let folders = installation::model_folders();
        let current = on_cpu()
            && catalog::find(&folders, &resident.name)
                .is_some_and(|path| Stamp::of(&path) == resident.stamp);
        let default = catalog::default_name(&guc::configured_model(), &folders);
        Self {
            at: Instant::now(),
            reload,
            current,
            is_default: default.as_deref() == Some(&resident.name),
        }
    }
}

impl Resident {
    /// The model's name, as `laser.model` takes it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the folder `path` is in the state that it was loaded from.
    pub fn is_of(&self, path: &Path) -> bool {
        self.stamp.is_of(path)
    }

    /// Its name, and the texts that it has embedded.
    pub fn statistics(&self) -> (String, u64) {
        (self.name.clone(), self.sentences.sum())
    }

    /// As other modules know it.
    pub fn model(&self) -> Model {
        Model {
            name: self.name.clone(),
            dimensions: self.encoder.config().dimensions,
            reranker: false,
            max_tokens: self.encoder.config().max_tokens,
            fingerprint: self.fingerprint,
        }
    }

    /// The embeddings of texts that are what `role` says, and how many were cut. A cancel works between two
    /// texts.
    pub fn embed(&self, role: Role, texts: &[Cow<'_, str>]) -> Result<(Embedded, Cut), CallError> {
        let dimensions = self.encoder.config().dimensions;
        let mut data = laser_memory::filled(0.0, texts.len().saturating_mul(dimensions))?;
        let mut cut: Cut = 0;
        for (text, row) in texts.iter().zip(data.chunks_exact_mut(dimensions)) {
            check_for_interrupts!();
            let truncated = self.encoder.encode(text, role, row).map_err(|error| {
                installed::refusal(&self.name, &error)
                    .unwrap_or_else(|| Failure::new(ErrorCode::Internal, error.to_string(), ""))
            })?;
            if row.iter().any(|v| !v.is_finite()) {
                return Err(Failure::not_finite(&self.name).into());
            }
            cut += usize::from(truncated);
        }
        self.sentences.add(texts.len() as u64);
        let embedded = Embedded {
            dimensions,
            data,
            fingerprint: self.fingerprint,
        };
        Ok((embedded, cut))
    }
}

/// Parts of a counter: sessions seldom write to the same cache line.
const PARTS: usize = 64;

/// Numbers in a cache line.
const LINE: usize = 8;

/// A counter of all sessions.
struct Counter(Shared);

impl Counter {
    fn new() -> io::Result<Self> {
        Ok(Self(Shared::new(PARTS * LINE)?))
    }

    fn add(&self, n: u64) {
        // SAFETY: reads a variable of the process.
        let part = unsafe { pg_sys::MyProcPid } as usize % PARTS;
        self.0[part * LINE].fetch_add(n, Ordering::Relaxed);
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }
}
