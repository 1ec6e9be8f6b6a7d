//! What the disk can do to an index: other formats, damage, no room. Errors name the problem and
//! what to do, nothing that is committed is lost, and REINDEX mends.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, ensure};
use laser_tests::model::Model;
use laser_tests::{
    Cluster, SmallDisk, failure, passing_folder, segment_files, segment_folder, wait_until,
};
use postgres::Client;
use postgres::error::SqlState;

/// Bytes of a page, and of PostgreSQL's header in front of what laser writes.
const PAGE: u64 = 8192;
const HEADER: u64 = 24;
/// Where the metapage's checksum is, see `crates/index/src/meta.rs`.
const META_SUM: u64 = HEADER + 24 + 68;
/// Page types, see `crates/index/src/page.rs`.
const DATA: u16 = 4;
const BITMAP: u16 = 5;
const PENDING: u16 = 6;

const NEAR: &str = "SELECT id FROM t ORDER BY e <=> (SELECT vector(7)) LIMIT 1";

fn create(cluster: &Cluster, rows: i32) -> Result<Client> {
    let mut client = cluster.database("damage")?;
    client.batch_execute(&format!(
        "CREATE FUNCTION vector(i int) RETURNS embedding LANGUAGE sql IMMUTABLE
         RETURN (SELECT array_agg(sin(i * (j * j + 0.37)))::real[]::embedding FROM generate_series(1, 16) j);
         CREATE TABLE t (id integer, e embedding(16)) WITH (autovacuum_enabled = off);
         INSERT INTO t SELECT i, vector(i) FROM generate_series(1, {rows}) i;
         ALTER DATABASE damage SET enable_seqscan = off;
         ALTER DATABASE damage SET enable_sort = off;
         SET enable_seqscan = off; SET enable_sort = off"
    ))?;
    Ok(client)
}

/// Runs statements that do not work within a transaction, one by one.
fn run(client: &mut Client, statements: &[&str]) -> Result<()> {
    for sql in statements {
        client.batch_execute(sql).with_context(|| sql.to_string())?;
    }
    Ok(())
}

fn problems(client: &mut Client) -> Result<Vec<String>> {
    let rows = client.query("SELECT laser_index_check('ti')", &[])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

fn nearest(client: &mut Client) -> Result<i32> {
    Ok(client.query_one(NEAR, &[])?.get(0))
}

/// The file of the index, once the server is stopped and has written it. Those of its segments, which spare searches its pages,
/// are removed.
fn stop(cluster: &mut Cluster) -> Result<PathBuf> {
    let path = cluster.psql("damage", "SELECT pg_relation_filepath('ti')")?;
    cluster.stop("fast")?;
    let _ = fs::remove_dir_all(segment_folder(cluster));
    Ok(cluster.data().join(path))
}

/// Inverts a byte at a place of the body of every page of a type, or of page 0. Returns how many.
fn damage(file: &Path, kind: Option<u16>, at: u64) -> Result<usize> {
    let pages = file.metadata()?.len() / PAGE;
    let file = OpenOptions::new().read(true).write(true).open(file)?;
    let mut hit = 0;
    for page in 0..pages {
        let mut found = [0; 2];
        file.read_exact_at(&mut found, page * PAGE + HEADER + 6)?;
        let wanted = match kind {
            Some(kind) => u16::from_le_bytes(found) == kind,
            None => page == 0,
        };
        if wanted {
            let mut byte = [0];
            file.read_exact_at(&mut byte, page * PAGE + HEADER + at)?;
            file.write_all_at(&[!byte[0]], page * PAGE + HEADER + at)?;
            hit += 1;
        }
    }
    Ok(hit)
}

#[test]
fn another_format_is_refused() -> Result<()> {
    let mut cluster = Cluster::builder().preload(false).start()?;
    let mut client = create(&cluster, 2000)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
    drop(client);
    let file = stop(&mut cluster)?;
    // The version, in the header that all pages have.
    ensure!(damage(&file, None, 4)? == 1);
    cluster.start()?;
    let mut client = cluster.connect("damage")?;
    client.batch_execute("DELETE FROM t WHERE id = 1")?;
    for sql in [
        NEAR,
        "INSERT INTO t SELECT 0, vector(0)",
        "SELECT * FROM laser_index_info('ti')",
        "SELECT laser_index_check('ti')",
        "SELECT laser_merge('ti')",
        "VACUUM (INDEX_CLEANUP ON) t",
    ] {
        let (code, message, hint) = failure(&mut client, sql)?;
        ensure!(code == SqlState::FEATURE_NOT_SUPPORTED, "{sql}: {message}");
        ensure!(
            message == "the index has format version 253, this laser reads version 2",
            "{sql}: {message}"
        );
        ensure!(hint.starts_with("Rebuild the index with REINDEX"), "{hint}");
    }
    // Plans are made all the same, and the table is as it was.
    client.batch_execute(&format!("EXPLAIN {NEAR}"))?;
    let count = client.query_one("SELECT count(*) FROM t WHERE id > 1", &[])?;
    ensure!(count.get::<_, i64>(0) == 1999);
    client.batch_execute("REINDEX INDEX ti")?;
    ensure!(nearest(&mut client)? == 7);
    ensure!(problems(&mut client)?.is_empty());
    Ok(())
}

#[test]
fn damaged_pages_are_named() -> Result<()> {
    let mut cluster = Cluster::builder().preload(false).start()?;
    let mut client = create(&cluster, 2000)?;
    client.batch_execute(
        "CREATE INDEX ti ON t USING laser (e);
         INSERT INTO t SELECT i, vector(i) FROM generate_series(2001, 2010) i",
    )?;
    drop(client);

    // A segment: searches fail, inserts do not.
    let file = stop(&mut cluster)?;
    ensure!(damage(&file, Some(DATA), 4000)? > 10);
    cluster.start()?;
    let mut client = cluster.connect("damage")?;
    let (code, message, hint) = failure(&mut client, NEAR)?;
    ensure!(code == SqlState::INDEX_CORRUPTED, "{message}");
    ensure!(message.contains("is damaged: checksum of the"), "{message}");
    ensure!(
        hint.contains("The table is not affected") && hint.contains("REINDEX"),
        "{hint}"
    );
    client.batch_execute("INSERT INTO t SELECT 2011, vector(2011)")?;
    let found = problems(&mut client)?;
    ensure!(
        found.iter().any(|p| p.contains("checksum of the")),
        "{found:?}"
    );
    client.batch_execute("REINDEX INDEX ti")?;
    ensure!(problems(&mut client)?.is_empty());
    ensure!(nearest(&mut client)? == 7);

    // A bit that says of a row that it is dead: searches read it where there is such a row.
    client.batch_execute("DELETE FROM t WHERE id = 1500")?;
    client.batch_execute("VACUUM (INDEX_CLEANUP ON) t")?;
    drop(client);
    let file = stop(&mut cluster)?;
    ensure!(damage(&file, Some(BITMAP), 24)? == 1);
    cluster.start()?;
    let mut client = cluster.connect("damage")?;
    client.batch_execute("DELETE FROM t WHERE id = 2011")?;
    for sql in [NEAR, "VACUUM (INDEX_CLEANUP ON) t"] {
        let (code, message, _) = failure(&mut client, sql)?;
        ensure!(code == SqlState::INDEX_CORRUPTED, "{message}");
        ensure!(message.ends_with("checksum of a bitmap page"), "{message}");
    }
    ensure!(!problems(&mut client)?.is_empty());
    client.batch_execute("REINDEX INDEX ti")?;
    ensure!(problems(&mut client)?.is_empty());
    ensure!(nearest(&mut client)? == 7);

    // The pending list: nothing works but the table and REINDEX. First a vector of it.
    client.batch_execute("INSERT INTO t SELECT 2012, vector(2012)")?;
    drop(client);
    let file = stop(&mut cluster)?;
    ensure!(damage(&file, Some(PENDING), 24 + 16 + 8)? == 1);
    cluster.start()?;
    let mut client = cluster.connect("damage")?;
    for sql in [NEAR, "INSERT INTO t SELECT 2013, vector(2013)", "VACUUM t"] {
        let (code, message, _) = failure(&mut client, sql)?;
        ensure!(code == SqlState::INDEX_CORRUPTED, "{message}");
        ensure!(message.ends_with("checksum of a pending page"), "{message}");
    }
    ensure!(!problems(&mut client)?.is_empty());
    client.batch_execute("REINDEX INDEX ti; INSERT INTO t SELECT 2013, vector(2013)")?;
    ensure!(problems(&mut client)?.is_empty());
    drop(client);
    let file = stop(&mut cluster)?;
    // The number of entries, behind the page's header and the link to the next page.
    ensure!(damage(&file, Some(PENDING), 28)? == 1);
    cluster.start()?;
    let mut client = cluster.connect("damage")?;
    for sql in [NEAR, "INSERT INTO t SELECT 2013, vector(2013)"] {
        let (code, message, _) = failure(&mut client, sql)?;
        ensure!(code == SqlState::INDEX_CORRUPTED, "{message}");
        ensure!(
            message.ends_with("is damaged: pending page does not fit its count"),
            "{message}"
        );
    }
    let found = problems(&mut client)?;
    ensure!(
        found.iter().any(|p| p.contains("does not fit")),
        "{found:?}"
    );
    client.batch_execute("REINDEX INDEX ti; INSERT INTO t SELECT 2013, vector(2013)")?;
    ensure!(problems(&mut client)?.is_empty());
    ensure!(nearest(&mut client)? == 7);
    drop(client);

    // The type of the column, of which the metapage has a number: embedding for halfembedding. So it is noticed at all
    // only where an earlier library has written the page, which has no checksum then.
    let file = stop(&mut cluster)?;
    let pages = OpenOptions::new().read(true).write(true).open(file)?;
    let (mut byte, at) = ([0], HEADER + 33);
    pages.read_exact_at(&mut byte, at)?;
    pages.write_all_at(&[byte[0] ^ 1], at)?;
    cluster.start()?;
    let mut client = cluster.connect("damage")?;
    let (code, message, _) = failure(&mut client, NEAR)?;
    ensure!(code == SqlState::INDEX_CORRUPTED, "{message}");
    ensure!(message.ends_with("checksum of the metapage"), "{message}");
    drop(client);
    stop(&mut cluster)?;
    pages.write_all_at(&[0; 4], META_SUM)?;
    cluster.start()?;
    let mut client = cluster.connect("damage")?;
    let found = problems(&mut client)?;
    ensure!(
        found
            .iter()
            .any(|p| p.contains("does not say that the column")),
        "{found:?}"
    );
    client.batch_execute("REINDEX INDEX ti")?;
    ensure!(problems(&mut client)?.is_empty());
    drop(client);

    // With checksums the server notices first.
    cluster.enable_checksums()?;
    let file = stop(&mut cluster)?;
    ensure!(damage(&file, Some(DATA), 4000)? > 10);
    cluster.start()?;
    let mut client = cluster.connect("damage")?;
    for sql in [NEAR, "SELECT laser_index_check('ti')"] {
        let (code, message, _) = failure(&mut client, sql)?;
        ensure!(code == SqlState::DATA_CORRUPTED, "{message}");
        ensure!(message.starts_with("invalid page in block"), "{message}");
    }
    client.batch_execute("REINDEX INDEX ti")?;
    ensure!(problems(&mut client)?.is_empty());
    ensure!(nearest(&mut client)? == 7);
    Ok(())
}

/// What is wrong in a file that need not be verified, for it was lately and says so still, shows in rows that cannot be: the
/// error names the file, which is then made again.
#[test]
fn a_damaged_file_is_named_and_made_again() -> Result<()> {
    let cluster = Cluster::builder().start()?;
    let mut client = create(&cluster, 2000)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
    let addresses: Vec<i64> = client
        .query(
            "SELECT ((ctid::text::point)[0] * 65536 + (ctid::text::point)[1])::bigint FROM t",
            &[],
        )?
        .iter()
        .map(|row| row.get(0))
        .collect();
    let mut witness = cluster.connect("damage")?;
    // Rows of blocks that the table does not have; the nearest row in the places of all others.
    let several = NEAR.replace("LIMIT 1", "LIMIT 5");
    for wrong in [100_000 << 16 | 1, addresses[6]] {
        ensure!(nearest(&mut client)? == 7);
        let [(path, _)] = &segment_files(&cluster)?[..] else {
            anyhow::bail!("one segment has one file");
        };
        let changed = path.metadata()?.modified()?;
        // The section of addresses: many in a row.
        let bytes = fs::read(path)?;
        let is_address = |word: &[u8]| {
            addresses.contains(&i64::from_le_bytes(word.try_into().expect("eight bytes")))
        };
        let words: Vec<bool> = bytes.chunks_exact(8).map(is_address).collect();
        let first = words
            .windows(1000)
            .position(|words| words.iter().all(|word| *word));
        let first = first.context("the addresses")?;
        let file = OpenOptions::new().write(true).open(path)?;
        for place in first..first + 2000 {
            file.write_all_at(&wrong.to_le_bytes(), 8 * place as u64)?;
        }
        file.set_modified(changed)?;
        let mut other = cluster.connect("damage")?;
        let (code, message, hint) = failure(&mut other, &several)?;
        ensure!(
            code == SqlState::INDEX_CORRUPTED
                && message.contains("is damaged")
                && hint.contains("again"),
            "{code:?} {message} {hint}"
        );
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        ensure!(
            message.contains(name) && message.contains("\"ti\""),
            "{message}"
        );
        ensure!(nearest(&mut other)? == 7);
        ensure!(problems(&mut other)?.is_empty());
        // Who has the damaged file open hears of it, and searches the new one.
        wait_until("others give it up", || {
            Ok(nearest(&mut witness).is_ok_and(|id| id == 7))
        })?;
        drop(client);
        client = cluster.connect("damage")?;
    }
    Ok(())
}

/// A file that the disk cannot read any more costs a restart of the server, not each search one.
#[test]
fn a_file_that_cannot_be_read_is_met_once() -> Result<()> {
    let mut cluster = Cluster::builder().start()?;
    let bus_error = "was terminated by signal 7";
    cluster.expect_fault(bus_error);
    let mut client = create(&cluster, 3000)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e)")?;
    ensure!(nearest(&mut client)? == 7);
    // One that the build has made, and one that the search has.
    for round in 1..3 {
        let [(path, _)] = &segment_files(&cluster)?[..] else {
            anyhow::bail!("one segment has one file");
        };
        // To whoever has it mapped, what was cut off is what cannot be read.
        OpenOptions::new().write(true).open(path)?.set_len(PAGE)?;
        ensure!(nearest(&mut client).is_err());
        wait_until("the file is removed", || Ok(!path.exists()))?;
        // Who connects before that is ended by it.
        wait_until("the crash is known", || {
            Ok(cluster.log().matches(bus_error).count() == round)
        })?;
        wait_until("the server is back", || {
            let Ok(mut back) = cluster.connect("damage") else {
                return Ok(false);
            };
            let is_found = nearest(&mut back).is_ok_and(|id| id == 7);
            client = back;
            Ok(is_found)
        })?;
    }
    Ok(())
}

/// An unlogged index without pages is empty after a crash alone; one that has lost them, or that is being built, is not
/// taken for such.
#[test]
fn an_unlogged_index_does_not_begin_anew_unasked() -> Result<()> {
    let mut cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("damage")?;
    client.batch_execute(
        "CREATE UNLOGGED TABLE t (id int, v embedding(2)); INSERT INTO t SELECT i, ARRAY[1, i] FROM generate_series(1, 500) i;
         CREATE INDEX ti ON t USING laser (v)",
    )?;
    // While CREATE INDEX CONCURRENTLY waits for another transaction.
    let mut other = cluster.connect("damage")?;
    other.batch_execute("BEGIN; UPDATE t SET id = id WHERE id = 1")?;
    let mut maker = cluster.connect("damage")?;
    let making = thread::spawn(move || {
        maker.batch_execute("CREATE INDEX CONCURRENTLY tj ON t USING laser (v)")
    });
    wait_until("the index is there", || {
        let index = client.query_one("SELECT to_regclass('tj') IS NOT NULL", &[])?;
        Ok(index.get(0))
    })?;
    for call in ["laser_merge('tj')", "laser_index_recall('tj', 1, 10)"] {
        let (code, message, hint) = failure(&mut client, &format!("SELECT {call}"))?;
        ensure!(
            code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            "{call}: {message}"
        );
        ensure!(
            message.starts_with("index \"tj\" is not ") && hint.contains("being built"),
            "{call}: {message}: {hint}"
        );
    }
    other.batch_execute("COMMIT")?;
    making.join().expect("it does not panic")?;

    let file = client.query_one("SELECT pg_relation_filepath('ti')", &[])?;
    let file = cluster.data().join(file.get::<_, &str>(0));
    drop((client, other));
    cluster.stop("fast")?;
    fs::write(&file, [])?;
    cluster.start()?;
    let mut client = cluster.connect("damage")?;
    client.batch_execute("SET enable_seqscan = off; DROP INDEX tj")?;
    let search = "SELECT id FROM t ORDER BY v <=> '[1,2]' LIMIT 10";
    for sql in [search, "INSERT INTO t VALUES (0, '[1,2]')"] {
        let (code, message, hint) = failure(&mut client, sql)?;
        ensure!(code == SqlState::WRONG_OBJECT_TYPE, "{sql}: {message}");
        ensure!(
            message == "the relation is not a laser index" && hint.contains("REINDEX"),
            "{sql}: {message}: {hint}"
        );
    }
    client.batch_execute("REINDEX INDEX ti")?;
    ensure!(client.query(search, &[])?.len() == 10);
    Ok(())
}

/// A damaged metapage may name one page twice. A session that waits for a lock of its own cannot be
/// cancelled, nor can whoever waits for the metapage that it holds.
#[test]
fn pages_named_twice_do_not_hang() -> Result<()> {
    let mut cluster = Cluster::builder().preload(false).start()?;
    let mut client = create(&cluster, 10)?;
    client.batch_execute(
        "TRUNCATE t;
         CREATE INDEX ti ON t USING laser (e);
         INSERT INTO t SELECT i, vector(i) FROM generate_series(1, 10) i",
    )?;
    drop(client);
    let file = stop(&mut cluster)?;
    let mut pages = std::fs::read(&file)?;
    // The list of one page: its first and last number, first and last block (`meta::Pending`).
    let ends = |block: u32| {
        let numbers = [1u64; 2].map(u64::to_le_bytes).concat();
        [numbers, [block; 2].map(u32::to_le_bytes).concat()].concat()
    };
    let blocks = pages.len() as u32 / PAGE as u32;
    let found = (1..blocks).find_map(|block| {
        let wanted = ends(block);
        let at = pages[..PAGE as usize]
            .windows(wanted.len())
            .position(|bytes| bytes == wanted)?;
        Some(at + wanted.len() - 4)
    });
    // The last page is the metapage.
    let at = found.context("the pending list is not on the metapage")?;
    pages[at..at + 4].fill(0);
    pages[META_SUM as usize..][..4].fill(0);
    std::fs::write(&file, pages)?;
    cluster.start()?;

    for sql in [
        "INSERT INTO t SELECT 11, vector(11)",
        "SELECT laser_merge('ti')",
    ] {
        let mut client = cluster.connect("damage")?;
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(failure(&mut client, sql)));
        let (code, message, _) = receiver
            .recv_timeout(std::time::Duration::from_secs(60))
            .with_context(|| format!("{sql} hangs"))??;
        ensure!(code == SqlState::INDEX_CORRUPTED, "{sql}: {message}");
    }
    let mut client = cluster.connect("damage")?;
    client.batch_execute("REINDEX INDEX ti")?;
    ensure!(nearest(&mut client)? == 7);
    Ok(())
}

/// A text index refuses to compare embeddings of another model than its own.
#[test]
fn another_model_is_refused() -> Result<()> {
    let models = tempfile::tempdir()?;
    let model = Model::tiny("tiny", 32);
    model.write(models.path())?;
    let cluster = Cluster::builder().models(models.path(), "tiny").start()?;
    let mut client = cluster.database("damage")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, body text);
         INSERT INTO t SELECT i, 'sentence ' || md5(i::text) FROM generate_series(1, 300) i;
         CREATE INDEX ti ON t USING laser (body);
         SET enable_seqscan = off",
    )?;
    let near = "SELECT id FROM t ORDER BY body <=> ('sentence ' || md5('7')) LIMIT 1";
    ensure!(client.query_one(near, &[])?.get::<_, i32>(0) == 7);

    Model { seed: 2, ..model }.write(models.path())?;
    cluster.reload();
    wait_until("the model's change is noticed", || {
        Ok(client.batch_execute(near).is_err())
    })?;
    for sql in [near, "INSERT INTO t VALUES (0, 'one more')"] {
        let (code, message, hint) = failure(&mut client, sql)?;
        ensure!(
            code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            "{message}"
        );
        ensure!(
            message == "model \"tiny\" is not the one that the index was built with",
            "{message}"
        );
        ensure!(hint.contains("REINDEX"), "{hint}");
    }
    // What needs no model works.
    let delete = "DELETE FROM t WHERE id = 300";
    run(&mut client, &[delete, "VACUUM (INDEX_CLEANUP ON) t"])?;
    ensure!(problems(&mut client)?.is_empty());
    client.batch_execute("REINDEX INDEX ti; INSERT INTO t VALUES (0, 'one more')")?;
    ensure!(client.query_one(near, &[])?.get::<_, i32>(0) == 7);
    ensure!(problems(&mut client)?.is_empty());
    Ok(())
}

/// No room where the index is: what does not fit is an error, what was there stays, and room that
/// VACUUM makes is used again.
#[test]
fn a_full_tablespace() -> Result<()> {
    let cluster = Cluster::builder()
        .preload(false)
        .setting("laser.background_maintenance", "off")
        .start()?;
    let place = cluster.scratch()?.join("space");
    cluster.run("/bin/mkdir", &[&place.display().to_string()])?;
    let Some(disk) = SmallDisk::mount(&place, 1024)? else {
        return Ok(());
    };
    let mut client = create(&cluster, 10_000)?;
    let location = format!("CREATE TABLESPACE space LOCATION '{}'", place.display());
    client.batch_execute(&location)?;
    let build =
        "CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64) TABLESPACE space";
    let (code, message, _) = failure(&mut client, build)?;
    ensure!(code == SqlState::DISK_FULL, "{message}");
    ensure!(
        segment_files(&cluster)?.is_empty(),
        "files are left behind by a build that failed"
    );

    let delete = "DELETE FROM t WHERE id > 1500";
    run(&mut client, &[delete, "VACUUM t", "CHECKPOINT", build])?;
    let many = "INSERT INTO t SELECT i, vector(i) FROM generate_series(20001, 40000) i";
    for _ in 0..3 {
        let (code, message, _) = failure(&mut client, many)?;
        ensure!(code == SqlState::DISK_FULL, "{message}");
        ensure!(problems(&mut client)?.is_empty());
        ensure!(nearest(&mut client)? == 7);
    }
    let reached = "SELECT count(*) FROM t q
        WHERE q.id = (SELECT id FROM t ORDER BY t.e <=> q.e LIMIT 1)";
    let count: i64 = client.query_one(reached, &[])?.get(0);
    ensure!(count >= 1495, "{count} of 1500 are reached");

    // What the failed inserts have left makes room for others.
    let insert = "INSERT INTO t SELECT i, vector(i) FROM generate_series(2001, 2500) i";
    run(&mut client, &["VACUUM (INDEX_CLEANUP ON) t", insert])?;
    ensure!(problems(&mut client)?.is_empty());
    let drop = ["DROP TABLE t", "CHECKPOINT", "DROP TABLESPACE space"];
    run(&mut client, &drop)?;
    disk.unmount()
}

/// No room for files of segments: searches do without, merges wait until there is room.
#[test]
fn a_full_cache() -> Result<()> {
    let cluster = Cluster::builder()
        .preload(false)
        .setting("laser.background_maintenance", "off")
        .start()?;
    let mut client = create(&cluster, 3000)?;
    client.batch_execute("CREATE INDEX ti ON t USING laser (e) WITH (pending_list_limit = 64)")?;
    let folder = passing_folder(&cluster);
    let Some(disk) = SmallDisk::mount(&folder, 64)? else {
        return Ok(());
    };
    let (mut client, notices) = cluster.connect_with_notices("damage")?;
    ensure!(nearest(&mut client)? == 7);
    client.batch_execute("INSERT INTO t SELECT i, vector(i) FROM generate_series(3001, 6000) i")?;
    let warnings = notices.take();
    ensure!(
        warnings.iter().any(|warning| warning
            .starts_with("WARNING: could not merge the pending list of a laser index")),
        "{warnings:?}"
    );
    for sql in [
        "SELECT laser_merge('ti')",
        "REINDEX INDEX ti",
        "CREATE INDEX ON t USING laser (e)",
    ] {
        let (code, message, _) = failure(&mut client, sql)?;
        ensure!(code == SqlState::DISK_FULL, "{sql}: {message}");
        let files = segment_files(&cluster)?;
        let mut left = files.iter().filter(|(path, _)| path.starts_with(&folder));
        ensure!(left.next().is_none(), "{sql} leaves {files:?}");
    }
    ensure!(nearest(&mut client)? == 7);
    ensure!(problems(&mut client)?.is_empty());

    disk.unmount()?;
    client.batch_execute("SELECT laser_merge('ti')")?;
    ensure!(nearest(&mut client)? == 7);
    ensure!(problems(&mut client)?.is_empty());
    let row = client.query_one("SELECT live, pending FROM laser_index_info('ti')", &[])?;
    ensure!((row.get::<_, i64>(0), row.get::<_, i64>(1)) == (6000, 0));
    Ok(())
}
