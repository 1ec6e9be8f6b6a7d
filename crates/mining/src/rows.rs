//! Rows of embeddings in memory or, beyond a limit, in a temporary file.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{Error, Side};

/// Bytes collected before they are written once a store has spilled.
const WRITE_BUFFER: usize = 1 << 20;
/// Values that are read at a time, from where rows are in a file: some milliseconds.
const PIECE: usize = 1 << 20;

/// Embeddings that are collected row by row. Past its memory limit they go to a temporary file
/// without a name, which vanishes with the store or with the process.
#[derive(Debug)]
pub struct RowStore {
    dimensions: usize,
    limit: usize,
    folder: Option<PathBuf>,
    /// The rows that are in the file, which come before those in memory.
    in_file: usize,
    file: Option<File>,
    memory: Vec<f32>,
}

impl RowStore {
    /// A store for rows of `dimensions` values that keeps at most about `limit` bytes in memory
    /// and puts its file into `folder` (default: the system's folder for temporary files).
    pub fn new(dimensions: usize, limit: usize, folder: Option<PathBuf>) -> Self {
        RowStore {
            dimensions,
            limit,
            folder,
            in_file: 0,
            file: None,
            memory: Vec::new(),
        }
    }

    /// The store that another one's [`RowStore::to_file`] made a file of, which may be in another
    /// process.
    ///
    /// # Errors
    /// [`Error::Spill`] when the file is shorter than `rows` rows.
    pub fn from_file(file: File, rows: usize, dimensions: usize) -> Result<Self, Error> {
        let bytes = rows
            .checked_mul(dimensions)
            .and_then(|values| values.checked_mul(size_of::<f32>()));
        if bytes.is_none_or(|bytes| (file.metadata().map_or(0, |m| m.len())) < bytes as u64) {
            return Err(Error::Spill(std::io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(RowStore {
            dimensions,
            limit: 0,
            folder: None,
            in_file: rows,
            file: Some(file),
            memory: Vec::new(),
        })
    }

    /// A file with all rows: the store's own, or a new temporary one without a name.
    ///
    /// # Errors
    /// [`Error::Spill`] when it cannot be written.
    pub fn to_file(&self) -> Result<File, Error> {
        let file = match &self.file {
            Some(file) => file.try_clone()?,
            None => temporary_file(self.folder.as_deref())?,
        };
        // Where the rows in memory will go when they are spilled.
        file.write_all_at(bytemuck::cast_slice(&self.memory), self.bytes_in_file())?;
        Ok(file)
    }

    /// Appends one row.
    ///
    /// # Errors
    /// [`Error::Spill`] when the file cannot be written.
    ///
    /// # Panics
    /// When the row has another number of dimensions.
    pub fn push(&mut self, row: &[f32]) -> Result<(), Error> {
        assert_eq!(row.len(), self.dimensions, "a row of other dimensions");
        let limit = if self.file.is_some() {
            WRITE_BUFFER.min(self.limit)
        } else {
            self.limit
        };
        if (self.memory.len() + row.len()) * size_of::<f32>() > limit && !self.memory.is_empty() {
            self.spill()?;
        }
        laser_memory::extend_from_slice(&mut self.memory, row)?;
        Ok(())
    }

    fn spill(&mut self) -> Result<(), Error> {
        let at = self.bytes_in_file();
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(temporary_file(self.folder.as_deref())?),
        };
        file.write_all_at(bytemuck::cast_slice(&self.memory), at)?;
        self.in_file += self.memory.len() / self.dimensions;
        // The first spill may have been large: give that memory back.
        self.memory = Vec::new();
        let values = (WRITE_BUFFER / size_of::<f32>()).max(self.dimensions);
        self.memory = laser_memory::with_capacity(values)?;
        Ok(())
    }

    fn bytes_in_file(&self) -> u64 {
        (self.in_file * self.dimensions * size_of::<f32>()) as u64
    }

    /// Rows that were pushed so far, in the file and in memory.
    pub fn rows(&self) -> usize {
        self.in_file + self.memory.len() / self.dimensions.max(1)
    }

    /// Values in a row.
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// Whether some of the rows are in a file.
    pub fn spilled(&self) -> bool {
        self.file.is_some()
    }

    /// One row.
    ///
    /// # Errors
    /// [`Error::Spill`] when the file cannot be read.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, at: usize) -> Result<Cow<'_, [f32]>, Error> {
        self.read(at..at + 1, || Ok(()))
    }

    /// Reads rows; `check` is asked between pieces whether to go on.
    fn read(
        &self,
        range: Range<usize>,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<Cow<'_, [f32]>, Error> {
        let Some(file) = &self.file else {
            return Ok(Cow::Borrowed(
                &self.memory[range.start * self.dimensions..range.end * self.dimensions],
            ));
        };
        let mut values = laser_memory::filled(0.0f32, range.len() * self.dimensions)?;
        let from_file = range.end.min(self.in_file).saturating_sub(range.start);
        let (read, copied) = values.split_at_mut(from_file * self.dimensions);
        let mut at = (range.start * self.dimensions * size_of::<f32>()) as u64;
        for piece in read.chunks_mut(PIECE) {
            check()?;
            file.read_exact_at(bytemuck::cast_slice_mut(piece), at)?;
            at += size_of_val(piece) as u64;
        }
        if from_file < range.len() {
            let first = (range.start.max(self.in_file) - self.in_file) * self.dimensions;
            copied.copy_from_slice(&self.memory[first..first + copied.len()]);
        }
        Ok(Cow::Owned(values))
    }
}

/// A temporary file without a name in `folder` (default: the system's folder for them).
///
/// # Errors
/// Those of the file system.
pub fn temporary_file(folder: Option<&Path>) -> std::io::Result<File> {
    match folder {
        Some(folder) => tempfile::tempfile_in(folder),
        None => tempfile::tempfile(),
    }
}

/// One set of embeddings, as a search takes it.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// Row-major, [rows, dimensions].
    Slice(&'a [f32]),
    /// Rows of which some may be in a temporary file; the dimensions are the store's.
    Store(&'a RowStore),
}

impl<'a> Rows<'a> {
    /// Number of rows of `dimensions` values.
    pub(crate) fn count(&self, dimensions: usize, side: Side) -> Result<usize, Error> {
        let (rows, values) = match self {
            Rows::Slice(values) => (values.len() / dimensions, values.len()),
            Rows::Store(store) if store.dimensions == dimensions => {
                (store.rows(), store.rows() * dimensions)
            }
            Rows::Store(store) => (0, store.dimensions.max(1)),
        };
        if rows * dimensions != values {
            return Err(Error::Shape {
                side,
                values,
                dimensions,
            });
        }
        // One position is kept free so that counts fit as well.
        let limit = u32::MAX as usize;
        if rows > limit {
            return Err(Error::TooManyRows { side, rows, limit });
        }
        Ok(rows)
    }

    /// Whether reading copies the values from a file.
    pub(crate) fn on_disk(&self) -> bool {
        matches!(self, Rows::Store(store) if store.spilled())
    }

    /// Reads rows; `check` is asked now and then whether to go on.
    pub(crate) fn read(
        &self,
        range: Range<usize>,
        dimensions: usize,
        check: impl Fn() -> Result<(), Error>,
    ) -> Result<Cow<'a, [f32]>, Error> {
        match self {
            Rows::Slice(values) => Ok(Cow::Borrowed(
                &values[range.start * dimensions..range.end * dimensions],
            )),
            Rows::Store(store) => store.read(range, check),
        }
    }
}

impl<'a> From<&'a [f32]> for Rows<'a> {
    fn from(values: &'a [f32]) -> Self {
        Rows::Slice(values)
    }
}

impl<'a> From<&'a RowStore> for Rows<'a> {
    fn from(store: &'a RowStore) -> Self {
        Rows::Store(store)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn rows_in_a_file_are_read_in_pieces() {
        let mut store = RowStore::new(1000, 1 << 20, None);
        for row in 0..3000 {
            store.push(&[row as f32; 1000]).unwrap();
        }
        assert!(store.spilled());
        let asked = Cell::new(0);
        let read = |most: usize| {
            asked.set(0);
            store.read(1..3000, || {
                asked.set(asked.get() + 1);
                match asked.get() > most {
                    true => Err(Error::Cancelled),
                    false => Ok(()),
                }
            })
        };
        let values = read(usize::MAX).unwrap();
        assert_eq!(values.len(), 2999 * 1000);
        for (row, values) in values.chunks_exact(1000).enumerate() {
            assert!(values.iter().all(|value| *value == row as f32 + 1.0));
        }
        assert!(asked.get() > 1);
        assert!(matches!(read(1), Err(Error::Cancelled)));
    }

    /// A device that is always full, so that no file system has to be.
    #[test]
    fn a_full_disk_is_told_by_its_kind() {
        let mut store = RowStore::new(4, 16, None);
        store.file = Some(
            File::options()
                .read(true)
                .write(true)
                .open("/dev/full")
                .unwrap(),
        );
        let error = (0..100_000)
            .find_map(|_| store.push(&[1.0; 4]).err())
            .expect("no space left");
        assert!(
            matches!(&error, Error::Spill(error) if error.kind() == ErrorKind::StorageFull),
            "{error}"
        );
    }
}
