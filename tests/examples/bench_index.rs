//! laser beside pgvector: build time, size, recall, queries and inserts a second, in one run on one
//! server.
//!
//! ```text
//! bench_index [--rows 50000] [--dimensions 1024] [--queries 500] [--seconds 5]
//!             [--ef 40,50,60,…,800] [--with "quantization = f16"]… [--set easy|hard]…
//!             [--only CONTENDER]… [--memory 1GB] [--sentences FILE] [--model FOLDER] [--output FILE]
//!             [--curves FOLDER]
//! ```
//!
//! Two sets of vectors. The *easy* one is made: 500 Gaussian centres, points around them with a
//! standard deviation of 0.7, unit length. The *hard* one is real: different lines of a text file,
//! embedded by the model in a folder (the one that ships, unless told); it is left out where there
//! is no file. `--with` adds a contender with other storage parameters, `--only` leaves out all that are not
//! named (`laser`, `pgvector vector`). pgvector takes part where it can be had (`vector` and `halfvec`, HNSW
//! with its default parameters), and laser on its `vector` columns.
//!
//! Wider searches are tried until one reaches the recall at which contenders are compared; the
//! speed is measured at the first width and at that one. With `--curves` all widths are tried, and recall against
//! queries a second in one backend is drawn into `FOLDER/SET.svg`. Times are of the wall; in brackets is
//! processor time, which other work on the machine disturbs less.
//! Recall@10 is the share of rows that are as near as the tenth by exact distances of the original
//! vectors: among rows at equal distances any is right. What is printed also goes to the output file
//! (`bench-index.txt` in the build folder), line by line.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use laser_tests::bench::cost::{of_statements, timed};
use laser_tests::bench::nearest::{least_products, recall};
use laser_tests::bench::speed::{ensure_index, repeated, transactions};
use laser_tests::bench::{
    Vectors, arguments, begin, clusters, list, load, normalize, pgvector, progress, sentences,
};
use laser_tests::curve::{self, Curve};
use laser_tests::{Cluster, say};
use postgres::Client;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const K: usize = 10;
/// Rows that are inserted to measure inserts.
const EXTRA: usize = 5000;
/// The recall at which contenders are compared.
const WANTED: f64 = 0.99;

struct Settings {
    rows: usize,
    dimensions: usize,
    queries: usize,
    seconds: u64,
    ef: Vec<u32>,
    with: Vec<String>,
    only: Vec<String>,
    sets: Vec<String>,
    memory: String,
    model: PathBuf,
    sentences: Option<PathBuf>,
    output: PathBuf,
    curves: Option<PathBuf>,
}

fn settings() -> Result<Settings> {
    let mut s = Settings {
        rows: 50_000,
        dimensions: 1024,
        queries: 500,
        seconds: 5,
        ef: vec![
            40, 50, 60, 70, 80, 90, 100, 120, 140, 160, 180, 200, 240, 280, 320, 400, 480, 560,
            640, 800,
        ],
        with: Vec::new(),
        only: Vec::new(),
        sets: Vec::new(),
        memory: "1GB".to_owned(),
        model: Path::new(ROOT).join("encoder/models/laser-mean-384"),
        sentences: None,
        output: std::env::current_exe()?.with_file_name("../../bench-index.txt"),
        curves: None,
    };
    arguments(|name, value| {
        match name {
            "--rows" => s.rows = value.parse()?,
            "--dimensions" => s.dimensions = value.parse()?,
            "--queries" => s.queries = value.parse()?,
            "--seconds" => s.seconds = value.parse()?,
            "--ef" => s.ef = list(&value)?,
            "--with" => s.with.push(value),
            "--only" => s.only.push(value),
            "--set" => s.sets.push(value),
            "--memory" => s.memory = value,
            "--model" => s.model = std::path::absolute(value)?,
            "--output" => s.output = value.into(),
            "--sentences" => s.sentences = Some(value.into()),
            "--curves" => s.curves = Some(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if s.sets.is_empty() {
        s.sets = vec!["easy".to_owned(), "hard".to_owned()];
    }
    Ok(s)
}

/// Vectors: those that are indexed, then [`EXTRA`] to insert, then the queries.
struct Set {
    name: &'static str,
    vectors: Vectors,
}

impl Set {
    /// What a picture of its curves shows.
    fn title(&self, s: &Settings) -> String {
        let what = match self.name {
            "hard" => "embeddings of real sentences",
            _ => "points around 500 centres",
        };
        let dimensions = self.vectors.dimensions;
        format!("{} {what} × {dimensions}, one session", s.rows)
    }
}

fn easy(s: &Settings) -> Set {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let wanted = s.rows + EXTRA + s.queries;
    let mut vectors = clusters(&mut rng, wanted, s.dimensions, 500, 0.7);
    vectors
        .data
        .chunks_exact_mut(s.dimensions)
        .for_each(normalize);
    Set {
        name: "easy",
        vectors,
    }
}

/// Embeds lines of the file.
fn hard(s: &Settings, client: &mut Client) -> Result<Option<Set>> {
    let Some(path) = &s.sentences else {
        say!("\nhard set: left out, it needs --sentences FILE, with a sentence a line");
        return Ok(None);
    };
    progress("embedding sentences");
    let vectors = sentences(client, path, s.rows + EXTRA + s.queries)?;
    Ok(Some(Set {
        name: "hard",
        vectors,
    }))
}

struct Contender {
    name: String,
    /// Type of the column.
    kind: &'static str,
    /// What follows `CREATE INDEX ON table`.
    index: String,
    /// The setting for the width of the search.
    ef: &'static str,
    table: String,
}

fn contenders(client: &mut Client, s: &Settings) -> Result<Vec<Contender>> {
    let mut list = Vec::new();
    let mut add = |name: String, kind, index: String, ef| {
        let table = format!("items{}", list.len());
        list.push(Contender {
            name,
            kind,
            index,
            ef,
            table,
        });
    };
    if pgvector(client)? {
        let ef = "hnsw.ef_search";
        add(
            "pgvector vector".into(),
            "vector",
            "USING hnsw (v vector_cosine_ops)".into(),
            ef,
        );
        add(
            "pgvector halfvec".into(),
            "halfvec",
            "USING hnsw (v halfvec_cosine_ops)".into(),
            ef,
        );
        client.batch_execute("CREATE EXTENSION laser_pgvector")?;
        add(
            "laser on vector".into(),
            "vector",
            "USING laser (v vector_cosine_ops)".into(),
            "laser.ef_search",
        );
    } else {
        say!("pgvector is not installed for this server: laser runs alone");
    }
    add(
        "laser".into(),
        "embedding",
        "USING laser (v)".into(),
        "laser.ef_search",
    );
    for with in &s.with {
        let index = format!("USING laser (v) WITH ({with})");
        add(
            format!("laser {with}"),
            "embedding",
            index,
            "laser.ef_search",
        );
    }
    if !s.only.is_empty() {
        list.retain(|contender| s.only.contains(&contender.name));
        ensure!(!list.is_empty(), "no contender is called {:?}", s.only);
    }
    Ok(list)
}

/// Makes a table of rows of a set.
fn fill(
    client: &mut Client,
    table: &str,
    kind: &str,
    set: &Set,
    rows: std::ops::Range<usize>,
) -> Result<()> {
    client.batch_execute(&format!(
        "DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int, v {kind}({}))",
        set.vectors.dimensions
    ))?;
    load(client, table, kind == "halfvec", &set.vectors, rows)
}

struct Search {
    ef: u32,
    recall: f64,
    lateral: f64,
    lateral_cpu: f64,
    one: f64,
    eight: f64,
}

struct Outcome {
    name: String,
    build: f64,
    build_cpu: f64,
    bytes: i64,
    searches: Vec<Search>,
    inserts: f64,
    inserts_cpu: f64,
    inserts_eight: f64,
    /// Recall and queries a second of each width.
    curve: Vec<(f64, f64)>,
}

fn measure(
    cluster: &Cluster,
    client: &mut Client,
    s: &Settings,
    set: &Set,
    c: &Contender,
    truth: &[f32],
) -> Result<Outcome> {
    let table = &c.table;
    progress(&format!("{}: loading", c.name));
    let (extra, queries) = (format!("{table}_extra"), format!("{table}_queries"));
    fill(client, table, c.kind, set, 0..s.rows)?;
    fill(client, &extra, c.kind, set, s.rows..s.rows + EXTRA)?;
    fill(
        client,
        &queries,
        c.kind,
        set,
        s.rows + EXTRA..s.rows + EXTRA + s.queries,
    )?;
    client.batch_execute(&format!(
        "CREATE INDEX ON {extra} (id); CREATE INDEX ON {queries} (id)"
    ))?;
    client.batch_execute(&format!("VACUUM (ANALYZE) {table}, {extra}, {queries}"))?;
    client.batch_execute("CHECKPOINT")?;
    progress(&format!("{}: building", c.name));
    let create = format!("CREATE INDEX {table}_index ON {table} {}", c.index);
    let cost = of_statements(cluster, client, &create)?;
    let (build, build_cpu) = (cost.wall, cost.cpu);
    let bytes = client
        .query_one(&format!("SELECT pg_relation_size('{table}_index')"), &[])?
        .get(0);
    say!(
        "{}: built in {build:.1} s ({build_cpu:.1} s), {} MB",
        c.name,
        bytes / 1_000_000
    );
    client.batch_execute("CHECKPOINT")?;

    let lateral = format!(
        "SELECT q.id, x.id FROM {queries} q,
             LATERAL (SELECT i.id FROM {table} i ORDER BY i.v <=> q.v LIMIT {K}) x"
    );
    ensure_index(client, &lateral, &format!("{table}_index"))?;

    let (mut searches, mut curve) = (Vec::new(), Vec::new());
    // The first width at which contenders are compared has been measured.
    let mut compared = false;
    for (i, &ef) in s.ef.iter().enumerate() {
        client.batch_execute(&format!("SET {} = {ef}", c.ef))?;
        let recall = recall(client, &lateral, &set.vectors, s.rows + EXTRA, truth, K)?;
        if s.curves.is_some() {
            curve.push((recall, rounds(client, s, &lateral)?));
        }
        let last = recall >= WANTED || i + 1 == s.ef.len();
        if i == 0 || (last && !compared) {
            compared |= last;
            searches.push(speed(cluster, client, s, c, ef, recall, &lateral)?);
        } else {
            say!("  ef {ef}: recall {recall:.4}");
        }
        if last && s.curves.is_none() {
            break;
        }
    }
    progress(&format!("{}: inserting", c.name));

    // One session inserts in one statement, then eight in statements of one row.
    let half = EXTRA / 2;
    let insert =
        format!("INSERT INTO {table} SELECT id + 1000000, v FROM {extra} WHERE id < {half}");
    let cost = of_statements(cluster, client, &insert)?;
    let script = format!(
        "\\set i random({half}, {})\nINSERT INTO {table} SELECT id + 2000000, v FROM {extra} WHERE id = :i;",
        EXTRA - 1
    );
    let inserts_eight = transactions(cluster, "bench", &script, &[], 8, s.seconds)?;
    let outcome = Outcome {
        name: c.name.clone(),
        build,
        build_cpu,
        bytes,
        searches,
        inserts: half as f64 / cost.wall,
        inserts_cpu: half as f64 / cost.cpu.max(0.01),
        inserts_eight,
        curve,
    };
    say!(
        "  inserts: {:.0} a second ({:.0} a CPU second), pgbench {:.0} with 8 clients",
        outcome.inserts,
        outcome.inserts_cpu,
        outcome.inserts_eight
    );
    client.batch_execute(&format!("DROP TABLE {table}, {extra}, {queries}"))?;
    Ok(outcome)
}

/// Queries a second of whole rounds, for about as long as pgbench runs.
fn rounds(client: &mut Client, s: &Settings, lateral: &str) -> Result<f64> {
    let count = format!("SELECT count(*) FROM ({lateral}) x");
    Ok(repeated(client, &count, s.seconds)? * s.queries as f64)
}

/// Queries a second at one width.
fn speed(
    cluster: &Cluster,
    client: &mut Client,
    s: &Settings,
    c: &Contender,
    ef: u32,
    recall: f64,
    lateral: &str,
) -> Result<Search> {
    progress(&format!("{}: searching with {ef} candidates", c.name));
    let (speed, cost) = timed(cluster, client, |client| rounds(client, s, lateral))?;
    let table = &c.table;
    let script = format!(
        "\\set i random(0, {})\nSELECT id FROM {table} ORDER BY v <=> (SELECT v FROM {table}_queries WHERE id = :i) LIMIT {K};",
        s.queries - 1
    );
    let width = [format!("{}={ef}", c.ef)];
    let speed_of = |clients| transactions(cluster, "bench", &script, &width, clients, s.seconds);
    let search = Search {
        ef,
        recall,
        lateral: speed,
        lateral_cpu: speed * cost.wall / cost.cpu.max(0.01),
        one: speed_of(1)?,
        eight: speed_of(8)?,
    };
    say!(
        "  ef {ef}: recall {:.4}, {:.0} queries/s in one backend ({:.0} a CPU second), \
         pgbench {:.0} with 1 client, {:.0} with 8",
        search.recall,
        search.lateral,
        search.lateral_cpu,
        search.one,
        search.eight
    );
    Ok(search)
}

/// Says how one contender compares with another, and where it misses what is asked of laser.
fn compare(ours: &Outcome, theirs: &Outcome, factor: f64, size: f64) {
    let at = |o: &'_ Outcome| {
        let good = o.searches.iter().position(|x| x.recall >= WANTED);
        good.unwrap_or(o.searches.len() - 1)
    };
    let (a, b) = (&ours.searches[at(ours)], &theirs.searches[at(theirs)]);
    say!(
        "\n{} against {}: queries at ef {} (recall {:.4}) and ef {} (recall {:.4})",
        ours.name,
        theirs.name,
        a.ef,
        a.recall,
        b.ef,
        b.recall
    );
    for search in [a, b] {
        if search.recall < WANTED {
            say!("  no width that was tried reaches a recall of {WANTED}");
        }
    }
    let row = |what: &str, ratio: f64, wanted: f64, least: bool| {
        let met = if least {
            ratio >= wanted
        } else {
            ratio <= wanted
        };
        let word = if least { "at least" } else { "at most" };
        let verdict = if met { "met" } else { "MISSED" };
        say!("  {what:<38}{ratio:8.2}   wanted {word} {wanted}: {verdict}");
    };
    row(
        "build, times faster",
        theirs.build / ours.build,
        factor,
        true,
    );
    row(
        "build, times less CPU",
        theirs.build_cpu / ours.build_cpu,
        factor,
        true,
    );
    row(
        "size, part",
        ours.bytes as f64 / theirs.bytes as f64,
        size,
        false,
    );
    row(
        "queries in one backend, times",
        a.lateral / b.lateral,
        factor,
        true,
    );
    row(
        "queries a CPU second, times",
        a.lateral_cpu / b.lateral_cpu,
        factor,
        true,
    );
    row("pgbench, 1 client, times", a.one / b.one, factor, true);
    row("pgbench, 8 clients, times", a.eight / b.eight, factor, true);
    row(
        "inserts, times",
        ours.inserts / theirs.inserts,
        factor,
        true,
    );
    row(
        "inserts a CPU second, times",
        ours.inserts_cpu / theirs.inserts_cpu,
        factor,
        true,
    );
    row(
        "inserts, 8 clients, times",
        ours.inserts_eight / theirs.inserts_eight,
        factor,
        true,
    );
}

fn main() -> Result<()> {
    let s = settings()?;
    begin(&s.output)?;
    let mut builder = Cluster::builder()
        .setting("shared_buffers", "2GB")
        .setting("maintenance_work_mem", &s.memory)
        .setting("max_wal_size", "16GB")
        .setting("autovacuum", "off")
        // Without sequential scans plans look so expensive that each statement would be compiled.
        .setting("jit", "off")
        // What is measured is indexes: the planner may prefer to sort a small table.
        .setting("enable_seqscan", "off");
    if s.sentences.is_some() {
        let name = s.model.file_name().context("a model folder has a name")?;
        let folder = s.model.parent().context("a model folder has a parent")?;
        builder = builder.models(folder, &name.to_string_lossy());
    }
    let cluster = builder.start()?;
    let mut client = cluster.database("bench")?;
    let contenders = contenders(&mut client, &s)?;
    for name in &s.sets {
        let set = match name.as_str() {
            "easy" => Some(easy(&s)),
            "hard" => hard(&s, &mut client)?,
            _ => bail!("unknown set {name}"),
        };
        let Some(set) = set else { continue };
        say!(
            "\n{} set: {} x {}, {} queries, {} threads\n",
            set.name,
            s.rows,
            set.vectors.dimensions,
            s.queries,
            std::thread::available_parallelism().map_or(1, |n| n.get())
        );
        progress("exact neighbours");
        let queries = s.rows + EXTRA..s.rows + EXTRA + s.queries;
        let truth = least_products(&set.vectors, 0..s.rows, queries, K);
        let mut outcomes: Vec<Outcome> = Vec::new();
        for contender in &contenders {
            match measure(&cluster, &mut client, &s, &set, contender, &truth) {
                Ok(outcome) => outcomes.push(outcome),
                Err(error) => {
                    say!("{}: FAILED: {error:#}", contender.name);
                    client = cluster.connect("bench")?;
                }
            }
        }
        if let Some(folder) = &s.curves {
            let curve = |outcome: &Outcome| Curve {
                name: outcome.name.clone(),
                points: outcome.curve.clone(),
            };
            let curves: Vec<Curve> = outcomes.iter().map(curve).collect();
            let (path, title) = (folder.join(format!("{}.svg", set.name)), set.title(&s));
            curve::draw(&path, &title, &curves)?;
            say!("\n{} has recall against queries a second", path.display());
        }
        for ours in outcomes.iter().filter(|o| o.name.starts_with("laser")) {
            for (theirs, factor, size) in [
                ("pgvector vector", 3.0, 0.4),
                ("pgvector halfvec", 1.0, 1.0),
            ] {
                if let Some(theirs) = outcomes.iter().find(|o| o.name == theirs) {
                    compare(ours, theirs, factor, size);
                }
            }
        }
    }
    Ok(())
}
