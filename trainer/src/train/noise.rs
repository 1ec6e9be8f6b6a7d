//! Noise of denoising auto-encoders, by the token.

use laser_sampling::mix;

use super::config::Denoise;
use crate::data::Ragged;

/// The sentences with noise: tokens are replaced, neighbours swapped, tokens left out, in this order. A function
/// of the seed; a sentence that has tokens keeps one at least.
pub fn noisy(sentences: &Ragged, noise: &Denoise, seed: u64) -> Ragged {
    let mut out = Ragged::new();
    let mut dice = seed;
    let mut next = || {
        dice = mix(dice.wrapping_add(0x9e37_79b9_7f4a_7c15));
        dice
    };
    let mut row = Vec::new();
    for i in 0..sentences.len() {
        let mut happens = |rate: f32| ((next() >> 40) as f32 / (1 << 24) as f32) < rate;
        row.clear();
        row.extend_from_slice(sentences.row(i));
        let replaced: Vec<bool> = row.iter().map(|_| happens(noise.substitute)).collect();
        let mut at = 0;
        while at + 1 < row.len() {
            if happens(noise.swap) {
                row.swap(at, at + 1);
                at += 1;
            }
            at += 1;
        }
        let dropped: Vec<bool> = row.iter().map(|_| happens(noise.drop)).collect();
        for (id, _) in row.iter_mut().zip(replaced).filter(|(_, r)| *r) {
            *id = sentences.ids[(next() % sentences.ids.len() as u64) as usize];
        }
        let begin = out.ids.len();
        let kept = row.iter().zip(&dropped).filter(|(_, d)| !**d);
        out.ids.extend(kept.map(|(id, _)| *id));
        if out.ids.len() == begin && !row.is_empty() {
            out.ids.push(row[(next() % row.len() as u64) as usize]);
        }
        out.starts.push(out.ids.len());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences() -> Ragged {
        let mut all = Ragged::new();
        for n in [1u32, 0, 3000] {
            all.push(&(0..n).collect::<Vec<_>>());
        }
        all
    }

    #[test]
    fn each_kind_of_noise_has_its_rate() {
        let all = sentences();
        let none = Denoise::default();
        assert_eq!(noisy(&all, &none, 1), all);
        let drop = noisy(&all, &Denoise { drop: 0.3, ..none }, 1);
        assert_eq!((drop.row(0), drop.row(1).len()), (&[0][..], 0));
        let left = drop.row(2).len() as f64 / 3000.0;
        assert!((left - 0.7).abs() < 0.04, "{left}");
        assert!(drop.row(2).is_sorted());

        let swap = noisy(&all, &Denoise { swap: 0.2, ..none }, 1);
        let mut ids = swap.row(2).to_vec();
        let moved = ids.iter().zip(0..).filter(|(id, at)| *id != at).count();
        // A pair is swapped with probability p; after a swap the next one is skipped.
        let wanted = 2.0 * 3000.0 * 0.2 / 1.2;
        assert!((moved as f64 - wanted).abs() < 150.0, "{moved} {wanted}");
        ids.sort_unstable();
        assert_eq!(ids, all.row(2));
        let near = swap.row(2).iter().zip(0i64..);
        assert!(
            near.clone()
                .all(|(id, at)| (i64::from(*id) - at).abs() <= 1)
        );

        let other = noisy(
            &all,
            &Denoise {
                substitute: 0.1,
                ..none
            },
            1,
        );
        let changed = other
            .row(2)
            .iter()
            .zip(0..)
            .filter(|(id, at)| *id != at)
            .count();
        assert!((changed as f64 - 300.0).abs() < 80.0, "{changed}");
        assert_eq!(
            other,
            noisy(
                &all,
                &Denoise {
                    substitute: 0.1,
                    ..none
                },
                1
            )
        );
        assert_ne!(
            other,
            noisy(
                &all,
                &Denoise {
                    substitute: 0.1,
                    ..none
                },
                2
            )
        );
    }
}
