//! Databases whose encoding is not UTF-8.

use anyhow::{Result, ensure};
use laser_tests::Cluster;

#[test]
fn names_may_have_any_letters() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.connect("postgres")?.batch_execute(
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )?;
    let mut client = cluster.connect("latin")?;
    client.batch_execute(
        r#"CREATE EXTENSION laser;
           CREATE TABLE "tü" (id int, "vü" text, e embedding(384));
           INSERT INTO "tü" SELECT g, 'text ' || g FROM generate_series(1, 50) g;
           CREATE INDEX "iü" ON "tü" USING laser ("vü");
           CREATE TABLE "sü" (LIKE laser_mining_state INCLUDING ALL)"#,
    )?;
    client.batch_execute(r#"CALL laser_embed_table('"tü"', 'vü', 'e', 10)"#)?;
    client.batch_execute(
        r#"SELECT laser_mine_update('"sü"', 'SELECT id, "vü" FROM "tü"', 'SELECT id, "vü" FROM "tü"');
           SELECT laser_mine_update('"sü"', 'SELECT id, "vü" FROM "tü" WHERE id > 5', 'SELECT id, "vü" FROM "tü"');
           SELECT laser_mine_stored('"sü"');
           INSERT INTO "tü" VALUES (51, 'another text');
           SELECT laser_merge('"iü"');
           SET enable_seqscan = off"#,
    )?;
    let row = client.query_one(
        r#"SELECT (SELECT count(e) FROM "tü"), (SELECT count(*) FROM laser_index_check('"iü"')),
                  (SELECT id FROM "tü" ORDER BY "vü" <=> 'text 7' LIMIT 1)"#,
        &[],
    )?;
    let found: (i64, i64, i32) = (row.get(0), row.get(1), row.get(2));
    ensure!(found == (50, 0, 7), "{found:?}");
    let row = client.query_one(
        r#"SELECT laser_index_recall('"iü"', 5), (SELECT live + pending FROM laser_index_info('"iü"'))"#,
        &[],
    )?;
    let found: (f64, i64) = (row.get(0), row.get(1));
    // Versions of rows that VACUUM has not taken away are entries as well.
    ensure!(found.0 == 1.0 && found.1 >= 51, "{found:?}");
    Ok(())
}
