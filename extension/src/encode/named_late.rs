//! Models that are named when a plan runs: `column <=> laser_embed($1, $2)` in a generic plan, or where a row says which.
//!
//! What cannot be compared with the model of the other side while it is planned is compared while it runs: the planner hands the
//! model to `laser_embed` by way of `laser_same_model`, which gives it back, or refuses.
#![allow(unsafe_code)]

use std::ffi::CStr;

use pgrx::IntoDatum;
use pgrx::pg_sys::SysCacheIdentifier::{OPERNAMENSP, PROCNAMEARGSNSP};
use pgrx::pg_sys::{self, Datum, Oid};

use super::labels;
use super::origins::{EMBED, Origin, Origins, SAME_MODEL, is_of_extension, model_argument};
use crate::pg::encoding::to_server;
use crate::pg::lists::{members, node};

/// Operators that are distances.
const OPERATORS: [&CStr; 4] = [c"<=>", c"<->", c"<#>", c"<+>"];

/// What an embedding is compared with.
pub enum Other {
    /// Embeddings of known origins.
    Known(Vec<Origin>),
    /// The call of `laser_embed` that makes it, by a model that is named when the plan runs.
    Late(*mut pg_sys::FuncExpr),
}

/// A call of a distance with an operand whose model is named when the plan runs, and is compared with the other one's then; nothing
/// where that is a choice by the row, where both are named then and one of the names may be another whenever it is evaluated, and where
/// the extension's SQL is of a version that has no function for it.
///
/// # Safety
/// A call that the planner simplifies, and one of its two operands, in which `look` finds a call of [`Origins::named_late`].
pub unsafe fn compared(
    distance: &pg_sys::FuncExpr,
    operand: *mut pg_sys::Node,
    other: &Other,
    look: &Origins,
) -> Option<*mut pg_sys::Node> {
    // SAFETY: by contract; what is changed is a copy, and new nodes are left to the planner's memory.
    unsafe {
        let same_model = function(look.namespace())?;
        let copy = pg_sys::copyObjectImpl(operand.cast()).cast::<pg_sys::Node>();
        let call = look.named_late(copy)?;
        let model = (*(*call).args).elements.add(1);
        // Of null one form of the function makes null, the other an embedding by `laser.model`.
        let by_default = !pg_sys::func_strict((*call).funcid);
        let by_default = pg_sys::makeBoolConst(by_default, false);
        let compare = |label: *mut pg_sys::Node, what: &str| {
            let arguments = [(*model).ptr_value.cast(), label, text(what), by_default];
            (*model).ptr_value = pg_sys::makeFuncExpr(
                same_model,
                pg_sys::TEXTOID,
                list(arguments),
                pg_sys::DEFAULT_COLLATION_OID,
                pg_sys::DEFAULT_COLLATION_OID,
                pg_sys::CoercionForm::COERCE_EXPLICIT_CALL,
            )
            .cast();
        };
        match other {
            Other::Late(other) => {
                let label = model_argument(*other)?;
                let is_alike =
                    pg_sys::func_strict((**other).funcid) == pg_sys::func_strict((*call).funcid);
                if !is_alike
                    || pg_sys::contain_volatile_functions(label)
                    || pg_sys::contain_subplans(label)
                {
                    return None;
                }
                // The planner changes some nodes where they are.
                compare(pg_sys::copyObjectImpl(label.cast()).cast(), EMBED);
            }
            Other::Known(origins) => {
                let mut certain = origins.iter().filter(|origin| !origin.is_choice).peekable();
                certain.peek()?;
                certain.for_each(|origin| {
                    let label = labels::written(&origin.model, origin.fingerprint.as_deref());
                    compare(text(&label), &origin.what);
                });
            }
        }
        let operands = members(distance.args).iter().map(|cell| node(cell));
        let operands = operands.map(|one| if one == operand { copy } else { one });
        let operands: Vec<_> = operands.collect();
        Some(rebuilt(
            distance,
            operands.try_into().ok()?,
            look.namespace(),
        ))
    }
}

/// The call with other operands, as that of an operator where there is one of the function: an index serves no other.
///
/// # Safety
/// As [`compared`].
unsafe fn rebuilt(
    distance: &pg_sys::FuncExpr,
    operands: [*mut pg_sys::Node; 2],
    namespace: Oid,
) -> *mut pg_sys::Node {
    // SAFETY: by contract; look-ups by name in caches.
    unsafe {
        let [left, right] = operands;
        let operator = |name: &&CStr| {
            let operator = pg_sys::GetSysCacheOid(
                OPERNAMENSP as i32,
                pg_sys::Anum_pg_operator_oid as i16,
                Datum::from(name.as_ptr()),
                pg_sys::exprType(left).into(),
                pg_sys::exprType(right).into(),
                namespace.into(),
            );
            let is_its_own =
                operator != pg_sys::InvalidOid && pg_sys::get_opcode(operator) == distance.funcid;
            is_its_own.then_some(operator)
        };
        match OPERATORS.iter().find_map(operator) {
            Some(operator) => {
                let call = pg_sys::make_opclause(
                    operator,
                    distance.funcresulttype,
                    distance.funcretset,
                    left.cast(),
                    right.cast(),
                    distance.funccollid,
                    distance.inputcollid,
                )
                .cast::<pg_sys::OpExpr>();
                (*call).opfuncid = distance.funcid;
                call.cast()
            }
            None => pg_sys::makeFuncExpr(
                distance.funcid,
                distance.funcresulttype,
                list(operands),
                distance.funccollid,
                distance.inputcollid,
                pg_sys::CoercionForm::COERCE_EXPLICIT_CALL,
            )
            .cast(),
        }
    }
}

/// The function that compares models, if the extension has it. Somebody else's of the same name would be called by whoever embeds.
fn function(namespace: Oid) -> Option<Oid> {
    let text = pg_sys::TEXTOID;
    let arguments = [text, text, text, pg_sys::BOOLOID];
    // SAFETY: a look-up by name in a cache.
    let function = unsafe {
        let arguments = pg_sys::buildoidvector(arguments.as_ptr(), arguments.len() as i32);
        pg_sys::GetSysCacheOid(
            PROCNAMEARGSNSP as i32,
            pg_sys::Anum_pg_proc_oid as i16,
            Datum::from(SAME_MODEL.as_ptr()),
            Datum::from(arguments),
            namespace.into(),
            Datum::from(0),
        )
    };
    let is_own = function != pg_sys::InvalidOid && is_of_extension(function);
    is_own.then_some(function)
}

/// # Safety
/// Nodes that live as long as the list.
unsafe fn list<const N: usize>(nodes: [*mut pg_sys::Node; N]) -> *mut pg_sys::List {
    let nodes = nodes.into_iter();
    // SAFETY: by contract.
    nodes.fold(std::ptr::null_mut(), |list, node| unsafe {
        pg_sys::lappend(list, node.cast())
    })
}

/// A constant of type `text`.
fn text(value: &str) -> *mut pg_sys::Node {
    let value = to_server(value).into_datum().expect("a text");
    // SAFETY: a new value of that type.
    unsafe {
        pg_sys::makeConst(
            pg_sys::TEXTOID,
            -1,
            pg_sys::DEFAULT_COLLATION_OID,
            -1,
            value,
            false,
            false,
        )
        .cast()
    }
}
