//! Errors, cancellation, measures and incremental updates.
#![allow(clippy::disallowed_methods, clippy::disallowed_macros)]

mod common;

use std::sync::atomic::Ordering;

use common::rows;
use laser_mining::{
    Candidate, Error, Growth, Kernel, Margin, Neighbourhoods, Neighbours, RowStore, Side, bucc,
    bucc_at, extend, knn, remove, similarity_error,
};
use proptest::prelude::*;

fn options() -> knn::Options<'static> {
    knn::Options {
        threads: 2,
        ..Default::default()
    }
}

#[test]
fn bad_input_is_named() {
    let ok = [1.0f32, 0.0, 0.0, 1.0];
    let fails = |x: &[f32], y: &[f32], d, k| knn::both(x, y, d, k, &options()).unwrap_err();
    assert!(matches!(fails(&ok, &ok, 2, 0), Error::ZeroK));
    assert!(matches!(fails(&ok, &ok, 0, 1), Error::ZeroDimensions));
    assert!(matches!(
        fails(&ok, &ok[..3], 2, 1),
        Error::Shape {
            side: Side::Target,
            ..
        }
    ));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = fails(&[1.0, 0.0, 2.0, bad], &ok, 2, 1);
        assert!(
            matches!(
                error,
                Error::NotFinite {
                    side: Side::Source,
                    row: 1
                }
            ),
            "{error}"
        );
    }
    let error = fails(&ok, &[0.0, 0.0, 1.0, 0.0], 2, 1);
    assert!(
        matches!(
            error,
            Error::ZeroVector {
                side: Side::Target,
                row: 0
            }
        ),
        "{error}"
    );
}

#[test]
fn empty_sides_have_empty_lists() {
    let (f, b) = knn::both(&[], &[1.0, 0.0], 2, 4, &options()).unwrap();
    assert_eq!((f.rows(), b.rows(), b.positions(0).len()), (0, 1, 0));
    assert!(b.mean(0).is_nan());
}

#[test]
fn k_larger_than_a_side_takes_all() {
    let (x, y) = (rows(1, 3, 8, 0, false), rows(2, 5, 8, 0, false));
    let (f, b) = knn::both(&x, &y, 8, 100, &options()).unwrap();
    assert_eq!((f.k(), b.k()), (5, 3));
    assert!((0..3).all(|row| f.positions(row).len() == 5));
}

#[test]
fn cancelled_search_stops() {
    let x = rows(3, 3000, 64, 0, false);
    let control = knn::Control::default();
    control.cancel.store(true, Ordering::Relaxed);
    let cancelled = knn::Options {
        control: Some(&control),
        ..options()
    };
    let error = knn::both(&x, &x, 64, 4, &cancelled).unwrap_err();
    assert!(matches!(error, Error::Cancelled));
}

#[test]
fn progress_reaches_its_total() {
    let (x, y) = (rows(4, 1000, 16, 0, false), rows(5, 700, 16, 0, false));
    for memory in [None, Some(0)] {
        let control = knn::Control::default();
        let watched = knn::Options {
            control: Some(&control),
            memory,
            ..options()
        };
        knn::both(&x, &y, 16, 4, &watched).unwrap();
        assert_eq!(control.total.load(Ordering::Relaxed), 700_000);
        assert_eq!(control.done.load(Ordering::Relaxed), 700_000);
    }
}

#[test]
fn a_store_without_room_on_disk_says_so() {
    let nowhere = Some(std::path::PathBuf::from("/nonexistent/folder"));
    let mut store = RowStore::new(4, 20, nowhere);
    store.push(&[1.0; 4]).unwrap();
    assert!(matches!(store.push(&[1.0; 4]), Err(Error::Spill(_))));
}

#[test]
fn stores_and_lists_pass_through_files() {
    use std::io::{ErrorKind, Seek, SeekFrom};

    let (x, y) = (rows(6, 90, 8, 0, false), rows(7, 70, 8, 0, false));
    let (f, b) = knn::both(&x, &y, 8, 4, &options()).unwrap();
    for limit in [100, 1000, 100_000] {
        let mut store = RowStore::new(8, limit, None);
        x.chunks(8).for_each(|row| store.push(row).unwrap());
        let passed = RowStore::from_file(store.to_file().unwrap(), 90, 8).unwrap();
        // The store itself goes on.
        store.push(&y[..8]).unwrap();
        assert_eq!(&*store.row(90).unwrap(), &y[..8]);
        let (again, _) = knn::both_rows((&passed).into(), y[..].into(), 8, 4, &options()).unwrap();
        assert_eq!(again, f);
        let short = RowStore::from_file(store.to_file().unwrap(), 100, 8);
        assert!(matches!(short, Err(Error::Spill(_))));
    }

    let mut file = tempfile::tempfile().unwrap();
    f.write(&mut file).unwrap();
    b.write(&mut file).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    assert_eq!(Neighbours::read(&mut file, 90, 70).unwrap(), f);
    assert_eq!(Neighbours::read(&mut file, 70, 90).unwrap(), b);
    let error = Neighbours::read(&mut file, 1, 90).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    // Positions that do not exist are refused.
    file.seek(SeekFrom::Start(0)).unwrap();
    let error = Neighbours::read(&mut file, 90, 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
}

#[test]
fn similarity_error_counts_wrong_rows() {
    // Four axes; the targets of rows 0 and 1 are exchanged.
    let x: Vec<f32> = (0..16)
        .map(|at| f32::from(u8::from(at / 4 == at % 4)))
        .collect();
    let mut y = x.clone();
    y.swap(0, 4);
    y.swap(1, 5);
    for margin in Margin::ALL {
        let (f, b) = knn::both(&x, &y, 4, 4, &options()).unwrap();
        assert_eq!(similarity_error(&f, &b, margin), 0.5, "{margin}");
        let (f, b) = knn::both(&x, &x, 4, 4, &options()).unwrap();
        assert_eq!(similarity_error(&f, &b, margin), 0.0, "{margin}");
    }
}

fn candidates(list: &[(i64, i64, f64)]) -> Vec<Candidate> {
    list.iter()
        .map(|&(source, target, score)| Candidate {
            source,
            target,
            score,
        })
        .collect()
}

#[test]
fn bucc_finds_the_threshold_of_the_best_f1() {
    let found = candidates(&[
        (1, 1, 1.5),
        (2, 2, 1.4),
        (3, 9, 1.2),
        (4, 4, 1.1),
        (5, 8, 1.0),
    ]);
    let gold = [(1, 1), (2, 2), (4, 4), (7, 7)];
    let best = bucc(&found, &gold);
    // After 4 candidates: precision 3/4, recall 3/4.
    assert_eq!((best.extracted, best.correct, best.gold), (4, 3, 4));
    assert!((best.f1 - 0.75).abs() < 1e-12 && (best.threshold - 1.05).abs() < 1e-12);
    assert_eq!(bucc_at(&found, &gold, best.threshold), best);
    let strict = bucc_at(&found, &gold, 1.3);
    assert_eq!((strict.precision, strict.recall), (1.0, 0.5));
}

#[test]
fn bucc_with_nothing_to_find() {
    assert_eq!(bucc(&[], &[(1, 1)]).f1, 0.0);
    let none = bucc(&candidates(&[(1, 2, 0.5)]), &[(1, 1)]);
    assert_eq!(
        (none.f1, none.extracted, none.threshold),
        (0.0, 0, f64::INFINITY)
    );
    assert_eq!(bucc(&candidates(&[(1, 1, 0.5)]), &[]).f1, 0.0);
    let repeated = bucc(
        &candidates(&[(1, 1, 0.5), (1, 1, 0.7), (1, 1, f64::NAN)]),
        &[(1, 1)],
    );
    assert_eq!(
        (repeated.extracted, repeated.f1, repeated.threshold),
        (1, 1.0, 0.7)
    );
}

proptest! {
    /// The best threshold is at least as good as any other, and is reached by extraction.
    #[test]
    fn bucc_threshold_is_optimal(
        list in prop::collection::vec((0i64..8, 0i64..8, 0u8..20), 0..40),
        gold in prop::collection::vec((0i64..8, 0i64..8), 0..20),
        other in 0u8..21,
    ) {
        let list: Vec<_> = list.iter().map(|&(s, t, c)| (s, t, f64::from(c) / 7.0)).collect();
        let found = candidates(&list);
        let best = bucc(&found, &gold);
        prop_assert_eq!(bucc_at(&found, &gold, best.threshold), best);
        prop_assert!(bucc_at(&found, &gold, f64::from(other) / 7.0 - 0.01).f1 <= best.f1);
    }

    /// Any kernel, any memory limit, any shape: the same lists.
    #[test]
    fn results_do_not_depend_on_how_they_are_computed(
        seed in 0u64..1000,
        n in 1usize..400, m in 1usize..600, dimensions in 1usize..70, k in 1usize..20,
        copies: bool, threads in 1usize..4,
    ) {
        let x = rows(seed, n, dimensions, 3, copies);
        let y = rows(seed + 1000, m, dimensions, 3, copies);
        let plain = knn::Options { threads: 1, kernel: Kernel::F32, ..Default::default() };
        let expected = knn::both(&x, &y, dimensions, k, &plain).unwrap();
        for kernel in Kernel::ALL {
            let other = knn::Options { threads, kernel, memory: Some(0), ..Default::default() };
            prop_assert!(knn::both(&x, &y, dimensions, k, &other).unwrap() == expected);
        }
        // The two directions tell of the same cosines.
        let turned = knn::both(&y, &x, dimensions, k, &plain).unwrap();
        prop_assert!(turned.0 == expected.1 && turned.1 == expected.0);
    }

    /// Rows that come and go: the updated neighbourhoods are those from scratch.
    #[test]
    fn updates_equal_a_new_search(
        seed in 0u64..1000, k in 1usize..9, copies: bool,
        x_fate in prop::collection::vec(0u8..4, 0..60),
        y_fate in prop::collection::vec(0u8..4, 0..60),
    ) {
        // Fates: 0 was there and leaves, 1 comes, 2 and 3 stay.
        let dimensions = 12;
        let x = rows(seed, x_fate.len(), dimensions, 3, copies);
        let y = rows(seed + 1, y_fate.len(), dimensions, 3, copies);
        let take = |values: &[f32], fate: &[u8], wanted: fn(u8) -> bool| -> Vec<f32> {
            (values.chunks(dimensions).zip(fate))
                .filter(|&(_, &fate)| wanted(fate))
                .flat_map(|(row, _)| row.to_vec())
                .collect()
        };
        // Positions, among the rows that `among` takes, of those that `wanted` takes.
        let positions = |fate: &[u8], among: fn(u8) -> bool, wanted: fn(u8) -> bool| -> Vec<u32> {
            (fate.iter().filter(|&&f| among(f)).zip(0u32..))
                .filter(|&(&f, _)| wanted(f))
                .map(|(_, at)| at)
                .collect()
        };
        let [before, stays, comes, after]: [fn(u8) -> bool; 4] =
            [|f| f != 1, |f| f >= 2, |f| f == 1, |f| f != 0];
        let search = |x: &[f32], y: &[f32]| {
            let (forward, backward) = knn::both(x, y, dimensions, k, &options()).unwrap();
            Neighbourhoods { forward, backward }
        };
        let old = search(&take(&x, &x_fate, before), &take(&y, &y_fate, before));
        let (x_kept, y_kept) = (take(&x, &x_fate, stays), take(&y, &y_fate, stays));
        let shrunk = remove(
            &old,
            (x_kept.as_slice().into(), &positions(&x_fate, before, stays)),
            (y_kept.as_slice().into(), &positions(&y_fate, before, stays)),
            dimensions, k, &options(),
        ).unwrap();
        prop_assert!(shrunk == search(&x_kept, &y_kept));

        let (x_new, y_new) = (take(&x, &x_fate, comes), take(&y, &y_fate, comes));
        let xp = (positions(&x_fate, after, stays), positions(&x_fate, after, comes));
        let yp = (positions(&y_fate, after, stays), positions(&y_fate, after, comes));
        let grown = extend(
            &shrunk,
            Growth {
                kept: x_kept.as_slice().into(), kept_positions: &xp.0,
                added: x_new.as_slice().into(), added_positions: &xp.1,
            },
            Growth {
                kept: y_kept.as_slice().into(), kept_positions: &yp.0,
                added: y_new.as_slice().into(), added_positions: &yp.1,
            },
            dimensions, k, &options(),
        ).unwrap();
        let expected = search(&take(&x, &x_fate, after), &take(&y, &y_fate, after));
        prop_assert!(grown == expected);
    }
}
