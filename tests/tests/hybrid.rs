//! Hybrid search against its two parts, with the model that ships: sentences of many languages that carry names
//! and numbers.

use std::path::Path;

use anyhow::{Result, ensure};
use laser_tests::Cluster;
use postgres::Client;

/// Documents that a search finds, by their ids, and whether a sentence is in them.
fn found(
    client: &mut Client,
    (query, key): (&str, &str),
    weights: (f64, f64),
) -> Result<Vec<(i32, bool)>> {
    let sql = "SELECT (hit).id, $2 = ANY ((hit).keys) FROM laser_hybrid(NULL::docs, 'body', $1,
                   meaning_weight => $3, words_weight => $4) WHERE score > 0 ORDER BY score DESC";
    let rows = client.query(sql, &[&query, &key, &weights.0, &weights.1])?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// How much is found of what is wanted: a document by the number in it, among the first three, and among the first
/// ten, documents with a sentence in any language by its translation.
fn quality(client: &mut Client, weights: (f64, f64)) -> Result<(f64, f64)> {
    let sql = "SELECT d.id, d.number, s.key, s.body FROM docs d
               JOIN sentences s ON s.key = d.keys[1] AND s.lang = 'de'
               WHERE d.lang = 'en' ORDER BY d.id LIMIT 40";
    let queries = client.query(sql, &[])?;
    let (mut numbers, mut meanings) = (0.0, 0.0);
    for query in &queries {
        let (id, number): (i32, String) = (query.get(0), query.get(1));
        let (key, sentence): (String, String) = (query.get(2), query.get(3));
        let by_number = format!("what has become of ticket {number}, is there any news of it?");
        let hits = found(client, (&by_number, &key), weights)?;
        numbers += f64::from(u8::from(hits.iter().take(3).any(|hit| hit.0 == id)));
        let hits = found(client, (&sentence, &key), weights)?;
        meanings += hits.iter().filter(|hit| hit.1).count() as f64 / 10.0;
    }
    let all = queries.len() as f64;
    Ok((numbers / all, meanings / all))
}

#[test]
fn hybrid_search_beats_its_parts() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE sentences (key text, lang text, body text);
         CREATE TABLE docs (id int PRIMARY KEY, lang text, number text, keys text[], body text)",
    )?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/sentences.tsv");
    let text = std::fs::read(&path)?;
    let mut copy = client.copy_in("COPY sentences FROM STDIN")?;
    std::io::Write::write_all(&mut copy, &text)?;
    copy.finish()?;
    client.batch_execute(
        "INSERT INTO docs
         SELECT d.id, d.lang, d.number, array_agg(s.key ORDER BY o),
                string_agg(CASE o WHEN 2 THEN s.body || ' (ticket ' || number || ')' ELSE s.body END, ' ' ORDER BY o)
         FROM (SELECT row_number() OVER (ORDER BY key, lang) AS id, lang, dense_rank() OVER (ORDER BY key) AS place,
                      'KX-' || 10000 + (row_number() OVER (ORDER BY key, lang)) * 7919 % 90000 AS number
               FROM sentences) d
         CROSS JOIN unnest('{0,7,19,30}'::int[]) WITH ORDINALITY step(n, o)
         JOIN (SELECT *, dense_rank() OVER (ORDER BY key) AS place FROM sentences) s
           ON s.lang = d.lang AND s.place = (d.place + step.n - 1) % 50 + 1
         GROUP BY d.id, d.lang, d.number;
         CREATE INDEX docs_meaning ON docs USING laser (body);
         CREATE INDEX docs_words ON docs USING gin (to_tsvector('simple', body))",
    )?;
    client.batch_execute("ANALYZE docs")?;

    let words = quality(&mut client, (0.0, 1.0))?;
    let meaning = quality(&mut client, (1.0, 0.0))?;
    let hybrid = quality(&mut client, (1.0, 1.0))?;
    println!("numbers and meanings: words {words:?}, meaning {meaning:?}, hybrid {hybrid:?}");
    let sum = |(numbers, meanings): (f64, f64)| numbers + meanings;
    ensure!(sum(hybrid) > sum(words) + 0.1, "{hybrid:?} {words:?}");
    ensure!(sum(hybrid) > sum(meaning) + 0.1, "{hybrid:?} {meaning:?}");
    ensure!(hybrid.0 >= 0.9, "{hybrid:?}");

    // Both sides have an index.
    client.batch_execute("SET enable_seqscan = off")?;
    let statement: String = client
        .query_one(
            "SELECT laser_hybrid_query(NULL::docs, 'body', 'where is ticket KX-12345?')",
            &[],
        )?
        .get(0);
    let plan = client.query(&format!("EXPLAIN {statement}"), &[])?;
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    ensure!(plan.contains("Index Scan using docs_meaning"), "{plan}");
    ensure!(plan.contains("Bitmap Index Scan on docs_words"), "{plan}");
    ensure!(plan.contains("Tid Scan on docs"), "{plan}");
    Ok(())
}

/// The extension's schema may be called whatever a schema can be called.
#[test]
fn the_schema_may_have_any_name() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        r#"DROP EXTENSION laser; CREATE SCHEMA "1%s of Them"; CREATE EXTENSION laser SCHEMA "1%s of Them";
           CREATE TABLE docs (id int PRIMARY KEY, body text, v "1%s of Them".embedding);
           INSERT INTO docs VALUES (1, 'a house'), (2, 'a boat')"#,
    )?;
    for column in ["NULL", "'v'"] {
        let found = client.query(
            &format!(
                r#"SELECT (hit).id FROM "1%s of Them".laser_hybrid(NULL::docs, 'body', 'boat', 1, embedding_column => {column})"#
            ),
            &[],
        )?;
        ensure!(
            found.len() == 1 && found[0].get::<_, i32>(0) == 2,
            "{column}"
        );
    }
    Ok(())
}
