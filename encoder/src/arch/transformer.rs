//! Transformer encoder with learned, relative or rotary positions, on packed sequences: tokens of all sentences of a
//! batch lie one behind the other, without padding.

use std::sync::{Arc, Mutex};

use super::Model;
use super::shape::{Kind, Shape};
use crate::EncoderError;
use crate::batch::Budget;
use laser_kernels::Precision;
use laser_kernels::arena::Arena;
use laser_kernels::attention::{self, Bias, Heads, attend};
use laser_kernels::clock::thread_seconds;
use laser_kernels::gemm::Start;
use laser_kernels::product::{Operand, Weights as Product, finer, rounds_rows_to_eight_bits};
use laser_kernels::rotary::Rotary;
use laser_kernels::rows::{Norm, activate, gate};
use laser_kernels::{Isa, gather};
use laser_model::config::{NormPosition, RotaryTransformerConfig, TransformerPooling};
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
    /// Empty for zeros.
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

/// A matrix of the weights file that is a part of a product.
struct Part {
    name: String,
    rows: usize,
    /// What it is multiplied by.
    factor: f32,
}

/// What a layer is loaded with.
#[derive(Clone, Copy)]
struct Loading<'a> {
    arena: &'a Arena,
    isa: Isa,
    kind: Kind<'a>,
    weights: &'a Weights,
    precision: Precision,
    angles: &'a Angles,
}

impl Linear {
    /// The rows of several matrices below each other. In int8 columns are balanced with what `norm` gives, if that is
    /// what they are multiplied by.
    fn load(
        loading: Loading<'_>,
        precision: Precision,
        parts: &[Part],
        columns: usize,
        norm: Option<&Norm>,
    ) -> Result<Self, EncoderError> {
        let Loading {
            arena,
            isa,
            kind,
            weights,
            ..
        } = loading;
        let (mut matrices, mut rows) = (Vec::new(), Vec::new());
        let mut bias = Vec::new();
        for (i, part) in parts.iter().enumerate() {
            let name = &part.name;
            matrices.push(weights.matrix(&format!("{name}.weight"), part.rows, columns)?);
            rows.extend((0..part.rows).map(|row| (i, row)));
            if let Kind::Learned(_) = kind {
                let part_bias = weights.vector(&format!("{name}.bias"), part.rows)?;
                bias.extend(part_bias.iter().map(|x| x * part.factor));
            }
        }
        let n = rows.len();
        let row = |j: usize, to: &mut [f32]| {
            let (part, row) = rows[j];
            matrices[part].row_into(row, to);
            to.iter_mut().for_each(|x| *x *= parts[part].factor);
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
        })?;
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

/// Angles of the positions, where they are rotary.
#[derive(Default)]
struct Angles {
    /// For layers that reach everywhere.
    full: Option<Arc<Rotary>>,
    local: Option<Arc<Rotary>>,
}

impl Angles {
    /// Of sequences of up to `positions` tokens.
    fn new(kind: Kind<'_>, positions: usize) -> Self {
        let Kind::Rotary(c) = kind else {
            return Self::default();
        };
        let angles = |base| Arc::new(Rotary::new(c.head_size, base, positions));
        Self {
            full: Some(angles(c.rotary_base)),
            local: c.local.map(|local| angles(local.rotary_base)),
        }
    }

    /// Those of a layer.
    fn of(&self, kind: Kind<'_>, layer: usize) -> Option<Arc<Rotary>> {
        match kind.window(layer) {
            Some(_) => self.local.clone(),
            None => self.full.clone(),
        }
    }

    fn bytes(&self) -> usize {
        let both = self.full.iter().chain(&self.local);
        both.map(|angles| angles.bytes()).sum()
    }
}

/// What queries and keys become before they are multiplied: they are normalised head by head, then turned by their
/// positions.
struct Turn {
    /// Scales the queries as well.
    query: Norm,
    key: Norm,
    angles: Arc<Rotary>,
}

impl Turn {
    fn load(
        loading: Loading<'_>,
        config: &RotaryTransformerConfig,
        layer: usize,
    ) -> Result<Option<Self>, EncoderError> {
        let norm = |part: &str, scale: f32| {
            let name = format!("layers.{layer}.attention.{part}_norm.weight");
            let mut weight = loading.weights.vector(&name, config.head_size)?;
            weight.iter_mut().for_each(|x| *x *= scale);
            Ok::<_, EncoderError>(Norm::rms(weight, config.rms_norm_eps))
        };
        let Some(angles) = loading.angles.of(loading.kind, layer) else {
            return Ok(None);
        };
        Ok(Some(Self {
            query: norm("query", config.score_scale as f32)?,
            key: norm("key", 1.0)?,
            angles,
        }))
    }

    /// Rows of the tokens of one sequence.
    fn apply(&self, isa: Isa, heads: &Heads, rows: &mut [f32]) {
        for (position, row) in rows.chunks_exact_mut(heads.input()).enumerate() {
            let (queries, rest) = row.split_at_mut(heads.output());
            for (norm, heads_of_one) in [
                (&self.query, queries),
                (&self.key, &mut rest[..heads.keys * heads.size]),
            ] {
                for head in heads_of_one.chunks_exact_mut(heads.size) {
                    norm.apply(isa, head, None);
                }
                self.angles.apply(isa, position, heads_of_one);
            }
        }
    }
}

/// Values and the second product of the feed-forward part are [`finer`] than int8: of MiniLM's error
/// with all products in int8 (cosine to f32 down to 0.995) they make up three quarters, and a sixth of
/// the time. What queries, keys and the first product of the feed-forward part are made of is balanced ([`balance`]).
struct Layer {
    heads: Heads,
    /// Query, key and, unless it is a product of its own, value; queries are scaled by the root of a
    /// head's size, unless they are normalised.
    input: Linear,
    value: Option<Linear>,
    turn: Option<Turn>,
    output: Linear,
    attention_norm: Norm,
    up: Linear,
    down: Linear,
    feed_forward_norm: Norm,
    /// Of what attention and the feed-forward part give, before it is added.
    output_norms: Option<[Norm; 2]>,
}

impl Layer {
    fn load(loading: Loading<'_>, layer: usize) -> Result<Self, EncoderError> {
        let Loading {
            isa,
            kind,
            weights,
            precision,
            ..
        } = loading;
        let shape = kind.shape();
        let (d, f) = (shape.width, shape.inner);
        let name = |what: &str| format!("layers.{layer}.{what}");
        let part = |what: &str, rows, factor| Part {
            name: name(what),
            rows,
            factor,
        };
        let norm = |name: &str| load_norm(weights, name, kind);
        let attention_norm = norm(&name("attention_norm"))?;
        let feed_forward_norm = norm(&name("feed_forward_norm"))?;
        // The norms that the states come from: that before, or the one behind the part before.
        let before = match (shape.norm, layer) {
            (NormPosition::Pre, _) => None,
            (NormPosition::Post, 0) => {
                let has_one = matches!(kind, Kind::Learned(c) if c.embedding_norm);
                has_one.then(|| norm("embed_norm"))
            }
            (NormPosition::Post, _) => {
                Some(norm(&format!("layers.{}.feed_forward_norm", layer - 1)))
            }
        };
        let before = before.transpose()?;
        let (to_attention, to_feed_forward) = match shape.norm {
            NormPosition::Pre => (Some(&attention_norm), &feed_forward_norm),
            NormPosition::Post => (before.as_ref(), &attention_norm),
        };
        let heads = Heads {
            window: kind.window(layer),
            ..shape.heads
        };
        let (queries, keys) = (heads.output(), heads.keys * heads.size);
        let scale = match kind {
            Kind::Learned(_) => 1.0 / (heads.size as f32).sqrt(),
            Kind::Rotary(_) => 1.0,
        };
        let parts = [
            part("attention.query", queries, scale),
            part("attention.key", keys, 1.0),
            part("attention.value", keys, 1.0),
        ];
        let finer = finer(isa, precision);
        let (parts, value) = if finer == precision {
            (&parts[..], None)
        } else {
            let value = Linear::load(loading, finer, &parts[2..], d, None)?;
            (&parts[..2], Some(value))
        };
        let (turn, output_norms, up) = match kind {
            Kind::Learned(_) => (None, None, vec![part("feed_forward.up", f, 1.0)]),
            Kind::Rotary(c) => (
                Turn::load(loading, c, layer)?,
                Some([
                    norm(&name("attention_output_norm"))?,
                    norm(&name("feed_forward_output_norm"))?,
                ]),
                vec![
                    part("feed_forward.gate", f, 1.0),
                    part("feed_forward.up", f, 1.0),
                ],
            ),
        };
        let output = [part("attention.output", d, 1.0)];
        let down = [part("feed_forward.down", d, 1.0)];
        Ok(Self {
            heads,
            input: Linear::load(loading, precision, parts, d, to_attention)?,
            value,
            turn,
            output: Linear::load(loading, precision, &output, queries, None)?,
            up: Linear::load(loading, precision, &up, d, Some(to_feed_forward))?,
            down: Linear::load(loading, finer, &down, f, None)?,
            attention_norm,
            feed_forward_norm,
            output_norms,
        })
    }

    fn bytes(&self) -> usize {
        [&self.input, &self.output, &self.up, &self.down]
            .into_iter()
            .chain(&self.value)
            .map(Linear::bytes)
            .sum()
    }
}

fn load_norm(weights: &Weights, name: &str, kind: Kind<'_>) -> Result<Norm, EncoderError> {
    let vector = |part: &str, size| weights.vector(&format!("{name}.{part}"), size);
    Ok(match kind {
        Kind::Learned(c) => {
            let d = c.hidden_size;
            Norm::layer(vector("weight", d)?, vector("bias", d)?, c.layer_norm_eps)
        }
        Kind::Rotary(c) => Norm::rms(vector("weight", c.hidden_size)?, c.rms_norm_eps),
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
    /// Results of attention, where they are of another width than the model.
    mixed: Option<Operand>,
    /// As `narrow` for values, where they have a product of their own.
    finer: Option<Operand>,
    inner: Operand,
    attention: attention::Scratch,
}

pub(crate) struct Transformer {
    isa: Isa,
    shape: Shape,
    table: Matrix,
    /// Positions that have embeddings, from the row of the first token on.
    positions: Option<(Matrix, usize)>,
    angles: Angles,
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
    pub fn load<'a>(
        isa: Isa,
        config: impl Into<Kind<'a>>,
        weights: &Weights,
        precision: Precision,
        parallel: bool,
    ) -> Result<Self, EncoderError> {
        use rayon::prelude::*;
        let kind = config.into();
        let shape = kind.shape();
        let d = shape.width;
        let rows = weights.rows("embed_tokens.weight")?;
        let table = weights.matrix("embed_tokens.weight", rows, d)?;
        let norm = |name: &str| load_norm(weights, name, kind);
        let (mut positions, mut embed_norm, mut bias) = (None, None, None);
        let mut token_types = [vec![0f32; d], vec![0f32; d]];
        if let Kind::Learned(c) = kind {
            let table = weights.matrix("embed_positions.weight", c.max_positions, d)?;
            positions = Some((table, c.position_offset));
            token_types = super::token_types(c, weights)?;
            bias = super::attention_bias(c, weights)?;
            embed_norm = c.embedding_norm.then(|| norm("embed_norm")).transpose()?;
        }
        let angles = Angles::new(kind, shape.positions);
        let arena = Arena::default();
        let loading = Loading {
            arena: &arena,
            isa,
            kind,
            weights,
            precision,
            angles: &angles,
        };
        let load = |l| Layer::load(loading, l);
        let layers = if parallel {
            let layers = (0..shape.layers).into_par_iter().map(load);
            layers.collect::<Result<_, _>>()?
        } else {
            (0..shape.layers).map(load).collect::<Result<_, _>>()?
        };
        let final_norm = (shape.norm == NormPosition::Pre).then(|| norm("final_norm"));
        Ok(Self {
            isa,
            table,
            positions,
            angles,
            token_types,
            bias,
            embed_norm,
            layers,
            final_norm: final_norm.transpose()?,
            scratch: Mutex::default(),
            shape,
        })
    }

    /// Working memory for at least `tokens` tokens, of an earlier batch if one was as large.
    fn scratch(&self, tokens: usize) -> Scratch {
        let kept = self.scratch.lock().map_or(None, |mut kept| kept.pop());
        if let Some(scratch) = kept.filter(|scratch| scratch.tokens >= tokens) {
            return scratch;
        }
        Scratch::new(&self.shape, &self.layers[0], tokens.max(BUDGET.tokens))
    }

    fn embed(&self, sequences: &[&[u32]], states: &mut [f32]) {
        let scale = self.shape.embedding_scale;
        let tokens = sequences.iter().flat_map(|ids| ids.iter().enumerate());
        for ((t, &id), x) in tokens.zip(states.chunks_exact_mut(self.shape.width)) {
            x.copy_from_slice(&self.token_types[usize::from(id & SECOND != 0)]);
            let row = (id & !SECOND) as usize;
            gather::add_row(self.isa, self.table.table(), row, scale, x);
            if let Some((positions, first)) = &self.positions {
                gather::add_row(self.isa, positions.table(), first + t, 1.0, x);
            }
            if let Some(norm) = &self.embed_norm {
                norm.apply(self.isa, x, None);
            }
        }
    }

    /// Pools the states of each sequence into its row of `out`.
    fn pool(&self, sequences: &[&[u32]], states: &[f32], out: &mut [f32]) {
        let d = self.shape.width;
        let mut rest = states;
        for (ids, out) in sequences.iter().zip(out.chunks_exact_mut(d)) {
            let (states, others) = rest.split_at(ids.len() * d);
            rest = others;
            let (first, behind) = states.split_at(d);
            out.copy_from_slice(first);
            match self.shape.pooling {
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
    fn new(shape: &Shape, layer: &Layer, tokens: usize) -> Self {
        let (d, heads) = (shape.width, &shape.heads);
        Self {
            states: vec![0.0; tokens * d],
            wide: vec![0.0; (tokens * heads.input().max(d)).max(CHUNK * shape.up())],
            added: vec![0.0; tokens * heads.output().max(d)],
            tokens,
            narrow: layer.input.weight.operand(tokens),
            mixed: (heads.output() != d).then(|| layer.output.weight.operand(tokens)),
            finer: layer.value.as_ref().map(|v| v.weight.operand(tokens)),
            inner: layer.down.weight.operand(CHUNK),
            attention: attention::Scratch::default(),
        }
    }

    /// One layer over the first `tokens` states, in sequences of the lengths given.
    fn layer(
        &mut self,
        isa: Isa,
        shape: &Shape,
        layer: &Layer,
        bias: Option<&Bias>,
        lengths: impl Iterator<Item = usize>,
        tokens: usize,
    ) {
        let (d, f, up, heads) = (shape.width, shape.inner, shape.up(), &layer.heads);
        let (row, mixed) = (heads.input(), heads.output());
        let post = shape.norm == NormPosition::Post;
        let states = &mut self.states[..tokens * d];
        let added = &mut self.added;
        let input = if post {
            &*states
        } else {
            normalized(isa, &layer.attention_norm, states, &mut added[..tokens * d])
        };
        let balanced = layer.input.balanced(input, &mut self.wide);
        self.narrow.set(0..tokens, balanced, d);
        let wide = &mut self.wide[..tokens * row];
        product(isa, &layer.input, &self.narrow, tokens, wide, row);
        if let (Some(value), Some(rows)) = (&layer.value, &mut self.finer) {
            rows.set(0..tokens, input, d);
            let first = row - heads.keys * heads.size;
            product(isa, value, rows, tokens, &mut wide[first..], row);
        }
        let mut first = 0;
        for length in lengths {
            let tokens = first..first + length;
            let rows = &mut wide[row * tokens.start..row * tokens.end];
            if let Some(turn) = &layer.turn {
                turn.apply(isa, heads, rows);
            }
            attend(
                isa,
                heads,
                rows,
                &mut added[mixed * tokens.start..mixed * tokens.end],
                bias,
                &mut self.attention,
            );
            first = tokens.end;
        }
        let rows = self.mixed.as_mut().unwrap_or(&mut self.narrow);
        rows.set(0..tokens, &added[..tokens * mixed], mixed);
        let added = &mut added[..tokens * d];
        product(isa, &layer.output, rows, tokens, added, d);
        let (behind_attention, behind_feed_forward) = match &layer.output_norms {
            Some([attention, feed_forward]) => (Some(attention), Some(feed_forward)),
            None => (None, None),
        };
        for start in (0..tokens).step_by(CHUNK) {
            let chunk = start..tokens.min(start + CHUNK);
            let rows = chunk.start * d..chunk.end * d;
            let (states, added) = (&mut states[rows.clone()], &mut added[rows]);
            let n = chunk.len();
            // Rows of the operand are free again.
            let norm = post.then_some(&layer.attention_norm);
            add(isa, norm, behind_attention, states, added);
            let input = if post {
                &*states
            } else {
                normalized(isa, &layer.feed_forward_norm, states, added)
            };
            let balanced = layer.up.balanced(input, &mut self.wide);
            self.narrow.set(0..n, balanced, d);
            let inner = &mut self.wide[..n * up];
            product(isa, &layer.up, &self.narrow, n, inner, up);
            if shape.gated {
                for row in inner.chunks_exact_mut(up) {
                    let (row, by) = row.split_at_mut(f);
                    gate(isa, shape.activation, row, by);
                }
            } else {
                activate(isa, shape.activation, inner);
            }
            self.inner.set(0..n, inner, up);
            product(isa, &layer.down, &self.inner, n, added, d);
            let norm = post.then_some(&layer.feed_forward_norm);
            add(isa, norm, behind_feed_forward, states, added);
        }
    }
}

/// The product of the first `n` rows of an operand, in rows of stride `ldc`.
fn product(isa: Isa, linear: &Linear, rows: &Operand, n: usize, out: &mut [f32], ldc: usize) {
    let start = match &linear.bias[..] {
        [] => Start::Zero,
        bias => Start::Bias(bias),
    };
    linear.weight.matmul(isa, rows, 0..n, start, out, ldc);
}

/// Adds to the states, which are normalised afterwards if there is a norm; what is added is normalised before, if there
/// is one `behind` what has made it.
fn add(
    isa: Isa,
    norm: Option<&Norm>,
    behind: Option<&Norm>,
    states: &mut [f32],
    added: &mut [f32],
) {
    if let Some(norm) = behind {
        for y in added.chunks_exact_mut(norm.weight.len()) {
            norm.apply(isa, y, None);
        }
    }
    match norm {
        Some(norm) => {
            let d = norm.weight.len();
            for (x, y) in states.chunks_exact_mut(d).zip(added.chunks_exact(d)) {
                norm.apply(isa, x, Some(y));
            }
        }
        None => states.iter_mut().zip(added).for_each(|(x, y)| *x += *y),
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
pub(crate) fn faster_than_f32<'a>(
    config: impl Into<Kind<'a>>,
    weights: &Weights,
) -> Result<Vec<Precision>, EncoderError> {
    let (isa, tokens) = (Isa::detect(), PROBE.0 * PROBE.1);
    let kind = config.into();
    let shape = kind.shape();
    super::faster_than_f32(|precision| {
        let loading = Loading {
            arena: &Arena::default(),
            isa,
            kind,
            weights,
            precision,
            angles: &Angles::new(kind, PROBE.1),
        };
        let layer = Layer::load(loading, 0)?;
        let mut scratch = Scratch::new(&shape, &layer, tokens);
        let shape = shape.clone();
        Ok(Box::new(move || {
            for (i, x) in scratch.states.iter_mut().enumerate() {
                *x = (i % 7) as f32 / 7.0 - 0.5;
            }
            let start = thread_seconds();
            let lengths = std::iter::repeat_n(PROBE.1, PROBE.0);
            scratch.layer(isa, &shape, &layer, None, lengths, tokens);
            thread_seconds() - start
        }))
    })
}

impl Model for Transformer {
    fn vocabulary(&self) -> usize {
        self.table.rows()
    }

    fn width(&self) -> usize {
        self.shape.width
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
        super::check_positions(self.shape.positions, sequences)?;
        let tokens: usize = sequences.iter().map(|ids| ids.len()).sum();
        let mut scratch = self.scratch(tokens);
        let size = tokens * self.width();
        self.embed(sequences, &mut scratch.states[..size]);
        for layer in &self.layers {
            let lengths = sequences.iter().map(|ids| ids.len());
            let bias = self.bias.as_ref();
            scratch.layer(self.isa, &self.shape, layer, bias, lengths, tokens);
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
        self.shape.flops_per_token()
    }

    fn budget(&self) -> Budget {
        BUDGET
    }

    fn bytes(&self) -> usize {
        self.layers.iter().map(Layer::bytes).sum::<usize>() + self.angles.bytes()
    }
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
        Norm::layer(weight.collect(), (0..COLUMNS).map(value).collect(), 1e-12)
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
            )
            .expect("memory"),
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
