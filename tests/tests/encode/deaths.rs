//! Texts and models under which the process ends.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use laser_tests::model::Model;
use laser_tests::{Cluster, failure, process_exists, signal, wait_until};
use postgres::error::SqlState;
use postgres::{Client, NoTls};
use tempfile::TempDir;

use super::support::{embed, models, running_encoder, start_time};

/// Has a model's tokenizer make `bytes` bytes of each skull in a text.
fn swell(model: &Path, bytes: usize) -> Result<()> {
    let path = model.join("tokenizer.json");
    let tokenizer = std::fs::read_to_string(&path)?;
    let normalizer = format!(
        r#"{{ "type": "Replace", "pattern": {{ "String": "\u2620" }}, "content": "{}" }}"#,
        "x".repeat(bytes)
    );
    let changed = tokenizer.replace(r#"{ "type": "NFC" }"#, &normalizer);
    ensure!(changed != tokenizer);
    Ok(std::fs::write(&path, changed)?)
}

/// A folder with the model `tiny`, which makes 4 MB of each skull in a text, and a cluster whose
/// encoder has too little memory for dozens of them.
fn killers() -> Result<(TempDir, Cluster)> {
    let (models, builder) = models()?;
    swell(&models.path().join("tiny"), 4 << 20)?;
    let cluster = builder.setting("laser.encoder_threads", "2").start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let worker: i32 = client
        .query_one("SELECT worker_pid FROM laser_encoder_status", &[])?
        .get(0);
    let limit = format!("prlimit --pid {worker} --as={}:", 1u64 << 30);
    client.batch_execute(&format!("COPY (SELECT WHERE false) TO PROGRAM '{limit}'"))?;
    let encoder = running_encoder(&mut client)?;
    signal(encoder, libc::SIGKILL);
    wait_until("the process is gone", || Ok(!process_exists(encoder)))?;
    embed(&mut client, "text")?;
    Ok((models, cluster))
}

/// A model that the process does not survive loading is refused after a few times: whoever asks for it on and on does not
/// keep the process from the others.
#[test]
fn a_model_that_ends_the_process_is_refused() -> Result<()> {
    let (models, cluster) = killers()?;
    Model::tiny("hog", 32).write(models.path())?;
    swell(&models.path().join("hog"), 130 << 20)?;
    let mut client = cluster.connect("d")?;
    let mut refused = None;
    for attempt in 0..12 {
        running_encoder(&mut client)?;
        let (_, message, hint) = failure(&mut client, "SELECT laser_embed('text', 'hog')")?;
        if message.contains("again and again while it loaded model \"hog\"") {
            ensure!(hint.contains("It is tried again in "), "{hint}");
            refused = Some(attempt);
            break;
        }
        ensure!(message.contains("the encoder process"), "{message}");
    }
    // A statement tries more than once.
    ensure!(refused.is_some_and(|attempt| attempt > 0), "{refused:?}");
    let encoder = running_encoder(&mut client)?;
    for n in 0..20 {
        embed(&mut client, &format!("text {n}"))?;
        failure(&mut client, "SELECT laser_embed('text', 'hog')")?;
    }
    ensure!(running_encoder(&mut client)? == encoder);
    Ok(())
}

/// Calls `work` while other sessions embed texts, alone and in arrays, all of which must succeed.
fn beside_others(cluster: &Cluster, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let finished = AtomicBool::new(false);
    let answers = AtomicUsize::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let others: Vec<_> = (0..6)
            .map(|n| {
                let config = cluster.config("d");
                let (finished, answers) = (&finished, &answers);
                scope.spawn(move || -> Result<()> {
                    let mut client = config.connect(NoTls)?;
                    let sql = match n % 3 {
                        0 => "SELECT laser_embed('text ' || random())",
                        1 => "SELECT laser_embed(array_agg('text ' || random() || repeat('a b ', g % 99)))
                              FROM generate_series(1, 600) g",
                        _ => "SELECT laser_embed(array_agg('text ' || g)) FROM generate_series(1, 20) g",
                    };
                    while !finished.load(Ordering::SeqCst) {
                        client.batch_execute(sql)?;
                        answers.fetch_add(1, Ordering::SeqCst);
                    }
                    Ok(())
                })
            })
            .collect();
        let result = wait_until("the others are at work", || {
            Ok(answers.load(Ordering::SeqCst) > 60 || others.iter().any(|o| o.is_finished()))
        })
        .and_then(|()| work());
        finished.store(true, Ordering::SeqCst);
        for other in others {
            other.join().expect("no panic")?;
        }
        result
    })
}

/// Whoever's text ends the process gets an error; whose texts were under work at the same time do not.
#[test]
fn a_text_that_ends_the_encoder_fails_alone() -> Result<()> {
    let (_models, cluster) = killers()?;
    let mut client = cluster.connect("d")?;
    let server = start_time(&mut client)?;
    let refused = |client: &mut Client, sql: &str| -> Result<()> {
        let (code, message, hint) = failure(client, sql)?;
        ensure!(
            code == SqlState::EXTERNAL_ROUTINE_EXCEPTION,
            "{code:?}: {message}"
        );
        ensure!(message.contains("on one text alone"), "{message}");
        ensure!(
            hint.contains("ten minutes") && !hint.contains('\u{2620}'),
            "{hint}"
        );
        Ok(())
    };
    let short = "SELECT laser_embed(repeat(U&'\\2620', 60))";
    let long = "SELECT laser_embed(ARRAY['a', 'b', repeat(U&'\\2620', 400)])";
    beside_others(&cluster, || {
        refused(&mut client, short)?;
        // Another one, and both again, for which nobody dies.
        refused(&mut client, long)?;
        let encoder = running_encoder(&mut client)?;
        refused(&mut client, short)?;
        refused(&mut client, long)?;
        client.batch_execute("SELECT laser_embed(ARRAY['a', 'b'])")?;
        ensure!(running_encoder(&mut client)? == encoder);
        Ok(())
    })?;
    // Two sessions with such a text at a time.
    beside_others(&cluster, || {
        std::thread::scope(|scope| -> Result<()> {
            let two: Vec<_> = (0..2)
                .map(|n| {
                    let config = cluster.config("d");
                    scope.spawn(move || -> Result<()> {
                        let text = format!("SELECT laser_embed('{n}' || repeat(U&'\\2620', 62))");
                        refused(&mut config.connect(NoTls)?, &text)
                    })
                })
                .collect();
            two.into_iter()
                .try_for_each(|one| one.join().expect("no panic"))
        })
    })?;
    // Changed settings restart the process, and what was refused is tried again.
    let deaths = cluster.log().matches("was ended by signal 6").count();
    ensure!(deaths >= 12, "{deaths} deaths");
    cluster.set("laser.encoder_queue", "9999")?;
    cluster.reload();
    wait_until("the text is tried again", || {
        refused(&mut client, short)?;
        Ok(cluster.log().matches("was ended by signal 6").count() > deaths)
    })?;
    assert_eq!(start_time(&mut client)?, server);
    Ok(())
}
