//! Lists of edges of all nodes of a level, rewritten on several threads.

use std::sync::atomic::AtomicUsize;

use super::members::Members;
use crate::blocks;
use crate::error::Result;
use crate::order;
use crate::table::{Place, Table};
use crate::walk::Walk;

/// Lists that are handed to the threads at once: a pointer to each takes memory.
const WINDOW: usize = 1 << 17;
/// Lists between two pauses of who goes through them alone.
const BETWEEN: usize = 1 << 16;

/// Writes a list of edges to where it belongs.
pub(super) fn write(graph: &mut [u8], at: usize, list: &[u32]) {
    for (i, word) in list.iter().enumerate() {
        // Nothing is left behind the last edge.
        let word = if i > list[0] as usize { 0 } else { *word };
        graph[at + 4 * i..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// The edges of every node on a level: their number, then room for as many as there may be.
pub(super) struct Lists<'a> {
    stride: usize,
    all: Table<u32>,
    /// Where these and the tables made of them are.
    place: Place<'a>,
}

/// Those of one node.
pub(super) struct List<'a>(pub(super) &'a mut [u32]);

impl List<'_> {
    pub(super) fn edges(&self) -> &[u32] {
        &self.0[1..=self.0[0] as usize]
    }

    pub(super) fn room(&self) -> usize {
        self.0.len() - 1 - self.0[0] as usize
    }

    pub(super) fn is_full(&self) -> bool {
        self.room() == 0
    }

    pub(super) fn clear(&mut self) {
        self.0[0] = 0;
    }

    pub(super) fn push(&mut self, to: u32) {
        self.0[0] += 1;
        self.0[self.0[0] as usize] = to;
    }
}

impl<'a> Lists<'a> {
    /// Those of the nodes of a level.
    pub(super) fn of(
        walk: &Walk,
        graph: &[u8],
        (level, nodes): (usize, Members<'_>),
        place: Place<'a>,
        pause: &dyn Fn(),
    ) -> Result<Self> {
        let stride = 1 + walk.room(level);
        let mut all = Table::<u32>::zeroed(stride * nodes.len(), place)?;
        for (i, list) in all.chunks_exact_mut(stride).enumerate() {
            if i.is_multiple_of(BETWEEN) {
                pause();
            }
            let mut list = List(list);
            walk.neighbours(graph, nodes.node(i as u32), level)
                .for_each(|to| list.push(to));
        }
        Ok(Self { stride, all, place })
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.all.chunks_exact(self.stride).enumerate()
    }

    /// All nodes, each near those before it ([`order::by_place`]). Walks that begin at nodes near each other find what they read
    /// in the processor's caches.
    pub(super) fn by_place(&self, pause: &dyn Fn()) -> Result<Table<u32>> {
        let list = |node: u32, out: &mut Vec<u32>| {
            let list = &self.all[node as usize * self.stride..][..self.stride];
            out.extend_from_slice(&list[1..=list[0] as usize]);
        };
        order::by_place(self.all.len() / self.stride, self.place, list, pause)
    }

    /// Shows every list to a worker, which `start` makes for each thread; this one is among them. `order` has every
    /// list once.
    pub(super) fn rewrite<W: FnMut(u32, &mut List<'_>)>(
        &mut self,
        order: &[u32],
        threads: usize,
        done: &AtomicUsize,
        pause: &dyn Fn(),
        start: impl Fn() -> Result<W> + Sync,
    ) -> Result<()> {
        for window in order.chunks(WINDOW) {
            let mut ascending = laser_memory::collect(window.iter().copied().zip(0u32..))?;
            ascending.sort_unstable();
            // Lists are borrowed one by one from the front of those that are left.
            let (mut rest, mut before) = (&mut self.all[..], 0);
            let stride = self.stride;
            let borrowed = ascending.iter().map(|&(node, turn)| {
                let (_, from) =
                    std::mem::take(&mut rest).split_at_mut((node as usize - before) * stride);
                let (list, behind) = from.split_at_mut(stride);
                (rest, before) = (behind, node as usize + 1);
                (turn, node, list)
            });
            let mut by_place = laser_memory::collect(borrowed)?;
            by_place.sort_unstable_by_key(|&(turn, ..)| turn);
            pause();
            let blocks = (blocks::NODES, threads);
            blocks::each(&mut by_place, blocks, done, pause, || {
                let mut worker = start()?;
                type Borrowed<'a> = (u32, u32, &'a mut [u32]);
                Ok(
                    move |(_, node, list): &mut Borrowed<'_>, _: blocks::Pause<'_>| {
                        worker(*node, &mut List(list));
                        Ok(())
                    },
                )
            })?;
        }
        Ok(())
    }
}

/// For every list, the numbers of the lists that lead to its node.
pub(super) struct Offers {
    starts: Table<u64>,
    from: Table<u32>,
}

impl Offers {
    /// `place` is the number of a node's list.
    pub(super) fn of(
        lists: &Lists<'_>,
        place: impl Fn(u32) -> usize,
        pause: &dyn Fn(),
    ) -> Result<Self> {
        let all = || lists.all.chunks_exact(lists.stride);
        let count = lists.all.len() / lists.stride;
        let mut starts = Table::<u64>::zeroed(count + 1, lists.place)?;
        for list in all() {
            for &to in &list[1..=list[0] as usize] {
                starts[place(to) + 1] += 1;
            }
        }
        pause();
        for node in 1..starts.len() {
            starts[node] += starts[node - 1];
        }
        let mut from = Table::<u32>::zeroed(starts[count] as usize, lists.place)?;
        let mut next = Table::<u64>::zeroed(count, lists.place)?;
        next.copy_from_slice(&starts[..count]);
        for (node, list) in all().enumerate() {
            for &to in &list[1..=list[0] as usize] {
                let next = &mut next[place(to)];
                from[*next as usize] = node as u32;
                *next += 1;
            }
        }
        pause();
        Ok(Self { starts, from })
    }

    pub(super) fn to(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.from[self.starts[node] as usize..self.starts[node + 1] as usize]
    }
}
