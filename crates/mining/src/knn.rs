//! Exact nearest neighbours by cosine of two sets of embeddings, in both directions at once.
//!
//! The rows are compared in tiles. A tile's approximate cosines come from one matrix product (see
//! [`Kernel`]) and serve the lists of its rows and of its columns alike, half of the work of two
//! searches. Only candidates that may be among the k nearest, by the proven error bound of the
//! kernel, get an exact cosine in `f64`; so the result does not depend on the kernel, the number
//! of threads, the memory limit or the order of tiles.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

pub(crate) use crate::block::Input;
use crate::block::{Block, Set, block_rows};
pub use crate::control::Control;
use crate::cosine;
use crate::engine::Engine;
use crate::kernel::{Device, Kernel};
use crate::run::Run;
use crate::tile::Stripe;
use crate::{Error, Neighbours, Rows, Side};

/// How a search is run. None of it changes the result.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Threads that compute; at least one. Default: all that the process may use.
    pub threads: usize,
    /// The kernel for approximate cosines.
    pub kernel: Kernel,
    /// A device that computes them instead. The memory limit bounds what it is given as well.
    pub device: Option<&'a Device>,
    /// Bytes that the search may use for blocks of rows beside the lists of neighbours
    /// (`12 k + 12` bytes a row). Rows that lie in a file are read block by block, those of slices
    /// are packed block by block. `None`: one block. The least is about 5 MB at 1024 dimensions.
    pub memory: Option<usize>,
    /// Folder for temporary files that the caller makes; see [`crate::RowStore`].
    pub folder: Option<PathBuf>,
    /// Cancellation and progress.
    pub control: Option<&'a Control>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: Kernel::Auto,
            device: None,
            memory: None,
            folder: None,
            control: None,
        }
    }
}

/// The `k` nearest target rows of each source row (forward) and the `k` nearest source rows of
/// each target row (backward) by cosine.
///
/// `source` and `target` are row-major with `dimensions` values a row; they need not be
/// normalised. Lists have `min(k, rows of the other side)` entries. An empty side is no error.
///
/// # Errors
/// [`Error::ZeroK`], [`Error::ZeroDimensions`], [`Error::Shape`], [`Error::NotFinite`],
/// [`Error::ZeroVector`], [`Error::TooManyRows`], [`Error::Cancelled`], [`Error::OutOfMemory`].
pub fn both(
    source: &[f32],
    target: &[f32],
    dimensions: usize,
    k: usize,
    options: &Options<'_>,
) -> Result<(Neighbours, Neighbours), Error> {
    both_rows(source.into(), target.into(), dimensions, k, options)
}

/// [`both`] for slices or stores.
///
/// # Errors
/// As [`both`], and [`Error::Spill`] when a file cannot be read.
pub fn both_rows(
    source: Rows<'_>,
    target: Rows<'_>,
    dimensions: usize,
    k: usize,
    options: &Options<'_>,
) -> Result<(Neighbours, Neighbours), Error> {
    let mut forward = None;
    let mut backward = None;
    search(
        Input::whole(source),
        Input::whole(target),
        dimensions,
        k,
        [&mut forward, &mut backward],
        [true, true],
        options,
    )?;
    Ok((
        forward.expect("made by the search"),
        backward.expect("made by the search"),
    ))
}

/// The `k` nearest target rows of each source row only.
///
/// # Errors
/// As [`both_rows`].
pub fn forward(
    source: Rows<'_>,
    target: Rows<'_>,
    dimensions: usize,
    k: usize,
    options: &Options<'_>,
) -> Result<Neighbours, Error> {
    let mut forward = None;
    search(
        Input::whole(source),
        Input::whole(target),
        dimensions,
        k,
        [&mut forward, &mut None],
        [true, false],
        options,
    )?;
    Ok(forward.expect("made by the search"))
}

/// The cosine of two embeddings exactly as searches compute it; NaN when one of them is zero.
///
/// # Panics
/// When their dimensions differ.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "embeddings of different dimensions");
    let inverse = |row| 1.0 / cosine::square(row).sqrt();
    cosine::cosine(a, inverse(a), b, inverse(b))
}

/// Searches and adds what it finds to the lists, which are made when there are none. A list that
/// exists must hold exact cosines to rows of the other side that are not searched now.
pub(crate) fn search(
    source: Input<'_>,
    target: Input<'_>,
    dimensions: usize,
    k: usize,
    lists: [&mut Option<Neighbours>; 2],
    wanted: [bool; 2],
    options: &Options<'_>,
) -> Result<(), Error> {
    if k == 0 {
        return Err(Error::ZeroK);
    }
    if dimensions == 0 {
        return Err(Error::ZeroDimensions);
    }
    if let Some(control) = options.control {
        let pairs = source.rows.count(dimensions, Side::Source)? as u64
            * target.rows.count(dimensions, Side::Target)? as u64;
        control.total.fetch_add(pairs, Ordering::Relaxed);
    }
    add(source, target, dimensions, k, lists, wanted, options)
}

/// [`forward`], of pairs that the control's total has already.
pub(crate) fn nearest(
    source: Input<'_>,
    target: Input<'_>,
    dimensions: usize,
    k: usize,
    options: &Options<'_>,
) -> Result<Neighbours, Error> {
    let mut forward = None;
    let lists = [&mut forward, &mut None];
    add(source, target, dimensions, k, lists, [true, false], options)?;
    Ok(forward.expect("made by the search"))
}

/// [`search`], of pairs that the control's total has already.
pub(crate) fn add(
    source: Input<'_>,
    target: Input<'_>,
    dimensions: usize,
    k: usize,
    lists: [&mut Option<Neighbours>; 2],
    wanted: [bool; 2],
    options: &Options<'_>,
) -> Result<(), Error> {
    let unwatched = Control::default();
    let control = options.control.unwrap_or(&unwatched);
    let run = Run {
        engine: Engine::new(options.kernel, options.device, dimensions, options.memory),
        threads: options.threads.max(1),
        control,
    };
    let source = Set::new(source, Side::Source, dimensions, control)?;
    let target = Set::new(target, Side::Target, dimensions, control)?;

    let [forward, backward] = lists;
    let forward = prepare_lists(forward, wanted[0], &source, target.count, k)?;
    let backward = prepare_lists(backward, wanted[1], &target, source.count, k)?;
    if source.count == 0 || target.count == 0 {
        return Ok(());
    }

    let (source_rows, target_rows) =
        block_rows(&source, &target, dimensions, k, &run, options.memory);
    let mut held: Option<Block<'_>> = None;
    for source_first in (0..source.count).step_by(source_rows) {
        let source_block = Block::load(&source, source_first, source_rows, dimensions, &run)?;
        for target_first in (0..target.count).step_by(target_rows) {
            if held
                .as_ref()
                .is_none_or(|block| block.first != target_first)
            {
                // The old block goes before the new one comes.
                drop(held.take());
                held = Some(Block::load(
                    &target,
                    target_first,
                    target_rows,
                    dimensions,
                    &run,
                )?);
            }
            let target_block = held.as_ref().expect("just loaded");
            let pair = BlockPair {
                source: (&source, &source_block),
                target: (&target, target_block),
                dimensions,
            };
            pair.compare(forward, backward, wanted, &run)?;
        }
    }
    Ok(())
}

fn prepare_lists<'l>(
    lists: &'l mut Option<Neighbours>,
    wanted: bool,
    set: &Set<'_>,
    others: usize,
    k: usize,
) -> Result<&'l mut Neighbours, Error> {
    let k = if wanted {
        k.min(lists.as_ref().map_or(others, |lists| lists.k))
    } else {
        0
    };
    let lists = match lists {
        Some(lists) => lists,
        None => lists.insert(Neighbours::empty(set.count, k)?),
    };
    if lists.rows() != set.count {
        return Err(Error::Mismatch { side: set.side });
    }
    Ok(lists)
}

struct BlockPair<'a, 's> {
    source: (&'a Set<'s>, &'a Block<'s>),
    target: (&'a Set<'s>, &'a Block<'s>),
    dimensions: usize,
}

/// Target stripes that the threads work on at a time: their packed rows stay in a shared cache.
const GROUP: usize = 4;

impl BlockPair<'_, '_> {
    /// Compares all rows of the two blocks and updates the lists of both.
    fn compare(
        &self,
        forward: &mut Neighbours,
        backward: &mut Neighbours,
        wanted: [bool; 2],
        run: &Run<'_>,
    ) -> Result<(), Error> {
        let dimensions = self.dimensions;
        let (source_block, target_block) = (self.source.1, self.target.1);
        let source = source_block.exact(self.source.0, dimensions);
        let target = target_block.exact(self.target.0, dimensions);
        let error =
            run.engine
                .error_bound(source_block.residual, target_block.residual, dimensions);
        let height = run.engine.stripe(Side::Source);
        let width = run.engine.stripe(Side::Target);
        let rows = stripes(source_block, height, dimensions, forward, error, wanted[0])?;
        let columns = stripes(target_block, width, dimensions, backward, error, wanted[1])?;

        let (sources, targets) = (source_block.stripes.len(), target_block.stripes.len());
        let groups = targets.div_ceil(GROUP);
        let threads = run.engine.threads(run.threads);
        run.each(threads, groups * sources, |scratch, item| {
            let (group, i) = (item / sources, item % sources);
            let range = group * GROUP..((group + 1) * GROUP).min(targets);
            let size = range.len();
            for step in 0..size {
                // Neighbouring items start at different columns, so that they rarely meet.
                let j = range.start + (step + i) % size;
                run.control.check()?;
                run.engine.compare(
                    (&source_block.stripes[i], &rows[i], &source),
                    (&target_block.stripes[j], &columns[j], &target),
                    scratch,
                    || run.control.check(),
                )?;
                let count = |stripe: &Mutex<Stripe>| {
                    stripe.lock().expect("not poisoned").lists.rows() as u64
                };
                let pairs = count(&rows[i]) * count(&columns[j]);
                run.control.done.fetch_add(pairs, Ordering::Relaxed);
            }
            Ok(())
        })?;
        run.each(run.threads, sources + targets, |_, item| {
            if item < sources {
                rows[item]
                    .lock()
                    .expect("not poisoned")
                    .finish(&source, &target);
            } else {
                columns[item - sources]
                    .lock()
                    .expect("not poisoned")
                    .finish(&target, &source);
            }
            Ok(())
        })?;
        write_back(rows, source_block, height, forward, wanted[0]);
        write_back(columns, target_block, width, backward, wanted[1]);
        Ok(())
    }
}

fn stripes(
    block: &Block<'_>,
    stripe: usize,
    dimensions: usize,
    lists: &Neighbours,
    error: f64,
    wanted: bool,
) -> laser_memory::Result<Vec<Mutex<Stripe>>> {
    let rows = block.rows(dimensions);
    let mut made = laser_memory::with_capacity(rows.div_ceil(stripe))?;
    for first in (0..rows).step_by(stripe) {
        let count = stripe.min(rows - first);
        let mut own = Neighbours::empty(count, if wanted { lists.k } else { 0 })?;
        if wanted {
            for row in 0..count {
                own.copy(row, lists, block.first + first + row);
            }
        }
        made.push(Mutex::new(Stripe::new(first, own, error, wanted)?));
    }
    Ok(made)
}

fn write_back(
    stripes: Vec<Mutex<Stripe>>,
    block: &Block<'_>,
    stripe: usize,
    lists: &mut Neighbours,
    wanted: bool,
) {
    if !wanted {
        return;
    }
    for (at, own) in stripes.into_iter().enumerate() {
        let own = own.into_inner().expect("not poisoned");
        for row in 0..own.lists.rows() {
            lists.copy(block.first + at * stripe + row, &own.lists, row);
        }
    }
}
