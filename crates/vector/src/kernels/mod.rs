//! Distance kernels: the loops over elements of one type, and distances of either on top.

mod distances;
mod loops;

pub use distances::{cosine_distance, l2_distance, norm};
pub use loops::{
    f16_cosine_sums, f16_dot, f16_l1, f16_l2_squared, f16_widen, f32_cosine_sums, f32_dot, f32_l1,
    f32_l2_squared,
};
