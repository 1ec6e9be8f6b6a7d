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
use laser_kernels::product::{Operand, Weights as Product, finer, rounds_rows_to_eight_bits};
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
    /// What x is multiplied by first, and the columns of W were divided by; empty for ones.
    balance: Vec<f32>,
}

/// The share of the differences between columns that goes to the weights, the rest to what they are multiplied by. Of 0.3,
/// 0.5, 0.7 and 1, this has the least error on MiniLM.
const TO_WEIGHTS: f32 = 0.7;
/// How many standard deviations of its normalised values a column's largest ones are taken to be away.
const SPREAD: f32 = 3.0;

/// Factors for the columns of what a norm gives that make it, and the weights it is multiplied by, lose less in eight
/// bits (SmoothQuant, Xiao et al., ICML 2023): a few columns of a transformer's states are many times as large as the
/// others, which share their scale. How large each becomes is taken from the norm's own weights, so that no text is needed.
/// `largest` are the largest magnitudes of the columns of the weights.
fn balance(norm: &Norm, largest: &[f32]) -> Vec<f32> {
    let columns = norm.weight.iter().zip(&norm.bias).zip(largest);
    let logs: Vec<f32> = columns
        .map(|((weight, bias), largest)| {
            let size = SPREAD * weight.abs() + bias.abs();
            let log = (1.0 - TO_WEIGHTS) * largest.ln() - TO_WEIGHTS * size.ln();
            // A column of zeros is as good with any factor.
            if log.is_finite() { log } else { 0.0 }
        })
        .collect();
    let mean = logs.iter().sum::<f32>() / logs.len().max(1) as f32;
    logs.iter().map(|log| (log - mean).exp()).collect()
}

impl Linear {
    /// The rows of several matrices below each other, each multiplied by its factor. In int8 columns are balanced with
    /// what `norm` gives, if that is what they are multiplied by.
    fn load(
        arena: &Arena,
        isa: Isa,
        precision: Precision,
        weights: &Weights,
        parts: &[(String, f32)],
        (rows, columns): (usize, usize),
        norm: Option<&Norm>,
    ) -> Result<Self, EncoderError> {
        let mut matrices = Vec::new();
        let mut bias = Vec::new();
        for (name, factor) in parts {
            matrices.push(weights.matrix(&format!("{name}.weight"), rows, columns)?);
            let part = weights.vector(&format!("{name}.bias"), rows)?;
            bias.extend(part.iter().map(|x| x * factor));
        }
        let n = rows * parts.len();
        let row = |j: usize, row: &mut [f32]| {
            matrices[j / rows].row_into(j % rows, row);
            let factor = parts[j / rows].1;
            row.iter_mut().for_each(|x| *x *= factor);
        };
        let balance = match norm {
            // Where rows keep more bits, columns of weights that differ more would lose, and nothing gain.
            Some(norm) if precision == Precision::I8 && rounds_rows_to_eight_bits(isa) => {
                let (mut largest, mut buffer) = (vec![0f32; columns], vec![0f32; columns]);
                for j in 0..n {
                    row(j, &mut buffer);
                    let both = largest.iter_mut().zip(&buffer);
                    both.for_each(|(largest, x)| *largest = largest.max(x.abs()));
                }
                balance(norm, &largest)
            }
            _ => Vec::new(),
        };
        let weight = Product::new(arena, isa, n, columns, precision, |j, out| {
            row(j, out);
            out.iter_mut().zip(&balance).for_each(|(x, f)| *x /= f);
            true
        });
        Ok(Self {
            weight,
            bias,
            balance,
        })
    }

    /// What is to be multiplied instead of rows of x: themselves, or in `room` what they are after balancing.
    fn balanced<'a>(&self, x: &'a [f32], room: &'a mut [f32]) -> &'a [f32] {
        let columns = self.balance.len();
        if columns == 0 {
            return x;
        }
        let room = &mut room[..x.len()];
        for (to, from) in room.chunks_exact_mut(columns).zip(x.chunks_exact(columns)) {
            for ((to, from), factor) in to.iter_mut().zip(from).zip(&self.balance) {
                *to = from * factor;
            }
        }
        room
    }

    fn bytes(&self) -> usize {
        self.weight.bytes() + 4 * (self.bias.len() + self.balance.len())
    }
}

/// Values and the second product of the feed-forward part are [`finer`] than int8: of MiniLM's error
/// with all products in int8 (cosine to f32 down to 0.995) they make up three quarters, and a sixth of
/// the time. What queries, keys and the first product of the feed-forward part are made of is balanced ([`balance`]).
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
        let linear = |what: &str, shape, precision, norm: Option<&Norm>| {
            let parts = [(name(what), 1.0)];
            Linear::load(arena, isa, precision, weights, &parts, shape, norm)
        };
        let norm = |name: &str| load_norm(weights, name, config);
        let attention_norm = norm(&name("attention_norm"))?;
        let feed_forward_norm = norm(&name("feed_forward_norm"))?;
        // The norms that the states come from: that before, or the one behind the part before.
        let before = match (config.norm, layer) {
            (NormPosition::Pre, _) => None,
            (NormPosition::Post, 0) => config.embedding_norm.then(|| norm("embed_norm")),
            (NormPosition::Post, _) => {
                Some(norm(&format!("layers.{}.feed_forward_norm", layer - 1)))
            }
        };
        let before = before.transpose()?;
        let (to_attention, to_feed_forward) = match config.norm {
            NormPosition::Pre => (Some(&attention_norm), &feed_forward_norm),
            NormPosition::Post => (before.as_ref(), &attention_norm),
        };
        let scale = 1.0 / ((d / config.heads) as f32).sqrt();
        let parts = [("query", scale), ("key", 1.0), ("value", 1.0)]
            .map(|(what, factor)| (name(&format!("attention.{what}")), factor));
        let finer = finer(isa, precision);
        let (parts, value) = if finer == precision {
            (&parts[..], None)
        } else {
            let value = Linear::load(arena, isa, finer, weights, &parts[2..], (d, d), None)?;
            (&parts[..2], Some(value))
        };
        Ok(Self {
            input: Linear::load(arena, isa, precision, weights, parts, (d, d), to_attention)?,
            value,
            output: linear("attention.output", (d, d), precision, None)?,
            up: linear("feed_forward.up", (f, d), precision, Some(to_feed_forward))?,
            down: linear("feed_forward.down", (d, f), finer, None)?,
            attention_norm,
            feed_forward_norm,
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
        let balanced = layer.input.balanced(input, wide);
        self.narrow.set(0..tokens, balanced, d);
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
            let balanced = layer.up.balanced(input, &mut self.wide);
            self.narrow.set(0..n, balanced, d);
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
        let (sequences, out) = super::with_tokens(sequences, out, self.width());
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

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: usize = 64;
    const OUTPUTS: usize = 48;

    fn value(i: usize) -> f32 {
        (i * 7919 % 1009) as f32 / 504.5 - 1.0
    }

    /// A norm of which every sixteenth column is thirty times as large as the others.
    fn uneven() -> Norm {
        let weight = (0..COLUMNS).map(|i| if i % 16 == 3 { 30.0 } else { 1.0 });
        Norm {
            weight: weight.collect(),
            bias: (0..COLUMNS).map(value).collect(),
            eps: 1e-12,
        }
    }

    /// The mean error of products of what the norm gives, in int8.
    fn error(isa: Isa, norm: &Norm, weights: &[f32], factors: &[f32]) -> f64 {
        let rows = 20;
        let mut x: Vec<f32> = (0..rows * COLUMNS).map(|i| value(3 * i + i / 7)).collect();
        for x in x.chunks_exact_mut(COLUMNS) {
            norm.apply(isa, x, None);
        }
        let linear = Linear {
            weight: Product::new(
                &Arena::default(),
                isa,
                OUTPUTS,
                COLUMNS,
                Precision::I8,
                |j, row| {
                    row.copy_from_slice(&weights[j * COLUMNS..][..COLUMNS]);
                    row.iter_mut().zip(factors).for_each(|(x, f)| *x /= f);
                    true
                },
            ),
            bias: vec![0.0; OUTPUTS],
            balance: factors.to_vec(),
        };
        let (mut room, mut out) = (vec![0.0; x.len()], vec![0.0; rows * OUTPUTS]);
        let mut operand = linear.weight.operand(rows);
        operand.set(0..rows, linear.balanced(&x, &mut room), COLUMNS);
        product(isa, &linear, &operand, rows, &mut out, OUTPUTS);
        let exact = |i: usize| -> f64 {
            let (x, w) = (
                &x[i / OUTPUTS * COLUMNS..],
                &weights[i % OUTPUTS * COLUMNS..],
            );
            let pairs = x[..COLUMNS].iter().zip(w);
            pairs.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
        };
        let errors = out.iter().enumerate();
        errors
            .map(|(i, y)| (f64::from(*y) - exact(i)).abs())
            .sum::<f64>()
            / out.len() as f64
    }

    #[test]
    fn balanced_columns_lose_less_in_eight_bits() {
        let norm = uneven();
        let weights: Vec<f32> = (0..OUTPUTS * COLUMNS).map(|i| value(i * i)).collect();
        let mut largest = vec![0f32; COLUMNS];
        for (i, x) in weights.iter().enumerate() {
            largest[i % COLUMNS] = largest[i % COLUMNS].max(x.abs());
        }
        let factors = balance(&norm, &largest);
        for isa in [Isa::detect(), Isa::Portable] {
            let plain = error(isa, &norm, &weights, &[]);
            let balanced = error(isa, &norm, &weights, &factors);
            // Rows of sixteen bits lose nothing that balancing could save.
            let is_better = balanced < 0.6 * plain;
            assert_eq!(
                is_better,
                rounds_rows_to_eight_bits(isa),
                "{balanced}, {plain}"
            );
        }
    }

    #[test]
    fn columns_of_zeros_have_factors() {
        let mut norm = uneven();
        (norm.weight[5], norm.bias[5]) = (0.0, 0.0);
        let mut largest = vec![1.0; COLUMNS];
        largest[6] = 0.0;
        let factors = balance(&norm, &largest);
        assert!(factors.iter().all(|f| f.is_normal() && *f > 0.0));
        let product: f32 = factors.iter().map(|f| f.ln()).sum();
        assert!(product.abs() < 1e-3, "{product}");
        assert!(factors[3] < factors[4]);
    }
}
