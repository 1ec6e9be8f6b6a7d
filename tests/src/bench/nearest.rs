//! The nearest rows of vectors of length 1, by looking at all of them.

use std::ops::Range;

use anyhow::Result;
use postgres::Client;

use super::Rows;

/// Cosines that differ by less are equal.
pub const ROUNDING: f32 = 1e-6;

/// Inner product; independent partial sums, which the compiler can put into vector registers.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 16];
    let (a, b) = (a.as_chunks::<16>(), b.as_chunks::<16>());
    for (x, y) in a.0.iter().zip(b.0) {
        for lane in 0..16 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    let rest: f32 = a.1.iter().zip(b.1).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f32>() + rest
}

/// Of each query the inner product with the `k`th nearest of the rows. A row with as much, but for [`ROUNDING`], is one of the
/// `k` nearest: among rows at equal distances any is.
///
/// # Panics
/// When there are fewer than `k` rows, or `k` is 0.
pub fn least_products(
    vectors: &dyn Rows,
    rows: Range<usize>,
    queries: Range<usize>,
    k: usize,
) -> Vec<f32> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let queries: Vec<_> = queries.map(|query| vectors.row(query)).collect();
    // Each row is taken once, since it may have to be made: with all queries, by one of the threads.
    let largest = |rows: Range<usize>| {
        let mut found = vec![Vec::with_capacity(2 * k); queries.len()];
        for i in rows {
            let row = vectors.row(i);
            for (found, query) in found.iter_mut().zip(&queries) {
                found.push(dot(&row, query));
                if found.len() == 2 * k {
                    keep_largest(found, k);
                }
            }
        }
        found
    };
    let part = rows.len().div_ceil(threads).max(1);
    let parts = std::thread::scope(|scope| {
        let largest = &largest;
        let handles: Vec<_> = (rows.clone().step_by(part))
            .map(|first| scope.spawn(move || largest(first..rows.end.min(first + part))))
            .collect();
        let parts = handles.into_iter();
        parts
            .map(|handle| handle.join().expect("no panic"))
            .collect::<Vec<_>>()
    });
    let least = |query: usize| {
        let mut all: Vec<f32> = parts
            .iter()
            .flat_map(|found| &found[query])
            .copied()
            .collect();
        keep_largest(&mut all, k);
        all[k - 1]
    };
    (0..queries.len()).map(least).collect()
}

/// Keeps the `k` largest, of which the least comes last.
fn keep_largest(products: &mut Vec<f32>, k: usize) {
    products.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    products.truncate(k);
}

/// The share that a statement finds of the `k` nearest rows of each query. It returns numbers of queries, counted from the one behind
/// `first` others of the vectors, and of rows; `least` is what [`least_products`] says of the queries.
///
/// # Errors
/// When the statement fails.
pub fn recall(
    client: &mut Client,
    statement: &str,
    vectors: &dyn Rows,
    first: usize,
    least: &[f32],
    k: usize,
) -> Result<f64> {
    let rows = client.query(statement, &[])?;
    let right = rows.iter().filter(|row| {
        let (query, id): (i32, i32) = (row.get(0), row.get(1));
        let query = query as usize;
        dot(&vectors.row(first + query), &vectors.row(id as usize)) >= least[query] - ROUNDING
    });
    Ok(right.count() as f64 / (least.len() * k) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Vectors;

    #[test]
    fn the_least_product_is_that_of_the_last_wanted() {
        let data = vec![1.0, 0.0, 0.8, 0.6, 0.0, 1.0, -1.0, 0.0, 0.6, 0.8];
        let vectors = Vectors {
            dimensions: 2,
            data,
        };
        let least = least_products(&vectors, 0..4, 0..5, 2);
        for (found, right) in least.iter().zip([0.8, 0.8, 0.6, 0.0, 0.8]) {
            assert!((found - right).abs() < ROUNDING, "{least:?}");
        }
    }
}
