//! Features of a pair of embeddings for a classifier.

/// How two embeddings of one width become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairFeatures {
    /// `[u; v; u·v; |u − v|]`, by element (Conneau et al., EMNLP 2017; LASER).
    Directed,
    /// `[|u − v|; u·v]`, the same for `(v, u)` (Tai et al., ACL 2015; SentEval).
    Symmetric,
}

impl PairFeatures {
    /// Width of the features of two embeddings of `width` dimensions.
    #[must_use]
    pub fn width(self, width: usize) -> usize {
        match self {
            Self::Directed => 4 * width,
            Self::Symmetric => 2 * width,
        }
    }

    /// Appends the features of `u` and `v` to `out`.
    pub fn append(self, u: &[f32], v: &[f32], out: &mut Vec<f32>) {
        let pairs = || u.iter().zip(v);
        if self == Self::Directed {
            out.extend_from_slice(u);
            out.extend_from_slice(v);
            out.extend(pairs().map(|(u, v)| u * v));
        }
        out.extend(pairs().map(|(u, v)| (u - v).abs()));
        if self == Self::Symmetric {
            out.extend(pairs().map(|(u, v)| u * v));
        }
    }
}

/// Adds to `du` and `dv` what the gradient `d` of the [`PairFeatures::Directed`] features of one pair makes
/// of them. Where `u = v`, the slope of `|u − v|` is 0.
pub fn backward(u: &[f32], v: &[f32], d: &[f32], du: &mut [f32], dv: &mut [f32]) {
    let width = u.len();
    let (own, rest) = d.split_at(width);
    let (other, rest) = rest.split_at(width);
    let (product, distance) = rest.split_at(width);
    for i in 0..width {
        let sign = match u[i].partial_cmp(&v[i]) {
            Some(std::cmp::Ordering::Greater) => 1.0,
            Some(std::cmp::Ordering::Less) => -1.0,
            _ => 0.0,
        };
        du[i] += own[i] + product[i] * v[i] + distance[i] * sign;
        dv[i] += other[i] + product[i] * u[i] - distance[i] * sign;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;

    #[test]
    fn features_are_those_of_the_papers() {
        let (u, v) = ([1.0, 2.0], [3.0, -1.0]);
        let features = |kind: PairFeatures| {
            let mut out = Vec::new();
            kind.append(&u, &v, &mut out);
            assert_eq!(out.len(), kind.width(2));
            out
        };
        assert_eq!(
            features(PairFeatures::Directed),
            [1.0, 2.0, 3.0, -1.0, 3.0, -2.0, 2.0, 3.0]
        );
        assert_eq!(features(PairFeatures::Symmetric), [2.0, 3.0, 3.0, -2.0]);
    }

    #[test]
    fn the_gradient_matches_finite_differences() {
        let width = 5;
        let mut uv = random(2 * width, 1.0, 1, 1);
        let d = random(4 * width, 1.0, 1, 2);
        // Any linear function of the features.
        let value = |uv: &[f32]| -> f64 {
            let mut out = Vec::new();
            PairFeatures::Directed.append(&uv[..width], &uv[width..], &mut out);
            let products = out.iter().zip(&d).map(|(x, d)| f64::from(x * d));
            products.sum()
        };
        let mut gradient = vec![0.0; 2 * width];
        let (du, dv) = gradient.split_at_mut(width);
        backward(&uv[..width], &uv[width..], &d, du, dv);
        for k in 0..uv.len() {
            let (at, h) = (uv[k], 1e-3);
            uv[k] = at + h;
            let up = value(&uv);
            uv[k] = at - h;
            let slope = (up - value(&uv)) / (2.0 * f64::from(h));
            uv[k] = at;
            let wrong = (f64::from(gradient[k]) - slope).abs();
            assert!(wrong < 1e-3, "{} {slope}", gradient[k]);
        }
    }
}
