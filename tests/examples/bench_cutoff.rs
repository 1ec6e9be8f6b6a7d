//! What a limit on the distance saves a search that few rows are near enough for.
//!
//! ```text
//! bench_cutoff [--rows 100000] [--limits 0.2,0.3,0.4,0.5] [--queries 20]
//! ```
//!
//! Texts are the demo's sentences with numbers, of the model that ships. For each limit, medians over queries of
//! the time of a search for ten rows that are nearer: with a filter that the scan knows, with one that it does not
//! (`distance + 0 < limit`, as all were before), and with the filter around a search for ten rows.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use laser_tests::bench::{arguments, list};
use laser_tests::{Cluster, say};
use postgres::Client;

struct Settings {
    rows: usize,
    limits: Vec<f64>,
    queries: usize,
}

fn settings() -> Result<Settings> {
    let mut s = Settings {
        rows: 100_000,
        limits: vec![0.2, 0.3, 0.4, 0.5],
        queries: 20,
    };
    arguments(|name, value| {
        match name {
            "--rows" => s.rows = value.parse()?,
            "--limits" => s.limits = list(&value)?,
            "--queries" => s.queries = value.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(s)
}

/// Milliseconds of a statement, and the rows that it returns and leaves out.
fn run(client: &mut Client, statement: &str) -> Result<(f64, u64)> {
    let sql = format!("EXPLAIN (ANALYZE, TIMING OFF) {statement}");
    let lines: Vec<String> = client.query(&sql, &[])?.iter().map(|r| r.get(0)).collect();
    let number = |part: &str| {
        let line = lines.iter().find_map(|line| line.split_once(part));
        line.and_then(|(_, rest)| rest.split([' ', '.']).next()?.parse::<u64>().ok())
    };
    let time = lines
        .iter()
        .find_map(|line| line.strip_prefix("Execution Time: "));
    let time = time.and_then(|time| time.strip_suffix(" ms"));
    let visited =
        number("(actual rows=").unwrap_or(0) + number("Rows Removed by Filter: ").unwrap_or(0);
    Ok((time.context("a time")?.parse()?, visited))
}

fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    values[values.len() / 2]
}

fn main() -> Result<()> {
    let settings = settings()?;
    let cluster = Cluster::new()?;
    let mut client = cluster.database("bench")?;
    client.batch_execute(
        "CREATE TABLE s (key text, lang text, body text); CREATE TABLE t (id int, body text)",
    )?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/sentences.tsv");
    let mut copy = client.copy_in("COPY s FROM STDIN")?;
    copy.write_all(&std::fs::read(path)?)?;
    copy.finish()?;
    client.execute(
        "INSERT INTO t SELECT i, s.body || ' ' || md5((i / 1400)::text)
         FROM (SELECT row_number() OVER (ORDER BY key, lang) AS n, body FROM s) s, generate_series(1, $1) i
         WHERE s.n = i % (SELECT count(*) FROM s) + 1",
        &[&(settings.rows as i32)],
    )?;
    client.batch_execute(
        "CREATE INDEX i ON t USING laser (body);
         SET jit = off; SET max_parallel_workers_per_gather = 0; SET enable_seqscan = off; SET laser.scan_notices = off",
    )?;
    client.batch_execute("VACUUM ANALYZE t")?;
    let queries = client.query(
        "SELECT body FROM s WHERE lang = 'en' ORDER BY md5(body) LIMIT $1",
        &[&(settings.queries as i64)],
    )?;
    say!(
        "{} rows; limit, ms and rows visited: known to the scan, not known, around",
        settings.rows
    );
    for limit in &settings.limits {
        let mut measured = [const { Vec::new() }; 3];
        for row in &queries {
            let text = row.get::<_, String>(0).replace('\'', "''");
            let distance = format!("body <=> '{text}'");
            let order = format!("ORDER BY {distance} LIMIT 10");
            let statements = [
                format!("SELECT id FROM t WHERE {distance} < {limit} {order}"),
                format!("SELECT id FROM t WHERE ({distance}) + 0 < {limit} {order}"),
                format!(
                    "SELECT id FROM (SELECT id, {distance} AS d FROM t {order}) n WHERE d < {limit}"
                ),
            ];
            for (statement, measured) in statements.iter().zip(&mut measured) {
                run(&mut client, statement)?;
                measured.push(run(&mut client, statement)?);
            }
        }
        let figures = measured.map(|runs| {
            let (times, visited): (Vec<f64>, Vec<u64>) = runs.into_iter().unzip();
            format!("{:.2} ms {}", median(times), median(visited))
        });
        say!("{limit}: {}", figures.join(", "));
    }
    Ok(())
}
