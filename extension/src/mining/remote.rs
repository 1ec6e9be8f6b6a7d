//! Searches in the encoder process, which has the GPU.

use std::fs::File;
use std::io::{BufReader, Seek};

use laser_mining::{Error, Neighbours, temporary_file};
use laser_protocol::Search;
use pgrx::warning;

use super::guc::{self, Place};
use super::load::{self, Loaded};
use super::progress::Progress;
use crate::encode::{self, Files, Searched};

/// What a search finds.
pub struct Found {
    /// Neighbours of the source rows.
    pub forward: Neighbours,
    /// Neighbours of the target rows, if they were wanted.
    pub backward: Option<Neighbours>,
}

/// Products of components from which on a search is worth the way: the processor needs a good part
/// of a second for them.
const WORTH: u64 = 1 << 37;

/// Searches in the encoder process, if that is where it is to be done; `None` if the session is to
/// search. Without a GPU the result is the same, and with one as well.
pub fn search(
    source: &Loaded,
    target: &Loaded,
    dimensions: usize,
    k: usize,
    backward: bool,
    progress: &mut Progress,
) -> Option<Result<Found, Error>> {
    let (rows, others) = (source.ids.len(), target.ids.len());
    let products = (rows as u64)
        .saturating_mul(others as u64)
        .saturating_mul(dimensions as u64);
    let bytes = (rows + others) * dimensions * size_of::<f32>();
    let anywhere = match guc::place() {
        Place::Auto if products >= WORTH && load::within_limit(bytes) => false,
        Place::Encoder if products > 0 => {
            load::check_limit(bytes);
            true
        }
        _ => return None,
    };
    let search = Search {
        dimensions: u32::try_from(dimensions).ok()?,
        k: u32::try_from(k).ok()?,
        backward,
        source_rows: rows as u64,
        target_rows: others as u64,
        memory: guc::memory() as u64,
        threads: guc::threads() as u32,
    };
    progress.phase("searching");
    let mut result = None;
    let files = || {
        let files = files(source, target).unwrap_or_else(|error| {
            load::search_of_failed(error, source, target);
        });
        result = files.result.try_clone().ok();
        files
    };
    let searched = encode::search(search, anywhere, files, |done, total| {
        progress.search(done, total);
    });
    match searched {
        Searched::Found => Some(read(result?, rows, others, backward)),
        Searched::Declined => None,
        Searched::Failed(why) => {
            warning!("could not search in the encoder process: {why}; searching in the session");
            None
        }
    }
}

fn files(source: &Loaded, target: &Loaded) -> Result<Files, Error> {
    Ok(Files {
        source: source.rows.to_file()?,
        target: target.rows.to_file()?,
        result: temporary_file(Some(&load::spill_folder()))?,
    })
}

fn read(mut result: File, rows: usize, others: usize, backward: bool) -> Result<Found, Error> {
    result.rewind()?;
    let mut result = BufReader::new(result);
    Ok(Found {
        forward: Neighbours::read(&mut result, rows, others)?,
        backward: match backward {
            true => Some(Neighbours::read(&mut result, others, rows)?),
            false => None,
        },
    })
}
