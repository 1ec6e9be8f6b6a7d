//! What a layer takes and gives.

use candle_core::{Device, Result, Tensor, bail};
use laser_kernels::packing::Packing;

/// Where the tokens of a batch lie.
#[derive(Clone, Debug)]
pub struct Steps {
    pub(super) packing: Packing,
    /// [`Packing::offsets`] on the device, as `u32`.
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "read by kernels alone")
    )]
    pub(super) on_device: Tensor,
}

impl Steps {
    /// Of sentences with these lengths, longest first, none of them empty; their tensors will be
    /// on `device`.
    ///
    /// # Errors
    /// If the lengths are not in order, or the device fails.
    pub fn new(lengths: &[usize], device: &Device) -> Result<Self> {
        if lengths.windows(2).any(|w| w[0] < w[1]) || lengths.last() == Some(&0) {
            bail!("the sentences of an LSTM come longest first, without empty ones");
        }
        let packing = Packing::new(lengths);
        let offsets: Vec<u32> = packing.offsets().iter().map(|&at| at as u32).collect();
        Ok(Self {
            on_device: Tensor::new(&offsets[..], device)?,
            packing,
        })
    }

    /// Number of steps: the length of the longest sentence.
    pub fn len(&self) -> usize {
        self.packing.steps()
    }

    /// Whether there is no sentence.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of rows.
    pub fn tokens(&self) -> usize {
        self.packing.tokens()
    }

    /// Number of sentences.
    pub fn sentences(&self) -> usize {
        self.active(0)
    }

    /// First row of each step, and the number of rows.
    pub fn offsets(&self) -> &[usize] {
        self.packing.offsets()
    }

    /// Sentences that have step t.
    pub(super) fn active(&self, t: usize) -> usize {
        self.packing.active(t)
    }

    /// The step that a direction visits before step t, and how many sentences of step t go on
    /// from it; the others begin.
    pub(super) fn previous(&self, t: usize, reverse: bool) -> (usize, usize) {
        match (reverse, t) {
            (true, _) => (t + 1, self.active(t + 1)),
            (false, 0) => (0, 0),
            (false, _) => (t - 1, self.active(t)),
        }
    }
}

/// The size of a layer: D directions, the forward one and perhaps the backward one, of H units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// D, 1 or 2.
    pub directions: usize,
    /// Width H of one direction's state.
    pub hidden: usize,
}

impl Shape {
    /// Width DH of the states.
    pub fn width(self) -> usize {
        self.directions * self.hidden
    }
}

/// How the states of a sentence become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Pooling {
    /// The largest value of each unit.
    Max = 1,
    /// The sum over the tokens.
    Sum = 2,
    /// The state after a direction's last token.
    Last = 3,
}

/// The parameters of a layer, all on one device.
#[derive(Clone, Debug)]
pub struct Weights {
    /// Those of the states, [D, 4H, H].
    pub recurrent: Tensor,
    /// The sums of both biases in f32, [D, 4H].
    pub bias: Tensor,
}

/// What a layer computes.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// States of all tokens, [tokens, DH].
    pub states: Tensor,
    /// Pooled states of the sentences in f32, [sentences, DH], if asked for.
    pub pooled: Option<Tensor>,
    /// What the backward pass needs, if asked for.
    pub saved: Option<Saved>,
}

/// What the backward pass needs of the forward pass.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Gates after their non-linearity, [tokens, 4DH].
    pub gates: Tensor,
    /// Cells in f32, [tokens, DH].
    pub cells: Tensor,
    /// Steps of the maxima, [sentences, DH], of max-pooling.
    pub argmax: Option<Tensor>,
}

/// The gradient of what a layer computes.
#[derive(Clone, Copy, Debug)]
pub enum Gradient<'a> {
    /// Of the states, [tokens, DH].
    States(&'a Tensor),
    /// Of the pooled states in f32, [sentences, DH].
    Pooled(&'a Tensor, Pooling),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_hold_the_sentences_that_have_them() {
        let steps = Steps::new(&[3, 2, 2], &Device::Cpu).unwrap();
        assert_eq!(steps.offsets(), [0, 3, 6, 7]);
        assert_eq!((steps.len(), steps.tokens(), steps.sentences()), (3, 7, 3));
        assert_eq!(steps.previous(0, false), (0, 0));
        assert_eq!(steps.previous(2, false), (1, 1));
        assert_eq!(steps.previous(1, true), (2, 1));
        assert_eq!(steps.previous(2, true), (3, 0));
        assert!(Steps::new(&[], &Device::Cpu).unwrap().is_empty());
        assert!(Steps::new(&[2, 3], &Device::Cpu).is_err());
        assert!(Steps::new(&[2, 0], &Device::Cpu).is_err());
    }
}
