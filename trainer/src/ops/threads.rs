//! A fixed number of worker threads and a static split of work over them.

use std::ops::Range;

/// Worker threads. Work is split by position, never by who is free first, so that a result
/// depends on the number of threads and not on their timing.
pub struct Threads {
    pool: rayon::ThreadPool,
    count: usize,
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Threads({})", self.count)
    }
}

impl Threads {
    /// Starts `count` threads; 0 means one for every processor.
    ///
    /// # Errors
    /// If the system refuses to start them.
    pub fn new(count: usize) -> Result<Self, rayon::ThreadPoolBuildError> {
        let count = match count {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|i| format!("train-{i}"))
            .stack_size(64 << 20)
            .build()?;
        Ok(Self { pool, count })
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Calls `work(i, item)` for every item on the worker threads; results in the items' order.
    pub fn map<T: Send, R: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(usize, T) -> R + Sync,
    ) -> Vec<R> {
        if self.count == 1 || items.len() == 1 {
            // Still on a worker, for its large stack.
            return self.pool.install(|| {
                items
                    .into_iter()
                    .enumerate()
                    .map(|(i, item)| work(i, item))
                    .collect()
            });
        }
        let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
        let work = &work;
        self.pool.scope(|scope| {
            for ((i, item), slot) in items.into_iter().enumerate().zip(&mut results) {
                scope.spawn(move |_| *slot = Some(work(i, item)));
            }
        });
        results
            .into_iter()
            .map(|r| r.expect("a scope waits for its tasks"))
            .collect()
    }

    /// Splits `0..n` into one range a thread, of nearly equal length, without empty ranges.
    pub fn split(&self, n: usize) -> Vec<Range<usize>> {
        let parts = self.count.min(n);
        (0..parts)
            .map(|i| i * n / parts..(i + 1) * n / parts)
            .collect()
    }

    /// Splits the rows of a ragged batch into one range a thread, of nearly equal weight, where
    /// `starts[i]` is the weight of all rows before row i.
    pub fn split_weighted(&self, starts: &[usize]) -> Vec<Range<usize>> {
        let rows = starts.len() - 1;
        let total = starts[rows] - starts[0];
        let mut ranges = Vec::with_capacity(self.count);
        let mut begin = 0;
        for part in 1..=self.count {
            let end = if part == self.count {
                rows
            } else {
                starts
                    .partition_point(|s| s - starts[0] < part * total / self.count)
                    .min(rows)
            };
            if end > begin {
                ranges.push(begin..end);
                begin = end;
            }
        }
        ranges
    }
}

/// Cuts a slice of rows into the mutable parts that belong to consecutive ranges of rows.
///
/// # Panics
/// If the ranges do not follow one another from 0 or reach beyond the slice.
pub fn cut<'a, T>(
    mut data: &'a mut [T],
    ranges: &[Range<usize>],
    width: usize,
) -> Vec<&'a mut [T]> {
    let mut parts = Vec::with_capacity(ranges.len());
    let mut at = 0;
    for range in ranges {
        assert_eq!(range.start, at, "ranges must follow one another");
        let (part, rest) = data.split_at_mut(range.len() * width);
        parts.push(part);
        data = rest;
        at = range.end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_cover_everything_in_order() {
        let threads = Threads::new(3).unwrap();
        assert_eq!(threads.split(7), vec![0..2, 2..4, 4..7]);
        assert_eq!(threads.split(2), vec![0..1, 1..2]);
        assert!(threads.split(0).is_empty());
        let starts = [0, 1, 2, 3, 103, 104];
        let ranges = threads.split_weighted(&starts);
        assert_eq!(ranges.first().unwrap().start, 0);
        assert_eq!(ranges.last().unwrap().end, 5);
        for pair in ranges.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        assert_eq!(threads.split_weighted(&[0, 0, 0]).last().unwrap().end, 2);
    }

    #[test]
    fn map_keeps_the_order() {
        let threads = Threads::new(4).unwrap();
        let items: Vec<usize> = (0..50).collect();
        assert_eq!(threads.map(items, |i, x| i * x)[49], 49 * 49);
    }
}
