//! Mining through SQL: against an independent implementation, in small memory, incrementally,
//! cancelled, without rights, without disk.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use laser_tests::model::Model;
use laser_tests::{Cluster, failure, skipped, wait_until};
use postgres::error::SqlState;
use postgres::{Client, NoTls};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Lists = Vec<Vec<(usize, f64)>>;
type Pairs = Vec<(i64, i64, f64)>;

const MARGINS: [&str; 3] = ["absolute", "distance", "ratio"];
const RETRIEVALS: [&str; 4] = ["forward", "backward", "max", "intersect"];

/// Ids and embeddings that a query returns, by id.
fn fetch(client: &mut Client, sql: &str) -> Result<Vec<(i64, Vec<f32>)>> {
    let sql = format!("SELECT q.id::bigint, q.e::real[] FROM ({sql}) q (id, e) ORDER BY 1");
    Ok(client
        .query(&sql, &[])?
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect())
}

/// Neighbours by the definition, in `f64`; cosines are multiples of 2^-40.
fn neighbours(x: &[(i64, Vec<f32>)], y: &[(i64, Vec<f32>)], k: usize) -> Lists {
    let unit = |row: &(i64, Vec<f32>)| -> Vec<f64> {
        let norm = row
            .1
            .iter()
            .map(|&v| f64::from(v).powi(2))
            .sum::<f64>()
            .sqrt();
        row.1.iter().map(|&v| f64::from(v) / norm).collect()
    };
    let y: Vec<_> = y.iter().map(unit).collect();
    x.iter()
        .map(|row| {
            let row = unit(row);
            let mut list: Vec<(usize, f64)> = (y.iter().enumerate())
                .map(|(at, other)| {
                    let cosine: f64 = row.iter().zip(other).map(|(a, b)| a * b).sum();
                    (at, (cosine * 2f64.powi(40)).round() / 2f64.powi(40))
                })
                .collect();
            list.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            list.truncate(k);
            list
        })
        .collect()
}

fn mean(list: &[(usize, f64)]) -> f64 {
    list.iter().map(|entry| entry.1).sum::<f64>() / list.len() as f64
}

/// Pairs by the definition.
fn reference(
    x: &[(i64, Vec<f32>)],
    y: &[(i64, Vec<f32>)],
    (forward, backward): (&Lists, &Lists),
    margin: &str,
    retrieval: &str,
    threshold: f64,
) -> Pairs {
    let best = |near: &Lists, far: &Lists| -> Vec<(usize, f64)> {
        near.iter()
            .map(|list| {
                let scores = list.iter().map(|&(other, cosine)| {
                    let around = (mean(list) + mean(&far[other])) / 2.0;
                    let score = match margin {
                        "absolute" => cosine,
                        "distance" => cosine - around,
                        _ => cosine / around,
                    };
                    (other, score)
                });
                scores.reduce(|a, b| match b.1.total_cmp(&a.1) {
                    std::cmp::Ordering::Greater => b,
                    std::cmp::Ordering::Equal if b.0 < a.0 => b,
                    _ => a,
                })
            })
            .map(|best| best.expect("a neighbour"))
            .collect()
    };
    let (fwd, bwd) = (best(forward, backward), best(backward, forward));
    let f = fwd
        .iter()
        .enumerate()
        .map(|(s, &(t, score))| (x[s].0, y[t].0, score));
    let b = bwd
        .iter()
        .enumerate()
        .map(|(t, &(s, score))| (x[s].0, y[t].0, score));
    let sort = |mut pairs: Pairs| {
        pairs.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
        pairs
    };
    let mut pairs = match retrieval {
        "forward" => sort(f.collect()),
        "backward" => sort(b.collect()),
        "max" => {
            let (mut sources, mut targets) = (HashSet::new(), HashSet::new());
            let mut pairs = sort(f.chain(b).collect());
            pairs.retain(|&(s, t, _)| {
                let free = !sources.contains(&s) && !targets.contains(&t);
                if free {
                    sources.insert(s);
                    targets.insert(t);
                }
                free
            });
            pairs
        }
        _ => {
            let back: HashSet<(i64, i64)> = b.map(|(s, t, _)| (s, t)).collect();
            sort(f.filter(|&(s, t, _)| back.contains(&(s, t))).collect())
        }
    };
    pairs.retain(|pair| pair.2 > threshold);
    pairs
}

fn agrees(client: &mut Client, source: &str, target: &str) -> Result<()> {
    // Texts are fetched as their embeddings.
    let embedded = |sql: &str| sql.replace("body", "laser_embed(body)");
    let x = fetch(client, &embedded(source))?;
    let y = fetch(client, &embedded(target))?;
    ensure!(x.len() > 100 && y.len() > 100, "too few rows for a test");
    for k in [1, 4, 16] {
        let lists = (neighbours(&x, &y, k), neighbours(&y, &x, k));
        for margin in MARGINS {
            for retrieval in RETRIEVALS {
                for threshold in [-1.0, 0.0, 1.01] {
                    let what = format!("k {k}, {margin}, {retrieval}, over {threshold}");
                    let found = client.query(
                        "SELECT * FROM laser_mine($1, $2, $3, $4, $5, $6, unify => false)",
                        &[
                            &source,
                            &target,
                            &(k as i32),
                            &margin,
                            &retrieval,
                            &threshold,
                        ],
                    )?;
                    let expected =
                        reference(&x, &y, (&lists.0, &lists.1), margin, retrieval, threshold);
                    ensure!(
                        found.len() == expected.len(),
                        "{what}: {} rows",
                        found.len()
                    );
                    for (row, pair) in found.iter().zip(&expected) {
                        let ids: (i64, i64) = (row.get(0), row.get(1));
                        ensure!(ids == (pair.0, pair.1), "{what}: {ids:?} is not {pair:?}");
                        let score: f64 = row.get(2);
                        ensure!((score - pair.2).abs() < 1e-6, "{what}: {score}, {pair:?}");
                    }
                }
            }
        }
    }
    Ok(())
}

/// Random rows around common centres, some of them copies, with ids in no order.
fn random_tables(client: &mut Client, rows: usize, dimensions: usize) -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let normal = |rng: &mut ChaCha8Rng| (0..4).map(|_| rng.random_range(-1.0f32..1.0)).sum::<f32>();
    let centres: Vec<f32> = (0..20 * dimensions).map(|_| normal(&mut rng)).collect();
    client.batch_execute(
        "CREATE TABLE x (id int PRIMARY KEY, e embedding);
         CREATE TABLE y (id bigint PRIMARY KEY, e embedding)",
    )?;
    for table in ["x", "y"] {
        let mut copies: Vec<Vec<f32>> = Vec::new();
        let insert = client.prepare(&format!(
            "INSERT INTO {table} SELECT ($1::int * 7919) % 100003, $2::real[]::embedding"
        ))?;
        let mut transaction = client.transaction()?;
        for at in 0..rows {
            let centre = rng.random_range(0..20) * dimensions;
            let mut row: Vec<f32> = (0..dimensions)
                .map(|at| centres[centre + at] + 0.4 * normal(&mut rng))
                .collect();
            if at % 50 == 49 {
                row = copies[rng.random_range(0..copies.len())].clone();
            }
            transaction.execute(&insert, &[&(at as i32 + 1), &row])?;
            copies.push(row);
        }
        transaction.commit()?;
    }
    Ok(())
}

#[test]
fn pairs_and_scores_are_those_of_the_definition() -> Result<()> {
    let models = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(models.path())?;
    let cluster = Cluster::builder().models(models.path(), "tiny").start()?;
    let mut client = cluster.database("mining")?;

    random_tables(&mut client, 600, 40)?;
    agrees(&mut client, "SELECT id, e FROM x", "SELECT id, e FROM y")?;
    // The same through files and many blocks.
    client.batch_execute("SET laser.mining_memory = '1MB'; SET laser.mining_threads = 2")?;
    agrees(
        &mut client,
        "SELECT id, e FROM x",
        "SELECT id, e FROM y WHERE id % 3 > 0",
    )?;
    client.batch_execute("RESET ALL")?;

    // Embeddings of real sentences.
    client.batch_execute(
        "CREATE TABLE de (id serial, name text, body text);
         CREATE TABLE en (id serial, name text, body text)",
    )?;
    for language in ["de", "en"] {
        let file = format!(
            "{}/../demo/mining_{language}.tsv",
            env!("CARGO_MANIFEST_DIR")
        );
        let insert = client.prepare(&format!(
            "INSERT INTO {language} (name, body) VALUES ($1, $2)"
        ))?;
        for line in std::fs::read_to_string(file)?.lines() {
            let (name, body) = line.split_once('\t').context("a line without a tab")?;
            client.execute(&insert, &[&name, &body])?;
        }
    }
    agrees(
        &mut client,
        "SELECT id, body FROM de",
        "SELECT id, body FROM en",
    )
}

/// Everything that decides, as one string.
fn all_pairs(client: &mut Client, from: &str) -> Result<Vec<String>> {
    let mut pairs = Vec::new();
    for margin in MARGINS {
        for retrieval in RETRIEVALS {
            let sql = format!(
                "SELECT m::text FROM {from} margin => '{margin}', retrieval => '{retrieval}', \
                 threshold => -1) m"
            );
            for row in client.query(&sql, &[])? {
                pairs.push(format!("{margin} {retrieval} {}", row.get::<_, String>(0)));
            }
        }
    }
    Ok(pairs)
}

#[test]
fn incremental_mining_equals_mining_from_scratch() -> Result<()> {
    let models = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(models.path())?;
    let cluster = Cluster::builder().models(models.path(), "tiny").start()?;
    let mut client = cluster.database("mining")?;
    random_tables(&mut client, 900, 24)?;
    client.batch_execute(
        "CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL);
         ALTER TABLE x ADD batch int; ALTER TABLE y ADD batch int;
         UPDATE x SET batch = id % 5; UPDATE y SET batch = id % 5",
    )?;
    let (source, target) = (
        "SELECT id, e FROM x WHERE batch < 10",
        "SELECT id, e FROM y",
    );
    let mut compared = Vec::new();
    // Rows come, go and change on one side or on both; then everything goes, and comes again.
    let changes = [
        "UPDATE x SET batch = batch + 20 WHERE batch > 2",
        "UPDATE x SET batch = batch - 20 WHERE batch = 23; INSERT INTO y SELECT -id, e FROM x WHERE batch = 24",
        "DELETE FROM y WHERE batch = 2 AND id % 7 = 1",
        "UPDATE x SET e = (SELECT e FROM y ORDER BY y.id LIMIT 1) WHERE id % 40 = 0",
        "UPDATE x SET batch = batch - 20 WHERE batch > 10; DELETE FROM y WHERE batch = 4; UPDATE y SET id = id + 1000000 WHERE batch = 0",
        "UPDATE x SET batch = batch + 20",
        "UPDATE x SET batch = batch - 20",
    ];
    for (at, change) in changes.iter().enumerate() {
        client.batch_execute(change)?;
        let memory = if at % 2 == 0 { "1MB" } else { "64MB" };
        client.batch_execute(&format!("SET laser.mining_memory = '{memory}'"))?;
        let rows = client
            .query(
                "SELECT * FROM laser_mine_update('state', $1, $2)",
                &[&source, &target],
            )
            .with_context(|| change.to_string())?;
        let number = |row: usize, column: &str| rows[row].get::<_, i64>(column);
        compared.push((number(0, "compared"), number(0, "rows") * number(1, "rows")));
        let stored = all_pairs(&mut client, "laser_mine_stored('state', ")?;
        let scratch = all_pairs(&mut client, &format!("laser_mine('{source}', '{target}', "))?;
        ensure!(stored == scratch, "after {change}");
        let again = client.query(
            "SELECT * FROM laser_mine_update('state', $1, $2)",
            &[&source, &target],
        )?;
        ensure!(
            again.iter().all(|row| row.get::<_, i64>("written") == 0),
            "after {change}"
        );
    }
    // The first one compares all; a small change compares a small part.
    ensure!(compared[0].0 == compared[0].1, "{compared:?}");
    ensure!(compared[2].0 < compared[2].1 / 4, "{compared:?}");
    ensure!(compared[3].0 < compared[3].1 / 4, "{compared:?}");

    // Texts: only new ones are embedded, and unification follows the lowest id.
    client.batch_execute(
        "CREATE TABLE texts (LIKE laser_mining_state INCLUDING ALL);
         CREATE TABLE de AS SELECT i AS id, 'Satz ' || i % 37 AS body FROM generate_series(10, 99) i;
         CREATE TABLE en AS SELECT i AS id, 'sentence ' || i % 41 AS body FROM generate_series(10, 99) i",
    )?;
    let (source, target) = ("SELECT id, body FROM de", "SELECT id, body FROM en");
    for (change, added) in [
        ("", 37 + 41),
        ("INSERT INTO de VALUES (100, 'Satz 5'), (101, 'neu')", 1),
        ("INSERT INTO en VALUES (1, 'sentence 7')", 1),
        (
            "DELETE FROM de WHERE id = 10; UPDATE en SET body = 'changed' WHERE id = 99",
            2,
        ),
    ] {
        client.batch_execute(change)?;
        let rows = client.query(
            "SELECT * FROM laser_mine_update('texts', $1, $2)",
            &[&source, &target],
        )?;
        let found: i64 = rows.iter().map(|row| row.get::<_, i64>("added")).sum();
        ensure!(found == added, "{change}: {found} added");
        let stored = all_pairs(&mut client, "laser_mine_stored('texts', ")?;
        let scratch = all_pairs(&mut client, &format!("laser_mine('{source}', '{target}', "))?;
        ensure!(stored == scratch, "after {change}");
    }
    Ok(())
}

/// Enough rows that a search takes many seconds on any machine.
fn many_rows(client: &mut Client) -> Result<()> {
    client.batch_execute(
        "CREATE TABLE many AS SELECT i AS id,
           (SELECT array_agg(sin(i * 32 + j)) FROM generate_series(1, 32) j)::real[]::embedding AS e
         FROM generate_series(1, 40000) i",
    )?;
    Ok(())
}

const LONG: &str = "SELECT count(*) FROM laser_mine(
    'SELECT a.id * 16 + i, a.e FROM many a, generate_series(0, 15) i', 'SELECT id, e FROM many')";

#[test]
fn a_search_shows_progress_and_is_cancelled_within_a_second() -> Result<()> {
    for preload in [true, false] {
        let cluster = Cluster::builder().preload(preload).start()?;
        let mut client = cluster.database("mining")?;
        many_rows(&mut client)?;
        let mut watcher = cluster.connect("mining")?;

        let cancel = client.cancel_token();
        let worker = std::thread::spawn(move || {
            let result = client.query(LONG, &[]);
            (result.map(|_| ()), Instant::now(), client)
        });
        let mut seen = None;
        wait_until("the search makes progress", || {
            let row = watcher.query_opt(
                "SELECT pid, datname::text, phase, pairs_done, pairs_total, source_rows, target_rows
                 FROM laser_mining_progress WHERE phase = 'searching' AND pairs_done > 0",
                &[],
            )?;
            seen = row;
            Ok(seen.is_some())
        })?;
        let row = seen.context("progress")?;
        ensure!(row.get::<_, String>(1) == "mining");
        // Not at its end yet: that is what the cancel is for.
        let (done, total): (i64, i64) = (row.get(3), row.get(4));
        ensure!(
            total == 640_000 * 40_000 && (1..total).contains(&done),
            "{done} of {total}"
        );
        ensure!((row.get::<_, i64>(5), row.get::<_, i64>(6)) == (640_000, 40_000));
        // Others see that it mines.
        watcher.batch_execute("CREATE ROLE other; SET ROLE other")?;
        let row = watcher.query_one(
            "SELECT pid > 0 AND datname = 'mining' AND started_at IS NULL AND phase IS NULL AND source_rows IS NULL
                 AND target_rows IS NULL AND pairs_done IS NULL AND pairs_total IS NULL AND threads IS NULL AND memory_kb IS NULL
             FROM laser_mining_progress",
            &[],
        )?;
        ensure!(row.get::<_, bool>(0));
        watcher.batch_execute("RESET ROLE")?;

        // Returns when the server has sent the signal.
        cancel.cancel_query(NoTls)?;
        let before = Instant::now();
        let (result, ended, mut client) = worker.join().expect("no panic");
        let error = result
            .err()
            .context("the search ended before it was cancelled")?;
        ensure!(error.code() == Some(&SqlState::QUERY_CANCELED), "{error}");
        let took = ended.saturating_duration_since(before);
        ensure!(took < Duration::from_secs(1), "cancelled after {took:?}");
        ensure!(
            watcher
                .query("SELECT * FROM laser_mining_progress", &[])?
                .is_empty()
        );

        // The session is as good as new; a timeout ends a search as well.
        let (code, ..) = failure(
            &mut client,
            &format!("SET statement_timeout = '2s'; {LONG}"),
        )?;
        ensure!(code == SqlState::QUERY_CANCELED);
        client.batch_execute("RESET statement_timeout")?;
        let row = client.query_one(
            "SELECT count(*) FROM laser_mine('SELECT id, e FROM many WHERE id < 100', 'SELECT id, e FROM many', retrieval => 'forward', threshold => -9)",
            &[],
        )?;
        ensure!(row.get::<_, i64>(0) == 99);
    }
    Ok(())
}

#[test]
fn the_encoder_process_searches_as_the_session_does() -> Result<()> {
    let models = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(models.path())?;
    let cluster = Cluster::builder().models(models.path(), "tiny").start()?;
    let mut client = cluster.database("mining")?;
    random_tables(&mut client, 600, 40)?;
    client.batch_execute("SET laser.mining_place = 'encoder'")?;
    agrees(&mut client, "SELECT id, e FROM x", "SELECT id, e FROM y")?;
    // Rows that are in files already, one direction, an empty side.
    client.batch_execute("SET laser.mining_memory = '1MB'; SET laser.mining_threads = 2")?;
    agrees(&mut client, "SELECT id, e FROM x", "SELECT id, e FROM y")?;
    let mut joined = |place: &str| -> Result<Vec<String>> {
        client.batch_execute(&format!("SET laser.mining_place = '{place}'"))?;
        let sql =
            "SELECT j::text FROM laser_knn_join('SELECT id, e FROM x', 'SELECT id, e FROM y', 3) j";
        Ok(client
            .query(sql, &[])?
            .iter()
            .map(|row| row.get(0))
            .collect())
    };
    let found = joined("encoder")?;
    ensure!(found.len() == 1800 && found == joined("session")?);
    client.batch_execute("SET laser.mining_place = 'encoder'")?;
    let none = client.query(
        "SELECT * FROM laser_mine('SELECT id, e FROM x WHERE false', 'SELECT id, e FROM y')",
        &[],
    )?;
    ensure!(none.is_empty());
    let folder = cluster.data().join("base/pgsql_tmp");
    ensure!(folder.read_dir()?.next().is_none());

    // What is wrong with a row is said by the session, which knows its id.
    let (_, message, _) = failure(
        &mut client,
        "SELECT * FROM laser_mine('SELECT id, e FROM x',
           'SELECT id, CASE WHEN id = 7919 THEN array_fill(0, ARRAY[40])::real[]::embedding ELSE e END FROM y')",
    )?;
    ensure!(
        message == "the embedding of target id 7919 is a zero vector, which has no cosine",
        "{message}"
    );

    // A search that lasts: progress, a cancel, and an encoder that dies.
    client.batch_execute("RESET ALL; SET laser.mining_place = 'encoder'")?;
    many_rows(&mut client)?;
    let mut watcher = cluster.connect("mining")?;
    let mut started = || {
        wait_until("the search makes progress", || {
            let sql = "SELECT FROM laser_mining_progress WHERE pairs_done > 0";
            Ok(!watcher.query(sql, &[])?.is_empty())
        })
    };
    let cancel = client.cancel_token();
    let worker = std::thread::spawn(move || {
        let result = client.query(LONG, &[]);
        (result.map(|_| ()), Instant::now(), client)
    });
    started()?;
    cancel.cancel_query(NoTls)?;
    let before = Instant::now();
    let (result, ended, mut client) = worker.join().expect("no panic");
    let error = result.err().context("the search was not cancelled")?;
    ensure!(error.code() == Some(&SqlState::QUERY_CANCELED), "{error}");
    let took = ended.saturating_duration_since(before);
    ensure!(took < Duration::from_secs(1), "cancelled after {took:?}");
    // The encoder has let go of it: the next search gets its turn at once.
    client.batch_execute("SET statement_timeout = '20s'")?;
    ensure!(joined_rows(&mut client)? == 300);
    client.batch_execute("RESET statement_timeout")?;

    let pid: i32 = client
        .query_one("SELECT pid FROM laser_encoder_status", &[])?
        .get(0);
    // Long enough to be seen at work on a fast machine, short enough to be finished on a slow one.
    let medium = "SELECT count(*) FROM laser_mine(
        'SELECT a.id * 4 + i, a.e FROM many a, generate_series(0, 3) i', 'SELECT id, e FROM many',
        retrieval => 'forward', margin => 'absolute')";
    let worker = std::thread::spawn(move || client.query_one(medium, &[]).map(|row| row.get(0)));
    started()?;
    std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()?;
    // The session goes on by itself.
    let rows: i64 = worker.join().expect("no panic")?;
    ensure!(rows == 160_000, "{rows}");
    Ok(())
}

#[test]
fn a_long_search_says_what_it_will_take() -> Result<()> {
    let cluster = Cluster::new()?;
    many_rows(&mut cluster.database("mining")?)?;
    let mut watcher = cluster.connect("mining")?;
    let (mut client, notices) = cluster.connect_with_notices("mining")?;
    client.batch_execute("SET laser.mining_place = 'session'; SET laser.mining_threads = 1")?;
    let cancel = client.cancel_token();
    let worker = std::thread::spawn(move || {
        client.batch_execute(
            "SELECT count(*) FROM laser_mine('SELECT a.id * 32 + i, a.e FROM many a, generate_series(0, 31) i',
                'SELECT a.id * 8 + i, a.e FROM many a, generate_series(0, 7) i')",
        )
    });
    let mut said = Vec::new();
    let told = wait_until("a forecast comes", || {
        said.extend(notices.take());
        Ok(!said.is_empty() || worker.is_finished())
    });
    // What is left by what is seen from outside.
    let mut pairs = || -> Result<(i64, i64)> {
        let row = watcher.query_one(
            "SELECT pairs_done, pairs_total FROM laser_mining_progress",
            &[],
        )?;
        Ok((row.get(0), row.get(1)))
    };
    let began = Instant::now();
    let first = pairs();
    std::thread::sleep(Duration::from_secs(4));
    let last = pairs();
    let seconds = began.elapsed().as_secs_f64();
    cancel.cancel_query(NoTls)?;
    let ended = worker.join().expect("no panic");
    told?;
    let ((first, _), (last, total)) = (first?, last?);
    ensure!(ended.is_err_and(|error| error.code() == Some(&SqlState::QUERY_CANCELED)));
    let [notice] = &said[..] else {
        bail!("{said:?}");
    };
    let (pairs, ahead) =
        (notice.split_once(" pairs of rows will take about ")).with_context(|| notice.clone())?;
    ensure!(pairs.ends_with("comparing 4.096e11"), "{notice}");
    let mut words = ahead.split(' ');
    let number: f64 = words.next().context("a number")?.parse()?;
    let unit = match words.next() {
        Some("seconds") => 1.0,
        Some("minutes") => 60.0,
        Some("hours") => 3600.0,
        _ => bail!("{notice}"),
    };
    let seen = seconds * (total - last) as f64 / (last - first).max(1) as f64;
    ensure!(
        (seen / 4.0..seen * 4.0).contains(&(number * unit)),
        "{notice}, not {seen} seconds"
    );
    Ok(())
}

/// Rows of a small join.
fn joined_rows(client: &mut Client) -> Result<i64> {
    let sql = "SELECT count(*) FROM laser_knn_join(
        'SELECT id, e FROM many WHERE id <= 100', 'SELECT id, e FROM many', 3)";
    Ok(client.query_one(sql, &[])?.get(0))
}

#[test]
fn a_session_that_is_terminated_takes_nobody_along() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("mining")?;
    many_rows(&mut client)?;
    let mut watcher = cluster.connect("mining")?;
    let postmaster = "SELECT pg_postmaster_start_time()::text";
    let started: String = watcher.query_one(postmaster, &[])?.get(0);
    for _ in 0..5 {
        let mut client = cluster.connect("mining")?;
        let worker = std::thread::spawn(move || client.query(LONG, &[]).map(|_| ()));
        let mut pid: Option<i32> = None;
        wait_until("the search makes progress", || {
            let row = watcher.query_opt(
                "SELECT pid FROM laser_mining_progress WHERE pairs_done > 0",
                &[],
            )?;
            pid = row.map(|row| row.get(0));
            Ok(pid.is_some())
        })?;
        watcher.query("SELECT pg_terminate_backend($1, 10000)", &[&pid])?;
        let error = worker.join().expect("no panic").err();
        let code = error.as_ref().and_then(|error| error.code());
        ensure!(code == Some(&SqlState::ADMIN_SHUTDOWN), "{error:?}");
        let left = watcher.query("SELECT * FROM laser_mining_progress", &[])?;
        ensure!(left.is_empty());
    }
    // The server went on: no session crashed.
    let now: String = watcher.query_one(postmaster, &[])?.get(0);
    ensure!(now == started && client.query_one("SELECT 1", &[]).is_ok());
    Ok(())
}

#[test]
fn errors_name_the_query_and_lists_are_bounded() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("mining")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT i AS id, ARRAY[i, 1]::real[]::embedding AS e FROM generate_series(1, 300) i",
    )?;
    for (sql, query) in [
        (
            "laser_mine('SELECT id, e FROM t', 'SELECT id, f FROM t')",
            "target",
        ),
        (
            "laser_mine('SELECT id / (id - 7), e FROM t', 'SELECT id, e FROM t')",
            "source",
        ),
        (
            "laser_bucc_score('SELECT 1, 1, 1 / 0.0::float8', 'SELECT 1, 1')",
            "candidates",
        ),
    ] {
        let error = client.query(&format!("SELECT * FROM {sql}"), &[]).err();
        let detail = error.as_ref().and_then(|e| e.as_db_error()?.detail());
        // A backtrace may follow where the environment asks for one.
        let expected = format!("The error is in the {query} query.");
        ensure!(
            detail.is_some_and(|d| d.starts_with(&expected)),
            "{sql}: {error:?}"
        );
    }
    // 2 * 300 * 300 * 12 bytes.
    let mine =
        "SELECT * FROM laser_mine('SELECT id, e FROM t', 'SELECT id, e FROM t', k => 2147483647)";
    let (code, message, _) = failure(
        &mut client,
        &format!("SET laser.mining_memory = '2MB'; {mine}"),
    )?;
    ensure!(code == SqlState::CONFIGURATION_LIMIT_EXCEEDED, "{message}");
    client.batch_execute("SET laser.mining_memory = '3MB'")?;
    ensure!(!client.query(mine, &[])?.is_empty());
    Ok(())
}

#[test]
fn queries_run_with_the_rights_and_the_snapshot_of_the_caller() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("mining")?;
    client.batch_execute(
        "CREATE ROLE reader LOGIN;
         CREATE TABLE secret AS SELECT i AS id, ARRAY[i, 1]::real[]::embedding AS e FROM generate_series(1, 20) i;
         CREATE TABLE open AS SELECT * FROM secret;
         GRANT SELECT ON open TO reader;
         CREATE TABLE rows (id int, owner name, e embedding);
         INSERT INTO rows SELECT id, CASE WHEN id % 2 = 0 THEN 'reader' ELSE 'other' END, e FROM secret;
         ALTER TABLE rows ENABLE ROW LEVEL SECURITY;
         CREATE POLICY own ON rows USING (owner = current_user);
         GRANT SELECT ON rows TO reader;
         CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL);
         SET ROLE reader",
    )?;
    let (code, message, _) = failure(
        &mut client,
        "SELECT * FROM laser_mine('SELECT id, e FROM secret', 'SELECT id, e FROM open')",
    )?;
    ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{message}");
    let (code, message, _) = failure(
        &mut client,
        "SELECT * FROM laser_mine_update('state', 'SELECT id, e FROM open', 'SELECT id, e FROM open')",
    )?;
    ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{message}");
    let ids: Vec<i64> = client
        .query(
            "SELECT source_id FROM laser_mine('SELECT id, e FROM rows', 'SELECT id, e FROM open', retrieval => 'forward') ORDER BY 1",
            &[],
        )?
        .iter()
        .map(|row| row.get(0))
        .collect();
    ensure!(
        ids == (1..=10).map(|at| at * 2).collect::<Vec<i64>>(),
        "{ids:?}"
    );
    // A role may keep a state of its own.
    client.batch_execute(
        "RESET ROLE; CREATE SCHEMA \"Own\" AUTHORIZATION reader; SET ROLE reader;
         CREATE TABLE \"Own\".\"St ate\" (LIKE laser_mining_state INCLUDING ALL);
         SELECT * FROM laser_mine_update('\"Own\".\"St ate\"', 'SELECT id, e FROM rows', 'SELECT id, e FROM open');
         RESET ROLE",
    )?;
    let rows: i64 = client
        .query_one("SELECT count(*) FROM \"Own\".\"St ate\"", &[])?
        .get(0);
    ensure!(rows == 30);

    // What the transaction did not see is not mined; what it did itself is.
    let mut other = cluster.connect("mining")?;
    let mut transaction = client
        .build_transaction()
        .isolation_level(postgres::IsolationLevel::RepeatableRead)
        .start()?;
    let count = "SELECT count(*) FROM laser_mine('SELECT id, e FROM open', 'SELECT id, e FROM secret', retrieval => 'forward')";
    let before: i64 = transaction.query_one(count, &[])?.get(0);
    other.batch_execute("INSERT INTO open VALUES (100, '[1,5]'), (101, '[1,6]')")?;
    transaction.batch_execute("INSERT INTO open VALUES (200, '[1,7]')")?;
    let after: i64 = transaction.query_one(count, &[])?.get(0);
    transaction.rollback()?;
    ensure!((before, after) == (20, 21));

    // Not in a parallel worker, and in a read-only transaction.
    let row = client.query_one(
        &format!("SELECT q.count FROM ({count}) q, generate_series(1, 2) LIMIT 1"),
        &[],
    )?;
    ensure!(row.get::<_, i64>(0) == 22);
    client.batch_execute(&format!("BEGIN READ ONLY; {count}; COMMIT"))?;
    Ok(())
}

#[test]
fn files_stay_within_limits_and_vanish() -> Result<()> {
    let mut cluster = Cluster::builder()
        .setting("laser.mining_memory", "1MB")
        .start()?;
    let mut client = cluster.database("mining")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT i AS id,
           (SELECT array_agg(sin(i * 31 + j)) FROM generate_series(1, 500) j)::real[]::embedding AS e
         FROM generate_series(1, 4000) i",
    )?;
    let mine = "SELECT count(*) FROM laser_mine('SELECT id, e FROM t', 'SELECT id, e FROM t', retrieval => 'forward', margin => 'absolute')";
    // 8 MB a side: does not fit into memory, and leaves nothing behind.
    ensure!(client.query_one(mine, &[])?.get::<_, i64>(0) == 4000);
    let folder = cluster.data().join("base/pgsql_tmp");
    ensure!(folder.read_dir()?.next().is_none());

    client.batch_execute("SET temp_file_limit = '2MB'")?;
    let (code, message, _) = failure(&mut client, mine)?;
    ensure!(code == SqlState::CONFIGURATION_LIMIT_EXCEEDED, "{message}");
    // The limit is for all files of the session: a call in a query of another one has no limit of its own.
    client.batch_execute(
        "SET temp_file_limit = '12MB';
         CREATE FUNCTION nested(n int) RETURNS boolean LANGUAGE plpgsql AS $$
           BEGIN
             PERFORM FROM laser_knn_join('SELECT id, e FROM t', 'SELECT id, e FROM t WHERE id = 1 AND '
               || CASE WHEN n > 0 THEN 'nested(' || n - 1 || ')' ELSE 'true' END, 1);
             RETURN true;
           END $$;
         SELECT nested(0)",
    )?;
    let (code, message, _) = failure(&mut client, "SELECT nested(1)")?;
    ensure!(code == SqlState::CONFIGURATION_LIMIT_EXCEEDED, "{message}");
    client.batch_execute("SELECT nested(0)")?;
    client.batch_execute("RESET temp_file_limit; SET laser.mining_memory = '100MB'")?;
    ensure!(client.query_one(mine, &[])?.get::<_, i64>(0) == 4000);
    // So is the memory: each has half of that of the one in whose query it runs.
    client.batch_execute("SELECT nested(2); SET max_stack_depth = '6MB'")?;
    let (code, message, _) = failure(&mut client, "SELECT nested(30)")?;
    ensure!(code == SqlState::CONFIGURATION_LIMIT_EXCEEDED, "{message}");
    client.batch_execute("RESET max_stack_depth")?;
    ensure!(client.query_one(mine, &[])?.get::<_, i64>(0) == 4000);

    // A file that cannot grow, in the middle of reading rows. The limit is that of this session
    // alone; its own account may set it.
    client.batch_execute("RESET laser.mining_memory")?;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
    let owner = cluster.data().metadata()?;
    let limit = |bytes: &str| {
        std::process::Command::new("prlimit")
            .args([format!("--pid={pid}"), format!("--fsize={bytes}:")])
            .uid(owner.uid())
            .gid(owner.gid())
            .status()
    };
    ensure!(limit("3000000")?.success());
    let (code, message, _) = failure(&mut client, mine)?;
    ensure!(code == SqlState::IO_ERROR, "{message}");
    ensure!(
        message.starts_with("could not use a temporary file for mining: File too large"),
        "{message}"
    );
    ensure!(folder.read_dir()?.next().is_none());
    ensure!(limit("unlimited")?.success());
    ensure!(client.query_one(mine, &[])?.get::<_, i64>(0) == 4000);

    // A full disk. A small file system in place of the folder needs root and the right to mount.
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m,mode=0777", "tmpfs"])
        .arg(&folder)
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        skipped(
            "mining on a full disk",
            "a small file system cannot be mounted (root may)",
        );
        return Ok(());
    }
    let result = failure(&mut client, mine);
    let works = client.query_one("SELECT 1", &[]).is_ok();
    drop(client);
    cluster.stop("fast")?;
    let unmounted = std::process::Command::new("umount").arg(&folder).status()?;
    ensure!(unmounted.success() && works);
    let (code, message, _) = result?;
    ensure!(code == SqlState::DISK_FULL, "{message}");
    Ok(())
}

#[test]
fn indexes_propose_what_the_exact_search_finds() -> Result<()> {
    let models = tempfile::tempdir()?;
    Model::tiny("tiny", 32).write(models.path())?;
    let cluster = Cluster::builder().models(models.path(), "tiny").start()?;
    let mut client = cluster.database("mining")?;
    random_tables(&mut client, 1000, 24)?;
    client.batch_execute(
        "ALTER TABLE x ALTER e TYPE embedding(24); ALTER TABLE y ALTER e TYPE embedding(24)",
    )?;
    let mine = |method: &str, retrieval: &str| {
        format!(
            "SELECT source_id, target_id, score FROM laser_mine('SELECT id, e FROM x', \
             'SELECT id, e FROM y WHERE id > 10', method => '{method}', retrieval => '{retrieval}')"
        )
    };
    let (code, message, _) = failure(&mut client, &mine("index", "max"))?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "{message}"
    );
    ensure!(
        message == "no laser index can search the target query",
        "{message}"
    );
    client.batch_execute("CREATE INDEX ON y USING laser (e)")?;
    let (_, message, _) = failure(&mut client, &mine("index", "max"))?;
    ensure!(
        message == "no laser index can search the source query",
        "{message}"
    );
    client.batch_execute("CREATE INDEX ON x USING laser (e)")?;
    for retrieval in RETRIEVALS {
        let mut pairs = |method| -> Result<HashSet<(i64, i64, u64)>> {
            let rows = client.query(&mine(method, retrieval), &[])?;
            Ok(rows
                .iter()
                .map(|r| (r.get(0), r.get(1), r.get::<_, f64>(2).to_bits()))
                .collect())
        };
        let (exact, index) = (pairs("exact")?, pairs("index")?);
        let same = exact.intersection(&index).count();
        ensure!(
            same * 100 >= exact.len() * 95,
            "{retrieval}: {same} of {}",
            exact.len()
        );
    }
    let (code, ..) = failure(
        &mut client,
        "SELECT * FROM laser_mine('SELECT id, e::halfembedding FROM x', 'SELECT id, e FROM y', method => 'index')",
    )?;
    ensure!(code == SqlState::DATATYPE_MISMATCH);

    // More rows than the first search of an index looks at.
    client.batch_execute(
        "CREATE TABLE large AS SELECT i AS id, (SELECT array_agg(sin(i * (j + 0.7)) + cos(i * j * j))
             FROM generate_series(1, 8) j)::embedding(8) AS e FROM generate_series(1, 4000) i;
         ANALYZE large;
         CREATE INDEX ON large USING laser (e)",
    )?;
    let large = |method: &str| {
        format!(
            "SELECT count(*) FROM laser_mine('SELECT id, e FROM large WHERE id <= 200', \
             'SELECT id, e FROM large', method => '{method}', retrieval => 'forward', \
             margin => 'absolute', threshold => 0.99) WHERE source_id = target_id"
        )
    };
    ensure!(client.query_one(&large("index"), &[])?.get::<_, i64>(0) >= 199);

    // Texts, of which some are equal.
    client.batch_execute(
        "CREATE TABLE de AS SELECT i AS id, 'Satz ' || i % 37 AS body FROM generate_series(1, 90) i;
         CREATE TABLE en AS SELECT i AS id, 'Satz ' || i % 41 AS body FROM generate_series(1, 90) i;
         CREATE INDEX ON de USING laser (body); CREATE INDEX ON en USING laser (body)",
    )?;
    let mine = |method: &str| {
        format!(
            "SELECT source_id, target_id FROM laser_mine('SELECT id, body FROM de', \
             'SELECT id, body FROM en', k => 2, method => '{method}', margin => 'absolute', threshold => 0.999)"
        )
    };
    let found = |client: &mut Client, method| -> Result<Vec<(i64, i64)>> {
        let rows = client.query(&mine(method), &[])?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    };
    let (exact, index) = (found(&mut client, "exact")?, found(&mut client, "index")?);
    ensure!(exact.len() > 30 && exact == index, "{exact:?} {index:?}");
    // A text that many rows have is one candidate and leaves room for others.
    client.batch_execute("INSERT INTO en SELECT i, 'Satz 1' FROM generate_series(100, 400) i")?;
    let (exact, index) = (found(&mut client, "exact")?, found(&mut client, "index")?);
    ensure!(exact.len() > 30 && exact == index, "{exact:?} {index:?}");
    let scores = |method: &str| {
        format!(
            "SELECT array_agg(m::text ORDER BY source_id) FROM laser_mine('SELECT id, body FROM de', \
             'SELECT id, body FROM en', method => '{method}', retrieval => 'forward') m"
        )
    };
    let mut all =
        |method| -> Result<Vec<String>> { Ok(client.query_one(&scores(method), &[])?.get(0)) };
    let (exact, index) = (all("exact")?, all("index")?);
    let same = exact.iter().filter(|row| index.contains(row)).count();
    ensure!(same * 10 >= exact.len() * 9, "{exact:?} {index:?}");
    // An empty side has no pairs.
    let none = client.query(
        "SELECT * FROM laser_mine('SELECT id, body FROM de WHERE false', 'SELECT id, body FROM en', method => 'index')",
        &[],
    )?;
    ensure!(none.is_empty());
    Ok(())
}

/// More rows than are compared one by one: the planner has to take the index all the same. An index
/// that goes meanwhile is an error.
#[test]
fn an_index_is_taken_and_has_to_stay() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("mining")?;
    random_tables(&mut client, 6000, 16)?;
    client.batch_execute(
        "DELETE FROM x WHERE id > 1000;
         ALTER TABLE x ALTER e TYPE embedding(16); ALTER TABLE y ALTER e TYPE embedding(16);
         CREATE INDEX xi ON x USING laser (e); CREATE INDEX yi ON y USING laser (e);
         ANALYZE;
         SET client_min_messages = warning;
         CREATE FUNCTION drops(id bigint, index text) RETURNS bigint LANGUAGE plpgsql AS $$
         BEGIN EXECUTE format('DROP INDEX IF EXISTS %I', index); RETURN id; END $$",
    )?;
    let mine = |filter: &str| {
        format!(
            "SELECT * FROM laser_mine('SELECT id, e FROM x WHERE {filter}', 'SELECT id, e FROM y', method => 'index')"
        )
    };
    ensure!(!client.query(&mine("true"), &[])?.is_empty());
    for index in ["yi", "xi"] {
        let sql = mine(&format!("drops(id, ''{index}'') > 0"));
        let (code, message, _) = failure(&mut client, &sql)?;
        ensure!(
            code == SqlState::OBJECT_IN_USE,
            "{index}: {code:?} {message}"
        );
    }
    // Nothing has been dropped.
    ensure!(!client.query(&mine("true"), &[])?.is_empty());
    Ok(())
}

/// A transaction that began before another update does not see what that has written.
#[test]
fn an_update_is_of_what_others_have_left() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("mining")?;
    random_tables(&mut client, 300, 2)?;
    client.batch_execute("CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL)")?;
    let update =
        "SELECT * FROM laser_mine_update('state', 'SELECT id, e FROM x', 'SELECT id, e FROM y')";
    client.batch_execute(update)?;
    let mut other = cluster.connect("mining")?;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        other.batch_execute(&format!(
            "BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM x"
        ))?;
        client.batch_execute("INSERT INTO x SELECT max(id) + 1, '[1,0.001]' FROM x")?;
        client.batch_execute(update)?;
        other.batch_execute("INSERT INTO y SELECT max(id) + 1, '[1,0.002]' FROM y")?;
        let (code, message, hint) = failure(&mut other, update)?;
        ensure!(code == SqlState::T_R_SERIALIZATION_FAILURE, "{message}");
        ensure!(hint.contains("run it again"), "{hint}");
        other.batch_execute("ROLLBACK")?;
        // Again, and twice in the transaction: its own rows are no other's.
        other.batch_execute(&format!(
            "BEGIN ISOLATION LEVEL {level}; {update};
             INSERT INTO y SELECT max(id) + 1, '[1,0.002]' FROM y; {update}; COMMIT"
        ))?;
        let pairs = |client: &mut Client, from: &str| -> Result<Vec<(i64, i64)>> {
            let sql = format!("SELECT source_id, target_id FROM {from} ORDER BY 1, 2");
            let rows = client.query(&sql, &[])?;
            Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
        };
        let stored = pairs(&mut client, "laser_mine_stored('state')")?;
        let mined = pairs(
            &mut client,
            "laser_mine('SELECT id, e FROM x', 'SELECT id, e FROM y')",
        )?;
        ensure!(stored == mined && !mined.is_empty(), "{level}");
    }
    Ok(())
}

#[test]
fn a_state_with_a_null_in_a_list_is_an_error() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("mining")?;
    client.batch_execute("CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL)")?;
    for (neighbours, cosines) in [
        ("1, NULL", "0.5, 0.4"),
        ("1, 2", "0.5, NULL"),
        ("1", "'NaN'"),
        ("1", "'-Infinity'"),
    ] {
        client.batch_execute(&format!(
            "TRUNCATE state;
             INSERT INTO state (side, id, content, embedding, neighbours, cosines)
             SELECT side, 1, decode(md5('x'), 'hex'), '[1,2]', ARRAY[{neighbours}], ARRAY[{cosines}]::float8[]
             FROM unnest(ARRAY['s', 't']) side"
        ))?;
        let update = "SELECT laser_mine_update('state', 'SELECT 1, ''[1,2]''::embedding', 'SELECT 1, ''[1,2]''::embedding')";
        for sql in ["SELECT laser_mine_stored('state')", update] {
            let (code, message, hint) = failure(&mut client, sql)?;
            ensure!(code == SqlState::DATA_CORRUPTED, "{code:?} {message}");
            ensure!(message.contains("is inconsistent: a "), "{message}");
            ensure!(hint.contains("TRUNCATE"), "{hint}");
        }
    }
    Ok(())
}
