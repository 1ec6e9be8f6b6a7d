//! What benchmarks of the index share: vectors, tables of them, and where lines go.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use postgres::Client;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::pgvector::has_pgvector;

pub mod clusters;
pub mod cost;
pub mod nearest;
pub mod speed;

/// Where lines go besides the standard output, and when the benchmark began.
static OUTPUT: OnceLock<(Mutex<File>, Instant)> = OnceLock::new();

/// Hands each argument of the program, a name and a value, to `set`, which tells whether it knows it.
///
/// # Errors
/// When a value is missing, or a name is not known; those of `set`.
pub fn arguments(mut set: impl FnMut(&str, String) -> Result<bool>) -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .with_context(|| format!("{name} needs a value"))?;
        ensure!(set(&name, value)?, "unknown argument {name}");
    }
    Ok(())
}

/// The parts of a value that are separated by commas.
///
/// # Errors
/// When one of them cannot be read.
pub fn list<T: std::str::FromStr>(value: &str) -> Result<Vec<T>>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    Ok(value.split(',').map(str::parse).collect::<Result<_, _>>()?)
}

/// What [`line()`] prints goes to this file as well.
///
/// # Errors
/// When the file cannot be created.
pub fn begin(output: &Path) -> Result<()> {
    let file = File::create(output).with_context(|| format!("creating {}", output.display()))?;
    let _ = OUTPUT.set((Mutex::new(file), Instant::now()));
    Ok(())
}

/// Prints a line.
pub fn line(line: &str) {
    println!("{line}");
    if let Some((file, _)) = OUTPUT.get() {
        let mut file = file.lock().expect("no holder panics");
        // The benchmark goes on without its file.
        let _ = writeln!(file, "{line}");
    }
}

/// Says what is being done, on the standard error.
pub fn progress(what: &str) {
    if let Some((_, start)) = OUTPUT.get() {
        eprintln!("[{:4.0} s] {what}", start.elapsed().as_secs_f64());
    }
}

/// Prints a line, as `println!` does.
#[macro_export]
macro_rules! say {
    ($($part:tt)*) => { $crate::bench::line(&format!($($part)*)) };
}

/// Vectors of one length, however they are kept.
pub trait Rows: Sync {
    /// Of each of them.
    fn dimensions(&self) -> usize;

    /// How many there are.
    fn rows(&self) -> usize;

    /// One vector.
    fn row(&self, i: usize) -> Cow<'_, [f32]>;
}

impl Rows for Vectors {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn rows(&self) -> usize {
        Self::rows(self)
    }

    fn row(&self, i: usize) -> Cow<'_, [f32]> {
        Cow::Borrowed(Self::row(self, i))
    }
}

/// Vectors in memory, row by row.
#[derive(Clone, Debug)]
pub struct Vectors {
    /// Of each of them.
    pub dimensions: usize,
    /// All components.
    pub data: Vec<f32>,
}

impl Vectors {
    /// One vector.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.data[i * self.dimensions..(i + 1) * self.dimensions]
    }

    /// How many there are.
    pub fn rows(&self) -> usize {
        self.data.len() / self.dimensions
    }
}

/// Scales to length 1.
pub fn normalize(row: &mut [f32]) {
    let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
    row.iter_mut().for_each(|x| *x /= norm);
}

/// A standard normal number (Box and Muller).
pub fn normal(rng: &mut ChaCha8Rng) -> f32 {
    let (u, v): (f32, f32) = (1.0 - rng.random::<f32>(), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
}

/// Gaussian clusters: points around `centres` Gaussian centres with a standard deviation of
/// `spread`.
pub fn clusters(
    rng: &mut ChaCha8Rng,
    rows: usize,
    dimensions: usize,
    centres: usize,
    spread: f32,
) -> Vectors {
    let middle: Vec<f32> = (0..centres * dimensions).map(|_| normal(rng)).collect();
    let mut data = Vec::with_capacity(rows * dimensions);
    for _ in 0..rows {
        let centre = rng.random_range(0..centres) * dimensions;
        data.extend((0..dimensions).map(|i| middle[centre + i] + spread * normal(rng)));
    }
    Vectors { dimensions, data }
}

/// `wanted` different lines of a file, spread over all of it.
///
/// # Errors
/// When the file has too few lines.
pub fn lines(path: &Path, wanted: usize) -> Result<Vec<String>> {
    let mut seen = HashSet::new();
    let mut lines = Vec::new();
    for line in BufReader::new(File::open(path)?).lines() {
        let line = line?.trim().to_owned();
        if !line.is_empty() && !line.contains('\0') && seen.insert(line.clone()) {
            lines.push(line);
        }
    }
    ensure!(
        lines.len() >= wanted,
        "{} has {} lines, not {wanted}",
        path.display(),
        lines.len()
    );
    // A deterministic shuffle, so that queries and rows come from the same places.
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for i in (1..lines.len()).rev() {
        lines.swap(i, rng.random_range(0..=i));
    }
    lines.truncate(wanted);
    Ok(lines)
}

/// Embeds as many [`lines`] with the default model of the session. The vectors have length 1.
///
/// # Errors
/// When the file has too few lines.
pub fn sentences(client: &mut Client, path: &Path, wanted: usize) -> Result<Vectors> {
    let lines = lines(path, wanted)?;
    let mut data = Vec::new();
    for chunk in lines.chunks(1000) {
        let row: Vec<String> = client
            .query_one(
                "SELECT array_agg(e::text ORDER BY i) FROM unnest(laser_embed($1::text[])) WITH ORDINALITY x(e, i)",
                &[&chunk],
            )?
            .get(0);
        for text in row {
            let numbers = text.trim_matches(['[', ']', '{', '}']).split(',');
            data.extend(
                numbers
                    .map(str::parse::<f32>)
                    .collect::<Result<Vec<_>, _>>()?,
            );
        }
    }
    let dimensions = data.len() / wanted;
    ensure!(
        data.len() == dimensions * wanted,
        "embeddings differ in their dimensions"
    );
    data.chunks_exact_mut(dimensions).for_each(normalize);
    Ok(Vectors { dimensions, data })
}

/// Whether pgvector can be had, which is then installed in the database.
///
/// # Errors
/// When a statement fails.
pub fn pgvector(client: &mut Client) -> Result<bool> {
    let available = has_pgvector("pgvector")?;
    if available {
        client.batch_execute("CREATE EXTENSION IF NOT EXISTS vector")?;
    }
    Ok(available)
}

/// Writes rows into the columns `id`, counted from 0, and `v` of a table, in the binary format that
/// all types share; `half` is for those with 16 bits.
///
/// # Errors
/// When the table does not take them.
pub fn load(
    client: &mut Client,
    table: &str,
    half: bool,
    vectors: &dyn Rows,
    rows: Range<usize>,
) -> Result<()> {
    let mut writer = client.copy_in(&format!("COPY {table} (id, v) FROM STDIN (FORMAT binary)"))?;
    writer.write_all(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0")?;
    let mut line = Vec::new();
    for (id, i) in rows.enumerate() {
        line.clear();
        line.extend_from_slice(&2i16.to_be_bytes());
        line.extend_from_slice(&4i32.to_be_bytes());
        line.extend_from_slice(&(id as i32).to_be_bytes());
        let row = vectors.row(i);
        let size = 4 + row.len() * if half { 2 } else { 4 };
        line.extend_from_slice(&(size as i32).to_be_bytes());
        line.extend_from_slice(&(row.len() as i16).to_be_bytes());
        line.extend_from_slice(&[0, 0]);
        for x in row.iter() {
            if half {
                line.extend_from_slice(&laser_vector::f16::from_f32(*x).to_be_bytes());
            } else {
                line.extend_from_slice(&x.to_be_bytes());
            }
        }
        writer.write_all(&line)?;
    }
    writer.write_all(&(-1i16).to_be_bytes())?;
    writer.finish()?;
    Ok(())
}
