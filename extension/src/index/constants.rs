//! Which parameter of a statement a constant of its plan was.
//!
//! A plan for the values of one execution has them as constants, and so distances from equal values are equal there. A plan
//! for all values, which the server may take at any later execution, knows only that those of one parameter are. What a
//! statement shows must not depend on which of them it has: clients that number each place (`$1`, `$2`, …) would see the
//! distances of the index on one page and those of the texts on the next.
//!
//! A constant has the place in the statement's text that its parameter had (`eval_const_expressions_mutator` in
//! `src/backend/optimizer/util/clauses.c`). The text of a function that is inlined has places of its own, by which its
//! constants may be taken for other parameters', and so for different ones.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr;

use pgrx::pg_sys::{self, NodeTag};

use crate::pg::lists::members;
use crate::pg::unguarded::{expression_tree_walker, query_tree_walker};

unsafe extern "C-unwind" {
    /// `src/backend/nodes/list.c`
    fn lappend_int(list: *mut pg_sys::List, number: c_int) -> *mut pg_sys::List;
}

/// Places and numbers of a statement's parameters, in turn, in the memory of whoever plans it.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Constants(*mut pg_sys::List);

impl Constants {
    /// Where no constant was a parameter, or none is known to have been.
    pub fn none() -> Self {
        Self(ptr::null_mut())
    }

    /// Of a statement that is about to be planned for some values. Errors of the server pass over this function: it has
    /// nothing to be dropped.
    ///
    /// # Safety
    /// A statement as the planner is given it, and its values or null.
    pub unsafe fn of(query: *mut pg_sys::Query, values: pg_sys::ParamListInfo) -> Self {
        let mut places: *mut pg_sys::List = ptr::null_mut();
        // SAFETY: by contract.
        unsafe {
            if values.as_ref().is_some_and(|values| values.numParams > 1) {
                collect(query.cast(), (&raw mut places).cast());
            }
        }
        Self(places)
    }

    /// Something that differs, of expressions that are equal otherwise, where their constants were different parameters.
    /// Errors of the server pass over this function.
    ///
    /// # Safety
    /// An expression of the statement's plan.
    pub unsafe fn mark(self, expression: *mut pg_sys::Node) -> u64 {
        let mut marks = Marks {
            constants: self,
            sum: 0,
        };
        // SAFETY: by contract.
        unsafe { add_marks(expression, (&raw mut marks).cast()) };
        marks.sum
    }

    /// # Safety
    /// The list exists still.
    unsafe fn parameter_at(self, place: c_int) -> c_int {
        // SAFETY: by contract: a list of numbers.
        unsafe {
            let mut pairs = members(self.0).chunks_exact(2);
            pairs
                .find(|pair| pair[0].int_value == place)
                .map_or(0, |pair| pair[1].int_value)
        }
    }
}

struct Marks {
    constants: Constants,
    sum: u64,
}

/// See [`Constants::of`].
unsafe extern "C-unwind" fn collect(at: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: a node of the statement, or null; the context is a list that nobody else uses meanwhile.
    unsafe {
        if at.is_null() {
            return false;
        }
        match (*at).type_ {
            NodeTag::T_Query => return query_tree_walker(at.cast(), collect, context, 0),
            NodeTag::T_Param => {
                let parameter = &*at.cast::<pg_sys::Param>();
                let is_given = parameter.paramkind == pg_sys::ParamKind::PARAM_EXTERN;
                if is_given && parameter.location >= 0 {
                    let places = context.cast::<*mut pg_sys::List>();
                    *places = lappend_int(*places, parameter.location);
                    *places = lappend_int(*places, parameter.paramid);
                }
                return false;
            }
            _ => {}
        }
        expression_tree_walker(at, collect, context)
    }
}

/// See [`Constants::mark`].
unsafe extern "C-unwind" fn add_marks(at: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: a node of an expression, or null; the context is a `Marks`, which nobody else uses meanwhile.
    unsafe {
        if at.is_null() {
            return false;
        }
        if (*at).type_ == NodeTag::T_Const {
            let marks = &mut *context.cast::<Marks>();
            let place = (*at.cast::<pg_sys::Const>()).location;
            let parameter = marks.constants.parameter_at(place);
            marks.sum = marks
                .sum
                .wrapping_mul(31)
                .wrapping_add(parameter as u64 + 1);
        }
        expression_tree_walker(at, add_marks, context)
    }
}
