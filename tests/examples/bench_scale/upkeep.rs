//! Upkeep: VACUUM of a tenth of the rows beside a B-tree's, and merging one half of the rows into a graph of the other.

use anyhow::Result;
use laser_tests::bench::cost::{Cost, of_statements};
use laser_tests::bench::{Rows, progress};
use laser_tests::{Cluster, say};
use postgres::Client;

use super::settings::{DATABASE, Settings};
use super::table::{fill, machine_load};

/// A table that VACUUM goes through.
struct Upkept {
    name: &'static str,
    /// Type of its column.
    kind: &'static str,
    /// What follows `CREATE INDEX ti ON t USING`.
    index: Option<&'static str>,
}

pub fn upkeep(
    cluster: &Cluster,
    s: &Settings,
    vectors: &dyn Rows,
    rows: usize,
    has_pgvector: bool,
) -> Result<()> {
    let memory = s.memory.last().map_or("64MB", String::as_str);
    let mut client = cluster.connect(DATABASE)?;
    client.batch_execute("DROP TABLE IF EXISTS ours, theirs, asked, t")?;
    client.batch_execute(&format!("SET maintenance_work_mem = '{memory}'"))?;
    say!("upkeep of {rows} rows, maintenance_work_mem {memory}");
    let upkept = |name, kind, index| Upkept { name, kind, index };
    let mut all = vec![
        upkept("no index", "embedding", None),
        upkept("B-tree on id", "embedding", Some("btree (id)")),
        upkept("laser", "embedding", Some("laser (v)")),
    ];
    if has_pgvector {
        let index = Some("hnsw (v vector_cosine_ops)");
        all.push(upkept("pgvector", "vector", index));
    }
    for upkept in all {
        vacuum(cluster, &mut client, vectors, rows, &upkept)?;
    }
    merge(cluster, &mut client, vectors, rows)
}

/// Prints what VACUUM takes once every tenth row is dead, all over the table.
fn vacuum(
    cluster: &Cluster,
    client: &mut Client,
    vectors: &dyn Rows,
    rows: usize,
    upkept: &Upkept,
) -> Result<()> {
    progress(&format!("VACUUM, {}", upkept.name));
    fill(client, "t", upkept.kind, vectors, 0..rows)?;
    if let Some(index) = upkept.index {
        client.batch_execute(&format!("CREATE INDEX ti ON t USING {index}"))?;
    }
    client.batch_execute("VACUUM (ANALYZE) t")?;
    let is_laser = upkept.name == "laser";
    let before = if is_laser {
        found(client)?
    } else {
        String::new()
    };
    client.batch_execute("DELETE FROM t WHERE id % 10 = 3; CHECKPOINT")?;
    let cost = of_statements(cluster, client, "VACUUM (INDEX_CLEANUP ON, PARALLEL 0) t")?;
    let after = if is_laser {
        format!(
            ", by laser_index_recall {before} before and {} after",
            found(client)?
        )
    } else {
        String::new()
    };
    print(&format!("VACUUM, {}", upkept.name), &cost, &after);
    Ok(())
}

/// The share of the ten nearest of its rows that the index finds by default.
fn found(client: &mut Client) -> Result<String> {
    let row = client.query_one("SELECT laser_index_recall('ti')::text", &[])?;
    Ok(row.get(0))
}

/// Prints what it takes to merge the second half of the rows into the graph of the first, and to build the graph of all.
fn merge(cluster: &Cluster, client: &mut Client, vectors: &dyn Rows, rows: usize) -> Result<()> {
    progress("merging halves");
    let half = rows / 2;
    fill(client, "t", "embedding", vectors, 0..half)?;
    fill(client, "others", "embedding", vectors, half..rows)?;
    client.batch_execute("VACUUM (ANALYZE) t")?;
    client.batch_execute("SET laser.background_maintenance = off")?;
    let create = "CREATE INDEX ti ON t USING laser (v) WITH (pending_list_limit = 2097151)";
    let first = of_statements(cluster, client, create)?;
    print("a graph of the first half", &first, "");
    client.batch_execute("INSERT INTO t SELECT * FROM others; CHECKPOINT")?;
    let merged = of_statements(cluster, client, "SELECT laser_merge('ti')")?;
    let recall = format!(", recall {}", found(client)?);
    print("the second half merged into it", &merged, &recall);
    client.batch_execute("DROP INDEX ti; DROP TABLE others; CHECKPOINT")?;
    let whole = of_statements(cluster, client, "CREATE INDEX ti ON t USING laser (v)")?;
    let recall = format!(
        ", recall {}; the merge takes {:.2} of its time, {:.2} of its processor time",
        found(client)?,
        merged.wall / whole.wall,
        merged.cpu / whole.cpu
    );
    print("a graph of all", &whole, &recall);
    client.batch_execute("DROP TABLE t; RESET laser.background_maintenance")?;
    Ok(())
}

fn print(what: &str, cost: &Cost, more: &str) {
    say!(
        "  {what}: {:.1} s ({:.1} CPU-s, load {}){more}",
        cost.wall,
        cost.cpu,
        machine_load()
    );
}
