//! Sessions that encode texts themselves with the model that the postmaster has loaded.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use laser_tests::model::{Architecture, Model};
use laser_tests::{Cluster, signal, wait_until};
use postgres::Client;
use postgres::error::SqlState;

fn embed(client: &mut Client, text: &str) -> Result<Vec<f32>, postgres::Error> {
    Ok(client
        .query_one("SELECT laser_embed($1)::real[]", &[&text])?
        .get(0))
}

/// The embedding by the encoder process.
fn by_process(client: &mut Client, text: &str) -> Result<Vec<f32>> {
    client.batch_execute("SET laser.encode_in_backend = off")?;
    let embedding = embed(client, text);
    client.batch_execute("RESET laser.encode_in_backend")?;
    Ok(embedding?)
}

/// Texts that the process and the sessions have embedded. The process is waited for.
fn counts(client: &mut Client) -> Result<(i64, Option<i64>)> {
    let mut counts = None;
    wait_until("the encoder answers", || {
        let row = client.query_one(
            "SELECT sentences, backend_sentences FROM laser_encoder_status",
            &[],
        )?;
        counts = row.get::<_, Option<i64>>(0).map(|n| (n, row.get(1)));
        Ok(counts.is_some())
    })?;
    counts.context("the encoder answers")
}

fn in_backend(client: &mut Client, model: &str) -> Result<bool> {
    Ok(client
        .query_one(
            "SELECT in_backend FROM laser_models WHERE name = $1",
            &[&model],
        )?
        .get(0))
}

fn threads(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/task"))?.count())
}

/// Replaces a file as the trainer does, by renaming.
fn replace(path: &Path, contents: &[u8]) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, contents)?;
    fs::rename(new, path)?;
    Ok(())
}

#[test]
fn the_shipped_model_gives_the_same_embeddings_in_sessions() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    let sentences =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/sentences.tsv"))?;
    let texts: Vec<&str> = sentences
        .lines()
        .filter_map(|line| line.rsplit('\t').next())
        .collect();
    client.batch_execute("CREATE TABLE t (body text, a embedding, b embedding)")?;
    client.execute("INSERT INTO t SELECT unnest($1::text[])", &[&texts])?;

    let (process, sessions) = counts(&mut client)?;
    assert_eq!((process, sessions), (0, Some(0)));
    client.batch_execute("UPDATE t SET a = laser_embed(body)")?;
    let (process, sessions) = counts(&mut client)?;
    assert_eq!((process, sessions), (0, Some(texts.len() as i64)));
    client
        .batch_execute("SET laser.encode_in_backend = off; UPDATE t SET b = laser_embed(body)")?;
    let (process, sessions) = counts(&mut client)?;
    assert_eq!(
        (process, sessions),
        (texts.len() as i64, Some(texts.len() as i64))
    );
    let differ: i64 = client
        .query_one("SELECT count(*) FROM t WHERE a <> b OR a IS NULL", &[])?
        .get(0);
    assert_eq!(differ, 0);
    Ok(())
}

/// Pages that the session's process has touched for the first time or copied.
fn page_faults(client: &mut Client) -> Result<i64> {
    let row = client.query_one("SELECT pg_read_file('/proc/self/stat', 0, 1000, true)", &[])?;
    let stat: &str = row.get(0);
    // The name in parentheses may contain anything; minflt is field 10.
    let field = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(7));
    Ok(field.context("field 10")?.parse()?)
}

#[test]
fn sessions_leave_the_pages_of_the_postmaster_alone() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT 'This is a sentence about ' || i AS body
         FROM generate_series(1, 1000) i;
         SELECT count(laser_embed(body)) FROM t WHERE false;
         SELECT laser_embed('one'), pg_stat_file('PG_VERSION')",
    )?;
    page_faults(&mut client)?;
    let before = page_faults(&mut client)?;
    client.batch_execute("SELECT count(laser_embed(body)) FROM t")?;
    let faults = page_faults(&mut client)? - before;
    // Measured: 150. With what loading a model leaves in the heap of the postmaster: 1,200.
    assert!(faults < 500, "{faults} page faults");
    Ok(())
}

#[test]
fn sessions_need_no_process_and_no_threads() -> Result<()> {
    let folder = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(folder.path())?;
    let cluster = Cluster::builder().models(folder.path(), "tiny").start()?;
    let mut client = cluster.database("d")?;
    let expected = by_process(&mut client, "a text")?;
    let row = client.query_one("SELECT pid, backend_model FROM laser_encoder_status", &[])?;
    let encoder = u32::try_from(row.get::<_, i32>(0))?;
    assert_eq!(row.get::<_, &str>(1), "tiny");
    assert!(in_backend(&mut client, "tiny")?);

    signal(encoder, libc::SIGSTOP);
    assert_eq!(embed(&mut client, "a text")?, expected);
    // All that embeds: arrays, text indexes and their scans, distances of texts.
    client.batch_execute(
        "CREATE TABLE t AS SELECT i, 'text ' || i AS body FROM generate_series(1, 500) i;
         CREATE INDEX ON t USING laser (body);
         INSERT INTO t VALUES (501, 'a text');
         SET enable_seqscan = off",
    )?;
    let nearest: i32 = client
        .query_one("SELECT i FROM t ORDER BY body <=> 'a text' LIMIT 1", &[])?
        .get(0);
    assert_eq!(nearest, 501);
    client.batch_execute(
        "SELECT laser_embed(ARRAY['one', 'two']), 'one' <=> 'two'::text, laser_embed('x', 'tiny')",
    )?;
    signal(encoder, libc::SIGCONT);

    let server = cluster.pid().context("the server runs")?;
    let session: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    assert_eq!(threads(server)?, 1, "threads of the postmaster");
    assert_eq!(threads(session.try_into()?)?, 1, "threads of a session");

    // Without preloading there is no such model.
    let cluster = Cluster::builder()
        .models(folder.path(), "tiny")
        .preload(false)
        .start()?;
    let mut client = cluster.database("d")?;
    assert_eq!(embed(&mut client, "a text")?, expected);
    assert_eq!(counts(&mut client)?, (1, None));
    assert!(!in_backend(&mut client, "tiny")?);
    Ok(())
}

#[test]
fn other_models_and_changed_settings_go_to_the_process() -> Result<()> {
    let folder = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(folder.path())?;
    Model::tiny("other", 16).write(folder.path())?;
    let cluster = Cluster::builder().models(folder.path(), "tiny").start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "a text")?;
    assert_eq!(counts(&mut client)?, (0, Some(1)));
    client.batch_execute("SELECT laser_embed('a text', 'other')")?;
    client.batch_execute("SET laser.model = 'other'; SELECT laser_embed('a text')")?;
    assert_eq!(counts(&mut client)?, (2, Some(1)));
    // Empty means the default of the server.
    client
        .batch_execute("SET laser.model = ''; SELECT laser_embed('a text'); RESET laser.model")?;
    assert_eq!(counts(&mut client)?, (2, Some(2)));

    cluster.set("laser.model", "other")?;
    cluster.reload();
    wait_until("the default is another model", || {
        Ok(embed(&mut client, "a text")?.len() == 16)
    })?;
    client.batch_execute("SET laser.model = ''")?;
    wait_until("the process has the new default", || {
        Ok(embed(&mut client, "a text")?.len() == 16)
    })?;
    let before = counts(&mut client)?.1;
    client.batch_execute("SELECT laser_embed('a text', 'tiny')")?;
    assert_eq!(counts(&mut client)?.1, before.map(|n| n + 1));
    Ok(())
}

#[test]
fn changed_files_go_to_the_process() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let tiny = Model::tiny("tiny", 32).write(folder.path())?;
    let weights = tiny.join("model.safetensors");
    let mut cluster = Cluster::builder().models(folder.path(), "tiny").start()?;
    let mut client = cluster.database("d")?;
    let old = embed(&mut client, "a text")?;
    assert!(in_backend(&mut client, "tiny")?);

    let other = tempfile::tempdir()?;
    let changed = Model {
        seed: 2,
        ..Model::tiny("tiny", 32)
    }
    .write(other.path())?;
    replace(&weights, &fs::read(changed.join("model.safetensors"))?)?;
    // As with the encoder process, a second may pass.
    wait_until("the session has noticed", || {
        Ok(embed(&mut client, "a text")? != old)
    })?;
    let new = embed(&mut client, "a text")?;
    assert_eq!(new, by_process(&mut client, "a text")?);
    assert!(!in_backend(&mut client, "tiny")?);

    cluster.restart()?;
    let mut client = cluster.connect("d")?;
    assert!(in_backend(&mut client, "tiny")?);
    assert_eq!(embed(&mut client, "a text")?, new);
    // A file that is cut in place takes no session down: nothing has it mapped.
    fs::write(&weights, b"")?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        match embed(&mut client, "a text") {
            Ok(embedding) => assert_eq!(embedding, new),
            Err(error) => assert_eq!(error.code(), Some(&SqlState::CONFIG_FILE_ERROR)),
        }
    }
    Ok(())
}

#[test]
fn a_model_that_cannot_be_loaded_does_not_stop_the_server() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let tiny = Model::tiny("tiny", 32).write(folder.path())?;
    let mut cluster = Cluster::builder().models(folder.path(), "tiny").start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "a text")?;
    for (file, contents) in [
        ("config.json", &b"{ not json"[..]),
        ("tokenizer.json", b"[]"),
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    ] {
        let good = fs::read(tiny.join(file))?;
        replace(&tiny.join(file), contents)?;
        drop(client);
        cluster.restart()?;
        client = cluster.connect("d")?;
        let log = cluster.log();
        let line = log
            .lines()
            .rfind(|line| line.contains("sessions cannot encode texts themselves"))
            .context("a line in the log")?;
        assert!(line.contains(file), "{line}");
        let error = embed(&mut client, "a text").err().context("it is broken")?;
        assert_eq!(error.code(), Some(&SqlState::CONFIG_FILE_ERROR));
        replace(&tiny.join(file), &good)?;
        assert_eq!(embed(&mut client, "a text")?, expected);
    }
    // Neither does one that is no mean of vectors, or is missing.
    drop(client);
    Model {
        architecture: Architecture::BiLstm,
        ..Model::tiny("lstm", 32)
    }
    .write(folder.path())?;
    for model in ["lstm", "missing"] {
        cluster.set("laser.model", model)?;
        cluster.restart()?;
        let mut client = cluster.connect("d")?;
        let row = client.query_one("SELECT backend_model FROM laser_encoder_status", &[])?;
        assert_eq!(row.get::<_, Option<String>>(0), None);
        match embed(&mut client, "a text") {
            Ok(embedding) => assert_eq!((model, embedding.len()), ("lstm", 32)),
            Err(error) => {
                let message = error.as_db_error().map_or("", |error| error.message());
                assert!(model == "missing" && message.contains("missing"), "{error}");
            }
        }
    }
    Ok(())
}

#[test]
fn a_long_call_can_be_cancelled() -> Result<()> {
    let folder = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(folder.path())?;
    let cluster = Cluster::builder().models(folder.path(), "tiny").start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE texts AS
         SELECT array_agg(repeat('word ', 20) || i) AS a FROM generate_series(1, 200000) i;
         SET statement_timeout = 100",
    )?;
    let error = client
        .batch_execute("SELECT cardinality(laser_embed(a)) FROM texts")
        .err()
        .context("it is cancelled")?;
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
    client.batch_execute("RESET statement_timeout")?;
    assert_eq!(embed(&mut client, "a text")?.len(), 32);
    Ok(())
}

#[test]
fn single_user_mode_has_the_resident_model_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(folder.path())?;
    let mut cluster = Cluster::builder().models(folder.path(), "tiny").start()?;
    cluster.database("d")?;
    cluster.stop("fast")?;
    let run = |in_backend: &str| -> Result<String> {
        let mut server = cluster
            .command("postgres")
            .args(["--single", "-D"])
            .arg(cluster.data())
            .args(["-c", &format!("laser.encode_in_backend={in_backend}"), "d"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut input = server.stdin.take().context("a pipe")?;
        input.write_all(b"SELECT dimensions(laser_embed('a text'))\n")?;
        drop(input);
        let output = server.wait_with_output()?;
        Ok([output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .concat())
    };
    let output = run("on")?;
    assert!(output.contains("dimensions = \"32\""), "{output}");
    let output = run("off")?;
    assert!(
        output.contains("does not run in single-user mode"),
        "{output}"
    );
    assert!(output.contains("HINT"), "{output}");
    Ok(())
}

/// On a server that preloads nothing and has room for no worker, sessions load cheap models for themselves.
#[test]
fn a_session_alone_embeds() -> Result<()> {
    let models = tempfile::tempdir()?;
    Model::tiny("cheap", 32).write(models.path())?;
    Model {
        seed: 2,
        ..Model::tiny("other", 16)
    }
    .write(models.path())?;
    let lstm = Model {
        architecture: Architecture::BiLstm,
        ..Model::tiny("lstm", 32)
    };
    lstm.write(models.path())?;
    let cluster = Cluster::builder()
        .preload(false)
        .models(models.path(), "cheap")
        .start()?;
    let mut client = cluster.database("d")?;
    let asked = by_process(&mut client, "some text")?;
    drop(client);
    let mut cluster = cluster;
    cluster.set("laser.encode_in_backend", "always")?;
    cluster.set("max_worker_processes", "0")?;
    cluster.restart()?;

    let mut client = cluster.connect("d")?;
    assert_eq!(embed(&mut client, "some text")?, asked);
    client.batch_execute(
        "CREATE TABLE t (id int, body text);
         INSERT INTO t SELECT i, 'sentence ' || i FROM generate_series(1, 500) i;
         CREATE INDEX ON t USING laser (body); SET enable_seqscan = off",
    )?;
    let row = client.query_one(
        "SELECT id FROM t ORDER BY body <=> 'sentence 77' LIMIT 1",
        &[],
    )?;
    assert_eq!(row.get::<_, i32>(0), 77);
    let row = client.query_one(
        "SELECT vector_dims(laser_embed('x', 'other')), worker_pid IS NULL AND pid IS NULL, backend_model,
                backend_sentences
         FROM laser_encoder_status",
        &[],
    )?;
    assert_eq!((row.get::<_, i32>(0), row.get(1)), (16, true));
    // Its own count: what the session has embedded last.
    assert!(row.get::<_, Option<i64>>(3).is_some_and(|n| n > 0));
    let rows = client.query(
        "SELECT name, in_backend, is_default, fingerprint IS NOT NULL, dimensions FROM laser_models ORDER BY 1",
        &[],
    )?;
    let rows: Vec<(String, bool, bool, bool, Option<i32>)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4)))
        .filter(|(name, ..): &(String, bool, bool, bool, Option<i32>)| !name.starts_with("laser-"))
        .collect();
    let row = |name: &str, serves, default, dimensions| {
        (name.to_owned(), serves, default, true, Some(dimensions))
    };
    assert_eq!(
        rows,
        [
            row("cheap", true, true, 32),
            row("lstm", false, false, 32),
            row("other", true, false, 16)
        ]
    );
    let refuse = |client: &mut Client, sql: &str, message: &str, code: SqlState| -> Result<()> {
        let (found, text, hint) = laser_tests::failure(client, sql)?;
        assert!(text.contains(message) && !hint.is_empty(), "{text}: {sql}");
        assert_eq!(found, code, "{sql}");
        Ok(())
    };
    refuse(
        &mut client,
        "SELECT laser_embed('x', 'lstm')",
        "model \"lstm\" needs the encoder process",
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
    )?;
    refuse(
        &mut client,
        "SELECT laser_embed('x', 'none')",
        "model \"none\" does not exist",
        SqlState::UNDEFINED_OBJECT,
    )?;
    // The session searches where the process cannot, with a warning if that was to do it.
    client.batch_execute("SET laser.mining_place = 'encoder'")?;
    client
        .batch_execute("SELECT laser_mine('SELECT id, body FROM t', 'SELECT id, body FROM t')")?;

    // Files that change are loaded again, as the encoder process does.
    Model {
        seed: 3,
        ..Model::tiny("cheap", 32)
    }
    .write(models.path())?;
    wait_until("the new files are loaded", || {
        Ok(embed(&mut client, "some text")? != asked)
    })?;
    fs::write(models.path().join("cheap/config.json"), "{")?;
    wait_until("the broken folder is told", || {
        match embed(&mut client, "some text") {
            Ok(_) => Ok(false),
            Err(error) => Ok(error.code() == Some(&SqlState::CONFIG_FILE_ERROR)),
        }
    })?;
    // A setting that was a boolean.
    for (value, shown) in [("true", "true"), ("off", "off"), ("1", "1")] {
        client.batch_execute(&format!("SET laser.encode_in_backend = {value}"))?;
        let row = client.query_one("SHOW laser.encode_in_backend", &[])?;
        assert_eq!(row.get::<_, String>(0), shown);
    }
    Ok(())
}

/// Others' models may be of any size: who lists them in a session is heard while they are hashed.
#[test]
fn listing_models_ends_when_told() -> Result<()> {
    let models = tempfile::tempdir()?;
    Model::tiny("cheap", 32).write(models.path())?;
    Model::tiny("large", 32).write(models.path())?;
    let weights = models.path().join("large/model.safetensors");
    // Takes no room, and ten seconds and more to hash.
    fs::File::options()
        .write(true)
        .open(weights)?
        .set_len(32 << 30)?;
    let cluster = Cluster::builder()
        .preload(false)
        .models(models.path(), "cheap")
        .start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute("SET laser.encode_in_backend = always; SET statement_timeout = 300")?;
    let start = Instant::now();
    let error = client
        .query("SELECT FROM laser_models", &[])
        .expect_err("canceled");
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED), "{error}");
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    Ok(())
}
