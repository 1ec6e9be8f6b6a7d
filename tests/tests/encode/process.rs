//! The encoder process and its worker: started, killed, hung, ended with the server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laser_tests::model::{Architecture, Model};
use laser_tests::{Cluster, failure, process_exists, signal, wait_until};
use postgres::NoTls;
use postgres::error::SqlState;

use super::support::{SOCKET, embed, models, running_encoder, start_time, stop};

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
