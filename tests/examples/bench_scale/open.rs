//! First queries: of a new connection, and of a server whose files are not in memory.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use laser_tests::bench::cost::{bytes_read, session};
use laser_tests::bench::progress;
use laser_tests::{Cluster, say, segment_files, segment_folder};
use postgres::Client;

use super::build::Contender;
use super::settings::{DATABASE, K, Settings};

const CONNECTIONS: usize = 11;
/// Queries of the cold server behind its first.
const BEHIND: usize = 50;
/// Smaller files are left in memory: they are none of tables with vectors.
const LARGE: u64 = 1 << 20;

/// Milliseconds of a query.
fn ask(client: &mut Client, c: &Contender, query: usize) -> Result<f64> {
    let start = Instant::now();
    let rows = client.query(
        &format!(
            "SELECT id FROM {} ORDER BY v <=> (SELECT v FROM asked WHERE id = {query}) LIMIT {K}",
            c.table
        ),
        &[],
    )?;
    ensure!(rows.len() == K, "{} of {K} rows", rows.len());
    Ok(1e3 * start.elapsed().as_secs_f64())
}

/// A new session, whose width is 100.
fn connect(cluster: &Cluster, c: &Contender) -> Result<Client> {
    let mut client = cluster.connect(DATABASE)?;
    client.batch_execute(&format!("SET {} = 100; SET enable_seqscan = off", c.ef))?;
    Ok(client)
}

/// Asks the index that has been built last.
pub fn open(cluster: &mut Cluster, s: &Settings, c: &Contender) -> Result<()> {
    progress(&format!("new connections to {}", c.name));
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for i in 0..CONNECTIONS {
        let mut client = connect(cluster, c)?;
        first.push(ask(&mut client, c, i % s.queries)?);
        second.push(ask(&mut client, c, i % s.queries)?);
    }
    let spread = |mut took: Vec<f64>| {
        took.sort_by(f64::total_cmp);
        let (least, most) = (took[0], took[took.len() - 1]);
        format!("{least:.1} / {:.1} / {most:.1}", took[took.len() / 2])
    };
    say!(
        "  new connections, at 100: first query {} ms, second {} ms (smallest, median, largest)",
        spread(first),
        spread(second)
    );

    progress(&format!("a cold server, {}", c.name));
    cluster.stop("fast")?;
    for folder in [cluster.data().join("base"), segment_folder(cluster)] {
        if folder.is_dir() {
            forget_files(&folder)?;
        }
    }
    cluster.start()?;
    let has_files = !segment_files(cluster)?.is_empty();
    let mut client = connect(cluster, c)?;
    let pid = session(&mut client)?;
    let before = bytes_read(pid);
    let first = ask(&mut client, c, 0)?;
    let after_first = bytes_read(pid);
    let mut behind = Vec::new();
    for i in 1..=BEHIND {
        behind.push(ask(&mut client, c, i % s.queries)?);
    }
    let read = |from: Option<u64>, to: Option<u64>| match (from, to) {
        (Some(from), Some(to)) => format!("{:.1} MB", (to - from) as f64 / 1e6),
        _ => "unknown".to_owned(),
    };
    let files = match (c.has_default, has_files) {
        (false, _) => "",
        (true, true) => ", files of segments were there",
        (true, false) => ", files of segments had to be made",
    };
    let mean = behind.iter().sum::<f64>() / BEHIND as f64;
    say!(
        "  cold server, at 100: first query {first:.0} ms ({} read), the {BEHIND} behind it {mean:.1} ms each ({} read){files}",
        read(before, after_first),
        read(after_first, bytes_read(pid))
    );
    Ok(())
}

/// Writes large files out, and has the system drop what it keeps of them.
fn forget_files(folder: &Path) -> Result<()> {
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let found = path.symlink_metadata()?;
        if found.is_dir() {
            forget_files(&path)?;
        } else if found.is_file() && found.len() > LARGE {
            // The way that the manual of dd names: nothing is written.
            let status = Command::new("dd")
                .arg(format!("of={}", path.display()))
                .args([
                    "oflag=nocache",
                    "conv=notrunc,fdatasync",
                    "count=0",
                    "status=none",
                ])
                .status()?;
            ensure!(status.success(), "dd of {} failed", path.display());
        }
    }
    Ok(())
}
