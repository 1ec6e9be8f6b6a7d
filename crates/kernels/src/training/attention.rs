//! Attention over one sequence with its gradient: `softmax(s Q Kᵀ + B) V`, head by head, s being one over the
//! root of a head's width (Vaswani et al., 2017, section 3.2).
//!
//! Of the probabilities only the logarithm of each row's sum is kept; the backward pass computes them again,
//! for some keys at a time (Dao et al., NeurIPS 2022, section 3.1 and appendix B.4). Everything is f32.

use std::ops::Range;

use laser_cpu::simd;

use crate::Isa;
use crate::approximate::exp;
use crate::attention::distances;
use crate::gemm::{PANEL, Packed, Start, matmul};
use crate::rows::exponentials;
use crate::slices::{add, dot, largest, scale};

/// Queries (forward) or keys (backward) whose scores exist at a time: whole tiles.
const BLOCK: usize = 96;

/// What is added to the scores by the distance between two tokens (Raffel et al., JMLR 2020, section 2.1).
#[derive(Debug)]
pub struct Distances {
    /// A row for each head: distances of a key behind the query from `1 - positions` to `positions - 1`.
    values: Vec<f32>,
    /// The same rows backwards: of queries behind the key.
    mirrored: Vec<f32>,
    positions: usize,
}

impl Distances {
    /// For sequences of up to `positions` tokens; `of(head, distance)` is what a key gets that stands `distance`
    /// tokens behind the query.
    ///
    /// # Panics
    /// Without positions.
    pub fn new(heads: usize, positions: usize, of: impl Fn(usize, isize) -> f32) -> Self {
        assert!(positions > 0, "positions");
        let most = positions as isize - 1;
        let all = |sign: isize| {
            let pairs = (0..heads).flat_map(|head| (-most..=most).map(move |d| (head, d)));
            pairs.map(|(head, d)| of(head, sign * d)).collect()
        };
        Self {
            values: all(1),
            mirrored: all(-1),
            positions,
        }
    }

    /// Zeros for the gradient that [`backward`] adds to.
    #[must_use]
    pub fn zeros(&self) -> Vec<f32> {
        vec![0.0; self.values.len()]
    }

    /// Calls `take(head, distance, value)` for every element of a gradient.
    pub fn each(&self, gradient: &[f32], mut take: impl FnMut(usize, isize, f32)) {
        let row = 2 * self.positions - 1;
        for (i, value) in gradient.iter().enumerate() {
            // The gradient lies as the mirrored rows do.
            take(
                i / row,
                self.positions as isize - 1 - (i % row) as isize,
                *value,
            );
        }
    }
}

/// How attention is split.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// Width of the model.
    pub width: usize,
    /// Number of heads, which divides it.
    pub count: usize,
}

impl Heads {
    fn size(self) -> usize {
        self.width / self.count
    }

    fn factor(self) -> f32 {
        1.0 / (self.size() as f32).sqrt()
    }
}

/// Working memory, for any number of sequences one after the other.
pub struct Scratch {
    first: Packed,
    second: Packed,
    third: Packed,
    fourth: Packed,
    /// Keys of a block of [`backward`] by line.
    keys: Packed,
    scores: Vec<f32>,
    gradients: Vec<f32>,
    turned: Vec<f32>,
    inner: Vec<f32>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            first: Packed::empty(),
            second: Packed::empty(),
            third: Packed::empty(),
            fourth: Packed::empty(),
            keys: Packed::empty(),
            scores: Vec::new(),
            gradients: Vec::new(),
            turned: Vec::new(),
            inner: Vec::new(),
        }
    }
}

/// One head's part of the rows of a matrix.
#[derive(Clone, Copy)]
struct Part<'a> {
    data: &'a [f32],
    stride: usize,
    first: usize,
    size: usize,
}

impl<'a> Part<'a> {
    fn row(self, i: usize) -> &'a [f32] {
        &self.data[i * self.stride + self.first..][..self.size]
    }

    fn from(self, i: usize) -> &'a [f32] {
        &self.data[i * self.stride + self.first..]
    }

    /// Packs rows for products with them: each becomes a column of the result. Whole panels, the columns
    /// behind the last row zero.
    fn columns(self, rows: usize, packed: &mut Packed) {
        packed.fill(rows.next_multiple_of(PANEL), self.size, |panel, lines| {
            for lane in 0..PANEL {
                let row = panel * PANEL + lane;
                if row < rows {
                    for (line, x) in lines.iter_mut().zip(self.row(row)) {
                        line[lane] = *x;
                    }
                } else {
                    lines.iter_mut().for_each(|line| line[lane] = 0.0);
                }
            }
        });
    }

    /// Packs rows for products that sum over them.
    fn lines(self, rows: Range<usize>, packed: &mut Packed) {
        packed.fill(self.size, rows.len(), |panel, lines| {
            let part = panel * PANEL..self.size.min((panel + 1) * PANEL);
            for (row, line) in rows.clone().zip(lines) {
                line[..part.len()].copy_from_slice(&self.row(row)[part.clone()]);
                line[part.len()..].fill(0.0);
            }
        });
    }
}

simd! {
    fn scaled_sum(x: &mut [f32], factor: f32, bias: &[f32]) {
        for (x, b) in x.iter_mut().zip(bias) {
            *x = *x * factor + b;
        }
    }
}

simd! {
    /// Probabilities of one key from its scores: `e^(s x + b - l)`.
    fn probabilities(x: &mut [f32], factor: f32, sums: &[f32]) {
        for (x, l) in x.iter_mut().zip(sums) {
            *x = exp(*x * factor - l);
        }
    }
}

simd! {
    fn biased_probabilities(x: &mut [f32], factor: f32, bias: &[f32], sums: &[f32]) {
        for ((x, b), l) in x.iter_mut().zip(bias).zip(sums) {
            *x = exp(*x * factor + b - l);
        }
    }
}

simd! {
    /// Gradients of scores from those of probabilities: `p (d - δ)`.
    fn of_scores(d: &mut [f32], p: &[f32], inner: &[f32]) {
        for ((d, p), inner) in d.iter_mut().zip(p).zip(inner) {
            *d = p * (*d - inner);
        }
    }
}

simd! {
    /// The transpose of `rows` rows, which lie `stride` apart and are cut to `columns`.
    fn turn(from: &[f32], rows: usize, columns: usize, stride: usize, to: &mut [f32]) {
        const SIDE: usize = 16;
        let mut block = [[0f32; SIDE]; SIDE];
        for c0 in (0..columns).step_by(SIDE) {
            let width = SIDE.min(columns - c0);
            for r0 in (0..rows).step_by(SIDE) {
                let height = SIDE.min(rows - r0);
                if width == SIDE && height == SIDE {
                    for r in 0..SIDE {
                        let line = &from[(r0 + r) * stride + c0..][..SIDE];
                        for c in 0..SIDE {
                            block[c][r] = line[c];
                        }
                    }
                    for c in 0..SIDE {
                        to[(c0 + c) * rows + r0..][..SIDE].copy_from_slice(&block[c]);
                    }
                } else {
                    for r in r0..r0 + height {
                        for c in c0..c0 + width {
                            to[c * rows + r] = from[r * stride + c];
                        }
                    }
                }
            }
        }
    }
}

fn check(heads: Heads, tokens: usize, states: &[f32], sums: &[f32]) {
    let Heads { width, count } = heads;
    assert!(width > 0 && width.is_multiple_of(count), "heads");
    assert!(states.len() == 3 * tokens * width, "states");
    assert!(sums.len() == tokens * count, "sums");
}

/// `out` [tokens, D] from `states` [tokens, 3 D], whose rows hold a token's query, key and value; `sums`
/// [heads, tokens] gets the logarithms of the softmax's sums.
///
/// # Panics
/// If the sizes of the slices contradict each other, heads do not divide the width, or there are too few
/// distances.
pub fn forward(
    heads: Heads,
    states: &[f32],
    by_distance: Option<&Distances>,
    out: &mut [f32],
    sums: &mut [f32],
    scratch: &mut Scratch,
) {
    let (isa, width, size) = (Isa::detect(), heads.width, heads.size());
    let tokens = out.len() / width;
    check(heads, tokens, states, sums);
    let (stride, factor) = (3 * width, heads.factor());
    let columns = tokens.next_multiple_of(PANEL);
    scratch.scores.resize(BLOCK.min(tokens) * columns, 0.0);
    for head in 0..heads.count {
        let part = |which: usize| Part {
            data: states,
            stride,
            first: which * width + head * size,
            size,
        };
        let (query, key, value) = (part(0), part(1), part(2));
        key.columns(tokens, &mut scratch.first);
        value.lines(0..tokens, &mut scratch.second);
        for start in (0..tokens).step_by(BLOCK) {
            let queries = BLOCK.min(tokens - start);
            let scores = &mut scratch.scores[..queries * columns];
            let from = query.from(start);
            matmul(
                isa,
                queries,
                from,
                stride,
                &scratch.first,
                Start::Zero,
                scores,
                columns,
            );
            let mut totals = [0f32; BLOCK];
            for (i, row) in scores.chunks_exact_mut(columns).enumerate() {
                let (row, at) = (&mut row[..tokens], start + i);
                match by_distance {
                    Some(d) => {
                        let range = distances(d.positions, head, at, tokens);
                        scaled_sum(row, factor, &d.values[range]);
                    }
                    None => scale(factor, row),
                }
                let high = largest(row);
                totals[i] = exponentials(isa, row);
                sums[head * tokens + at] = high + totals[i].ln();
            }
            let out = &mut out[start * width + head * size..];
            matmul(
                isa,
                queries,
                scores,
                columns,
                &scratch.second,
                Start::Zero,
                out,
                width,
            );
            for (row, total) in out.chunks_mut(width).zip(&totals[..queries]) {
                scale(1.0 / total, &mut row[..size]);
            }
        }
    }
}

/// What [`forward`] read and wrote.
#[derive(Clone, Copy, Debug)]
pub struct Saved<'a> {
    /// [tokens, 3 D].
    pub states: &'a [f32],
    /// [tokens, D].
    pub out: &'a [f32],
    /// [heads, tokens].
    pub sums: &'a [f32],
}

/// Gradient `d_states` [tokens, 3 D] of the states from that of the output, [tokens, D]; adds that of the
/// distances to a buffer of their size.
///
/// # Panics
/// As [`forward`].
pub fn backward(
    heads: Heads,
    saved: Saved<'_>,
    d_out: &[f32],
    by_distance: Option<(&Distances, &mut [f32])>,
    d_states: &mut [f32],
    scratch: &mut Scratch,
) {
    let Saved { states, out, sums } = saved;
    let (isa, width, size) = (Isa::detect(), heads.width, heads.size());
    let tokens = out.len() / width;
    check(heads, tokens, states, sums);
    assert!(
        d_out.len() == out.len() && d_states.len() == states.len(),
        "gradients"
    );
    let (stride, factor) = (3 * width, heads.factor());
    let columns = tokens.next_multiple_of(PANEL);
    let block = BLOCK.min(tokens);
    scratch.scores.resize(block * columns, 0.0);
    scratch.gradients.resize(block * columns, 0.0);
    scratch.turned.resize(block * tokens, 0.0);
    scratch.inner.resize(tokens, 0.0);
    let mut by_distance = by_distance;
    for head in 0..heads.count {
        let first = head * size;
        let part = |which: usize| Part {
            data: states,
            stride,
            first: which * width + first,
            size,
        };
        let (query, key, value) = (part(0), part(1), part(2));
        let of = |data| Part {
            data,
            stride: width,
            first,
            size,
        };
        let (out, d_out) = (of(out), of(d_out));
        for (t, inner) in scratch.inner.iter_mut().enumerate() {
            *inner = dot(out.row(t), d_out.row(t));
        }
        let sums = &sums[head * tokens..(head + 1) * tokens];
        query.columns(tokens, &mut scratch.first);
        d_out.columns(tokens, &mut scratch.second);
        query.lines(0..tokens, &mut scratch.third);
        d_out.lines(0..tokens, &mut scratch.fourth);
        for start in (0..tokens).step_by(BLOCK) {
            let keys = BLOCK.min(tokens - start);
            let p = &mut scratch.scores[..keys * columns];
            let ds = &mut scratch.gradients[..keys * columns];
            let from = key.from(start);
            matmul(
                isa,
                keys,
                from,
                stride,
                &scratch.first,
                Start::Zero,
                p,
                columns,
            );
            let from = value.from(start);
            matmul(
                isa,
                keys,
                from,
                stride,
                &scratch.second,
                Start::Zero,
                ds,
                columns,
            );
            let rows = p
                .chunks_exact_mut(columns)
                .zip(ds.chunks_exact_mut(columns));
            for (i, (p, ds)) in rows.enumerate() {
                let (p, ds) = (&mut p[..tokens], &mut ds[..tokens]);
                match &mut by_distance {
                    Some((d, gradient)) => {
                        let range = distances(d.positions, head, start + i, tokens);
                        biased_probabilities(p, factor, &d.mirrored[range.clone()], sums);
                        of_scores(ds, p, &scratch.inner);
                        add(ds, &mut gradient[range]);
                    }
                    None => {
                        probabilities(p, factor, sums);
                        of_scores(ds, p, &scratch.inner);
                    }
                }
                scale(factor, ds);
            }
            // From here on `ds` is the gradient of the products of queries and keys.
            let at = start * stride + first;
            let to = &mut d_states[at + 2 * width..];
            matmul(
                isa,
                keys,
                p,
                columns,
                &scratch.fourth,
                Start::Zero,
                to,
                stride,
            );
            let to = &mut d_states[at + width..];
            matmul(
                isa,
                keys,
                ds,
                columns,
                &scratch.third,
                Start::Zero,
                to,
                stride,
            );
            let turned = &mut scratch.turned[..tokens * keys];
            turn(ds, keys, tokens, columns, turned);
            key.lines(start..start + keys, &mut scratch.keys);
            let begin = if start == 0 {
                Start::Zero
            } else {
                Start::Accumulate
            };
            let to = &mut d_states[first..];
            matmul(isa, tokens, turned, keys, &scratch.keys, begin, to, stride);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rows::tests::values;

    fn bias(head: usize, distance: isize) -> f64 {
        (head as f64 + 1.0) * (distance as f64 * 0.7).sin()
    }

    /// By definition, in f64: the output, and the gradients of the states and of the bias of every head and
    /// pair of tokens.
    #[expect(clippy::type_complexity, reason = "three results of different shapes")]
    fn naive(
        heads: Heads,
        states: &[f32],
        biased: bool,
        d_out: &[f32],
    ) -> (Vec<f64>, Vec<f64>, Vec<(usize, isize, f64)>) {
        let (width, size) = (heads.width, heads.width / heads.count);
        let tokens = d_out.len() / width;
        let at = |t: usize, which: usize, head: usize, i: usize| {
            t * 3 * width + which * width + head * size + i
        };
        let get = |t, which, head, i| f64::from(states[at(t, which, head, i)]);
        let factor = 1.0 / (size as f64).sqrt();
        let mut out = vec![0.0; tokens * width];
        let mut d_states = vec![0.0; tokens * 3 * width];
        let mut d_bias = Vec::new();
        for head in 0..heads.count {
            for q in 0..tokens {
                let mut p: Vec<f64> = (0..tokens)
                    .map(|k| {
                        let dot: f64 = (0..size)
                            .map(|i| get(q, 0, head, i) * get(k, 1, head, i))
                            .sum();
                        let bias = if biased {
                            bias(head, k as isize - q as isize)
                        } else {
                            0.0
                        };
                        (dot * factor + bias).exp()
                    })
                    .collect();
                let total: f64 = p.iter().sum();
                p.iter_mut().for_each(|p| *p /= total);
                let d = |i: usize| f64::from(d_out[q * width + head * size + i]);
                let dp: Vec<f64> = (0..tokens)
                    .map(|k| (0..size).map(|i| d(i) * get(k, 2, head, i)).sum())
                    .collect();
                let inner: f64 = p.iter().zip(&dp).map(|(p, d)| p * d).sum();
                for k in 0..tokens {
                    let ds = p[k] * (dp[k] - inner);
                    d_bias.push((head, k as isize - q as isize, ds));
                    for i in 0..size {
                        out[q * width + head * size + i] += p[k] * get(k, 2, head, i);
                        d_states[at(k, 2, head, i)] += p[k] * d(i);
                        d_states[at(q, 0, head, i)] += factor * ds * get(k, 1, head, i);
                        d_states[at(k, 1, head, i)] += factor * ds * get(q, 0, head, i);
                    }
                }
            }
        }
        (out, d_states, d_bias)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn agrees_with_the_definition(
            tokens in prop_oneof![1usize..20, 60usize..70, 95usize..130],
            count in 1usize..4, size in 1usize..36, biased: bool, seed: u32,
        ) {
            let heads = Heads { width: count * size, count };
            let states: Vec<f32> = values(tokens * 3 * heads.width, seed).iter().map(|x| 2.0 * x).collect();
            let d_out = values(tokens * heads.width, seed ^ 77);
            let (expected, d_expected, d_bias) = naive(heads, &states, biased, &d_out);
            let distances = Distances::new(count, tokens + 2, |h, d| bias(h, d) as f32);
            let mut scratch = Scratch::default();
            let mut out = vec![f32::NAN; d_out.len()];
            let mut sums = vec![f32::NAN; tokens * count];
            forward(heads, &states, biased.then_some(&distances), &mut out, &mut sums, &mut scratch);
            let saved = Saved { states: &states, out: &out, sums: &sums };
            let mut d_states = vec![f32::NAN; states.len()];
            let mut gradient = distances.zeros();
            let with = biased.then_some((&distances, &mut gradient[..]));
            backward(heads, saved, &d_out, with, &mut d_states, &mut scratch);
            for (a, b) in expected.iter().zip(&out).chain(d_expected.iter().zip(&d_states)) {
                prop_assert!((a - f64::from(*b)).abs() < 2e-5 * (1.0 + a.abs()), "{a} {b}");
            }
            if biased {
                let mut left = std::collections::HashMap::new();
                for (head, distance, d) in d_bias {
                    *left.entry((head, distance)).or_insert(0.0) += d;
                }
                let mut worst = 0f64;
                distances.each(&gradient, |head, distance, value| {
                    let expected = left.get(&(head, distance)).copied().unwrap_or(0.0);
                    worst = worst.max((expected - f64::from(value)).abs());
                });
                prop_assert!(worst < 1e-4, "{worst}");
            }
        }
    }
}
