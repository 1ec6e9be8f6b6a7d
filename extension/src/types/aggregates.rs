//! `avg` and `sum`.
//!
//! The transition state is `double precision[]`: the number of rows, then one sum for each
//! dimension; `{0}` before the first row. It is pgvector's, so partial results can be combined
//! between workers without serialisation functions. Sums in `f64` of `f32` elements are exact
//! to 2^-53 of the largest partial sum.
#![allow(unsafe_code)]

use super::datum::build;
use super::errors::OrReport;
use crate::pg::errors::raise;
use crate::pg::fmgr::{Call, for_both, sql_functions};
use laser_vector::{Element, MAX_DIMENSIONS, VectorError, narrow_one};
use pgrx::pg_sys::{self, Datum};
use pgrx::{PgSqlErrorCode, varlena};

for_both! {
    "accumulate" => accumulate;
    "avg" => average;
    "sum" => sum;
}

sql_functions! {
    "laser_" "embedding_combine" => combine;
}

/// Offset of the numbers of a one-dimensional array without nulls.
const HEADER: usize = 24;
const _: () = assert!(size_of::<pg_sys::ArrayType>() + 8 <= HEADER && HEADER.is_multiple_of(8));

/// A transition state.
struct State {
    array: *mut pg_sys::ArrayType,
}

impl State {
    /// The state in an argument. The functions can be called from SQL with any array, so it is
    /// checked.
    fn argument(call: &Call, index: usize) -> Self {
        // SAFETY: the declarations make it a float8[]; a plain array begins with its header, its
        // length follows at the header's end, and its numbers at HEADER where it has no bitmap.
        unsafe {
            let array = pg_sys::pg_detoast_datum(call.datum(index).cast_mut_ptr())
                .cast::<pg_sys::ArrayType>();
            let valid = (*array).ndim == 1
                && (*array).dataoffset == 0
                && (*array).elemtype == pg_sys::FLOAT8OID
                && *array.add(1).cast::<i32>() >= 1
                && varlena::varsize_4b(array.cast())
                    == HEADER + *array.add(1).cast::<i32>() as usize * 8;
            let state = Self { array };
            // What the running aggregate has made itself need not be checked again with every row.
            if !valid || !(call.is_aggregate() || state.is_possible()) {
                let code = PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE;
                raise(code, "expected the state of an aggregate of embeddings");
            }
            state
        }
    }

    /// Whether an aggregate makes such numbers: no rows and no sums, or a whole number of rows and a
    /// finite sum for each dimension.
    fn is_possible(&self) -> bool {
        let (rows, dimensions) = (self.rows(), self.dimensions());
        if rows == 0.0 {
            return dimensions == 0;
        }
        rows >= 1.0
            && rows.fract() == 0.0
            && (1..=MAX_DIMENSIONS).contains(&dimensions)
            && self.numbers().iter().all(|x| x.is_finite())
    }

    /// A state for `dimensions` sums, all zero.
    fn new(dimensions: usize) -> Self {
        let size = HEADER + (dimensions + 1) * 8;
        // SAFETY: palloc0() returns `size` zeroed bytes.
        unsafe {
            let array = pg_sys::palloc0(size).cast::<pg_sys::ArrayType>();
            varlena::set_varsize_4b(array.cast(), size as i32);
            (*array).ndim = 1;
            (*array).elemtype = pg_sys::FLOAT8OID;
            let bounds = array.add(1).cast::<i32>();
            *bounds = (dimensions + 1) as i32;
            *bounds.add(1) = 1;
            Self { array }
        }
    }

    /// A state that may be written to: this one where it belongs to the running aggregate, else
    /// a copy.
    fn writable(self, call: &Call) -> Self {
        if call.is_aggregate() {
            return self;
        }
        let mut copy = Self::new(self.dimensions());
        copy.numbers_mut().copy_from_slice(self.numbers());
        copy
    }

    fn numbers(&self) -> &[f64] {
        // SAFETY: `array` holds as many numbers as it says, at HEADER.
        unsafe {
            let length = *self.array.add(1).cast::<i32>() as usize;
            std::slice::from_raw_parts(self.array.cast::<u8>().add(HEADER).cast(), length)
        }
    }

    fn numbers_mut(&mut self) -> &mut [f64] {
        // SAFETY: as in numbers().
        unsafe {
            let length = *self.array.add(1).cast::<i32>() as usize;
            std::slice::from_raw_parts_mut(self.array.cast::<u8>().add(HEADER).cast(), length)
        }
    }

    fn rows(&self) -> f64 {
        self.numbers()[0]
    }

    fn dimensions(&self) -> usize {
        self.numbers().len() - 1
    }

    fn check_dimensions(&self, kind: &'static str, other: usize) {
        if self.dimensions() != other {
            super::report(VectorError::Different {
                kind,
                left: self.dimensions(),
                right: other,
            });
        }
    }
}

/// `(state, value)`.
fn accumulate<E: Element>(call: &Call) -> Datum {
    let state = State::argument(call, 0);
    // SAFETY: the declaration gives the argument the type of `E`.
    let values = unsafe { call.values::<E>(1) };
    let mut state = if state.rows() == 0.0 {
        State::new(values.dimensions())
    } else {
        state.check_dimensions(E::KIND, values.dimensions());
        state.writable(call)
    };
    let (rows, sums) = state.numbers_mut().split_at_mut(1);
    rows[0] += 1.0;
    for (sum, x) in sums.iter_mut().zip(values.as_slice()) {
        *sum += f64::from(x.to_f32());
    }
    Datum::from(state.array)
}

/// `(state, state)`.
fn combine(call: &Call) -> Datum {
    let (left, right) = (State::argument(call, 0), State::argument(call, 1));
    if right.rows() == 0.0 {
        return Datum::from(left.array);
    }
    if left.rows() == 0.0 {
        return Datum::from(right.array);
    }
    left.check_dimensions("embedding", right.dimensions());
    let mut left = left.writable(call);
    for (sum, x) in left.numbers_mut().iter_mut().zip(right.numbers()) {
        *sum += x;
        if !sum.is_finite() {
            let code = PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE;
            raise(code, "a sum of embeddings is out of range");
        }
    }
    Datum::from(left.array)
}

/// The sums divided by `divisor(rows)`; null before the first row.
fn finish<E: Element>(call: &Call, divisor: impl FnOnce(f64) -> f64) -> Datum {
    let state = State::argument(call, 0);
    if state.rows() == 0.0 {
        return call.null();
    }
    laser_vector::check_dimensions::<E>(state.dimensions()).or_report();
    let divisor = divisor(state.rows());
    build(state.dimensions(), |out: &mut [E]| {
        for (to, sum) in out.iter_mut().zip(&state.numbers()[1..]) {
            *to = narrow_one(sum / divisor).or_report();
        }
    })
}

fn average<E: Element>(call: &Call) -> Datum {
    finish::<E>(call, |rows| rows)
}

fn sum<E: Element>(call: &Call) -> Datum {
    finish::<E>(call, |_| 1.0)
}
