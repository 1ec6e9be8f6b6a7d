//! Matrices of a weights file, in the element type in which they are stored.

use std::ops::Range;
use std::sync::Arc;

use laser_kernels::table::{Table, Values};
use memmap2::Mmap;

/// The element type of a matrix.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    F32,
    F16,
    Bf16,
    I8,
}

enum Source {
    Mapped(Arc<Mmap>, Range<usize>),
    Owned(Vec<f32>),
}

/// A row-major matrix in a mapped file (or in memory).
pub struct Matrix {
    source: Source,
    kind: Kind,
    scale: Vec<f32>,
    rows: usize,
    columns: usize,
}

impl Matrix {
    /// A matrix in memory.
    pub fn from_f32(rows: usize, columns: usize, data: Vec<f32>) -> Self {
        assert_eq!(data.len(), rows * columns, "matrix [rows, columns]");
        Self {
            source: Source::Owned(data),
            kind: Kind::F32,
            scale: Vec::new(),
            rows,
            columns,
        }
    }

    /// First dimension of [rows, columns].
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Second dimension of [rows, columns]: the elements of a row, which lie side by side.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        match &self.source {
            Source::Mapped(_, range) => range.len(),
            Source::Owned(data) => std::mem::size_of_val(&data[..]),
        }
    }

    /// A part of a mapped file. `range` holds `rows * columns` elements of `kind`, aligned for them;
    /// `scale` has a factor for each row of int8.
    pub(crate) fn mapped(
        map: Arc<Mmap>,
        range: Range<usize>,
        kind: Kind,
        scale: Vec<f32>,
        [rows, columns]: [usize; 2],
    ) -> Self {
        Self {
            source: Source::Mapped(map, range),
            kind,
            scale,
            rows,
            columns,
        }
    }

    /// The elements, for the kernels.
    pub fn table(&self) -> Table<'_> {
        Table {
            rows: self.rows,
            columns: self.columns,
            values: self.values(),
        }
    }

    fn values(&self) -> Values<'_> {
        let bytes: &[u8] = match &self.source {
            Source::Mapped(map, range) => &map[range.clone()],
            Source::Owned(data) => bytemuck::cast_slice(data),
        };
        // Alignment was checked when the matrix was made.
        match self.kind {
            Kind::F32 => Values::F32(bytemuck::cast_slice(bytes)),
            Kind::F16 => Values::F16(bytemuck::cast_slice(bytes)),
            Kind::Bf16 => Values::Bf16(bytemuck::cast_slice(bytes)),
            Kind::I8 => Values::I8 {
                data: bytemuck::cast_slice(bytes),
                scale: &self.scale,
            },
        }
    }

    /// Copies row `row` as f32.
    ///
    /// # Panics
    /// If the row does not exist or `out` has another length than a row.
    pub fn row_into(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.columns, "row length");
        let range = row * self.columns..(row + 1) * self.columns;
        match self.values() {
            Values::F32(data) => out.copy_from_slice(&data[range]),
            Values::F16(data) => {
                out.iter_mut()
                    .zip(&data[range])
                    .for_each(|(y, x)| *y = x.to_f32());
            }
            Values::Bf16(data) => {
                out.iter_mut()
                    .zip(&data[range])
                    .for_each(|(y, x)| *y = x.to_f32());
            }
            Values::I8 { data, scale } => {
                let s = scale[row];
                out.iter_mut()
                    .zip(&data[range])
                    .for_each(|(y, x)| *y = s * f32::from(*x));
            }
        }
    }

    /// All elements as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut data = vec![0f32; self.rows * self.columns];
        for (row, out) in data.chunks_exact_mut(self.columns.max(1)).enumerate() {
            self.row_into(row, out);
        }
        data
    }
}
