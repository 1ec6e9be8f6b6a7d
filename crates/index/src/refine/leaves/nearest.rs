//! The nearest of what each node has met in its leaves.

use std::sync::Mutex;

use crate::error::Result;
use crate::table::{Place, Table};
use crate::walk::{Key, parts};

/// Others that are kept of each node: about as many as leaves offer it.
const KEPT: usize = 24;
/// Bytes of these.
pub(super) const BYTES: usize = KEPT * size_of::<Key>();
/// Nodes whose lists are locked together.
const STRIPE: usize = 1 << 8;
/// Behind the last one.
const NONE: Key = Key::MAX;

/// For every node the nearest others that it was offered, the nearest first.
pub(super) struct Nearest(Table<Key>);

impl Nearest {
    /// Of nodes that have met nobody yet.
    ///
    /// # Errors
    /// No memory, no room on the disk.
    pub(super) fn of(nodes: usize, place: Place<'_>) -> Result<Self> {
        let mut keys = Table::<Key>::zeroed(nodes * KEPT, place)?;
        keys.fill(NONE);
        Ok(Self(keys))
    }

    /// Those of a node.
    pub(super) fn of_node(&self, node: u32) -> impl Iterator<Item = u32> {
        let keys = &self.0[node as usize * KEPT..][..KEPT];
        let met = keys.iter().take_while(|key| **key != NONE);
        met.map(|key| parts(*key).1)
    }

    /// For several threads, which offer others to nodes that may be the same.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn shared(&mut self) -> Result<Shared<'_>> {
        let stripes = self.0.chunks_mut(STRIPE * KEPT).map(Mutex::new);
        Ok(Shared(laser_memory::collect(stripes)?))
    }
}

/// Lists of [`Nearest`] that are offered to.
pub(super) struct Shared<'a>(Vec<Mutex<&'a mut [Key]>>);

impl Shared<'_> {
    /// Offers others to a node. What is left is the same in whatever order they come: the nearest, and of those that are offered
    /// more than once, whose distances may differ by rounding, the nearer.
    pub(super) fn offer(&self, node: u32, others: &[Key]) {
        let lists = self.0[node as usize / STRIPE].lock();
        let mut lists = lists.unwrap_or_else(|e| e.into_inner());
        let list = &mut lists[node as usize % STRIPE * KEPT..][..KEPT];
        for &other in others {
            offer(list, other);
        }
    }
}

fn offer(list: &mut [Key], other: Key) {
    if other >= list[KEPT - 1] {
        return;
    }
    let is_same = |key: &Key| *key as u32 == other as u32 && *key != NONE;
    // What is behind moves up to here: over the farther one of the same node, or the last.
    let until = list.iter().position(is_same).unwrap_or(KEPT - 1);
    let at = list.partition_point(|key| *key < other);
    if at <= until {
        list.copy_within(at..until, at + 1);
        list[at] = other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::key;

    fn nodes(nearest: &Nearest, node: u32) -> Vec<u32> {
        nearest.of_node(node).collect()
    }

    #[test]
    fn the_nearest_are_kept_in_any_order_of_offers() {
        let offered: Vec<Key> = (0..100).map(|i| key((i * 37 % 100) as f32, i)).collect();
        let mut expected = offered.clone();
        expected.sort_unstable();
        let expected: Vec<u32> = expected[..KEPT].iter().map(|key| *key as u32).collect();
        let mut nearest = Nearest::of(3000, Place::Memory).unwrap();
        let shared = nearest.shared().unwrap();
        shared.offer(2999, &offered);
        shared.offer(7, &offered[50..]);
        shared.offer(2000, &[]);
        shared.offer(7, &offered[..50]);
        shared.offer(7, &offered[20..70]);
        drop(shared);
        assert_eq!(nodes(&nearest, 7), expected);
        assert_eq!(nodes(&nearest, 2999), expected);
        assert!(nodes(&nearest, 2000).is_empty());
    }

    #[test]
    fn nobody_is_kept_twice() {
        for distances in [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]] {
            let mut nearest = Nearest::of(1, Place::Memory).unwrap();
            let shared = nearest.shared().unwrap();
            let others = distances.map(|distance| key(distance, 5));
            shared.offer(0, &[key(1.5, 9), others[0], others[1]]);
            drop(shared);
            assert_eq!(nodes(&nearest, 0), [5, 9]);
        }
    }
}
