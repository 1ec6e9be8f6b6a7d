//! The models: found by name in the model folders, loaded by a thread of their own, dropped least
//! recently used first when they outgrow the memory limit, loaded again when their folder changes.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use laser_encoder::catalog::{self, RECHECK, Stamp};
use laser_encoder::{Encoder, LoadOptions, folder};
use laser_protocol::{ErrorCode, Failure, ModelInfo, valid_model_name};

use super::log;
use super::sys::Waker;

/// A model in memory.
pub struct Loaded {
    /// The encoder.
    pub encoder: Arc<Encoder>,
    /// Its fingerprint.
    pub fingerprint: [u8; 32],
    /// Smoothed seconds for each unit of `queue::text_cost`; 0 before the first batch.
    pub seconds_per_cost: f64,
    stamp: Stamp,
    memory: u64,
    used: u64,
    checked: Instant,
}

enum Entry {
    /// The loader works on it.
    Loading,
    /// Ready for use.
    Loaded(Loaded),
    /// Loading failed; tried again when the folder changes.
    Failed(Stamp, Failure),
}

/// Where a model stands.
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
        result: Box<Result<Encoder, String>>,
        seconds: f64,
    },
    Listed {
        asker: (u64, u64),
        models: Vec<ModelInfo>,
    },
}

/// All models of the process.
pub struct Models {
    folders: Vec<PathBuf>,
    default: String,
    memory_limit: u64,
    entries: HashMap<String, Entry>,
    clock: u64,
    tasks: Sender<Task>,
    done: Receiver<Done>,
    guessed: Option<(Instant, Option<String>)>,
}

impl Models {
    /// Models below `folders` (earlier folders win), `default` being the name of the default one
    /// (empty: chosen by [`Models::default_name`]), in at most `memory_limit` bytes (0: no limit).
    /// Starts the loader thread, which wakes `waker` after each report.
    pub fn new(
        folders: Vec<PathBuf>,
        default: String,
        memory_limit: u64,
        options: LoadOptions,
        waker: Arc<Waker>,
    ) -> std::io::Result<Self> {
        let (tasks, task_queue) = mpsc::channel();
        let (report, done) = mpsc::channel();
        std::thread::Builder::new()
            .name("loader".into())
            .spawn(move || {
                let mut hashes = HashMap::new();
                while let Ok(task) = task_queue.recv() {
                    let result = match task {
                        Task::Load { name, stamp } => load(name, stamp, &options),
                        Task::List { asker, folders } => {
                            let models = folders
                                .into_iter()
                                .map(|(name, path)| describe(name, &path, &mut hashes))
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
        Ok(Self {
            folders,
            default,
            memory_limit,
            entries: HashMap::new(),
            clock: 0,
            tasks,
            done,
            guessed: None,
        })
    }

    /// Name of the default model: the configured one, else the only one, else the first by name in
    /// the first folder that holds any.
    pub fn default_name(&mut self) -> Option<String> {
        if !self.default.is_empty() {
            return Some(self.default.clone());
        }
        match &self.guessed {
            Some((at, name)) if at.elapsed() < RECHECK && name.is_some() => name.clone(),
            _ => {
                let name = catalog::first_name(&self.folders);
                self.guessed = Some((Instant::now(), name.clone()));
                name
            }
        }
    }

    /// The name that a request means: its own, or the default one's.
    pub fn resolve(&mut self, name: &str) -> Result<String, Failure> {
        if name.is_empty() {
            self.default_name().ok_or_else(|| Failure {
                code: ErrorCode::UnknownModel,
                message: "no model is installed".into(),
                hint: "Install a model folder below the directories in laser.model_path, or the \
                       models that ship with laser."
                    .into(),
            })
        } else if valid_model_name(name) {
            Ok(name.to_owned())
        } else {
            Err(unknown(name))
        }
    }

    /// Where model `name` (resolved) stands; starts loading it where needed.
    pub fn lookup(&mut self, name: &str) -> Lookup {
        match self.entries.get_mut(name) {
            Some(Entry::Loading) => return Lookup::Loading,
            Some(Entry::Loaded(model)) if model.checked.elapsed() < RECHECK => {
                return Lookup::Ready;
            }
            _ => {}
        }
        let Some(path) = catalog::find(&self.folders, name) else {
            self.entries.remove(name);
            return Lookup::Failed(unknown(name));
        };
        let stamp = Stamp::of(&path);
        match self.entries.get_mut(name) {
            Some(Entry::Loaded(model)) if model.stamp == stamp => {
                model.checked = Instant::now();
                return Lookup::Ready;
            }
            Some(Entry::Failed(old, failure)) if *old == stamp => {
                return Lookup::Failed(failure.clone());
            }
            _ => {}
        }
        self.entries.insert(name.to_owned(), Entry::Loading);
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
        let mut folders: Vec<(String, PathBuf)> = Vec::new();
        for base in &self.folders {
            for name in catalog::names_in(base) {
                if !folders.iter().any(|(known, _)| *known == name) {
                    let path = base.join(&name);
                    folders.push((name, path));
                }
            }
        }
        folders.sort();
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
                    model.fingerprint = Some(loaded.fingerprint);
                }
                Some(Entry::Failed(_, failure)) if model.error.is_empty() => {
                    model.error.clone_from(&failure.message);
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
            max_tokens: config.max_tokens as u32,
            fingerprint: Some(model.fingerprint),
            loaded: true,
            default: default.as_deref() == Some(name),
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
                device = model.encoder.device_name().to_owned();
            }
        }
        names.sort();
        (names, memory, device)
    }

    fn finish_load(
        &mut self,
        name: &str,
        stamp: Stamp,
        result: Result<Encoder, String>,
        seconds: f64,
    ) -> Result<(), Failure> {
        match result {
            Ok(encoder) => {
                self.clock += 1;
                let model = Loaded {
                    fingerprint: encoder.fingerprint(),
                    memory: stamp.weights_bytes() + encoder.resident_bytes() as u64,
                    encoder: Arc::new(encoder),
                    seconds_per_cost: 0.0,
                    stamp,
                    used: self.clock,
                    checked: Instant::now(),
                };
                log(&format!(
                    "model \"{name}\" loaded in {seconds:.2} s on {}",
                    model.encoder.device_name()
                ));
                self.entries.insert(name.to_owned(), Entry::Loaded(model));
                self.drop_least_recently_used(name);
                Ok(())
            }
            Err(message) => {
                log(&format!("model \"{name}\" could not be loaded: {message}"));
                // Users see file names, not where the server keeps them.
                let message = message.replace(&format!("{}/", stamp.path().display()), "");
                let failure = Failure {
                    code: ErrorCode::BrokenModel,
                    message: format!("could not load model \"{name}\": {message}"),
                    hint: "Repair or replace the files of the model's folder; the next call tries \
                           again. See view laser_models for the models that are installed."
                        .into(),
                };
                self.entries
                    .insert(name.to_owned(), Entry::Failed(stamp, failure.clone()));
                Err(failure)
            }
        }
    }

    /// Keeps `keep` and drops others, oldest use first, until the rest fits the limit.
    fn drop_least_recently_used(&mut self, keep: &str) {
        if self.memory_limit == 0 {
            return;
        }
        while self.loaded().1 > self.memory_limit {
            let oldest = self
                .entries
                .iter()
                .filter_map(|(name, entry)| match entry {
                    Entry::Loaded(model) if name != keep => Some((model.used, name.clone())),
                    _ => None,
                })
                .min();
            let Some((_, name)) = oldest else { return };
            log(&format!(
                "model \"{name}\" dropped to keep to the memory limit"
            ));
            self.entries.remove(&name);
        }
    }
}

fn unknown(name: &str) -> Failure {
    Failure {
        code: ErrorCode::UnknownModel,
        message: format!("model \"{name}\" does not exist"),
        hint: "See view laser_models for the models that are installed.".into(),
    }
}

fn load(name: String, stamp: Stamp, options: &LoadOptions) -> Done {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| Encoder::load(stamp.path(), options)))
        .map_err(|_| "the loader failed on its files".to_owned())
        .and_then(|r| r.map_err(|e| e.to_string()));
    let seconds = start.elapsed().as_secs_f64();
    Done::Loaded {
        name,
        stamp,
        result: Box::new(result),
        seconds,
    }
}

/// Reads what can be told of a model without loading it. Hashes are kept as long as the files stay
/// the same.
fn describe(
    name: String,
    path: &Path,
    hashes: &mut HashMap<String, (Stamp, Option<[u8; 32]>)>,
) -> ModelInfo {
    let mut info = ModelInfo {
        name: name.clone(),
        dimensions: 0,
        architecture: String::new(),
        max_tokens: 0,
        fingerprint: None,
        loaded: false,
        default: false,
        error: String::new(),
    };
    match folder::read_config(path) {
        Ok(config) => {
            info.dimensions = config.dimensions as u32;
            info.architecture = config.encoder.name().to_owned();
            info.max_tokens = config.max_tokens as u32;
        }
        Err(e) => info.error = e.to_string().replace(&format!("{}/", path.display()), ""),
    }
    let stamp = Stamp::of(path);
    info.fingerprint = match hashes.get(&name) {
        Some((old, hash)) if *old == stamp => *hash,
        _ => {
            let hash = folder::fingerprint(path).ok();
            hashes.insert(name, (stamp, hash));
            hash
        }
    };
    info
}
