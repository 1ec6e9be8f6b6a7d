//! Rows on curves, which come near to themselves where a walk along them does not.

use laser_index::maintain::{self, Merge, Plan};
use laser_index::memory::MemoryStore;
use laser_index::meta::Meta;
use laser_index::metric::Metric;
use laser_index::query::Query;
use laser_index::scan::{PendingRows, Scan, Settings};

use super::common::{STRICT, build, insert, options, views};

/// How many rows a search by default does not find by their own vector: as the first one, or, as rounding may have it, among
/// the first three. The second half of them is merged with what was built of the first one if that `is_merged`.
fn missed(rows: &[Vec<f32>], is_merged: bool) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let dims = rows[0].len();
    let options = options(dims, Metric::L2, None, folder.path());
    let store = MemoryStore::new();
    Meta::create(&store, options.parameters.clone()).unwrap();
    let built = if is_merged {
        rows.len() / 2
    } else {
        rows.len()
    };
    build(&store, &options, &rows[..built]);
    for (row, tid) in rows.iter().zip(1..).skip(built) {
        insert(&store, tid, row);
    }
    if is_merged {
        let how = Merge::new(Plan::Insert, &options);
        maintain::merge(&store, &how, |_, _| ()).unwrap();
    }
    let meta = Meta::read(&store).unwrap();
    assert_eq!(meta.segments.len(), 1);
    let views = views(&store, &meta, folder.path()).unwrap();
    let is_missed = |(row, tid): &(&Vec<f32>, u64)| {
        let query = Query::new(Metric::L2, dims, row).unwrap();
        let settings = Settings { ef: 0, ..STRICT };
        let mut scan = Scan::new(&query, settings, views.clone(), PendingRows::default());
        let first = std::iter::from_fn(|| scan.next(&|| ())).take(3);
        !first.into_iter().any(|(_, found)| found == *tid)
    };
    rows.iter().zip(1..).filter(is_missed).count()
}

/// A walk that has come down on another turn keeps only nodes of that, and no edge leads across. Before nodes were looked for, 61
/// in a row were missed of the first spiral, and 18 of the second.
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
    let rows = |n: i32, at: &dyn Fn(i32) -> Vec<f32>| (1..=n).map(at).collect::<Vec<_>>();
    let spirals = [rows(15_000, &cone), rows(20_000, &logarithmic)];
    let missed = spirals.map(|rows| [false, true].map(|is_merged| missed(&rows, is_merged)));
    assert_eq!(missed, [[0; 2]; 2]);
}
