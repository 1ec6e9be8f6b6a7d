//! Divides nodes by which of some of them, the leaders, they belong to.

use laser_kernels::strided;
use laser_sampling::SplitMix64;

use super::points::Points;
use crate::error::Result;

/// Leaders at least: of two, one may have nearly everybody.
const FEWEST: usize = 4;

/// To which leader a node belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The nearest one. Where data have a middle, everybody's is there.
    Distance,
    /// The one in whose direction it lies, as seen from the middle.
    Direction,
}

impl By {
    /// The other way.
    pub(super) fn other(self) -> Self {
        match self {
            Self::Distance => Self::Direction,
            Self::Direction => Self::Distance,
        }
    }
}

/// Some nodes, to which others belong.
pub(super) struct Leaders {
    count: usize,
    origin: Vec<f32>,
    /// Row by row, from the origin; directions are of unit length.
    components: Vec<f32>,
    /// What is added to minus the product with each.
    offsets: Vec<f32>,
}

/// Room for what is computed on one thread.
#[derive(Default)]
pub(super) struct Room {
    scratch: Vec<f32>,
    components: Vec<f32>,
    products: Vec<f32>,
    order: Vec<u16>,
}

impl Leaders {
    /// About `count` of these nodes, by chance.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn of(
        points: Points<'_>,
        places: &[u32],
        count: usize,
        by: By,
        random: &mut SplitMix64,
        room: &mut Room,
    ) -> Result<Self> {
        let count = count.clamp(FEWEST, points.sizes().leaders);
        let drawn = (0..count).map(|_| places[random.below(places.len())]);
        let leaders = laser_memory::collect(drawn)?;
        let origin = points.mean(places, &mut room.scratch);
        let mut components = Vec::new();
        points.load(&leaders, &origin, &mut room.scratch, &mut components)?;
        let rows = components.chunks_exact_mut(points.width().max(1));
        let offset = |row: &mut [f32]| {
            let square = laser_vector::kernels::f32_dot(row, row);
            if by == By::Distance {
                return square / 2.0;
            }
            let length = square.sqrt();
            if length > 0.0 {
                row.iter_mut().for_each(|x| *x /= length);
            }
            0.0
        };
        let offsets = laser_memory::collect(rows.map(offset))?;
        Ok(Self {
            count,
            origin,
            components,
            offsets,
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// To which of them some nodes, [`Sizes::rows`](super::sizes::Sizes) at most, belong: `each` of every node, the first one first.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn assign(
        &self,
        points: Points<'_>,
        places: &[u32],
        each: usize,
        room: &mut Room,
        out: &mut [u16],
    ) -> Result<()> {
        let (width, count) = (points.width(), self.count);
        points.load(
            places,
            &self.origin,
            &mut room.scratch,
            &mut room.components,
        )?;
        let len = points.sizes().rows * count;
        if room.products.len() < len {
            room.products = laser_memory::filled(0.0, len)?;
        }
        strided::product(
            (places.len(), count, width),
            (&room.components, width, 1),
            (&self.components, 1, width),
            (&mut room.products, count),
            false,
            -1.0,
        );
        let products = room.products.chunks_exact_mut(count);
        for (products, out) in products.zip(out.chunks_exact_mut(each)) {
            for (product, offset) in products.iter_mut().zip(&self.offsets) {
                *product += offset;
            }
            // There are a few hundred at most.
            room.order.clear();
            room.order.extend(0..count as u16);
            let before = |a: &u16, b: &u16| {
                let (x, y) = (products[usize::from(*a)], products[usize::from(*b)]);
                x.total_cmp(&y).then(a.cmp(b))
            };
            if each < count {
                room.order.select_nth_unstable_by(each - 1, before);
            }
            let nearest = &mut room.order[..each.min(count)];
            nearest.sort_unstable_by(before);
            // Of two that are asked for there are two.
            out.copy_from_slice(nearest);
        }
        Ok(())
    }
}

/// Sorts places by their leaders into `out`; of the same leader they stay as they come. Returns where those of each
/// leader begin, and where the last end.
pub(super) fn by_leader(
    out: &mut [u32],
    leaders: usize,
    belongs: impl Iterator<Item = (u16, u32)> + Clone,
) -> Vec<usize> {
    let mut starts = vec![0; leaders + 1];
    for (leader, _) in belongs.clone() {
        starts[usize::from(leader) + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut next = starts.clone();
    for (leader, place) in belongs {
        let next = &mut next[usize::from(leader)];
        out[*next] = place;
        *next += 1;
    }
    starts
}
