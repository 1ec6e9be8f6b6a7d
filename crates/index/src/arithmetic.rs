//! The arithmetic of distances in `f32`: what rounding may change, and where numbers overflow or vanish.

/// Half a unit in the last place of an `f32`, relative to its value.
pub(crate) const HALF_ULP: f64 = 1.0 / 16_777_216.0;

/// A bound of the relative rounding error of a sum of `n` products in `f32`: kernels keep at least
/// 16 partial sums, and operators at least 32.
pub fn rounding(n: usize) -> f64 {
    (n as f64 / 16.0 + 16.0) * HALF_ULP
}

/// The same whatever the order of the sum.
fn rounding_in_any_order(n: usize) -> f64 {
    (n as f64 + 16.0) * HALF_ULP
}

/// Beyond this the operators' sums in `f32` may overflow, and below its reciprocal vanish.
pub(crate) const SAFE: f64 = 1e17;

/// The arithmetic of the operator that orders by a distance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// That of `laser_vector::kernels`: at least 32 partial sums; cosines are right whatever the lengths.
    Own,
    /// Sums in `f32` in any order, which may overflow or vanish: pgvector's, whose compiler decides how many
    /// partial sums there are.
    Plain,
}

impl Arithmetic {
    /// A bound of the relative rounding error of a sum of `n` products.
    pub(crate) fn rounding(self, n: usize) -> f64 {
        match self {
            Self::Own => rounding(n),
            Self::Plain => rounding_in_any_order(n),
        }
    }

    /// Whether it gives the cosine of a vector of this length at all.
    pub(crate) fn has_cosine(self, length: f64) -> bool {
        self == Self::Own || is_safe(length)
    }
}

/// Whether sums of products are within the range of `f32`, for vectors whose lengths have this product: no part of the sum
/// is beyond it, which would leave an infinity where all together are nothing.
pub(crate) fn has_product(lengths: f64) -> bool {
    lengths < SAFE * SAFE
}

/// Whether squares of a vector of this length have the precision of their sum.
pub(crate) fn is_safe(length: f64) -> bool {
    (2.0 / SAFE..SAFE / 2.0).contains(&length)
}
