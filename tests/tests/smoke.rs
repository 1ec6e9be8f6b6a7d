//! The harness itself: clusters start, stop, crash, recover, replicate, and go away.

use anyhow::Result;
use laser_tests::Cluster;

#[test]
fn a_cluster_survives_what_tests_do_to_it() -> Result<()> {
    let mut cluster = Cluster::new()?;
    cluster
        .database("smoke")?
        .batch_execute("CREATE TABLE t AS SELECT generate_series(1, 10) i")?;
    let first = cluster.pid();

    cluster.kill9()?;
    assert!(cluster.connect("smoke").is_err());
    cluster.start()?;
    assert_ne!(cluster.pid(), first);
    assert_eq!(
        cluster.psql("smoke", "SELECT count(*), min(i) FROM t")?,
        "10|1"
    );
    assert!(
        cluster
            .log()
            .contains("database system was not properly shut down")
    );

    cluster.restart()?;
    let output = cluster.pgbench(
        "smoke",
        "INSERT INTO t VALUES (0);",
        &["-t", "5", "-c", "2"],
    )?;
    assert!(output.contains("10/10"), "{output}");

    let (mut client, notices) = cluster.connect_with_notices("smoke")?;
    client.batch_execute("DO $$ BEGIN RAISE WARNING 'heard'; END $$")?;
    assert_eq!(notices.take(), ["WARNING: heard"]);
    assert!(
        cluster
            .psql("smoke", "SELECT 1/0")
            .unwrap_err()
            .to_string()
            .contains("by zero")
    );

    let folder = cluster.socket().to_path_buf();
    assert!(folder.exists());
    drop((client, cluster));
    assert!(!folder.exists());
    Ok(())
}

#[test]
fn a_replica_follows_and_is_promoted() -> Result<()> {
    let primary = Cluster::builder().preload(false).tcp(true).start()?;
    let replica = primary.replica()?;
    primary.psql(
        "postgres",
        "CREATE TABLE t AS SELECT generate_series(1, 1000) i",
    )?;
    primary.wait_for_replica(&replica)?;
    assert_eq!(replica.psql("postgres", "SELECT sum(i) FROM t")?, "500500");
    replica.promote()?;
    replica.psql("postgres", "INSERT INTO t VALUES (1)")?;
    Ok(())
}

#[test]
fn clusters_have_the_encoding_that_was_asked_for() -> Result<()> {
    let cluster = Cluster::builder()
        .preload(false)
        .encoding("LATIN1")
        .start()?;
    assert_eq!(cluster.psql("postgres", "SHOW server_encoding")?, "LATIN1");
    Ok(())
}
