//! Multi-layer perceptrons: what classifies embeddings, in an objective and in evaluation.

use laser_kernels::training::Arithmetic;
use laser_kernels::training::dropout::dropout;
use laser_model::config::{Activation, Dense};

use super::parameters::Parameters;
use crate::ops::dense::{self, DenseGradients, DenseParameters, DenseSaved};

/// Dense layers with an activation between them and none behind the last one. The parameters, weight
/// [out, in] and bias [out] of every layer, lie in a list of [`Parameters`].
#[derive(Clone, Debug)]
pub struct Perceptron {
    layers: Vec<Dense>,
    /// Position of the first parameter.
    begin: usize,
}

/// Dropout of the inputs of all layers.
#[derive(Clone, Copy, Debug, Default)]
pub struct InputDropout {
    /// Share of elements that are left out.
    pub rate: f32,
    /// Seed of the masks.
    pub seed: u64,
}

impl InputDropout {
    fn apply(self, layer: usize, x: &mut [f32]) {
        let seed = self.seed.wrapping_add(0x9e37_79b9 * (layer as u64 + 1));
        dropout(x, self.rate, seed);
    }
}

impl Perceptron {
    /// Adds the parameters of a perceptron of the given widths (input, hidden layers, output), drawn
    /// uniformly from ±1/√in.
    ///
    /// # Panics
    /// If there are fewer than two widths.
    pub fn new(
        parameters: &mut Parameters,
        prefix: &str,
        widths: &[usize],
        activation: Activation,
        seed: u64,
    ) -> Self {
        assert!(widths.len() > 1, "a perceptron has an input and an output");
        let begin = parameters.len();
        let last = widths.len() - 2;
        let layers = widths.windows(2).enumerate().map(|(i, w)| {
            let bound = 1.0 / (w[0] as f32).sqrt();
            let name = |part: &str| format!("{prefix}.{i}.{part}");
            parameters.uniform(&name("weight"), &[w[1], w[0]], bound, seed);
            parameters.uniform(&name("bias"), &[w[1]], bound, seed);
            Dense {
                input: w[0],
                output: w[1],
                activation: if i < last {
                    activation
                } else {
                    Activation::None
                },
                residual: false,
                layer_norm: false,
            }
        });
        let layers = layers.collect();
        Self { layers, begin }
    }

    /// Width of the output.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.layers.last().map_or(0, |l| l.output)
    }

    fn values<'a>(&self, parameters: &'a Parameters, layer: usize) -> DenseParameters<'a> {
        let at = self.begin + 2 * layer;
        DenseParameters {
            weight: parameters.value(at),
            bias: parameters.value(at + 1),
            norm: None,
        }
    }

    /// Output [rows, out] for `x` [rows, in], with what the backward pass needs.
    #[must_use]
    pub fn forward(
        &self,
        parameters: &Parameters,
        mut x: Vec<f32>,
        dropout: InputDropout,
        arithmetic: Arithmetic,
    ) -> (Vec<f32>, Vec<DenseSaved>) {
        let mut all = Vec::with_capacity(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate() {
            dropout.apply(i, &mut x);
            let (y, saved) = dense::forward(layer, self.values(parameters, i), x, arithmetic);
            x = y;
            all.push(saved);
        }
        (x, all)
    }

    /// Gradient of the input from that of the output; adds those of the parameters to `gradients`,
    /// which has a buffer for each of the list.
    #[must_use]
    pub fn backward(
        &self,
        parameters: &Parameters,
        saved: Vec<DenseSaved>,
        mut dy: Vec<f32>,
        dropout: InputDropout,
        gradients: &mut [Vec<f32>],
        arithmetic: Arithmetic,
    ) -> Vec<f32> {
        for ((i, layer), saved) in self.layers.iter().enumerate().zip(saved).rev() {
            let at = self.begin + 2 * i;
            let [weight, bias] = &mut gradients[at..at + 2] else {
                unreachable!("a layer has two parameters")
            };
            let gradients = DenseGradients {
                weight,
                bias,
                norm: None,
            };
            let values = self.values(parameters, i);
            dy = dense::backward(layer, values, saved, dy, gradients, arithmetic);
            dropout.apply(i, &mut dy);
        }
        dy
    }
}

#[cfg(test)]
mod tests {
    use super::super::parameters::random;
    use super::*;
    use laser_kernels::training::softmax::cross_entropy;

    #[test]
    fn gradients_match_finite_differences() {
        let mut parameters = Parameters::default();
        parameters.constant("before", &[2], 1.0);
        let widths = [6, 5, 4, 3];
        let net = Perceptron::new(&mut parameters, "net", &widths, Activation::Tanh, 3);
        assert_eq!((net.outputs(), parameters.len()), (3, 7));
        let mut x = random(4 * 6, 1.0, 1, 1);
        let labels = [0, 2, 1, 1];
        let dropout = InputDropout { rate: 0.2, seed: 7 };
        let exact = Arithmetic::F32;
        let loss = |p: &Parameters, x: &[f32]| {
            let mut y = net.forward(p, x.to_vec(), dropout, exact).0;
            cross_entropy(&mut y, 3, &labels)
        };
        let (mut y, saved) = net.forward(&parameters, x.clone(), dropout, exact);
        cross_entropy(&mut y, 3, &labels);
        let mut gradients = parameters.zeros();
        let dx = net.backward(&parameters, saved, y, dropout, &mut gradients, exact);
        let h = 1e-2;
        let close = |gradient: f32, up: f64, down: f64| {
            let slope = (up - down) / (2.0 * f64::from(h));
            let wrong = (f64::from(gradient) - slope).abs();
            assert!(wrong < 2e-4, "{gradient} {slope}");
        };
        for k in 0..x.len() {
            let value = x[k];
            x[k] = value + h;
            let up = loss(&parameters, &x);
            x[k] = value - h;
            close(dx[k], up, loss(&parameters, &x));
            x[k] = value;
        }
        assert_eq!(gradients[0], [0.0; 2]);
        for (i, slopes) in gradients.iter().enumerate().skip(1) {
            for (k, slope) in slopes.iter().enumerate() {
                let value = parameters.value(i)[k];
                parameters.list_mut()[i].value[k] = value + h;
                let up = loss(&parameters, &x);
                parameters.list_mut()[i].value[k] = value - h;
                close(*slope, up, loss(&parameters, &x));
                parameters.list_mut()[i].value[k] = value;
            }
        }
    }
}
