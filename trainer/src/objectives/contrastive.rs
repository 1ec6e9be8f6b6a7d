//! Bidirectional in-batch softmax on scaled cosines with an additive margin (dual encoder).
//!
//! Yang et al., IJCAI 2019, equations 4 to 6, as in LaBSE (Feng et al., ACL 2022, equations 1
//! to 3): with unit vectors x, y and scale s,
//!
//! `L = −1/2B Σᵢ [log e^{s(xᵢ·yᵢ − m)} / (e^{s(xᵢ·yᵢ − m)} + Σ_{n≠i} e^{s xᵢ·yₙ})] + (x ↔ y)`.
//!
//! Targets beyond the batch's pairs (hard negatives) take part in the first direction only.

use std::collections::HashMap;
use std::ops::Range;

use crate::ops::threads::Threads;
use laser_kernels::math::l2_normalize;
use laser_kernels::slices::{add, dot, exp_in_place};
use laser_kernels::strided::product;
use laser_kernels::training::Arithmetic;
use laser_kernels::training::softmax::weigh;

/// Elements of the similarity matrix that are kept between the two passes; a larger matrix is
/// computed twice. 256 MiB.
const KEPT: usize = 1 << 26;
/// Rows that are worked on at a time.
const STRIP: usize = 256;
/// `scale · (1 + margin)` must stay below this for sums of exponentials to fit f32.
pub const LARGEST_LOGIT: f32 = 80.0;

/// Entries of the similarity matrix that are no negatives: duplicates and translations of the
/// same text.
#[derive(Clone, Debug, Default)]
pub struct Masks {
    starts: Vec<u32>,
    columns: Vec<u32>,
}

impl Masks {
    /// Masks entry (i, j), i ≠ j, if row i and column j share an identity. `rows[i]` and
    /// `columns[j]` list identities (hashes of texts, keys of groups); the first `rows.len()`
    /// columns are the rows' own targets.
    pub fn new(rows: &[Vec<u64>], columns: &[Vec<u64>]) -> Self {
        let mut by_identity: HashMap<u64, Vec<u32>> = HashMap::new();
        for (j, identities) in columns.iter().enumerate() {
            for identity in identities {
                by_identity.entry(*identity).or_default().push(j as u32);
            }
        }
        let mut starts = vec![0u32];
        let mut found: Vec<u32> = Vec::new();
        for (i, identities) in rows.iter().enumerate() {
            let begin = found.len();
            for identity in identities {
                if let Some(columns) = by_identity.get(identity) {
                    found.extend(columns.iter().filter(|j| **j as usize != i));
                }
            }
            found[begin..].sort_unstable();
            let mut end = begin;
            for at in begin..found.len() {
                if end == begin || found[end - 1] != found[at] {
                    found[end] = found[at];
                    end += 1;
                }
            }
            found.truncate(end);
            starts.push(found.len() as u32);
        }
        Self {
            starts,
            columns: found,
        }
    }

    /// Masks entry (i, j), i ≠ j, as well where rows i and j of `embeddings`, [B, D], have a cosine of at
    /// least `threshold`: pairs that somebody else finds to mean the same.
    #[must_use]
    pub fn and_similar(self, embeddings: &[f32], width: usize, threshold: f32) -> Self {
        let mut unit = embeddings.to_vec();
        unit.chunks_exact_mut(width).for_each(l2_normalize);
        let mut masks = Self {
            starts: vec![0],
            columns: Vec::new(),
        };
        for (i, own) in unit.chunks_exact(width).enumerate() {
            let known = self.row(i);
            let similar = unit.chunks_exact(width).enumerate().filter(|(j, other)| {
                let j = *j as u32;
                j as usize != i && dot(own, other) >= threshold && known.binary_search(&j).is_err()
            });
            masks.columns.extend(similar.map(|(j, _)| j as u32));
            masks.columns.extend(known);
            masks.starts.push(masks.columns.len() as u32);
        }
        masks
    }

    fn row(&self, i: usize) -> &[u32] {
        if self.starts.is_empty() {
            return &[];
        }
        &self.columns[self.starts[i] as usize..self.starts[i + 1] as usize]
    }

    /// Number of rows that it was made for.
    pub fn rows(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Number of masked entries.
    pub fn len(&self) -> usize {
        self.columns.len()
    }

    /// Whether nothing is masked.
    pub fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }
}

/// Loss and gradients of a batch.
#[derive(Debug)]
pub struct Outcome {
    /// Mean over pairs and directions, in nats.
    pub loss: f64,
    /// Gradient of x, [B, D].
    pub dx: Vec<f32>,
    /// Gradient of y, [B + N, D].
    pub dy: Vec<f32>,
    /// Gradient of the scale.
    pub d_scale: f64,
}

struct Problem<'a> {
    x: &'a [f32],
    y: &'a [f32],
    width: usize,
    columns: usize,
    masks: &'a Masks,
    scale: f32,
    margin: f32,
}

impl Problem<'_> {
    /// Exponentials of the logits of some rows, and their sums.
    fn exponentials(&self, rows: Range<usize>, e: &mut [f32]) -> Vec<f32> {
        let (width, columns) = (self.width, self.columns);
        let x = &self.x[rows.start * width..rows.end * width];
        product(
            (rows.len(), columns, width),
            (x, width, 1),
            (self.y, 1, width),
            (e, columns),
            false,
            self.scale,
        );
        rows.zip(e.chunks_exact_mut(columns))
            .map(|(i, e)| {
                e[i] -= self.scale * self.margin;
                for j in self.masks.row(i) {
                    e[*j as usize] = f32::NEG_INFINITY;
                }
                exp_in_place(e)
            })
            .collect()
    }
}

/// Loss and gradients for sources `x` [B, D] and targets `y` [B + N, D], all of unit length; the
/// target of row i is row i.
///
/// # Panics
/// If `scale · (1 + margin)` exceeds [`LARGEST_LOGIT`] or the shapes do not fit.
pub fn contrastive(
    threads: &Threads,
    (x, y): (&[f32], &[f32]),
    width: usize,
    masks: &Masks,
    (scale, margin): (f32, f32),
) -> Outcome {
    assert!(
        scale * (1.0 + margin) <= LARGEST_LOGIT,
        "scale {scale} is too large"
    );
    let (rows, columns) = (x.len() / width, y.len() / width);
    assert!(columns >= rows, "every source needs a target");
    let problem = Problem {
        x,
        y,
        width,
        columns,
        masks,
        scale,
        margin,
    };
    let keep = rows * columns <= KEPT;
    let shards = threads.split(rows);

    // First pass: sums of exponentials by row and, per thread, by column.
    let first = threads.map(shards.clone(), |_, shard| {
        let mut kept = Vec::with_capacity(if keep { shard.len() * columns } else { 0 });
        let mut strip = vec![0f32; STRIP.min(shard.len()) * columns];
        let mut row_sums = Vec::with_capacity(shard.len());
        let mut diagonal = Vec::with_capacity(shard.len());
        let mut column_sums = vec![0f32; columns];
        for from in shard.clone().step_by(STRIP) {
            let part = from..shard.end.min(from + STRIP);
            let e = &mut strip[..part.len() * columns];
            row_sums.extend(problem.exponentials(part.clone(), e));
            for (i, e) in part.zip(e.chunks_exact(columns)) {
                add(e, &mut column_sums);
                diagonal.push(e[i]);
            }
            if keep {
                kept.extend_from_slice(e);
            }
        }
        (kept, row_sums, column_sums, diagonal)
    });
    let mut column_sums = vec![0f32; columns];
    for (_, _, sums, _) in &first {
        add(sums, &mut column_sums);
    }
    let inverse_columns: Vec<f32> = column_sums
        .iter()
        .enumerate()
        .map(|(j, sum)| if j < rows { 1.0 / sum } else { 0.0 })
        .collect();
    let mut loss = 0f64;
    for (shard, (_, row_sums, _, diagonal)) in shards.iter().zip(&first) {
        for ((i, sum), d) in shard.clone().zip(row_sums).zip(diagonal) {
            loss +=
                f64::from(*sum).ln() + f64::from(column_sums[i]).ln() - 2.0 * f64::from(*d).ln();
        }
    }
    loss /= 2.0 * rows as f64;

    // Second pass: gradient of the logits, then of both sides.
    let factor = 1.0 / (2.0 * rows as f32);
    let work = shards.iter().cloned().zip(first).collect();
    let second = threads.map(
        work,
        |_, (shard, (mut kept, row_sums, _, _)): (Range<usize>, _)| {
            let mut dx = vec![0f32; shard.len() * width];
            let mut dy = vec![0f32; columns * width];
            let mut on_diagonal = 0f64;
            let mut strip = vec![
                0f32;
                if keep {
                    0
                } else {
                    STRIP.min(shard.len()) * columns
                }
            ];
            for from in shard.clone().step_by(STRIP) {
                let part = from..shard.end.min(from + STRIP);
                let offset = part.start - shard.start;
                let g = if keep {
                    &mut kept[offset * columns..(offset + part.len()) * columns]
                } else {
                    let e = &mut strip[..part.len() * columns];
                    problem.exponentials(part.clone(), e);
                    e
                };
                for (i, g) in part.clone().zip(g.chunks_exact_mut(columns)) {
                    weigh(g, 1.0 / row_sums[i - shard.start], &inverse_columns, factor);
                    g[i] -= 2.0 * factor;
                    on_diagonal += f64::from(g[i]);
                }
                let n = part.len();
                product(
                    (n, width, columns),
                    (g, columns, 1),
                    (y, width, 1),
                    (&mut dx[offset * width..(offset + n) * width], width),
                    false,
                    scale,
                );
                product(
                    (columns, width, n),
                    (g, 1, columns),
                    (&x[part.start * width..part.end * width], width, 1),
                    (&mut dy, width),
                    true,
                    scale,
                );
            }
            (dx, dy, on_diagonal)
        },
    );
    let mut parts = second.into_iter();
    let Some((mut dx, mut dy, mut on_diagonal)) = parts.next() else {
        return Outcome {
            loss: 0.0,
            dx: Vec::new(),
            dy: vec![0.0; y.len()],
            d_scale: 0.0,
        };
    };
    for (part_dx, part_dy, part_diagonal) in parts {
        dx.extend_from_slice(&part_dx);
        add(&part_dy, &mut dy);
        on_diagonal += part_diagonal;
    }
    // dx = s G y, so that Σ G·cos = Σ x·dx / s.
    let along: f64 = x
        .chunks_exact(width)
        .zip(dx.chunks_exact(width))
        .map(|(x, dx)| f64::from(dot(x, dx)))
        .sum();
    let d_scale = along / f64::from(scale) - f64::from(margin) * on_diagonal;
    Outcome {
        loss,
        dx,
        dy,
        d_scale,
    }
}

/// For each row of `x` [B, D] its nearest target among `candidates` [C, D] that is not excluded:
/// hard negatives (mega-batching; Wieting et al., SP, EMNLP 2021, section 3). `masks` lists for row i
/// the candidates that are translations or duplicates of its text.
/// A candidate whose cosine exceeds the one of the true target `own[i]` (a row of `candidates`)
/// by more than `limit` is taken for an unlisted translation and skipped.
pub fn hardest(
    threads: &Threads,
    (x, candidates): (&[f32], &[f32]),
    width: usize,
    own: &[u32],
    masks: &Masks,
    limit: f32,
) -> Vec<u32> {
    let (rows, columns) = (x.len() / width, candidates.len() / width);
    let found = threads.map(threads.split(rows), |_, shard| {
        let mut strip = vec![0f32; STRIP.min(shard.len()) * columns];
        let mut best = Vec::with_capacity(shard.len());
        for from in shard.clone().step_by(STRIP) {
            let part = from..shard.end.min(from + STRIP);
            let s = &mut strip[..part.len() * columns];
            Arithmetic::F32.nt(
                (part.len(), columns, width),
                &x[part.start * width..part.end * width],
                candidates,
                s,
                false,
            );
            for (i, s) in part.zip(s.chunks_exact_mut(columns)) {
                let ceiling = s[own[i] as usize] + limit;
                s[own[i] as usize] = f32::NEG_INFINITY;
                for j in masks.row(i) {
                    s[*j as usize] = f32::NEG_INFINITY;
                }
                let mut top = (f32::NEG_INFINITY, own[i]);
                for (j, value) in s.iter().enumerate() {
                    if *value > top.0 && *value <= ceiling {
                        top = (*value, j as u32);
                    }
                }
                best.push(top.1);
            }
        }
        best
    });
    found.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;
    use laser_kernels::training::l2::normalize;

    /// The definition, in f64.
    fn reference(
        (x, y): (&[f64], &[f64]),
        width: usize,
        masks: &Masks,
        (scale, margin): (f64, f64),
    ) -> f64 {
        let (rows, columns) = (x.len() / width, y.len() / width);
        let logit = |i: usize, j: usize| -> f64 {
            let c: f64 = (0..width)
                .map(|k| x[i * width + k] * y[j * width + k])
                .sum();
            scale * (c - if i == j { margin } else { 0.0 })
        };
        let masked = |i: usize, j: usize| masks.row(i).contains(&(j as u32));
        let mut loss = 0.0;
        for i in 0..rows {
            let row: f64 = (0..columns)
                .filter(|j| !masked(i, *j))
                .map(|j| logit(i, j).exp())
                .sum();
            let column: f64 = (0..rows)
                .filter(|r| !masked(*r, i))
                .map(|r| logit(r, i).exp())
                .sum();
            loss += row.ln() + column.ln() - 2.0 * logit(i, i);
        }
        loss / (2.0 * rows as f64)
    }

    #[test]
    fn what_is_similar_elsewhere_is_masked_as_well() {
        let identities: Vec<Vec<u64>> = vec![vec![1], vec![1], vec![2], vec![3]];
        let masks = Masks::new(&identities, &identities);
        // Rows 1 and 2 at 45 degrees, whatever their lengths, the others apart.
        let rows = [0.0, -1.0, 1.0, 0.0, 3.0, 3.0, -2.0, 0.0];
        let both = masks.clone().and_similar(&rows, 2, 0.7);
        let listed = |i: usize| {
            let mut row = both.row(i).to_vec();
            row.sort_unstable();
            row
        };
        assert_eq!([listed(0), listed(1)], [vec![1], vec![0, 2]]);
        assert_eq!([listed(2), listed(3)], [vec![1], vec![]]);
        let fewer = masks.clone().and_similar(&rows, 2, 0.71);
        assert_eq!(fewer.len(), masks.len());
        assert_eq!(fewer.rows(), 4);
    }

    #[test]
    fn loss_and_gradients_match_finite_differences() {
        let (rows, extra, width) = (7, 3, 5);
        let mut x = random(rows * width, 1.0, 1, 1);
        let mut y = random((rows + extra) * width, 1.0, 1, 2);
        normalize(&mut x, width);
        normalize(&mut y, width);
        let identities: Vec<Vec<u64>> = (0..rows).map(|i| vec![i as u64 / 2]).collect();
        let mut columns = identities.clone();
        columns.extend([vec![90], vec![1], vec![91]]);
        let masks = Masks::new(&identities, &columns);
        assert_eq!(masks.len(), 3 * 2 + 2);
        let wide = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
        let (x64, y64) = (wide(&x), wide(&y));
        for count in [1, 3] {
            let threads = Threads::new(count).unwrap();
            let (scale, margin) = (12.0, 0.3);
            let outcome = contrastive(&threads, (&x, &y), width, &masks, (scale, margin));
            let (scale, margin) = (f64::from(scale), f64::from(margin));
            let at = |x: &[f64], y: &[f64], s: f64| reference((x, y), width, &masks, (s, margin));
            assert!((outcome.loss - at(&x64, &y64, scale)).abs() < 1e-5);
            let h = 1e-5;
            let slope = (at(&x64, &y64, scale + h) - at(&x64, &y64, scale - h)) / (2.0 * h);
            assert!(
                (outcome.d_scale - slope).abs() < 1e-5,
                "{} {slope}",
                outcome.d_scale
            );
            for k in 0..x.len() {
                let (mut up, mut down) = (x64.clone(), x64.clone());
                up[k] += h;
                down[k] -= h;
                let slope = (at(&up, &y64, scale) - at(&down, &y64, scale)) / (2.0 * h);
                assert!((f64::from(outcome.dx[k]) - slope).abs() < 2e-5);
            }
            for k in 0..y.len() {
                let (mut up, mut down) = (y64.clone(), y64.clone());
                up[k] += h;
                down[k] -= h;
                let slope = (at(&x64, &up, scale) - at(&x64, &down, scale)) / (2.0 * h);
                assert!((f64::from(outcome.dy[k]) - slope).abs() < 2e-5);
            }
        }
    }

    #[test]
    fn the_hardest_negative_is_the_nearest_that_is_not_excluded() {
        let threads = Threads::new(2).unwrap();
        let x = [1.0, 0.0, 0.0, 1.0];
        let candidates = [1.0, 0.0, 0.0, 1.0, 0.9, 0.1, 0.8, 0.2];
        let own = [0, 1];
        let none = Masks::default();
        let found = hardest(&threads, (&x, &candidates), 2, &own, &none, 1.0);
        assert_eq!(found, [2, 3]);
        let identities = [vec![5], vec![6]];
        let columns = [vec![5], vec![6], vec![5], vec![7]];
        let masks = Masks::new(&identities, &columns);
        let found = hardest(&threads, (&x, &candidates), 2, &own, &masks, 1.0);
        assert_eq!(found, [3, 3]);
    }
}
