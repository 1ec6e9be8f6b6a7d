//! Distances and norms of embeddings of either element.

use crate::Element;

/// Cosine distance, 1 - a·b / (|a| |b|), kept within \[0, 2\]; NaN where a norm is zero, as in
/// pgvector.
pub fn cosine_distance<E: Element>(a: &[E], b: &[E]) -> f64 {
    let sums = E::cosine_sums(a, b).map(f64::from);
    // Squares of very large or very small elements leave the range of f32.
    let safe = |sum: f64| (1e-30..1e38).contains(&sum);
    let [dot, aa, bb] = if safe(sums[1]) && safe(sums[2]) {
        sums
    } else {
        cosine_sums_f64(a, b)
    };
    let similarity = dot / (aa * bb).sqrt();
    // clamp() keeps NaN.
    1.0 - similarity.clamp(-1.0, 1.0)
}

#[cold]
fn cosine_sums_f64<E: Element>(a: &[E], b: &[E]) -> [f64; 3] {
    a.iter().zip(b).fold([0.0; 3], |[dot, aa, bb], (x, y)| {
        let (x, y) = (f64::from(x.to_f32()), f64::from(y.to_f32()));
        [dot + x * y, aa + x * x, bb + y * y]
    })
}

/// Euclidean distance.
pub fn l2_distance<E: Element>(a: &[E], b: &[E]) -> f64 {
    f64::from(E::l2_squared(a, b)).sqrt()
}

/// The Euclidean norm, summed in `f64`.
pub fn norm<E: Element>(values: &[E]) -> f64 {
    values
        .iter()
        .map(|x| f64::from(x.to_f32()).powi(2))
        .sum::<f64>()
        .sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert!((cosine_distance(&[1.0f32, 0.0], &[0.0, 2.0]) - 1.0).abs() < 1e-12);
        assert!(cosine_distance(&[3.0f32, 4.0], &[6.0, 8.0]).abs() < 1e-12);
        assert_eq!(cosine_distance(&[1.0f32], &[-3.0]), 2.0);
        assert!(cosine_distance(&[0.0f32, 0.0], &[1.0, 1.0]).is_nan());
        assert_eq!(l2_distance(&[0.0f32, 0.0], &[3.0, 4.0]), 5.0);
        assert_eq!(norm(&[3.0f32, 4.0]), 5.0);
        assert_eq!(norm(&[f32::MAX]), f64::from(f32::MAX));
        // Squares that overflow and underflow f32.
        for size in [1e19f32, 3e38, 1e-25, 1e-40] {
            let (a, b) = ([size, size], [size, -size]);
            assert!(cosine_distance(&a, &a).abs() < 1e-6, "{size}");
            assert!((cosine_distance(&a, &b) - 1.0).abs() < 1e-6, "{size}");
        }
    }
}
