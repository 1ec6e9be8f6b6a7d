//! Functions that make statements of others' tables run nothing of those tables' owners, also where an owner
//! changes what names mean between the making of a statement and its parsing.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use laser_tests::Cluster;
use postgres::error::SqlState;
use postgres::{Client, NoTls};

/// A role whose function makes it superuser when a superuser runs it, and types that bring the function along.
const MALLORY: &str = "
    CREATE ROLE mallory LOGIN; GRANT ALL ON SCHEMA public TO mallory; GRANT CREATE ON DATABASE d TO mallory; SET SESSION AUTHORIZATION mallory;
    CREATE TYPE evil AS ENUM ('s', 't'); CREATE TYPE letter AS ENUM ('s', 't');
    CREATE FUNCTION steal() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN ALTER ROLE mallory SUPERUSER; END IF;
    END $$;
    CREATE FUNCTION as_text(evil) RETURNS text LANGUAGE plpgsql AS 'BEGIN PERFORM steal(); RETURN ''x''; END';
    CREATE FUNCTION as_char(letter) RETURNS \"char\" LANGUAGE plpgsql AS $$ BEGIN
        PERFORM steal(); RETURN format('%s', $1); END $$;
    CREATE CAST (evil AS text) WITH FUNCTION as_text(evil);
    CREATE CAST (letter AS \"char\") WITH FUNCTION as_char(letter) AS IMPLICIT";

/// Raises an error unless a statement is refused for what it would run, and mallory is as before.
fn refused(result: std::result::Result<(), postgres::Error>, client: &mut Client) -> Result<()> {
    let codes = [SqlState::INSUFFICIENT_PRIVILEGE, SqlState::OBJECT_IN_USE];
    fails_with(result, &codes)?;
    unchanged(client)
}

fn fails_with(result: std::result::Result<(), postgres::Error>, codes: &[SqlState]) -> Result<()> {
    let error = result.err().ok_or_else(|| anyhow!("it ran"))?;
    ensure!(
        error.code().is_some_and(|code| codes.contains(code)),
        "{error:?}"
    );
    Ok(())
}

fn unchanged(client: &mut Client) -> Result<()> {
    let rises: bool = client
        .query_one(
            "SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'",
            &[],
        )?
        .get(0);
    ensure!(!rises, "mallory is a superuser");
    Ok(())
}

/// What a superuser runs while mallory's change of the table is not committed, and then is.
fn raced(
    cluster: &Cluster,
    mallory: &mut Client,
    change: &str,
    sql: &str,
) -> Result<std::result::Result<(), postgres::Error>> {
    mallory.batch_execute(&format!("BEGIN; {change}"))?;
    let parameters = cluster.config("d");
    let statement = sql.to_owned();
    let asks = thread::spawn(move || parameters.connect(NoTls)?.batch_execute(&statement));
    let mut looks = cluster.connect("d")?;
    let start = Instant::now();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    while looks.query_one(waits, &[])?.get::<_, i64>(0) == 0 {
        ensure!(
            start.elapsed() < Duration::from_secs(60) && !asks.is_finished(),
            "{sql}: it does not wait"
        );
        thread::sleep(Duration::from_millis(20));
    }
    mallory.batch_execute("COMMIT")?;
    asks.join().map_err(|_| anyhow!("a panic"))
}

#[test]
fn a_table_that_changes_meanwhile_brings_nothing_along() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    let mut mallory = cluster.connect("d")?;
    mallory.batch_execute(MALLORY)?;
    let hybrid = "SELECT * FROM laser_hybrid(NULL::own.docs, 'body', 'some text', 3)";
    let with_key =
        "SELECT * FROM laser_hybrid(NULL::own.docs, 'body', 'some text', 3, key_column => 'id')";
    for (change, sql) in [
        ("ALTER TABLE docs DROP body; ALTER TABLE docs ADD body evil DEFAULT 's'", hybrid),
        ("ALTER TABLE docs DROP id; ALTER TABLE docs ADD id evil DEFAULT 's'", with_key),
        (
            "ALTER TABLE docs DROP body; CREATE FUNCTION body(docs) RETURNS text LANGUAGE plpgsql AS
             'BEGIN PERFORM steal(); RETURN ''x''; END'",
            hybrid,
        ),
        (
            "ALTER TABLE docs RENAME TO other; CREATE VIEW docs AS SELECT id, as_text('s') AS body, '(0,1)'::tid AS hit
             FROM other",
            with_key,
        ),
    ] {
        mallory.batch_execute(
            "DROP SCHEMA IF EXISTS own CASCADE; CREATE SCHEMA own; SET search_path = own, public;
             CREATE TABLE docs (id int, body text, unread evil);
             INSERT INTO docs SELECT i, 'the text number ' || i FROM generate_series(1, 100) i",
        )?;
        owner.batch_execute(sql)?;
        let result = raced(&cluster, &mut mallory, change, sql)?;
        let refused = if change.contains("RENAME") || change.contains("FUNCTION") {
            // A table or a column whose name is gone is an error of its own.
            let codes = [
                SqlState::INSUFFICIENT_PRIVILEGE,
                SqlState::OBJECT_IN_USE,
                SqlState::UNDEFINED_TABLE,
                SqlState::UNDEFINED_COLUMN,
                SqlState::WRONG_OBJECT_TYPE,
            ];
            fails_with(result, &codes).and_then(|()| unchanged(&mut owner))
        } else {
            refused(result, &mut owner)
        };
        refused.with_context(|| change.to_owned())?;
    }
    Ok(())
}

/// `t.ts_stat` is `ts_stat(t)` when the column is gone, a function of the server that executes its argument.
#[test]
fn a_row_is_no_argument_of_a_function() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    let mut mallory = cluster.connect("d")?;
    mallory.batch_execute(MALLORY)?;
    mallory.batch_execute(
        "CREATE SCHEMA own; SET search_path = own, public;
         CREATE FUNCTION own.words() RETURNS tsvector LANGUAGE plpgsql AS $$ BEGIN
             PERFORM public.steal(); RETURN 'x'; END $$;
         CREATE VIEW own.v AS SELECT own.words() AS x;
         CREATE TABLE docs (ts_stat text, w tsvector, z text);
         INSERT INTO docs VALUES ('table/**/own.v/*', NULL, '*/');
         CREATE CAST (docs AS text) WITH INOUT AS IMPLICIT",
    )?;
    let sql = "SELECT * FROM laser_hybrid(NULL::own.docs, 'ts_stat', 'words', words_column => 'w')";
    owner.batch_execute(sql)?;
    let result = raced(
        &cluster,
        &mut mallory,
        "ALTER TABLE own.docs RENAME ts_stat TO other",
        sql,
    )?;
    refused(result, &mut owner)
}

#[test]
fn columns_of_a_mining_state_bring_nothing_along() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    let mut mallory = cluster.connect("d")?;
    mallory.batch_execute(MALLORY)?;
    mallory.batch_execute(
        r"CREATE TABLE state (side letter, id bigint, content bytea, embedding embedding, neighbours bigint[], cosines float8[]);
          INSERT INTO state VALUES ('s', 1, '\x00000000000000000000000000000000', '[1,2]', '{1}', '{0.5}'),
              ('t', 1, '\x00000000000000000000000000000000', '[1,2]', '{1}', '{0.5}')",
    )?;
    let result = owner.batch_execute("SELECT * FROM laser_mine_stored('state')");
    refused(result, &mut owner)?;
    let result = owner.batch_execute(
        "SELECT * FROM laser_mine_update('state', 'SELECT 1::bigint, ''a text''', 'SELECT 1::bigint, ''a text''')",
    );
    refused(result, &mut owner)?;
    // Nor in a cursor, or where it is explained.
    let mark: String = owner
        .query_one("SELECT laser_mark('state'::regclass)", &[])?
        .get(0);
    let marked = format!("{mark}SELECT id FROM state WHERE side = 's'::\"char\"");
    for before in [
        "",
        "EXPLAIN ",
        "DECLARE c CURSOR WITH HOLD FOR ",
        "CREATE TABLE taken AS ",
    ] {
        let result = owner.batch_execute(&format!("{before}{marked}"));
        refused(result, &mut owner)?;
    }
    // Whose types they are may run them.
    mallory.batch_execute("SELECT * FROM laser_mine_stored('state')")?;
    // A mark of another session says nothing, so that none in a text or a name makes others' statements fail.
    let marked = format!("{mark}SELECT id FROM state");
    cluster.connect("d")?.batch_execute(&marked)?;
    Ok(())
}

/// Batches of `laser_embed_table` are transactions of their own: the column may be another one in the next.
#[test]
fn a_column_that_is_filled_brings_nothing_along() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    let mut mallory = cluster.connect("d")?;
    mallory.batch_execute(MALLORY)?;
    mallory.batch_execute(
        "CREATE TABLE docs (id int, body text, v embedding(384));
         INSERT INTO docs SELECT i, 'the text number ' || i FROM generate_series(1, 100) i",
    )?;
    // The types are checked before the first batch waits for its lock.
    let change = "LOCK TABLE docs IN SHARE ROW EXCLUSIVE MODE;
                  ALTER TABLE docs DROP body; ALTER TABLE docs ADD body evil DEFAULT 's'";
    let result = raced(
        &cluster,
        &mut mallory,
        change,
        "CALL laser_embed_table('docs', 'body', 'v')",
    )?;
    refused(result, &mut owner)
}

/// Nobody's lock keeps the name of a schema.
#[test]
fn a_view_that_takes_the_name_of_a_table_is_not_read() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    let mut mallory = cluster.connect("d")?;
    mallory.batch_execute(MALLORY)?;
    mallory.batch_execute(
        "CREATE SCHEMA own; CREATE TABLE own.docs (body text, v embedding); INSERT INTO own.docs VALUES ('some text');
         CREATE SCHEMA other; CREATE FUNCTION taken() RETURNS boolean LANGUAGE plpgsql AS 'BEGIN PERFORM steal(); RETURN true; END';
         CREATE VIEW other.docs AS SELECT 'x'::text AS body, CASE WHEN taken() THEN NULL::embedding END AS v",
    )?;
    let change = "LOCK TABLE own.docs IN SHARE ROW EXCLUSIVE MODE;
                  ALTER SCHEMA own RENAME TO first; ALTER SCHEMA other RENAME TO own";
    let result = raced(
        &cluster,
        &mut mallory,
        change,
        "CALL laser_embed_table('own.docs', 'body', 'v')",
    )?;
    unchanged(&mut owner)?;
    // The table itself may be embedded, and have the label.
    let labels: i64 = owner
        .query_one(
            "SELECT count(*) FROM pg_seclabels WHERE objoid = 'own.docs'::regclass",
            &[],
        )?
        .get(0);
    ensure!(labels == 0, "the view has a label");
    result?;
    let embedded: i64 = owner
        .query_one("SELECT count(v) FROM first.docs", &[])?
        .get(0);
    ensure!(embedded == 1);
    Ok(())
}
