//! Distances, arithmetic, comparison and hashing.
#![allow(unsafe_code)]

use super::datum::build;
use super::errors::OrReport;
use crate::pg::errors::raise;
use crate::pg::fmgr::{Call, float8, for_both};
use laser_vector::kernels::{cosine_distance, l2_distance, norm};
use laser_vector::{Element, check_dimensions, check_same};
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::Datum;
use std::cmp::Ordering;

for_both! {
    "cosine_distance" => cosine;
    "l2_distance" => l2;
    "inner_product" => inner_product;
    "negative_inner_product" => negative_inner_product;
    "l1_distance" => l1;
    "dimensions" => dimensions;
    "norm" => norm_of;
    "l2_normalize" => l2_normalize;
    "add" => add;
    "subtract" => subtract;
    "multiply" => multiply;
    "concat" => concat;
    "subvector" => subvector;
    "lt" => lt;
    "le" => le;
    "eq" => eq;
    "ne" => ne;
    "ge" => ge;
    "gt" => gt;
    "cmp" => cmp;
    "hash" => hash;
    "hash_extended" => hash_extended;
}

/// Applies `function` to two arguments of the same dimensions.
#[inline(always)]
fn pair<E: Element, R>(call: &Call, function: impl FnOnce(&[E], &[E]) -> R) -> R {
    // SAFETY: the declarations give both arguments the type of `E`.
    let (a, b) = unsafe { (call.values::<E>(0), call.values::<E>(1)) };
    check_same(a.as_slice(), b.as_slice()).or_report();
    function(a.as_slice(), b.as_slice())
}

fn cosine<E: Element>(call: &Call) -> Datum {
    float8(pair(call, cosine_distance::<E>))
}

fn l2<E: Element>(call: &Call) -> Datum {
    float8(pair(call, l2_distance::<E>))
}

fn inner_product<E: Element>(call: &Call) -> Datum {
    float8(pair(call, |a: &[E], b| f64::from(E::dot(a, b))))
}

fn negative_inner_product<E: Element>(call: &Call) -> Datum {
    float8(pair(call, |a: &[E], b| -f64::from(E::dot(a, b))))
}

fn l1<E: Element>(call: &Call) -> Datum {
    float8(pair(call, |a: &[E], b| f64::from(E::l1(a, b))))
}

fn dimensions<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `E`.
    Datum::from(unsafe { call.values::<E>(0) }.dimensions() as i32)
}

fn norm_of<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `E`.
    float8(norm(unsafe { call.values::<E>(0) }.as_slice()))
}

/// The value scaled to norm 1; zero stays zero.
fn l2_normalize<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `E`.
    let values = unsafe { call.values::<E>(0) };
    let norm = norm(values.as_slice());
    build(values.dimensions(), |out: &mut [E]| {
        if norm > 0.0 {
            for (to, from) in out.iter_mut().zip(values.as_slice()) {
                *to = E::from_f64(f64::from(from.to_f32()) / norm);
            }
        }
    })
}

#[cold]
fn overflow() -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
        "value out of range: overflow",
    )
}

/// Applies `function` to each pair of elements; what overflows is an error.
#[inline(always)]
fn elementwise<E: Element>(call: &Call, function: impl Fn(f32, f32) -> f32) -> Datum {
    pair(call, |a: &[E], b: &[E]| {
        build(a.len(), |out: &mut [E]| {
            for (to, (x, y)) in out.iter_mut().zip(a.iter().zip(b)) {
                *to = E::from_f32(function(x.to_f32(), y.to_f32()));
            }
            if laser_vector::check_finite(out).is_err() {
                overflow();
            }
        })
    })
}

fn add<E: Element>(call: &Call) -> Datum {
    elementwise::<E>(call, |x, y| x + y)
}

fn subtract<E: Element>(call: &Call) -> Datum {
    elementwise::<E>(call, |x, y| x - y)
}

/// Elementwise product. A product that vanishes though neither factor is zero is an error, as in
/// pgvector.
fn multiply<E: Element>(call: &Call) -> Datum {
    pair(call, |a: &[E], b: &[E]| {
        let vanishes = a.iter().zip(b).any(|(x, y)| {
            let (x, y) = (x.to_f32(), y.to_f32());
            E::from_f32(x * y).to_f32() == 0.0 && x != 0.0 && y != 0.0
        });
        if vanishes {
            let code = PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE;
            raise(code, "value out of range: underflow");
        }
    });
    elementwise::<E>(call, |x, y| x * y)
}

fn concat<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives both arguments the type of `E`.
    let (a, b) = unsafe { (call.values::<E>(0), call.values::<E>(1)) };
    check_dimensions::<E>(a.dimensions() + b.dimensions()).or_report();
    build(a.dimensions() + b.dimensions(), |out: &mut [E]| {
        let (left, right) = out.split_at_mut(a.dimensions());
        left.copy_from_slice(a.as_slice());
        right.copy_from_slice(b.as_slice());
    })
}

/// `subvector(value, start, count)`: elements `start` to `start + count - 1`, counted from 1, cut
/// to those that exist, as SQL's `substring` does.
fn subvector<E: Element>(call: &Call) -> Datum {
    // SAFETY: the declaration gives the argument the type of `E`.
    let values = unsafe { call.values::<E>(0) };
    let (start, count) = (i64::from(call.int(1)), i64::from(call.int(2)));
    let length = values.dimensions() as i64;
    let first = start.clamp(1, length + 1) - 1;
    let end = (start + count.max(0)).clamp(1, length + 1) - 1;
    let slice = &values.as_slice()[first as usize..end.max(first) as usize];
    check_dimensions::<E>(slice.len()).or_report();
    build(slice.len(), |out: &mut [E]| out.copy_from_slice(slice))
}

/// By elements, then by dimensions: the order of arrays, and of pgvector.
fn order<E: Element>(call: &Call) -> Ordering {
    // SAFETY: the declarations give both arguments the type of `E`.
    let (a, b) = unsafe { (call.values::<E>(0), call.values::<E>(1)) };
    let (a, b) = (a.as_slice(), b.as_slice());
    // Elements are finite, so partial_cmp() is total; 0 and -0 are equal.
    a.partial_cmp(b).unwrap_or(Ordering::Equal)
}

fn lt<E: Element>(call: &Call) -> Datum {
    Datum::from(order::<E>(call).is_lt())
}

fn le<E: Element>(call: &Call) -> Datum {
    Datum::from(order::<E>(call).is_le())
}

fn eq<E: Element>(call: &Call) -> Datum {
    Datum::from(order::<E>(call).is_eq())
}

fn ne<E: Element>(call: &Call) -> Datum {
    Datum::from(order::<E>(call).is_ne())
}

fn ge<E: Element>(call: &Call) -> Datum {
    Datum::from(order::<E>(call).is_ge())
}

fn gt<E: Element>(call: &Call) -> Datum {
    Datum::from(order::<E>(call).is_gt())
}

fn cmp<E: Element>(call: &Call) -> Datum {
    Datum::from(order::<E>(call) as i32)
}

unsafe extern "C" {
    /// The server's hash (`src/common/hashfn.c`), stable on one architecture.
    fn hash_bytes(bytes: *const u8, length: i32) -> u32;
    /// The same with a seed.
    fn hash_bytes_extended(bytes: *const u8, length: i32, seed: u64) -> u64;
}

/// Hands `function` the bytes of the elements, in which equal values are equal: -0 becomes 0.
fn hashed<E: Element, R>(call: &Call, function: impl FnOnce(*const u8, i32) -> R) -> R {
    // SAFETY: the declaration gives the argument the type of `E`.
    let values = unsafe { call.values::<E>(0) };
    let length = (values.dimensions() * E::SIZE) as i32;
    let negative_zero = |x: &E| x.to_f32() == 0.0 && x.to_f32().is_sign_negative();
    if values.as_slice().iter().any(negative_zero) {
        let normal: Vec<E> = values
            .as_slice()
            .iter()
            .map(|x| if negative_zero(x) { E::default() } else { *x })
            .collect();
        function(normal.as_ptr().cast(), length)
    } else {
        function(values.as_slice().as_ptr().cast(), length)
    }
}

fn hash<E: Element>(call: &Call) -> Datum {
    hashed::<E, _>(call, |bytes, length| {
        // SAFETY: hashed() passes bytes and their number.
        Datum::from(unsafe { hash_bytes(bytes, length) })
    })
}

fn hash_extended<E: Element>(call: &Call) -> Datum {
    let seed = call.long(1) as u64;
    hashed::<E, _>(call, |bytes, length| {
        // SAFETY: hashed() passes bytes and their number.
        Datum::from(unsafe { hash_bytes_extended(bytes, length, seed) })
    })
}
