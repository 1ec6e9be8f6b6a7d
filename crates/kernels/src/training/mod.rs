//! Products of row-major matrices of which both change from product to product, as in training, on one thread.
#![allow(
    clippy::needless_range_loop,
    reason = "kernels over several slices vectorise best as plain index loops"
)]

mod bf16;
#[cfg(target_arch = "x86_64")]
mod bf16_dot;
mod matrix;
mod rounding;

pub use matrix::{Arithmetic, Right, product};
