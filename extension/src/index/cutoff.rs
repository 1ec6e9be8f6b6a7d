//! How far the rows of a scan may be, by the filters of its plan's node.
//!
//! A query that is ordered by a distance and wants it to be below a limit has no use for what comes behind the
//! limit. Its filter stays in the plan and decides of every row; what is found here only makes the scan stop
//! earlier ([`laser_index::scan::Settings::cutoff`]). It is computed when the scan begins to give rows, so that
//! limits may be parameters, also of a join that scans once for each of its rows.
//!
//! Of the filters, all of which a row must pass, these are understood, with `d` the distance that the scan is
//! ordered by: `d < limit`, `d <= limit`, and what people write for similarities, `1 - d > limit`, `-d > limit`
//! and `d * -1 > limit`, each from either side. The limit is a constant, a parameter, or a sum or cast of those:
//! nothing that runs code of users, or may differ between two rows of a scan.
//!
//! What the distance is measured from is the same in both, or has proved to be when the scan begins: drivers send a
//! vector that a statement has twice as two parameters, and a plan for all values does not know that they are equal.
#![allow(unsafe_code)]

use std::cell::Cell;

use pgrx::pg_sys::{self, NodeTag, Oid};
use pgrx::{FromDatum, PgMemoryContexts, varlena};

use super::expression::evaluate;
use crate::pg::catalogs;
use crate::pg::lists::{members, node};

/// The limits of one scan of a run.
#[derive(Debug)]
pub struct Cutoff {
    limits: Vec<Limit>,
    context: *mut pg_sys::ExprContext,
}

#[derive(Debug)]
struct Limit {
    compared: Measure<Operand>,
    with: Operand,
    /// Its type is `real`.
    is_real: bool,
    /// What the filter's distance is measured from, where that is another expression than the order's: it is a
    /// limit if both have one value.
    origin: Option<Operand>,
}

/// An expression of a limit, and its value and whether that is NULL, once it was evaluated.
#[derive(Debug)]
struct Operand {
    state: *mut pg_sys::ExprState,
    value: Cell<(pg_sys::Datum, bool)>,
}

/// What is compared with a limit.
#[derive(Debug)]
enum Measure<T> {
    /// The distance, which is to be below the limit.
    Distance,
    /// The distance with the other sign, which is to be above the limit.
    Negated,
    /// What is left of this after the distance, which is to be above the limit.
    Rest(T),
}

impl Cutoff {
    /// That of a node, which is about to run; `None` where its filters set no limit. `own` is the parameter of
    /// the executor that the scan sets to its distances.
    ///
    /// # Safety
    /// A node of a run, with an order by a distance.
    pub unsafe fn of(scan: &pg_sys::IndexScanState, own: Option<usize>) -> Option<Self> {
        // SAFETY: by contract; what is made lives as long as the run.
        unsafe {
            let state = &scan.ss.ps;
            let plan = &*state.plan.cast::<pg_sys::IndexScan>();
            let distance = node(members(plan.indexorderbyorig).first()?);
            if (*distance).type_ != NodeTag::T_OpExpr {
                return None;
            }
            let filter = Filter {
                distance: &*distance.cast(),
                own,
            };
            let run = &*state.state;
            let prepare = |expression: *mut pg_sys::Node| {
                let state = PgMemoryContexts::For(run.es_query_cxt).switch_to(|_| {
                    pg_sys::ExecInitExprWithParams(expression.cast(), run.es_param_list_info)
                });
                Operand {
                    state,
                    value: Cell::new((pg_sys::Datum::null(), true)),
                }
            };
            let mut limits = Vec::new();
            for cell in members(plan.scan.plan.qual) {
                if let Some(Comparison {
                    measure,
                    with,
                    is_real,
                    origin,
                }) = filter.read(node(cell))
                {
                    limits.push(Limit {
                        compared: match measure {
                            Measure::Distance => Measure::Distance,
                            Measure::Negated => Measure::Negated,
                            Measure::Rest(whole) => Measure::Rest(prepare(whole)),
                        },
                        with: prepare(with),
                        is_real,
                        origin: match origin {
                            Origin::Same => None,
                            Origin::Other(expression) => Some(prepare(expression)),
                        },
                    });
                }
            }
            (!limits.is_empty()).then_some(Self {
                limits,
                context: state.ps_ExprContext,
            })
        }
    }

    /// Evaluates what the limits are. This runs functions of users: their errors pass over it, and over its caller.
    ///
    /// # Safety
    /// The run goes on, and its parameters are set.
    pub unsafe fn evaluate(&self) {
        // SAFETY: by contract; nothing here is to be dropped.
        let evaluate = |operand: &Operand| unsafe {
            operand.value.set(evaluate(operand.state, self.context));
        };
        for limit in &self.limits {
            evaluate(&limit.with);
            if let Measure::Rest(whole) = &limit.compared {
                evaluate(whole);
            }
            if let Some(origin) = &limit.origin {
                evaluate(origin);
            }
        }
    }

    /// The distance beyond which no row passes the filters (infinity where there is none, its negative where
    /// none passes), and whether rows pass them whose distance is NaN, by what [`Self::evaluate`] has found. To the
    /// server NaN is larger than every number, so that no limit of distances but NaN lets it pass, and every one of
    /// similarities, which are NaN as well.
    ///
    /// # Safety
    /// As [`Self::evaluate`], after it; `origin` is what the scan measures distances from.
    pub unsafe fn distance(&self, origin: Option<pg_sys::Datum>) -> (f64, bool) {
        let number = |operand: &Operand, is_real| {
            let (datum, is_null) = operand.value.get();
            // SAFETY: a value of that type, which is passed by value.
            unsafe {
                if is_real {
                    f32::from_datum(datum, is_null).map(f64::from)
                } else {
                    f64::from_datum(datum, is_null)
                }
            }
        };
        // A comparison with NULL lets nothing pass.
        let nothing = (f64::NEG_INFINITY, false);
        let of = |limit: &Limit| {
            let Some(with) = number(&limit.with, limit.is_real) else {
                return nothing;
            };
            match &limit.compared {
                // What is NaN equals a limit that is.
                Measure::Distance => (with, with.is_nan()),
                Measure::Negated => (-with, true),
                Measure::Rest(whole) => match number(whole, false) {
                    Some(whole) => (largest_with_rest(whole, with), true),
                    None => nothing,
                },
            }
        };
        let (mut distance, mut undirected) = (f64::INFINITY, true);
        for limit in &self.limits {
            if let Some(operand) = &limit.origin {
                let (other, is_null) = operand.value.get();
                // SAFETY: two values of the type that the operator takes on this side, which is a varlena.
                let same = |own| unsafe { !is_null && have_equal_bytes(own, other) };
                if !origin.is_some_and(same) {
                    continue;
                }
            }
            let (of_limit, lets_nan_pass) = of(limit);
            // A limit that is NaN, which equals itself, is none.
            if !of_limit.is_nan() {
                distance = distance.min(of_limit);
            }
            undirected &= lets_nan_pass;
        }
        (distance, undirected)
    }
}

/// Whether two values have the same bytes.
///
/// # Safety
/// Varlenas, which may be compressed or out of line.
unsafe fn have_equal_bytes(a: pg_sys::Datum, b: pg_sys::Datum) -> bool {
    // SAFETY: by contract. Copies are freed: a join scans once for each of its rows, in the memory of the run.
    unsafe {
        if pg_sys::toast_raw_datum_size(a) != pg_sys::toast_raw_datum_size(b) {
            return false;
        }
        let [a, b] = [a, b].map(|datum| {
            let stored = datum.cast_mut_ptr::<pg_sys::varlena>();
            (stored, pg_sys::pg_detoast_datum_packed(stored))
        });
        let bytes = |flat: *mut pg_sys::varlena| {
            let length = varlena::varsize_any_exhdr(flat);
            std::slice::from_raw_parts(varlena::vardata_any(flat).cast::<u8>(), length)
        };
        let equal = bytes(a.1) == bytes(b.1);
        for (stored, flat) in [a, b] {
            if flat != stored {
                pg_sys::pfree(flat.cast());
            }
        }
        equal
    }
}

/// No larger number leaves so much of a whole, or more, in the server's arithmetic.
fn largest_with_rest(whole: f64, rest: f64) -> f64 {
    // Twice what the difference here and the server's may be rounded by.
    whole - rest + 4.0 * f64::EPSILON * (whole.abs() + rest.abs())
}

/// Reads the filters of a scan.
struct Filter<'a> {
    distance: &'a pg_sys::OpExpr,
    own: Option<usize>,
}

/// What a filter's distance is measured from.
enum Origin {
    /// What the scan's is.
    Same,
    /// Another constant or parameter, or a cast of it.
    Other(*mut pg_sys::Node),
}

/// What a filter compares.
struct Comparison {
    measure: Measure<*mut pg_sys::Node>,
    /// The limit.
    with: *mut pg_sys::Node,
    /// Its type is `real`.
    is_real: bool,
    origin: Origin,
}

impl Filter<'_> {
    /// What a filter says of the distance.
    ///
    /// # Safety
    /// An expression of the plan.
    unsafe fn read(&self, filter: *mut pg_sys::Node) -> Option<Comparison> {
        // SAFETY: by contract.
        unsafe {
            let (function, operands) = call(filter)?;
            let &[left, right] = operands.as_slice() else {
                return None;
            };
            let (below, above) = match function {
                pg_sys::F_FLOAT8LT | pg_sys::F_FLOAT8LE => (left, right),
                pg_sys::F_FLOAT84LT | pg_sys::F_FLOAT84LE => (left, right),
                pg_sys::F_FLOAT48LT | pg_sys::F_FLOAT48LE => (left, right),
                pg_sys::F_FLOAT8GT | pg_sys::F_FLOAT8GE => (right, left),
                pg_sys::F_FLOAT84GT | pg_sys::F_FLOAT84GE => (right, left),
                pg_sys::F_FLOAT48GT | pg_sys::F_FLOAT48GE => (right, left),
                _ => return None,
            };
            // Distances are not, so the other side is.
            let is_real = ![
                pg_sys::F_FLOAT8LT,
                pg_sys::F_FLOAT8LE,
                pg_sys::F_FLOAT8GT,
                pg_sys::F_FLOAT8GE,
            ]
            .contains(&function);
            let (measure, origin, with) = match self.distance(below) {
                Some(origin) => (Measure::Distance, origin, above),
                None => {
                    let (measure, origin) = self.similarity(above)?;
                    (measure, origin, below)
                }
            };
            self.is_fixed(with).then_some(Comparison {
                measure,
                with,
                is_real,
                origin,
            })
        }
    }

    /// What falls as the distance grows, and what that is measured from.
    ///
    /// # Safety
    /// An expression of the plan.
    unsafe fn similarity(
        &self,
        expression: *mut pg_sys::Node,
    ) -> Option<(Measure<*mut pg_sys::Node>, Origin)> {
        // SAFETY: by contract.
        unsafe {
            let (function, operands) = call(expression)?;
            let (measure, part) = match (function, operands.as_slice()) {
                (pg_sys::F_FLOAT8MI, &[whole, part]) if self.is_fixed(whole) => {
                    (Measure::Rest(whole), part)
                }
                (pg_sys::F_FLOAT8UM, &[part]) => (Measure::Negated, part),
                (pg_sys::F_FLOAT8MUL, &[part, factor] | &[factor, part])
                    if is_minus_one(factor) =>
                {
                    (Measure::Negated, part)
                }
                _ => return None,
            };
            Some((measure, self.distance(part)?))
        }
    }

    /// What a distance is measured from, if it is the one that the scan is ordered by, or what reads it where the scan has it,
    /// or is so if what both are measured from has one value.
    ///
    /// # Safety
    /// An expression of the plan.
    unsafe fn distance(&self, expression: *mut pg_sys::Node) -> Option<Origin> {
        // SAFETY: by contract; a node is what its tag says.
        unsafe {
            match (*expression).type_ {
                NodeTag::T_OpExpr => {
                    let other = &*expression.cast::<pg_sys::OpExpr>();
                    let (own, others) = (members(self.distance.args), members(other.args));
                    if own.len() != 2 || others.len() != 2 || other.opno != self.distance.opno {
                        return None;
                    }
                    let same =
                        |a: usize, b: usize| pg_sys::equal(own[a].ptr_value, others[b].ptr_value);
                    let swaps = pg_sys::get_commutator(other.opno) == other.opno;
                    if same(0, 0) && same(1, 1) || swaps && same(0, 1) && same(1, 0) {
                        return Some(Origin::Same);
                    }
                    // The index's side of the order has its column.
                    let column = usize::from(!pg_sys::contain_var_clause(node(&own[0])));
                    let from = if same(column, column) {
                        node(&others[1 - column])
                    } else if swaps && same(column, 1 - column) {
                        node(&others[column])
                    } else {
                        return None;
                    };
                    // Two constants are not the same, or would have been found equal.
                    let constants = [from, node(&own[1 - column])]
                        .iter()
                        .all(|operand| (**operand).type_ == NodeTag::T_Const);
                    (!constants && self.is_origin(from)).then_some(Origin::Other(from))
                }
                NodeTag::T_CoalesceExpr => {
                    let args = members((*expression.cast::<pg_sys::CoalesceExpr>()).args);
                    let &[first, second] = args else { return None };
                    let first = node(&first);
                    if (*first).type_ != NodeTag::T_Param || !self.is_own(&*first.cast()) {
                        return None;
                    }
                    self.distance(node(&second))
                }
                _ => None,
            }
        }
    }

    /// Whether it is the parameter that the scan sets to its distances.
    fn is_own(&self, parameter: &pg_sys::Param) -> bool {
        parameter.paramkind == pg_sys::ParamKind::PARAM_EXEC
            && usize::try_from(parameter.paramid).ok() == self.own
    }

    /// Whether it is the same for all rows of a scan, and computed by nothing but the server's arithmetic.
    ///
    /// # Safety
    /// An expression of the plan.
    unsafe fn is_fixed(&self, expression: *mut pg_sys::Node) -> bool {
        // SAFETY: by contract; a node is what its tag says.
        unsafe {
            self.is_known(expression)
                || call(expression).is_some_and(|(function, operands)| {
                    ARITHMETIC.contains(&function)
                        && operands.into_iter().all(|operand| self.is_fixed(operand))
                })
        }
    }

    /// Whether it is a constant or a parameter, also as casts make another type of it: none that runs code of users, which would
    /// run before a row is found.
    ///
    /// # Safety
    /// An expression of the plan.
    unsafe fn is_origin(&self, expression: *mut pg_sys::Node) -> bool {
        // SAFETY: by contract; a node is what its tag says.
        unsafe {
            match (*expression).type_ {
                NodeTag::T_RelabelType => {
                    self.is_origin((*expression.cast::<pg_sys::RelabelType>()).arg.cast())
                }
                // Functions for input and output are C.
                NodeTag::T_CoerceViaIO => {
                    self.is_origin((*expression.cast::<pg_sys::CoerceViaIO>()).arg.cast())
                }
                NodeTag::T_FuncExpr => {
                    let call = &*expression.cast::<pg_sys::FuncExpr>();
                    let is_own = |form: &pg_sys::FormData_pg_proc| {
                        COMPILED.contains(&form.prolang.to_u32())
                            && form.provolatile as u8 != pg_sys::PROVOLATILE_VOLATILE
                    };
                    let cache = pg_sys::SysCacheIdentifier::PROCOID;
                    !call.funcretset
                        && catalogs::row(cache, call.funcid, is_own) == Some(true)
                        && members(call.args)
                            .iter()
                            .all(|cell| self.is_origin(node(cell)))
                }
                _ => self.is_known(expression),
            }
        }
    }

    /// Whether it is a constant or a parameter, which is the same for all rows of a scan.
    ///
    /// # Safety
    /// An expression of the plan.
    unsafe fn is_known(&self, expression: *mut pg_sys::Node) -> bool {
        // SAFETY: by contract; a node is what its tag says.
        unsafe {
            match (*expression).type_ {
                NodeTag::T_Const => true,
                NodeTag::T_Param => {
                    let parameter = &*expression.cast::<pg_sys::Param>();
                    let kinds = [
                        pg_sys::ParamKind::PARAM_EXTERN,
                        pg_sys::ParamKind::PARAM_EXEC,
                    ];
                    kinds.contains(&parameter.paramkind) && !self.is_own(parameter)
                }
                _ => false,
            }
        }
    }
}

/// The languages `internal` and `C` (`src/include/catalog/pg_language.dat`), in which superusers alone make functions.
const COMPILED: [u32; 2] = [12, 13];

/// Functions of the server that limits may have.
const ARITHMETIC: [u32; 18] = [
    pg_sys::F_FLOAT4_FLOAT8,
    pg_sys::F_FLOAT4_INT2,
    pg_sys::F_FLOAT4_INT4,
    pg_sys::F_FLOAT4_INT8,
    pg_sys::F_FLOAT4_NUMERIC,
    pg_sys::F_FLOAT4UM,
    pg_sys::F_FLOAT4PL,
    pg_sys::F_FLOAT4MI,
    pg_sys::F_FLOAT4MUL,
    pg_sys::F_FLOAT8_FLOAT4,
    pg_sys::F_FLOAT8_INT2,
    pg_sys::F_FLOAT8_INT4,
    pg_sys::F_FLOAT8_INT8,
    pg_sys::F_FLOAT8_NUMERIC,
    pg_sys::F_FLOAT8UM,
    pg_sys::F_FLOAT8PL,
    pg_sys::F_FLOAT8MI,
    pg_sys::F_FLOAT8MUL,
];

/// The function that an operator or a call runs, and its operands.
///
/// # Safety
/// An expression of a plan.
unsafe fn call(expression: *mut pg_sys::Node) -> Option<(u32, Vec<*mut pg_sys::Node>)> {
    // SAFETY: by contract; a node is what its tag says.
    unsafe {
        let (function, operands): (Oid, _) = match (*expression).type_ {
            NodeTag::T_OpExpr => {
                let call = &*expression.cast::<pg_sys::OpExpr>();
                (call.opfuncid, call.args)
            }
            NodeTag::T_FuncExpr => {
                let call = &*expression.cast::<pg_sys::FuncExpr>();
                (call.funcid, call.args)
            }
            _ => return None,
        };
        let operands = members(operands).iter().map(|cell| node(cell)).collect();
        Some((function.to_u32(), operands))
    }
}

/// Whether it is the constant -1 of the type `double precision`.
///
/// # Safety
/// An expression of a plan.
unsafe fn is_minus_one(expression: *mut pg_sys::Node) -> bool {
    // SAFETY: by contract; a node is what its tag says.
    unsafe {
        if (*expression).type_ != NodeTag::T_Const {
            return false;
        }
        let constant = &*expression.cast::<pg_sys::Const>();
        constant.consttype == pg_sys::FLOAT8OID
            && f64::from_datum(constant.constvalue, constant.constisnull) == Some(-1.0)
    }
}
