//! The training loop.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use laser_model::config::{Architecture, TransformerPooling};

use super::checkpoint::{self, Checkpoint};
use super::config::TrainConfig;
use super::dev::Dev;
use super::log::{Line, Log};
use super::progress::Progress;
use super::training_target::TrainingTarget;
use super::{TrainError, languages, shared};
use crate::data::PackedCorpus;
use crate::ops::threads::Threads;
use crate::optim::Schedule;
use crate::tokenizer::Loaded;

/// How a run is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Go on from the checkpoint in the output folder; without one, start afresh.
    pub resume: bool,
    /// No progress on the terminal.
    pub quiet: bool,
    /// Stop with a checkpoint after this many updates of this call.
    pub updates: Option<u64>,
    /// Set from elsewhere to stop after the current update with a checkpoint.
    pub stop: Option<Arc<AtomicBool>>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Updates made.
    pub step: u64,
    /// Loss of the last update; NaN if the run was over before it began.
    pub loss: f64,
    /// Best figure on the dev sets and its step.
    pub best: Option<(f64, u64)>,
    /// Whether it was interrupted.
    pub interrupted: bool,
}

/// Trains as `config` says. The output folder receives `best/` and `last/` (model folders),
/// `checkpoint.safetensors`, `train.csv`, `dev.csv` and `config.toml`.
///
/// # Errors
/// [`TrainError`]; a run that diverged leaves its last checkpoint.
pub fn run(config: &TrainConfig, options: &Options) -> Result<Summary, TrainError> {
    config.check()?;
    let folder = &config.output;
    std::fs::create_dir_all(folder).map_err(|e| TrainError::io(folder, e))?;
    let tokenizer = crate::tokenizer::load(&config.tokenizer)?;
    let corpus = PackedCorpus::open(&config.corpus)?;
    if corpus.header().tokenizer != tokenizer.fingerprint {
        return Err(TrainError::Config(format!(
            "corpus \"{}\" was packed with another tokenizer than \"{}\"",
            config.corpus.display(),
            config.tokenizer.display()
        )));
    }
    check_beginnings(config, &tokenizer)?;
    let perturbed = config.objective.dual.as_ref().map_or(0, |d| d.perturbed);
    if perturbed > 0 && corpus.header().perturbed == 0 {
        return Err(TrainError::Config(format!(
            "objective.dual.perturbed is {perturbed}, but corpus \"{}\" was packed without --perturb",
            config.corpus.display()
        )));
    }
    let threads = Threads::new(config.threads)
        .map_err(|e| TrainError::Config(format!("could not start threads: {e}")))?;
    let mut target = prepare(config, &corpus, &tokenizer, threads)?;
    let resumed = options.resume && folder.join(checkpoint::FILE).exists();
    let mut used = None;
    // Frozen tensors are in no checkpoint.
    let begins = !resumed || target.has_frozen();
    if let Some(from) = config.model.init_from.as_ref().filter(|_| begins) {
        used = Some((target.initialise(config, from)?, from));
    }
    let progress = if resumed {
        let saved = Checkpoint::read(folder)?;
        target.restore(&saved)?;
        saved.progress().clone()
    } else {
        let (sampler, pending) = target.drawn();
        Progress {
            step: 0,
            pairs: 0,
            tokens: 0,
            seconds: 0.0,
            best: None,
            stale: 0,
            stalls: 0,
            sampler,
            pending,
        }
    };
    let log = Log::open(folder, progress.step, options.quiet)?;
    if let Some((tensors, from)) = used {
        log.say(&format!(
            "starting from {} of \"{}\"",
            tensors.join(", "),
            from.display()
        ));
    }
    let text = toml::to_string(config).map_err(|e| TrainError::Config(e.to_string()))?;
    let copy = folder.join("config.toml");
    std::fs::write(&copy, text).map_err(|e| TrainError::io(&copy, e))?;
    let dev = config
        .dev
        .iter()
        .map(|set| Dev::load(set, &tokenizer, config.sampling.max_tokens))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(dev) = dev.iter().find(|dev| !measurable(&*target, dev)) {
        return Err(TrainError::Config(format!(
            "dev set \"{}\" needs an encoder of its pivot \"{}\" and of another language that it has",
            dev.name, dev.pivot
        )));
    }
    log.say(&format!(
        "{}: {}, {} sentences",
        config.name,
        target.describe(),
        corpus.sentences()
    ));
    let mut trainer = Run {
        config,
        options,
        target,
        progress,
        dev,
        log,
        started: Instant::now(),
    };
    let result = trainer.all(&corpus);
    trainer.log.finish();
    result
}

/// Refuses to take the first token of a text, whichever it is, for the text.
fn check_beginnings(config: &TrainConfig, tokenizer: &Loaded) -> Result<(), TrainError> {
    let first = matches!(
        &config.model.encoder,
        Architecture::Transformer(c) if c.pooling == TransformerPooling::Cls
    );
    if !first || tokenizer.begins_texts()? {
        return Ok(());
    }
    Err(TrainError::Config(format!(
        "pooling = \"cls\" takes the state of a token that begins every text, and tokenizer \"{}\" has none; make one with \
         `laser tokenizer --transformer`, or take pooling = \"mean\"",
        config.tokenizer.display()
    )))
}

/// A run that has made no step.
fn prepare(
    config: &TrainConfig,
    corpus: &PackedCorpus,
    tokenizer: &Loaded,
    threads: Threads,
) -> Result<Box<dyn TrainingTarget>, TrainError> {
    Ok(match &config.objective.paths {
        Some(paths) => Box::new(languages::prepare(
            config, paths, corpus, tokenizer, threads,
        )?),
        None => Box::new(shared::prepare(config, corpus, tokenizer, threads)?),
    })
}

/// Whether a dev set's candidates and some of its other sentences can be embedded.
fn measurable(target: &dyn TrainingTarget, dev: &Dev) -> bool {
    let known = dev.parts().map(|(language, _)| target.embeds(language));
    let known: Vec<bool> = known.collect();
    known[0] && known[1..].contains(&true)
}

struct Run<'a> {
    config: &'a TrainConfig,
    options: &'a Options,
    target: Box<dyn TrainingTarget>,
    progress: Progress,
    dev: Vec<Dev>,
    log: Log,
    started: Instant,
}

/// Sums between two log lines.
#[derive(Default)]
struct Window {
    steps: u64,
    loss: f64,
    norm: f64,
    pairs: u64,
    tokens: u64,
    seconds: f64,
}

impl Run<'_> {
    /// Seconds of the run, over all resumptions.
    fn seconds(&self) -> f64 {
        self.progress.seconds + self.started.elapsed().as_secs_f64()
    }

    /// Share of the run that is over, by the nearer of its two limits.
    fn share(&self) -> f64 {
        let run = &self.config.run;
        let by_steps = if run.steps > 0 {
            self.progress.step as f64 / run.steps as f64
        } else {
            0.0
        };
        let by_time = if run.max_minutes > 0.0 {
            self.seconds() / (60.0 * run.max_minutes)
        } else {
            0.0
        };
        by_steps.max(by_time)
    }

    fn all(&mut self, corpus: &PackedCorpus) -> Result<Summary, TrainError> {
        let config = self.config;
        let interrupted = self.options.stop.clone().unwrap_or_default();
        let mut window = Window::default();
        let mut saved = Instant::now();
        let mut loss = f64::NAN;
        let mut evaluated = None;
        let last = self.options.updates.map(|n| self.progress.step + n);
        let stopped = |step: u64| interrupted.load(Ordering::Relaxed) || last == Some(step);
        while self.share() < 1.0 && !stopped(self.progress.step) {
            let begin = Instant::now();
            let step = self.progress.step;
            let factor = self.rate_factor();
            let outcome = self.target.step(config, corpus, step, factor)?;
            self.progress.step += 1;
            self.progress.pairs += outcome.pairs;
            self.progress.tokens += outcome.tokens;
            loss = outcome.loss;
            window.steps += 1;
            window.loss += outcome.loss;
            window.norm += outcome.norm;
            window.pairs += outcome.pairs;
            window.tokens += outcome.tokens;
            window.seconds += begin.elapsed().as_secs_f64();
            if self.progress.step.is_multiple_of(config.run.log_steps) {
                self.line(&window, config.optimizer.learning_rate * factor)?;
                window = Window::default();
            }
            if config.run.dev_steps > 0 && self.progress.step.is_multiple_of(config.run.dev_steps) {
                evaluated = Some(self.progress.step);
                self.evaluate()?;
                if config.run.patience > 0 && self.progress.stale >= config.run.patience {
                    self.log.say(&format!(
                        "no better dev accuracy in {} evaluations: stopping",
                        self.progress.stale
                    ));
                    break;
                }
            }
            if saved.elapsed().as_secs_f64() > 60.0 * config.run.checkpoint_minutes {
                self.save()?;
                saved = Instant::now();
            }
        }
        let interrupted = self.share() < 1.0 && stopped(self.progress.step);
        if !interrupted && evaluated != Some(self.progress.step) {
            self.evaluate()?;
        }
        self.save()?;
        if interrupted {
            self.log.say(&format!(
                "interrupted at step {}: checkpoint saved",
                self.progress.step
            ));
        }
        Ok(Summary {
            step: self.progress.step,
            loss,
            best: self.progress.best,
            interrupted,
        })
    }

    fn line(&mut self, window: &Window, rate: f64) -> Result<(), TrainError> {
        let n = window.steps as f64;
        let line = Line {
            step: self.progress.step,
            pairs: self.progress.pairs,
            tokens: self.progress.tokens,
            seconds: self.seconds(),
            rate,
            loss: window.loss / n,
            norm: window.norm / n,
            pairs_per_second: window.pairs as f64 / window.seconds,
            tokens_per_second: window.tokens as f64 / window.seconds,
            progress: self.share(),
        };
        self.log.line(&line)
    }

    /// Measures dev accuracy (of the averaged weights, where they are kept) and keeps the model if
    /// it is the best so far.
    fn evaluate(&mut self) -> Result<(), TrainError> {
        if self.dev.is_empty() {
            return Ok(());
        }
        let at = (self.progress.step, self.progress.pairs, self.seconds());
        let (mut figure, mut weights) = (0.0, 0.0);
        let measured = self.target.measure(&self.dev)?;
        for (dev, accuracy) in self.dev.iter().zip(measured) {
            figure += dev.weight * accuracy.mean;
            weights += dev.weight;
            self.log.dev(at, &dev.name, &accuracy)?;
        }
        figure /= f64::max(weights, f64::MIN_POSITIVE);
        if self.progress.best.is_none_or(|(best, _)| figure > best) {
            self.progress.best = Some((figure, self.progress.step));
            self.progress.stale = 0;
            let best = self.config.output.join("best");
            return self.target.write(&best, self.config);
        }
        self.progress.stale += 1;
        let Schedule {
            stall_factor,
            stall_evaluations,
            ..
        } = self.config.schedule;
        if stall_factor < 1.0 && self.progress.stale.is_multiple_of(stall_evaluations) {
            self.progress.stalls += 1;
            self.log.say(&format!(
                "no better dev accuracy in {} evaluations: the learning rate is lowered",
                self.progress.stale
            ));
        }
        Ok(())
    }

    /// Factor of the learning rate of the next update.
    fn rate_factor(&self) -> f64 {
        let schedule = &self.config.schedule;
        let lowered = schedule.stall_factor.powi(self.progress.stalls as i32);
        schedule.factor(self.progress.step, self.share()) * lowered
    }

    fn save(&mut self) -> Result<(), TrainError> {
        let folder: &Path = &self.config.output;
        let (sampler, pending) = self.target.drawn();
        let progress = Progress {
            seconds: self.seconds(),
            sampler,
            pending,
            ..self.progress.clone()
        };
        self.target.save(folder, &progress)?;
        self.target.write(&folder.join("last"), self.config)
    }
}
