//! The crate against an independent `f64` implementation.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

mod common;

use common::{mine, neighbours, rows};
use laser_mining::{Kernel, Margin, Neighbours, Retrieval, RowStore, knn, select};

const KERNELS: [Kernel; 5] = Kernel::ALL;

fn options(kernel: Kernel) -> knn::Options<'static> {
    knn::Options {
        threads: 2,
        kernel,
        ..Default::default()
    }
}

fn same_lists(found: &Neighbours, expected: &common::Lists, what: &str) {
    assert_eq!(found.rows(), expected.len(), "{what}");
    for (row, list) in expected.iter().enumerate() {
        let positions: Vec<usize> = found.positions(row).iter().map(|&p| p as usize).collect();
        let wanted: Vec<usize> = list.iter().map(|entry| entry.0).collect();
        assert_eq!(positions, wanted, "{what}, row {row}");
        for (cosine, entry) in found.cosines(row).iter().zip(list) {
            assert!((cosine - entry.1).abs() < 1e-12, "{what}, row {row}");
        }
    }
}

/// The reference adds in another order, so that a cosine in the middle of two multiples of 2^-40
/// could be rounded elsewhere; these seeds make no such rows.
fn every_mode(x: &[f32], y: &[f32], dimensions: usize, what: &str) {
    for k in [1, 4, 16] {
        let forward = neighbours(x, y, dimensions, k);
        let backward = neighbours(y, x, dimensions, k);
        for kernel in KERNELS {
            let what = format!("{what}, k {k}, {}", kernel.name());
            let (f, b) = knn::both(x, y, dimensions, k, &options(kernel)).unwrap();
            same_lists(&f, &forward, &what);
            same_lists(&b, &backward, &what);
            for margin in Margin::ALL {
                for retrieval in Retrieval::ALL {
                    for threshold in [f64::NEG_INFINITY, 0.0, 1.02] {
                        let what = format!("{what}, {margin}, {retrieval}, over {threshold}");
                        let found = select(&f, &b, margin, retrieval, threshold);
                        let expected = mine(
                            &forward,
                            &backward,
                            margin.name(),
                            retrieval.name(),
                            threshold,
                        );
                        let pairs: Vec<_> = found
                            .iter()
                            .map(|p| (p.source as usize, p.target as usize))
                            .collect();
                        let wanted: Vec<_> = expected.iter().map(|p| (p.0, p.1)).collect();
                        assert_eq!(pairs, wanted, "{what}");
                        for (pair, wanted) in found.iter().zip(&expected) {
                            assert!((pair.score - wanted.2).abs() < 1e-6, "{what}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn random_rows() {
    every_mode(
        &rows(1, 700, 96, 0, false),
        &rows(2, 1300, 96, 0, false),
        96,
        "random",
    );
}

#[test]
fn clustered_rows() {
    every_mode(
        &rows(3, 900, 64, 20, false),
        &rows(4, 600, 64, 20, false),
        64,
        "clustered",
    );
}

#[test]
fn copies_on_both_sides() {
    every_mode(
        &rows(5, 500, 33, 10, true),
        &rows(6, 700, 33, 10, true),
        33,
        "copies",
    );
}

#[test]
fn copies_across_the_sides() {
    let x = rows(7, 400, 48, 0, true);
    let mut y = rows(8, 300, 48, 0, true);
    y.extend_from_slice(&x[48 * 100..48 * 250]);
    every_mode(&x, &y, 48, "shared");
}

#[test]
fn one_dimension_and_odd_dimensions() {
    for dimensions in [2, 3, 7, 513] {
        let (x, y) = (
            rows(9, 40, dimensions, 0, false),
            rows(10, 30, dimensions, 0, false),
        );
        every_mode(&x, &y, dimensions, "few");
    }
    let (f, b) = knn::both(&[1.0, -2.0], &[3.0, -1.0], 1, 2, &options(Kernel::Auto)).unwrap();
    assert_eq!((f.positions(0), f.positions(1)), (&[0, 1][..], &[1, 0][..]));
    assert_eq!(b.cosines(0), &[1.0, -1.0]);
}

#[test]
fn all_rows_equal() {
    // Every candidate ties with every other one: positions decide.
    let row = rows(11, 1, 40, 0, false);
    let x = row.repeat(300);
    for kernel in KERNELS {
        let (f, b) = knn::both(&x, &x, 40, 4, &options(kernel)).unwrap();
        for at in 0..300 {
            assert_eq!(
                (f.positions(at), b.positions(at)),
                (&[0, 1, 2, 3][..], &[0, 1, 2, 3][..])
            );
        }
    }
}

#[test]
fn sparse_rows_use_the_whole_integer_range() {
    // One-hot rows reach the largest component; opposite signs the most negative sums.
    let dimensions = 20;
    let mut x = vec![0.0f32; dimensions * dimensions * 2];
    for at in 0..dimensions {
        x[at * dimensions + at] = 1e-20;
        x[(dimensions + at) * dimensions + at] = -1e20;
    }
    for kernel in KERNELS {
        let (f, _) = knn::both(&x, &x, dimensions, 40, &options(kernel)).unwrap();
        for at in 0..40 {
            assert_eq!(f.positions(at)[0] as usize, at, "{}", kernel.name());
            assert_eq!(f.positions(at)[39] as usize, (at + dimensions) % 40);
            assert!((f.cosines(at)[0] - 1.0).abs() < 1e-12);
            assert!((f.cosines(at)[39] + 1.0).abs() < 1e-12);
        }
    }
}

#[test]
fn limits_blocks_and_files_do_not_change_the_result() {
    let dimensions = 48;
    let (x, y) = (
        rows(12, 2500, dimensions, 30, true),
        rows(13, 3100, dimensions, 30, true),
    );
    let expected = knn::both(&x, &y, dimensions, 4, &options(Kernel::F32)).unwrap();
    for kernel in KERNELS {
        for memory in [0, 1_000_000, 100_000_000] {
            let limited = knn::Options {
                memory: Some(memory),
                ..options(kernel)
            };
            let found = knn::both(&x, &y, dimensions, 4, &limited).unwrap();
            assert!(found == expected, "{} bytes, {}", memory, kernel.name());

            let fill = |values: &[f32]| {
                let mut store = RowStore::new(dimensions, 50_000, None);
                values
                    .chunks(dimensions)
                    .for_each(|row| store.push(row).unwrap());
                assert!(store.spilled());
                store
            };
            let (sx, sy) = (fill(&x), fill(&y));
            let found =
                knn::both_rows((&sx).into(), (&sy).into(), dimensions, 4, &limited).unwrap();
            assert!(
                found == expected,
                "{} bytes from files, {}",
                memory,
                kernel.name()
            );
            let only = knn::forward((&sx).into(), (&sy).into(), dimensions, 4, &limited).unwrap();
            assert!(
                only == expected.0,
                "{} bytes forward, {}",
                memory,
                kernel.name()
            );
        }
    }
}

#[test]
fn shards_merge_to_the_whole() {
    let dimensions = 32;
    let (x, y) = (
        rows(14, 300, dimensions, 8, true),
        rows(15, 500, dimensions, 8, true),
    );
    let (whole, _) = knn::both(&x, &y, dimensions, 4, &options(Kernel::Auto)).unwrap();
    let mut merged = Neighbours::empty(300, 4).unwrap();
    for (first, last) in [(0, 3), (3, 200), (200, 500)] {
        let shard = &y[first * dimensions..last * dimensions];
        let (part, _) = knn::both(&x, shard, dimensions, 4, &options(Kernel::Auto)).unwrap();
        merged.merge(&part, first as u32);
    }
    assert_eq!(merged, whole);
}
