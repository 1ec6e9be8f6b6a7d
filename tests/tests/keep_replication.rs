//! Columns that are kept in step with their text, under logical replication.

use std::time::Duration;

use anyhow::{Result, ensure};
use laser_tests::model::Model;
use laser_tests::{Cluster, wait_until};
use tempfile::TempDir;

/// A publisher and a subscriber, both with the models `tiny` (the default) and `other`.
fn servers() -> Result<(TempDir, Cluster, Cluster)> {
    let models = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(models.path())?;
    Model::tiny("other", 16).write(models.path())?;
    let builder = Cluster::builder().models(models.path(), "tiny");
    let publisher = builder.clone().setting("wal_level", "logical").start()?;
    let subscriber = builder.start()?;
    publisher.database("d")?;
    subscriber.database("d")?;
    Ok((models, publisher, subscriber))
}

fn subscribe(publisher: &Cluster, subscriber: &Cluster) -> Result<()> {
    let statement = format!(
        "CREATE SUBSCRIPTION s CONNECTION '{}' PUBLICATION p",
        publisher.conninfo("d")
    );
    subscriber.psql("d", &statement)?;
    wait_until("tables have been copied", || {
        let open = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'";
        Ok(subscriber.psql("d", open)? == "0")
    })
}

/// Waits until the subscriber has applied what the publisher has committed.
fn catch_up(publisher: &Cluster) -> Result<()> {
    let end = publisher.psql("d", "SELECT pg_current_wal_lsn()")?;
    let applied = format!(
        "SELECT replay_lsn >= '{end}' FROM pg_stat_replication WHERE application_name = 's'"
    );
    wait_until("the subscriber has caught up", || {
        std::thread::sleep(Duration::from_millis(20));
        Ok(publisher.psql("d", &applied)? == "t")
    })
}

#[test]
fn a_subscriber_receives_what_the_publisher_keeps() -> Result<()> {
    let (_models, publisher, subscriber) = servers()?;
    let table = "CREATE TABLE t (id int PRIMARY KEY, body text, meaning embedding(32))";
    publisher.psql("d", table)?;
    subscriber.psql("d", table)?;
    publisher.psql("d", "SELECT laser_keep_embedded('t', 'body', 'meaning')")?;
    // Keeping the received column too changes nothing of what is received.
    subscriber.psql("d", "SELECT laser_keep_embedded('t', 'body', 'meaning')")?;
    subscriber.psql("d", "CREATE INDEX ON t USING laser (meaning)")?;
    publisher.psql(
        "d",
        "INSERT INTO t SELECT i, 'text ' || i FROM generate_series(1, 40) i",
    )?;
    publisher.psql("d", "CALL laser_embed_table('t', 'body', 'meaning')")?;
    publisher.psql("d", "CREATE PUBLICATION p FOR TABLE t")?;
    subscribe(&publisher, &subscriber)?;
    let rows = "SELECT id, body, meaning FROM t ORDER BY id";
    ensure!(
        subscriber.psql("d", rows)? == publisher.psql("d", rows)?,
        "copied"
    );

    publisher.psql("d", "UPDATE t SET body = 'another ' || id WHERE id <= 10")?;
    catch_up(&publisher)?;
    let waiting = "SELECT array_agg(id ORDER BY id) FROM t WHERE meaning IS NULL";
    ensure!(subscriber.psql("d", waiting)? == "{1,2,3,4,5,6,7,8,9,10}");

    publisher.psql("d", "CALL laser_embed_table('t', 'body', 'meaning')")?;
    // A statement that sets both.
    publisher.psql(
        "d",
        "UPDATE t SET body = 'by hand', meaning = laser_embed('by hand') WHERE id = 20",
    )?;
    catch_up(&publisher)?;
    let stale = "SELECT count(*) FROM t WHERE meaning IS DISTINCT FROM laser_embed(body, 'tiny', 'passage')";
    ensure!(subscriber.psql("d", stale)? == "0", "embedded");
    ensure!(
        subscriber.psql("d", rows)? == publisher.psql("d", rows)?,
        "in the end"
    );
    let nearest = "SET enable_seqscan = off; SELECT id FROM t ORDER BY meaning <=> laser_embed('another 7') LIMIT 1";
    ensure!(subscriber.psql("d", nearest)? == "7");
    Ok(())
}

#[test]
fn a_subscriber_keeps_a_column_of_its_own() -> Result<()> {
    let (_models, publisher, subscriber) = servers()?;
    publisher.psql(
        "d",
        "CREATE TABLE t (id int PRIMARY KEY, body text, meaning embedding(32))",
    )?;
    subscriber.psql(
        "d",
        "CREATE TABLE t (id int PRIMARY KEY, body text, own embedding(16))",
    )?;
    subscriber.psql(
        "d",
        "SELECT laser_keep_embedded('t', 'body', 'own', 'other')",
    )?;
    publisher.psql(
        "d",
        "INSERT INTO t SELECT i, 'text ' || i FROM generate_series(1, 40) i",
    )?;
    publisher.psql("d", "CREATE PUBLICATION p FOR TABLE t (id, body)")?;
    subscribe(&publisher, &subscriber)?;
    // Whatever model the session has: the column is of the one that it was kept with.
    subscriber.psql("d", "CALL laser_embed_table('t', 'body', 'own')")?;
    let stale =
        "SELECT count(*) FROM t WHERE own IS DISTINCT FROM laser_embed(body, 'other', 'passage')";
    ensure!(subscriber.psql("d", stale)? == "0", "embedded");

    // What arrives is applied by a worker, for which ordinary triggers do not fire.
    publisher.psql("d", "UPDATE t SET body = 'another ' || id WHERE id <= 10")?;
    publisher.psql(
        "d",
        "UPDATE t SET meaning = laser_embed(body) WHERE id = 30",
    )?;
    publisher.psql("d", "INSERT INTO t VALUES (41, 'new')")?;
    catch_up(&publisher)?;
    let waiting = "SELECT array_agg(id ORDER BY id) FROM t WHERE own IS NULL";
    ensure!(subscriber.psql("d", waiting)? == "{1,2,3,4,5,6,7,8,9,10,41}");
    subscriber.psql("d", "CALL laser_embed_table('t', 'body', 'own')")?;
    ensure!(subscriber.psql("d", stale)? == "0", "embedded again");
    let kept = "SELECT text_column, embedding_column, enabled, model FROM laser_kept_columns";
    ensure!(subscriber.psql("d", kept)? == "body|own|t|other");
    Ok(())
}
