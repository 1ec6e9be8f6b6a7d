//! The distance of two texts: what `<=>` means on text, with an index or without.
#![allow(unsafe_code)]

use pgrx::pg_sys::{self, Datum};

use super::element;
use crate::encode;

#[unsafe(no_mangle)]
#[doc(hidden)]
pub extern "C" fn pg_finfo_laser_text_cosine_distance() -> &'static pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

/// `cosine_distance(text, text) -> double precision`
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn laser_text_cosine_distance(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a strict function, declared with two texts.
    let (a, b, is_constant) = unsafe {
        let args = (*fcinfo).args.as_slice(2);
        let (a, b) = (args[0].value, args[1].value);
        let call = (*fcinfo).flinfo;
        let is_constant = [0, 1].map(|at| pg_sys::get_fn_expr_arg_stable(call, at));
        (element::text(a), element::text(b), is_constant)
    };
    // An index scan has distances of rows computed before policies and other filters say who sees them. So
    // nothing is told of rows, but of what the statement itself is about.
    let (a, b) = encode::embed_pair(&a, &b, is_constant);
    let distance = laser_vector::kernels::cosine_distance(&a.data, &b.data);
    Datum::from(distance.to_bits())
}
