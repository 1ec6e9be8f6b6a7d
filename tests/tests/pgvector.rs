//! The layout is pgvector's, shown against pgvector itself. Skipped with a message where the
//! server has no extension `vector`.

use anyhow::{Result, ensure};
use laser_tests::{Cluster, skipped};
use postgres::Client;

/// A cluster with both extensions and the casts between them, or nothing where pgvector is not
/// installed.
fn both() -> Result<Option<(Cluster, Client)>> {
    let cluster = Cluster::builder().preload(false).start()?;
    let available = "SELECT count(*) FROM pg_available_extensions WHERE name = 'vector'";
    if cluster.psql("postgres", available)? == "0" {
        skipped(
            "pgvector's columns and bytes",
            "pgvector is not installed for this server",
        );
        return Ok(None);
    }
    let mut client = cluster.database("both")?;
    client.batch_execute("CREATE EXTENSION vector")?;
    let casts = concat!(env!("CARGO_MANIFEST_DIR"), "/../sql/pgvector_casts.sql");
    client.batch_execute(&std::fs::read_to_string(casts)?)?;
    Ok(Some((cluster, client)))
}

fn number(client: &mut Client, sql: &str) -> Result<i64> {
    Ok(client.query_one(sql, &[])?.get(0))
}

#[test]
fn columns_change_type_without_rewriting() -> Result<()> {
    let Some((_cluster, mut client)) = both()? else {
        return Ok(());
    };
    for (theirs, ours, dimensions) in [
        ("vector", "embedding", 3),
        ("vector", "embedding", 1024),
        ("halfvec", "halfembedding", 3),
        ("halfvec", "halfembedding", 2048),
    ] {
        client.batch_execute(&format!(
            "DROP TABLE IF EXISTS t;
             CREATE TABLE t AS SELECT i, array_agg(sin(i * j) ORDER BY j)::{theirs} AS v
             FROM generate_series(1, 50) i, generate_series(1, {dimensions}) j GROUP BY i"
        ))?;
        let text = "SELECT md5(string_agg(v::text, '|' ORDER BY i)) FROM t";
        let node = "SELECT pg_relation_filenode('t')::int8";
        let before: String = client.query_one(text, &[])?.get(0);
        let file = number(&mut client, node)?;

        client.batch_execute(&format!("ALTER TABLE t ALTER v TYPE {ours}"))?;
        assert_eq!(
            number(&mut client, node)?,
            file,
            "{theirs} to {ours} rewrote the table"
        );
        assert_eq!(client.query_one(text, &[])?.get::<_, String>(0), before);
        // Our functions read what theirs wrote.
        let wrong = format!(
            "SELECT count(*) FROM t WHERE dimensions(v) <> {dimensions}
                 OR abs(norm(v) - sqrt(inner_product(v, v))) > 1e-3"
        );
        assert_eq!(number(&mut client, &wrong)?, 0);

        // And back, with values that we wrote.
        client.batch_execute(&format!("UPDATE t SET v = l2_normalize(v)::real[]::{ours}"))?;
        let before: String = client.query_one(text, &[])?.get(0);
        client.batch_execute(&format!("ALTER TABLE t ALTER v TYPE {theirs}"))?;
        assert_eq!(
            number(&mut client, node)?,
            file,
            "{ours} to {theirs} rewrote the table"
        );
        assert_eq!(client.query_one(text, &[])?.get::<_, String>(0), before);
        let wrong = "SELECT count(*) FROM t WHERE abs(l2_norm_of(v) - 1) > 1e-3".replace(
            "l2_norm_of",
            if theirs == "vector" {
                "vector_norm"
            } else {
                "l2_norm"
            },
        );
        assert_eq!(number(&mut client, &wrong)?, 0);
    }
    Ok(())
}

#[test]
fn bytes_text_and_answers_are_equal() -> Result<()> {
    let Some((_cluster, mut client)) = both()? else {
        return Ok(());
    };
    for (theirs, ours, scale) in [
        ("vector", "embedding", 1e30),
        ("halfvec", "halfembedding", 1e3),
    ] {
        client.batch_execute(&format!(
            "DROP TABLE IF EXISTS t;
             CREATE TABLE t AS SELECT i, format('[%s]', list)::{theirs} AS v, format('[%s]', list)::{ours} AS e
             FROM (SELECT i, string_agg((sin(i * j) * {scale} ^ cos(j))::text, ',' ORDER BY j) AS list
                   FROM generate_series(1, 200) i, generate_series(1, 77) j GROUP BY i) x;"
        ))?;
        // On disk: the bytes of a tuple's values, of plain and short storage alike.
        client.batch_execute(
            "CREATE EXTENSION IF NOT EXISTS pageinspect;
             DROP TABLE IF EXISTS a, b;
             CREATE TABLE a AS SELECT v FROM t; CREATE TABLE b AS SELECT e FROM t;
             INSERT INTO a SELECT subvector(v, 1, 5) FROM t; INSERT INTO b SELECT subvector(e, 1, 5) FROM t;",
        )?;
        let differ = "SELECT count(*) FROM
             (SELECT p, lp, t_data FROM generate_series(0, pg_relation_size('a') / 8192 - 1) p,
                  heap_page_items(get_raw_page('a', p::int))) x
             FULL JOIN (SELECT p, lp, t_data FROM generate_series(0, pg_relation_size('b') / 8192 - 1) p,
                  heap_page_items(get_raw_page('b', p::int))) y USING (p, lp)
             WHERE x.t_data IS DISTINCT FROM y.t_data";
        assert_eq!(
            number(&mut client, differ)?,
            0,
            "{ours} differs from {theirs} on disk"
        );
        ensure!(number(&mut client, "SELECT count(*) FROM a")? == 400);

        let same = |what: &str| format!("SELECT count(*) FROM t WHERE ({what}) IS NOT TRUE");
        for what in [
            "v::text = e::text".to_owned(),
            format!("{theirs}_send(v) = {ours}_send(e)"),
            format!("v::{ours} = e AND e::{theirs} = v"),
            "v::real[] = e::real[]".to_owned(),
        ] {
            assert_eq!(number(&mut client, &same(&what))?, 0, "{what}");
        }
        // Distances agree to the rounding of sums in f32, which is relative to the largest term.
        for operator in ["<=>", "<->", "<+>"] {
            let sql = format!(
                "SELECT count(*) FROM t a, t b, LATERAL (SELECT a.v {operator} b.v AS x, a.e {operator} b.e AS y) d
                 WHERE a.i % 7 = 0 AND NOT (x = y OR abs(x - y) <= 1e-4 * (abs(x) + 1e-2))"
            );
            assert_eq!(number(&mut client, &sql)?, 0, "{theirs} {operator}");
        }
        let order = format!(
            "SELECT count(*) FROM t a, t b WHERE (a.v < b.v) <> (a.e < b.e) OR (a.v = b.v) <> (a.e = b.e)
                 OR {theirs}_cmp(a.v, b.v) <> {ours}_cmp(a.e, b.e)"
        );
        assert_eq!(number(&mut client, &order)?, 0, "{theirs} order");
        let average = "SELECT count(*) FROM (SELECT avg(v)::real[] AS x, avg(e)::real[] AS y FROM t) a WHERE x <> y";
        assert_eq!(number(&mut client, average)?, 0, "{theirs} avg");
    }
    Ok(())
}
