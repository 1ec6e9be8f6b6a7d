//! Sessions that share the process: they wait in turn, are cancelled, die and go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laser_tests::{Cluster, failure, signal, wait_until, was_ended};
use postgres::error::SqlState;
use postgres::{Client, NoTls};

use super::support::{embed, models, running_encoder, stop};

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
