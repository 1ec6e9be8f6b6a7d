//! The operator on texts takes distances from the scans of its own query alone: functions of other roles
//! that run while a cursor is open hear nothing of it, and no code of the cursor's owner runs for them.

use anyhow::{Result, ensure};
use laser_tests::{Cluster, failure};

/// A table with an index on a function of its owner's, and a cursor over it that has given a row.
const CURSOR: &str = "
    CREATE TABLE a (body text);
    INSERT INTO a SELECT 'the text number ' || i FROM generate_series(1, 500) i;
    CREATE FUNCTION f(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN t; END';
    CREATE INDEX ON a USING laser (f(body));
    CREATE OR REPLACE FUNCTION f(t text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
    DECLARE r refcursor := 'c'; x record;
    BEGIN
        IF current_user <> 'mal' THEN PERFORM rise(); END IF;
        CASE current_setting('my.act', true)
        WHEN 'close' THEN
            PERFORM set_config('my.act', '', false);
            CLOSE r;
            PERFORM repeat('x', i * 1000) FROM generate_series(1, 50) i;
        WHEN 'fetch' THEN
            PERFORM set_config('my.act', '', false);
            FETCH r INTO x;
        WHEN 'fail' THEN
            RAISE EXCEPTION 'failed as it was told';
        ELSE NULL;
        END CASE;
        RETURN t;
    END $$;
    SET enable_seqscan = off;
    BEGIN;
    DECLARE c CURSOR FOR SELECT f(body) FROM a ORDER BY f(body) <=> 'train' LIMIT 10;
    FETCH 1 FROM c";

#[test]
fn an_open_cursor_runs_nothing_for_others() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    owner.batch_execute(
        "CREATE ROLE mal LOGIN; GRANT CREATE ON SCHEMA public TO mal;
         CREATE TABLE secrets (id int, body text);
         INSERT INTO secrets VALUES (1, 'the launch code is 1234'), (2, 'nothing');
         CREATE FUNCTION search(q text) RETURNS bigint LANGUAGE sql SECURITY DEFINER
             SET search_path = pg_catalog, public, pg_temp
             AS $$ SELECT count(*) FROM secrets WHERE body OPERATOR(public.<=>) q < 2.5 $$",
    )?;
    let mut mal = cluster.connect("d")?;
    mal.batch_execute("SET SESSION AUTHORIZATION mal")?;
    mal.batch_execute(
        "CREATE FUNCTION rise() RETURNS void LANGUAGE plpgsql AS 'BEGIN ALTER ROLE mal SUPERUSER; END'",
    )?;
    mal.batch_execute(CURSOR)?;
    ensure!(
        mal.query_one("SELECT search('train')", &[])?
            .get::<_, i64>(0)
            == 2
    );
    mal.batch_execute("COMMIT")?;
    let risen: bool = owner
        .query_one("SELECT rolsuper FROM pg_roles WHERE rolname = 'mal'", &[])?
        .get(0);
    ensure!(!risen, "mal is a superuser");
    Ok(())
}

#[test]
fn a_cursor_that_an_index_expression_meddles_with_ends_nothing() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    client.batch_execute(
        "CREATE FUNCTION rise() RETURNS void LANGUAGE sql AS ''; CREATE ROLE mal SUPERUSER;
         SET SESSION AUTHORIZATION mal",
    )?;
    client.batch_execute(CURSOR)?;
    let ask = "SELECT 'the text number 432' <=> 'train'::text";
    let alone: f64 = client.query_one(ask, &[])?.get(0);
    for act in ["close", "fetch", "fail"] {
        client.batch_execute(&format!(
            "SET my.act = ''; CLOSE ALL;
             DECLARE c CURSOR FOR SELECT f(body) FROM a ORDER BY f(body) <=> 'train' LIMIT 10;
             FETCH 1 FROM c; SET my.act = '{act}'"
        ))?;
        ensure!(
            client.query_one(ask, &[])?.get::<_, f64>(0) == alone,
            "{act}"
        );
        // In the cursor's own query the server itself keeps the cursor from being closed or used.
        client.batch_execute("SAVEPOINT s")?;
        let (_, message, _) = failure(&mut client, "FETCH ALL FROM c")?;
        let expected = match act {
            "fail" => "failed as it was told",
            _ => "cursor",
        };
        ensure!(
            message.contains(expected) || message.contains("portal"),
            "{act}: {message}"
        );
        client.batch_execute("ROLLBACK TO s")?;
        ensure!(
            client.query_one(ask, &[])?.get::<_, f64>(0) == alone,
            "{act}"
        );
    }
    ensure!(
        client
            .query_one("SELECT pg_backend_pid()", &[])?
            .get::<_, i32>(0)
            == pid
    );
    let log = cluster.log();
    ensure!(!log.contains("terminated by signal"), "{log}");
    Ok(())
}

/// An expression of the server's own functions is evaluated again after an error in it.
#[test]
fn an_error_in_an_expression_leaves_nothing_half_done() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE gc (id int, body text);
         INSERT INTO gc SELECT i, md5(i::text) FROM generate_series(1, 200) i;
         CREATE INDEX ON gc USING laser (upper(body));
         SET enable_seqscan = off;
         DO $$
         DECLARE c refcursor; r record; first float8; again float8;
         BEGIN
             OPEN c FOR SELECT upper(body) AS n, upper(body) <=> 'THE COLD SOUP' AS d FROM gc
                        ORDER BY upper(body) <=> 'THE COLD SOUP' LIMIT 10;
             FETCH c INTO r;
             first := r.n <=> 'THE COLD SOUP';
             IF abs(first - r.d) > 2e-3 THEN RAISE EXCEPTION '% %', first, r.d; END IF;
             BEGIN
                 PERFORM 1 / (SELECT count(*) FROM gc WHERE upper(body) <=> 'THE COLD SOUP' > 5);
             EXCEPTION WHEN division_by_zero THEN NULL;
             END;
             FETCH c INTO r;
             again := r.n <=> 'THE COLD SOUP';
             IF abs(again - r.d) > 2e-3 THEN RAISE EXCEPTION '% %', again, r.d; END IF;
         END $$",
    )?;
    Ok(())
}

/// Policies and security-barrier views decide by distances of their own, whatever index somebody searches beside
/// them: one that has another value for the same text, or one that rounds.
#[test]
fn what_decides_who_sees_a_row_hears_no_index() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    owner.batch_execute(
        "CREATE ROLE mallory LOGIN; CREATE SCHEMA atk AUTHORIZATION mallory;
         CREATE TABLE secret (id int, body text);
         INSERT INTO secret VALUES (1, 'the merger with Acme is planned for spring'), (2, 'lunch menu of today');
         CREATE VIEW barrier WITH (security_barrier) AS
             SELECT * FROM secret WHERE body <=> 'company merger' > 0.7;
         CREATE TABLE parts (id int, body text) PARTITION BY LIST (id);
         CREATE TABLE part PARTITION OF parts FOR VALUES IN (1);
         INSERT INTO parts SELECT 1, body FROM secret;
         INSERT INTO parts SELECT 1, 'filler text number ' || i FROM generate_series(1, 200) i;
         CREATE INDEX ON parts USING laser (body) WITH (quantization = b1);
         ALTER TABLE secret ENABLE ROW LEVEL SECURITY; ALTER TABLE parts ENABLE ROW LEVEL SECURITY;
         GRANT SELECT ON secret, barrier, parts TO mallory",
    )?;
    let mut mallory = cluster.connect("d")?;
    mallory.batch_execute(
        "SET SESSION AUTHORIZATION mallory; SET enable_seqscan = off; SET enable_sort = off;
         CREATE TABLE atk.a (body text);
         INSERT INTO atk.a VALUES ('the merger with Acme is planned for spring');
         CREATE TEXT SEARCH CONFIGURATION atk.c (PARSER = default);
         ALTER TEXT SEARCH CONFIGURATION atk.c ADD MAPPING FOR asciiword WITH simple;
         CREATE INDEX ON atk.a USING laser (ts_headline('atk.c'::regconfig, body, 'merger'::tsquery,
             'HighlightAll=true, StartSel=\"how to bake bread with olives \", StopSel=\"\"'));
         ALTER TEXT SEARCH CONFIGURATION atk.c DROP MAPPING FOR asciiword;
         CREATE TABLE atk.b AS SELECT * FROM atk.a;
         INSERT INTO atk.b SELECT 'filler text number ' || i FROM generate_series(1, 200) i;
         CREATE INDEX ON atk.b USING laser (body) WITH (quantization = b1)",
    )?;
    let distance = "body <=> 'company merger'";
    let exact: f64 = owner
        .query_one(&format!("SELECT {distance} FROM secret WHERE id = 1"), &[])?
        .get(0);
    let expression = "ts_headline('atk.c'::regconfig, body, 'merger'::tsquery,
        'HighlightAll=true, StartSel=\"how to bake bread with olives \", StopSel=\"\"') <=> 'company merger'";
    let mine = [("atk.a", expression), ("atk.b", distance)];
    // Each policy hides the row by its distance, by much and by little.
    for policy in [
        format!("{distance} > 0.7"),
        format!("{distance} < {}", exact - 1e-5),
        format!("{distance} > {}", exact + 1e-5),
    ] {
        owner.batch_execute(&format!(
            "DROP POLICY IF EXISTS p ON secret; CREATE POLICY p ON secret USING ({policy});
             DROP POLICY IF EXISTS p ON parts; CREATE POLICY p ON parts USING ({policy})"
        ))?;
        for (table, order) in mine {
            for theirs in ["secret", "barrier"] {
                let inner = format!(
                    "SELECT s.id FROM (SELECT body FROM {table} ORDER BY {order} LIMIT 50) a
                     CROSS JOIN LATERAL (SELECT * FROM {theirs} s WHERE s.body = a.body OFFSET 0) s"
                );
                let outermost = format!(
                    "SELECT (SELECT s.id FROM {theirs} s WHERE s.body = a.body OFFSET 0) FROM {table} a
                     ORDER BY {order} LIMIT 50"
                );
                for sql in [inner, outermost] {
                    let seen = match mallory.query(&sql, &[]) {
                        Ok(rows) => rows
                            .iter()
                            .filter(|row| row.get::<_, Option<i32>>(0).is_some())
                            .count(),
                        // Of an index whose expression has another value by now.
                        Err(error) if format!("{error:?}").contains("tuples in wrong order") => 0,
                        Err(error) => return Err(error.into()),
                    };
                    ensure!(seen == 0, "{policy}: {seen} rows by {sql}");
                }
            }
        }
        let seen = mallory.query(
            &format!("SELECT body FROM parts ORDER BY {distance} LIMIT 300"),
            &[],
        )?;
        let seen = seen
            .iter()
            .any(|row| row.get::<_, String>(0).starts_with("the merger"));
        ensure!(!seen, "{policy}");
    }
    Ok(())
}

/// The search of a view that others see through gives the rows that it gives without an index.
#[test]
fn a_barrier_that_searches_hears_no_index() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    owner.batch_execute(
        "CREATE ROLE reader LOGIN;
         CREATE TABLE tags (id int, body text);
         INSERT INTO tags SELECT i, 'the text number ' || i || ' of ' || md5(i::text) FROM generate_series(1, 400) i;
         CREATE INDEX ON tags USING laser (body) WITH (quantization = b1);
         ANALYZE tags; SET enable_seqscan = off",
    )?;
    // Between what the index has of a row and its distance, where the index's is the smaller one.
    let mut limits = Vec::new();
    for row in owner.query(
        "SELECT id, body <=> 'train' FROM tags ORDER BY body <=> 'train' LIMIT 50",
        &[],
    )? {
        let (id, of_index): (i32, f64) = (row.get(0), row.get(1));
        let exact = "SELECT cosine_distance(body, 'train') FROM tags WHERE id = $1";
        let exact: f64 = owner.query_one(exact, &[&id])?.get(0);
        limits.push((exact - of_index, id, (of_index + exact) / 2.0));
    }
    limits.retain(|(by, ..)| *by > 0.0);
    limits.sort_by(|a, b| b.0.total_cmp(&a.0));
    ensure!(!limits.is_empty(), "the index rounds nothing");
    for (_, id, limit) in limits.into_iter().take(5) {
        owner.batch_execute(&format!(
            "DROP VIEW IF EXISTS visible, narrow;
             CREATE VIEW visible WITH (security_barrier) AS SELECT id FROM tags WHERE id IN (
                 SELECT id FROM (SELECT id, body <=> 'train' AS d FROM tags ORDER BY body <=> 'train' LIMIT 100) z
                 WHERE d < {limit});
             CREATE VIEW narrow WITH (security_barrier) AS
                 SELECT id FROM (SELECT id, body <=> 'train' AS d FROM tags ORDER BY body <=> 'train' LIMIT 100) z
                 WHERE d < {limit};
             GRANT SELECT ON visible, narrow TO reader"
        ))?;
        let mut reader = cluster.connect("d")?;
        reader.batch_execute("SET SESSION AUTHORIZATION reader; SET enable_seqscan = off")?;
        for view in ["visible", "narrow"] {
            let sql = format!("SELECT id FROM {view} WHERE id = {id}");
            ensure!(reader.query(&sql, &[])?.is_empty(), "{sql}, {limit}");
        }
    }
    Ok(())
}

/// A scan computes distances of rows before policies hide them: of their texts nobody is told.
#[test]
fn nobody_is_told_of_a_hidden_text() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    owner.batch_execute(
        "CREATE ROLE reader LOGIN; CREATE TABLE notes (id int, owner text, body text);
         INSERT INTO notes SELECT i, 'reader', 'the text number ' || i FROM generate_series(1, 300) i;
         INSERT INTO notes SELECT 301, 'boss', string_agg('Nobody knows the price of shares ' || i, '. ')
             FROM generate_series(1, 3000) i;
         CREATE INDEX ON notes USING laser (body); ANALYZE notes;
         ALTER TABLE notes ENABLE ROW LEVEL SECURITY;
         CREATE POLICY own ON notes USING (owner = current_user);
         GRANT SELECT ON notes TO reader",
    )?;
    let (mut reader, notices) = cluster.connect_with_notices("d")?;
    reader.batch_execute("SET SESSION AUTHORIZATION reader; SET enable_seqscan = off")?;
    for long_text in ["warn", "error"] {
        reader.batch_execute(&format!("SET laser.long_text = {long_text}"))?;
        notices.take();
        for sql in [
            "SELECT id, 'x' <=> body FROM notes ORDER BY body <=> 'price of shares' LIMIT 1",
            "SELECT id, body <=> 'price of shares' FROM notes n JOIN generate_series(1, 301) g ON g = n.id
             ORDER BY body <=> 'price of shares' LIMIT 1",
            "SELECT id FROM notes WHERE body <=> 'price of shares' < 2 LIMIT 1",
        ] {
            reader.query(sql, &[])?;
            let told = notices.take();
            ensure!(told.is_empty(), "{told:?}: {sql}");
        }
    }
    // Of what an index on embeddings of texts has the server embed, no more than that it is long.
    owner
        .batch_execute("CREATE INDEX ON notes USING laser ((laser_embed(body)::embedding(384)))")?;
    let embedded = "SELECT id FROM notes
        ORDER BY laser_embed(body)::embedding(384) <=> laser_embed('price of shares') LIMIT 1";
    if let Err(error) = reader.query(embedded, &[]) {
        let told = format!("{error:?}");
        ensure!(
            !told.contains("Nobody") && !told.contains("bytes"),
            "{told}"
        );
    }
    // What the reader asks for, they are told of.
    let long = "SELECT id FROM notes ORDER BY body <=> repeat('word ', 9000) LIMIT 1";
    let (code, message, _) = laser_tests::failure(&mut reader, long)?;
    ensure!(
        code == postgres::error::SqlState::STRING_DATA_RIGHT_TRUNCATION,
        "{message}"
    );
    Ok(())
}

/// A text that is too long is not shown to who may not read it: not by what policies and views compute, nor by an
/// index that a row is written to.
#[test]
fn no_text_is_shown() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut owner = cluster.database("d")?;
    owner.batch_execute(
        "CREATE ROLE bob LOGIN; CREATE TABLE docs (id int, x int, body text);
         INSERT INTO docs VALUES (1, 1, 'public note'),
             (2, 1, 'TOP SECRET: the password of alice is 12345 ' || repeat('lorem ipsum dolor sit amet ', 5000));
         CREATE FUNCTION about(t text) RETURNS bool LANGUAGE plpgsql STABLE AS
             $$ BEGIN RETURN laser_embed(t) <=> laser_embed('public note') < 0.3; END $$;
         CREATE FUNCTION near(t text) RETURNS bool LANGUAGE plpgsql STABLE AS
             $$ BEGIN RETURN t <=> 'public note' < 0.3; END $$;
         CREATE TABLE topics (name text, ok bool);
         INSERT INTO topics SELECT 'topic ' || i, i % 2 = 0 FROM generate_series(1, 3000) i;
         CREATE INDEX ON topics USING laser (name); CREATE INDEX ON docs (x); ANALYZE;
         CREATE VIEW nearest WITH (security_barrier) AS SELECT d.id FROM docs d,
             LATERAL (SELECT ok FROM topics ORDER BY name <=> d.body LIMIT 1) n WHERE n.ok;
         ALTER TABLE docs ENABLE ROW LEVEL SECURITY;
         CREATE POLICY one ON docs TO bob USING (about(body) AND near(body));
         GRANT SELECT ON docs, nearest TO bob;
         CREATE TABLE columns AS SELECT * FROM docs; CREATE INDEX ON columns USING laser (body);
         CREATE INDEX ON columns (x); GRANT SELECT (id, x), UPDATE (x) ON columns TO bob",
    )?;
    let (mut bob, notices) = cluster.connect_with_notices("d")?;
    bob.batch_execute("SET SESSION AUTHORIZATION bob; SET enable_seqscan = off")?;
    let mut warned = 0;
    for long_text in ["warn", "error"] {
        bob.batch_execute(&format!("SET laser.long_text = {long_text}"))?;
        for sql in [
            "SELECT id FROM docs",
            "SELECT id FROM nearest",
            "UPDATE columns SET x = x + 1 WHERE id = 2",
        ] {
            let result = bob.batch_execute(sql);
            let told = format!("{result:?} {:?}", notices.take());
            warned += usize::from(told.contains("longer than the model reads"));
            ensure!(
                !told.contains("SECRET") && !told.contains("bytes"),
                "{told}: {sql}"
            );
        }
    }
    ensure!(warned > 0, "no text was too long");
    Ok(())
}
