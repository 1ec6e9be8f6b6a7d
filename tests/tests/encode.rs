//! Embedding through SQL when things go wrong: the encoder process, its worker, sessions and
//! models die, hang, vanish or are broken.
//!
//! A stopped process (SIGSTOP) stands for an encoder that takes long: what happens then does not
//! depend on the speed of the machine.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laser_tests::model::{Architecture, Model};
use laser_tests::{Builder, Cluster, failure, process_exists, signal, wait_until, was_ended};
use postgres::error::SqlState;
use postgres::{Client, NoTls};
use tempfile::TempDir;

const SOCKET: &str = "laser/pgsql_tmp_encoder.sock";

/// A folder with the model `tiny`, and a cluster that is told of it. Sessions ask the encoder
/// process, which may stand still for as long as a test wants.
fn models() -> Result<(TempDir, Builder)> {
    let folder = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(folder.path())?;
    let builder = Cluster::builder()
        .models(folder.path(), "tiny")
        .setting("laser.encode_in_backend", "off")
        .setting("laser.encoder_timeout", "1h");
    Ok((folder, builder))
}

fn embed(client: &mut Client, text: &str) -> Result<Vec<f32>, postgres::Error> {
    Ok(client
        .query_one("SELECT laser_embed($1)::real[]", &[&text])?
        .get(0))
}

fn encoder_pid(client: &mut Client) -> Result<Option<u32>> {
    let row = client.query_one(
        "SELECT pid FROM laser_encoder_status WHERE state = 'running'",
        &[],
    );
    Ok(row
        .ok()
        .and_then(|row| row.get::<_, Option<i32>>(0))
        .map(|pid| pid as u32))
}

/// The encoder's process id, once it answers.
fn running_encoder(client: &mut Client) -> Result<u32> {
    let mut pid = None;
    wait_until("the encoder runs", || {
        pid = encoder_pid(client)?;
        Ok(pid.is_some())
    })?;
    pid.context("the encoder runs")
}

/// Whether a process is stopped or about to be (its state in /proc is T).
fn stop(pid: u32) -> Result<()> {
    signal(pid, libc::SIGSTOP);
    wait_until("the process has stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        Ok(stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('T')))
    })
}

/// Children of a process whose title contains `title`.
fn children(parent: u32, title: &str) -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let of_parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1))
            .is_some_and(|ppid| ppid == parent.to_string());
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if of_parent && String::from_utf8_lossy(&command).contains(title) {
            count += 1;
        }
    }
    Ok(count)
}

fn start_time(client: &mut Client) -> Result<String> {
    Ok(client
        .query_one("SELECT pg_postmaster_start_time()::text", &[])?
        .get(0))
}

#[test]
fn an_idle_server_has_an_encoder_when_preloaded() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    // Nothing has asked for an embedding yet.
    running_encoder(&mut client)?;
    wait_until("the default model is loaded", || {
        let row = client.query_one("SELECT loaded_models FROM laser_encoder_status", &[])?;
        Ok(row.get::<_, Option<Vec<String>>>(0) == Some(vec!["tiny".to_owned()]))
    })?;
    let row = client.query_one(
        "SELECT state, sentences, restarts FROM laser_encoder_status",
        &[],
    )?;
    assert_eq!(row.get::<_, String>(0), "running");
    assert_eq!((row.get::<_, i64>(1), row.get::<_, i64>(2)), (0, 0));
    Ok(())
}

#[test]
fn without_preload_the_first_call_starts_the_encoder() -> Result<()> {
    let (_models, builder) = models()?;
    let mut cluster = builder.preload(false).start()?;
    let mut client = cluster.database("d")?;
    let row = client.query_one("SELECT state, pid FROM laser_encoder_status", &[])?;
    assert_eq!(row.get::<_, String>(0), "stopped");
    assert_eq!(row.get::<_, Option<i32>>(1), None);

    // Sessions that begin at the same time agree on one worker.
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..12)
            .map(|i| {
                let config = cluster.config("d");
                scope.spawn(move || -> Result<Vec<f32>> {
                    Ok(embed(&mut config.connect(NoTls)?, &format!("text {i}"))?)
                })
            })
            .collect();
        for session in sessions {
            let embedding = session.join().expect("no panic")?;
            ensure!(embedding.len() == 32);
        }
        anyhow::Ok(())
    })?;
    let server = cluster.pid().context("the server runs")?;
    wait_until("one worker is left", || {
        Ok(children(server, "laser encoder")? == 1)
    })?;
    let pid = running_encoder(&mut client)?;

    // It goes with the server.
    drop(client);
    cluster.stop("fast")?;
    assert!(!process_exists(pid));
    Ok(())
}

#[test]
fn cancel_and_timeouts_work_while_the_encoder_is_busy() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "one")?;
    let encoder = running_encoder(&mut client)?;

    stop(encoder)?;
    let start = Instant::now();
    let (code, ..) = failure(
        &mut client,
        "SET statement_timeout = 300; SELECT laser_embed('two')",
    )?;
    assert_eq!(code, SqlState::QUERY_CANCELED);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    client.batch_execute("RESET statement_timeout")?;

    let token = client.cancel_token();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        token.cancel_query(NoTls)
    });
    let many = "SELECT laser_embed(array_agg('text ' || i)) FROM generate_series(1, 5000) i";
    let (code, ..) = failure(&mut client, many)?;
    assert_eq!(code, SqlState::QUERY_CANCELED);
    canceller.join().expect("no panic")?;

    // A subtransaction survives its cancelled part.
    client.batch_execute("SET statement_timeout = 300")?;
    client.batch_execute(
        "DO $$ BEGIN PERFORM laser_embed('three');
         EXCEPTION WHEN query_canceled THEN NULL; END $$",
    )?;
    client.batch_execute("RESET statement_timeout")?;

    // A session that has no connection yet waits as well.
    let mut other = cluster.connect("d")?;
    let (code, ..) = failure(
        &mut other,
        "SET statement_timeout = 300; SELECT laser_embed('four')",
    )?;
    assert_eq!(code, SqlState::QUERY_CANCELED);
    // Nothing is known against the process: it may have a long batch before it.
    let row = client.query_one("SELECT state, pid FROM laser_encoder_status", &[])?;
    assert_eq!(row.get::<_, &str>(0), "busy");
    assert_eq!(row.get::<_, i32>(1), i32::try_from(encoder)?);

    // The session's connection is in a clean state: answers belong to their questions.
    signal(encoder, libc::SIGCONT);
    assert_eq!(embed(&mut client, "one")?, expected);
    assert_ne!(embed(&mut client, "two")?, expected);
    assert_eq!(running_encoder(&mut client)?, encoder);
    // What the cancelled statements had asked for was dropped or done, and nothing waits.
    wait_until("the queue is empty", || {
        let row = client.query_one("SELECT queue_length FROM laser_encoder_status", &[])?;
        Ok(row.get::<_, Option<i64>>(0) == Some(0))
    })
}

#[test]
fn a_backend_that_dies_takes_its_requests_along() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "one")?;
    let encoder = running_encoder(&mut client)?;
    let sessions = |client: &mut Client| -> Result<i32> {
        Ok(client
            .query_one("SELECT sessions FROM laser_encoder_status", &[])?
            .get(0))
    };
    let before = sessions(&mut client)?;

    let mut victim = cluster.connect("d")?;
    let pid: i32 = victim.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    stop(encoder)?;
    let query = std::thread::spawn(move || {
        victim.batch_execute(
            "SELECT laser_embed(array_agg('text ' || i)) FROM generate_series(1, 5000) i",
        )
    });
    wait_until("the query runs", || {
        let row = client.query_one(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event IN ('Extension', 'LaserEncoder')",
            &[&pid],
        )?;
        Ok(row.get::<_, i64>(0) == 1)
    })?;
    let ended: bool = client
        .query_one("SELECT pg_terminate_backend($1, 20000)", &[&pid])?
        .get(0);
    assert!(ended, "a waiting backend is terminated at once");
    let error = query.join().expect("no panic").expect_err("ended");
    assert!(was_ended(&error), "{error}");

    signal(encoder, libc::SIGCONT);
    embed(&mut client, "two")?;
    wait_until("the encoder has noticed", || {
        Ok(sessions(&mut client)? == before)
    })
}

#[test]
fn databases_can_be_dropped() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.preload(false).start()?;
    let mut admin = cluster.connect("postgres")?;

    // The worker was started from the database that is dropped.
    let mut client = cluster.database("first")?;
    embed(&mut client, "one")?;
    let encoder = running_encoder(&mut client)?;
    drop(client);
    wait_until("the session is gone", || {
        Ok(admin
            .query_one(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = 'first'",
                &[],
            )?
            .get::<_, i64>(0)
            == 0)
    })?;
    admin.batch_execute("DROP DATABASE first")?;

    // FORCE, with a session in the middle of a call.
    let mut client = cluster.database("second")?;
    embed(&mut client, "one")?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    stop(encoder)?;
    let query = std::thread::spawn(move || embed(&mut client, "two"));
    wait_until("the query runs", || {
        let row = admin.query_one(
            "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND wait_event IN ('Extension', 'LaserEncoder')",
            &[&pid],
        )?;
        Ok(row.get::<_, i64>(0) == 1)
    })?;
    admin.batch_execute("DROP DATABASE second WITH (FORCE)")?;
    let error = query.join().expect("no panic").expect_err("ended");
    assert!(was_ended(&error), "{error}");
    signal(encoder, libc::SIGCONT);

    let mut client = cluster.database("third")?;
    embed(&mut client, "one")?;
    assert_eq!(running_encoder(&mut client)?, encoder);
    Ok(())
}

#[test]
fn a_full_queue_is_waited_for_or_an_error() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.setting("laser.encoder_queue", "1").start()?;
    cluster.database("d")?;
    let round = |timeout: &str| -> Result<Vec<Result<Vec<f32>, postgres::Error>>> {
        let mut sessions = Vec::new();
        for _ in 0..6 {
            let mut client = cluster.connect("d")?;
            client.batch_execute(&format!("SET laser.encoder_busy_timeout = '{timeout}'"))?;
            embed(&mut client, "connected")?;
            sessions.push(client);
        }
        let encoder = running_encoder(&mut sessions[0])?;
        stop(encoder)?;
        // All requests lie in the sockets when the encoder goes on, and are read together.
        let queries: Vec<_> = sessions
            .into_iter()
            .map(|mut client| std::thread::spawn(move || embed(&mut client, "together")))
            .collect();
        let mut admin = cluster.connect("d")?;
        wait_until("all sessions wait", || {
            let row = admin.query_one(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event IN ('Extension', 'LaserEncoder')
                 AND backend_type = 'client backend'",
                &[],
            )?;
            Ok(row.get::<_, i64>(0) == 6)
        })?;
        signal(encoder, libc::SIGCONT);
        Ok(queries
            .into_iter()
            .map(|query| query.join().expect("no panic"))
            .collect())
    };

    let (answers, errors): (Vec<_>, Vec<_>) = round("0")?.into_iter().partition(Result::is_ok);
    assert!(!answers.is_empty());
    assert!(!errors.is_empty());
    for error in errors {
        let error = error.expect_err("partitioned");
        let error = error.as_db_error().context("an error of the server")?;
        assert_eq!(error.code(), &SqlState::CONFIGURATION_LIMIT_EXCEEDED);
        assert!(
            error.message().contains("queue is full"),
            "{}",
            error.message()
        );
        assert!(
            error
                .hint()
                .is_some_and(|hint| hint.contains("laser.encoder_queue"))
        );
    }

    for answer in round("60s")? {
        answer?;
    }
    // A request larger than the queue goes through as well, piece by piece.
    let mut client = cluster.connect("d")?;
    let n: i32 = client
        .query_one(
            "SELECT cardinality(laser_embed(array_agg('text ' || i)))
             FROM generate_series(1, 3000) i",
            &[],
        )?
        .get(0);
    assert_eq!(n, 3000);
    Ok(())
}

#[test]
fn one_text_is_not_stuck_behind_a_large_array() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "one")?;
    let done = AtomicBool::new(false);
    let started = AtomicBool::new(false);
    let during = std::thread::scope(|scope| -> Result<usize> {
        let large = scope.spawn(|| -> Result<()> {
            let mut client = cluster.connect("d")?;
            client.batch_execute(
                "CREATE TEMP TABLE texts AS
                 SELECT array_agg(repeat('word ', 20) || i) AS a FROM generate_series(1, 30000) i",
            )?;
            started.store(true, Ordering::SeqCst);
            let result = client.query_one("SELECT cardinality(laser_embed(a)) FROM texts", &[]);
            done.store(true, Ordering::SeqCst);
            ensure!(result?.get::<_, i32>(0) == 30_000);
            Ok(())
        });
        while !started.load(Ordering::SeqCst) && !large.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut during = 0;
        while !done.load(Ordering::SeqCst) && !large.is_finished() {
            embed(&mut client, "single")?;
            if !done.load(Ordering::SeqCst) {
                during += 1;
            }
        }
        large.join().expect("no panic")?;
        Ok(during)
    })?;
    assert!(
        during > 3,
        "{during} single texts while an array of 30,000 was embedded"
    );
    Ok(())
}

#[test]
fn long_texts_are_cut_with_one_warning_or_refused() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.setting("laser.encode_in_backend", "on").start()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    let cut = |notices: Vec<String>| {
        notices
            .iter()
            .filter(|n| n.starts_with("WARNING: text is longer"))
            .count()
    };
    for in_backend in ["off", "on"] {
        client.batch_execute(&format!("SET laser.encode_in_backend = {in_backend}"))?;
        notices.take();
        client.batch_execute("SELECT laser_embed(repeat('x', 128))")?;
        assert_eq!(cut(notices.take()), 0);
        client.batch_execute(
            "SELECT laser_embed(repeat('x', 129) || i) FROM generate_series(1, 5) i",
        )?;
        assert_eq!(cut(notices.take()), 1);
        client.batch_execute("SELECT laser_embed(ARRAY[repeat('x', 129), 'short'])")?;
        assert_eq!(cut(notices.take()), 1);
        // The beginning is what counts.
        let same: bool = client
            .query_one(
                "SELECT laser_embed(repeat('x', 128)) = laser_embed(repeat('x', 500))",
                &[],
            )?
            .get(0);
        assert!(same);

        client.batch_execute("SET laser.long_text = 'error'")?;
        let (code, message, hint) = failure(&mut client, "SELECT laser_embed(repeat('x', 129))")?;
        assert_eq!(code, SqlState::STRING_DATA_RIGHT_TRUNCATION);
        assert!(message.contains("longer than the model reads"), "{message}");
        assert!(hint.contains("laser.long_text"), "{hint}");
        let long = "SELECT laser_embed(ARRAY['short', 'the second ' || repeat('x', 129)])";
        let error = client.batch_execute(long).expect_err("it is refused");
        let detail = error.as_db_error().and_then(|e| e.detail()).unwrap_or("");
        assert!(
            // Nobody is shown a text: it may be another's.
            detail.contains("the 128 tokens") && !detail.contains("xxx"),
            "{detail}"
        );

        let (code, message, hint) =
            failure(&mut client, "SELECT laser_embed(repeat('x', 1048577))")?;
        assert_eq!(code, SqlState::PROGRAM_LIMIT_EXCEEDED);
        assert!(message.contains("1048576 bytes"), "{message}");
        assert!(!hint.is_empty());
        client.batch_execute("SET laser.long_text = 'warn'")?;
        client.batch_execute("SELECT laser_embed(repeat('x', 1048576))")?;
    }
    Ok(())
}

#[test]
fn a_missing_model_is_an_error_until_it_is_installed() -> Result<()> {
    let (folder, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let statement = "SELECT laser_embed('text', 'other')";
    let (code, message, hint) = failure(&mut client, statement)?;
    assert_eq!(code, SqlState::UNDEFINED_OBJECT);
    assert_eq!(message, "model \"other\" does not exist");
    assert!(hint.contains("laser_models"), "{hint}");
    for bad in ["../tiny", "/etc", ".", "a b"] {
        let (code, ..) = failure(&mut client, &format!("SELECT laser_embed('text', '{bad}')"))?;
        assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE, "{bad}");
        let (code, ..) = failure(&mut client, &format!("SET laser.model = '{bad}'"))?;
        assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE, "{bad}");
    }
    client.batch_execute("SET laser.model = 'other'")?;
    let (code, ..) = failure(&mut client, "SELECT laser_embed('text')")?;
    assert_eq!(code, SqlState::UNDEFINED_OBJECT);

    Model::tiny("other", 16).write(folder.path())?;
    assert_eq!(embed(&mut client, "text")?.len(), 16);
    client.batch_execute("RESET laser.model")?;
    assert_eq!(embed(&mut client, "text")?.len(), 32);
    Ok(())
}

#[test]
fn a_broken_model_is_an_error_until_it_is_repaired() -> Result<()> {
    let (folder, builder) = models()?;
    let broken = Model::tiny("broken", 16).write(folder.path())?;
    let weights = std::fs::read(broken.join("model.safetensors"))?;
    let replace = |file: &str, contents: &[u8]| -> Result<()> {
        let new = broken.join("new");
        std::fs::write(&new, contents)?;
        std::fs::rename(new, broken.join(file))?;
        Ok(())
    };
    replace("model.safetensors", &weights[..weights.len() / 2])?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let encoder = running_encoder(&mut client)?;
    let statement = "SELECT laser_embed('text', 'broken')";
    for _ in 0..2 {
        let (code, message, hint) = failure(&mut client, statement)?;
        assert_eq!(code, SqlState::CONFIG_FILE_ERROR);
        assert!(
            message.contains("could not load model \"broken\""),
            "{message}"
        );
        assert!(message.contains("model.safetensors"), "{message}");
        assert!(
            !message.contains(&*folder.path().to_string_lossy()),
            "{message}"
        );
        assert!(!hint.is_empty());
    }
    let error: Option<String> = client
        .query_one("SELECT error FROM laser_models WHERE name = 'broken'", &[])?
        .get(0);
    assert!(error.is_some());
    // Others are not concerned.
    embed(&mut client, "text")?;

    replace("model.safetensors", &weights)?;
    client.batch_execute(statement)?;

    for (file, contents) in [
        ("config.json", &b"{ not json"[..]),
        ("tokenizer.json", b"[]"),
        ("model.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    ] {
        let good = std::fs::read(broken.join(file))?;
        replace(file, contents)?;
        wait_until("the encoder has noticed", || {
            Ok(client.batch_execute(statement).is_err())
        })?;
        let (code, ..) = failure(&mut client, statement)?;
        assert_eq!(code, SqlState::CONFIG_FILE_ERROR, "{file}");
        replace(file, &good)?;
        client.batch_execute(statement)?;
    }
    assert_eq!(
        running_encoder(&mut client)?,
        encoder,
        "the process has survived all of it"
    );
    Ok(())
}

/// What was wrong with the machine and not with the folder is over some time.
#[test]
fn a_model_that_met_a_bad_moment_is_tried_again() -> Result<()> {
    let (folder, builder) = models()?;
    Model::tiny("other", 16).write(folder.path())?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let encoder = running_encoder(&mut client)?;
    let mut limit = |files: &str| {
        let program = format!("prlimit --pid {encoder} --nofile={files}:");
        client.batch_execute(&format!("COPY (SELECT WHERE false) TO PROGRAM '{program}'"))
    };
    let statement = "SELECT laser_embed('text', 'other')";
    // A session that is connected asks: nobody else can be connected now.
    let mut connected = cluster.connect("d")?;
    embed(&mut connected, "text")?;
    limit("3")?;
    let (code, message, _) = failure(&mut connected, statement)?;
    assert_eq!(code, SqlState::CONFIG_FILE_ERROR, "{message}");
    limit("1024")?;
    wait_until("the model is tried again", || {
        Ok(connected.batch_execute(statement).is_ok())
    })?;
    assert_eq!(running_encoder(&mut client)?, encoder);
    Ok(())
}

/// A model has the table of another one beside it, for as long as that is the one it was made for.
#[test]
fn a_model_on_a_base_follows_its_base() -> Result<()> {
    use laser_model::{base, folder};

    let (models, builder) = models()?;
    let mean = Model::tiny("mean", 16);
    let order = Model {
        architecture: Architecture::ResidualBilstm,
        ..Model::tiny("order", 16)
    };
    let path = mean.write(models.path())?;
    let fingerprint = base::hex(&folder::fingerprint(&path)?);
    order.write_on(models.path(), "mean", &fingerprint)?;
    let whole = Model {
        name: "whole".into(),
        ..order.clone()
    };
    whole.write(models.path())?;
    // On a busy machine `auto` may choose another precision for one than for the other.
    let cluster = builder.setting("laser.encoder_precision", "f32").start()?;
    let mut client = cluster.database("d")?;
    let embed = "SELECT laser_embed('dog bites man', 'order')";
    let same =
        "SELECT laser_embed('dog bites man', 'order') = laser_embed('dog bites man', 'whole')";
    let described = |client: &mut Client| -> Result<(Option<String>, Option<String>, bool)> {
        let row = client.query_one(
            "SELECT fingerprint, error, loaded FROM laser_models WHERE name = 'order'",
            &[],
        )?;
        Ok((row.get(0), row.get(1), row.get(2)))
    };
    let (before, error, loaded) = described(&mut client)?;
    assert_eq!((error, loaded), (None, false));
    assert!(client.query_one(same, &[])?.get::<_, bool>(0));
    assert_eq!(described(&mut client)?, (before.clone(), None, true));

    // Another base under the same name: what stands in memory is no longer what stands on the disk.
    let replace = |seed: u64| -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let other = Model {
            seed,
            ..mean.clone()
        };
        let from = other.write(scratch.path())?.join("model.safetensors");
        std::fs::copy(from, path.join("new"))?;
        Ok(std::fs::rename(
            path.join("new"),
            path.join("model.safetensors"),
        )?)
    };
    replace(7)?;
    wait_until("the encoder has noticed", || {
        Ok(client.batch_execute(embed).is_err())
    })?;
    let (code, message, _) = failure(&mut client, embed)?;
    assert_eq!(code, SqlState::CONFIG_FILE_ERROR);
    let what = format!(
        "builds on model \"mean\" with fingerprint {}",
        &fingerprint[..16]
    );
    assert!(message.contains(&what), "{message}");
    let shown = models.path().to_string_lossy();
    assert!(!message.contains(&*shown), "{message}");
    let (_, error, loaded) = described(&mut client)?;
    assert!(error.is_some_and(|e| e.contains(&what) && !e.contains(&*shown)));
    assert!(!loaded);

    // The model for the new base is another model than the one before.
    let other = base::hex(&folder::fingerprint(&path)?);
    order.write_on(models.path(), "mean", &other)?;
    wait_until("the encoder has noticed", || {
        Ok(client.batch_execute(embed).is_ok())
    })?;
    assert!(!client.query_one(same, &[])?.get::<_, bool>(0));
    let (after, error, _) = described(&mut client)?;
    assert_eq!(error, None);
    assert_ne!(before, after);

    // Without its base it is listed, and says what is missing.
    replace(mean.seed)?;
    order.write_on(models.path(), "mean", &fingerprint)?;
    wait_until("the encoder has noticed", || {
        Ok(client.query_one(same, &[]).is_ok_and(|row| row.get(0)))
    })?;
    std::fs::rename(&path, models.path().join("gone"))?;
    wait_until("the encoder has noticed", || {
        Ok(client.batch_execute(embed).is_err())
    })?;
    let (_, message, _) = failure(&mut client, embed)?;
    assert!(
        message.contains("\"mean\", which is not beside it"),
        "{message}"
    );
    let (_, error, _) = described(&mut client)?;
    assert!(error.is_some_and(|e| e.contains("not beside it")));
    Ok(())
}

#[test]
fn models_beyond_the_memory_limit_are_dropped() -> Result<()> {
    let (folder, builder) = models()?;
    // 256 x 1024 x 4 bytes: one megabyte each.
    for name in ["a", "b", "c"] {
        Model::tiny(name, 1024).write(folder.path())?;
    }
    // Two and what they need besides.
    let cluster = builder.setting("laser.encoder_memory", "3MB").start()?;
    let mut client = cluster.database("d")?;
    let mut resident = |names: &[&str]| -> Result<(Vec<String>, i64)> {
        for name in names {
            client.batch_execute(&format!("SELECT laser_embed('text', '{name}')"))?;
        }
        let row = client.query_one(
            "SELECT loaded_models, memory_bytes FROM laser_encoder_status",
            &[],
        )?;
        let mut loaded: Vec<String> = row.get(0);
        // The default model, which the process loads when it starts.
        loaded.retain(|name| name != "tiny");
        Ok((loaded, row.get(1)))
    };
    assert_eq!(resident(&["a", "b"])?.0, ["a", "b"]);
    let (loaded, memory) = resident(&["a", "c"])?;
    assert_eq!(loaded, ["a", "c"], "the least recently used one is dropped");
    assert!((2 << 20..=3 << 20).contains(&memory), "{memory}");
    // A dropped one comes back.
    assert_eq!(resident(&["b"])?.0, ["b", "c"]);
    Ok(())
}

#[test]
fn a_socket_left_over_from_a_crash_is_replaced() -> Result<()> {
    let (_models, builder) = models()?;
    let mut cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "text")?;
    let encoder = running_encoder(&mut client)?;
    drop(client);

    cluster.kill9()?;
    wait_until("the encoder has ended with the server", || {
        Ok(!process_exists(encoder))
    })?;
    let socket = cluster.data().join(SOCKET);
    let _ = std::fs::remove_file(&socket);
    drop(UnixListener::bind(&socket)?);
    assert!(socket.exists() && UnixStream::connect(&socket).is_err());

    cluster.start()?;
    let mut client = cluster.connect("d")?;
    assert_eq!(embed(&mut client, "text")?, expected);
    assert!(
        cluster
            .log()
            .contains("replacing a socket file that nobody listens on")
    );
    Ok(())
}

#[test]
fn a_killed_encoder_is_started_again() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "text")?;
    let first = running_encoder(&mut client)?;
    let server = start_time(&mut client)?;

    for round in 1..=2 {
        let encoder = running_encoder(&mut client)?;
        signal(encoder, libc::SIGKILL);
        wait_until("the process is gone", || Ok(!process_exists(encoder)))?;
        assert_eq!(embed(&mut client, "text")?, expected);
        let row = client.query_one("SELECT restarts, last_error FROM laser_encoder_status", &[])?;
        assert_eq!(row.get::<_, i64>(0), round);
        assert!(row.get::<_, String>(1).contains("signal 9"));
    }

    // The worker itself: its encoder goes with it, and the next call starts another worker.
    let encoder = running_encoder(&mut client)?;
    assert_ne!(encoder, first);
    let worker: i32 = client
        .query_one("SELECT worker_pid FROM laser_encoder_status", &[])?
        .get(0);
    signal(u32::try_from(worker)?, libc::SIGTERM);
    wait_until("the encoder is gone", || Ok(!process_exists(encoder)))?;
    assert_eq!(embed(&mut client, "text")?, expected);
    assert_eq!(start_time(&mut client)?, server);
    Ok(())
}

#[test]
fn a_hung_encoder_is_ended_and_started_again() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder
        .setting("laser.encoder_timeout", "4s")
        .setting("laser.encoder_start_timeout", "3s")
        .start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "text")?;
    let server = start_time(&mut client)?;
    let encoder = running_encoder(&mut client)?;
    stop(encoder)?;
    // One has a connection, the other makes one: both get their answers from the next process. What the other waits
    // for the one that hangs is no time in which a process was started.
    let mut other = cluster.connect("d")?;
    let waiting = std::thread::spawn(move || embed(&mut other, "text"));
    assert_eq!(embed(&mut client, "text")?, expected);
    assert_eq!(waiting.join().expect("no panic")?, expected);
    assert!(!process_exists(encoder));
    let row = client.query_one("SELECT restarts, last_error FROM laser_encoder_status", &[])?;
    assert_eq!(row.get::<_, i64>(0), 1);
    let error: String = row.get(1);
    assert!(error.contains("did not answer for"), "{error}");

    // One that answers and has nothing to do is left alone.
    let encoder = running_encoder(&mut client)?;
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(running_encoder(&mut client)?, encoder);
    assert_eq!(start_time(&mut client)?, server);
    Ok(())
}

#[test]
fn an_encoder_that_computes_has_ten_times_as_long() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // A text of that many tokens takes this model half a minute and more on one thread.
    let deep = Model {
        architecture: Architecture::BiLstm,
        layers: 64,
        max_tokens: 65_000,
        ..Model::tiny("deep", 256)
    };
    deep.write(folder.path())?;
    let cluster = Cluster::builder()
        .models(folder.path(), "deep")
        .setting("laser.encoder_timeout", "1s")
        .setting("laser.encoder_threads", "1")
        .setting("laser.encoder_precision", "f32")
        .start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "text")?;
    let server = start_time(&mut client)?;
    let encoder = running_encoder(&mut client)?;

    let mut patient = cluster.connect("d")?;
    let cancel = patient.cancel_token();
    let begun = Instant::now();
    let waiting = std::thread::spawn(move || embed(&mut patient, &"x".repeat(deep.max_tokens)));
    // The limit for an encoder that hangs passes several times.
    while begun.elapsed() < Duration::from_secs(8) {
        assert!(process_exists(encoder), "ended after {:?}", begun.elapsed());
        assert!(
            !waiting.is_finished(),
            "answered after {:?}",
            begun.elapsed()
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    cancel.cancel_query(NoTls)?;
    let error = waiting.join().expect("no panic").err();
    let error = error.context("it was canceled")?;
    assert_eq!(error.code(), Some(&SqlState::QUERY_CANCELED));
    // Nobody waits for the answer any more, and the process computes on.
    wait_until("it is ended", || Ok(!process_exists(encoder)))?;

    wait_until("the next one answers", || {
        Ok(embed(&mut client, "text").is_ok_and(|embedding| embedding == expected))
    })?;
    let row = client.query_one("SELECT restarts, last_error FROM laser_encoder_status", &[])?;
    assert_eq!(row.get::<_, i64>(0), 1);
    let error: String = row.get(1);
    assert!(error.contains("did not answer for 10 s"), "{error}");
    assert_eq!(start_time(&mut client)?, server);
    Ok(())
}

#[test]
fn an_encoder_that_cannot_start_is_tried_less_and_less_often() -> Result<()> {
    let (_models, builder) = models()?;
    let mut cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "text")?;
    drop(client);
    cluster.stop("fast")?;

    // A folder in the place of the socket.
    let socket = cluster.data().join(SOCKET);
    std::fs::create_dir(&socket)?;
    cluster.start()?;
    let mut client = cluster.connect("d")?;
    let failures = || cluster.log().matches("exited with code 1").count();
    wait_until("five starts have failed", || Ok(failures() >= 5))?;
    let start = Instant::now();
    let (code, message, hint) = failure(&mut client, "SELECT laser_embed('text')")?;
    assert_eq!(code, SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(message.contains("could not open socket"), "{message}");
    assert!(hint.contains("laser_encoder_status"), "{hint}");
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "a hopeless start is not waited for"
    );
    let row = client.query_one(
        "SELECT state, pid, last_error FROM laser_encoder_status",
        &[],
    )?;
    assert!(
        ["backing off", "starting"].contains(&row.get::<_, &str>(0)),
        "{row:?}"
    );
    assert!(row.get::<_, String>(2).contains("exited with code 1"));

    // After five failures a pause lasts at least 800 ms, and longer after each.
    let before = failures();
    std::thread::sleep(Duration::from_secs(3));
    assert!(
        failures() - before <= 3,
        "{} starts in 3 seconds",
        failures() - before
    );

    std::fs::remove_dir(&socket)?;
    cluster.reload();
    wait_until("it runs again", || Ok(embed(&mut client, "text").is_ok()))?;
    assert_eq!(embed(&mut client, "text")?, expected);
    Ok(())
}

#[test]
fn changed_settings_take_effect_on_reload() -> Result<()> {
    let (folder, builder) = models()?;
    Model::tiny("other", 16).write(folder.path())?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let first = running_encoder(&mut client)?;

    cluster.set("work_mem", "5MB")?;
    cluster.reload();
    wait_until("the session has the new setting", || {
        Ok(client.query_one("SHOW work_mem", &[])?.get::<_, String>(0) == "5MB")
    })?;
    embed(&mut client, "text")?;
    assert_eq!(
        running_encoder(&mut client)?,
        first,
        "an unrelated setting changes nothing"
    );

    cluster.set("laser.encoder_queue", "77")?;
    cluster.set("laser.model", "other")?;
    cluster.reload();
    wait_until("the encoder has the new settings", || {
        let row = client.query_one(
            "SELECT queue_limit, default_model FROM laser_encoder_status",
            &[],
        )?;
        Ok(row.get::<_, Option<i64>>(0) == Some(77)
            && row.get::<_, Option<String>>(1).as_deref() == Some("other"))
    })?;
    assert_ne!(running_encoder(&mut client)?, first);
    assert!(!process_exists(first));
    assert_eq!(embed(&mut client, "text")?.len(), 16);

    let (code, ..) = failure(&mut client, "SET laser.encoder_queue = 5")?;
    assert_eq!(code, SqlState::CANT_CHANGE_RUNTIME_PARAM);
    let (code, ..) = failure(&mut client, "SET laser.no_such_setting = 5")?;
    assert_eq!(code, SqlState::INVALID_NAME);
    Ok(())
}

#[test]
fn no_process_outlives_the_server() -> Result<()> {
    let (_models, builder) = models()?;
    let mut cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    for mode in ["smart", "fast", "immediate", "kill -9"] {
        let encoder = running_encoder(&mut client)?;
        drop(client);
        match mode {
            "kill -9" => cluster.kill9()?,
            mode => cluster.stop(mode)?,
        }
        // The server waits for its worker, which waits for the encoder; only where the postmaster
        // itself is killed, the others need a moment to notice.
        if mode != "kill -9" && mode != "immediate" {
            assert!(!process_exists(encoder), "after a {mode} shutdown");
            assert!(!cluster.data().join(SOCKET).exists());
        }
        wait_until("the encoder has ended", || Ok(!process_exists(encoder)))?;
        cluster.start()?;
        client = cluster.connect("d")?;
        embed(&mut client, "text")?;
    }
    // A stopped process can be taken down as well.
    let encoder = running_encoder(&mut client)?;
    stop(encoder)?;
    drop(client);
    cluster.stop("fast")?;
    assert!(!process_exists(encoder));
    Ok(())
}

#[test]
fn sixteen_clients_survive_kills_of_the_encoder() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "text")?;
    let server = start_time(&mut client)?;
    let mut bystander = cluster.connect("d")?;
    bystander.batch_execute("BEGIN; CREATE TEMP TABLE kept (i int)")?;

    let finished = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..16)
            .map(|_| {
                let config = cluster.config("d");
                let (finished, answers, expected) = (&finished, &answers, &expected);
                scope.spawn(move || -> Result<usize> {
                    let mut client = config.connect(NoTls)?;
                    let mut errors = 0;
                    while !finished.load(Ordering::SeqCst) {
                        match embed(&mut client, "text") {
                            Ok(embedding) => {
                                ensure!(embedding == *expected, "a wrong answer");
                                answers.fetch_add(1, Ordering::SeqCst);
                            }
                            Err(error) => {
                                let error = error.as_db_error().context("a lost session")?;
                                ensure!(
                                    error.message().contains("encoder process"),
                                    "{}",
                                    error.message()
                                );
                                errors += 1;
                            }
                        }
                    }
                    Ok(errors)
                })
            })
            .collect();
        let result = (|| -> Result<()> {
            for _ in 0..3 {
                let before = answers.load(Ordering::SeqCst);
                wait_until("all clients are at work", || {
                    Ok(answers.load(Ordering::SeqCst) > before + 64
                        || clients.iter().any(|c| c.is_finished()))
                })?;
                let encoder = running_encoder(&mut client)?;
                signal(encoder, libc::SIGKILL);
                let killed = Instant::now();
                wait_until("the process is gone", || Ok(!process_exists(encoder)))?;
                ensure!(embed(&mut client, "text")? == expected);
                let took = killed.elapsed();
                ensure!(
                    took < Duration::from_secs(2),
                    "calls work again after {took:?}"
                );
            }
            Ok(())
        })();
        finished.store(true, Ordering::SeqCst);
        let mut errors = 0;
        for client in clients {
            errors += client.join().expect("no panic")?;
        }
        result?;
        // Each kill may cost each client one clear error, and no more.
        ensure!(errors <= 3 * 16, "{errors} errors");
        Ok(())
    })?;
    assert_eq!(start_time(&mut client)?, server);
    bystander.batch_execute("INSERT INTO kept VALUES (1); COMMIT")?;
    Ok(())
}

#[test]
fn databases_in_other_encodings_are_converted() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.setting("laser.encode_in_backend", "on").start()?;
    let mut utf8 = cluster.database("d")?;
    let expected = embed(&mut utf8, "Où est la gare? Größe")?;
    for encoding in ["LATIN1", "WIN1252"] {
        let name = format!("d_{encoding}");
        utf8.batch_execute(&format!(
            "CREATE DATABASE \"{name}\" ENCODING '{encoding}' TEMPLATE template0
             LC_COLLATE 'C' LC_CTYPE 'C'"
        ))?;
        let mut client = cluster.connect(&name)?;
        client.batch_execute("CREATE EXTENSION laser")?;
        for in_backend in ["off", "on"] {
            client.batch_execute(&format!("SET laser.encode_in_backend = {in_backend}"))?;
            assert_eq!(
                embed(&mut client, "Où est la gare? Größe")?,
                expected,
                "{encoding}"
            );
        }
        let array: Vec<f32> = client
            .query_one(
                "SELECT (laser_embed(ARRAY[$1]))[1]::real[]",
                &[&"Où est la gare? Größe"],
            )?
            .get(0);
        assert_eq!(array, expected, "{encoding}");
    }
    // Without an encoding, bytes must be UTF-8.
    utf8.batch_execute(
        "CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0
         LC_COLLATE 'C' LC_CTYPE 'C'",
    )?;
    let mut client = cluster.connect("ascii")?;
    client.batch_execute("CREATE EXTENSION laser")?;
    assert_eq!(embed(&mut client, "Où est la gare? Größe")?, expected);
    let (code, ..) = failure(&mut client, r"SELECT laser_embed(E'\xff\xfe')")?;
    assert_eq!(code, SqlState::CHARACTER_NOT_IN_REPERTOIRE);
    Ok(())
}

#[test]
fn parallel_workers_embed_as_well() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT i, 'text ' || i AS body FROM generate_series(1, 2000) i;
         ALTER TABLE t SET (parallel_workers = 2);
         ANALYZE t;
         SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
         SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 2",
    )?;
    let query = "SELECT count(*) FROM t WHERE laser_embed(body) <> laser_embed('another text')";
    let plan: Vec<String> = client
        .query(&format!("EXPLAIN {query}"), &[])?
        .iter()
        .map(|row| row.get(0))
        .collect();
    assert!(plan.iter().any(|line| line.contains("Gather")), "{plan:?}");
    assert_eq!(client.query_one(query, &[])?.get::<_, i64>(0), 2000);
    Ok(())
}

#[test]
fn embed_table_can_be_stopped_and_called_again() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    client.batch_execute(
        "CREATE TABLE t (id int, body text, e embedding(32));
         INSERT INTO t SELECT i, CASE WHEN i % 10 > 0 THEN 'text ' || i END
         FROM generate_series(1, 5000) i;
         ALTER TABLE t ADD CONSTRAINT stop CHECK (id <> 3211 OR e IS NULL)",
    )?;
    let counts = |client: &mut Client| -> Result<(i64, i64)> {
        let row = client.query_one(
            "SELECT count(e), count(*) FILTER (WHERE e <> laser_embed(body)) FROM t",
            &[],
        )?;
        Ok((row.get(0), row.get(1)))
    };
    let call = "CALL laser_embed_table('t', 'body', 'e', 500)";
    let (code, ..) = failure(&mut client, call)?;
    assert_eq!(code, SqlState::CHECK_VIOLATION);
    // What was committed before stays.
    let (done, wrong) = counts(&mut client)?;
    assert!(done > 0 && done < 4500 && done % 500 == 0, "{done}");
    assert_eq!(wrong, 0);

    client.batch_execute("ALTER TABLE t DROP CONSTRAINT stop")?;
    client.batch_execute("BEGIN")?;
    let (code, message, hint) = failure(&mut client, call)?;
    assert_eq!(code, SqlState::ACTIVE_SQL_TRANSACTION);
    assert!(message.contains("inside a transaction block"), "{message}");
    assert!(hint.contains("BEGIN"), "{hint}");
    client.batch_execute("ROLLBACK")?;

    notices.take();
    client.batch_execute(call)?;
    assert_eq!(counts(&mut client)?, (4500, 0));
    let message = format!("NOTICE: {} rows embedded", 4500 - done);
    assert!(notices.take().contains(&message));

    // Rows that others lock and change meanwhile are not lost.
    client.batch_execute("UPDATE t SET e = NULL")?;
    let mut other = cluster.connect("d")?;
    other.batch_execute("BEGIN; UPDATE t SET body = 'changed' WHERE id = 77")?;
    let caller = std::thread::spawn({
        let mut client = cluster.connect("d")?;
        let call = call.to_owned();
        move || client.batch_execute(&call)
    });
    std::thread::sleep(Duration::from_millis(300));
    other.batch_execute("COMMIT")?;
    caller.join().expect("no panic")?;
    assert_eq!(counts(&mut client)?, (4500, 0));
    Ok(())
}

/// Between two batches nothing is locked, and somebody may put another table of the same name before the
/// one that is embedded.
#[test]
fn embed_table_stays_with_its_table() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE public.t (id int, body text, e embedding(32));
         INSERT INTO t SELECT i, 'text ' || i FROM generate_series(1, 900) i",
    )?;
    let mut other = cluster.connect("d")?;
    other.batch_execute("BEGIN; UPDATE t SET body = 'changed' WHERE id = 350")?;
    let caller = std::thread::spawn({
        let mut client = cluster.connect("d")?;
        move || client.batch_execute("CALL laser_embed_table('t', 'body', 'e', 100)")
    });
    let count = "SELECT count(e) FROM public.t";
    let deadline = Instant::now() + Duration::from_secs(30);
    while client.query_one(count, &[])?.get::<_, i64>(0) < 300 {
        ensure!(Instant::now() < deadline, "nothing is embedded");
        std::thread::sleep(Duration::from_millis(10));
    }
    client.batch_execute(
        "DO $$ BEGIN EXECUTE format('CREATE SCHEMA %I', current_user); END $$;
         CREATE TABLE t (id int, body text, e public.embedding(32));
         INSERT INTO t SELECT i, 'trap' FROM generate_series(1, 900) i;
         CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN RAISE 'ran with the rights of the caller'; END $$;
         CREATE TRIGGER trap BEFORE UPDATE ON t EXECUTE FUNCTION trap()",
    )?;
    other.batch_execute("COMMIT")?;
    caller.join().expect("no panic")?;
    assert_eq!(client.query_one(count, &[])?.get::<_, i64>(0), 900);
    assert_eq!(
        client
            .query_one("SELECT count(e) FROM t", &[])?
            .get::<_, i64>(0),
        0
    );

    // Nobody holds up a table that he may not update.
    client.batch_execute("CREATE ROLE nobody_in_particular; SET ROLE nobody_in_particular")?;
    let (code, ..) = failure(
        &mut client,
        "SELECT public.laser_lock_table('public.t'::regclass, false)",
    )?;
    assert_eq!(code, SqlState::INSUFFICIENT_PRIVILEGE);
    // Who may update one does not hold up its maintenance.
    client.batch_execute(
        "RESET ROLE; GRANT UPDATE ON public.t TO nobody_in_particular; SET ROLE nobody_in_particular;
         SELECT public.laser_lock_table('public.t'::regclass, false)",
    )?;
    let (code, message, _) = failure(
        &mut client,
        "SELECT public.laser_lock_table('public.t'::regclass, true)",
    )?;
    assert_eq!(code, SqlState::INSUFFICIENT_PRIVILEGE);
    assert_eq!(message, "must be owner of table t");
    client.batch_execute(
        "RESET ROLE; DROP OWNED BY nobody_in_particular; DROP ROLE nobody_in_particular",
    )?;
    let (code, ..) = failure(
        &mut client,
        "SELECT public.laser_lock_table('pg_settings'::regclass, false)",
    )?;
    assert_eq!(code, SqlState::WRONG_OBJECT_TYPE);
    let (code, ..) = failure(&mut client, "SELECT public.laser_lock_table(1, false)")?;
    assert_eq!(code, SqlState::UNDEFINED_TABLE);
    Ok(())
}

#[test]
fn foreign_bytes_on_the_socket_harm_nobody() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let encoder = running_encoder(&mut client)?;
    let socket = cluster.data().join(SOCKET);
    let hello = [3u8, 0, 0, 0, 1, 1, 0];
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        &[0xff; 4096],
        // A handshake of another version, a first message that is none, a frame without end.
        &[3, 0, 0, 0, 1, 0xff, 0xff],
        &[9, 0, 0, 0, 5, 1, 0, 0, 0, 0, 0, 0, 0],
        &[0, 0, 0, 4],
    ] {
        for handshake_done in [false, true] {
            let mut stream = UnixStream::connect(&socket)?;
            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
            if handshake_done {
                stream.write_all(&hello)?;
            }
            // The encoder may have hung up already.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            embed(&mut client, "text")?;
        }
    }
    assert_eq!(running_encoder(&mut client)?, encoder);
    Ok(())
}

/// The shape of the data folder: nothing of laser's goes into a base backup.
#[test]
fn base_backups_leave_the_encoder_out() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.setting("max_wal_senders", "4").start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let target = cluster.scratch()?.join("backup");
    let output = cluster
        .command("pg_basebackup")
        .args(["--checkpoint=fast", "--wal-method=none", "--pgdata"])
        .arg(&target)
        .output()?;
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{messages}");
    assert!(!messages.contains("special file"), "{messages}");
    assert!(cluster.data().join(SOCKET).exists());
    let left = |folder: &Path| -> Result<usize> {
        Ok(if folder.exists() {
            std::fs::read_dir(folder)?.count()
        } else {
            0
        })
    };
    assert_eq!(left(&target.join("laser"))?, 0);
    Ok(())
}

/// Has a model's tokenizer make `bytes` bytes of each skull in a text.
fn swell(model: &Path, bytes: usize) -> Result<()> {
    let path = model.join("tokenizer.json");
    let tokenizer = std::fs::read_to_string(&path)?;
    let normalizer = format!(
        r#"{{ "type": "Replace", "pattern": {{ "String": "\u2620" }}, "content": "{}" }}"#,
        "x".repeat(bytes)
    );
    let changed = tokenizer.replace(r#"{ "type": "NFC" }"#, &normalizer);
    ensure!(changed != tokenizer);
    Ok(std::fs::write(&path, changed)?)
}

/// A folder with the model `tiny`, which makes 4 MB of each skull in a text, and a cluster whose
/// encoder has too little memory for dozens of them.
fn killers() -> Result<(TempDir, Cluster)> {
    let (models, builder) = models()?;
    swell(&models.path().join("tiny"), 4 << 20)?;
    let cluster = builder.setting("laser.encoder_threads", "2").start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let worker: i32 = client
        .query_one("SELECT worker_pid FROM laser_encoder_status", &[])?
        .get(0);
    let limit = format!("prlimit --pid {worker} --as={}:", 1u64 << 30);
    client.batch_execute(&format!("COPY (SELECT WHERE false) TO PROGRAM '{limit}'"))?;
    let encoder = running_encoder(&mut client)?;
    signal(encoder, libc::SIGKILL);
    wait_until("the process is gone", || Ok(!process_exists(encoder)))?;
    embed(&mut client, "text")?;
    Ok((models, cluster))
}

/// A model that the process does not survive loading is refused after a few times: whoever asks for it on and on does not
/// keep the process from the others.
#[test]
fn a_model_that_ends_the_process_is_refused() -> Result<()> {
    let (models, cluster) = killers()?;
    Model::tiny("hog", 32).write(models.path())?;
    swell(&models.path().join("hog"), 130 << 20)?;
    let mut client = cluster.connect("d")?;
    let mut refused = None;
    for attempt in 0..12 {
        running_encoder(&mut client)?;
        let (_, message, hint) = failure(&mut client, "SELECT laser_embed('text', 'hog')")?;
        if message.contains("again and again while it loaded model \"hog\"") {
            ensure!(hint.contains("It is tried again in "), "{hint}");
            refused = Some(attempt);
            break;
        }
        ensure!(message.contains("the encoder process"), "{message}");
    }
    // A statement tries more than once.
    ensure!(refused.is_some_and(|attempt| attempt > 0), "{refused:?}");
    let encoder = running_encoder(&mut client)?;
    for n in 0..20 {
        embed(&mut client, &format!("text {n}"))?;
        failure(&mut client, "SELECT laser_embed('text', 'hog')")?;
    }
    ensure!(running_encoder(&mut client)? == encoder);
    Ok(())
}

/// Calls `work` while other sessions embed texts, alone and in arrays, all of which must succeed.
fn beside_others(cluster: &Cluster, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let finished = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let others: Vec<_> = (0..6)
            .map(|n| {
                let config = cluster.config("d");
                let (finished, answers) = (&finished, &answers);
                scope.spawn(move || -> Result<()> {
                    let mut client = config.connect(NoTls)?;
                    let sql = match n % 3 {
                        0 => "SELECT laser_embed('text ' || random())",
                        1 => "SELECT laser_embed(array_agg('text ' || random() || repeat('a b ', g % 99)))
                              FROM generate_series(1, 600) g",
                        _ => "SELECT laser_embed(array_agg('text ' || g)) FROM generate_series(1, 20) g",
                    };
                    while !finished.load(Ordering::SeqCst) {
                        client.batch_execute(sql)?;
                        answers.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok(())
                })
            })
            .collect();
        let result = wait_until("the others are at work", || {
            Ok(answers.load(Ordering::SeqCst) > 60 || others.iter().any(|o| o.is_finished()))
        })
        .and_then(|()| work());
        finished.store(true, Ordering::SeqCst);
        for other in others {
            other.join().expect("no panic")?;
        }
        result
    })
}

/// Whoever's text ends the process gets an error; whose texts were under work at the same time do not.
#[test]
fn a_text_that_ends_the_encoder_fails_alone() -> Result<()> {
    let (_models, cluster) = killers()?;
    let mut client = cluster.connect("d")?;
    let server = start_time(&mut client)?;
    let refused = |client: &mut Client, sql: &str| -> Result<()> {
        let (code, message, hint) = failure(client, sql)?;
        ensure!(
            code == SqlState::EXTERNAL_ROUTINE_EXCEPTION,
            "{code:?}: {message}"
        );
        ensure!(message.contains("on one text alone"), "{message}");
        ensure!(
            hint.contains("ten minutes") && !hint.contains('\u{2620}'),
            "{hint}"
        );
        Ok(())
    };
    let short = "SELECT laser_embed(repeat(U&'\\2620', 60))";
    let long = "SELECT laser_embed(ARRAY['a', 'b', repeat(U&'\\2620', 400)])";
    beside_others(&cluster, || {
        refused(&mut client, short)?;
        // Another one, and both again, for which nobody dies.
        refused(&mut client, long)?;
        let encoder = running_encoder(&mut client)?;
        refused(&mut client, short)?;
        refused(&mut client, long)?;
        client.batch_execute("SELECT laser_embed(ARRAY['a', 'b'])")?;
        ensure!(running_encoder(&mut client)? == encoder);
        Ok(())
    })?;
    // Two sessions with such a text at a time.
    beside_others(&cluster, || {
        std::thread::scope(|scope| -> Result<()> {
            let two: Vec<_> = (0..2)
                .map(|n| {
                    let config = cluster.config("d");
                    scope.spawn(move || -> Result<()> {
                        let text = format!("SELECT laser_embed('{n}' || repeat(U&'\\2620', 62))");
                        refused(&mut config.connect(NoTls)?, &text)
                    })
                })
                .collect();
            two.into_iter()
                .try_for_each(|one| one.join().expect("no panic"))
        })
    })?;
    // Changed settings restart the process, and what was refused is tried again.
    let deaths = cluster.log().matches("was ended by signal 6").count();
    ensure!(deaths >= 12, "{deaths} deaths");
    cluster.set("laser.encoder_queue", "9999")?;
    cluster.reload();
    wait_until("the text is tried again", || {
        refused(&mut client, short)?;
        Ok(cluster.log().matches("was ended by signal 6").count() > deaths)
    })?;
    assert_eq!(start_time(&mut client)?, server);
    Ok(())
}

/// Texts that grow when they are normalised take long to tokenize; others do not wait for that.
/// A batch takes more time to tokenize than it may: what is left of it is encoded next.
#[test]
fn texts_that_a_batch_leaves_are_answered() -> Result<()> {
    let cluster = Cluster::builder()
        .setting("laser.encode_in_backend", "off")
        .setting("statement_timeout", "60s")
        .start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..20)
            .map(|session| {
                let config = cluster.config("d");
                scope.spawn(move || -> Result<()> {
                    let mut client = config.connect(NoTls)?;
                    for round in 0..15 {
                        // 18 letters for each once it is normalised, and so few that it is tokenized where
                        // batches are made.
                        let sql = format!(
                            "SELECT laser_embed('{session} {round}' || repeat(U&'\\FDFA', 325))"
                        );
                        client.batch_execute(&sql)?;
                    }
                    Ok(())
                })
            })
            .collect();
        sessions
            .into_iter()
            .try_for_each(|session| session.join().expect("no panic"))
    })?;
    // Many short ones at once.
    client.batch_execute(
        "SELECT laser_embed(array_agg(chr(97 + g % 26) || g % 100)) FROM generate_series(1, 60000) g",
    )?;
    Ok(())
}

#[test]
fn expensive_texts_do_not_hold_up_others() -> Result<()> {
    let cluster = Cluster::builder()
        .setting("laser.encode_in_backend", "off")
        .start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    for (what, sql) in [
        ("nothing", "SELECT pg_sleep(0.01)"),
        (
            "long texts",
            "SELECT laser_embed(array_agg(g || repeat(U&'\\FDFA', 340))) FROM generate_series(1, 500) g",
        ),
        (
            "short texts",
            "SELECT laser_embed(array_agg(g || repeat(U&'\\FDFA', 60))) FROM generate_series(1, 2000) g",
        ),
        (
            "one text",
            "SELECT laser_embed(random() || repeat(U&'\\FDFA', 300000)) FROM generate_series(1, 50)",
        ),
        (
            "single texts",
            "SELECT count(laser_embed(random() || repeat(U&'\\FDFA', 600))) FROM generate_series(1, 50)",
        ),
    ] {
        let finished = AtomicBool::new(false);
        let mut waits = std::thread::scope(|scope| -> Result<Vec<Duration>> {
            let config = cluster.config("d");
            let finished = &finished;
            let other = scope.spawn(move || -> Result<()> {
                let mut client = config.connect(NoTls)?;
                while !finished.load(Ordering::SeqCst) {
                    client.batch_execute(sql)?;
                }
                Ok(())
            });
            std::thread::sleep(Duration::from_millis(300));
            let mut waits = Vec::new();
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(4) {
                let asked = Instant::now();
                let text = format!("a text {}", waits.len());
                embed(&mut client, &text)?;
                waits.push(asked.elapsed());
                std::thread::sleep(Duration::from_millis(2));
            }
            finished.store(true, Ordering::SeqCst);
            other.join().expect("no panic")?;
            Ok(waits)
        })?;
        waits.sort_unstable();
        let (median, late, worst) = (
            waits[waits.len() / 2],
            waits[waits.len() * 99 / 100],
            waits[waits.len() - 1],
        );
        eprintln!("beside {what}: median {median:?}, 99th percentile {late:?}, worst {worst:?}");
        ensure!(
            late < Duration::from_millis(200),
            "beside {what} every hundredth call takes {late:?}"
        );
    }
    Ok(())
}

/// Without its file nobody gets to the socket.
#[test]
fn a_socket_whose_file_is_removed_is_made_again() -> Result<()> {
    let (_models, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let expected = embed(&mut client, "text")?;
    let encoder = running_encoder(&mut client)?;
    let socket = cluster.data().join(SOCKET);
    for replace in [false, true] {
        std::fs::remove_file(&socket)?;
        if replace {
            std::fs::write(&socket, "a plain file")?;
        }
        let mut other = cluster.connect("d")?;
        let asked = Instant::now();
        ensure!(embed(&mut other, "text")? == expected);
        let took = asked.elapsed();
        ensure!(took < Duration::from_secs(8), "{took:?}");
        // Who was connected still is.
        ensure!(embed(&mut client, "text")? == expected);
    }
    ensure!(running_encoder(&mut client)? == encoder);
    Ok(())
}
