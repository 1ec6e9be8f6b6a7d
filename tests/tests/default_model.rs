//! Which model embeds where none is named, whatever is copied into the model folders.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use laser_tests::model::{Model, with_two_models};
use laser_tests::{Cluster, failure, wait_until};
use postgres::Client;
use postgres::error::SqlState;

const SHIPPED: &str = "laser-mean-384";

fn embedding(client: &mut Client) -> Result<Vec<f32>> {
    Ok(client
        .query_one("SELECT laser_embed('Guten Morgen')::real[]", &[])?
        .get(0))
}

fn default_models(client: &mut Client) -> Result<Vec<String>> {
    let rows = client.query("SELECT name FROM laser_models WHERE is_default", &[])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

#[test]
fn a_new_folder_does_not_become_the_default() -> Result<()> {
    for preload in [true, false] {
        let models = tempfile::tempdir()?;
        Model::tiny("zebra", 384).write(models.path())?;
        let cluster = Cluster::builder()
            .preload(preload)
            .models(models.path(), "")
            .start()?;
        let mut client = cluster.database("d")?;
        ensure!(default_models(&mut client)? == [SHIPPED]);
        let before = embedding(&mut client)?;
        client.batch_execute(
            "CREATE TABLE t AS SELECT i AS id, 'sentence ' || i AS body FROM generate_series(1, 900) i;
             CREATE INDEX ON t USING laser (body)",
        )?;

        Model::tiny("aardvark", 384).write(models.path())?;
        sleep(Duration::from_millis(2500));
        ensure!(default_models(&mut client)? == [SHIPPED], "{preload}");
        ensure!(embedding(&mut client)? == before, "{preload}");
        let mut other = cluster.connect("d")?;
        ensure!(embedding(&mut other)? == before, "{preload}");
        other.batch_execute("SELECT id FROM t ORDER BY body <=> 'a question' LIMIT 1")?;

        // What was configured stays the default as well, and is one by its name alone.
        cluster.set("laser.model", "zebra")?;
        cluster.reload();
        wait_until("the default is another model", || {
            Ok(default_models(&mut client)? == ["zebra"])
        })?;
        std::fs::remove_dir_all(models.path().join("zebra"))?;
        wait_until("the default is missing", || {
            Ok(client.batch_execute("SELECT laser_embed('x')").is_err())
        })?;
        let (code, message, _) = failure(&mut client, "SELECT laser_embed('x')")?;
        ensure!(code == SqlState::UNDEFINED_OBJECT, "{message}");
        ensure!(message.contains("\"zebra\" does not exist"), "{message}");
    }
    Ok(())
}

/// The default of a session may be that of its role or database.
#[test]
fn an_empty_setting_is_the_default_of_the_session() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT i AS id, 'sentence ' || i AS body, NULL::embedding(32) AS m
         FROM generate_series(1, 900) i; ALTER DATABASE d SET laser.model = 'two'",
    )?;
    let mut client = cluster.connect("d")?;
    client.batch_execute("CREATE INDEX ON t USING laser (body)")?;
    client.batch_execute("CALL laser_embed_table('t', 'body', 'm')")?;
    for set in ["RESET laser.model", "SET laser.model = ''"] {
        client.batch_execute(set)?;
        let row = client.query_one(
            "SELECT split_part(laser_model_label(''), ' ', 1), laser_embed('x') = laser_embed('x', 'two')",
            &[],
        )?;
        ensure!(row.get::<_, String>(0) == "two" && row.get(1), "{set}");
        client.batch_execute("SELECT id FROM t ORDER BY body <=> 'x' LIMIT 1")?;
        let nearest = "SELECT id FROM t ORDER BY m <=> laser_embed('sentence 7') LIMIT 1";
        ensure!(
            client.query_one(nearest, &[])?.get::<_, i32>(0) == 7,
            "{set}"
        );
    }
    client.batch_execute("SET laser.model = 'one'")?;
    let (_, message, _) = failure(&mut client, "SELECT m <=> laser_embed('x') FROM t")?;
    ensure!(message.starts_with("embeddings of two models"), "{message}");
    Ok(())
}
