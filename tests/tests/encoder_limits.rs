//! The limits of the encoder process: threads, processors, memory, arithmetic.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use laser_tests::model::{Architecture, Model};
use laser_tests::{Cluster, failure, wait_until};
use postgres::Client;
use postgres::error::SqlState;

fn transformer(name: &str, dimensions: usize) -> Model {
    Model {
        architecture: Architecture::Transformer,
        ..Model::tiny(name, dimensions)
    }
}

fn encoder(client: &mut Client) -> Result<u32> {
    let mut pid = None;
    wait_until("the encoder answers", || {
        pid = client
            .query_one("SELECT pid FROM laser_encoder_status", &[])?
            .get::<_, Option<i32>>(0);
        Ok(pid.is_some())
    })?;
    Ok(u32::try_from(pid.context("it answers")?)?)
}

/// Names of the threads of a process, and the processors that all of them may run on.
fn threads(pid: u32) -> Result<(Vec<String>, usize)> {
    let mut names = Vec::new();
    let mut processors = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        names.push(fs::read_to_string(task.join("comm"))?.trim().to_owned());
        let status = fs::read_to_string(task.join("status"))?;
        let mask = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed:"))
            .context("the kernel says where it may run")?;
        let here: u32 = mask
            .trim()
            .split(',')
            .map(|part| u32::from_str_radix(part, 16).map(u32::count_ones))
            .sum::<Result<u32, _>>()?;
        processors = processors.max(here as usize);
    }
    names.sort();
    Ok((names, processors))
}

/// Seconds of processor time that a process has taken.
fn processor_time(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().context("fields")?;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<Result<u64, _>>()?;
    Ok(ticks as f64 / 100.0)
}

#[test]
fn encoder_threads_bound_the_process() -> Result<()> {
    let models = tempfile::tempdir()?;
    transformer("big", 256).write(models.path())?;
    Model {
        architecture: Architecture::BiLstm,
        ..Model::tiny("lstm", 128)
    }
    .write(models.path())?;
    let cluster = Cluster::builder()
        .models(models.path(), "big")
        .setting("laser.encoder_threads", "1")
        .start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT i, repeat(md5(i::text) || ' ', 3) AS body FROM generate_series(1, 4000) i;
         SELECT laser_embed('warm')",
    )?;
    let pid = encoder(&mut client)?;
    let before = (processor_time(pid)?, Instant::now());
    let end = Instant::now() + Duration::from_secs(4);
    std::thread::scope(|scope| {
        let sessions: Vec<_> = (0..4)
            .map(|i| {
                let model = ["big", "lstm"][i % 2];
                let cluster = &cluster;
                scope.spawn(move || -> Result<()> {
                    let mut client = cluster.connect("d")?;
                    while Instant::now() < end {
                        client.batch_execute(&format!(
                            "SELECT laser_embed(array_agg(body), '{model}')
                             FROM (SELECT body FROM t ORDER BY random() LIMIT 100) x"
                        ))?;
                    }
                    Ok(())
                })
            })
            .collect();
        sessions
            .into_iter()
            .try_for_each(|session| session.join().expect("no panic"))
    })?;
    let (time, wall) = (
        processor_time(pid)? - before.0,
        before.1.elapsed().as_secs_f64(),
    );
    let (names, processors) = threads(pid)?;
    // The event loop, which encodes, a thread in each pool of a library, and those that wait, or take their
    // turns on the same processor: for signals, loading, tokens, slow readers.
    ensure!(names.len() <= 7, "{names:?}");
    ensure!(
        names.iter().all(|name| !name.starts_with("encode-")),
        "{names:?}"
    );
    ensure!(processors == 1, "may run on {processors} processors");
    ensure!(
        time < 1.05 * wall + 0.1,
        "{time} s of processor time in {wall} s"
    );
    Ok(())
}

fn loaded(client: &mut Client) -> Result<(Vec<String>, i64)> {
    let row = client.query_one(
        "SELECT loaded_models, memory_bytes FROM laser_encoder_status",
        &[],
    )?;
    Ok((row.get(0), row.get(1)))
}

/// Bytes that a process has in memory.
fn resident(pid: u32) -> Result<i64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .context("VmRSS")?;
    Ok(kilobytes.parse::<i64>()? << 10)
}

fn bytes(folder: &Path) -> Result<i64> {
    Ok(i64::try_from(
        fs::metadata(folder.join("model.safetensors"))?.len(),
    )?)
}

#[test]
fn encoder_memory_bounds_the_models() -> Result<()> {
    let models = tempfile::tempdir()?;
    let folder = transformer("a", 768).write(models.path())?;
    for name in ["b", "c", "d"] {
        transformer(name, 768).write(models.path())?;
    }
    let huge = transformer("huge", 2048).write(models.path())?;
    let size = bytes(&folder)?;
    // Room for two of the four; each is in memory once as a file, and once as what was made of it.
    let limit = (5 * size) >> 20;
    ensure!(bytes(&huge)? >> 20 > limit);
    let cluster = Cluster::builder()
        .models(models.path(), "a")
        .setting("laser.encoder_memory", &format!("{limit}MB"))
        .start()?;
    let mut client = cluster.database("d")?;
    let pid = encoder(&mut client)?;
    for round in 0..3 {
        for name in ["a", "b", "c", "d"] {
            client.batch_execute(&format!("SELECT laser_embed('a text', '{name}')"))?;
            let (names, memory) = loaded(&mut client)?;
            ensure!(names.iter().any(|loaded| loaded == name), "{names:?}");
            ensure!(memory <= limit << 20, "{names:?} take {memory} bytes");
            let resident = resident(pid)?;
            ensure!(
                resident < (limit << 20) + (64 << 20),
                "round {round}: {resident} bytes are resident, the limit is {limit} MB"
            );
        }
    }
    let (code, message, hint) = failure(&mut client, "SELECT laser_embed('a text', 'huge')")?;
    ensure!(code == SqlState::CONFIG_FILE_ERROR, "{message}");
    ensure!(message.contains("MB, laser.encoder_memory is"), "{message}");
    ensure!(hint.contains("laser.encoder_memory"), "{hint}");
    // What was there is there still.
    ensure!(!loaded(&mut client)?.0.is_empty());
    client.batch_execute("SELECT laser_embed('a text', 'd')")?;
    ensure!(encoder(&mut client)? == pid);
    Ok(())
}

/// A file that is larger than any model may be is not read to its end, which would keep the thread that loads models
/// from all others.
#[test]
fn files_beyond_the_memory_are_not_read() -> Result<()> {
    let models = tempfile::tempdir()?;
    for name in ["one", "two", "config", "tokenizer", "weights"] {
        Model::tiny(name, 32).write(models.path())?;
    }
    for (name, file) in [
        ("config", "config.json"),
        ("tokenizer", "tokenizer.json"),
        ("weights", "model.safetensors"),
    ] {
        // Not a block of it is on the disk.
        std::fs::File::options()
            .write(true)
            .open(models.path().join(name).join(file))?
            .set_len(1 << 41)?;
    }
    let cluster = Cluster::builder()
        .models(models.path(), "one")
        .setting("laser.encode_in_backend", "off")
        .start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute("SET statement_timeout = '30s'")?;
    let rows = client.query(
        "SELECT name, error FROM laser_models WHERE NOT name ~ 'laser' ORDER BY name",
        &[],
    )?;
    for row in &rows {
        let (name, error): (String, Option<String>) = (row.get(0), row.get(1));
        let sound = ["one", "two"].contains(&&*name);
        ensure!(error.is_none() == sound, "{name}: {error:?}");
        let sql = format!("SELECT laser_embed('a text', '{name}')");
        if sound {
            client.batch_execute(&sql)?;
        } else {
            let (_, message, _) = failure(&mut client, &sql)?;
            ensure!(
                message.contains("laser.encoder_memory is") || message.contains("too large"),
                "{message}"
            );
        }
    }
    ensure!(rows.len() == 5);
    Ok(())
}

#[test]
fn a_precision_that_a_model_does_not_have_is_told() -> Result<()> {
    let models = tempfile::tempdir()?;
    transformer("wide", 32).write(models.path())?;
    transformer("other", 32).write(models.path())?;
    Model {
        architecture: Architecture::BiLstm,
        ..Model::tiny("lstm", 32)
    }
    .write(models.path())?;
    let cluster = Cluster::builder()
        .models(models.path(), "lstm")
        .setting("laser.encoder_precision", "i8")
        .start()?;
    let mut client = cluster.database("d")?;
    let shipped = "laser-mean-384";
    client.batch_execute(&format!(
        "SELECT laser_embed('x', 'wide'), laser_embed('x', 'lstm'), laser_embed('x', '{shipped}')"
    ))?;
    let rows = client.query("SELECT name, precision FROM laser_models", &[])?;
    let of = |name: &str| {
        rows.iter()
            .find(|row| row.get::<_, &str>(0) == name)
            .and_then(|row| row.get::<_, Option<String>>(1))
    };
    ensure!(of("lstm").as_deref() == Some("i8"), "{:?}", of("lstm"));
    ensure!(of("wide").as_deref() == Some("i8"), "{:?}", of("wide"));
    // A mean has no products.
    ensure!(
        of(shipped).as_deref() == Some("f32, not i8"),
        "{:?}",
        of(shipped)
    );
    // Nothing is known of what is not loaded.
    ensure!(of("other").is_none());
    let line = format!("model \"{shipped}\" runs in f32");
    ensure!(cluster.log().contains(&line));
    Ok(())
}

#[test]
fn messages_name_the_cause() -> Result<()> {
    let models = tempfile::tempdir()?;
    transformer("wide", 32).write(models.path())?;
    let missing = models.path().join("nowhere");
    let path = format!("{}:{}", missing.display(), models.path().display());
    let cluster = Cluster::builder()
        .setting("laser.model_path", &path)
        .setting("laser.model", "wide")
        .setting("laser.device", "cuda")
        .start()?;
    let mut client = cluster.database("d")?;
    // The build has no CUDA, or the machine no such device.
    let (_, message, hint) = failure(&mut client, "SELECT laser_embed('x')")?;
    ensure!(message.contains("CUDA"), "{message}");
    ensure!(hint.contains("laser.device"), "{hint}");
    ensure!(!hint.contains("model's folder"), "{hint}");
    let (_, message, hint) = failure(&mut client, "SELECT laser_embed('x', 'nothing')")?;
    ensure!(message.contains("does not exist"), "{message}");
    ensure!(hint.contains("laser.model_path"), "{hint}");
    ensure!(!hint.contains("nowhere"), "{hint}");
    let told = format!(
        "directory \"{}\" for models does not exist",
        missing.display()
    );
    ensure!(cluster.log().contains(&told));
    Ok(())
}
