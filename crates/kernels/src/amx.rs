//! AMX: the processor multiplies tiles of 16 rows by 16 columns, 64 bytes of depth at once.
//!
//! The intrinsics are not stable yet, hence assembly (Intel, Architecture Instruction Set Extensions,
//! chapter 3).
#![allow(unsafe_code)]

use std::arch::asm;

/// Rows and columns of a [square](int8): two tiles.
pub(crate) const SIDE: usize = 32;

/// Groups of four bytes that a tile is deep.
pub(crate) const DEPTH: usize = 16;

/// What `ldtilecfg` reads: palette 1, eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Shape([u8; 64]);

static SHAPE: Shape = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
        tile += 1;
    }
    Shape(bytes)
};

/// The tile registers of this thread, shaped; given back when it is dropped, so that the system has
/// less to save.
pub(crate) struct Tiles(());

impl Tiles {
    /// # Safety
    /// The processor has AMX, and the system lets this process use it.
    pub(crate) unsafe fn shaped() -> Self {
        // SAFETY: the caller vouches for the instruction; the operand has 64 bytes.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const SHAPE, options(nostack, readonly));
        }
        Self(())
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: whoever made the value has AMX.
        unsafe {
            asm!("tilerelease", options(nostack, nomem));
        }
    }
}

/// Defines a function that computes a square of sums with `$multiply`.
macro_rules! square {
    ($name:ident, $multiply:literal) => {
        /// `c = A B`, or `c += A B` if `add`, for [`SIDE`] rows and columns of sums.
        ///
        /// # Safety
        /// `a` holds the rows, of `groups` (a positive multiple of [`DEPTH`]) each; `b` as many lines of SIDE columns,
        /// `b_stride` bytes apart; c is valid for the rows, `c_stride` bytes apart.
        pub(crate) unsafe fn $name(
            _: &Tiles,
            groups: usize,
            a: *const u32,
            (b, b_stride): (*const u8, usize),
            (c, c_stride): (*mut u8, usize),
            add: bool,
        ) {
            debug_assert!(groups > 0 && groups.is_multiple_of(DEPTH));
            // SAFETY: the tiles have a shape, since there is a value of them; every step reads 64 bytes of each row
            // and 16 lines, as many as there are.
            unsafe {
                asm!(
                    "test {add}, {add}",
                    "jz 3f",
                    "tileloadd tmm0, [{c} + {ldc}]",
                    "tileloadd tmm1, [{c} + {ldc} + 64]",
                    "tileloadd tmm2, [{c_low} + {ldc}]",
                    "tileloadd tmm3, [{c_low} + {ldc} + 64]",
                    "jmp 2f",
                    "3:",
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "2:",
                    "tileloadd tmm4, [{a} + {lda}]",
                    "tileloadd tmm6, [{b} + {ldb}]",
                    "tileloadd tmm7, [{b} + {ldb} + 64]",
                    "tileloadd tmm5, [{a_low} + {lda}]",
                    concat!($multiply, " tmm0, tmm4, tmm6"),
                    concat!($multiply, " tmm1, tmm4, tmm7"),
                    concat!($multiply, " tmm2, tmm5, tmm6"),
                    concat!($multiply, " tmm3, tmm5, tmm7"),
                    "add {a}, 64",
                    "add {a_low}, 64",
                    "add {b}, {step}",
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{c} + {ldc}], tmm0",
                    "tilestored [{c} + {ldc} + 64], tmm1",
                    "tilestored [{c_low} + {ldc}], tmm2",
                    "tilestored [{c_low} + {ldc} + 64], tmm3",
                    add = in(reg) usize::from(add),
                    a = inout(reg) a => _,
                    a_low = inout(reg) a.add(SIDE / 2 * groups) => _,
                    b = inout(reg) b => _,
                    step = in(reg) DEPTH * b_stride,
                    lda = in(reg) 4 * groups,
                    ldb = in(reg) b_stride,
                    steps = inout(reg) groups / DEPTH => _,
                    c = in(reg) c,
                    c_low = in(reg) c.add(SIDE / 2 * c_stride),
                    ldc = in(reg) c_stride,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}
square!(int8, "tdpbusd");
square!(bf16, "tdpbf16ps");
