//! Metrics: the distances that an index orders by.

/// What the order of results means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Metric {
    /// One minus the cosine of the angle.
    Cosine = 0,
    /// Euclidean distance; squared inside, which has the same order.
    L2 = 1,
    /// Negative inner product.
    InnerProduct = 2,
}

impl Metric {
    /// The metric with this number on the metapage.
    pub fn from_u8(value: u8) -> Option<Self> {
        [Self::Cosine, Self::L2, Self::InnerProduct]
            .into_iter()
            .find(|m| *m as u8 == value)
    }

    /// Whether nothing is nearer to a vector than itself.
    pub(crate) fn is_nearest_to_itself(self) -> bool {
        self != Self::InnerProduct
    }

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::L2 => "l2",
            Self::InnerProduct => "inner_product",
        }
    }
}
