//! Lists of edges of all nodes of a level, rewritten on several threads.

use std::sync::atomic::AtomicUsize;

use super::blocks;
use crate::error::Result;
use crate::walk::Walk;

/// Writes a list of edges to where it belongs.
pub(super) fn write(graph: &mut [u8], at: usize, list: &[u32]) {
    for (i, word) in list.iter().enumerate() {
        // Nothing is left behind the last edge.
        let word = if i > list[0] as usize { 0 } else { *word };
        graph[at + 4 * i..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// The edges of every node on a level: their number, then room for as many as there may be.
pub(super) struct Lists {
    stride: usize,
    all: Vec<u32>,
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

impl Lists {
    /// Those of all nodes on the lowest level.
    pub(super) fn new(walk: &Walk, graph: &[u8]) -> Result<Self> {
        Self::of(walk, graph, 0, walk.nodes, |node| node as u32)
    }

    /// Those of `count` nodes on a level.
    pub(super) fn of(
        walk: &Walk,
        graph: &[u8],
        level: usize,
        count: usize,
        node: impl Fn(usize) -> u32,
    ) -> Result<Self> {
        let stride = 1 + walk.room(level);
        let all = laser_memory::filled(0, stride * count)?;
        let mut lists = Self { stride, all };
        for (i, list) in lists.all.chunks_exact_mut(stride).enumerate() {
            let mut list = List(list);
            walk.neighbours(graph, node(i), level)
                .for_each(|to| list.push(to));
        }
        Ok(lists)
    }

    pub(super) fn each(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.all.chunks_exact(self.stride).enumerate()
    }

    /// All nodes, each near those before it: from each on to its neighbours that have not been met. Walks that begin
    /// at nodes near each other find what they read in the processor's caches.
    pub(super) fn by_place(&self) -> Result<Vec<u32>> {
        let nodes = self.all.len() / self.stride;
        let mut met = laser_memory::filled(false, nodes)?;
        // Every node is in each of them once.
        let mut order = laser_memory::with_capacity(nodes)?;
        let mut next = laser_memory::with_capacity(nodes)?;
        for first in 0..nodes as u32 {
            if std::mem::replace(&mut met[first as usize], true) {
                continue;
            }
            next.push(first);
            while let Some(node) = next.pop() {
                order.push(node);
                let list = &self.all[node as usize * self.stride..][..self.stride];
                let edges = list[1..=list[0] as usize].iter().rev();
                next.extend(edges.filter(|&&to| !std::mem::replace(&mut met[to as usize], true)));
            }
        }
        Ok(order)
    }

    /// Shows every list to a worker, which `start` makes for each thread; this one is among them.
    pub(super) fn rewrite<W: FnMut(u32, &mut List<'_>)>(
        &mut self,
        order: &[u32],
        threads: usize,
        done: &AtomicUsize,
        pause: &dyn Fn(),
        start: impl Fn() -> Result<W> + Sync,
    ) -> Result<()> {
        let mut lists = laser_memory::collect(self.all.chunks_exact_mut(self.stride).map(Some))?;
        let by_place = order
            .iter()
            .map(|&node| (node, lists[node as usize].take().expect("every node once")));
        let mut by_place: Vec<(u32, &mut [u32])> = laser_memory::collect(by_place)?;
        drop(lists);
        pause();
        blocks::each(&mut by_place, threads, done, pause, || {
            let mut worker = start()?;
            Ok(move |(node, list): &mut (u32, &mut [u32])| {
                worker(*node, &mut List(list));
                Ok(())
            })
        })
    }
}

/// For every list, the numbers of the lists that lead to its node.
pub(super) struct Offers {
    starts: Vec<usize>,
    from: Vec<u32>,
}

impl Offers {
    /// `place` is the number of a node's list.
    pub(super) fn of(
        lists: &Lists,
        place: impl Fn(u32) -> usize,
        pause: &dyn Fn(),
    ) -> Result<Self> {
        let all = || lists.all.chunks_exact(lists.stride);
        let mut starts = laser_memory::filled(0usize, lists.all.len() / lists.stride + 1)?;
        for list in all() {
            for &to in &list[1..=list[0] as usize] {
                starts[place(to) + 1] += 1;
            }
        }
        pause();
        for node in 1..starts.len() {
            starts[node] += starts[node - 1];
        }
        let mut from = laser_memory::filled(0, starts.last().copied().unwrap_or(0))?;
        let mut next = laser_memory::copied(&starts)?;
        for (node, list) in all().enumerate() {
            for &to in &list[1..=list[0] as usize] {
                let next = &mut next[place(to)];
                from[*next] = node as u32;
                *next += 1;
            }
        }
        pause();
        Ok(Self { starts, from })
    }

    pub(super) fn to(&self, node: u32) -> &[u32] {
        let node = node as usize;
        &self.from[self.starts[node]..self.starts[node + 1]]
    }
}
