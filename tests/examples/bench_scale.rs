//! What single inserts wait for, while merges go on.
//!
//! ```text
//! bench_scale [--rows 100000] [--dimensions 384] [--clients 4,8] [--seconds 60] [--limit 4096]
//!             [--load 200000] [--output FILE]
//! ```
//!
//! A table of that many rows has an index; then each number of clients inserts single rows, each in a transaction
//! of its own, for that many seconds. Latencies are of the whole statement as a client sees it, with
//! `laser.background_maintenance` off and on, each from the same number of rows on. After that `--load` rows are
//! inserted by one statement from another table: the time of that, and of the merge of what it leaves. Vectors are Gaussian
//! clusters of length 1. The load of the machine is printed as well.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use laser_tests::bench::{Vectors, arguments, begin, clusters, list, load, normalize, progress};
use laser_tests::{Cluster, say};
use postgres::Client;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

struct Settings {
    rows: usize,
    dimensions: usize,
    clients: Vec<usize>,
    seconds: u64,
    limit: usize,
    load: usize,
    output: PathBuf,
}

fn settings() -> Result<Settings> {
    let mut s = Settings {
        rows: 100_000,
        dimensions: 384,
        clients: vec![4, 8],
        seconds: 60,
        limit: 4096,
        load: 200_000,
        output: std::env::current_exe()?.with_file_name("../../bench-scale.txt"),
    };
    arguments(|name, value| {
        match name {
            "--rows" => s.rows = value.parse()?,
            "--dimensions" => s.dimensions = value.parse()?,
            "--clients" => s.clients = list(&value)?,
            "--seconds" => s.seconds = value.parse()?,
            "--limit" => s.limit = value.parse()?,
            "--load" => s.load = value.parse()?,
            "--output" => s.output = value.into(),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    ensure!(!s.clients.is_empty() && s.seconds > 0, "nothing to do");
    Ok(s)
}

fn machine_load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// A table `t` with the first of the vectors, and its index.
fn prepare(client: &mut Client, s: &Settings, vectors: &Vectors) -> Result<()> {
    client.batch_execute(&format!(
        "DROP TABLE IF EXISTS t;
         CREATE TABLE t (id int, v embedding({}))",
        s.dimensions
    ))?;
    load(client, "t", false, vectors, 0..s.rows)?;
    client.batch_execute(&format!(
        "CREATE INDEX ti ON t USING laser (v) WITH (pending_list_limit = {}); CHECKPOINT",
        s.limit
    ))?;
    Ok(())
}

/// Latencies of single inserts by `clients` clients.
fn inserts(cluster: &Cluster, s: &Settings, clients: usize, mode: &str) -> Result<Vec<Duration>> {
    let until = Instant::now() + Duration::from_secs(s.seconds);
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..clients)
            .map(|seed| {
                scope.spawn(move || -> Result<Vec<Duration>> {
                    let mut client = cluster.connect("scale")?;
                    client.batch_execute(&format!("SET laser.background_maintenance = {mode}"))?;
                    let insert =
                        client.prepare("INSERT INTO t SELECT $1, v FROM source WHERE id = $2")?;
                    let mut took = Vec::new();
                    let mut row = (seed * 7919) % s.load;
                    while Instant::now() < until {
                        row = (row + 104_729) % s.load;
                        let start = Instant::now();
                        client.execute(&insert, &[&(row as i32), &(row as i32)])?;
                        took.push(start.elapsed());
                    }
                    Ok(took)
                })
            })
            .collect();
        let mut all = Vec::new();
        for session in sessions {
            all.extend(session.join().expect("no panic")?);
        }
        all.sort_unstable();
        Ok(all)
    })
}

fn main() -> Result<()> {
    let s = settings()?;
    begin(&s.output)?;
    let cluster = Cluster::builder()
        .setting("shared_buffers", "1GB")
        .setting("autovacuum", "off")
        .setting("synchronous_commit", "off")
        .start()?;
    let mut client = cluster.database("scale")?;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    progress("making vectors");
    let most = s.rows.max(s.load);
    let mut vectors = clusters(&mut rng, most, s.dimensions, 1000, 0.3);
    vectors.data.chunks_mut(s.dimensions).for_each(normalize);
    client.batch_execute(&format!(
        "CREATE TABLE source (id int PRIMARY KEY, v embedding({}))",
        s.dimensions
    ))?;
    load(&mut client, "source", false, &vectors, 0..s.load)?;
    say!(
        "{} rows of {} dimensions, pending_list_limit {} kB, {} s each; times in ms",
        s.rows,
        s.dimensions,
        s.limit,
        s.seconds
    );
    say!(
        "{:>10} {:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9} {:>10} {:>6}",
        "background",
        "clients",
        "a second",
        "p50",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "list left",
        "load"
    );
    for &clients in &s.clients {
        for mode in ["off", "on"] {
            progress(&format!("{clients} clients, background maintenance {mode}"));
            prepare(&mut client, &s, &vectors)?;
            let took = inserts(&cluster, &s, clients, mode)?;
            let at = |share: f64| {
                let index = ((took.len() - 1) as f64 * share) as usize;
                1e3 * took[index].as_secs_f64()
            };
            let left: i64 = client
                .query_one("SELECT pending FROM laser_index_info('ti')", &[])?
                .get(0);
            say!(
                "{mode:>10} {clients:>8} {:>9.0} {:>8.2} {:>8.2} {:>8.1} {:>8.1} {:>9.1} {left:>10} {:>6}",
                took.len() as f64 / s.seconds as f64,
                at(0.5),
                at(0.99),
                at(0.999),
                at(0.9999),
                at(1.0),
                machine_load()
            );
        }
    }
    say!(
        "INSERT ... SELECT of {} rows, and laser_merge of what it leaves; seconds",
        s.load
    );
    for mode in ["off", "on"] {
        progress(&format!("a load, background maintenance {mode}"));
        client.batch_execute(&format!(
            "DROP TABLE IF EXISTS t;
             CREATE TABLE t (id int, v embedding({}));
             CREATE INDEX ti ON t USING laser (v) WITH (pending_list_limit = {});
             SET laser.background_maintenance = {mode}",
            s.dimensions, s.limit
        ))?;
        let start = Instant::now();
        client.batch_execute("INSERT INTO t SELECT id, v FROM source")?;
        let loaded = start.elapsed();
        let row = client.query_one("SELECT pending, segments FROM laser_index_info('ti')", &[])?;
        let (left, segments): (i64, i32) = (row.get(0), row.get(1));
        let start = Instant::now();
        client.batch_execute("SELECT laser_merge('ti')")?;
        say!(
            "{mode:>10} {:>9.1} {:>9.1}   {left} rows left in the list, {segments} segments, load {}",
            loaded.as_secs_f64(),
            start.elapsed().as_secs_f64(),
            machine_load()
        );
    }
    Ok(())
}
