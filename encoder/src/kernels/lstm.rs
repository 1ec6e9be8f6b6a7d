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
    /// Input products with biases, interleaved, rows of `4 * padded(H)`; overwritten by some
    /// kernels.
    pub input: &'a mut [f32],
    /// Previous states, rows of `padded(H)`; rows from `previous.len() / padded(H)` on start from
    /// zero.
    pub previous: &'a [f32],
    /// Cell states, rows of `padded(H)`, updated; must be zero for rows that start.
    pub cell: &'a mut [f32],
    /// New states, rows of `padded(H)`.
    pub state: &'a mut [f32],
    /// Running maximum of states, rows of `padded(H)`, if wanted.
    pub maximum: Option<&'a mut [f32]>,
}

/// One step of `rows` sentences; `recurrent` has depth H and `4 * padded(H)` interleaved columns.
///
/// # Panics
/// If a slice is too short.
pub fn step(isa: Isa, rows: usize, recurrent: &Packed, s: Step<'_>) {
    let columns = recurrent.columns();
    let width = columns / 4;
    let depth = recurrent.depth();
    assert!(
        columns.is_multiple_of(4 * UNITS) && depth <= width,
        "interleaved weights"
    );
    assert!(s.input.len() >= rows * columns, "input");
    assert!(
        s.cell.len() >= rows * width && s.state.len() >= rows * width,
        "states"
    );
    let with_previous = (s.previous.len() / width).min(rows);
    let maximum = match s.maximum {
        Some(maximum) => {
            assert!(maximum.len() >= rows * width, "maximum");
            maximum.as_mut_ptr()
        }
        None => std::ptr::null_mut(),
    };
    let tile_height = tile_rows(isa);
    #[repr(align(64))]
    struct Gates([f32; 12 * 4 * UNITS]);
    let mut gates = Gates([0.0; 12 * 4 * UNITS]);
    for block in 0..width / UNITS {
        let mut r = 0;
        while r < rows {
            // A tile holds either continuing or starting rows.
            let (depth, end) = if r < with_previous {
                (depth, with_previous)
            } else {
                (0, rows)
            };
            let n = tile_height.min(end - r);
            // SAFETY: rows r..r + n exist in all slices (checked above) and in `previous` where
            // depth > 0; columns of this block exist; `gates` holds 12 rows of a block's gates.
            unsafe {
                for gate in 0..4 {
                    tile(
                        isa,
                        n,
                        depth,
                        if depth > 0 {
                            s.previous.as_ptr().add(r * width)
                        } else {
                            s.previous.as_ptr()
                        },
                        width,
                        recurrent.panel(block * 4 + gate),
                        s.input
                            .as_ptr()
                            .add(r * columns + (block * 4 + gate) * UNITS),
                        columns,
                        gates.0.as_mut_ptr().add(gate * UNITS),
                        4 * UNITS,
                    );
                }
                for i in 0..n {
                    let at = (r + i) * width + block * UNITS;
                    cell(
                        isa,
                        gates.0.as_ptr().add(i * 4 * UNITS),
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

/// The gates alone: `input` holds the complete sums of `columns` = `4 * padded(H)` a row.
///
/// # Panics
/// If a slice is too short.
pub fn gates(isa: Isa, rows: usize, columns: usize, s: Step<'_>) {
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
    for r in 0..rows {
        for block in 0..width / UNITS {
            let at = r * width + block * UNITS;
            // SAFETY: all slices hold `rows` rows (checked above), rows whole blocks.
            unsafe {
                cell(
                    isa,
                    s.input.as_ptr().add(4 * at),
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
            Isa::Avx2 | Isa::Avx512 => x86::cell(gates, c, h, max),
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
    use std::arch::x86_64::*;

    use super::UNITS;

    /// e^x, relative error below 2e-7, for |x| up to 87 (clamped beyond): Cephes' `expf`.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn exp(x: __m256) -> __m256 {
        let x = _mm256_max_ps(
            _mm256_min_ps(x, _mm256_set1_ps(87.0)),
            _mm256_set1_ps(-87.0),
        );
        let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(
            _mm256_mul_ps(x, _mm256_set1_ps(std::f32::consts::LOG2_E)),
        );
        // ln 2 in two parts.
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693_359_4), x);
        let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.121_944_4e-4), r);
        let mut p = _mm256_set1_ps(1.987_569_1e-4);
        for coefficient in [
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            1.666_666_5e-1,
            0.5,
        ] {
            p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(coefficient));
        }
        let p = _mm256_fmadd_ps(
            p,
            _mm256_mul_ps(r, r),
            _mm256_add_ps(r, _mm256_set1_ps(1.0)),
        );
        let power = _mm256_slli_epi32::<23>(_mm256_add_epi32(
            _mm256_cvtps_epi32(n),
            _mm256_set1_epi32(127),
        ));
        _mm256_mul_ps(p, _mm256_castsi256_ps(power))
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn sigmoid(x: __m256) -> __m256 {
        let one = _mm256_set1_ps(1.0);
        _mm256_div_ps(
            one,
            _mm256_add_ps(one, exp(_mm256_sub_ps(_mm256_setzero_ps(), x))),
        )
    }

    /// 1 - 2 / (e^2x + 1): absolute error below 2e-7.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn tanh(x: __m256) -> __m256 {
        let one = _mm256_set1_ps(1.0);
        let two = _mm256_set1_ps(2.0);
        let e = exp(_mm256_mul_ps(x, two));
        _mm256_sub_ps(one, _mm256_div_ps(two, _mm256_add_ps(e, one)))
    }

    /// # Safety
    /// As [`super::cell`].
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn cell(gates: *const f32, c: *mut f32, h: *mut f32, max: *mut f32) {
        for half in [0, 8] {
            // SAFETY: the caller vouches for 16 values (4 x 16 of gates).
            unsafe {
                let gate = |g: usize| _mm256_loadu_ps(gates.add(g * UNITS + half));
                let input = _mm256_mul_ps(sigmoid(gate(0)), tanh(gate(2)));
                let new = _mm256_fmadd_ps(sigmoid(gate(1)), _mm256_loadu_ps(c.add(half)), input);
                let state = _mm256_mul_ps(sigmoid(gate(3)), tanh(new));
                _mm256_storeu_ps(c.add(half), new);
                _mm256_storeu_ps(h.add(half), state);
                if !max.is_null() {
                    let max = max.add(half);
                    _mm256_storeu_ps(max, _mm256_max_ps(_mm256_loadu_ps(max), state));
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[target_feature(enable = "avx2,fma")]
        fn apply(f: impl Fn(__m256) -> __m256, x: f32) -> f32 {
            let mut out = [0f32; 8];
            // SAFETY: `out` holds eight floats.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), f(_mm256_set1_ps(x))) };
            out[0]
        }

        #[test]
        fn activations_are_accurate() {
            if !is_x86_feature_detected!("avx2") || !is_x86_feature_detected!("fma") {
                return;
            }
            for i in -20_000..=20_000 {
                let x = i as f32 / 500.0;
                // SAFETY: the features were checked.
                let (s, t) = unsafe { (apply(|x| sigmoid(x), x), apply(|x| tanh(x), x)) };
                let exact = f64::from(x);
                assert!(
                    (f64::from(s) - 1.0 / (1.0 + (-exact).exp())).abs() < 2e-7,
                    "sigmoid {x}"
                );
                assert!((f64::from(t) - exact.tanh()).abs() < 3e-7, "tanh {x}: {t}");
            }
            for x in [f32::MAX, f32::MIN, 1e9, -1e9] {
                // SAFETY: the features were checked.
                let (s, t) = unsafe { (apply(|x| sigmoid(x), x), apply(|x| tanh(x), x)) };
                assert_eq!(
                    (s.round(), t),
                    (if x > 0.0 { 1.0 } else { 0.0 }, x.signum())
                );
            }
        }
    }
}
