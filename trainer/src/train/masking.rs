//! What a masked language model reads and predicts.

use laser_sampling::mix;

use super::config::MlmOptions;
use crate::data::Ragged;

/// Sequences with some of their tokens hidden.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masked {
    /// What the encoder reads.
    pub sequences: Ragged,
    /// The hidden places of each sequence, ascending.
    pub places: Ragged,
    /// What stood there, in the order of places.
    pub labels: Vec<u32>,
}

/// The tokens that masking knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskTokens {
    /// Stands for a hidden one.
    pub mask: u32,
    /// Never hidden, and no substitute: boundaries, padding.
    pub special: Vec<u32>,
    /// Substitutes are below it.
    pub vocabulary: u32,
}

/// Hides tokens of each sequence (Devlin et al., NAACL 2019, section 3.1): of a share of them, at most
/// `predictions` a sequence and at least one, 80 % become the mask, 10 % another token, and 10 % stay as they are. A
/// function of the seed.
pub fn masked(sequences: &Ragged, options: &MlmOptions, tokens: &MaskTokens, seed: u64) -> Masked {
    let mut out = Masked {
        sequences: sequences.clone(),
        places: Ragged::new(),
        labels: Vec::new(),
    };
    let mut dice = seed;
    let mut next = || {
        dice = mix(dice.wrapping_add(0x9e37_79b9_7f4a_7c15));
        dice
    };
    for s in 0..sequences.len() {
        let row = sequences.row(s);
        let open = (0..row.len()).filter(|i| !tokens.special.contains(&row[*i]));
        let mut open: Vec<usize> = open.collect();
        let wanted = (options.share * open.len() as f64).round() as usize;
        let count = wanted.max(1).min(options.predictions).min(open.len());
        for i in 0..count {
            // The first places of a random order.
            let other = i + (next() % (open.len() - i) as u64) as usize;
            open.swap(i, other);
        }
        open.truncate(count);
        open.sort_unstable();
        for place in &open {
            let id = &mut out.sequences.ids[sequences.starts[s] + place];
            out.labels.push(*id);
            match next() % 10 {
                0..8 => *id = tokens.mask,
                8 => loop {
                    *id = (next() % u64::from(tokens.vocabulary)) as u32;
                    if *id != tokens.mask && !tokens.special.contains(id) {
                        break;
                    }
                },
                _ => (),
            }
        }
        let places: Vec<u32> = open.iter().map(|i| *i as u32).collect();
        out.places.push(&places);
    }
    out
}

/// Pairs as one sequence each, of at most `capacity` tokens: where both do not fit, the longer one is cut first. The
/// second loses `begin`, which stands at the beginning of a sequence alone. Nothing says where a language begins.
pub fn concatenated(
    first: &Ragged,
    second: &Ragged,
    begin: Option<u32>,
    capacity: usize,
) -> Ragged {
    let mut out = Ragged::new();
    for s in 0..first.len() {
        let (a, mut b) = (first.row(s), second.row(s));
        if let (Some(begin), [head, tail @ ..]) = (begin, b)
            && begin == *head
        {
            b = tail;
        }
        let half = capacity / 2;
        let of_a = a.len().min(half.max(capacity.saturating_sub(b.len())));
        let of_b = b.len().min(capacity - of_a);
        out.ids.extend_from_slice(&a[..of_a]);
        out.push(&b[..of_b]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> MaskTokens {
        MaskTokens {
            mask: 3,
            special: vec![0, 1, 2, 3],
            vocabulary: 500,
        }
    }

    #[test]
    fn tokens_are_hidden_by_the_shares_of_the_paper() {
        let mut sequences = Ragged::new();
        let row: Vec<u32> = [1].into_iter().chain(10..210).chain([2]).collect();
        (0..200).for_each(|_| sequences.push(&row));
        sequences.push(&[1, 77, 2]);
        sequences.push(&[1, 2]);
        sequences.push(&[]);
        let options = MlmOptions::default();
        let found = masked(&sequences, &options, &tokens(), 7);
        assert_eq!(found, masked(&sequences, &options, &tokens(), 7));
        assert_ne!(found, masked(&sequences, &options, &tokens(), 8));
        let (mut hidden, mut kept, mut other, mut at) = (0, 0, 0, 0);
        for s in 0..sequences.len() {
            let (before, after) = (sequences.row(s), found.sequences.row(s));
            let places = found.places.row(s);
            assert!(places.is_sorted() && places.windows(2).all(|w| w[0] != w[1]));
            for (i, (a, b)) in before.iter().zip(after).enumerate() {
                if !places.contains(&(i as u32)) {
                    assert_eq!(a, b);
                    continue;
                }
                assert!(*a > 3 && *a == found.labels[at]);
                at += 1;
                match *b {
                    3 => hidden += 1,
                    b if b == *a => kept += 1,
                    b => {
                        assert!((4..500).contains(&b));
                        other += 1;
                    }
                }
            }
        }
        assert_eq!(at, found.labels.len());
        // 15 % of 200 tokens in each of 200 sequences, and the only one of another.
        assert_eq!(at, 200 * 30 + 1);
        assert_eq!(found.places.row(200), [1]);
        assert!(found.places.row(201).is_empty() && found.places.row(202).is_empty());
        let share = |n: i32| f64::from(n) / at as f64;
        assert!((share(hidden) - 0.8).abs() < 0.02, "{hidden}");
        assert!((share(kept) - 0.1).abs() < 0.015, "{kept}");
        assert!((share(other) - 0.1).abs() < 0.015, "{other}");
        let few = MlmOptions {
            predictions: 4,
            ..options
        };
        assert_eq!(masked(&sequences, &few, &tokens(), 7).labels.len(), 801);
    }

    #[test]
    fn pairs_become_sequences_that_fit() {
        let ragged = |rows: &[&[u32]]| {
            let mut all = Ragged::new();
            rows.iter().for_each(|r| all.push(r));
            all
        };
        let a = ragged(&[
            &[1, 5, 2],
            &[1, 5, 5, 5, 5, 5],
            &[1, 5],
            &[1, 5, 5, 5, 5, 5],
        ]);
        let b = ragged(&[&[1, 6, 2], &[1, 6], &[1, 6, 6, 6, 6, 6], &[6, 6, 6, 6, 6]]);
        let both = concatenated(&a, &b, Some(1), 6);
        let wanted: [&[u32]; 4] = [
            &[1, 5, 2, 6, 2],
            &[1, 5, 5, 5, 5, 6],
            &[1, 5, 6, 6, 6, 6],
            &[1, 5, 5, 6, 6, 6],
        ];
        assert_eq!(both, ragged(&wanted));
    }
}
