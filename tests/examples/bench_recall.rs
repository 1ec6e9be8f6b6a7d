//! How much of what is nearest an index finds: laser beside pgvector, in one run on one server, over
//! kinds of data, dimensions, metrics and numbers of rows.
//!
//! ```text
//! bench_recall [--kinds uniform,gaussian,…] [--dimensions 3,32,384,1024,2000]
//!              [--metrics cosine,l2,ip] [--rows 1000,10000,100000,1000000] [--ef 40,100,200]
//!              [--queries 200] [--with "quantization = f32"]… [--gigabytes 4] [--minutes 0]
//!              [--sentences FILE] [--model FOLDER] [--output FILE] [--page FILE]
//! ```
//!
//! Kinds: `uniform` in [0, 1); `gaussian`; `clustered`, around 500 centres; `offset1`, `offset10`,
//! `offset100`, uniform with so much added; `sparse`, nine in ten zero and none negative; `dominant`,
//! Gaussian with one dimension 100 times as wide; `duplicates`, each of them about 100 times;
//! `sphere`, uniform of length 1; `lengths`, those of `sphere` with lengths that are log-normal with a spread of .4; `sentences`, different lines of `--sentences` embedded by the model
//! (the one that ships, unless told). Combinations whose vectors take more than `--gigabytes`, or
//! that would end after `--minutes` by what was measured so far, are left out and named.
//!
//! Both indexes have m 16 and ef_construction 64, memory for one graph, and the same width of search.
//! Recall@10 is the share of returned rows that are as near as the tenth by exact distances, computed
//! here in double precision; among rows at equal distances any is right. Distances of the operators
//! are sums of f32, so exact ones that differ by less than its rounding count as equal: by 1e-6 of
//! the distance, for cosines and inner products also by 1.2e-7 of the product of the lengths.
//!
//! Of each index these are checked besides, and failures are listed:
//!
//! * a query with `LIMIT 10` returns 10 rows, in the order of exact distances and in that of the
//!   distances that the statement itself returns
//! * so do the 20 nearest of the rows whose `id` leaves the same remainder of 50 as the query's, with
//!   the scan going on in strict order
//! * without `LIMIT`, all rows come
//!
//! `--page` makes a page of Markdown of it, again after each combination.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use laser_tests::bench::{
    Vectors, begin, clusters, list, load, normal, normalize, pgvector, progress, sentences,
};
use laser_tests::{Cluster, say};
use postgres::Client;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const K: usize = 10;
/// Rows that the filtered query wants, of those with one remainder of [`PART`].
const FILTERED: usize = 20;
const PART: usize = 50;
/// Rows that are compared with all queries before the next are read from memory.
const BLOCK: usize = 256;
/// How far below pgvector's recall laser's may be.
const SLACK: f64 = 0.005;

const KINDS: [&str; 12] = [
    "uniform",
    "gaussian",
    "clustered",
    "offset1",
    "offset10",
    "offset100",
    "sparse",
    "dominant",
    "duplicates",
    "sphere",
    "lengths",
    "sentences",
];

struct Settings {
    kinds: Vec<String>,
    dimensions: Vec<usize>,
    metrics: Vec<Metric>,
    rows: Vec<usize>,
    ef: Vec<u32>,
    queries: usize,
    with: Vec<String>,
    gigabytes: f64,
    minutes: f64,
    model: PathBuf,
    sentences: Option<PathBuf>,
    output: PathBuf,
    page: Option<PathBuf>,
    command: String,
}

fn settings() -> Result<Settings> {
    let mut s = Settings {
        kinds: KINDS.map(str::to_owned).to_vec(),
        dimensions: vec![3, 32, 384, 1024, 2000],
        metrics: vec![Metric::Cosine, Metric::L2, Metric::Ip],
        rows: vec![1_000, 10_000, 100_000, 1_000_000],
        ef: vec![40, 100, 200],
        queries: 200,
        with: Vec::new(),
        gigabytes: 4.0,
        minutes: 0.0,
        model: Path::new(ROOT).join("encoder/models/laser-mean-384"),
        sentences: None,
        output: std::env::current_exe()?.with_file_name("../../bench-recall.txt"),
        page: None,
        command: String::new(),
    };
    let mut arguments = std::env::args().skip(1);
    let mut shown = Vec::new();
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--kinds" => s.kinds = list(&value)?,
            "--dimensions" => s.dimensions = list(&value)?,
            "--metrics" => {
                s.metrics = value
                    .split(',')
                    .map(Metric::from_name)
                    .collect::<Result<_>>()?;
            }
            "--rows" => s.rows = list(&value)?,
            "--ef" => s.ef = list(&value)?,
            "--queries" => s.queries = value.parse()?,
            "--with" => s.with.push(value.clone()),
            "--gigabytes" => s.gigabytes = value.parse()?,
            "--minutes" => s.minutes = value.parse()?,
            "--model" => s.model = std::path::absolute(&value)?,
            "--output" => s.output = value.clone().into(),
            "--page" => s.page = Some(value.clone().into()),
            "--sentences" => s.sentences = Some(value.clone().into()),
            _ => bail!("unknown argument {name}"),
        }
        // Folders of this machine are of no interest to readers.
        let shown_value = match name.as_str() {
            "--output" | "--page" => continue,
            "--sentences" => "sentences.txt".to_owned(),
            "--model" => "model".to_owned(),
            _ if value.contains(' ') => format!("'{value}'"),
            _ => value,
        };
        shown.push(format!("{name} {shown_value}"));
    }
    for kind in &s.kinds {
        ensure!(KINDS.contains(&kind.as_str()), "unknown kind {kind}");
    }
    let least = s.rows.iter().min().context("--rows names none")?;
    ensure!(*least >= FILTERED * PART, "--rows must be 1000 or more");
    ensure!(!s.ef.is_empty() && s.queries > 0, "nothing to search");
    s.command = match shown.join(" ") {
        shown if shown.is_empty() => "make bench-recall".to_owned(),
        shown => format!("make bench-recall ARGS=\"{shown}\""),
    };
    Ok(s)
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Metric {
    Cosine,
    L2,
    Ip,
}

impl Metric {
    fn from_name(name: &str) -> Result<Metric> {
        Ok(match name {
            "cosine" => Metric::Cosine,
            "l2" => Metric::L2,
            "ip" => Metric::Ip,
            _ => bail!("unknown metric {name}"),
        })
    }

    fn name(self) -> &'static str {
        match self {
            Metric::Cosine => "cosine",
            Metric::L2 => "l2",
            Metric::Ip => "ip",
        }
    }

    fn operator(self) -> &'static str {
        match self {
            Metric::Cosine => "<=>",
            Metric::L2 => "<->",
            Metric::Ip => "<#>",
        }
    }

    /// The distance of the operator, from what [`products`] and the lengths say.
    fn distance(self, (dot, square): (f64, f64), lengths: f64) -> f64 {
        match self {
            Metric::Cosine => 1.0 - dot / lengths,
            Metric::L2 => square.sqrt(),
            Metric::Ip => -dot,
        }
    }

    /// Distances that differ by less are equal to an operator that adds in f32.
    fn rounding(self, distance: f64, lengths: f64) -> f64 {
        1e-6 * distance.abs()
            + match self {
                Metric::Cosine => 1.2e-7,
                Metric::L2 => 0.0,
                Metric::Ip => 1.2e-7 * lengths,
            }
    }
}

/// Vectors of a kind: rows, then queries. Nothing where the kind has no such dimensions.
fn make(
    s: &Settings,
    client: &mut Client,
    kind: &str,
    rows: usize,
    dimensions: usize,
) -> Result<Vectors> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let all = rows + s.queries;
    let each = |rng: &mut ChaCha8Rng, number: &dyn Fn(&mut ChaCha8Rng, usize) -> f32| Vectors {
        dimensions,
        data: (0..all * dimensions)
            .map(|i| number(rng, i % dimensions))
            .collect(),
    };
    Ok(match kind {
        "uniform" => each(&mut rng, &|rng, _| rng.random()),
        "gaussian" => each(&mut rng, &|rng, _| normal(rng)),
        "clustered" => clusters(&mut rng, all, dimensions, 500, 0.3),
        "offset1" => each(&mut rng, &|rng, _| 1.0 + rng.random::<f32>()),
        "offset10" => each(&mut rng, &|rng, _| 10.0 + rng.random::<f32>()),
        "offset100" => each(&mut rng, &|rng, _| 100.0 + rng.random::<f32>()),
        "sparse" => {
            let mut vectors = each(&mut rng, &|rng, _| {
                if rng.random_range(0..10) == 0 {
                    normal(rng).abs()
                } else {
                    0.0
                }
            });
            // A vector of zeros has no cosine.
            for row in vectors.data.chunks_exact_mut(dimensions) {
                if row.iter().all(|x| *x == 0.0) {
                    row[rng.random_range(0..dimensions)] = 0.1 + rng.random::<f32>();
                }
            }
            vectors
        }
        "dominant" => each(&mut rng, &|rng, i| {
            normal(rng) * if i == 0 { 100.0 } else { 1.0 }
        }),
        "duplicates" => {
            let different = clusters(&mut rng, rows.div_ceil(100), dimensions, 100, 0.5);
            let mut data = Vec::with_capacity(all * dimensions);
            for i in 0..all {
                let row = different.row(rng.random_range(0..different.rows()));
                let noise = if i < rows { 0.0 } else { 0.1 };
                data.extend(row.iter().map(|x| x + noise * normal(&mut rng)));
            }
            Vectors { dimensions, data }
        }
        "sphere" | "lengths" => {
            let mut vectors = each(&mut rng, &|rng, _| normal(rng));
            for row in vectors.data.chunks_exact_mut(dimensions) {
                normalize(row);
                if kind == "lengths" {
                    let length = (0.4 * normal(&mut rng)).exp();
                    row.iter_mut().for_each(|x| *x *= length);
                }
            }
            vectors
        }
        "sentences" => {
            let path = s.sentences.as_ref().context("--sentences is missing")?;
            sentences(client, path, all)?
        }
        _ => bail!("unknown kind {kind}"),
    })
}

/// Inner product and squared distance, in double precision. The order of the additions is always
/// the same, so equal vectors have equal results.
fn products(a: &[f32], b: &[f32]) -> (f64, f64) {
    let mut dots = [0f64; 8];
    let mut squares = [0f64; 8];
    let (wide_a, rest_a) = a.as_chunks::<8>();
    let (wide_b, rest_b) = b.as_chunks::<8>();
    for (x, y) in wide_a.iter().zip(wide_b) {
        for lane in 0..8 {
            let (x, y) = (f64::from(x[lane]), f64::from(y[lane]));
            dots[lane] += x * y;
            squares[lane] += (x - y) * (x - y);
        }
    }
    let (mut dot, mut square) = (dots.iter().sum::<f64>(), squares.iter().sum::<f64>());
    for (x, y) in rest_a.iter().zip(rest_b) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        dot += x * y;
        square += (x - y) * (x - y);
    }
    (dot, square)
}

/// The smallest distances seen, the largest of them first.
struct Smallest {
    wanted: usize,
    sorted: Vec<f64>,
}

impl Smallest {
    fn new(wanted: usize) -> Smallest {
        Smallest {
            wanted,
            sorted: Vec::with_capacity(wanted + 1),
        }
    }

    fn add(&mut self, distance: f64) {
        if self.sorted.len() == self.wanted && distance >= self.sorted[0] {
            return;
        }
        let place = self.sorted.partition_point(|x| *x > distance);
        self.sorted.insert(place, distance);
        if self.sorted.len() > self.wanted {
            self.sorted.remove(0);
        }
    }

    fn last(&self) -> f64 {
        self.sorted.first().copied().unwrap_or(f64::INFINITY)
    }
}

/// Exact answers: for each metric and query the distance of the [`K`]th row, and of the
/// [`FILTERED`]th of those that the filter leaves.
struct Truth {
    lengths: Vec<f64>,
    nearest: BTreeMap<Metric, Vec<(f64, f64)>>,
}

fn truth(s: &Settings, set: &Vectors, rows: usize) -> Truth {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let lengths: Vec<f64> = (0..set.rows())
        .map(|i| products(set.row(i), set.row(i)).0.sqrt())
        .collect();
    let part = s.queries.div_ceil(threads);
    let queries: Vec<usize> = (0..s.queries).collect();
    let (lengths_ref, metrics) = (&lengths, &s.metrics);
    let answers: Vec<Vec<(f64, f64)>> = std::thread::scope(|scope| {
        let handles: Vec<_> = queries
            .chunks(part)
            .map(|part| scope.spawn(move || exact(set, lengths_ref, metrics, rows, part)))
            .collect();
        handles
            .into_iter()
            .flat_map(|handle| handle.join().expect("no panic"))
            .collect()
    });
    let nearest = metrics.iter().enumerate();
    let nearest = nearest
        .map(|(m, metric)| (*metric, answers.iter().map(|x| x[m]).collect()))
        .collect();
    Truth { lengths, nearest }
}

/// For each query, for each metric: the limits of the answers.
fn exact(
    set: &Vectors,
    lengths: &[f64],
    metrics: &[Metric],
    rows: usize,
    queries: &[usize],
) -> Vec<Vec<(f64, f64)>> {
    let new = || (Smallest::new(K), Smallest::new(FILTERED));
    let mut found: Vec<Vec<(Smallest, Smallest)>> = queries
        .iter()
        .map(|_| metrics.iter().map(|_| new()).collect())
        .collect();
    for block in (0..rows).step_by(BLOCK) {
        for (&q, found) in queries.iter().zip(&mut found) {
            let query = set.row(rows + q);
            for i in block..(block + BLOCK).min(rows) {
                let products = products(query, set.row(i));
                let both = lengths[rows + q] * lengths[i];
                for (metric, (all, filtered)) in metrics.iter().zip(&mut *found) {
                    let distance = metric.distance(products, both);
                    all.add(distance);
                    if i % PART == q % PART {
                        filtered.add(distance);
                    }
                }
            }
        }
    }
    let limits = |(all, filtered): (Smallest, Smallest)| (all.last(), filtered.last());
    found
        .into_iter()
        .map(|metrics| metrics.into_iter().map(limits).collect())
        .collect()
}

struct Contender {
    name: String,
    table: &'static str,
    kind: &'static str,
    method: &'static str,
    /// Prefix of the settings.
    prefix: &'static str,
    with: String,
}

fn contenders(s: &Settings, client: &mut Client) -> Result<Vec<Contender>> {
    let mut list = Vec::new();
    if pgvector(client)? {
        list.push(Contender {
            name: "pgvector".to_owned(),
            table: "theirs",
            kind: "vector",
            method: "hnsw",
            prefix: "hnsw",
            with: String::new(),
        });
    } else {
        say!("pgvector is not installed for this server: laser runs alone");
    }
    let ours = |with: &str| Contender {
        name: format!("laser {with}").trim_end().to_owned(),
        table: "ours",
        kind: "embedding",
        method: "laser",
        prefix: "laser",
        with: if with.is_empty() {
            String::new()
        } else {
            format!(", {with}")
        },
    };
    list.push(ours(""));
    list.extend(s.with.iter().map(|with| ours(with)));
    Ok(list)
}

/// One index on one table.
struct Outcome {
    name: String,
    /// Recall at each width.
    recall: Vec<f64>,
    filtered: f64,
    build: f64,
    bytes: i64,
    faults: Vec<String>,
}

struct Cell<'a> {
    set: &'a Vectors,
    rows: usize,
    metric: Metric,
    truth: &'a Truth,
}

/// What queries returned.
#[derive(Default)]
struct Answers {
    right: usize,
    returned: usize,
    /// Queries with fewer rows than there are.
    short: usize,
    /// Rows that are nearer than the one before them, by exact distances and by those returned.
    inverted: usize,
    inverted_sql: usize,
}

impl Answers {
    /// Adds failed checks to a list.
    fn faults(&self, what: &str, faults: &mut Vec<String>) {
        let wrong: Vec<String> = [
            (self.short, "queries with rows missing"),
            (self.inverted, "rows out of order"),
            (self.inverted_sql, "out of order by returned distances"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, fault)| format!("{count} {fault}"))
        .collect();
        if !wrong.is_empty() {
            faults.push(format!("{what}: {}", wrong.join(", ")));
        }
    }
}

/// Counts right answers among `limit` rows for each query.
fn ask(
    client: &mut Client,
    cell: &Cell,
    c: &Contender,
    limit: usize,
    filter: &str,
) -> Result<Answers> {
    let (operator, table) = (cell.metric.operator(), c.table);
    let sql = format!(
        "SELECT q.id, x.id, x.d FROM {table}_queries q, LATERAL (
             SELECT i.id, i.v {operator} q.v AS d FROM {table} i {filter}
             ORDER BY i.v {operator} q.v LIMIT {limit}) x"
    );
    let plan: Vec<String> = client
        .query(&format!("EXPLAIN {sql}"), &[])?
        .iter()
        .map(|row| row.get(0))
        .collect();
    ensure!(
        plan.iter()
            .any(|line| line.contains(&format!("{table}_index"))),
        "the planner does not use the index:\n{}",
        plan.join("\n")
    );
    let limits = &cell.truth.nearest[&cell.metric];
    let mut lists: Vec<Vec<(usize, f64)>> = vec![Vec::new(); limits.len()];
    for row in client.query(&sql, &[])? {
        let (q, i): (i32, i32) = (row.get(0), row.get(1));
        lists[q as usize].push((i as usize, row.get(2)));
    }
    let mut answers = Answers::default();
    for (q, (list, limits)) in lists.iter().zip(limits).enumerate() {
        let last = if filter.is_empty() {
            limits.0
        } else {
            limits.1
        };
        let query = cell.set.row(cell.rows + q);
        let mut before: Option<(f64, f64)> = None;
        answers.short += usize::from(list.len() < limit);
        answers.returned += list.len();
        for &(i, returned) in list {
            let lengths = cell.truth.lengths[cell.rows + q] * cell.truth.lengths[i];
            let distance = cell
                .metric
                .distance(products(query, cell.set.row(i)), lengths);
            let rounding = cell.metric.rounding(distance, lengths);
            answers.right += usize::from(distance <= last + rounding);
            if let Some((exact, sql)) = before {
                answers.inverted += usize::from(distance + 2.0 * rounding < exact);
                answers.inverted_sql += usize::from(returned < sql);
            }
            before = Some((distance, returned));
        }
    }
    Ok(answers)
}

fn measure(s: &Settings, client: &mut Client, cell: &Cell, c: &Contender) -> Result<Outcome> {
    let (table, prefix) = (c.table, c.prefix);
    let operators = format!("{}_{}_ops", c.kind, cell.metric.name());
    let dimensions = cell.set.dimensions;
    // For a graph in one piece.
    let memory = 64 + cell.rows * (dimensions * 4 + 700) * 3 / 2 / 1_000_000;
    client.batch_execute(&format!("SET maintenance_work_mem = '{memory}MB'"))?;
    let start = Instant::now();
    client.batch_execute(&format!(
        "CREATE INDEX {table}_index ON {table} USING {} (v {operators})
         WITH (m = 16, ef_construction = 64{})",
        c.method, c.with
    ))?;
    let build = start.elapsed().as_secs_f64();
    let bytes = client
        .query_one(&format!("SELECT pg_relation_size('{table}_index')"), &[])?
        .get(0);
    // What is measured is the index: the planner may prefer to sort a small table.
    client.batch_execute(&format!(
        "SET enable_seqscan = off; SET enable_sort = off; SET {prefix}.iterative_scan = strict_order"
    ))?;
    let mut faults = Vec::new();
    let mut recall = Vec::new();
    for ef in &s.ef {
        client.batch_execute(&format!("SET {prefix}.ef_search = {ef}"))?;
        let answers = ask(client, cell, c, K, "")?;
        recall.push(answers.right as f64 / (s.queries * K) as f64);
        answers.faults(&format!("ef {ef}"), &mut faults);
    }
    client.batch_execute(&format!("SET {prefix}.ef_search = 100"))?;
    let filter = format!("WHERE i.id % {PART} = q.id % {PART}");
    let answers = ask(client, cell, c, FILTERED, &filter)?;
    let filtered = answers.right as f64 / (s.queries * FILTERED) as f64;
    answers.faults(&format!("1 in {PART}"), &mut faults);
    // As a user has it, and where the index is the only plan that is not discouraged.
    for (settings, what) in [("RESET", "no LIMIT"), ("SET", "no LIMIT, index preferred")] {
        let value = if settings == "SET" { " = off" } else { "" };
        client.batch_execute(&format!(
            "{settings} enable_seqscan{value}; {settings} enable_sort{value}"
        ))?;
        let count: i64 = client
            .query_one(
                &format!(
                    "SELECT count(*) FROM (SELECT id FROM {table} ORDER BY v {} \
                     (SELECT v FROM {table}_queries WHERE id = 0) OFFSET 0) x",
                    cell.metric.operator()
                ),
                &[],
            )?
            .get(0);
        if count != cell.rows as i64 {
            faults.push(format!("{what}: {count} of {} rows", cell.rows));
        }
    }
    client.batch_execute(&format!("DROP INDEX {table}_index; RESET ALL"))?;
    Ok(Outcome {
        name: c.name.clone(),
        recall,
        filtered,
        build,
        bytes,
        faults,
    })
}

/// Fills the tables that contenders share by their type.
fn fill(
    client: &mut Client,
    s: &Settings,
    set: &Vectors,
    rows: usize,
    c: &Contender,
) -> Result<()> {
    let (table, kind, d) = (c.table, c.kind, set.dimensions);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    for (name, range) in [
        (table.to_owned(), 0..rows),
        (format!("{table}_queries"), rows..rows + s.queries),
    ] {
        // Vectors out of line would leave a table too small for parallel workers.
        client.batch_execute(&format!(
            "DROP TABLE IF EXISTS {name};
             CREATE TABLE {name} (id int, v {kind}({d})) WITH (parallel_workers = {threads})"
        ))?;
        load(client, &name, false, set, range)?;
        client.batch_execute(&format!("VACUUM (ANALYZE) {name}"))?;
    }
    Ok(())
}

/// A line of the table.
struct Line {
    kind: String,
    dimensions: usize,
    rows: usize,
    metric: Metric,
    outcomes: Vec<Outcome>,
}

fn recalls(values: &[f64]) -> String {
    let values: Vec<String> = values.iter().map(|x| format!("{x:.3}")).collect();
    values.join(" ")
}

impl Line {
    fn place(&self) -> String {
        let Line {
            kind,
            dimensions,
            rows,
            metric,
            ..
        } = self;
        format!("{kind} x {dimensions}, {}, {rows} rows", metric.name())
    }

    /// How far an outcome is below pgvector at the worst width or with the filter; negative where it
    /// is better everywhere.
    fn below(&self, ours: &Outcome) -> Option<f64> {
        let theirs = self.outcomes.iter().find(|o| o.name == "pgvector")?;
        let differences = theirs.recall.iter().zip(&ours.recall).map(|(t, o)| t - o);
        differences
            .chain([theirs.filtered - ours.filtered])
            .max_by(f64::total_cmp)
    }

    fn print(&self) {
        for outcome in &self.outcomes {
            let below = self.below(outcome).filter(|_| outcome.name != "pgvector");
            let verdict = match below {
                Some(below) if below > SLACK => format!("  BELOW pgvector by {below:.3}"),
                _ => String::new(),
            };
            say!(
                "{:<12}{:>5}{:>8} {:<7}{:<26} {}  1 in {PART} {:.3}  {:>7.1} s {:>7.1} MB{verdict}",
                self.kind,
                self.dimensions,
                self.rows,
                self.metric.name(),
                outcome.name,
                recalls(&outcome.recall),
                outcome.filtered,
                outcome.build,
                outcome.bytes as f64 / 1e6
            );
            if !outcome.faults.is_empty() {
                say!("    {}", outcome.faults.join("; "));
            }
        }
    }
}

struct Report {
    lines: Vec<Line>,
    skipped: Vec<String>,
    machine: String,
}

fn machine(client: &mut Client) -> Result<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes = memory
        .split_whitespace()
        .nth(1)
        .and_then(|x| x.parse::<f64>().ok());
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let versions: String = client
        .query_one(
            "SELECT 'PostgreSQL ' || current_setting('server_version') || coalesce(
                 (SELECT ', pgvector ' || extversion FROM pg_extension WHERE extname = 'vector'), '')",
            &[],
        )?
        .get(0);
    let date = std::process::Command::new("date")
        .arg("+%Y-%m-%d")
        .output()?;
    Ok(format!(
        "{}; {}, {threads} threads, {:.0} GB; {versions}",
        String::from_utf8_lossy(&date.stdout).trim(),
        cpu.map_or("unknown processor", |(_, name)| name.trim()),
        kilobytes.unwrap_or(0.0) / 1e6
    ))
}

impl Report {
    /// Lines where laser, with its defaults, misses what is asked of it.
    fn below(&self) -> Vec<String> {
        let mut list = Vec::new();
        for line in &self.lines {
            let Some(ours) = line.outcomes.iter().find(|o| o.name == "laser") else {
                continue;
            };
            if let Some(below) = line.below(ours).filter(|below| *below > SLACK) {
                list.push(format!("{}: {below:.3}", line.place()));
            }
        }
        list
    }

    fn faults(&self) -> Vec<String> {
        let mut list = Vec::new();
        for line in &self.lines {
            for outcome in line.outcomes.iter().filter(|o| o.name != "pgvector") {
                if !outcome.faults.is_empty() {
                    let faults = outcome.faults.join("; ");
                    list.push(format!("{}, {}: {faults}", line.place(), outcome.name));
                }
            }
        }
        list
    }

    fn markdown(&self, s: &Settings) -> Result<String> {
        let mut text = String::new();
        let ef: Vec<String> = s.ef.iter().map(u32::to_string).collect();
        writeln!(
            text,
            "# Recall\n\nHow much of what is nearest laser finds, beside pgvector in the same run. Made \
             by\n\n```console\n$ {}\n```\n\n{}.\n",
            s.command, self.machine
        )?;
        writeln!(
            text,
            "Recall@{K} of {} queries with {} candidates (`ef_search`); m 16, ef_construction 64, all \
             else at its defaults. *1 in {PART}*: recall of the {FILTERED} nearest of rows that a \
             filter leaves, at 100 candidates, in strict order. *Below*: how much laser is below \
             pgvector at the worst width or with the filter. `tests/examples/bench_recall.rs` says what the kinds of data \
             are, when rows count as equally near, and what is checked.\n",
            s.queries,
            ef.join(", ")
        )?;
        let section = |text: &mut String, title: &str, list: &[String], none: &str| {
            text.push_str(&format!("## {title}\n\n"));
            if list.is_empty() {
                text.push_str(&format!("{none}\n"));
            }
            for item in list {
                text.push_str(&format!("- {item}\n"));
            }
            text.push('\n');
        };
        let title = format!("Below pgvector by more than {SLACK}");
        section(&mut text, &title, &self.below(), "Nowhere.");
        section(
            &mut text,
            "Rows that are missing or out of order",
            &self.faults(),
            "None.",
        );
        if !self.skipped.is_empty() {
            section(&mut text, "Left out", &self.skipped, "");
        }
        writeln!(text, "## Table\n")?;
        writeln!(
            text,
            "| data | dimensions | metric | rows | index | recall at {} | 1 in {PART} | below | build, s | MB |",
            ef.join(", ")
        )?;
        writeln!(text, "|---|--:|---|--:|---|---|--:|--:|--:|--:|")?;
        for line in &self.lines {
            for outcome in &line.outcomes {
                let below = line.below(outcome).filter(|_| outcome.name != "pgvector");
                writeln!(
                    text,
                    "| {} | {} | {} | {} | {} | {} | {:.3} | {} | {:.1} | {:.1} |",
                    line.kind,
                    line.dimensions,
                    line.metric.name(),
                    line.rows,
                    outcome.name,
                    recalls(&outcome.recall),
                    outcome.filtered,
                    below.map_or(String::new(), |below| format!("{below:.3}")),
                    outcome.build,
                    outcome.bytes as f64 / 1e6
                )?;
            }
        }
        Ok(text)
    }

    fn write(&self, s: &Settings) -> Result<()> {
        if let Some(page) = &s.page {
            std::fs::write(page, self.markdown(s)?)?;
        }
        Ok(())
    }
}

/// Why a combination is left out.
fn too_much(s: &Settings, start: Instant, speed: f64, rows: usize, d: usize) -> Option<String> {
    let gigabytes = ((rows + s.queries) * d * 4) as f64 / 1e9;
    if gigabytes > s.gigabytes {
        return Some(format!("{gigabytes:.1} GB of vectors"));
    }
    let minutes = start.elapsed().as_secs_f64() / 60.0;
    let needed = work(rows, d) * speed / 60.0;
    (s.minutes > 0.0 && minutes + needed > s.minutes)
        .then(|| format!("it takes about {needed:.0} minutes, {minutes:.0} have passed"))
}

/// What the time of a combination is about proportional to.
fn work(rows: usize, dimensions: usize) -> f64 {
    rows as f64 * (rows as f64).ln() * (dimensions + 200) as f64
}

fn main() -> Result<()> {
    let s = settings()?;
    begin(&s.output)?;
    let name = s.model.file_name().context("a model folder has a name")?;
    let folder = s.model.parent().context("a model folder has a parent")?;
    let cluster = Cluster::builder()
        .setting("shared_buffers", "2GB")
        .setting("max_wal_size", "16GB")
        .setting("autovacuum", "off")
        .setting("jit", "off")
        .setting("dynamic_shared_memory_type", "mmap")
        .setting("max_parallel_workers", "64")
        .setting("max_worker_processes", "64")
        .setting(
            "max_parallel_maintenance_workers",
            &std::thread::available_parallelism()?.to_string(),
        )
        .models(folder, &name.to_string_lossy())
        .start()?;
    let mut client = cluster.database("bench")?;
    let contenders = contenders(&s, &mut client)?;
    let mut report = Report {
        lines: Vec::new(),
        skipped: Vec::new(),
        machine: machine(&mut client)?,
    };
    say!("{}\n{}\n", s.command, report.machine);
    let start = Instant::now();
    // Seconds for a unit of work, of the slowest combination so far.
    let mut speed = 0.0f64;
    let mut wanted: Vec<(usize, usize, &str)> = Vec::new();
    for &rows in &s.rows {
        for kind in &s.kinds {
            match kind.as_str() {
                "sentences" => wanted.push((rows, 0, kind)),
                _ => wanted.extend(s.dimensions.iter().map(|&d| (rows, d, kind.as_str()))),
            }
        }
    }
    for (rows, d, kind) in wanted {
        let mut skip = |why: String| {
            let line = if d == 0 {
                format!("{kind}, {rows} rows: {why}")
            } else {
                format!("{kind} x {d}, {rows} rows: {why}")
            };
            say!("left out: {line}");
            report.skipped.push(line);
        };
        if let Some(why) = too_much(&s, start, speed, rows, if d == 0 { 384 } else { d }) {
            skip(why);
            continue;
        }
        if kind == "sentences" && s.sentences.is_none() {
            skip("no --sentences FILE, with a sentence a line".to_owned());
            continue;
        }
        let begun = Instant::now();
        progress(&format!("{kind} x {d}, {rows} rows: vectors"));
        let set = match make(&s, &mut client, kind, rows, d) {
            Ok(set) => set,
            Err(error) => {
                skip(format!("{error:#}"));
                continue;
            }
        };
        progress("exact answers");
        let truth = truth(&s, &set, rows);
        progress("tables");
        let mut filled = Vec::new();
        for c in &contenders {
            if !filled.contains(&c.table) {
                fill(&mut client, &s, &set, rows, c)?;
                filled.push(c.table);
            }
        }
        for &metric in &s.metrics {
            let cell = Cell {
                set: &set,
                rows,
                metric,
                truth: &truth,
            };
            let mut outcomes = Vec::new();
            for c in &contenders {
                progress(&format!("{}, {}", metric.name(), c.name));
                match measure(&s, &mut client, &cell, c) {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(error) => {
                        let line = format!(
                            "{kind} x {}, {}, {rows} rows, {}: {error:#}",
                            set.dimensions,
                            metric.name(),
                            c.name
                        );
                        say!("FAILED: {line}");
                        report.skipped.push(format!("FAILED: {line}"));
                        client = cluster.connect("bench")?;
                        client.batch_execute(&format!("DROP INDEX IF EXISTS {}_index", c.table))?;
                    }
                }
            }
            let line = Line {
                kind: kind.to_owned(),
                dimensions: set.dimensions,
                rows,
                metric,
                outcomes,
            };
            line.print();
            report.lines.push(line);
            report.write(&s)?;
        }
        speed = speed.max(begun.elapsed().as_secs_f64() / work(rows, set.dimensions));
    }
    report.write(&s)?;
    let (below, faults) = (report.below(), report.faults());
    let title = format!("below pgvector by more than {SLACK}");
    for (title, list) in [(title.as_str(), below), ("missing or out of order", faults)] {
        say!("\n{title}: {}", list.len());
        list.iter().for_each(|item| say!("  {item}"));
    }
    Ok(())
}
