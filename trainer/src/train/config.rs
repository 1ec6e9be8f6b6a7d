//! Configuration of a training run, read from TOML. Unknown keys are errors.

use std::path::{Path, PathBuf};

use laser_encoder::DeviceChoice;
use laser_kernels::training::Arithmetic;
use laser_model::config::{Architecture, Config, Dense};
use laser_model::languages;
use serde::{Deserialize, Serialize};

use super::TrainError;
use crate::data::{SamplerOptions, TrainingPath};
use crate::objectives::contrastive::LARGEST_LOGIT;
use crate::objectives::nli::ClassifierSizes;
use crate::objectives::nmt::DecoderSizes;
use crate::objectives::transfer::Distance;
use crate::optim::{OptimizerOptions, Schedule};

/// A training run. Relative paths are relative to the folder of the configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Name of the model.
    pub name: String,
    /// Folder for models, checkpoints and logs; made if missing.
    pub output: PathBuf,
    /// The `tokenizer.json` that the corpus was packed with.
    pub tokenizer: PathBuf,
    /// The packed corpus.
    pub corpus: PathBuf,
    /// Seed of parameters, dropout and sampling (unless `sampling.seed` is given).
    #[serde(default = "one")]
    pub seed: u64,
    /// Worker threads; 0 = one for every processor. Results depend on it in the last bits.
    #[serde(default)]
    pub threads: usize,
    /// Rounding of the operands of matrix products.
    #[serde(default)]
    pub precision: Precision,
    /// Where a BiLSTM is trained.
    #[serde(default)]
    pub device: TrainDevice,
    /// The encoder.
    pub model: ModelOptions,
    /// How batches are drawn.
    #[serde(default)]
    pub sampling: SamplerOptions,
    /// What is optimised: at least one objective.
    pub objective: Objectives,
    /// Rates of dropout in the encoder.
    #[serde(default)]
    pub dropout: Dropout,
    /// The optimiser.
    #[serde(default)]
    pub optimizer: OptimizerOptions,
    /// Learning rate over the run.
    #[serde(default)]
    pub schedule: Schedule,
    /// Length of the run, checkpoints, early stop.
    #[serde(default)]
    pub run: RunOptions,
    /// Held-out sentences on which retrieval is measured during training.
    #[serde(default)]
    pub dev: Vec<DevSet>,
}

fn one() -> u64 {
    1
}

/// Rounding of the operands of matrix products; sums and parameters are f32 always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// bf16 where the processor multiplies it in hardware, else f32.
    #[default]
    Auto,
    /// No rounding.
    F32,
    /// bf16 operands, whatever the processor.
    Bf16,
}

impl Precision {
    /// What it means on this machine.
    #[must_use]
    pub fn arithmetic(self) -> Arithmetic {
        match self {
            Self::Auto => Arithmetic::detect(),
            Self::F32 => Arithmetic::F32,
            Self::Bf16 => Arithmetic::Bf16,
        }
    }
}

/// Where the encoder's BiLSTM is trained. All other operations run on the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TrainDevice {
    /// On the processor: `cpu`.
    #[default]
    Cpu,
    /// On the CUDA device of this number, in bf16: `cuda`, `cuda:1`.
    Cuda(usize),
}

impl TryFrom<String> for TrainDevice {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match name.parse::<DeviceChoice>() {
            Ok(DeviceChoice::Cpu) => Ok(Self::Cpu),
            Ok(DeviceChoice::Cuda(n)) => Ok(Self::Cuda(n)),
            _ => Err(format!(
                "unknown device \"{name}\"; use \"cpu\", \"cuda\" or \"cuda:N\""
            )),
        }
    }
}

impl From<TrainDevice> for String {
    fn from(device: TrainDevice) -> Self {
        match device {
            TrainDevice::Cpu => "cpu".into(),
            TrainDevice::Cuda(n) => format!("cuda:{n}"),
        }
    }
}

/// The encoder: the fields of a model folder's `config.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelOptions {
    /// Longest sentence of the finished model in tokens.
    #[serde(default = "max_tokens")]
    pub max_tokens: usize,
    /// Whether embeddings have unit length.
    #[serde(default = "yes")]
    pub normalize: bool,
    /// Architecture and sizes, as in `config.json`.
    pub encoder: Architecture,
    /// Dense layers, as in `config.json`.
    #[serde(default)]
    pub dense: Vec<Dense>,
    /// A model folder (or a run's folder) whose tensors of the same name and shape are the start; with
    /// another tokenizer, the rows of its embedding tables whose tokens are in both.
    #[serde(default)]
    pub init_from: Option<PathBuf>,
    /// Progressive stacking (Gong et al., ICML 2019): layer l of a transformer starts as layer `l mod k` of
    /// `init_from`, which has k layers.
    #[serde(default)]
    pub stack_layers: bool,
    /// Whether token embeddings and token weights stay as they are.
    #[serde(default)]
    pub freeze_embeddings: bool,
    /// Standard deviation of new token embeddings; 1 / sqrt(width) if not given.
    #[serde(default)]
    pub embedding_std: Option<f32>,
    /// New token weights start at `−x ln(count / median count)`, kept between −2.5 and 1, where x
    /// is this number: frequent tokens weigh less (0 = all alike).
    #[serde(default)]
    pub token_weight_exponent: f32,
}

fn max_tokens() -> usize {
    256
}

fn yes() -> bool {
    true
}

/// The objectives; their losses are summed with their weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Objectives {
    /// Dual encoder: in-batch softmax with additive margin.
    pub dual: Option<DualOptions>,
    /// LASER: translation of the sentence embedding by an auxiliary decoder.
    pub nmt: Option<NmtOptions>,
    /// Embeddings drawn to those of a frozen teacher.
    pub transfer: Option<TransferOptions>,
    /// Natural language inference: pairs of sentences with labels.
    pub nli: Option<NliOptions>,
    /// Masked language modelling of a transformer, in one language and on translations.
    pub mlm: Option<MlmOptions>,
    /// Translation by an encoder and a decoder for each language; instead of all others.
    pub paths: Option<PathsOptions>,
}

impl Objectives {
    /// Whether pairs of the corpus are embedded.
    #[must_use]
    pub fn uses_corpus(&self) -> bool {
        self.dual.is_some() || self.nmt.is_some() || self.transfer.is_some()
    }
}

/// Translation by an encoder and a decoder for each language (Schwenk and Douze, RepL4NLP 2017): batches follow
/// training paths ([`crate::data::paths`]), the mean of the sources' embeddings is decoded into every target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathsOptions {
    /// Languages that have an encoder where they are a source, and a decoder where they are a target.
    pub languages: Vec<String>,
    /// Sizes of each decoder.
    #[serde(default)]
    pub decoder: LanguageDecoderSizes,
    /// Pairs of languages, and how often each is drawn.
    #[serde(rename = "path")]
    pub paths: Vec<TrainingPath>,
}

/// Sizes of a decoder of one language.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LanguageDecoderSizes {
    /// Width of target token embeddings.
    pub embedding_size: usize,
    /// Width of the LSTM.
    pub hidden_size: usize,
    /// Types of the vocabulary over which a batch's softmax goes beside those of its targets; 0 = all.
    pub softmax_samples: usize,
}

impl Default for LanguageDecoderSizes {
    fn default() -> Self {
        Self {
            embedding_size: 384,
            hidden_size: 1024,
            softmax_samples: 0,
        }
    }
}

/// The masked language model ([`crate::objectives::mlm`]): a batch of sentences (MLM; Devlin et al., NAACL 2019), or of
/// pairs of which each is one sequence (TLM; Conneau and Lample, NeurIPS 2019), without a sign of language.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MlmOptions {
    /// Weight of the loss, in nats a hidden token.
    pub weight: f32,
    /// Share of tokens that are hidden.
    pub share: f64,
    /// Most hidden tokens of a sequence.
    pub predictions: usize,
    /// Share of batches whose sequences are pairs of translations.
    pub translations: f64,
}

impl Default for MlmOptions {
    fn default() -> Self {
        Self {
            weight: 1.0,
            share: 0.15,
            predictions: 80,
            translations: 0.5,
        }
    }
}

/// The inference objective ([`crate::objectives::nli`]): a batch of labelled pairs beside each batch of the corpus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NliOptions {
    /// Weight of the loss, in nats a pair.
    #[serde(default = "unit_weight")]
    pub weight: f32,
    /// Files of labelled pairs in any form that `laser eval classify` reads.
    pub data: Vec<PathBuf>,
    /// The part that is trained on, of files with a column for it.
    #[serde(default = "nli_split")]
    pub split: String,
    /// Whether the files are translations of each other, line by line; premise and hypothesis then come each from
    /// one at random.
    #[serde(default)]
    pub parallel: bool,
    /// Pairs in a batch of this objective.
    #[serde(default = "nli_pairs")]
    pub batch_pairs: usize,
    /// Sizes of the classifier over the features of both embeddings.
    #[serde(default)]
    pub classifier: ClassifierSizes,
}

fn nli_split() -> String {
    "train".into()
}

fn nli_pairs() -> usize {
    64
}

/// Denoising in the translation objective: the source is the target with some of its tokens changed (SDAE; Hill et al.,
/// NAACL 2016; Aldarmaki and Diab, NAACL 2019).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Denoise {
    /// Share of the batches that are denoised instead of translated; 1 = all.
    pub share: f64,
    /// Share of tokens that are left out; at least one of a sentence stays.
    pub drop: f32,
    /// Share of neighbours that change places, of those that do not overlap.
    pub swap: f32,
    /// Share of tokens that are replaced by one of another sentence of the batch.
    pub substitute: f32,
}

/// The translation objective ([`crate::objectives::nmt`]): sources are encoded, targets decoded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NmtOptions {
    /// Weight of the loss, in nats a target token.
    pub weight: f32,
    /// Widths of the decoder's embeddings and LSTM.
    pub decoder: DecoderSizes,
    /// Batches whose sources are noisy targets.
    pub denoise: Denoise,
}

impl Default for NmtOptions {
    fn default() -> Self {
        Self {
            weight: 1.0,
            decoder: DecoderSizes::default(),
            denoise: Denoise::default(),
        }
    }
}

/// The transfer objective ([`crate::objectives::transfer`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransferOptions {
    /// Weight of the loss.
    #[serde(default = "unit_weight")]
    pub weight: f32,
    /// Model folder of the teacher, which embeds the targets.
    pub teacher: PathBuf,
    /// Distance to the teacher's embedding.
    #[serde(default)]
    pub distance: Distance,
    /// Which of the student's embeddings are drawn to it.
    #[serde(default)]
    pub sides: Sides,
    /// Pairs of a batch whose targets the teacher finds at least so similar (cosine) are no negatives of each
    /// other in the dual objective; 0 = all are.
    #[serde(default)]
    pub mask_similar: f32,
    /// Weight λ of the distances to another pair's embeddings, which are to become large.
    #[serde(default)]
    pub lambda: f32,
}

fn unit_weight() -> f32 {
    1.0
}

/// Sides of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sides {
    /// Sources and targets.
    #[default]
    Both,
    /// Sources alone.
    Sources,
}

/// The dual-encoder objective ([`crate::objectives::contrastive`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DualOptions {
    /// Weight of the loss.
    pub weight: f32,
    /// Factor of the cosines before the softmax (the inverse temperature); the start if learned.
    pub scale: f32,
    /// Whether the scale is a parameter.
    pub learn_scale: bool,
    /// Subtracted from the cosine of a pair.
    pub margin: f32,
    /// Batches from which hard negatives are drawn together; 0 or 1 = none. Every pair gets the
    /// nearest wrong target among them as an additional candidate.
    pub mega_batch: usize,
    /// Share of mega-batches that get hard negatives.
    pub mega_share: f64,
    /// Step from which hard negatives are used.
    pub mega_from_step: u64,
    /// A candidate whose cosine exceeds that of the true target by more than this is taken for
    /// another translation and is not used.
    pub mega_limit: f32,
    /// Sentences a pair that differ from its target in word order, a name, a number or a negation
    /// alone ([`crate::data::perturb`]) and are candidates too; the corpus must have been packed
    /// with them.
    pub perturbed: usize,
}

impl Default for DualOptions {
    fn default() -> Self {
        Self {
            weight: 1.0,
            scale: 20.0,
            learn_scale: false,
            margin: 0.3,
            mega_batch: 0,
            mega_share: 1.0,
            mega_from_step: 0,
            mega_limit: 0.1,
            perturbed: 0,
        }
    }
}

/// Rates of what is left out at random.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dropout {
    /// Share of tokens removed from a sentence; at least one stays.
    pub tokens: f32,
    /// Elements of token embeddings (BiLSTM) or of their mean.
    pub embedding: f32,
    /// Elements between layers.
    pub hidden: f32,
}

/// Length of the run, checkpoints and early stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunOptions {
    /// Updates; 0 = until `max_minutes`.
    pub steps: u64,
    /// Time limit over all resumptions; 0 = none. The learning rate follows whichever of the two
    /// limits is nearer.
    pub max_minutes: f64,
    /// Batches whose gradients are summed into one update.
    pub accumulate: usize,
    /// Sentences that go through the encoder at a time; 0 = the whole batch. Bounds memory: each
    /// part is computed twice, without and with what its backward pass needs (Gao et al., RepL4NLP
    /// 2021).
    pub chunk_sentences: usize,
    /// Updates between log lines.
    pub log_steps: u64,
    /// Updates between evaluations on the dev sets; 0 = only at the end.
    pub dev_steps: u64,
    /// Minutes between checkpoints.
    pub checkpoint_minutes: f64,
    /// Evaluations without a better dev accuracy after which the run stops; 0 = never.
    pub patience: usize,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            steps: 0,
            max_minutes: 0.0,
            accumulate: 1,
            chunk_sentences: 0,
            log_steps: 50,
            dev_steps: 0,
            checkpoint_minutes: 10.0,
            patience: 0,
        }
    }
}

/// A keyed file (`key <TAB> language <TAB> text`) on which retrieval is measured: for every
/// sentence that has a pivot sentence under its key, the nearest pivot sentence by cosine should
/// have the same key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevSet {
    /// The file.
    pub path: PathBuf,
    /// Language of the candidates.
    #[serde(default = "english")]
    pub pivot: String,
    /// Keys that are read; 0 = all.
    #[serde(default)]
    pub keys: usize,
    /// Weight in the figure that decides which model is the best.
    #[serde(default = "unit")]
    pub weight: f64,
}

/// Sets one value of a table, making the tables above it where they are missing.
fn replace(table: &mut toml::Table, change: &str) -> Result<(), String> {
    let malformed = || format!("\"{change}\" is not of the form key=value");
    let (key, value) = change.split_once('=').ok_or_else(malformed)?;
    let value = format!("value = {value}")
        .parse::<toml::Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| toml::Value::String(value.to_owned()));
    let mut names: Vec<&str> = key.split('.').map(str::trim).collect();
    let last = names
        .pop()
        .filter(|n| !n.is_empty())
        .ok_or_else(malformed)?;
    let mut at = table;
    for name in names {
        let next = at
            .entry(name)
            .or_insert_with(|| toml::Value::Table(toml::Table::new()));
        let toml::Value::Table(next) = next else {
            return Err(format!("\"{change}\": {name} is not a table"));
        };
        at = next;
    }
    at.insert(last.to_owned(), value);
    Ok(())
}

fn english() -> String {
    "en".into()
}

fn unit() -> f64 {
    1.0
}

impl TrainConfig {
    /// Reads and checks a configuration file.
    ///
    /// # Errors
    /// [`TrainError::Config`] for anything that is not as it should be, with the place.
    pub fn load(path: &Path) -> Result<Self, TrainError> {
        Self::load_with(path, &[])
    }

    /// Reads a configuration file with some values replaced: `run.steps=500`,
    /// `model.encoder={architecture="mean",…}`. What stands after the first `=` is TOML, or a
    /// string without quotes.
    ///
    /// # Errors
    /// As of [`TrainConfig::load`].
    pub fn load_with(path: &Path, changes: &[String]) -> Result<Self, TrainError> {
        let text = std::fs::read_to_string(path).map_err(|e| TrainError::io(path, e))?;
        let fail = |e: toml::de::Error| TrainError::Config(format!("{}: {e}", path.display()));
        // Without changes the text is read at once, so that errors name line and column.
        let mut config: Self = if changes.is_empty() {
            toml::from_str(&text).map_err(fail)?
        } else {
            let mut table: toml::Table = toml::from_str(&text).map_err(fail)?;
            for change in changes {
                replace(&mut table, change).map_err(TrainError::Config)?;
            }
            table.try_into().map_err(fail)?
        };
        let folder = path.parent().unwrap_or(Path::new(""));
        config.resolve(folder);
        config.check()?;
        Ok(config)
    }

    /// Makes all paths relative to `folder`.
    fn resolve(&mut self, folder: &Path) {
        let paths = [&mut self.output, &mut self.tokenizer, &mut self.corpus]
            .into_iter()
            .chain(self.model.init_from.as_mut())
            .chain(self.objective.transfer.as_mut().map(|t| &mut t.teacher))
            .chain(self.objective.nli.iter_mut().flat_map(|n| &mut n.data))
            .chain(self.dev.iter_mut().map(|d| &mut d.path));
        for path in paths {
            *path = folder.join(&path);
        }
    }

    /// How batches are drawn, with the seed of the run where it has none of its own.
    #[must_use]
    pub fn sampling(&self) -> SamplerOptions {
        let mut sampling = self.sampling.clone();
        if sampling.seed == SamplerOptions::default().seed {
            sampling.seed = self.seed;
        }
        sampling
    }

    /// The architecture as it is written to a model folder.
    ///
    /// # Errors
    /// [`TrainError::Config`] if widths do not fit one another.
    pub fn model_config(&self) -> Result<Config, TrainError> {
        let dimensions = self
            .model
            .dense
            .last()
            .map_or(self.model.encoder.output_size(), |d| d.output);
        let config = Config {
            format: laser_model::config::FORMAT,
            name: self.name.clone(),
            dimensions,
            max_tokens: self.model.max_tokens,
            normalize: self.model.normalize,
            text: Default::default(),
            encoder: self.model.encoder.clone(),
            dense: self.model.dense.clone(),
            checks: Vec::new(),
            base: None,
            prefixes: Default::default(),
            task: Default::default(),
        };
        config
            .validate()
            .map_err(|e| TrainError::Config(e.to_string()))?;
        Ok(config)
    }

    /// Checks what types cannot express.
    ///
    /// # Errors
    /// [`TrainError::Config`].
    pub fn check(&self) -> Result<(), TrainError> {
        let fail = |message: String| Err(TrainError::Config(message));
        self.model_config()?;
        if self.device != TrainDevice::Cpu {
            let lstm = matches!(
                self.model.encoder,
                Architecture::Bilstm(_) | Architecture::ResidualBilstm(_)
            );
            if !lstm {
                let message = "device = \"cuda\" is for the architectures \"bilstm\" and \
                               \"residual_bilstm\"";
                return fail(message.into());
            }
            if self.precision == Precision::F32 {
                return fail("device = \"cuda\" computes in bf16, not in f32".into());
            }
        }
        let transformer = matches!(self.model.encoder, Architecture::Transformer(_));
        if self.model.stack_layers && !(transformer && self.model.init_from.is_some()) {
            return fail("stack_layers is for a transformer with init_from".into());
        }
        let only_mean = matches!(self.model.encoder, Architecture::Mean(_));
        if self.model.freeze_embeddings && only_mean && self.model.dense.is_empty() {
            return fail("freeze_embeddings leaves nothing to train in a mean".into());
        }
        let objectives = &self.objective;
        if let Some(paths) = &objectives.paths {
            self.check_paths(paths)?;
        } else if !objectives.uses_corpus() && objectives.nli.is_none() && objectives.mlm.is_none()
        {
            return fail("name at least one objective, for instance [objective.dual]".into());
        }
        let masks = objectives
            .transfer
            .as_ref()
            .is_some_and(|t| t.mask_similar != 0.0);
        if masks && objectives.dual.is_none() {
            return fail("transfer.mask_similar masks negatives of [objective.dual]".into());
        }
        if let Some(dual) = &objectives.dual {
            if !self.model.normalize {
                return fail("the dual objective needs model.normalize = true".into());
            }
            let largest = dual.scale * (1.0 + dual.margin.abs());
            let fits = dual.scale > 0.0 && largest <= LARGEST_LOGIT;
            if !fits {
                return fail(format!(
                    "scale must be positive, and scale times (1 + margin) at most {LARGEST_LOGIT}"
                ));
            }
            if !(0.0..=1.0).contains(&dual.mega_share) {
                return fail("mega_share must lie between 0 and 1".into());
            }
        }
        if let Some(transfer) = &objectives.transfer
            && !(transfer.lambda >= 0.0 && transfer.lambda.is_finite())
        {
            return fail("transfer.lambda must be a number of at least 0".into());
        }
        if let Some(nli) = &objectives.nli {
            if nli.data.is_empty() || nli.batch_pairs == 0 {
                return fail("objective.nli needs data, and batch_pairs of at least 1".into());
            }
            if nli.classifier.hidden.contains(&0) || !(0.0..1.0).contains(&nli.classifier.dropout) {
                let message = "objective.nli.classifier needs widths of at least 1 and a dropout \
                               of at least 0 and below 1";
                return fail(message.into());
            }
        }
        if let Some(mlm) = &objectives.mlm {
            if !transformer {
                return fail("objective.mlm is for a transformer".into());
            }
            let shares = [mlm.share, mlm.translations];
            if !shares.iter().all(|s| (0.0..=1.0).contains(s)) || mlm.predictions == 0 {
                let message = "the shares of objective.mlm must lie between 0 and 1, predictions be \
                               at least 1";
                return fail(message.into());
            }
        }
        if let Some(nmt) = &objectives.nmt {
            let Denoise {
                share,
                drop,
                swap,
                substitute,
            } = nmt.denoise;
            let rates = [drop, swap, substitute];
            let fits = (0.0..=1.0).contains(&share)
                && rates.iter().all(|r| (0.0..=1.0).contains(r))
                && drop < 1.0;
            if !fits {
                return fail(
                    "the shares of nmt.denoise must lie between 0 and 1, drop below 1".into(),
                );
            }
            let DecoderSizes {
                embedding_size,
                language_size,
                hidden_size,
                ..
            } = nmt.decoder;
            if [embedding_size, language_size, hidden_size].contains(&0) {
                return fail("every size of the decoder must be at least 1".into());
            }
        }
        for (name, rate) in [
            ("tokens", self.dropout.tokens),
            ("embedding", self.dropout.embedding),
            ("hidden", self.dropout.hidden),
        ] {
            if !(0.0..1.0).contains(&rate) {
                return fail(format!("dropout.{name} must be at least 0 and below 1"));
            }
        }
        let o = &self.optimizer;
        let positive = [
            o.learning_rate,
            o.embedding_rate_factor,
            o.token_weight_rate_factor,
        ];
        if positive.iter().any(|x| !(x.is_finite() && *x >= 0.0)) {
            return fail("learning rates must be numbers of at least 0".into());
        }
        for (name, value) in [
            ("beta1", o.beta1),
            ("beta2", o.beta2),
            ("average_decay", o.average_decay),
        ] {
            if !(0.0..1.0).contains(&value) {
                return fail(format!("optimizer.{name} must be at least 0 and below 1"));
            }
        }
        if self.run.accumulate == 0 || self.run.log_steps == 0 {
            return fail("run.accumulate and run.log_steps must be at least 1".into());
        }
        let Schedule {
            stall_factor,
            stall_evaluations,
            ..
        } = self.schedule;
        if !(stall_factor > 0.0 && stall_factor <= 1.0) || stall_evaluations == 0 {
            let message = "schedule.stall_factor must be above 0 and at most 1, \
                           stall_evaluations at least 1";
            return fail(message.into());
        }
        if stall_factor < 1.0 && (self.run.dev_steps == 0 || self.dev.is_empty()) {
            return fail("schedule.stall_factor needs run.dev_steps and a dev set".into());
        }
        let timed = self.run.max_minutes > 0.0;
        if self.run.steps == 0 && !timed {
            return fail("set run.steps or run.max_minutes".into());
        }
        Ok(())
    }

    /// Checks what goes together with training paths. Languages and paths are checked against the corpus.
    fn check_paths(&self, paths: &PathsOptions) -> Result<(), TrainError> {
        let fail = |message: &str| Err(TrainError::Config(message.into()));
        let LanguageDecoderSizes {
            embedding_size,
            hidden_size,
            ..
        } = paths.decoder;
        if [embedding_size, hidden_size].contains(&0) {
            return fail("every size of the decoder must be at least 1");
        }
        languages::check_codes(paths.languages.iter().map(String::as_str))
            .map_err(TrainError::Config)?;
        let objectives = &self.objective;
        if objectives.uses_corpus() || objectives.nli.is_some() || objectives.mlm.is_some() {
            return fail("objective.paths trains encoders of its own: name no other objective");
        }
        if self.device != TrainDevice::Cpu {
            return fail("objective.paths trains on the processor: device must be \"cpu\"");
        }
        if self.run.chunk_sentences != 0 {
            let message = "objective.paths has no chunks: sampling.batch_pairs bounds its memory";
            return fail(message);
        }
        let (s, default) = (&self.sampling, SamplerOptions::default());
        if s.targets != default.targets
            || !s.language_weights.is_empty()
            || s.any_pair_share + s.homogeneous_share + s.one_source_share > 0.0
        {
            let message = "which languages a batch has is said by objective.paths.path: leave out \
                           sampling.targets, language_weights and the shares of batches";
            return fail(message);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        output = "run"
        tokenizer = "tokenizer.json"
        corpus = "corpus.packed"
        [model]
        encoder = { architecture = "mean", embedding_size = 8, pooling = "weighted" }
        dense = [{ in = 8, out = 6, activation = "tanh" }]
        [objective.dual]
        [run]
        steps = 5
    "#;

    #[test]
    fn unknown_keys_and_bad_values_are_refused() {
        let parse = |text: &str| toml::from_str::<TrainConfig>(text);
        let config = parse(SMALL).unwrap();
        config.check().unwrap();
        assert_eq!(config.model_config().unwrap().dimensions, 6);
        let error = parse(&SMALL.replace("steps = 5", "step = 5"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("unknown field `step`"), "{error}");
        for (from, to) in [
            ("steps = 5", "steps = 0"),
            ("in = 8", "in = 7"),
            ("[objective.dual]", "[objective.dual]\nscale = 90"),
            ("[objective.dual]", "[objective]"),
            ("[objective.dual]", "[objective.nli]\ndata = []"),
            (
                "[objective.dual]",
                "[objective.nmt]\ndenoise = { share = 1.5 }",
            ),
        ] {
            assert!(
                parse(&SMALL.replace(from, to)).unwrap().check().is_err(),
                "{to}"
            );
        }
    }
    #[test]
    fn values_are_replaced_by_their_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("small.toml");
        std::fs::write(&path, SMALL).unwrap();
        let load = |changes: &[&str]| {
            let changes: Vec<String> = changes.iter().map(|c| (*c).to_owned()).collect();
            TrainConfig::load_with(&path, &changes)
        };
        let config = load(&[
            "run.steps=7",
            "name=other",
            "sampling.source_weights.news=0.5",
            "model.encoder={ architecture = \"mean\", embedding_size = 9, pooling = \"mean\" }",
            "model.dense=[]",
        ])
        .unwrap();
        assert_eq!((config.run.steps, config.name.as_str()), (7, "other"));
        assert_eq!(config.sampling.source_weights["news"], 0.5);
        assert_eq!(config.model_config().unwrap().dimensions, 9);
        for wrong in ["run.step=7", "run", "run.steps=many", "name.x=1", "=1"] {
            assert!(load(&[wrong]).is_err(), "{wrong}");
        }
    }
}
