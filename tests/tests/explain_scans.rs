//! `EXPLAIN (LASER)`, which servers have from PostgreSQL 18 on.

use anyhow::{Context, Result, ensure};
use laser_tests::{Cluster, failure, skipped};
use postgres::Client;
use postgres::error::SqlState;

const TABLES: &str = "
    CREATE TABLE t (id int, body text, e embedding(2));
    INSERT INTO t SELECT i, 'sentence number ' || i, array[cos(i), sin(i)]::embedding FROM generate_series(1, 300) i;
    CREATE INDEX t_body ON t USING laser (body);
    CREATE INDEX t_e ON t USING laser (e) WITH (ef_search = 40);
    CREATE INDEX t_id ON t (id);
    ANALYZE t;
    INSERT INTO t VALUES (301, 'one more', '[1,0]'), (302, 'and one more', NULL);
    SET enable_seqscan = off; SET enable_sort = off; SET laser.background_maintenance = off";

const TEXTS: &str = "SELECT id FROM t ORDER BY body <=> 'one more' LIMIT 5";
const EMBEDDINGS: &str = "SELECT id FROM t ORDER BY e <=> '[1,0]' LIMIT 5";

/// A server, and a session of its database, unless its EXPLAIN knows no options of extensions.
fn server(test: &str) -> Result<Option<(Cluster, Client)>> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    let version: i32 = client
        .query_one("SELECT current_setting('server_version_num')::int", &[])?
        .get(0);
    if version < 180_000 {
        skipped(
            test,
            "EXPLAIN has options of extensions from PostgreSQL 18 on",
        );
        return Ok(None);
    }
    client.batch_execute(TABLES)?;
    Ok(Some((cluster, client)))
}

/// The lines of a plan without what differs between runs.
fn explain(client: &mut Client, options: &str, sql: &str) -> Result<Vec<String>> {
    let explain = format!("EXPLAIN (COSTS OFF, SUMMARY OFF, BUFFERS OFF, {options}) {sql}");
    let rows = client.query(&explain, &[])?;
    let line = |line: &str| {
        line.split(" (actual")
            .next()
            .unwrap_or(line)
            .trim()
            .to_owned()
    };
    Ok(rows.iter().map(|row| line(row.get(0))).collect())
}

/// The number of a line, of the first scan that has it.
fn number(lines: &[String], label: &str) -> Result<f64> {
    let value = lines
        .iter()
        .find_map(|line| line.strip_prefix(&format!("{label}: ")));
    let value = value.with_context(|| format!("no {label:?} in {lines:#?}"))?;
    Ok(value.trim_end_matches(" ms").parse()?)
}

fn has(lines: &[String], label: &str) -> bool {
    lines.iter().any(|line| line.starts_with(label))
}

#[test]
fn a_scan_tells_what_it_searched() -> Result<()> {
    let Some((_cluster, mut client)) = server("EXPLAIN (LASER)")? else {
        return Ok(());
    };
    let lines = explain(&mut client, "ANALYZE, LASER", TEXTS)?;
    ensure!(
        lines
            .iter()
            .filter(|line| *line == "Embedding Model: laser-mean-384")
            .count()
            == 2,
        "{lines:#?}"
    );
    ensure!(number(&lines, "Embedding Time")? > 0.0, "{lines:#?}");
    ensure!(number(&lines, "Segments")? == 1.0, "{lines:#?}");
    ensure!(number(&lines, "Pending Rows")? == 2.0, "{lines:#?}");
    ensure!(number(&lines, "Visited Vectors")? == 302.0, "{lines:#?}");
    ensure!(number(&lines, "Ef Search")? > 0.0, "{lines:#?}");

    let lines = explain(&mut client, "ANALYZE, LASER", EMBEDDINGS)?;
    ensure!(!has(&lines, "Embedding"), "{lines:#?}");
    ensure!(number(&lines, "Ef Search")? == 40.0, "{lines:#?}");
    ensure!(number(&lines, "Pending Rows")? == 2.0, "{lines:#?}");
    ensure!(number(&lines, "Reranked Rows")? >= 5.0, "{lines:#?}");
    ensure!(number(&lines, "Widened Searches")? == 0.0, "{lines:#?}");
    ensure!(number(&lines, "Cut Searches")? == 0.0, "{lines:#?}");

    // A filter that few rows pass, and a limit on them.
    client.batch_execute("SET laser.ef_search = 1; SET laser.max_scan_tuples = 100; INSERT INTO t SELECT i, 'x', array[cos(i), sin(i)]::embedding FROM generate_series(303, 20000) i; SELECT laser_merge('t_e')")?;
    let lines = explain(
        &mut client,
        "ANALYZE, LASER",
        "SELECT id FROM t WHERE id + 0 < 0 ORDER BY e <=> '[1,0]' LIMIT 5",
    )?;
    ensure!(number(&lines, "Ef Search")? == 1.0, "{lines:#?}");
    ensure!(number(&lines, "Widened Searches")? > 0.0, "{lines:#?}");
    ensure!(number(&lines, "Cut Searches")? == 1.0, "{lines:#?}");
    ensure!(number(&lines, "Reranked Rows")? >= 100.0, "{lines:#?}");
    Ok(())
}

/// A node that is run many times tells the sum, as the server does of its searches, and agrees with the view.
#[test]
fn searches_of_a_node_are_summed() -> Result<()> {
    let Some((_cluster, mut client)) = server("EXPLAIN (LASER) of a nested loop")? else {
        return Ok(());
    };
    let visited =
        "SELECT visited, reranked FROM pg_stat_laser_indexes WHERE indexrelname = 't_body'";
    let before = client.query_one(visited, &[])?;
    let sql = "SELECT x.id FROM (VALUES ('one'), ('two'), ('three'), ('three')) q(body),
               LATERAL (SELECT id FROM t ORDER BY t.body <=> q.body LIMIT 3) x";
    let lines = explain(&mut client, "ANALYZE, LASER", sql)?;
    ensure!(number(&lines, "Index Searches")? == 4.0, "{lines:#?}");
    ensure!(
        number(&lines, "Visited Vectors")? == 4.0 * 302.0,
        "{lines:#?}"
    );
    ensure!(number(&lines, "Segments")? == 1.0, "{lines:#?}");
    let after = client.query_one(visited, &[])?;
    for (column, label) in [(0, "Visited Vectors"), (1, "Reranked Rows")] {
        let counted = after.get::<_, i64>(column) - before.get::<_, i64>(column);
        ensure!(
            number(&lines, label)? == counted as f64,
            "{label} {counted}: {lines:#?}"
        );
    }
    // A scan of which nobody asked for a row.
    let lines = explain(
        &mut client,
        "ANALYZE, LASER",
        "SELECT id FROM t WHERE random() < -1 ORDER BY body <=> 'one' LIMIT (SELECT 0)",
    )?;
    ensure!(number(&lines, "Visited Vectors")? == 0.0, "{lines:#?}");
    ensure!(number(&lines, "Segments")? == 0.0, "{lines:#?}");
    Ok(())
}

#[test]
fn nothing_is_added_unless_asked_for() -> Result<()> {
    let Some((_cluster, mut client)) = server("EXPLAIN without LASER")? else {
        return Ok(());
    };
    for options in ["ANALYZE", "ANALYZE, LASER OFF", "LASER FALSE, VERBOSE"] {
        let lines = explain(&mut client, options, EMBEDDINGS)?;
        ensure!(
            has(&lines, "->  Index Scan using t_e"),
            "{options}: {lines:#?}"
        );
        ensure!(
            !has(&lines, "Segments") && !has(&lines, "Visited"),
            "{options}: {lines:#?}"
        );
    }
    // Without ANALYZE there is the model, also of a prepared statement.
    client.batch_execute(&format!("PREPARE near AS {TEXTS}"))?;
    let lines = explain(&mut client, "LASER", "EXECUTE near")?;
    ensure!(
        has(&lines, "Embedding Model: laser-mean-384") && !has(&lines, "Segments"),
        "{lines:#?}"
    );
    // Other indexes have none of it.
    let lines = explain(
        &mut client,
        "ANALYZE, LASER",
        "SELECT id FROM t WHERE id = 7",
    )?;
    ensure!(
        has(&lines, "Index") && !has(&lines, "Segments"),
        "{lines:#?}"
    );
    let lines = explain(&mut client, "ANALYZE, LASER, TIMING OFF", TEXTS)?;
    ensure!(
        !has(&lines, "Embedding Time") && has(&lines, "Segments"),
        "{lines:#?}"
    );
    let (code, message, _) = failure(&mut client, &format!("EXPLAIN (LASER 7) {TEXTS}"))?;
    ensure!(
        code == SqlState::SYNTAX_ERROR && message.contains("laser"),
        "{code:?} {message}"
    );
    Ok(())
}

#[test]
fn formats_are_the_servers() -> Result<()> {
    let Some((_cluster, mut client)) = server("EXPLAIN (LASER, FORMAT JSON)")? else {
        return Ok(());
    };
    client.batch_execute(
        "CREATE FUNCTION explained(format text, sql text) RETURNS text LANGUAGE plpgsql AS $$
         DECLARE plan text;
         BEGIN
             EXECUTE format('EXPLAIN (ANALYZE, LASER, FORMAT %s) %s', format, sql) INTO plan;
             RETURN plan;
         END $$",
    )?;
    let explained = "SELECT explained($1, $2)";
    let row = client.query_one(
        "SELECT plan ->> 'Embedding Model', (plan ->> 'Embedding Time')::float8 > 0, plan ->> 'Segments', plan ->> 'Pending Rows',
                plan ->> 'Visited Vectors', plan ?& ARRAY['Ef Search', 'Reranked Rows', 'Widened Searches', 'Cut Searches']
         FROM (SELECT explained('JSON', $1)::jsonb -> 0 -> 'Plan' -> 'Plans' -> 0 AS plan) x",
        &[&TEXTS],
    )?;
    ensure!(row.get::<_, String>(0) == "laser-mean-384" && row.get::<_, bool>(1));
    let numbers: Vec<String> = (2..5).map(|at| row.get(at)).collect();
    ensure!(numbers == ["1", "2", "302"], "{numbers:?}");
    ensure!(row.get::<_, bool>(5));
    let xml: String = client.query_one(explained, &[&"XML", &TEXTS])?.get(0);
    ensure!(
        xml.contains("<Visited-Vectors>302</Visited-Vectors>"),
        "{xml}"
    );
    let yaml: String = client.query_one(explained, &[&"YAML", &TEXTS])?.get(0);
    ensure!(yaml.contains("Visited Vectors: 302"), "{yaml}");
    Ok(())
}

/// A worker's scan is gone with it.
#[test]
fn nodes_that_workers_have_run_have_no_numbers() -> Result<()> {
    let Some((_cluster, mut client)) = server("EXPLAIN (LASER) of a parallel plan")? else {
        return Ok(());
    };
    client.batch_execute(
        "SET debug_parallel_query = on; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0",
    )?;
    let lines = explain(&mut client, "ANALYZE, LASER", EMBEDDINGS)?;
    ensure!(has(&lines, "Gather"), "{lines:#?}");
    ensure!(
        has(&lines, "->  Index Scan using t_e") && !has(&lines, "Segments"),
        "{lines:#?}"
    );
    Ok(())
}
