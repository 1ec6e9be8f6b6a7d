//! The models: found by name in the model folders, loaded by a thread of their own, dropped least
//! recently used first when they outgrow the memory limit, loaded again when their folder changes.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use laser_encoder::{Encoder, EncoderError, LoadOptions, Precision};
use laser_model::catalog::{self, RECHECK, Stamp};
use laser_model::{ModelError, folder, installed, languages};
use laser_protocol::loads::{LoadNote, Loads};
use laser_protocol::{ErrorCode, Failure, ModelInfo, valid_model_name};

use super::log::log;
use super::poll::Waker;

/// A model in memory.
pub struct Loaded {
    /// Shared with the threads that tokenize.
    pub encoder: Arc<Encoder>,
    /// Of what it embeds ([`languages::fingerprint`]).
    pub fingerprint: [u8; 32],
    /// Smoothed seconds for each unit of `queue::text_cost`; 0 before the first batch.
    pub seconds_per_cost: f64,
    stamp: Stamp,
    memory: u64,
    used: u64,
    checked: Instant,
}

/// How long a failure to load a model is what callers get, at first and at most: each one in a row counts for twice as
/// long as the one before. It may have been out of memory for a moment, and nothing changes in the folder then.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

enum Entry {
    /// The loader works on it. A failure will count for so long.
    Loading(Duration),
    /// Ready for use.
    Loaded(Loaded),
    /// Loading failed; tried again when the folder changes, or after a while.
    Failed(Failed),
}

struct Failed {
    stamp: Stamp,
    failure: Failure,
    since: Instant,
    counts_for: Duration,
}

impl Failed {
    fn counts(&self) -> bool {
        self.since.elapsed() < self.counts_for
    }

    /// How long the next one of the same folder will count.
    fn next(&self) -> Duration {
        (2 * self.counts_for).min(RETRY.1)
    }
}

/// Whether a model can be used.
pub enum Lookup {
    /// It can be used now.
    Ready,
    /// The loader will report.
    Loading,
    /// It cannot be used.
    Failed(Failure),
}

/// What the loader thread reports.
pub enum Report {
    /// A model was loaded, or could not be.
    Loaded {
        /// Its name.
        name: String,
        /// The failure, if there was one.
        failure: Option<Failure>,
    },
    /// The list that `Models::list` asked for.
    Listed {
        /// Session and request that asked.
        asker: (u64, u64),
        /// All models; which are loaded is filled in by [`Models::finish_list`].
        models: Vec<ModelInfo>,
    },
}

enum Task {
    Load {
        name: String,
        stamp: Stamp,
    },
    List {
        asker: (u64, u64),
        folders: Vec<(String, PathBuf)>,
    },
}

enum Done {
    Loaded {
        name: String,
        stamp: Stamp,
        result: Box<Result<Fingerprinted, EncoderError>>,
        seconds: f64,
    },
    Listed {
        asker: (u64, u64),
        models: Vec<ModelInfo>,
    },
}

/// An encoder, and the fingerprint of what it embeds.
type Fingerprinted = (Encoder, [u8; 32]);

/// All models of the process.
pub struct Models {
    folders: Vec<PathBuf>,
    default: String,
    memory_limit: u64,
    entries: HashMap<String, Entry>,
    clock: u64,
    tasks: Sender<Task>,
    done: Receiver<Done>,
    loads: Loads,
}

impl Models {
    /// Models below `folders` (earlier folders win), `default` being the name of the default one
    /// (empty: see [`Models::default_name`]), in at most `memory_limit` bytes (0: no limit).
    /// Starts the loader thread, which wakes `waker` after each report; `loads` and the note are of the record of the process.
    pub fn new(
        folders: Vec<PathBuf>,
        default: String,
        memory_limit: u64,
        options: LoadOptions,
        (note, loads): (LoadNote, Loads),
        waker: Arc<Waker>,
    ) -> std::io::Result<Self> {
        let (tasks, task_queue) = mpsc::channel();
        let (report, done) = mpsc::channel();
        std::thread::Builder::new()
            .name("loader".into())
            .spawn(move || {
                let (mut hashes, mut precisions) = (HashMap::new(), HashMap::new());
                while let Ok(task) = task_queue.recv() {
                    let result = match task {
                        Task::Load { name, stamp } => {
                            note.begin(&name);
                            let done = load(name, stamp, &options, &mut precisions);
                            note.end();
                            done
                        }
                        Task::List { asker, folders } => {
                            let models = folders
                                .into_iter()
                                .map(|(name, path)| {
                                    describe(name, &path, memory_limit, &mut hashes)
                                })
                                .collect();
                            Done::Listed { asker, models }
                        }
                    };
                    if report.send(result).is_err() {
                        return;
                    }
                    waker.wake();
                }
            })?;
        let models = Self {
            folders,
            default,
            memory_limit,
            entries: HashMap::new(),
            clock: 0,
            tasks,
            done,
            loads,
        };
        for folder in installed::missing_folders(&models.folders) {
            log(&format!(
                "directory \"{}\" for models does not exist",
                folder.display()
            ));
        }
        Ok(models)
    }

    /// Name of the default model: the configured one, else the one that ships with laser.
    pub fn default_name(&self) -> Option<String> {
        catalog::default_name(&self.default, &self.folders)
    }

    /// The name that a request means: its own, or the default one's.
    pub fn resolve(&mut self, name: &str) -> Result<String, Failure> {
        if name.is_empty() {
            self.default_name().ok_or_else(installed::no_default)
        } else if valid_model_name(name) {
            Ok(name.to_owned())
        } else {
            Err(installed::unknown(name, &self.folders))
        }
    }

    /// Where model `name` (resolved) stands; starts loading it where needed.
    pub fn lookup(&mut self, name: &str) -> Lookup {
        match self.entries.get_mut(name) {
            Some(Entry::Loading(_)) => return Lookup::Loading,
            Some(Entry::Loaded(model)) if model.checked.elapsed() < RECHECK => {
                return Lookup::Ready;
            }
            _ => {}
        }
        let Some(path) = catalog::find(&self.folders, name) else {
            self.entries.remove(name);
            return Lookup::Failed(installed::unknown(name, &self.folders));
        };
        let counts_for = match self.entries.get_mut(name) {
            Some(Entry::Loaded(model)) if model.stamp.is_of(&path) => {
                model.checked = Instant::now();
                return Lookup::Ready;
            }
            Some(Entry::Failed(old)) if old.stamp.is_of(&path) => {
                if old.counts() {
                    return Lookup::Failed(old.failure.clone());
                }
                old.next()
            }
            _ => RETRY.0,
        };
        if let Some(rest) = self.loads.refused(name) {
            return Lookup::Failed(Failure::new(
                ErrorCode::BrokenModel,
                format!(
                    "the encoder process ended again and again while it loaded model \"{name}\""
                ),
                format!(
                    "It is tried again in {} s, or when settings of the encoder change. There may be too little \
                     memory for it; see the server log.",
                    rest.as_secs().max(1)
                ),
            ));
        }
        let stamp = Stamp::of(&path);
        // A file that is too large is not even read: that may take hours.
        if let Some(failure) = self.too_large(name, stamp.bytes()) {
            self.fail(name, stamp, &failure, counts_for);
            return Lookup::Failed(failure);
        }
        // What is in the file is in memory in any case: whoever has to go for it goes before it comes.
        self.make_room(name, stamp.weights_bytes());
        self.entries
            .insert(name.to_owned(), Entry::Loading(counts_for));
        if self
            .tasks
            .send(Task::Load {
                name: name.to_owned(),
                stamp,
            })
            .is_err()
        {
            self.entries.remove(name);
            return Lookup::Failed(Failure {
                code: ErrorCode::Internal,
                message: "the thread that loads models has ended".into(),
                hint: String::new(),
            });
        }
        Lookup::Loading
    }

    /// A loaded model, which becomes the most recently used one.
    pub fn get(&mut self, name: &str) -> Option<&mut Loaded> {
        self.clock += 1;
        match self.entries.get_mut(name) {
            Some(Entry::Loaded(model)) => {
                model.used = self.clock;
                Some(model)
            }
            _ => None,
        }
    }

    /// Has the loader list all models for `asker` (session and request).
    pub fn list(&mut self, asker: (u64, u64)) {
        let folders = installed::list(&self.folders);
        let _ = self.tasks.send(Task::List { asker, folders });
    }

    /// What the loader has finished since the last call.
    pub fn reports(&mut self) -> Vec<Report> {
        let mut reports = Vec::new();
        while let Ok(done) = self.done.try_recv() {
            reports.push(match done {
                Done::Listed { asker, mut models } => {
                    self.finish_list(&mut models);
                    Report::Listed { asker, models }
                }
                Done::Loaded {
                    name,
                    stamp,
                    result,
                    seconds,
                } => {
                    let failure = self.finish_load(&name, stamp, *result, seconds).err();
                    Report::Loaded { name, failure }
                }
            });
        }
        reports
    }

    /// Marks which models are loaded, which one is the default, and which have failed.
    pub fn finish_list(&mut self, models: &mut [ModelInfo]) {
        let default = self.default_name();
        for model in models {
            model.default = default.as_deref() == Some(&model.name);
            match self.entries.get(&model.name) {
                Some(Entry::Loaded(loaded)) => {
                    model.loaded = true;
                    model.precision = precision(&loaded.encoder);
                    model.fingerprint = Some(loaded.fingerprint);
                }
                // A folder that has changed since may have been repaired: what the list saw in it counts.
                Some(Entry::Failed(failed))
                    if model.error.is_empty()
                        && catalog::find(&self.folders, &model.name)
                            .is_some_and(|path| failed.stamp.is_of(&path)) =>
                {
                    model.error.clone_from(&failed.failure.message);
                }
                _ => {}
            }
        }
    }

    /// A loaded model as users see it.
    pub fn info(&mut self, name: &str) -> Option<ModelInfo> {
        let default = self.default_name();
        let model = self.get(name)?;
        let config = model.encoder.config();
        Some(ModelInfo {
            name: name.to_owned(),
            dimensions: config.dimensions as u32,
            architecture: config.encoder.name().to_owned(),
            reranker: config.task == laser_model::config::Task::Rerank,
            max_tokens: config.max_tokens as u32,
            fingerprint: Some(model.fingerprint),
            loaded: true,
            precision: precision(&model.encoder),
            default: default.as_deref() == Some(name),
            query_prefix: config.prefixes.query.clone(),
            passage_prefix: config.prefixes.passage.clone(),
            error: String::new(),
        })
    }

    /// Names of the loaded models, sorted; their memory in bytes; the device of one of them.
    pub fn loaded(&self) -> (Vec<String>, u64, String) {
        let mut names = Vec::new();
        let mut memory = 0;
        let mut device = String::new();
        for (name, entry) in &self.entries {
            if let Entry::Loaded(model) = entry {
                names.push(name.clone());
                memory += model.memory;
                device = model.encoder.device_name();
            }
        }
        names.sort();
        (names, memory, device)
    }

    fn finish_load(
        &mut self,
        name: &str,
        stamp: Stamp,
        result: Result<Fingerprinted, EncoderError>,
        seconds: f64,
    ) -> Result<(), Failure> {
        let counts_for = match self.entries.get(name) {
            Some(Entry::Loading(counts_for)) => *counts_for,
            _ => RETRY.0,
        };
        self.loads.clear(name);
        match result {
            Ok((encoder, fingerprint)) => {
                self.clock += 1;
                let model = Loaded {
                    fingerprint,
                    memory: stamp.weights_bytes() + encoder.resident_bytes() as u64,
                    encoder: Arc::new(encoder),
                    seconds_per_cost: 0.0,
                    stamp,
                    used: self.clock,
                    checked: Instant::now(),
                };
                if let Some(refused) = model.encoder.refused_precision() {
                    log(&format!(
                        "model \"{name}\" runs in {}: its architecture has no {} on this device",
                        model.encoder.precision().name(),
                        refused.name()
                    ));
                }
                if let Some(problem) = model.encoder.device_problem() {
                    log(&format!(
                        "model \"{name}\" runs on the processor, since the GPU could not be used: {problem}"
                    ));
                }
                log(&format!(
                    "model \"{name}\" loaded in {seconds:.2} s on {}",
                    model.encoder.device_name()
                ));
                self.make_room(name, model.memory);
                if let Some(failure) = self.too_large(name, model.memory) {
                    self.fail(name, model.stamp, &failure, counts_for);
                    return Err(failure);
                }
                self.entries.insert(name.to_owned(), Entry::Loaded(model));
                Ok(())
            }
            Err(error) => {
                let message = error.to_string();
                log(&format!("model \"{name}\" could not be loaded: {message}"));
                let lacks_memory = error.is_lack_of_memory();
                let hint = match error {
                    EncoderError::Device(_) => {
                        "laser.device = auto or cpu runs models on the processor. A GPU takes a build of laser for \
                         CUDA, a driver, and memory that others leave free."
                    }
                    _ if lacks_memory => {
                        "The server's system has too little memory for the model now. It is tried again after a while."
                    }
                    _ => installed::REPAIR,
                };
                let mut failure = installed::broken(name, stamp.path(), message, hint);
                if lacks_memory {
                    failure.code = ErrorCode::OutOfMemory;
                }
                self.fail(name, stamp, &failure, counts_for);
                Err(failure)
            }
        }
    }

    fn fail(&mut self, name: &str, stamp: Stamp, failure: &Failure, counts_for: Duration) {
        let failed = Failed {
            stamp,
            failure: failure.clone(),
            since: Instant::now(),
            counts_for,
        };
        self.entries.insert(name.to_owned(), Entry::Failed(failed));
    }

    /// Drops models, oldest use first, until there is room for the `bytes` of `name`, or no other one
    /// is left.
    fn make_room(&mut self, name: &str, bytes: u64) {
        if self.memory_limit == 0 {
            return;
        }
        let mut dropped = false;
        loop {
            let mut others = 0;
            let mut oldest = None;
            for (other, entry) in &self.entries {
                if let Entry::Loaded(model) = entry
                    && other != name
                {
                    others += model.memory;
                    oldest = oldest.max(Some((std::cmp::Reverse(model.used), other.clone())));
                }
            }
            let Some((_, other)) = oldest.filter(|_| others + bytes > self.memory_limit) else {
                break;
            };
            log(&format!(
                "model \"{other}\" dropped to keep to the memory limit"
            ));
            self.entries.remove(&other);
            dropped = true;
        }
        // What is free counts for the system until it is given back.
        if dropped {
            laser_memory::heap::trim();
        }
    }

    /// The error for a model of `bytes` that is larger than the limit alone.
    fn too_large(&self, name: &str, bytes: u64) -> Option<Failure> {
        beyond(self.memory_limit, bytes).map(|excess| Failure {
            code: ErrorCode::BrokenModel,
            message: format!("model \"{name}\" {excess}"),
            hint: "Increase laser.encoder_memory, or choose a smaller model.".into(),
        })
    }
}

/// What is to be said of `bytes` that are more than the memory for models (0: without limit).
fn beyond(memory_limit: u64, bytes: u64) -> Option<String> {
    let megabytes = |bytes: u64| bytes.div_ceil(1 << 20);
    (memory_limit > 0 && bytes > memory_limit).then(|| {
        format!(
            "takes {} MB, laser.encoder_memory is {} MB",
            megabytes(bytes),
            megabytes(memory_limit)
        )
    })
}

/// The arithmetic of a model, and what was asked for instead.
fn precision(encoder: &Encoder) -> String {
    let name = encoder.precision().name();
    match encoder.refused_precision() {
        Some(refused) => format!("{name}, not {}", refused.name()),
        None => name.to_owned(),
    }
}

/// Loads a model. What `auto` chose in `precisions` is kept as long as the files stay the same: a model that
/// gives way to others and comes back shall embed a text as it did before.
fn load(
    name: String,
    stamp: Stamp,
    options: &LoadOptions,
    precisions: &mut HashMap<PathBuf, (Stamp, Precision)>,
) -> Done {
    let start = Instant::now();
    let mut options = *options;
    if options.precision == Precision::Auto
        && let Some((old, chosen)) = precisions.get(stamp.path())
        && *old == stamp
    {
        options.precision = *chosen;
    }
    let result = catch_unwind(AssertUnwindSafe(|| Encoder::load(stamp.path(), &options)))
        .unwrap_or_else(|_| {
            Err(EncoderError::Compute(
                "the loader failed on its files".into(),
            ))
        });
    let result = result.and_then(|encoder| {
        let fingerprint = languages::fingerprint(&name, stamp.path(), encoder.fingerprint())?;
        Ok((encoder, fingerprint))
    });
    if let Ok((encoder, _)) = &result {
        let path = stamp.path().to_owned();
        precisions.insert(path, (stamp.clone(), encoder.precision()));
    }
    laser_memory::heap::trim();
    let seconds = start.elapsed().as_secs_f64();
    Done::Loaded {
        name,
        stamp,
        result: Box::new(result),
        seconds,
    }
}

/// What can be told of a model without loading it. Hashes are kept as long as the files stay the same; files
/// that no model may have are not read.
fn describe(
    name: String,
    path: &Path,
    memory_limit: u64,
    hashes: &mut HashMap<PathBuf, (Stamp, [u8; 32])>,
) -> ModelInfo {
    installed::describe(name, path, |path| match hashes.get(path) {
        Some((old, hash)) if old.is_of(path) => Ok(*hash),
        _ => {
            let stamp = Stamp::of(path);
            if let Some(excess) = beyond(memory_limit, stamp.bytes()) {
                return Err(ModelError::Config(format!("it {excess}")));
            }
            let hash = folder::fingerprint(path)?;
            hashes.insert(path.to_owned(), (stamp, hash));
            Ok(hash)
        }
    })
}
