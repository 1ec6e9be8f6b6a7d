//! Mining of two tables, by comparing all pairs, by cells and by indexes, beside FAISS.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use laser_tests::bench::cost::{self, Cost};
use laser_tests::bench::{Rows, progress};
use laser_tests::{Cluster, say};
use postgres::Client;

use super::settings::{DATABASE, Settings};
use super::table::{fill, machine_load};

/// Neighbours of each row that the margin is taken from.
const K: i32 = 4;
const FAISS: &str = include_str!("faiss.py");

/// Mines pairs of the first `rows` vectors and as many behind them, which are each other's best.
pub fn mining(cluster: &Cluster, s: &Settings, vectors: &dyn Rows, rows: usize) -> Result<()> {
    let mut client = cluster.connect(DATABASE)?;
    client.batch_execute("DROP TABLE IF EXISTS ours, theirs, asked, source, target")?;
    fill(&mut client, "source", "embedding", vectors, 0..rows)?;
    fill(&mut client, "target", "embedding", vectors, rows..2 * rows)?;
    client.batch_execute("VACUUM (ANALYZE) source, target")?;
    client.batch_execute("CHECKPOINT")?;
    let memory: String = client.query_one("SHOW laser.mining_memory", &[])?.get(0);
    say!("mining of {rows} × {rows}, k {K}, laser.mining_memory {memory}");

    let mut pairs = None;
    if wants(s, "exact") {
        let exact = mined(cluster, &mut client, "exact")?;
        let count: i64 = client.query_one("SELECT count(*) FROM exact", &[])?.get(0);
        ensure!(count > 0, "nothing is mined from {rows} rows");
        print("laser, exact", &exact, &format!(", {count} pairs"));
        pairs = Some(count);
    }
    let mut recalls = [None; 2];
    if wants(s, "approximate") {
        for wanted in &s.recall {
            client.batch_execute(&format!("SET laser.mining_recall = {wanted}"))?;
            let cost = mined(cluster, &mut client, "approximate")?;
            let recall = recall(&mut client, "approximate", pairs)?;
            recalls[0] = recalls[0].or(recall);
            print(
                &format!("laser, approximate, {wanted}"),
                &cost,
                &found(recall),
            );
        }
    }
    if wants(s, "index") {
        let setting = s.memory.last().context("a size of memory")?;
        client.batch_execute(&format!("SET maintenance_work_mem = '{setting}'"))?;
        progress("indexes of both sides");
        let cost = cost::of_statements(
            cluster,
            &mut client,
            "CREATE INDEX ON source USING laser (v); CREATE INDEX ON target USING laser (v)",
        )?;
        print("laser, indexes of both sides", &cost, "");
        for ef in &s.ef {
            client.batch_execute(&format!("SET laser.ef_search = {ef}"))?;
            let cost = mined(cluster, &mut client, "index")?;
            let recall = recall(&mut client, "index", pairs)?;
            // A width finds no less than a narrower one but by chance.
            recalls[1] = recall.or(recalls[1]);
            let name = match ef {
                0 => "laser, by index, at the default width".to_owned(),
                _ => format!("laser, by index, at {ef}"),
            };
            print(&name, &cost, &found(recall));
        }
    }
    match std::env::var("LASER_BENCH_PYTHON") {
        Ok(python) if pairs.is_some() => faiss(&mut client, &python, vectors, rows, recalls),
        _ => {
            say!("FAISS was not measured: that takes LASER_BENCH_PYTHON and all pairs");
            Ok(())
        }
    }
}

fn wants(s: &Settings, method: &str) -> bool {
    s.methods.iter().any(|name| name == method)
}

/// The share of the `pairs` of all that a method has found.
fn recall(client: &mut Client, method: &str, pairs: Option<i64>) -> Result<Option<f64>> {
    let Some(pairs) = pairs else {
        return Ok(None);
    };
    let sql = format!("SELECT count(*) FROM exact JOIN {method} USING (source_id, target_id)");
    let found: i64 = client.query_one(&sql, &[])?.get(0);
    Ok(Some(found as f64 / pairs as f64))
}

fn found(recall: Option<f64>) -> String {
    recall.map_or(String::new(), |recall| format!(", recall {recall:.4}"))
}

/// Keeps the pairs of one method in a table of its name.
fn mined(cluster: &Cluster, client: &mut Client, method: &str) -> Result<Cost> {
    progress(&format!("mining, {method}"));
    let statement = format!(
        "DROP TABLE IF EXISTS {method};
         CREATE TABLE {method} AS SELECT source_id, target_id FROM laser_mine(
             'SELECT id, v FROM source', 'SELECT id, v FROM target',
             k => {K}, retrieval => 'intersect', threshold => -2, method => '{method}')"
    );
    cost::of_statements(cluster, client, &statement)
}

fn print(name: &str, cost: &Cost, more: &str) {
    say!(
        "{name}: {:.1} s ({:.1} CPU-s, load {}), {:.0} MB{more}",
        cost.wall,
        cost.cpu,
        machine_load(),
        cost.memory as f64 / 1e6
    );
}

/// Runs FAISS on the same vectors until IVF and HNSW find as many of the pairs as `recalls`.
fn faiss(
    client: &mut Client,
    python: &str,
    vectors: &dyn Rows,
    rows: usize,
    recalls: [Option<f64>; 2],
) -> Result<()> {
    progress("FAISS");
    let folder = tempfile::tempdir()?;
    let file = |name: &str| folder.path().join(name);
    for (name, first) in [("source", 0), ("target", rows)] {
        let rows = (first..first + rows).flat_map(|i| vectors.row(i).into_owned());
        write(&file(name), rows.flat_map(f32::to_le_bytes))?;
    }
    let pairs = client.query("SELECT source_id, target_id FROM exact", &[])?;
    let numbers = pairs
        .iter()
        .flat_map(|row| [row.get::<_, i64>(0), row.get(1)]);
    write(&file("exact"), numbers.flat_map(i64::to_le_bytes))?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut child = Command::new(python)
        .args(["-c", FAISS])
        .args([file("source"), file("target"), file("exact")])
        .args([vectors.dimensions(), K as usize, threads].map(|n| n.to_string()))
        .args(recalls.map(|recall| recall.unwrap_or(0.0).to_string()))
        .env("OMP_NUM_THREADS", threads.to_string())
        .env("OPENBLAS_NUM_THREADS", threads.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {python}"))?;
    let output = child.stdout.take().context("its output")?;
    for line in BufReader::new(output).lines() {
        say!("{}", line?);
    }
    ensure!(
        child.wait()?.success(),
        "{python} failed (faiss-cpu and numpy are needed)"
    );
    Ok(())
}

fn write(path: &Path, bytes: impl Iterator<Item = u8>) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    for byte in bytes {
        file.write_all(&[byte])?;
    }
    Ok(file.flush()?)
}
