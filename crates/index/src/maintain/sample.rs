//! The vectors by which a merge decides how others are stored.

use laser_sampling::stratified;
use laser_vector::kernels::norm;

use crate::choice::{LONGEST, SAMPLE, SEARCHED};
use crate::error::{IndexError, Result};
use crate::meta::{Parameters, Pending};
use crate::metric::Metric;
use crate::page::UNPLACED;
use crate::pending;
use crate::space;
use crate::store::PageStore;
use crate::view::SegmentView;

/// The longest ones of many vectors.
#[derive(Default)]
struct Longest(Vec<(f64, Vec<f32>)>);

impl Longest {
    fn look(&mut self, x: &[f32]) {
        let length = norm(x);
        if self.0.len() == LONGEST && self.0[LONGEST - 1].0 >= length {
            return;
        }
        let at = self.0.partition_point(|(longer, _)| *longer >= length);
        self.0.insert(at, (length, x.to_vec()));
        self.0.truncate(LONGEST);
    }
}

/// Prepared vectors, from all over the live ones of segments and of a sealed list, with their number there, and for inner
/// products the longest of all, which decide how the others are stored ([`space::Space::reaches`]).
pub(super) fn sample(
    store: &impl PageStore,
    parameters: &Parameters,
    views: &[SegmentView],
    list: Option<(&Pending, usize)>,
    memory: usize,
) -> Result<Vec<Vec<f32>>> {
    let vectors = |view: &SegmentView| view.header().placed() as usize;
    let total = views.iter().map(vectors).sum::<usize>() + list.map_or(0, |(_, len)| len);
    let fits = memory / 8 / (4 * parameters.dims);
    let mut places = stratified(total, SAMPLE.min(fits).max(16)).peekable();
    let (mut sample, mut at) = (Vec::new(), 0);
    let (mut longest, by_length) = (
        Longest::default(),
        parameters.metric == Metric::InnerProduct,
    );
    let mut chosen = || {
        at += 1;
        places.next_if_eq(&(at - 1)).is_some()
    };
    for view in views {
        let mut entry = 0;
        view.for_each(|slot, _, _| {
            if entry % 4096 == 0 {
                store.pause();
            }
            entry += 1;
            let chosen = chosen();
            if chosen || by_length {
                let (x, _) = view.vector(slot);
                if chosen {
                    sample.push(x);
                } else {
                    longest.look(&x);
                }
            }
            Ok::<(), IndexError>(())
        })?;
    }
    if let Some((list, _)) = list {
        let mut raw = Vec::new();
        let mut failed = None;
        pending::read(store, parameters, list, false, |entry| {
            if !entry.is_live() || entry.tid & UNPLACED != 0 {
                return;
            }
            let chosen = chosen();
            if chosen || by_length {
                entry.decode(parameters, &mut raw);
                match space::prepare(parameters.metric, parameters.dims, &raw) {
                    Ok(Some(x)) if chosen => sample.push(x),
                    Ok(Some(x)) => longest.look(&x),
                    Ok(None) => {}
                    Err(error) => failed = Some(error),
                }
            }
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
    }
    sample.extend(longest.0.into_iter().map(|(_, x)| x));
    Ok(sample)
}

/// A few prepared vectors from all over some segments, live or dead.
pub(super) fn some_of<'a>(views: impl Iterator<Item = &'a SegmentView> + Clone) -> Vec<Vec<f32>> {
    let placed = |view: &SegmentView| view.header().placed() as usize;
    let total = views.clone().map(placed).sum();
    let (mut rest, mut before) = (views, 0);
    let mut view = rest.next();
    let mut some = Vec::new();
    for at in stratified(total, SEARCHED) {
        while let Some(own) = view
            && at - before >= placed(own)
        {
            before += placed(own);
            view = rest.next();
        }
        if let Some(own) = view {
            some.push(own.vector(at - before).0);
        }
    }
    some
}
