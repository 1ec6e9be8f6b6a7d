//! Whose width of a search counts: that of an index takes precedence over defaults, and what a session asks for over both.

use anyhow::{Result, ensure};
use laser_tests::Cluster;
use postgres::{Client, NoTls};

/// What the planner thinks of a search, which grows with its width.
fn work(client: &mut Client) -> Result<f64> {
    let rows = client.query(
        "EXPLAIN SELECT id FROM t ORDER BY e <-> '[0, 0]' LIMIT 5",
        &[],
    )?;
    let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let scan = lines
        .iter()
        .find(|line| line.contains("Index Scan using i "));
    let cost = scan.and_then(|line| line.split_once("cost=")?.1.split("..").next());
    Ok(cost.unwrap_or_default().parse()?)
}

#[test]
fn defaults_do_not_widen_what_an_index_has_narrowed() -> Result<()> {
    let cluster = Cluster::new()?;
    let mut client = cluster.database("d")?;
    client.batch_execute(
        "CREATE TABLE t AS SELECT i AS id, format('[%s, %s]', sin(i), cos(i * i))::embedding(2) AS e
         FROM generate_series(1, 20000) i;
         SET max_parallel_maintenance_workers = 0;
         CREATE INDEX i ON t USING laser (e embedding_l2_ops) WITH (m = 4, ef_construction = 8, ef_search = 200)",
    )?;
    client.batch_execute("ANALYZE t")?;
    let own = work(&mut client)?;
    let mut asked = Vec::new();
    for ef in [50, 800] {
        client.batch_execute(&format!("SET laser.ef_search = {ef}"))?;
        asked.push(work(&mut client)?);
    }
    ensure!(asked[0] < own && own < asked[1], "{own} {asked:?}");
    client.batch_execute("CREATE ROLE narrow LOGIN SUPERUSER")?;
    for defaults in [
        "ALTER SYSTEM SET laser.ef_search = 800; SELECT pg_reload_conf()",
        "ALTER DATABASE d SET laser.ef_search = 800",
        "ALTER ROLE narrow SET laser.ef_search = 800",
        "ALTER ROLE narrow IN DATABASE d SET laser.ef_search = 800",
    ] {
        for statement in defaults.split(';') {
            client.execute(statement, &[])?;
        }
        let mut config = cluster.config("d");
        config.user("narrow");
        let mut session = config.connect(NoTls)?;
        ensure!(work(&mut session)? == own, "{defaults}");
        let mut session = config.options("-c laser.ef_search=50").connect(NoTls)?;
        ensure!(work(&mut session)? == asked[0], "{defaults}");
        session.batch_execute("SET laser.ef_search = 800")?;
        ensure!(work(&mut session)? == asked[1], "{defaults}");
    }
    // An index without a width of its own has the default.
    client.batch_execute("ALTER INDEX i RESET (ef_search)")?;
    let mut session = cluster.connect("d")?;
    ensure!(work(&mut session)? == asked[1]);
    Ok(())
}
