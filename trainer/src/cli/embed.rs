//! `laser embed`.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};

use super::measured::{ModelArgs, Side};
use crate::data::input::{Line, Lines};

/// Form of embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// One embedding a line, values separated by tabs.
    Tsv,
    /// NumPy array of 32-bit floats, [lines, dimensions].
    Npy,
}

/// Arguments of `laser embed`.
#[derive(Debug, Args)]
pub struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The language of the lines: for a model with an encoder for each language.
    #[arg(long, value_name = "LANG")]
    language: Option<String>,
    /// Form of the embeddings.
    #[arg(long, value_enum, default_value_t = Output::Tsv)]
    format: Output,
    /// Write here instead of to standard output; needed for npy.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Lines that are embedded together.
const BATCH: usize = 2048;

/// Bytes before the data of a npy file; a multiple of 64 as the format asks for.
const NPY_HEADER: usize = 128;

/// Header of version 1.0 for a matrix in row-major order.
fn npy_header(rows: u64, columns: usize) -> Vec<u8> {
    let dict =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&((NPY_HEADER - 10) as u16).to_le_bytes());
    header.extend_from_slice(dict.as_bytes());
    header.resize(NPY_HEADER - 1, b' ');
    header.push(b'\n');
    header
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("could not write \"{}\"", path.display()))
}

/// Runs `laser embed`.
pub fn run(args: &EmbedArgs, threads: Option<usize>) -> Result<()> {
    let side = Side {
        language: args.language.as_deref(),
        option: "--language",
    };
    let encoder = args.model.load_for(side, threads)?;
    let dimensions = encoder.dimensions();
    let mut npy = match (args.format, &args.output) {
        (Output::Npy, Some(path)) => Some(create(path)?),
        (Output::Npy, None) => bail!("--format npy needs --output"),
        (Output::Tsv, _) => None,
    };
    let mut out: Box<dyn Write> = match (&npy, &args.output) {
        (Some(file), _) => Box::new(BufWriter::new(file.try_clone()?)),
        (None, Some(path)) => Box::new(BufWriter::new(create(path)?)),
        (None, None) => Box::new(BufWriter::new(std::io::stdout().lock())),
    };
    if npy.is_some() {
        out.write_all(&npy_header(0, dimensions))?;
    }
    let mut rows = 0u64;
    let mut lines = Lines::new(std::io::stdin().lock());
    let mut waiting: Vec<String> = Vec::with_capacity(BATCH);
    loop {
        let more = match lines.next_line().context("could not read standard input")? {
            Line::Text(text) => {
                waiting.push(text.to_owned());
                true
            }
            Line::Malformed(message) => bail!("line {} of the input: {message}", lines.number()),
            Line::End => false,
        };
        if waiting.len() == BATCH || !more && !waiting.is_empty() {
            let texts: Vec<&str> = waiting.iter().map(String::as_str).collect();
            let embeddings = encoder.encode(&texts)?;
            rows += texts.len() as u64;
            for row in embeddings.rows() {
                match args.format {
                    Output::Npy => {
                        for value in row {
                            out.write_all(&value.to_le_bytes())?;
                        }
                    }
                    Output::Tsv => {
                        for (i, value) in row.iter().enumerate() {
                            write!(out, "{}{value}", if i > 0 { "\t" } else { "" })?;
                        }
                        writeln!(out)?;
                    }
                }
            }
            waiting.clear();
        }
        if !more {
            break;
        }
    }
    out.flush()?;
    drop(out);
    if let Some(file) = &mut npy {
        file.seek(SeekFrom::Start(0))?;
        file.write_all(&npy_header(rows, dimensions))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn npy_header_has_the_right_length() {
        for (rows, columns) in [(0, 1), (u64::MAX, 16_000)] {
            let header = npy_header(rows, columns);
            assert_eq!(header.len(), NPY_HEADER);
            assert_eq!(usize::from(header[8]), NPY_HEADER - 10);
            assert!(header.ends_with(b"\n"));
            assert!(String::from_utf8_lossy(&header).contains(&format!("({rows}, {columns})")));
        }
    }
}
