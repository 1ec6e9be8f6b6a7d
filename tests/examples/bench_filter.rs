//! Searches with a filter beside the order: how many rows come, which, and how fast, beside pgvector.
//!
//! ```text
//! bench_filter [--rows 100000] [--dimensions 384] [--sentences FILE] [--queries 50]
//!              [--shares 0.5,0.1,0.01,0.001,0.0001] [--ef 40,100,200,400] [--recall 0.98] [--curves FILE] [--output FILE]
//! ```
//!
//! Data are Gaussian clusters, or lines of `--sentences` embedded by the model that ships; the order is by cosine, the
//! limit 10. A share of the rows passes the filter: at random, or those on the other side of the space from the query
//! (*far*), where what is near it passes least. No other index serves the filter.
//!
//! Contenders: laser as its planner decides; laser's index; pgvector's HNSW with `iterative_scan = strict_order`,
//! otherwise as it is by default, which ends after 20,000 rows; and where that finds less than laser by more than
//! [`SAME`], the same without an end to its rows. Each has the first width of `--ef` at which its recall
//! reaches `--recall`, or the last; laser's first is its default. Recall is the share of the ten (or all, if there are
//! fewer) nearest rows that pass; a row that does not come counts as missed. Figures: recall, rows in the mean, ms in
//! the mean of the faster of two runs, or of one that takes a second; the ratio is of laser's time and that of the last of
//! pgvector's. With `--curves` all widths are measured, and recall against queries a second of
//! both indexes is drawn for filters at random that leave at least [`DRAWN`] of the rows.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use laser_tests::bench::{
    Vectors, arguments, begin, clusters, list, load, normalize, pgvector, progress, sentences,
};
use laser_tests::curve::{self, Curve};
use laser_tests::{Cluster, say};
use postgres::Client;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const K: usize = 10;
/// Recall that differs by no more is the same.
const SAME: f64 = 0.005;
/// Least share of the rows that a curve is drawn for.
const DRAWN: f64 = 0.01;

struct Settings {
    rows: usize,
    dimensions: usize,
    sentences: Option<PathBuf>,
    queries: usize,
    shares: Vec<f64>,
    ef: Vec<u32>,
    recall: f64,
    curves: Option<PathBuf>,
    output: PathBuf,
}

fn settings() -> Result<Settings> {
    let mut s = Settings {
        rows: 100_000,
        dimensions: 384,
        sentences: None,
        queries: 50,
        shares: vec![0.5, 0.1, 0.01, 0.001, 0.0001],
        ef: vec![40, 100, 200, 400],
        recall: 0.98,
        curves: None,
        output: std::env::current_exe()?.with_file_name("../../bench-filter.txt"),
    };
    arguments(|name, value| {
        match name {
            "--rows" => s.rows = value.parse()?,
            "--dimensions" => s.dimensions = value.parse()?,
            "--sentences" => s.sentences = Some(value.into()),
            "--queries" => s.queries = value.parse()?,
            "--shares" => s.shares = list(&value)?,
            "--ef" => s.ef = list(&value)?,
            "--recall" => s.recall = value.parse()?,
            "--curves" => s.curves = Some(value.into()),
            "--output" => s.output = value.into(),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    ensure!(!s.ef.is_empty() && s.queries > 0, "nothing to search");
    Ok(s)
}

/// The columns that filters compare, for each row: a random number, and how far along the first axis of the data
/// it lies, both from 0 to 1.
struct Filters {
    random: Vec<f64>,
    axis: Vec<f64>,
}

impl Filters {
    fn new(set: &Vectors, rows: usize, rng: &mut ChaCha8Rng) -> Self {
        let mut by_axis: Vec<usize> = (0..rows).collect();
        by_axis.sort_by(|a, b| set.row(*a)[0].total_cmp(&set.row(*b)[0]));
        let mut axis = vec![0.0; rows];
        for (place, row) in by_axis.into_iter().enumerate() {
            axis[row] = place as f64 / rows as f64;
        }
        Self {
            random: (0..rows).map(|_| rng.random()).collect(),
            axis,
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Random,
    Far,
}

impl Kind {
    fn column(self) -> &'static str {
        match self {
            Kind::Random => "random",
            Kind::Far => "axis",
        }
    }
}

/// Distances of the ten nearest rows that pass, or of all.
fn exact(set: &Vectors, values: &[f64], share: f64, query: &[f32]) -> Vec<f64> {
    let mut distances: Vec<f64> = (0..values.len())
        .filter(|row| values[*row] < share)
        .map(|row| distance(query, set.row(row)))
        .collect();
    distances.sort_by(f64::total_cmp);
    distances.truncate(K);
    distances
}

/// Of vectors of length 1.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    1.0 - a
        .iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum::<f64>()
}

struct Contender {
    name: &'static str,
    table: &'static str,
    set: &'static str,
    /// Of the setting of the width; whether zero is a width.
    prefix: &'static str,
    has_default: bool,
    /// Whether it is one index, whatever the planner thinks, and has a curve.
    is_index: bool,
    /// Whether it runs where the others of its table find less than laser alone.
    is_last: bool,
}

const CONTENDERS: [Contender; 4] = [
    Contender {
        name: "laser",
        table: "ours",
        set: "RESET enable_seqscan",
        prefix: "laser",
        has_default: true,
        is_index: false,
        is_last: false,
    },
    Contender {
        name: "laser's index",
        table: "ours",
        set: "SET enable_seqscan = off",
        prefix: "laser",
        has_default: true,
        is_index: true,
        is_last: false,
    },
    Contender {
        name: "pgvector's index",
        table: "theirs",
        set: "SET enable_seqscan = off; SET hnsw.iterative_scan = strict_order; RESET hnsw.max_scan_tuples;
              RESET hnsw.scan_mem_multiplier",
        prefix: "hnsw",
        has_default: false,
        is_index: true,
        is_last: false,
    },
    Contender {
        name: "without an end",
        table: "theirs",
        set: "SET hnsw.max_scan_tuples = 2147483647; SET hnsw.scan_mem_multiplier = 1000",
        prefix: "hnsw",
        has_default: false,
        is_index: true,
        is_last: true,
    },
];

/// Recall, rows and milliseconds of a query, in the mean.
struct Outcome {
    recall: f64,
    rows: f64,
    ms: f64,
}

fn ask(
    client: &mut Client,
    set: &Vectors,
    queries: &[(String, Vec<f64>)],
    query_at: &[usize],
    filter: &str,
    table: &str,
) -> Result<Outcome> {
    let (mut right, mut wanted, mut rows, mut seconds) = (0, 0, 0, 0.0);
    for ((text, exact), at) in queries.iter().zip(query_at) {
        let sql =
            format!("SELECT id FROM {table} WHERE {filter} ORDER BY v <=> '{text}' LIMIT {K}");
        let (mut best, mut found) = (f64::INFINITY, Vec::new());
        for _ in 0..2 {
            let start = Instant::now();
            found = client.query(&sql, &[])?;
            best = best.min(start.elapsed().as_secs_f64());
            if best > 1.0 {
                break;
            }
        }
        seconds += best;
        rows += found.len();
        wanted += exact.len();
        let Some(farthest) = exact.last() else {
            continue;
        };
        right += found
            .iter()
            .filter(|row| {
                let id = row.get::<_, i32>(0) as usize;
                distance(set.row(*at), set.row(id)) <= farthest + 1e-6
            })
            .count()
            .min(exact.len());
    }
    let n = queries.len() as f64;
    Ok(Outcome {
        recall: right as f64 / wanted.max(1) as f64,
        rows: rows as f64 / n,
        ms: 1e3 * seconds / n,
    })
}

fn main() -> Result<()> {
    let s = settings()?;
    begin(&s.output)?;
    let cluster = Cluster::builder()
        .setting("shared_buffers", "2GB")
        .setting("max_wal_size", "16GB")
        .setting("autovacuum", "off")
        .setting("jit", "off")
        .setting("max_parallel_workers_per_gather", "0")
        .setting("dynamic_shared_memory_type", "mmap")
        .start()?;
    let mut client = cluster.database("bench")?;
    let has_pgvector = pgvector(&mut client)?;
    if !has_pgvector {
        say!("pgvector is not installed for this server: laser runs alone");
    }
    progress("vectors");
    let mut rng = ChaCha8Rng::seed_from_u64(19);
    let set = match &s.sentences {
        Some(file) => sentences(&mut client, file, s.rows + s.queries)?,
        None => {
            let mut set = clusters(&mut rng, s.rows + s.queries, s.dimensions, 500, 0.7);
            set.data.chunks_mut(s.dimensions).for_each(normalize);
            set
        }
    };
    let filters = Filters::new(&set, s.rows, &mut rng);
    // Queries are the rows behind the others; far ones ask from the far end of the axis.
    let mut query_at: Vec<usize> = (s.rows..s.rows + s.queries).collect();
    query_at.sort_by(|a, b| set.row(*b)[0].total_cmp(&set.row(*a)[0]));

    progress("tables");
    for (table, kind) in [("ours", "embedding"), ("theirs", "vector")] {
        if kind == "vector" && !has_pgvector {
            continue;
        }
        client.batch_execute(&format!(
            "CREATE TABLE loaded (id int, v {kind}({}))",
            set.dimensions
        ))?;
        load(&mut client, "loaded", false, &set, 0..s.rows)?;
        client.execute(
            &format!(
                "CREATE TABLE {table} AS SELECT l.id, f.random, f.axis, l.v
                 FROM loaded l JOIN unnest($1::float8[], $2::float8[]) WITH ORDINALITY f(random, axis, id) ON f.id = l.id + 1"
            ),
            &[&filters.random, &filters.axis],
        )?;
        client.batch_execute("DROP TABLE loaded")?;
        progress(&format!("index of {table}"));
        let (method, operators) = match table {
            "ours" => ("laser", "embedding_cosine_ops"),
            _ => ("hnsw", "vector_cosine_ops"),
        };
        client.batch_execute(&format!(
            "SET maintenance_work_mem = '4GB'; CREATE INDEX ON {table} USING {method} (v {operators})"
        ))?;
        client.batch_execute(&format!("VACUUM ANALYZE {table}"))?;
    }

    say!(
        "{} rows x {}; recall, rows, ms (width)",
        s.rows,
        set.dimensions
    );
    let mut curves = Vec::new();
    for kind in [Kind::Random, Kind::Far] {
        let values = match kind {
            Kind::Random => &filters.random,
            Kind::Far => &filters.axis,
        };
        for share in &s.shares {
            let queries: Vec<(String, Vec<f64>)> = query_at
                .iter()
                .map(|at| {
                    let row = set.row(*at);
                    (format!("{row:?}"), exact(&set, values, *share, row))
                })
                .collect();
            let filter = format!("{} < {share}", kind.column());
            let mut cells = Vec::new();
            let (mut ours, mut theirs) = (None, None);
            for c in &CONTENDERS {
                if c.table == "theirs" && !has_pgvector {
                    continue;
                }
                let is_same = |theirs: &Outcome| {
                    (ours.as_ref()).is_none_or(|ours: &Outcome| theirs.recall >= ours.recall - SAME)
                };
                if c.is_last && theirs.as_ref().is_none_or(is_same) {
                    continue;
                }
                client.batch_execute(c.set)?;
                let first = c.has_default.then_some(0);
                let mut points = Vec::new();
                let mut chosen: Option<(u32, Outcome)> = None;
                for ef in first.into_iter().chain(s.ef.iter().copied()) {
                    let is_enough = |o: &Outcome| o.recall >= s.recall;
                    if s.curves.is_none() && chosen.as_ref().is_some_and(|(_, o)| is_enough(o)) {
                        break;
                    }
                    client.batch_execute(&format!("SET {}.ef_search = {ef}", c.prefix))?;
                    let o = ask(&mut client, &set, &queries, &query_at, &filter, c.table)?;
                    // A default that is wider than the widths beside it is no part of their curve.
                    if ef > 0 {
                        points.push((o.recall, 1e3 / o.ms));
                    }
                    if !chosen.as_ref().is_some_and(|(_, o)| is_enough(o)) {
                        chosen = Some((ef, o));
                    }
                }
                let (ef, o) = chosen.expect("a width at least");
                cells.push(format!(
                    "{} {:.3}, {:.1}, {:.2} ({ef})",
                    c.name, o.recall, o.rows, o.ms
                ));
                if c.table == "theirs" {
                    theirs = Some(o);
                } else if !c.is_index {
                    ours = Some(o);
                }
                if kind == Kind::Random && *share >= DRAWN && c.is_index && !c.is_last {
                    let name = format!("{}, {} % pass", c.name, share * 100.0);
                    curves.push(Curve { name, points });
                }
            }
            let ratio = match (ours, theirs) {
                (Some(ours), Some(theirs)) => format!("; {:.1} times", theirs.ms / ours.ms),
                _ => String::new(),
            };
            let name = if kind == Kind::Random {
                "random"
            } else {
                "far"
            };
            say!("{name} {share}: {}{ratio}", cells.join("; "));
        }
    }
    if let Some(file) = &s.curves {
        let title = format!(
            "{} rows x {}, filtered, ten nearest",
            s.rows, set.dimensions
        );
        curve::draw(file, &title, &curves)?;
        say!("{} has recall against queries a second", file.display());
    }
    Ok(())
}
