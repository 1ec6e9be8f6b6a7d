//! Measures: the similarity error (xsim) and the BUCC sweep.

use crate::sort::{STEP, Watch, sort_by, unwatched};
use crate::{Error, Margin, Neighbours, select};

/// Share of source rows whose best-margin neighbour is not the target row of the same position.
///
/// Row `i` of the source translates to row `i` of the target. The target may have more rows, such
/// as the synthetic hard negatives of xsim++; the source may not. With [`Margin::Absolute`] this
/// is the similarity error of Schwenk & Douze (2017), with a margin it is xsim. NaN when there
/// are no rows.
///
/// # Panics
/// When the source has more rows than the target, or when there is no memory.
pub fn similarity_error(forward: &Neighbours, backward: &Neighbours, margin: Margin) -> f64 {
    assert!(
        forward.rows() <= backward.rows(),
        "a source row without its target row"
    );
    let best = (backward.means().map_err(Error::from))
        .and_then(|means| select::best(forward, &means, margin, &unwatched))
        .unwrap_or_else(|error| panic!("{error}"));
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
    /// Number of pairs with at least the threshold.
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
fn ranked(
    candidates: &[Candidate],
    gold: &[(i64, i64)],
    watch: Watch<'_>,
) -> Result<(Vec<(f64, bool)>, usize), Error> {
    let mut gold = laser_memory::copied(gold)?;
    sort_by(&mut gold, Ord::cmp, watch)?;
    gold.dedup();
    // Best score first among those of a pair, so that it is the one that stays.
    let mut pairs = laser_memory::collect(
        candidates
            .iter()
            .filter(|candidate| !candidate.score.is_nan())
            .copied(),
    )?;
    let pair = |candidate: &Candidate| (candidate.source, candidate.target);
    let order = |a: &Candidate, b: &Candidate| {
        (pair(a).cmp(&pair(b))).then_with(|| b.score.total_cmp(&a.score))
    };
    sort_by(&mut pairs, order, watch)?;
    pairs.dedup_by_key(|candidate| pair(candidate));
    watch()?;
    let mut ranked = laser_memory::with_capacity(pairs.len())?;
    let mut true_pairs = gold.iter().peekable();
    for (at, candidate) in pairs.iter().enumerate() {
        if at % STEP == 0 {
            watch()?;
        }
        while true_pairs
            .next_if(|gold| **gold < pair(candidate))
            .is_some()
        {}
        let right = true_pairs.peek() == Some(&&pair(candidate));
        ranked.push((candidate.score, right));
    }
    sort_by(&mut ranked, |a, b| b.0.total_cmp(&a.0), watch)?;
    Ok((ranked, gold.len()))
}

/// The BUCC measure with the best threshold for these candidates (Zweigenbaum et al. 2017, as
/// the LASER toolkit computes it): the candidates are swept by score, highest first, and the
/// threshold with the best F1 lies midway between the last extracted score and the next one.
///
/// A pair that occurs more than once counts with its best score. The sweep stops only where the
/// score changes, since no threshold separates equal scores. When all candidates are extracted
/// the threshold is the lowest score, and infinity when none of them is gold.
///
/// # Panics
/// When there is no memory.
pub fn bucc(candidates: &[Candidate], gold: &[(i64, i64)]) -> Bucc {
    bucc_watched(candidates, gold, None, &unwatched).unwrap_or_else(|error| panic!("{error}"))
}

/// [`bucc`], or [`bucc_at`] the threshold, which can be stopped.
///
/// # Errors
/// No memory, or those of `watch`.
pub fn bucc_watched(
    candidates: &[Candidate],
    gold: &[(i64, i64)],
    threshold: Option<f64>,
    watch: Watch<'_>,
) -> Result<Bucc, Error> {
    let (ranked, gold) = ranked(candidates, gold, watch)?;
    Ok(match threshold {
        Some(threshold) => at_threshold(&ranked, gold, threshold),
        None => sweep(&ranked, gold),
    })
}

fn sweep(ranked: &[(f64, bool)], gold: usize) -> Bucc {
    // What is best where nothing is right: a threshold that only infinite scores reach.
    let mut top = at_threshold(ranked, gold, f64::INFINITY);
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
///
/// # Panics
/// When there is no memory.
pub fn bucc_at(candidates: &[Candidate], gold: &[(i64, i64)], threshold: f64) -> Bucc {
    bucc_watched(candidates, gold, Some(threshold), &unwatched)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn at_threshold(ranked: &[(f64, bool)], gold: usize, threshold: f64) -> Bucc {
    let extracted = ranked.partition_point(|&(score, _)| score >= threshold);
    let correct = ranked[..extracted]
        .iter()
        .filter(|&&(_, right)| right)
        .count();
    Bucc::new(extracted, correct, gold, threshold)
}
