//! Attention over one sequence: `softmax(Q Kᵀ) V`, head by head (Vaswani et al., 2017, section 3.2).
//!
//! Keys and values of a head are packed for the products of [`super::gemm`]; scores exist for some
//! queries at a time. Nothing is masked, since a sequence is alone.

use super::Isa;
use super::gemm::{PANEL, Packed, Start, matmul};
use super::rows::exponentials;

/// Queries whose scores exist at a time.
const QUERIES: usize = 48;

/// Working memory, for any number of sequences one after the other.
pub struct Scratch {
    keys: Packed,
    values: Packed,
    scores: Vec<f32>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            keys: Packed::empty(),
            values: Packed::empty(),
            scores: Vec::new(),
        }
    }
}

/// What is added to the scores by the distance between two tokens (Raffel et al., JMLR 2020, section 2.1).
pub struct Bias {
    /// A row for each head: distances from `1 - positions` to `positions - 1`.
    values: Vec<f32>,
    positions: usize,
}

impl Bias {
    /// Of sequences of up to `positions` tokens; `of(head, distance)` is what a key gets that stands `distance`
    /// tokens behind the query.
    ///
    /// # Panics
    /// Without heads or positions.
    pub fn new(heads: usize, positions: usize, of: impl Fn(usize, isize) -> f32) -> Self {
        assert!(heads > 0 && positions > 0, "heads and positions");
        let most = positions as isize - 1;
        let rows = (0..heads).flat_map(|head| (-most..=most).map(move |d| (head, d)));
        Self {
            values: rows.map(|(head, distance)| of(head, distance)).collect(),
            positions,
        }
    }

    /// For the keys of a sequence of `tokens` tokens.
    ///
    /// # Panics
    /// If the sequence is longer than the positions.
    pub fn row(&self, head: usize, query: usize, tokens: usize) -> &[f32] {
        &self.values[distances(self.positions, head, query, tokens)]
    }
}

/// Where the distances from one token to all of a sequence lie, in rows of `2 positions - 1` for each head.
pub(super) fn distances(
    positions: usize,
    head: usize,
    from: usize,
    tokens: usize,
) -> std::ops::Range<usize> {
    let first = head * (2 * positions - 1) + positions - 1 - from;
    assert!(from < tokens && tokens <= positions, "positions");
    first..first + tokens
}

/// `out` (rows of the model's width D) from `states`, whose rows of 3 D hold a token's query, key and
/// value, each split into `heads` parts. Queries have been scaled; `bias` is added to the scores.
///
/// # Panics
/// If `out` has no whole rows, `states` has other than three times its length, heads do not divide
/// the width, or the bias has other heads or fewer positions.
pub fn attend(
    isa: Isa,
    width: usize,
    heads: usize,
    states: &[f32],
    out: &mut [f32],
    bias: Option<&Bias>,
    scratch: &mut Scratch,
) {
    assert!(width > 0 && width.is_multiple_of(heads), "heads");
    assert!(
        out.len().is_multiple_of(width) && states.len() == 3 * out.len(),
        "rows"
    );
    let (tokens, size, stride) = (out.len() / width, width / heads, 3 * width);
    let columns = tokens.next_multiple_of(PANEL);
    scratch.scores.resize(QUERIES.min(tokens) * columns, 0.0);
    for head in 0..heads {
        let first = head * size;
        let key = |token: usize| &states[token * stride + width + first..][..size];
        let value = |token: usize| &states[token * stride + 2 * width + first..][..size];
        // Whole panels, so that no product has a rest; keys of zeros behind the last one.
        scratch.keys.fill(columns, size, |panel, lines| {
            for lane in 0..PANEL {
                let token = panel * PANEL + lane;
                if token < tokens {
                    for (line, x) in lines.iter_mut().zip(key(token)) {
                        line[lane] = *x;
                    }
                } else {
                    lines.iter_mut().for_each(|line| line[lane] = 0.0);
                }
            }
        });
        scratch.values.fill(size, tokens, |panel, lines| {
            let part = panel * PANEL..size.min((panel + 1) * PANEL);
            for (token, line) in lines.iter_mut().enumerate() {
                line[..part.len()].copy_from_slice(&value(token)[part.clone()]);
                line[part.len()..].fill(0.0);
            }
        });
        for start in (0..tokens).step_by(QUERIES) {
            let queries = QUERIES.min(tokens - start);
            let scores = &mut scratch.scores[..queries * columns];
            let query = &states[start * stride + first..];
            matmul(
                isa,
                queries,
                query,
                stride,
                &scratch.keys,
                Start::Zero,
                scores,
                columns,
            );
            let mut sums = [0f32; QUERIES];
            for (i, row) in scores.chunks_exact_mut(columns).enumerate() {
                let row = &mut row[..tokens];
                if let Some(bias) = bias {
                    let bias = bias.row(head, start + i, tokens);
                    row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
                }
                sums[i] = exponentials(isa, row);
            }
            let out = &mut out[start * width + first..];
            matmul(
                isa,
                queries,
                scores,
                columns,
                &scratch.values,
                Start::Zero,
                out,
                width,
            );
            for (row, sum) in out.chunks_mut(width).zip(&sums[..queries]) {
                let scale = 1.0 / sum;
                row[..size].iter_mut().for_each(|x| *x *= scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_is_that_of_the_definition() {
        let mut scratch = Scratch::default();
        for (tokens, heads, size) in [(1, 1, 4), (3, 2, 5), (16, 4, 8), (50, 3, 16), (97, 2, 32)] {
            let width = heads * size;
            let states: Vec<f32> = (0..tokens * 3 * width)
                .map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 300.0)
                .collect();
            let at = |token: usize, part: usize, i: usize| {
                f64::from(states[token * 3 * width + part * width + i])
            };
            let added = |head: usize, distance: isize| {
                (head as f32 + 1.0) * (distance * 13 % 7) as f32 / 4.0
            };
            let bias = Bias::new(heads, tokens + 3, added);
            for (&isa, bias) in Isa::all()
                .iter()
                .flat_map(|isa| [(isa, None), (isa, Some(&bias))])
            {
                let mut out = vec![f32::NAN; tokens * width];
                attend(isa, width, heads, &states, &mut out, bias, &mut scratch);
                for token in 0..tokens {
                    for head in 0..heads {
                        let part = head * size..(head + 1) * size;
                        let weights: Vec<f64> = (0..tokens)
                            .map(|other| {
                                let products =
                                    part.clone().map(|i| at(token, 0, i) * at(other, 1, i));
                                let distance = other as isize - token as isize;
                                let added = bias.map_or(0.0, |_| added(head, distance));
                                (products.sum::<f64>() + f64::from(added)).exp()
                            })
                            .collect();
                        let sum: f64 = weights.iter().sum();
                        for i in part {
                            let weighted = weights.iter().enumerate();
                            let exact: f64 = weighted.map(|(t, w)| w / sum * at(t, 2, i)).sum();
                            let found = out[token * width + i];
                            assert!(
                                (exact - f64::from(found)).abs() < 1e-4,
                                "{isa:?} {tokens}: {exact} {found}"
                            );
                        }
                    }
                }
            }
        }
    }
}
