//! Every long statement ends within a second of its cancel, its time limit or its session's end,
//! whatever it is doing.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use laser_tests::{Cluster, failure};
use postgres::error::SqlState;
use postgres::{Client, NoTls};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How long a statement may take to end after it was cancelled.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a statement is interrupted; `LASER_CANCELS` says otherwise.
const TIMES: usize = 6;

const STATEMENTS: [&str; 16] = [
    "SELECT laser_embed(repeat(U&'\\FDFA', 340000))",
    "SELECT cardinality(laser_embed(array_agg('text ' || g))) FROM generate_series(1, 400000) g",
    "SELECT * FROM laser_index_check('t_v_idx')",
    "SELECT laser_index_recall('t_v_idx', 300)",
    "SELECT laser_index_tune('t_v_idx', 1, 300)",
    "SELECT laser_merge('t_v_idx')",
    "CREATE INDEX ON t USING laser (v)",
    "SELECT * FROM laser_bucc_score(
         'SELECT g, g % 1000003, sin(g) FROM generate_series(1, 2000000) g',
         'SELECT g, g FROM generate_series(1, 1000000) g')",
    "SELECT * FROM laser_mine_neighbours(
         'SELECT g % 200000, g % 200000 + g / 200000, sin(g) FROM generate_series(0, 999999) g',
         'SELECT g, 0, 0.5::float8 FROM generate_series(0, 200010) g')",
    "SELECT * FROM laser_mine_neighbours(
         'SELECT g, g, sin(g) FROM generate_series(0, 500000) g',
         'SELECT g, g, sin(g) FROM generate_series(0, 500000) g')",
    "SELECT * FROM laser_knn_merge('SELECT 0, g, sin(g) FROM generate_series(1, 2000000) g', 3)",
    "SELECT * FROM laser_mine('SELECT id, v FROM t', 'SELECT id, v FROM t', k => 16)",
    "SELECT * FROM laser_knn_join('SELECT id, v FROM t', 'SELECT id, v FROM t', 8)",
    "SELECT * FROM laser_margin_scores('SELECT a.id, b.id FROM t a, t b WHERE b.id < 30',
                                       'SELECT id, v FROM t', 'SELECT id, v FROM t')",
    "SELECT laser_similarity_error('SELECT id, v FROM t', 'SELECT id, v FROM t')",
    "SELECT * FROM laser_mine_update('state', 'SELECT id, v FROM t', 'SELECT id, v FROM t')",
];

/// What ends a statement.
#[derive(Clone, Copy, Debug)]
enum End {
    Cancel,
    Timeout,
    Terminate,
}

/// How long a statement goes on after it was told to end at some moment; `None` if it was done.
fn interrupt(
    cluster: &Cluster,
    statement: &str,
    settings: &str,
    end: End,
    moment: Duration,
) -> Result<Option<Duration>> {
    let mut client = cluster.connect("cancel")?;
    client.batch_execute(settings)?;
    let mut other = cluster.connect("cancel")?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let token = client.cancel_token();
    if matches!(end, End::Timeout) {
        let ms = moment.as_millis().max(1);
        client.batch_execute(&format!("SET statement_timeout = {ms}"))?;
    }
    let begun = Instant::now();
    let running = std::thread::spawn({
        let statement = statement.to_owned();
        move || (client.batch_execute(&statement), Instant::now())
    });
    std::thread::sleep(moment);
    match end {
        End::Cancel => token.cancel_query(NoTls)?,
        End::Timeout => {}
        End::Terminate => {
            other.query_one("SELECT pg_terminate_backend($1)", &[&pid])?;
        }
    }
    let (result, ended) = running.join().expect("no panic");
    match result {
        Ok(()) => Ok(None),
        Err(error) => {
            let expected = match end {
                End::Terminate => SqlState::ADMIN_SHUTDOWN,
                _ => SqlState::QUERY_CANCELED,
            };
            // A session's end may come before its message is read.
            let closed = matches!(end, End::Terminate) && error.as_db_error().is_none();
            if !closed && error.code() != Some(&expected) {
                bail!("{statement}: {end:?}: {error}: {:?}", error.as_db_error());
            }
            Ok(Some(ended.saturating_duration_since(begun + moment)))
        }
    }
}

fn prepared() -> Result<Cluster> {
    let cluster = Cluster::new()?;
    let mut client: Client = cluster.database("cancel")?;
    client.batch_execute(
        "CREATE TABLE t (id bigint, v embedding(24));
         INSERT INTO t SELECT g, (SELECT array_agg(sin(g * (n + 1.7)) + cos(g + n * n))
                                  FROM generate_series(1, 24) n)
         FROM generate_series(1, 25000) g;
         CREATE INDEX ON t USING laser (v);
         CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL)",
    )?;
    Ok(cluster)
}

#[test]
fn every_long_statement_ends_when_told() -> Result<()> {
    let cluster = prepared()?;
    let seed = rand::rng().random::<u64>();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let times = std::env::var("LASER_CANCELS").map_or(TIMES, |n| n.parse().expect("a number"));
    let (mut tried, mut met) = (0, 0);
    for statement in STATEMENTS {
        for settings in ["", "SET laser.encode_in_backend = off"] {
            if !settings.is_empty() && !statement.contains("laser_embed") {
                continue;
            }
            // How long it takes, to know which moments there are.
            let mut client = cluster.connect("cancel")?;
            client.batch_execute(&format!("{settings}; BEGIN"))?;
            let begun = Instant::now();
            client.batch_execute(statement)?;
            let whole = begun.elapsed();
            drop(client);
            let (mut worst, mut interrupted) = (Duration::ZERO, 0);
            for (_, end) in
                (0..times).zip([End::Cancel, End::Timeout, End::Terminate].iter().cycle())
            {
                let moment = whole.mul_f64(random.random_range(0.0..0.95));
                let again = || interrupt(&cluster, statement, settings, *end, moment);
                // Where the machine was busy with something else, it is not once more.
                let late = match again()? {
                    Some(late) if late > CANCEL_TIMEOUT => again()?,
                    late => late,
                };
                let Some(late) = late else { continue };
                interrupted += 1;
                worst = worst.max(late);
                assert!(
                    late <= CANCEL_TIMEOUT,
                    "{statement}: {end:?} after {moment:?} of {whole:?} took {late:?}; seed {seed}"
                );
            }
            eprintln!("{whole:>10.2?} {worst:>10.2?} {interrupted}/{times} {statement}");
            tried += times;
            met += interrupted;
        }
    }
    // A statement may be faster than when it was measured, but not most of them.
    assert!(met * 2 > tried, "{met} of {tried} were interrupted");
    assert!(!cluster.log().contains("terminated by signal"));
    Ok(())
}

/// Many samples are compared with each of many texts, which come a thousand at a time.
#[test]
fn recall_of_texts_ends_when_told() -> Result<()> {
    let cluster = prepared()?;
    cluster.connect("cancel")?.batch_execute(
        "CREATE TABLE texts AS SELECT g AS id, 'a sentence about ' || md5(g::text) AS body
         FROM generate_series(1, 15000) g;
         CREATE INDEX ON texts USING laser (body)",
    )?;
    let statement = "SELECT laser_index_recall('texts_body_idx', 15000, 1)";
    let mut interrupted = 0;
    for seconds in [4, 8, 12, 16] {
        let moment = Duration::from_secs(seconds);
        let again = || interrupt(&cluster, statement, "", End::Cancel, moment);
        let late = match again()? {
            Some(late) if late > CANCEL_TIMEOUT => again()?,
            late => late,
        };
        let Some(late) = late else { break };
        interrupted += 1;
        assert!(late <= CANCEL_TIMEOUT, "after {moment:?}: {late:?}");
    }
    assert!(interrupted > 0);
    // And what it keeps is limited.
    let mut client = cluster.connect("cancel")?;
    let (code, ..) = failure(
        &mut client,
        "SELECT laser_index_recall('texts_body_idx', 15000, 1000)",
    )?;
    assert_eq!(code, SqlState::CONFIGURATION_LIMIT_EXCEEDED);
    Ok(())
}

/// A text of few bytes and very many characters keeps nobody waiting.
#[test]
fn one_text_does_not_hold_the_others() -> Result<()> {
    let cluster = prepared()?;
    let texts = "array_fill(repeat(U&'\\FDFA', 340000), ARRAY[8])";
    let mut heavy = cluster.connect("cancel")?;
    heavy.batch_execute("SET laser.encode_in_backend = off; SELECT laser_embed('warm')")?;
    let running =
        std::thread::spawn(move || heavy.batch_execute(&format!("SELECT laser_embed({texts})")));
    let mut client = cluster.connect("cancel")?;
    client.batch_execute("SET laser.encode_in_backend = off; SET laser.long_text = 'warn'")?;
    let mut worst = Duration::ZERO;
    while !running.is_finished() {
        let begun = Instant::now();
        client.batch_execute("SELECT laser_embed('a short text')")?;
        worst = worst.max(begun.elapsed());
    }
    running.join().expect("no panic")?;
    assert!(worst < CANCEL_TIMEOUT, "{worst:?}");
    // Under an error limit the statement says so, and the session goes on.
    let (code, ..) = failure(
        &mut client,
        "SET laser.long_text = 'error'; SELECT laser_embed(repeat(U&'\\FDFA', 340000))",
    )?;
    assert_eq!(code, SqlState::STRING_DATA_RIGHT_TRUNCATION);
    Ok(())
}
