//! How vectors lie in the pending list: as they came, as long as they fit on a page. What is lost
//! there no segment can win back.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::arithmetic::HALF_ULP;
use crate::codec::Codec;
use crate::error::{IndexError, Result};
use crate::metric::Metric;
use crate::page::PENDING_ENTRY_MAX;
use crate::quantization::Quantization;

/// Form of a pending entry's vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawForm {
    /// Four bytes a component.
    F32,
    /// Two bytes a component; exact for vectors that came so.
    F16,
    /// A scale, and two bytes a component.
    I16,
    /// A stored vector of the first format, as its codec writes it.
    Stored(Quantization),
}

impl RawForm {
    /// The most exact form in which `dims` components fit on a page. `half`: vectors come with 16
    /// bits a component.
    ///
    /// # Errors
    /// When there is none, or `quantization` asks for more than there is.
    pub fn choose(dims: usize, half: bool, quantization: Option<Quantization>) -> Result<Self> {
        use Quantization::{B1, Bf16, F16, F32, I8};
        let forms: &[Self] = match (quantization, half) {
            (Some(F32), false) => &[Self::F32],
            (Some(F16), false) => &[Self::F32, Self::I16, Self::Stored(F16)],
            (Some(Bf16), false) => &[Self::F32, Self::I16, Self::Stored(Bf16)],
            (Some(F32 | F16 | Bf16), true) => &[Self::F16],
            (Some(B1), false) => &[Self::F32, Self::I16, Self::Stored(I8), Self::Stored(B1)],
            (Some(B1), true) => &[Self::F16, Self::Stored(I8), Self::Stored(B1)],
            (_, false) => &[Self::F32, Self::I16, Self::Stored(I8)],
            (_, true) => &[Self::F16, Self::Stored(I8)],
        };
        let fits = |form: &Self, dims: usize| form.len(dims) <= PENDING_ENTRY_MAX;
        if let Some(form) = forms.iter().find(|form| dims > 0 && fits(form, dims)) {
            return Ok(*form);
        }
        let last = forms.last().expect("there is one");
        let limit = (1..).take_while(|dims| fits(last, *dims)).count();
        Err(IndexError::TooWide {
            dims,
            limit,
            quantization: quantization.unwrap_or(I8),
        })
    }

    /// Bytes of a vector.
    pub fn len(self, dims: usize) -> usize {
        match self {
            Self::F32 => 4 * dims,
            Self::F16 => 2 * dims,
            Self::I16 => 4 + 2 * dims,
            // The metric does not matter for the length.
            Self::Stored(quantization) => Codec::first(dims, Metric::L2, quantization).len(),
        }
    }

    /// Number on the metapage.
    pub fn to_u8(self) -> u8 {
        match self {
            Self::F32 => 1,
            Self::F16 => 2,
            Self::I16 => 3,
            Self::Stored(quantization) => 16 + quantization as u8,
        }
    }

    /// The form with this number.
    pub fn from_u8(value: u8) -> Option<Self> {
        match value {
            1 => Some(Self::F32),
            2 => Some(Self::F16),
            3 => Some(Self::I16),
            _ => Quantization::from_u8(value.checked_sub(16)?).map(Self::Stored),
        }
    }

    /// Writes a finite vector, which has a direction where the metric asks for one, into
    /// [`RawForm::len`] bytes.
    pub fn encode(self, metric: Metric, x: &[f32], out: &mut [u8]) -> Result<()> {
        match self {
            Self::F32 => out.copy_from_slice(bytemuck::cast_slice(x)),
            Self::F16 => {
                for (out, x) in out.chunks_exact_mut(2).zip(x) {
                    out.copy_from_slice(&f16::from_f32(*x).to_le_bytes());
                }
            }
            Self::I16 => {
                let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                let mut scale = largest / 32767.0;
                // Among the smallest numbers there are the steps are large, and zero is one of them.
                if scale < f32::MIN_POSITIVE && f64::from(scale) * 32767.0 < f64::from(largest) {
                    scale = scale.next_up();
                }
                // At the other end a product that is rounded up would be infinity.
                if scale * 32767.0 == f32::INFINITY {
                    scale = scale.next_down();
                }
                out[..4].copy_from_slice(&scale.to_le_bytes());
                for (out, x) in out[4..].chunks_exact_mut(2).zip(x) {
                    let code = f64::from(*x) / f64::from(scale).max(f64::MIN_POSITIVE);
                    let code = code.round().clamp(-32767.0, 32767.0) as i16;
                    out.copy_from_slice(&code.to_le_bytes());
                }
            }
            Self::Stored(quantization) => {
                Codec::first(x.len(), metric, quantization).encode_first(metric, x, out)?;
            }
        }
        Ok(())
    }

    /// Reads a vector, and returns a bound of its distance from the one that was written. In the
    /// form of the first format vectors come back as [`crate::space::prepare`] gives them.
    pub fn decode(self, metric: Metric, dims: usize, stored: &[u8], out: &mut Vec<f32>) -> f64 {
        out.clear();
        match self {
            Self::F32 => {
                out.extend(
                    stored
                        .chunks_exact(4)
                        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
                );
                0.0
            }
            Self::F16 => {
                out.resize(stored.len() / 2, 0.0);
                match bytemuck::try_cast_slice::<u8, f16>(stored) {
                    Ok(halves) => halves.convert_to_f32_slice(out),
                    Err(_) => {
                        for (out, x) in out.iter_mut().zip(stored.chunks_exact(2)) {
                            *out = f16::from_le_bytes([x[0], x[1]]).to_f32();
                        }
                    }
                }
                0.0
            }
            Self::I16 => {
                let (scale, codes) = stored.split_at(4);
                let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
                let codes = codes.chunks_exact(2);
                out.extend(codes.map(|c| scale * f32::from(i16::from_le_bytes([c[0], c[1]]))));
                let half = f64::from(scale) * (0.5 + 32767.0 * 2.0 * HALF_ULP);
                half * (dims as f64).sqrt() + f64::from(f32::MIN_POSITIVE)
            }
            Self::Stored(quantization) => {
                let codec = Codec::first(dims, metric, quantization);
                let (graph, fine) = stored.split_at(codec.graph_len());
                *out = codec.decode(graph, fine);
                codec.error(graph, fine)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_any_size_come_back() {
        for size in [1e-45f32, 1e-44, 3e-41, 1e-38, 1e-3, 1.0, 1e30, f32::MAX] {
            let x = [0.0, size, -size / 2.0, size / 3.0];
            let mut stored = [0; 12];
            RawForm::I16.encode(Metric::L2, &x, &mut stored).unwrap();
            let mut back = Vec::new();
            let error = RawForm::I16.decode(Metric::L2, 4, &stored, &mut back);
            assert!((back[1] / size - 1.0).abs() < 1e-3, "{size}: {back:?}");
            let apart: f64 = x
                .iter()
                .zip(&back)
                .map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2))
                .sum();
            assert!(apart.sqrt() <= error, "{size}: {back:?} {error}");
        }
    }
}
