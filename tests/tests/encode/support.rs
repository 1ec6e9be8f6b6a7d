//! A cluster with a small model, and what tests ask of it and of its encoder process.

use anyhow::{Context, Result};
use laser_tests::model::Model;
use laser_tests::{Builder, Cluster, signal, wait_until};
use postgres::Client;
use tempfile::TempDir;

pub const SOCKET: &str = "laser/pgsql_tmp_encoder.sock";

/// A folder with the model `tiny`, and a cluster that is told of it. Sessions ask the encoder
/// process, which may stand still for as long as a test wants.
pub fn models() -> Result<(TempDir, Builder)> {
    let folder = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(folder.path())?;
    let builder = Cluster::builder()
        .models(folder.path(), "tiny")
        .setting("laser.encode_in_backend", "off")
        .setting("laser.encoder_timeout", "1h");
    Ok((folder, builder))
}

pub fn embed(client: &mut Client, text: &str) -> Result<Vec<f32>, postgres::Error> {
    Ok(client
        .query_one("SELECT laser_embed($1)::real[]", &[&text])?
        .get(0))
}

fn encoder_pid(client: &mut Client) -> Result<Option<u32>> {
    let row = client.query_one(
        "SELECT pid FROM laser_encoder_status WHERE state = 'running'",
        &[],
    );
    Ok(row
        .ok()
        .and_then(|row| row.get::<_, Option<i32>>(0))
        .map(|pid| pid as u32))
}

/// The encoder's process id, once it answers.
pub fn running_encoder(client: &mut Client) -> Result<u32> {
    let mut pid = None;
    wait_until("the encoder runs", || {
        pid = encoder_pid(client)?;
        Ok(pid.is_some())
    })?;
    pid.context("the encoder runs")
}

/// Whether a process is stopped or about to be (its state in /proc is T).
pub fn stop(pid: u32) -> Result<()> {
    signal(pid, libc::SIGSTOP);
    wait_until("the process has stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Ok(stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('T')))
    })
}

pub fn start_time(client: &mut Client) -> Result<String> {
    Ok(client
        .query_one("SELECT pg_postmaster_start_time()::text", &[])?
        .get(0))
}
