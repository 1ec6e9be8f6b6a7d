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
#![allow(unsafe_code)]

use std::cell::Cell;

use pgrx::pg_sys::{self, NodeTag, Oid};
use pgrx::{FromDatum, PgMemoryContexts};

use super::expression::evaluate;
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
                if let Some((compared, with, is_real)) = filter.read(node(cell)) {
                    limits.push(Limit {
                        compared: match compared {
                            Measure::Distance => Measure::Distance,
                            Measure::Negated => Measure::Negated,
                            Measure::Rest(whole) => Measure::Rest(prepare(whole)),
                        },
                        with: prepare(with),
                        is_real,
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
        }
    }

    /// The distance beyond which no row passes the filters (infinity where there is none, its negative where
    /// none passes), and whether rows pass them whose distance is NaN, by what [`Self::evaluate`] has found. To the
    /// server NaN is larger than every number, so that no limit of distances but NaN lets it pass, and every one of
    /// similarities, which are NaN as well.
    pub fn distance(&self) -> (f64, bool) {
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

/// A measure, the limit that it is compared with, and whether that is of type `real`.
type Comparison = (Measure<*mut pg_sys::Node>, *mut pg_sys::Node, bool);

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
            if self.is_distance(below) {
                return self
                    .is_fixed(above)
                    .then_some((Measure::Distance, above, is_real));
            }
            let measure = self.similarity(above)?;
            self.is_fixed(below).then_some((measure, below, is_real))
        }
    }

    /// What falls as the distance grows.
    ///
    /// # Safety
    /// An expression of the plan.
    unsafe fn similarity(
        &self,
        expression: *mut pg_sys::Node,
    ) -> Option<Measure<*mut pg_sys::Node>> {
        // SAFETY: by contract.
        unsafe {
            let (function, operands) = call(expression)?;
            match (function, operands.as_slice()) {
                (pg_sys::F_FLOAT8MI, &[whole, part]) => {
                    (self.is_distance(part) && self.is_fixed(whole)).then_some(Measure::Rest(whole))
                }
                (pg_sys::F_FLOAT8UM, &[part]) => self.is_distance(part).then_some(Measure::Negated),
                (pg_sys::F_FLOAT8MUL, &[a, b]) => (self.is_distance(a) && is_minus_one(b)
                    || self.is_distance(b) && is_minus_one(a))
                .then_some(Measure::Negated),
                _ => None,
            }
        }
    }

    /// Whether it is the distance that the scan is ordered by, or what reads it where the scan has it.
    ///
    /// # Safety
    /// An expression of the plan.
    unsafe fn is_distance(&self, expression: *mut pg_sys::Node) -> bool {
        // SAFETY: by contract; a node is what its tag says.
        unsafe {
            match (*expression).type_ {
                NodeTag::T_OpExpr => {
                    let other = &*expression.cast::<pg_sys::OpExpr>();
                    let (own, others) = (members(self.distance.args), members(other.args));
                    if own.len() != 2 || others.len() != 2 || other.opno != self.distance.opno {
                        return false;
                    }
                    let same =
                        |a: usize, b: usize| pg_sys::equal(own[a].ptr_value, others[b].ptr_value);
                    same(0, 0) && same(1, 1)
                        || same(0, 1)
                            && same(1, 0)
                            && pg_sys::get_commutator(other.opno) == other.opno
                }
                NodeTag::T_CoalesceExpr => {
                    let args = members((*expression.cast::<pg_sys::CoalesceExpr>()).args);
                    let &[first, second] = args else { return false };
                    let first = node(&first);
                    (*first).type_ == NodeTag::T_Param
                        && self.is_own(&*first.cast())
                        && self.is_distance(node(&second))
                }
                _ => false,
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
                _ => call(expression).is_some_and(|(function, operands)| {
                    ARITHMETIC.contains(&function)
                        && operands.into_iter().all(|operand| self.is_fixed(operand))
                }),
            }
        }
    }
}

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
