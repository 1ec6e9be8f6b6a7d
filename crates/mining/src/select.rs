//! Selection of pairs from neighbourhoods in both directions.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::sort::{STEP, Watch, sort_by, unwatched};
use crate::{Error, Margin, Neighbours};

/// Which candidate pairs are kept (Artetxe & Schwenk 2019, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retrieval {
    /// For each source row its best target row; target rows may repeat.
    Forward,
    /// For each target row its best source row; source rows may repeat.
    Backward,
    /// The forward and backward pairs together, greedily by score, each row at most once.
    Max,
    /// The pairs whose rows are each other's best.
    Intersect,
}

impl Retrieval {
    /// All retrieval modes.
    pub const ALL: [Retrieval; 4] = [
        Retrieval::Forward,
        Retrieval::Backward,
        Retrieval::Max,
        Retrieval::Intersect,
    ];

    /// The name that [`FromStr`] accepts.
    pub fn name(self) -> &'static str {
        match self {
            Retrieval::Forward => "forward",
            Retrieval::Backward => "backward",
            Retrieval::Max => "max",
            Retrieval::Intersect => "intersect",
        }
    }
}

impl fmt::Display for Retrieval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Retrieval {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Retrieval::ALL
            .into_iter()
            .find(|mode| mode.name() == name)
            .ok_or_else(|| {
                let known = Retrieval::ALL.map(Retrieval::name).join(", ");
                format!("unknown retrieval \"{name}\", known are {known}")
            })
    }
}

/// A pair of positions, selected by its margin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// Position of the source row.
    pub source: u32,
    /// Position of the target row.
    pub target: u32,
    /// The margin of its cosine, see [`Margin`](crate::Margin).
    pub score: f64,
}

impl Pair {
    /// Score, highest first, then source, then target position.
    fn order(&self, other: &Pair) -> Ordering {
        (other.score.total_cmp(&self.score))
            .then(self.source.cmp(&other.source))
            .then(self.target.cmp(&other.target))
    }
}

/// For each row of `near` the neighbour with the best margin and its score; `None` for a row
/// without a neighbour that has a score. `far_means` are the neighbourhood means of the other
/// set. Equal scores: the lowest position.
///
/// # Errors
/// No memory, or those of `watch`.
pub fn best(
    near: &Neighbours,
    far_means: &[f64],
    margin: Margin,
    watch: Watch<'_>,
) -> Result<Vec<Option<(u32, f64)>>, Error> {
    let mut all = laser_memory::with_capacity(near.rows())?;
    let mut seen = 0;
    for row in 0..near.rows() {
        seen += 1 + near.positions(row).len();
        if seen >= STEP {
            seen = 0;
            watch()?;
        }
        let mean = near.mean(row);
        let mut best: Option<(u32, f64)> = None;
        for (&position, &cosine) in near.positions(row).iter().zip(near.cosines(row)) {
            let score = margin.score(cosine, mean, far_means[position as usize]);
            let better =
                best.is_none_or(|(held, top)| score > top || (score == top && position < held));
            if better && !score.is_nan() {
                best = Some((position, score));
            }
        }
        all.push(best);
    }
    Ok(all)
}

/// The pairs that `retrieval` keeps among the neighbours in both directions, with a score above
/// `threshold`, ordered by score, highest first, then by source and by target position.
///
/// # Panics
/// When there is no memory.
pub fn select(
    forward: &Neighbours,
    backward: &Neighbours,
    margin: Margin,
    retrieval: Retrieval,
    threshold: f64,
) -> Vec<Pair> {
    select_watched(forward, backward, margin, retrieval, threshold, &unwatched)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// [`select`], which can be stopped.
///
/// # Errors
/// No memory, or those of `watch`.
pub fn select_watched(
    forward: &Neighbours,
    backward: &Neighbours,
    margin: Margin,
    retrieval: Retrieval,
    threshold: f64,
    watch: Watch<'_>,
) -> Result<Vec<Pair>, Error> {
    let forward_best = || best(forward, &backward.means()?, margin, watch);
    let backward_best = || best(backward, &forward.means()?, margin, watch);
    let from_forward = |found: &mut Vec<Pair>, list: &[Option<(u32, f64)>]| {
        append(found, list, |row, (position, score)| Pair {
            source: row,
            target: position,
            score,
        })
    };
    let from_backward = |found: &mut Vec<Pair>, list: &[Option<(u32, f64)>]| {
        append(found, list, |row, (position, score)| Pair {
            source: position,
            target: row,
            score,
        })
    };
    let mut found = Vec::new();
    match retrieval {
        Retrieval::Forward => from_forward(&mut found, &forward_best()?)?,
        Retrieval::Backward => from_backward(&mut found, &backward_best()?)?,
        Retrieval::Max => {
            from_forward(&mut found, &forward_best()?)?;
            from_backward(&mut found, &backward_best()?)?;
            sort_by(&mut found, Pair::order, watch)?;
            let mut source_used = laser_memory::filled(false, forward.rows())?;
            let mut target_used = laser_memory::filled(false, backward.rows())?;
            found.retain(|pair| {
                let used = (
                    &mut source_used[pair.source as usize],
                    &mut target_used[pair.target as usize],
                );
                let free = !*used.0 && !*used.1;
                if free {
                    (*used.0, *used.1) = (true, true);
                }
                free
            });
        }
        Retrieval::Intersect => {
            let back = backward_best()?;
            from_forward(&mut found, &forward_best()?)?;
            found.retain(|pair| {
                back[pair.target as usize].is_some_and(|(position, _)| position == pair.source)
            });
        }
    }
    watch()?;
    found.retain(|pair| pair.score > threshold);
    sort_by(&mut found, Pair::order, watch)?;
    Ok(found)
}

fn append(
    found: &mut Vec<Pair>,
    list: &[Option<(u32, f64)>],
    make: impl Fn(u32, (u32, f64)) -> Pair,
) -> Result<(), Error> {
    let pairs = list
        .iter()
        .enumerate()
        .filter_map(|(row, best)| best.map(|best| make(row as u32, best)));
    Ok(laser_memory::extend(found, pairs)?)
}
