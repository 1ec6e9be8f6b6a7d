//! Rows of embedding tables: dequantised, copied or summed straight from the mapped file.
#![allow(unsafe_code)]

use super::Isa;
use crate::table::{Table, Values};

/// `out += weight * table[row]`.
///
/// # Panics
/// If `row` is not below `table.rows` or `out` is shorter than a row.
pub fn add_row(isa: Isa, table: Table<'_>, row: usize, weight: f32, out: &mut [f32]) {
    let n = table.columns;
    let out = &mut out[..n];
    let range = row * n..(row + 1) * n;
    match table.values {
        Values::F32(data) => add_f32(isa, &data[range], weight, out),
        Values::I8 { data, scale } => add_i8(isa, &data[range], weight * scale[row], out),
        Values::Bf16(data) => {
            for (y, x) in out.iter_mut().zip(&data[range]) {
                *y += weight * x.to_f32();
            }
        }
        Values::F16(data) => {
            for (y, x) in out.iter_mut().zip(&data[range]) {
                *y += weight * x.to_f32();
            }
        }
    }
}

/// `out = sum of weight(row) * table[row]` over `rows`, the order being theirs.
///
/// # Panics
/// As [`add_row`].
pub fn sum_rows(
    isa: Isa,
    table: Table<'_>,
    rows: &[u32],
    weight: impl Fn(usize) -> f32,
    out: &mut [f32],
) {
    for &row in rows.iter().take(AHEAD) {
        prefetch(table, row as usize);
    }
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Avx512
        && let Values::I8 { data, scale } = table.values
    {
        let n = table.columns;
        assert!(out.len() >= n && rows.iter().all(|row| (*row as usize) < table.rows));
        let factor = |row: usize| weight(row) * scale[row];
        let mut first = 0;
        while first < n {
            let ahead = |i: usize| {
                if let (0, Some(&row)) = (first, rows.get(i + AHEAD)) {
                    prefetch(table, row as usize);
                }
            };
            // SAFETY: `isa` says that AVX-512 is there; rows exist and `out` holds one.
            unsafe {
                if n - first >= x86::WIDE * x86::LANES {
                    x86::sum_i8::<{ x86::WIDE }>(data, n, first, rows, factor, ahead, out);
                    first += x86::WIDE * x86::LANES;
                } else {
                    x86::sum_i8::<{ x86::NARROW }>(data, n, first, rows, factor, ahead, out);
                    first += x86::NARROW * x86::LANES;
                }
            }
        }
        return;
    }
    out[..table.columns].fill(0.0);
    for (i, &row) in rows.iter().enumerate() {
        if let Some(&later) = rows.get(i + AHEAD) {
            prefetch(table, later as usize);
        }
        add_row(isa, table, row as usize, weight(row as usize), out);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Columns of a register.
    pub const LANES: usize = 16;

    /// Registers of sums: of the 32 that there are, a row and its factor need some. As many as this are a whole row
    /// of the shipped model, which is read once, as it comes.
    pub const WIDE: usize = 24;

    /// Registers of sums of what is left.
    pub const NARROW: usize = 8;

    /// The sums of columns from `first` on, V x [`LANES`] at most, of rows of `n`. Calls `ahead` before
    /// each row.
    ///
    /// # Safety
    /// The processor has AVX-512 F, BW; `data` holds the rows, `out` one.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub unsafe fn sum_i8<const V: usize>(
        data: &[i8],
        n: usize,
        first: usize,
        rows: &[u32],
        factor: impl Fn(usize) -> f32,
        ahead: impl Fn(usize),
        out: &mut [f32],
    ) {
        let lanes = |v: usize| -> __mmask16 {
            match n.saturating_sub(first + LANES * v) {
                rest @ 0..LANES => (1 << rest) - 1,
                _ => !0,
            }
        };
        // SAFETY: masks keep loads inside the row and stores inside `out`.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); V];
            for (i, &row) in rows.iter().enumerate() {
                ahead(i);
                let row = row as usize;
                let factor = _mm512_set1_ps(factor(row));
                let values = data.as_ptr().add(row * n + first);
                for (v, sum) in sums.iter_mut().enumerate() {
                    let x = if first + V * LANES <= n {
                        _mm_loadu_epi8(values.add(LANES * v))
                    } else {
                        _mm_maskz_loadu_epi8(lanes(v), values.wrapping_add(LANES * v))
                    };
                    *sum =
                        _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)), *sum);
                }
            }
            for (v, sum) in sums.iter().enumerate() {
                let to = out.as_mut_ptr().wrapping_add(first + LANES * v);
                _mm512_mask_storeu_ps(to, lanes(v), *sum);
            }
        }
    }
}

/// Rows ahead of the one that is added that are asked for: a table of many megabytes is not near, and
/// the rows of a text lie all over it.
const AHEAD: usize = 12;

/// Asks for rows that will be summed, for callers that know some of them before the others. Rows that do not exist
/// are ignored.
pub fn prefetch_rows(table: Table<'_>, rows: &[u32]) {
    for &row in rows.iter().filter(|row| (**row as usize) < table.rows) {
        prefetch(table, row as usize);
    }
}

/// Asks for a row, so that it is near when it is added.
fn prefetch(table: Table<'_>, row: usize) {
    let n = table.columns;
    let range = row * n..(row + 1) * n;
    match table.values {
        Values::F32(data) => laser_cpu::prefetch(&data[range]),
        Values::I8 { data, .. } => laser_cpu::prefetch(&data[range]),
        Values::Bf16(data) => laser_cpu::prefetch(&data[range]),
        Values::F16(data) => laser_cpu::prefetch(&data[range]),
    }
}

/// `out = table[row]`.
///
/// # Panics
/// As [`add_row`].
pub fn copy_row(isa: Isa, table: Table<'_>, row: usize, out: &mut [f32]) {
    let n = table.columns;
    if let Values::F32(data) = table.values {
        out[..n].copy_from_slice(&data[row * n..(row + 1) * n]);
    } else {
        out[..n].fill(0.0);
        add_row(isa, table, row, 1.0, out);
    }
}

fn add_f32(isa: Isa, x: &[f32], weight: f32, y: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Portable {
        #[target_feature(enable = "avx2,fma")]
        fn inner(x: &[f32], weight: f32, y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y = weight.mul_add(*x, *y);
            }
        }
        // SAFETY: `isa` says that AVX2 and FMA are there.
        return unsafe { inner(x, weight, y) };
    }
    let _ = isa;
    for (y, x) in y.iter_mut().zip(x) {
        *y += weight * x;
    }
}

fn add_i8(isa: Isa, x: &[i8], weight: f32, y: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa != Isa::Portable {
        #[target_feature(enable = "avx2,fma")]
        fn inner(x: &[i8], weight: f32, y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y = weight.mul_add(f32::from(*x), *y);
            }
        }
        // SAFETY: `isa` says that AVX2 and FMA are there.
        return unsafe { inner(x, weight, y) };
    }
    let _ = isa;
    for (y, x) in y.iter_mut().zip(x) {
        *y += weight * f32::from(*x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::int8;

    #[test]
    fn sums_are_the_same_with_all_instructions() {
        for n in [1, 15, 16, 100, 128, 130, 384, 400, 512, 768, 1000] {
            let mut data = vec![0i8; 50 * n];
            let scale: Vec<f32> = data
                .chunks_exact_mut(n)
                .enumerate()
                .map(|(row, out)| {
                    let values: Vec<f32> = (row * n..(row + 1) * n)
                        .map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0)
                        .collect();
                    int8::quantize(&values, out, |bits| bits as i8)
                })
                .collect();
            let table = Table {
                rows: 50,
                columns: n,
                values: Values::I8 {
                    data: &data,
                    scale: &scale,
                },
            };
            for count in [0, 1, 5, 40] {
                let rows: Vec<u32> = (0..count).map(|i| i * 17 % 50).collect();
                let sums = Isa::all().iter().map(|&isa| {
                    let mut out = vec![9f32; n];
                    sum_rows(isa, table, &rows, |row| 1.0 + row as f32, &mut out);
                    out
                });
                let sums: Vec<_> = sums.collect();
                for other in &sums[1..] {
                    for (a, b) in sums[0].iter().zip(other) {
                        assert!(
                            (a - b).abs() <= 1e-4 * (1.0 + a.abs()),
                            "{n} {count}: {a} {b}"
                        );
                    }
                }
            }
        }
    }
}
