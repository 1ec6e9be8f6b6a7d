//! Grouping of sentences into batches of similar length.

/// What a batch may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Tokens; one longer sentence is a batch of its own.
    pub tokens: usize,
    /// Sentences, whatever their lengths.
    pub rows: usize,
}

impl Budget {
    /// Larger batches would not be faster and leave the processor's caches.
    pub const PROCESSOR: Self = Self {
        tokens: 2048,
        rows: 128,
    };

    /// Enough work for a GPU's launches to cost little: 270 MB for the products of a layer of
    /// 2 x 512 in bf16.
    pub const GPU: Self = Self {
        tokens: 1 << 15,
        rows: 512,
    };
}

/// Sentences below which a batch is not split for the sake of more threads: with fewer rows the
/// recurrent product is limited by reading its weights.
const ROWS_WORTH_SPLITTING: usize = 16;

/// Batches of indices into `lengths`, each sorted by descending length.
///
/// `lanes` is the number of batches that can run at the same time; batches are made smaller where
/// there would be fewer than that. Whether a batch costs its longest sentence times its rows
/// (`padded`) or its tokens decides what counts against the budget.
pub(crate) fn plan(
    lengths: &[usize],
    lanes: usize,
    padded: bool,
    limit: Budget,
) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(lengths[i]));
    let total: usize = lengths.iter().sum();
    // One at a time: splitting would only leave less for each launch.
    let budget = match lanes {
        0 | 1 => limit.tokens,
        lanes => limit.tokens.min(total.div_ceil(lanes).max(1)),
    };
    let mut batches = Vec::new();
    let mut current: Vec<usize> = Vec::new();
    let mut tokens = 0;
    for i in order {
        let cost = |rows: usize| {
            if padded {
                rows * lengths[current.first().copied().unwrap_or(i)]
            } else {
                tokens + lengths[i]
            }
        };
        let next = cost(current.len() + 1);
        let full = current.len() >= limit.rows
            || next > limit.tokens
            || (next > budget && current.len() >= ROWS_WORTH_SPLITTING);
        if full && !current.is_empty() {
            batches.push(std::mem::take(&mut current));
            tokens = 0;
        }
        tokens += lengths[i];
        current.push(i);
    }
    if !current.is_empty() {
        batches.push(current);
    }
    batches
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn batches_are_a_sorted_partition(
            lengths in prop::collection::vec(0usize..300, 0..400), lanes in 1usize..9, padded: bool,
            tokens in 1usize..4000, rows in 1usize..200,
        ) {
            let batches = plan(&lengths, lanes, padded, Budget { tokens, rows });
            let mut seen = vec![false; lengths.len()];
            for batch in &batches {
                prop_assert!(!batch.is_empty() && batch.len() <= rows);
                prop_assert!(batch.windows(2).all(|w| lengths[w[0]] >= lengths[w[1]]));
                let sum: usize = batch.iter().map(|&i| lengths[i]).sum();
                let cost = if padded { batch.len() * lengths[batch[0]] } else { sum };
                prop_assert!(cost <= tokens || batch.len() == 1);
                for &i in batch {
                    prop_assert!(!std::mem::replace(&mut seen[i], true));
                }
            }
            prop_assert!(seen.into_iter().all(|x| x));
        }
    }
}
