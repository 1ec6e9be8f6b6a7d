//! Statements of all kinds at the same time, at random, with cancels and ended sessions: every index
//! is whole whenever anybody looks.
//!
//! `LASER_ADVERSARY_SECONDS` sets the length of the run (30 unless told), `LASER_ADVERSARY_SEED` the
//! statements' order as far as one session goes.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use laser_tests::{Cluster, segment_files};
use postgres::error::{DbError, SqlState};
use postgres::{CancelToken, Client, NoTls};
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

const DIMENSIONS: i32 = 16;
const WRITERS: usize = 2;
const CHANGERS: usize = 3;

const NO_LOCK: &str = "you don't own a lock of type";

/// What PostgreSQL's `REINDEX INDEX` and `REINDEX INDEX CONCURRENTLY` give back without having taken it
/// when the index is dropped between the two looks at its name, of whatever access method
/// (`RangeVarCallbackForReindexIndex` in indexcmds.c). No other statement here gives them back early.
const REINDEX_LOCKS: [&str; 2] = ["ShareLock", "ShareUpdateExclusiveLock"];

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(default)
}

/// What all sessions share.
struct Field {
    cluster: Cluster,
    stop: AtomicBool,
    /// Process and cancel token of every session at work.
    sessions: Mutex<BTreeMap<usize, (i32, CancelToken)>>,
    /// How statements have ended.
    outcomes: Mutex<BTreeMap<String, u64>>,
    problems: Mutex<Vec<String>>,
}

impl Field {
    fn connect(&self, place: usize) -> Result<Client> {
        let mut client = self.cluster.connect("field")?;
        client.batch_execute("SET lock_timeout = '2s'; SET deadlock_timeout = '100ms'")?;
        let pid = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
        let token = client.cancel_token();
        self.sessions.lock().unwrap().insert(place, (pid, token));
        Ok(client)
    }

    fn count(&self, what: &str) {
        let mut outcomes = self.outcomes.lock().unwrap();
        *outcomes.entry(what.to_owned()).or_default() += 1;
    }

    fn problem(&self, what: String) {
        self.problems.lock().unwrap().push(what);
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Runs statements until told to stop, in a new session when the old one was ended.
    fn work(&self, place: usize, seed: u64, pick: impl Fn(&mut ChaCha8Rng) -> String) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        while !self.stop.load(Ordering::Relaxed) {
            let mut client = match self.connect(place) {
                Ok(client) => client,
                Err(error) => {
                    // The session may have been ended before it had begun.
                    self.count("connection lost");
                    if self.cluster.connect("postgres").is_err() {
                        return self.problem(format!("the server is gone: {error:#}"));
                    }
                    continue;
                }
            };
            while !self.stop.load(Ordering::Relaxed) && !client.is_closed() {
                let sql = pick(&mut rng);
                let kind: String = sql.split(['t', '(', '\'']).next().unwrap_or("").to_owned();
                match client.query(&sql, &[]) {
                    Ok(rows) => {
                        self.count(&format!("{kind}: done"));
                        if sql.contains("laser_index_check") {
                            for row in rows {
                                let found: String = row.get(0);
                                // The remains of a build that was cancelled.
                                if !found.contains("not valid") {
                                    self.problem(format!("{sql}: {found}"));
                                }
                            }
                        }
                    }
                    Err(error) => match error.as_db_error() {
                        Some(error) => {
                            self.count(&format!("{kind}: {}", error.code().code()));
                            if !expected(error) {
                                self.problem(format!("{sql}: {error}"));
                            }
                        }
                        None => {
                            self.count("connection lost");
                            break;
                        }
                    },
                }
            }
        }
    }
}

/// Errors that statements in one another's way may end with.
fn expected(error: &DbError) -> bool {
    if *error.code() == SqlState::INTERNAL_ERROR {
        // Catalogue rows that went or changed between two looks at them.
        return [
            "concurrently",
            "could not open relation",
            "cache lookup failed",
        ]
        .iter()
        .any(|part| error.message().contains(part));
    }
    [
        SqlState::QUERY_CANCELED,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_OBJECT,
        SqlState::UNDEFINED_COLUMN,
        SqlState::DUPLICATE_TABLE,
        SqlState::DUPLICATE_COLUMN,
        SqlState::UNIQUE_VIOLATION,
        SqlState::OBJECT_IN_USE,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        SqlState::T_R_SERIALIZATION_FAILURE,
    ]
    .contains(error.code())
}

fn index(rng: &mut ChaCha8Rng) -> String {
    format!("i{}", rng.random_range(0..3))
}

fn write(rng: &mut ChaCha8Rng) -> String {
    let (n, id) = (rng.random_range(1..200), rng.random_range(0..20_000));
    match rng.random_range(0..10) {
        0..5 => format!("INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, {n}) i"),
        5..7 => format!("UPDATE t SET e = vector(id) WHERE id BETWEEN {id} AND {id} + {n}"),
        7 => format!("DELETE FROM t WHERE id BETWEEN {id} AND {id} + 5 * {n}"),
        8 => format!("DELETE FROM t WHERE id % 17 = {}", n % 17),
        _ => "SELECT id FROM t ORDER BY e <=> vector(1) LIMIT 20".into(),
    }
}

fn change(rng: &mut ChaCha8Rng) -> String {
    let name = index(rng);
    let limit = [64, 256, 4096].choose(rng).expect("three");
    let with = format!("WITH (pending_list_limit = {limit}, m = 8, ef_construction = 32)");
    let place = ["pg_default", "other"].choose(rng).expect("two");
    match rng.random_range(0..34) {
        0..3 => format!("CREATE INDEX {name} ON t USING laser (e) {with}"),
        3..6 => format!("CREATE INDEX CONCURRENTLY {name} ON t USING laser (e) {with}"),
        6 => format!("CREATE INDEX {name} ON t USING laser (e embedding_l2_ops) {with}"),
        7..9 => format!("REINDEX INDEX {name}"),
        9..12 => format!("REINDEX INDEX CONCURRENTLY {name}"),
        12 => "REINDEX TABLE CONCURRENTLY t".into(),
        13 => format!("DROP INDEX {name}"),
        14 => format!("DROP INDEX CONCURRENTLY {name}"),
        15 => format!(
            "ALTER TABLE t ALTER e TYPE embedding({DIMENSIONS})
                 USING (e::real[])::embedding({DIMENSIONS})"
        ),
        16 => format!("ALTER INDEX {name} SET TABLESPACE {place}"),
        17 => format!("ALTER TABLE t SET TABLESPACE {place}"),
        18 => "ALTER TABLE t ADD COLUMN more integer DEFAULT 7".into(),
        19 => "ALTER TABLE t DROP COLUMN more".into(),
        20 => "TRUNCATE t".into(),
        21..24 => "VACUUM (INDEX_CLEANUP ON) t".into(),
        24 => "VACUUM FULL t".into(),
        25 => "CLUSTER t USING t_pkey".into(),
        26..30 => format!("SELECT laser_merge('{name}')"),
        30 => {
            format!("SELECT laser_merge(c.oid) FROM pg_class c WHERE relname LIKE '{name}_ccnew%'")
        }
        31 => format!("SELECT count(*) FROM laser_index_info('{name}')"),
        _ => format!("SELECT laser_index_check('{name}')"),
    }
}

#[test]
fn everything_at_once() -> Result<()> {
    let length = Duration::from_secs(number("LASER_ADVERSARY_SECONDS", 30));
    let seed = number("LASER_ADVERSARY_SEED", 1);
    let mut cluster = Cluster::builder()
        .preload(false)
        .setting("fsync", "off")
        .setting("autovacuum_naptime", "1s")
        .setting("maintenance_work_mem", "4MB")
        .start()?;
    for lock in REINDEX_LOCKS {
        cluster.expect_fault(&format!("{NO_LOCK} {lock}"));
    }
    let place = cluster.scratch()?.join("other");
    cluster.run("/bin/mkdir", &[&place.display().to_string()])?;
    let mut client = cluster.database("field")?;
    client.batch_execute(&format!(
        "CREATE FUNCTION vector(i bigint) RETURNS embedding LANGUAGE sql VOLATILE RETURN
             (SELECT array_agg(random() - 0.5)::real[]::embedding
              FROM generate_series(1, {DIMENSIONS}) WHERE i = i);
         CREATE TABLE t (id bigserial PRIMARY KEY, e embedding({DIMENSIONS}))
             WITH (autovacuum_vacuum_insert_threshold = 500, autovacuum_vacuum_threshold = 100);
         INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 3000) i;
         CREATE INDEX i0 ON t USING laser (e) WITH (pending_list_limit = 64)"
    ))?;
    client.batch_execute(&format!(
        "CREATE TABLESPACE other LOCATION '{}'",
        place.display()
    ))?;
    let log = cluster.log().len();
    let field = Field {
        cluster,
        stop: AtomicBool::new(false),
        sessions: Mutex::default(),
        outcomes: Mutex::default(),
        problems: Mutex::default(),
    };
    std::thread::scope(|scope| -> Result<()> {
        let field = &field;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        for place in 0..WRITERS + CHANGERS {
            let seed = rng.random();
            scope.spawn(move || match place {
                0..WRITERS => field.work(place, seed, write),
                _ => field.work(place, seed, change),
            });
        }
        let mut watch = field.cluster.connect("field")?;
        let until = Instant::now() + length;
        while Instant::now() < until && !field.stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(rng.random_range(20..400)));
            let (pid, token) = {
                let sessions = field.sessions.lock().unwrap();
                let Some(found) = sessions.values().choose(&mut rng) else {
                    continue;
                };
                found.clone()
            };
            if rng.random_bool(0.2) {
                if let Err(error) = watch.query("SELECT pg_terminate_backend($1)", &[&pid]) {
                    field.problem(format!("the watching session: {error}"));
                }
            } else {
                let _ = token.cancel_query(NoTls);
            }
        }
        field.stop.store(true, Ordering::Relaxed);
        Ok(())
    })?;
    let outcomes = field.outcomes.lock().unwrap();
    for (what, count) in &*outcomes {
        println!("{count:6} {what}");
    }
    let problems = field.problems.lock().unwrap();
    ensure!(problems.is_empty(), "{problems:#?}");
    let text = field.cluster.log().split_off(log);
    let ends = |line: &str, lock: &str| line.ends_with(&format!("{NO_LOCK} {lock}"));
    for bad in ["was terminated by signal", "PANIC", NO_LOCK] {
        let line = text
            .lines()
            .find(|line| line.contains(bad) && !REINDEX_LOCKS.iter().any(|lock| ends(line, lock)));
        ensure!(line.is_none(), "{line:?}");
    }

    // What is left works, is whole, and has no file too many.
    client.batch_execute("SET lock_timeout = 0; SET statement_timeout = 0")?;
    let indexes = "SELECT c.oid::regclass::text, indisvalid FROM pg_index JOIN pg_class c ON c.oid = indexrelid
        JOIN pg_am a ON a.oid = relam WHERE amname = 'laser'";
    for row in client.query(indexes, &[])? {
        let (name, valid): (String, bool) = (row.get(0), row.get(1));
        client.batch_execute(&format!(
            "{} INDEX {name}",
            if valid { "REINDEX" } else { "DROP" }
        ))?;
    }
    client.batch_execute("INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 500) i")?;
    client.batch_execute("VACUUM (INDEX_CLEANUP ON) t")?;
    let mut segments = 0;
    for row in client.query(indexes, &[])? {
        let name: String = row.get(0);
        let found = client.query(&format!("SELECT laser_index_check('{name}')"), &[])?;
        ensure!(
            found.is_empty(),
            "{name}: {:?}",
            found[0].get::<_, String>(0)
        );
        let sql = format!("SELECT segments FROM laser_index_info('{name}')");
        segments += client.query_one(&sql, &[])?.get::<_, i32>(0);
    }
    let files = segment_files(&field.cluster)?.len();
    ensure!(
        files <= segments as usize,
        "{files} files for {segments} segments"
    );
    Ok(())
}
