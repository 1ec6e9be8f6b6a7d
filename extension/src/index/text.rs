//! The distance of two texts: what `<=>` means on text, with an index or without.
#![allow(unsafe_code)]

use pgrx::pg_sys::{self, Datum};

use super::element;
use crate::encode::{self, Tell};

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
    let (a, b, tell) = unsafe {
        let args = (*fcinfo).args.as_slice(2);
        let (a, b) = (args[0].value, args[1].value);
        let tell = [0, 1].map(|at| match Tell::of_argument(fcinfo, at) {
            Tell::Which => Tell::Which,
            // Of rows nobody is told, but of what the statement itself is about.
            _ => Tell::Nothing,
        });
        (element::text(a), element::text(b), tell)
    };
    let (a, b) = encode::embed_pair(&a, &b, tell);
    let distance = laser_vector::kernels::cosine_distance(&a.data, &b.data);
    Datum::from(distance.to_bits())
}
