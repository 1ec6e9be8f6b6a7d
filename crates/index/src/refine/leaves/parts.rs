//! Parts of a division, divided further until they are leaves.

use laser_sampling::SplitMix64;

use super::divide::{By, Leaders, Room};
use super::nearest::Shared;
use super::pairs::Pairs;
use super::points::Points;
use crate::blocks::Pause;
use crate::error::Result;

/// A division that leaves more than this share of the nodes together is none.
const WORST: f64 = 15.0 / 16.0;

/// Divides parts into leaves, on one thread.
pub(super) struct Divider<'a, 'b, 'c> {
    points: Points<'a>,
    met: &'b Shared<'c>,
    room: Room,
    pairs: Pairs,
}

impl<'a, 'b, 'c> Divider<'a, 'b, 'c> {
    /// One whose nodes are told whom they have met.
    pub(super) fn new(points: Points<'a>, met: &'b Shared<'c>) -> Self {
        Self {
            points,
            met,
            room: Room::default(),
            pairs: Pairs::default(),
        }
    }

    /// Divides a part until all that are together have met. Leaders are drawn by the seed.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn divide(
        &mut self,
        part: &[u32],
        by: By,
        seed: u64,
        pause: Pause<'_>,
    ) -> Result<()> {
        let (sizes, mut random) = (self.points.sizes(), SplitMix64::new(seed));
        let mut left = vec![(laser_memory::copied(part)?, by, false)];
        while let Some((places, by, is_again)) = left.pop() {
            if places.len() <= sizes.largest() {
                self.leaf(&places, pause)?;
                continue;
            }
            let parts = self.parts(&places, by, &mut random, pause)?;
            let largest = parts.iter().map(Vec::len).max().unwrap_or(0);
            if largest as f64 <= WORST * places.len() as f64 {
                left.extend(parts.into_iter().map(|part| (part, by, false)));
            } else if !is_again {
                left.push((places, by.other(), true));
            } else {
                // Most lie in one place, and anybody is as near as any other.
                for leaf in places.chunks(sizes.leaf) {
                    self.leaf(leaf, pause)?;
                }
            }
        }
        Ok(())
    }

    /// The parts of one division. Those that are small are one together.
    fn parts(
        &mut self,
        places: &[u32],
        by: By,
        random: &mut SplitMix64,
        pause: Pause<'_>,
    ) -> Result<Vec<Vec<u32>>> {
        let sizes = self.points.sizes();
        let leaders = places.len().div_ceil(sizes.leaf);
        let leaders = Leaders::of(self.points, places, leaders, by, random, &mut self.room)?;
        let mut parts: Vec<Vec<u32>> = vec![Vec::new(); leaders.len()];
        let mut belongs = laser_memory::filled(0, sizes.rows)?;
        for rows in places.chunks(sizes.rows) {
            pause()?;
            let belongs = &mut belongs[..rows.len()];
            leaders.assign(self.points, rows, 1, &mut self.room, belongs)?;
            for (place, leader) in rows.iter().zip(belongs) {
                laser_memory::push(&mut parts[usize::from(*leader)], *place)?;
            }
        }
        let mut joined: Vec<Vec<u32>> = Vec::new();
        for part in parts {
            match joined.last_mut() {
                Some(last) if last.len() + part.len() <= sizes.leaf => {
                    laser_memory::extend_from_slice(last, &part)?;
                }
                _ => joined.push(part),
            }
        }
        Ok(joined)
    }

    fn leaf(&mut self, leaf: &[u32], pause: Pause<'_>) -> Result<()> {
        let met = self.met;
        self.pairs.each(self.points, leaf, pause, |node, others| {
            met.offer(node, others)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::super::members::Members;
    use super::super::nearest::Nearest;
    use super::*;
    use crate::codec::Codec;
    use crate::error::IndexError;
    use crate::metric::Metric;
    use crate::nodes::Nodes;
    use crate::quantization::Quantization;
    use crate::table::Place;

    /// A part may have most nodes: who divides it asks for each leaf, and each few hundred nodes, whether it goes on.
    #[test]
    fn dividing_can_be_ended() {
        let (count, codec) = (20_000, Codec::new(2, Metric::L2, Quantization::F32));
        let nodes = Nodes::new(codec, 8, 0);
        for key in 0..count {
            let x = [(key as f32).sin(), (key as f32).cos()];
            nodes.add(key, bytemuck::cast_slice(&x)).unwrap();
        }
        let mut graph = vec![0; nodes.serialized_len()];
        nodes.save(&mut graph).unwrap();
        let members = Members::All(count as usize);
        let points = Points::of(&codec, &graph, members).unwrap();
        let part: Vec<u32> = (0..count).collect();
        let asked = Cell::new(0);
        let divide = |last: usize| {
            asked.set(0);
            let mut nearest = Nearest::of(count as usize, Place::Memory).unwrap();
            let shared = nearest.shared().unwrap();
            Divider::new(points, &shared).divide(&part, By::Distance, 1, &|| {
                asked.set(asked.get() + 1);
                match asked.get() == last {
                    true => Err(IndexError::GraphMemory),
                    false => Ok(()),
                }
            })
        };
        divide(usize::MAX).unwrap();
        let all = asked.get();
        assert!(all > 2 * count as usize / 256, "{all}");
        for last in [1, 5, all / 2, all] {
            assert!(divide(last).is_err());
            assert_eq!(asked.get(), last);
        }
    }
}
