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
use super::gemm::{PANEL, Packed, Panels, tile, tile_panels, tile_rows};
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
    /// How many rows have products, the first ones; the others start from a zero state.
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
            let panels = tile_panels(self.isa);
            for gate in (0..4).step_by(panels) {
                let weights = Panels {
                    first: self.weights.panel(block * 4 + gate),
                    count: panels,
                    stride: self.weights.depth() * PANEL,
                };
                tile(
                    self.isa,
                    rows.len(),
                    self.weights.depth(),
                    previous,
                    width,
                    weights,
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
                let at = r * width + block * UNITS;
                let rows = Cells {
                    gates,
                    stride,
                    c: s.cell.as_mut_ptr().add(at),
                    h: s.state.as_mut_ptr().add(at),
                    maximum: if maximum.is_null() {
                        maximum
                    } else {
                        maximum.add(at)
                    },
                    width,
                };
                cells(isa, n, rows);
            }
            r += n;
        }
    }
}

/// One block of some rows.
struct Cells {
    /// 4 x 16 values a row, with this stride.
    gates: *const f32,
    stride: usize,
    /// 16 values a row, with `width` as their stride; `maximum` may be null.
    c: *mut f32,
    h: *mut f32,
    maximum: *mut f32,
    width: usize,
}

/// The cells of one block of `rows` rows.
///
/// # Safety
/// The pointers hold the rows.
unsafe fn cells(isa: Isa, rows: usize, cells: Cells) {
    // SAFETY: passed on from the caller.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => x86::avx512::cells(rows, cells),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => x86::avx2::cells(rows, cells),
            _ => {
                for (row, lane) in (0..rows).flat_map(|r| (0..UNITS).map(move |lane| (r, lane))) {
                    let gate = |g: usize| *cells.gates.add(row * cells.stride + g * UNITS + lane);
                    let at = row * cells.width + lane;
                    let c = &mut *cells.c.add(at);
                    *c = sigmoid(gate(1)) * *c + sigmoid(gate(0)) * gate(2).tanh();
                    let state = sigmoid(gate(3)) * c.tanh();
                    *cells.h.add(at) = state;
                    if !cells.maximum.is_null() && state > *cells.maximum.add(at) {
                        *cells.maximum.add(at) = state;
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    /// The cell on vectors of `$lanes` floats of the module's instructions.
    macro_rules! cell {
        ($module:ident, $features:literal, $lanes:literal) => {
            pub(super) mod $module {
                use std::f32::consts::LOG2_E;

                use super::super::{Cells, UNITS};
                use crate::x86::$module::*;

                /// The new cell and state from the gates i, f, g, o. The sums over common
                /// denominators need two divisions instead of five:
                ///
                /// ```text
                /// sigmoid(x) = 1 / (1 + e^-x),  tanh(x) = (e^2x - 1) / (e^2x + 1)
                /// ```
                #[inline]
                #[target_feature(enable = $features)]
                fn cell(i: Vector, f: Vector, g: Vector, o: Vector, c: Vector) -> [Vector; 2] {
                    let one = set1(1.0);
                    let (i, f) = (add(exp(i, -LOG2_E), one), add(exp(f, -LOG2_E), one));
                    let g = exp(g, 2.0 * LOG2_E);
                    let input = mul(i, add(g, one));
                    let sum = fmadd(c, input, mul(f, sub(g, one)));
                    let c = div(sum, mul(input, f));
                    let o = add(exp(o, -LOG2_E), one);
                    let e = exp(c, 2.0 * LOG2_E);
                    [c, div(sub(e, one), mul(o, add(e, one)))]
                }

                /// # Safety
                /// As the function of the same name above.
                #[target_feature(enable = $features)]
                pub(in super::super) unsafe fn cells(rows: usize, cells: Cells) {
                    for row in 0..rows {
                        for lane in (0..UNITS).step_by($lanes) {
                            let at = row * cells.width + lane;
                            // SAFETY: the caller vouches for 16 values of each row (4 x 16 of
                            // gates).
                            unsafe {
                                let gates = cells.gates.add(row * cells.stride + lane);
                                let [i, f, g, o] =
                                    std::array::from_fn(|gate| load(gates.add(gate * UNITS)));
                                let [c, h] = cell(i, f, g, o, load(cells.c.add(at)));
                                store(cells.c.add(at), c);
                                store(cells.h.add(at), h);
                                if !cells.maximum.is_null() {
                                    let maximum = cells.maximum.add(at);
                                    store(maximum, max(load(maximum), h));
                                }
                            }
                        }
                    }
                }
            }
        };
    }
    cell!(avx2, "avx2,fma", 8);
    cell!(avx512, "avx512f", 16);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cell of 16 units.
    fn cell_of(isa: Isa, gates: [f32; 4], c: f32) -> [f32; 2] {
        let gates: Vec<f32> = gates.into_iter().flat_map(|x| [x; UNITS]).collect();
        let (mut c, mut h) = ([c; UNITS], [f32::NAN; UNITS]);
        let of = Cells {
            gates: gates.as_ptr(),
            stride: 4 * UNITS,
            c: c.as_mut_ptr(),
            h: h.as_mut_ptr(),
            maximum: std::ptr::null_mut(),
            width: UNITS,
        };
        // SAFETY: one row of 16 units.
        unsafe { cells(isa, 1, of) };
        assert!(c.iter().all(|x| *x == c[0]) && h.iter().all(|x| *x == h[0]));
        [c[0], h[0]]
    }

    #[test]
    fn cells_are_accurate() {
        let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        for &isa in Isa::all() {
            for n in 0..200_000u32 {
                let gate = |g: u32| {
                    let bits = (n * 4 + g).wrapping_mul(0x9e37_79b9) >> 8;
                    (bits as f32 / (1 << 23) as f32 - 1.0)
                        * [1.0, 4.0, 16.0, 60.0][(n % 4) as usize]
                };
                let gates: [f32; 4] = std::array::from_fn(|g| gate(g as u32));
                let [i, f, g, o] = gates;
                let before = gate(7) / 8.0;
                let [c, h] = cell_of(isa, gates, before);
                let exact = sigmoid(f) * f64::from(before) + sigmoid(i) * f64::from(g).tanh();
                let limit = 4e-7 * (1.0 + f64::from(before.abs()));
                assert!(
                    (f64::from(c) - exact).abs() < limit,
                    "{isa:?} {gates:?} {before}: {c} {exact}"
                );
                let exact = sigmoid(o) * f64::from(c).tanh();
                assert!(
                    (f64::from(h) - exact).abs() < 4e-7,
                    "{isa:?} {gates:?} {before}: {h} {exact}"
                );
            }
        }
    }

    #[test]
    fn extreme_gates_saturate() {
        for &isa in Isa::all() {
            for x in [f32::MAX, 1e9, 88.0, 30.0] {
                assert_eq!(
                    cell_of(isa, [x, x, x, x], 3.0).map(f32::round),
                    [4.0, 1.0],
                    "{isa:?}"
                );
                let [c, h] = cell_of(isa, [-x, -x, -x, -x], 100.0);
                assert!(c.abs() < 1e-9 && h.abs() < 1e-9, "{isa:?} {x}: {c} {h}");
                assert_eq!(cell_of(isa, [x, x, -x, x], 5.0)[0].round(), 4.0, "{isa:?}");
            }
            // The longest text that only adds up.
            assert_eq!(
                cell_of(isa, [90.0, 90.0, 90.0, 90.0], 8191.0),
                [8192.0, 1.0],
                "{isa:?}"
            );
        }
    }
}
