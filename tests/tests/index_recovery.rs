//! Backups, archives, tablespaces and checksums: what is outside of the running server holds as well.

use anyhow::{Context, Result, ensure};
use laser_tests::{Cluster, wait_until};

fn insert(cluster: &Cluster, from: i32, n: i32) -> Result<()> {
    let sql = format!(
        "INSERT INTO t SELECT i, (SELECT array_agg(sin(i * (j * j + 0.37)))::real[]::embedding
         FROM generate_series(1, 16) j) FROM generate_series({from}, {}) i",
        from + n - 1
    );
    cluster.psql("recovery", &sql).map(drop)
}

/// The nearest rows of ten points, through the index, and the number of rows.
fn answers(cluster: &Cluster) -> Result<(Vec<Vec<i32>>, i64)> {
    let mut client = cluster.connect("recovery")?;
    client.batch_execute("SET enable_seqscan = off; SET enable_sort = off")?;
    let near = (0..10)
        .map(|i| {
            let sql = format!(
                "SELECT id FROM t ORDER BY e <=> (SELECT array_agg(sin({i} * 31 * (j * j + 0.37)))::real[]::embedding
                     FROM generate_series(1, 16) j) LIMIT 20"
            );
            let rows = client.query(&sql, &[])?;
            ensure!(rows.len() == 20, "{} of 20 rows", rows.len());
            Ok(rows.iter().map(|row| row.get(0)).collect())
        })
        .collect::<Result<_>>()?;
    Ok((
        near,
        client.query_one("SELECT count(*) FROM t", &[])?.get(0),
    ))
}

fn sound(cluster: &Cluster) -> Result<()> {
    let problems = cluster.psql("recovery", "SELECT laser_index_check('ti')")?;
    ensure!(problems.is_empty(), "{problems}");
    let complete =
        "SELECT (SELECT count(*) FROM t) = (SELECT live + pending FROM laser_index_info('ti'))";
    ensure!(cluster.psql("recovery", complete)? == "t");
    Ok(())
}

fn create(cluster: &Cluster) -> Result<()> {
    cluster
        .database("recovery")?
        .batch_execute(
            "CREATE TABLE t (id integer, e embedding(16)) WITH (autovacuum_enabled = off);
             CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64)",
        )
        .map_err(Into::into)
}

/// Point-in-time recovery: from a base backup taken while rows come in, to a moment in the middle of
/// the archive, before merges, deletes and a REINDEX that the archive goes on with.
#[test]
fn recovery_stops_in_the_middle() -> Result<()> {
    let cluster = Cluster::builder()
        .preload(false)
        .setting("wal_level", "replica")
        .setting("archive_mode", "on")
        .start()?;
    let archive = cluster.scratch()?.join("archive");
    let (archive, backup) = (archive.display(), cluster.scratch()?.join("backup"));
    cluster.set(
        "archive_command",
        &format!("mkdir -p {archive} && cp %p {archive}/%f"),
    )?;
    cluster.reload();
    create(&cluster)?;
    insert(&cluster, 1, 2000)?;
    std::thread::scope(|scope| -> Result<()> {
        let writer =
            scope.spawn(|| (0..10).try_for_each(|i| insert(&cluster, 2001 + 100 * i, 100)));
        cluster.pg_basebackup(&backup, &["--wal-method=none"])?;
        writer.join().expect("no panic")
    })?;
    cluster.psql("recovery", "DELETE FROM t WHERE id % 5 = 0")?;
    cluster.psql("recovery", "VACUUM (INDEX_CLEANUP ON) t")?;
    insert(&cluster, 5001, 500)?;
    let middle = answers(&cluster)?;
    cluster.psql("recovery", "SELECT pg_create_restore_point('middle')")?;

    insert(&cluster, 6001, 1000)?;
    cluster.psql("recovery", "SELECT laser_merge('ti')")?;
    cluster.psql("recovery", "DELETE FROM t WHERE id % 3 = 0")?;
    cluster.psql("recovery", "VACUUM (INDEX_CLEANUP ON) t")?;
    cluster.psql("recovery", "REINDEX INDEX ti")?;
    let last = cluster.psql("recovery", "SELECT pg_walfile_name(pg_switch_wal())")?;
    wait_until("the log is archived", || {
        let archived =
            cluster.psql("recovery", "SELECT last_archived_wal FROM pg_stat_archiver")?;
        Ok(archived >= last)
    })?;

    let recovered = cluster.recover(
        &backup,
        &[
            ("restore_command", &format!("cp {archive}/%f %p")),
            ("recovery_target_name", "middle"),
            ("recovery_target_action", "promote"),
            ("archive_mode", "off"),
        ],
    )?;
    ensure!(answers(&recovered)? == middle);
    sound(&recovered)?;
    // And it goes on from there.
    insert(&recovered, 9001, 1000)?;
    recovered.psql("recovery", "SELECT laser_merge('ti')")?;
    recovered.psql("recovery", "DELETE FROM t WHERE id % 7 = 0")?;
    recovered.psql("recovery", "VACUUM (INDEX_CLEANUP ON) t")?;
    sound(&recovered)
}

/// An index made in a tablespace, moved to another one and back, with crashes in between.
#[test]
fn tablespaces() -> Result<()> {
    let mut cluster = Cluster::builder().preload(false).start()?;
    let place = cluster.scratch()?.join("space");
    let made = cluster.run("/bin/mkdir", &[&place.display().to_string()]);
    made.context("the servers' account makes the folder")?;
    create(&cluster)?;
    let location = format!("CREATE TABLESPACE space LOCATION '{}'", place.display());
    cluster.psql("recovery", &location)?;
    cluster.psql("recovery", "DROP INDEX ti")?;
    insert(&cluster, 1, 2000)?;
    cluster.psql(
        "recovery",
        "CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64) TABLESPACE space",
    )?;
    insert(&cluster, 2001, 500)?;
    let before = answers(&cluster)?;
    for to in ["", "pg_default", "space"] {
        if !to.is_empty() {
            cluster.psql("recovery", &format!("ALTER INDEX ti SET TABLESPACE {to}"))?;
            ensure!(answers(&cluster)? == before, "moved to {to}");
        }
        cluster.stop("immediate")?;
        cluster.start()?;
        ensure!(answers(&cluster)? == before, "after a crash, in {to}");
        sound(&cluster)?;
    }
    insert(&cluster, 3001, 500)?;
    cluster.psql("recovery", "REINDEX (TABLESPACE pg_default) INDEX ti")?;
    sound(&cluster)?;
    cluster.psql("recovery", "DROP TABLESPACE space").map(drop)
}

/// Every page has its checksum, also after a crash.
#[test]
fn checksums() -> Result<()> {
    let mut cluster = Cluster::builder().preload(false).start()?;
    create(&cluster)?;
    cluster.enable_checksums()?;
    ensure!(cluster.psql("recovery", "SHOW data_checksums")? == "on");
    insert(&cluster, 1, 3000)?;
    cluster.psql("recovery", "SELECT laser_merge('ti')")?;
    cluster.psql("recovery", "DELETE FROM t WHERE id % 2 = 0")?;
    cluster.psql("recovery", "VACUUM (INDEX_CLEANUP ON) t")?;
    insert(&cluster, 4001, 1000)?;
    cluster.stop("immediate")?;
    cluster.start()?;
    sound(&cluster)?;
    insert(&cluster, 5001, 100)?;
    cluster.stop("fast")?;
    let data = cluster.data().display().to_string();
    let report = cluster.run("pg_checksums", &["--check", "--pgdata", &data])?;
    ensure!(report.contains("Bad checksums:  0"), "{report}");
    cluster.start()?;
    sound(&cluster)
}
