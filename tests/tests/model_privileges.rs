//! Who may embed with which model: USAGE on the foreign server of the model's name, if there is one.

use anyhow::{Context, Result, ensure};
use laser_tests::model::with_two_models;
use laser_tests::{failure, wait_until};
use postgres::Client;
use postgres::error::SqlState;

/// `one`, the default, is for everybody; `two` has a server, and `reader` has USAGE on it through a group.
const SETUP: &str = "CREATE ROLE reader LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE readers; GRANT readers TO reader;
     CREATE SERVER two FOREIGN DATA WRAPPER laser_model; GRANT USAGE ON FOREIGN SERVER two TO readers;
     CREATE TABLE t (id int, body text, v embedding(32)); INSERT INTO t SELECT i, 'text ' || i, NULL FROM generate_series(1, 20) i;
     GRANT ALL ON t TO PUBLIC; GRANT ALL ON SCHEMA public TO PUBLIC";

/// Every way of a role to have a text embedded with the model in question.
fn ways(model: &str) -> [String; 8] {
    let set = format!("SET LOCAL laser.model = '{model}'");
    [
        format!("SELECT laser_embed('x', '{model}')"),
        format!("SELECT laser_embed(body, '{model}', 'passage') FROM t"),
        format!("SELECT laser_embed(ARRAY['x', 'y'], '{model}')"),
        format!("BEGIN; {set}; SELECT laser_embed('x')"),
        format!("BEGIN; {set}; SELECT id FROM t ORDER BY body <=> 'x' LIMIT 1"),
        format!(
            "BEGIN; {set}; SET LOCAL enable_seqscan = off; SELECT id FROM t ORDER BY body <=> 'x' LIMIT 1"
        ),
        format!(
            "BEGIN; {set}; SELECT * FROM laser_mine('SELECT id, body FROM t', 'SELECT id, body FROM t')"
        ),
        format!(
            "BEGIN; CREATE TABLE own (body text); CREATE INDEX ON own USING laser (body) WITH (model = '{model}')"
        ),
    ]
}

/// Runs statements as a role; what they leave open is rolled back.
fn as_role(client: &mut Client, role: &str, sql: &str) -> Result<(), postgres::Error> {
    client.batch_execute(&format!("SET SESSION AUTHORIZATION {role}"))?;
    let result = client.batch_execute(sql);
    client.batch_execute("ROLLBACK; RESET SESSION AUTHORIZATION")?;
    result
}

fn denied(client: &mut Client, role: &str, sql: &str) -> Result<()> {
    let error = as_role(client, role, sql).err();
    let error = error.as_ref().and_then(postgres::Error::as_db_error);
    let is_denied = error.is_some_and(|error| {
        *error.code() == SqlState::INSUFFICIENT_PRIVILEGE
            && error.message() == "permission denied for model \"two\""
            && error
                .hint()
                .is_some_and(|hint| hint.contains("GRANT USAGE ON FOREIGN SERVER"))
    });
    ensure!(is_denied, "{role}: {sql}: {error:?}");
    Ok(())
}

#[test]
fn a_model_with_a_server_is_for_those_who_have_usage() -> Result<()> {
    for in_backend in ["on", "off"] {
        let (_models, cluster) = with_two_models()?;
        cluster.set("laser.encode_in_backend", in_backend)?;
        cluster.reload();
        let mut client = cluster.database("d")?;
        client.batch_execute(SETUP)?;
        client.batch_execute("CREATE INDEX ON t USING laser (body) WITH (model = 'two')")?;
        for sql in ways("one") {
            as_role(&mut client, "stranger", &sql)?;
        }
        for sql in ways("two") {
            for role in ["postgres", "reader"] {
                as_role(&mut client, role, &sql)?;
            }
            denied(&mut client, "stranger", &sql)?;
        }

        // A privilege that is taken away counts for plans that are there, and constants in them.
        client.batch_execute(
            "SET plan_cache_mode = force_generic_plan; SET SESSION AUTHORIZATION reader;
             PREPARE p AS SELECT laser_embed('x', 'two'); EXECUTE p; EXECUTE p; RESET SESSION AUTHORIZATION;
             REVOKE readers FROM reader; REVOKE USAGE ON FOREIGN SERVER two FROM readers;
             SET SESSION AUTHORIZATION reader",
        )?;
        let (code, message, _) = failure(&mut client, "EXECUTE p")?;
        ensure!(code == SqlState::INSUFFICIENT_PRIVILEGE, "{message}");
        client.batch_execute("RESET SESSION AUTHORIZATION")?;
        denied(&mut client, "reader", "SELECT laser_embed('x', 'two')")?;

        // Without its server the model is everybody's again.
        client.batch_execute("DROP SERVER two")?;
        for sql in ways("two") {
            as_role(&mut client, "stranger", &sql)?;
        }
    }
    Ok(())
}

/// The wrapper is what the extension has made, whatever its name has become.
#[test]
fn a_wrapper_that_is_renamed_still_restricts() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SETUP)?;
    let sql = "SELECT laser_embed('x', 'two')";
    // What keeps a column in step names a model that the table's owner may not use.
    as_role(
        &mut client,
        "stranger",
        "CREATE TABLE kept (id int, body text, e embedding);
         INSERT INTO kept VALUES (1, 'hello');
         CREATE TRIGGER zz BEFORE UPDATE ON kept FOR EACH ROW
             EXECUTE FUNCTION laser_forget_embedding('body', 'e', 'two')",
    )?;
    for statement in [
        "SELECT 1",
        "ALTER FOREIGN DATA WRAPPER laser_model RENAME TO renamed",
        "CREATE FOREIGN DATA WRAPPER laser_model",
        "ALTER FOREIGN DATA WRAPPER laser_model RENAME TO other; ALTER FOREIGN DATA WRAPPER renamed RENAME TO laser_model",
    ] {
        client.batch_execute(statement)?;
        denied(&mut client, "stranger", sql)?;
        as_role(&mut client, "reader", sql)?;
        as_role(&mut client, "stranger", "SELECT laser_embed('x', 'one')")?;
        let (code, message, _) =
            failure(&mut client, "CALL laser_embed_table('kept', 'body', 'e')")?;
        ensure!(
            code == SqlState::INSUFFICIENT_PRIVILEGE && message.contains("\"two\""),
            "{message}"
        );
    }
    Ok(())
}

/// What is embedded for an index, and what acts for others.
#[test]
fn nobody_lends_a_model_unasked() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SETUP)?;
    // Rows that come into an index of the model need no privilege of who inserts them.
    client.batch_execute("CREATE INDEX ON t USING laser (body) WITH (model = 'two')")?;
    as_role(&mut client, "stranger", "INSERT INTO t VALUES (21, 'new')")?;
    ensure!(cluster.psql("d", "SELECT count(*) FROM t")? == "21");
    client.batch_execute("SELECT laser_merge('t_body_idx')")?;

    // A function that runs with its owner's rights does not build with those of its caller.
    as_role(
        &mut client,
        "stranger",
        "CREATE TABLE own (body text);
         CREATE FUNCTION lend() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
         $$ BEGIN CREATE INDEX own_i ON public.own USING laser (body) WITH (model = 'two'); END $$",
    )?;
    denied(&mut client, "reader", "SELECT lend()")?;
    denied(&mut client, "postgres", "SELECT lend()")?;
    // Nor does code that the server runs for the owner of a table with whoever analyses it, or fills his view.
    as_role(
        &mut client,
        "stranger",
        "CREATE FUNCTION public.build() RETURNS int LANGUAGE plpgsql VOLATILE AS $$ BEGIN
             IF to_regclass('public.own_i') IS NULL THEN
                 CREATE INDEX own_i ON public.own USING laser (body) WITH (model = 'two'); END IF;
             RETURN 1; END $$;
         CREATE FUNCTION public.lure(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS
         $$ BEGIN RETURN public.build(); EXCEPTION WHEN insufficient_privilege THEN RETURN 0; END $$;
         CREATE TABLE bait (i int); INSERT INTO bait SELECT generate_series(1, 100);
         CREATE INDEX ON bait (public.lure(i));
         CREATE MATERIALIZED VIEW bait_view AS SELECT public.lure(i) FROM bait WITH NO DATA",
    )?;
    for sql in [
        "ANALYZE bait",
        "REFRESH MATERIALIZED VIEW bait_view",
        "REINDEX TABLE bait",
        "VACUUM FULL bait",
    ] {
        client.batch_execute(sql)?;
        let is_there: bool = client
            .query_one("SELECT to_regclass('own_i') IS NOT NULL", &[])?
            .get(0);
        ensure!(!is_there, "{sql}");
    }
    // Nor a setting of an index that is rebuilt, by whomever, with rows or without.
    as_role(
        &mut client,
        "stranger",
        "CREATE INDEX own_i ON own USING laser (body)",
    )?;
    denied(
        &mut client,
        "stranger",
        "ALTER INDEX own_i SET (model = 'two')",
    )?;
    client.batch_execute("ALTER INDEX own_i SET (model = 'two')")?;
    // Which is its own from then on, with all that is done to its table.
    for sql in [
        "ALTER INDEX own_i SET (ef_search = 100); ALTER INDEX own_i RESET (ef_search)",
        "INSERT INTO own VALUES ('x')",
        "REINDEX INDEX own_i",
        "REINDEX INDEX CONCURRENTLY own_i",
        "VACUUM FULL own",
        "ALTER TABLE own ALTER body TYPE varchar; ALTER TABLE own ALTER body TYPE text",
        "TRUNCATE own",
        "CREATE TEMP TABLE own_temp (body text) ON COMMIT DELETE ROWS; DROP TABLE own_temp",
    ] {
        as_role(&mut client, "stranger", sql)?;
    }
    let built = "SELECT model FROM laser_index_info('own_i')";
    ensure!(cluster.psql("d", built)? == "two");
    for sql in [
        "CREATE INDEX again ON own USING laser (body) WITH (model = 'two')",
        "CREATE TABLE again (LIKE own INCLUDING INDEXES)",
        "ALTER INDEX own_i SET (ef_search = 50, model = 'two')",
    ] {
        denied(&mut client, "stranger", sql)?;
    }
    // Nor is it loaded for them.
    for sql in [
        "SELECT laser_model_label('two')",
        "SELECT laser_embed(array_fill('x'::text, ARRAY[100]), 'two')",
    ] {
        denied(&mut client, "stranger", sql)?;
    }

    // The model that a table's owner keeps a column with is one that he may use, whoever embeds.
    as_role(
        &mut client,
        "stranger",
        "CREATE TABLE kept (body text, v embedding(32)); INSERT INTO kept VALUES ('x'); GRANT ALL ON kept TO PUBLIC",
    )?;
    let keep = "SELECT laser_keep_embedded('kept', 'body', 'v', 'two')";
    denied(&mut client, "stranger", keep)?;
    client.batch_execute("GRANT USAGE ON FOREIGN SERVER two TO stranger")?;
    as_role(&mut client, "stranger", keep)?;
    client.batch_execute("REVOKE USAGE ON FOREIGN SERVER two FROM stranger")?;
    for role in ["postgres", "reader", "stranger"] {
        let error = as_role(
            &mut client,
            role,
            "CALL laser_embed_table('kept', 'body', 'v')",
        )
        .err();
        let code = error.as_ref().and_then(postgres::Error::code);
        ensure!(code == Some(&SqlState::INSUFFICIENT_PRIVILEGE), "{error:?}");
    }
    client.batch_execute("GRANT USAGE ON FOREIGN SERVER two TO stranger")?;
    as_role(
        &mut client,
        "reader",
        "CALL laser_embed_table('kept', 'body', 'v')",
    )?;
    ensure!(cluster.psql("d", "SELECT count(v) FROM kept")? == "1");

    // What is no server for models means nothing for them, and those that are have neither options nor tables.
    client.batch_execute(
        "CREATE FOREIGN DATA WRAPPER something; CREATE SERVER one FOREIGN DATA WRAPPER something",
    )?;
    as_role(&mut client, "stranger", "SELECT laser_embed('x', 'one')")?;
    for (sql, wanted) in [
        (
            "CREATE SERVER s FOREIGN DATA WRAPPER laser_model OPTIONS (host 'x')",
            "invalid option \"host\"",
        ),
        (
            "CREATE FOREIGN TABLE f (body text) SERVER two",
            "a foreign server of laser_model stands for a model, which has no foreign tables and no user mappings",
        ),
        (
            "CREATE USER MAPPING FOR reader SERVER two",
            "a foreign server of laser_model stands for a model, which has no foreign tables and no user mappings",
        ),
    ] {
        let (_, message, _) = failure(&mut client, sql)?;
        ensure!(message == wanted, "{sql}: {message}");
    }
    as_role(
        &mut client,
        "stranger",
        "CREATE SERVER s FOREIGN DATA WRAPPER laser_model",
    )
    .expect_err("nobody was granted the wrapper");
    Ok(())
}

/// Who builds an index again lends it no default model of his own.
#[test]
fn a_default_is_not_lent_by_who_builds_again() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SETUP)?;
    as_role(
        &mut client,
        "stranger",
        "CREATE TABLE own (body text); INSERT INTO own VALUES ('x')",
    )?;
    client.batch_execute("SET laser.model = 'two'; SET SESSION AUTHORIZATION stranger")?;
    failure(
        &mut client,
        "CREATE INDEX CONCURRENTLY own_i ON own USING laser (body)",
    )?;
    client.batch_execute("RESET SESSION AUTHORIZATION")?;
    let rebuilds = [
        "REINDEX INDEX own_i",
        "VACUUM FULL own",
        "REINDEX TABLE own",
        "REINDEX INDEX CONCURRENTLY own_i",
        "TRUNCATE own",
        "ALTER TABLE own ALTER body TYPE varchar",
    ];
    for sql in rebuilds {
        denied(&mut client, "postgres", sql)?;
    }
    client.batch_execute("SET laser.model = 'one'; DROP INDEX own_i, own_i_ccnew; SET SESSION AUTHORIZATION stranger")?;
    client.batch_execute(
        "CREATE INDEX own_i ON own USING laser (body); ALTER INDEX own_i RESET (model);
         RESET SESSION AUTHORIZATION; SET laser.model = 'two'",
    )?;
    for sql in rebuilds {
        denied(&mut client, "postgres", sql)?;
    }
    // Whoever makes one, or names the model, does.
    for sql in [
        "DROP INDEX own_i_ccnew",
        "CREATE INDEX lent ON own USING laser (body)",
        "ALTER INDEX own_i SET (model = 'two')",
    ] {
        client.batch_execute(sql).context(sql)?;
    }
    for sql in rebuilds {
        client.batch_execute(sql).context(sql)?;
    }
    Ok(())
}

/// Where the statement has the library loaded, nothing is known of how it began.
#[test]
fn what_loads_the_library_counts_as_any_other_statement() -> Result<()> {
    let (models, cluster) = with_two_models()?;
    drop(cluster);
    let cluster = laser_tests::Cluster::builder()
        .preload(false)
        .models(models.path(), "one")
        .start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SETUP)?;
    as_role(
        &mut client,
        "stranger",
        "CREATE TABLE own (body text); INSERT INTO own VALUES ('x');
         CREATE FUNCTION lend() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS
         $$ BEGIN CREATE INDEX lent ON public.own USING laser (body) WITH (model = 'two'); END $$",
    )?;
    // Each in a session of its own, and each its first statement.
    for sql in [
        "CREATE INDEX own_i ON own USING laser (body) WITH (model = 'two')",
        "ALTER INDEX own_i SET (model = 'two')",
        "REINDEX INDEX own_i",
        "REINDEX TABLE own",
        "VACUUM FULL own",
        "TRUNCATE own",
        "ALTER TABLE own ALTER body TYPE varchar",
        "ALTER TABLE own ALTER body TYPE text",
        "CREATE TABLE parted (id int, body text) PARTITION BY LIST (id)",
        "CREATE INDEX parted_i ON parted USING laser (body) WITH (model = 'two')",
        "ALTER TABLE parted OWNER TO stranger",
        "CREATE TABLE part1 PARTITION OF parted FOR VALUES IN (1)",
        "SET SESSION AUTHORIZATION stranger; CREATE TABLE part2 (id int, body text)",
        "ALTER TABLE parted ATTACH PARTITION part2 FOR VALUES IN (2)",
    ] {
        cluster.psql("d", sql)?;
    }
    let mut owner = cluster.connect("d")?;
    owner.batch_execute("SET SESSION AUTHORIZATION stranger")?;
    owner.batch_execute("CREATE TABLE part3 PARTITION OF parted FOR VALUES IN (3)")?;
    for role in ["postgres", "reader"] {
        let mut session = cluster.connect("d")?;
        denied(&mut session, role, "SELECT lend()")?;
    }
    // Nor do statements lend anything to code that they run.
    client.batch_execute("ALTER TABLE own OWNER TO reader; DROP INDEX own_i")?;
    as_role(
        &mut client,
        "stranger",
        "CREATE TABLE mine (body text);
         CREATE FUNCTION inner_code(i int) RETURNS bigint LANGUAGE plpgsql AS
         $$ BEGIN EXECUTE 'CREATE INDEX ON mine USING laser (body) WITH (model = ''two'')'; RETURN i; END $$;
         CREATE FUNCTION inner_sql(i int) RETURNS bigint LANGUAGE sql AS
         $$ CREATE INDEX ON mine USING laser (body) WITH (model = 'two'); SELECT i $$;
         CREATE TABLE bait (i int); INSERT INTO bait VALUES (1);
         CREATE TABLE baits (i bigint) PARTITION BY LIST (i)",
    )?;
    for sql in [
        "ALTER TABLE bait ALTER i TYPE bigint USING inner_code(i)",
        "ALTER TABLE bait ALTER i TYPE bigint USING inner_sql(i)",
        "CREATE TABLE bait1 PARTITION OF baits FOR VALUES IN (inner_code(1))",
        "CREATE TABLE bait1 PARTITION OF baits FOR VALUES IN (inner_sql(1))",
    ] {
        let mut session = cluster.connect("d")?;
        denied(&mut session, "stranger", sql)?;
    }
    Ok(())
}

/// Nor is a statement forgotten that goes on after code within it has caught an error.
#[test]
fn an_error_that_is_caught_within_ends_no_statement() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SETUP)?;
    as_role(
        &mut client,
        "stranger",
        "CREATE FUNCTION careful(text) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
         $$ BEGIN RETURN $1 || (1 / (length($1) % 2)); EXCEPTION WHEN division_by_zero THEN RETURN $1; END $$;
         CREATE TABLE parted (id int, body text) PARTITION BY LIST (id);
         CREATE TABLE part1 PARTITION OF parted FOR VALUES IN (1);
         CREATE TABLE part2 PARTITION OF parted FOR VALUES IN (2);
         INSERT INTO parted SELECT 1 + i / 5, repeat('x', 1 + i) FROM generate_series(1, 8) i;
         CREATE FUNCTION catches(i int) RETURNS int LANGUAGE plpgsql AS $$
         BEGIN
             BEGIN PERFORM 1 / 0; EXCEPTION WHEN division_by_zero THEN NULL; END;
             EXECUTE 'CREATE INDEX ON part1 USING laser (body) WITH (model = ''two'')';
             RETURN i;
         END $$",
    )?;
    // Restored by another than the owner.
    client.batch_execute(
        "CREATE INDEX parted_i ON parted USING laser ((careful(body))) WITH (model = 'two');
         SET laser.model = 'two';
         CREATE INDEX ON parted USING laser ((careful(body)));
         RESET laser.model",
    )?;
    denied(
        &mut client,
        "stranger",
        "DROP INDEX parted_i; CREATE INDEX ON parted USING laser ((careful(body))) WITH (model = 'two')",
    )?;
    denied(&mut client, "stranger", "SELECT catches(1)")?;
    Ok(())
}

/// What a subscription applies is no statement.
#[test]
fn a_subscription_builds_again_what_it_truncates() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    cluster.set("wal_level", "logical")?;
    let mut cluster = cluster;
    cluster.restart()?;
    let mut source = cluster.database("source")?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SETUP)?;
    client.batch_execute(
        "CREATE TABLE own (id int PRIMARY KEY, body text); ALTER TABLE own OWNER TO stranger;
         CREATE INDEX ON own USING laser (body) WITH (model = 'two')",
    )?;
    source.batch_execute(
        "CREATE TABLE own (id int PRIMARY KEY, body text); CREATE PUBLICATION p FOR TABLE own",
    )?;
    source.query(
        "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
        &[],
    )?;
    let subscription = format!(
        "CREATE SUBSCRIPTION s CONNECTION '{} user=postgres' PUBLICATION p WITH (create_slot = false, slot_name = 's', copy_data = false)",
        cluster.conninfo("source").replace('\'', "''")
    );
    client.batch_execute(&subscription)?;
    source.batch_execute("INSERT INTO own VALUES (1, 'x')")?;
    source.batch_execute("TRUNCATE own")?;
    source.batch_execute("INSERT INTO own VALUES (2, 'y')")?;
    wait_until("the rows are there", || {
        Ok(cluster.psql("d", "SELECT string_agg(id::text, ',') FROM own")? == "2")
    })?;
    client.batch_execute("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE); DROP SUBSCRIPTION s")?;
    Ok(())
}

/// A dump has the servers and who may use them, and restores indexes before these.
#[test]
fn a_dump_keeps_privileges() -> Result<()> {
    let (_models, cluster) = with_two_models()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(SETUP)?;
    client.batch_execute(
        "ALTER TABLE t OWNER TO reader; CREATE INDEX ti ON t USING laser (body) WITH (model = 'two')",
    )?;
    let dump = cluster.scratch()?.join("dump.sql");
    let path = dump.display().to_string();
    cluster.run("pg_dump", &["-d", "d", "-f", &path])?;
    cluster.psql("postgres", "CREATE DATABASE copy")?;
    let restore = [
        "-X",
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
        "-d",
        "copy",
        "-f",
        &path,
    ];
    cluster.run("psql", &restore)?;
    let mut copy = cluster.connect("copy")?;
    ensure!(
        copy.query("SELECT laser_index_check('ti')", &[])?
            .is_empty()
    );
    let search =
        "BEGIN; SET LOCAL laser.model = 'two'; SELECT id FROM t ORDER BY body <=> 'x' LIMIT 1";
    as_role(&mut copy, "reader", search)?;
    denied(&mut copy, "stranger", search)?;
    Ok(())
}
