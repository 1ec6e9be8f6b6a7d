//! All pairs of the nodes of a leaf.

use laser_kernels::strided;

use super::points::Points;
use crate::blocks::Pause;
use crate::error::Result;
use crate::walk::{Key, key, parts};

/// Others of a leaf that each of its nodes keeps.
const KEPT: usize = 8;

/// Room for the products of one leaf after the other.
#[derive(Default)]
pub(super) struct Pairs {
    scratch: Vec<f32>,
    components: Vec<f32>,
    squares: Vec<f32>,
    products: Vec<f32>,
}

impl Pairs {
    /// Tells of each of the nodes which others of them are the nearest.
    ///
    /// # Errors
    /// No memory.
    pub(super) fn each(
        &mut self,
        points: Points<'_>,
        leaf: &[u32],
        pause: Pause<'_>,
        mut tell: impl FnMut(u32, &[Key]),
    ) -> Result<()> {
        let (width, count) = (points.width(), leaf.len());
        let origin = points.mean(leaf, &mut self.scratch);
        points.load(leaf, &origin, &mut self.scratch, &mut self.components)?;
        let rows = || self.components.chunks_exact(width.max(1));
        self.squares.clear();
        let square = |row: &[f32]| laser_vector::kernels::f32_dot(row, row);
        self.squares.extend(rows().map(square));
        let at_once = points.sizes().rows;
        if self.products.len() < at_once * count {
            self.products = laser_memory::filled(0.0, at_once * count)?;
        }
        for first in (0..count).step_by(at_once) {
            pause()?;
            let block = at_once.min(count - first);
            strided::product(
                (block, count, width),
                (&self.components[first * width..], width, 1),
                (&self.components, 1, width),
                (&mut self.products, count),
                false,
                1.0,
            );
            let products = self.products.chunks_exact(count);
            for (own, products) in (first..first + block).zip(products) {
                let mut nearest = [Key::MAX; KEPT];
                let mut farthest = f32::INFINITY;
                // Of others at one distance those behind the own one come first, up to rounding: not everybody's are the same.
                for other in (own + 1..count).chain(0..own) {
                    // Without the own square, which is the same for all. What is no number is not less than anything.
                    let distance = self.squares[other] - 2.0 * products[other];
                    if distance < farthest {
                        let new = key(distance, leaf[other]);
                        let at = nearest.partition_point(|key| *key < new);
                        nearest.copy_within(at..KEPT - 1, at + 1);
                        nearest[at] = new;
                        if nearest[KEPT - 1] != Key::MAX {
                            farthest = parts(nearest[KEPT - 1]).0;
                        }
                    }
                }
                let met = nearest.partition_point(|key| *key != Key::MAX);
                let own_square = self.squares[own];
                for near in &mut nearest[..met] {
                    let (distance, node) = parts(*near);
                    *near = key((distance + own_square).max(0.0), node);
                }
                tell(leaf[own], &nearest[..met]);
            }
        }
        Ok(())
    }
}
