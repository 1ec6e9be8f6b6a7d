//! Dense layers between pooling and normalisation.

use crate::EncoderError;
use laser_kernels::arena::Arena;
use laser_kernels::gemm::{Packed, Start, Storage, matmul};
use laser_kernels::{Isa, math};
use laser_model::config::{Activation, Dense};
use laser_model::folder::Weights;

/// Epsilon of the layer normalisation of dense layers.
const LAYER_NORM_EPS: f64 = 1e-5;

struct Layer {
    weight: Packed,
    bias: Vec<f32>,
    activation: Activation,
    residual: bool,
    norm: Option<(Vec<f32>, Vec<f32>)>,
}

/// The dense layers of a model.
pub(crate) struct Head {
    isa: Isa,
    layers: Vec<Layer>,
}

impl Head {
    pub fn load(dense: &[Dense], weights: &Weights) -> Result<Self, EncoderError> {
        let arena = Arena::default();
        let mut layers = Vec::new();
        for (i, d) in dense.iter().enumerate() {
            let matrix = weights.matrix(&format!("dense.{i}.weight"), d.output, d.input)?;
            let norm = if d.layer_norm {
                Some((
                    weights.vector(&format!("dense.{i}.norm.weight"), d.output)?,
                    weights.vector(&format!("dense.{i}.norm.bias"), d.output)?,
                ))
            } else {
                None
            };
            layers.push(Layer {
                weight: Packed::new(&arena, d.output, d.input, Storage::F32, |j, row| {
                    matrix.row_into(j, row);
                    true
                })?,
                bias: weights.vector(&format!("dense.{i}.bias"), d.output)?,
                activation: d.activation,
                residual: d.residual,
                norm,
            });
        }
        Ok(Self {
            isa: Isa::detect(),
            layers,
        })
    }

    /// Applies all layers to `rows` rows.
    pub fn apply(&self, rows: usize, mut x: Vec<f32>) -> Vec<f32> {
        for layer in &self.layers {
            let (n, k) = (layer.weight.columns(), layer.weight.depth());
            let mut y = vec![0f32; rows * n];
            matmul(
                self.isa,
                rows,
                &x,
                k,
                &layer.weight,
                Start::Bias(&layer.bias),
                &mut y,
                n,
            );
            math::activate(layer.activation, &mut y);
            if layer.residual {
                y.iter_mut().zip(&x).for_each(|(y, x)| *y += x);
            }
            if let Some((weight, bias)) = &layer.norm {
                for row in y.chunks_exact_mut(n) {
                    math::layer_norm(row, weight, bias, LAYER_NORM_EPS);
                }
            }
            x = y;
        }
        x
    }

    pub fn flops(&self) -> usize {
        self.layers
            .iter()
            .map(|l| 2 * l.weight.columns() * l.weight.depth())
            .sum()
    }

    pub fn bytes(&self) -> usize {
        self.layers
            .iter()
            .map(|l| l.weight.bytes() + l.bias.len() * 4)
            .sum()
    }
}
