//! pgvector's types, whose datums have the layout of ours.
#![allow(unsafe_code)]

use std::ffi::CStr;

use pgrx::pg_sys::{self, Oid, SysCacheIdentifier};

use crate::pg::catalogs;

/// A type of the extension `vector`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pgvector {
    /// `halfvec`, or `vector`.
    pub is_half: bool,
    /// The schema of the type and of its operators.
    pub namespace: Oid,
}

/// What a type is, if it is pgvector's: by its name, because it belongs to that extension, and because only a superuser
/// can have made it. The extension's owner may add types to it, but none whose values are laid out by their own functions.
pub fn pgvector(oid: Oid) -> Option<Pgvector> {
    // SAFETY: rows of this cache; the name of an extension is a new C string, or null.
    unsafe {
        let look = |form: &pg_sys::FormData_pg_type| {
            let is_half = match CStr::from_ptr(form.typname.data.as_ptr()).to_bytes() {
                b"vector" => Some(false),
                b"halfvec" => Some(true),
                _ => None,
            };
            let is_varlena = form.typtype as u8 == pg_sys::TYPTYPE_BASE && form.typlen == -1;
            (is_half.filter(|_| is_varlena), form.typnamespace)
        };
        let (is_half, namespace) = catalogs::row(SysCacheIdentifier::TYPEOID, oid, look)?;
        let is_half = is_half?;
        let extension = pg_sys::getExtensionOfObject(pg_sys::TypeRelationId, oid);
        if extension == pg_sys::InvalidOid {
            return None;
        }
        let name = pg_sys::get_extension_name(extension);
        let is_theirs = !name.is_null() && CStr::from_ptr(name).to_bytes() == b"vector";
        is_theirs.then_some(Pgvector { is_half, namespace })
    }
}
