//! [`Packing`]: where the tokens of sentences of several lengths lie, so that nothing is padded.

/// The order of tokens in which recurrent layers read them: step by step, and within a step by descending
/// length of their sentences (as PyTorch's `PackedSequence`). Row `offset(t) + s` is token t of sentence s;
/// those of a step are the first of the sentences, which come longest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// First row of each step, then the number of rows.
    offsets: Vec<usize>,
}

impl Packing {
    /// Of sentences with these lengths, longest first.
    pub fn new(lengths: &[usize]) -> Self {
        debug_assert!(lengths.is_sorted_by(|a, b| a >= b), "longest first");
        let longest = lengths.first().copied().unwrap_or(0);
        let mut offsets = Vec::with_capacity(longest + 1);
        offsets.push(0);
        let (mut rows, mut end) = (lengths.len(), 0);
        for t in 0..longest {
            while lengths[rows - 1] <= t {
                rows -= 1;
            }
            end += rows;
            offsets.push(end);
        }
        Self { offsets }
    }

    /// Length of the longest sentence.
    pub fn steps(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Number of rows: the tokens of all sentences.
    pub fn tokens(&self) -> usize {
        self.offsets[self.steps()]
    }

    /// First row of step t; the number of rows for the step behind the last.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn offset(&self, t: usize) -> usize {
        self.offsets[t]
    }

    /// The rows of step t.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn rows(&self, t: usize) -> std::ops::Range<usize> {
        self.offsets[t]..self.offsets[t + 1]
    }

    /// Sentences that have step t; none beyond the last.
    pub fn active(&self, t: usize) -> usize {
        if t < self.steps() {
            self.rows(t).len()
        } else {
            0
        }
    }

    /// All offsets, [steps + 1].
    pub fn offsets(&self) -> &[usize] {
        &self.offsets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_a_row() {
        let packing = Packing::new(&[4, 2, 2, 1, 0]);
        assert_eq!(packing.offsets(), [0, 4, 7, 8, 9]);
        assert_eq!((packing.steps(), packing.tokens()), (4, 9));
        let active: Vec<_> = (0..6).map(|t| packing.active(t)).collect();
        assert_eq!(active, [4, 3, 1, 1, 0, 0]);
        assert_eq!(packing.rows(1), 4..7);
    }

    #[test]
    fn there_may_be_no_tokens() {
        for lengths in [&[][..], &[0, 0]] {
            let packing = Packing::new(lengths);
            assert_eq!(
                (packing.steps(), packing.tokens(), packing.active(0)),
                (0, 0, 0)
            );
        }
    }
}
