//! How many texts a search embeds: what it searches for, once, and none of its rows.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use laser_tests::model::{Architecture, Model};
use laser_tests::{Cluster, wait_until};
use postgres::Client;

/// A table of 864 short sentences, with an index.
const SENTENCES: &str = "
    CREATE TABLE s (id serial, body text);
    INSERT INTO s (body) SELECT concat_ws(' ', 'the', a, b, 'is', c, d)
    FROM unnest('{red,green,old,small,big,cheap}'::text[]) a, unnest('{house,car,dog,tree,book,river}'::text[]) b,
         unnest('{very,not,always,hardly}'::text[]) c, unnest('{nice,ugly,far,here,cold,new}'::text[]) d;
    CREATE INDEX ON s USING laser (body)";

/// Texts that the encoder process and the sessions have embedded.
fn embedded(client: &mut Client) -> Result<i64> {
    let mut count = None;
    wait_until("the encoder answers", || {
        let row = client.query_one(
            "SELECT sentences + coalesce(backend_sentences, 0) FROM laser_encoder_status",
            &[],
        )?;
        count = row.get(0);
        Ok(count.is_some())
    })?;
    count.context("the encoder answers")
}

/// Texts that something embeds.
fn cost(watch: &mut Client, act: impl FnOnce() -> Result<()>) -> Result<i64> {
    let before = embedded(watch)?;
    act()?;
    Ok(embedded(watch)? - before)
}

fn cluster(architecture: Architecture) -> Result<(tempfile::TempDir, Cluster)> {
    cluster_that_loads(architecture, true)
}

fn cluster_that_loads(
    architecture: Architecture,
    preload: bool,
) -> Result<(tempfile::TempDir, Cluster)> {
    let models = tempfile::tempdir()?;
    let tiny = Model::tiny("tiny", 32);
    Model {
        architecture,
        ..tiny
    }
    .write(models.path())?;
    let builder = Cluster::builder().models(models.path(), "tiny");
    let cluster = builder.preload(preload).start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, body text, name varchar(99), m embedding(32));
         INSERT INTO t SELECT i, x, x, laser_embed(x)
         FROM (SELECT i, 'sentence ' || md5(i::text) || repeat(chr(97 + i % 26), i % 9) AS x
               FROM generate_series(1, 2000) i) r;
         CREATE INDEX ON t USING laser (body);
         CREATE INDEX ON t USING laser (name);
         CREATE INDEX ON t USING laser (upper(body));
         CREATE INDEX ON t USING laser (m);
         INSERT INTO t SELECT i, 'late ' || i, 'late ' || i, laser_embed('late ' || i)
         FROM generate_series(2001, 2010) i;
         -- Stored out of line, and compressed.
         CREATE TABLE long (id integer, body text);
         INSERT INTO long SELECT i, string_agg(md5((i * 1000 + j)::text), ' ')
         FROM generate_series(1, 400) i, generate_series(1, 100) j GROUP BY i;
         CREATE INDEX ON long USING laser (body);
         CREATE TABLE parts (id integer, body text) PARTITION BY LIST ((id % 2));
         CREATE TABLE odd PARTITION OF parts FOR VALUES IN (1);
         CREATE TABLE even PARTITION OF parts FOR VALUES IN (0);
         INSERT INTO parts SELECT id, body FROM t;
         CREATE INDEX ON parts USING laser (body);
         CREATE TABLE bare AS SELECT id, body FROM t WHERE id <= 50;
         CREATE TABLE q (body text);
         INSERT INTO q VALUES ('one question'), ('another'), ('a third');
         ANALYZE;
         CREATE FUNCTION nearest(query text) RETURNS bigint LANGUAGE plpgsql AS $$
         DECLARE
             row record;
             sum bigint := 0;
         BEGIN
             FOR row IN SELECT id, body FROM t ORDER BY body <=> query LIMIT 30 LOOP
                 sum := sum + row.id;
             END LOOP;
             RETURN sum;
         END $$;
         ALTER DATABASE d SET enable_seqscan = off;
         ALTER DATABASE d SET laser.scan_notices = off",
    )?;
    Ok((models, cluster))
}

fn searches(architecture: Architecture) -> Result<()> {
    let (_models, cluster) = cluster(architecture)?;
    let mut watch = cluster.connect("d")?;
    let mut client = cluster.connect("d")?;
    // Rows, distances in the select list, in a filter, of columns and of expressions.
    for (embeddings, sql) in [
        (
            1,
            "SELECT id FROM t ORDER BY body <=> 'a question' LIMIT 10",
        ),
        (
            1,
            "SELECT id FROM t ORDER BY body <=> 'a question' LIMIT 100",
        ),
        (
            1,
            "SELECT id FROM t ORDER BY 'a question' <=> body LIMIT 10",
        ),
        (
            1,
            "SELECT id, body <=> 'a question' FROM t ORDER BY body <=> 'a question' LIMIT 10",
        ),
        (
            1,
            "SELECT id, 1 - (body <=> 'a question') FROM t ORDER BY body <=> 'a question' LIMIT 10",
        ),
        (
            1,
            "SELECT id FROM t WHERE body <=> 'a question' < 3 ORDER BY body <=> 'a question' LIMIT 10",
        ),
        // What is computed of rows that a LIMIT has let through is no longer beside the scan.
        (
            11,
            "SELECT x.id, x.body <=> 'a question'
             FROM (SELECT * FROM t ORDER BY body <=> 'a question' LIMIT 10) x",
        ),
        (
            1,
            "SELECT x.id, x.d
             FROM (SELECT *, body <=> 'a question' AS d FROM t ORDER BY d LIMIT 10) x WHERE x.d < 3",
        ),
        // Nor is it beside a join, where it is not computed if nobody reads it.
        (
            1,
            "SELECT t.id, b.id FROM t LEFT JOIN bare b USING (id)
             ORDER BY t.body <=> 'a question' LIMIT 10",
        ),
        (
            1,
            "SELECT id FROM t ORDER BY name <=> 'a question' LIMIT 10",
        ),
        (
            1,
            "SELECT id FROM t ORDER BY upper(body) <=> 'a question' LIMIT 10",
        ),
        (
            1,
            "SELECT id FROM t ORDER BY body <=> lower('A question') LIMIT 10",
        ),
        (
            1,
            "SELECT id FROM t ORDER BY body <=> (SELECT 'a ques' || 'tion') LIMIT 10",
        ),
        (
            1,
            "SELECT id FROM parts ORDER BY body <=> 'a question' LIMIT 10",
        ),
        (
            1,
            "SELECT id FROM t ORDER BY m <=> laser_embed('a question') LIMIT 10",
        ),
        (
            1,
            "SELECT id FROM long ORDER BY body <=> 'a question' LIMIT 10",
        ),
        (1, "SELECT nearest('a question')"),
        (
            3,
            "SELECT q.body, x.id FROM q, LATERAL (SELECT id FROM t ORDER BY t.body <=> q.body LIMIT 5) x",
        ),
        (
            3,
            "SELECT q.body, x.id, x.d FROM q, LATERAL (
                 SELECT id, t.body <=> q.body AS d FROM t ORDER BY t.body <=> q.body LIMIT 5) x",
        ),
        (
            3,
            "SELECT q.body, x.id FROM q,
             LATERAL (SELECT id FROM t ORDER BY m <=> laser_embed(q.body) LIMIT 5) x",
        ),
        (
            1,
            "SELECT i, x.id FROM generate_series(1, 5) i,
             LATERAL (SELECT id FROM t WHERE id <> i ORDER BY body <=> 'a question' LIMIT 5) x",
        ),
        // Two searches for the same at a time.
        (
            1,
            "(SELECT id FROM t ORDER BY body <=> 'a question' LIMIT 5)
             UNION ALL (SELECT id FROM long ORDER BY body <=> 'a question' LIMIT 5)",
        ),
        (
            1,
            "SELECT * FROM (SELECT id FROM t ORDER BY body <=> 'a question' LIMIT 5) a,
             LATERAL (SELECT id FROM long ORDER BY body <=> 'a question' LIMIT 5) b",
        ),
        // Without an index each row is embedded, and what is searched for once.
        (
            51,
            "SELECT id FROM bare ORDER BY body <=> 'a question' LIMIT 10",
        ),
        (
            51,
            "SELECT id FROM bare WHERE laser_embed(body) <=> laser_embed(lower('A question')) < 3",
        ),
    ] {
        let given = cost(&mut watch, || Ok(client.batch_execute(sql)?))?;
        ensure!(given == embeddings, "{given} texts were embedded: {sql}");
    }
    // Prepared statements, with plans of their own and with a common one.
    for mode in ["force_custom_plan", "force_generic_plan"] {
        client.batch_execute(&format!("SET plan_cache_mode = {mode}"))?;
        for sql in [
            "SELECT id FROM t ORDER BY body <=> $1 LIMIT 10",
            "SELECT id, body <=> $1 FROM t ORDER BY body <=> $1 LIMIT 10",
            "SELECT id FROM t ORDER BY m <=> laser_embed($1) LIMIT 10",
            "SELECT id, m <=> laser_embed($1) FROM t ORDER BY m <=> laser_embed($1) LIMIT 10",
        ] {
            let statement = client.prepare(sql)?;
            for i in 0..3 {
                let given = cost(&mut watch, || {
                    let rows = client.query(&statement, &[&format!("question {i}")])?;
                    ensure!(rows.len() == 10);
                    Ok(())
                })?;
                ensure!(given == 1, "{given} texts were embedded: {sql} with {mode}");
            }
        }
    }
    client.batch_execute("RESET plan_cache_mode")?;
    // Cursors. What they show may be fetched by a function, which has the distances of the texts.
    for (shown, most) in [("id", 1), ("id, body <=> 'a question'", 700)] {
        let given = cost(&mut watch, || {
            client.batch_execute(&format!(
                "BEGIN;
                 DECLARE c CURSOR FOR SELECT * FROM (
                     SELECT {shown} FROM t ORDER BY body <=> 'a question' LIMIT 40) x"
            ))?;
            for _ in 0..6 {
                client.batch_execute("FETCH 5 FROM c")?;
            }
            Ok(client.batch_execute("COMMIT")?)
        })?;
        ensure!(
            given <= most,
            "{given} texts were embedded for a cursor over {shown}"
        );
    }
    Ok(())
}

#[test]
fn a_search_embeds_its_query_once_in_sessions() -> Result<()> {
    searches(Architecture::Mean)
}

#[test]
fn a_search_embeds_its_query_once_by_the_process() -> Result<()> {
    searches(Architecture::Transformer)
}

/// A session without a preloaded library loads it while it plans its first search.
#[test]
fn the_first_search_of_a_session_embeds_its_query_once() -> Result<()> {
    let (_models, cluster) = cluster_that_loads(Architecture::Transformer, false)?;
    let mut watch = cluster.connect("d")?;
    let search = "SELECT id, body <=> 'a question' FROM t ORDER BY body <=> 'a question' LIMIT 10";
    let prepared = format!("PREPARE p AS {search}");
    for statements in [
        vec![search],
        vec![search, search],
        vec!["SELECT 1", search],
        vec!["LOAD 'laser'", search],
        vec![&prepared, "EXECUTE p", "EXECUTE p", "EXECUTE p"],
        vec![
            "SET plan_cache_mode = force_generic_plan",
            &prepared,
            "EXECUTE p",
            "EXECUTE p",
        ],
    ] {
        let mut client = cluster.connect("d")?;
        for statement in &statements {
            let is_search = statement.starts_with("EXECUTE") || *statement == search;
            let given = cost(&mut watch, || Ok(client.batch_execute(statement)?))?;
            ensure!(
                given == i64::from(is_search),
                "{given} texts were embedded: {statement} of {statements:?}"
            );
        }
    }
    // By the extended protocol.
    let mut client = cluster.connect("d")?;
    let given = cost(&mut watch, || {
        let rows = client.query(search, &[])?;
        ensure!(rows.len() == 10);
        Ok(())
    })?;
    ensure!(given == 1, "{given} texts were embedded");
    Ok(())
}

/// A cursor's distances are the texts': it embeds the rows that it is asked for and some more, and not as many as its limit.
#[test]
fn a_cursor_embeds_what_it_is_asked_for() -> Result<()> {
    let (_models, cluster) = cluster(Architecture::Transformer)?;
    let (mut watch, mut client) = (cluster.connect("d")?, cluster.connect("d")?);
    client.batch_execute(
        "BEGIN; DECLARE c CURSOR FOR SELECT id, body <=> 'a question' FROM t ORDER BY body <=> 'a question' LIMIT 500",
    )?;
    let given = cost(&mut watch, || {
        ensure!(client.query("FETCH 3 FROM c", &[])?.len() == 3);
        Ok(())
    })?;
    ensure!((4..300).contains(&given), "{given} texts were embedded");
    Ok(())
}

/// Whether distances are the index's does not depend on whether a session has loaded the library before.
#[test]
fn the_first_search_of_a_session_shows_what_others_show() -> Result<()> {
    let (_models, cluster) = cluster_that_loads(Architecture::Transformer, false)?;
    let mut watch = cluster.connect("d")?;
    for (given, compared, is_of_index) in [
        ("$1", "$1", true),
        ("$1", "$2", false),
        ("$2", "'a question'", false),
        ("lower($1)", "lower($2)", false),
    ] {
        let mut client = cluster.connect("d")?;
        client.batch_execute(&format!(
            "PREPARE p(text, text) AS SELECT id, body <=> {given} FROM t ORDER BY body <=> {compared} LIMIT 10"
        ))?;
        for execution in 1..=7 {
            let count = cost(&mut watch, || {
                Ok(client.batch_execute("EXECUTE p('a question', 'a question')")?)
            })?;
            ensure!(
                (count == 1) == is_of_index,
                "{count} texts were embedded by execution {execution}: {given}, {compared}"
            );
        }
    }
    Ok(())
}

/// What a scan gives to the operator belongs to the texts beside it, and to no others.
#[test]
fn distances_are_those_of_the_texts() -> Result<()> {
    let (_models, cluster) = cluster(Architecture::Mean)?;
    let mut client = cluster.connect("d")?;
    client.batch_execute(
        "CREATE TABLE pair (id integer PRIMARY KEY, body text, other text);
         INSERT INTO pair SELECT id, body, reverse(body) FROM t;
         CREATE INDEX ON pair USING laser (body);
         CREATE INDEX ON pair USING laser (other);
         -- Versions of rows that share an entry of the index, and others that do not.
         ALTER TABLE pair ADD COLUMN n integer DEFAULT 0;
         UPDATE pair SET n = 1 WHERE id % 3 = 0;
         UPDATE pair SET body = body || ' again' WHERE id % 7 = 0;
         ANALYZE pair",
    )?;
    let wrong =
        "count(*) FILTER (WHERE abs(d - (laser_embed(body) <=> laser_embed('a question'))) > 2e-3)";
    for (rows, sql) in [
        (50, "SELECT body, body <=> 'a question' AS d FROM pair ORDER BY body <=> 'a question' LIMIT 50"),
        (50, "SELECT other AS body, other <=> 'a question' AS d FROM pair ORDER BY body <=> 'a question' LIMIT 50"),
        (50, "SELECT body, body <=> 'a question' AS d FROM pair ORDER BY other <=> 'a question' LIMIT 50"),
        (50, "SELECT b.body, b.body <=> 'a question' AS d
              FROM (SELECT id FROM pair ORDER BY body <=> 'a question' LIMIT 50) a JOIN pair b USING (id)"),
        (50, "SELECT body, 'a question' <=> body AS d
              FROM (SELECT * FROM pair ORDER BY body <=> 'a question' LIMIT 50) x ORDER BY id"),
        (36, "SELECT x.b AS body, x.b <=> 'a question' AS d FROM (
                  SELECT a.body AS a, b.body AS b
                  FROM (SELECT * FROM pair ORDER BY body <=> 'a question' LIMIT 6) a,
                  LATERAL (SELECT * FROM pair WHERE id <> a.id ORDER BY body <=> 'a question' LIMIT 6) b) x"),
        (5, "SELECT body, body <=> 'a question' AS d FROM pair ORDER BY body <=> 'another' LIMIT 5"),
        (5, "SELECT body, body <=> 'a question' AS d FROM pair ORDER BY body <=> 'a question' LIMIT 5 FOR UPDATE"),
    ] {
        let row = client.query_one(&format!("SELECT count(*), {wrong} FROM ({sql}) y"), &[])?;
        let (given, wrong): (i64, i64) = (row.get(0), row.get(1));
        ensure!(given == rows && wrong == 0, "{given} rows, {wrong} wrong: {sql}");
    }
    // In order, to the last bit: what a query shows is what it is ordered by.
    let sorted: bool = client
        .query_one(
            "SELECT bool_and(d >= before) FROM (
                 SELECT d, lag(d) OVER (ORDER BY n) AS before FROM (
                     SELECT row_number() OVER () AS n, d FROM (
                         SELECT body <=> 'a question' AS d FROM pair
                         ORDER BY body <=> 'a question' LIMIT 200) x) y) z",
            &[],
        )?
        .get(0);
    ensure!(sorted);
    // A row that another session changes between the search and the lock.
    let mut other = cluster.connect("d")?;
    other.batch_execute("BEGIN; UPDATE pair SET body = 'changed meanwhile ' || id")?;
    let (first, second) = std::thread::scope(|scope| {
        let search = scope.spawn(|| {
            client.query_one(
                "SELECT d, laser_embed(body) <=> laser_embed('a question') FROM (
                     SELECT body, body <=> 'a question' AS d FROM pair
                     ORDER BY body <=> 'a question' LIMIT 1 FOR UPDATE) x",
                &[],
            )
        });
        wait_until("the search waits for the lock", || {
            Ok(other
                .query_one(
                    "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)",
                    &[],
                )?
                .get(0))
        })?;
        other.batch_execute("COMMIT")?;
        let row = search.join().expect("it does not panic")?;
        Ok::<(f64, f64), anyhow::Error>((row.get(0), row.get(1)))
    })?;
    ensure!((first - second).abs() < 2e-3, "{first}, {second}");
    Ok(())
}

/// What a client leaves in a portal, a function may fetch and compare with what it computes.
#[test]
fn what_is_left_in_a_portal_is_of_the_texts() -> Result<()> {
    let (_models, cluster) = cluster(Architecture::Mean)?;
    let mut client = cluster.connect("d")?;
    const NEAR: &str =
        "SELECT body, body <=> 'a question' AS d FROM t ORDER BY body <=> 'a question' LIMIT 30";
    client.batch_execute(&format!(
        "PREPARE near AS {NEAR};
         CREATE FUNCTION wrong(portal refcursor) RETURNS SETOF float8 LANGUAGE plpgsql AS $$
         DECLARE given record;
         BEGIN
             LOOP
                 FETCH portal INTO given;
                 EXIT WHEN NOT FOUND;
                 RETURN NEXT given.d - cosine_distance(laser_embed(given.body), laser_embed('a question'));
             END LOOP;
         END $$"
    ))?;
    for sql in [NEAR, "EXECUTE near"] {
        let mut transaction = client.transaction()?;
        let statement = transaction.prepare(sql)?;
        let portal = transaction.bind(&statement, &[])?;
        ensure!(transaction.query_portal(&portal, 3)?.len() == 3);
        let rest = "SELECT wrong(name::refcursor) FROM pg_cursors WHERE name LIKE 'p%'";
        let off: Vec<f64> = transaction
            .query(rest, &[])?
            .iter()
            .map(|row| row.get(0))
            .collect();
        ensure!(off.len() == 27, "{sql}: {} rows", off.len());
        ensure!(off.iter().all(|off| *off == 0.0), "{sql}: {off:?}");
    }
    Ok(())
}

/// What a table is stored by has one value, whether a search runs or not.
#[test]
fn what_is_stored_is_no_estimate() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE src (body text);
         INSERT INTO src SELECT 'the text number ' || i || ' of ' || md5(i::text) FROM generate_series(1, 2000) i;
         CREATE INDEX ON src USING laser (body); ANALYZE src;
         CREATE FUNCTION train(body text) RETURNS float8 IMMUTABLE LANGUAGE plpgsql AS
             $$BEGIN RETURN body <=> 'train'; END$$;
         CREATE TABLE t (body text, d float8 GENERATED ALWAYS AS (train(body)) STORED);
         CREATE INDEX td ON t (train(body));
         SET enable_sort = off",
    )?;
    let version: i32 = cluster.psql("d", "SHOW server_version_num")?.parse()?;
    let has_merge = version >= 150_000;
    let nearest = "SELECT body FROM src ORDER BY body <=> 'train' LIMIT 50";
    for sql in [
        format!("INSERT INTO t {nearest}"),
        format!("WITH new AS (INSERT INTO t {nearest} RETURNING body) SELECT count(*) FROM new"),
        format!(
            "MERGE INTO t USING ({nearest}) s ON false WHEN NOT MATCHED THEN INSERT (body) VALUES (s.body)"
        ),
        format!("DO $$ BEGIN INSERT INTO t {nearest}; END $$"),
    ] {
        if sql.starts_with("MERGE") && !has_merge {
            continue;
        }
        client.batch_execute(&format!("TRUNCATE t; {sql}"))?;
        let row = client.query_one(
            "SELECT count(*), count(*) FILTER (WHERE d <> (body || '' <=> 'train')) FROM t",
            &[],
        )?;
        ensure!(
            row.get::<_, i64>(0) == 50 && row.get::<_, i64>(1) == 0,
            "{sql}: {row:?}"
        );
        client.batch_execute("SET enable_seqscan = off")?;
        let found: i64 = client
            .query_one(
                "SELECT count(*) FROM t a WHERE EXISTS (SELECT FROM t WHERE train(t.body) = a.d)",
                &[],
            )?
            .get(0);
        ensure!(found == 50, "{sql}: {found} found by the index");
        client.batch_execute("RESET enable_seqscan")?;
    }
    Ok(())
}

/// Which rows a role sees depends on no plan, also where a policy asks for distances.
#[test]
fn policies_see_distances_as_they_are() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (body text, tenant name DEFAULT 'reader');
         INSERT INTO t SELECT 'the text number ' || i || ' of ' || md5(i::text) FROM generate_series(1, 2000) i;
         CREATE INDEX ON t USING laser (body); ANALYZE t;
         CREATE ROLE reader LOGIN; GRANT SELECT ON t TO reader;
         ALTER TABLE t ENABLE ROW LEVEL SECURITY; SET enable_sort = off",
    )?;
    let nearest = "SELECT body, body <=> 'train' AS d FROM t ORDER BY body <=> 'train' LIMIT 40";
    let rows = client.query(nearest, &[])?;
    // Between the index's idea of a row's distance and the distance.
    let mut bound = (0.0, 0.0);
    for row in &rows {
        let (body, near): (String, f64) = (row.get(0), row.get(1));
        let exact: f64 = client
            .query_one("SELECT $1::text <=> 'train'::text", &[&body])?
            .get(0);
        if exact - near > bound.0 {
            bound = (exact - near, (exact + near) / 2.0);
        }
    }
    ensure!(bound.0 > 1e-6, "{bound:?}");
    client.batch_execute(&format!(
        "CREATE POLICY p ON t USING (body <=> 'train' < {})",
        bound.1
    ))?;
    let mut reader = cluster.connect("d")?;
    // The search ends at the policy's limit; so wide, it looks at every row.
    reader.batch_execute(
        "SET SESSION AUTHORIZATION reader; SET enable_sort = off; SET laser.ef_search = 1000",
    )?;
    let mut seen = |sql: &str| -> Result<Vec<String>> {
        let rows = reader.query(sql, &[])?;
        let mut bodies: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        bodies.sort();
        Ok(bodies)
    };
    let by_index = seen("SELECT body FROM t ORDER BY body <=> 'train' LIMIT 100")?;
    let all = seen("SELECT body FROM t")?;
    ensure!(
        by_index == all && all.len() > 3,
        "{} and {}",
        by_index.len(),
        all.len()
    );

    // Also where a policy searches a table: `t` is searched for what is nearest to a row of `docs`.
    client.batch_execute(
        "CREATE TABLE docs AS SELECT 'another text about ' || md5((i + 5000)::text) AS body FROM generate_series(1, 8) i;
         GRANT SELECT ON docs TO reader; ALTER TABLE t DISABLE ROW LEVEL SECURITY;
         ALTER TABLE docs ENABLE ROW LEVEL SECURITY",
    )?;
    for minimum in [
        "(SELECT min(t.body <=> docs.body) FROM t)",
        "(SELECT t.body <=> docs.body FROM t ORDER BY t.body <=> docs.body LIMIT 1)",
    ] {
        client.batch_execute("SET enable_indexscan = off")?;
        let bounds = client.query(&format!("SELECT {minimum} FROM docs"), &[])?;
        let bounds: Vec<f64> = bounds.iter().map(|row| row.get(0)).collect();
        client.batch_execute("RESET enable_indexscan")?;
        let mut seen_in = |settings: &str| -> Result<i64> {
            client.batch_execute(settings)?;
            let mut count = 0;
            for bound in &bounds {
                // Hides the rows whose minimum this is.
                client.batch_execute(&format!(
                "DROP POLICY IF EXISTS p ON docs; CREATE POLICY p ON docs USING ({minimum} <> {bound})"
            ))?;
                client.batch_execute("SET ROLE reader")?;
                count += client
                    .query_one("SELECT count(*) FROM docs", &[])?
                    .get::<_, i64>(0);
                client.batch_execute("RESET ROLE")?;
            }
            Ok(count)
        };
        let (by_index, by_rows) = (
            seen_in("SET enable_seqscan = off")?,
            seen_in("RESET enable_seqscan; SET enable_indexscan = off")?,
        );
        ensure!(by_index == by_rows, "{by_index} and {by_rows}: {minimum}");
    }
    client.batch_execute("RESET enable_indexscan; ALTER TABLE t ENABLE ROW LEVEL SECURITY")?;

    // The usual policies leave a search as cheap as it is.
    client.batch_execute("DROP POLICY p ON t; CREATE POLICY p ON t USING (tenant = current_user AND body IS NOT NULL)")?;
    let embedded = cost(&mut client, || {
        ensure!(seen("SELECT body FROM t ORDER BY body <=> 'another train' LIMIT 10")?.len() == 10);
        Ok(())
    })?;
    ensure!(embedded == 1, "{embedded} texts are embedded");
    Ok(())
}

/// Nodes of a plan merge and group by a distance in the order of a scan: it is the order of what they compute,
/// where that is the scan's distance and where it is the texts'.
#[test]
fn what_is_computed_is_in_order() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SENTENCES)?;
    client.batch_execute(
        "CREATE FUNCTION plain(t text) RETURNS text IMMUTABLE STRICT LANGUAGE plpgsql AS 'BEGIN RETURN lower(t); END';
         CREATE INDEX ON s USING laser (plain(body));
         -- The same texts in the pending list, which stores them in full.
         INSERT INTO s (body) SELECT body FROM s;
         ANALYZE s;
         CREATE TABLE groups (d float8); CREATE TABLE pairs (i int, j int, d float8);
         CREATE ROLE reader; GRANT SELECT ON s TO reader;
         SET enable_sort = off; SET enable_hashagg = off; SET enable_hashjoin = off",
    )?;
    let count =
        |client: &mut Client, sql: &str| -> Result<i64> { Ok(client.query_one(sql, &[])?.get(0)) };
    for value in ["body", "plain(body)"] {
        let near = format!(
            "(SELECT id, {value} <=> 'my house is very cold' AS d FROM s
              ORDER BY {value} <=> 'my house is very cold' LIMIT 400)"
        );
        // In statements that write, and with locks.
        for sql in [
            format!("INSERT INTO groups SELECT d FROM {near} x GROUP BY d"),
            format!("INSERT INTO groups SELECT DISTINCT d FROM {near} x"),
            format!(
                "CREATE TABLE kept AS SELECT d FROM {near} x GROUP BY d; INSERT INTO groups SELECT d FROM kept; DROP TABLE kept"
            ),
            format!(
                "INSERT INTO groups SELECT DISTINCT d FROM (SELECT d FROM {near} y FOR UPDATE OF y) x"
            ),
        ] {
            client.batch_execute("TRUNCATE groups")?;
            client.batch_execute(&sql)?;
            let twice = count(
                &mut client,
                "SELECT count(*) - count(DISTINCT d) FROM groups",
            )?;
            ensure!(twice == 0, "{twice} groups came again: {sql}");
        }
        let join = format!("SELECT x.id, y.id, d FROM {near} x JOIN {near} y USING (d)");
        client.batch_execute(&format!("INSERT INTO pairs {join}"))?;
        // In those that read, with row-level security and without.
        for role in ["NONE", "reader"] {
            client.batch_execute(&format!("SET ROLE {role}"))?;
            let joined = count(&mut client, &format!("SELECT count(*) FROM ({join}) x"))?;
            ensure!(joined >= 400, "{joined}");
            for sql in [
                format!(
                    "SELECT count(*) - count(DISTINCT d) FROM (SELECT d FROM {near} x GROUP BY d) y"
                ),
                format!(
                    "SELECT count(*) FROM (
                         SELECT d, lag(d) OVER (ORDER BY n) AS before
                         FROM (SELECT d, row_number() OVER (ORDER BY d) AS n FROM {near} x) y) z
                     WHERE d < before"
                ),
            ] {
                let wrong = count(&mut client, &sql)?;
                ensure!(wrong == 0, "{role}: {wrong}: {sql}");
            }
            client.batch_execute(
                "RESET ROLE; ALTER TABLE s ENABLE ROW LEVEL SECURITY;
                 DROP POLICY IF EXISTS p ON s; CREATE POLICY p ON s USING (body <=> 'x' > -1)",
            )?;
        }
        client.batch_execute("ALTER TABLE s DISABLE ROW LEVEL SECURITY")?;
    }
    // The same distance, written as another one, beside a hidden order.
    let sql = "SELECT count(*) FROM (
                   SELECT d, lag(d) OVER (ORDER BY n) AS before FROM (
                       SELECT row_number() OVER () AS n, d FROM (
                           SELECT 1 - (1 - (body <=> (SELECT 'a cheap car'::text))) AS d FROM s
                           ORDER BY body <=> (SELECT 'a cheap car'::text) LIMIT 100) x) y) z
               WHERE d < before";
    let wrong = count(&mut client, sql)?;
    ensure!(wrong == 0, "{wrong} out of order");
    // What a table keeps is computed of the texts.
    client.batch_execute(
        "CREATE TABLE kept AS SELECT body, body <=> 'a cheap car' AS d FROM s ORDER BY body <=> 'a cheap car' LIMIT 20;
         PREPARE near AS SELECT body, body <=> 'a cheap car' AS d FROM s ORDER BY body <=> 'a cheap car' LIMIT 20;
         CREATE TABLE prepared AS EXECUTE near;
         CREATE MATERIALIZED VIEW view AS
             SELECT body, body <=> 'a cheap car' AS d FROM s ORDER BY body <=> 'a cheap car' LIMIT 20",
    )?;
    for kept in ["kept", "prepared", "view"] {
        let other = format!("SELECT count(*) FROM {kept} WHERE d <> body <=> 'a cheap car'");
        let other = count(&mut client, &other)?;
        ensure!(other == 0, "{other} in {kept}");
    }
    Ok(())
}

/// Where a query says that a column is equal to a distance, nodes above take the column to be in the order of
/// the distance; and a scan's columns may have a part of what a node above computes as a whole.
#[test]
fn what_is_equal_to_a_distance_is_in_its_order() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SENTENCES)?;
    client.batch_execute(
        "-- The same texts in the pending list, which stores them in full.
         INSERT INTO s (body) SELECT body FROM s;
         CREATE TABLE x AS SELECT id, body <=> 'my house is very cold' AS d FROM s;
         CREATE INDEX ON x (d);
         CREATE TABLE y AS SELECT id FROM s;
         CREATE INDEX ON y (id);
         CREATE TABLE parts (id int, body text) PARTITION BY LIST ((id % 2));
         CREATE TABLE odd PARTITION OF parts FOR VALUES IN (1);
         CREATE TABLE even PARTITION OF parts FOR VALUES IN (0);
         INSERT INTO parts SELECT * FROM s;
         CREATE INDEX ON parts USING laser (body);
         CREATE TABLE author AS SELECT id, 'author ' || id AS name FROM s;
         ALTER TABLE author ADD PRIMARY KEY (id);
         CREATE TABLE page AS SELECT id, 'page ' || id AS url FROM s;
         ALTER TABLE page ADD PRIMARY KEY (id);
         ANALYZE",
    )?;
    let near = "s.body <=> 'my house is very cold'";
    let equal = format!("SELECT x.d, x.id FROM s JOIN x ON x.d = {near} ORDER BY {near} LIMIT 800");
    let part = format!(
        "SELECT {near} AS d, id FROM s LEFT JOIN LATERAL (SELECT 1 - ({near}) AS similarity) l ON true
         JOIN y USING (id) ORDER BY d LIMIT 800"
    );
    // One join passes the texts on, and the other computes the distance.
    let joins = "SELECT p.body <=> 'my house is very cold' AS d, id, name, url
                 FROM parts p JOIN author USING (id) JOIN page USING (id) ORDER BY d LIMIT 1500";
    let part_read = part.replace("AS d, id", "AS d, id, l.similarity");
    for settings in [
        "SET enable_hashjoin = on; SET enable_sort = on; SET enable_hashagg = on",
        "SET enable_hashjoin = off; SET enable_sort = off; SET enable_hashagg = off",
    ] {
        client.batch_execute(settings)?;
        for query in [&*equal, &part, &part_read, joins] {
            let row = client.query_one(
                &format!(
                    "SELECT count(*), count(DISTINCT d) FROM (
                         SELECT d, count(*) FROM ({query}) z WHERE id > 0 GROUP BY d) groups"
                ),
                &[],
            )?;
            let (groups, distinct): (i64, i64) = (row.get(0), row.get(1));
            ensure!(
                groups == distinct,
                "{groups}, {distinct}: {settings}: {query}"
            );
            let mut last = f64::NEG_INFINITY;
            for row in client.query(query, &[])? {
                let distance: f64 = row.get(0);
                ensure!(
                    distance >= last,
                    "{distance} after {last}: {settings}: {query}"
                );
                last = distance;
            }
        }
    }
    client.batch_execute("SET enable_nestloop = off")?;
    // A join above compares what scans below it have in their columns.
    let exists = "SELECT p.id FROM parts p
                  WHERE EXISTS (SELECT 1 FROM x WHERE x.d = p.body <=> 'my house is very cold')
                  ORDER BY p.body <=> 'my house is very cold' LIMIT 10";
    ensure!(client.query(exists, &[])?.len() == 10);
    let row = client.query_one(
        &format!("SELECT count(*) FROM ({equal}) z JOIN x USING (d)"),
        &[],
    )?;
    ensure!(row.get::<_, i64>(0) >= 800);
    // A plan in a parallel worker does not know what becomes of its rows.
    client.batch_execute(
        "RESET ALL; SET enable_seqscan = off; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
         SELECT set_config(name, 'on', false) FROM pg_settings
         WHERE name IN ('force_parallel_mode', 'debug_parallel_query');
         CREATE TABLE kept AS SELECT body, body <=> 'a cheap car' AS d FROM s ORDER BY body <=> 'a cheap car' LIMIT 20;
         RESET ALL",
    )?;
    let row = client.query_one(
        "SELECT count(*) FROM kept WHERE d <> body <=> 'a cheap car'",
        &[],
    )?;
    let estimates: i64 = row.get(0);
    ensure!(estimates == 0, "{estimates} estimates are kept");
    Ok(())
}

/// Texts, and an index whose distances are far from theirs.
const ROUNDED: &str = "CREATE TABLE t (id int, body text);
    INSERT INTO t SELECT i, 'the text number ' || i || ' of ' || md5(i::text) FROM generate_series(1, 500) i;
    CREATE INDEX ON t USING laser (body) WITH (quantization = b1)";

/// Each process of a parallel plan may run a subquery by itself: all find the same rows.
#[test]
fn processes_of_a_plan_find_the_same_rows() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(ROUNDED)?;
    client.batch_execute(
        "CREATE TABLE large AS SELECT i % 500 + 1 AS id, repeat('x', 60) AS pad FROM generate_series(1, 50000) i;
         ANALYZE; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
         SET enable_indexonlyscan = off",
    )?;
    for (filter, rows) in [("IN", 700), ("NOT IN", 49_300)] {
        let sql = format!(
            "SELECT count(*) FROM large
             WHERE id {filter} (SELECT id FROM t ORDER BY body <=> 'train' LIMIT 7) OR id < 0"
        );
        let plan = client.query(&format!("EXPLAIN (COSTS OFF) {sql}"), &[])?;
        let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
        let plan = plan.join("\n");
        for part in ["Gather", "hashed SubPlan", "Index Scan"] {
            ensure!(plan.contains(part), "{plan}");
        }
        for _ in 0..5 {
            let found: i64 = client.query_one(&sql, &[])?.get(0);
            ensure!(found == rows, "{found} rows of {rows}: {sql}");
        }
    }
    Ok(())
}

/// A row that somebody else changes meanwhile is compared again, with the same rows of a subquery's search.
#[test]
fn a_row_that_changed_meanwhile_is_written() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(ROUNDED)?;
    client.batch_execute("CREATE TABLE rows AS SELECT id, 0 AS x, 0 AS y FROM t; ANALYZE")?;
    let rows = client.query(
        "SELECT id FROM t ORDER BY cosine_distance(body, 'train') LIMIT 20",
        &[],
    )?;
    let near: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    let update = "UPDATE rows SET y = y + 1
                  WHERE id IN (SELECT id FROM t ORDER BY body <=> 'train' LIMIT 7) OR id < 0";
    ensure!(client.execute(update, &[])? == 7);
    for id in near {
        let mut other = cluster.connect("d")?;
        other.batch_execute(&format!("BEGIN; UPDATE rows SET x = x + 1 WHERE id = {id}"))?;
        let changed = std::thread::scope(|scope| -> Result<u64> {
            let waiting = scope.spawn(|| client.execute(update, &[]));
            std::thread::sleep(Duration::from_millis(50));
            other.batch_execute("COMMIT")?;
            Ok(waiting.join().expect("no panic")?)
        })?;
        ensure!(changed == 7, "{changed} rows beside a change of {id}");
    }
    Ok(())
}

/// How the vectors of texts are stored is decided by rows from all over the table, and none of them is embedded twice.
#[test]
fn a_build_samples_the_whole_table_and_embeds_it_once() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    // Texts that are unlike one another, and some that are nearly alike, whose distances 8 bits blur more.
    client.batch_execute(
        "CREATE TABLE rows AS
             SELECT 1 AS part, i AS id, string_agg(md5((i * 100 + j)::text), ' ') AS body
             FROM generate_series(1, 1000) i, generate_series(1, 35) j GROUP BY i
             UNION ALL SELECT 2, i, i % 977 || ' ' || i % 37 || repeat(' the same words again and again without an end', 25)
             FROM generate_series(1, 3000) i;
         CREATE TABLE first (LIKE rows); CREATE TABLE last (LIKE rows); CREATE TABLE mixed (LIKE rows);
         INSERT INTO first SELECT * FROM rows ORDER BY part, id; INSERT INTO last SELECT * FROM rows ORDER BY -part, id;
         INSERT INTO mixed SELECT * FROM rows ORDER BY md5(id::text)",
    )?;
    let mut noise = Vec::new();
    for table in ["mixed", "first", "last"] {
        let mut builder = cluster.connect("d")?;
        let embedded = cost(&mut client, || {
            builder.batch_execute(&format!(
                "SET maintenance_work_mem = '4MB'; CREATE INDEX {table}_i ON {table} USING laser (body)"
            ))?;
            Ok(())
        })?;
        ensure!(embedded == 4000, "{table}: {embedded}");
        let row = client.query_one(
            &format!(
                "SELECT substring(stored_as FROM 'by ([0-9.]+) %')::float8,
                        (SELECT count(*) FROM laser_index_check('{table}_i', true))
                 FROM laser_index_info('{table}_i')"
            ),
            &[],
        )?;
        ensure!(row.get::<_, i64>(1) == 0, "{table}");
        noise.push(row.get::<_, f64>(0));
    }
    let [mixed, others @ ..] = &noise[..] else {
        unreachable!("three tables")
    };
    ensure!(
        others
            .iter()
            .all(|noise| (0.5 * mixed..2.0 * mixed).contains(noise)),
        "{noise:?}"
    );
    Ok(())
}
