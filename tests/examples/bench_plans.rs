//! Whether the planner chooses the fastest plan for a search with a filter.
//!
//! ```text
//! bench_plans [--rows 1000,100000,1000000] [--dimensions 32,384] [--filters 0.5,0.1,0.01,0.001,0.0001]
//!             [--limits 5,10,100] [--all yes] [--queries 3] [--quantization i8] [--output FILE]
//! ```
//!
//! A case is a number of rows, of dimensions, the share of rows that a filter on another column
//! leaves, whether that column has a btree, and a `LIMIT`. Limits take turns, which makes 60 cases;
//! `--all yes` tries every limit in each. For each case the time of the plan that the planner chooses
//! with its default settings is compared with the best of those it is made to choose:
//!
//! * laser: the index of this extension, with the filter above it
//! * bitmap: the rows by the btree, sorted by distance
//! * sequential: all rows, filtered and sorted
//!
//! Times are of the execution without planning, as `EXPLAIN (ANALYZE, TIMING OFF)` tells, medians
//! over repetitions with different query vectors. A plan that returns fewer rows than there are gives
//! no answer: it is no candidate for the best, and a case where it is chosen is a miss. Just-in-time
//! compilation is off. Where the plan chosen is of the kind of one that was made to be, both have the
//! smaller of the two medians, as the difference is noise. Vectors are Gaussian clusters of length 1; the filter knows nothing of them.

use std::fmt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use laser_tests::bench::{Vectors, arguments, begin, clusters, list, load, normalize, progress};
use laser_tests::{Cluster, say};
use postgres::Client;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// How much slower than the best a chosen plan may be.
const FACTOR: f64 = 1.5;
/// The share of cases in which it must be.
const WANTED: f64 = 0.95;
/// Values of the column that is filtered on.
const VALUES: f64 = 10_000.0;
/// A plan is run again until this many seconds have passed, up to [`RUNS`] times for each query.
const SECONDS: f64 = 0.3;
const RUNS: usize = 50;

struct Settings {
    rows: Vec<usize>,
    dimensions: Vec<usize>,
    filters: Vec<f64>,
    limits: Vec<usize>,
    all: bool,
    queries: usize,
    quantization: Option<String>,
    output: PathBuf,
}

fn settings() -> Result<Settings> {
    let mut s = Settings {
        rows: vec![1_000, 100_000, 1_000_000],
        dimensions: vec![32, 384],
        filters: vec![0.5, 0.1, 0.01, 0.001, 0.0001],
        limits: vec![5, 10, 100],
        all: false,
        queries: 3,
        quantization: None,
        output: std::env::current_exe()?.with_file_name("../../bench-plans.txt"),
    };
    arguments(|name, value| {
        match name {
            "--rows" => s.rows = list(&value)?,
            "--dimensions" => s.dimensions = list(&value)?,
            "--filters" => s.filters = list(&value)?,
            "--limits" => s.limits = list(&value)?,
            "--all" => s.all = value == "yes",
            "--queries" => s.queries = value.parse()?,
            "--quantization" => s.quantization = Some(value),
            "--output" => s.output = value.into(),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    ensure!(s.queries > 0 && !s.limits.is_empty(), "nothing to search");
    Ok(s)
}

/// What a plan does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Laser,
    Bitmap,
    /// A plain scan of the btree, sorted: the planner may choose it, nothing forces it.
    Btree,
    Sequential,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Laser => "laser",
            Kind::Bitmap => "bitmap",
            Kind::Btree => "btree",
            Kind::Sequential => "sequential",
        })
    }
}

/// Settings that leave one plan. `enable_sort` keeps the planner from sorting what a btree finds.
const FORCED: [(Kind, &str); 3] = [
    (
        Kind::Laser,
        "enable_seqscan = off; enable_bitmapscan = off; enable_sort = off",
    ),
    (Kind::Bitmap, "enable_seqscan = off; enable_indexscan = off"),
    (
        Kind::Sequential,
        "enable_indexscan = off; enable_bitmapscan = off",
    ),
];

/// A plan that was run.
struct Run {
    kind: Kind,
    milliseconds: f64,
    /// Rows that there are and that it did not return, for all queries.
    missing: u64,
}

struct Case {
    rows: usize,
    dimensions: usize,
    filter: f64,
    btree: bool,
    limit: usize,
}

/// The kind of a plan, from all its nodes.
fn kind(node: &serde_json::Value) -> Option<Kind> {
    let own = match (node["Node Type"].as_str()?, node["Index Name"].as_str()) {
        ("Index Scan", Some("items_v")) => Some(Kind::Laser),
        ("Index Scan", Some("items_f")) => Some(Kind::Btree),
        ("Bitmap Heap Scan", _) => Some(Kind::Bitmap),
        ("Seq Scan", _) => Some(Kind::Sequential),
        _ => None,
    };
    let children = node["Plans"].as_array();
    own.or_else(|| children?.iter().find_map(kind))
}

/// Runs the case's statement for each query.
fn run(client: &mut Client, s: &Settings, case: &Case, queries: &[String]) -> Result<Run> {
    let mut times = Vec::new();
    let mut found = None;
    let mut missing = 0;
    let below = (case.filter * VALUES).round();
    let count = format!("SELECT count(*) FROM items WHERE f < {below}");
    let there: i64 = client.query_one(&count, &[])?.get(0);
    let wanted = (there as usize).min(case.limit) as u64;
    let start = Instant::now();
    for repetition in 0..RUNS {
        for query in &queries[..s.queries] {
            let sql = format!(
                "EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) SELECT id FROM items WHERE f < {below}
                 ORDER BY v <=> '{query}' LIMIT {}",
                case.limit
            );
            let row = client.simple_query(&sql)?;
            let text: String = row
                .iter()
                .filter_map(|message| match message {
                    postgres::SimpleQueryMessage::Row(row) => row.get(0),
                    _ => None,
                })
                .collect();
            let json: serde_json::Value = serde_json::from_str(&text)?;
            let plan = &json[0]["Plan"];
            let this = kind(plan).with_context(|| format!("unknown plan: {text}"))?;
            if repetition == 0 {
                let returned = plan["Actual Rows"].as_f64().context("rows")? as u64;
                missing += wanted.saturating_sub(returned);
                found = Some(this);
            }
            let time = json[0]["Execution Time"].as_f64().context("time")?;
            // The first round warms up, where there is time for another.
            if repetition > 0 || start.elapsed().as_secs_f64() > SECONDS {
                times.push(time);
            }
        }
        if !times.is_empty() && start.elapsed().as_secs_f64() > SECONDS {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(Run {
        kind: found.context("no query ran")?,
        milliseconds: times[times.len() / 2],
        missing,
    })
}

/// Whether the planner chose well.
fn try_case(client: &mut Client, s: &Settings, case: &Case, queries: &[String]) -> Result<bool> {
    let mut forced = Vec::new();
    for (kind, settings) in FORCED {
        if kind == Kind::Bitmap && !case.btree {
            continue;
        }
        for setting in settings.split("; ") {
            client.batch_execute(&format!("SET {setting}"))?;
        }
        let run = run(client, s, case, queries)?;
        client.batch_execute("RESET ALL")?;
        // Where the index is ruled out, or offers nothing, another plan has been taken.
        if run.kind == kind {
            forced.push(run);
        }
    }
    let mut chosen = run(client, s, case, queries)?;
    if let Some(same) = forced.iter_mut().find(|run| run.kind == chosen.kind) {
        same.milliseconds = same.milliseconds.min(chosen.milliseconds);
        chosen.milliseconds = same.milliseconds;
    }
    let best = forced
        .iter()
        .filter(|run| run.missing == 0)
        .map(|run| run.milliseconds)
        .min_by(f64::total_cmp)
        .context("no plan gives all rows")?;
    let ratio = chosen.milliseconds / best;
    let good = ratio <= FACTOR && chosen.missing == 0;
    let time = |kind| match forced.iter().find(|run| run.kind == kind) {
        None => "-".to_owned(),
        Some(run) if run.missing > 0 => format!("({:.2})", run.milliseconds),
        Some(run) => format!("{:.2}", run.milliseconds),
    };
    say!(
        "{:>8}{:>5}{:>9}{:>7}{:>6} |{:>11}{:>11}{:>11} | {:<11}{:>9.2}{:>7.2}{}",
        case.rows,
        case.dimensions,
        format!("{} %", (case.filter * 1e4).round() / 1e2),
        if case.btree { "btree" } else { "-" },
        case.limit,
        time(Kind::Laser),
        time(Kind::Bitmap),
        time(Kind::Sequential),
        chosen.kind,
        chosen.milliseconds,
        ratio,
        match (good, chosen.missing) {
            (true, _) => String::new(),
            (false, 0) => "  MISSED".to_owned(),
            (false, missing) => format!("  MISSED, {missing} rows missing"),
        }
    );
    Ok(good)
}

/// The table with its index; the vectors of queries as text.
fn fill(client: &mut Client, s: &Settings, rows: usize, dimensions: usize) -> Result<Vec<String>> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut set: Vectors = clusters(&mut rng, rows + s.queries, dimensions, 500, 0.7);
    set.data.chunks_exact_mut(dimensions).for_each(normalize);
    // 2^32 divided by the golden ratio scatters the numbers of rows.
    client.batch_execute(&format!(
        "DROP TABLE IF EXISTS items;
         CREATE TABLE items (id int, v embedding({dimensions}),
             f int GENERATED ALWAYS AS
                 ((((id::bigint * 2654435769) % 4294967296) * {VALUES} / 4294967296)::int) STORED)"
    ))?;
    load(client, "items", false, &set, 0..rows)?;
    progress("building the index");
    let with = s
        .quantization
        .as_ref()
        .map_or(String::new(), |q| format!("WITH (quantization = {q})"));
    client.batch_execute(&format!(
        "CREATE INDEX items_v ON items USING laser (v) {with}"
    ))?;
    let text = |i| {
        let numbers: Vec<String> = set.row(i).iter().map(f32::to_string).collect();
        format!("[{}]", numbers.join(","))
    };
    Ok((rows..rows + s.queries).map(text).collect())
}

fn main() -> Result<()> {
    let s = settings()?;
    begin(&s.output)?;
    let cluster = Cluster::builder()
        .setting("shared_buffers", "2GB")
        .setting("maintenance_work_mem", "2GB")
        .setting("max_wal_size", "16GB")
        .setting("autovacuum", "off")
        .setting("jit", "off")
        .start()?;
    let mut client = cluster.database("bench")?;
    say!(
        "    rows  dim   filter  btree limit |      laser     bitmap sequential | chosen            ms  ratio"
    );
    let (mut cases, mut good) = (0, 0);
    for &rows in &s.rows {
        for &dimensions in &s.dimensions {
            progress(&format!("{rows} rows of {dimensions} dimensions"));
            let queries = fill(&mut client, &s, rows, dimensions)?;
            for btree in [false, true] {
                if btree {
                    client.batch_execute("CREATE INDEX items_f ON items (f)")?;
                }
                client.batch_execute("VACUUM (ANALYZE) items")?;
                client.batch_execute("CHECKPOINT")?;
                for &filter in &s.filters {
                    let limits: Vec<usize> = if s.all {
                        s.limits.clone()
                    } else {
                        vec![s.limits[cases % s.limits.len()]]
                    };
                    for limit in limits {
                        let case = Case {
                            rows,
                            dimensions,
                            filter,
                            btree,
                            limit,
                        };
                        cases += 1;
                        good += usize::from(try_case(&mut client, &s, &case, &queries)?);
                    }
                }
            }
        }
    }
    let share = good as f64 / cases as f64;
    say!(
        "\n{good} of {cases} cases ({:.1} %) within {FACTOR} times the best; wanted {:.0} %: {}",
        share * 100.0,
        WANTED * 100.0,
        if share >= WANTED { "met" } else { "MISSED" }
    );
    Ok(())
}
