//! The distance of two texts: what `<=>` means on text, with an index or without.
//!
//! Some models embed what is searched for and what is searched in differently ([`Role`]). An index knows which
//! is which: its rows are passages. Without one, the operand that has columns is the passage and the other, a
//! constant, a parameter or a value of an outer query, the query. Where both sides have columns, or neither
//! has, such a model refuses: nobody shall have to guess, and no two plans of a query may differ in it.
#![allow(unsafe_code)]

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::{self, Datum, NodeTag};

use super::element;
use crate::encode::{self, Operand, Role, TruncationReport};
use crate::pg::errors::raise_hint;
use crate::pg::lists::{members, node};

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
    let (a, b, roles, report) = unsafe {
        let args = (*fcinfo).args.as_slice(2);
        let (a, b) = (args[0].value, args[1].value);
        // Of rows nobody is told, but of what the statement itself is about.
        let report = [0, 1].map(
            |at| match pg_sys::get_fn_expr_arg_stable((*fcinfo).flinfo, at) {
                true => TruncationReport::Count,
                false => TruncationReport::Silent,
            },
        );
        let roles = roles((*(*fcinfo).flinfo).fn_expr);
        (element::text(a), element::text(b), roles, report)
    };
    let operand = |text, at: usize| Operand {
        text,
        role: roles[at],
        report: report[at],
    };
    let (a, b) = encode::embed_pair([operand(&a, 0), operand(&b, 1)]);
    let distance = laser_vector::kernels::cosine_distance(&a.data, &b.data);
    Datum::from(distance.to_bits())
}

/// What the two texts of a call are.
///
/// # Safety
/// The expression of a call of a function of two arguments, or null.
unsafe fn roles(call: *mut pg_sys::Node) -> [Role; 2] {
    // SAFETY: by contract; a node is what its tag says.
    let columns = unsafe {
        let arguments = match call.as_ref().map(|node| node.type_) {
            Some(NodeTag::T_OpExpr) => (*call.cast::<pg_sys::OpExpr>()).args,
            Some(NodeTag::T_FuncExpr) => (*call.cast::<pg_sys::FuncExpr>()).args,
            _ => return [Role::Undecided; 2],
        };
        have_columns(arguments)
    };
    match columns {
        Some([true, false]) => [Role::Passage, Role::Query],
        Some([false, true]) => [Role::Query, Role::Passage],
        _ => [Role::Undecided; 2],
    }
}

/// Which of two arguments have columns of the tables at hand.
///
/// # Safety
/// Arguments of a call.
unsafe fn have_columns(arguments: *mut pg_sys::List) -> Option<[bool; 2]> {
    // SAFETY: by contract.
    unsafe {
        match members(arguments) {
            [a, b] => Some([a, b].map(|operand| pg_sys::contain_var_clause(node(operand)))),
            _ => None,
        }
    }
}

#[unsafe(no_mangle)]
#[doc(hidden)]
pub extern "C" fn pg_finfo_laser_text_distance_support() -> &'static pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

/// `laser_text_distance_support(internal) -> internal`: refuses to plan a distance of two columns by a model that
/// tells queries from passages. A plan may hand one of them to where the other is as a parameter, and which one,
/// only the planner knows.
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn laser_text_distance_support(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a function with one argument, a node that the server passes.
    let columns = unsafe {
        let request = (*fcinfo).args.as_slice(1)[0]
            .value
            .cast_mut_ptr::<pg_sys::Node>();
        if (*request).type_ == NodeTag::T_SupportRequestSimplify {
            let request = &*request.cast::<pg_sys::SupportRequestSimplify>();
            have_columns((*request.fcall).args)
        } else {
            None
        }
    };
    if columns == Some([true, true]) && encode::tells_queries_from_passages() {
        let model = encode::session_model().unwrap_or_default();
        raise_hint(
            Code::ERRCODE_AMBIGUOUS_PARAMETER,
            format!(
                "model \"{model}\" embeds queries and passages differently, and both texts are columns"
            ),
            "Say which is which: laser_embed(a, NULL, 'passage') <=> laser_embed(b, NULL, 'query').",
        );
    }
    // Nothing is simplified.
    Datum::from(0)
}
