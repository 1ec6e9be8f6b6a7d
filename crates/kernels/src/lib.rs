//! The CPU kernels: packed matrix products, LSTM cells, attention, rotary positions, what transformers do
//! row by row, gather-sums over embedding tables, and the gradients of what is trained.
//!
//! Every kernel exists in portable Rust and, where it pays, for AVX2 and AVX-512; [`Isa::detect`]
//! chooses once per process. [`Precision`] and processor decide which of them multiplies:
//!
//! | weights | AMX | AVX-512 | AVX2 | elsewhere |
//! |---|---|---|---|---|
//! | f32 | [`gemm`], 16 lanes | [`gemm`], 16 lanes | [`gemm`], 8 lanes | [`gemm`], plain Rust |
//! | bf16 | [`dots`], `tdpbf16ps` | [`dots`], `vdpbf16ps` if there; else [`product`] widens to f32 | [`product`] widens to f32 | [`quantized`] (NumKong) with a unit, else f32 |
//! | int8 | [`dots`], `tdpbusd` | [`dots`], `vpdpbusd` with VNNI, else `vpmaddwd` | [`dots`], `vpdpbusd` with AVX-VNNI, else `vpmaddwd` | [`quantized`] (NumKong) |
//!
//! [`training`] multiplies matrices of which both change from product to product; the others take weights
//! that were packed once. [`strided`] (gemm) and [`low_precision`] (NumKong) are the libraries' products.
//!
//! exp and what is made of it exist by what is asked of them: [`math`] is exact, for the portable kernels and single
//! rows; `approximate` is straight-line arithmetic over nearly all of f32's range, for loops that the compiler
//! vectorises, as training has them; `x86` takes fewer instructions, and saturates at 2^±40, which is enough for gates,
//! activations and softmax.
//!
//! Layer norm, L2 norm and softmax stand two or three times for the same reason. [`math`] has the norms with sums in f64,
//! serially or in a fixed order, for the portable kernels, dense layers and the last step of every embedding. [`rows`]
//! has layer norm and the exponentials of softmax in vectors of f32, each in one pass with what stands beside it (the
//! residual, the sum that attention divides by), for the rows of transformers. [`training`] has all three with their
//! gradients: it keeps what the backward pass reads (norms, normalised rows, inverse deviations), in plain loops without
//! fused operations, which give the same bits when a run is resumed on its machine.

mod activation;
#[cfg(target_arch = "x86_64")]
mod amx;
mod approximate;
pub mod arena;
pub mod attention;
#[cfg(target_arch = "x86_64")]
mod bf16_pairs;
pub mod clock;
pub mod dots;
pub mod gather;
pub mod gemm;
pub mod int8;
pub mod low_precision;
pub mod lstm;
pub mod math;
pub mod packing;
mod precision;
pub mod product;
pub mod quantized;
pub mod rotary;
pub mod rows;
pub mod slices;
pub mod strided;
pub mod table;
pub mod training;
pub mod units;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use activation::Activation;
pub use laser_cpu::Isa;
pub use precision::{Precision, UnknownPrecision};
