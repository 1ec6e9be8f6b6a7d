//! Cross-encoders: scores of pairs, by the encoder process; and models that are asked for what they are not for.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use laser_encoder::{Encoder, LoadOptions, Precision, Purpose};
use laser_tests::model::{Architecture, Model};
use laser_tests::{Cluster, failure};
use postgres::error::SqlState;
use postgres::{Client, NoTls};

fn reranker() -> Model {
    Model {
        architecture: Architecture::Transformer,
        ..Model::tiny("judge", 32)
    }
}

#[test]
fn scores_are_those_of_the_model() -> Result<()> {
    let models = tempfile::tempdir()?;
    let folder = reranker().write_reranker(models.path())?;
    Model::tiny("e", 32).write(models.path())?;
    let cluster = Cluster::builder()
        .models(models.path(), "e")
        .setting("laser.encoder_precision", "f32")
        .start()?;
    let mut client = cluster.database("d")?;
    let encoder = Encoder::load(
        &folder,
        &LoadOptions {
            precision: Precision::F32,
            threads: 1,
            ..LoadOptions::default()
        },
    )?;
    let purpose = Purpose::Rerank("a question".into());
    let texts: Vec<String> = (0..300)
        .map(|i| "answer ".repeat(i % 9) + &i.to_string())
        .collect();
    let tokens = texts
        .iter()
        .map(|text| encoder.tokenize_for(&purpose, text));
    let ids: Vec<Vec<u32>> = tokens.map(|t| t.map(|t| t.ids)).collect::<Result<_, _>>()?;
    let expected = encoder.encode_ids(&ids)?.data;
    ensure!(expected.iter().any(|x| (x - expected[0]).abs() > 1e-3));

    let row = client.query_one(
        "SELECT laser_rerank('a question', $1::text[], 'judge')",
        &[&texts],
    )?;
    let found: Vec<f32> = row.get(0);
    ensure!(found.len() == expected.len());
    for (a, b) in found.iter().zip(&expected) {
        ensure!((a - b).abs() < 1e-5, "{a} {b}");
    }
    let row = client.query_one(
        "SELECT laser_rerank('a question', $1, 'judge')",
        &[&texts[7]],
    )?;
    ensure!((row.get::<_, f32>(0) - expected[7]).abs() < 1e-5);
    let row = client.query_one(
        "SELECT laser_rerank('q', '{{a,NULL},{b,c}}'::text[], 'judge')::text LIKE '{{%,NULL},{%,%}}',
                laser_rerank('q', '{}'::text[], 'judge') = '{}',
                laser_rerank(NULL, 'a', 'judge') IS NULL,
                laser_rerank('q', 'a', 'judge') <> laser_rerank('a', 'q', 'judge'),
                (SELECT reranker FROM laser_models WHERE name = 'judge'),
                (SELECT reranker FROM laser_models WHERE name = 'e')",
        &[],
    )?;
    let checks: Vec<bool> = (0..6).map(|i| row.get(i)).collect();
    ensure!(
        checks == [true, true, true, true, true, false],
        "{checks:?}"
    );

    // The best of what a search has found, as docs/hybrid.md has it.
    client.batch_execute(
        "CREATE TABLE t AS SELECT i AS id, 'sentence ' || i AS body FROM generate_series(1, 900) i;
         CREATE INDEX ON t USING laser (body); CREATE INDEX ON t USING gin (to_tsvector('simple', body));
         SELECT (hit).id FROM laser_hybrid(NULL::t, 'body', 'sentence 7', 100)
         ORDER BY laser_rerank('sentence 7', (hit).body, 'judge') DESC LIMIT 10",
    )?;
    let ids = |client: &mut Client, query: &str| -> Result<Vec<i32>> {
        let rows = client.query(query, &[])?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    };
    let one_by_one = ids(
        &mut client,
        "SELECT id FROM (SELECT id, body FROM t ORDER BY body <=> 'sentence 7' LIMIT 100) found
         ORDER BY laser_rerank('sentence 7', body, 'judge') DESC LIMIT 10",
    )?;
    let together = ids(
        &mut client,
        "WITH found AS (
             SELECT array_agg(id) AS ids, array_agg(body) AS bodies
             FROM (SELECT id, body FROM t ORDER BY body <=> 'sentence 7' LIMIT 100) n
         )
         SELECT id
         FROM found, unnest(ids, laser_rerank('sentence 7', bodies, 'judge')) AS r (id, score)
         ORDER BY score DESC LIMIT 10",
    )?;
    ensure!(
        one_by_one == together && together.len() == 10,
        "{one_by_one:?} {together:?}"
    );
    Ok(())
}

#[test]
fn models_are_for_one_task() -> Result<()> {
    let models = tempfile::tempdir()?;
    reranker().write_reranker(models.path())?;
    for name in ["e", "words"] {
        let architecture = match name {
            "e" => Architecture::Transformer,
            _ => Architecture::Mean,
        };
        Model {
            architecture,
            ..Model::tiny(name, 32)
        }
        .write(models.path())?;
    }
    let cluster = Cluster::builder().models(models.path(), "words").start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute("CREATE TABLE t (body text)")?;
    // Before the model is loaded, and after.
    for _ in 0..2 {
        for query in [
            "SELECT laser_embed('a', 'judge')",
            "SELECT laser_embed('{a,b}'::text[], 'judge')",
            "CREATE INDEX ON t USING laser (body) WITH (model = 'judge')",
            "SET laser.model = 'judge'; SELECT body <=> 'a' FROM (VALUES ('b'::text)) v (body)",
        ] {
            let (code, message, hint) = failure(&mut client, query)?;
            ensure!(code == SqlState::WRONG_OBJECT_TYPE, "{query}: {message}");
            ensure!(message.contains("does not embed"), "{query}: {message}");
            ensure!(hint.contains("laser_rerank"), "{query}: {hint}");
            client.batch_execute("RESET laser.model")?;
        }
        for model in ["e", "words"] {
            let query = format!("SELECT laser_rerank('a', 'b', '{model}')");
            let (code, message, hint) = failure(&mut client, &query)?;
            ensure!(code == SqlState::WRONG_OBJECT_TYPE, "{query}: {message}");
            ensure!(
                message.contains("does not score pairs"),
                "{query}: {message}"
            );
            ensure!(hint.contains("cross-encoder"), "{query}: {hint}");
        }
        let (code, _, _) = failure(&mut client, "SELECT laser_rerank('a', 'b', 'nobody')")?;
        ensure!(code == SqlState::UNDEFINED_OBJECT);
        let (code, _, hint) = failure(&mut client, "SELECT laser_rerank('a', 'b', '../x')")?;
        ensure!(code == SqlState::INVALID_PARAMETER_VALUE && hint.contains("laser_models"));
    }
    // Where sessions ask no other process, none of them scores.
    client.batch_execute("SET laser.encode_in_backend = always")?;
    let (code, message, hint) = failure(&mut client, "SELECT laser_rerank('a', 'b', 'judge')")?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "{message}"
    );
    ensure!(message.contains("needs the encoder process"), "{message}");
    ensure!(hint.contains("laser.encode_in_backend"), "{hint}");
    let (code, message, _) = failure(&mut client, "SELECT laser_rerank('a', 'b', 'words')")?;
    ensure!(code == SqlState::WRONG_OBJECT_TYPE, "{message}");
    Ok(())
}

/// The longer of the two texts is cut, which a warning says once, or nothing is scored.
#[test]
fn long_pairs_are_cut_with_one_warning_or_refused() -> Result<()> {
    let models = tempfile::tempdir()?;
    // A token for each byte.
    reranker().write_reranker(models.path())?;
    Model::tiny("e", 32).write(models.path())?;
    let cluster = Cluster::builder().models(models.path(), "e").start()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    let score = |client: &mut Client, query: &str, text: &str| -> Result<f32> {
        let row = client.query_one("SELECT laser_rerank($1, $2, 'judge')", &[&query, &text])?;
        Ok(row.get(0))
    };
    let ab = |n| "ab".repeat(n);
    // Up to 128 tokens together; beyond, the longer text loses its end.
    let whole = score(&mut client, "which", &ab(61))?;
    ensure!(notices.take().is_empty());
    ensure!(score(&mut client, "which", &ab(60))? != whole);
    notices.take();
    let cut = score(&mut client, "which", &format!("{}b", ab(61)))?;
    ensure!(cut == score(&mut client, "which", &(ab(61) + "b is more"))?);
    let cut = score(&mut client, &format!("{}a", ab(61)), "which")?;
    ensure!(cut == score(&mut client, &ab(500), "which")? && cut != whole);
    let halves = score(&mut client, &"x".repeat(64), &"y".repeat(64))?;
    ensure!(halves == score(&mut client, &"x".repeat(5_000), &"y".repeat(300_000))?);
    notices.take();
    client.batch_execute(
        "SELECT laser_rerank('which', repeat('x', 200) || i, 'judge') FROM generate_series(1, 5) i",
    )?;
    let warnings = notices.take();
    ensure!(
        warnings.len() == 1
            && warnings[0].starts_with("WARNING: query and text are longer than the model reads"),
        "{warnings:?}"
    );

    client.batch_execute("SET laser.long_text = 'error'")?;
    let refused =
        "SELECT laser_rerank('which', ARRAY['short', 'the second ' || repeat('x', 129)], 'judge')";
    let error = client.batch_execute(refused).expect_err("it is refused");
    let error = error.as_db_error().expect("an error of the server");
    ensure!(*error.code() == SqlState::STRING_DATA_RIGHT_TRUNCATION);
    ensure!(
        error.message() == "1 of 2 texts are longer than the model reads with the query",
        "{error}"
    );
    let detail = error.detail().unwrap_or("");
    ensure!(
        detail.contains("Together they have more than the 128 tokens") && !detail.contains("xxx"),
        "{detail}"
    );
    for sql in [
        "SELECT laser_rerank(repeat('x', 1048577), 'text', 'judge')",
        "SELECT laser_rerank('query', repeat('x', 1048577), 'judge')",
    ] {
        let (code, message, hint) = failure(&mut client, sql)?;
        ensure!(code == SqlState::PROGRAM_LIMIT_EXCEEDED, "{sql}");
        ensure!(message.contains("1048576 bytes") && !hint.is_empty());
    }
    Ok(())
}

/// Scores of many texts, and of a long query with each of them, end within a second of a cancel and leave the
/// encoder to others.
#[test]
fn a_cancel_ends_many_scores() -> Result<()> {
    let models = tempfile::tempdir()?;
    reranker().write_reranker(models.path())?;
    Model::tiny("e", 32).write(models.path())?;
    let cluster = Cluster::builder().models(models.path(), "e").start()?;
    let mut client = cluster.database("d")?;
    for query in ["'which'", "repeat('which ', 170000)"] {
        client.batch_execute("SELECT laser_rerank('a', 'b', 'judge')")?;
        let token = client.cancel_token();
        let statement = format!(
            "SELECT cardinality(laser_rerank({query}, array_agg(repeat('text ', 20) || i), 'judge'))
             FROM generate_series(1, 300000) i"
        );
        let running = std::thread::spawn(move || {
            let result = client.batch_execute(&statement);
            (client, result, Instant::now())
        });
        std::thread::sleep(Duration::from_secs(2));
        let told = Instant::now();
        token.cancel_query(NoTls)?;
        let result;
        let ended: Instant;
        (client, result, ended) = running.join().expect("no panic");
        let error = result.expect_err("it takes longer");
        ensure!(error.code() == Some(&SqlState::QUERY_CANCELED), "{error}");
        let late = ended.saturating_duration_since(told);
        ensure!(late < Duration::from_secs(1), "{query}: {late:?}");
        client.batch_execute("SET statement_timeout = '10s'")?;
        client.batch_execute("SELECT laser_rerank('a', 'b', 'judge'); RESET statement_timeout")?;
    }
    Ok(())
}
