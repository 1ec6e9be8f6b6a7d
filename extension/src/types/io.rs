//! Input, output, type modifiers, receive and send.
#![allow(unsafe_code)]

use super::datum::build;
use super::errors::OrReport;
use crate::pg::errors::raise_hint;
use crate::pg::fmgr::{Call, for_both};
use laser_vector::{Element, MAX_DIMENSIONS, check_typmod, text, wire};
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::{self, Datum};
use std::ffi::{CStr, c_char, c_int};

unsafe extern "C" {
    /// Writes the shortest decimal that reads back as `number`, without a terminator, and returns
    /// its length (`src/common/f2s.c`; at most `FLOAT_SHORTEST_DECIMAL_LEN` - 1 bytes). It is what
    /// `real` is printed with.
    fn float_to_shortest_decimal_bufn(number: f32, result: *mut c_char) -> c_int;
}

/// `FLOAT_SHORTEST_DECIMAL_LEN` of `src/include/common/shortest_dec.h`.
const FLOAT_LENGTH: usize = 16;

for_both! {
    "in" => input;
    "out" => output;
    "recv" => receive;
    "send" => send;
    "typmod_in" => typmod_in;
}

fn new<E: Element>(values: &[E], typmod: i32) -> Datum {
    check_typmod(typmod, values.len()).or_report();
    build(values.len(), |out: &mut [E]| out.copy_from_slice(values))
}

/// `in(cstring, oid, typmod)`.
fn input<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration makes it a cstring, which lives as long as the call.
    let literal = unsafe { CStr::from_ptr(call.datum(0).cast_mut_ptr()) };
    new(
        &text::parse::<E>(literal.to_bytes()).or_report(),
        call.int(2),
    )
}

/// `out(value)`: `[1,2.5]`, each element as `real` prints it.
fn output<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `E`.
    let values = unsafe { call.values::<E>(0) };
    let values = values.as_slice();
    // SAFETY: every element takes at most FLOAT_LENGTH - 1 bytes and a comma, which leaves room
    // for the brackets and the terminator.
    unsafe {
        let start = pg_sys::palloc(values.len() * FLOAT_LENGTH + 3).cast::<c_char>();
        let mut end = start;
        for (i, value) in values.iter().enumerate() {
            *end = if i == 0 { b'[' } else { b',' } as c_char;
            end = end.add(1);
            end = end.add(float_to_shortest_decimal_bufn(value.to_f32(), end) as usize);
        }
        *end = b']' as c_char;
        *end.add(1) = 0;
        Datum::from(start)
    }
}

/// `recv(internal, oid, typmod)`; the format is in `laser_vector::wire`.
fn receive<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration makes it a StringInfo; the rest of the buffer is the value, and
    // reading it moves the cursor to its end.
    let bytes = unsafe {
        let buffer = call.datum(0).cast_mut_ptr::<pg_sys::StringInfoData>();
        let length = (*buffer).len - (*buffer).cursor;
        let start = pg_sys::pq_getmsgbytes(buffer, length);
        std::slice::from_raw_parts(start.cast::<u8>(), length as usize)
    };
    new(&wire::decode::<E>(bytes).or_report(), call.int(2))
}

/// `send(value)`.
fn send<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `E`.
    let values = unsafe { call.values::<E>(0) };
    let mut bytes = Vec::new();
    wire::encode(values.as_slice(), &mut bytes);
    bytea(&bytes)
}

fn bytea(bytes: &[u8]) -> Datum {
    let size = pg_sys::VARHDRSZ + bytes.len();
    // SAFETY: palloc() returns `size` bytes or raises an error.
    unsafe {
        let out = pg_sys::palloc(size).cast::<u8>();
        pgrx::varlena::set_varsize_4b(out.cast(), size as i32);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.add(pg_sys::VARHDRSZ), bytes.len());
        Datum::from(out)
    }
}

/// `typmod_in(cstring[])`: the dimensions.
/// What a type modifier should be.
const DIMENSIONS_HINT: &str = "Give the number of dimensions of the model, as in embedding(384): see column \
                               dimensions of view laser_models.";

fn typmod_in<E: Element>(call: &Call) -> Datum {
    let mut count: c_int = 0;
    // SAFETY: the declaration makes it a cstring[]; ArrayGetIntegerTypmods() returns `count`
    // integers or raises an error.
    let modifiers = unsafe {
        let array = pg_sys::pg_detoast_datum(call.datum(0).cast_mut_ptr()).cast();
        let start = pg_sys::ArrayGetIntegerTypmods(array, &mut count);
        std::slice::from_raw_parts(start, count as usize)
    };
    let code = PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE;
    let &[dimensions] = modifiers else {
        raise_hint(code, "invalid type modifier", DIMENSIONS_HINT)
    };
    if dimensions < 1 {
        raise_hint(
            code,
            format!("dimensions for type {} must be at least 1", E::KIND),
            DIMENSIONS_HINT,
        );
    }
    if dimensions as usize > MAX_DIMENSIONS {
        raise_hint(
            code,
            format!(
                "dimensions for type {} cannot exceed {MAX_DIMENSIONS}",
                E::KIND
            ),
            DIMENSIONS_HINT,
        );
    }
    Datum::from(dimensions)
}
