//! Statements a second.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use postgres::Client;

use crate::Cluster;

/// Transactions a second of a pgbench script, with prepared statements, by that many clients. `settings` are of their
/// sessions, as `name=value`.
///
/// # Errors
/// With what pgbench printed, when it fails.
pub fn transactions(
    cluster: &Cluster,
    database: &str,
    script: &str,
    settings: &[String],
    clients: usize,
    seconds: u64,
) -> Result<f64> {
    let options: Vec<String> = settings.iter().map(|s| format!("-c {s}")).collect();
    let connection = format!("dbname={database} options='{}'", options.join(" "));
    let (clients, seconds) = (clients.to_string(), seconds.to_string());
    let args = ["-M", "prepared", "-T", &seconds, "-c", &clients, "-j", "2"];
    let output = cluster.pgbench(&connection, script, &args)?;
    let line = output.lines().find_map(|line| line.strip_prefix("tps = "));
    let number = line
        .and_then(|rest| rest.split_whitespace().next())
        .context("pgbench prints tps")?;
    Ok(number.parse()?)
}

/// That a statement is planned with an index.
///
/// # Errors
/// With the plan, when it is not.
pub fn ensure_index(client: &mut Client, statement: &str, index: &str) -> Result<()> {
    let lines = client.query(&format!("EXPLAIN {statement}"), &[])?;
    let plan: Vec<&str> = lines.iter().map(|line| line.get(0)).collect();
    let uses = format!("using {index} ");
    ensure!(
        plan.iter().any(|line| line.contains(&uses)),
        "{}",
        plan.join("\n")
    );
    Ok(())
}

/// Times a second that a statement runs, for that many seconds and once at least.
///
/// # Errors
/// When the statement fails.
pub fn repeated(client: &mut Client, statement: &str, seconds: u64) -> Result<f64> {
    let start = Instant::now();
    let mut times = 0.0;
    while times == 0.0 || start.elapsed().as_secs_f64() < seconds as f64 {
        client.query(statement, &[])?;
        times += 1.0;
    }
    Ok(times / start.elapsed().as_secs_f64())
}
