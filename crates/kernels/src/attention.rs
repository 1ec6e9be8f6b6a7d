//! Attention over one sequence: `softmax(Q Kᵀ) V`, head by head (Vaswani et al., 2017, section 3.2).
//!
//! Keys and values of a head are packed for the products of [`super::gemm`]; scores exist for some
//! queries at a time, and, where a token sees only those near it, for the keys that some of these see. No padding is
//! masked, since a sequence is alone.

use super::Isa;
use super::gemm::{PANEL, Packed, Part, Start, matmul_part};
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
    /// See [`Bias::values`].
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

    /// A row for each head: what keys get that stand from 1 - positions to positions - 1 behind the query.
    pub fn values(&self) -> &[f32] {
        &self.values
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

/// The heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Number of queries of a token.
    pub queries: usize,
    /// Number of keys, and of values, of a token: each is for as many neighbouring queries (grouped-query attention;
    /// Ainslie et al., EMNLP 2023). Divides `queries`.
    pub keys: usize,
    /// Length of a query, a key or a value.
    pub size: usize,
    /// A token sees itself and those fewer than this many tokens away; all of them if there is none.
    pub window: Option<usize>,
}

impl Heads {
    /// Each query with a key and a value of its own, for all tokens.
    pub fn full(heads: usize, size: usize) -> Self {
        Self {
            queries: heads,
            keys: heads,
            size,
            window: None,
        }
    }

    /// Length of a row of queries, keys and values.
    pub fn input(&self) -> usize {
        (self.queries + 2 * self.keys) * self.size
    }

    /// Length of a row of results.
    pub fn output(&self) -> usize {
        self.queries * self.size
    }
}

/// `out` (rows of [`Heads::output`]) from `states`, whose rows of [`Heads::input`] hold a token's queries, then its
/// keys, then its values. Queries have been scaled; `bias` is added to the scores.
///
/// # Panics
/// If `out` has no whole rows, `states` has another number of rows, keys do not divide the queries, a window is empty,
/// or the bias has other heads or fewer positions.
pub fn attend(
    isa: Isa,
    heads: &Heads,
    states: &[f32],
    out: &mut [f32],
    bias: Option<&Bias>,
    scratch: &mut Scratch,
) {
    let (size, stride, width) = (heads.size, heads.input(), heads.output());
    assert!(
        width > 0 && heads.keys > 0 && heads.queries.is_multiple_of(heads.keys),
        "heads"
    );
    let tokens = out.len() / width;
    assert!(
        out.len() == tokens * width && states.len() == tokens * stride,
        "rows"
    );
    let window = heads.window.map_or(tokens, |window| window.min(tokens));
    assert!(window > 0 || tokens == 0, "window");
    let columns = tokens.next_multiple_of(PANEL);
    scratch.scores.resize(QUERIES.min(tokens) * columns, 0.0);
    let group = heads.queries / heads.keys;
    for pair in 0..heads.keys {
        let first = (heads.queries + pair) * size;
        let key = |token: usize| &states[token * stride + first..][..size];
        let first = first + heads.keys * size;
        let value = |token: usize| &states[token * stride + first..][..size];
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
        let blocks = (0..tokens).step_by(QUERIES);
        let blocks = blocks.flat_map(|start| (0..group).map(move |member| (start, member)));
        for (start, member) in blocks {
            let head = pair * group + member;
            let queries = QUERIES.min(tokens - start);
            // The keys that one of the queries sees, from a panel's first.
            let from = (start + 1).saturating_sub(window) / PANEL;
            let seen = from * PANEL..tokens.min(start + queries - 1 + window);
            let keys = Part {
                matrix: &scratch.keys,
                panels: from..seen.end.div_ceil(PANEL),
                depth: 0..size,
            };
            let columns = keys.panels.len() * PANEL;
            let scores = &mut scratch.scores[..queries * columns];
            let query = &states[start * stride + head * size..];
            matmul_part(
                isa,
                queries,
                query,
                stride,
                &keys,
                Start::Zero,
                scores,
                columns,
            );
            let mut sums = [0f32; QUERIES];
            for (i, row) in scores.chunks_exact_mut(columns).enumerate() {
                let query = start + i;
                let own = (query + 1).saturating_sub(window)..tokens.min(query + window);
                let (before, end) = (own.start - seen.start, own.end - seen.start);
                row[..before].fill(0.0);
                row[end..].fill(0.0);
                let row = &mut row[before..end];
                if let Some(bias) = bias {
                    let bias = &bias.row(head, query, tokens)[own];
                    row.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
                }
                sums[i] = exponentials(isa, row);
            }
            let values = Part {
                matrix: &scratch.values,
                panels: 0..size.div_ceil(PANEL),
                depth: seen,
            };
            let out = &mut out[start * width + head * size..];
            matmul_part(
                isa,
                queries,
                scores,
                columns,
                &values,
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
        let shapes = [
            (1, 1, 1, 4),
            (3, 2, 2, 5),
            (16, 4, 2, 8),
            (50, 3, 1, 16),
            (97, 2, 2, 32),
            (200, 4, 2, 8),
        ];
        let windows = [None, Some(1), Some(2), Some(5), Some(40), Some(1000)];
        for ((tokens, queries, keys, size), window) in shapes
            .into_iter()
            .flat_map(|shape| windows.map(|window| (shape, window)))
        {
            let heads = Heads {
                queries,
                keys,
                size,
                window,
            };
            let (stride, width) = (heads.input(), heads.output());
            let states: Vec<f32> = (0..tokens * stride)
                .map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 300.0)
                .collect();
            let at = |token: usize, i: usize| f64::from(states[token * stride + i]);
            let added = |head: usize, distance: isize| {
                (head as f32 + 1.0) * (distance * 13 % 7) as f32 / 4.0
            };
            let bias = Bias::new(queries, tokens + 3, added);
            for (&isa, bias) in Isa::all()
                .iter()
                .flat_map(|isa| [(isa, None), (isa, Some(&bias))])
            {
                let mut out = vec![f32::NAN; tokens * width];
                attend(isa, &heads, &states, &mut out, bias, &mut scratch);
                for (token, head) in
                    (0..tokens).flat_map(|t| (0..queries).map(move |head| (t, head)))
                {
                    let key = (queries + head / (queries / keys)) * size;
                    let value = key + keys * size;
                    let weight = |other: usize| -> f64 {
                        if window.is_some_and(|window| token.abs_diff(other) >= window) {
                            return 0.0;
                        }
                        let products =
                            (0..size).map(|i| at(token, head * size + i) * at(other, key + i));
                        let distance = other as isize - token as isize;
                        let added = bias.map_or(0.0, |_| added(head, distance));
                        (products.sum::<f64>() + f64::from(added)).exp()
                    };
                    let weights: Vec<f64> = (0..tokens).map(weight).collect();
                    let sum: f64 = weights.iter().sum();
                    for i in 0..size {
                        let weighted = weights.iter().enumerate();
                        let exact: f64 = weighted.map(|(t, w)| w / sum * at(t, value + i)).sum();
                        let found = out[token * width + head * size + i];
                        assert!(
                            (exact - f64::from(found)).abs() < 1e-4,
                            "{isa:?} {heads:?} {tokens}: {exact} {found}"
                        );
                    }
                }
            }
        }
    }
}
