//! Validation of operator classes (`amvalidate()`).
#![allow(unsafe_code)]

use crate::pg::{catalogs, encoding};
use laser_index::metric::Metric;
use pgrx::pg_sys::{self, Oid};

use super::element::{self, KIND_PROCEDURE};

/// The rows of a system cache that belong to an operator family.
///
/// # Safety
/// `T` is the struct of the catalog that `cache` is on, and the cache's first key is the family.
unsafe fn members<T: Copy>(cache: i32, family: Oid) -> Vec<T> {
    // SAFETY: by contract; the list is held while its rows are copied.
    unsafe {
        let none = pg_sys::Datum::from(0);
        let list = pg_sys::SearchSysCacheList(cache, 1, family.into(), none, none);
        let tuples = (*list).members.as_slice((*list).n_members as usize);
        let rows = tuples
            .iter()
            .map(|&member| {
                let tuple = std::ptr::from_mut(&mut (*member).tuple);
                *pg_sys::GETSTRUCT(tuple).cast::<T>()
            })
            .collect();
        pg_sys::ReleaseCatCacheList(list);
        rows
    }
}

/// The name of a type, without its schema.
fn type_name(oid: Oid) -> Option<String> {
    let name = |form: &pg_sys::FormData_pg_type| form.typname;
    // SAFETY: rows of this cache; a name ends with a zero.
    unsafe {
        let name = catalogs::row(pg_sys::SysCacheIdentifier::TYPEOID, oid, name)?;
        Some(encoding::shown(name.data.as_ptr()))
    }
}

/// What is wrong with an operator class. One consists of one ordering operator that takes its type
/// twice and returns `double precision`, and of the function that names type and metric, which
/// agrees with the operator.
///
/// # Safety
/// Called within a transaction.
unsafe fn problems(class: Oid) -> Vec<String> {
    let mut problems = Vec::new();
    // SAFETY: the caches are those of the structs; strings of the server are copied at once.
    unsafe {
        let (family, input) = (
            pg_sys::get_opclass_family(class),
            pg_sys::get_opclass_input_type(class),
        );
        let operator_cache = pg_sys::SysCacheIdentifier::AMOPSTRATEGY as i32;
        let mut metric_name = None;
        for operator in members::<pg_sys::FormData_pg_amop>(operator_cache, family) {
            let full = encoding::shown(pg_sys::format_operator(operator.amopopr));
            if operator.amopstrategy != 1 {
                let strategy = operator.amopstrategy;
                problems.push(format!("operator {full} has strategy {strategy}, not 1"));
            }
            if operator.amoppurpose as u8 != b'o' {
                problems.push(format!("operator {full} does not order"));
            }
            if operator.amoplefttype != operator.amoprighttype {
                problems.push(format!("operator {full} is for two different types"));
            }
            let result = pg_sys::get_op_rettype(operator.amopopr);
            if result != pg_sys::FLOAT8OID {
                problems.push(format!("operator {full} does not return double precision"));
            }
            if operator.amoplefttype == input {
                let name = pg_sys::get_opname(operator.amopopr);
                metric_name = Some(encoding::shown(name));
            }
        }
        let mut kind = None;
        let procedure_cache = pg_sys::SysCacheIdentifier::AMPROCNUM as i32;
        for procedure in members::<pg_sys::FormData_pg_amproc>(procedure_cache, family) {
            let name = encoding::shown(pg_sys::format_procedure(procedure.amproc));
            let signature = pg_sys::get_func_rettype(procedure.amproc) == pg_sys::INT4OID
                && pg_sys::get_func_nargs(procedure.amproc) == 0;
            if procedure.amprocnum != KIND_PROCEDURE as i16 {
                let number = procedure.amprocnum;
                problems.push(format!(
                    "function {name} has support number {number}, not 1"
                ));
            } else if !signature {
                problems.push(format!(
                    "function {name} is not of the form f() returns integer"
                ));
            } else if procedure.amproclefttype == input {
                let value = pg_sys::OidFunctionCall0Coll(procedure.amproc, pg_sys::InvalidOid);
                kind = element::parse_kind(value.value() as u8);
                if kind.is_none() {
                    problems.push(format!("function {name} names no type and metric"));
                }
            }
        }
        match (kind, metric_name) {
            (Some((element, metric)), Some(operator)) => {
                let (named, found) = (element.type_name(), type_name(input));
                if found.as_deref() != Some(named) {
                    let found = found.unwrap_or_default();
                    problems.push(format!(
                        "support function 1 names the type {named}, the class is for {found}"
                    ));
                }
                let wanted = match metric {
                    Metric::Cosine => "<=>",
                    Metric::L2 => "<->",
                    Metric::InnerProduct => "<#>",
                };
                if operator != wanted {
                    let metric = metric.name();
                    problems.push(format!(
                        "operator {operator} does not order by the metric {metric}, which support function 1 names"
                    ));
                }
            }
            (_, None) => problems.push("there is no ordering operator for its type".into()),
            (None, Some(_)) => problems.push("there is no support function 1 for its type".into()),
        }
    }
    problems
}

/// `amvalidate`
#[pgrx::pg_guard]
pub unsafe extern "C-unwind" fn validate(class: Oid) -> bool {
    // SAFETY: the server calls this within a transaction, with an operator class of this method.
    let problems = unsafe { problems(class) };
    for problem in &problems {
        pgrx::info!("operator class {class} of access method laser: {problem}");
    }
    problems.is_empty()
}
