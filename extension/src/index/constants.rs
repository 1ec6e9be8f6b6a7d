//! Which parameter of a statement a constant of its plan was.
//!
//! A plan for the values of one execution has them as constants, and so distances from equal values are equal there. A plan
//! for all values, which the server may take at any later execution, knows only that those of one parameter are. What a
//! statement shows must not depend on which of them it has: clients that number each place (`$1`, `$2`, …) would see the
//! distances of the index on one page and those of the texts on the next.
//!
//! Nothing tells of what a function made of a parameter: where one is asked for the distance from `lower($1)`, and from
//! something else as well, all distances of that operator are the texts' in each of its plans; and where a subquery, a list of
//! values, or a function that compares columns is handed such a thing, all distances, for they come to operators unseen.
//!
//! A constant has the place in the statement's text that its parameter had (`eval_const_expressions_mutator` in
//! `src/backend/optimizer/util/clauses.c`). The text of a function that is inlined has places of its own, by which its
//! constants may be taken for other parameters', and so for different ones.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use pgrx::pg_sys::{self, NodeTag};

use crate::pg::lists::members;
use crate::pg::unguarded::{
    check_for_interrupts, equal, expression_tree_walker, lappend, palloc0, query_tree_walker,
};

unsafe extern "C-unwind" {
    /// `src/backend/nodes/list.c`
    fn lappend_int(list: *mut pg_sys::List, number: c_int) -> *mut pg_sys::List;
    /// `src/backend/nodes/nodeFuncs.c`
    fn exprType(expression: *const pg_sys::Node) -> pg_sys::Oid;
    /// `src/backend/optimizer/util/var.c`
    fn contain_var_clause(node: *mut pg_sys::Node) -> bool;
}

/// What a statement's constants were, in the memory of whoever plans it.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Constants {
    /// Places and numbers of its parameters, in turn.
    places: *mut pg_sys::List,
    /// A [`Compared`] for each operator.
    compared: *mut pg_sys::List,
    /// Whether something that is made of a parameter may come to operators from elsewhere.
    is_handed_on: bool,
    /// The statement's text, where it was planned before anybody looked, for some values; else null.
    text: *const c_char,
}

/// What an operator whose result is a number compares columns with.
#[derive(Debug)]
struct Compared {
    operator: pg_sys::Oid,
    /// Any of it.
    first: *mut pg_sys::Node,
    /// Whether there is something else.
    differs: bool,
    /// Whether a part of it is made of a parameter.
    is_made: bool,
}

impl Constants {
    /// Where no constant was a parameter.
    fn none() -> Self {
        Self {
            places: ptr::null_mut(),
            compared: ptr::null_mut(),
            is_handed_on: false,
            text: ptr::null(),
        }
    }

    /// Of a statement that has been planned, with its text and its values or null. The text says where parameters are; what
    /// functions made of them counts as different wherever it is.
    ///
    /// # Safety
    /// They live as long as the result.
    pub unsafe fn of_planned(text: *const c_char, values: pg_sys::ParamListInfo) -> Self {
        // SAFETY: by contract.
        let has_values = unsafe { values.as_ref().is_some_and(|values| values.numParams > 0) };
        Self {
            text: if has_values { text } else { ptr::null() },
            ..Self::none()
        }
    }

    /// Of a statement that is about to be planned, for some values or for all. Errors of the server pass over this function:
    /// it has nothing to be dropped.
    ///
    /// # Safety
    /// A statement as the planner is given it.
    pub unsafe fn of(query: *mut pg_sys::Query) -> Self {
        let mut constants = Self::none();
        // SAFETY: by contract.
        unsafe { collect(query.cast(), (&raw mut constants).cast()) };
        constants
    }

    /// Whether distances of an operator may be from several things, one of which is made of a parameter.
    ///
    /// # Safety
    /// The statement's plan has just been made.
    pub unsafe fn may_be_mistaken(self, operator: pg_sys::Oid) -> bool {
        // SAFETY: by contract: a list of these, in memory that is the plan's.
        unsafe {
            let mut compared = members(self.compared).iter();
            let of_operator = |cell: &pg_sys::ListCell| {
                let compared = &*cell.ptr_value.cast::<Compared>();
                compared.operator == operator && compared.differs && compared.is_made
            };
            self.is_handed_on || compared.any(of_operator)
        }
    }

    /// Writes down what an operator compares columns with.
    ///
    /// # Safety
    /// An operator of the statement.
    unsafe fn add_compared(&mut self, operator: *const pg_sys::OpExpr) {
        // SAFETY: by contract; a list of [`Compared`].
        unsafe {
            let arguments = members((*operator).args);
            // Those of numbers are none: looks at the operands of all would make the planning of long sums quadratic.
            let may_be_distance = (*operator).opresulttype == pg_sys::FLOAT8OID
                && is_of_users((*operator).opno)
                && arguments.len() == 2
                && exprType(arguments[0].ptr_value.cast()) != pg_sys::FLOAT8OID;
            if !may_be_distance {
                return;
            }
            check_for_interrupts();
            let (left, right) = (arguments[0].ptr_value.cast(), arguments[1].ptr_value.cast());
            let value: *mut pg_sys::Node =
                match (contain_var_clause(left), contain_var_clause(right)) {
                    (true, false) => right,
                    (false, true) => left,
                    _ => return,
                };
            let is_made = is_made(value);
            let mut known = members(self.compared)
                .iter()
                .map(|cell| cell.ptr_value.cast::<Compared>());
            match known.find(|known| (**known).operator == (*operator).opno) {
                Some(known) => {
                    (*known).differs |= !equal(value.cast(), (*known).first.cast());
                    (*known).is_made |= is_made;
                }
                None => {
                    let new = palloc0(size_of::<Compared>()).cast::<Compared>();
                    *new = Compared {
                        operator: (*operator).opno,
                        first: value,
                        differs: false,
                        is_made,
                    };
                    self.compared = lappend(self.compared, new.cast());
                }
            }
        }
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
        if !self.text.is_null() {
            // SAFETY: by contract: the text exists still.
            return unsafe { number_at(self.text, place) };
        }
        // SAFETY: by contract: a list of numbers.
        unsafe {
            let mut pairs = members(self.places).chunks_exact(2);
            pairs
                .find(|pair| pair[0].int_value == place)
                .map_or(0, |pair| pair[1].int_value)
        }
    }
}

/// The number of the parameter that begins at a place of a statement's text, as `$1`; zero where none does.
///
/// # Safety
/// A string.
unsafe fn number_at(text: *const c_char, place: c_int) -> c_int {
    // SAFETY: by contract; nothing behind its end is read.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    let at = usize::try_from(place)
        .ok()
        .and_then(|place| text.get(place..));
    let Some([b'$', digits @ ..]) = at else {
        return 0;
    };
    digits
        .iter()
        .take_while(|digit| digit.is_ascii_digit())
        .fold(0, |number: c_int, digit| {
            number.wrapping_mul(10).wrapping_add((digit - b'0').into())
        })
}

struct Marks {
    constants: Constants,
    sum: u64,
}

/// See [`Constants::of`].
unsafe extern "C-unwind" fn collect(at: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: a node of the statement, or null; the context is a `Constants`, which nobody else uses meanwhile.
    unsafe {
        if at.is_null() {
            return false;
        }
        match (*at).type_ {
            NodeTag::T_Query => {
                let flags = pg_sys::QTW_EXAMINE_RTES_BEFORE as c_int;
                return query_tree_walker(at.cast(), collect, context, flags);
            }
            NodeTag::T_RangeTblEntry => {
                // What it has is walked next.
                let values = (*at.cast::<pg_sys::RangeTblEntry>()).values_lists;
                (*context.cast::<Constants>()).is_handed_on |= has_made(values.cast());
                return false;
            }
            NodeTag::T_TargetEntry => {
                let given = (*at.cast::<pg_sys::TargetEntry>()).expr.cast();
                (*context.cast::<Constants>()).is_handed_on |= is_made(given);
            }
            NodeTag::T_FuncExpr => {
                let call = &*at.cast::<pg_sys::FuncExpr>();
                // The server's own compute no distances of columns.
                if call.funcresulttype == pg_sys::FLOAT8OID && is_of_users(call.funcid) {
                    check_for_interrupts();
                    (*context.cast::<Constants>()).is_handed_on |=
                        contain_var_clause(at) && has_made(call.args);
                }
            }
            NodeTag::T_Param => {
                let parameter = &*at.cast::<pg_sys::Param>();
                let is_given = parameter.paramkind == pg_sys::ParamKind::PARAM_EXTERN;
                if is_given && parameter.location >= 0 {
                    let constants = &mut *context.cast::<Constants>();
                    constants.places = lappend_int(constants.places, parameter.location);
                    constants.places = lappend_int(constants.places, parameter.paramid);
                }
                return false;
            }
            NodeTag::T_OpExpr => (*context.cast::<Constants>()).add_compared(at.cast()),
            _ => {}
        }
        expression_tree_walker(at, collect, context)
    }
}

/// Whether an object was created by somebody, extensions included.
fn is_of_users(object: pg_sys::Oid) -> bool {
    object.to_u32() >= pg_sys::FirstNormalObjectId
}

/// Whether an expression without columns is made of a parameter.
///
/// # Safety
/// An expression, or null.
unsafe fn is_made(at: *mut pg_sys::Node) -> bool {
    // SAFETY: by contract.
    unsafe {
        !at.is_null()
            && !matches!((*at).type_, NodeTag::T_Param | NodeTag::T_Const)
            && has_parameter(at, ptr::null_mut())
            && !contain_var_clause(at)
    }
}

/// Whether any expression of a list, or of a list of lists, is made of a parameter.
///
/// # Safety
/// Such a list, or null.
unsafe fn has_made(list: *mut pg_sys::List) -> bool {
    // SAFETY: by contract.
    unsafe {
        members(list).iter().any(|cell| {
            let at: *mut pg_sys::Node = cell.ptr_value.cast();
            match at.is_null() || (*at).type_ != NodeTag::T_List {
                true => is_made(at),
                false => has_made(at.cast()),
            }
        })
    }
}

/// Whether an expression has a parameter.
unsafe extern "C-unwind" fn has_parameter(at: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: a node of an expression, or null.
    unsafe {
        !at.is_null()
            && ((*at).type_ == NodeTag::T_Param
                || expression_tree_walker(at, has_parameter, context))
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
            let own = match place < 0 && !marks.constants.text.is_null() {
                true => at.addr() as u64,
                false => marks.constants.parameter_at(place) as u64 + 1,
            };
            marks.sum = marks.sum.wrapping_mul(31).wrapping_add(own);
        }
        expression_tree_walker(at, add_marks, context)
    }
}
