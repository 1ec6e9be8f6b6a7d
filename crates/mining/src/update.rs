//! Neighbourhoods that follow their sets: rows come and go, and only what that touches is
//! searched again. The results equal those of a search from scratch, to the last bit.

use crate::knn::{self, Input, Options};
use crate::{Error, Neighbours, RowStore, Rows, Side};

/// Neighbours in both directions between two sets of rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbourhoods {
    /// Target neighbours of each source row.
    pub forward: Neighbours,
    /// Source neighbours of each target row.
    pub backward: Neighbours,
}

/// One side of an [`extend`]: the rows that were there and those that came.
///
/// The positions are those in the united set; each list ascends, and together they are a
/// permutation of `0..kept + added`.
#[derive(Clone, Copy, Debug)]
pub struct Growth<'a> {
    /// Rows whose neighbourhoods are known.
    pub kept: Rows<'a>,
    /// Their new positions.
    pub kept_positions: &'a [u32],
    /// New rows.
    pub added: Rows<'a>,
    /// Their positions; with `kept_positions` these are all positions of the side.
    pub added_positions: &'a [u32],
}

impl Growth<'_> {
    fn total(&self) -> usize {
        self.kept_positions.len() + self.added_positions.len()
    }
}

/// Neighbourhoods after rows were added on either side: compares added rows with all rows of the
/// other side and nothing else. `k` must be that of the known neighbourhoods.
///
/// # Errors
/// As [`knn::both_rows`]; [`Error::Mismatch`] when the known neighbourhoods do not belong to the
/// kept rows or hold fewer neighbours than `k` where more exist.
pub fn extend(
    known: &Neighbourhoods,
    source: Growth<'_>,
    target: Growth<'_>,
    dimensions: usize,
    k: usize,
    options: &Options<'_>,
) -> Result<Neighbourhoods, Error> {
    if k == 0 {
        return Err(Error::ZeroK);
    }
    check(&known.forward, &source, &target, k, Side::Source)?;
    check(&known.backward, &target, &source, k, Side::Target)?;
    let (forward_k, backward_k) = (k.min(target.total()), k.min(source.total()));
    let mut forward_kept = Some(carry(&known.forward, target.kept_positions, forward_k)?);
    let mut backward_kept = Some(carry(&known.backward, source.kept_positions, backward_k)?);
    let mut forward_added = Some(Neighbours::empty(source.added_positions.len(), forward_k)?);
    let mut backward_added = Some(Neighbours::empty(target.added_positions.len(), backward_k)?);

    let source_kept = Input::labelled(source.kept, source.kept_positions);
    let source_added = Input::labelled(source.added, source.added_positions);
    let target_kept = Input::labelled(target.kept, target.kept_positions);
    let target_added = Input::labelled(target.added, target.added_positions);
    let both = [true, true];
    if !target.added_positions.is_empty() {
        let lists = [&mut forward_kept, &mut backward_added];
        knn::search(
            source_kept,
            target_added,
            dimensions,
            k,
            lists,
            both,
            options,
        )?;
    }
    if !source.added_positions.is_empty() {
        let lists = [&mut forward_added, &mut backward_kept];
        knn::search(
            source_added,
            target_kept,
            dimensions,
            k,
            lists,
            both,
            options,
        )?;
        let lists = [&mut forward_added, &mut backward_added];
        knn::search(
            source_added,
            target_added,
            dimensions,
            k,
            lists,
            both,
            options,
        )?;
    }
    let unite = |kept: Option<Neighbours>, added: Option<Neighbours>, growth: &Growth<'_>, k| {
        let mut united = Neighbours::empty(growth.total(), k)?;
        for (lists, positions) in [
            (kept, growth.kept_positions),
            (added, growth.added_positions),
        ] {
            let lists = lists.expect("made above");
            for (row, &position) in positions.iter().enumerate() {
                united.copy(position as usize, &lists, row);
            }
        }
        Ok::<_, Error>(united)
    };
    Ok(Neighbourhoods {
        forward: unite(forward_kept, forward_added, &source, forward_k)?,
        backward: unite(backward_kept, backward_added, &target, backward_k)?,
    })
}

/// Whether the known lists belong to these rows and are as long as `k` demands.
fn check(
    known: &Neighbours,
    own: &Growth<'_>,
    other: &Growth<'_>,
    k: usize,
    side: Side,
) -> Result<(), Error> {
    let others = other.kept_positions.len();
    let fits = known.rows() == own.kept_positions.len()
        && (0..known.rows()).all(|row| {
            known.counts[row] as usize >= k.min(others)
                && known
                    .positions(row)
                    .iter()
                    .all(|&position| (position as usize) < others)
        });
    if fits {
        Ok(())
    } else {
        Err(Error::Mismatch { side })
    }
}

/// The lists with room for `k` neighbours and with new positions for the neighbours.
fn carry(known: &Neighbours, positions: &[u32], k: usize) -> laser_memory::Result<Neighbours> {
    let mut lists = Neighbours::empty(known.rows(), k)?;
    for row in 0..known.rows() {
        for (&position, &cosine) in known.positions(row).iter().zip(known.cosines(row)) {
            lists.insert(row, positions[position as usize], cosine);
        }
    }
    Ok(lists)
}

/// Neighbourhoods after rows were removed: rows that lost a neighbour are searched again.
///
/// `source` and `target` are the rows that stay; `source_kept` and `target_kept` their ascending
/// positions in the known neighbourhoods.
///
/// # Errors
/// As [`extend`].
pub fn remove(
    known: &Neighbourhoods,
    (source, source_kept): (Rows<'_>, &[u32]),
    (target, target_kept): (Rows<'_>, &[u32]),
    dimensions: usize,
    k: usize,
    options: &Options<'_>,
) -> Result<Neighbourhoods, Error> {
    if k == 0 {
        return Err(Error::ZeroK);
    }
    if source.count(dimensions, Side::Source)? != source_kept.len() {
        return Err(Error::Mismatch { side: Side::Source });
    }
    if target.count(dimensions, Side::Target)? != target_kept.len() {
        return Err(Error::Mismatch { side: Side::Target });
    }
    let shrink = |lists: &Neighbours, own: Rows<'_>, own_kept, others, others_kept, side| {
        shrink(
            lists,
            (own, own_kept),
            (others, others_kept),
            side,
            dimensions,
            k,
            options,
        )
    };
    Ok(Neighbourhoods {
        forward: shrink(
            &known.forward,
            source,
            source_kept,
            target,
            target_kept,
            Side::Source,
        )?,
        backward: shrink(
            &known.backward,
            target,
            target_kept,
            source,
            source_kept,
            Side::Target,
        )?,
    })
}

fn shrink(
    known: &Neighbours,
    (own, own_kept): (Rows<'_>, &[u32]),
    (others, others_kept): (Rows<'_>, &[u32]),
    side: Side,
    dimensions: usize,
    k: usize,
    options: &Options<'_>,
) -> Result<Neighbours, Error> {
    let k = k.min(others_kept.len());
    let mut lists = Neighbours::empty(own_kept.len(), k)?;
    let mut short = Vec::new();
    for (row, &old) in own_kept.iter().enumerate() {
        if old as usize >= known.rows() {
            return Err(Error::Mismatch { side });
        }
        for (position, &cosine) in known
            .positions(old as usize)
            .iter()
            .zip(known.cosines(old as usize))
        {
            if let Ok(position) = others_kept.binary_search(position) {
                lists.insert(row, position as u32, cosine);
            }
        }
        if (lists.counts[row] as usize) < k {
            laser_memory::push(&mut short, row as u32)?;
        }
    }
    if !short.is_empty() {
        let limit = options.memory.map_or(usize::MAX, |memory| memory / 4);
        let mut rows = RowStore::new(dimensions, limit, options.folder.clone());
        for &row in &short {
            rows.push(&own.read(row as usize..row as usize + 1, dimensions, || Ok(()))?)?;
        }
        let found = knn::forward((&rows).into(), others, dimensions, k, options)?;
        for (from, &row) in short.iter().enumerate() {
            lists.copy(row as usize, &found, from);
        }
    }
    Ok(lists)
}
