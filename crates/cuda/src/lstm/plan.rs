//! How a layer is spread over a GPU.

use super::types::Shape;

/// Units of a block.
pub const UNITS: usize = 16;
/// Columns of a block's product: four gates of each unit.
const COLUMNS: usize = 4 * UNITS;
/// Elements between rows in shared memory.
const PAD: usize = 8;
/// Bytes of the sums of a block: the warps that are not needed for the rows of a product share its
/// depth, so there are always 128 rows of sums. The backward pass needs less of everything.
const SUMS: usize = 128 * (COLUMNS + 4) * 4;

/// Threads of a block.
pub const THREADS: usize = 256;

/// What a GPU has.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Multiprocessors; a block on each can run at the same time.
    pub multiprocessors: usize,
    /// Bytes of shared memory that a block can have.
    pub shared: usize,
}

/// The launch of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Sentences that a block takes at once: 64 or 32.
    pub rows: usize,
    /// Groups of blocks with different sentences.
    pub groups: usize,
    /// Bytes of shared memory of a block.
    pub shared: usize,
}

impl Plan {
    /// The plan in which blocks take the fewest sentences one after another; none if the layer does
    /// not fit on the GPU.
    pub fn new(shape: Shape, sentences: usize, limits: &Limits) -> Option<Self> {
        let hidden = shape.hidden;
        if hidden == 0 || !hidden.is_multiple_of(UNITS) {
            return None;
        }
        let most = limits.multiprocessors / (shape.width() / UNITS);
        let plan = |rows: usize| {
            let line = (hidden + PAD) * 2;
            let shared = COLUMNS * line + SUMS.max(rows * line);
            let slices = sentences.div_ceil(rows).max(1);
            let groups = most.min(slices);
            let work = rows * slices.div_ceil(groups.max(1));
            let plan = Self {
                rows,
                groups,
                shared,
            };
            (groups > 0 && shared <= limits.shared).then_some((work, plan))
        };
        // Of equal ones the first: fewer, larger products.
        [64, 32]
            .into_iter()
            .filter_map(plan)
            .min_by_key(|(work, _)| *work)
            .map(|(_, plan)| plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: Limits = Limits {
        multiprocessors: 132,
        shared: 232_448,
    };

    fn plan(hidden: usize, sentences: usize, limits: &Limits) -> Option<Plan> {
        let directions = 2;
        Plan::new(Shape { directions, hidden }, sentences, limits)
    }

    #[test]
    fn a_plan_fills_the_gpu() {
        let large = plan(512, 128, &H100).unwrap();
        assert_eq!((large.rows, large.groups), (64, 2));
        // One sentence needs no more than the smaller product.
        assert_eq!(plan(512, 1, &H100).unwrap().rows, 32);
        // More sentences than fit at once are taken one slice after the other.
        assert_eq!(plan(512, 1000, &H100).unwrap().groups, 2);
        // Small layers spread the sentences.
        let small = plan(128, 256, &H100).unwrap();
        assert_eq!((small.rows, small.groups), (32, 8));
        // One direction leaves room for twice the groups.
        let shape = Shape {
            directions: 1,
            hidden: 512,
        };
        let forward = Plan::new(shape, 256, &H100).unwrap();
        assert_eq!((forward.rows, forward.groups), (64, 4));
    }

    #[test]
    fn what_does_not_fit_has_no_plan() {
        assert_eq!(plan(1000, 1, &H100), None);
        assert_eq!(plan(2048, 1, &H100), None);
        let small = Limits {
            multiprocessors: 128,
            shared: 101_376,
        };
        assert_eq!(plan(512, 1, &small).unwrap().rows, 32);
        assert_eq!(plan(528, 1, &small), None);
    }
}
