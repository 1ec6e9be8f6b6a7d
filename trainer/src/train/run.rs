//! The training loop.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use laser_model::config::Architecture;

use super::TrainError;
use super::checkpoint::{self, Progress};
use super::config::{Precision, TrainConfig, TrainDevice};
use super::dev::Dev;
use super::inference::{Inference, LabelledPairs};
use super::log::{Line, Log};
use super::step::Stepper;
use super::teacher::Teacher;
use crate::data::{PackedCorpus, Sampler};
use crate::models::{Model, ModelError};
use crate::objectives::nli;
use crate::objectives::nmt::Decoder;
use crate::ops::lstm_device::LstmDevice;
use crate::ops::threads::Threads;
use crate::optim::Optimizer;
use laser_kernels::training::Arithmetic;

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
    let perturbed = config.objective.dual.as_ref().map_or(0, |d| d.perturbed);
    if perturbed > 0 && corpus.header().perturbed == 0 {
        return Err(TrainError::Config(format!(
            "objective.dual.perturbed is {perturbed}, but corpus \"{}\" was packed without --perturb",
            config.corpus.display()
        )));
    }
    let threads = Threads::new(config.threads)
        .map_err(|e| TrainError::Config(format!("could not start threads: {e}")))?;
    let mut stepper = prepare(config, &corpus, &tokenizer, threads)?;
    let mut progress = Progress {
        step: 0,
        pairs: 0,
        tokens: 0,
        seconds: 0.0,
        best: None,
        stale: 0,
        sampler: stepper.sampler.state(),
        pending: Vec::new(),
    };
    let resumed = options.resume && folder.join(checkpoint::FILE).exists();
    let mut used = None;
    // Frozen tensors are in no checkpoint.
    let begins = !resumed || stepper.model.parameters().frozen() > 0;
    if let Some(from) = config.model.init_from.as_ref().filter(|_| begins) {
        let tensors = checkpoint::initialise_from(
            from,
            &mut stepper.model,
            &config.tokenizer,
            config.model.stack_layers,
        )?;
        stepper.optimizer = Optimizer::new(config.optimizer.clone(), stepper.model.parameters());
        used = Some((tensors, from));
    }
    if resumed {
        progress = checkpoint::restore(folder, &mut stepper.model, &mut stepper.optimizer)?;
        stepper.sampler.restore(progress.sampler.clone())?;
        stepper.pending = progress.pending.drain(..).collect();
    }
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
    log.say(&format!(
        "{}: {} parameters, {} threads, {:?} products; {} sentences, {} anchors",
        config.name,
        stepper.model.parameters().elements(),
        stepper.threads.count(),
        arithmetic(config),
        corpus.sentences(),
        stepper.sampler.anchors()
    ));
    let mut trainer = Run {
        config,
        options,
        stepper,
        progress,
        dev,
        log,
        started: Instant::now(),
    };
    let result = trainer.all(&corpus);
    trainer.log.finish();
    result
}

fn arithmetic(config: &TrainConfig) -> Arithmetic {
    match config.precision {
        Precision::Auto => Arithmetic::detect(),
        Precision::F32 => Arithmetic::F32,
        Precision::Bf16 => Arithmetic::Bf16,
    }
}

/// A run that has made no step.
fn prepare(
    config: &TrainConfig,
    corpus: &PackedCorpus,
    tokenizer: &crate::tokenizer::Loaded,
    threads: Threads,
) -> Result<Stepper, TrainError> {
    let mut sampling = config.sampling.clone();
    if sampling.seed == crate::data::SamplerOptions::default().seed {
        sampling.seed = config.seed;
    }
    let sampler = Sampler::new(corpus, sampling)?;
    let eos = tokenizer.tokenizer.token_to_id("</s>");
    let vocabulary = tokenizer.vocab_size as usize;
    let mut model = Model::new(
        config.model_config()?,
        vocabulary,
        eos,
        arithmetic(config),
        config.seed,
    )?;
    let hidden = match &config.model.encoder {
        Architecture::Bilstm(c) => Some(c.hidden_size),
        Architecture::ResidualBilstm(c) => Some(c.hidden_size),
        Architecture::Mean(_) | Architecture::Transformer(_) => None,
    };
    if let (TrainDevice::Cuda(ordinal), Some(hidden)) = (config.device, hidden) {
        let device = LstmDevice::cuda(ordinal, hidden).map_err(ModelError::Device)?;
        model = model.on_device(device)?;
    }
    if config.model.freeze_embeddings {
        model.parameters_mut().freeze_sparse();
    }
    start_values(config, corpus, &mut model);
    let learned = config.objective.dual.as_ref().filter(|d| d.learn_scale);
    let scale =
        learned.map(|d| model.add_objective_parameter("objective.scale", &[1], vec![d.scale.ln()]));
    let decoder = match &config.objective.nmt {
        Some(nmt) => {
            let id = |name: &str| tokenizer.tokenizer.token_to_id(name);
            let end = eos.or_else(|| id("[SEP]"));
            let begin = id("<s>").or_else(|| id("[CLS]")).or(end);
            let (Some(begin), Some(end)) = (begin, end) else {
                let message = "the nmt objective needs a tokenizer with the token \"</s>\"";
                return Err(TrainError::Config(message.into()));
            };
            let languages = corpus.header().languages.len();
            Some(Decoder::new(
                &mut model,
                &nmt.decoder,
                (vocabulary, languages),
                (begin, end),
                arithmetic(config),
                config.seed,
            ))
        }
        None => None,
    };
    let teacher = match &config.objective.transfer {
        Some(options) => Some(Teacher::load(
            &options.teacher,
            &config.tokenizer,
            threads.count(),
            &model,
        )?),
        None => None,
    };
    let inference = match &config.objective.nli {
        Some(options) => {
            let limit = config.sampling.max_tokens;
            let pairs = LabelledPairs::read(&options.data, options.parallel, tokenizer, limit)?;
            let (width, classes) = (model.dimensions(), pairs.classes());
            let parameters = model.parameters_mut();
            let net = nli::classifier(parameters, &options.classifier, width, classes, config.seed);
            Some(Inference { net, pairs })
        }
        None => None,
    };
    let optimizer = Optimizer::new(config.optimizer.clone(), model.parameters());
    let pending = Default::default();
    Ok(Stepper {
        model,
        optimizer,
        sampler,
        pending,
        threads,
        scale,
        decoder,
        teacher,
        inference,
    })
}

/// Scales new embeddings and sets token weights by frequency, where the configuration says so.
fn start_values(config: &TrainConfig, corpus: &PackedCorpus, model: &mut Model) {
    let width = model.embedding_size();
    let weighted = model.has_token_weights();
    let list = model.parameters_mut().list_mut();
    if let Some(std) = config.model.embedding_std {
        laser_kernels::slices::scale(std * (width as f32).sqrt(), &mut list[0].value);
    }
    let exponent = config.model.token_weight_exponent;
    if weighted && exponent != 0.0 {
        let mut counts = vec![1u32; list[1].value.len()];
        let mut ids = Vec::new();
        for sentence in 0..corpus.sentences() {
            ids.clear();
            corpus.tokens_into(sentence, config.sampling.max_tokens, &mut ids);
            ids.iter().for_each(|id| counts[*id as usize] += 1);
        }
        let mut sorted = counts.clone();
        sorted.sort_unstable();
        let median = sorted[sorted.len() / 2] as f32;
        for (weight, count) in list[1].value.iter_mut().zip(counts) {
            *weight = (-exponent * (count as f32 / median).ln()).clamp(-2.5, 1.0);
        }
    }
}

struct Run<'a> {
    config: &'a TrainConfig,
    options: &'a Options,
    stepper: Stepper,
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
            let factor = config.schedule.factor(step, self.share());
            let outcome = self.stepper.step(config, corpus, step, factor)?;
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
        let averaged = self.stepper.optimizer.averaged().map(|values| {
            let mut model = self.stepper.model.clone();
            let frozen = model.parameters().frozen();
            let list = model.parameters_mut().list_mut().iter_mut().zip(values);
            for (p, value) in list.skip(frozen) {
                p.value.copy_from_slice(value);
            }
            model
        });
        let model = averaged.as_ref().unwrap_or(&self.stepper.model);
        let at = (self.progress.step, self.progress.pairs, self.seconds());
        let (mut figure, mut weights) = (0.0, 0.0);
        for dev in &self.dev {
            let accuracy = dev.evaluate(model, &self.stepper.threads)?;
            figure += dev.weight * accuracy.mean;
            weights += dev.weight;
            self.log.dev(at, &dev.name, &accuracy)?;
        }
        figure /= f64::max(weights, f64::MIN_POSITIVE);
        if self.progress.best.is_none_or(|(best, _)| figure > best) {
            self.progress.best = Some((figure, self.progress.step));
            self.progress.stale = 0;
            let best = self.config.output.join("best");
            checkpoint::write_model(&best, model, None, &self.config.tokenizer)?;
        } else {
            self.progress.stale += 1;
        }
        Ok(())
    }

    fn save(&mut self) -> Result<(), TrainError> {
        let folder: &Path = &self.config.output;
        let progress = Progress {
            seconds: self.seconds(),
            sampler: self.stepper.sampler.state(),
            pending: self.stepper.pending.iter().cloned().collect(),
            ..self.progress.clone()
        };
        checkpoint::save(
            folder,
            &self.stepper.model,
            &self.stepper.optimizer,
            &progress,
        )?;
        let values = self.stepper.optimizer.averaged();
        let last = folder.join("last");
        checkpoint::write_model(&last, &self.stepper.model, values, &self.config.tokenizer)
    }
}
