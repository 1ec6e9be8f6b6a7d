//! [`Table`]: a matrix whose rows are looked up, in the element type in which it is stored.

use half::{bf16, f16};

/// The elements of a [`Table`], row by row.
#[derive(Clone, Copy)]
pub enum Values<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// IEEE half floats.
    F16(&'a [f16]),
    /// Brain floats.
    Bf16(&'a [bf16]),
    /// Row-wise int8.
    I8 {
        /// Quantized elements, row by row.
        data: &'a [i8],
        /// Factor of each row.
        scale: &'a [f32],
    },
}

/// A view of an embedding table, `rows` x `columns`, row-major.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    /// Rows of the table; ids of tokens are below it.
    pub rows: usize,
    /// Elements of a row: the width of the embeddings.
    pub columns: usize,
    /// `rows * columns` elements.
    pub values: Values<'a>,
}
