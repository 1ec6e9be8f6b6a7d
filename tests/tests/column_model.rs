//! A column of embeddings remembers its model, and is not compared with those of another.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use laser_tests::model::with_two_models;
use laser_tests::{Cluster, failure, wait_until};
use postgres::Client;
use postgres::error::SqlState;

/// A table whose column has embeddings of model `one`.
fn create(cluster: &Cluster) -> Result<Client> {
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, body text, gone text, m embedding(32), h halfembedding(32));
         ALTER TABLE t DROP COLUMN gone;
         INSERT INTO t SELECT i, 'sentence ' || i FROM generate_series(1, 300) i",
    )?;
    client.batch_execute("CALL laser_embed_table('t', 'body', 'm')")?;
    client.batch_execute("CALL laser_embed_table('t', 'body', 'h')")?;
    client.batch_execute("CREATE INDEX i ON t USING laser (body) WITH (model = 'two')")?;
    Ok(client)
}

fn used(client: &mut Client) -> Result<Vec<String>> {
    let rows = client.query(
        "SELECT format('%s %s.%s %s %s', kind, relation, u.name, model, m.fingerprint IS NOT NULL)
         FROM laser_models_used u LEFT JOIN laser_models m USING (fingerprint) ORDER BY 1",
        &[],
    )?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn refused(client: &mut Client, sql: &str) -> Result<()> {
    let (code, message, hint) = failure(client, sql)?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE
            && message.starts_with("embeddings of two "),
        "{message}: {sql}"
    );
    ensure!(!hint.is_empty());
    Ok(())
}

#[test]
fn a_column_is_not_compared_with_another_model() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = create(&cluster)?;
    ensure!(used(&mut client)? == ["column t.h one t", "column t.m one t", "index t.i two t"]);
    client.batch_execute(
        "CREATE TABLE other (id integer, body text, m embedding(32));
         INSERT INTO other VALUES (1, 'x', laser_embed('x', 'two'));
         SECURITY LABEL FOR laser ON COLUMN other.m IS 'two';
         CREATE VIEW v AS SELECT id, m AS renamed FROM t",
    )?;
    // What the column is compared with, where `$` is the name of a model.
    for comparison in [
        "m <=> laser_embed('a question', '$')",
        "laser_embed('a question', '$') <=> m",
        "cosine_distance(m, laser_embed('a question', '$'))",
        "m <-> laser_embed(body, '$')",
        "m <=> laser_embed(lower(body), '$')",
        "h <#> laser_embed('a question', '$')::halfembedding",
        "h <=> laser_embed(body, '$')::halfembedding(32)",
        "h::embedding <=> laser_embed('a question', '$')",
        "m <=> l2_normalize(laser_embed(body, '$'))",
        "m <=> (SELECT laser_embed('a question', '$'))",
    ] {
        for query in [
            format!("SELECT id FROM t ORDER BY {comparison} LIMIT 3"),
            format!("SELECT {comparison} FROM t"),
            format!("SELECT id FROM t WHERE {comparison} < 0.5"),
            format!("SELECT id FROM (SELECT * FROM t OFFSET 0) x WHERE {comparison} < 0.5"),
        ] {
            client.batch_execute(&query.replace('$', "one"))?;
            refused(&mut client, &query.replace('$', "two"))?;
        }
    }
    // What a statement returns is not what it writes.
    client.batch_execute("ALTER TABLE t ADD other embedding(32); SECURITY LABEL FOR laser ON COLUMN t.other IS 'two'")?;
    let written = "WITH w AS (UPDATE t SET id = id WHERE id < 3 RETURNING id, other)
                   SELECT w.other <=> laser_embed('a question', '$') FROM w";
    client.batch_execute(&written.replace('$', "two"))?;
    refused(&mut client, &written.replace('$', "one"))?;
    client.batch_execute("ALTER TABLE t DROP other")?;
    let near = "SELECT id FROM v ORDER BY renamed <=> laser_embed('a question') LIMIT 3";
    client.batch_execute(near)?;
    client.batch_execute(
        "CREATE VIEW united AS SELECT id, m FROM t UNION ALL SELECT id, m FROM other;
         CREATE TABLE g (body text, m embedding(32) GENERATED ALWAYS AS (laser_embed(body, 'one')::embedding(32)) STORED,
                         plain embedding(32) GENERATED ALWAYS AS (laser_embed(body)::embedding(32)) STORED);
         INSERT INTO g VALUES ('x')",
    )?;
    // Through queries around, set operations, and functions that leave the model as it is.
    for query in [
        "SELECT x.id FROM unnest(laser_embed(ARRAY['a', 'b'], '$')) q, LATERAL (SELECT id FROM t ORDER BY m <=> q LIMIT 3) x",
        "SELECT x.id FROM (SELECT laser_embed('x' || i, '$') AS e FROM generate_series(1, 2) i OFFSET 0) q,
                LATERAL (SELECT id FROM t ORDER BY m <=> q.e LIMIT 3) x",
        "SELECT (SELECT id FROM t ORDER BY m <=> q.e LIMIT 1)
         FROM (SELECT laser_embed('x' || i, '$') AS e FROM generate_series(1, 2) i OFFSET 0) q",
        "WITH q AS MATERIALIZED (SELECT laser_embed('x', '$') AS e)
         SELECT id, m <=> (SELECT e FROM q) FROM t ORDER BY m <=> (SELECT e FROM q) LIMIT 5",
        "WITH q AS (SELECT laser_embed('x', '$') AS e)
         SELECT id, m <=> (SELECT e FROM q) FROM t ORDER BY m <=> (SELECT e FROM q) LIMIT 5",
        "WITH q AS MATERIALIZED (SELECT laser_embed('x', model => '$') AS e) SELECT id FROM t, q ORDER BY m <=> e LIMIT 5",
        "SELECT id FROM t ORDER BY subvector(m, 1, 16)::embedding(16) <=> subvector(laser_embed('x', '$'), 1, 16) LIMIT 5",
        "SELECT id FROM t ORDER BY m <=> (SELECT avg(laser_embed(body, '$')) FROM t) LIMIT 5",
        "SELECT id FROM t ORDER BY m <=> laser_embed(body, '$') - laser_embed('y', '$') LIMIT 5",
        "SELECT id FROM t ORDER BY coalesce(m, m) <=> laser_embed('x', '$') LIMIT 5",
        "SELECT id FROM t ORDER BY CASE WHEN id > 3 THEN m END <=> laser_embed('x', '$') LIMIT 5",
        "SELECT id FROM t ORDER BY m <=> (laser_embed(ARRAY['x', 'y'], '$'))[1] LIMIT 5",
        "SELECT id FROM t, (VALUES (laser_embed('x', '$')), (laser_embed('y', '$'))) v(e) ORDER BY m <=> e LIMIT 5",
        "SELECT m <=> laser_embed('x', '$') FROM g",
        // Columns that are grouped by: from PostgreSQL 18 on those of an entry of the range table of their own.
        "SELECT m <=> laser_embed('x', '$') FROM t GROUP BY m",
        "SELECT id, m <=> laser_embed('x', '$') FROM t GROUP BY id, m ORDER BY m <=> laser_embed('x', '$') LIMIT 5",
        "SELECT m FROM t GROUP BY m HAVING m <=> laser_embed('x', '$') < 0.5",
        "SELECT count(*) FROM t GROUP BY m <=> laser_embed('x', '$')",
        "SELECT max(m <=> laser_embed('x', '$')) FROM t GROUP BY id % 3",
        "SELECT coalesce(m, m) <=> laser_embed('x', '$') FROM t GROUP BY coalesce(m, m)",
        "SELECT m <=> laser_embed('x', '$') FROM t GROUP BY GROUPING SETS ((id, m), (m))",
        "SELECT m <=> laser_embed('x', '$') FROM t GROUP BY ROLLUP (id, m)",
        "SELECT (SELECT t.m <=> laser_embed('x', '$') OFFSET 0) FROM t GROUP BY m",
        "SELECT (SELECT t.m <=> laser_embed(o.body, '$') FROM t o WHERE o.id = max(t.id)) FROM t GROUP BY m",
        "SELECT m <=> laser_embed('x', '$') FROM (SELECT m, count(*) FROM t GROUP BY m) x",
        "SELECT m <=> laser_embed('x', '$') FROM (SELECT renamed AS m FROM v GROUP BY renamed OFFSET 0) x",
        "SELECT (SELECT m FROM t LIMIT 1) <=> e FROM (SELECT laser_embed(body, '$') AS e FROM t GROUP BY laser_embed(body, '$')) x",
        "WITH q AS MATERIALIZED (SELECT m FROM t GROUP BY 1) SELECT m <=> laser_embed('x', '$') FROM q GROUP BY m",
        "SELECT DISTINCT m <=> laser_embed('x', '$') FROM t",
        "SELECT id FROM (SELECT DISTINCT ON (id) id, m FROM t ORDER BY id, m) x ORDER BY m <=> laser_embed('x', '$') LIMIT 5",
        "SELECT rank() OVER (ORDER BY m <=> laser_embed('x', '$')) FROM t",
        "SELECT rank() OVER (PARTITION BY id ORDER BY m <=> laser_embed('x', '$')) FROM t GROUP BY id, m",
    ] {
        client.batch_execute(&query.replace('$', "one"))?;
        refused(&mut client, &query.replace('$', "two"))?;
    }
    // Queries that each name the one before many times are planned in no time.
    let mut nested = "SELECT m FROM t".to_owned();
    let mut with = format!("q0 AS ({nested})");
    for i in 1..=7 {
        nested = format!(
            "SELECT coalesce({}) AS m FROM q{}",
            ["m"; 60].join(", "),
            i - 1
        );
        with = format!("{with}, q{i} AS MATERIALIZED ({nested})");
    }
    client.batch_execute(&format!(
        "SET statement_timeout = '60s';
         EXPLAIN WITH {with} SELECT m <=> laser_embed('x', 'one') FROM q7; RESET statement_timeout"
    ))?;
    // Of which model the column is depends on the session that stored it.
    client.batch_execute("SELECT plain <=> laser_embed('x', 'two') FROM g")?;
    for sql in [
        "SELECT t.m <=> other.m FROM t, other",
        "SELECT o.id, x.id FROM other o, LATERAL (SELECT id FROM t ORDER BY t.m <=> o.m LIMIT 3) x",
        "SELECT (SELECT id FROM t ORDER BY t.m <=> o.m LIMIT 1) FROM other o",
        "SELECT id FROM united ORDER BY m <=> laser_embed('x', 'one') LIMIT 5",
        "SELECT id FROM united ORDER BY m <=> laser_embed('x', 'two') LIMIT 5",
        "SELECT id FROM t ORDER BY m <=> (SELECT avg(m) FROM other) LIMIT 5",
        "SELECT id FROM (SELECT id, m FROM t EXCEPT ALL SELECT id, m FROM t) x ORDER BY m <=> laser_embed('x', 'two') LIMIT 5",
        "SELECT x.id FROM other o, LATERAL (SELECT id FROM t ORDER BY m <=> laser_embed(o.body, 'two') LIMIT 3) x",
        "SET laser.model = 'two'; SELECT id FROM t ORDER BY m <=> laser_embed('a question') LIMIT 3",
    ] {
        refused(&mut client, sql)?;
    }
    client.batch_execute("SET laser.model = 'two'")?;
    refused(&mut client, near)?;
    client.batch_execute("RESET laser.model")?;

    // Plans that are kept follow the setting, and the labels.
    for mode in ["force_custom_plan", "force_generic_plan"] {
        client.batch_execute(&format!(
            "SET plan_cache_mode = {mode};
             PREPARE near AS SELECT id FROM t ORDER BY m <=> laser_embed($1) LIMIT 3;
             EXECUTE near('a question');
             SET laser.model = 'two'"
        ))?;
        refused(&mut client, "EXECUTE near('a question')")?;
        client.batch_execute("SECURITY LABEL FOR laser ON COLUMN t.m IS NULL")?;
        client.batch_execute("EXECUTE near('a question')")?;
        client.batch_execute("SECURITY LABEL FOR laser ON COLUMN t.m IS 'one'")?;
        refused(&mut client, "EXECUTE near('a question')")?;
        client.batch_execute("DEALLOCATE near; RESET laser.model")?;
    }
    // A label of another version of the model.
    client.batch_execute(&format!(
        "SECURITY LABEL FOR laser ON COLUMN t.m IS 'one {}'",
        "0".repeat(64)
    ))?;
    refused(
        &mut client,
        "SELECT id FROM t ORDER BY m <=> laser_embed('a question') LIMIT 3",
    )?;
    for wrong in ["", "one two", "one  ", "../one"] {
        let sql = format!("SECURITY LABEL FOR laser ON COLUMN t.m IS '{wrong}'");
        let (code, ..) = failure(&mut client, &sql)?;
        ensure!(code == SqlState::INVALID_PARAMETER_VALUE, "{wrong}");
    }
    let (code, ..) = failure(&mut client, "SECURITY LABEL FOR laser ON TABLE t IS 'one'")?;
    ensure!(code == SqlState::FEATURE_NOT_SUPPORTED);
    Ok(())
}

/// A generic plan, a row or a variable names the model only when the plan runs.
#[test]
fn a_model_that_is_named_late_is_compared_then() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = create(&cluster)?;
    client.batch_execute(
        "CREATE INDEX near ON t USING laser (m);
         CREATE TABLE asked (q text, model text);
         INSERT INTO asked VALUES ('a question', 'one');
         CREATE FUNCTION near(question text, model text) RETURNS SETOF integer LANGUAGE plpgsql AS
         $$BEGIN RETURN QUERY SELECT id FROM t ORDER BY m <=> laser_embed(question, model) LIMIT 3; END$$;
         CREATE VIEW v AS SELECT id, m AS renamed FROM t;
         SET enable_seqscan = off;
         SET plan_cache_mode = force_generic_plan",
    )?;
    for query in [
        "SELECT id FROM t ORDER BY m <=> laser_embed('a question', $1) LIMIT 3",
        "SELECT id FROM t ORDER BY laser_embed('a question', $1, 'query') <=> m LIMIT 3",
        "SELECT id FROM v ORDER BY renamed <=> laser_embed('a question', $1) LIMIT 3",
        "SELECT id FROM t ORDER BY h <-> laser_embed('a question', $1)::halfembedding LIMIT 3",
        "SELECT id FROM t WHERE cosine_distance(m, l2_normalize(laser_embed('a question', $1))) < 3 LIMIT 3",
        "SELECT inner_product(m, laser_embed('a question', $1)) FROM t LIMIT 3",
        "SELECT laser_embed('a question', $1) <=> laser_embed('a question', 'one')",
        "SELECT laser_embed('a question', $1) <=> laser_embed('a question')",
        "SELECT near('a question', $1)",
        "SELECT id FROM asked, LATERAL (SELECT id FROM t ORDER BY m <=> laser_embed(q, $1) LIMIT 3) x",
    ] {
        client.batch_execute(&format!("PREPARE late(text) AS {query}"))?;
        ensure!(
            !client.query("EXECUTE late('one')", &[])?.is_empty(),
            "{query}"
        );
        refused(&mut client, "EXECUTE late('two')")?;
        ensure!(
            !client.query("EXECUTE late('one')", &[])?.is_empty(),
            "{query}"
        );
        client.batch_execute("DEALLOCATE late")?;
    }
    let both = "SELECT laser_embed('a', $1) <=> laser_embed('b', $2)";
    client.batch_execute(&format!("PREPARE late(text, text) AS {both}"))?;
    client.batch_execute("EXECUTE late('two', 'two')")?;
    refused(&mut client, "EXECUTE late('two', 'one')")?;
    client.batch_execute("DEALLOCATE late")?;
    // The index serves the order, and finds what it finds by a constant.
    let order = "ORDER BY m <=> laser_embed('sentence 7', $) LIMIT 5";
    client.batch_execute(&format!(
        "PREPARE late(text) AS SELECT id FROM t {}",
        order.replace('$', "$1")
    ))?;
    let plan = client.query("EXPLAIN EXECUTE late('one')", &[])?;
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    ensure!(
        plan.iter().any(|line| line.contains("using near")),
        "{plan:?}"
    );
    let ids = |client: &mut Client, sql: &str| -> Result<Vec<i32>> {
        let rows = client.query(sql, &[])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    };
    let constant = format!("SELECT id FROM t {}", order.replace('$', "'one'"));
    ensure!(ids(&mut client, "EXECUTE late('one')")? == ids(&mut client, &constant)?);
    // Rows that name it are compared one by one.
    let rows = "SELECT id FROM asked, LATERAL (SELECT id FROM t ORDER BY m <=> laser_embed(q, model) LIMIT 3) x";
    ensure!(client.query(rows, &[])?.len() == 3);
    client.batch_execute("INSERT INTO asked VALUES ('a question', 'two')")?;
    refused(&mut client, rows)?;
    // Who writes a CASE chooses by the row, and who has taken the label away is asked nothing.
    client.batch_execute(
        "PREPARE chosen(text) AS SELECT count(CASE WHEN id > 5 THEN m ELSE m END <=> laser_embed('x', $1)) FROM t;
         EXECUTE chosen('two');
         SECURITY LABEL FOR laser ON COLUMN t.m IS NULL;
         EXECUTE late('two')",
    )?;
    // Null is no model in one form of the function, and the default in the other.
    client.batch_execute(
        "SECURITY LABEL FOR laser ON COLUMN t.m IS 'one'; SET laser.model = 'two';
         PREPARE plain(text) AS SELECT m <=> laser_embed('x', $1) FROM t LIMIT 3;
         PREPARE asks(text) AS SELECT m <=> laser_embed('x', $1, 'query') FROM t LIMIT 3;
         EXECUTE plain(NULL); EXECUTE plain('one'); EXECUTE asks('one')",
    )?;
    refused(&mut client, "EXECUTE asks(NULL)")?;
    // Operands in a function of a subquery in FROM, which the planner changes where they are.
    client.batch_execute(
        "CREATE TABLE sides (a text, b text, one text, other text);
         INSERT INTO sides VALUES ('x', 'y', 'one', 'one');
         CREATE VIEW both_sides AS SELECT d FROM t, sides,
             LATERAL unnest(ARRAY[laser_embed(a, one) <=> laser_embed(b, other)]) d WHERE id < 4;
         SELECT count(d) FROM asked, both_sides",
    )?;
    client.batch_execute("UPDATE sides SET other = 'two'")?;
    refused(&mut client, "SELECT count(d) FROM asked, both_sides")?;
    // Another's function of the same name is left alone, whatever it takes for a model.
    client.batch_execute(
        "CREATE FUNCTION laser_embed(text, bigint) RETURNS embedding LANGUAGE sql STABLE
             AS $$SELECT laser_embed($1, 'one')$$;
         PREPARE strange(bigint) AS SELECT count(m <=> laser_embed('x', $1)) FROM t;
         EXECUTE strange(281474976710657);
         RESET laser.model",
    )?;
    // Names that are none are an error of the call.
    for name in ["no-such", "a b", ""] {
        let (_, message, _) = failure(&mut client, &format!("EXECUTE late('{name}')"))?;
        ensure!(message.contains("model"), "{message}");
    }
    Ok(())
}

#[test]
fn labels_follow_their_columns() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = create(&cluster)?;
    client.batch_execute(
        "CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s; ALTER TABLE s.t RENAME TO moved;
         ALTER TABLE s.moved RENAME COLUMN m TO meaning; ALTER TABLE s.moved DROP COLUMN h",
    )?;
    let moved = ["column s.moved.meaning one t", "index s.moved.i two t"];
    ensure!(used(&mut client)? == moved);
    // Dumps of the database, and of the table alone.
    for (database, options) in [
        ("whole", vec!["-Fc"]),
        ("single", vec!["-Fc", "-t", "s.moved"]),
    ] {
        let file = std::env::temp_dir().join(format!("laser-{}-{database}", std::process::id()));
        let dump = file.display().to_string();
        cluster.run(
            "pg_dump",
            &[&options[..], &["-d", "d", "-f", &dump]].concat(),
        )?;
        client.batch_execute(&format!("CREATE DATABASE {database}"))?;
        let mut restored = cluster.connect(database)?;
        if database == "single" {
            restored.batch_execute("CREATE EXTENSION laser; CREATE SCHEMA s")?;
        }
        let args = ["--exit-on-error", "-d", database, &dump];
        let result = cluster.run("pg_restore", &args);
        std::fs::remove_file(&file)?;
        result?;
        ensure!(used(&mut restored)? == moved, "{database}");
        refused(
            &mut restored,
            "SELECT id FROM s.moved ORDER BY meaning <=> laser_embed('x', 'two') LIMIT 1",
        )?;
    }
    client.batch_execute("DROP TABLE s.moved")?;
    ensure!(used(&mut client)?.is_empty());
    // What `laser_embed_table` labels by: columns that are there, of tables of one's own.
    client.batch_execute(
        "CREATE TABLE t (id integer, body text, gone text, m embedding(32)); ALTER TABLE t DROP gone; CREATE INDEX i ON t (id)",
    )?;
    for call in [
        "laser_label_column('t'::regclass, 3::smallint, 'one')",
        "laser_label_column('t'::regclass, 0::smallint, 'one')",
        "laser_label_column('t'::regclass, 99::smallint, 'one')",
        "laser_label_column('i'::regclass, 1::smallint, 'one')",
        "laser_label_column(1, 1::smallint, 'one')",
    ] {
        let (code, ..) = failure(&mut client, &format!("SELECT public.{call}"))?;
        ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{call}: {code:?}");
    }
    let (code, ..) = failure(
        &mut client,
        "BEGIN READ ONLY; SELECT laser_label_column('t'::regclass, 4::smallint, 'one')",
    )?;
    ensure!(code == SqlState::READ_ONLY_SQL_TRANSACTION, "{code:?}");
    client.batch_execute("ROLLBACK; CREATE ROLE somebody; SET ROLE somebody")?;
    let call = "SELECT public.laser_label_column('public.t'::regclass, 4::smallint, 'one')";
    let (code, ..) = failure(&mut client, call)?;
    ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{code:?}");
    Ok(())
}

#[test]
fn embed_table_keeps_to_the_model_of_the_column() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = create(&cluster)?;
    client.batch_execute("INSERT INTO t VALUES (301, 'a new row'); SET laser.model = 'two'")?;
    let (code, message, hint) = failure(&mut client, "CALL laser_embed_table('t', 'body', 'm')")?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "{message}"
    );
    ensure!(hint.contains("SET laser.model = 'one'"), "{hint}");
    client.batch_execute("RESET laser.model")?;
    client.batch_execute("CALL laser_embed_table('t', 'body', 'm')")?;

    // Partitions have labels of their own.
    client.batch_execute(
        "CREATE TABLE p (id integer, body text, m embedding(32)) PARTITION BY RANGE (id);
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
         CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200);
         INSERT INTO p SELECT i, 'row ' || i FROM generate_series(1, 150) i",
    )?;
    client.batch_execute("CALL laser_embed_table('p', 'body', 'm')")?;
    for table in ["p", "p1", "p2"] {
        refused(
            &mut client,
            &format!("SELECT id FROM {table} ORDER BY m <=> laser_embed('x', 'two') LIMIT 1"),
        )?;
    }

    // Who does not own the table may fill it, but not say what it holds; nor is that said of what is
    // there already.
    client.batch_execute(
        "CREATE TABLE shared (id integer, body text, m embedding(32));
         INSERT INTO shared SELECT i, 'row ' || i FROM generate_series(1, 10) i;
         CREATE TABLE old AS SELECT * FROM t;
         UPDATE old SET m = NULL WHERE id > 10;
         CREATE ROLE writer LOGIN; GRANT SELECT, UPDATE ON shared TO writer",
    )?;
    client.batch_execute("SET ROLE writer")?;
    client.batch_execute("CALL laser_embed_table('shared', 'body', 'm')")?;
    ensure!(
        used(&mut client)?
            .iter()
            .all(|line| !line.contains("shared"))
    );
    client.batch_execute("RESET ROLE")?;
    client.batch_execute("CALL laser_embed_table('old', 'body', 'm')")?;
    let used = used(&mut client)?;
    ensure!(used.iter().all(|line| !line.contains("old")), "{used:?}");
    let rows: i64 = client
        .query_one(
            "SELECT (SELECT count(*) FROM old WHERE m IS NULL)
                  + (SELECT count(*) FROM shared WHERE m IS NULL)",
            &[],
        )?
        .get(0);
    ensure!(rows == 0);
    Ok(())
}

/// A session of a new database with sentences in `t` that are not embedded yet.
fn with_sentences(cluster: &Cluster, rows: usize) -> Result<Client> {
    let mut client = cluster.database("d")?;
    client.batch_execute(&format!(
        "CREATE TABLE t AS SELECT i AS id, 'sentence ' || i AS body, NULL::embedding(32) AS m
         FROM generate_series(1, {rows}) i"
    ))?;
    Ok(client)
}

/// Both lock the table, and the label, in one order, and neither has one of them while a migration waits for the other.
#[test]
fn keeping_and_embedding_at_once_end_without_a_deadlock() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = with_sentences(&cluster, 100)?;
    client.batch_execute("BEGIN; SELECT laser_lock_table('t'::regclass, true)")?;
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND 't'::regclass IN (relation, objid)";
    let mut sessions = Vec::new();
    for (at, sql) in [
        "SELECT laser_keep_embedded('t', 'body', 'm')",
        "CALL laser_embed_table('t', 'body', 'm')",
    ]
    .into_iter()
    .enumerate()
    {
        let mut session = cluster.connect("d")?;
        sessions.push(std::thread::spawn(move || session.batch_execute(sql)));
        wait_until("it waits", || {
            Ok(client.query_one(waiting, &[])?.get::<_, i64>(0) == at as i64 + 1)
        })?;
    }
    client.batch_execute("COMMIT")?;
    for session in sessions {
        session.join().expect("no panic")?;
    }
    let embedded: i64 = client.query_one("SELECT count(m) FROM t", &[])?.get(0);
    ensure!(embedded == 100);

    // What waits for the table has no lock that would keep others from changing it.
    client.batch_execute("CREATE TABLE other AS SELECT body, NULL::embedding(32) AS m FROM t")?;
    client.batch_execute("BEGIN; CREATE INDEX ON other (body)")?;
    let mut session = cluster.connect("d")?;
    let call = std::thread::spawn(move || {
        session.batch_execute("CALL laser_embed_table('other', 'body', 'm')")
    });
    let waiting =
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'other'::regclass";
    wait_until("it waits", || {
        Ok(client.query_one(waiting, &[])?.get::<_, i64>(0) == 1)
    })?;
    client.batch_execute("ALTER TABLE other ADD COLUMN x int; COMMIT")?;
    call.join().expect("no panic")?;
    Ok(())
}

/// Both calls have checked the column before either sets its label.
#[test]
fn two_calls_at_once_do_not_mix_their_models() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = with_sentences(&cluster, 5000)?;
    client.batch_execute("BEGIN; LOCK TABLE t IN SHARE MODE")?;
    let calls: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|model| {
            let mut session = cluster.connect("d")?;
            session.batch_execute(&format!("SET laser.model = '{model}'"))?;
            Ok(std::thread::spawn(move || {
                session.batch_execute("CALL laser_embed_table('t', 'body', 'm', 100)")
            }))
        })
        .collect::<Result<_>>()?;
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass";
    wait_until("both wait", || {
        Ok(client.query_one(waiting, &[])?.get::<_, i64>(0) == 2)
    })?;
    client.batch_execute("COMMIT")?;
    let failed: Vec<_> = calls
        .into_iter()
        .filter_map(|call| call.join().expect("no panic").err())
        .collect();
    ensure!(failed.len() == 1, "{failed:?}");
    ensure!(failed[0].code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE));
    let others: i64 = client
        .query_one(
            "SELECT count(*) FROM t, laser_models_used
             WHERE m IS NULL OR m <> laser_embed(body, model)",
            &[],
        )?
        .get(0);
    ensure!(others == 0, "{others} rows of another model, or none");

    // A label that is changed meanwhile ends the call.
    client.batch_execute(
        "UPDATE t SET m = NULL;
         CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END';
         CREATE TRIGGER slow BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION slow()",
    )?;
    let used = "SELECT model FROM laser_models_used";
    let model: String = client.query_one(used, &[])?.get(0);
    let other = if model == "one" { "two" } else { "one" };
    let mut session = cluster.connect("d")?;
    session.batch_execute(&format!("SET laser.model = '{model}'"))?;
    let call = std::thread::spawn(move || {
        session.batch_execute("CALL laser_embed_table('t', 'body', 'm', 20)")
    });
    wait_until("some are embedded", || {
        let some = "SELECT count(m) FROM t";
        Ok(client.query_one(some, &[])?.get::<_, i64>(0) > 0)
    })?;
    client.batch_execute(&format!(
        "SECURITY LABEL FOR laser ON COLUMN t.m IS '{other}'"
    ))?;
    let error = call.join().expect("no panic").expect_err("it is told");
    let message = error.as_db_error().map(|e| e.message().to_owned());
    ensure!(
        message
            .as_deref()
            .is_some_and(|m| m.contains("was changed to another model")),
        "{message:?}"
    );
    Ok(())
}

/// What a parent's labels do not say, its children's do.
#[test]
fn partitions_of_different_models_are_not_compared_with_one_text() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE p (id integer, body text, m embedding(32)) PARTITION BY LIST (id);
         CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
         CREATE TABLE p2 (gone int, m embedding(32), body text, id integer);
         ALTER TABLE p2 DROP gone; ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2);
         INSERT INTO p VALUES (1, 'train'), (2, 'train')",
    )?;
    client.batch_execute("CALL laser_embed_table('p1', 'body', 'm')")?;
    let search = |model: &str, from: &str| {
        format!("SELECT id FROM {from} ORDER BY m <=> laser_embed('train', '{model}') LIMIT 2")
    };
    client.batch_execute(&search("one", "p"))?;
    refused(&mut client, &search("two", "p"))?;
    client.batch_execute("SET laser.model = 'two'")?;
    client.batch_execute("CALL laser_embed_table('p2', 'body', 'm')")?;
    for model in ["one", "two"] {
        refused(&mut client, &search(model, "p"))?;
    }
    client.batch_execute(&search("one", "p1"))?;
    client.batch_execute(&search("two", "p2"))?;
    client.batch_execute(&search("one", "ONLY p"))?;

    // Labels of many are read in one pass, beside those of other tables and columns.
    client.batch_execute(
        "RESET laser.model;
         CREATE TABLE many (id integer, other embedding(32), m embedding(32)) PARTITION BY LIST (id);
         DO $$ BEGIN FOR i IN 1..40 LOOP
             EXECUTE format('CREATE TABLE many%s PARTITION OF many FOR VALUES IN (%s)', i, i);
             EXECUTE format('SECURITY LABEL FOR laser ON COLUMN many%s.other IS %L', i, 'two');
         END LOOP; END $$;
         SECURITY LABEL FOR laser ON COLUMN many39.m IS 'one'",
    )?;
    client.batch_execute(&search("one", "many"))?;
    refused(&mut client, &search("two", "many"))?;
    client.batch_execute("SECURITY LABEL FOR laser ON COLUMN many7.m IS 'two'")?;
    for model in ["one", "two"] {
        refused(&mut client, &search(model, "many"))?;
    }
    Ok(())
}

/// Who lists the models waits for no lock, and stumbles over no table that goes meanwhile.
#[test]
fn the_list_of_models_waits_for_nobody() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = create(&cluster)?;
    let mut other = cluster.connect("d")?;
    other.batch_execute("BEGIN; LOCK TABLE t")?;
    client.batch_execute("SET statement_timeout = '20s'")?;
    let listed = used(&mut client)?;
    ensure!(
        listed == ["column t.h one t", "column t.m one t"],
        "{listed:?}"
    );
    other.batch_execute("COMMIT")?;
    ensure!(used(&mut client)?.len() == 3);
    let changing = std::thread::spawn(move || {
        (0..60).try_for_each(|_| {
            other.batch_execute(
                "CREATE TABLE passing (body text); CREATE INDEX ON passing USING laser (body);
                 DROP TABLE passing",
            )
        })
    });
    let mut looks = 0;
    while !changing.is_finished() {
        used(&mut client)?;
        looks += 1;
    }
    changing.join().expect("no panic")?;
    ensure!(looks > 3, "{looks}");
    Ok(())
}

/// Mining compares what its two queries return, which it knows as little as the planner unless labels say.
#[test]
fn mining_does_not_compare_two_models() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = create(&cluster)?;
    client.batch_execute(
        "CREATE TABLE other AS SELECT id, body, laser_embed(body, 'two') AS m FROM t;
         ALTER TABLE other ALTER m TYPE embedding(32);
         SECURITY LABEL FOR laser ON COLUMN other.m IS 'two';
         CREATE TABLE unknown AS SELECT id, m FROM other;
         CREATE VIEW v AS SELECT id, m AS renamed FROM other;
         CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL);
         CREATE INDEX ON t USING laser (m); CREATE INDEX ON other USING laser (m)",
    )?;
    let one = "SELECT id, m FROM t";
    let calls = [
        "laser_mine('$1', '$2')",
        "laser_mine('$1', '$2', k => 2, method => 'index')",
        "laser_knn_join('$1', '$2')",
        "laser_margin_scores('SELECT 1, 1', '$1', '$2')",
        "laser_mine_update('state', '$1', '$2')",
    ];
    let call = |call: &str, source: &str, target: &str| {
        format!(
            "SELECT * FROM {}",
            call.replace("$1", source).replace("$2", target)
        )
    };
    for other in [
        "SELECT id, m FROM other",
        "SELECT * FROM v",
        "SELECT o.id, m FROM other o JOIN unknown u USING (id, m)",
        "WITH w AS MATERIALIZED (SELECT * FROM v) SELECT id, renamed FROM w",
        "SELECT * FROM (WITH w AS (SELECT 1) SELECT id, m FROM other) x",
        "SELECT id, laser_embed(body, ''two'') FROM t",
    ] {
        for function in calls {
            refused(&mut client, &call(function, one, other))?;
            refused(&mut client, &call(function, other, one))?;
        }
    }
    for function in calls {
        if !function.contains("index") {
            client.batch_execute(&call(function, one, one))?;
            client.batch_execute(&call(function, one, "SELECT id, m FROM unknown"))?;
            // Texts are embedded by the session's model.
            let texts = "SELECT id, body FROM t";
            client.batch_execute(&call(function, one, texts))?;
            refused(&mut client, &call(function, texts, "SELECT * FROM v"))?;
        }
    }
    Ok(())
}

/// Constraints of inheritance children number tables in their own way when a statement is planned.
#[test]
fn a_constraint_of_a_child_is_not_taken_for_the_statement() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = create(&cluster)?;
    client.batch_execute(
        "CREATE TABLE pair (a embedding(32), b embedding(32));
         SECURITY LABEL FOR laser ON COLUMN pair.a IS 'one';
         SECURITY LABEL FOR laser ON COLUMN pair.b IS 'two';
         CREATE TABLE parent (x embedding(32), y embedding(32));
         CREATE TABLE child (CHECK (x <=> y < 3)) INHERITS (parent)",
    )?;
    client.batch_execute("SELECT count(*) FROM pair, parent WHERE x IS NOT NULL")?;
    refused(&mut client, "SELECT count(*) FROM pair WHERE a <=> b < 1")?;
    for child in ["parent", "child"] {
        client.batch_execute(&format!(
            "SECURITY LABEL FOR laser ON COLUMN {child}.x IS 'one'"
        ))?;
    }
    let sql = "SELECT count(*) FROM pair, parent WHERE x <=> b < 1";
    refused(&mut client, sql)
}

/// The planner simplifies some expressions of a subquery as if they were of the query around.
#[test]
fn what_is_of_a_subquery_is_not_taken_for_the_query_around() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE narrow (id int); CREATE TABLE wide (id int, x int, v embedding(32));
         CREATE TABLE ta (id int, v embedding(32)); CREATE TABLE tb (id int, v embedding(32));
         INSERT INTO narrow VALUES (1); INSERT INTO wide VALUES (1, 1, laser_embed('x', 'one'));
         INSERT INTO ta VALUES (1, laser_embed('x', 'one')); INSERT INTO tb VALUES (1, laser_embed('x', 'two'));
         SECURITY LABEL FOR laser ON COLUMN ta.v IS 'one'; SECURITY LABEL FOR laser ON COLUMN tb.v IS 'two'",
    )?;
    let exists =
        "EXISTS (SELECT FROM tb WHERE tb.id = ta.id AND tb.v <=> laser_embed('x', '$') < .5)";
    client.batch_execute(
        "SELECT narrow.id, EXISTS (SELECT 1 FROM wide WHERE wide.id = narrow.id AND wide.v <=> laser_embed('x', 'one') < .5)
         FROM narrow",
    )?;
    let function = "SELECT (SELECT count(*) FROM tb,
                        LATERAL (SELECT * FROM generate_series(1, (10 * (tb.v <=> laser_embed('x', '$')))::int) g) s
                    WHERE ta.id IS NOT NULL) FROM ta";
    for query in [
        format!("SELECT id, {exists} FROM ta"),
        format!("SELECT id FROM ta WHERE id > 5 OR {exists}"),
        format!("SELECT id FROM ta WHERE {exists}"),
        format!("SELECT id, {exists} FROM ta ORDER BY v <=> laser_embed('x', 'one')"),
        format!("SELECT id, {exists} FROM ta WHERE v <=> laser_embed('x', 'one') < .5"),
        function.to_owned(),
    ] {
        client.batch_execute(&query.replace('$', "two"))?;
        refused(&mut client, &query.replace('$', "one"))?;
    }
    // What is of the query around is still found beside it.
    for query in [
        format!("SELECT id, {exists} FROM ta ORDER BY v <=> laser_embed('x', 'two')"),
        format!(
            "SELECT id FROM ta WHERE (id > 5 OR {exists}) AND v <=> laser_embed('x', 'two') < .5"
        ),
        format!("SELECT id, {exists} FROM ta WHERE v <=> laser_embed('x', 'two') < .5"),
    ] {
        refused(&mut client, &query.replace('$', "two"))?;
    }
    Ok(())
}

/// A CASE may choose the model of each row; a UNION does not.
#[test]
fn a_choice_agrees_where_one_of_it_does() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE d (id int, kind text, v embedding(32)) PARTITION BY LIST (kind);
         CREATE TABLE d1 PARTITION OF d FOR VALUES IN ('one'); CREATE TABLE d2 PARTITION OF d FOR VALUES IN ('two');
         INSERT INTO d VALUES (1, 'one', laser_embed('x', 'one')), (2, 'two', laser_embed('x', 'two'));
         SECURITY LABEL FOR laser ON COLUMN d1.v IS 'one'; SECURITY LABEL FOR laser ON COLUMN d2.v IS 'two';
         CREATE TABLE own (id int, v embedding(32)); SECURITY LABEL FOR laser ON COLUMN own.v IS 'one';
         CREATE VIEW united AS SELECT 'one' AS kind, id, v FROM d1 UNION ALL SELECT 'two', id, v FROM d2",
    )?;
    let case = "CASE kind WHEN 'two' THEN laser_embed('x', 'two') ELSE laser_embed('x', 'one') END";
    for sql in [
        format!("SELECT id FROM d ORDER BY v <=> {case} LIMIT 5"),
        format!("SELECT id FROM united ORDER BY v <=> {case} LIMIT 5"),
        "SELECT d1.id FROM d1 LEFT JOIN own USING (id) ORDER BY coalesce(own.v, d1.v) <=> laser_embed('x', 'one')".to_owned(),
    ] {
        client.batch_execute(&sql)?;
    }
    for sql in [
        "SELECT id FROM own ORDER BY v <=> CASE WHEN id > 3 THEN laser_embed('x', 'two') ELSE laser_embed('y', 'two') END",
        "SELECT id FROM d1 ORDER BY coalesce(v, laser_embed('x', 'one')) <=> laser_embed('x', 'two')",
    ] {
        refused(&mut client, sql)?;
    }
    let sql =
        "SELECT id FROM united WHERE kind = 'one' ORDER BY v <=> laser_embed('x', 'one') LIMIT 5";
    refused(&mut client, sql)?;
    let (_, _, hint) = failure(&mut client, sql)?;
    ensure!(
        hint.contains("name the table that is to be searched"),
        "{hint}"
    );
    Ok(())
}

/// Labels that others have, of anything, do not make plans of many partitions slow.
#[test]
fn labels_of_others_cost_nothing() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE p (id int, m embedding(2)) PARTITION BY LIST (id);
         DO $$ BEGIN FOR i IN 1..40 LOOP
             EXECUTE format('CREATE TABLE p%s PARTITION OF p FOR VALUES IN (%1$s)', i);
         END LOOP; END $$;
         SECURITY LABEL FOR laser ON COLUMN p7.m IS 'two'",
    )?;
    let mut plan = || -> Result<Duration> {
        let mut best = Duration::MAX;
        for _ in 0..8 {
            let began = Instant::now();
            refused(&mut client, "SELECT m <=> laser_embed('x', 'one') FROM p")?;
            best = best.min(began.elapsed());
        }
        Ok(best)
    };
    let before = plan()?;
    cluster.psql(
        "d",
        "SET allow_system_table_mods = on;
         INSERT INTO pg_seclabel SELECT 1000000 + i, 'pg_class'::regclass, 1, 'other', 'a label'
         FROM generate_series(1, 600000) i",
    )?;
    let after = plan()?;
    ensure!(
        after < 4 * before + Duration::from_millis(40),
        "{before:?} {after:?}"
    );
    Ok(())
}
