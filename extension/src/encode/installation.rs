//! Where the running installation keeps laser's program and models.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use pgrx::pg_sys;

use super::guc;

/// The folders that models are looked for in: those of `laser.model_path`, then that of the models
/// that ship with laser.
pub fn model_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = guc::model_path().into_iter().map(PathBuf::from).collect();
    folders.push(share_path().join("laser/models"));
    folders
}

/// The program of the encoder process.
pub fn encoder_program() -> PathBuf {
    // SAFETY: the postmaster filled the variable with a C string at its start.
    let lib = unsafe { CStr::from_ptr((&raw const pg_sys::pkglib_path).cast()) };
    PathBuf::from(OsStr::from_bytes(lib.to_bytes())).join("laser-encoder")
}

fn share_path() -> PathBuf {
    let mut buffer = [0 as c_char; pg_sys::MAXPGPATH as usize];
    // SAFETY: the first argument is a C string that the postmaster set; the function writes at
    // most MAXPGPATH bytes with a terminator.
    let path = unsafe {
        pg_sys::get_share_path(
            (&raw const pg_sys::my_exec_path).cast::<c_char>(),
            buffer.as_mut_ptr(),
        );
        CStr::from_ptr(buffer.as_ptr())
    };
    PathBuf::from(OsStr::from_bytes(path.to_bytes()))
}
