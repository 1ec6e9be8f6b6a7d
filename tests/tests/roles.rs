//! Models that embed queries and passages differently: by hand, in an index, by the operator, and where nobody can
//! tell which is which.

use anyhow::{Context, Result, ensure};
use laser_tests::model::{Architecture, Model};
use laser_tests::{Cluster, failure};
use postgres::Client;
use postgres::error::SqlState;
use tempfile::TempDir;

const QUERY: &str = "seek: ";
const PASSAGE: &str = "a text that says ";

fn model(architecture: Architecture) -> Model {
    Model {
        architecture,
        ..Model::tiny("e", 32)
    }
}

/// A server with such a model, for sessions or for the encoder process, and a table.
fn cluster(architecture: Architecture) -> Result<(TempDir, Cluster, Client)> {
    let models = tempfile::tempdir()?;
    model(architecture).write_with_prefixes(models.path(), QUERY, PASSAGE)?;
    let cluster = Cluster::builder()
        .models(models.path(), "e")
        .setting("laser.encoder_precision", "f32")
        .start()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT i AS id, md5(i::text) || repeat(chr(97 + i % 26), i % 9) AS body
         FROM generate_series(1, 600) i",
    )?;
    Ok((models, cluster, client))
}

fn is_true(client: &mut Client, expression: &str) -> Result<()> {
    let row = client.query_one(&format!("SELECT {expression}"), &[])?;
    let holds: Option<bool> = row.get(0);
    ensure!(holds == Some(true), "{expression}");
    Ok(())
}

fn rows(client: &mut Client, query: &str) -> Result<Vec<(i32, f64)>> {
    let rows = client.query(query, &[])?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

#[test]
fn a_text_is_embedded_as_what_it_is() -> Result<()> {
    for architecture in [Architecture::Mean, Architecture::Transformer] {
        let (_models, _cluster, mut client) = cluster(architecture)?;
        for (role, prefix) in [("'query'", QUERY), ("'passage'", PASSAGE), ("NULL", "")] {
            for model in ["'e'", "NULL"] {
                is_true(
                    &mut client,
                    &format!(
                        "laser_embed('abc', {model}, {role}) = laser_embed('{prefix}abc', 'e')"
                    ),
                )?;
            }
            is_true(
                &mut client,
                &format!(
                    "laser_embed(ARRAY['abc', NULL, 'd'], 'e', {role})
                     = laser_embed(ARRAY['{prefix}abc', NULL, '{prefix}d'])"
                ),
            )?;
            is_true(
                &mut client,
                &format!("laser_embed(NULL::text, 'e', {role}) IS NULL"),
            )?;
            is_true(
                &mut client,
                &format!("laser_embed(NULL::text[], 'e', {role}) IS NULL"),
            )?;
        }
        is_true(
            &mut client,
            &format!(
                "(query_prefix, passage_prefix) = ('{QUERY}', '{PASSAGE}')
                 FROM laser_models WHERE name = 'e'"
            ),
        )?;
        is_true(
            &mut client,
            "query_prefix IS NULL AND passage_prefix IS NULL
             FROM laser_models WHERE name = 'laser-mean-384'",
        )?;
        let (code, message, hint) = failure(&mut client, "SELECT laser_embed('a', 'e', 'Query')")?;
        ensure!(code == SqlState::INVALID_PARAMETER_VALUE, "{message}");
        ensure!(
            message.contains("unknown role \"Query\"") && hint.contains("'passage'"),
            "{message} {hint}"
        );
    }
    Ok(())
}

/// What an index gives is what the operator gives, and what can be said by hand.
#[test]
fn index_and_operator_agree() -> Result<()> {
    for architecture in [Architecture::Mean, Architecture::Transformer] {
        let (_models, _cluster, mut client) = cluster(architecture)?;
        client.batch_execute("CREATE INDEX ON t USING laser (body)")?;
        client.batch_execute(
            "INSERT INTO t SELECT i, 'late ' || i FROM generate_series(601, 640) i",
        )?;
        let by_hand = rows(
            &mut client,
            "SELECT id, laser_embed(body, 'e', 'passage') <=> laser_embed('late', 'e', 'query') AS d
             FROM t ORDER BY d",
        )?;
        // Roles in other places give distances that are farther away than what is compared below.
        let differ = "min(abs((laser_embed(body, 'e', 'query') <=> laser_embed('late', 'e', 'passage'))
            - (laser_embed(body, 'e', 'passage') <=> laser_embed('late', 'e', 'query')))) > 1e-7
            AND avg(abs((body <=> 'late') - (laser_embed(body) <=> laser_embed('late')))) > 1e-2 FROM t";
        is_true(&mut client, differ)?;
        let searches = [
            "SELECT id, body <=> 'late' AS d FROM t ORDER BY body <=> 'late' LIMIT 20",
            "SELECT id, 'late' <=> body AS d FROM t ORDER BY 'late' <=> body LIMIT 20",
            "SELECT n.id, n.d FROM (SELECT 'late'::text AS q OFFSET 0) s,
             LATERAL (SELECT id, body <=> q AS d FROM t ORDER BY body <=> q LIMIT 20) n",
            "SELECT id, body <=> (SELECT lower('LATE')) AS d FROM t
             ORDER BY body <=> (SELECT lower('LATE')) LIMIT 20",
        ];
        for scans in ["on", "off"] {
            client.batch_execute(&format!(
                "SET enable_indexscan = {scans}; SET enable_seqscan = {}",
                if scans == "on" { "off" } else { "on" }
            ))?;
            for search in searches {
                let plan = client.query(&format!("EXPLAIN {search}"), &[])?;
                let plan: Vec<String> = plan.iter().map(|line| line.get(0)).collect();
                let by_index = plan.iter().any(|line| line.contains("Index Scan"));
                ensure!(by_index == (scans == "on"), "{search}: {plan:?}");
                let found = rows(&mut client, search)?;
                ensure!(found.len() == 20, "{search}");
                let mut near = 0;
                for (id, distance) in &found {
                    let place = by_hand.iter().position(|(other, _)| other == id);
                    let place = place.context("a row of the table")?;
                    let expected = by_hand[place].1;
                    // An index tells the distances of what it stores.
                    let tolerance = if by_index { 2e-3 } else { 1e-5 };
                    ensure!(
                        (distance - expected).abs() < tolerance,
                        "{scans} {search}: {distance} {expected}"
                    );
                    near += usize::from(place < 20);
                }
                // An index may miss some.
                ensure!(
                    near >= if by_index { 17 } else { 20 },
                    "{scans} {search}: {near}"
                );
            }
        }
        client.batch_execute("RESET enable_indexscan; RESET enable_seqscan")?;
        // Prepared, with a parameter.
        client.batch_execute("SET plan_cache_mode = force_generic_plan")?;
        let row = client.query_one(
            "SELECT id, body <=> $1 FROM t ORDER BY body <=> $1 LIMIT 1",
            &[&"late"],
        )?;
        ensure!((row.get::<_, f64>(1) - by_hand[0].1).abs() < 2e-3);
    }
    Ok(())
}

#[test]
fn what_cannot_be_told_is_refused() -> Result<()> {
    for architecture in [Architecture::Mean, Architecture::Transformer] {
        let (models, _cluster, mut client) = cluster(architecture)?;
        client.batch_execute("CREATE INDEX ON t (id); CREATE INDEX ON t USING laser (body)")?;
        for query in [
            "SELECT 'a' <=> 'b'::text",
            "SELECT a.body <=> b.body FROM t a JOIN t b USING (id)",
            "SELECT count(*) FROM t a JOIN t b USING (id) WHERE a.body <=> b.body < 0.5",
            "SELECT (SELECT a.body <=> ('a' || b.body)) FROM t a, t b LIMIT 1",
        ] {
            for join in ["on", "off"] {
                client.batch_execute(&format!("SET enable_hashjoin = {join}"))?;
                let (code, message, hint) = failure(&mut client, query)?;
                ensure!(code == SqlState::AMBIGUOUS_PARAMETER, "{query}: {message}");
                ensure!(
                    message.contains("\"e\" embeds queries and passages differently"),
                    "{query}: {message}"
                );
                ensure!(hint.contains("'passage'"), "{query}: {hint}");
            }
        }
        // Said by hand, or by a model that does not tell them apart, they are compared.
        client.batch_execute(
            "SELECT laser_embed(a.body, NULL, 'passage') <=> laser_embed(b.body, NULL, 'passage')
             FROM t a JOIN t b USING (id)",
        )?;
        for prefix in ["", "text: "] {
            model(architecture).write_with_prefixes(models.path(), prefix, prefix)?;
            std::thread::sleep(std::time::Duration::from_millis(1500));
            client.batch_execute(
                "SELECT 'a' <=> 'b'::text; SELECT a.body <=> b.body FROM t a, t b LIMIT 1",
            )?;
            let with = format!("laser_embed('{prefix}a') <=> laser_embed('{prefix}b')");
            is_true(
                &mut client,
                &format!("abs(('a' <=> 'b'::text) - ({with})) < 1e-6"),
            )?;
        }
    }
    Ok(())
}

/// A prefix is a part of the model: with another one it is another model.
#[test]
fn another_prefix_is_another_model() -> Result<()> {
    let (models, _cluster, mut client) = cluster(Architecture::Transformer)?;
    client.batch_execute("CREATE INDEX ON t USING laser (body)")?;
    let search = "SET enable_seqscan = off; SELECT id FROM t ORDER BY body <=> 'a' LIMIT 1";
    client.batch_execute(search)?;
    model(Architecture::Transformer).write_with_prefixes(models.path(), "find: ", PASSAGE)?;
    std::thread::sleep(std::time::Duration::from_millis(1500));
    let (code, message, hint) = failure(&mut client, search)?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "{message}"
    );
    ensure!(hint.contains("REINDEX"), "{hint}");
    client.batch_execute("REINDEX TABLE t")?;
    client.batch_execute(search)?;
    Ok(())
}

/// Columns that laser fills are searched in.
#[test]
fn columns_are_filled_with_passages() -> Result<()> {
    let (_models, _cluster, mut client) = cluster(Architecture::Mean)?;
    client.batch_execute("ALTER TABLE t ADD COLUMN m embedding(32)")?;
    client.batch_execute("CALL laser_embed_table('t', 'body', 'm')")?;
    is_true(
        &mut client,
        "bool_and(m = laser_embed(body, 'e', 'passage')) FROM t",
    )?;
    let (code, message, _) = failure(
        &mut client,
        "SELECT m <=> laser_embed('x', 'laser-mean-384', 'query') FROM t",
    )?;
    ensure!(
        code == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        "{message}"
    );
    client.batch_execute("SELECT m <=> laser_embed('x', NULL, 'query') FROM t")?;
    Ok(())
}
