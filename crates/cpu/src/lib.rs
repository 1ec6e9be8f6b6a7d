//! What the processor can do. Every kernel that exists for several instruction sets asks here which of
//! them to run, so that all agree, and a test that goes through [`Isa::all`] covers each.
//!
//! [`Isa`] is what plain vector arithmetic is compiled for; [`has_vnni`], [`has_avx_vnni`] and [`has_avx512_bf16`]
//! say which instructions for products of short numbers come with it. AMX is not here: the system has to be
//! asked for it as well, which `laser_kernels::units` does through NumKong.

use std::sync::OnceLock;

/// Instruction sets that kernels are written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, left to the compiler's vectoriser.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// All of [`Isa::Avx2`], and AVX-512 F, BW, DQ and VL.
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

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Whether [`Isa::Avx512`] comes with VNNI: `vpdpbusd` and `vpdpwssd`, sums of products of int8 and int16.
pub fn has_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Isa::detect() == Isa::Avx512 && is_x86_feature_detected!("avx512vnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether [`Isa::Avx2`] comes with AVX-VNNI: the same on eight lanes.
pub fn has_avx_vnni() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Isa::detect() != Isa::Portable && is_x86_feature_detected!("avxvnni");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether [`Isa::Avx512`] comes with `vdpbf16ps`, sums of products of bf16.
pub fn has_avx512_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return Isa::detect() == Isa::Avx512 && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Asks for the bytes to be loaded into the cache. A hint: nothing is read, wherever they are.
#[inline(always)]
#[allow(unsafe_code)]
pub fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let first: *const u8 = values.as_ptr().cast();
        for at in (0..size_of_val(values)).step_by(64) {
            // SAFETY: a prefetch reads nothing that the program sees; every x86-64 has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(at).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

/// Defines a function whose body, plain loops that the compiler vectorises, is compiled for every
/// [`Isa`]. It gives the same result on every call on one machine; on machines with other registers it may
/// differ in the last bit.
#[macro_export]
macro_rules! simd {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(unsafe_code)]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { body($($arg),*) }
                match $crate::Isa::detect() {
                    // SAFETY: the processor has every feature the function enables.
                    $crate::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::Isa::Portable => {}
                }
            }
            body($($arg),*)
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    simd! {
        fn sum(values: &[f32]) -> f32 {
            values.iter().sum()
        }
    }

    #[test]
    fn a_body_is_compiled_for_every_set() {
        let values: Vec<f32> = (0..100).map(|i| i as f32).collect();
        assert_eq!(sum(&values), 4950.0);
    }

    /// What comes with an instruction set implies it.
    #[test]
    fn sets_contain_what_they_promise() {
        assert_eq!(Isa::all().last(), Some(&Isa::detect()));
        if has_vnni() || has_avx512_bf16() {
            assert_eq!(Isa::detect(), Isa::Avx512);
        }
        if has_avx_vnni() {
            assert_ne!(Isa::detect(), Isa::Portable);
        }
    }

    #[test]
    fn any_slice_can_be_asked_for() {
        prefetch::<f32>(&[]);
        prefetch(&[0u8; 1000]);
    }
}
