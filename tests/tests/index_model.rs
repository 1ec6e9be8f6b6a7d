//! Indexes on text and `laser.model`: the index and the operator `<=>` of a query mean the same model, or
//! the index is left alone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use laser_tests::model::{Architecture, Model, with_two_models};
use laser_tests::{Cluster, Notices, failure, wait_until};
use postgres::Client;
use postgres::error::SqlState;

const NEAR: &str =
    "SELECT id, body <=> 'sentence of words' FROM t ORDER BY body <=> 'sentence of words' LIMIT 20";

/// A table with an index of the default model, `one`, and sessions that prefer indexes.
fn create(cluster: &Cluster) -> Result<(Client, Notices)> {
    let mut client = cluster.database("models")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, body text);
         INSERT INTO t SELECT i, 'sentence ' || md5(i::text) || repeat(chr(97 + i % 26), i % 9)
         FROM generate_series(1, 2000) i;
         CREATE INDEX of_one ON t USING laser (body);
         ANALYZE t;
         ALTER DATABASE models SET enable_seqscan = off",
    )?;
    drop(client);
    cluster.connect_with_notices("models")
}

/// The index that serves a query, if any.
fn index(client: &mut Client, sql: &str) -> Result<Option<String>> {
    let rows = client.query(&format!("EXPLAIN {sql}"), &[])?;
    Ok(rows.iter().find_map(|row| {
        let line: String = row.get(0);
        let (_, rest) = line.split_once("Index Scan using ")?;
        rest.split(' ').next().map(str::to_owned)
    }))
}

/// The rows of a query, and whether they are as near as the distances beside them say: in order, and the
/// nearest of all.
fn agrees(client: &mut Client, sql: &str) -> Result<bool> {
    let rows = client.query(sql, &[])?;
    let given: Vec<f64> = rows.iter().map(|row| row.get(1)).collect();
    let all = client.query(
        "SELECT laser_embed(body) <=> laser_embed('sentence of words') AS d FROM t ORDER BY d LIMIT 20",
        &[],
    )?;
    let near = |(row, exact): (&f64, &postgres::Row)| (row - exact.get::<_, f64>(0)).abs() < 1e-2;
    Ok(given.len() == 20
        && given.windows(2).all(|pair| pair[0] <= pair[1] + 2e-3)
        && given.iter().zip(&all).all(near))
}

#[test]
fn an_index_of_another_model_is_left_alone() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let (mut client, notices) = create(&cluster)?;
    for model in ["one", ""] {
        client.batch_execute(&format!("SET laser.model = '{model}'"))?;
        ensure!(index(&mut client, NEAR)?.as_deref() == Some("of_one"));
        ensure!(agrees(&mut client, NEAR)?);
    }
    ensure!(notices.take().is_empty());

    client.batch_execute("SET laser.model = 'two'")?;
    ensure!(index(&mut client, NEAR)?.is_none());
    notices.take();
    ensure!(agrees(&mut client, NEAR)?);
    // Two statements were planned, one of them with the index in sight.
    let told = notices.take();
    let expected = "NOTICE: index \"of_one\" is not used: it was built with model \"one\", this session's is \"two\"";
    ensure!(told == [expected], "{told:?}");
    client.batch_execute("SET laser.scan_notices = off")?;
    ensure!(agrees(&mut client, NEAR)? && notices.take().is_empty());
    client.batch_execute("RESET laser.scan_notices")?;

    // Nor does it serve mining.
    let mine = "SELECT * FROM laser_mine('SELECT id, body FROM t LIMIT 5', 'SELECT id, body FROM t', method => 'index')";
    let (code, message, _) = failure(&mut client, mine)?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "{message}"
    );

    // With an index of its own, each model has its own, and there is nothing to say.
    client.batch_execute("CREATE INDEX of_two ON t USING laser (body) WITH (model = 'two')")?;
    notices.take();
    for (model, own) in [("two", "of_two"), ("one", "of_one"), ("", "of_one")] {
        client.batch_execute(&format!("SET laser.model = '{model}'"))?;
        ensure!(index(&mut client, NEAR)?.as_deref() == Some(own), "{model}");
        ensure!(agrees(&mut client, NEAR)?, "{model}");
    }
    let told = notices.take();
    ensure!(told.is_empty(), "{told:?}");

    // Rows go into both, whatever the session's model.
    client.batch_execute("SET laser.model = 'two'; INSERT INTO t VALUES (0, 'a new row')")?;
    for model in ["one", "two"] {
        client.batch_execute(&format!("SET laser.model = '{model}'"))?;
        let near = "SELECT id, 0::float8 FROM t ORDER BY body <=> 'a new row' LIMIT 1";
        ensure!(index(&mut client, near)?.is_some());
        ensure!(client.query_one(near, &[])?.get::<_, i32>(0) == 0);
    }
    Ok(())
}

/// Plans that are kept are made again, and what cannot be made again is an error.
#[test]
fn kept_plans_follow_the_model() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let (mut client, _notices) = create(&cluster)?;
    client.batch_execute(&format!(
        "SET plan_cache_mode = force_generic_plan;
         PREPARE near AS {NEAR};
         CREATE FUNCTION nearest(query text) RETURNS integer LANGUAGE plpgsql AS $$
         BEGIN
             RETURN (SELECT id FROM t ORDER BY body <=> query LIMIT 1);
         END $$;
         SELECT nearest('sentence of words')"
    ))?;
    for (model, used) in [("one", true), ("two", false), ("", true), ("two", false)] {
        client.batch_execute(&format!("SET laser.model = '{model}'"))?;
        let found = index(&mut client, "EXECUTE near")?;
        ensure!(found.is_some() == used, "{model}: {found:?}");
        let rows = client.simple_query("EXECUTE near")?;
        ensure!(rows.len() > 20, "{model}");
        let row = client.query_one(
            "SELECT nearest('sentence of words'),
                    (SELECT id FROM t ORDER BY laser_embed(body) <=> laser_embed('sentence of words') LIMIT 1)",
            &[],
        )?;
        ensure!(row.get::<_, i32>(0) == row.get::<_, i32>(1), "{model}");
    }
    // A transaction that ends badly, and a function with a setting of its own.
    client.batch_execute("SET laser.model = 'one'")?;
    ensure!(index(&mut client, "EXECUTE near")?.is_some());
    client.batch_execute("BEGIN; SET LOCAL laser.model = 'two'")?;
    ensure!(index(&mut client, "EXECUTE near")?.is_none());
    client.batch_execute("ROLLBACK")?;
    ensure!(index(&mut client, "EXECUTE near")?.is_some());

    // The plan of an open cursor stays what it is.
    client.batch_execute(&format!(
        "BEGIN; DECLARE c CURSOR FOR SELECT * FROM ({NEAR}) x; SET LOCAL laser.model = 'two'"
    ))?;
    let (code, message, hint) = failure(&mut client, "FETCH c")?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "{message}"
    );
    ensure!(
        message == "index \"of_one\" was built with model \"one\", this session's is \"two\"",
        "{message}"
    );
    ensure!(hint.contains("SET laser.model = 'one'"), "{hint}");
    client.batch_execute("ROLLBACK")?;
    ensure!(agrees(&mut client, NEAR)?);
    Ok(())
}

/// Whoever rebuilds an index does not change its model.
#[test]
fn an_index_keeps_the_model_it_was_made_with() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let (mut client, _) = create(&cluster)?;
    client.batch_execute(
        "CREATE INDEX CONCURRENTLY also_one ON t USING laser (body) WITH (m = 8) WHERE id > 0",
    )?;
    client.batch_execute(
        "CREATE ROLE other; GRANT TRUNCATE, INSERT, SELECT ON t TO other;
         CREATE TABLE twin (LIKE t INCLUDING ALL)",
    )?;
    let models = |client: &mut Client| -> Result<Vec<String>> {
        let rows = client.query(
            "SELECT i.model || array_to_string(c.reloptions, ',', '') FROM pg_class c, laser_index_info(c.oid) i
             WHERE c.relam = (SELECT oid FROM pg_am WHERE amname = 'laser') ORDER BY c.relname",
            &[],
        )?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    };
    let expected = [
        "onem=8,model=one",
        "onemodel=one",
        "onemodel=one",
        "onem=8,model=one",
    ];
    ensure!(
        models(&mut client)? == expected,
        "{:?}",
        models(&mut client)
    );
    client.batch_execute("SET laser.model = 'two'")?;
    for rebuild in [
        "REINDEX TABLE t",
        "REINDEX TABLE CONCURRENTLY t",
        "VACUUM FULL t",
        "CREATE TABLE as_well (LIKE t INCLUDING ALL); DROP TABLE as_well",
        "ALTER TABLE t ALTER body TYPE varchar USING body || ''",
        "SET ROLE other; TRUNCATE t; RESET ROLE",
    ] {
        client
            .batch_execute(rebuild)
            .with_context(|| rebuild.to_owned())?;
        let found = models(&mut client)?;
        ensure!(found == expected, "{rebuild}: {found:?}");
    }
    // The model that is asked for by name, or again after it was asked to be forgotten.
    client.batch_execute(
        "ALTER INDEX of_one SET (model = 'two'); ALTER INDEX also_one RESET (model); REINDEX TABLE t",
    )?;
    let found = models(&mut client)?;
    ensure!(found[..2] == ["twom=8", "twomodel=two"], "{found:?}");
    // A temporary table that is emptied at each commit.
    client.batch_execute(
        "CREATE TEMP TABLE temporary (body text) ON COMMIT DELETE ROWS;
         CREATE INDEX ON temporary USING laser (body);
         SET laser.model = 'one'",
    )?;
    client.batch_execute("INSERT INTO temporary VALUES ('a')")?;
    ensure!(models(&mut client)?.contains(&"twomodel=two".to_owned()));
    // What an old version made, or was asked to forget its model, has none written down by whoever empties the table.
    client.batch_execute("BEGIN; TRUNCATE t; COMMIT")?;
    ensure!(models(&mut client)?[0] == "onem=8");
    Ok(())
}

/// A model that is not installed, or does not embed, is refused when it is named, as by CREATE INDEX: an index that names it
/// cannot be built again. Whatever else is altered of an index whose model has gone meanwhile is no matter of that.
#[test]
fn a_model_that_is_not_there_cannot_be_set() -> Result<()> {
    let (models, cluster) = with_two_models()?;
    let reranker = Model {
        architecture: Architecture::Transformer,
        ..Model::tiny("reranker", 32)
    };
    reranker.write_reranker(models.path())?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (body text); INSERT INTO t VALUES ('a text'); CREATE INDEX ti ON t USING laser (body)",
    )?;
    for (name, expected) in [
        ("missing", SqlState::UNDEFINED_OBJECT),
        ("one@de", SqlState::UNDEFINED_OBJECT),
        ("reranker", SqlState::WRONG_OBJECT_TYPE),
    ] {
        let created = failure(
            &mut client,
            &format!("CREATE INDEX other ON t USING laser (body) WITH (model = '{name}')"),
        )?;
        ensure!(created.0 == expected, "{created:?}");
        for statement in ["ALTER INDEX", "ALTER TABLE"] {
            let sql = format!("{statement} ti SET (m = 4, model = '{name}')");
            ensure!(failure(&mut client, &sql)? == created, "{sql}");
        }
    }
    client.batch_execute("REINDEX TABLE t")?;
    ensure!(models_of(&mut client)? == "{model=one}");
    client.batch_execute("ALTER INDEX ti SET (model = 'two')")?;
    std::fs::rename(models.path().join("two"), models.path().join("three"))?;
    client.batch_execute("ALTER INDEX ti SET (m = 8); ALTER INDEX ti RESET (m)")?;
    ensure!(models_of(&mut client)? == "{model=two}");
    client.batch_execute("ALTER INDEX ti SET (model = 'three')")?;
    ensure!(models_of(&mut client)? == "{model=three}");
    Ok(())
}

fn models_of(client: &mut Client) -> Result<String> {
    let sql = "SELECT reloptions::text FROM pg_class WHERE relname = 'ti'";
    Ok(client.query_one(sql, &[])?.get(0))
}

/// Whoever alters an index while it is created neither waits for it nor fails, and is heeded.
/// An expression without a model embeds rows and queries by whatever `laser.model` is: whoever makes such an index hears it.
#[test]
fn an_expression_that_names_no_model_is_warned_of() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute("CREATE TABLE t (body text); INSERT INTO t VALUES ('a text')")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    for (expression, warned) in [
        ("laser_embed(body)", true),
        ("l2_normalize(laser_embed(body))", true),
        ("laser_embed(body, NULL, 'query')", true),
        ("laser_embed(body, 'one')", false),
        ("laser_embed(body, 'one', 'query')", false),
    ] {
        client.batch_execute(&format!(
            "CREATE INDEX i ON t USING laser (({expression}::embedding(32))); DROP INDEX i"
        ))?;
        let heard = notices.take();
        ensure!(
            heard.len() == usize::from(warned),
            "{expression}: {heard:?}"
        );
        ensure!(
            heard
                .iter()
                .all(|text| text.starts_with("WARNING: index \"i\" embeds by the model"))
        );
    }
    Ok(())
}

#[test]
fn an_index_is_altered_while_it_is_made() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let (mut client, _) = create(&cluster)?;
    client.batch_execute(
        "INSERT INTO t SELECT i, 'sentence ' || md5(i::text) FROM generate_series(2001, 60000) i",
    )?;
    let (mut builder, _) = cluster.connect_with_notices("models")?;
    let altered = thread::scope(|scope| -> Result<usize> {
        let build = scope.spawn(move || {
            builder.batch_execute("CREATE INDEX CONCURRENTLY slow ON t USING laser (body)")
        });
        let mut altered = 0;
        while !build.is_finished() {
            let is_loading: bool = client
                .query_one(
                    "SELECT count(*) > 0 FROM pg_stat_progress_create_index
                     WHERE index_relid <> 0 AND tuples_done > 0",
                    &[],
                )?
                .get(0);
            if is_loading {
                client.batch_execute("ALTER INDEX slow SET (ef_search = 77, model = 'one')")?;
                altered += 1;
            }
        }
        build.join().expect("no panic")?;
        Ok(altered)
    })?;
    ensure!(altered > 0, "the index was made too fast to be altered");
    let parameters: Vec<String> = client
        .query_one(
            "SELECT reloptions FROM pg_class WHERE relname = 'slow'",
            &[],
        )?
        .get(0);
    ensure!(
        parameters == ["ef_search=77", "model=one"],
        "{parameters:?}"
    );
    Ok(())
}

/// As docs/models.md tells to: nobody is without an answer, nor without an index.
#[test]
fn a_model_is_changed_under_searches() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let (mut client, _) = create(&cluster)?;
    let stop = AtomicBool::new(false);
    // What each of two sessions has searched by the model before, and after.
    let searched: [[AtomicUsize; 2]; 2] = Default::default();
    let all_searched = |model: usize| {
        searched
            .iter()
            .all(|session| session[model].load(Ordering::Relaxed) > 0)
    };
    let search = |searched: &[AtomicUsize; 2]| -> Result<Vec<String>> {
        let (mut client, notices) = cluster.connect_with_notices("models")?;
        let mut may_fail = true;
        for id in (1..=2000).cycle() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let model: String = client.query_one("SHOW laser.model", &[])?.get(0);
            let found = client.query_one(
                "SELECT id, (SELECT n.id FROM t n ORDER BY n.body <=> t.body LIMIT 1)
                 FROM t WHERE id = $1",
                &[&id],
            );
            let found = match found {
                // The server may read its settings between planning and execution; the hint says to ask again.
                Err(e) if e.code() == Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE) => {
                    ensure!(std::mem::replace(&mut may_fail, false), "{e}");
                    continue;
                }
                found => found?,
            };
            ensure!(found.get::<_, i32>(0) == found.get::<_, i32>(1), "{id}");
            searched[usize::from(model == "two")].fetch_add(1, Ordering::Relaxed);
        }
        Ok(notices.take())
    };
    let notices = thread::scope(|scope| -> Result<Vec<Vec<String>>> {
        let sessions: Vec<_> = searched
            .each_ref()
            .map(|counts| scope.spawn(|| search(counts)))
            .into();
        // A session that has failed is reported instead of waited for.
        let wait_for = |model: usize| {
            wait_until("both sessions search", || {
                Ok(all_searched(model) || sessions.iter().any(|session| session.is_finished()))
            })
        };
        let change = (|| {
            wait_for(0)?;
            client.batch_execute(
                "CREATE INDEX CONCURRENTLY of_two ON t USING laser (body) WITH (model = 'two')",
            )?;
            cluster.set("laser.model", "two")?;
            cluster.reload();
            // Nobody plans with the old index from then on.
            wait_for(1)?;
            client.batch_execute("DROP INDEX CONCURRENTLY of_one")?;
            ensure!(index(&mut client, NEAR)?.as_deref() == Some("of_two"));
            ensure!(agrees(&mut client, NEAR)?);
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let notices: Result<_> = sessions
            .into_iter()
            .map(|session| session.join().expect("no panic"))
            .collect();
        let notices = notices?;
        change.and(Ok(notices))
    })?;
    ensure!(all_searched(0) && all_searched(1));
    ensure!(notices.iter().all(Vec::is_empty), "{notices:?}");
    Ok(())
}
