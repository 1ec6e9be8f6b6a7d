//! What making a plan costs, beside that of the same tables without an index.

use anyhow::{Context, Result, ensure};
use laser_tests::Cluster;
use postgres::Client;

/// How much longer at most: the common values of two columns are compared with each other once more, not once for each
/// partition.
const MOST: f64 = 12.0;

/// The least planning time of some runs, in milliseconds.
fn planning(client: &mut Client, sql: &str) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let lines = client.query(&format!("EXPLAIN (SUMMARY) {sql}"), &[])?;
        let time = lines.iter().find_map(|line| {
            let time = line.get::<_, &str>(0).strip_prefix("Planning Time: ")?;
            time.strip_suffix(" ms")?.parse().ok()
        });
        least = least.min(time.context("EXPLAIN says what planning took")?);
    }
    Ok(least)
}

#[test]
fn joins_of_partitions_are_estimated_once() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("planning")?;
    client.batch_execute(
        "CREATE TABLE tenants AS SELECT 'a tenant with the name ' || 20000 + i % 1000 AS name FROM generate_series(1, 4000) i;
         ALTER TABLE tenants ALTER name SET STATISTICS 1000",
    )?;
    for table in ["plain", "indexed"] {
        client.batch_execute(&format!(
            "CREATE TABLE {table} (id int, tenant text, e embedding(2)) PARTITION BY RANGE (id);
             DO $$ BEGIN FOR n IN 0..39 LOOP
                 EXECUTE format('CREATE TABLE {table}%s PARTITION OF {table} FOR VALUES FROM (%s) TO (%s)',
                     n, n * 100, n * 100 + 100);
             END LOOP; END $$;
             INSERT INTO {table} SELECT i, 'a tenant with the name ' || 10000 + i % 1000, ARRAY[1, i]::real[]
             FROM generate_series(0, 3999) i;
             ALTER TABLE {table} ALTER tenant SET STATISTICS 1000"
        ))?;
    }
    client.batch_execute("CREATE INDEX ON indexed USING laser (e)")?;
    client.batch_execute("ANALYZE tenants, plain, indexed")?;
    for shape in [
        "SELECT t.id FROM %t t JOIN tenants ON name = tenant ORDER BY e <=> '[1,1]' LIMIT 5",
        "SELECT t.id FROM %t t WHERE EXISTS (SELECT FROM tenants WHERE name = tenant) ORDER BY e <=> '[1,1]' LIMIT 5",
    ] {
        let usual = planning(&mut client, &shape.replace("%t", "plain"))?;
        let time = planning(&mut client, &shape.replace("%t", "indexed"))?;
        println!("{time} ms with an index, {usual} ms without: {shape}");
        ensure!(
            time < MOST * usual,
            "{time} ms with an index, {usual} ms without: {shape}"
        );
    }
    Ok(())
}
