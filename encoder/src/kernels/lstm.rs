//! The recurrent step of an LSTM layer, fused with its gates and with max-pooling.
//!
//! With gates in PyTorch's order i, f, g, o and `x` the input product with both biases:
//!
//! ```text
//! i, f, o = sigmoid(x + W_hh h),  g = tanh(x + W_hh h),  c' = f c + i g,  h' = o tanh(c')
//! ```
//!
//! (Hochreiter & Schmidhuber 1997 with forget gates, as `torch.nn.LSTM` documents it.) The rows of
//! the weights are interleaved: each block of 16 units takes four panels, one a gate, so that one
//! block's gates are complete before the next is begun and never leave the first-level cache.
#![allow(unsafe_code)]

use std::ops::Range;

use super::Isa;
use super::gemm::{PANEL, Packed, tile, tile_rows};
use super::math::sigmoid;

/// Units of a block.
pub const UNITS: usize = PANEL;

/// `hidden` rounded up to whole blocks: the row stride of states. Padded units stay zero.
pub fn padded(hidden: usize) -> usize {
    hidden.next_multiple_of(UNITS)
}

/// The gate row (of 4H) that belongs at interleaved position `j`; none for padding.
pub fn interleaved(j: usize, hidden: usize) -> Option<usize> {
    let (block, gate, lane) = (j / (4 * UNITS), j / UNITS % 4, j % UNITS);
    let unit = block * UNITS + lane;
    (unit < hidden).then_some(gate * hidden + unit)
}

/// Inputs and outputs of one step over `rows` sentences.
pub struct Step<'a> {
    /// Input products with biases, interleaved, rows of `4 * padded(H)`.
    pub input: &'a [f32],
    /// Cell states, rows of `padded(H)`, updated; must be zero for rows that start.
    pub cell: &'a mut [f32],
    /// New states, rows of `padded(H)`.
    pub state: &'a mut [f32],
    /// Running maximum of states, rows of `padded(H)`, if wanted.
    pub maximum: Option<&'a mut [f32]>,
}

/// The recurrent products of a step, computed in tiles of some rows by one block of gates.
pub(super) trait Recurrent {
    /// The first so many rows have products; the others start from a zero state.
    fn continuing(&self) -> usize;

    /// Rows of the largest tile, at most [`MAX_TILE`].
    fn height(&self) -> usize;

    /// `gates[i, 0..64] = input[i, 0..64] + W_hh h` of the rows and the block; `input` has the
    /// stride of all columns, `gates` of 64.
    ///
    /// # Safety
    /// 1 to [`Self::height`] `rows` below [`Self::continuing`], `block` exists, and both pointers
    /// hold the tile.
    unsafe fn tile(&self, block: usize, rows: Range<usize>, input: *const f32, gates: *mut f32);
}

/// Rows of the largest tile of all.
pub(super) const MAX_TILE: usize = 12;

/// Sums that hold the recurrent products already.
pub(super) struct Complete;

impl Recurrent for Complete {
    fn continuing(&self) -> usize {
        0
    }

    fn height(&self) -> usize {
        MAX_TILE
    }

    unsafe fn tile(&self, _: usize, _: Range<usize>, _: *const f32, _: *mut f32) {
        unreachable!("no row continues");
    }
}

/// f32 products of `previous`, rows of the weights' width.
pub(super) struct Floats<'a> {
    isa: Isa,
    weights: &'a Packed,
    previous: &'a [f32],
}

impl<'a> Floats<'a> {
    /// Of weights with depth H and `4 * padded(H)` interleaved columns.
    pub(super) fn new(isa: Isa, weights: &'a Packed, previous: &'a [f32]) -> Self {
        assert!(
            weights.depth() <= weights.columns() / 4,
            "interleaved weights"
        );
        Self {
            isa,
            weights,
            previous,
        }
    }
}

impl Recurrent for Floats<'_> {
    fn continuing(&self) -> usize {
        self.previous.len() / (self.weights.columns() / 4)
    }

    fn height(&self) -> usize {
        tile_rows(self.isa)
    }

    unsafe fn tile(&self, block: usize, rows: Range<usize>, input: *const f32, gates: *mut f32) {
        let columns = self.weights.columns();
        let width = columns / 4;
        // SAFETY: `previous` holds the rows, which are below `continuing`; the caller vouches for
        // the other pointers.
        unsafe {
            let previous = self.previous.as_ptr().add(rows.start * width);
            for gate in 0..4 {
                tile(
                    self.isa,
                    rows.len(),
                    self.weights.depth(),
                    previous,
                    width,
                    self.weights.panel(block * 4 + gate),
                    input.add(gate * UNITS),
                    columns,
                    gates.add(gate * UNITS),
                    4 * UNITS,
                );
            }
        }
    }
}

/// One step of `rows` sentences with `columns` = `4 * padded(H)` gates.
///
/// # Panics
/// If a slice is too short.
pub(super) fn step(isa: Isa, rows: usize, columns: usize, recurrent: &impl Recurrent, s: Step<'_>) {
    let width = columns / 4;
    assert!(columns.is_multiple_of(4 * UNITS), "interleaved sums");
    assert!(s.input.len() >= rows * columns, "input");
    assert!(
        s.cell.len() >= rows * width && s.state.len() >= rows * width,
        "states"
    );
    let maximum = match s.maximum {
        Some(maximum) => {
            assert!(maximum.len() >= rows * width, "maximum");
            maximum.as_mut_ptr()
        }
        None => std::ptr::null_mut(),
    };
    let continuing = recurrent.continuing().min(rows);
    let height = recurrent.height();
    assert!(height <= MAX_TILE, "tile");
    #[repr(align(64))]
    struct Gates([f32; MAX_TILE * 4 * UNITS]);
    let mut buffer = Gates([0.0; MAX_TILE * 4 * UNITS]);
    for block in 0..width / UNITS {
        let mut r = 0;
        while r < rows {
            // A tile holds either continuing or starting rows.
            let end = if r < continuing { continuing } else { rows };
            let n = height.min(end - r);
            // SAFETY: rows r..r + n exist in all slices (checked above), those of a tile are below
            // `continuing`; columns of this block exist; `buffer` holds the largest tile.
            unsafe {
                let input = s.input.as_ptr().add(r * columns + block * 4 * UNITS);
                let (gates, stride) = if r < continuing {
                    recurrent.tile(block, r..r + n, input, buffer.0.as_mut_ptr());
                    (buffer.0.as_ptr(), 4 * UNITS)
                } else {
                    (input, columns)
                };
                for i in 0..n {
                    let at = (r + i) * width + block * UNITS;
                    cell(
                        isa,
                        gates.add(i * stride),
                        s.cell.as_mut_ptr().add(at),
                        s.state.as_mut_ptr().add(at),
                        if maximum.is_null() {
                            maximum
                        } else {
                            maximum.add(at)
                        },
                    );
                }
            }
            r += n;
        }
    }
}

/// Gates of one block of one row.
///
/// # Safety
/// `gates` holds 4 x 16 values, `c` and `h` (and `max` unless null) 16.
unsafe fn cell(isa: Isa, gates: *const f32, c: *mut f32, h: *mut f32, max: *mut f32) {
    // SAFETY: passed on from the caller.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::avx512::cell(gates, c, h, max),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::avx2::cell(gates, c, h, max),
            _ => {
                for lane in 0..UNITS {
                    let gate = |g: usize| *gates.add(g * UNITS + lane);
                    let new = sigmoid(gate(1)) * *c.add(lane) + sigmoid(gate(0)) * gate(2).tanh();
                    let state = sigmoid(gate(3)) * new.tanh();
                    *c.add(lane) = new;
                    *h.add(lane) = state;
                    if !max.is_null() && state > *max.add(lane) {
                        *max.add(lane) = state;
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    /// The cell on vectors of `$lanes` floats, in terms of intrinsics that the module names.
    macro_rules! cell {
        ($features:literal, $lanes:literal) => {
            use super::super::UNITS;

            /// e^x, relative error below 2e-7, for |x| up to 87 (clamped beyond): Cephes' `expf`.
            #[inline]
            #[target_feature(enable = $features)]
            fn exp(x: Vector) -> Vector {
                let x = max(min(x, set1(87.0)), set1(-87.0));
                let whole = to_int(mul(x, set1(std::f32::consts::LOG2_E)));
                let n = to_float(whole);
                // ln 2 in two parts.
                let r = fnmadd(n, set1(0.693_359_4), x);
                let r = fnmadd(n, set1(-2.121_944_4e-4), r);
                let mut p = set1(1.987_569_1e-4);
                for coefficient in [
                    1.398_199_9e-3,
                    8.333_452e-3,
                    4.166_579_6e-2,
                    1.666_666_5e-1,
                    0.5,
                ] {
                    p = fmadd(p, r, set1(coefficient));
                }
                let p = fmadd(p, mul(r, r), add(r, set1(1.0)));
                let power = shift_left::<23>(add_int(whole, set1_int(127)));
                mul(p, as_float(power))
            }

            #[inline]
            #[target_feature(enable = $features)]
            pub(super) fn sigmoid(x: Vector) -> Vector {
                let one = set1(1.0);
                div(one, add(one, exp(sub(zero(), x))))
            }

            /// 1 - 2 / (e^2x + 1): absolute error below 2e-7.
            #[inline]
            #[target_feature(enable = $features)]
            pub(super) fn tanh(x: Vector) -> Vector {
                let (one, two) = (set1(1.0), set1(2.0));
                sub(one, div(two, add(exp(mul(x, two)), one)))
            }

            /// # Safety
            /// As the function of the same name above.
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn cell(
                gates: *const f32,
                c: *mut f32,
                h: *mut f32,
                maximum: *mut f32,
            ) {
                for at in (0..UNITS).step_by($lanes) {
                    // SAFETY: the caller vouches for 16 values (4 x 16 of gates).
                    unsafe {
                        let gate = |g: usize| load(gates.add(g * UNITS + at));
                        let input = mul(sigmoid(gate(0)), tanh(gate(2)));
                        let new = fmadd(sigmoid(gate(1)), load(c.add(at)), input);
                        let state = mul(sigmoid(gate(3)), tanh(new));
                        store(c.add(at), new);
                        store(h.add(at), state);
                        if !maximum.is_null() {
                            let maximum = maximum.add(at);
                            store(maximum, max(load(maximum), state));
                        }
                    }
                }
            }

            #[cfg(test)]
            pub(super) mod tests {
                use super::*;

                /// Sigmoid and tanh of one number.
                #[target_feature(enable = $features)]
                pub(in super::super) fn activations(x: f32) -> [f32; 2] {
                    [sigmoid(set1(x)), tanh(set1(x))].map(|v| {
                        let mut out = [0f32; $lanes];
                        // SAFETY: `out` holds a vector.
                        unsafe { store(out.as_mut_ptr(), v) };
                        out[0]
                    })
                }
            }
        };
    }

    pub(super) mod avx2 {
        use std::arch::x86_64::{
            __m256 as Vector, _mm256_add_epi32 as add_int, _mm256_add_ps as add,
            _mm256_castsi256_ps as as_float, _mm256_cvtepi32_ps as to_float,
            _mm256_cvtps_epi32 as to_int, _mm256_div_ps as div, _mm256_fmadd_ps as fmadd,
            _mm256_fnmadd_ps as fnmadd, _mm256_loadu_ps as load, _mm256_max_ps as max,
            _mm256_min_ps as min, _mm256_mul_ps as mul, _mm256_set1_epi32 as set1_int,
            _mm256_set1_ps as set1, _mm256_setzero_ps as zero, _mm256_slli_epi32 as shift_left,
            _mm256_storeu_ps as store, _mm256_sub_ps as sub,
        };
        cell!("avx2,fma", 8);
    }

    pub(super) mod avx512 {
        use std::arch::x86_64::{
            __m512 as Vector, _mm512_add_epi32 as add_int, _mm512_add_ps as add,
            _mm512_castsi512_ps as as_float, _mm512_cvtepi32_ps as to_float,
            _mm512_cvtps_epi32 as to_int, _mm512_div_ps as div, _mm512_fmadd_ps as fmadd,
            _mm512_fnmadd_ps as fnmadd, _mm512_loadu_ps as load, _mm512_max_ps as max,
            _mm512_min_ps as min, _mm512_mul_ps as mul, _mm512_set1_epi32 as set1_int,
            _mm512_set1_ps as set1, _mm512_setzero_ps as zero, _mm512_slli_epi32 as shift_left,
            _mm512_storeu_ps as store, _mm512_sub_ps as sub,
        };
        cell!("avx512f", 16);
    }

    #[cfg(test)]
    mod tests {
        use super::super::Isa;

        #[test]
        fn activations_are_accurate() {
            for isa in Isa::all() {
                let activations = |x: f32| match isa {
                    Isa::Portable => None,
                    // SAFETY: the features were detected.
                    Isa::Avx2 => Some(unsafe { super::avx2::tests::activations(x) }),
                    // SAFETY: the features were detected.
                    Isa::Avx512 => Some(unsafe { super::avx512::tests::activations(x) }),
                };
                for i in -20_000..=20_000 {
                    let x = i as f32 / 500.0;
                    let Some([s, t]) = activations(x) else {
                        continue;
                    };
                    let exact = f64::from(x);
                    assert!(
                        (f64::from(s) - 1.0 / (1.0 + (-exact).exp())).abs() < 2e-7,
                        "{isa:?} sigmoid {x}"
                    );
                    assert!(
                        (f64::from(t) - exact.tanh()).abs() < 3e-7,
                        "{isa:?} tanh {x}: {t}"
                    );
                }
                for x in [f32::MAX, f32::MIN, 1e9, -1e9] {
                    let Some([s, t]) = activations(x) else {
                        continue;
                    };
                    assert_eq!(
                        (s.round(), t),
                        (if x > 0.0 { 1.0 } else { 0.0 }, x.signum())
                    );
                }
            }
        }
    }
}
