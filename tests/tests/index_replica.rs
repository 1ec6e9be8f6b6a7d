//! A streaming replica answers as its primary does, also after its promotion.

use anyhow::{Result, ensure};
use laser_tests::{Cluster, failure, segment_files, segment_folder};
use postgres::error::SqlState;

const SETUP: &str = "SET enable_seqscan = off; SET enable_sort = off";

/// The answers of a server to the same questions.
fn answers(cluster: &Cluster) -> Result<Vec<Vec<i32>>> {
    let mut client = cluster.connect("replica")?;
    client.batch_execute(SETUP)?;
    (0..10)
        .map(|i| {
            let sql = format!(
                "SELECT id FROM t ORDER BY e <=> (SELECT array_agg(sin({i} * 31 * (j * j + 0.37)))::real[]::embedding
                     FROM generate_series(1, 16) j) LIMIT 20"
            );
            let rows = client.query(&sql, &[])?;
            ensure!(rows.len() == 20, "{} of 20 rows", rows.len());
            Ok(rows.iter().map(|row| row.get(0)).collect())
        })
        .collect()
}

fn insert(cluster: &Cluster, from: i32, n: i32) -> Result<()> {
    cluster
        .connect("replica")?
        .batch_execute(&format!(
            "INSERT INTO t SELECT i, (SELECT array_agg(sin(i * (j * j + 0.37)))::real[]::embedding
             FROM generate_series(1, 16) j) FROM generate_series({from}, {}) i",
            from + n - 1
        ))
        .map_err(Into::into)
}

#[test]
fn ten_rounds_of_changes() -> Result<()> {
    let primary = Cluster::builder()
        .preload(false)
        .setting("autovacuum", "off")
        .start()?;
    primary.database("replica")?.batch_execute(
        "CREATE EXTENSION IF NOT EXISTS laser;
         CREATE TABLE t (id integer, e embedding(16));
         CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64)",
    )?;
    insert(&primary, 1, 3000)?;
    let replica = primary.replica()?;
    let mut next = 3001;
    for round in 0..10 {
        primary.psql("replica", &format!("DELETE FROM t WHERE id % 10 = {round}"))?;
        primary.psql("replica", "VACUUM (INDEX_CLEANUP ON) t")?;
        insert(&primary, next, 300)?;
        next += 300;
        if round % 4 == 3 {
            primary.psql("replica", "SELECT laser_merge('ti')")?;
        }
        primary.wait_for_replica(&replica)?;
        ensure!(answers(&primary)? == answers(&replica)?, "round {round}");
        ensure!(
            replica
                .psql("replica", "SELECT laser_index_check('ti')")?
                .is_empty()
        );
        let info = "SELECT laser_index_info('ti')";
        ensure!(primary.psql("replica", info)? == replica.psql("replica", info)?);
    }
    let before = answers(&primary)?;
    replica.promote()?;
    ensure!(answers(&replica)? == before, "after promotion");
    insert(&replica, next, 500)?;
    replica.psql("replica", "DELETE FROM t WHERE id % 7 = 0")?;
    replica.psql("replica", "VACUUM (INDEX_CLEANUP ON) t")?;
    replica.psql("replica", "SELECT laser_merge('ti')")?;
    ensure!(
        replica
            .psql("replica", "SELECT laser_index_check('ti')")?
            .is_empty()
    );
    let both =
        "SELECT (SELECT count(*) FROM t) = (SELECT live + pending FROM laser_index_info('ti'))";
    ensure!(replica.psql("replica", both)? == "t");
    Ok(())
}

/// A base backup leaves the files of segments out, and a server made from it does without them.
#[test]
fn a_base_backup_needs_no_cache() -> Result<()> {
    let primary = Cluster::builder().preload(false).start()?;
    primary.database("replica")?.batch_execute(
        "CREATE EXTENSION IF NOT EXISTS laser;
         CREATE TABLE t (id integer, e embedding(16));
         CREATE INDEX ti ON t USING laser (e);
         CREATE UNLOGGED TABLE u (body text); CREATE INDEX ui ON u USING laser (body)",
    )?;
    insert(&primary, 1, 2000)?;
    primary.psql("replica", "SELECT laser_merge('ti'), laser_prewarm('ti')")?;
    ensure!(!segment_files(&primary)?.is_empty());
    let replica = primary.replica()?;
    ensure!(!segment_folder(&replica).exists());
    primary.wait_for_replica(&replica)?;
    ensure!(answers(&primary)? == answers(&replica)?);

    // What is unlogged has no pages there.
    let mut client = replica.connect("replica")?;
    let (code, message, _) = failure(&mut client, "SELECT laser_index_info('ui')")?;
    ensure!(code == SqlState::FEATURE_NOT_SUPPORTED, "{message}");
    ensure!(
        client
            .query("SELECT * FROM laser_models_used", &[])?
            .is_empty()
    );
    Ok(())
}
