//! `laser.track_queries`: what indexes were searched for, as queries of `laser_index_recall` and `laser_index_tune`.

use anyhow::{Result, ensure};
use laser_tests::model::with_two_models;
use laser_tests::{Cluster, failure};
use postgres::Client;
use postgres::error::SqlState;

/// Rows in one region, `asked` queries in another, and a width at which searches of the second kind miss much.
fn create(client: &mut Client) -> Result<()> {
    client.batch_execute(
        "CREATE TABLE t (id int, v embedding(24));
         INSERT INTO t SELECT i, (SELECT array_agg(5 + sin(i * (n + 1.7)) + cos(i + n * n)) FROM generate_series(1, 24) n)::embedding
         FROM generate_series(1, 6000) i;
         CREATE INDEX ti ON t USING laser (v) WITH (m = 4, ef_construction = 8); SET enable_seqscan = off; SET laser.ef_search = 16",
    )?;
    Ok(())
}

/// A search for something that is like no row.
fn ask(client: &mut Client, table: &str, queries: std::ops::Range<i32>) -> Result<()> {
    for i in queries {
        client.batch_execute(&format!(
            "SELECT id FROM {table} ORDER BY v <=> (SELECT array_agg(sin({i} * n * 1.3)) FROM generate_series(1, 24) n)::real[] LIMIT 10"
        ))?;
    }
    Ok(())
}

fn recall(client: &mut Client, queries: &str) -> Result<f64> {
    let row = client.query_one("SELECT laser_index_recall('ti', 100, 10, $1)", &[&queries])?;
    Ok(row.get(0))
}

fn has_none(client: &mut Client, why: &str) -> Result<()> {
    let (code, message, hint) = failure(
        client,
        "SELECT laser_index_recall('ti', queries => 'asked')",
    )?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
            && message == "no queries of index \"ti\" are kept",
        "{why}: {message}"
    );
    ensure!(hint.contains("laser.track_queries"), "{hint:?}");
    Ok(())
}

#[test]
fn recall_is_measured_on_what_was_asked() -> Result<()> {
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    create(&mut client)?;
    ask(&mut client, "t", 0..5)?;
    has_none(&mut client, "off")?;
    client.batch_execute("SET laser.track_queries = on")?;
    // What laser itself searches for is not asked, and a NULL is nothing to search for.
    recall(&mut client, "rows")?;
    client.batch_execute("SELECT id FROM t ORDER BY v <=> NULL::embedding LIMIT 1; SELECT id FROM t ORDER BY v <=> array_fill(0, '{24}') LIMIT 1")?;
    has_none(&mut client, "none was asked")?;

    ask(&mut client, "t", 0..200)?;
    let (rows, asked) = (recall(&mut client, "rows")?, recall(&mut client, "asked")?);
    // Rows find themselves, and what is near them; what is unlike them is what searches were for.
    ensure!(rows > asked, "{rows} {asked}");
    // More than there are is all that there are, and searches of the statistics' own are not added.
    for _ in 0..3 {
        ensure!(recall(&mut client, "asked")? > 0.0);
    }
    // Graphs that several threads build differ, and so does what narrow searches find in them.
    let wanted = (1.0 + asked) / 2.0;
    let tuned = format!(
        "SELECT ef_search, recall FROM laser_index_tune('ti', {wanted}, queries => 'asked') WHERE is_enough"
    );
    let row = client.query_one(&tuned, &[])?;
    let (width, reached): (i32, f64) = (row.get(0), row.get(1));
    ensure!(width > 16 && reached >= wanted, "{width} {reached}");
    client.batch_execute(&format!("SET laser.ef_search = {width}"))?;
    ensure!(recall(&mut client, "asked")? > asked, "at {width}");

    // They are kept for other sessions, and when the index is built again, until its statistics are reset.
    let mut other = cluster.connect("d")?;
    ensure!(recall(&mut other, "asked")? > 0.0);
    client.batch_execute("REINDEX INDEX ti")?;
    ensure!(recall(&mut other, "asked")? > 0.0);
    client.batch_execute("SELECT laser_index_statistics_reset('ti')")?;
    has_none(&mut other, "reset")?;
    ask(&mut client, "t", 0..3)?;
    ensure!(recall(&mut other, "asked")? > 0.0);

    // They go with the index: one of its name, or of its OID, begins with none.
    client.batch_execute("DROP INDEX ti; CREATE INDEX ti ON t USING laser (v)")?;
    has_none(&mut client, "dropped")?;

    let (code, _, _) = failure(
        &mut client,
        "SELECT laser_index_recall('ti', queries => 'mine')",
    )?;
    ensure!(code == SqlState::INVALID_PARAMETER_VALUE);
    Ok(())
}

/// Who decides that queries are kept, and who hears of them.
#[test]
fn queries_are_kept_by_superusers_for_those_who_read_statistics() -> Result<()> {
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    create(&mut client)?;
    client.batch_execute(
        "CREATE ROLE owner; CREATE ROLE other; ALTER TABLE t OWNER TO owner; GRANT SELECT ON t TO other;
         GRANT EXECUTE ON FUNCTION laser_index_recall, laser_index_tune TO owner, other; SET ROLE other",
    )?;
    for sql in [
        "SET laser.track_queries = on",
        "SET laser.track_queries = off",
    ] {
        let (code, message, _) = failure(&mut client, sql)?;
        ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{message}");
    }
    client.batch_execute("RESET ROLE; SET laser.track_queries = on; SET ROLE other")?;
    ask(&mut client, "t", 0..20)?;
    for function in [
        "laser_index_recall('ti', queries => 'asked')",
        "laser_index_tune('ti', queries => 'asked')",
    ] {
        let (code, message, _) = failure(&mut client, &format!("SELECT {function}"))?;
        ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{message}");
    }
    // By recalls among rows of his own choice an owner would find out what others have asked.
    client.batch_execute("SET ROLE owner")?;
    for function in ["laser_index_recall", "laser_index_tune"] {
        let call = format!("SELECT {function}('ti', queries => 'asked')");
        let (code, message, hint) = failure(&mut client, &call)?;
        ensure!(
            code == SqlState::INSUFFICIENT_PRIVILEGE && hint.contains("pg_read_all_stats"),
            "{message} {hint}"
        );
    }
    client.batch_execute("RESET ROLE; GRANT pg_read_all_stats TO owner; SET ROLE owner")?;
    ensure!(recall(&mut client, "asked")? > 0.0);

    // A copy of the database has indexes of the same OIDs, and queries of its own.
    drop(client);
    cluster.psql("postgres", "CREATE DATABASE copy TEMPLATE d")?;
    has_none(&mut cluster.connect("copy")?, "copied")?;

    // Temporary tables keep none: the server has few places, and everybody may make such tables.
    let mut client = cluster.connect("d")?;
    client.batch_execute(
        "SET laser.track_queries = on; SET enable_seqscan = off; CREATE TEMP TABLE own AS SELECT * FROM t;
         CREATE INDEX ti ON own USING laser (v)",
    )?;
    ask(&mut client, "own", 0..5)?;
    has_none(&mut client, "temporary")?;
    Ok(())
}

/// Queries of a model are no queries of another, and without shared memory there are none.
#[test]
fn queries_are_of_a_model() -> Result<()> {
    let (_models, mut cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (id int, body text); INSERT INTO t SELECT i, 'text ' || i FROM generate_series(1, 300) i;
         CREATE INDEX ti ON t USING laser (body); SET enable_seqscan = off; SET laser.track_queries = on",
    )?;
    // By itself: the transaction that makes an index keeps none.
    client.batch_execute("SELECT id FROM t ORDER BY body <=> 'a question' LIMIT 3")?;
    ensure!(recall(&mut client, "asked")? > 0.9);
    client.batch_execute("ALTER INDEX ti SET (model = 'two'); REINDEX INDEX ti")?;
    has_none(&mut client, "of another model")?;
    client.batch_execute(
        "SET laser.model = 'two'; SELECT id FROM t ORDER BY body <=> 'a question' LIMIT 3",
    )?;
    ensure!(recall(&mut client, "asked")? > 0.9);
    drop(client);

    cluster.set("shared_preload_libraries", "")?;
    cluster.restart()?;
    let mut client = cluster.connect("d")?;
    client.batch_execute(
        "LOAD 'laser'; SET enable_seqscan = off; SET laser.track_queries = on; SET laser.model = 'two';
         SELECT id FROM t ORDER BY body <=> 'a question' LIMIT 3",
    )?;
    let (_, _, hint) = failure(
        &mut client,
        "SELECT laser_index_recall('ti', queries => 'asked')",
    )?;
    ensure!(hint.contains("shared_preload_libraries"), "{hint}");
    Ok(())
}

/// Queries of an index as it was before are thrown away by the first of what it has become, which would otherwise have to
/// take their places by chance.
#[test]
fn a_rebuilt_index_begins_with_none() -> Result<()> {
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    let fill = |length: i32| {
        format!(
            "TRUNCATE t; INSERT INTO t SELECT (SELECT array_agg(sin(i * n)) FROM generate_series(1, {length}) n)::embedding
             FROM generate_series(1, 20) i"
        )
    };
    client.batch_execute("CREATE TABLE t (v embedding); CREATE INDEX ti ON t USING laser (v)")?;
    client.batch_execute(&fill(1500))?;
    client.batch_execute(
        "SET enable_seqscan = off; SET laser.track_queries = on;
         DO $$ DECLARE q embedding := (SELECT v FROM t LIMIT 1); BEGIN FOR i IN 1..2000 LOOP
             PERFORM FROM t ORDER BY v <=> q LIMIT 1;
         END LOOP; END $$",
    )?;
    ensure!(recall(&mut client, "asked")? == 1.0);
    client.batch_execute(&fill(1499))?;
    has_none(&mut client, "of another length")?;
    client.batch_execute("SELECT FROM t ORDER BY v <=> (SELECT v FROM t LIMIT 1) LIMIT 1")?;
    ensure!(recall(&mut client, "asked")? == 1.0);
    Ok(())
}

/// Sixty-four indexes have room; those that are gone leave it to others. Sessions that search at once are not in each
/// other's way.
#[test]
fn room_for_queries_is_bounded() -> Result<()> {
    let cluster = Cluster::builder()
        .setting("autovacuum", "off")
        .setting("fsync", "off")
        .start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "SET enable_seqscan = off; SET laser.track_queries = on;
         DO $$ BEGIN FOR i IN 1..70 LOOP
             EXECUTE format('CREATE TABLE t%s (v embedding(2)); INSERT INTO t%1$s VALUES (''[1,2]''); CREATE INDEX i%1$s ON t%1$s USING laser (v)', i);
         END LOOP; END $$",
    )?;
    let search = |client: &mut Client, i: i32| {
        client.batch_execute(&format!("SELECT FROM t{i} ORDER BY v <=> '[2,1]' LIMIT 1"))
    };
    let is_kept = |client: &mut Client, i: i32| {
        let sql = format!("SELECT laser_index_recall('i{i}', queries => 'asked')");
        client.query_one(&sql, &[]).is_ok()
    };
    for i in 1..=70 {
        search(&mut client, i)?;
    }
    ensure!((1..=70).filter(|i| is_kept(&mut client, *i)).count() == 64);
    ensure!(is_kept(&mut client, 64) && !is_kept(&mut client, 65));
    client.batch_execute("DROP TABLE t1, t2")?;
    for i in 65..=67 {
        search(&mut client, i)?;
    }
    ensure!(is_kept(&mut client, 65) && is_kept(&mut client, 66) && !is_kept(&mut client, 67));

    // Far more queries than there is room for, by sessions that overwrite each other's.
    std::thread::scope(|scope| -> Result<()> {
        let sessions: Vec<_> = (0..4)
            .map(|seed| {
                let cluster = &cluster;
                scope.spawn(move || -> Result<()> {
                    let mut client = cluster.connect("d")?;
                    client.batch_execute("SET enable_seqscan = off; SET laser.track_queries = on")?;
                    client.batch_execute(&format!(
                        "DO $$ BEGIN FOR i IN 1..2000 LOOP
                             PERFORM FROM t3 ORDER BY v <=> ARRAY[sin(i + {seed}), cos(i * 1.1)] LIMIT 1;
                         END LOOP; END $$"
                    ))?;
                    Ok(())
                })
            })
            .collect();
        sessions
            .into_iter()
            .try_for_each(|session| session.join().expect("no session panics"))
    })?;
    let all: f64 = client
        .query_one("SELECT laser_index_recall('i3', 5000, 1, 'asked')", &[])?
        .get(0);
    ensure!((all - 1.0).abs() < 1e-9, "{all}");
    Ok(())
}
