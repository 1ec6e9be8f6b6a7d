//! Rows on curves, which come near to themselves where a walk along them does not.

use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::query::Query;
use laser_index::scan::{Distance, Iterate, PendingRows, Scan, Settings};

use super::common::{build, options, views};

/// How many rows a search by default does not find by their own vector.
fn lost(rows: &[Vec<f32>]) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let dims = rows[0].len();
    let options = options(dims, Metric::L2, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    build(&store, &options, rows);
    let views = views(&store, &Meta::read(&store).unwrap(), folder.path()).unwrap();
    let settings = Settings {
        ef: 0,
        iterate: Iterate::Off,
        max_tuples: usize::MAX,
        cutoff: f64::INFINITY,
        undirected: false,
        at_once: None,
        recheck: false,
    };
    let is_lost = |(row, tid): &(&Vec<f32>, u64)| {
        let query = Query::new(Metric::L2, dims, row).unwrap();
        let mut scan = Scan::new(&query, settings, views.clone(), PendingRows::default());
        let nearest = scan.next(&|| ());
        !matches!(nearest, Some((Distance::Known(known), found)) if found == *tid || known.lower <= 0.0)
    };
    rows.iter().zip(1..).filter(is_lost).count()
}

/// A walk that has come down on another turn keeps only nodes of that, and no edge leads across. Before nodes were looked for, 61
/// in a row were lost of the first spiral, and 18 of the second.
#[test]
fn rows_on_spirals_find_themselves() {
    let cone = |i: i32| {
        let (r, a) = (i as f32 / 15_000.0, i as f32 / 75.0);
        vec![r * a.cos(), r * a.sin(), r]
    };
    let logarithmic = |i: i32| {
        let (r, a) = ((i as f32 / 2_000.0).exp(), i as f32 / 100.0);
        vec![r * a.cos(), r * a.sin()]
    };
    let two = |i: i32| {
        let (r, a, b) = (
            (i as f32 / 2_000.0).exp(),
            i as f32 / 100.0,
            i as f32 / 37.0,
        );
        vec![
            r * a.cos(),
            r * a.sin(),
            0.3 * r * b.cos(),
            0.3 * r * b.sin(),
        ]
    };
    let rows = |n: i32, at: &dyn Fn(i32) -> Vec<f32>| (1..=n).map(at).collect::<Vec<_>>();
    let lost = [
        lost(&rows(15_000, &cone)),
        lost(&rows(20_000, &logarithmic)),
        lost(&rows(24_000, &two)),
    ];
    assert_eq!(lost, [0; 3]);
}
