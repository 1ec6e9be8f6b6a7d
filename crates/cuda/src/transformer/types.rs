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

/// How the queries of a token meet keys.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// Queries of a token.
    pub queries: usize,
    /// Keys of a token, and values, each for `queries / keys` neighbouring queries.
    pub keys: usize,
    /// What queries are multiplied by.
    pub scale: f32,
    /// A query meets the keys that are fewer than this many tokens away, on either side.
    pub window: Option<usize>,
    /// What queries, keys and values get before, f32 [(queries + 2 keys) size].
    pub bias: Option<&'a Tensor>,
    /// What scores get for the distances from 1 - reach to reach - 1 of a key behind the query, f32 [queries, 2 reach - 1].
    pub relative: Option<&'a Tensor>,
}

impl Heads<'_> {
    /// The window, as the kernel takes it.
    pub fn window(&self) -> u32 {
        let window = self.window.and_then(|window| u32::try_from(window).ok());
        window.unwrap_or(u32::MAX)
    }
}

/// How queries and keys are normalised and turned.
#[derive(Clone, Debug)]
pub struct Turning {
    /// Weights of the queries' norm, f32 [size].
    pub query: Tensor,
    /// Weights of the keys' norm, f32 [size].
    pub key: Tensor,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Cosines of the angles of all places, f32 [places, size / 2].
    pub cosines: Tensor,
    /// Their sines.
    pub sines: Tensor,
}

/// A norm by the root of the mean square (Zhang & Sennrich 2019).
#[derive(Clone, Debug)]
pub struct RootNorm {
    /// f32 [width].
    pub weight: Tensor,
    /// Added to the mean of squares, of this norm and of one that is computed with it.
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
