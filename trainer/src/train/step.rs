//! One update: draws batches, runs the objectives forward and backward, applies the optimiser.

use std::collections::{HashSet, VecDeque};

use laser_sampling::mix;

use super::TrainError;
use super::config::{DualOptions, MlmOptions, Sides, TrainConfig};
use super::inference::Inference;
use super::masking::{MaskTokens, concatenated, masked};
use super::noise::noisy;
use super::progress::{Outcome, Pending};
use super::teacher::Teacher;
use super::update::Update;
use crate::data::{PackedCorpus, Pair, Ragged, Sampler, SentenceId};
use crate::models::perceptron::InputDropout;
use crate::models::{Model, Regularization};
use crate::objectives::contrastive::{LARGEST_LOGIT, Masks, contrastive, hardest};
use crate::objectives::mlm::Head;
use crate::objectives::nli::nli;
use crate::objectives::nmt::{Decoder, Noise, Targets};
use crate::objectives::transfer::alignment;
use crate::ops::pool::{self, Occurrences};
use crate::ops::threads::Threads;
use crate::optim::Optimizer;
use laser_kernels::slices::{add, scale};

/// The state of training.
pub struct Stepper {
    /// The model that is trained.
    pub model: Model,
    /// Its optimiser.
    pub optimizer: Optimizer,
    /// Draws batches.
    pub sampler: Sampler,
    /// Batches that were drawn already.
    pub pending: VecDeque<Pending>,
    /// Worker threads.
    pub threads: Threads,
    /// Position of the learned scale among the parameters.
    pub scale: Option<usize>,
    /// Decoder of the translation objective.
    pub decoder: Option<Decoder>,
    /// Teacher of the transfer objective.
    pub teacher: Option<Teacher>,
    /// Pairs and classifier of the inference objective.
    pub inference: Option<Inference>,
    /// What predicts the tokens of the masked language model.
    pub masked: Option<MaskedModel>,
}

/// The head of the masked language model, with what masking knows of the tokenizer.
pub struct MaskedModel {
    /// Predicts tokens.
    pub head: Head,
    /// The mask and the boundaries.
    pub tokens: MaskTokens,
    /// Begins every sequence, if any does.
    pub begin: Option<u32>,
    /// Most tokens of a sequence.
    pub capacity: usize,
}

/// Parts of the seed, so that no two uses share a stream.
pub(super) mod stream {
    pub const TOKENS: u64 = 1;
    pub const MASKS: u64 = 2;
    pub const MEGA: u64 = 3;
    pub const PERTURBED: u64 = 4;
    pub const NOISE: u64 = 5;
    pub const NEGATIVES: u64 = 6;
    pub const INFERENCE: u64 = 7;
    pub const MASKED: u64 = 0;
}

pub(super) fn seed_of(config: &TrainConfig, stream: u64, step: u64, batch: usize) -> u64 {
    mix(mix(config.seed.wrapping_mul(8) + stream) ^ mix(step << 16 | batch as u64))
}

/// A number from 0 to 1 of a seed.
fn uniform(seed: u64) -> f64 {
    (seed >> 11) as f64 / (1u64 << 53) as f64
}

/// What tells that two sentences mean the same: hashes of both texts and the group.
fn identities(corpus: &PackedCorpus, pair: (SentenceId, SentenceId)) -> Vec<u64> {
    let hash = |s| u64::from(corpus.text_hash(s));
    vec![
        hash(pair.0),
        hash(pair.1),
        1 << 40 | u64::from(corpus.group_of(pair.0)),
    ]
}

/// What is no negative in a batch, by its texts and groups.
fn masks(corpus: &PackedCorpus, batch: &Pending) -> Masks {
    let rows: Vec<_> = batch.pairs.iter().map(|p| identities(corpus, *p)).collect();
    let mut columns = rows.clone();
    columns.extend(batch.negatives.iter().map(|n| {
        if *n < corpus.sentences() {
            identities(corpus, (*n, *n))
        } else {
            // A perturbed sentence is no translation in its group.
            vec![u64::from(corpus.text_hash(*n))]
        }
    }));
    Masks::new(&rows, &columns)
}

/// At most `count` perturbed sentences of each pair's target, those that differ in their first
/// `limit` tokens.
fn perturbed_targets(
    corpus: &PackedCorpus,
    pairs: &[(SentenceId, SentenceId)],
    count: usize,
    limit: usize,
    seed: u64,
) -> Vec<SentenceId> {
    let mut chosen = Vec::new();
    if count == 0 {
        return chosen;
    }
    let (mut own, mut other) = (Vec::new(), Vec::new());
    for (i, (_, target)) in pairs.iter().enumerate() {
        own.clear();
        corpus.tokens_into(*target, limit, &mut own);
        let mut candidates: Vec<SentenceId> = corpus.perturbed(*target).collect();
        candidates.retain(|candidate| {
            other.clear();
            corpus.tokens_into(*candidate, limit, &mut other);
            other != own
        });
        for n in 0..count.min(candidates.len()) {
            let dice = mix(seed ^ mix((i * count + n) as u64)) as usize;
            chosen.push(candidates.swap_remove(dice % candidates.len()));
        }
    }
    chosen
}

/// Leaves each token out with probability `rate`; at least one of a sentence stays.
pub(super) fn drop_tokens(batch: &Ragged, rate: f32, seed: u64) -> Ragged {
    let mut kept = Ragged::new();
    let mut position = 0u64;
    for i in 0..batch.len() {
        let row = batch.row(i);
        let begin = kept.ids.len();
        for id in row {
            position += 1;
            let uniform = (mix(seed ^ position) >> 40) as f32 / (1 << 24) as f32;
            if uniform >= rate {
                kept.ids.push(*id);
            }
        }
        if kept.ids.len() == begin && !row.is_empty() {
            kept.ids
                .push(row[(mix(seed ^ position) % row.len() as u64) as usize]);
        }
        kept.starts.push(kept.ids.len());
    }
    kept
}

impl Stepper {
    /// Takes the next batch, drawing one, or several at once for hard negatives.
    fn next_batch(
        &mut self,
        config: &TrainConfig,
        corpus: &PackedCorpus,
        step: u64,
    ) -> Result<Pending, TrainError> {
        if let Some(batch) = self.pending.pop_front() {
            return Ok(batch);
        }
        let perturbed = config.objective.dual.as_ref().map_or(0, |d| d.perturbed);
        let mut draw = || {
            let number = self.sampler.state().batches;
            let pairs = self.sampler.next_batch(corpus).pairs;
            let pairs: Vec<_> = pairs
                .iter()
                .map(|Pair { source, target }| (*source, *target))
                .collect();
            let seed = seed_of(config, stream::PERTURBED, number, 0);
            let limit = config.sampling.max_tokens;
            Pending {
                negatives: perturbed_targets(corpus, &pairs, perturbed, limit, seed),
                pairs,
            }
        };
        let wanted = config.objective.dual.as_ref().filter(|dual| {
            let share = uniform(seed_of(config, stream::MEGA, step, 0));
            dual.mega_batch > 1 && step >= dual.mega_from_step && share < dual.mega_share
        });
        let Some(dual) = wanted else {
            return Ok(draw());
        };
        let mut batches: Vec<Pending> = (0..dual.mega_batch).map(|_| draw()).collect();
        self.mine(config, corpus, dual, &mut batches)?;
        self.pending.extend(batches);
        Ok(self.pending.pop_front().expect("a mega-batch has batches"))
    }

    /// Gives every batch the hardest wrong target of each of its pairs among the targets of all.
    fn mine(
        &self,
        config: &TrainConfig,
        corpus: &PackedCorpus,
        dual: &DualOptions,
        batches: &mut [Pending],
    ) -> Result<(), TrainError> {
        let pairs: Vec<_> = batches
            .iter()
            .flat_map(|b| b.pairs.iter().copied())
            .collect();
        let limit = config.sampling.max_tokens;
        let encode = |sentences: Vec<SentenceId>| {
            let ragged = corpus.gather(sentences, limit);
            self.model
                .encode(&self.threads, &self.model.prepare(&ragged))
        };
        let x = encode(pairs.iter().map(|p| p.0).collect())?;
        let y = encode(pairs.iter().map(|p| p.1).collect())?;
        let names: Vec<_> = pairs.iter().map(|p| identities(corpus, *p)).collect();
        let masks = Masks::new(&names, &names);
        let own: Vec<u32> = (0..pairs.len() as u32).collect();
        let width = self.model.dimensions();
        let found = hardest(
            &self.threads,
            (&x, &y),
            width,
            &own,
            &masks,
            dual.mega_limit,
        );
        let mut at = 0;
        for batch in batches {
            let mut known: HashSet<u32> =
                batch.pairs.iter().map(|p| corpus.text_hash(p.1)).collect();
            known.extend(batch.negatives.iter().map(|n| corpus.text_hash(*n)));
            for (own, other) in found[at..at + batch.pairs.len()].iter().enumerate() {
                let target = pairs[*other as usize].1;
                if *other as usize != at + own && known.insert(corpus.text_hash(target)) {
                    batch.negatives.push(target);
                }
            }
            at += batch.pairs.len();
        }
        Ok(())
    }

    /// Makes update `step` with the given factor of the learning rate.
    ///
    /// # Errors
    /// [`TrainError::Diverged`] if the loss or the gradient is not finite; the parameters are then
    /// as before.
    pub fn update(
        &mut self,
        config: &TrainConfig,
        corpus: &PackedCorpus,
        step: u64,
        rate_factor: f64,
    ) -> Result<Outcome, TrainError> {
        let mut update = Update::new(config, step, rate_factor);
        let mut dense = self.model.parameters().zeros();
        let mut occurrences: Vec<Occurrences> = Vec::new();
        for part in 0..config.run.accumulate {
            let batch = self.next_batch(config, corpus, step)?;
            let (loss, tokens) = self.gradients(
                config,
                corpus,
                &batch,
                (step, part),
                &mut dense,
                &mut occurrences,
            )?;
            let pairs = match &config.objective.nli {
                Some(nli) if !config.objective.uses_corpus() => nli.batch_pairs as u64,
                _ => batch.pairs.len() as u64,
            };
            update.add(loss, pairs, tokens)?;
        }
        let width = self.model.embedding_size();
        let table = self.model.parameters().value(0);
        let sparse = pool::gather(&self.threads, &occurrences, table, width);
        drop(occurrences);
        let norm = self
            .optimizer
            .norm(&self.threads, self.model.parameters(), &dense, &sparse);
        if !norm.is_finite() {
            return Err(update.diverged("gradient norm", norm));
        }
        let parameters = self.model.parameters_mut();
        self.optimizer.step(
            &self.threads,
            parameters,
            &dense,
            &sparse,
            norm,
            rate_factor,
        );
        if let (Some(at), Some(dual)) = (self.scale, &config.objective.dual) {
            let limit = (LARGEST_LOGIT / (1.0 + dual.margin.abs())).ln();
            let value = &mut parameters.list_mut()[at].value[0];
            *value = value.clamp(0.0, limit);
        }
        Ok(update.finish(norm))
    }

    /// Adds the gradients of one batch; returns its loss and number of tokens.
    pub(super) fn gradients(
        &self,
        config: &TrainConfig,
        corpus: &PackedCorpus,
        batch: &Pending,
        (step, part): (u64, usize),
        dense: &mut [Vec<f32>],
        occurrences: &mut Vec<Occurrences>,
    ) -> Result<(f64, u64), TrainError> {
        let objectives = &config.objective;
        let limit = config.sampling.max_tokens;
        let pairs = batch.pairs.len();
        let targets = corpus.gather(batch.pairs.iter().map(|p| p.1), limit);
        let both = objectives
            .transfer
            .as_ref()
            .is_some_and(|t| t.sides == Sides::Both);
        let noise_seed = seed_of(config, stream::NOISE, step, part);
        let mut sentences = match &objectives.nmt {
            Some(nmt) if uniform(noise_seed) < nmt.denoise.share => {
                noisy(&targets, &nmt.denoise, mix(noise_seed))
            }
            _ if objectives.uses_corpus() => corpus.gather(batch.pairs.iter().map(|p| p.0), limit),
            _ => Ragged::new(),
        };
        let mut tokens = if objectives.uses_corpus() {
            (sentences.ids.len() + targets.ids.len()) as u64
        } else {
            0
        };
        if objectives.dual.is_some() || both {
            (0..pairs).for_each(|i| sentences.push(targets.row(i)));
            let negatives = corpus.gather(batch.negatives.iter().copied(), limit);
            (0..negatives.len()).for_each(|i| sentences.push(negatives.row(i)));
        }
        // Behind what the corpus gives.
        let inference_from = sentences.len();
        let labelled = self.inference.as_ref().zip(objectives.nli.as_ref());
        let labelled = labelled.map(|(inference, nli)| {
            let number = step * config.run.accumulate as u64 + part as u64;
            let seed = seed_of(config, stream::INFERENCE, 0, 0);
            (
                inference,
                nli,
                inference.pairs.batch(number, nli.batch_pairs, seed),
            )
        });
        if let Some((_, _, pairs)) = &labelled {
            for side in [&pairs.first, &pairs.second] {
                (0..side.len()).for_each(|i| sentences.push(side.row(i)));
                tokens += side.ids.len() as u64;
            }
        }
        if config.dropout.tokens > 0.0 {
            let seed = seed_of(config, stream::TOKENS, step, part);
            sentences = drop_tokens(&sentences, config.dropout.tokens, seed);
        }
        let sentences = self.model.prepare(&sentences).into_owned();
        let masks_seed = seed_of(config, stream::MASKS, step, part);
        let regularization = Some(Regularization {
            embedding: config.dropout.embedding,
            hidden: config.dropout.hidden,
            seed: masks_seed,
        });
        let count = sentences.len();
        let chunk = match config.run.chunk_sentences {
            0 => count,
            n => n.min(count),
        };
        let chunks: Vec<_> = (0..count)
            .step_by(chunk.max(1))
            .map(|a| a..count.min(a + chunk))
            .collect();
        let mut z = Vec::with_capacity(count * self.model.dimensions());
        let mut saved = None;
        for range in chunks.iter().cloned() {
            let (x, s) = self
                .model
                .forward(&self.threads, &sentences, range, regularization)?;
            z.extend_from_slice(&x);
            saved = (chunks.len() == 1).then_some(s);
        }
        let mut dz = vec![0f32; z.len()];
        let mut loss = 0.0;
        let share = 1.0 / config.run.accumulate as f32;
        let wanted = match &self.teacher {
            Some(teacher) => teacher.embed(&targets)?,
            None => Vec::new(),
        };
        if let Some(dual) = &objectives.dual {
            let mut masks = masks(corpus, batch);
            let similar = objectives.transfer.as_ref().map_or(0.0, |t| t.mask_similar);
            if similar > 0.0 {
                masks = masks.and_similar(&wanted, wanted.len() / pairs, similar);
            }
            let end = inference_from * self.model.dimensions();
            let (z, dz) = (&z[..end], &mut dz[..end]);
            loss += f64::from(dual.weight) * self.dual(dual, &masks, z, dz, share, dense);
        }
        if let (Some(nmt), Some(decoder)) = (&objectives.nmt, &self.decoder) {
            let languages: Vec<u32> = batch
                .pairs
                .iter()
                .map(|p| u32::from(corpus.language(p.1)))
                .collect();
            let noise = Noise {
                input: config.dropout.embedding,
                output: config.dropout.hidden,
                seed: mix(masks_seed),
            };
            let end = pairs * self.model.dimensions();
            let (value, dx) = decoder.loss(
                &self.threads,
                self.model.parameters(),
                &z[..end],
                Targets {
                    sentences: &targets,
                    languages: &languages,
                },
                (share * nmt.weight, noise),
                dense,
            );
            loss += f64::from(nmt.weight) * value;
            add(&dx, &mut dz[..end]);
        }
        if let Some(options) = objectives.transfer.as_ref().filter(|t| t.weight != 0.0) {
            let width = self.model.dimensions();
            let sides = if options.sides == Sides::Both { 2 } else { 1 };
            let dice = seed_of(config, stream::NEGATIVES, step, part);
            let shift = 1 + (dice % pairs.saturating_sub(1).max(1) as u64) as usize;
            for side in 0..sides {
                let part = side * pairs * width..(side + 1) * pairs * width;
                let negatives = (options.lambda, shift);
                let x = &z[part.clone()];
                let (value, mut dx) = alignment(options.distance, x, &wanted, width, negatives);
                let weight = options.weight / sides as f32;
                loss += f64::from(weight) * value;
                scale(share * weight, &mut dx);
                add(&dx, &mut dz[part]);
            }
        }
        if let Some((inference, options, pairs)) = &labelled {
            let width = self.model.dimensions();
            let begin = inference_from * width;
            let middle = begin + pairs.labels.len() * width;
            let dropout = InputDropout {
                rate: options.classifier.dropout,
                seed: mix(masks_seed ^ 1),
            };
            let found = nli(
                &inference.net,
                self.model.parameters(),
                (&z[begin..middle], &z[middle..]),
                &pairs.labels,
                (share * options.weight, dropout),
                dense,
                self.model.arithmetic(),
            );
            loss += f64::from(options.weight) * found.loss;
            add(&found.du, &mut dz[begin..middle]);
            add(&found.dv, &mut dz[middle..]);
        }
        let mut add_shards = |shards: Vec<crate::models::ShardGradients>| {
            for shard in shards {
                for (total, part) in dense.iter_mut().zip(&shard.dense) {
                    add(part, total);
                }
                occurrences.push(shard.embeddings);
            }
        };
        let backward = |saved| {
            self.model
                .backward(&self.threads, &sentences, saved, &dz, regularization)
        };
        match saved {
            Some(saved) => add_shards(backward(saved)?),
            None => {
                for range in chunks {
                    let again =
                        self.model
                            .forward(&self.threads, &sentences, range, regularization)?;
                    add_shards(backward(again.1)?);
                }
            }
        }
        if let (Some(options), Some(model)) = (&objectives.mlm, &self.masked) {
            let seed = mix(seed_of(config, stream::MASKED, step, part));
            let sides = (
                corpus.gather(batch.pairs.iter().map(|p| p.0), limit),
                targets,
            );
            let (value, more) =
                self.masked(config, (options, model), sides, seed, dense, occurrences)?;
            loss += f64::from(options.weight) * value;
            tokens += more;
        }
        Ok((loss, tokens))
    }

    /// Loss of the masked language model; adds `weight / accumulate` times its gradients. Returns the number of tokens
    /// as well.
    fn masked(
        &self,
        config: &TrainConfig,
        (options, own): (&MlmOptions, &MaskedModel),
        (mut sequences, targets): (Ragged, Ragged),
        seed: u64,
        dense: &mut [Vec<f32>],
        occurrences: &mut Vec<Occurrences>,
    ) -> Result<(f64, u64), TrainError> {
        if uniform(seed) < options.translations {
            sequences = concatenated(&sequences, &targets, own.begin, own.capacity);
        } else {
            (0..targets.len()).for_each(|i| sequences.push(targets.row(i)));
            let none = Ragged {
                ids: Vec::new(),
                starts: vec![0; sequences.len() + 1],
            };
            // Cut at what the model reads.
            sequences = concatenated(&sequences, &none, None, own.capacity);
        }
        let batch = masked(&sequences, options, &own.tokens, mix(seed));
        let total = batch.labels.len();
        if total == 0 {
            return Ok((0.0, sequences.ids.len() as u64));
        }
        let regularization = Regularization {
            embedding: config.dropout.embedding,
            hidden: config.dropout.hidden,
            seed: mix(seed ^ 1),
        };
        let weight = options.weight / config.run.accumulate as f32;
        let count = sequences.len();
        let chunk = match config.run.chunk_sentences {
            0 => count,
            n => n.min(count),
        };
        let mut loss = 0.0;
        let mut table = Vec::new();
        // The loss is a sum over places, so that a chunk needs nothing of the others.
        for from in (0..count).step_by(chunk) {
            let range = from..count.min(from + chunk);
            let labels = batch.places.starts[range.start]..batch.places.starts[range.end];
            let (x, saved) = self.model.forward_places(
                &self.threads,
                &batch.sequences,
                range,
                &batch.places,
                regularization,
            )?;
            let found = own.head.loss(
                &self.threads,
                self.model.parameters(),
                &x,
                &batch.labels[labels],
                (weight, total),
                dense,
            );
            loss += found.loss;
            if table.is_empty() {
                table = found.table;
            } else {
                add(&found.table, &mut table);
            }
            let shards =
                self.model
                    .backward_places(&self.threads, &batch.sequences, saved, &found.dx)?;
            for shard in shards {
                for (total, part) in dense.iter_mut().zip(&shard.dense) {
                    add(part, total);
                }
                occurrences.push(shard.embeddings);
            }
        }
        if self.model.parameters().frozen() == 0 {
            // Every token is predicted, so that every row of the table has a gradient.
            let rows: Vec<u32> = (0..(table.len() / self.model.embedding_size()) as u32).collect();
            occurrences.push(Occurrences {
                factors: vec![1.0; rows.len()],
                ids: rows.clone(),
                rows,
                source: table,
                inner: Vec::new(),
            });
        }
        Ok((loss, sequences.ids.len() as u64))
    }

    /// Dual-encoder loss; adds `share · weight` times its gradient.
    fn dual(
        &self,
        dual: &DualOptions,
        masks: &Masks,
        z: &[f32],
        dz: &mut [f32],
        share: f32,
        dense: &mut [Vec<f32>],
    ) -> f64 {
        let width = self.model.dimensions();
        let factor = match self.scale {
            Some(at) => self.model.parameters().value(at)[0].exp(),
            None => dual.scale,
        };
        let (x, y) = z.split_at(masks.rows() * width);
        let result = contrastive(&self.threads, (x, y), width, masks, (factor, dual.margin));
        let weight = share * dual.weight;
        let (dx, dy) = dz.split_at_mut(x.len());
        for (to, mut from) in [(dx, result.dx), (dy, result.dy)] {
            scale(weight, &mut from);
            add(&from, to);
        }
        if let Some(at) = self.scale {
            dense[at][0] += weight * factor * result.d_scale as f32;
        }
        result.loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_dropout_keeps_one_token_and_about_the_rest() {
        let mut batch = Ragged::new();
        for n in [1usize, 0, 2000] {
            batch.push(&(0..n as u32).collect::<Vec<_>>());
        }
        let kept = drop_tokens(&batch, 0.4, 3);
        assert_eq!(kept.row(0), [0]);
        assert!(kept.row(1).is_empty());
        let share = kept.row(2).len() as f64 / 2000.0;
        assert!((share - 0.6).abs() < 0.05, "{share}");
        assert!(kept.row(2).windows(2).all(|w| w[0] < w[1]));
        assert_eq!(kept, drop_tokens(&batch, 0.4, 3));
    }
}
