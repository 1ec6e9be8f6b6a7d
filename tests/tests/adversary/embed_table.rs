//! laser_embed_table among triggers that work against it, and on hostile search paths.

use anyhow::{Context, Result, ensure};
use laser_tests::{Cluster, failure};
use postgres::Client;
use postgres::error::SqlState;

/// How long a call may take that has no more to do than a few passes over 300 rows.
const SET_TIMEOUT: &str = "SET statement_timeout = '60s'";

fn table(client: &mut Client, trigger: &str) -> Result<()> {
    client.batch_execute(&format!(
        "{SET_TIMEOUT};
         DROP TABLE IF EXISTS t;
         CREATE TABLE t (id integer, body text, e embedding);
         INSERT INTO t SELECT i, 'text ' || i FROM generate_series(1, 300) i;
         CREATE OR REPLACE FUNCTION reset() RETURNS trigger LANGUAGE plpgsql AS $$ {trigger} $$"
    ))?;
    Ok(())
}

fn embedded(client: &mut Client) -> Result<i64> {
    Ok(client.query_one("SELECT count(e) FROM t", &[])?.get(0))
}

#[test]
fn triggers_that_reset_the_column_do_not_make_it_endless() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    const CALL: &str = "CALL laser_embed_table('t', 'body', 'e', 100)";

    // Before the update: noticed with the first rows.
    table(&mut client, "BEGIN NEW.e := NULL; RETURN NEW; END")?;
    client.batch_execute(
        "CREATE TRIGGER r BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION reset()",
    )?;
    let (code, message, hint) = failure(&mut client, CALL)?;
    ensure!(
        code == SqlState::TRIGGERED_DATA_CHANGE_VIOLATION,
        "{message}"
    );
    ensure!(
        message.contains("sets column \"e\" back to null"),
        "{message}"
    );
    ensure!(hint.contains("DISABLE TRIGGER"), "{hint}");

    // Of some rows alone: the others are embedded.
    table(
        &mut client,
        "BEGIN IF NEW.id % 3 = 0 THEN NEW.e := NULL; END IF; RETURN NEW; END",
    )?;
    client.batch_execute(
        "CREATE TRIGGER r BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION reset()",
    )?;
    notices.take();
    client.batch_execute(CALL)?;
    let said = notices.take();
    ensure!(embedded(&mut client)? == 200);
    ensure!(
        said.iter()
            .any(|s| s.contains("rows of table \"t\" stay without")),
        "{said:?}"
    );

    // After the update, and at the end of the transaction.
    for (kind, when) in [("", ""), ("CONSTRAINT", "DEFERRABLE INITIALLY DEFERRED")] {
        table(
            &mut client,
            "BEGIN IF NEW.e IS NOT NULL THEN UPDATE t SET e = NULL WHERE id = NEW.id; END IF;
             RETURN NULL; END",
        )?;
        client.batch_execute(&format!(
            "CREATE {kind} TRIGGER r AFTER UPDATE ON t {when}
             FOR EACH ROW EXECUTE FUNCTION reset()"
        ))?;
        let (code, message, hint) = failure(&mut client, CALL)?;
        ensure!(
            code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            "{message}"
        );
        ensure!(
            message.contains("as fast as they are computed"),
            "{message}"
        );
        ensure!(hint.contains("trigger"), "{hint}");
    }

    // A trigger that keeps rows as they are ends it as ever.
    table(&mut client, "BEGIN RETURN NULL; END")?;
    client.batch_execute(
        "CREATE TRIGGER r BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION reset()",
    )?;
    client.batch_execute(CALL)?;
    ensure!(embedded(&mut client)? == 0);
    // And one that changes something else disturbs nothing.
    table(
        &mut client,
        "BEGIN NEW.body := NEW.body || '.'; RETURN NEW; END",
    )?;
    client.batch_execute(
        "CREATE TRIGGER r BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION reset()",
    )?;
    notices.take();
    client.batch_execute(CALL)?;
    ensure!(embedded(&mut client)? == 300);
    ensure!(
        notices
            .take()
            .iter()
            .any(|s| s.contains("embeddings of 300 rows of table \"t\" may not be of the text")),
        "a text that changes with each update"
    );
    Ok(())
}

/// A trigger may tidy the text up with each update: what is embedded is the text as it leaves it.
#[test]
fn embeddings_are_of_the_text_that_triggers_leave() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    // Some texts are as the trigger wants them, one becomes NULL, and its name lies behind the one of a trigger that
    // forgets embeddings and before it.
    for (kept, name) in [(false, "tidy"), (true, "a"), (true, "z")] {
        table(
            &mut client,
            "BEGIN NEW.body := nullif(regexp_replace(NEW.body, ' old .*', ''), 'gone'); RETURN NEW; END",
        )?;
        client.batch_execute(
            "UPDATE t SET body = body || ' old words that are cut off' WHERE id % 3 > 0;
             UPDATE t SET body = 'gone' WHERE id = 7",
        )?;
        if kept {
            client.batch_execute("SELECT laser_keep_embedded('t', 'body', 'e')")?;
        }
        client.batch_execute(&format!(
            "CREATE TRIGGER {name} BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION reset()"
        ))?;
        notices.take();
        client.batch_execute("CALL laser_embed_table('t', 'body', 'e', 100)")?;
        let wrong: i64 = client
            .query_one(
                "SELECT count(*) FROM t WHERE (id = 7) <> (body IS NULL) OR body LIKE '% old %'
                 OR (id = 7) <> (e IS NULL) OR (e <=> laser_embed(body, NULL, 'passage')) > 1e-5",
                &[],
            )?
            .get(0);
        ensure!(wrong == 0, "{wrong} with {name}, kept: {kept}");
        let said = notices.take();
        ensure!(
            said.iter().all(|s| !s.contains("not be of the text")),
            "{said:?}"
        );
    }
    Ok(())
}

/// Where the rows that a trigger has changed cannot be found again.
#[test]
fn texts_that_cannot_be_followed_are_told_of() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    let changing = "BEGIN NEW.body := regexp_replace(NEW.body, ' old .*', ''); RETURN NEW; END";
    let touched = "ALTER TABLE t ADD COLUMN version int DEFAULT 0;
        CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF pg_trigger_depth() = 1 THEN UPDATE t SET version = version + 1 WHERE id = NEW.id; END IF;
            RETURN NULL; END $$;
        CREATE TRIGGER touched AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION touch()";
    let later = |kind: &str, when: &str| {
        format!(
            "CREATE FUNCTION tidy_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF NEW.body LIKE '% old %' THEN
                    UPDATE t SET body = regexp_replace(NEW.body, ' old .*', '') WHERE id = NEW.id;
                END IF;
                RETURN NULL; END $$;
             CREATE {kind} TRIGGER tidy_later AFTER UPDATE ON t {when} FOR EACH ROW EXECUTE FUNCTION tidy_later()"
        )
    };
    let (at_once, deferred) = (
        later("", ""),
        later("CONSTRAINT", "DEFERRABLE INITIALLY DEFERRED"),
    );
    let ruled = "CREATE TABLE log (id int);
        CREATE RULE r AS ON UPDATE TO t DO ALSO INSERT INTO log VALUES (NEW.id)";
    let changed = "UPDATE t SET body = body || ' old words that are cut off' WHERE id <= 20";
    let trigger = "CREATE TRIGGER tidy BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION reset()";
    for (before, after, warning) in [
        (touched, trigger, Some("of 20 rows of table")),
        (touched, "", None),
        (&at_once, "", Some("of 20 rows of table")),
        (&deferred, "", Some("of 20 rows of table")),
        (&at_once, touched, Some("of 20 rows of table")),
        (ruled, trigger, Some("where a table has rules")),
        (ruled, &at_once, Some("where a table has rules")),
        (ruled, "", None),
    ] {
        table(&mut client, changing)?;
        client.batch_execute(changed)?;
        client.batch_execute(before)?;
        client.batch_execute(after)?;
        notices.take();
        client.batch_execute("CALL laser_embed_table('t', 'body', 'e', 100)")?;
        ensure!(embedded(&mut client)? == 300);
        let said = notices.take();
        let told = said.iter().any(|s| s.contains("may not be of the text"));
        ensure!(told == warning.is_some(), "{before} {after}: {said:?}");
        let warning = warning.unwrap_or_default();
        ensure!(said.iter().any(|s| s.contains(warning)), "{said:?}");
        client.batch_execute(
            "DROP TABLE t; DROP TABLE IF EXISTS log; DROP FUNCTION IF EXISTS touch, tidy_later",
        )?;
    }
    Ok(())
}

#[test]
fn rows_that_the_update_does_not_reach_are_told_of() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.database("d")?;
    let (mut client, notices) = cluster.connect_with_notices("d")?;
    client.batch_execute("CREATE ROLE writer")?;
    let half = "BEGIN IF NEW.id % 2 = 0 THEN RETURN NULL; END IF; RETURN NEW; END";
    let policies = "ALTER TABLE t ENABLE ROW LEVEL SECURITY;
        CREATE POLICY seen ON t FOR SELECT USING (true);
        CREATE POLICY changed ON t FOR UPDATE USING (id <= 100);
        GRANT SELECT, UPDATE ON t TO writer;
        SET ROLE writer";
    for (obstacle, rows, told) in [
        (
            "CREATE TRIGGER skip BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION reset()",
            150,
            Some("did not reach 150 rows of table \"t\""),
        ),
        (
            "CREATE RULE nothing AS ON UPDATE TO t DO INSTEAD NOTHING",
            0,
            Some("did not reach 300 rows of table \"t\""),
        ),
        // Rows that must not be updated cannot be locked either: they are not read.
        (policies, 100, None),
        ("", 300, None),
    ] {
        table(&mut client, half)?;
        client.batch_execute(obstacle)?;
        notices.take();
        client.batch_execute("CALL laser_embed_table('t', 'body', 'e', 70)")?;
        client.batch_execute("RESET ROLE")?;
        ensure!(embedded(&mut client)? == rows, "{obstacle}");
        let said = notices.take();
        match told {
            Some(warning) => ensure!(said.iter().any(|s| s.contains(warning)), "{said:?}"),
            None => ensure!(
                said.iter().all(|s| !s.contains("did not reach")),
                "{said:?}"
            ),
        }
    }
    Ok(())
}

#[test]
fn rules_and_partitions_are_embedded_as_ever() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t (id integer, body varchar(40), e halfembedding) PARTITION BY LIST (id);
         CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);
         CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2);
         INSERT INTO t SELECT 1 + i % 2, 'text ' || i FROM generate_series(1, 50) i;
         CREATE TABLE log (n integer);
         CREATE RULE r AS ON UPDATE TO t1 DO ALSO INSERT INTO log VALUES (1)",
    )?;
    client.batch_execute("CALL laser_embed_table('t', 'body', 'e', 7)")?;
    ensure!(embedded(&mut client)? == 50);
    client
        .query_one("SELECT n FROM log LIMIT 1", &[])
        .context("the rule has run")?;
    Ok(())
}
