//! `pg_stat_laser_indexes`: what is counted, for whom, and what becomes of it.

use anyhow::{Result, ensure};
use laser_tests::{Cluster, failure};
use postgres::Client;
use postgres::error::SqlState;

/// Counts of an index: searches, visited, reranked, widened, cut, merges, files_opened, files_made.
fn counts(client: &mut Client, index: &str) -> Result<[i64; 8]> {
    let row = client.query_one(
        "SELECT searches, visited, reranked, widened, cut, merges, files_opened, files_made
         FROM pg_stat_laser_indexes WHERE indexrelname = $1",
        &[&index],
    )?;
    Ok(std::array::from_fn(|at| row.get(at)))
}

/// Rows with vectors of eight dimensions, an index on them, and a setting that has the planner use it.
fn create(client: &mut Client, rows: i32) -> Result<()> {
    client.batch_execute(&format!(
        "CREATE TABLE t (id int, v embedding(8));
         INSERT INTO t SELECT i, (SELECT array_agg(sin(i * (n + 1.7)) + cos(i + n * n))
                                  FROM generate_series(1, 8) n)
         FROM generate_series(1, {rows}) i;
         CREATE INDEX ti ON t USING laser (v); SET enable_seqscan = off"
    ))?;
    Ok(())
}

/// A server that makes and drops many indexes quickly.
fn cluster() -> Result<Cluster> {
    Cluster::builder()
        .setting("autovacuum", "off")
        .setting("fsync", "off")
        .start()
}

/// A new database with a table of one row without an index, and a setting that has the planner use one.
fn one_row(cluster: &Cluster, database: &str) -> Result<Client> {
    let mut client = cluster.database(database)?;
    client.batch_execute(
        "CREATE TABLE t (v embedding(2)); INSERT INTO t VALUES ('[1,2]'); SET enable_seqscan = off",
    )?;
    Ok(client)
}

/// Of [`one_row`].
const NEAREST: &str = "SELECT FROM t ORDER BY v <=> '[1,1]' LIMIT 1";

const SEARCH: &str = "SELECT id FROM t ORDER BY v <=> '[1,2,3,4,5,6,7,8]' LIMIT 10";

#[test]
fn searches_merges_and_files_are_counted() -> Result<()> {
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    create(&mut client, 20_000)?;
    // What a segment is measured to need depends on how its graph turns out.
    client.batch_execute("SET laser.ef_search = 100")?;
    // The transaction that makes an index counts nothing.
    ensure!(counts(&mut client, "ti")? == [0; 8]);

    client.batch_execute(SEARCH)?;
    let [
        searches,
        visited,
        reranked,
        widened,
        cut,
        merges,
        opened,
        made,
    ] = counts(&mut client, "ti")?;
    ensure!((searches, widened, cut, merges) == (1, 0, 0, 0));
    ensure!((opened, made) == (1, 0), "{opened} {made}");
    // A walk meets far fewer vectors than there are, and more rows than it gives are compared.
    ensure!((64..10_000).contains(&visited), "{visited}");
    ensure!((10..visited).contains(&reranked), "{reranked}");

    // A filter that few rows pass is searched wider for, at last with a look at every vector.
    client.batch_execute(
        "SELECT id FROM t WHERE id % 5000 = 7 ORDER BY v <=> '[1,2,3,4,5,6,7,8]' LIMIT 4",
    )?;
    let after = counts(&mut client, "ti")?;
    ensure!(after[0] == 2 && after[3] > 0, "{after:?}");
    ensure!(after[1] > visited + 20_000, "{after:?}");
    // The session has the segment open.
    ensure!(after[6] == 1, "{after:?}");
    client.batch_execute(
        "SET laser.max_scan_tuples = 100;
         SELECT id FROM t WHERE id < 0 ORDER BY v <=> '[1,2,3,4,5,6,7,8]' LIMIT 4;
         RESET laser.max_scan_tuples",
    )?;
    ensure!(counts(&mut client, "ti")?[4] == 1);
    // A scan counts once for each of its beginnings, and where an error ends it.
    let before = counts(&mut client, "ti")?;
    client.batch_execute(
        "SELECT (SELECT t.id FROM t ORDER BY v <=> q.v LIMIT 1) FROM (SELECT v FROM t LIMIT 5) q",
    )?;
    let after = counts(&mut client, "ti")?;
    ensure!(after[0] == before[0] + 5, "{before:?} {after:?}");
    let (code, message, _) = failure(
        &mut client,
        "SELECT id FROM t WHERE 1 / (id - 7) >= 0 AND id % 5000 = 7 ORDER BY v <=> '[1,2,3,4,5,6,7,8]' LIMIT 4",
    )?;
    ensure!(code == SqlState::DIVISION_BY_ZERO, "{message}");
    let failed = counts(&mut client, "ti")?;
    ensure!(
        failed[0] == after[0] + 1 && failed[1] > after[1],
        "{failed:?}"
    );

    client.batch_execute(
        "INSERT INTO t SELECT id, v FROM t WHERE id <= 100; SELECT laser_merge('ti')",
    )?;
    let merged = counts(&mut client, "ti")?;
    ensure!(merged[5] == 1 && merged[7] > made, "{merged:?}");
    let time: f64 = client
        .query_one(
            "SELECT merge_time FROM pg_stat_laser_indexes WHERE indexrelname = 'ti'",
            &[],
        )?
        .get(0);
    ensure!(time > 0.0 && time < 60_000.0, "{time}");
    // There is nothing to merge.
    client.batch_execute("SELECT laser_merge('ti')")?;
    ensure!(counts(&mut client, "ti")?[5] == 1);
    Ok(())
}

#[test]
fn counts_are_of_an_index_in_a_database() -> Result<()> {
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    create(&mut client, 500)?;
    client.batch_execute(SEARCH)?;
    // Another session adds to the same counts.
    let mut other = cluster.connect("d")?;
    other.batch_execute("SET enable_seqscan = off")?;
    other.batch_execute(SEARCH)?;
    ensure!(counts(&mut client, "ti")?[0] == 2);

    // A copy of the database has an index of the same OID and counts of its own.
    drop(other);
    drop(client);
    let mut root = cluster.connect("postgres")?;
    root.batch_execute("CREATE DATABASE copy TEMPLATE d")?;
    let mut copy = cluster.connect("copy")?;
    ensure!(counts(&mut copy, "ti")? == [0; 8]);
    copy.batch_execute("SET enable_seqscan = off")?;
    copy.batch_execute(SEARCH)?;
    ensure!(counts(&mut copy, "ti")?[0] == 1);
    drop(copy);
    root.batch_execute("DROP DATABASE copy")?;
    let mut client = cluster.connect("d")?;
    ensure!(counts(&mut client, "ti")?[0] == 2);

    // REINDEX keeps them, and what is gone has none.
    client.batch_execute("REINDEX INDEX ti")?;
    ensure!(counts(&mut client, "ti")?[0] == 2);
    client.batch_execute("DROP INDEX ti")?;
    let rows = client.query("SELECT FROM pg_stat_laser_indexes", &[])?;
    ensure!(rows.is_empty());
    client.batch_execute("CREATE INDEX ti ON t USING laser (v)")?;
    ensure!(counts(&mut client, "ti")?[0] == 0);
    Ok(())
}

/// As with `pg_stat_all_indexes`, everybody sees counts; the owner of an index resets them.
#[test]
fn everybody_sees_counts_and_owners_reset_them() -> Result<()> {
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    create(&mut client, 500)?;
    client.batch_execute(
        "CREATE INDEX other ON t USING laser (v embedding_l2_ops); CREATE ROLE mallory",
    )?;
    client.batch_execute("SELECT id FROM t ORDER BY v <-> '[1,2,3,4,5,6,7,8]' LIMIT 10")?;
    client.batch_execute(SEARCH)?;
    client.batch_execute("SET ROLE mallory")?;
    ensure!(counts(&mut client, "ti")?[0] == 1);
    let reset = "SELECT laser_index_statistics_reset('ti')";
    let (code, ..) = failure(&mut client, reset)?;
    ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE);
    client.batch_execute("RESET ROLE; ALTER TABLE t OWNER TO mallory; SET ROLE mallory")?;
    client.batch_execute(reset)?;
    ensure!(counts(&mut client, "ti")? == [0; 8]);
    ensure!(counts(&mut client, "other")?[0] == 1);
    let (code, message, _) = failure(&mut client, "SELECT laser_index_statistics_reset('t')")?;
    ensure!(code == SqlState::WRONG_OBJECT_TYPE, "{message}");
    client.batch_execute(
        "SELECT laser_index_statistics_reset(indexrelid) FROM pg_stat_laser_indexes",
    )?;
    ensure!(counts(&mut client, "other")? == [0; 8]);
    let row = client.query_one(
        "SELECT count(*) FILTER (WHERE stats_reset > now() - interval '1 minute'), count(*)
         FROM pg_stat_laser_indexes",
        &[],
    )?;
    ensure!((row.get::<_, i64>(0), row.get::<_, i64>(1)) == (2, 2));
    Ok(())
}

/// The number of indexes with counters is limited; those that are gone make room.
#[test]
fn indexes_that_are_gone_make_room() -> Result<()> {
    let cluster = cluster()?;
    let mut client = one_row(&cluster, "d")?;
    client.batch_execute(
        "DO $$
         BEGIN
             FOR i IN 1 .. 2300 LOOP
                 CREATE INDEX ti ON t USING laser (v);
                 DROP INDEX ti;
             END LOOP;
         END $$;
         CREATE INDEX ti ON t USING laser (v)",
    )?;
    client.batch_execute(NEAREST)?;
    ensure!(counts(&mut client, "ti")?[0] == 1);
    Ok(())
}

/// Indexes whose creation is rolled back take no room, of which nobody would hear that they are gone.
#[test]
fn indexes_that_never_were_take_no_room() -> Result<()> {
    let cluster = cluster()?;
    let mut client = one_row(&cluster, "d")?;
    client.batch_execute(
        "DO $$
         BEGIN
             FOR i IN 1 .. 2300 LOOP
                 BEGIN
                     CREATE INDEX ti ON t USING laser (v);
                     PERFORM FROM t ORDER BY v <=> '[1,1]' LIMIT 1;
                     RAISE 'rolled back';
                 EXCEPTION WHEN raise_exception THEN
                 END;
             END LOOP;
         END $$",
    )?;
    let mut other = one_row(&cluster, "e")?;
    other.batch_execute("CREATE INDEX ti ON t USING laser (v)")?;
    other.batch_execute(NEAREST)?;
    ensure!(counts(&mut other, "ti")?[0] == 1);
    Ok(())
}

#[test]
fn counts_outlive_a_crash_and_begin_anew_with_the_server() -> Result<()> {
    let mut cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    create(&mut client, 500)?;
    client.batch_execute(SEARCH)?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    cluster.crash(u32::try_from(pid)?)?;
    drop(client);
    let mut client = cluster.connect("d")?;
    ensure!(counts(&mut client, "ti")?[0] == 1);
    drop(client);
    cluster.restart()?;
    let mut client = cluster.connect("d")?;
    ensure!(counts(&mut client, "ti")? == [0; 8]);
    Ok(())
}

#[test]
fn nothing_is_counted_where_the_library_is_not_preloaded() -> Result<()> {
    let cluster = Cluster::builder().preload(false).start()?;
    let mut client = cluster.database("d")?;
    create(&mut client, 500)?;
    client.batch_execute(SEARCH)?;
    let row = client.query_one(
        "SELECT indexrelname::text, searches IS NULL AND merges IS NULL AND merge_time IS NULL
                AND stats_reset IS NULL FROM pg_stat_laser_indexes",
        &[],
    )?;
    ensure!((row.get::<_, String>(0), row.get(1)) == ("ti".to_owned(), true));
    client.batch_execute("SELECT laser_index_statistics_reset('ti')")?;
    Ok(())
}

/// Those of one database do not keep others' from being counted.
#[test]
fn indexes_of_other_databases_that_are_gone_make_room() -> Result<()> {
    let cluster = cluster()?;
    let mut other = one_row(&cluster, "other")?;
    other.batch_execute(
        "DO $$
         BEGIN
             FOR i IN 1 .. 4000 LOOP
                 CREATE INDEX ti ON t USING laser (v);
                 PERFORM FROM t ORDER BY v <=> '[1,1]' LIMIT 1;
                 DROP INDEX ti;
                 COMMIT;
             END LOOP;
         END $$",
    )?;
    let mut client = cluster.database("d")?;
    create(&mut client, 500)?;
    client.batch_execute(SEARCH)?;
    ensure!(counts(&mut client, "ti")?[0] == 1);
    Ok(())
}

/// An index whose drop is taken back keeps its counts.
#[test]
fn a_drop_that_is_rolled_back_loses_no_counts() -> Result<()> {
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    create(&mut client, 500)?;
    client.batch_execute(SEARCH)?;
    client.batch_execute("BEGIN; DROP INDEX ti; ROLLBACK")?;
    ensure!(counts(&mut client, "ti")?[0] == 1);
    client.batch_execute("BEGIN; SAVEPOINT s; DROP INDEX ti; ROLLBACK TO s; COMMIT")?;
    ensure!(counts(&mut client, "ti")?[0] == 1);
    Ok(())
}

/// What the planner makes of conditions that all tables of a join have must not be taken for a limit that wants most rows.
#[test]
fn one_tenant_is_searched_and_not_compared_as_a_whole() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("tenants")?;
    client.batch_execute(
        "CREATE TABLE users AS SELECT i AS id, i % 40 AS tenant FROM generate_series(0, 3999) i;
         CREATE TABLE docs AS SELECT i AS id, i % 40 AS tenant, i / 40 % 100 * 40 + i % 40 AS owner FROM generate_series(0, 19999) i;
         CREATE TABLE vectors AS SELECT i AS id, i % 40 AS tenant, i / 40 % 500 * 40 + i % 40 AS doc,
             ARRAY[hashint4(i), hashint4(i + 100000), hashint4(i + 200000)]::real[]::embedding(3) AS v FROM generate_series(0, 39999) i;
         CREATE UNIQUE INDEX ON users (id); CREATE UNIQUE INDEX ON docs (id);
         CREATE INDEX vectors_v ON vectors USING laser (v);
         SET max_parallel_workers_per_gather = 0; SET enable_sort = off",
    )?;
    client.batch_execute("ANALYZE users, docs, vectors")?;
    for tenants in [
        "k.tenant = 3",
        "k.tenant = 3 AND d.tenant = 3 AND u.tenant = 3",
    ] {
        let [_, before, ..] = counts(&mut client, "vectors_v")?;
        let rows = client.query(
            &format!(
                "SELECT k.id FROM vectors k JOIN docs d ON d.id = k.doc JOIN users u ON u.id = d.owner
                 WHERE {tenants} ORDER BY k.v <=> '[.1,.2,.3]' LIMIT 10"
            ),
            &[],
        )?;
        ensure!(rows.len() == 10, "{} rows", rows.len());
        let [_, after, ..] = counts(&mut client, "vectors_v")?;
        let visited = after - before;
        ensure!(
            (1..20_000).contains(&visited),
            "{tenants}: {visited} visited"
        );
    }
    Ok(())
}
