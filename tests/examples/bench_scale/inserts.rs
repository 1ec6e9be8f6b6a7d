//! Inserts of single rows, and of many by one statement.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use laser_tests::bench::{Rows, progress};
use laser_tests::curve::{self, Curve};
use laser_tests::{Cluster, say};
use postgres::Client;

use super::settings::{DATABASE, Settings};
use super::table::{fill, machine_load};

/// How rows are inserted.
struct Mode<'a> {
    name: &'a str,
    kind: &'static str,
    /// What follows `CREATE INDEX ti ON t USING`.
    index: String,
    /// Of each session.
    set: String,
}

impl<'a> Mode<'a> {
    fn new(name: &'a str, s: &Settings) -> Result<Self> {
        Ok(match name {
            "off" | "on" => Self {
                name,
                kind: "embedding",
                index: format!("laser (v) WITH (pending_list_limit = {})", s.limit),
                set: format!("SET laser.background_maintenance = {name}"),
            },
            "pgvector" => Self {
                name,
                kind: "vector",
                index: "hnsw (v vector_cosine_ops)".to_owned(),
                set: String::new(),
            },
            _ => bail!("no mode is called {name}"),
        })
    }

    fn is_laser(&self) -> bool {
        self.kind == "embedding"
    }
}

/// One insert: when it ended, since the first began, and how long it took.
#[derive(Clone, Copy)]
struct Insert {
    at: Duration,
    took: Duration,
}

pub fn all(
    cluster: &Cluster,
    client: &mut Client,
    s: &Settings,
    vectors: &dyn Rows,
    has_pgvector: bool,
) -> Result<()> {
    let memory = s.memory.last().map_or("64MB", String::as_str);
    client.batch_execute(&format!("SET maintenance_work_mem = '{memory}'"))?;
    let modes: Vec<Mode<'_>> = s
        .modes
        .iter()
        .map(|name| Mode::new(name, s))
        .collect::<Result<_>>()?;
    let modes = modes.iter().filter(|mode| mode.is_laser() || has_pgvector);
    if s.wants("inserts") {
        singles(cluster, client, s, vectors, modes.clone())?;
    }
    if s.wants("load") {
        for mode in modes {
            statement(client, s, vectors, mode)?;
        }
    }
    Ok(())
}

/// Latencies of single rows.
fn singles<'a>(
    cluster: &Cluster,
    client: &mut Client,
    s: &Settings,
    vectors: &dyn Rows,
    modes: impl Iterator<Item = &'a Mode<'a>>,
) -> Result<()> {
    let rows = s.most_rows();
    say!(
        "\ninserts of single rows: {rows} rows, pending_list_limit {} kB, {} s each; times in ms",
        s.limit,
        s.seconds
    );
    say!(
        "{:>10} {:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9} {:>10} {:>6}",
        "mode",
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
    let mut curves = Vec::new();
    for mode in modes {
        for &clients in &s.clients {
            progress(&format!("{clients} clients insert, {}", mode.name));
            source(client, s, vectors, mode)?;
            fill(client, "t", mode.kind, vectors, 0..rows)?;
            client.batch_execute(&format!(
                "CREATE INDEX ti ON t USING {}; CHECKPOINT",
                mode.index
            ))?;
            let mut inserts = inserts(cluster, s, clients, mode)?;
            curves.push(Curve {
                name: format!("{}, {clients} clients", mode.name),
                points: slowest_of_seconds(&inserts),
            });
            inserts.sort_unstable_by_key(|insert| insert.took);
            let at = |share: f64| {
                let index = ((inserts.len() - 1) as f64 * share) as usize;
                1e3 * inserts[index].took.as_secs_f64()
            };
            let left = if mode.is_laser() {
                let info = "SELECT pending FROM laser_index_info('ti')";
                client.query_one(info, &[])?.get::<_, i64>(0).to_string()
            } else {
                "-".to_owned()
            };
            say!(
                "{:>10} {clients:>8} {:>9.0} {:>8.2} {:>8.2} {:>8.1} {:>8.1} {:>9.1} {left:>10} {:>6}",
                mode.name,
                inserts.len() as f64 / s.seconds as f64,
                at(0.5),
                at(0.99),
                at(0.999),
                at(0.9999),
                at(1.0),
                machine_load()
            );
        }
    }
    if let Some(folder) = &s.curves {
        let title = format!("{rows} rows × {}, single inserts", vectors.dimensions());
        let path = folder.join("scale-inserts.svg");
        let up = "slowest of each second, ms";
        curve::draw_growth(&path, &title, "seconds", up, &curves)?;
    }
    Ok(())
}

/// The rows that are inserted: others than those that are indexed before.
fn source(client: &mut Client, s: &Settings, vectors: &dyn Rows, mode: &Mode<'_>) -> Result<()> {
    let first = s.most_rows();
    fill(client, "source", mode.kind, vectors, first..first + s.load)?;
    client.batch_execute("CREATE UNIQUE INDEX ON source (id)")?;
    Ok(client.batch_execute("VACUUM ANALYZE source")?)
}

/// Inserts by `clients` clients, in the order of sessions.
fn inserts(
    cluster: &Cluster,
    s: &Settings,
    clients: usize,
    mode: &Mode<'_>,
) -> Result<Vec<Insert>> {
    let begin = Instant::now();
    let until = begin + Duration::from_secs(s.seconds);
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..clients)
            .map(|seed| {
                scope.spawn(move || -> Result<Vec<Insert>> {
                    let mut client = cluster.connect(DATABASE)?;
                    client.batch_execute(&mode.set)?;
                    let insert =
                        client.prepare("INSERT INTO t SELECT $1, v FROM source WHERE id = $2")?;
                    let mut all = Vec::new();
                    let mut row = (seed * 7919) % s.load;
                    while Instant::now() < until {
                        row = (row + 104_729) % s.load;
                        let start = Instant::now();
                        let inserted = client.execute(&insert, &[&(row as i32), &(row as i32)])?;
                        ensure!(inserted == 1, "the source has no row {row}");
                        all.push(Insert {
                            at: begin.elapsed(),
                            took: start.elapsed(),
                        });
                    }
                    Ok(all)
                })
            })
            .collect();
        let mut all = Vec::new();
        for session in sessions {
            all.extend(session.join().expect("no panic")?);
        }
        Ok(all)
    })
}

/// Of each second the longest of the inserts that ended in it, in milliseconds.
fn slowest_of_seconds(inserts: &[Insert]) -> Vec<(f64, f64)> {
    let mut slowest = std::collections::BTreeMap::<u64, f64>::new();
    for insert in inserts {
        let ms = 1e3 * insert.took.as_secs_f64();
        let most = slowest.entry(insert.at.as_secs()).or_insert(ms);
        *most = most.max(ms);
    }
    slowest
        .into_iter()
        .map(|(second, ms)| (second as f64, ms))
        .collect()
}

/// One statement that inserts many rows, and the merge of what it leaves.
fn statement(client: &mut Client, s: &Settings, vectors: &dyn Rows, mode: &Mode<'_>) -> Result<()> {
    progress(&format!("a load, {}", mode.name));
    source(client, s, vectors, mode)?;
    fill(client, "t", mode.kind, vectors, 0..0)?;
    client.batch_execute(&format!(
        "CREATE INDEX ti ON t USING {}; {}",
        mode.index, mode.set
    ))?;
    let start = Instant::now();
    client.batch_execute("INSERT INTO t SELECT id, v FROM source")?;
    let loaded = start.elapsed().as_secs_f64();
    let merge = if mode.is_laser() {
        let row = client.query_one("SELECT pending, segments FROM laser_index_info('ti')", &[])?;
        let (left, segments): (i64, i32) = (row.get(0), row.get(1));
        let start = Instant::now();
        client.batch_execute("SELECT laser_merge('ti')")?;
        format!(
            ", {left} rows left in the list, {segments} segments, their merge {:.1} s",
            start.elapsed().as_secs_f64()
        )
    } else {
        String::new()
    };
    say!(
        "INSERT ... SELECT of {} rows, {}: {loaded:.1} s{merge}, load {}",
        s.load,
        mode.name,
        machine_load()
    );
    Ok(())
}
