//! How wide the first search of a scan is by what its query wants, and that the planner prices what the executor does.

use anyhow::{Context, Result, ensure};
use laser_tests::Cluster;
use postgres::Client;

/// Like the rows of [`tables`]: what is unlike them would be searched for again.
const QUERY: &str = "'[1.435,-1.54,-0.094,0.616,0.294,-1.888,-1.356,1.839]'";

/// Vectors met by searches so far, and searches that were wider than the one before.
fn counts(client: &mut Client) -> Result<(i64, i64)> {
    let sums = "SELECT sum(visited)::bigint, sum(widened)::bigint FROM pg_stat_laser_indexes";
    let row = client.query_one(sums, &[])?;
    Ok((row.get(0), row.get(1)))
}

/// What a statement's first searches cost by its plan, and how many vectors they meet; nobody may search again.
fn searched(client: &mut Client, settings: &str, statement: &str) -> Result<(f64, i64)> {
    client.batch_execute(&format!(
        "SET enable_seqscan = off; SET enable_sort = off; {settings}"
    ))?;
    let plan = client.simple_query(&format!("EXPLAIN {statement}"))?;
    let scans = plan.iter().filter_map(|line| match line {
        postgres::SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    let mut cost = 0.0;
    for scan in scans.filter(|line| line.contains("Index Scan") && line.contains("_v")) {
        let startup = scan
            .split("cost=")
            .nth(1)
            .and_then(|rest| rest.split("..").next());
        cost += startup.context("a cost")?.parse::<f64>()?;
    }
    ensure!(cost > 0.0, "{statement}: {plan:?}");
    let before = counts(client)?;
    client.batch_execute(statement)?;
    let after = counts(client)?;
    ensure!(before.1 == after.1, "{settings}: {statement}");
    client.batch_execute("RESET ALL")?;
    Ok((cost, after.0 - before.0))
}

/// Tables with an index on eight dimensions, one of them in two parts, and a table of one row.
fn tables(client: &mut Client) -> Result<()> {
    client.batch_execute(
        "CREATE TABLE t (id int, v embedding(8));
         INSERT INTO t SELECT i, (SELECT array_agg(sin(i * (n + 1.7)) + cos(i + n * n))
                                  FROM generate_series(1, 8) n)
         FROM generate_series(1, 20000) i;
         CREATE INDEX t_v ON t USING laser (v);
         CREATE TABLE p (id int, v embedding(8)) PARTITION BY RANGE (id);
         CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (1) TO (10001);
         CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10001) TO (30000);
         INSERT INTO p SELECT * FROM t;
         CREATE INDEX p_v ON p USING laser (v);
         CREATE TABLE one AS SELECT 1 AS x;
         ANALYZE t, p, one",
    )?;
    Ok(())
}

/// Rows that a filter lets pass lie farther down the order, as those of a larger limit, where walks miss more: their first search is
/// wider, by the plan's price too, unless somebody has said how wide searches are.
///
/// The planner takes the filter to let a third pass. It lets three quarters, so that no first search finds too few.
#[test]
fn searches_are_as_wide_as_they_are_priced() -> Result<()> {
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    tables(&mut client)?;
    let relaxed = "SET laser.iterative_scan = relaxed_order";
    let order = format!("ORDER BY v <=> {QUERY}");
    for (statement, is_wider) in [
        (format!("SELECT id FROM t {order} LIMIT 10"), false),
        (
            format!("SELECT id FROM t WHERE id % 4 < 3 {order} LIMIT 10"),
            true,
        ),
        (
            format!("SELECT id FROM t WHERE id % 4 < 3 {order} LIMIT 5 OFFSET 3"),
            true,
        ),
        (
            format!("SELECT * FROM (SELECT id FROM t WHERE id % 4 < 3 {order} LIMIT 10) s"),
            true,
        ),
        (
            format!("SELECT id FROM t WHERE id % 4 < 3 {order} LIMIT 10 FOR UPDATE"),
            false,
        ),
        (
            format!("SELECT id FROM t, one WHERE id % 4 < 3 * x {order} LIMIT 10"),
            false,
        ),
        (
            format!("SELECT id FROM p WHERE id % 4 < 3 {order} LIMIT 10"),
            false,
        ),
        (
            format!("SELECT id FROM p WHERE id <= 10000 AND id % 4 < 3 {order} LIMIT 10"),
            true,
        ),
    ] {
        let plain = searched(&mut client, relaxed, &statement)?;
        let own = searched(&mut client, "", &statement)?;
        ensure!(
            (own.0 > plain.0) == is_wider,
            "{statement}: {own:?} {plain:?}"
        );
        ensure!(
            (own.1 > plain.1) == is_wider,
            "{statement}: {own:?} {plain:?}"
        );
        let set = "SET laser.ef_search = 100";
        let (set, both) = (
            searched(&mut client, set, &statement)?,
            searched(&mut client, &format!("{set}; {relaxed}"), &statement)?,
        );
        ensure!(set == both, "{statement}: {set:?} {both:?}");
    }
    Ok(())
}

/// Of a filter that is estimated to let next to nothing pass, and lets most, no more is believed than one row in ten.
#[test]
fn estimates_of_filters_are_believed_in_part() -> Result<()> {
    let cluster = Cluster::builder().setting("autovacuum", "off").start()?;
    let mut client = cluster.database("d")?;
    tables(&mut client)?;
    let mut visited = |filter: &str| -> Result<i64> {
        let statement = format!("SELECT id FROM t WHERE {filter} ORDER BY v <=> {QUERY} LIMIT 10");
        Ok(searched(&mut client, "", &statement)?.1)
    };
    let (all, most) = (
        visited("true")?,
        visited("id % 2 < 2 AND id % 3 < 3 AND id % 5 < 5 AND id % 7 < 7")?,
    );
    ensure!((all + 1..=all * 2).contains(&most), "{all} {most}");
    Ok(())
}
