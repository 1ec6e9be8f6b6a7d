//! Stacked LSTM of one or two directions on packed sequences (LASER).
//!
//! The tokens of a batch are stored step by step: first those of step 0 of all sentences, then those
//! of step 1 of the sentences that have one, and so on. Sentences come in descending length, so
//! the sentences of a step are a prefix. No padding exists, hence none has to be masked: the
//! reverse direction starts at each sentence's own last token with a zero state, as PyTorch's
//! packed sequences do.

use std::ops::Range;

use rayon::prelude::*;

use super::Model;
use crate::EncoderError;
use laser_kernels::Precision;
use laser_kernels::arena::Arena;
use laser_kernels::clock::thread_seconds;
use laser_kernels::gemm::Start;
use laser_kernels::lstm::{interleaved, padded};
use laser_kernels::packing::Packing;
use laser_kernels::product::{Operand, Sums, Weights as Product};
use laser_kernels::{Isa, gather};
use laser_model::config::{BilstmConfig, BilstmPooling};
use laser_model::folder::{Matrix, Weights};

/// One direction of one layer.
struct Direction {
    reverse: bool,
    /// Weights of the input, interleaved; behind the first layer in parts, for the states of each
    /// direction of the layer before.
    input: Vec<Product>,
    recurrent: Product,
    /// Sum of both biases, interleaved.
    bias: Vec<f32>,
}

/// Tokens whose input products are made at once: enough to read the weights seldom, and few enough to
/// stay in the cache until the recurrent steps need them.
const CHUNK: usize = 128;

pub(crate) struct Bilstm {
    isa: Isa,
    table: Matrix,
    layers: Layers,
}

/// The layers above the token embeddings.
pub(super) struct Layers {
    isa: Isa,
    /// Directions of each layer, the forward one first.
    layers: Vec<Vec<Direction>>,
    hidden: usize,
    directions: usize,
    pooling: BilstmPooling,
}

/// Where the tokens of sentences lie that come longest first.
pub(super) fn packing(sequences: &[&[u32]]) -> Packing {
    let lengths: Vec<usize> = sequences.iter().map(|s| s.len()).collect();
    Packing::new(&lengths)
}

/// Tokens of whole steps from `t` on, or up to `t` in reverse: at least [`CHUNK`] if there are.
fn chunk(packing: &Packing, t: usize, reverse: bool) -> Range<usize> {
    if reverse {
        let end = packing.offset(t + 1);
        let first = (0..=t).rfind(|t| end - packing.offset(*t) >= CHUNK);
        packing.offset(first.unwrap_or(0))..end
    } else {
        let start = packing.offset(t);
        let last = (t..packing.steps()).find(|t| packing.offset(t + 1) - start >= CHUNK);
        start..last.map_or(packing.tokens(), |t| packing.offset(t + 1))
    }
}

impl Bilstm {
    /// Packs the weights, on all threads of the pool it runs in if `parallel`.
    pub fn load(
        isa: Isa,
        config: &BilstmConfig,
        weights: &Weights,
        precision: Precision,
        parallel: bool,
    ) -> Result<Self, EncoderError> {
        let rows = weights.rows("embed_tokens.weight")?;
        Ok(Self {
            isa,
            table: weights.matrix("embed_tokens.weight", rows, config.embedding_size)?,
            layers: Layers::load(isa, config, weights, precision, parallel)?,
        })
    }
}

impl Layers {
    /// Packs the weights, on all threads of the pool it runs in if `parallel`.
    pub fn load(
        isa: Isa,
        config: &BilstmConfig,
        weights: &Weights,
        precision: Precision,
        parallel: bool,
    ) -> Result<Self, EncoderError> {
        let mut parts = Vec::new();
        for layer in 0..config.layers {
            for direction in 0..config.directions() {
                parts.push((layer, direction));
            }
        }
        let arena = Arena::default();
        let load = |(layer, direction): &(usize, usize)| {
            Direction::load(&arena, isa, config, weights, *layer, *direction, precision)
        };
        let directions: Vec<Direction> = if parallel {
            parts.par_iter().map(load).collect::<Result<_, _>>()?
        } else {
            parts.iter().map(load).collect::<Result<_, _>>()?
        };
        let mut directions = directions.into_iter();
        let mut layers = Vec::new();
        for _ in 0..config.layers {
            layers.push(directions.by_ref().take(config.directions()).collect());
        }
        Ok(Self {
            isa,
            layers,
            hidden: config.hidden_size,
            directions: config.directions(),
            pooling: config.pooling,
        })
    }

    /// Width of the states.
    pub fn width(&self) -> usize {
        self.directions * self.hidden
    }

    /// Pools the states of one direction into columns `column..column + H` of `out`.
    fn pool(
        &self,
        states: &[f32],
        reverse: bool,
        sequences: &[&[u32]],
        packing: &Packing,
        column: usize,
        out: &mut [f32],
    ) {
        let (hidden, width) = (self.hidden, padded(self.hidden));
        for (row, (ids, out)) in sequences
            .iter()
            .zip(out.chunks_exact_mut(self.width()))
            .enumerate()
        {
            let out = &mut out[column..column + hidden];
            let at = |t: usize| &states[(packing.offset(t) + row) * width..][..hidden];
            match self.pooling {
                BilstmPooling::Max => unreachable!("fused into the recurrent step"),
                BilstmPooling::Last => {
                    out.copy_from_slice(at(if reverse { 0 } else { ids.len() - 1 }));
                }
                BilstmPooling::Mean => {
                    out.fill(0.0);
                    for t in 0..ids.len() {
                        out.iter_mut().zip(at(t)).for_each(|(y, x)| *y += x);
                    }
                    let scale = 1.0 / ids.len() as f32;
                    out.iter_mut().for_each(|y| *y *= scale);
                }
            }
        }
    }
}

impl Direction {
    fn load(
        arena: &Arena,
        isa: Isa,
        config: &BilstmConfig,
        weights: &Weights,
        layer: usize,
        direction: usize,
        precision: Precision,
    ) -> Result<Self, EncoderError> {
        let hidden = config.hidden_size;
        let columns = 4 * padded(hidden);
        let suffix = config.suffixes()[direction];
        let name = |what: &str| format!("lstm.{what}_l{layer}{suffix}");
        let inputs: Vec<usize> = if layer == 0 {
            vec![config.embedding_size]
        } else {
            vec![hidden; config.directions()]
        };
        let matrix = weights.matrix(&name("weight_ih"), 4 * hidden, config.input_size(layer))?;
        let mut full = vec![0f32; matrix.columns()];
        let mut input = Vec::new();
        let mut column = 0;
        for &depth in &inputs {
            input.push(Product::new(
                arena,
                isa,
                columns,
                depth,
                precision,
                |j, row| {
                    let Some(source) = interleaved(j, hidden) else {
                        return false;
                    };
                    matrix.row_into(source, &mut full);
                    row.copy_from_slice(&full[column..column + depth]);
                    true
                },
            )?);
            column += depth;
        }
        let matrix = weights.matrix(&name("weight_hh"), 4 * hidden, hidden)?;
        let recurrent = Product::new(arena, isa, columns, hidden, precision, |j, row| {
            let Some(source) = interleaved(j, hidden) else {
                return false;
            };
            matrix.row_into(source, row);
            true
        })?;
        let (a, b) = (
            weights.vector(&name("bias_ih"), 4 * hidden)?,
            weights.vector(&name("bias_hh"), 4 * hidden)?,
        );
        let bias = (0..columns)
            .map(|j| interleaved(j, hidden).map_or(0.0, |source| a[source] + b[source]))
            .collect();
        Ok(Self {
            reverse: direction == 1,
            input,
            recurrent,
            bias,
        })
    }

    /// Products of some of the tokens with the input weights, with biases: [range, 4 padded(H)].
    fn input_products(
        &self,
        isa: Isa,
        input: &[&Operand],
        range: Range<usize>,
        products: &mut [f32],
    ) {
        for (i, (input, weights)) in input.iter().zip(&self.input).enumerate() {
            let start = if i == 0 {
                Start::Bias(&self.bias)
            } else {
                Start::Accumulate
            };
            let columns = weights.columns();
            weights.matmul(isa, input, range.clone(), start, products, columns);
        }
    }

    /// Makes the rows of `states`, one a token, those of one direction of one layer.
    fn run(
        &self,
        isa: Isa,
        input: &[&Operand],
        packing: &Packing,
        work: &mut Work,
        states: &mut Operand,
        mut keep: Keep<'_>,
    ) {
        let (width, reverse) = (self.recurrent.columns() / 4, self.reverse);
        work.cell.clear();
        work.cell.resize(packing.active(0) * width, 0.0);
        // The tokens whose input products are there.
        let mut ready = 0..0;
        for i in 0..packing.steps() {
            let t = if reverse { packing.steps() - 1 - i } else { i };
            let at = packing.offset(t)..packing.offset(t + 1);
            if !ready.contains(&at.start) {
                ready = chunk(packing, t, reverse);
                work.products.resize(ready.len() * 4 * width, 0.0);
                self.input_products(isa, input, ready.clone(), &mut work.products);
            }
            // The step before of the sentences that have both steps.
            let previous = if i == 0 {
                0..0
            } else if reverse {
                at.end..at.end + packing.active(t + 1)
            } else {
                let before = packing.offset(t - 1);
                before..before + at.len()
            };
            let sums = Sums {
                input: &mut work.products[(at.start - ready.start) * 4 * width..],
                cell: &mut work.cell,
                maximum: match &mut keep {
                    Keep::Maximum(maximum) => Some(maximum),
                    Keep::Nothing | Keep::All(_) => None,
                },
            };
            let new =
                self.recurrent
                    .step(isa, states, previous, at.clone(), sums, &mut work.states);
            if let Keep::All(all) = &mut keep {
                all[at.start * width..at.end * width].copy_from_slice(new);
            }
        }
    }
}

/// What one direction of a layer leaves besides the operand of the next layer.
enum Keep<'a> {
    Nothing,
    /// The running maximum of the states of each sentence, rows of `padded(H)`.
    Maximum(&'a mut [f32]),
    /// The states of all tokens, rows of `padded(H)`.
    All(&'a mut [f32]),
}

/// Buffers of one direction, kept from layer to layer.
#[derive(Default)]
struct Work {
    products: Vec<f32>,
    cell: Vec<f32>,
    states: Vec<f32>,
}

/// Sentences and tokens of the batch on which precisions are compared.
const PROBE: (usize, usize) = (32, 2);

/// Reduced precisions that are faster than f32 on this processor, fastest first, as measured with
/// one direction of the last layer.
pub(crate) fn faster_than_f32(
    config: &BilstmConfig,
    weights: &Weights,
) -> Result<Vec<Precision>, EncoderError> {
    let isa = Isa::detect();
    let values = |n: usize| -> Vec<f32> { (0..n).map(|i| (i % 7) as f32 / 7.0 - 0.5).collect() };
    super::faster_than_f32(|precision| {
        let sequence = [0; PROBE.1];
        let packing = self::packing(&[&sequence[..]; PROBE.0]);
        let arena = Arena::default();
        let direction = Direction::load(
            &arena,
            isa,
            config,
            weights,
            config.layers - 1,
            0,
            precision,
        )?;
        let tokens = packing.tokens();
        let inputs: Vec<Operand> = direction
            .input
            .iter()
            .map(|w| {
                let mut operand = w.operand(tokens);
                operand.set(0..tokens, &values(tokens * w.depth()), w.depth());
                operand
            })
            .collect();
        let mut states = direction.recurrent.operand(tokens);
        let mut work = Work::default();
        Ok(Box::new(move || {
            let inputs: Vec<&Operand> = inputs.iter().collect();
            let start = thread_seconds();
            let keep = Keep::Nothing;
            direction.run(isa, &inputs, &packing, &mut work, &mut states, keep);
            std::hint::black_box(&states);
            thread_seconds() - start
        }))
    })
}

impl Layers {
    /// Pools the states of each sequence into its row of `out` [sequences, width], as [`Model::encode`];
    /// `embed` writes the input that an element of a sequence stands for.
    pub fn encode(
        &self,
        sequences: &[&[u32]],
        embed: impl Fn(u32, &mut [f32]),
        out: &mut [f32],
        parallel: bool,
    ) {
        let (hidden, width) = (self.hidden, padded(self.hidden));
        let (sequences, out) = super::with_tokens(sequences, out, self.width());
        if sequences.is_empty() {
            return;
        }
        let packing = packing(sequences);
        let tokens = packing.tokens();
        let mut row = vec![0f32; self.layers[0][0].input[0].depth()];
        let mut embedded = self.layers[0][0].input[0].operand(tokens);
        for t in 0..packing.steps() {
            for (sentence, ids) in sequences[..packing.active(t)].iter().enumerate() {
                let at = packing.offset(t) + sentence;
                embed(ids[t], &mut row);
                embedded.set(at..at + 1, &row, row.len());
            }
        }
        // The states of each direction that a layer reads.
        let room = |direction: &Direction| direction.recurrent.operand(tokens);
        let mut last: Vec<Operand> = self.layers[0].iter().map(room).collect();
        // For each direction its buffers, the states that a layer makes, and what pooling needs of
        // the last layer.
        let maximum = self.pooling == BilstmPooling::Max;
        let mut own: Vec<(Work, Operand, Vec<f32>)> = self.layers[0]
            .iter()
            .map(|direction| {
                let kept = if maximum {
                    vec![f32::NEG_INFINITY; sequences.len() * width]
                } else {
                    vec![0.0; tokens * width]
                };
                (Work::default(), room(direction), kept)
            })
            .collect();
        for (index, layer) in self.layers.iter().enumerate() {
            let input = match index {
                0 => vec![&embedded],
                _ => last.iter().collect(),
            };
            let run = |(direction, own): (&Direction, &mut (Work, Operand, Vec<f32>))| {
                let (work, states, kept) = own;
                let keep = match (index + 1 == self.layers.len(), maximum) {
                    (false, _) => Keep::Nothing,
                    (true, true) => Keep::Maximum(kept),
                    (true, false) => Keep::All(kept),
                };
                direction.run(self.isa, &input, &packing, work, states, keep);
            };
            if parallel {
                layer.par_iter().zip(&mut own).for_each(run);
            } else {
                layer.iter().zip(&mut own).for_each(run);
            }
            for (last, (_, states, _)) in last.iter_mut().zip(&mut own) {
                std::mem::swap(last, states);
            }
        }
        for (direction, (.., kept)) in own.iter().enumerate() {
            let column = direction * hidden;
            if maximum {
                for (max, out) in kept
                    .chunks_exact(width)
                    .zip(out.chunks_exact_mut(self.width()))
                {
                    out[column..column + hidden].copy_from_slice(&max[..hidden]);
                }
            } else {
                let reverse = direction == 1;
                self.pool(kept, reverse, sequences, &packing, column, out);
            }
        }
    }

    /// Batches at the same time: the directions of a batch run side by side.
    pub fn lanes(&self, threads: usize) -> usize {
        threads.div_ceil(self.directions)
    }

    /// Floating point operations for each step.
    pub fn flops_per_token(&self) -> usize {
        self.layers
            .iter()
            .flatten()
            .map(|d| {
                let inputs: usize = d.input.iter().map(Product::depth).sum();
                2 * d.recurrent.columns() * (inputs + d.recurrent.depth())
            })
            .sum()
    }

    /// Bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.layers
            .iter()
            .flatten()
            .map(|d| {
                d.input.iter().map(Product::bytes).sum::<usize>()
                    + d.recurrent.bytes()
                    + d.bias.len() * 4
            })
            .sum()
    }
}

impl Model for Bilstm {
    fn vocabulary(&self) -> usize {
        self.table.rows()
    }

    fn width(&self) -> usize {
        self.layers.width()
    }

    fn encode(
        &self,
        sequences: &[&[u32]],
        out: &mut [f32],
        parallel: bool,
    ) -> Result<(), EncoderError> {
        let embed = |id: u32, row: &mut [f32]| {
            gather::copy_row(self.isa, self.table.table(), id as usize, row);
        };
        self.layers.encode(sequences, embed, out, parallel);
        Ok(())
    }

    fn flops_per_token(&self) -> usize {
        self.layers.flops_per_token()
    }

    fn lanes(&self, threads: usize) -> usize {
        self.layers.lanes(threads)
    }

    fn bytes(&self) -> usize {
        self.layers.bytes()
    }
}
