//! Transformer encoder with learned or relative positions, on packed sequences: tokens of all sentences of a batch
//! lie one behind the other, without padding.

use std::sync::Mutex;

use super::Model;
use crate::EncoderError;
use crate::batch::Budget;
use laser_kernels::Precision;
use laser_kernels::arena::Arena;
use laser_kernels::attention::{self, Bias, attend};
use laser_kernels::clock::thread_seconds;
use laser_kernels::gemm::Start;
use laser_kernels::product::{Operand, Weights as Product, finer};
use laser_kernels::rows::{Norm, activate};
use laser_kernels::{Isa, gather};
use laser_model::config::{NormPosition, TransformerConfig, TransformerPooling};
use laser_model::folder::{Matrix, Weights};
use laser_model::tokenize::SECOND;

/// Tokens that go through the feed-forward products at once: their inner states stay in the
/// second-level cache.
const CHUNK: usize = 128;

/// Tokens of a batch: their states stay near while the weights of a layer go by.
const BUDGET: Budget = Budget {
    tokens: 512,
    rows: 128,
};

/// y = x Wᵀ + b
struct Linear {
    weight: Product,
    bias: Vec<f32>,
}

impl Linear {
    /// The rows of several matrices below each other, each multiplied by its factor.
    fn load(
        arena: &Arena,
        isa: Isa,
        precision: Precision,
        weights: &Weights,
        parts: &[(String, f32)],
        rows: usize,
        columns: usize,
    ) -> Result<Self, EncoderError> {
        let mut matrices = Vec::new();
        let mut bias = Vec::new();
        for (name, factor) in parts {
            matrices.push(weights.matrix(&format!("{name}.weight"), rows, columns)?);
            let part = weights.vector(&format!("{name}.bias"), rows)?;
            bias.extend(part.iter().map(|x| x * factor));
        }
        let n = rows * parts.len();
        let weight = Product::new(arena, isa, n, columns, precision, |j, row| {
            matrices[j / rows].row_into(j % rows, row);
            let factor = parts[j / rows].1;
            row.iter_mut().for_each(|x| *x *= factor);
            true
        });
        Ok(Self { weight, bias })
    }

    fn bytes(&self) -> usize {
        self.weight.bytes() + 4 * self.bias.len()
    }
}

/// Values and the second product of the feed-forward part are [`finer`] than int8: of MiniLM's error
/// with all products in int8 (cosine to f32 down to 0.995) they make up three quarters, and a sixth of
/// the time.
struct Layer {
    /// Query, key and, unless it is a product of its own, value; queries are scaled by the root of a
    /// head's size.
    input: Linear,
    value: Option<Linear>,
    output: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    feed_forward_norm: Norm,
}

impl Layer {
    fn load(
        arena: &Arena,
        isa: Isa,
        config: &TransformerConfig,
        weights: &Weights,
        layer: usize,
        precision: Precision,
    ) -> Result<Self, EncoderError> {
        let (d, f) = (config.hidden_size, config.intermediate_size);
        let name = |what: &str| format!("layers.{layer}.{what}");
        let linear = |what: &str, rows, columns, precision| {
            let parts = [(name(what), 1.0)];
            Linear::load(arena, isa, precision, weights, &parts, rows, columns)
        };
        let scale = 1.0 / ((d / config.heads) as f32).sqrt();
        let parts = [("query", scale), ("key", 1.0), ("value", 1.0)]
            .map(|(what, factor)| (name(&format!("attention.{what}")), factor));
        let finer = finer(isa, precision);
        let (parts, value) = if finer == precision {
            (&parts[..], None)
        } else {
            let value = Linear::load(arena, isa, finer, weights, &parts[2..], d, d)?;
            (&parts[..2], Some(value))
        };
        Ok(Self {
            input: Linear::load(arena, isa, precision, weights, parts, d, d)?,
            value,
            output: linear("attention.output", d, d, precision)?,
            attention_norm: load_norm(weights, &name("attention_norm"), config)?,
            up: linear("feed_forward.up", f, d, precision)?,
            down: linear("feed_forward.down", d, f, finer)?,
            feed_forward_norm: load_norm(weights, &name("feed_forward_norm"), config)?,
        })
    }
}

fn load_norm(
    weights: &Weights,
    name: &str,
    config: &TransformerConfig,
) -> Result<Norm, EncoderError> {
    let vector = |part: &str| weights.vector(&format!("{name}.{part}"), config.hidden_size);
    Ok(Norm {
        weight: vector("weight")?,
        bias: vector("bias")?,
        eps: config.layer_norm_eps,
    })
}

/// Working memory of a batch.
struct Scratch {
    /// States [tokens, width].
    states: Vec<f32>,
    /// Queries, keys and values of all tokens; the inner states of a chunk.
    wide: Vec<f32>,
    /// What is added to the states.
    added: Vec<f32>,
    /// Tokens that there is room for.
    tokens: usize,
    narrow: Operand,
    /// The same for values, where they have a product of their own.
    finer: Option<Operand>,
    inner: Operand,
    attention: attention::Scratch,
}

pub(crate) struct Transformer {
    isa: Isa,
    config: TransformerConfig,
    table: Matrix,
    positions: Matrix,
    /// Rows 0 and 1 of the type table.
    token_types: [Vec<f32>; 2],
    bias: Option<Bias>,
    embed_norm: Option<Norm>,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    /// What no batch needs at the moment.
    scratch: Mutex<Vec<Scratch>>,
}

impl Transformer {
    /// Packs the weights, on all threads of the pool it runs in if `parallel`.
    pub fn load(
        isa: Isa,
        config: &TransformerConfig,
        weights: &Weights,
        precision: Precision,
        parallel: bool,
    ) -> Result<Self, EncoderError> {
        use rayon::prelude::*;
        let d = config.hidden_size;
        let rows = weights.rows("embed_tokens.weight")?;
        let table = weights.matrix("embed_tokens.weight", rows, d)?;
        let positions = weights.matrix("embed_positions.weight", config.max_positions, d)?;
        let token_types = super::token_types(config, weights)?;
        let arena = Arena::default();
        let load = |l| Layer::load(&arena, isa, config, weights, l, precision);
        let layers = if parallel {
            let layers = (0..config.layers).into_par_iter().map(load);
            layers.collect::<Result<_, _>>()?
        } else {
            (0..config.layers).map(load).collect::<Result<_, _>>()?
        };
        let norm = |name: &str| load_norm(weights, name, config);
        Ok(Self {
            isa,
            config: config.clone(),
            table,
            positions,
            token_types,
            bias: super::attention_bias(config, weights)?,
            embed_norm: config
                .embedding_norm
                .then(|| norm("embed_norm"))
                .transpose()?,
            layers,
            final_norm: (config.norm == NormPosition::Pre)
                .then(|| norm("final_norm"))
                .transpose()?,
            scratch: Mutex::default(),
        })
    }

    /// Working memory for at least `tokens` tokens, of an earlier batch if one was as large.
    fn scratch(&self, tokens: usize) -> Scratch {
        let kept = self.scratch.lock().map_or(None, |mut kept| kept.pop());
        if let Some(scratch) = kept.filter(|scratch| scratch.tokens >= tokens) {
            return scratch;
        }
        Scratch::new(&self.config, &self.layers[0], tokens.max(BUDGET.tokens))
    }

    fn embed(&self, sequences: &[&[u32]], states: &mut [f32]) {
        let d = self.config.hidden_size;
        let scale = if self.config.scale_embedding {
            (d as f32).sqrt()
        } else {
            1.0
        };
        let tokens = sequences.iter().flat_map(|ids| ids.iter().enumerate());
        for ((t, &id), x) in tokens.zip(states.chunks_exact_mut(d)) {
            let position = t + self.config.position_offset;
            x.copy_from_slice(&self.token_types[usize::from(id & SECOND != 0)]);
            let row = (id & !SECOND) as usize;
            gather::add_row(self.isa, self.table.table(), row, scale, x);
            gather::add_row(self.isa, self.positions.table(), position, 1.0, x);
            if let Some(norm) = &self.embed_norm {
                norm.apply(self.isa, x, None);
            }
        }
    }

    /// Pools the states of each sequence into its row of `out`.
    fn pool(&self, sequences: &[&[u32]], states: &[f32], out: &mut [f32]) {
        let d = self.config.hidden_size;
        let mut rest = states;
        for (ids, out) in sequences.iter().zip(out.chunks_exact_mut(d)) {
            let (states, others) = rest.split_at(ids.len() * d);
            rest = others;
            let (first, behind) = states.split_at(d);
            out.copy_from_slice(first);
            match self.config.pooling {
                TransformerPooling::Cls => {}
                TransformerPooling::Max => {
                    for state in behind.chunks_exact(d) {
                        out.iter_mut().zip(state).for_each(|(y, x)| *y = y.max(*x));
                    }
                }
                TransformerPooling::Mean => {
                    for state in behind.chunks_exact(d) {
                        out.iter_mut().zip(state).for_each(|(y, x)| *y += x);
                    }
                    let scale = 1.0 / ids.len() as f32;
                    out.iter_mut().for_each(|y| *y *= scale);
                }
            }
        }
    }
}

impl Scratch {
    fn new(config: &TransformerConfig, layer: &Layer, tokens: usize) -> Self {
        let (d, f) = (config.hidden_size, config.intermediate_size);
        Self {
            states: vec![0.0; tokens * d],
            wide: vec![0.0; (tokens * 3 * d).max(CHUNK * f)],
            added: vec![0.0; tokens * d],
            tokens,
            narrow: layer.input.weight.operand(tokens),
            finer: layer.value.as_ref().map(|v| v.weight.operand(tokens)),
            inner: layer.down.weight.operand(CHUNK),
            attention: attention::Scratch::default(),
        }
    }

    /// One layer over the first `tokens` states, in sequences of the lengths given.
    fn layer(
        &mut self,
        isa: Isa,
        config: &TransformerConfig,
        layer: &Layer,
        bias: Option<&Bias>,
        lengths: impl Iterator<Item = usize>,
        tokens: usize,
    ) {
        let (d, f) = (config.hidden_size, config.intermediate_size);
        let post = config.norm == NormPosition::Post;
        let states = &mut self.states[..tokens * d];
        let added = &mut self.added[..tokens * d];
        let input = if post {
            &*states
        } else {
            normalized(isa, &layer.attention_norm, states, added)
        };
        let wide = &mut self.wide[..tokens * 3 * d];
        self.narrow.set(0..tokens, input, d);
        product(isa, &layer.input, &self.narrow, tokens, wide, 3 * d);
        if let (Some(value), Some(rows)) = (&layer.value, &mut self.finer) {
            rows.set(0..tokens, input, d);
            product(isa, value, rows, tokens, &mut wide[2 * d..], 3 * d);
        }
        let mut first = 0;
        for length in lengths {
            let tokens = first..first + length;
            attend(
                isa,
                d,
                config.heads,
                &wide[3 * d * tokens.start..3 * d * tokens.end],
                &mut added[d * tokens.start..d * tokens.end],
                bias,
                &mut self.attention,
            );
            first = tokens.end;
        }
        self.narrow.set(0..tokens, added, d);
        product(isa, &layer.output, &self.narrow, tokens, added, d);
        for start in (0..tokens).step_by(CHUNK) {
            let chunk = start..tokens.min(start + CHUNK);
            let rows = chunk.start * d..chunk.end * d;
            let (states, added) = (&mut states[rows.clone()], &mut added[rows]);
            let n = chunk.len();
            // Rows of the operand are free again.
            add(isa, post.then_some(&layer.attention_norm), states, added);
            let input = if post {
                &*states
            } else {
                normalized(isa, &layer.feed_forward_norm, states, added)
            };
            self.narrow.set(0..n, input, d);
            let inner = &mut self.wide[..n * f];
            product(isa, &layer.up, &self.narrow, n, inner, f);
            activate(isa, config.activation, inner);
            self.inner.set(0..n, inner, f);
            product(isa, &layer.down, &self.inner, n, added, d);
            let norm = post.then_some(&layer.feed_forward_norm);
            add(isa, norm, states, added);
        }
    }
}

/// The product of the first `n` rows of an operand, in rows of stride `ldc`.
fn product(isa: Isa, linear: &Linear, rows: &Operand, n: usize, out: &mut [f32], ldc: usize) {
    let start = Start::Bias(&linear.bias);
    linear.weight.matmul(isa, rows, 0..n, start, out, ldc);
}

/// Adds to the states, which are normalised afterwards if there is a norm.
fn add(isa: Isa, norm: Option<&Norm>, states: &mut [f32], added: &[f32]) {
    match norm {
        Some(norm) => {
            let d = norm.weight.len();
            for (x, y) in states.chunks_exact_mut(d).zip(added.chunks_exact(d)) {
                norm.apply(isa, x, Some(y));
            }
        }
        None => states.iter_mut().zip(added).for_each(|(x, y)| *x += y),
    }
}

/// The normalised states, in `room`.
fn normalized<'a>(isa: Isa, norm: &Norm, states: &[f32], room: &'a mut [f32]) -> &'a [f32] {
    room.copy_from_slice(states);
    for x in room.chunks_exact_mut(norm.weight.len()) {
        norm.apply(isa, x, None);
    }
    room
}

/// Sentences and tokens of the batch on which precisions are compared.
const PROBE: (usize, usize) = (16, 8);

/// Reduced precisions that are faster than f32 on this processor, fastest first, as measured with the
/// first layer.
pub(crate) fn faster_than_f32(
    config: &TransformerConfig,
    weights: &Weights,
) -> Result<Vec<Precision>, EncoderError> {
    let (isa, tokens) = (Isa::detect(), PROBE.0 * PROBE.1);
    super::faster_than_f32(|precision| {
        let layer = Layer::load(&Arena::default(), isa, config, weights, 0, precision)?;
        let mut scratch = Scratch::new(config, &layer, tokens);
        let config = config.clone();
        Ok(Box::new(move || {
            for (i, x) in scratch.states.iter_mut().enumerate() {
                *x = (i % 7) as f32 / 7.0 - 0.5;
            }
            let start = thread_seconds();
            let lengths = std::iter::repeat_n(PROBE.1, PROBE.0);
            scratch.layer(isa, &config, &layer, None, lengths, tokens);
            thread_seconds() - start
        }))
    })
}

impl Model for Transformer {
    fn vocabulary(&self) -> usize {
        self.table.rows()
    }

    fn width(&self) -> usize {
        self.config.hidden_size
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        _parallel: bool,
    ) -> Result<(), EncoderError> {
        let present = sequences.partition_point(|s| !s.is_empty());
        let (out, rest) = out.split_at_mut(present * self.width());
        rest.fill(0.0);
        let sequences = &sequences[..present];
        if sequences.is_empty() {
            return Ok(());
        }
        super::check_positions(&self.config, sequences)?;
        let tokens: usize = sequences.iter().map(|ids| ids.len()).sum();
        let mut scratch = self.scratch(tokens);
        let size = tokens * self.width();
        self.embed(sequences, &mut scratch.states[..size]);
        for layer in &self.layers {
            let lengths = sequences.iter().map(|ids| ids.len());
            let bias = self.bias.as_ref();
            scratch.layer(self.isa, &self.config, layer, bias, lengths, tokens);
        }
        if let Some(norm) = &self.final_norm {
            for x in scratch.states[..size].chunks_exact_mut(self.width()) {
                norm.apply(self.isa, x, None);
            }
        }
        self.pool(sequences, &scratch.states[..size], out);
        if let Ok(mut kept) = self.scratch.lock() {
            // Not what one long sequence took.
            if scratch.tokens == BUDGET.tokens {
                kept.push(scratch);
            }
        }
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        flops_per_token(&self.config)
    }

    fn budget(&self) -> Budget {
        BUDGET
    }

    fn bytes(&self) -> usize {
        self.layers
            .iter()
            .flat_map(|l| {
                [&l.input, &l.output, &l.up, &l.down]
                    .into_iter()
                    .chain(&l.value)
            })
            .map(Linear::bytes)
            .sum()
    }
}

/// Floating point operations of the products with weights.
pub(super) fn flops_per_token(c: &TransformerConfig) -> usize {
    2 * c.layers * (4 * c.hidden_size * c.hidden_size + 2 * c.hidden_size * c.intermediate_size)
}
