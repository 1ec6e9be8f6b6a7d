//! One encoder and one decoder for each language (Schwenk and Douze, RepL4NLP 2017).
//!
//! A batch follows a training path: the embeddings of its sources, which are sentences of the same keys in M
//! languages, are averaged, and the mean is decoded into each of N target languages. The loss is the mean over the
//! targets of the cross entropy of a token. An update changes the encoders and decoders that its batches have
//! passed, and no other: all have optimisers of their own, and the gradients are clipped together.

use std::path::Path;

use laser_kernels::slices::{add, scale};
use laser_model::Languages;
use laser_sampling::mix;

use super::TrainError;
use super::checkpoint::{self, Checkpoint, Part};
use super::config::{PathsOptions, TrainConfig};
use super::dev::{Accuracy, Dev};
use super::progress::{Outcome, Pending, Progress};
use super::start::{boundaries, initial_values};
use super::step::{drop_tokens, seed_of, stream};
use super::training_target::TrainingTarget;
use super::update::Update;
use crate::data::paths::{PathBatch, Side};
use crate::data::{PackedCorpus, PathSampler, Ragged, SamplerState};
use crate::models::{Model, Parameters, Regularization, Saved};
use crate::objectives::nmt::{Decoder, DecoderSizes, Noise, Targets};
use crate::ops::pool::{self, Occurrences, SparseGradient};
use crate::ops::threads::Threads;
use crate::optim::Optimizer;
use crate::tokenizer::Loaded;

/// What embeds one language: parameters that no other language shares.
pub struct LanguageEncoder {
    /// Architecture and sizes are those of the configuration's `model`, the same for all languages.
    pub model: Model,
    optimizer: Optimizer,
}

/// What generates one language from an embedding: parameters that no other language shares.
pub struct LanguageDecoder {
    /// In the order in which [`Decoder::new`] has added them.
    pub parameters: Parameters,
    decoder: Decoder,
    optimizer: Optimizer,
}

/// A language with what it has.
pub struct Language {
    /// Code as in the corpus, such as `de`.
    pub code: String,
    /// Its encoder, if it is a source of any path.
    pub encoder: Option<LanguageEncoder>,
    /// Its decoder, if it is a target.
    pub decoder: Option<LanguageDecoder>,
}

impl Language {
    fn encoder(&self) -> &LanguageEncoder {
        self.encoder.as_ref().expect("sources have encoders")
    }

    fn decoder(&self) -> &LanguageDecoder {
        self.decoder.as_ref().expect("targets have decoders")
    }
}

/// Gradients of what the batches of an update have passed.
#[derive(Debug, Default)]
pub struct LanguageGradients {
    /// Of the encoder: one buffer a parameter, and the occurrences of tokens.
    pub encoder: Option<(Vec<Vec<f32>>, Vec<Occurrences>)>,
    /// Of the decoder: one buffer a parameter.
    pub decoder: Option<Vec<Vec<f32>>>,
}

/// The state of training.
pub struct LanguageStepper {
    /// The languages, in the order of the configuration.
    pub languages: Vec<Language>,
    /// Draws batches.
    pub sampler: PathSampler,
    threads: Threads,
    /// Width of the embeddings.
    dimensions: usize,
}

/// A run that has made no step.
///
/// # Errors
/// [`TrainError`] for what the configuration names and is not there or does not fit.
pub fn prepare(
    config: &TrainConfig,
    options: &PathsOptions,
    corpus: &PackedCorpus,
    tokenizer: &Loaded,
    threads: Threads,
) -> Result<LanguageStepper, TrainError> {
    let sampler = PathSampler::new(
        corpus,
        config.sampling(),
        &options.languages,
        &options.paths,
    )?;
    let (begin, end) = boundaries(tokenizer)?;
    let vocabulary = tokenizer.vocab_size as usize;
    let arithmetic = config.precision.arithmetic();
    let model_config = config.model_config()?;
    let dimensions = model_config.dimensions;
    let sizes = DecoderSizes {
        embedding_size: options.decoder.embedding_size,
        language_size: 0,
        hidden_size: options.decoder.hidden_size,
        softmax_samples: options.decoder.softmax_samples,
    };
    let mut languages = Vec::new();
    for (number, (code, roles)) in options.languages.iter().zip(sampler.roles()).enumerate() {
        if roles == (false, false) {
            return Err(TrainError::Config(format!(
                "no training path of objective.paths uses the language \"{code}\""
            )));
        }
        // Encoders that begin with the same values would be no further apart than their texts.
        let seed = mix(config.seed ^ mix(number as u64));
        let encoder = roles.0.then(|| {
            let mut own = model_config.clone();
            own.name = format!("{}@{code}", config.name);
            let eos = tokenizer.tokenizer.token_to_id("</s>");
            let mut model = Model::new(own, vocabulary, eos, arithmetic, seed)?;
            if config.model.freeze_embeddings {
                model.parameters_mut().freeze_sparse();
            }
            initial_values(config, corpus, corpus.language_id(code), &mut model);
            let optimizer = Optimizer::new(config.optimizer.clone(), model.parameters());
            Ok::<_, TrainError>(LanguageEncoder { model, optimizer })
        });
        let decoder = roles.1.then(|| {
            let mut parameters = Parameters::default();
            let decoder = Decoder::new(
                &mut parameters,
                &sizes,
                (dimensions, config.model.normalize),
                (vocabulary, 1),
                (begin, end),
                arithmetic,
                seed,
            );
            let optimizer = Optimizer::new(config.optimizer.clone(), &parameters);
            LanguageDecoder {
                parameters,
                decoder,
                optimizer,
            }
        });
        languages.push(Language {
            code: code.clone(),
            encoder: encoder.transpose()?,
            decoder,
        });
    }
    Ok(LanguageStepper {
        languages,
        sampler,
        threads,
        dimensions,
    })
}

/// A side of a batch that has gone through its encoder.
struct Encoded {
    language: usize,
    sentences: Ragged,
    saved: Vec<Saved>,
    regularization: Option<Regularization>,
}

impl LanguageStepper {
    /// No gradients.
    #[must_use]
    pub fn zeros(&self) -> Vec<LanguageGradients> {
        self.languages.iter().map(|_| Default::default()).collect()
    }

    /// Adds the gradients of a batch; returns its loss and number of tokens.
    ///
    /// # Errors
    /// [`TrainError::Model`].
    pub fn gradients(
        &self,
        config: &TrainConfig,
        corpus: &PackedCorpus,
        batch: &PathBatch,
        (step, part): (u64, usize),
        gradients: &mut [LanguageGradients],
    ) -> Result<(f64, u64), TrainError> {
        let limit = config.sampling.max_tokens;
        let gather = |side: &Side| corpus.gather(side.sentences.iter().copied(), limit);
        let masks = seed_of(config, stream::MASKS, step, part);
        let share = 1.0 / config.run.accumulate as f32;
        let (mut mean, mut tokens) = (Vec::new(), 0);
        let mut encoded = Vec::with_capacity(batch.sources.len());
        for (number, side) in batch.sources.iter().enumerate() {
            let own = mix(number as u64);
            let mut sentences = gather(side);
            tokens += sentences.ids.len() as u64;
            if config.dropout.tokens > 0.0 {
                let seed = seed_of(config, stream::TOKENS, step, part);
                sentences = drop_tokens(&sentences, config.dropout.tokens, seed ^ own);
            }
            let model = &self.languages[side.language].encoder().model;
            let sentences = model.prepare(&sentences).into_owned();
            let regularization = Some(Regularization {
                embedding: config.dropout.embedding,
                hidden: config.dropout.hidden,
                seed: masks ^ own,
            });
            let all = 0..sentences.len();
            let (x, saved) = model.forward(&self.threads, &sentences, all, regularization)?;
            if mean.is_empty() {
                mean = x;
            } else {
                add(&x, &mut mean);
            }
            encoded.push(Encoded {
                language: side.language,
                sentences,
                saved,
                regularization,
            });
        }
        let of_source = 1.0 / batch.sources.len() as f32;
        scale(of_source, &mut mean);

        let mut d_mean = vec![0f32; mean.len()];
        let of_target = 1.0 / batch.targets.len() as f32;
        let mut loss = 0.0;
        for side in &batch.targets {
            let sentences = gather(side);
            tokens += sentences.ids.len() as u64;
            let noise = Noise {
                input: config.dropout.embedding,
                output: config.dropout.hidden,
                seed: mix(masks ^ mix(!(side.language as u64))),
            };
            let language = self.languages[side.language].decoder();
            let parameters = &language.parameters;
            let own = gradients[side.language]
                .decoder
                .get_or_insert_with(|| parameters.zeros());
            let languages = vec![0; sentences.len()];
            let targets = Targets {
                sentences: &sentences,
                languages: &languages,
            };
            let weight = (share * of_target, noise);
            let (value, dx) =
                language
                    .decoder
                    .loss(&self.threads, parameters, &mean, targets, weight, own);
            loss += f64::from(of_target) * value;
            add(&dx, &mut d_mean);
        }

        scale(of_source, &mut d_mean);
        for side in encoded {
            let model = &self.languages[side.language].encoder().model;
            let shards = model.backward(
                &self.threads,
                &side.sentences,
                side.saved,
                &d_mean,
                side.regularization,
            )?;
            let (dense, occurrences) = gradients[side.language]
                .encoder
                .get_or_insert_with(|| (model.parameters().zeros(), Vec::new()));
            for shard in shards {
                for (total, part) in dense.iter_mut().zip(&shard.dense) {
                    add(part, total);
                }
                occurrences.push(shard.embeddings);
            }
        }
        Ok((loss, tokens))
    }

    /// Changes what has gradients; returns their common norm before clipping, which must be finite.
    fn apply(
        &mut self,
        gradients: Vec<LanguageGradients>,
        rate_factor: f64,
        diverged: impl Fn(f64) -> TrainError,
    ) -> Result<f64, TrainError> {
        let threads = &self.threads;
        let mut squares = 0.0;
        let mut ready = Vec::with_capacity(gradients.len());
        for (language, gradients) in self.languages.iter().zip(gradients) {
            let encoder = gradients.encoder.map(|(dense, occurrences)| {
                let LanguageEncoder { model, optimizer } = language.encoder();
                let table = model.parameters().value(0);
                let sparse = pool::gather(threads, &occurrences, table, model.embedding_size());
                let norm = optimizer.norm(threads, model.parameters(), &dense, &sparse);
                squares += norm * norm;
                (dense, sparse)
            });
            let decoder = gradients.decoder.inspect(|dense| {
                let own = language.decoder();
                let none = SparseGradient::default();
                let norm = own.optimizer.norm(threads, &own.parameters, dense, &none);
                squares += norm * norm;
            });
            ready.push((encoder, decoder));
        }
        let norm = squares.sqrt();
        if !norm.is_finite() {
            return Err(diverged(norm));
        }
        for (language, (encoder, decoder)) in self.languages.iter_mut().zip(ready) {
            if let (Some((dense, sparse)), Some(own)) = (encoder, &mut language.encoder) {
                let parameters = own.model.parameters_mut();
                own.optimizer
                    .step(threads, parameters, &dense, &sparse, norm, rate_factor);
            }
            if let (Some(dense), Some(own)) = (decoder, &mut language.decoder) {
                let none = SparseGradient::default();
                let parameters = &mut own.parameters;
                own.optimizer
                    .step(threads, parameters, &dense, &none, norm, rate_factor);
            }
        }
        Ok(norm)
    }

    /// The encoder of a language, with averaged weights where they are kept.
    fn averaged(&self, language: &str) -> Option<Model> {
        let mut all = self.languages.iter();
        let own = all.find(|l| l.code == language)?.encoder.as_ref()?;
        let values = own.optimizer.averaged();
        Some(values.map_or_else(|| own.model.clone(), |values| own.model.with(values)))
    }
}

fn encoder_prefix(code: &str) -> String {
    format!("encoder.{code}.")
}

fn decoder_prefix(code: &str) -> String {
    format!("decoder.{code}.")
}

impl TrainingTarget for LanguageStepper {
    /// Each encoder begins with that of its language, if there is one, else with the folder's only model.
    fn initialise(&mut self, config: &TrainConfig, from: &Path) -> Result<Vec<String>, TrainError> {
        let (tokenizer, stack) = (&config.tokenizer, config.model.stack_layers);
        let mut used = Vec::new();
        let folders = ["", "best", "last"].map(|f| from.join(f));
        let known = folders.iter().find_map(|folder| {
            let list = Languages::read(folder).transpose()?;
            Some(list.map(|list| (folder, list)))
        });
        let known = known
            .transpose()
            .map_err(|e| TrainError::Config(e.to_string()))?;
        for Language { code, encoder, .. } in &mut self.languages {
            let folder = match &known {
                Some((folder, list)) => list.folder(folder, code),
                None => Some(from.to_owned()),
            };
            if let (Some(folder), Some(own)) = (folder, encoder) {
                let names = checkpoint::initialise_from(&folder, &mut own.model, tokenizer, stack)?;
                used.extend(names.iter().map(|name| format!("{code}: {name}")));
                own.optimizer = Optimizer::new(config.optimizer.clone(), own.model.parameters());
            }
        }
        if used.is_empty() {
            let message = format!("\"{}\" has no encoder of these languages", from.display());
            return Err(TrainError::Config(message));
        }
        Ok(used)
    }

    fn has_frozen(&self) -> bool {
        let mut encoders = self.languages.iter().filter_map(|l| l.encoder.as_ref());
        encoders.any(|e| e.model.parameters().frozen() > 0)
    }

    fn step(
        &mut self,
        config: &TrainConfig,
        corpus: &PackedCorpus,
        step: u64,
        rate_factor: f64,
    ) -> Result<Outcome, TrainError> {
        let mut update = Update::new(config, step, rate_factor);
        let mut gradients = self.zeros();
        for part in 0..config.run.accumulate {
            let batch = self.sampler.next_batch(corpus);
            let (loss, tokens) =
                self.gradients(config, corpus, &batch, (step, part), &mut gradients)?;
            let keys = batch.targets[0].sentences.len();
            let pairs = batch.sources.len() * batch.targets.len() * keys;
            update.add(loss, pairs as u64, tokens)?;
        }
        let norm = self.apply(gradients, rate_factor, |norm| {
            update.diverged("gradient norm", norm)
        })?;
        Ok(update.finish(norm))
    }

    fn embeds(&self, language: &str) -> bool {
        let mut all = self.languages.iter();
        all.any(|l| l.code == language && l.encoder.is_some())
    }

    fn measure(&self, dev: &[Dev]) -> Result<Vec<Accuracy>, TrainError> {
        let mut results = Vec::new();
        for dev in dev {
            let width = self.dimensions;
            let mut x = vec![0f32; dev.sentences().len() * width];
            for (language, range) in dev.parts() {
                let Some(model) = self.averaged(language) else {
                    continue;
                };
                let mut own = Ragged::new();
                range.clone().for_each(|i| own.push(dev.sentences().row(i)));
                let found = model.encode(&self.threads, &model.prepare(&own))?;
                x[range.start * width..range.end * width].copy_from_slice(&found);
            }
            let counted = |language: &str| self.embeds(language);
            results.push(dev.evaluate((&x, width), &counted, &self.threads));
        }
        Ok(results)
    }

    /// A model folder for each encoder, and the list of their languages. Encoders of different updates have no space
    /// in common, so that the folder is exchanged as a whole.
    fn write(&self, folder: &Path, config: &TrainConfig) -> Result<(), TrainError> {
        let beside = |end: &str| {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            folder.with_file_name(format!("{name}.{end}"))
        };
        let (new, old) = (beside("new"), beside("old"));
        let remove = |path: &Path| match std::fs::remove_dir_all(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(TrainError::io(path, e)),
            _ => Ok(()),
        };
        remove(&new)?;
        remove(&old)?;
        let mut codes = Vec::new();
        for language in &self.languages {
            if let Some(LanguageEncoder { model, optimizer }) = &language.encoder {
                let to = new.join(&language.code);
                checkpoint::write_model(&to, model, optimizer.averaged(), &config.tokenizer)?;
                codes.push(language.code.clone());
            }
        }
        let list = Languages::of_folders(&config.name, &new, &codes);
        list.and_then(|list| list.write(&new))
            .map_err(|e| TrainError::Config(e.to_string()))?;
        if folder.exists() {
            std::fs::rename(folder, &old).map_err(|e| TrainError::io(folder, e))?;
        }
        std::fs::rename(&new, folder).map_err(|e| TrainError::io(folder, e))?;
        remove(&old)
    }

    fn save(&self, folder: &Path, progress: &Progress) -> Result<(), TrainError> {
        let prefix = |l: &Language| (encoder_prefix(&l.code), decoder_prefix(&l.code));
        let prefixes: Vec<_> = self.languages.iter().map(prefix).collect();
        let mut parts = Vec::new();
        for (language, (encoder, decoder)) in self.languages.iter().zip(&prefixes) {
            parts.extend(language.encoder.as_ref().map(|own| Part {
                prefix: encoder,
                parameters: own.model.parameters(),
                optimizer: &own.optimizer,
            }));
            parts.extend(language.decoder.as_ref().map(|own| Part {
                prefix: decoder,
                parameters: &own.parameters,
                optimizer: &own.optimizer,
            }));
        }
        checkpoint::save(folder, &parts, progress)
    }

    fn restore(&mut self, saved: &Checkpoint) -> Result<(), TrainError> {
        for Language {
            code,
            encoder,
            decoder,
        } in &mut self.languages
        {
            if let Some(own) = encoder {
                let parameters = own.model.parameters_mut();
                saved.restore(&encoder_prefix(code), parameters, &mut own.optimizer)?;
            }
            if let Some(own) = decoder {
                let optimizer = &mut own.optimizer;
                saved.restore(&decoder_prefix(code), &mut own.parameters, optimizer)?;
            }
        }
        Ok(self.sampler.restore(saved.progress().sampler.clone())?)
    }

    fn drawn(&self) -> (SamplerState, Vec<Pending>) {
        (self.sampler.state(), Vec::new())
    }

    fn describe(&self) -> String {
        let encoders = self.languages.iter().filter_map(|l| l.encoder.as_ref());
        let decoders = self.languages.iter().filter_map(|l| l.decoder.as_ref());
        let sizes = [
            encoders.map(|e| e.model.parameters().elements()).collect(),
            decoders
                .map(|d| d.parameters.elements())
                .collect::<Vec<_>>(),
        ];
        format!(
            "{} encoders and {} decoders of {} parameters, {} threads; {} keys",
            sizes[0].len(),
            sizes[1].len(),
            sizes.iter().flatten().sum::<usize>(),
            self.threads.count(),
            self.sampler.keys()
        )
    }
}
