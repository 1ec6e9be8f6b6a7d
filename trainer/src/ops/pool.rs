//! Token embeddings: weighted mean over a sentence, and the sparse gradient of the table.

use crate::data::Ragged;
use crate::ops::threads::{Threads, cut};
use laser_kernels::slices::dot;
use laser_kernels::training::pool::combine;
use std::ops::Range;

/// Weighted means of token embeddings for some sentences of a batch.
///
/// With token weights `a`, sentence s becomes `y_s = Σ_i w_i e_i / Σ_i w_i`, `w_i = exp(a[id_i])`;
/// without, the arithmetic mean. A sentence without tokens becomes zeros.
/// `table` is [V, E]; the result is [sentences, E] in `out`, and the factor of every token
/// (`w_i / Σ w`), in the order of the tokens.
pub fn forward(
    table: &[f32],
    weights: Option<&[f32]>,
    batch: &Ragged,
    sentences: Range<usize>,
    width: usize,
    out: &mut [f32],
) -> Vec<f32> {
    let tokens = batch.starts[sentences.end] - batch.starts[sentences.start];
    let mut factors = Vec::with_capacity(tokens);
    let mut rows: Vec<&[f32]> = Vec::new();
    for (s, out) in sentences.zip(out.chunks_exact_mut(width)) {
        let ids = batch.row(s);
        rows.clear();
        rows.extend(ids.iter().map(|id| &table[*id as usize * width..][..width]));
        let begin = factors.len();
        match weights {
            Some(weights) => {
                factors.extend(ids.iter().map(|id| weights[*id as usize].exp()));
                let total: f32 = factors[begin..].iter().sum();
                factors[begin..].iter_mut().for_each(|f| *f /= total);
            }
            None => factors.resize(begin + ids.len(), 1.0 / ids.len().max(1) as f32),
        }
        combine(&rows, &factors[begin..], out);
    }
    factors
}

/// Gradient of an embedding table as a list of occurrences: token `ids[i]` receives
/// `factors[i] · source[rows[i]]`.
#[derive(Debug, Default)]
pub struct Occurrences {
    /// Token of each occurrence.
    pub ids: Vec<u32>,
    /// Row of `source` each occurrence refers to.
    pub rows: Vec<u32>,
    /// Factor of each occurrence.
    pub factors: Vec<f32>,
    /// Gradients, [rows, E].
    pub source: Vec<f32>,
    /// For learned token weights: `dy_s · y_s` of each row of `source`; empty otherwise.
    pub inner: Vec<f32>,
}

/// Occurrences of the weighted mean: `dy` [sentences, E] is the gradient of its output `y`, which
/// is only read if `weighted`.
pub fn backward(
    batch: &Ragged,
    sentences: Range<usize>,
    width: usize,
    factors: Vec<f32>,
    y: &[f32],
    dy: Vec<f32>,
    weighted: bool,
) -> Occurrences {
    let ids = batch.ids[batch.starts[sentences.start]..batch.starts[sentences.end]].to_vec();
    let mut rows = Vec::with_capacity(ids.len());
    for (row, s) in sentences.enumerate() {
        rows.resize(rows.len() + batch.row(s).len(), row as u32);
    }
    let inner = if weighted {
        y.chunks_exact(width)
            .zip(dy.chunks_exact(width))
            .map(|(y, dy)| dot(y, dy))
            .collect()
    } else {
        Vec::new()
    };
    Occurrences {
        ids,
        rows,
        factors,
        source: dy,
        inner,
    }
}

/// Gradient of the rows of an embedding table that a batch touched.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct SparseGradient {
    /// Touched rows, ascending.
    pub ids: Vec<u32>,
    /// Their gradients, [ids, E].
    pub rows: Vec<f32>,
    /// Gradients of their token weights, or empty.
    pub weights: Vec<f32>,
}

/// Sums occurrences by row of the table, in the order of `parts` and of their occurrences, so that
/// the result does not depend on the threads.
///
/// For token weights the identity `dL/da = (Σ_s c_s dy_s) · e − Σ_s c_s (dy_s · y_s)` needs only
/// the summed gradient of the row, not a second pass over the embeddings.
pub fn gather(
    threads: &Threads,
    parts: &[Occurrences],
    table: &[f32],
    width: usize,
) -> SparseGradient {
    let vocabulary = table.len() / width;
    let mut starts = vec![0usize; vocabulary + 1];
    for part in parts {
        for id in &part.ids {
            starts[*id as usize + 1] += 1;
        }
    }
    let ids: Vec<u32> = (0..vocabulary)
        .filter(|i| starts[i + 1] > 0)
        .map(|i| i as u32)
        .collect();
    for i in 0..vocabulary {
        starts[i + 1] += starts[i];
    }
    let mut next = starts.clone();
    let mut sorted = vec![(0u32, 0u32); starts[vocabulary]];
    for (p, part) in parts.iter().enumerate() {
        for (o, id) in part.ids.iter().enumerate() {
            let slot = &mut next[*id as usize];
            sorted[*slot] = (p as u32, o as u32);
            *slot += 1;
        }
    }
    let mut touched_starts: Vec<usize> = ids.iter().map(|id| starts[*id as usize]).collect();
    touched_starts.push(sorted.len());
    let weighted = parts.iter().any(|p| !p.inner.is_empty());
    let mut rows = vec![0f32; ids.len() * width];
    let mut weights = vec![0f32; if weighted { ids.len() } else { 0 }];
    // A row costs its occurrences and a constant for writing it.
    let costs: Vec<usize> = touched_starts
        .iter()
        .enumerate()
        .map(|(i, s)| s + 4 * i)
        .collect();
    let ranges = threads.split_weighted(&costs);
    let work: Vec<_> = cut(&mut rows, &ranges, width)
        .into_iter()
        .zip(
            cut(
                &mut weights,
                &if weighted { ranges.clone() } else { vec![] },
                1,
            )
            .into_iter()
            .map(Some)
            .chain(std::iter::repeat_with(|| None)),
        )
        .zip(ranges.iter().cloned())
        .collect();
    threads.map(work, |_, ((out, mut out_weights), range)| {
        let mut pointers: Vec<&[f32]> = Vec::new();
        let mut factors: Vec<f32> = Vec::new();
        let begin = range.start;
        for (t, out) in range.zip(out.chunks_exact_mut(width)) {
            pointers.clear();
            factors.clear();
            let mut inner = 0f32;
            for &(p, o) in &sorted[touched_starts[t]..touched_starts[t + 1]] {
                let part = &parts[p as usize];
                let (row, factor) = (part.rows[o as usize] as usize, part.factors[o as usize]);
                pointers.push(&part.source[row * width..][..width]);
                factors.push(factor);
                inner += factor * part.inner.get(row).copied().unwrap_or(0.0);
            }
            combine(&pointers, &factors, out);
            if let Some(weights) = &mut out_weights {
                let embedding = &table[ids[t] as usize * width..][..width];
                weights[t - begin] = dot(out, embedding) - inner;
            }
        }
    });
    SparseGradient { ids, rows, weights }
}

/// Copies the embeddings of some sentences' tokens, in the given order of token positions, to
/// `out` [tokens, E].
pub fn look_up(table: &[f32], ids: &[u32], width: usize, out: &mut [f32]) {
    for (id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
        out.copy_from_slice(&table[*id as usize * width..][..width]);
    }
}
