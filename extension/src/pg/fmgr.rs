//! Functions of the fmgr's version-1 calling convention, without generated SQL: the declarations
//! are written by hand in `sql/types.sql`.
#![allow(unsafe_code)]

use pgrx::pg_sys::{self, Datum};

/// The arguments and the result flag of one call.
pub struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
}

impl Call {
    /// Wraps a call.
    ///
    /// # Safety
    /// `fcinfo` is that of a call by the fmgr that is being served.
    #[inline]
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        Self { fcinfo }
    }

    /// Whether an aggregate calls, for its own state.
    #[inline]
    pub fn is_aggregate(&self) -> bool {
        // SAFETY: fcinfo is valid for the call.
        unsafe { pg_sys::AggCheckCallContext(self.fcinfo, std::ptr::null_mut()) != 0 }
    }

    /// A non-null argument; the functions here are strict.
    #[inline]
    pub fn datum(&self, index: usize) -> Datum {
        // SAFETY: fcinfo is valid for the call, and the slice is bounded by the number of
        // arguments that the caller passed.
        unsafe {
            let count = (*self.fcinfo).nargs as usize;
            (*self.fcinfo).args.as_slice(count)[index].value
        }
    }

    /// An `int4` argument.
    #[inline]
    pub fn int(&self, index: usize) -> i32 {
        self.datum(index).value() as i32
    }

    /// An `int8` argument.
    #[inline]
    pub fn long(&self, index: usize) -> i64 {
        self.datum(index).value() as i64
    }

    /// The null result.
    pub fn null(&self) -> Datum {
        // SAFETY: fcinfo is valid for the call.
        unsafe { (*self.fcinfo).isnull = true };
        Datum::from(0)
    }
}

/// A `float8` result.
#[inline]
pub fn float8(value: f64) -> Datum {
    // float8 is passed by value on every supported platform (64 bits).
    Datum::from(value.to_bits())
}

/// What `PG_FUNCTION_INFO_V1` returns.
pub static FUNCTION_INFO: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };

/// Exports functions `fn(&Call) -> Datum` under SQL symbols, as `PG_FUNCTION_INFO_V1` does in C.
/// Rust panics and SQL errors raised inside become SQL errors of the call.
macro_rules! sql_functions {
    ($($prefix:literal $suffix:literal => $body:expr;)*) => {$(
        const _: () = {
            #[unsafe(export_name = concat!("pg_finfo_", $prefix, $suffix))]
            extern "C" fn info() -> &'static pgrx::pg_sys::Pg_finfo_record {
                &$crate::pg::fmgr::FUNCTION_INFO
            }
            #[unsafe(export_name = concat!($prefix, $suffix))]
            unsafe extern "C-unwind" fn call(
                fcinfo: pgrx::pg_sys::FunctionCallInfo,
            ) -> pgrx::pg_sys::Datum {
                // SAFETY: the fmgr calls this with a valid fcinfo, and the guard turns panics
                // into errors before they reach C.
                unsafe {
                    pgrx::pg_sys::panic::pgrx_extern_c_guard(move || {
                        ($body)(&$crate::pg::fmgr::Call::new(fcinfo))
                    })
                }
            }
        };
    )*};
}

/// Exports generic functions for both element types as `laser_embedding_…` and
/// `laser_halfembedding_…`.
macro_rules! for_both {
    ($($suffix:literal => $function:ident;)*) => {
        $crate::pg::fmgr::sql_functions! {
            $(
                "laser_embedding_" $suffix => $function::<f32>;
                "laser_halfembedding_" $suffix => $function::<laser_vector::f16>;
            )*
        }
    };
}

pub(crate) use {for_both, sql_functions};
