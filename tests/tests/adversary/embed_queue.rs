//! laser_embed_table where one row, one partition or one index must not keep the others from being embedded.

use std::time::Duration;

use anyhow::{Result, ensure};
use laser_tests::model::with_two_models;
use laser_tests::{Cluster, failure, wait_until};
use postgres::Client;
use postgres::error::SqlState;

fn count(client: &mut Client, of: &str) -> Result<i64> {
    let query = format!("SELECT count(*) FROM {of}");
    Ok(client.query_one(&query, &[])?.get(0))
}

/// Whoever may insert can insert a text that no model takes.
#[test]
fn texts_that_no_model_takes_are_left_out_and_told_of() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    client.batch_execute("SET statement_timeout = '60s'")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, body text, e embedding);
         INSERT INTO t SELECT i, CASE WHEN i IN (1, 17, 18, 300) THEN repeat('x ', 600000) ELSE 'text ' || i END
         FROM generate_series(1, 300) i",
    )?;
    for (size, rows) in [(100, 300), (1, 310), (100_000, 320)] {
        client.batch_execute(&format!(
            "INSERT INTO t SELECT i, 'later ' || i FROM generate_series((SELECT max(id) FROM t) + 1, {rows}) i"
        ))?;
        notices.take();
        client.batch_execute(&format!("CALL laser_embed_table('t', 'body', 'e', {size})"))?;
        ensure!(count(&mut client, "t WHERE e IS NULL")? == 4);
        ensure!(
            count(
                &mut client,
                "t WHERE CASE WHEN e IS NOT NULL THEN e <=> laser_embed(body, NULL, 'passage') > 1e-5 END"
            )? == 0
        );
        let said = notices.take();
        ensure!(
            said.iter()
                .any(|s| s.contains("4 rows of table \"t\" stay without an embedding")),
            "{said:?}"
        );
    }
    client.batch_execute("UPDATE t SET body = 'short' WHERE e IS NULL")?;
    notices.take();
    client.batch_execute("CALL laser_embed_table('t', 'body', 'e')")?;
    ensure!(count(&mut client, "t WHERE e IS NULL")? == 0);
    let said = notices.take();
    ensure!(!said.iter().any(|s| s.contains("stay without")), "{said:?}");
    Ok(())
}

/// Bytes that are no text in the encoding of the model, in a database that takes any.
#[test]
fn bytes_that_are_no_text_are_left_out_and_told_of() -> Result<()> {
    let cluster = Cluster::builder().encoding("SQL_ASCII").start()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    client.batch_execute(
        r"CREATE TABLE t (id integer, body text, e embedding);
          INSERT INTO t SELECT i, CASE WHEN i % 40 = 0 THEN E'\xff\xfe' ELSE 'text ' || i END FROM generate_series(1, 100) i",
    )?;
    notices.take();
    client.batch_execute("CALL laser_embed_table('t', 'body', 'e')")?;
    ensure!(count(&mut client, "t WHERE e IS NULL")? == 2);
    let said = notices.take();
    ensure!(
        said.iter()
            .any(|s| s.contains("2 rows of table \"t\" stay without an embedding")),
        "{said:?}"
    );
    Ok(())
}

/// An index of what waits gives rows in another order than that of their places.
#[test]
fn rows_are_embedded_whatever_index_there_is() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute("SET statement_timeout = '60s'")?;
    client.batch_execute(
        "CREATE TABLE t (id text DEFAULT md5(random()::text), body text, e embedding);
         INSERT INTO t (body) SELECT 'text ' || i FROM generate_series(1, 3000) i;
         CREATE INDEX ON t (id) WHERE e IS NULL",
    )?;
    client.batch_execute("VACUUM ANALYZE t")?;
    client.batch_execute(
        "SET enable_tidscan = off; SET enable_seqscan = off; SET enable_bitmapscan = off",
    )?;
    client.batch_execute("CALL laser_embed_table('t', 'body', 'e', 100)")?;
    ensure!(count(&mut client, "t WHERE e IS NULL")? == 0);
    Ok(())
}

#[test]
fn a_partition_that_cannot_be_embedded_does_not_keep_others_from_it() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    for (when, returns, code) in [
        (
            "BEFORE",
            "NEW.e := NULL; RETURN NEW",
            SqlState::TRIGGERED_DATA_CHANGE_VIOLATION,
        ),
        (
            "AFTER",
            "IF NEW.e IS NOT NULL THEN UPDATE t SET e = NULL WHERE body = NEW.body; END IF; RETURN NULL",
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        ),
    ] {
        client.batch_execute(&format!(
            "SET statement_timeout = '60s';
             DROP TABLE IF EXISTS t;
             CREATE TABLE t (k integer, body text, e embedding) PARTITION BY LIST (k);
             CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);
             CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2);
             INSERT INTO t SELECT 1 + i % 2, 'text ' || i FROM generate_series(1, 60) i;
             CREATE OR REPLACE FUNCTION reset() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {returns}; END $$;
             CREATE TRIGGER r {when} UPDATE ON t1 FOR EACH ROW EXECUTE FUNCTION reset()"
        ))?;
        let call = "CALL laser_embed_table('t', 'body', 'e', 10)";
        let (found, message, _) = failure(&mut client, call)?;
        ensure!(found == code, "{message}");
        ensure!(count(&mut client, "t1 WHERE e IS NOT NULL")? == 0);
        ensure!(count(&mut client, "t2 WHERE e IS NULL")? == 0);
    }
    Ok(())
}

/// What a partition is kept with by itself is not what the call on the whole table would take.
#[test]
fn partitions_with_a_model_of_their_own_are_embedded_by_themselves() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (k integer, body text, e embedding) PARTITION BY LIST (k);
         CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);
         CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2);
         INSERT INTO t SELECT 1 + i % 2, 'text ' || i FROM generate_series(1, 20) i",
    )?;
    let mut model = |is_default: bool| -> Result<String> {
        let named = "SELECT name FROM laser_models WHERE is_default = $1 ORDER BY name LIMIT 1";
        Ok(client.query_one(named, &[&is_default])?.get(0))
    };
    let (usual, other) = (model(true)?, model(false)?);
    let keep = "SELECT laser_keep_embedded('t1', 'body', 'e', $1)";
    client.execute(keep, &[&other])?;
    let (code, message, hint) = failure(&mut client, "CALL laser_embed_table('t', 'body', 'e')")?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "{message}"
    );
    ensure!(
        message.contains("partition \"t1\" is kept with another model"),
        "{message}"
    );
    ensure!(
        hint.contains("CALL laser_embed_table('t1', 'body', 'e')"),
        "{hint}"
    );
    ensure!(count(&mut client, "t WHERE e IS NOT NULL")? == 0);
    // With the one that is taken it may be kept by itself.
    client.execute(keep, &[&usual])?;
    client.batch_execute("CALL laser_embed_table('t', 'body', 'e')")?;
    ensure!(count(&mut client, "t WHERE e IS NULL")? == 0);
    Ok(())
}

/// What an index or a trigger cannot take is no fault of the text.
#[test]
fn other_limits_are_errors_as_ever() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, body text, e embedding);
         INSERT INTO t SELECT i, 'text ' || i FROM generate_series(1, 100) i;
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             RAISE EXCEPTION USING errcode = '54001', message = 'too deep'; END $$;
         CREATE TRIGGER r BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION refuse()",
    )?;
    let (code, message, _) = failure(&mut client, "CALL laser_embed_table('t', 'body', 'e')")?;
    ensure!(code.code() == "54001" && message == "too deep", "{message}");
    Ok(())
}

/// Who waits for maintenance of a table and is waited for by it ends it.
#[test]
fn an_index_that_is_built_beside_is_not_ended() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, body text, e embedding);
         INSERT INTO t SELECT i, 'text ' || i FROM generate_series(1, 20) i",
    )?;
    let mut holder = cluster.connect("d")?;
    holder.batch_execute("BEGIN; LOCK TABLE t IN ROW EXCLUSIVE MODE")?;
    let mut builder = cluster.connect("d")?;
    std::thread::scope(|scope| {
        let built =
            scope.spawn(move || builder.batch_execute("CREATE INDEX CONCURRENTLY ti ON t (id)"));
        wait_until("the index waits for the holder", || {
            let waiting = "pg_locks WHERE NOT granted";
            Ok(count(&mut client, waiting)? > 0)
        })?;
        let mut embedder = cluster.connect("d")?;
        let embedded =
            scope.spawn(move || embedder.batch_execute("CALL laser_embed_table('t', 'body', 'e')"));
        // Longer than `deadlock_timeout`, after which a session does not look for a circle again.
        std::thread::sleep(Duration::from_millis(1500));
        holder.batch_execute("COMMIT")?;
        built.join().expect("no panic")?;
        embedded.join().expect("no panic")?;
        Ok::<_, anyhow::Error>(())
    })?;
    ensure!(count(&mut client, "t WHERE e IS NULL")? == 0);
    ensure!(count(&mut client, "pg_index WHERE NOT indisvalid")? == 0);
    let label = "pg_seclabel WHERE objoid = 't'::regclass";
    ensure!(count(&mut client, label)? == 1);
    Ok(())
}

/// Rows that the owner does not see may have embeddings of any model.
#[test]
fn hidden_rows_have_no_label() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute("CREATE ROLE owner; CREATE SCHEMA owned AUTHORIZATION owner")?;
    client.batch_execute(
        "SET ROLE owner; SET search_path = owned, public;
         CREATE TABLE f (id int, hidden bool, body text, e embedding);
         INSERT INTO f VALUES (1, true, 'a', '[1,2]'), (2, false, 'b', NULL);
         ALTER TABLE f ENABLE ROW LEVEL SECURITY; ALTER TABLE f FORCE ROW LEVEL SECURITY;
         CREATE POLICY p ON f USING (NOT hidden)",
    )?;
    client.batch_execute("CALL laser_embed_table('f', 'body', 'e')")?;
    ensure!(count(&mut client, "f WHERE e IS NULL")? == 0);
    ensure!(count(&mut client, "pg_seclabel WHERE objoid = 'f'::regclass")? == 0);
    Ok(())
}
