//! `laser_embed_table`, stopped and beside others.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use laser_tests::failure;
use postgres::Client;
use postgres::error::SqlState;

use super::support::models;

#[test]
fn embed_table_can_be_stopped_and_called_again() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    client.batch_execute(
        "CREATE TABLE t (id int, body text, e embedding(32));
         INSERT INTO t SELECT i, CASE WHEN i % 10 > 0 THEN 'text ' || i END
         FROM generate_series(1, 5000) i;
         ALTER TABLE t ADD CONSTRAINT stop CHECK (id <> 3211 OR e IS NULL)",
    )?;
    let counts = |client: &mut Client| -> Result<(i64, i64)> {
        let row = client.query_one(
            "SELECT count(e), count(*) FILTER (WHERE e <> laser_embed(body)) FROM t",
            &[],
        )?;
        Ok((row.get(0), row.get(1)))
    };
    let call = "CALL laser_embed_table('t', 'body', 'e', 500)";
    let (code, ..) = failure(&mut client, call)?;
    assert_eq!(code, SqlState::CHECK_VIOLATION);
    // What was committed before stays.
    let (done, wrong) = counts(&mut client)?;
    assert!(done > 0 && done < 4500 && done % 500 == 0, "{done}");
    assert_eq!(wrong, 0);

    client.batch_execute("ALTER TABLE t DROP CONSTRAINT stop")?;
    client.batch_execute("BEGIN")?;
    let (code, message, hint) = failure(&mut client, call)?;
    assert_eq!(code, SqlState::ACTIVE_SQL_TRANSACTION);
    assert!(message.contains("inside a transaction block"), "{message}");
    assert!(hint.contains("BEGIN"), "{hint}");
    client.batch_execute("ROLLBACK")?;

    notices.take();
    client.batch_execute(call)?;
    assert_eq!(counts(&mut client)?, (4500, 0));
    let message = format!("NOTICE: {} rows embedded", 4500 - done);
    assert!(notices.take().contains(&message));

    // Rows that others lock and change meanwhile are not lost.
    client.batch_execute("UPDATE t SET e = NULL")?;
    let mut other = cluster.connect("d")?;
    other.batch_execute("BEGIN; UPDATE t SET body = 'changed' WHERE id = 77")?;
    let caller = std::thread::spawn({
        let mut client = cluster.connect("d")?;
        let call = call.to_owned();
        move || client.batch_execute(&call)
    });
    std::thread::sleep(Duration::from_millis(300));
    other.batch_execute("COMMIT")?;
    caller.join().expect("no panic")?;
    assert_eq!(counts(&mut client)?, (4500, 0));
    Ok(())
}

/// Between two batches nothing is locked, and somebody may put another table of the same name before the
/// one that is embedded.
#[test]
fn embed_table_stays_with_its_table() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE public.t (id int, body text, e embedding(32));
         INSERT INTO t SELECT i, 'text ' || i FROM generate_series(1, 900) i",
    )?;
    let mut other = cluster.connect("d")?;
    other.batch_execute("BEGIN; UPDATE t SET body = 'changed' WHERE id = 350")?;
    let caller = std::thread::spawn({
        let mut client = cluster.connect("d")?;
        move || client.batch_execute("CALL laser_embed_table('t', 'body', 'e', 100)")
    });
    let count = "SELECT count(e) FROM public.t";
    let deadline = Instant::now() + Duration::from_secs(30);
    while client.query_one(count, &[])?.get::<_, i64>(0) < 300 {
        ensure!(Instant::now() < deadline, "nothing is embedded");
        std::thread::sleep(Duration::from_millis(10));
    }
    client.batch_execute(
        "DO $$ BEGIN EXECUTE format('CREATE SCHEMA %I', current_user); END $$;
         CREATE TABLE t (id int, body text, e public.embedding(32));
         INSERT INTO t SELECT i, 'trap' FROM generate_series(1, 900) i;
         CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE 'ran with the rights of the caller'; END $$;
         CREATE TRIGGER trap BEFORE UPDATE ON t EXECUTE FUNCTION trap()",
    )?;
    other.batch_execute("COMMIT")?;
    caller.join().expect("no panic")?;
    assert_eq!(client.query_one(count, &[])?.get::<_, i64>(0), 900);
    assert_eq!(
        client
            .query_one("SELECT count(e) FROM t", &[])?
            .get::<_, i64>(0),
        0
    );

    // Nobody holds up a table that he may not update.
    client.batch_execute("CREATE ROLE nobody_in_particular; SET ROLE nobody_in_particular")?;
    let (code, ..) = failure(
        &mut client,
        "SELECT public.laser_lock_table('public.t'::regclass, false)",
    )?;
    assert_eq!(code, SqlState::INSUFFICIENT_PRIVILEGE);
    // Who may update one does not hold up its maintenance.
    client.batch_execute(
        "RESET ROLE; GRANT UPDATE ON public.t TO nobody_in_particular; SET ROLE nobody_in_particular;
         SELECT public.laser_lock_table('public.t'::regclass, false)",
    )?;
    let (code, message, _) = failure(
        &mut client,
        "SELECT public.laser_lock_table('public.t'::regclass, true)",
    )?;
    assert_eq!(code, SqlState::INSUFFICIENT_PRIVILEGE);
    assert_eq!(message, "must be owner of table t");
    client.batch_execute(
        "RESET ROLE; DROP OWNED BY nobody_in_particular; DROP ROLE nobody_in_particular",
    )?;
    let (code, ..) = failure(
        &mut client,
        "SELECT public.laser_lock_table('pg_settings'::regclass, false)",
    )?;
    assert_eq!(code, SqlState::WRONG_OBJECT_TYPE);
    let (code, ..) = failure(&mut client, "SELECT public.laser_lock_table(1, false)")?;
    assert_eq!(code, SqlState::UNDEFINED_TABLE);
    Ok(())
}
