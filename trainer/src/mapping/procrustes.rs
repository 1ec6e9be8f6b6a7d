//! The orthogonal matrix that brings one set of vectors nearest to another one (Schönemann, 1966).
//!
//! Word vectors of two languages are aligned with it by a dictionary (Conneau et al., ICLR 2018),
//! embeddings of sentences by parallel text (Aldarmaki and Diab, NAACL 2019).

use nalgebra::{DMatrix, DMatrixView};

/// Rows that are multiplied at a time.
const BLOCK: usize = 1024;

/// What cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// Fewer pairs than dimensions leave directions without a counterpart.
    #[error("{pairs} pairs are fewer than the {dimensions} dimensions that are mapped")]
    TooFew {
        /// Pairs of vectors.
        pairs: usize,
        /// The smaller of the two widths.
        dimensions: usize,
    },
    /// A value is infinite or not a number.
    #[error("a vector has a value that is not finite")]
    NotFinite,
    /// The decomposition did not converge.
    #[error("the singular value decomposition did not converge")]
    NoDecomposition,
}

/// The matrix W [target width, source width] that minimises `Σ ‖W x_i − y_i‖²` over matrices whose rows (or
/// columns, if the target is wider) are orthonormal: `W = U Vᵀ` of the singular value decomposition of `Σ y_i x_iᵀ`.
/// `x` is [pairs, source width], `y` [pairs, target width]. W is row-major.
///
/// # Errors
/// [`MappingError`].
pub fn procrustes(
    x: &[f32],
    y: &[f32],
    (source, target): (usize, usize),
) -> Result<Vec<f32>, MappingError> {
    let pairs = (x.len() / source).min(y.len() / target);
    let dimensions = source.min(target);
    if pairs < dimensions {
        return Err(MappingError::TooFew { pairs, dimensions });
    }
    let mut product = DMatrix::<f64>::zeros(target, source);
    for (x, y) in x.chunks(BLOCK * source).zip(y.chunks(BLOCK * target)) {
        // Row-major [rows, width] is column-major [width, rows].
        let x = columns(x, source);
        let y = columns(y, target);
        product.gemm(1.0, &y, &x.transpose(), 1.0);
    }
    if product.iter().any(|v| !v.is_finite()) {
        return Err(MappingError::NotFinite);
    }
    let svd = product
        .try_svd(true, true, f64::EPSILON, 0)
        .ok_or(MappingError::NoDecomposition)?;
    let (Some(u), Some(v)) = (svd.u, svd.v_t) else {
        return Err(MappingError::NoDecomposition);
    };
    let w = u * v;
    Ok(w.transpose().iter().map(|v| *v as f32).collect())
}

fn columns(rows: &[f32], width: usize) -> DMatrix<f64> {
    let view = DMatrixView::from_slice(rows, width, rows.len() / width);
    view.map(f64::from)
}

/// `W x` for each row of `x` [rows, source width]; [rows, target width].
#[must_use]
pub fn apply(w: &[f32], x: &[f32], (source, target): (usize, usize)) -> Vec<f32> {
    let rows = x.len() / source;
    let mut out = vec![0f32; rows * target];
    let exact = laser_kernels::training::Arithmetic::F32;
    exact.nt((rows, target, source), x, w, &mut out, false);
    out
}

/// The `count` directions [count, width] along which the rows of `x` [rows, width] are longest: eigenvectors
/// of `Σ x_i x_iᵀ`, the longest first.
///
/// # Errors
/// [`MappingError`].
pub fn principal(x: &[f32], width: usize, count: usize) -> Result<Vec<f32>, MappingError> {
    let mut product = DMatrix::<f64>::zeros(width, width);
    for x in x.chunks(BLOCK * width) {
        let x = columns(x, width);
        product.gemm(1.0, &x, &x.transpose(), 1.0);
    }
    if product.iter().any(|v| !v.is_finite()) {
        return Err(MappingError::NotFinite);
    }
    let eigen = product
        .try_symmetric_eigen(f64::EPSILON, 0)
        .ok_or(MappingError::NoDecomposition)?;
    let mut order: Vec<usize> = (0..width).collect();
    order.sort_by(|a, b| eigen.eigenvalues[*b].total_cmp(&eigen.eigenvalues[*a]));
    let vector = |i: &usize| {
        eigen
            .eigenvectors
            .column(*i)
            .iter()
            .map(|v| *v as f32)
            .collect::<Vec<_>>()
    };
    Ok(order.iter().take(count).flat_map(vector).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;

    fn close(a: &[f32], b: &[f32], within: f32) {
        assert_eq!(a.len(), b.len());
        for (a, b) in a.iter().zip(b) {
            assert!((a - b).abs() < within, "{a} {b}");
        }
    }

    /// An orthogonal matrix: a product of Householder reflections.
    fn orthogonal(width: usize) -> Vec<f32> {
        let mut w: Vec<f32> = (0..width * width)
            .map(|i| f32::from(u8::from(i / width == i % width)))
            .collect();
        for n in 0..3 {
            let h = random(width, 1.0, 9, n);
            let square: f32 = h.iter().map(|v| v * v).sum();
            for row in w.chunks_exact_mut(width) {
                let along: f32 = row.iter().zip(&h).map(|(a, b)| a * b).sum();
                row.iter_mut()
                    .zip(&h)
                    .for_each(|(v, h)| *v -= 2.0 * along * h / square);
            }
        }
        w
    }

    #[test]
    fn a_rotation_is_found_again_through_noise() {
        let width = 12;
        let wanted = orthogonal(width);
        let x = random(2500 * width, 1.0, 1, 1);
        let mut y = apply(&wanted, &x, (width, width));
        close(&procrustes(&x, &y, (width, width)).unwrap(), &wanted, 1e-5);
        let noise = random(y.len(), 0.3, 1, 2);
        y.iter_mut().zip(noise).for_each(|(y, n)| *y += n);
        let found = procrustes(&x, &y, (width, width)).unwrap();
        close(&found, &wanted, 0.03);
        // It is orthogonal, noise or not.
        for i in 0..width {
            for j in 0..width {
                let product: f32 = (0..width)
                    .map(|k| found[i * width + k] * found[j * width + k])
                    .sum();
                let wanted = if i == j { 1.0 } else { 0.0 };
                assert!((product - wanted).abs() < 1e-5, "{i} {j} {product}");
            }
        }
    }

    #[test]
    fn spaces_of_other_widths_are_mapped_and_bad_input_is_refused() {
        // The target has the first three of five dimensions.
        let x = random(500, 1.0, 1, 1);
        let y: Vec<f32> = x.chunks(5).flat_map(|r| r[..3].to_vec()).collect();
        let w = procrustes(&x, &y, (5, 3)).unwrap();
        close(&apply(&w, &x, (5, 3)), &y, 0.25);
        assert_eq!(procrustes(&y, &x, (3, 5)).unwrap().len(), 15);
        let few = procrustes(&x[..10], &y[..6], (5, 3));
        assert_eq!(
            few,
            Err(MappingError::TooFew {
                pairs: 2,
                dimensions: 3
            })
        );
        let mut x = x;
        x[3] = f32::NAN;
        assert_eq!(procrustes(&x, &y, (5, 3)), Err(MappingError::NotFinite));
        assert_eq!(principal(&x, 5, 1), Err(MappingError::NotFinite));
    }

    #[test]
    fn the_longest_direction_is_found() {
        let noise = random(3000, 0.1, 1, 1);
        let long = random(1000, 3.0, 1, 2);
        let x: Vec<f32> = noise
            .chunks(3)
            .zip(long)
            .flat_map(|(n, l)| [n[0] + 0.6 * l, n[1] + 0.8 * l, n[2]])
            .collect();
        let mut u = principal(&x, 3, 2).unwrap();
        assert_eq!(u.len(), 6);
        if u[0] < 0.0 {
            u.iter_mut().for_each(|v| *v = -*v);
        }
        close(&u[..3], &[0.6, 0.8, 0.0], 0.01);
        let across: f32 = (0..3).map(|i| u[i] * u[3 + i]).sum();
        assert!(across.abs() < 1e-5);
    }
}
