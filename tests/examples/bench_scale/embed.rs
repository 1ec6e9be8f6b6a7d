//! Embedding of many rows of text.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use laser_encoder::{Encoder, LoadOptions};
use laser_tests::bench::cost::{self, Cost, timed_here};
use laser_tests::bench::{lines, progress};
use laser_tests::{Cluster, say};
use postgres::Client;

use super::settings::{DATABASE, Settings};
use super::table::machine_load;

/// Texts that the encoder gets at once where it is alone.
const BATCH: usize = 2048;

/// Embeds the first `rows` lines in each way, and prints texts a second, and how that compares with the encoder alone.
pub fn embed(cluster: &Cluster, s: &Settings, models: &Path, rows: usize) -> Result<()> {
    let path = s.sentences.as_deref().context("sentences")?;
    let texts = lines(path, rows)?;
    let mut client = cluster.connect(DATABASE)?;
    client.batch_execute(
        "DROP TABLE IF EXISTS texts, made; CREATE TABLE texts (id bigint PRIMARY KEY, body text, v embedding)",
    )?;
    for (at, chunk) in texts.chunks(10_000).enumerate() {
        client.execute(
            "INSERT INTO texts SELECT $1 + n, body FROM unnest($2::text[]) WITH ORDINALITY u (body, n)",
            &[&((at * 10_000) as i64), &chunk],
        )?;
    }
    for statement in [
        "VACUUM (ANALYZE) texts",
        "CHECKPOINT",
        "SELECT laser_embed('x')",
    ] {
        client.batch_execute(statement)?;
    }

    progress(&format!("{rows} texts, {} alone", s.model));
    let encoder = Encoder::load(&models.join(&s.model), &LoadOptions::default())?;
    let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (alone, cost) = timed_here(|| {
        let mut count = 0;
        for batch in borrowed.chunks(BATCH) {
            count += encoder.encode(batch)?.truncated.len();
        }
        Ok(count)
    })?;
    ensure!(alone == rows, "{alone} of {rows} texts");
    let bytes: usize = texts.iter().map(String::len).sum();
    say!(
        "{rows} texts of {} bytes by {}, {}, {} threads",
        bytes / rows,
        s.model,
        encoder.precision().name(),
        encoder.threads()
    );
    let bare = cost.wall;
    print("the encoder alone", rows, &cost, bare, "");

    let table = "CALL laser_embed_table('texts', 'body', 'v', 10000)";
    let cost = run(cluster, &mut client, table)?;
    print("laser_embed_table", rows, &cost, bare, "");
    let left: i64 = client
        .query_one("SELECT count(*) FROM texts WHERE v IS NULL", &[])?
        .get(0);
    ensure!(left == 0, "{left} rows have no embedding");

    let made = "CREATE TABLE made AS SELECT id, laser_embed(body) AS v FROM texts";
    let plan = client.query("EXPLAIN SELECT id, laser_embed(body) FROM texts", &[])?;
    let parallel = (plan.iter()).any(|row| row.get::<_, &str>(0).contains("Gather"));
    let how = if parallel { ", in parallel" } else { "" };
    let cost = run(cluster, &mut client, made)?;
    print(
        "CREATE TABLE … AS SELECT laser_embed",
        rows,
        &cost,
        bare,
        how,
    );

    let memory = s.memory.last().context("a size of memory")?;
    client.batch_execute(&format!("SET maintenance_work_mem = '{memory}'"))?;
    client.batch_execute("VACUUM (ANALYZE) texts")?;
    let stored = run(cluster, &mut client, "CREATE INDEX ON made USING laser (v)")?;
    print("CREATE INDEX on embeddings", rows, &stored, bare, "");
    let text = run(
        cluster,
        &mut client,
        "CREATE INDEX ON texts USING laser (body)",
    )?;
    print("CREATE INDEX on the text", rows, &text, bare, "");
    Ok(())
}

fn run(cluster: &Cluster, client: &mut Client, statement: &str) -> Result<Cost> {
    progress(statement);
    cost::of_statements(cluster, client, statement)
}

fn print(what: &str, rows: usize, cost: &Cost, bare: f64, how: &str) {
    say!(
        "  {what}{how}: {:.1} s ({:.1} CPU-s beside the encoder process, load {}), {:.0} texts/s, {:.2} of the encoder alone",
        cost.wall,
        cost.cpu,
        machine_load(),
        rows as f64 / cost.wall,
        bare / cost.wall
    );
}
