//! Tables of vectors, and what else all figures have.

use std::ops::Range;

use anyhow::Result;
use laser_tests::bench::{Rows, load};
use postgres::Client;

/// The load of the machine.
pub fn machine_load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Makes a table with vectors.
pub fn fill(
    client: &mut Client,
    table: &str,
    kind: &str,
    vectors: &dyn Rows,
    rows: Range<usize>,
) -> Result<()> {
    client.batch_execute(&format!(
        "DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int, v {kind}({}))",
        vectors.dimensions()
    ))?;
    load(client, table, false, vectors, rows)
}
