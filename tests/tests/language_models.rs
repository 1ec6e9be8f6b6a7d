//! Models with an encoder for each language: `MODEL@LANGUAGE` names an encoder, and embeddings of all of them
//! are of one model.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use laser_model::Languages;
use laser_tests::model::{Architecture, Model};
use laser_tests::{Cluster, failure, wait_until};
use postgres::Client;
use postgres::error::SqlState;
use tempfile::TempDir;

/// Writes the encoder of a language.
fn write(pair: &Path, code: &str, architecture: Architecture, seed: u64) -> Result<()> {
    let model = Model {
        architecture,
        seed,
        ..Model::tiny(code, 32)
    };
    model.write(pair)?;
    Ok(())
}

/// Writes the list of both languages.
fn list(pair: &Path) -> Result<()> {
    let codes = ["de", "en"].map(str::to_owned);
    Ok(Languages::of_folders("pair", pair, &codes)?.write(pair)?)
}

/// A server with the models `one`, `pair@de` and `pair@en`, the first as the default; one encoder is of a kind that
/// sessions can run themselves.
fn start(settings: &[(&str, &str)]) -> Result<(TempDir, Cluster)> {
    let models = tempfile::tempdir()?;
    Model::tiny("one", 32).write(models.path())?;
    let pair = models.path().join("pair");
    write(&pair, "de", Architecture::Mean, 2)?;
    write(&pair, "en", Architecture::BiLstm, 3)?;
    list(&pair)?;
    let builder = Cluster::builder().models(models.path(), "one");
    let builder = (settings.iter()).fold(builder, |b, (name, value)| b.setting(name, value));
    let cluster = builder.start()?;
    Ok((models, cluster))
}

fn texts(client: &mut Client, sql: &str) -> Result<Vec<String>> {
    let rows = client.query(sql, &[]).context(sql.to_owned())?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn fails(client: &mut Client, sql: &str, wanted: &str) -> Result<String> {
    let (_, message, hint) = failure(client, sql)?;
    ensure!(message.contains(wanted), "{sql}: {message}");
    Ok(hint)
}

/// Tables of sentences in two languages, each embedded by the encoder of its language.
fn fill(client: &mut Client) -> Result<()> {
    for sql in [
        "CREATE TABLE de (id integer, body text, m embedding(32));
         CREATE TABLE en (id integer, body text, m embedding(32));
         INSERT INTO de SELECT i, 'der Satz ' || i FROM generate_series(1, 300) i;
         INSERT INTO en SELECT i, 'sentence ' || i FROM generate_series(1, 300) i",
        "SET laser.model = 'pair@de'",
        "CALL laser_embed_table('de', 'body', 'm')",
        "SET laser.model = 'pair@en'",
        "CALL laser_embed_table('en', 'body', 'm')",
        "RESET laser.model",
    ] {
        client.batch_execute(sql)?;
    }
    Ok(())
}

#[test]
fn the_encoders_of_a_model_are_named_with_their_language() -> Result<()> {
    let (_models, cluster) = start(&[])?;
    let mut client = cluster.database("d")?;
    let installed = "SELECT format('%s %s %s', name, dimensions, error) FROM laser_models
                     WHERE name ~ 'pair' ORDER BY name";
    ensure!(texts(&mut client, installed)? == ["pair@de 32 ", "pair@en 32 "]);
    let prints = "SELECT DISTINCT fingerprint FROM laser_models WHERE name ~ 'pair'";
    ensure!(texts(&mut client, prints)?.len() == 1);
    // Whether a model is loaded or not.
    let embedded =
        "SELECT laser_embed('x', 'pair@de')::text UNION SELECT laser_embed('x', 'pair@en')::text";
    ensure!(texts(&mut client, embedded)?.len() == 2);
    ensure!(texts(&mut client, prints)?.len() == 1);
    let own = "SELECT fingerprint FROM laser_models WHERE name = 'one'";
    ensure!(texts(&mut client, own)? != texts(&mut client, prints)?);
    client.batch_execute("SELECT laser_embed('x', 'pair@de') <=> laser_embed('y', 'pair@en')")?;
    fails(
        &mut client,
        "SELECT laser_embed(i::text, 'pair@de') <=> laser_embed('y', 'one') FROM generate_series(1, 2) i",
        "embeddings of two models",
    )?;

    for (name, message, told) in [
        (
            "pair@fr",
            "no encoder for language \"fr\"",
            "pair@de, pair@en",
        ),
        (
            "pair",
            "has an encoder for each language",
            "pair@de, pair@en",
        ),
        (
            "other@de",
            "model \"other@de\" does not exist",
            "laser_models",
        ),
        ("one@de", "model \"one@de\" does not exist", "laser_models"),
        ("pair@", "invalid model name", "@LANGUAGE"),
        ("@de", "invalid model name", "@LANGUAGE"),
        ("pair@../../one", "invalid model name", "@LANGUAGE"),
        ("pair@..", "invalid model name", "@LANGUAGE"),
        ("../pair@de", "invalid model name", "@LANGUAGE"),
        ("pair@de@en", "invalid model name", "@LANGUAGE"),
    ] {
        let sql = format!("SELECT laser_embed('x', '{name}')");
        let hint = fails(&mut client, &sql, message)?;
        ensure!(hint.contains(told), "{name}: {hint}");
        if message.starts_with("invalid") {
            let sql = format!("SET laser.model = '{name}'");
            let (code, ..) = failure(&mut client, &sql)?;
            ensure!(code == SqlState::INVALID_PARAMETER_VALUE, "{name}");
            let sql = format!("SELECT laser_model_label('{name}')");
            fails(&mut client, &sql, message)?;
        }
    }
    Ok(())
}

#[test]
fn columns_and_mining_take_all_languages_of_a_model_as_one_space() -> Result<()> {
    let (_models, cluster) = start(&[])?;
    let mut client = cluster.database("d")?;
    fill(&mut client)?;
    let used = "SELECT format('%s %s', relation, model) FROM laser_models_used ORDER BY 1";
    ensure!(texts(&mut client, used)? == ["de pair@de", "en pair@en"]);
    let by = |model: &str| {
        format!("SELECT id FROM de ORDER BY m <=> laser_embed('sentence 7', '{model}') LIMIT 3")
    };
    client.batch_execute(&by("pair@de"))?;
    client.batch_execute(&by("pair@en"))?;
    fails(&mut client, &by("one"), "embeddings of two models")?;
    let joined = "SELECT de.m <=> en.m FROM de, en WHERE de.id = 1 AND en.id = 1";
    client.batch_execute(joined)?;
    // A label of the model for rows of several languages; a fingerprint is that of all.
    for label in ["pair", "pair@fr"] {
        let sql = format!("SECURITY LABEL FOR laser ON COLUMN en.m IS '{label}'");
        client.batch_execute(&sql)?;
        client.batch_execute(joined)?;
    }
    client.batch_execute(&format!(
        "SECURITY LABEL FOR laser ON COLUMN en.m IS 'pair@en {}'",
        "0".repeat(64)
    ))?;
    let hint = fails(&mut client, joined, "two versions of model \"pair@")?;
    ensure!(hint.contains("Embed"), "{hint}");
    client.batch_execute("SECURITY LABEL FOR laser ON COLUMN en.m IS 'pair@en'")?;

    let mined = |source: &str, target: &str| {
        format!(
            "SELECT format('%s %s', source_id, target_id) FROM laser_mine('{source}', '{target}')"
        )
    };
    let found = texts(
        &mut client,
        &mined("SELECT id, m FROM de", "SELECT id, m FROM en"),
    )?;
    ensure!(!found.is_empty());
    let asked = mined(
        "SELECT id, laser_embed(body, ''pair@de'') FROM de",
        "SELECT id, laser_embed(body, ''pair@en'') FROM en",
    );
    ensure!(texts(&mut client, &asked)? == found);
    for other in [
        "SELECT id, laser_embed(body, ''one'') FROM en",
        "SELECT id, body FROM en",
    ] {
        let sql = mined("SELECT id, m FROM de", other);
        fails(&mut client, &sql, "embeddings of two models")?;
    }
    // Where both sides have an index.
    client.batch_execute(
        "CREATE INDEX ON de USING laser (m); CREATE INDEX ON en USING laser (m);
         SELECT * FROM laser_mine('SELECT id, m FROM de', 'SELECT id, m FROM en', method => 'index')",
    )?;

    // Texts that another encoder of the model embeds are new content, though its fingerprint is the same.
    let update = "SELECT * FROM laser_mine_update('state', 'SELECT id, body FROM de', 'SELECT id, body FROM en')";
    client.batch_execute(&format!(
        "CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL);
         SET laser.model = 'pair@de'; {update}"
    ))?;
    let content = "SELECT content::text FROM state WHERE side = 's' AND id = 1";
    let before = texts(&mut client, content)?;
    client.batch_execute(update)?;
    ensure!(texts(&mut client, content)? == before);
    client.batch_execute(&format!("SET laser.model = 'pair@en'; {update}"))?;
    ensure!(texts(&mut client, content)? != before);
    Ok(())
}

#[test]
fn an_index_on_text_is_of_one_language() -> Result<()> {
    let (_models, cluster) = start(&[])?;
    let mut client = cluster.database("d")?;
    fill(&mut client)?;
    client.batch_execute(
        "CREATE INDEX of_text ON de USING laser (body) WITH (model = 'pair@de');
         CREATE INDEX of_expression ON de USING laser (laser_embed(body, 'pair@de'));
         SET enable_seqscan = off",
    )?;
    let (code, message, hint) = failure(
        &mut client,
        "CREATE INDEX ON de USING laser (body) WITH (model = 'pair@fr')",
    )?;
    ensure!(
        code == SqlState::UNDEFINED_OBJECT && hint.contains("pair@de"),
        "{code:?} {message}"
    );
    let near = "SELECT id::text FROM de ORDER BY body <=> 'der Satz 7' LIMIT 5";
    let plan = |client: &mut Client, sql: &str| -> Result<String> {
        Ok(texts(client, &format!("EXPLAIN (COSTS off) {sql}"))?.join("\n"))
    };
    client.batch_execute("SET laser.model = 'pair@de'")?;
    ensure!(plan(&mut client, near)?.contains("of_text"));
    ensure!(texts(&mut client, near)?[0] == "7");
    // `<=>` of texts means one encoder, in every plan, and for a plan from before.
    client.batch_execute("SET laser.model = 'pair@en'")?;
    ensure!(!plan(&mut client, near)?.contains("of_text"));
    let hint = {
        client.batch_execute(&format!(
            "SET laser.model = 'pair@de'; BEGIN; DECLARE c CURSOR FOR SELECT * FROM ({near}) x;
             SET LOCAL laser.model = 'pair@en'"
        ))?;
        let hint = fails(&mut client, "FETCH c", "was built with model \"pair@de\"")?;
        client.batch_execute("ROLLBACK; RESET laser.model")?;
        hint
    };
    ensure!(hint.contains("SET laser.model = 'pair@de'"), "{hint}");
    // A question in another language.
    // Rows with the same letters are equally near.
    let distance = "laser_embed(body, 'pair@de') <=> laser_embed('sentence 7', 'pair@en')";
    let across = &format!("SELECT ({distance})::text FROM de ORDER BY {distance} LIMIT 5");
    ensure!(plan(&mut client, across)?.contains("of_expression"));
    let by_index = texts(&mut client, across)?;
    client.batch_execute("SET enable_indexscan = off; SET enable_seqscan = on")?;
    ensure!(!plan(&mut client, across)?.contains("of_expression"));
    ensure!(texts(&mut client, across)? == by_index);
    Ok(())
}

#[test]
fn an_encoder_that_is_not_the_listed_one_is_refused() -> Result<()> {
    let (models, cluster) = start(&[])?;
    let mut client = cluster.database("d")?;
    fill(&mut client)?;
    client.batch_execute(
        "CREATE INDEX of_text ON de USING laser (body) WITH (model = 'pair@de');
         SET laser.model = 'pair@de'; SET enable_seqscan = off",
    )?;
    let near = "SELECT id FROM de ORDER BY body <=> 'der Satz 7' LIMIT 5";
    client.batch_execute(near)?;
    let pair = models.path().join("pair");
    write(&pair, "en", Architecture::BiLstm, 4)?;
    let failed = "SELECT laser_embed('x', 'pair@en')";
    let listed = "is not the one that is listed";
    wait_until("the encoder is checked again", || {
        Ok(client.batch_execute(failed).is_err())
    })?;
    fails(&mut client, failed, listed)?;
    let errors = "SELECT format('%s %s', name, error) FROM laser_models WHERE error IS NOT NULL";
    let errors = texts(&mut client, errors)?;
    ensure!(
        errors.len() == 1 && errors[0].starts_with("pair@en") && errors[0].contains(listed),
        "{errors:?}"
    );
    // The list is what the other one is of as well.
    client.batch_execute(near)?;
    list(&pair)?;
    wait_until("the list is checked again", || {
        Ok(client.batch_execute(failed).is_ok())
    })?;
    wait_until("the other encoder is of the new list", || {
        Ok(client.batch_execute(near).is_err())
    })?;
    let hint = fails(
        &mut client,
        near,
        "is not the one that the index was built with",
    )?;
    ensure!(hint.contains("REINDEX"), "{hint}");
    client.batch_execute("REINDEX INDEX of_text")?;
    client.batch_execute(near)?;

    for (broken, wanted) in [("{}", "languages.json"), ("", "languages.json")] {
        std::fs::write(pair.join("languages.json"), broken)?;
        sleep(Duration::from_millis(1200));
        let (code, ..) = failure(&mut client, "SELECT laser_embed('x', 'pair@de')")?;
        ensure!(code == SqlState::UNDEFINED_OBJECT, "{code:?}");
        let errors = texts(
            &mut client,
            "SELECT format('%s: %s', name, error) FROM laser_models WHERE name ~ 'pair'",
        )?;
        ensure!(
            errors.len() == 1 && errors[0].contains(wanted),
            "{errors:?}"
        );
    }
    Ok(())
}

#[test]
fn sessions_run_encoders_of_one_language_themselves() -> Result<()> {
    let (models, cluster) = start(&[("laser.encode_in_backend", "always")])?;
    let mut client = cluster.database("d")?;
    let (_other_models, other) = start(&[("laser.encode_in_backend", "off")])?;
    let mut process = other.database("d")?;
    let embed = "SELECT laser_embed('x', 'pair@de')::text";
    ensure!(texts(&mut client, embed)? == texts(&mut process, embed)?);
    let label = "SELECT laser_model_label('pair@de')";
    ensure!(texts(&mut client, label)? == texts(&mut process, label)?);
    let prints = "SELECT format('%s %s', name, fingerprint) FROM laser_models ORDER BY name";
    ensure!(texts(&mut client, prints)? == texts(&mut process, prints)?);
    fails(
        &mut client,
        "SELECT laser_embed('x', 'pair@fr')",
        "no encoder for language",
    )?;
    // As one session's default, and as the server's.
    client.batch_execute("SET laser.model = 'pair@de'; SELECT laser_embed('x')")?;
    drop(client);
    let mut cluster = cluster;
    cluster.set("laser.encode_in_backend", "on")?;
    cluster.set("laser.model", "pair@de")?;
    cluster.restart()?;
    let mut client = cluster.connect("d")?;
    let own = "SELECT name FROM laser_models WHERE in_backend";
    ensure!(texts(&mut client, own)? == ["pair@de"]);
    ensure!(texts(&mut client, "SELECT laser_embed('x')::text")? == texts(&mut process, embed)?);
    ensure!(texts(&mut client, label)? == texts(&mut process, label)?);
    drop(models);
    Ok(())
}
