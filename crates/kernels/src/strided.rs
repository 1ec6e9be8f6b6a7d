//! Products of f32 matrices as they lie in memory, by the crate gemm.
#![allow(unsafe_code)]

fn span(rows: usize, columns: usize, row_stride: usize, column_stride: usize) -> usize {
    if rows == 0 || columns == 0 {
        0
    } else {
        (rows - 1) * row_stride + (columns - 1) * column_stride + 1
    }
}

/// `c = [c +] factor · a b` with a (m×k) and b (k×n) given as (elements, row stride, column
/// stride) and c (m×n) as (elements, row stride).
///
/// # Panics
/// If a matrix reaches beyond its slice.
pub fn product(
    (m, n, k): (usize, usize, usize),
    (a, a_rows, a_columns): (&[f32], usize, usize),
    (b, b_rows, b_columns): (&[f32], usize, usize),
    (c, c_rows): (&mut [f32], usize),
    add: bool,
    factor: f32,
) {
    if m == 0 || n == 0 {
        return;
    }
    assert!(
        span(m, k, a_rows, a_columns) <= a.len(),
        "left operand is too short"
    );
    assert!(
        span(k, n, b_rows, b_columns) <= b.len(),
        "right operand is too short"
    );
    assert!(
        c_rows >= n && span(m, n, c_rows, 1) <= c.len(),
        "result is too short"
    );
    // SAFETY: the asserts keep every element that is read or written inside its slice, the rows
    // of c do not overlap, and c is borrowed mutably, so it overlaps neither a nor b.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            c_rows as isize,
            add,
            a.as_ptr(),
            a_columns as isize,
            a_rows as isize,
            b.as_ptr(),
            b_columns as isize,
            b_rows as isize,
            1.0,
            factor,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
