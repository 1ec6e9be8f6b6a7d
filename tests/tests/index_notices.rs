//! What scans say that could not give everything.

use anyhow::{Result, ensure};
use laser_tests::Cluster;

const LATE: &str = "missed rows that it gives now";
const CUT: &str = "the query may lack rows";

/// Only rows that are far from the query pass the filter, and a walk that must go through all the others
/// misses some on its way: the end of the scan is told as well as what came late.
#[test]
fn a_scan_that_ends_early_says_so_whatever_else_it_says() -> Result<()> {
    let cluster = Cluster::new()?;
    cluster.database("notices")?;
    let (mut client, notices) = cluster.connect_with_notices("notices")?;
    client.batch_execute(
        "SELECT setseed(0.5);
         CREATE TABLE t (id int, v embedding(8), far bool);
         INSERT INTO t SELECT g, ARRAY(SELECT (random() * 2 - 1)::real FROM generate_series(1, 8) WHERE g = g)
         FROM generate_series(1, 60000) g;
         UPDATE t SET far = v <-> '[1,1,1,1,1,1,1,1]' > 4.2;
         SET max_parallel_maintenance_workers = 0;
         CREATE INDEX ON t USING laser (v embedding_l2_ops)",
    )?;
    client.batch_execute("VACUUM ANALYZE t")?;
    let query = "SELECT id FROM t WHERE far ORDER BY v <-> '[1,1,1,1,1,1,1,1]' LIMIT 10";
    let count = |said: &[String], part: &str| said.iter().filter(|s| s.contains(part)).count();

    notices.take();
    client.batch_execute(query)?;
    let said = notices.take();
    ensure!(
        count(&said, CUT) == 1 && count(&said, LATE) == 1,
        "{said:?}"
    );
    // Each of several statements that come at once is told.
    client.batch_execute(&format!("{query}; {query}"))?;
    let said = notices.take();
    ensure!(count(&said, CUT) == 2, "{said:?}");
    // The queries of a function are not.
    client.batch_execute(&format!(
        "DO $$ BEGIN FOR i IN 1..3 LOOP PERFORM ({query}); END LOOP; END $$"
    ))?;
    let said = notices.take();
    ensure!(count(&said, CUT) == 1, "{said:?}");
    client.batch_execute(&format!("SET laser.scan_notices = off; {query}"))?;
    ensure!(notices.take().is_empty());
    Ok(())
}
