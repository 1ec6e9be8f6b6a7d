//! An index outlives that its column loses its declared length.

use anyhow::{Result, ensure};
use laser_tests::{Cluster, failure};
use postgres::Client;
use postgres::error::SqlState;

fn nearest(client: &mut Client) -> Result<Vec<i32>> {
    client.batch_execute("SET enable_seqscan = off; SET enable_sort = off")?;
    let rows = client.query(
        "SELECT id FROM t ORDER BY e <=> '[7,1,2,3,4,5,6,7]' LIMIT 5",
        &[],
    )?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn whole(client: &mut Client, after: &str) -> Result<()> {
    let row = client.query_one(
        "SELECT (SELECT dimensions FROM laser_index_info('t_e')),
                ARRAY(SELECT laser_index_check('t_e'))",
        &[],
    )?;
    let (dimensions, problems): (Option<i32>, Vec<String>) = (row.get(0), row.get(1));
    ensure!(problems.is_empty(), "after {after}: {problems:?}");
    ensure!(dimensions == Some(8), "after {after}: {dimensions:?}");
    // A search of so small a table compares every vector, as its plan does without the index.
    client.batch_execute("SET enable_seqscan = off")?;
    let plan: Vec<String> = client
        .query(
            "EXPLAIN SELECT id FROM t ORDER BY e <=> '[7,1,2,3,4,5,6,7]' LIMIT 5",
            &[],
        )?
        .iter()
        .map(|row| row.get(0))
        .collect();
    ensure!(
        plan.iter().any(|line| line.contains("t_e")),
        "after {after}: {plan:?}"
    );
    Ok(())
}

#[test]
fn a_column_without_a_length_keeps_its_index() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, e embedding(8));
         INSERT INTO t SELECT i, ARRAY[i, 1, 2, 3, 4, 5, 6, 7]::embedding
         FROM generate_series(1, 300) i;
         CREATE INDEX t_e ON t USING laser (e);
         CREATE TABLE empty (e embedding(8));
         CREATE INDEX empty_e ON empty USING laser (e)",
    )?;
    let expected = nearest(&mut client)?;
    for sql in [
        "ALTER TABLE t ALTER COLUMN e TYPE embedding",
        "REINDEX INDEX t_e",
        "REINDEX INDEX CONCURRENTLY t_e",
        "VACUUM FULL t",
        "CLUSTER t USING t_id",
    ] {
        if sql.starts_with("CLUSTER") {
            client.batch_execute("CREATE INDEX t_id ON t (id)")?;
        }
        client.batch_execute(sql)?;
        whole(&mut client, sql)?;
        ensure!(nearest(&mut client)? == expected, "after {sql}");
    }
    client.batch_execute("ALTER TABLE empty ALTER COLUMN e TYPE embedding")?;
    client.batch_execute("VACUUM FULL empty")?;

    // A dump has the index without the length.
    let folder = cluster.scratch()?;
    let dump = folder.join("dump").display().to_string();
    cluster.run("pg_dump", &["-Fc", "-d", "d", "-f", &dump])?;
    cluster.psql("postgres", "CREATE DATABASE restored")?;
    cluster.run("pg_restore", &["--exit-on-error", "-d", "restored", &dump])?;
    let mut restored = cluster.connect("restored")?;
    restored.batch_execute("ANALYZE")?;
    whole(&mut restored, "the restore")?;
    ensure!(nearest(&mut restored)? == expected);

    // Emptied, it takes what comes, and that alone.
    restored.batch_execute("TRUNCATE t; INSERT INTO empty VALUES ('[1,2]')")?;
    let (_, message, hint) = failure(&mut restored, "INSERT INTO empty VALUES ('[1,2,3]')")?;
    ensure!(
        message.contains("expected 2 dimensions, not 3"),
        "{message}"
    );
    ensure!(hint.contains("first vector"), "{hint}");
    restored.batch_execute("INSERT INTO t VALUES (1, '[1,2,3]')")?;
    let (code, message, _) = failure(&mut restored, "INSERT INTO t VALUES (2, '[1,2]')")?;
    ensure!(
        code == SqlState::DATA_EXCEPTION && message.contains("expected 3 dimensions, not 2"),
        "{code:?} {message}"
    );

    // Sessions that come first at the same time agree.
    restored.batch_execute(
        "TRUNCATE t; CREATE UNLOGGED TABLE u (e embedding); CREATE INDEX ue ON u USING laser (e)",
    )?;
    let clients: Vec<_> = (0..8)
        .map(|_| cluster.connect("restored"))
        .collect::<Result<_>>()?;
    let threads: Vec<_> = clients
        .into_iter()
        .zip(0..)
        .map(|(mut client, n)| {
            std::thread::spawn(move || {
                let dims = 2 + n % 2;
                let x = vec!["1"; dims].join(",");
                client.batch_execute(&format!("INSERT INTO t VALUES ({n}, '[{x}]')"))
            })
        })
        .collect();
    let mut stored = 0;
    for thread in threads {
        match thread.join().expect("no panic") {
            Ok(()) => stored += 1,
            Err(error) => ensure!(error.code() == Some(&SqlState::DATA_EXCEPTION), "{error}"),
        }
    }
    let row = restored.query_one(
        "SELECT count(*), count(DISTINCT dimensions(e)), ARRAY(SELECT laser_index_check('t_e')) FROM t",
        &[],
    )?;
    let (rows, lengths, problems): (i64, i64, Vec<String>) = (row.get(0), row.get(1), row.get(2));
    ensure!(
        stored == 4 && rows == 4 && lengths == 1 && problems.is_empty(),
        "{stored} {row:?}"
    );
    Ok(())
}
