//! What training computes on one thread: products of row-major matrices of which both change from product to
//! product, and everything that is not linear, each with its gradient.
#![allow(
    clippy::needless_range_loop,
    reason = "kernels over several slices vectorise best as plain index loops"
)]
#![allow(
    clippy::excessive_precision,
    reason = "coefficients stand as published"
)]

pub mod activation;
pub mod adam;
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
pub mod dropout;
pub mod l2;
pub mod layer_norm;
pub mod lstm;
mod matrix;
pub mod pool;
mod rounding;
pub mod softmax;

pub use matrix::{Arithmetic, Right};
