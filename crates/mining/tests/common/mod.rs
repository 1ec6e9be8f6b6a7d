//! An independent implementation of the definitions in plain `f64` loops, and data for tests.
#![allow(dead_code, reason = "every test file uses its own part")]

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Rows with normal-like components around `centres` common centres, and some exact copies of
/// earlier rows. `centres == 0`: no structure.
pub fn rows(seed: u64, rows: usize, dimensions: usize, centres: usize, copies: bool) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // The centres do not depend on the seed: both sides share them.
    let mut shared = ChaCha8Rng::seed_from_u64(77);
    let normal = |rng: &mut ChaCha8Rng| -> f32 {
        (0..6).map(|_| rng.random_range(-1.0f32..1.0)).sum::<f32>()
    };
    let middle: Vec<f32> = (0..centres * dimensions)
        .map(|_| normal(&mut shared))
        .collect();
    let mut values: Vec<f32> = Vec::with_capacity(rows * dimensions);
    for row in 0..rows {
        if copies && row > 0 && rng.random_range(0..5) == 0 {
            let from = rng.random_range(0..row) * dimensions;
            values.extend_from_within(from..from + dimensions);
            continue;
        }
        let centre = rng.random_range(0..centres.max(1)) * dimensions;
        let scale = rng.random_range(0.1f32..5.0);
        for at in 0..dimensions {
            let base = if centres > 0 {
                middle[centre + at]
            } else {
                0.0
            };
            values.push(scale * (base + if centres > 0 { 0.2 } else { 1.0 } * normal(&mut rng)));
        }
    }
    values
}

pub type Lists = Vec<Vec<(usize, f64)>>;

fn normalise(values: &[f32], dimensions: usize) -> Vec<Vec<f64>> {
    values
        .chunks(dimensions)
        .map(|row| {
            let norm = row.iter().map(|&v| (v as f64).powi(2)).sum::<f64>().sqrt();
            row.iter().map(|&v| v as f64 / norm).collect()
        })
        .collect()
}

/// All neighbours by brute force.
pub fn neighbours(x: &[f32], y: &[f32], dimensions: usize, k: usize) -> Lists {
    let y = normalise(y, dimensions);
    normalise(x, dimensions)
        .iter()
        .map(|x| {
            let mut all: Vec<(usize, f64)> = y
                .iter()
                .enumerate()
                .map(|(at, y)| {
                    let cosine: f64 = x.iter().zip(y).map(|(a, b)| a * b).sum();
                    // Cosines are defined as multiples of 2^-40.
                    (at, (cosine * 2f64.powi(40)).round() / 2f64.powi(40))
                })
                .collect();
            all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            all.truncate(k);
            all
        })
        .collect()
}

pub fn mean(list: &[(usize, f64)]) -> f64 {
    list.iter().map(|entry| entry.1).sum::<f64>() / list.len() as f64
}

/// Best candidate of each row by margin: first the margin of every candidate, then the maximum.
pub fn best(near: &Lists, far: &Lists, margin: &str) -> Vec<(usize, f64)> {
    near.iter()
        .map(|list| {
            let mut scored: Vec<(usize, f64)> = list
                .iter()
                .map(|&(other, a)| {
                    let b = (mean(list) + mean(&far[other])) / 2.0;
                    let score = match margin {
                        "absolute" => a,
                        "distance" => a - b,
                        "ratio" => a / b,
                        _ => unreachable!(),
                    };
                    (other, score)
                })
                .collect();
            scored.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
            scored[0]
        })
        .collect()
}

/// The pairs (source, target, score) of a retrieval mode, as the definition tells them.
pub fn mine(
    forward: &Lists,
    backward: &Lists,
    margin: &str,
    retrieval: &str,
    threshold: f64,
) -> Vec<(usize, usize, f64)> {
    let fwd = best(forward, backward, margin);
    let bwd = best(backward, forward, margin);
    let f: Vec<_> = fwd
        .iter()
        .enumerate()
        .map(|(s, &(t, score))| (s, t, score))
        .collect();
    let b: Vec<_> = bwd
        .iter()
        .enumerate()
        .map(|(t, &(s, score))| (s, t, score))
        .collect();
    let by_score = |list: &mut Vec<(usize, usize, f64)>| {
        list.sort_by(|a, b| {
            b.2.partial_cmp(&a.2)
                .unwrap()
                .then((a.0, a.1).cmp(&(b.0, b.1)))
        });
    };
    let mut out = match retrieval {
        "forward" => f,
        "backward" => b,
        "intersect" => f.into_iter().filter(|&(s, t, _)| bwd[t].0 == s).collect(),
        "max" => {
            let mut pool = [f, b].concat();
            by_score(&mut pool);
            let mut seen = (
                std::collections::HashSet::new(),
                std::collections::HashSet::new(),
            );
            let mut kept = Vec::new();
            for (s, t, score) in pool {
                if !seen.0.contains(&s) && !seen.1.contains(&t) {
                    seen.0.insert(s);
                    seen.1.insert(t);
                    kept.push((s, t, score));
                }
            }
            kept
        }
        _ => unreachable!(),
    };
    by_score(&mut out);
    out.retain(|pair| pair.2 > threshold);
    out
}
