//! Databases whose encoding is not UTF-8.

use anyhow::{Result, ensure};
use laser_tests::{Cluster, failure};
use postgres::Client;
use postgres::error::SqlState;

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

/// Names that are none, in letters that UTF-8 has otherwise, are refused as others are.
#[test]
fn what_names_nothing_may_have_any_letters() -> Result<()> {
    let cluster = Cluster::new()?;
    for (database, encoding) in [("euc", "EUC_JP"), ("ascii", "SQL_ASCII")] {
        cluster.connect("postgres")?.batch_execute(&format!(
            "CREATE DATABASE {database} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        ))?;
    }
    drop(latin(&cluster)?);
    for (database, name) in [
        ("latin", "é"),
        ("euc", "名"),
        ("ascii", "é"),
        ("ascii", "名"),
    ] {
        let mut client = cluster.connect(database)?;
        client.batch_execute(
            "SET client_min_messages = warning; CREATE EXTENSION IF NOT EXISTS laser; DROP TABLE IF EXISTS t;
             CREATE TABLE t (id int, body text, e embedding(384)); INSERT INTO t VALUES (1, 'a', laser_embed('a'));
             CREATE INDEX ti ON t USING laser (body);
             DROP TABLE IF EXISTS state; CREATE TABLE state (LIKE laser_mining_state INCLUDING ALL)",
        )?;
        let rows = "'SELECT id, e FROM t'";
        let neighbours = "'SELECT 1, 1, 0.5::float8'";
        for call in [
            "laser_embed('a', '$')".to_owned(),
            "laser_embed('a', NULL, '$')".into(),
            "laser_embed(ARRAY['a'], '$')".into(),
            "laser_embed(ARRAY['a'], NULL, '$')".into(),
            "laser_rerank('a', 'b', '$')".into(),
            "laser_rerank('a', ARRAY['b'], '$')".into(),
            "laser_model_label('$')".into(),
            format!("laser_mine({rows}, {rows}, margin => '$')"),
            format!("laser_mine({rows}, {rows}, retrieval => '$')"),
            format!("laser_mine({rows}, {rows}, method => '$')"),
            format!("laser_margin_scores('SELECT 1, 1', {rows}, {rows}, margin => '$')"),
            format!("laser_similarity_error({rows}, {rows}, margin => '$')"),
            format!("laser_mine_neighbours({neighbours}, {neighbours}, margin => '$')"),
            format!("laser_mine_neighbours({neighbours}, {neighbours}, retrieval => '$')"),
            "laser_mine_stored('state', margin => '$')".into(),
            "laser_mine_stored('state', retrieval => '$')".into(),
            "laser_index_estimate(1000, 8, metric => '$')".into(),
            "laser_index_recall('ti', queries => '$')".into(),
            "laser_index_tune('ti', queries => '$')".into(),
            "laser_keep_embedded('t', 'body', 'e', '$')".into(),
            "laser_keep_embedded('t', '$', 'e')".into(),
            "laser_hybrid(NULL::t, '$', 'a')".into(),
            "laser_hybrid(NULL::t, 'body', 'a', config => '$')".into(),
            "laser_mine('SELECT $', 'SELECT $')".into(),
        ] {
            refused_by_name(&mut client, &format!("SELECT {}", call.replace('$', name)))?;
        }
        for sql in [
            "CALL laser_embed_table('t', '$', 'e')",
            "SET laser.model = '$'; SELECT laser_embed('a')",
            "CREATE INDEX ON t USING laser (body) WITH (model = '$')",
            "CREATE INDEX ON t USING laser (body) WITH (quantization = '$')",
            "SECURITY LABEL FOR laser ON COLUMN t.e IS '$'",
            "SET laser.iterative_scan = '$'",
            "SELECT '[1,$]'::embedding",
            "SELECT '$'::halfembedding",
        ] {
            refused_by_name(&mut client, &sql.replace('$', name))?;
            client.batch_execute("RESET laser.model")?;
        }
    }
    Ok(())
}

/// That a statement fails by what it says, and not as what nobody has thought of, or by what its message has.
fn refused_by_name(client: &mut Client, sql: &str) -> Result<()> {
    let (code, message, _) = failure(client, sql)?;
    let unwanted = [
        SqlState::INTERNAL_ERROR,
        SqlState::CHARACTER_NOT_IN_REPERTOIRE,
        SqlState::UNTRANSLATABLE_CHARACTER,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::SYNTAX_ERROR,
    ];
    ensure!(!unwanted.contains(&code), "{sql}: {code:?} {message}");
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
