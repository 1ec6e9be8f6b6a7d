//! What SQL costs on top of the bare encoder.
//!
//! ```text
//! bench_encoder_sql [--model FOLDER] [--clients N] [--texts N] [--rounds N]
//! ```
//!
//! Two questions, each answered by the ratio or difference of two measurements of the same run:
//! how many sentences a second many clients with single texts reach, compared with the encoder
//! crate alone on the same texts in large batches; and how much longer one short text takes.
//! They are asked for the shipped model (or `--model`), encoded by the sessions and by the encoder
//! process, and for LASER's shape with random weights through the process.
//!
//! Rounds alternate between the two sides, so that other load on the machine meets both, and every
//! round has texts of its own: as in a real load, sentences are new, most of their words are not.
//! Processor time is that of all processes that take part (clients, sessions, encoder), and tells
//! more than the clock on a machine that does other things as well.
#![allow(unsafe_code)] // the clock of processor time

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use laser_encoder::{Encoder, LoadOptions};
use laser_model::catalog::SHIPPED;
use laser_tests::Cluster;
use postgres::{Client, NoTls, Statement};

#[path = "../../encoder/examples/bench_encoder/shape.rs"]
mod shape;

/// Beginnings and endings of sentences; every pair with a number is another text.
const BEGINNINGS: [&str; 8] = [
    "Where is the railway station",
    "Der Zug nach München fährt um halb neun ab",
    "Le musée est fermé le lundi",
    "El gobierno anunció ayer nuevas medidas",
    "Она читает книгу у окна",
    "今天天气很好",
    "मुझे एक गिलास पानी चाहिए",
    "Vlak má dnes půl hodiny zpoždění",
];
const ENDINGS: [&str; 7] = [
    "",
    ", and when does it open again?",
    ", obwohl es seit Tagen regnet und stürmt.",
    ", mais le jardin reste ouvert toute la semaine.",
    ", para proteger los bosques del norte.",
    ", пока за окном идёт снег.",
    ", because the committee has not published its report on the state of the roads yet.",
];

struct Arguments {
    model: Option<PathBuf>,
    clients: usize,
    texts: usize,
    rounds: usize,
}

fn arguments() -> Result<Arguments> {
    let mut parsed = Arguments {
        model: None,
        clients: 16,
        texts: 1000,
        rounds: 3,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || {
            words
                .next()
                .with_context(|| format!("{word} needs a value"))
        };
        match word.as_str() {
            "--model" => parsed.model = Some(value()?.into()),
            "--clients" => parsed.clients = value()?.parse()?,
            "--texts" => parsed.texts = value()?.parse()?,
            "--rounds" => parsed.rounds = value()?.parse()?,
            // Other benchmarks of the family are run with the same arguments.
            _ => eprintln!("bench_encoder_sql: {word} is not for this benchmark"),
        }
    }
    ensure!(
        parsed.clients > 0 && parsed.texts > 0 && parsed.rounds > 0,
        "counts must be positive"
    );
    Ok(parsed)
}

/// One model, and who encodes with it.
struct Case {
    what: &'static str,
    folder: PathBuf,
    in_backend: bool,
    /// Texts of each client in a round.
    texts: usize,
    rounds: usize,
    /// Calls for the latency of one text.
    calls: usize,
    text: fn(usize) -> String,
}

/// Sentence number `i` for models with a vocabulary of natural languages.
fn sentence(i: usize) -> String {
    let (beginning, ending) = (
        BEGINNINGS[i % BEGINNINGS.len()],
        ENDINGS[(i / 8) % ENDINGS.len()],
    );
    format!("{beginning} {i}{ending}")
}

/// Sentence number `i` in the words of [`shape`].
fn words(i: usize) -> String {
    let word = |t: usize| format!("w{}", 4 + (i * 131 + t * 977) % (shape::VOCABULARY - 4));
    (1..shape::TOKENS).map(word).collect::<Vec<_>>().join(" ")
}

fn main() -> Result<()> {
    let arguments = arguments()?;
    let scratch = tempfile::tempdir()?;
    let laser = scratch.path().join("laser-shape");
    shape::write(&laser)?;
    let model = match arguments.model.clone() {
        Some(model) => model,
        // The default of servers.
        None => Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../encoder/models")
            .join(SHIPPED),
    };
    let fast = Case {
        what: "encoded by the sessions",
        folder: model.canonicalize()?,
        in_backend: true,
        texts: arguments.texts,
        rounds: arguments.rounds,
        calls: 2000,
        text: sentence,
    };
    let process = Case {
        what: "encoded by the process",
        folder: fast.folder.clone(),
        in_backend: false,
        ..fast
    };
    let slow = Case {
        what: "random weights, encoded by the process",
        folder: laser,
        in_backend: false,
        texts: arguments.texts.div_ceil(50),
        rounds: 1,
        calls: 10,
        text: words,
    };
    [fast, process, slow]
        .iter()
        .try_for_each(|case| measure(case, arguments.clients))
}

fn measure(case: &Case, clients: usize) -> Result<()> {
    let name = case
        .folder
        .file_name()
        .and_then(|n| n.to_str())
        .context("a model has a name")?;
    // The servers' account may not reach the folder: give it a copy.
    let models = tempfile::tempdir()?;
    copy(&case.folder, &models.path().join(name))?;
    open_to_all(models.path())?;
    let encoder = Encoder::load(&case.folder, &LoadOptions::default())?;
    println!(
        "\n{name}, {}: {}, {} dimensions, {}, {} threads",
        case.what,
        encoder.config().encoder.name(),
        encoder.dimensions(),
        encoder.precision().name(),
        encoder.threads()
    );
    let in_backend = if case.in_backend { "on" } else { "off" };
    let cluster = Cluster::builder()
        .models(models.path(), name)
        .setting("laser.encode_in_backend", in_backend)
        .start()?;
    let mut client = cluster.database("bench")?;
    client.batch_execute("SELECT laser_embed('x')")?;
    let backend: Option<i64> = client
        .query_one("SELECT backend_sentences FROM laser_encoder_status", &[])?
        .get(0);
    ensure!(
        backend.is_some_and(|n| n > 0) == case.in_backend,
        "the texts are not {}",
        case.what
    );
    latency(case, &encoder, &cluster)?;
    throughput(case, clients, &encoder, &cluster)
}

fn latency(case: &Case, encoder: &Encoder, cluster: &Cluster) -> Result<()> {
    let text = &(case.text)(0);
    let mut client = cluster.connect("bench")?;
    let embed = client.prepare("SELECT laser_embed($1)")?;
    let nothing = client.prepare("SELECT $1::text")?;
    let (mut bare, mut sql, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..10 {
        for _ in 0..case.calls / 10 {
            bare.push(timed(|| {
                encoder.encode(&[text]).map(drop).map_err(Into::into)
            })?);
        }
        for _ in 0..case.calls / 10 {
            sql.push(timed(|| run(&mut client, &embed, text))?);
        }
        for _ in 0..case.calls / 10 {
            empty.push(timed(|| run(&mut client, &nothing, text))?);
        }
    }
    let (bare, sql, empty) = (median(bare), median(sql), median(empty));
    println!("one text, median of {} calls, microseconds", case.calls);
    println!("  bare encoder                           {bare:9.0}");
    println!("  SQL, prepared statement                {sql:9.0}");
    println!("  a prepared statement without laser     {empty:9.0}");
    println!(
        "  SQL costs                              {:9.0}   more than the bare encoder (goal: 200)",
        sql - bare
    );
    Ok(())
}

/// Executes a statement with one parameter and fetches its row.
fn run(client: &mut Client, statement: &Statement, text: &str) -> Result<()> {
    ensure!(client.execute(statement, &[&text])? == 1);
    Ok(())
}

/// What a client does with its texts.
#[derive(Clone, Copy)]
enum Work {
    /// One statement that calls `laser_embed` for each row of a table.
    Rows,
    /// One prepared statement a text.
    Statements,
    /// The same, without laser.
    Nothing,
}

/// A measurement of some texts.
#[derive(Clone, Copy)]
struct Cost {
    /// Texts a second.
    rate: f64,
    /// Microseconds of processor time a text.
    processor: f64,
}

impl Cost {
    fn of(texts: usize, seconds: f64, processor: f64) -> Self {
        Self {
            rate: texts as f64 / seconds,
            processor: 1e6 * processor / texts as f64,
        }
    }

    fn best(costs: &[Self]) -> Self {
        Self {
            rate: costs.iter().map(|c| c.rate).fold(0.0, f64::max),
            processor: costs.iter().map(|c| c.processor).fold(f64::MAX, f64::min),
        }
    }
}

fn throughput(case: &Case, clients: usize, encoder: &Encoder, cluster: &Cluster) -> Result<()> {
    let mut admin = cluster.connect("bench")?;
    admin.batch_execute(
        "CREATE TABLE texts (client bigint, body text); CREATE INDEX ON texts (client)",
    )?;
    let (mut bare, mut rows, mut statements, mut nothing) = (vec![], vec![], vec![], vec![]);
    let total = clients * case.texts;
    for round in 0..case.rounds {
        for (part, work, costs) in [
            (0, Work::Rows, &mut rows),
            (1, Work::Statements, &mut statements),
        ] {
            // Neither side has seen these.
            let first = (2 * round + part) * total;
            let texts: Vec<String> = (first..first + total).map(case.text).collect();
            let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
            let (start, processor) = (Instant::now(), own_processor_time());
            for batch in borrowed.chunks(2048) {
                let embeddings = encoder.encode(batch)?;
                ensure!(embeddings.truncated.len() == batch.len());
            }
            let seconds = start.elapsed().as_secs_f64();
            bare.push(Cost::of(total, seconds, own_processor_time() - processor));
            admin.batch_execute("TRUNCATE texts")?;
            admin.execute(
                "INSERT INTO texts SELECT (n - 1) / $2, body
                 FROM unnest($1::text[]) WITH ORDINALITY u (body, n)",
                &[&texts, &(case.texts as i64)],
            )?;
            admin.batch_execute("VACUUM ANALYZE texts")?;
            costs.push(cost(cluster, case.texts, &texts, work)?);
            if matches!(work, Work::Statements) {
                nothing.push(cost(cluster, case.texts, &texts, Work::Nothing)?);
            }
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!(
        "{clients} clients x {} single texts, best of {} rounds, {cores} cores",
        case.texts, case.rounds
    );
    println!(
        "  {:<36}{:>12}{:>8}{:>14}{:>8}",
        "", "texts/s", "ratio", "CPU us/text", "ratio"
    );
    let bare = Cost::best(&bare);
    for (what, costs) in [
        ("bare encoder, batches of 2048", vec![bare]),
        ("SQL, one call a row of a table", rows),
        ("SQL, one prepared statement a text", statements),
        ("prepared statements without laser", nothing),
    ] {
        let cost = Cost::best(&costs);
        println!(
            "  {what:<36}{:>12.0}{:>8.2}{:>14.2}{:>8.2}",
            cost.rate,
            cost.rate / bare.rate,
            cost.processor,
            bare.processor / cost.processor
        );
    }
    Ok(())
}

/// All clients together, each with its share of `share` texts.
fn cost(cluster: &Cluster, share: usize, texts: &[String], work: Work) -> Result<Cost> {
    let clients = texts.chunks(share).count();
    let barrier = std::sync::Barrier::new(clients + 1);
    let encoder: Option<i32> = cluster
        .connect("bench")?
        .query_one("SELECT pid FROM laser_encoder_status", &[])?
        .get(0);
    std::thread::scope(|scope| {
        let sessions: Vec<_> = texts
            .chunks(share)
            .enumerate()
            .map(|(number, own)| {
                let (config, barrier) = (cluster.config("bench"), &barrier);
                scope.spawn(move || -> Result<f64> {
                    let mut client = config.connect(NoTls)?;
                    let one = client.prepare(match work {
                        Work::Nothing => "SELECT $1::text",
                        _ => "SELECT laser_embed($1)",
                    })?;
                    client.execute(&one, &[&"warm"])?;
                    let before = session_processor_time(&mut client)?;
                    barrier.wait();
                    if let Work::Rows = work {
                        let row = client.query_one(
                            "SELECT count(laser_embed(body)) FROM texts WHERE client = $1",
                            &[&(number as i64)],
                        )?;
                        ensure!(row.get::<_, i64>(0) == own.len() as i64);
                    } else {
                        for text in own {
                            client.execute(&one, &[text])?;
                        }
                    }
                    Ok(session_processor_time(&mut client)? - before)
                })
            })
            .collect();
        barrier.wait();
        let (start, own, process) = (
            Instant::now(),
            own_processor_time(),
            processor_time_of(encoder),
        );
        let mut processor = 0.0;
        for session in sessions {
            match session.join() {
                Ok(seconds) => processor += seconds?,
                Err(_) => bail!("a client has failed"),
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        processor += own_processor_time() - own + processor_time_of(encoder) - process;
        Ok(Cost::of(texts.len(), seconds, processor))
    })
}

/// Seconds of processor time of all threads of this process.
fn own_processor_time() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure is valid for the call, which writes to it.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The same of the server process of a session. NaN where Linux does not count it.
fn session_processor_time(client: &mut Client) -> Result<f64> {
    let row = client.query_one(
        "SELECT pg_read_file('/proc/self/schedstat', 0, 100, true)",
        &[],
    )?;
    Ok(scheduled(row.get::<_, Option<&str>>(0).unwrap_or_default()))
}

/// The same of another process.
fn processor_time_of(pid: Option<i32>) -> f64 {
    let Some(pid) = pid else { return 0.0 };
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return f64::NAN;
    };
    threads
        .flatten()
        .map(|thread| std::fs::read_to_string(thread.path().join("schedstat")))
        .map(|text| scheduled(&text.unwrap_or_default()))
        .sum()
}

/// The first field of a schedstat file: nanoseconds on a processor.
fn scheduled(text: &str) -> f64 {
    let nanoseconds = text.split(' ').next().and_then(|n| n.parse::<f64>().ok());
    nanoseconds.map_or(f64::NAN, |n| n / 1e9)
}

/// Microseconds that `f` takes.
fn timed(mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    f()?;
    Ok(start.elapsed().as_nanos() as f64 / 1e3)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn open_to_all(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_to_all(&entry.path())?;
        } else {
            std::fs::set_permissions(entry.path(), std::fs::Permissions::from_mode(0o644))?;
        }
    }
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}
