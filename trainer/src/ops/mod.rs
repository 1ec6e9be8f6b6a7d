//! Differentiable operations over flat row-major f32 buffers, each with its own backward.
//!
//! Every operation works on one thread; the callers split batches over threads, so that results
//! depend on the number of threads alone and not on their timing.
#![allow(
    clippy::needless_range_loop,
    reason = "kernels over several slices vectorise best as plain index loops"
)]

pub mod dense;
pub mod lstm;
pub mod lstm_device;
pub mod pair;
pub mod pool;
pub mod threads;
