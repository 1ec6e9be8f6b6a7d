//! Pooling: weighted sums of rows, and their largest elements.

use laser_cpu::simd;

simd! {
    /// `out = Σ_r coefficients[r] · rows[r]`.
    pub fn combine(rows: &[&[f32]], coefficients: &[f32], out: &mut [f32]) {
        let width = out.len();
        out.fill(0.0);
        let mut quads = rows.chunks_exact(4);
        let mut factors = coefficients.chunks_exact(4);
        for (r, f) in (&mut quads).zip(&mut factors) {
            let (a, b) = (&r[0][..width], &r[1][..width]);
            let (c, d) = (&r[2][..width], &r[3][..width]);
            for i in 0..width {
                out[i] += (f[0] * a[i] + f[1] * b[i]) + (f[2] * c[i] + f[3] * d[i]);
            }
        }
        for (r, f) in quads.remainder().iter().zip(factors.remainder()) {
            let r = &r[..width];
            for i in 0..width {
                out[i] += f * r[i];
            }
        }
    }
}

simd! {
    /// `best = max(best, row)`, elementwise; where the row is larger, `argmax` becomes `t`, its number.
    pub fn maximum(row: &[f32], t: u32, best: &mut [f32], argmax: &mut [u32]) {
        for ((b, w), v) in best.iter_mut().zip(argmax).zip(row) {
            let larger = *v > *b;
            *b = if larger { *v } else { *b };
            *w = if larger { t } else { *w };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::values;

    #[test]
    fn rows_are_added_with_their_coefficients() {
        for (count, width) in [(0, 3), (1, 1), (3, 7), (4, 16), (5, 33), (9, 64)] {
            let table = values(count * width, 1);
            let rows: Vec<&[f32]> = table.chunks_exact(width).collect();
            let coefficients = values(count, 2);
            // What is there before does not count.
            let mut out = vec![f32::NAN; width];
            combine(&rows, &coefficients, &mut out);
            for (i, out) in out.iter().enumerate() {
                let terms = rows.iter().zip(&coefficients);
                let sum: f64 = terms.map(|(r, c)| f64::from(r[i]) * f64::from(*c)).sum();
                assert!((f64::from(*out) - sum).abs() < 1e-5, "{count} × {width}");
            }
        }
    }

    #[test]
    fn the_first_of_equal_elements_is_the_largest() {
        let rows = [[1.0, -2.0, 0.5], [1.0, -1.0, 0.0], [0.0, -1.0, 0.75]];
        let (mut best, mut argmax) = (rows[0], [0; 3]);
        for (t, row) in rows.iter().enumerate().skip(1) {
            maximum(row, t as u32, &mut best, &mut argmax);
        }
        assert_eq!((best, argmax), ([1.0, -1.0, 0.75], [0, 1, 2]));
    }
}
