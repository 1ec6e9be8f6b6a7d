//! The kernels of laser-cuda on a processor: the same sources, compiled as C++, with every thread
//! of the grid a fiber (`platform.cuh` says what is checked).

pub mod lstm;
pub mod transformer;

use std::ffi::{CStr, c_char};

/// What a launch has to say: null, or a string literal of the C++ side.
#[allow(unsafe_code)]
fn outcome(failure: *const c_char) -> Result<(), String> {
    if failure.is_null() {
        return Ok(());
    }
    // SAFETY: a string literal.
    let reason = unsafe { CStr::from_ptr(failure) };
    Err(reason.to_string_lossy().into_owned())
}
