//! Exact deduplication in bounded memory.
//!
//! The first pass over the text gives every row a fingerprint; fingerprints are spread over
//! partitions by their high bits and spilled to a temporary file when they exceed the budget. Each
//! partition is then sorted on its own, and every row but the first of each fingerprint is marked
//! in a bitmap, one bit a row, that the second pass reads. A chance collision of two of n rows has
//! probability n^2 / 2^65: 0.1 % for 223 million.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::temporary::unnamed_file;
use super::{DataError, Result};

const PARTITIONS: usize = 256;

/// Fingerprint and ordinal of a row.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Entry {
    hash: u64,
    ordinal: u64,
}

/// Collects fingerprints in the order of rows.
pub struct Dedup {
    partitions: Vec<Vec<Entry>>,
    held: usize,
    budget: usize,
    rows: u64,
    folder: PathBuf,
    spill: Option<Spill>,
}

/// One file with the runs of all partitions, and where they lie: partition, offset, entries.
struct Spill {
    file: File,
    runs: Vec<(usize, u64, usize)>,
    end: u64,
}

/// The rows that repeat an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repeats {
    bits: Vec<u64>,
    count: u64,
}

impl Repeats {
    /// Whether the row with this ordinal repeats an earlier one.
    #[must_use]
    pub fn contains(&self, ordinal: u64) -> bool {
        let word = self.bits.get((ordinal / 64) as usize).copied().unwrap_or(0);
        word >> (ordinal % 64) & 1 == 1
    }

    /// Number of repeats.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

impl Dedup {
    /// Holds at most about `budget` bytes of fingerprints in memory and spills to an unnamed file
    /// in `folder`.
    #[must_use]
    pub fn new(budget: usize, folder: &Path) -> Self {
        Self {
            partitions: vec![Vec::new(); PARTITIONS],
            held: 0,
            budget: (budget / size_of::<Entry>()).max(1),
            rows: 0,
            folder: folder.to_owned(),
            spill: None,
        }
    }

    /// Adds the next row.
    ///
    /// # Errors
    /// [`DataError::Io`] if the temporary file cannot be written.
    pub fn push(&mut self, hash: u64) -> Result<()> {
        let entry = Entry {
            hash,
            ordinal: self.rows,
        };
        self.rows += 1;
        self.partitions[(hash >> 56) as usize].push(entry);
        self.held += 1;
        if self.held >= self.budget {
            self.flush().map_err(|e| DataError::io(&self.folder, e))?;
        }
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let spill = match &mut self.spill {
            Some(spill) => spill,
            None => {
                let file = unnamed_file(&self.folder)?;
                self.spill.insert(Spill {
                    file,
                    runs: Vec::new(),
                    end: 0,
                })
            }
        };
        for (index, partition) in self.partitions.iter_mut().enumerate() {
            let bytes: &[u8] = bytemuck::cast_slice(partition);
            spill.file.write_all(bytes)?;
            spill.runs.push((index, spill.end, partition.len()));
            spill.end += bytes.len() as u64;
            *partition = Vec::new();
        }
        self.held = 0;
        Ok(())
    }

    /// Finds the repeats.
    ///
    /// # Errors
    /// [`DataError::Io`] if the temporary file cannot be read.
    pub fn finish(mut self) -> Result<Repeats> {
        let mut bits = vec![0u64; (self.rows as usize).div_ceil(64)];
        let mut count = 0;
        for index in 0..PARTITIONS {
            let mut entries = self
                .load(index)
                .map_err(|e| DataError::io(&self.folder, e))?;
            entries.sort_unstable();
            for pair in entries.windows(2) {
                if pair[0].hash == pair[1].hash {
                    let ordinal = pair[1].ordinal;
                    bits[(ordinal / 64) as usize] |= 1 << (ordinal % 64);
                    count += 1;
                }
            }
        }
        Ok(Repeats { bits, count })
    }

    fn load(&mut self, index: usize) -> std::io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        if let Some(spill) = &mut self.spill {
            for &(partition, offset, len) in &spill.runs {
                if partition == index && len > 0 {
                    let start = entries.len();
                    entries.resize(
                        start + len,
                        Entry {
                            hash: 0,
                            ordinal: 0,
                        },
                    );
                    spill.file.seek(SeekFrom::Start(offset))?;
                    spill
                        .file
                        .read_exact(bytemuck::cast_slice_mut(&mut entries[start..]))?;
                }
            }
        }
        entries.append(&mut self.partitions[index]);
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use laser_sampling::mix;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn spilled_or_not_the_repeats_are_those_of_a_set(
            values in proptest::collection::vec(0u64..60, 0..300),
            budget in prop_oneof![Just(16usize), Just(320), Just(1 << 20)],
        ) {
            let folder = tempfile::tempdir().expect("folder");
            let mut dedup = Dedup::new(budget, folder.path());
            for v in &values {
                dedup.push(mix(*v)).expect("push");
            }
            let repeats = dedup.finish().expect("finish");
            let mut seen = HashSet::new();
            for (i, v) in values.iter().enumerate() {
                prop_assert_eq!(repeats.contains(i as u64), !seen.insert(*v));
            }
            prop_assert_eq!(repeats.count() as usize, values.len() - seen.len());
        }
    }
}
