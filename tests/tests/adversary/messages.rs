//! What messages tell.

use std::io::Write;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use laser_tests::Cluster;

/// Whoever starts a server may have RUST_BACKTRACE in his environment; clients are not told of the
/// inside of the server for that.
#[test]
fn errors_have_no_backtraces() -> Result<()> {
    let mut cluster = Cluster::new()?;
    cluster.database("d")?;
    cluster.stop("fast")?;
    let mut server = cluster
        .command("postgres")
        .args(["--single", "-D"])
        .arg(cluster.data())
        .arg("d")
        .env("RUST_BACKTRACE", "1")
        .env("RUST_LIB_BACKTRACE", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut input = server.stdin.take().context("a pipe")?;
    // An error of the server below a function of laser.
    input.write_all(b"SELECT laser_mine('SELECT 1/0, ''a''', 'SELECT 1, ''a''')\n")?;
    input.write_all(b"SELECT laser_mine_stored(1)\nSELECT laser_index_check('pg_class')\n")?;
    input.write_all(
        b"CREATE TABLE t (e embedding(2)); \
          CREATE FUNCTION f(e embedding) RETURNS embedding LANGUAGE sql IMMUTABLE AS \
          'SELECT e WHERE (1/length(current_setting(''laser.model'')||''a'')) IS NOT NULL'; \
          INSERT INTO t VALUES ('[1,2]'); CREATE INDEX ti ON t USING laser ((f(e)::embedding(2)))\n\
          CREATE OR REPLACE FUNCTION f(e embedding) RETURNS embedding LANGUAGE plpgsql IMMUTABLE AS \
          'BEGIN RAISE EXCEPTION ''from below''; END'\n\
          SELECT laser_index_check('ti')\n",
    )?;
    drop(input);
    let output = server.wait_with_output()?;
    let output = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    ensure!(output.contains("from below"), "{output}");
    ensure!(output.contains("division by zero"), "{output}");
    for sign in ["_start", "pgrx", "std::panic", "__rust", "   0: "] {
        ensure!(!output.contains(sign), "{sign:?} in {output}");
    }
    Ok(())
}
