//! Casts: dimension checks of typed columns, arrays, and the other element type.
#![allow(unsafe_code)]

use super::datum::build;
use super::errors::OrReport;
use crate::pg::errors::raise;
use crate::pg::fmgr::{Call, for_both, sql_functions};
use laser_vector::{Element, check_dimensions, check_finite, check_typmod, f16, narrow_one};
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::{self, Datum};

for_both! {
    "typmod_cast" => typmod_cast;
    "from_array" => from_array;
    "to_float4" => to_float4;
    "to_float8" => to_float8;
}

sql_functions! {
    "laser_" "embedding_to_halfembedding" => convert::<f32, f16>;
    "laser_" "halfembedding_to_embedding" => convert::<f16, f32>;
}

/// `(value, typmod, explicit)`: the value, if it has the dimensions of the type modifier.
fn typmod_cast<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `E`.
    let values = unsafe { call.values::<E>(0) };
    check_typmod(call.int(1), values.dimensions()).or_report();
    values.into_datum()
}

/// `(value, typmod, explicit)`: the value with the other element type, rounded to nearest.
fn convert<From: Element, To: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `From`.
    let values = unsafe { call.values::<From>(0) };
    check_typmod(call.int(1), values.dimensions()).or_report();
    build(values.dimensions(), |out: &mut [To]| {
        for (to, from) in out.iter_mut().zip(values.as_slice()) {
            *to = narrow_one(f64::from(from.to_f32())).or_report();
        }
    })
}

/// The byte offset of the elements of a one-dimensional array without nulls
/// (`ARR_OVERHEAD_NONULLS(1)`).
const ARRAY_HEADER: usize = {
    let size = size_of::<pg_sys::ArrayType>() + 2 * size_of::<i32>();
    size.next_multiple_of(pg_sys::MAXIMUM_ALIGNOF as usize)
};

/// A one-dimensional array without nulls.
struct Array {
    array: *mut pg_sys::ArrayType,
    length: usize,
}

impl Array {
    /// Reads an array argument. Raises an error for nulls and for more than one dimension.
    fn argument(call: &Call, index: usize) -> Self {
        // SAFETY: the declaration makes it an array; the detoasted copy is left to the call's
        // memory context.
        let array = unsafe {
            pg_sys::pg_detoast_datum(call.datum(index).cast_mut_ptr()).cast::<pg_sys::ArrayType>()
        };
        // SAFETY: a plain array; its dimensions follow its header.
        let (dimensions, length) = unsafe {
            let dimensions = (*array).ndim;
            (
                dimensions,
                if dimensions == 0 {
                    0
                } else {
                    *array.add(1).cast::<i32>()
                },
            )
        };
        if dimensions > 1 {
            raise(PgSqlErrorCode::ERRCODE_DATA_EXCEPTION, "array must be 1-D");
        }
        // SAFETY: a plain array.
        if unsafe { pg_sys::array_contains_nulls(array) } {
            let code = PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED;
            raise(code, "array must not contain nulls");
        }
        Self {
            array,
            length: length as usize,
        }
    }

    fn element_type(&self) -> pg_sys::Oid {
        // SAFETY: `array` is a plain array.
        unsafe { (*self.array).elemtype }
    }

    /// The elements, stored without gaps.
    ///
    /// # Safety
    /// The element type is of fixed length and laid out as `T`.
    unsafe fn elements<T>(&self) -> &[T] {
        // SAFETY: an array may carry a (useless) null bitmap, and dataoffset then says where its
        // elements begin.
        unsafe {
            let offset = match (*self.array).dataoffset {
                0 => ARRAY_HEADER,
                offset => offset as usize,
            };
            std::slice::from_raw_parts(self.array.cast::<u8>().add(offset).cast(), self.length)
        }
    }
}

/// `(array, typmod, explicit)` for `integer[]`, `real[]`, `double precision[]` and `numeric[]`.
fn from_array<E: Element>(call: &Call) -> Datum {
    let array = Array::argument(call, 0);
    check_dimensions::<E>(array.length).or_report();
    check_typmod(call.int(1), array.length).or_report();
    build(array.length, |out: &mut [E]| {
        // SAFETY: each arm reads the representation of its own element type.
        unsafe {
            match array.element_type() {
                pg_sys::INT4OID => fill(out, array.elements::<i32>(), |x| f64::from(*x)),
                pg_sys::FLOAT4OID => fill(out, array.elements::<f32>(), |x| f64::from(*x)),
                pg_sys::FLOAT8OID => fill(out, array.elements::<f64>(), |x| *x),
                pg_sys::NUMERICOID => from_numerics(out, array.array),
                other => raise(
                    PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
                    format!("cannot make an embedding of array elements of type {other}"),
                ),
            }
        }
        check_finite(out).or_report();
    })
}

fn fill<T, E: Element>(out: &mut [E], elements: &[T], to_f64: impl Fn(&T) -> f64) {
    for (to, from) in out.iter_mut().zip(elements) {
        *to = narrow_one(to_f64(from)).or_report();
    }
}

/// # Safety
/// `array` is a plain `numeric[]` with as many elements as `out` and no nulls.
unsafe fn from_numerics<E: Element>(out: &mut [E], array: *mut pg_sys::ArrayType) {
    let mut elements: *mut Datum = std::ptr::null_mut();
    let mut count = 0;
    // SAFETY: numeric is a varlena of alignment 4; nulls are not asked for.
    let elements = unsafe {
        pg_sys::deconstruct_array(
            array,
            pg_sys::NUMERICOID,
            -1,
            false,
            pg_sys::TYPALIGN_INT as std::ffi::c_char,
            &mut elements,
            std::ptr::null_mut(),
            &mut count,
        );
        std::slice::from_raw_parts(elements, count as usize)
    };
    for (to, &from) in out.iter_mut().zip(elements) {
        // SAFETY: a non-null numeric.
        let number =
            unsafe { pgrx::direct_function_call::<f64>(pg_sys::numeric_float8, &[Some(from)]) };
        *to = narrow_one(number.unwrap_or(f64::NAN)).or_report();
    }
}

/// Makes a one-dimensional array of a fixed-length element type.
///
/// # Safety
/// `T` is the representation of `element_type`.
unsafe fn new_array<T>(
    element_type: pg_sys::Oid,
    elements: impl ExactSizeIterator<Item = T>,
) -> Datum {
    let size = ARRAY_HEADER + elements.len() * size_of::<T>();
    // SAFETY: palloc0() returns `size` zeroed bytes: the header, one dimension, its lower bound
    // and the elements.
    unsafe {
        let array = pg_sys::palloc0(size).cast::<pg_sys::ArrayType>();
        pgrx::varlena::set_varsize_4b(array.cast(), size as i32);
        (*array).ndim = 1;
        (*array).dataoffset = 0;
        (*array).elemtype = element_type;
        let bounds = array.add(1).cast::<i32>();
        *bounds = elements.len() as i32;
        *bounds.add(1) = 1;
        let out = array.cast::<u8>().add(ARRAY_HEADER).cast::<T>();
        for (i, element) in elements.enumerate() {
            *out.add(i) = element;
        }
        Datum::from(array)
    }
}

/// `(value, typmod, explicit)`.
fn to_float4<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `E`; float4 is an f32.
    unsafe {
        let values = call.values::<E>(0);
        new_array(
            pg_sys::FLOAT4OID,
            values.as_slice().iter().map(|x| x.to_f32()),
        )
    }
}

/// `(value, typmod, explicit)`.
fn to_float8<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `E`; float8 is an f64.
    unsafe {
        let values = call.values::<E>(0);
        new_array(
            pg_sys::FLOAT8OID,
            values.as_slice().iter().map(|x| f64::from(x.to_f32())),
        )
    }
}
