//! Natural language inference: a classifier reads `[u; v; u·v; |u − v|]` of premise and hypothesis (InferSent; Conneau
//! et al., EMNLP 2017). Beside translation it is LASER's second task (Artetxe and Schwenk, TACL 2019).

use serde::{Deserialize, Serialize};

use laser_kernels::slices::scale;
use laser_kernels::training::Arithmetic;
use laser_kernels::training::softmax::cross_entropy;
use laser_model::config::Activation;

use crate::models::Parameters;
use crate::models::perceptron::{InputDropout, Perceptron};
use crate::ops::pair::{self, PairFeatures};

/// The classifier of the objective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClassifierSizes {
    /// Widths of hidden layers.
    pub hidden: Vec<usize>,
    /// Between its layers: none, tanh, gelu, relu.
    pub activation: Activation,
    /// Share of the inputs of its layers that is left out.
    pub dropout: f32,
}

impl Default for ClassifierSizes {
    fn default() -> Self {
        Self {
            hidden: vec![512],
            activation: Activation::Tanh,
            dropout: 0.0,
        }
    }
}

/// Loss of a batch and its gradients by the embeddings [pairs, width] of premises and hypotheses.
#[derive(Clone, Debug)]
pub struct NliLoss {
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// By the premises.
    pub du: Vec<f32>,
    /// By the hypotheses.
    pub dv: Vec<f32>,
}

/// A classifier for embeddings of a width.
///
/// # Panics
/// If there are fewer than two classes.
#[must_use]
pub fn classifier(
    parameters: &mut Parameters,
    sizes: &ClassifierSizes,
    width: usize,
    classes: usize,
    seed: u64,
) -> Perceptron {
    assert!(classes > 1, "something must be told apart");
    let mut widths = vec![PairFeatures::Directed.width(width)];
    widths.extend(&sizes.hidden);
    widths.push(classes);
    Perceptron::new(parameters, "objective.nli", &widths, sizes.activation, seed)
}

/// Loss of pairs with embeddings `u` and `v` [pairs, width] and a label each. Gradients, those that are added to `dense`
/// included, are multiplied by `weight`.
#[must_use]
pub fn nli(
    net: &Perceptron,
    parameters: &Parameters,
    (u, v): (&[f32], &[f32]),
    labels: &[u32],
    (weight, dropout): (f32, InputDropout),
    dense: &mut [Vec<f32>],
    arithmetic: Arithmetic,
) -> NliLoss {
    let width = u.len() / labels.len().max(1);
    let kind = PairFeatures::Directed;
    let mut x = Vec::with_capacity(labels.len() * kind.width(width));
    for (u, v) in u.chunks_exact(width).zip(v.chunks_exact(width)) {
        kind.append(u, v, &mut x);
    }
    let (mut y, saved) = net.forward(parameters, x, dropout, arithmetic);
    let loss = cross_entropy(&mut y, net.outputs(), labels);
    scale(weight, &mut y);
    let dx = net.backward(parameters, saved, y, dropout, dense, arithmetic);
    let (mut du, mut dv) = (vec![0f32; u.len()], vec![0f32; v.len()]);
    for (i, d) in dx.chunks_exact(kind.width(width)).enumerate() {
        let row = i * width..(i + 1) * width;
        let (du, dv) = (&mut du[row.clone()], &mut dv[row.clone()]);
        pair::backward(&u[row.clone()], &v[row], d, du, dv);
    }
    NliLoss { loss, du, dv }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::parameters::random;

    #[test]
    fn gradients_match_finite_differences() {
        let (width, labels) = (3, [0, 2, 1, 2]);
        let mut parameters = Parameters::default();
        let sizes = ClassifierSizes {
            hidden: vec![6],
            ..ClassifierSizes::default()
        };
        let net = classifier(&mut parameters, &sizes, width, 3, 5);
        let mut uv = random(2 * 4 * width, 1.0, 1, 1);
        let dropout = InputDropout { rate: 0.1, seed: 3 };
        let value = |parameters: &Parameters, uv: &[f32]| {
            let (u, v) = uv.split_at(uv.len() / 2);
            let mut dense = parameters.zeros();
            let scale = (0.5, dropout);
            let exact = Arithmetic::F32;
            let found = nli(&net, parameters, (u, v), &labels, scale, &mut dense, exact);
            (found, dense)
        };
        let (found, dense) = value(&parameters, &uv);
        let gradient = [found.du, found.dv].concat();
        let h = 1e-2;
        let close = |gradient: f32, up: f64, down: f64| {
            let slope = 0.5 * (up - down) / (2.0 * f64::from(h));
            let wrong = (f64::from(gradient) - slope).abs();
            assert!(wrong < 2e-4, "{gradient} {slope}");
        };
        for k in 0..uv.len() {
            let at = uv[k];
            uv[k] = at + h;
            let up = value(&parameters, &uv).0.loss;
            uv[k] = at - h;
            close(gradient[k], up, value(&parameters, &uv).0.loss);
            uv[k] = at;
        }
        for (i, slopes) in dense.iter().enumerate() {
            for (k, slope) in slopes.iter().enumerate() {
                let at = parameters.value(i)[k];
                parameters.list_mut()[i].value[k] = at + h;
                let up = value(&parameters, &uv).0.loss;
                parameters.list_mut()[i].value[k] = at - h;
                close(*slope, up, value(&parameters, &uv).0.loss);
                parameters.list_mut()[i].value[k] = at;
            }
        }
    }
}
