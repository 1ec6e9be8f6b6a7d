//! What the parts of a layer take and give.

use candle_core::{Device, Result, Tensor, bail};

/// Where the tokens of a batch lie: sentence after sentence, without padding.
#[derive(Clone, Debug)]
pub struct Sentences {
    offsets: Vec<usize>,
    longest: usize,
    /// The offsets on the device, as `u32`.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "read by kernels alone")
    )]
    pub(super) on_device: Tensor,
}

impl Sentences {
    /// Of sentences with these lengths, none of them empty; their tensors will be on `device`.
    ///
    /// # Errors
    /// If a sentence is empty, there are more tokens than a `u32` counts, or the device fails.
    pub fn new(lengths: &[usize], device: &Device) -> Result<Self> {
        if lengths.contains(&0) {
            bail!("a sentence without tokens has no states");
        }
        let mut offsets = vec![0];
        let mut end = 0usize;
        offsets.extend(lengths.iter().map(|length| {
            end += length;
            end
        }));
        if u32::try_from(end).is_err() {
            bail!("{end} tokens are too many for one batch");
        }
        let on_device: Vec<u32> = offsets.iter().map(|&at| at as u32).collect();
        Ok(Self {
            longest: lengths.iter().copied().max().unwrap_or(0),
            on_device: Tensor::new(&on_device[..], device)?,
            offsets,
        })
    }

    /// First row of each sentence, and the number of rows.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }

    /// Number of sentences.
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens of the longest.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.offsets[self.len()]
    }
}

/// A non-linearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Activation {
    /// x
    Identity = 0,
    /// tanh x
    Tanh = 1,
    /// x Φ(x), with the distribution function of the normal distribution (Hendrycks & Gimpel 2016)
    Gelu = 2,
    /// Its approximation by tanh.
    GeluTanh = 3,
    /// max(x, 0)
    Relu = 4,
}

/// How the states of a sentence become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Pooling {
    /// The first token's.
    First = 0,
    /// The mean over the tokens.
    Mean = 1,
    /// The largest value of each column.
    Max = 2,
}

/// A layer normalisation (Ba et al. 2016).
#[derive(Clone, Debug)]
pub struct Norm {
    /// f32 [width].
    pub weight: Tensor,
    /// f32 [width].
    pub shift: Tensor,
    /// Added to the variance.
    pub epsilon: f32,
}

/// What goes on between layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The sum, of which the norm is read by the next part (norms before the parts of a layer).
    Sum,
    /// The norm of the sum (norms behind them).
    Norm,
}

/// A sum and its norm.
#[derive(Clone, Debug)]
pub struct Normalized {
    /// What goes on, f32 [rows, width]; see [`Keep`].
    pub stream: Tensor,
    /// The norm in the type of products, [rows, width].
    pub out: Tensor,
}
