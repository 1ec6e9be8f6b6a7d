//! Upkeep of an index by sessions: builds and merges at the same time, files that nobody needs, cancels,
//! merges that cannot be done. `index_maintenance.rs` has the worker's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laser_tests::{
    Cluster, SmallDisk, failure, passing_folder, segment_files, segment_folder, wait_until,
    was_ended,
};
use postgres::Client;
use postgres::error::SqlState;

fn cluster() -> Result<Cluster> {
    Cluster::builder()
        .preload(false)
        .setting("fsync", "off")
        .setting("autovacuum", "off")
        .setting("laser.background_maintenance", "off")
        .start()
}

/// A database with a table of random vectors.
fn create(cluster: &Cluster, rows: i32, dimensions: i32) -> Result<Client> {
    let mut client = cluster.database("upkeep")?;
    client.batch_execute(&format!(
        "CREATE FUNCTION vector(i int) RETURNS embedding LANGUAGE sql VOLATILE RETURN
             (SELECT array_agg(random() - 0.5)::real[]::embedding
              FROM generate_series(1, {dimensions}) WHERE i = i);
         CREATE TABLE t (id serial, e embedding({dimensions}));
         INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, {rows}) i"
    ))?;
    Ok(client)
}

fn problems(client: &mut Client, index: &str) -> Result<Vec<String>> {
    let sql = format!("SELECT laser_index_check('{index}')");
    let rows = client.query(&sql, &[])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// An index that another session builds is left alone by whoever wants to merge it, and is whole
/// afterwards.
#[test]
fn merges_leave_an_index_alone_that_is_being_built() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 12_000, 64)?;
    let mut refused = 0;
    for round in 0..3 {
        let mut builder = cluster.connect("upkeep")?;
        let create = if round == 2 {
            client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
            "REINDEX INDEX CONCURRENTLY ti"
        } else {
            "CREATE INDEX CONCURRENTLY ti ON t USING laser (e) WITH (pending_list_limit = 64)"
        };
        let target = if round == 2 { "ti_ccnew" } else { "ti" };
        let build = std::thread::spawn(move || -> Result<()> {
            builder.batch_execute("SET maintenance_work_mem = '3MB'")?;
            builder.batch_execute(create)?;
            Ok(())
        });
        let merge = format!("SELECT laser_merge('{target}')");
        let insert = "INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 20) i";
        let mut inserts = 0;
        while !build.is_finished() {
            match client.batch_execute(&merge) {
                Ok(()) => {}
                Err(error) => {
                    let error = error.as_db_error().context("the server is gone")?;
                    match *error.code() {
                        SqlState::UNDEFINED_TABLE => {}
                        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => {
                            ensure!(error.hint().is_some(), "{error}");
                            refused += 1;
                        }
                        _ => anyhow::bail!("{error}"),
                    }
                }
            }
            // Few enough that the build ends.
            if inserts < 100 {
                client.batch_execute(insert)?;
                inserts += 1;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        build.join().expect("no panic")?;
        let found = problems(&mut client, "ti")?;
        ensure!(found.is_empty(), "round {round}: {found:?}");
        client.batch_execute("SELECT laser_merge('ti')")?;
        let found = problems(&mut client, "ti")?;
        ensure!(found.is_empty(), "round {round}, merged: {found:?}");
        client.batch_execute("DROP INDEX ti")?;
    }
    ensure!(refused > 0, "no merge met a build");
    Ok(())
}

/// What a failed CREATE INDEX CONCURRENTLY leaves is named, by every function that looks into it.
#[test]
fn an_index_that_was_never_finished() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 100, 16)?;
    client.batch_execute(
        "CREATE FUNCTION breaks(e embedding) RETURNS embedding LANGUAGE plpgsql IMMUTABLE AS
             $$ BEGIN RAISE 'not today'; END $$",
    )?;
    let build = "CREATE INDEX CONCURRENTLY ti ON t USING laser ((breaks(e)::embedding(16)))";
    let (_, message, _) = failure(&mut client, build)?;
    ensure!(message == "not today", "{message}");
    for sql in [
        "SELECT laser_merge('ti')",
        "SELECT * FROM laser_index_info('ti')",
        "SELECT laser_prewarm('ti')",
    ] {
        let (code, message, hint) = failure(&mut client, sql)?;
        ensure!(
            code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            "{sql}: {message}"
        );
        ensure!(message.contains("is not ready"), "{sql}: {message}");
        ensure!(hint.contains("REINDEX"), "{sql}: {hint}");
    }
    let found = problems(&mut client, "ti")?;
    ensure!(
        found.len() == 1 && found[0].contains("not valid"),
        "{found:?}"
    );
    // Nor is an index merged by what its own build calls, from PostgreSQL 17 on without the caller's search path.
    client.batch_execute(
        "DROP INDEX ti;
         CREATE FUNCTION merges(e embedding) RETURNS embedding LANGUAGE plpgsql IMMUTABLE AS
             $$ BEGIN PERFORM public.laser_merge('public.ti'); RETURN e; END $$",
    )?;
    let build = "CREATE INDEX ti ON t USING laser ((merges(e)::embedding(16)))";
    let (code, message, _) = failure(&mut client, build)?;
    ensure!(code == SqlState::OBJECT_IN_USE, "{message}");
    Ok(())
}

/// Inserts that find the index locked by a merge go on without a word.
#[test]
fn inserts_beside_merges_say_nothing() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 3000, 64)?;
    client.batch_execute(
        "CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64, ef_construction = 200)",
    )?;
    let (mut other, notices) = cluster.connect_with_notices("upkeep")?;
    let merges = std::thread::spawn(move || -> Result<()> {
        for _ in 0..6 {
            client.batch_execute(
                "DELETE FROM t WHERE id % 50 = 0;
                 INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 20) i",
            )?;
            client.batch_execute("VACUUM (INDEX_CLEANUP ON) t")?;
            client.batch_execute("SELECT laser_merge('ti')")?;
        }
        Ok(())
    });
    // Few enough that merges keep up.
    for _ in 0..200 {
        if merges.is_finished() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        other.batch_execute("INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 30) i")?;
    }
    merges.join().expect("no panic")?;
    let said = notices.take();
    ensure!(said.is_empty(), "{} messages: {:?}", said.len(), said[0]);
    Ok(())
}

/// Files of segments go with what they were made from.
#[test]
fn files_that_nobody_needs_are_removed() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 3000, 64)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
    let segments = |client: &mut Client| -> Result<(usize, u64)> {
        let row = client.query_one("SELECT segments, bytes FROM laser_index_info('ti')", &[])?;
        Ok((row.get::<_, i32>(0) as usize, row.get::<_, i64>(1) as u64))
    };
    let check = |client: &mut Client, what: &str| -> Result<()> {
        let ((count, bytes), files) = (segments(client)?, segment_files(&cluster)?);
        ensure!(files.len() == count, "{what}: {count} segments, {files:?}");
        let held: u64 = files.iter().map(|f| f.1).sum();
        ensure!(
            held <= bytes,
            "{what}: {held} bytes of files, {bytes} of pages"
        );
        Ok(())
    };
    check(&mut client, "build")?;
    for _ in 0..5 {
        client.batch_execute(
            "INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 50) i;
             SELECT laser_merge('ti')",
        )?;
        check(&mut client, "merge")?;
    }
    client.batch_execute("DELETE FROM t WHERE id % 3 = 0")?;
    client.batch_execute("VACUUM (INDEX_CLEANUP ON) t")?;
    check(&mut client, "vacuum")?;
    client.batch_execute("ALTER INDEX ti SET (pending_list_limit = 64)")?;
    client.batch_execute("INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 3000) i")?;
    check(&mut client, "inserts")?;
    for sql in [
        "REINDEX INDEX ti",
        "REINDEX INDEX CONCURRENTLY ti",
        "VACUUM FULL t",
        "ALTER TABLE t ALTER e TYPE embedding(64) USING (e::real[])::embedding(64)",
        "TRUNCATE t; INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 500) i;
         SELECT laser_merge('ti')",
    ] {
        client.batch_execute(sql)?;
        check(&mut client, sql)?;
    }
    // Undone, a drop takes nothing away that could not be made again.
    client.batch_execute("BEGIN; DROP INDEX ti; ROLLBACK; SELECT laser_prewarm('ti')")?;
    check(&mut client, "a drop undone")?;
    client.batch_execute("TRUNCATE t")?;
    ensure!(segment_files(&cluster)?.is_empty(), "TRUNCATE leaves files");

    let fill = "INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 500) i";
    client.batch_execute(&format!("{fill}; SELECT laser_merge('ti')"))?;
    check(&mut client, "filled again")?;
    client.batch_execute("DROP TABLE t")?;
    ensure!(
        segment_files(&cluster)?.is_empty(),
        "DROP TABLE leaves files"
    );

    // Temporary tables, whose sessions end.
    client.batch_execute(
        "CREATE TEMP TABLE w (e embedding(64));
         INSERT INTO w SELECT vector(i) FROM generate_series(1, 500) i;
         CREATE INDEX ON w USING laser (e)",
    )?;
    ensure!(segment_files(&cluster)?.len() == 1);
    drop(client);
    wait_until("the session has ended", || {
        Ok(segment_files(&cluster)?.is_empty())
    })?;

    // A session that is ended in the middle of a build.
    let mut client = cluster.connect("upkeep")?;
    client.batch_execute(
        "CREATE TABLE t (id serial, e embedding(64));
         INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 5000) i",
    )?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let build = std::thread::spawn(move || {
        client.batch_execute("CREATE INDEX ti ON t USING laser (e) WITH (ef_construction = 1000)")
    });
    wait_until("the build has a file", || {
        Ok(!segment_files(&cluster)?.is_empty())
    })?;
    cluster.psql("upkeep", &format!("SELECT pg_terminate_backend({pid})"))?;
    let error = build.join().expect("no panic").expect_err("ended");
    ensure!(was_ended(&error), "{error}");
    wait_until("the session has ended", || {
        let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
        Ok(cluster.psql("upkeep", &sql)? == "0")
    })?;
    let left = segment_files(&cluster)?;
    ensure!(left.is_empty(), "a session that was ended leaves {left:?}");

    // A database goes with its files when it is dropped by a session that knows laser.
    cluster.psql("upkeep", "CREATE INDEX ti ON t USING laser (e)")?;
    ensure!(segment_files(&cluster)?.len() == 1);
    let mut client = cluster.connect("postgres")?;
    client.batch_execute("LOAD 'laser'")?;
    client.batch_execute("DROP DATABASE upkeep")?;
    let left = segment_files(&cluster)?;
    ensure!(left.is_empty(), "DROP DATABASE leaves {left:?}");
    for folder in [segment_folder(&cluster), passing_folder(&cluster)] {
        let left = folder.read_dir()?.count();
        ensure!(left == 0, "DROP DATABASE leaves {left} folders");
    }
    Ok(())
}

/// What no hook has told of, as the drops that a standby replays, goes when files are made.
#[test]
fn folders_of_what_is_gone_are_removed() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 500, 8)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e); SELECT laser_prewarm('ti')")?;
    let kept = segment_files(&cluster)?;
    ensure!(kept.len() == 1, "{kept:?}");
    let relation = kept[0].0.parent().context("a folder")?;
    let database = relation.parent().context("a folder")?;
    // A relation that there is none of, and a database.
    let missed = [
        database.join("67f_fffffff0_ffffffff"),
        segment_folder(&cluster).join("fffffff0/67f_4000_ffffffff"),
    ];
    for folder in &missed {
        // The server's account makes them, which is not always that of the test.
        let folder = folder.to_str().context("UTF-8")?;
        client.batch_execute(&format!(
            "COPY (SELECT 'bytes') TO PROGRAM 'mkdir -p {folder} && cat > {folder}/0123456789abcdef'"
        ))?;
    }
    client.batch_execute(
        "INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 50) i; SELECT laser_merge('ti')",
    )?;
    for folder in &missed {
        ensure!(!folder.exists(), "{folder:?} is left");
    }
    ensure!(!segment_folder(&cluster).join("fffffff0").exists());
    let left = segment_files(&cluster)?;
    ensure!(
        left.len() == 1 && left[0].0.starts_with(relation),
        "{left:?}"
    );

    // Files of other indexes are none of a drop's business.
    client.batch_execute(
        "CREATE TABLE other AS SELECT * FROM t; CREATE INDEX ON other USING laser (e)",
    )?;
    ensure!(segment_files(&cluster)?.len() == 2);
    client.batch_execute("DROP TABLE other")?;
    ensure!(segment_files(&cluster)? == left);
    ensure!(database.read_dir()?.count() == 1);
    Ok(())
}

/// How many files of segments a session has mapped whose line in its maps has `what`, as those that were removed have
/// "(deleted)".
fn mapped(cluster: &Cluster, process: i32, what: &str) -> Result<usize> {
    let sql = format!("SELECT pg_read_file('/proc/{process}/maps', 0, 9999999, false)");
    let maps = cluster.psql("upkeep", &sql)?;
    let is_wanted = |line: &&str| line.contains("laser/") && line.contains(what);
    Ok(maps.lines().filter(is_wanted).count())
}

/// Has the server's account, which is not always that of the test, run a command on the lines of a query.
fn pipe(client: &mut Client, query: &str, command: &str) -> Result<()> {
    client.batch_execute(&format!("COPY ({query}) TO PROGRAM '{command}'"))?;
    Ok(())
}

/// What others have left does not pile up beside any number of relations that are there still.
#[test]
fn what_is_gone_is_found_among_much_else() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 500, 8)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
    let database = segment_files(&cluster)?[0].0.clone();
    let database = database
        .parent()
        .and_then(|p| p.parent())
        .context("a folder")?;
    let path = database.to_str().context("UTF-8")?;
    pipe(
        &mut client,
        &format!(
            "SELECT '{path}/67f_' || to_hex(relfilenode::bigint) || '_ffffffff' FROM pg_class WHERE relfilenode <> 0"
        ),
        "xargs mkdir -p",
    )?;
    ensure!(database.read_dir()?.count() > 200);
    let gone = database.join("67f_fffffff0_ffffffff");
    // A sweep has little time on a busy machine.
    let mut removed = 0;
    for _ in 0..10 {
        pipe(
            &mut client,
            &format!("SELECT '{}'", gone.display()),
            "xargs mkdir -p",
        )?;
        client.batch_execute(
            "INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 50) i; SELECT laser_merge('ti')",
        )?;
        removed += usize::from(!gone.exists());
    }
    ensure!(removed >= 7, "{removed} of 10");

    // However much a database has, it goes with it.
    client.batch_execute("CREATE DATABASE dropped")?;
    let oid: u32 = client
        .query_one("SELECT oid FROM pg_database WHERE datname = 'dropped'", &[])?
        .get(0);
    let dropped = segment_folder(&cluster).join(format!("{oid:x}"));
    let folder = format!("{}/67f_%x_ffffffff", dropped.display());
    for (format, command) in [
        (folder.clone(), "mkdir -p"),
        (format!("{folder}/0123456789abcdef"), "touch"),
    ] {
        pipe(
            &mut client,
            &format!(
                "SELECT replace('{format}', '%x', to_hex(i)) FROM generate_series(100000, 103000) i"
            ),
            &format!("xargs {command}"),
        )?;
    }
    client.batch_execute("DROP DATABASE dropped")?;
    wait_until("the folder is gone", || Ok(!dropped.exists()))
}

/// Files of what a transaction makes and gives up go with it, as do those of what one drops that is prepared: whoever
/// repeats it would fill the disk.
#[test]
fn what_is_rolled_back_leaves_no_files() -> Result<()> {
    let cluster = Cluster::builder()
        .setting("max_prepared_transactions", "2")
        .start()?;
    let mut client = create(&cluster, 500, 8)?;
    for sql in [
        "BEGIN; CREATE INDEX ON t USING laser (e); ROLLBACK",
        "BEGIN; SAVEPOINT s; CREATE INDEX ON t USING laser (e); ROLLBACK TO s",
        "COMMIT",
        "DO $$ BEGIN CREATE INDEX ON t USING laser (e); RAISE 'no'; EXCEPTION WHEN raise_exception THEN END $$",
        "BEGIN; CREATE INDEX ti ON t USING laser (e); PREPARE TRANSACTION 'made'",
        "ROLLBACK PREPARED 'made'",
    ] {
        client.batch_execute(sql)?;
        let left = segment_files(&cluster)?;
        ensure!(left.is_empty(), "{sql} leaves {left:?}");
    }

    client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
    ensure!(segment_files(&cluster)?.len() == 1);
    client.batch_execute("BEGIN; REINDEX INDEX ti; ROLLBACK")?;
    ensure!(segment_files(&cluster)?.len() <= 1);
    client.batch_execute("BEGIN; DROP INDEX ti; PREPARE TRANSACTION 'dropped'")?;
    ensure!(segment_files(&cluster)?.is_empty());
    client.batch_execute("ROLLBACK PREPARED 'dropped'")?;
    ensure!(problems(&mut client, "ti")?.is_empty());

    // The next file finds those of temporary relations, which no hook tells of.
    client.batch_execute("CREATE TEMP TABLE s AS SELECT * FROM t")?;
    for _ in 0..5 {
        client.batch_execute("BEGIN; CREATE INDEX ON s USING laser (e); ROLLBACK")?;
    }
    let left = segment_files(&cluster)?;
    ensure!(left.len() <= 2, "{left:?}");
    Ok(())
}

/// A session keeps no files mapped of what it has rebuilt or dropped: they would occupy the disk until it ends.
#[test]
fn sessions_do_not_hold_what_they_have_removed() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 500, 8)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
    let held = |client: &mut Client| -> Result<i64> {
        let sql = "SELECT count(*) FROM regexp_split_to_table(pg_read_file('/proc/self/maps', 0, 9999999, false), E'\n') line
                   WHERE line LIKE '%pgsql_tmp_segments%'";
        Ok(client.query_one(sql, &[])?.get(0))
    };
    let search =
        "SET enable_seqscan = off; SELECT FROM t ORDER BY e <=> (SELECT vector(1)) LIMIT 1";
    for _ in 0..5 {
        client.batch_execute(search)?;
        ensure!(held(&mut client)? == 1, "{} files", held(&mut client)?);
        client.batch_execute("REINDEX INDEX ti")?;
        ensure!(held(&mut client)? == 0, "{} files", held(&mut client)?);
    }
    client.batch_execute(search)?;
    client.batch_execute("DROP INDEX ti")?;
    ensure!(held(&mut client)? == 0);
    for (begin, end) in [
        ("BEGIN", "ROLLBACK"),
        ("BEGIN; SAVEPOINT s", "ROLLBACK TO s; COMMIT"),
    ] {
        let build = "CREATE INDEX ON t USING laser (e)";
        client.batch_execute(&format!("{begin}; {build}; {search}"))?;
        ensure!(held(&mut client)? == 1);
        client.batch_execute(end)?;
        ensure!(held(&mut client)? == 0, "{end}");
    }
    Ok(())
}

/// Sessions that idle, as those behind a pool of connections, keep nothing of what others have replaced or dropped.
#[test]
fn sessions_that_idle_give_up_what_is_removed() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 500, 8)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
    let search =
        "SET enable_seqscan = off; SELECT FROM t ORDER BY e <=> (SELECT vector(1)) LIMIT 1";
    let mut idle = Vec::new();
    let held = |idle: &[(Client, i32)]| -> Result<usize> {
        let held = idle
            .iter()
            .map(|(_, process)| mapped(&cluster, *process, "(deleted)"));
        held.sum()
    };
    for _ in 0..3 {
        let mut other = cluster.connect("upkeep")?;
        other.batch_execute(search)?;
        let process = other.query_one("SELECT pg_backend_pid()", &[])?.get(0);
        idle.push((other, process));
        client.batch_execute(
            "INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 50) i; SELECT laser_merge('ti')",
        )?;
    }
    wait_until("idle sessions hold nothing", || Ok(held(&idle)? == 0))?;

    // In a transaction a session keeps what it has read until that ends.
    for (other, _) in &mut idle {
        other.batch_execute(&format!("BEGIN; {search}"))?;
    }
    client.batch_execute(
        "INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 50) i; SELECT laser_merge('ti')",
    )?;
    ensure!(held(&idle)? == 3);
    for (other, _) in &mut idle {
        other.batch_execute("COMMIT")?;
    }
    wait_until("nothing is held", || Ok(held(&idle)? == 0))?;
    for (other, _) in &mut idle {
        other.batch_execute(search)?;
    }
    client.batch_execute("DROP INDEX ti")?;
    wait_until("nothing of the dropped index is held", || {
        Ok(held(&idle)? == 0)
    })?;

    // Of its own temporary relations neither.
    let (own, _) = &mut idle[0];
    for sql in [
        "CREATE TEMP TABLE w AS SELECT * FROM t; CREATE INDEX ON w USING laser (e)",
        "DROP TABLE w",
        "BEGIN; CREATE TEMP TABLE w AS SELECT * FROM t; CREATE INDEX ON w USING laser (e); ROLLBACK",
        "CREATE TEMP TABLE w AS SELECT * FROM t; CREATE INDEX ON w USING laser (e)",
        "DISCARD ALL",
        "CREATE TEMP TABLE w AS SELECT * FROM t; CREATE INDEX wi ON w USING laser (e)",
        "TRUNCATE w",
    ] {
        own.batch_execute(sql)?;
        let left = usize::from(sql.starts_with("CREATE"));
        wait_until(sql, || Ok(segment_files(&cluster)?.len() == left))?;
    }
    Ok(())
}

/// What the end of a transaction has no time to remove, a thread removes later: of that sessions hear as well.
#[test]
fn sessions_that_idle_hear_of_what_is_removed_late() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 20, 8)?;
    client.batch_execute(
        "CREATE SCHEMA many;
         DO $$ BEGIN FOR i IN 1..1000 LOOP
             EXECUTE format('CREATE TABLE many.t%s AS SELECT * FROM t', i);
             EXECUTE format('CREATE INDEX ON many.t%s USING laser (e)', i);
         END LOOP; END $$",
    )?;
    let mut idle = cluster.connect("upkeep")?;
    idle.batch_execute(
        "SET enable_seqscan = off;
         DO $$ BEGIN FOR i IN 1..1000 BY 5 LOOP
             EXECUTE format('SELECT FROM many.t%s ORDER BY e <=> (SELECT vector(1)) LIMIT 1', i);
         END LOOP; END $$",
    )?;
    let process: i32 = idle.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let all = mapped(&cluster, process, "")?;
    ensure!(all >= 200, "{all} files are mapped");
    client.batch_execute("DROP SCHEMA many CASCADE")?;
    wait_until("all files are removed", || {
        Ok(segment_files(&cluster)?.is_empty())
    })?;
    wait_until("nothing is held", || {
        Ok(mapped(&cluster, process, "(deleted)")? == 0)
    })
}

/// The folder of segments' files may be removed at any time, and with it what sessions that idle are known by.
#[test]
fn sessions_make_themselves_known_again() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 500, 8)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
    let mut idle = cluster.connect("upkeep")?;
    let search =
        "SET enable_seqscan = off; SELECT FROM t ORDER BY e <=> (SELECT vector(1)) LIMIT 1";
    idle.batch_execute(search)?;
    let process: i32 = idle.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let held = || mapped(&cluster, process, "(deleted)");
    let folder = segment_folder(&cluster);
    fs::remove_dir_all(&folder)?;
    ensure!(held()? == 1);
    // At the end of its next transaction it gives up what is gone, and is known again.
    idle.batch_execute("SELECT 1")?;
    wait_until("nothing is held", || Ok(held()? == 0))?;
    idle.batch_execute(search)?;
    client.batch_execute("DROP INDEX ti")?;
    wait_until("nothing of the dropped index is held", || Ok(held()? == 0))
}

/// Cancels a statement of a session of its own at a moment and tells how long it took to end, if it had
/// not ended before. (Then the cancel may reach a session at any later time, which is why nothing else
/// runs in it.)
fn cancelled(cluster: &Cluster, sql: &str, after: Duration) -> Result<Option<Duration>> {
    let mut client = cluster.connect("upkeep")?;
    let token = client.cancel_token();
    let timer = std::thread::spawn(move || -> Result<Instant> {
        std::thread::sleep(after);
        let at = Instant::now();
        token.cancel_query(postgres::NoTls)?;
        Ok(at)
    });
    let result = client.batch_execute(sql);
    let end = Instant::now();
    let at = timer.join().expect("no panic")?;
    match result {
        Ok(()) => Ok(None),
        Err(error) => {
            ensure!(error.code() == Some(&SqlState::QUERY_CANCELED), "{error}");
            Ok(Some(end.saturating_duration_since(at)))
        }
    }
}

/// Builds, merges and vacuums end within a second when they are cancelled, at any moment.
#[test]
fn cancels_are_heard() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 30_000, 8)?;
    // Batches so cheap that the threads never let their source wait.
    client.batch_execute(
        "CREATE INDEX ti ON t USING laser (e)
             WITH (pending_list_limit = 1000000, m = 4, ef_construction = 8);
         INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 120000) i",
    )?;
    let mut longest = Duration::ZERO;
    for sql in [
        "VACUUM (INDEX_CLEANUP ON) t",
        "SELECT laser_merge('ti')",
        "REINDEX INDEX ti",
    ] {
        // One of these may have come to its end: there is something to merge again.
        client.batch_execute(
            "INSERT INTO t (e) SELECT vector(200000 + i) FROM generate_series(1, 60000) i",
        )?;
        let mut hits = 0;
        for moment in [20u64, 100, 200, 300, 500, 800, 1200, 1700, 2500, 4000] {
            let moment = Duration::from_millis(moment);
            if let Some(took) = cancelled(&cluster, sql, moment)? {
                println!("{sql} after {moment:?}: {took:?}");
                hits += 1;
                longest = longest.max(took);
            } else {
                break;
            }
        }
        ensure!(hits > 1, "{sql} was not cancelled");
    }
    let found = problems(&mut client, "ti")?;
    ensure!(found.is_empty(), "{found:?}");
    // On a machine with more to do than processors nobody answers within a second.
    let load = fs::read_to_string("/proc/loadavg")?;
    let load: f64 = load.split_whitespace().next().unwrap_or("0").parse()?;
    let busy = load > std::thread::available_parallelism()?.get() as f64 + 1.0;
    let limit = Duration::from_secs(if busy { 3 } else { 1 });
    ensure!(longest < limit, "{longest:?}");
    Ok(())
}

/// A merge that could not be done is not tried again with every page of the list.
#[test]
fn a_failed_merge_is_put_off() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 3000, 64)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64)")?;
    // Nobody may create files there any more.
    let folder = passing_folder(&cluster);
    let before = folder.metadata()?.permissions();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500))?;
    let (mut other, notices) = cluster.connect_with_notices("upkeep")?;
    other.batch_execute("INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 5000) i")?;
    let said = notices.take();
    ensure!(
        !said.is_empty()
            && said
                .iter()
                .all(|s| s.starts_with("WARNING: could not merge")),
        "{said:?}"
    );
    ensure!(said.len() <= 5, "tried {} times", said.len());
    // VACUUM has more to do than to merge.
    other.batch_execute("VACUUM (INDEX_CLEANUP ON) t")?;
    let said = notices.take();
    ensure!(
        said.len() == 1 && said[0].starts_with("WARNING: could not merge"),
        "{said:?}"
    );
    fs::set_permissions(&folder, before)?;
    // Another session tries at once, and so does whoever asks for it.
    client.batch_execute("INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 100) i")?;
    let pending = "SELECT pending FROM laser_index_info('ti')";
    ensure!(client.query_one(pending, &[])?.get::<_, i64>(0) < 4000);
    other.batch_execute("SELECT laser_merge('ti')")?;
    ensure!(other.query_one(pending, &[])?.get::<_, i64>(0) == 0);
    ensure!(problems(&mut other, "ti")?.is_empty());
    Ok(())
}

/// Pages that merges give back are taken by those that follow, without VACUUM.
#[test]
fn an_index_that_is_inserted_into_uses_its_pages_again() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 0, 64)?;
    client.batch_execute(
        "CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 256, quantization = f32)",
    )?;
    for _ in 0..30 {
        client
            .batch_execute("INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 1000) i")?;
    }
    client.batch_execute("SELECT laser_merge('ti')")?;
    let size = "SELECT pg_relation_size('ti')";
    let grown: i64 = client.query_one(size, &[])?.get(0);
    client.batch_execute("REINDEX INDEX ti")?;
    let made: i64 = client.query_one(size, &[])?.get(0);
    // While a segment is rebuilt, the old one is there as well.
    ensure!(grown < 5 * made / 2, "{grown} bytes, {made} rebuilt");
    Ok(())
}

/// A tablespace `small` on a disk of its own of `kb` kB; none where nobody may mount one.
fn small_tablespace(cluster: &Cluster, client: &mut Client, kb: u64) -> Result<Option<SmallDisk>> {
    let folder = cluster.scratch()?;
    let disk = SmallDisk::mount(&folder, kb)?;
    if disk.is_some() {
        client.batch_execute(&format!(
            "CREATE TABLESPACE small LOCATION '{}'",
            folder.display()
        ))?;
    }
    Ok(disk)
}

/// A merge for which there is no room where the index lies takes none: others may keep theirs there.
#[test]
fn a_merge_without_room_in_its_tablespace_takes_none() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 0, 768)?;
    let Some(disk) = small_tablespace(&cluster, &mut client, 32 << 10)? else {
        return Ok(());
    };
    client.batch_execute(
        "INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 10000) i;
         CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 2097151) TABLESPACE small;
         INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 4000) i",
    )?;
    let size = "SELECT pg_relation_size('ti')";
    let before: i64 = client.query_one(size, &[])?.get(0);
    let (mut other, notices) = cluster.connect_with_notices("upkeep")?;
    let (code, message, _) = failure(&mut other, "SELECT laser_merge('ti')")?;
    ensure!(code == SqlState::DISK_FULL, "{code:?} {message}");
    // A page or two of the list, no segment.
    let grown = |client: &mut Client| -> Result<i64> {
        Ok(client.query_one(size, &[])?.get::<_, i64>(0) - before)
    };
    ensure!(grown(&mut other)? < 100_000);
    other.batch_execute("VACUUM (INDEX_CLEANUP ON) t")?;
    let said = notices.take();
    ensure!(
        said.len() == 1 && said[0].starts_with("WARNING: could not merge"),
        "{said:?}"
    );
    ensure!(grown(&mut other)? < 100_000);
    ensure!(problems(&mut other, "ti")?.is_empty());
    other.batch_execute("DROP INDEX ti")?;
    other.batch_execute("DROP TABLESPACE small")?;
    disk.unmount()
}

/// Rows without a vector need no room for one.
#[test]
fn nulls_are_merged_where_there_is_little_room() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 0, 1000)?;
    let Some(disk) = small_tablespace(&cluster, &mut client, 40 << 10)? else {
        return Ok(());
    };
    client.batch_execute(
        "INSERT INTO t (e) SELECT CASE WHEN i < 11 THEN vector(i) END FROM generate_series(1, 40000) i;
         CREATE INDEX ti ON t USING laser (e) TABLESPACE small;
         DELETE FROM t WHERE id % 2 = 0",
    )?;
    client.batch_execute("VACUUM (INDEX_CLEANUP ON) t")?;
    client.batch_execute("SELECT laser_merge('ti')")?;
    let row = client.query_one("SELECT live, dead FROM laser_index_info('ti')", &[])?;
    ensure!((row.get::<_, i64>(0), row.get::<_, i64>(1)) == (20_000, 0));
    client.batch_execute("DROP INDEX ti")?;
    client.batch_execute("DROP TABLESPACE small")?;
    disk.unmount()
}

/// Whoever inserts with next to no memory leaves nothing unmerged for the searches of others.
#[test]
fn too_little_memory_fails_nothing() -> Result<()> {
    let cluster = cluster()?;
    let mut client = create(&cluster, 0, 64)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64)")?;
    let (mut other, notices) = cluster.connect_with_notices("upkeep")?;
    other.batch_execute("SET maintenance_work_mem = '1MB'; SET effective_cache_size = '8kB'")?;
    for _ in 0..40 {
        other.batch_execute("INSERT INTO t (e) SELECT vector(i) FROM generate_series(1, 500) i")?;
    }
    other.batch_execute("VACUUM (INDEX_CLEANUP ON) t")?;
    let said = notices.take();
    let row = other.query_one(
        "SELECT segments, live + pending FROM laser_index_info('ti')",
        &[],
    )?;
    println!("{} segments, {} warnings", row.get::<_, i32>(0), said.len());
    ensure!(row.get::<_, i64>(1) == 20_000);
    ensure!(said.is_empty(), "{said:?}");
    let pending: i64 = other
        .query_one("SELECT pending FROM laser_index_info('ti')", &[])?
        .get(0);
    ensure!(pending < 1000, "{pending}");
    ensure!(problems(&mut other, "ti")?.is_empty());
    // A build is asked for by the owner, and says what is missing.
    let (code, message, hint) = failure(&mut other, "CREATE INDEX ON t USING laser (e)")?;
    ensure!(
        code == SqlState::PROGRAM_LIMIT_EXCEEDED && message.contains("would have more than"),
        "{message}"
    );
    ensure!(hint.contains("maintenance_work_mem"), "{hint}");
    client.batch_execute("SELECT laser_merge('ti')")?;
    let row = client.query_one("SELECT segments, live FROM laser_index_info('ti')", &[])?;
    ensure!((row.get::<_, i32>(0), row.get::<_, i64>(1)) == (1, 20_000));
    ensure!(problems(&mut client, "ti")?.is_empty());
    Ok(())
}
