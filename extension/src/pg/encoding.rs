//! Between the encoding of the database, in which texts and names of objects are, and UTF-8, which the
//! encoder speaks and in which strings of Rust are.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_char};

use pgrx::{PgSqlErrorCode, pg_sys};

use crate::pg::errors::raise;

const UTF8: i32 = pg_sys::pg_enc::PG_UTF8 as i32;

/// A text of the database as UTF-8; raises a SQL error for bytes that have no equivalent.
pub fn to_utf8(bytes: &[u8]) -> Cow<'_, str> {
    // SAFETY: returns a constant of the session.
    if unsafe { pg_sys::GetDatabaseEncoding() } == UTF8 {
        match str::from_utf8(bytes) {
            Ok(text) => return Cow::Borrowed(text),
            Err(_) => invalid(),
        }
    }
    // SAFETY: the bytes are valid for the call. The result is either the argument itself or a new
    // C string in the current memory context, which is copied and freed here.
    unsafe {
        let source = bytes.as_ptr().cast();
        let converted = pg_sys::pg_server_to_any(source, bytes.len() as i32, UTF8);
        if converted.cast_const() == source {
            return match str::from_utf8(bytes) {
                Ok(text) => Cow::Borrowed(text),
                Err(_) => invalid(),
            };
        }
        let text = CStr::from_ptr(converted).to_str().map(str::to_owned);
        pg_sys::pfree(converted.cast());
        match text {
            Ok(text) => Cow::Owned(text),
            Err(_) => invalid(),
        }
    }
}

fn invalid() -> ! {
    raise(
        PgSqlErrorCode::ERRCODE_CHARACTER_NOT_IN_REPERTOIRE,
        "text cannot be represented in UTF-8",
    )
}

/// A message of the encoder for the user: outside UTF-8 databases, what is not ASCII becomes `?`.
pub fn to_server(message: &str) -> String {
    // SAFETY: returns a constant of the session.
    if unsafe { pg_sys::GetDatabaseEncoding() } == UTF8 || message.is_ascii() {
        return message.to_owned();
    }
    message
        .chars()
        .map(|c| if c.is_ascii() { c } else { '?' })
        .collect()
}

/// A text of the database that names something of laser's, as a margin or a model, for comparisons and for messages: what no
/// such name has, and Rust or a message could not, is `?` outside UTF-8 databases.
pub fn name(bytes: &[u8]) -> Cow<'_, str> {
    // SAFETY: returns a constant of the session.
    if unsafe { pg_sys::GetDatabaseEncoding() } == UTF8 || bytes.is_ascii() {
        return String::from_utf8_lossy(bytes);
    }
    let ascii = |byte: &u8| match byte.is_ascii() {
        true => char::from(*byte),
        false => '?',
    };
    Cow::Owned(bytes.iter().map(ascii).collect())
}

/// A name for messages, as [`to_server`].
///
/// # Safety
/// It is a C string.
pub unsafe fn shown(name: *const c_char) -> String {
    // SAFETY: by contract.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    self::name(bytes).into_owned()
}

/// The name of a relation for messages.
///
/// # Safety
/// It is open.
pub unsafe fn name_of(relation: pg_sys::Relation) -> String {
    // SAFETY: by contract; a name ends with a zero.
    unsafe { shown((*(*relation).rd_rel).relname.data.as_ptr()) }
}

/// A statement in the encoding of the database.
pub fn statement(sql: &str) -> CString {
    let bytes = sql.as_bytes();
    // SAFETY: the bytes are valid for the call. The result is either the argument itself or a new
    // C string in the current memory context.
    unsafe {
        let source = bytes.as_ptr().cast();
        let converted = pg_sys::pg_any_to_server(source, bytes.len() as i32, UTF8);
        if converted.cast_const() == source {
            return CString::new(bytes).expect("SQL has no zero byte");
        }
        let owned = CStr::from_ptr(converted).to_owned();
        pg_sys::pfree(converted.cast());
        owned
    }
}
