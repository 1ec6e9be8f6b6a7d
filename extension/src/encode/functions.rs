//! `laser_embed`. The declarations are in `sql/encode.sql`.
#![allow(unsafe_code)]

use std::cell::Cell;

use laser_protocol::Role;
use pgrx::pg_sys::{self, Datum};
use pgrx::{PgSqlErrorCode, varlena};

use super::embed::{Tell, check_array, embed_each};
use super::recent::embed_once;
use crate::encoding::to_server;
use crate::types::{new_embedding, raise_hint};

/// A `text` argument; a detoasted copy is left to the memory context of the call.
///
/// # Safety
/// The argument exists, is not null and is declared as `text`.
unsafe fn text_argument<'a>(fcinfo: pg_sys::FunctionCallInfo, index: usize) -> &'a [u8] {
    // SAFETY: by contract.
    unsafe { text(argument(fcinfo, index)) }
}

/// # Safety
/// The argument exists.
unsafe fn argument(fcinfo: pg_sys::FunctionCallInfo, index: usize) -> Datum {
    // SAFETY: the slice is bounded by the number of arguments that the caller passed.
    unsafe { (*fcinfo).args.as_slice((*fcinfo).nargs as usize)[index].value }
}

/// # Safety
/// The datum is a non-null `text` that outlives the result.
unsafe fn text<'a>(datum: Datum) -> &'a [u8] {
    // SAFETY: a varlena datum, detoasted before its bytes are read.
    unsafe {
        let flat = pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr());
        std::slice::from_raw_parts(
            varlena::vardata_any(flat).cast::<u8>(),
            varlena::varsize_any_exhdr(flat),
        )
    }
}

/// A `text` argument, where the function has it and it is not null.
///
/// # Safety
/// An argument that exists is declared as `text`.
unsafe fn optional<'a>(
    fcinfo: pg_sys::FunctionCallInfo,
    index: usize,
) -> Option<std::borrow::Cow<'a, str>> {
    // SAFETY: by contract; arguments are as many as the call says.
    unsafe {
        let given = index < (*fcinfo).nargs as usize && !is_null(fcinfo, index);
        given.then(|| String::from_utf8_lossy(text_argument(fcinfo, index)))
    }
}

/// # Safety
/// The argument exists.
unsafe fn is_null(fcinfo: pg_sys::FunctionCallInfo, index: usize) -> bool {
    // SAFETY: the slice is bounded by the number of arguments that the caller passed.
    unsafe { (*fcinfo).args.as_slice((*fcinfo).nargs as usize)[index].isnull }
}

/// What the text is, if the function has an argument for it.
///
/// # Safety
/// As [`optional`], for argument 2.
unsafe fn role(fcinfo: pg_sys::FunctionCallInfo) -> Role {
    // SAFETY: by contract.
    let role = unsafe { optional(fcinfo, 2) };
    match role.as_deref() {
        None => Role::Plain,
        Some("query") => Role::Query,
        Some("passage") => Role::Passage,
        Some(other) => raise_hint(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            format!("a text has no role \"{}\"", to_server(other)),
            "Roles are 'query', what is searched for, and 'passage', what is searched in; NULL embeds the \
             text as it is.",
        ),
    }
}

/// Null, for a null text.
///
/// # Safety
/// A call by the fmgr.
unsafe fn null(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: by contract.
    unsafe { (*fcinfo).isnull = true };
    Datum::from(0)
}

/// `laser_embed(text [, text [, text]]) -> embedding`
///
/// # Safety
/// Called by the fmgr as declared.
unsafe fn embed_one(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a function with the declared arguments.
    let (text, model, role) = unsafe {
        if is_null(fcinfo, 0) {
            return null(fcinfo);
        }
        let model = optional(fcinfo, 1);
        (text_argument(fcinfo, 0), model, role(fcinfo))
    };
    new_embedding(&embed_once(model.as_deref(), role, text, Tell::That).data)
}

/// `laser_embed(text[] [, text [, text]]) -> embedding[]`: an array of the same shape, null where the text
/// is null.
///
/// # Safety
/// Called by the fmgr as declared.
unsafe fn embed_array(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a function with the declared arguments.
    if unsafe { is_null(fcinfo, 0) } {
        // SAFETY: as above.
        return unsafe { null(fcinfo) };
    }
    // SAFETY: the array is a non-null `text[]`, whose elements have the properties of `text` (variable
    // length, aligned to int).
    let (array, elements, nulls, model) = unsafe {
        let array = pg_sys::pg_detoast_datum(argument(fcinfo, 0).cast_mut_ptr())
            .cast::<pg_sys::ArrayType>();
        let mut elements = std::ptr::null_mut();
        let mut nulls = std::ptr::null_mut();
        let mut count = 0;
        pg_sys::deconstruct_array(
            array,
            pg_sys::TEXTOID,
            -1,
            false,
            pg_sys::TYPALIGN_INT as std::ffi::c_char,
            &mut elements,
            &mut nulls,
            &mut count,
        );
        if count == 0 {
            (array, &mut [][..], &mut [][..], optional(fcinfo, 1))
        } else {
            (
                array,
                std::slice::from_raw_parts_mut(elements, count as usize),
                std::slice::from_raw_parts_mut(nulls, count as usize),
                optional(fcinfo, 1),
            )
        }
    };
    let model = model.as_deref();
    check_array(model, nulls.iter().filter(|null| !**null).count());
    // Texts are read ahead of the embeddings that take their places.
    let places = Cell::from_mut(elements).as_slice_of_cells();
    let texts = places.iter().zip(nulls.iter()).filter(|(_, null)| !**null);
    let mut results = texts.clone();
    // SAFETY: elements that are not null are texts inside the array.
    let texts = texts.map(|(element, _)| unsafe { text(element.get()) });
    // SAFETY: as above.
    let role = unsafe { role(fcinfo) };
    embed_each(model, role, Tell::That, texts, |embedding| {
        let (place, _) = results.next().expect("as many as texts");
        place.set(new_embedding(embedding));
    });
    // SAFETY: the result has the shape of the argument, whose dimensions and bounds follow its
    // header (ARR_DIMS, ARR_LBOUND in array.h); `elements` and `nulls` have one entry for each
    // element. The element type is that of the declared result, variable length, aligned to int.
    unsafe {
        let result_type =
            pg_sys::get_element_type(pg_sys::get_func_rettype((*(*fcinfo).flinfo).fn_oid));
        if elements.is_empty() {
            return Datum::from(pg_sys::construct_empty_array(result_type));
        }
        let ndim = (*array).ndim;
        let dims = array.add(1).cast::<i32>();
        let result = pg_sys::construct_md_array(
            elements.as_mut_ptr(),
            nulls.as_mut_ptr(),
            ndim,
            dims,
            dims.add(ndim as usize),
            result_type,
            -1,
            false,
            pg_sys::TYPALIGN_INT as std::ffi::c_char,
        );
        Datum::from(result)
    }
}

static FUNCTION_INFO: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };

/// Exports a function as `PG_FUNCTION_INFO_V1` does in C.
macro_rules! sql_function {
    ($name:literal, $body:expr) => {
        const _: () = {
            #[unsafe(export_name = concat!("pg_finfo_", $name))]
            extern "C" fn info() -> &'static pg_sys::Pg_finfo_record {
                &FUNCTION_INFO
            }
            #[unsafe(export_name = $name)]
            unsafe extern "C-unwind" fn call(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
                // SAFETY: the fmgr calls this as declared; the guard turns panics into errors
                // before they reach C.
                unsafe { pg_sys::panic::pgrx_extern_c_guard(move || $body(fcinfo)) }
            }
        };
    };
}

sql_function!("laser_embed", embed_one);
sql_function!("laser_embed_array", embed_array);
