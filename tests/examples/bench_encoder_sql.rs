//! What SQL costs on top of the bare encoder.
//!
//! ```text
//! make bench-encoder        (or: cargo run --release -p laser-tests --example bench_encoder_sql)
//!   -- [--model FOLDER] [--clients N] [--texts N] [--rounds N]
//! ```
//!
//! Two questions, each answered by the ratio or difference of two measurements of the same run:
//! how many sentences a second many clients with single texts reach, compared with the encoder
//! crate alone on the same texts in large batches; and how much longer one short text takes.
//! Rounds alternate between the two, so that other load on the machine meets both. Without
//! `--model`, the model that ships is used, or, where there is none, a one-layer BiLSTM with
//! random weights.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use laser_encoder::{Encoder, LoadOptions};
use laser_tests::Cluster;
use laser_tests::model::{Architecture, Model};
use postgres::{Client, NoTls, Statement};

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

fn shipped() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../encoder/models");
    let mut models: Vec<PathBuf> = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("config.json").exists())
        .collect();
    models.sort();
    models.into_iter().next()
}

fn main() -> Result<()> {
    let arguments = arguments()?;
    let scratch = tempfile::tempdir()?;
    let (folder, what) = match arguments.model.clone().or_else(shipped) {
        Some(folder) => (folder, "model"),
        None => {
            let model = Model {
                architecture: Architecture::BiLstm,
                ..Model::tiny("random-bilstm", 512)
            };
            (model.write(scratch.path())?, "random weights")
        }
    };
    let folder = folder.canonicalize()?;
    let name = folder
        .file_name()
        .and_then(|n| n.to_str())
        .context("a model has a name")?;
    // The servers' account may not reach the folder: give it a copy.
    let models = scratch.path().join("models");
    copy(&folder, &models.join(name))?;
    open_to_all(scratch.path())?;

    let encoder = Encoder::load(&folder, &LoadOptions::default())?;
    println!(
        "{what} {name}: {}, {} dimensions, {}, {} threads",
        encoder.config().encoder.name(),
        encoder.dimensions(),
        encoder.precision().name(),
        encoder.threads()
    );
    let cluster = Cluster::builder().models(&models, name).start()?;
    let mut client = cluster.database("bench")?;
    let total = arguments.clients * arguments.texts;
    let texts: Vec<String> = (0..total)
        .map(|i| {
            let (beginning, ending) = (
                BEGINNINGS[i % BEGINNINGS.len()],
                ENDINGS[(i / 8) % ENDINGS.len()],
            );
            format!("{beginning} {i}{ending}")
        })
        .collect();
    client.batch_execute("CREATE TABLE texts (client int, body text)")?;
    let insert = client.prepare(
        "INSERT INTO texts SELECT (n - 1) / $2, body FROM unnest($1::text[]) WITH ORDINALITY u (body, n)",
    )?;
    client.execute(&insert, &[&texts, &(arguments.texts as i64)])?;
    client
        .batch_execute("CREATE INDEX ON texts (client); ANALYZE texts; SELECT laser_embed('x')")?;

    latency(&encoder, &cluster, arguments.rounds)?;
    throughput(&encoder, &cluster, &texts, &arguments)
}

fn latency(encoder: &Encoder, cluster: &Cluster, rounds: usize) -> Result<()> {
    let text = "Where is the railway station?";
    let mut client = cluster.connect("bench")?;
    let embed = client.prepare("SELECT laser_embed($1)")?;
    let nothing = client.prepare("SELECT $1::text")?;
    let (mut bare, mut sql, mut empty) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds * 10 {
        for _ in 0..40 {
            bare.push(timed(|| {
                encoder.encode(&[text]).map(drop).map_err(Into::into)
            })?);
        }
        for _ in 0..40 {
            sql.push(timed(|| run(&mut client, &embed, text))?);
        }
        for _ in 0..40 {
            empty.push(timed(|| run(&mut client, &nothing, text))?);
        }
    }
    let (bare, sql, empty) = (median(bare), median(sql), median(empty));
    println!();
    println!(
        "one short text, median of {} calls, microseconds",
        rounds * 400
    );
    println!("  bare encoder                {bare:8.0}");
    println!("  SQL, prepared statement     {sql:8.0}");
    println!("  a statement without it      {empty:8.0}");
    println!(
        "  SQL costs                   {:8.0} more than the bare encoder (goal: 200)",
        sql - bare
    );
    Ok(())
}

/// Executes a statement with one parameter and fetches its row.
fn run(client: &mut Client, statement: &Statement, text: &str) -> Result<()> {
    ensure!(client.execute(statement, &[&text])? == 1);
    Ok(())
}

fn throughput(
    encoder: &Encoder,
    cluster: &Cluster,
    texts: &[String],
    arguments: &Arguments,
) -> Result<()> {
    let (mut bare, mut rows, mut calls) = (0f64, 0f64, 0f64);
    let borrowed: Vec<&str> = texts.iter().map(String::as_str).collect();
    for _ in 0..arguments.rounds {
        let start = Instant::now();
        for batch in borrowed.chunks(2048) {
            let embeddings = encoder.encode(batch)?;
            ensure!(embeddings.truncated.len() == batch.len());
        }
        bare = bare.max(texts.len() as f64 / start.elapsed().as_secs_f64());
        rows = rows.max(clients(cluster, arguments, texts, false)?);
        calls = calls.max(clients(cluster, arguments, texts, true)?);
    }
    let batches: f64 = cluster
        .connect("bench")?
        .query_one(
            "SELECT sentences::float8 / batches FROM laser_encoder_status",
            &[],
        )?
        .get(0);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!();
    println!(
        "{} clients x {} single texts, sentences per second, best of {} rounds, {cores} cores",
        arguments.clients, arguments.texts, arguments.rounds
    );
    println!("  bare encoder, batches of 2048          {bare:9.0}");
    println!(
        "  SQL, one call a row of a table         {rows:9.0}   {:5.1} % (goal: 70 %)",
        100.0 * rows / bare
    );
    println!(
        "  SQL, one prepared statement a text     {calls:9.0}   {:5.1} % (goal: 70 %)",
        100.0 * calls / bare
    );
    println!("  sentences in a batch of the server     {batches:9.1} on average");
    Ok(())
}

/// Sentences per second of all clients together, each with its share of the texts.
fn clients(
    cluster: &Cluster,
    arguments: &Arguments,
    texts: &[String],
    statements: bool,
) -> Result<f64> {
    let barrier = std::sync::Barrier::new(arguments.clients + 1);
    std::thread::scope(|scope| {
        let sessions: Vec<_> = texts
            .chunks(arguments.texts)
            .enumerate()
            .map(|(number, own)| {
                let (config, barrier) = (cluster.config("bench"), &barrier);
                scope.spawn(move || -> Result<()> {
                    let mut client = config.connect(NoTls)?;
                    let one = client.prepare("SELECT laser_embed($1)")?;
                    client.execute(&one, &[&"warm"])?;
                    barrier.wait();
                    if statements {
                        for text in own {
                            client.execute(&one, &[text])?;
                        }
                    } else {
                        let row = client.query_one(
                            "SELECT count(laser_embed(body)) FROM texts WHERE client = $1",
                            &[&(number as i32)],
                        )?;
                        ensure!(row.get::<_, i64>(0) == own.len() as i64);
                    }
                    Ok(())
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        for session in sessions {
            match session.join() {
                Ok(result) => result?,
                Err(_) => bail!("a client has failed"),
            }
        }
        Ok(texts.len() as f64 / start.elapsed().as_secs_f64())
    })
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
