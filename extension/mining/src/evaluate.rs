//! Measures: the similarity error (xsim) and the BUCC sweep.

use std::collections::{HashMap, HashSet};

use crate::{Margin, Neighbours, select};

/// Share of source rows whose best-margin neighbour is not the target row of the same position.
///
/// Row `i` of the source translates to row `i` of the target. The target may have more rows, such
/// as the synthetic hard negatives of xsim++; the source may not. With [`Margin::Absolute`] this
/// is the similarity error of Schwenk & Douze (2017), with a margin it is xsim. NaN when there
/// are no rows.
///
/// # Panics
/// When the source has more rows than the target.
pub fn similarity_error(forward: &Neighbours, backward: &Neighbours, margin: Margin) -> f64 {
    assert!(
        forward.rows() <= backward.rows(),
        "a source row without its target row"
    );
    let best = select::best(forward, &backward.means(), margin);
    let wrong = (best.iter().enumerate())
        .filter(|&(row, best)| best.is_none_or(|(position, _)| position as usize != row))
        .count();
    wrong as f64 / forward.rows() as f64
}

/// A mined pair of ids with its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Id of the source row.
    pub source: i64,
    /// Id of the target row.
    pub target: i64,
    /// Its score; a pair without a score (NaN) is not extracted.
    pub score: f64,
}

/// Result of comparing mined pairs with gold pairs.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Bucc {
    /// Share of the extracted pairs that are gold; 0 when nothing was extracted.
    pub precision: f64,
    /// Share of the gold pairs that were extracted; 0 when there are none.
    pub recall: f64,
    /// Harmonic mean of the two.
    pub f1: f64,
    /// Pairs with at least this score were extracted.
    pub threshold: f64,
    /// Number of extracted pairs.
    pub extracted: usize,
    /// Number of extracted pairs that are gold.
    pub correct: usize,
    /// Number of gold pairs.
    pub gold: usize,
}

impl Bucc {
    fn new(extracted: usize, correct: usize, gold: usize, threshold: f64) -> Self {
        let share = |part: usize, whole: usize| {
            if whole == 0 {
                0.0
            } else {
                part as f64 / whole as f64
            }
        };
        let (precision, recall) = (share(correct, extracted), share(correct, gold));
        let f1 = if correct == 0 {
            0.0
        } else {
            2.0 * precision * recall / (precision + recall)
        };
        Bucc {
            precision,
            recall,
            f1,
            threshold,
            extracted,
            correct,
            gold,
        }
    }
}

/// Best score of each pair, highest first, with whether the pair is gold; and the size of gold.
fn ranked(candidates: &[Candidate], gold: &[(i64, i64)]) -> (Vec<(f64, bool)>, usize) {
    let gold: HashSet<(i64, i64)> = gold.iter().copied().collect();
    let mut scores: HashMap<(i64, i64), f64> = HashMap::new();
    for candidate in candidates
        .iter()
        .filter(|candidate| !candidate.score.is_nan())
    {
        let held = scores
            .entry((candidate.source, candidate.target))
            .or_insert(f64::NEG_INFINITY);
        *held = held.max(candidate.score);
    }
    let mut ranked: Vec<(f64, bool)> = scores
        .into_iter()
        .map(|(pair, score)| (score, gold.contains(&pair)))
        .collect();
    ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    (ranked, gold.len())
}

/// The BUCC measure with the best threshold for these candidates (Zweigenbaum et al. 2017, as
/// the LASER toolkit computes it): the candidates are swept by score, highest first, and the
/// threshold with the best F1 lies midway between the last extracted score and the next one.
///
/// A pair that occurs more than once counts with its best score. The sweep stops only where the
/// score changes, since no threshold separates equal scores. When all candidates are extracted
/// the threshold is the lowest score, and infinity when none of them is gold.
pub fn bucc(candidates: &[Candidate], gold: &[(i64, i64)]) -> Bucc {
    let (ranked, gold) = ranked(candidates, gold);
    let mut top = Bucc::new(0, 0, gold, f64::INFINITY);
    let mut correct = 0;
    for (at, &(score, right)) in ranked.iter().enumerate() {
        correct += usize::from(right);
        let next = ranked.get(at + 1).map_or(score, |next| next.0);
        if next == score && at + 1 < ranked.len() {
            continue;
        }
        // Adjacent doubles have no midpoint between them: then the upper one separates them.
        let middle = score / 2.0 + next / 2.0;
        let threshold = if middle > next && middle <= score {
            middle
        } else {
            score
        };
        let here = Bucc::new(at + 1, correct, gold, threshold);
        if here.f1 > top.f1 {
            top = here;
        }
    }
    top
}

/// The BUCC measure at a given threshold: pairs with at least that score are extracted.
pub fn bucc_at(candidates: &[Candidate], gold: &[(i64, i64)], threshold: f64) -> Bucc {
    let (ranked, gold) = ranked(candidates, gold);
    let extracted = ranked.partition_point(|&(score, _)| score >= threshold);
    let correct = ranked[..extracted]
        .iter()
        .filter(|&&(_, right)| right)
        .count();
    Bucc::new(extracted, correct, gold, threshold)
}
