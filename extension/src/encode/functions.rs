//! `laser_embed` and `laser_rerank`. The declarations are in `sql/encode.sql`.
#![allow(unsafe_code)]

use laser_protocol::Role;
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::{self, Datum};

use super::embed::{check_array, check_privilege, embed_each, model_name, score_each, score_texts};
use super::embedded::Embedded;
use super::keep::forget_embedding;
use super::mixing::refuse_other_model;
use super::recent::{self, embed_once};
use super::texts::{Made, Texts, text};
use crate::pg::encoding::name;
use crate::pg::errors::raise_hint;
use crate::types::new_embedding;

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

/// A `text` argument that is a name, where the function has it and it is not null.
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
        given.then(|| name(text_argument(fcinfo, index)))
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
            format!("unknown role \"{other}\" of a text"),
            "Roles are 'query', a text to search with, and 'passage', a text to be found; NULL embeds the \
             text without a prefix.",
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
    new_embedding(&embed_once(model.as_deref(), role, text).data)
}

/// `laser_embed(text[] [, text [, text]]) -> embedding[]`: an array of the same shape, null where the text
/// is null.
///
/// # Safety
/// Called by the fmgr as declared.
unsafe fn embed_array(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a function with the declared arguments.
    unsafe {
        if is_null(fcinfo, 0) {
            return null(fcinfo);
        }
        let (model, role) = (optional(fcinfo, 1), role(fcinfo));
        let model = model.as_deref();
        let array = Texts::of_argument(fcinfo, 0);
        // Before it is loaded.
        check_privilege(&model_name(model));
        check_array(model, array.len());
        array.map(fcinfo, Made::Embeddings, |texts, put| {
            let note = |embedded: &Embedded| recent::note_array(model, embedded);
            embed_each(model, role, texts, note, put);
        })
    }
}

/// `laser_rerank(text, text, text) -> real`
///
/// # Safety
/// Called by the fmgr as declared.
unsafe fn rerank_one(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a strict function with the declared arguments.
    let (query, text, model) = unsafe {
        let model = optional(fcinfo, 2).unwrap_or_default();
        (text_argument(fcinfo, 0), text_argument(fcinfo, 1), model)
    };
    score(score_texts(&model, query, &[text]).data[0])
}

/// `laser_rerank(text, text[], text) -> real[]`: an array of the same shape, null where the text is null.
///
/// # Safety
/// Called by the fmgr as declared.
unsafe fn rerank_array(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a strict function with the declared arguments.
    unsafe {
        let query = text_argument(fcinfo, 0);
        let model = optional(fcinfo, 2).unwrap_or_default();
        let array = Texts::of_argument(fcinfo, 1);
        array.map(fcinfo, Made::Scores, |texts, put| {
            score_each(&model, query, texts, |logit| put(&[logit]));
        })
    }
}

/// `laser_same_model(text, text, text, boolean) -> text`: the first, unless it is another model than the label that is the second says of
/// the third. Null is no model, or by the last argument that of `laser.model`.
///
/// # Safety
/// Called by the fmgr as declared.
unsafe fn same_model(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a function with the declared arguments.
    unsafe {
        let (model, label) = (optional(fcinfo, 0), optional(fcinfo, 1));
        let what = optional(fcinfo, 2).unwrap_or_default();
        let by_default = !is_null(fcinfo, 3) && argument(fcinfo, 3).value() != 0;
        if by_default || (model.is_some() && label.is_some()) {
            refuse_other_model(model.as_deref(), label.as_deref(), &what);
        }
        match is_null(fcinfo, 0) {
            true => null(fcinfo),
            false => argument(fcinfo, 0),
        }
    }
}

fn score(logit: f32) -> Datum {
    Datum::from(logit.to_bits())
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
sql_function!("laser_forget_embedding", forget_embedding);
sql_function!("laser_same_model", same_model);
sql_function!("laser_rerank", rerank_one);
sql_function!("laser_rerank_array", rerank_array);
