//! The layout is pgvector's, shown against pgvector itself, and databases with both. Skipped with a message
//! where the extension `vector` cannot be had.

use anyhow::{Result, ensure};
use laser_tests::pgvector::has_pgvector;
use laser_tests::{Cluster, failure};
use postgres::Client;
use postgres::error::SqlState;

/// A cluster with both extensions and the casts between them, or nothing where pgvector cannot be had.
fn both() -> Result<Option<(Cluster, Client)>> {
    if !has_pgvector("pgvector's columns and bytes")? {
        return Ok(None);
    }
    let cluster = Cluster::builder().preload(false).start()?;
    let mut client = cluster.database("both")?;
    client.batch_execute("CREATE EXTENSION laser_pgvector CASCADE")?;
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

/// A dump has the columns, the indexes with their operator classes, expressions over the casts, and labels.
#[test]
fn a_dump_is_restored() -> Result<()> {
    if !has_pgvector("dumps of pgvector's columns")? {
        return Ok(());
    }
    let cluster = Cluster::new()?;
    cluster.psql("postgres", "CREATE DATABASE source")?;
    cluster.psql("postgres", "CREATE DATABASE copy")?;
    cluster.psql(
        "source",
        "CREATE SCHEMA extensions;
         CREATE EXTENSION vector SCHEMA extensions;
         CREATE EXTENSION laser;
         CREATE EXTENSION laser_pgvector SCHEMA extensions;
         SET search_path = public, extensions;
         CREATE TABLE t (id int, v vector(3), h halfvec(3), e embedding(3),
                         g vector(3) GENERATED ALWAYS AS (e) STORED, CHECK (e <-> v > 0));
         INSERT INTO t SELECT i, v, v::halfvec, (v + '[1,0,0]')::embedding
         FROM generate_series(1, 100) i, LATERAL (SELECT ARRAY[1, i, i * i]::vector AS v) x;
         CREATE INDEX tv ON t USING laser (v);
         CREATE INDEX tl ON t USING laser (v vector_l2_ops) WITH (m = 8, quantization = f32);
         CREATE INDEX th ON t USING laser ((e::halfvec(3)) halfvec_ip_ops) WHERE id > 3;
         CREATE VIEW w AS SELECT id FROM t ORDER BY v <=> '[1,2,3]'::embedding LIMIT 1;
         SECURITY LABEL FOR laser ON COLUMN t.v IS 'laser-mean-384'",
    )?;
    let dump = cluster.scratch()?.join("dump.sql").display().to_string();
    cluster.run("pg_dump", &["-d", "source", "-f", &dump])?;
    let options = [
        "-X",
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        "copy",
        "-f",
        &dump,
    ];
    cluster.run("psql", &options)?;
    for sql in [
        "SELECT string_agg(pg_get_indexdef(indexrelid), E'\\n' ORDER BY indexrelid::regclass::text)
         FROM pg_index WHERE indrelid = 't'::regclass",
        "SELECT string_agg(t::text, ' ' ORDER BY id) FROM t",
        "SELECT id FROM w",
        "SELECT name, model FROM laser_models_used",
        "SELECT string_agg(concat(extname, extnamespace::regnamespace), ' ' ORDER BY extname) FROM pg_extension",
        "SELECT count(*) FROM pg_class c, laser_index_check(c.oid) WHERE relname IN ('tv', 'tl', 'th')",
    ] {
        let (old, new) = (cluster.psql("source", sql)?, cluster.psql("copy", sql)?);
        ensure!(old == new, "{sql}\n{old}\n{new}");
    }
    Ok(())
}

/// The owner of the extension may add types to it, which are not pgvector's for that.
#[test]
fn a_type_that_was_added_is_not_theirs() -> Result<()> {
    let Some((_cluster, mut client)) = both()? else {
        return Ok(());
    };
    client.batch_execute(
        "CREATE SCHEMA other; CREATE TYPE other.vector AS ENUM ('a', 'b');
         ALTER EXTENSION vector ADD TYPE other.vector",
    )?;
    let error = client
        .batch_execute(
            "SELECT * FROM laser_mine('SELECT 1::bigint, ''a''::other.vector', 'SELECT 1::bigint, ''b''::other.vector')",
        )
        .expect_err("no embedding");
    let code = error.code().cloned();
    ensure!(code == Some(SqlState::DATATYPE_MISMATCH), "{error:?}");
    Ok(())
}

/// The layout of pgvector's types is relied on: of what has the name of one in an older version, anybody may be the author.
#[test]
fn a_type_that_has_the_name_of_theirs_is_not_theirs() -> Result<()> {
    if !has_pgvector("types of pgvector")? {
        return Ok(());
    }
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE EXTENSION vector;
         ALTER EXTENSION vector DROP TYPE halfvec; ALTER TYPE halfvec RENAME TO theirs;
         CREATE TYPE halfvec AS RANGE (subtype = numeric);
         CREATE FUNCTION d(halfvec, halfvec) RETURNS float8 LANGUAGE sql IMMUTABLE AS 'SELECT 0::float8';
         CREATE OPERATOR <=> (LEFTARG = halfvec, RIGHTARG = halfvec, FUNCTION = d);
         CREATE OPERATOR <-> (LEFTARG = halfvec, RIGHTARG = halfvec, FUNCTION = d);
         CREATE OPERATOR <#> (LEFTARG = halfvec, RIGHTARG = halfvec, FUNCTION = d)",
    )?;
    let (code, message, _) = failure(&mut client, "CREATE EXTENSION laser_pgvector")?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "{message}"
    );
    ensure!(message.contains("has no type halfvec"), "{message}");
    Ok(())
}
