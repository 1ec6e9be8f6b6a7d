//! What training computes on one thread: products of row-major matrices of which both change from product to
//! product, and attention with its gradient.
#![allow(
    clippy::needless_range_loop,
    reason = "kernels over several slices vectorise best as plain index loops"
)]

pub mod attention;
mod bf16;
#[cfg(target_arch = "x86_64")]
mod bf16_amx;
#[cfg(target_arch = "x86_64")]
mod bf16_dot;
#[cfg(target_arch = "x86_64")]
mod bf16_line;
#[cfg(target_arch = "x86_64")]
mod bf16_panels;
mod matrix;
mod rounding;

pub use matrix::{Arithmetic, Right};
