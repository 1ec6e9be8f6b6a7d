//! Crashes: whatever is committed stays, and nothing else appears.
//!
//! `LASER_CRASH_ROUNDS` sets the number of rounds (3 unless told; 50 are worth an evening).

use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use laser_tests::{
    Cluster, process_exists, segment_files, segment_folder, signal, wait_until, was_ended,
};
use postgres::Client;
use postgres::error::SqlState;
use rand::prelude::*;
use rand_chacha::ChaCha8Rng;

const DIMENSIONS: usize = 16;

fn rounds() -> usize {
    std::env::var("LASER_CRASH_ROUNDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(3)
}

/// A vector that belongs to `id` alone, so that a row can be asked for by its vector.
fn vector(id: i32) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(id as u64);
    let parts: Vec<String> = (0..DIMENSIONS)
        .map(|_| format!("{:.5}", rng.random::<f32>() - 0.5))
        .collect();
    format!("[{}]", parts.join(","))
}

/// Kills the server with all its processes at once.
fn kill_all(cluster: &mut Cluster) -> Result<()> {
    let postmaster = cluster.pid().expect("a running server");
    let mut children = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        let parent = stat
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1));
        if parent.and_then(|p| p.parse().ok()) == Some(postmaster) {
            children.push(pid);
        }
    }
    signal(postmaster, libc::SIGSTOP);
    for pid in children {
        signal(pid, libc::SIGKILL);
    }
    cluster.kill9()
}

/// What is known about the table: rows that are certainly there, and rows whose fate was not
/// reported before the crash.
#[derive(Default)]
struct Known {
    certain: BTreeSet<i32>,
    open: BTreeSet<i32>,
}

fn write(mut client: Client, known: &Mutex<Known>, next: &AtomicI32, stop: &AtomicBool, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut mine: Vec<i32> = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let deleting = rng.random_bool(0.3) && mine.len() > 50;
        let (ids, sql): (Vec<i32>, String) = if deleting {
            mine.shuffle(&mut rng);
            let ids = mine.split_off(mine.len() - rng.random_range(1..40));
            let list: Vec<String> = ids.iter().map(i32::to_string).collect();
            let sql = format!("DELETE FROM t WHERE id IN ({})", list.join(","));
            (ids, sql)
        } else {
            let n = rng.random_range(1..60);
            let first = next.fetch_add(n, Ordering::Relaxed);
            let ids: Vec<i32> = (first..first + n).collect();
            let rows: Vec<String> = ids
                .iter()
                .map(|id| format!("({id},'{}')", vector(*id)))
                .collect();
            (ids, format!("INSERT INTO t VALUES {}", rows.join(",")))
        };
        {
            let mut known = known.lock().unwrap();
            for id in &ids {
                known.certain.remove(id);
                known.open.insert(*id);
            }
        }
        if let Err(error) = client.batch_execute(&sql) {
            // The server is gone; what became of these rows shows after its recovery.
            assert!(was_ended(&error), "{sql}: {error}");
            return;
        }
        let mut known = known.lock().unwrap();
        for id in &ids {
            known.open.remove(id);
            if !deleting {
                known.certain.insert(*id);
            }
        }
        if !deleting {
            mine.extend(ids);
        }
    }
}

/// Work that changes the index as a whole, until the server is gone.
fn maintain(mut client: Client, stop: &AtomicBool, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    while !stop.load(Ordering::Relaxed) {
        let sql = match rng.random_range(0..7) {
            0..2 => "VACUUM (INDEX_CLEANUP ON) t",
            2..4 => "SELECT laser_merge('ti')",
            4 => "REINDEX INDEX CONCURRENTLY ti",
            5 => "CREATE INDEX other ON t USING laser (e) WITH (m = 4); DROP INDEX other",
            _ => "CHECKPOINT",
        };
        match client.batch_execute(sql) {
            Err(error) if was_ended(&error) => return,
            // Two sessions that lock the table in another order each: autovacuum, a writer.
            Err(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => {}
            result => result.unwrap_or_else(|error| panic!("{sql}: {error}")),
        }
        std::thread::sleep(Duration::from_millis(rng.random_range(0..60)));
    }
}

fn check(cluster: &Cluster, known: &mut Known, rng: &mut ChaCha8Rng) -> Result<()> {
    let mut client = cluster.connect("crash")?;
    let rows: BTreeSet<i32> = client
        .query("SELECT id FROM t", &[])?
        .iter()
        .map(|row| row.get(0))
        .collect();
    ensure!(known.certain.is_subset(&rows), "committed rows are missing");
    ensure!(
        rows.iter()
            .all(|id| known.certain.contains(id) || known.open.contains(id)),
        "rows have come from nowhere"
    );
    known.certain.clone_from(&rows);
    known.open.clear();

    let problems: Vec<String> = client
        .query("SELECT laser_index_check('ti')", &[])?
        .iter()
        .map(|row| row.get(0))
        .collect();
    ensure!(problems.is_empty(), "{problems:?}");
    client.batch_execute(
        "SET enable_seqscan = off; SET enable_sort = off; SET enable_bitmapscan = off;
         SET laser.iterative_scan = relaxed_order; SET laser.max_scan_tuples = 1000000",
    )?;
    let through: BTreeSet<i32> = client
        .query(
            &format!("SELECT id FROM t ORDER BY e <=> '{}'", vector(0)),
            &[],
        )?
        .iter()
        .map(|row| row.get(0))
        .collect();
    ensure!(
        through == rows,
        "{} rows in the table, {} through the index",
        rows.len(),
        through.len()
    );
    let sample: Vec<i32> = rows.iter().copied().choose_multiple(rng, 100);
    let mut reached = 0;
    for id in &sample {
        let sql = format!("SELECT id FROM t ORDER BY e <=> '{}' LIMIT 1", vector(*id));
        reached += usize::from(client.query_one(&sql, &[])?.get::<_, i32>(0) == *id);
    }
    ensure!(
        reached * 100 >= sample.len() * 99,
        "{reached} of {} are reached",
        sample.len()
    );
    Ok(())
}

#[test]
fn no_row_is_lost_and_none_is_invented() -> Result<()> {
    let mut cluster = Cluster::builder()
        .preload(false)
        .setting("fsync", "off")
        .setting("autovacuum_naptime", "1s")
        .setting("maintenance_work_mem", "4MB")
        .setting("checkpoint_timeout", "30s")
        .setting("max_wal_size", "64MB")
        .start()?;
    cluster.database("crash")?.batch_execute(&format!(
        "CREATE EXTENSION IF NOT EXISTS laser;
         CREATE TABLE t (id integer PRIMARY KEY, e embedding({DIMENSIONS}))
             WITH (autovacuum_vacuum_insert_threshold = 500, autovacuum_vacuum_threshold = 100);
         CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64)"
    ))?;
    let known = Mutex::new(Known::default());
    let next = AtomicI32::new(1);
    let seed = std::env::var("LASER_CRASH_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for round in 0..rounds() {
        let stop = AtomicBool::new(false);
        let before = known.lock().unwrap().certain.len();
        let clients = (0..4)
            .map(|_| cluster.connect("crash"))
            .collect::<Result<Vec<_>>>()?;
        let pause = Duration::from_millis(rng.random_range(300..3000));
        let seeds: Vec<u64> = (0..4).map(|_| rng.random()).collect();
        std::thread::scope(|scope| -> Result<()> {
            for (i, client) in clients.into_iter().enumerate() {
                let (known, next, stop, seed) = (&known, &next, &stop, seeds[i]);
                scope.spawn(move || match i {
                    0 => maintain(client, stop, seed),
                    _ => write(client, known, next, stop, seed),
                });
            }
            let until = Instant::now() + pause;
            while Instant::now() < until {
                std::thread::sleep(Duration::from_millis(20));
            }
            let killed = kill_all(&mut cluster);
            stop.store(true, Ordering::Relaxed);
            killed
        })?;
        if round % 3 == 1 {
            // The cache is a cache.
            let _ = std::fs::remove_dir_all(cluster.data().join("base/pgsql_tmp"));
            let _ = std::fs::remove_dir_all(segment_folder(&cluster));
        }
        cluster.start()?;
        let mut known = known.lock().unwrap();
        check(&cluster, &mut known, &mut rng)?;
        println!(
            "round {round}: {before} rows before, {} after",
            known.certain.len()
        );
    }
    let rows = known.lock().unwrap().certain.len();
    ensure!(rows > 0, "nothing was committed before a crash");
    Ok(())
}

/// An unlogged index is empty after a crash, as its table is, and works.
#[test]
fn an_unlogged_index_starts_again() -> Result<()> {
    let mut cluster = Cluster::builder()
        .preload(false)
        .setting("fsync", "off")
        .start()?;
    cluster.database("crash")?.batch_execute(
        "CREATE EXTENSION IF NOT EXISTS laser;
         CREATE UNLOGGED TABLE u (id integer, e embedding(3));
         CREATE INDEX ui ON u USING laser (e);
         INSERT INTO u SELECT i, ARRAY[i, 1, 1]::real[]::embedding FROM generate_series(1, 500) i",
    )?;
    kill_all(&mut cluster)?;
    cluster.start()?;
    let mut client = cluster.connect("crash")?;
    client.batch_execute("SET enable_seqscan = off")?;
    let near = "SELECT id FROM u ORDER BY e <=> '[7,1,1]' LIMIT 1";
    ensure!(client.query(near, &[])?.is_empty());
    client.batch_execute(
        "INSERT INTO u SELECT i, ARRAY[i, 1, 1]::real[]::embedding FROM generate_series(1, 50) i",
    )?;
    ensure!(client.query_one(near, &[])?.get::<_, i32>(0) == 7);
    ensure!(
        client
            .query("SELECT laser_index_check('ui')", &[])?
            .is_empty()
    );
    Ok(())
}

/// The nearest row is that with the id 7.
const NEAR_SEVEN: &str = "SELECT id FROM t ORDER BY e <=> '[7,1,1]' LIMIT 1";

/// A session in a database with an index `ti` on 3000 rows.
fn three_thousand(cluster: &Cluster) -> Result<Client> {
    let mut client = cluster.database("crash")?;
    client.batch_execute(
        "CREATE EXTENSION IF NOT EXISTS laser;
         CREATE TABLE t (id integer, e embedding(3));
         INSERT INTO t SELECT i, ARRAY[i, 1, 1]::real[]::embedding FROM generate_series(1, 3000) i;
         CREATE INDEX ti ON t USING laser (e)",
    )?;
    Ok(client)
}

/// The folder with the files of segments may go at any time, while the server runs as well.
#[test]
fn the_cache_may_be_deleted() -> Result<()> {
    let mut cluster = Cluster::builder()
        .preload(false)
        .setting("fsync", "off")
        .start()?;
    let mut client = three_thousand(&cluster)?;
    client.batch_execute("SET enable_seqscan = off")?;
    let near = NEAR_SEVEN;
    let folder = segment_folder(&cluster);
    for _ in 0..3 {
        ensure!(client.query_one(near, &[])?.get::<_, i32>(0) == 7);
        ensure!(segment_files(&cluster)?.len() == 1);
        std::fs::remove_dir_all(&folder)?;
        ensure!(client.query_one(near, &[])?.get::<_, i32>(0) == 7);
        let mut other = cluster.connect("crash")?;
        other.batch_execute("SET enable_seqscan = off")?;
        ensure!(other.query_one(near, &[])?.get::<_, i32>(0) == 7);
    }
    cluster.stop("fast")?;
    std::fs::remove_dir_all(&folder).ok();
    cluster.start()?;
    let mut client = cluster.connect("crash")?;
    client.batch_execute("SET enable_seqscan = off")?;
    ensure!(client.query_one(near, &[])?.get::<_, i32>(0) == 7);
    // A dropped index leaves no file behind once another one is made.
    client.batch_execute(
        "DROP INDEX ti; CHECKPOINT;
         CREATE INDEX ti ON t USING laser (e embedding_l2_ops);
         SELECT laser_prewarm('ti')",
    )?;
    drop(client);
    let mut client = cluster.connect("crash")?;
    std::fs::remove_dir_all(&folder)?;
    client.batch_execute("SELECT laser_prewarm('ti')")?;
    ensure!(segment_files(&cluster)?.len() == 1);
    Ok(())
}

/// Files of segments outlive the server, however it ends, and are used by the next one unless somebody has changed them
/// meanwhile; not those of temporary tables, and of what is gone.
#[test]
fn the_cache_outlives_the_server() -> Result<()> {
    let mut cluster = Cluster::builder()
        .preload(true)
        .setting("fsync", "off")
        .start()?;
    let mut client = three_thousand(&cluster)?;
    client.batch_execute(
        "CHECKPOINT;
         CREATE TEMP TABLE s AS SELECT * FROM t;
         CREATE INDEX ON s USING laser (e)",
    )?;
    let [(path, _)] = segment_files(&cluster)?
        .into_iter()
        .filter(|(path, _)| path.starts_with(segment_folder(&cluster)))
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|files| anyhow::anyhow!("{files:?}"))?;
    ensure!(segment_files(&cluster)?.len() == 2);
    let gone = segment_folder(&cluster).join("fffffff0/67f_4000_ffffffff");
    drop(client);
    let inode = || -> Result<u64> { Ok(path.metadata()?.ino()) };
    // While it is open, no other file has its number.
    let _opened = std::fs::File::open(&path)?;
    let made = inode()?;
    let found = |cluster: &Cluster| -> Result<i32> {
        let mut client = cluster.connect("crash")?;
        client.batch_execute("SET enable_seqscan = off")?;
        Ok(client.query_one(NEAR_SEVEN, &[])?.get(0))
    };
    for end in ["fast", "immediate", "killed"] {
        let mkdir = format!(
            "COPY (SELECT 'bytes') TO PROGRAM 'mkdir -p {0} && cat > {0}/0123456789abcdef'",
            gone.display()
        );
        cluster.psql("crash", &mkdir)?;
        match end {
            "killed" => kill_all(&mut cluster)?,
            mode => cluster.stop(mode)?,
        }
        cluster.start()?;
        ensure!(found(&cluster)? == 7 && inode()? == made);
        let files = segment_files(&cluster)?;
        ensure!(files.len() == 1, "{files:?}");
        ensure!(!gone.exists(), "{gone:?} is left");
    }

    cluster.stop("fast")?;
    let file = std::fs::File::options().write(true).open(&path)?;
    file.write_all_at(&[0; 100], 1000)?;
    cluster.start()?;
    ensure!(found(&cluster)? == 7 && inode()? != made);
    Ok(())
}

/// With `wal_level = minimal` a new index is not logged but synced.
#[test]
fn minimal_wal_is_enough() -> Result<()> {
    let mut cluster = Cluster::builder()
        .preload(false)
        .setting("wal_level", "minimal")
        .setting("max_wal_senders", "0")
        .start()?;
    cluster.database("crash")?.batch_execute(
        "CREATE EXTENSION IF NOT EXISTS laser;
         BEGIN;
         CREATE TABLE t (id integer, e embedding(3));
         INSERT INTO t SELECT i, ARRAY[i, 1, 1]::real[]::embedding FROM generate_series(1, 3000) i;
         CREATE INDEX ti ON t USING laser (e);
         INSERT INTO t SELECT i, ARRAY[i, 1, 1]::real[]::embedding FROM generate_series(3001, 3100) i;
         COMMIT",
    )?;
    kill_all(&mut cluster)?;
    cluster.start()?;
    let mut client = cluster.connect("crash")?;
    ensure!(
        client
            .query("SELECT laser_index_check('ti')", &[])?
            .is_empty()
    );
    client.batch_execute(
        "SET enable_seqscan = off; SET enable_sort = off; SET laser.max_scan_tuples = 100000;
         SET laser.iterative_scan = relaxed_order",
    )?;
    let all = "SELECT count(*) FROM (SELECT id FROM t ORDER BY e <=> '[7,1,1]') x";
    ensure!(client.query_one(all, &[])?.get::<_, i64>(0) == 3100);
    Ok(())
}

/// The server ends a VACUUM by exit() when the postmaster is gone, and thread-locals end before the
/// transaction does.
#[test]
fn the_postmaster_dies_during_a_vacuum() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let mut client = cluster.database("orphans")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, v embedding(3), pad text) WITH (autovacuum_enabled = off);
         INSERT INTO t SELECT i, ARRAY[i, 1, 2]::real[]::embedding, repeat('x', 1000)
         FROM generate_series(1, 20000) i;
         CREATE INDEX ON t USING laser (v);
         DELETE FROM t WHERE id % 2 = 0;
         SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1",
    )?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let running = std::thread::spawn(move || client.batch_execute("VACUUM t"));
    let mut other = cluster.connect("orphans")?;
    wait_until("VACUUM sleeps", || {
        let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'VacuumDelay'";
        Ok(other.query_one(sleeps, &[])?.get::<_, i64>(0) > 0)
    })?;
    cluster.kill9()?;
    wait_until("VACUUM has noticed", || Ok(!process_exists(pid as u32)))?;
    let error = running.join().expect("no panic").expect_err("ended");
    ensure!(was_ended(&error), "{error}");
    let log = cluster.log();
    ensure!(!log.contains("Thread Local Storage"), "{log}");
    cluster.start()?;
    let mut client = cluster.connect("orphans")?;
    ensure!(
        client
            .query("SELECT laser_index_check('t_v_idx')", &[])?
            .is_empty()
    );
    Ok(())
}
