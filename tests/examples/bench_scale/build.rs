//! Builds: time, memory and size.

use anyhow::Result;
use laser_tests::bench::cost::{self, Cost};
use laser_tests::bench::{Rows, progress};
use laser_tests::{Cluster, say, segment_files};

use super::settings::{DATABASE, Settings};
use super::table::{fill, machine_load};

/// One index of one table.
pub struct Contender {
    pub name: String,
    pub table: &'static str,
    /// Type of the column.
    pub kind: &'static str,
    pub method: &'static str,
    pub memory: String,
    /// The setting of the width, its largest value, and whether 0 of it is a width by default.
    pub ef: &'static str,
    pub widest: u32,
    pub has_default: bool,
}

pub fn contenders(s: &Settings, has_pgvector: bool) -> Vec<Contender> {
    let mut all: Vec<Contender> = s
        .memory
        .iter()
        .map(|memory| Contender {
            name: format!("laser, {memory}"),
            table: "ours",
            kind: "embedding",
            method: "laser (v)",
            memory: memory.clone(),
            ef: "laser.ef_search",
            widest: u32::MAX,
            has_default: true,
        })
        .collect();
    if let (true, Some(memory)) = (has_pgvector, s.memory.last()) {
        all.push(Contender {
            name: format!("pgvector, {memory}"),
            table: "theirs",
            kind: "vector",
            method: "hnsw (v vector_cosine_ops)",
            memory: memory.clone(),
            ef: "hnsw.ef_search",
            widest: 1000,
            has_default: false,
        });
    }
    all
}

/// Makes the contender's table and its index, which no other has then, and prints what that took.
pub fn build(
    cluster: &Cluster,
    s: &Settings,
    vectors: &dyn Rows,
    rows: usize,
    c: &Contender,
) -> Result<Cost> {
    let mut client = cluster.connect(DATABASE)?;
    progress(&format!("{rows} rows: table of {}", c.name));
    client.batch_execute("DROP TABLE IF EXISTS ours, theirs, asked")?;
    let last = vectors.rows();
    fill(
        &mut client,
        "asked",
        c.kind,
        vectors,
        last - s.queries..last,
    )?;
    fill(&mut client, c.table, c.kind, vectors, 0..rows)?;
    client.batch_execute("CREATE INDEX ON asked (id)")?;
    client.batch_execute(&format!("VACUUM (ANALYZE) {}, asked", c.table))?;
    client.batch_execute("CHECKPOINT")?;
    progress(&format!("{rows} rows: index of {}", c.name));
    client.batch_execute(&format!("SET maintenance_work_mem = '{}'", c.memory))?;
    let create = format!("CREATE INDEX vi ON {} USING {}", c.table, c.method);
    let load = machine_load();
    let cost = cost::of_statements(cluster, &mut client, &create)?;
    let bytes: i64 = client
        .query_one("SELECT pg_relation_size('vi')", &[])?
        .get(0);
    client.batch_execute("CHECKPOINT")?;
    let megabytes = |bytes: f64| bytes / 1e6;
    let more = if c.has_default {
        // The files are made when a search wants them.
        client.batch_execute(&format!(
            "SET enable_seqscan = off; SELECT id FROM {} ORDER BY v <=> (SELECT v FROM asked WHERE id = 0) LIMIT 1",
            c.table
        ))?;
        let files: u64 = segment_files(cluster)?.iter().map(|file| file.1).sum();
        let row = client.query_one(
            "SELECT segments, stored_as FROM laser_index_info('vi')",
            &[],
        )?;
        format!(
            ", files {:.0} MB, {} segments, {}",
            megabytes(files as f64),
            row.get::<_, i32>(0),
            row.get::<_, Option<String>>(1).unwrap_or_default()
        )
    } else {
        String::new()
    };
    say!(
        "{}: built in {:.0} s ({:.0} CPU-s, load {load}), {:.0} MB of own memory, index {:.0} MB{more}",
        c.name,
        cost.wall,
        cost.cpu,
        megabytes(cost.memory as f64),
        megabytes(bytes as f64),
    );
    Ok(cost)
}
