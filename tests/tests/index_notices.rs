//! What scans say that could not give everything.

use anyhow::{Result, ensure};
use laser_tests::Cluster;

const CUT: &str = "the query may lack rows";

/// Only rows that are far from the query pass the filter, and a scan that must go through all the others ends
/// before.
#[test]
fn a_scan_that_ends_early_says_so() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.database("notices")?;
    let (mut client, notices) = cluster.connect_with_notices("notices")?;
    client.batch_execute(
        "SELECT setseed(0.5);
         CREATE TABLE t (id int, v embedding(8), far bool);
         INSERT INTO t SELECT g, ARRAY(SELECT (random() * 2 - 1)::real FROM generate_series(1, 8) WHERE g = g)
         FROM generate_series(1, 60000) g;
         UPDATE t SET far = v <-> '[1,1,1,1,1,1,1,1]' > 4.2;
         SET max_parallel_maintenance_workers = 0;
         CREATE INDEX ON t USING laser (v embedding_l2_ops) WITH (m = 4, ef_construction = 8);
         SET laser.ef_search = 8; SET laser.max_scan_tuples = 20000;
         SET enable_seqscan = off",
    )?;
    client.batch_execute("VACUUM ANALYZE t")?;
    let query = "SELECT id FROM t WHERE far ORDER BY v <-> '[1,1,1,1,1,1,1,1]' LIMIT 10";
    let count = |said: &[String], part: &str| said.iter().filter(|s| s.contains(part)).count();

    notices.take();
    client.batch_execute(query)?;
    let said = notices.take();
    ensure!(count(&said, CUT) == 1, "{said:?}");
    // Each of several statements that come at once is told.
    client.batch_execute(&format!("{query}; {query}"))?;
    let said = notices.take();
    ensure!(count(&said, CUT) == 2, "{said:?}");
    // The queries of a function are not.
    client.batch_execute(&format!(
        "DO $$ BEGIN FOR i IN 1..3 LOOP PERFORM ({query}); END LOOP; END $$"
    ))?;
    let said = notices.take();
    ensure!(count(&said, CUT) == 1, "{said:?}");
    client.batch_execute(&format!("SET laser.scan_notices = off; {query}"))?;
    ensure!(notices.take().is_empty());
    Ok(())
}

/// Versions of a row that no transaction can see, and VACUUM has not removed, are not rows that a scan has
/// given. The cluster is its own: others' transactions, of all databases, decide who can see what.
#[test]
fn dead_versions_end_no_scan() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.database("dead")?;
    let (mut client, notices) = cluster.connect_with_notices("dead")?;
    client.batch_execute(
        "CREATE TABLE t (id int, e embedding(2)) WITH (autovacuum_enabled = off);
         INSERT INTO t SELECT i, format('[%s, 1]', i)::embedding FROM generate_series(1, 2000) i;
         CREATE INDEX t_e ON t USING laser (e embedding_l2_ops)",
    )?;
    client.batch_execute("ANALYZE t")?;
    client.batch_execute(
        "DO $$ BEGIN
             FOR i IN 1 .. 400 LOOP UPDATE t SET e = format('[%s, 1]', i / 1000.0)::embedding WHERE id = 1; END LOOP;
         END $$",
    )?;
    client.batch_execute(
        "SET enable_seqscan = off; SET laser.max_scan_tuples = 100; SET laser.ef_search = 10",
    )?;
    notices.take();
    // From the pending list, then from a segment.
    for _ in 0..2 {
        let rows = client.query("SELECT id FROM t ORDER BY e <-> '[0, 1]' LIMIT 3", &[])?;
        let rows: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        ensure!(rows == [1, 2, 3], "{rows:?}");
        ensure!(notices.take().is_empty());
        client.batch_execute("SELECT laser_merge('t_e')")?;
    }
    Ok(())
}

/// An expression that embeds by the setting is warned of when its index is made, not whenever it is built again.
#[test]
fn an_index_by_the_setting_is_warned_of_once() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.database("setting")?;
    let (mut client, notices) = cluster.connect_with_notices("setting")?;
    client.batch_execute("CREATE TABLE t (body text); INSERT INTO t VALUES ('x')")?;
    let mut warned = |sql: &str| -> Result<bool> {
        notices.take();
        client.batch_execute(sql)?;
        let said = notices.take();
        Ok(said
            .iter()
            .any(|said| said.contains("embeds by the model that laser.model names")))
    };
    let index = "t_i ON t USING laser ((laser_embed(body)::embedding(384)))";
    ensure!(warned(&format!("CREATE INDEX {index}"))?);
    for sql in [
        "REINDEX INDEX t_i",
        "VACUUM FULL t",
        "TRUNCATE t",
        "DROP INDEX t_i",
    ] {
        ensure!(!warned(sql)?, "{sql}");
    }
    ensure!(warned(&format!("CREATE INDEX CONCURRENTLY {index}"))?);
    Ok(())
}
