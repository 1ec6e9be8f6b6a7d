//! One encoder for all languages.

use std::collections::VecDeque;
use std::path::Path;

use laser_model::config::Architecture;

use super::TrainError;
use super::checkpoint::{self, Checkpoint, Part};
use super::config::{TrainConfig, TrainDevice};
use super::dev::{Accuracy, Dev};
use super::inference::{Inference, LabelledPairs};
use super::masking::MaskTokens;
use super::progress::{Outcome, Pending, Progress};
use super::start::{boundaries, initial_values};
use super::step::{MaskedModel, Stepper};
use super::teacher::Teacher;
use super::training_target::TrainingTarget;
use crate::data::{PackedCorpus, Sampler, SamplerState};
use crate::models::{Model, ModelError};
use crate::objectives::mlm::Head;
use crate::objectives::nli;
use crate::objectives::nmt::Decoder;
use crate::ops::lstm_device::LstmDevice;
use crate::ops::threads::Threads;
use crate::optim::Optimizer;
use crate::tokenizer::{Loaded, MASK};

/// A run that has made no step.
///
/// # Errors
/// [`TrainError`] for what the configuration names and is not there or does not fit.
pub fn prepare(
    config: &TrainConfig,
    corpus: &PackedCorpus,
    tokenizer: &Loaded,
    threads: Threads,
) -> Result<Stepper, TrainError> {
    let sampler = Sampler::new(corpus, config.sampling())?;
    let eos = tokenizer.tokenizer.token_to_id("</s>");
    let vocabulary = tokenizer.vocab_size as usize;
    let arithmetic = config.precision.arithmetic();
    let mut model = Model::new(
        config.model_config()?,
        vocabulary,
        eos,
        arithmetic,
        config.seed,
    )?;
    let lstm = match &config.model.encoder {
        Architecture::Bilstm(c) => Some(c.clone()),
        Architecture::ResidualBilstm(c) => Some(c.bilstm()),
        Architecture::Mean(_)
        | Architecture::Transformer(_)
        | Architecture::RotaryTransformer(_) => None,
    };
    if let (TrainDevice::Cuda(ordinal), Some(lstm)) = (config.device, lstm) {
        let device = LstmDevice::cuda(ordinal, &lstm).map_err(ModelError::Device)?;
        model = model.on_device(device)?;
    }
    if config.model.freeze_embeddings {
        model.parameters_mut().freeze_sparse();
    }
    initial_values(config, corpus, None, &mut model);
    let learned = config.objective.dual.as_ref().filter(|d| d.learn_scale);
    let scale =
        learned.map(|d| model.add_objective_parameter("objective.scale", &[1], vec![d.scale.ln()]));
    let decoder = match &config.objective.nmt {
        Some(nmt) => {
            let languages = corpus.header().languages.len();
            let space = (model.dimensions(), config.model.normalize);
            Some(Decoder::new(
                model.parameters_mut(),
                &nmt.decoder,
                space,
                (vocabulary, languages),
                boundaries(tokenizer)?,
                arithmetic,
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
            let pairs = LabelledPairs::read(options, tokenizer, limit)?;
            let (width, classes) = (model.dimensions(), pairs.classes());
            let parameters = model.parameters_mut();
            let net = nli::classifier(parameters, &options.classifier, width, classes, config.seed);
            Some(Inference { net, pairs })
        }
        None => None,
    };
    let masked = match &config.objective.mlm {
        Some(_) => Some(masked_model(config, tokenizer, &mut model)?),
        None => None,
    };
    let optimizer = Optimizer::new(config.optimizer.clone(), model.parameters());
    Ok(Stepper {
        model,
        optimizer,
        sampler,
        pending: VecDeque::new(),
        threads,
        scale,
        decoder,
        teacher,
        inference,
        masked,
    })
}

/// The head of a masked language model.
fn masked_model(
    config: &TrainConfig,
    tokenizer: &Loaded,
    model: &mut Model,
) -> Result<MaskedModel, TrainError> {
    let Architecture::Transformer(c) = &config.model.encoder else {
        return Err(TrainError::Config(
            "objective.mlm is for a transformer".into(),
        ));
    };
    let id = |name: &&str| tokenizer.tokenizer.token_to_id(name);
    let message = "objective.mlm needs a tokenizer with the token \"<mask>\" or \"[MASK]\" \
                   (laser tokenizer --transformer)";
    let mask = [MASK, "[MASK]"].iter().find_map(id);
    let mask = mask.ok_or_else(|| TrainError::Config(message.into()))?;
    let special = [
        "<pad>", "<unk>", "<s>", "</s>", "[PAD]", "[UNK]", "[CLS]", "[SEP]",
    ];
    let tokens = MaskTokens {
        mask,
        special: special.iter().filter_map(id).chain([mask]).collect(),
        vocabulary: tokenizer.tokenizer.get_vocab_size(true) as u32,
    };
    let vocabulary = tokenizer.vocab_size as usize;
    if tokens.special.len() >= vocabulary {
        return Err(TrainError::Config(
            "the tokenizer has no tokens to predict".into(),
        ));
    }
    let (width, arithmetic) = (c.hidden_size, model.arithmetic());
    let parameters = model.parameters_mut();
    let head = Head::new(parameters, width, vocabulary, arithmetic, config.seed);
    Ok(MaskedModel {
        head,
        tokens,
        begin: ["<s>", "[CLS]"].iter().find_map(id),
        capacity: c.max_positions - c.position_offset,
    })
}

impl TrainingTarget for Stepper {
    fn initialise(&mut self, config: &TrainConfig, from: &Path) -> Result<Vec<String>, TrainError> {
        let stack = config.model.stack_layers;
        let used = checkpoint::initialise_from(from, &mut self.model, &config.tokenizer, stack)?;
        // Averages begin with the values.
        self.optimizer = Optimizer::new(config.optimizer.clone(), self.model.parameters());
        Ok(used)
    }

    fn has_frozen(&self) -> bool {
        self.model.parameters().frozen() > 0
    }

    fn step(
        &mut self,
        config: &TrainConfig,
        corpus: &PackedCorpus,
        step: u64,
        rate_factor: f64,
    ) -> Result<Outcome, TrainError> {
        self.update(config, corpus, step, rate_factor)
    }

    fn embeds(&self, _: &str) -> bool {
        true
    }

    fn measure(&self, dev: &[Dev]) -> Result<Vec<Accuracy>, TrainError> {
        let averaged = self
            .optimizer
            .averaged()
            .map(|values| self.model.with(values));
        let model = averaged.as_ref().unwrap_or(&self.model);
        let measure = |dev: &Dev| {
            let x = model.encode(&self.threads, &model.prepare(dev.sentences()))?;
            Ok(dev.evaluate((&x, model.dimensions()), &|_| true, &self.threads))
        };
        dev.iter().map(measure).collect()
    }

    fn write(&self, folder: &Path, config: &TrainConfig) -> Result<(), TrainError> {
        let values = self.optimizer.averaged();
        checkpoint::write_model(folder, &self.model, values, &config.tokenizer)
    }

    fn save(&self, folder: &Path, progress: &Progress) -> Result<(), TrainError> {
        let part = Part {
            prefix: "",
            parameters: self.model.parameters(),
            optimizer: &self.optimizer,
        };
        checkpoint::save(folder, &[part], progress)
    }

    fn restore(&mut self, saved: &Checkpoint) -> Result<(), TrainError> {
        saved.restore("", self.model.parameters_mut(), &mut self.optimizer)?;
        let progress = saved.progress();
        self.sampler.restore(progress.sampler.clone())?;
        self.pending = progress.pending.iter().cloned().collect();
        Ok(())
    }

    fn drawn(&self) -> (SamplerState, Vec<Pending>) {
        let pending = self.pending.iter().cloned().collect();
        (self.sampler.state(), pending)
    }

    fn describe(&self) -> String {
        format!(
            "{} parameters, {} threads, {:?} products; {} anchors",
            self.model.parameters().elements(),
            self.threads.count(),
            self.model.arithmetic(),
            self.sampler.anchors()
        )
    }
}
