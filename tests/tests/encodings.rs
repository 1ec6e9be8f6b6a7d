//! Databases whose encoding is not UTF-8.

use anyhow::{Result, ensure};
use laser_tests::Cluster;
use postgres::Client;

/// A session in a database of its own, whose letters are those of Latin-1.
fn latin(cluster: &Cluster) -> Result<Client> {
    cluster.connect("postgres")?.batch_execute(
        "CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    )?;
    cluster.connect("latin")
}

#[test]
fn names_may_have_any_letters() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = latin(&cluster)?;
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

/// The planner and the executor run below functions of this library, whether a database has the extension or
/// not: their errors come as they are.
#[test]
fn errors_of_others_keep_their_letters_and_fields() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = latin(&cluster)?;
    client.batch_execute("CREATE ROLE nobody")?;
    client.batch_execute(
        r#"CREATE TABLE "größe" (a int);
           CREATE FUNCTION boom() RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
           BEGIN
               RAISE EXCEPTION 'büm' USING CONSTRAINT = 'con', COLUMN = 'col', TABLE = 'tab', SCHEMA = 'sch',
                   DATATYPE = 'typ', DETAIL = 'détail', HINT = 'hint';
           END $$;
           CREATE FUNCTION wrong(int) RETURNS int LANGUAGE sql AS 'SELECT 1 / $1';
           SET ROLE nobody"#,
    )?;
    let error = |client: &mut Client, sql: &str| -> Result<postgres::error::DbError> {
        let error = client.simple_query(sql).expect_err(sql);
        Ok(error.as_db_error().expect("the server's").clone())
    };
    let denied = error(&mut client, r#"SELECT * FROM "größe""#)?;
    ensure!(
        denied.message() == "permission denied for table größe",
        "{denied:?}"
    );
    client.batch_execute("RESET ROLE")?;
    let raised = error(&mut client, "SELECT boom()")?;
    let fields = (
        raised.message(),
        raised.constraint(),
        raised.column(),
        raised.table(),
        raised.schema(),
        raised.datatype(),
        raised.detail(),
        raised.hint(),
    );
    let expected = (
        "büm",
        Some("con"),
        Some("col"),
        Some("tab"),
        Some("sch"),
        Some("typ"),
        Some("détail"),
        Some("hint"),
    );
    ensure!(fields == expected, "{fields:?}");
    let place = raised.where_().unwrap_or_default();
    ensure!(
        place.contains("PL/pgSQL function boom() line 3 at RAISE"),
        "{place}"
    );
    client.batch_execute(
        "CREATE FUNCTION own() RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
         BEGIN RAISE EXCEPTION 'own' USING ERRCODE = 'MY001'; END $$;
         DO $$ BEGIN PERFORM own(); EXCEPTION WHEN SQLSTATE 'MY001' THEN NULL; END $$",
    )?;
    let divided = error(&mut client, "SELECT wrong(0)")?;
    let place = divided.where_().unwrap_or_default();
    ensure!(
        place.contains(r#"SQL function "wrong" during inlining"#)
            || place.contains("SQL function \"wrong\""),
        "{place}"
    );
    Ok(())
}
