//! [`Encoder`]: a loaded model.

use std::path::Path;

use candle_core::DType;
use laser_kernels::{Isa, Precision, math};
use laser_model::config::{Architecture, Task};
use laser_model::folder::{self, Weights};
use laser_model::mean::Mean;
use laser_model::tokenize::{self, SECOND, Tokenized, Tokenizer};
use laser_model::{Config, ModelError, base};
use laser_protocol::Role;
use rayon::prelude::*;

use crate::arch::Model;
use crate::arch::bilstm::{self, Bilstm};
use crate::arch::bilstm_candle::BilstmCandle;
use crate::arch::dense::Head;
use crate::arch::mean_candle::MeanCandle;
use crate::arch::residual_bilstm::ResidualBilstm;
use crate::arch::residual_bilstm_candle::ResidualBilstmCandle;
use crate::arch::rotary_candle::RotaryCandle;
use crate::arch::rotary_packed::RotaryPacked;
use crate::arch::transformer::{self, Transformer};
use crate::arch::transformer_candle::TransformerCandle;
use crate::arch::transformer_packed::TransformerPacked;
use crate::{DeviceChoice, EncoderError, Purpose, batch};

/// Floating point operations below which a call runs on the caller's thread: at some 50 GFLOP/s it
/// ends before a pool has woken up.
const INLINE_FLOPS: usize = 2_000_000;

/// Texts below which tokenisation stays on the caller's thread.
const INLINE_TEXTS: usize = 8;

/// How to load a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Where it runs.
    pub device: DeviceChoice,
    /// Arithmetic of the products.
    pub precision: Precision,
    /// Threads at most, 0 for one a core. With 1, loading and encoding start no thread at all.
    pub threads: usize,
}

/// Embeddings of a list of texts.
#[derive(Debug, Clone, PartialEq)]
pub struct Embeddings {
    /// Length of an embedding.
    pub dimensions: usize,
    /// Row-major, one row a text, in the order of the texts.
    pub data: Vec<f32>,
    /// Whether a text was cut at [`Config::max_tokens`].
    pub truncated: Vec<bool>,
}

impl Embeddings {
    /// The embeddings in the order of the texts.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.data.chunks_exact(self.dimensions)
    }

    /// The embedding of text `i`.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.dimensions..(i + 1) * self.dimensions]
    }
}

/// A loaded model. Cheap calls run on the caller's thread, larger ones on a pool of the encoder's
/// own; all methods may be called from several threads at once.
pub struct Encoder {
    config: Config,
    tokenizer: Tokenizer,
    fingerprint: [u8; 32],
    model: Box<dyn Model>,
    head: Head,
    pool: Option<rayon::ThreadPool>,
    threads: usize,
    device: candle_core::Device,
    /// Why another device than the first choice was taken.
    device_problem: Option<String>,
    precision: Precision,
    asked: Precision,
}

impl Encoder {
    /// Loads the model folder `folder`. The embedding table stays in the mapped file; other
    /// weights are packed for the kernels.
    ///
    /// # Errors
    /// Missing or malformed files, tensors of the wrong shape, a device that is not there. No
    /// content of the folder makes this panic.
    pub fn load(folder: &Path, options: &LoadOptions) -> Result<Self, EncoderError> {
        let config = folder::read_config(folder)?;
        let (device, mut problem) = crate::device::choose(options.device, &config)?;
        let chosen = options.device == DeviceChoice::Auto && !device.is_cpu();
        let mut encoder = match Self::load_on(folder, config.clone(), options, device) {
            // That a GPU can be opened does not say that it runs these kernels, or has room for the model.
            Err(EncoderError::Compute(reason)) if chosen => {
                problem = Some(reason);
                Self::load_on(folder, config, options, candle_core::Device::Cpu)?
            }
            loaded => loaded?,
        };
        encoder.device_problem = problem;
        Ok(encoder)
    }

    fn load_on(
        folder: &Path,
        config: Config,
        options: &LoadOptions,
        device: candle_core::Device,
    ) -> Result<Self, EncoderError> {
        let threads = match options.threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n.min(1024),
        };
        let tokens = base::token_folder(folder, &config)?;
        let weights = base::weights(folder, &config)?;
        // A mean has no products, and "auto" starts from f32.
        let precision = match (&config.encoder, options.precision) {
            (Architecture::Mean(_), _) | (_, Precision::Auto) => Precision::F32,
            (_, wanted) if device.is_cpu() => wanted,
            // There are no int8 products on a GPU.
            (_, Precision::I8) => Precision::Bf16,
            (_, wanted) => wanted,
        };
        let pool = if threads > 1 {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|i| format!("encode-{i}"))
                .build()
                .map_err(|e| EncoderError::Compute(format!("could not start threads: {e}")))?;
            Some(pool)
        } else {
            None
        };
        // The tokenizer, the fingerprint and the weights are independent of each other.
        let tokenizer = || Tokenizer::open(&tokens, &config);
        let fingerprint = || {
            base::verify(folder, &config, folder::fingerprint)?;
            folder::fingerprint(folder)
        };
        // On a GPU, "auto" compares with the processor: f32 there would take memory, and seconds until the driver has
        // compiled its kernels, for a few sentences.
        let undecided = options.precision == Precision::Auto
            && !device.is_cpu()
            && !matches!(config.encoder, Architecture::Mean(_));
        let first = match undecided {
            true => &candle_core::Device::Cpu,
            false => &device,
        };
        let model = || load_model(&config, &weights, first, precision, pool.is_some());
        let (tokenizer, (fingerprint, model)) = match &pool {
            Some(pool) => {
                pool.install(|| rayon::join(tokenizer, || rayon::join(fingerprint, model)))
            }
            None => (tokenizer(), (fingerprint(), model())),
        };
        // Files of another base are the reason of what else may be wrong.
        let (fingerprint, tokenizer, model) = (fingerprint?, tokenizer?, model?);
        let head = Head::load(&config.dense, &weights)?;
        tokenizer.check_vocabulary(model.vocabulary(), &weights)?;
        let mut encoder = Self {
            config,
            tokenizer,
            fingerprint,
            model,
            head,
            pool,
            threads,
            device,
            device_problem: None,
            precision,
            asked: options.precision,
        };
        if options.precision == Precision::Auto {
            let faster = match &encoder.config.encoder {
                Architecture::Mean(_) => vec![],
                _ if !encoder.device.is_cpu() => vec![Precision::Bf16],
                Architecture::Bilstm(config) => bilstm::faster_than_f32(config, &weights)?,
                Architecture::ResidualBilstm(config) => {
                    bilstm::faster_than_f32(&config.bilstm(), &weights)?
                }
                Architecture::Transformer(config) => {
                    transformer::faster_than_f32(config, &weights)?
                }
                Architecture::RotaryTransformer(config) => {
                    transformer::faster_than_f32(config, &weights)?
                }
            };
            encoder.choose_precision(&faster, &weights)?;
        }
        if undecided && encoder.precision == Precision::F32 {
            encoder.model = encoder.load_model(&weights, Precision::F32)?;
        }
        Ok(encoder)
    }

    fn load_model(
        &self,
        weights: &Weights,
        precision: Precision,
    ) -> Result<Box<dyn Model>, EncoderError> {
        let parallel = self.pool.is_some();
        let load = || load_model(&self.config, weights, &self.device, precision, parallel);
        match &self.pool {
            Some(pool) => pool.install(load),
            None => load(),
        }
    }

    /// Replaces f32 by the first of `candidates` that is accurate enough on the check sentences.
    fn choose_precision(
        &mut self,
        candidates: &[Precision],
        weights: &Weights,
    ) -> Result<(), EncoderError> {
        if candidates.is_empty() {
            return Ok(());
        }
        let texts: Vec<&str> = match &self.config.checks[..] {
            [] => CHECKS.to_vec(),
            checks => checks.iter().map(String::as_str).collect(),
        };
        let ids: Vec<Vec<u32>> = match self.config.task {
            Task::Embed => self.tokenize(&texts)?.into_iter().map(|t| t.ids).collect(),
            Task::Rerank => {
                let pairs = texts.iter().zip(texts.iter().cycle().skip(1));
                let pairs = pairs.map(|(a, b)| self.tokenizer.tokenize_pair(a, b));
                pairs
                    .map(|tokens| tokens.map(|t| t.ids))
                    .collect::<Result<_, _>>()?
            }
        };
        let exact = self.encode_ids(&ids)?;
        for &candidate in candidates {
            let model = self.load_model(weights, candidate)?;
            let before = std::mem::replace(&mut self.model, model);
            let rounded = self.encode_ids(&ids)?;
            let accurate = match self.config.task {
                Task::Embed => smallest_cosine(&exact, &rounded) >= MIN_COSINE,
                Task::Rerank => largest_difference(&exact, &rounded) <= MAX_DIFFERENCE,
            };
            if accurate {
                self.precision = candidate;
                return Ok(());
            }
            self.model = before;
        }
        Ok(())
    }

    /// Embeds texts as they are ([`Role::Plain`]). A text without tokens is embedded as the lone end token (see
    /// [`Tokenized`]); the result never depends on the other texts beyond rounding (1e-5).
    pub fn encode(&self, texts: &[&str]) -> Result<Embeddings, EncoderError> {
        let (ids, truncated): (Vec<_>, Vec<_>) = self
            .tokenize(texts)?
            .into_iter()
            .map(|t| (t.ids, t.truncated))
            .unzip();
        Ok(Embeddings {
            truncated,
            ..self.encode_ids(&ids)?
        })
    }

    /// Whether the model can be asked this.
    ///
    /// # Errors
    /// [`ModelError::Reranker`], [`ModelError::NoReranker`], [`ModelError::Undecided`].
    pub fn check(&self, purpose: &Purpose) -> Result<(), ModelError> {
        match (purpose, self.config.task) {
            (Purpose::Embed(_), Task::Rerank) => Err(ModelError::Reranker),
            (Purpose::Rerank(_), Task::Embed) => Err(ModelError::NoReranker),
            (Purpose::Embed(role), Task::Embed) => self.config.prefixes.apply(*role, "").map(drop),
            (Purpose::Rerank(_), Task::Rerank) => Ok(()),
        }
    }

    /// Token ids of a text for this purpose.
    ///
    /// # Errors
    /// As [`Encoder::check`], and where the tokenizer fails.
    pub fn tokenize_for(&self, purpose: &Purpose, text: &str) -> Result<Tokenized, EncoderError> {
        self.check(purpose)?;
        Ok(match purpose {
            Purpose::Embed(role) => {
                let input = self.config.prefixes.apply(*role, text)?;
                self.tokenizer.tokenize(&input)?
            }
            Purpose::Rerank(query) => self.tokenizer.tokenize_pair(query, text)?,
        })
    }

    /// As [`Encoder::tokenize_for`] of several texts, on all threads.
    ///
    /// # Errors
    /// As [`Encoder::tokenize_for`].
    pub fn tokenize_all(
        &self,
        texts: &[(Purpose, String)],
    ) -> Result<Vec<Tokenized>, EncoderError> {
        let tokenize = |(purpose, text): &(Purpose, String)| self.tokenize_for(purpose, text);
        match &self.pool {
            Some(pool) if texts.len() >= INLINE_TEXTS => {
                let tokens = || texts.par_iter().with_min_len(4).map(tokenize).collect();
                pool.install(tokens)
            }
            _ => texts.iter().map(tokenize).collect(),
        }
    }

    /// Token ids of texts, as they are.
    ///
    /// # Errors
    /// As [`Encoder::check`], and where the tokenizer fails.
    pub fn tokenize(&self, texts: &[&str]) -> Result<Vec<Tokenized>, EncoderError> {
        self.check(&Purpose::Embed(Role::Plain))?;
        match &self.pool {
            Some(pool) if texts.len() >= INLINE_TEXTS => {
                let tokenized: Result<_, ModelError> = pool.install(|| {
                    texts
                        .par_iter()
                        .with_min_len(4)
                        .map(|t| self.tokenizer.tokenize(t))
                        .collect()
                });
                Ok(tokenized?)
            }
            _ => self.tokenize_here(texts),
        }
    }

    /// As [`Encoder::tokenize`], on the caller's thread alone.
    pub fn tokenize_here(&self, texts: &[&str]) -> Result<Vec<Tokenized>, EncoderError> {
        let tokenized: Result<_, ModelError> =
            texts.iter().map(|t| self.tokenizer.tokenize(t)).collect();
        Ok(tokenized?)
    }

    /// Embeds token sequences as [`Encoder::tokenize`] returns them. An empty sequence gives the
    /// embedding of a zero state.
    ///
    /// # Errors
    /// [`ModelError::TokenId`] for an id beyond the vocabulary.
    pub fn encode_ids(&self, sequences: &[Vec<u32>]) -> Result<Embeddings, EncoderError> {
        let vocabulary = self.model.vocabulary();
        let mut tokens = 0;
        for ids in sequences {
            tokens += ids.len();
            match self.config.task {
                Task::Embed => tokenize::check_ids(ids, vocabulary)?,
                Task::Rerank => {
                    let plain: Vec<u32> = ids.iter().map(|id| id & !SECOND).collect();
                    tokenize::check_ids(&plain, vocabulary)?;
                }
            }
        }
        let dimensions = self.config.dimensions;
        let mut data = vec![0f32; sequences.len() * dimensions];
        let work = tokens * self.model.flops_per_token() + sequences.len() * self.head.flops();
        let pool = self.pool.as_ref().filter(|_| work > INLINE_FLOPS);
        let lanes = if pool.is_some() {
            self.model.lanes(self.threads)
        } else {
            1
        };
        let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
        let batches = batch::plan(&lengths, lanes, self.model.padded(), self.model.budget());
        let run = |batch: &Vec<usize>, parallel: bool| {
            let rows: Vec<&[u32]> = batch.iter().map(|&i| &sequences[i][..]).collect();
            self.encode_batch(&rows, parallel)
        };
        // Of a device that takes one batch after the other, the next is prepared meanwhile. More would only take memory.
        let at_once = if lanes == 1 { 2 } else { batches.len().max(1) };
        let results: Vec<Vec<f32>> = match pool {
            Some(pool) => pool.install(|| {
                batches
                    .chunks(at_once)
                    .flat_map(|some| {
                        let results: Vec<_> = some.par_iter().map(|b| run(b, true)).collect();
                        results
                    })
                    .collect::<Result<Vec<_>, _>>()
            })?,
            None => batches
                .iter()
                .map(|b| run(b, false))
                .collect::<Result<Vec<_>, _>>()?,
        };
        for (batch, result) in batches.iter().zip(&results) {
            for (&i, row) in batch.iter().zip(result.chunks_exact(dimensions)) {
                data[i * dimensions..(i + 1) * dimensions].copy_from_slice(row);
            }
        }
        Ok(Embeddings {
            dimensions,
            data,
            truncated: vec![false; sequences.len()],
        })
    }

    /// Encodes sequences, longest first. What is too much for the memory of a GPU at once, which others may use as well,
    /// is encoded in halves.
    fn encode_rows(
        &self,
        rows: &[&[u32]],
        pooled: &mut [f32],
        parallel: bool,
    ) -> Result<(), EncoderError> {
        match self.model.encode(rows, pooled, parallel) {
            Err(error) if rows.len() > 1 && error.is_lack_of_device_memory() => {
                let half = rows.len() / 2;
                let (first, second) = pooled.split_at_mut(half * self.model.width());
                self.encode_rows(&rows[..half], first, parallel)?;
                self.encode_rows(&rows[half..], second, parallel)
            }
            result => result,
        }
    }

    fn encode_batch(&self, rows: &[&[u32]], parallel: bool) -> Result<Vec<f32>, EncoderError> {
        let mut pooled = vec![0f32; rows.len() * self.model.width()];
        self.encode_rows(rows, &mut pooled, parallel)?;
        let mut out = self.head.apply(rows.len(), pooled);
        if self.config.normalize {
            out.chunks_exact_mut(self.config.dimensions)
                .for_each(math::l2_normalize);
        }
        Ok(out)
    }

    /// The configuration of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// blake3 over the files of the model folder, see [`folder::fingerprint`].
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Length of an embedding.
    pub fn dimensions(&self) -> usize {
        self.config.dimensions
    }

    /// What the model runs on, for example "cpu (avx2)" or "cuda:0".
    pub fn device_name(&self) -> String {
        crate::device::name(&self.device)
    }

    /// Why the model is not on the GPU that [`DeviceChoice::Auto`] would have taken.
    pub fn device_problem(&self) -> Option<&str> {
        self.device_problem.as_deref()
    }

    /// Whether the device no longer computes anything in this process, as after an error of a GPU's memory.
    pub fn device_is_lost(&self) -> bool {
        !self.device.is_cpu() && self.device.synchronize().is_err()
    }

    /// The precision in use, never [`Precision::Auto`].
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The precision that was asked for, where the model has no such arithmetic on its device.
    pub fn refused_precision(&self) -> Option<Precision> {
        (self.asked != Precision::Auto && self.asked != self.precision).then_some(self.asked)
    }

    /// Threads at most.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Bytes of memory held besides the mapped file: packed weights.
    pub fn resident_bytes(&self) -> usize {
        self.model.bytes() + self.head.bytes()
    }
}

/// Loads a model folder that was just written, to see that it can be.
///
/// # Errors
/// As [`Encoder::load`].
pub fn verify(folder: &Path) -> Result<(), EncoderError> {
    let options = LoadOptions {
        device: DeviceChoice::Cpu,
        precision: Precision::F32,
        threads: 1,
    };
    Encoder::load(folder, &options).map(drop)
}

/// Smallest cosine to f32 that an automatically chosen precision may have on a check sentence.
const MIN_COSINE: f64 = 0.9995;

/// Largest difference from f32 that a score may have, in units of the spread of the checks' scores.
const MAX_DIFFERENCE: f64 = 0.02;

/// Check sentences of models that bring none.
const CHECKS: [&str; 8] = [
    "Where is the railway station?",
    "Der Zug nach München fährt um halb neun vom dritten Gleis ab.",
    "El gobierno anunció ayer nuevas medidas para proteger los bosques.",
    "Она читает книгу у окна, пока за окном идёт снег.",
    "今天天气很好，我们去公园散步吧。",
    "كم سعر هذا القميص؟",
    "मुझे एक गिलास पानी चाहिए।",
    "No.",
];

fn load_model(
    config: &Config,
    weights: &Weights,
    device: &candle_core::Device,
    precision: Precision,
    parallel: bool,
) -> Result<Box<dyn Model>, EncoderError> {
    let isa = Isa::detect();
    // On other devices than the processor.
    let dtype = match precision {
        Precision::Bf16 => DType::BF16,
        _ => DType::F32,
    };
    Ok(match &config.encoder {
        Architecture::Mean(c) if device.is_cpu() => Box::new(Mean::load(c, weights)?),
        Architecture::Mean(c) => Box::new(MeanCandle::load(c, weights, device, DType::F32)?),
        Architecture::Bilstm(c) if device.is_cpu() => {
            Box::new(Bilstm::load(isa, c, weights, precision, parallel)?)
        }
        Architecture::Bilstm(c) => Box::new(BilstmCandle::load(c, weights, device, dtype)?),
        Architecture::ResidualBilstm(c) if device.is_cpu() => {
            Box::new(ResidualBilstm::load(isa, c, weights, precision, parallel)?)
        }
        Architecture::ResidualBilstm(c) => {
            Box::new(ResidualBilstmCandle::load(c, weights, device, dtype)?)
        }
        Architecture::Transformer(c) if device.is_cpu() => {
            Box::new(Transformer::load(isa, c, weights, precision, parallel)?)
        }
        Architecture::Transformer(c) if TransformerPacked::supported(c, device, dtype) => {
            Box::new(TransformerPacked::load(c, weights, device, dtype)?)
        }
        Architecture::Transformer(c) => {
            Box::new(TransformerCandle::load(c, weights, device, dtype)?)
        }
        Architecture::RotaryTransformer(c) if device.is_cpu() => {
            Box::new(Transformer::load(isa, c, weights, precision, parallel)?)
        }
        Architecture::RotaryTransformer(c) if RotaryPacked::supported(c, device, dtype) => {
            Box::new(RotaryPacked::load(c, weights, device, dtype)?)
        }
        Architecture::RotaryTransformer(c) => {
            Box::new(RotaryCandle::load(c, weights, device, dtype)?)
        }
    })
}

/// Largest difference between scores, in units of the first ones' standard deviation.
fn largest_difference(exact: &Embeddings, rounded: &Embeddings) -> f64 {
    let n = exact.data.len() as f64;
    let mean = exact.data.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let squares = exact.data.iter().map(|x| (f64::from(*x) - mean).powi(2));
    let spread = (squares.sum::<f64>() / n).sqrt();
    let pairs = exact.data.iter().zip(&rounded.data);
    let differences = pairs.map(|(a, b)| f64::from((a - b).abs()));
    differences.fold(0.0, f64::max) / spread.max(f64::MIN_POSITIVE)
}

/// Smallest cosine between rows of two equally large matrices; that of a row that has none counts as 0.
fn smallest_cosine(a: &Embeddings, b: &Embeddings) -> f64 {
    let cosines = a.rows().zip(b.rows()).map(|(x, y)| math::cosine(x, y));
    cosines
        .map(|cosine| if cosine.is_nan() { 0.0 } else { cosine })
        .fold(1.0, f64::min)
}
