//! What laser's index costs and gives as rows become many, beside pgvector's HNSW in the same run.
//!
//! ```text
//! bench_scale [--tables build,search,open,inserts,load,mining,upkeep,embed] [--rows 100000] [--dimensions 384]
//!             [--sentences FILE] [--model laser-mean-384] [--memory 64MB,4GB] [--buffers 2GB] [--only laser] [--queries 300]
//!             [--ef 40,100,200,400,600,800,1000] [--recall 0.95,0.98,0.99] [--clients 8] [--seconds 10]
//!             [--modes off,on,pgvector] [--limit 4096] [--load 200000] [--methods exact,approximate,index]
//!             [--curves FOLDER] [--output FILE]
//! ```
//!
//! Vectors are lines of `--sentences` embedded by the model that ships, or Gaussian clusters of length 1; the order is
//! by cosine. Tables of figures:
//!
//! * `build`: laser with each `maintenance_work_mem` of `--memory`, pgvector with the last of them. Time of the wall and of
//!   processors, memory of the sessions' own at its peak (pgvector's parallel builds work in memory that is shared, which is not
//!   counted), bytes of the index, of the files of segments, and segments. `--rows` may name several numbers.
//! * `search`: recall@10 and queries a second of one session and of `--clients` by pgbench, at each width; then queries a second
//!   at each `--recall`, between the widths around it, and laser's at its default width.
//! * `open`: the first and the second query of eleven new connections, while everything is in memory; and the first of a
//!   server that has been started again after its files left memory, those behind it in the same session, and the bytes that were read.
//! * `inserts`: latencies of single rows, each in a transaction of its own, by each number of `--clients` for `--seconds`, as clients
//!   see them: laser with `laser.background_maintenance` off and on, and pgvector, each from the same number of rows on. `--load`
//!   others are inserted, again and again where there is time for more.
//! * `load`: `--load` rows by one statement from another table, and the merge of what it leaves.
//! * `mining`: pairs of `--rows` rows and as many others by each of `--methods`, the approximate one with each `--recall` as `laser.mining_recall` and
//!   indexes at each width (0: the default), and how many of the pairs of all rows they find; then, with all pairs, FAISS on the same vectors, where
//!   `LASER_BENCH_PYTHON` names a Python with faiss-cpu and numpy: flat, by IVF until it finds as many as the approximate method at its first
//!   recall, and by HNSW until it finds as many as the indexes.
//! * `upkeep`: VACUUM of `--rows` rows of which every tenth is dead, with no index, a B-tree, laser's and pgvector's; half of the rows merged into
//!   a graph of the others, beside a graph of all.
//! * `embed`, where it is named: `--rows` lines of `--sentences` by `--model`, the encoder alone on all cores and by SQL: `laser_embed_table`, a new table of a
//!   query, and an index on the text, beside one on the embeddings.
//!
//! With `--curves`, recall against queries a second (`scale-speed.svg`), seconds of processors against rows (`scale-build.svg`,
//! where there are several numbers) and the slowest insert of each second (`scale-inserts.svg`) are drawn. The load of the machine is
//! printed as well.

mod build;
mod embed;
mod inserts;
mod mining;
mod open;
mod search;
mod settings;
mod table;
mod upkeep;

use std::path::Path;

use anyhow::{Context, Result};
use laser_tests::bench::clusters::Clusters;
use laser_tests::bench::{Rows, begin, pgvector, progress, sentences};
use laser_tests::curve::{self, Curve};
use laser_tests::{Cluster, say};
use postgres::Client;
use settings::{DATABASE, Settings, settings};

/// Models that ship.
const MODELS: &str = "encoder/models";
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Rows, of which the first of each number are indexed, and the queries behind them.
fn vectors(client: &mut Client, s: &Settings) -> Result<Box<dyn Rows>> {
    let mut rows = s.most_rows();
    if s.wants("inserts") || s.wants("load") {
        rows += s.load;
    }
    if s.wants("mining") {
        rows = rows.max(2 * s.most_rows());
    }
    let wanted = rows + s.queries;
    if let Some(path) = &s.sentences {
        progress("embedding sentences");
        return Ok(Box::new(sentences(client, path, wanted)?));
    }
    // Ten million of them would leave the server no memory.
    Ok(Box::new(Clusters::new(wanted, s.dimensions, 1000, 0.3)))
}

fn main() -> Result<()> {
    let s = settings()?;
    begin(&s.output)?;
    let mut builder = Cluster::builder()
        // Files that are not on the disk are verified when the server starts.
        .setting("fsync", "on")
        .setting("shared_buffers", &s.buffers)
        .setting("max_wal_size", "16GB")
        .setting("autovacuum", "off")
        .setting("jit", "off")
        .setting("synchronous_commit", "off");
    if s.sentences.is_some() {
        builder = builder.models(&Path::new(ROOT).join(MODELS), &s.model);
    }
    let mut cluster = builder.start()?;
    // Whoever measures is alone.
    drop(cluster.database(DATABASE)?);
    if s.wants("embed") {
        for &rows in &s.rows {
            embed::embed(&cluster, &s, &Path::new(ROOT).join(MODELS), rows)?;
        }
        if s.tables.len() == 1 {
            return Ok(());
        }
    }
    let mut client = cluster.connect(DATABASE)?;
    let has_pgvector = !s.only_laser && pgvector(&mut client)?;
    if !has_pgvector && !s.only_laser {
        say!("pgvector is not installed for this server: laser runs alone");
    }
    let vectors = &*vectors(&mut client, &s)?;
    drop(client);
    let what = if s.sentences.is_some() {
        "embeddings of real sentences"
    } else {
        "points around 1,000 centres"
    };
    say!(
        "{what} × {}, {} threads, shared_buffers {}",
        vectors.dimensions(),
        std::thread::available_parallelism().map_or(1, |n| n.get()),
        s.buffers
    );

    let (mut speed, mut growth) = (Vec::new(), Vec::<Curve>::new());
    if ["build", "search", "open"]
        .iter()
        .any(|table| s.wants(table))
    {
        for &rows in &s.rows {
            say!("\n{rows} rows");
            speed.clear();
            for contender in build::contenders(&s, has_pgvector) {
                let cost = build::build(&cluster, &s, vectors, rows, &contender)?;
                match growth.iter_mut().find(|c| c.name == contender.name) {
                    Some(curve) => curve.points.push((rows as f64, cost.cpu)),
                    None => growth.push(Curve {
                        name: contender.name.clone(),
                        points: vec![(rows as f64, cost.cpu)],
                    }),
                }
                if s.wants("search") {
                    speed.push(search::search(&cluster, &s, vectors, rows, &contender)?);
                }
                if s.wants("open") {
                    open::open(&mut cluster, &s, &contender)?;
                }
            }
            if s.wants("search") {
                search::compare(&s, &speed);
            }
        }
    }
    if s.wants("inserts") || s.wants("load") {
        let mut client = cluster.connect(DATABASE)?;
        client.batch_execute("DROP TABLE IF EXISTS ours, theirs")?;
        inserts::all(&cluster, &mut client, &s, vectors, has_pgvector)?;
    }
    if s.wants("mining") {
        for &rows in &s.rows {
            mining::mining(&cluster, &s, vectors, rows)?;
        }
    }
    if s.wants("upkeep") {
        for &rows in &s.rows {
            upkeep::upkeep(&cluster, &s, vectors, rows, has_pgvector)?;
        }
    }
    if let Some(folder) = &s.curves {
        let rows = s.rows.last().context("a number of rows")?;
        if s.wants("search") {
            let title = format!("{rows} {what} × {}, one session", vectors.dimensions());
            let curves: Vec<Curve> = speed.iter().map(|found| found.one.clone()).collect();
            curve::draw(&folder.join("scale-speed.svg"), &title, &curves)?;
        }
        if s.rows.len() > 1 {
            let title = format!("builds of {what} × {}", vectors.dimensions());
            let path = folder.join("scale-build.svg");
            curve::draw_growth(&path, &title, "rows", "seconds of processors", &growth)?;
        }
    }
    Ok(())
}
