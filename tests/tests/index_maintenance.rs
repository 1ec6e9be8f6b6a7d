//! Maintenance in the background: a worker of the database merges what inserts leave, is in nobody's way,
//! and survives what workers meet.
//!
//! `LASER_SOAK` sets the seconds of the test with writers, readers, vacuums, merges and kills (20 unless told).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laser_tests::{Cluster, passing_folder, process_exists, signal, wait_until, was_ended};
use postgres::Client;
use postgres::error::SqlState;

const WORKER: &str = "backend_type = 'laser maintenance'";

fn cluster() -> Result<Cluster> {
    Cluster::builder()
        .preload(false)
        .setting("autovacuum", "off")
        .start()
}

/// A database with a table of random vectors and an index with these options.
fn create(cluster: &Cluster, dimensions: i32, options: &str) -> Result<Client> {
    create_as(cluster, dimensions, &format!("(e) WITH ({options})"))
}

/// The same, with an index `USING laser` that is described in full.
fn create_as(cluster: &Cluster, dimensions: i32, index: &str) -> Result<Client> {
    let mut client = cluster.database("m")?;
    client.batch_execute(&format!(
        "CREATE FUNCTION vector(i int) RETURNS embedding LANGUAGE sql VOLATILE RETURN
             (SELECT array_agg(random() - 0.5)::real[]::embedding
              FROM generate_series(1, {dimensions}) WHERE i = i);
         CREATE TABLE t (id serial, e embedding({dimensions}));
         CREATE INDEX ti ON t USING laser {index}"
    ))?;
    Ok(client)
}

fn insert(client: &mut Client, rows: i32) -> Result<()> {
    let sql = format!("INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, {rows}) i");
    Ok(client.batch_execute(&sql)?)
}

/// A list that takes a while to merge, and the worker at it.
fn long_merge(cluster: &Cluster, client: &mut Client) -> Result<i32> {
    client.batch_execute(
        "SET laser.background_maintenance = off; SET maintenance_work_mem = '1MB'",
    )?;
    client.batch_execute("ALTER INDEX ti SET (pending_list_limit = 100000)")?;
    insert(client, 15_000)?;
    client.batch_execute("ALTER INDEX ti SET (pending_list_limit = 64)")?;
    client.batch_execute("RESET laser.background_maintenance")?;
    merging_for(cluster, client)
}

/// The same, with a writer: a list is merged when somebody inserts.
fn merging_for(cluster: &Cluster, client: &mut Client) -> Result<i32> {
    let mut pid = None;
    wait_until("the worker is merging for a writer", || {
        insert(client, 1)?;
        pid = at_work(cluster)?;
        Ok(pid.is_some())
    })?;
    pid.context("no process")
}

/// The process of the worker, if it is merging.
fn at_work(cluster: &Cluster) -> Result<Option<i32>> {
    let sql = "SELECT pid FROM laser_index_maintenance WHERE phase = 'loading vectors'";
    Ok(cluster.psql("m", sql)?.parse().ok())
}

/// An index whose lists take long to merge: for inner products nodes are added one after the other.
const LONG: &str = "(e embedding_ip_ops) WITH (m = 48, ef_construction = 1000)";

/// The process of the worker, once it is merging.
fn merging(cluster: &Cluster) -> Result<i32> {
    let mut pid = None;
    wait_until("the worker is merging", || {
        pid = at_work(cluster)?;
        Ok(pid.is_some())
    })?;
    pid.context("no process")
}

fn workers(cluster: &Cluster) -> Result<String> {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE {WORKER}");
    cluster.psql("postgres", &sql)
}

fn pending(cluster: &Cluster) -> Result<i64> {
    let text = cluster.psql("m", "SELECT pending FROM laser_index_info('ti')")?;
    Ok(text.parse()?)
}

/// The index is in order, and has every row of the table.
fn clean(cluster: &Cluster) -> Result<()> {
    let found = cluster.psql("m", "SELECT laser_index_check('ti')")?;
    ensure!(found.is_empty(), "{found}");
    Ok(())
}

/// Inserts only append; the worker merges, and leaves when there is nothing to do.
#[test]
fn the_worker_merges_what_inserts_leave() -> Result<()> {
    for preload in [false, true] {
        let cluster = Cluster::builder()
            .preload(preload)
            .setting("autovacuum", "off")
            .start()?;
        let mut client = create(&cluster, 16, "pending_list_limit = 64")?;
        for _ in 0..20 {
            insert(&mut client, 200)?;
        }
        wait_until("the list is short", || Ok(pending(&cluster)? < 1000))?;
        ensure!(cluster.psql("m", "SELECT segments > 0 FROM laser_index_info('ti')")? == "t");
        clean(&cluster)?;
        wait_until("the worker has left", || Ok(workers(&cluster)? == "0"))?;
        let left = cluster.psql("m", "SELECT count(*) FROM laser_index_maintenance")?;
        ensure!(left == "0", "{left} rows");
        // It comes again.
        insert(&mut client, 2000)?;
        wait_until("the list is short again", || Ok(pending(&cluster)? < 1000))?;
        clean(&cluster)?;
    }
    Ok(())
}

/// Where there is no place for a worker, where it is not wanted, and where it could not see the index, the
/// insert that fills the list merges it.
#[test]
fn without_a_worker_inserts_merge() -> Result<()> {
    let cluster = Cluster::builder()
        .preload(false)
        .setting("max_worker_processes", "0")
        .start()?;
    let mut client = create(&cluster, 16, "pending_list_limit = 64")?;
    insert(&mut client, 5000)?;
    ensure!(pending(&cluster)? < 1000, "{}", pending(&cluster)?);
    ensure!(workers(&cluster)? == "0");
    clean(&cluster)?;

    let cluster = self::cluster()?;
    let mut client = create(&cluster, 16, "pending_list_limit = 64")?;
    client.batch_execute("SET laser.background_maintenance = off")?;
    insert(&mut client, 5000)?;
    ensure!(pending(&cluster)? < 1000, "{}", pending(&cluster)?);
    client.batch_execute("RESET laser.background_maintenance")?;
    for begin in [
        "CREATE TABLE n (e embedding(16)); CREATE INDEX ni ON n USING laser (e) WITH (pending_list_limit = 64)",
        "TRUNCATE n",
        "LOCK TABLE n",
        "CREATE TEMP TABLE n (e embedding(16)); CREATE INDEX ni ON n USING laser (e) WITH (pending_list_limit = 64)",
    ] {
        client.batch_execute("BEGIN")?;
        client.batch_execute(begin)?;
        client.batch_execute("INSERT INTO n SELECT vector(i) FROM generate_series(1, 5000) i")?;
        let row = client.query_one("SELECT pending FROM laser_index_info('ni')", &[])?;
        ensure!(
            row.get::<_, i64>(0) < 1000,
            "{begin}: {}",
            row.get::<_, i64>(0)
        );
        client.batch_execute("COMMIT")?;
    }
    ensure!(workers(&cluster)? == "0");
    clean(&cluster)
}

/// Of many databases with much to do, few have a worker at once.
#[test]
fn workers_are_limited() -> Result<()> {
    let cluster = Cluster::builder()
        .preload(false)
        .setting("autovacuum", "off")
        .setting("laser.maintenance_workers", "1")
        .start()?;
    let mut client = create_as(&cluster, 64, LONG)?;
    let worker = long_merge(&cluster, &mut client)?;
    let mut other = cluster.database("other")?;
    other.batch_execute(
        "CREATE TABLE t (e embedding(16));
         CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64);
         INSERT INTO t SELECT (SELECT array_agg(random() - 0.5)::real[]::embedding FROM generate_series(1, 16) WHERE i = i)
         FROM generate_series(1, 3000) i",
    )?;
    let row = other.query_one("SELECT segments, pending FROM laser_index_info('ti')", &[])?;
    let (segments, left) = (row.get::<_, i32>(0), row.get::<_, i64>(1));
    ensure!(segments > 0 && left < 1000, "{segments} {left}");
    ensure!(workers(&cluster)? == "1" && process_exists(worker.try_into()?));
    // One that may be there is.
    cluster.psql("postgres", "ALTER SYSTEM SET laser.maintenance_workers = 2")?;
    cluster.psql("postgres", "SELECT pg_reload_conf()")?;
    wait_until("there are two", || {
        other.batch_execute("INSERT INTO t SELECT e FROM t LIMIT 500")?;
        Ok(workers(&cluster)? == "2")
    })?;
    Ok(())
}

/// Nobody who wants the database, the table or the index waits for the worker.
#[test]
fn the_worker_is_in_nobodys_way() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create_as(&cluster, 64, LONG)?;
    long_merge(&cluster, &mut client)?;
    drop(client);
    let timed = |database: &str, sql: &str| -> Result<()> {
        let start = Instant::now();
        cluster.psql(database, sql)?;
        let took = start.elapsed();
        println!("{sql}: {took:?}");
        // Template and tablespace wait for five seconds before they give up.
        ensure!(took < Duration::from_secs(30), "{sql} took {took:?}");
        Ok(())
    };
    // Sessions of tests may take a moment to go.
    wait_until("the session has gone", || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'm' AND backend_type = 'client backend'";
        Ok(cluster.psql("postgres", sql)? == "0")
    })?;
    timed("postgres", "CREATE DATABASE n TEMPLATE m")?;
    let mut client = cluster.connect("m")?;
    merging_for(&cluster, &mut client)?;
    // Who waits for the merge lock has it soon.
    timed("m", "SELECT laser_index_check('ti')")?;
    merging(&cluster)?;
    timed("m", "ALTER TABLE t ADD COLUMN more int")?;
    clean(&cluster)?;
    merging_for(&cluster, &mut client)?;
    timed("m", "DROP INDEX ti")?;
    client.batch_execute(&format!("CREATE INDEX ti ON t USING laser {LONG}"))?;
    long_merge(&cluster, &mut client)?;
    drop(client);
    wait_until("the session has gone", || {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'm' AND backend_type = 'client backend'";
        Ok(cluster.psql("postgres", sql)? == "0")
    })?;
    timed("postgres", "DROP DATABASE m")
}

/// A worker that is cancelled, told to end or killed in the middle of a merge leaves an index that is in order.
#[test]
fn a_worker_may_end_at_any_time() -> Result<()> {
    let mut cluster = cluster()?;
    let mut client = create_as(&cluster, 64, LONG)?;
    let pid = long_merge(&cluster, &mut client)?;
    cluster.psql("m", &format!("SELECT pg_cancel_backend({pid})"))?;
    wait_until("the merge is canceled", || {
        Ok(cluster.log().contains("index \"ti\" was canceled"))
    })?;
    // It goes on after a moment.
    ensure!(merging(&cluster)? == pid);
    let start = Instant::now();
    cluster.psql("m", &format!("SELECT pg_terminate_backend({pid})"))?;
    wait_until("the worker has ended", || Ok(!process_exists(pid as u32)))?;
    println!("ended after {:?}", start.elapsed());
    clean(&cluster)?;
    let pid = merging_for(&cluster, &mut client)?;
    signal(pid as u32, libc::SIGKILL);
    wait_until("the server has restarted", || {
        Ok(client.batch_execute("SELECT 1").is_err() && client.is_closed())
    })?;
    wait_until("the server is back", || {
        Ok(cluster.psql("m", "SELECT 1").is_ok())
    })?;
    clean(&cluster)?;
    // A fast shutdown waits for no merge.
    let mut client = cluster.connect("m")?;
    merging_for(&cluster, &mut client)?;
    let start = Instant::now();
    cluster.stop("fast")?;
    println!("stopped after {:?}", start.elapsed());
    cluster.start()?;
    clean(&cluster)?;
    cluster.psql("m", "SELECT laser_merge('ti')")?;
    clean(&cluster)
}

/// A standby has no worker, and a promoted one has.
#[test]
fn a_standby_has_none() -> Result<()> {
    let primary = cluster()?;
    let mut client = create(&primary, 16, "pending_list_limit = 64")?;
    let replica = primary.replica()?;
    insert(&mut client, 5000)?;
    wait_until("the list is short", || Ok(pending(&primary)? < 1000))?;
    primary.wait_for_replica(&replica)?;
    ensure!(workers(&replica)? == "0");
    clean(&replica)?;
    replica.promote()?;
    insert(&mut replica.connect("m")?, 5000)?;
    wait_until("the list is short", || Ok(pending(&replica)? < 1000))?;
    clean(&replica)
}

/// A merge that fails is put off for longer and longer, for all sessions, which hear of it; only those who
/// may see which index it is.
#[test]
fn a_failed_merge_is_put_off_for_all() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 16, "pending_list_limit = 64")?;
    client.batch_execute(
        "CREATE ROLE nobody LOGIN; CREATE ROLE stats LOGIN IN ROLE pg_read_all_stats",
    )?;
    insert(&mut client, 2000)?;
    wait_until("the list is short", || Ok(pending(&cluster)? < 1000))?;
    // Nobody may create files there any more.
    let folder = passing_folder(&cluster);
    let before = folder.metadata()?.permissions();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500))?;
    let (mut other, notices) = cluster.connect_with_notices("m")?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(6) {
        insert(&mut other, 100)?;
        sleep(Duration::from_millis(20));
    }
    let attempts = cluster
        .log()
        .matches("index \"ti\": could not merge")
        .count();
    ensure!((1..=4).contains(&attempts), "tried {attempts} times");
    let said = notices.take();
    ensure!(!said.is_empty() && said.len() <= 4, "{said:?}");
    ensure!(said[0].starts_with("WARNING: could not merge"), "{said:?}");
    let look = |role: &str| -> Result<String> {
        let mut client = cluster.config("m").user(role).connect(postgres::NoTls)?;
        let row = client.query_one(
            "SELECT coalesce(index, '-') || ' ' || coalesce(failures > 0 AND next_try > failed_at, false)
                    || ' ' || coalesce(last_error LIKE 'could not merge%', false) || ' ' || datname
             FROM laser_index_maintenance WHERE phase IS DISTINCT FROM 'idle'",
            &[],
        )?;
        Ok(row.get(0))
    };
    ensure!(
        look("postgres")? == "ti true true m",
        "{}",
        look("postgres")?
    );
    ensure!(look("stats")? == "ti true true m", "{}", look("stats")?);
    ensure!(look("nobody")? == "- false false m", "{}", look("nobody")?);
    fs::set_permissions(&folder, before)?;
    // The owner need not wait.
    client.batch_execute("SELECT laser_merge('ti')")?;
    clean(&cluster)?;
    wait_until("inserts are merged again", || {
        insert(&mut other, 100)?;
        sleep(Duration::from_millis(100));
        Ok(cluster.psql(
            "m",
            "SELECT count(*) FROM laser_index_maintenance WHERE phase = 'put off'",
        )? == "0")
    })?;
    clean(&cluster)
}

/// Workers that come to nothing are not started again and again, and inserts merge meanwhile.
#[test]
fn workers_in_vain_are_few() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 16, "pending_list_limit = 64")?;
    cluster.psql("postgres", "ALTER DATABASE m ALLOW_CONNECTIONS false")?;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(8) {
        insert(&mut client, 200)?;
        sleep(Duration::from_millis(10));
    }
    let in_vain = cluster
        .log()
        .matches("not currently accepting connections")
        .count();
    ensure!((1..=3).contains(&in_vain), "{in_vain} workers");
    let row = client.query_one("SELECT segments FROM laser_index_info('ti')", &[])?;
    ensure!(row.get::<_, i32>(0) > 0, "nothing was merged");
    Ok(())
}

/// A load that is faster than merges is slowed down, so that the list stays bounded, and says what it waits for
/// to whoever looks; a cancel comes through.
#[test]
fn a_fast_load_waits_for_merges() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(
        &cluster,
        64,
        "pending_list_limit = 64, ef_construction = 400",
    )?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let token = client.cancel_token();
    let load = std::thread::spawn(move || insert(&mut client, 1_000_000));
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}
             AND wait_event_type = 'Extension' AND wait_event IN ('Extension', 'LaserMergeBacklog')"
    );
    wait_until("the load waits", || Ok(cluster.psql("m", &sql)? == "1"))?;
    let start = Instant::now();
    token.cancel_query(postgres::NoTls)?;
    let error = load.join().expect("no panic").expect_err("canceled");
    let error = error.downcast::<postgres::Error>()?;
    ensure!(error.code() == Some(&SqlState::QUERY_CANCELED), "{error}");
    ensure!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    clean(&cluster)
}

/// A merge of one index takes as long as its owner wants it to: writers of others do not wait for it, and merge
/// themselves.
#[test]
fn a_long_merge_is_nobody_elses() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create_as(&cluster, 32, LONG)?;
    client.batch_execute(
        "CREATE TABLE u (id serial, e embedding(32));
         CREATE INDEX ui ON u USING laser (e) WITH (pending_list_limit = 64, m = 4, ef_construction = 8)",
    )?;
    let worker = long_merge(&cluster, &mut client)? as u32;
    signal(worker, libc::SIGSTOP);
    let start = Instant::now();
    let done = (|| {
        while start.elapsed() < Duration::from_secs(4) {
            client.batch_execute(
                "INSERT INTO u (e) SELECT vector(i) FROM generate_series(1, 500) i",
            )?;
        }
        let told = "SELECT count(*) FROM laser_index_maintenance WHERE index ~ 'ti'";
        ensure!(cluster.psql("m", told)? == "1", "the worker has left ti");
        let row = client.query_one(
            "SELECT pending < 5000, segments > 0, n FROM laser_index_info('ui'), (SELECT count(*) AS n FROM u) u",
            &[],
        )?;
        let found = (
            row.get::<_, bool>(0),
            row.get::<_, bool>(1),
            row.get::<_, i64>(2),
        );
        ensure!(found.0 && found.1, "{found:?}");
        // Each row of a list of more than eight times its limit would take 10 ms.
        ensure!(found.2 > 2000, "{found:?}");
        Ok(())
    })();
    signal(worker, libc::SIGCONT);
    done?;
    clean(&cluster)
}

/// Who waits for a lock keeps the worker out, and not the writer that has the one before: it merges itself.
#[test]
fn who_waits_for_a_lock_slows_nobody_down() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(
        &cluster,
        32,
        "pending_list_limit = 64, m = 4, ef_construction = 8",
    )?;
    let mut other = cluster.connect("m")?;
    client.batch_execute("BEGIN")?;
    insert(&mut client, 10)?;
    let waiting = std::thread::spawn(move || other.batch_execute("ALTER TABLE t ADD COLUMN z int"));
    wait_until("the lock is waited for", || {
        Ok(cluster.psql("m", "SELECT count(*) FROM pg_locks WHERE NOT granted")? == "1")
    })?;
    for _ in 0..20 {
        insert(&mut client, 500)?;
        std::thread::sleep(Duration::from_millis(150));
    }
    let row = client.query_one(
        "SELECT segments > 0, pending FROM laser_index_info('ti')",
        &[],
    )?;
    ensure!(row.get::<_, bool>(0), "{} rows wait", row.get::<_, i64>(1));
    client.batch_execute("COMMIT")?;
    waiting.join().expect("no panic")?;
    clean(&cluster)
}

/// Everything at once, with a server that is killed by the death of its worker.
#[test]
fn soak() -> Result<()> {
    let seconds = std::env::var("LASER_SOAK")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(20);
    let cluster = Cluster::builder()
        .preload(false)
        .setting("autovacuum_naptime", "1s")
        .start()?;
    let mut client = create(&cluster, 16, "pending_list_limit = 64")?;
    insert(&mut client, 2000)?;
    drop(client);
    let stop = AtomicBool::new(false);
    let written = AtomicI64::new(0);
    // A session that begins again when the server has restarted.
    let again = |work: &dyn Fn(&mut Client) -> Result<(), postgres::Error>| -> Result<()> {
        let mut client: Option<Client> = None;
        while !stop.load(Ordering::Relaxed) {
            let Some(open) = &mut client else {
                client = cluster.connect("m").ok();
                sleep(Duration::from_millis(20));
                continue;
            };
            match work(open) {
                Ok(()) => {}
                Err(error) if was_ended(&error) => client = None,
                // Two sessions that lock the table in another order each: autovacuum, a writer.
                Err(error) if error.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED) => {}
                Err(error) => anyhow::bail!("{error:?}"),
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let mut sessions = Vec::new();
        for _ in 0..3 {
            sessions.push(scope.spawn(|| {
                again(&|client| {
                    client.batch_execute(
                        "INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 20) i",
                    )?;
                    written.fetch_add(20, Ordering::Relaxed);
                    // Checks and recall at the end take longer with every row.
                    sleep(Duration::from_millis(20));
                    Ok(())
                })
            }));
        }
        sessions.push(scope.spawn(|| {
            again(&|client| {
                client.batch_execute(
                    "SET enable_seqscan = off; SET enable_sort = off;
                     SELECT id FROM t ORDER BY e <=> vector(1) LIMIT 5",
                )?;
                sleep(Duration::from_millis(5));
                Ok(())
            })
        }));
        sessions.push(scope.spawn(|| {
            again(&|client| {
                client.batch_execute("DELETE FROM t WHERE random() < 0.02")?;
                client.batch_execute("VACUUM (INDEX_CLEANUP ON) t")?;
                sleep(Duration::from_millis(700));
                Ok(())
            })
        }));
        sessions.push(scope.spawn(|| {
            again(&|client| {
                sleep(Duration::from_millis(1900));
                client.batch_execute("SELECT laser_merge('ti')")
            })
        }));
        let until = Instant::now() + Duration::from_secs(seconds);
        let mut kills = 0;
        while Instant::now() < until {
            sleep(Duration::from_secs(5));
            let sql = format!("SELECT pid FROM pg_stat_activity WHERE {WORKER}");
            if let Ok(Ok(pid)) = cluster.psql("m", &sql).map(|pid| pid.parse()) {
                signal(pid, [libc::SIGKILL, libc::SIGTERM, libc::SIGINT][kills % 3]);
                kills += 1;
            }
        }
        stop.store(true, Ordering::Relaxed);
        for session in sessions {
            session.join().expect("no panic")?;
        }
        println!("{kills} signals, {} rows", written.load(Ordering::Relaxed));
        ensure!(kills > 0, "there was no worker");
        Ok(())
    })?;
    wait_until("the server is back", || {
        Ok(cluster.psql("m", "SELECT 1").is_ok())
    })?;
    clean(&cluster)?;
    let recall = "SELECT laser_index_recall('ti', 100, 10)";
    let before: f64 = cluster.psql("m", recall)?.parse()?;
    cluster.psql("m", "REINDEX INDEX ti")?;
    let after: f64 = cluster.psql("m", recall)?.parse()?;
    println!("recall {before}, after REINDEX {after}");
    ensure!(
        before > after - 0.02,
        "recall {before}, after REINDEX {after}"
    );
    Ok(())
}
