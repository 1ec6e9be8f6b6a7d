//! Kernels for NVIDIA GPUs, as operations of candle.
//!
//! Sources in CUDA C++ lie in `kernels/`; with the feature `cuda` the build compiles them to PTX.
//! Every operation has an implementation for candle's CPU device, which says what it computes.
//! The tests compile the same sources for a processor (`emulation/`) and compare, so that the
//! kernels are tested on machines without a GPU; a test on a device runs where there is one.

pub mod lstm;
