//! Refuses to plan a distance between embeddings of two models, where both are known ([`origins`]); where one is named when the
//! plan runs, it refuses then ([`named_late`]).
//!
//! This is the support function of the distance functions, which the server calls for each of them in
//! an expression that it plans, whether as a function or as an operator. Mining asks for its two
//! queries by [`refuse_two_models`] as well, and the planner for indexes on pgvector's columns by
//! [`refuse_mixed_order`].
#![allow(unsafe_code)]

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::{self, Datum, NodeTag};

use super::labels::Label;
use super::named_late::{self, Other};
use super::origins::{EMBED, Origin, Origins, scopes_of};
use crate::pg::calls::has_call;
use crate::pg::errors::raise_hint;
use crate::pg::lists::{members, node};

#[unsafe(no_mangle)]
#[doc(hidden)]
pub extern "C" fn pg_finfo_laser_distance_support() -> &'static pg_sys::Pg_finfo_record {
    const V1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &V1
}

/// `laser_distance_support(internal) -> internal`
#[unsafe(no_mangle)]
#[pgrx::pg_guard]
pub extern "C-unwind" fn laser_distance_support(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a function with one argument, a node that the server passes. Without a query that is
    // planned there are no columns.
    unsafe {
        let request = (*fcinfo).args.as_slice(1)[0]
            .value
            .cast_mut_ptr::<pg_sys::Node>();
        if (*request).type_ == NodeTag::T_SupportRequestSimplify {
            let request = &*request.cast::<pg_sys::SupportRequestSimplify>();
            let call = &*request.fcall;
            let root = request.root.as_ref();
            if let Some(root) = root.filter(|root| is_of_query(call, root)) {
                let look = Origins::in_schema(pg_sys::get_func_namespace(call.funcid));
                if let Some((operand, other)) = check(call.args, &scopes_of(root), &look) {
                    let compared = named_late::compared(call, operand, &other, &look);
                    return compared.map_or(Datum::from(0), Datum::from);
                }
            }
        }
    }
    // Nothing is simplified.
    Datum::from(0)
}

/// Whether the tables in a call that is simplified are numbered as in the query that the planner says it is of. Each call
/// of a statement is simplified once where they are; the planner simplifies some again elsewhere:
///
/// - CHECK constraints of inheritance children (`get_relation_constraints` in `plancat.c`), when it has arrays of its
///   relations: what is the statement's was all simplified before.
/// - The condition of a correlated EXISTS as if it were of the query around, when it tries to make a hashed IN of it
///   (`convert_EXISTS_to_ANY` in `subselect.c`). That is just after it has planned the EXISTS, without a target list.
/// - Functions in FROM of a subquery that it pulls up, which it takes for one beside the query around (`subroot` of
///   `pull_up_simple_subquery` in `prepjointree.c`): outer columns are then of a query too far out. Calls with those
///   are simplified again where the subquery has gone to.
///
/// # Safety
/// A call of two expressions, and the planner's state that it is simplified with.
unsafe fn is_of_query(call: &pg_sys::FuncExpr, root: &pg_sys::PlannerInfo) -> bool {
    // SAFETY: by contract; states and queries of subqueries live as long as the planner's, a range table has entries.
    unsafe {
        // Somebody else than the planner may have made a state without a query.
        let (Some(global), Some(query)) = (root.glob.as_ref(), root.parse.as_ref()) else {
            return false;
        };
        if !root.simple_rel_array.is_null() {
            return false;
        }
        let follows_exists = members(global.subroots).last().is_some_and(|last| {
            let last = &*node(last).cast::<pg_sys::PlannerInfo>();
            std::ptr::eq(last.parent_root, root) && (*last.parse).targetList.is_null()
        });
        if follows_exists {
            return false;
        }
        let is_outer = |levels| pg_sys::contain_vars_of_level(call.args.cast(), levels);
        let in_function = |cell: &pg_sys::ListCell| {
            let entry = &*node(cell).cast::<pg_sys::RangeTblEntry>();
            entry.rtekind == pg_sys::RTEKind::RTE_FUNCTION
                && has_call(entry.functions, |function, _| function == call.funcid)
        };
        !((1..=root.query_level as i32).any(is_outer)
            && members(query.rtable).iter().any(in_function))
    }
}

/// The same for what an index on pgvector's columns orders by: pgvector's functions have no support function of
/// ours, so that nobody else asks.
///
/// # Safety
/// An expression that is planned as an order by such an index, and the planner's state of its query.
pub unsafe fn refuse_mixed_order(order: *mut pg_sys::Node, root: *const pg_sys::PlannerInfo) {
    // SAFETY: by contract; a node is what its tag says.
    unsafe {
        if (*order).type_ == NodeTag::T_OpExpr {
            let look = Origins::of_extension();
            let arguments = (*order.cast::<pg_sys::OpExpr>()).args;
            check(arguments, &scopes_of(root), &look);
        }
    }
}

/// Refuses a distance of two models, if both are known. Gives the operand whose model is named when the plan runs, with what
/// it must be compared with then.
///
/// # Safety
/// The arguments of a distance in the last of these queries.
unsafe fn check(
    arguments: *mut pg_sys::List,
    scopes: &[*mut pg_sys::Query],
    look: &Origins,
) -> Option<(*mut pg_sys::Node, Other)> {
    // SAFETY: by contract.
    unsafe {
        let [a, b] = members(arguments) else {
            return None;
        };
        let (a, b) = (node(a), node(b));
        if pg_sys::equal(a.cast(), b.cast()) {
            return None;
        }
        // A table may have many partitions, whose labels are of no use where the other side is unknown.
        let is_column = |node: *mut pg_sys::Node| (*node).type_ == NodeTag::T_Var;
        let (first, second) = if is_column(a) { (b, a) } else { (a, b) };
        let late = |operand| look.named_late(operand);
        let known = look.of(first, scopes);
        match (known.is_empty(), late(first)) {
            (false, _) => {
                if late(second).is_some() {
                    return Some((second, Other::Known(known)));
                }
                refuse_two_models(&known, &look.of(second, scopes));
                None
            }
            (true, Some(call)) => {
                if late(second).is_some() {
                    return Some((second, Other::Late(call)));
                }
                let known = look.of(second, scopes);
                (!known.is_empty()).then_some((first, Other::Known(known)))
            }
            (true, None) => None,
        }
    }
}

/// Raises a SQL error unless a model is the same as a label says of what it is compared with; where one of them is `None`, it is that of
/// `laser.model`.
pub fn refuse_other_model(model: Option<&str>, label: Option<&str>, what: &str) {
    let origin = |named: Option<&str>, what: &str| match named {
        Some(named) => Label::parse(named).map(|label| Origin::of_label(what.to_owned(), label)),
        None => Origin::of_session(what.to_owned()),
    };
    // Where it is no name, the call that it is handed to says so.
    if let (Some(made), Some(other)) = (origin(model, EMBED), origin(label, what)) {
        refuse_two_models(&[made], &[other]);
    }
}

/// Raises a SQL error if embeddings of these origins are of two models.
pub fn refuse_two_models(a: &[Origin], b: &[Origin]) {
    let pairs = || a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    // Whoever writes a CASE chooses by the row, also the one that is of the other side's model.
    let agree = pairs().any(|(a, b)| !a.differs(b));
    let is_chosen = |(a, b): &(&Origin, &Origin)| agree && (a.is_choice || b.is_choice);
    let Some((a, b)) = pairs().find(|pair| pair.0.differs(pair.1) && !is_chosen(pair)) else {
        return;
    };
    let by = if a.is_column { a } else { b };
    let message = if a.is_of_model(b) {
        format!(
            "embeddings of two versions of model \"{}\" are compared: {} and {}",
            a.model, a.what, b.what
        )
    } else {
        format!(
            "embeddings of two models are compared: {} (\"{}\") and {} (\"{}\")",
            a.what, a.model, b.what, b.model
        )
    };
    let hint = if !by.is_column {
        "Name the same model in both calls of laser_embed.".to_owned()
    } else if a.is_column && b.is_column {
        "Embed the texts of one of them by the model of the other. If a label is wrong, change it: SECURITY LABEL FOR \
         laser ON COLUMN … IS 'model'."
            .to_owned()
    } else if a.is_of_model(b) {
        format!(
            "Embed {} again. If its embeddings are of this version, change its label: SECURITY LABEL \
             FOR laser ON COLUMN … IS '{}'.",
            by.what, by.model
        )
    } else {
        format!(
            "SET laser.model = '{0}', or name it: laser_embed(…, '{0}'). If the label of {1} is wrong, \
             change it: SECURITY LABEL FOR laser ON COLUMN … IS 'model'.",
            by.model, by.what
        )
    };
    let hint = match (by.is_child, a.is_united || b.is_united) {
        (true, _) => format!(
            "{hint} Tables whose partitions are of different models are searched by naming a partition."
        ),
        (_, true) => format!(
            "{hint} Where a UNION has columns of different models, name the table that is to be searched."
        ),
        _ => hint,
    };
    raise_hint(
        Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        message,
        hint,
    );
}
