//! Models that are missing, broken, repaired, replaced or too many.

use anyhow::{Context, Result};
use laser_tests::model::{Architecture, Model};
use laser_tests::{failure, wait_until};
use postgres::Client;
use postgres::error::SqlState;

use super::support::{embed, models, running_encoder};

#[test]
fn a_missing_model_is_an_error_until_it_is_installed() -> Result<()> {
    let (folder, builder) = models()?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let statement = "SELECT laser_embed('text', 'other')";
    let (code, message, hint) = failure(&mut client, statement)?;
    assert_eq!(code, SqlState::UNDEFINED_OBJECT);
    assert_eq!(message, "model \"other\" does not exist");
    assert!(hint.contains("laser_models"), "{hint}");
    for bad in ["../tiny", "/etc", ".", "a b"] {
        let (code, ..) = failure(&mut client, &format!("SELECT laser_embed('text', '{bad}')"))?;
        assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE, "{bad}");
        let (code, ..) = failure(&mut client, &format!("SET laser.model = '{bad}'"))?;
        assert_eq!(code, SqlState::INVALID_PARAMETER_VALUE, "{bad}");
    }
    client.batch_execute("SET laser.model = 'other'")?;
    let (code, ..) = failure(&mut client, "SELECT laser_embed('text')")?;
    assert_eq!(code, SqlState::UNDEFINED_OBJECT);

    Model::tiny("other", 16).write(folder.path())?;
    assert_eq!(embed(&mut client, "text")?.len(), 16);
    client.batch_execute("RESET laser.model")?;
    assert_eq!(embed(&mut client, "text")?.len(), 32);
    Ok(())
}

#[test]
fn a_broken_model_is_an_error_until_it_is_repaired() -> Result<()> {
    let (folder, builder) = models()?;
    let broken = Model::tiny("broken", 16).write(folder.path())?;
    let weights = std::fs::read(broken.join("model.safetensors"))?;
    let replace = |file: &str, contents: &[u8]| -> Result<()> {
        let new = broken.join("new");
        std::fs::write(&new, contents)?;
        std::fs::rename(new, broken.join(file))?;
        Ok(())
    };
    replace("model.safetensors", &weights[..weights.len() / 2])?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    let encoder = running_encoder(&mut client)?;
    let statement = "SELECT laser_embed('text', 'broken')";
    for _ in 0..2 {
        let (code, message, hint) = failure(&mut client, statement)?;
        assert_eq!(code, SqlState::CONFIG_FILE_ERROR);
        assert!(
            message.contains("could not load model \"broken\""),
            "{message}"
        );
        assert!(message.contains("model.safetensors"), "{message}");
        assert!(
            !message.contains(&*folder.path().to_string_lossy()),
            "{message}"
        );
        assert!(!hint.is_empty());
    }
    let error: Option<String> = client
        .query_one("SELECT error FROM laser_models WHERE name = 'broken'", &[])?
        .get(0);
    let error = error.unwrap_or_default();
    assert!(error.contains("model.safetensors"), "{error}");
    assert!(
        !error.contains(&*folder.path().to_string_lossy()),
        "{error}"
    );
    // Others are not concerned.
    embed(&mut client, "text")?;

    // What was wrong with a folder says nothing once it is another one, though nobody has tried it since.
    replace("model.safetensors", &weights)?;
    let error: Option<String> = client
        .query_one("SELECT error FROM laser_models WHERE name = 'broken'", &[])?
        .get(0);
    assert_eq!(error, None);
    client.batch_execute(statement)?;

    for (file, contents) in [
        ("config.json", &b"{ not json"[..]),
        ("tokenizer.json", b"[]"),
        ("model.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    ] {
        let good = std::fs::read(broken.join(file))?;
        replace(file, contents)?;
        wait_until("the encoder has noticed", || {
            Ok(client.batch_execute(statement).is_err())
        })?;
        let (code, ..) = failure(&mut client, statement)?;
        assert_eq!(code, SqlState::CONFIG_FILE_ERROR, "{file}");
        replace(file, &good)?;
        client.batch_execute(statement)?;
    }
    assert_eq!(
        running_encoder(&mut client)?,
        encoder,
        "the process has survived all of it"
    );
    Ok(())
}

/// Sets a soft limit of a process of the server's, as `prlimit` names it.
fn set_limit(client: &mut Client, pid: u32, limit: &str) -> Result<(), postgres::Error> {
    let program = format!("prlimit --pid {pid} --{limit}:");
    client.batch_execute(&format!("COPY (SELECT WHERE false) TO PROGRAM '{program}'"))
}

/// What was wrong with the machine and not with the folder is over some time.
#[test]
fn a_model_that_met_a_bad_moment_is_tried_again() -> Result<()> {
    let (folder, builder) = models()?;
    Model::tiny("other", 16).write(folder.path())?;
    let cluster = builder.start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let encoder = running_encoder(&mut client)?;
    let mut limit = |files: &str| set_limit(&mut client, encoder, &format!("nofile={files}"));
    let statement = "SELECT laser_embed('text', 'other')";
    // A session that is connected asks: nobody else can be connected now.
    let mut connected = cluster.connect("d")?;
    embed(&mut connected, "text")?;
    limit("3")?;
    let (code, message, _) = failure(&mut connected, statement)?;
    assert_eq!(code, SqlState::CONFIG_FILE_ERROR, "{message}");
    limit("1024")?;
    wait_until("the model is tried again", || {
        Ok(connected.batch_execute(statement).is_ok())
    })?;
    assert_eq!(running_encoder(&mut client)?, encoder);
    Ok(())
}

#[test]
fn a_lack_of_memory_does_not_blame_a_models_files() -> Result<()> {
    let (folder, builder) = models()?;
    let large = Model {
        architecture: Architecture::Transformer,
        ..Model::tiny("large", 64)
    };
    large.write(folder.path())?;
    let cluster = builder.setting("laser.encoder_threads", "1").start()?;
    let mut client = cluster.database("d")?;
    embed(&mut client, "text")?;
    let encoder = running_encoder(&mut client)?;
    let mut limit = |bytes: &str| set_limit(&mut client, encoder, &format!("as={bytes}"));
    let mut connected = cluster.connect("d")?;
    embed(&mut connected, "text")?;
    // Enough for the files, and not for the 32 MB that weights are packed into.
    let pages: u64 = std::fs::read_to_string(format!("/proc/{encoder}/statm"))?
        .split(' ')
        .next()
        .context("the size")?
        .parse()?;
    limit(&format!("{}", pages * 4096 + (16 << 20)))?;
    let statement = "SELECT laser_embed('text', 'large')";
    let (code, message, hint) = failure(&mut connected, statement)?;
    assert_eq!(code, SqlState::OUT_OF_MEMORY, "{message}");
    assert!(message.contains("out of memory"), "{message}");
    assert!(hint.contains("too little memory"), "{hint}");
    limit("unlimited")?;
    wait_until("the model is tried again", || {
        Ok(connected.batch_execute(statement).is_ok())
    })?;
    assert_eq!(running_encoder(&mut client)?, encoder);
    Ok(())
}

/// A model has the table of another one beside it, for as long as that is the one it was made for.
#[test]
fn a_model_on_a_base_follows_its_base() -> Result<()> {
    use laser_model::{base, folder};

    let (models, builder) = models()?;
    let mean = Model::tiny("mean", 16);
    let order = Model {
        architecture: Architecture::ResidualBilstm,
        ..Model::tiny("order", 16)
    };
    let path = mean.write(models.path())?;
    let fingerprint = base::hex(&folder::fingerprint(&path)?);
    order.write_on(models.path(), "mean", &fingerprint)?;
    let whole = Model {
        name: "whole".into(),
        ..order.clone()
    };
    whole.write(models.path())?;
    // On a busy machine `auto` may choose another precision for one than for the other.
    let cluster = builder.setting("laser.encoder_precision", "f32").start()?;
    let mut client = cluster.database("d")?;
    let embed = "SELECT laser_embed('dog bites man', 'order')";
    let same =
        "SELECT laser_embed('dog bites man', 'order') = laser_embed('dog bites man', 'whole')";
    let described = |client: &mut Client| -> Result<(Option<String>, Option<String>, bool)> {
        let row = client.query_one(
            "SELECT fingerprint, error, loaded FROM laser_models WHERE name = 'order'",
            &[],
        )?;
        Ok((row.get(0), row.get(1), row.get(2)))
    };
    let (before, error, loaded) = described(&mut client)?;
    assert_eq!((error, loaded), (None, false));
    assert!(client.query_one(same, &[])?.get::<_, bool>(0));
    assert_eq!(described(&mut client)?, (before.clone(), None, true));

    // Another base under the same name: what stands in memory is no longer what stands on the disk.
    let replace = |seed: u64| -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let other = Model {
            seed,
            ..mean.clone()
        };
        let from = other.write(scratch.path())?.join("model.safetensors");
        std::fs::copy(from, path.join("new"))?;
        Ok(std::fs::rename(
            path.join("new"),
            path.join("model.safetensors"),
        )?)
    };
    replace(7)?;
    wait_until("the encoder has noticed", || {
        Ok(client.batch_execute(embed).is_err())
    })?;
    let (code, message, _) = failure(&mut client, embed)?;
    assert_eq!(code, SqlState::CONFIG_FILE_ERROR);
    let what = format!(
        "builds on model \"mean\" with fingerprint {}",
        &fingerprint[..16]
    );
    assert!(message.contains(&what), "{message}");
    let shown = models.path().to_string_lossy();
    assert!(!message.contains(&*shown), "{message}");
    let (_, error, loaded) = described(&mut client)?;
    assert!(error.is_some_and(|e| e.contains(&what) && !e.contains(&*shown)));
    assert!(!loaded);

    // The model for the new base is another model than the one before.
    let other = base::hex(&folder::fingerprint(&path)?);
    order.write_on(models.path(), "mean", &other)?;
    wait_until("the encoder has noticed", || {
        Ok(client.batch_execute(embed).is_ok())
    })?;
    assert!(!client.query_one(same, &[])?.get::<_, bool>(0));
    let (after, error, _) = described(&mut client)?;
    assert_eq!(error, None);
    assert_ne!(before, after);

    // Without its base it is listed, and says what is missing.
    replace(mean.seed)?;
    order.write_on(models.path(), "mean", &fingerprint)?;
    wait_until("the encoder has noticed", || {
        Ok(client.query_one(same, &[]).is_ok_and(|row| row.get(0)))
    })?;
    std::fs::rename(&path, models.path().join("gone"))?;
    wait_until("the encoder has noticed", || {
        Ok(client.batch_execute(embed).is_err())
    })?;
    let (_, message, _) = failure(&mut client, embed)?;
    assert!(
        message.contains("\"mean\", which is not beside it"),
        "{message}"
    );
    let (_, error, _) = described(&mut client)?;
    assert!(error.is_some_and(|e| e.contains("not beside it")));
    Ok(())
}

#[test]
fn models_beyond_the_memory_limit_are_dropped() -> Result<()> {
    let (folder, builder) = models()?;
    // 256 x 1024 x 4 bytes: one megabyte each.
    for name in ["a", "b", "c"] {
        Model::tiny(name, 1024).write(folder.path())?;
    }
    // Two and what they need besides.
    let cluster = builder.setting("laser.encoder_memory", "3MB").start()?;
    let mut client = cluster.database("d")?;
    let mut resident = |names: &[&str]| -> Result<(Vec<String>, i64)> {
        for name in names {
            client.batch_execute(&format!("SELECT laser_embed('text', '{name}')"))?;
        }
        let row = client.query_one(
            "SELECT loaded_models, memory_bytes FROM laser_encoder_status",
            &[],
        )?;
        let mut loaded: Vec<String> = row.get(0);
        // The default model, which the process loads when it starts.
        loaded.retain(|name| name != "tiny");
        Ok((loaded, row.get(1)))
    };
    assert_eq!(resident(&["a", "b"])?.0, ["a", "b"]);
    let (loaded, memory) = resident(&["a", "c"])?;
    assert_eq!(loaded, ["a", "c"], "the least recently used one is dropped");
    assert!((2 << 20..=3 << 20).contains(&memory), "{memory}");
    // A dropped one comes back.
    assert_eq!(resident(&["b"])?.0, ["b", "c"]);
    Ok(())
}
