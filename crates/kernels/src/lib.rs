//! The CPU kernels: packed matrix products, LSTM cells, attention, what transformers do row by row,
//! gather-sums over embedding tables.
//!
//! Every kernel exists in portable Rust and, where it pays, for AVX2 and AVX-512; [`Isa::detect`]
//! chooses once per process.

mod activation;
pub mod arena;
pub mod attention;
pub mod clock;
pub mod dots;
pub mod gather;
pub mod gemm;
pub mod int8;
pub mod lstm;
pub mod math;
mod precision;
pub mod product;
pub mod quantized;
pub mod rows;
pub mod table;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use activation::Activation;
pub use precision::{Precision, UnknownPrecision};

use std::sync::OnceLock;

/// Instruction sets the kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, left to the compiler's vectoriser.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
}

impl Isa {
    /// The best instruction set of this machine.
    pub fn detect() -> Self {
        static ISA: OnceLock<Isa> = OnceLock::new();
        *ISA.get_or_init(|| {
            #[cfg(target_arch = "x86_64")]
            {
                if is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
                {
                    if is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("avx512dq")
                        && is_x86_feature_detected!("avx512vl")
                    {
                        return Isa::Avx512;
                    }
                    return Isa::Avx2;
                }
            }
            Isa::Portable
        })
    }

    /// The instruction sets of this machine, for tests that compare them.
    pub fn all() -> &'static [Self] {
        match Self::detect() {
            Self::Portable => &[Self::Portable],
            Self::Avx2 => &[Self::Portable, Self::Avx2],
            Self::Avx512 => &[Self::Portable, Self::Avx2, Self::Avx512],
        }
    }
}
