//! Refuses to plan a distance between embeddings of two models, where both are known: that of a column
//! by its label ([`labels`]), that of `laser_embed(…)` by its arguments, that of a constant because the
//! statement has just embedded it ([`recent`]).
//!
//! This is the support function of the distance functions, which the server calls for each of them in
//! an expression that it plans, whether as a function or as an operator.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int};

use laser_vector::f16;
use pgrx::pg_sys::{self, Datum, NodeTag};
use pgrx::{PgSqlErrorCode as Code, varlena};

use super::labels::{self, hex};
use super::{recent, resident};
use crate::encoding;
use crate::types::{Embedding, HalfEmbedding, raise_hint};

/// Where embeddings come from.
struct Origin {
    /// For the message.
    what: String,
    model: String,
    fingerprint: Option<String>,
    /// Whether a label says so.
    is_column: bool,
    /// Whether the column is that of a partition or another child of the table in the query.
    is_child: bool,
}

impl Origin {
    fn differs(&self, other: &Self) -> bool {
        match (&self.fingerprint, &other.fingerprint) {
            (Some(a), Some(b)) => a != b,
            _ => self.model != other.model,
        }
    }
}

unsafe extern "C-unwind" {
    /// OIDs of a table and all below it (`src/backend/catalog/pg_inherits.c`), a list in the current context.
    fn find_all_inheritors(
        table: pg_sys::Oid,
        lock: pg_sys::LOCKMODE,
        parents: *mut *mut pg_sys::List,
    ) -> *mut pg_sys::List;
}

/// Subqueries and casts that are looked through.
const DEPTH: usize = 16;

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
            if let Some(root) = request.root.as_ref() {
                check(&*request.fcall, root.parse);
            }
        }
    }
    // Nothing is simplified.
    Datum::from(0)
}

/// # Safety
/// A call of a distance function in this query.
unsafe fn check(call: &pg_sys::FuncExpr, query: *mut pg_sys::Query) {
    // SAFETY: by contract.
    let (a, b) = unsafe {
        let look = Look {
            namespace: pg_sys::get_func_namespace(call.funcid),
        };
        let [a, b] = members(call.args) else {
            return;
        };
        let (a, b) = (node(a), node(b));
        if pg_sys::equal(a.cast(), b.cast()) {
            return;
        }
        // A table may have many partitions, whose labels are of no use where the other side is unknown.
        let is_column = |node: *mut pg_sys::Node| (*node).type_ == NodeTag::T_Var;
        let (first, second) = if is_column(a) { (b, a) } else { (a, b) };
        let first = look.origin(first, query, DEPTH);
        if first.is_empty() {
            return;
        }
        (first, look.origin(second, query, DEPTH))
    };
    let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
    let Some((a, b)) = pairs.into_iter().find(|(a, b)| a.differs(b)) else {
        return;
    };
    let by = if a.is_column { a } else { b };
    let message = if a.model == b.model {
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
    } else if a.model == b.model {
        format!(
            "Embed {} anew. If its embeddings are of this version, change its label: SECURITY LABEL \
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
    let hint = match by.is_child {
        true => format!(
            "{hint} Tables whose partitions are of different models are searched by naming a partition."
        ),
        false => hint,
    };
    raise_hint(
        Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        message,
        hint,
    );
}

/// The members of a list of pointers.
///
/// # Safety
/// The list is a valid one of pointers, or null for an empty one.
unsafe fn members<'a>(list: *mut pg_sys::List) -> &'a [pg_sys::ListCell] {
    // SAFETY: by contract; a list has as many cells as its length.
    unsafe {
        list.as_ref().map_or(&[], |list| {
            std::slice::from_raw_parts(list.elements, list.length as usize)
        })
    }
}

/// # Safety
/// A cell of a list of nodes.
unsafe fn node(cell: &pg_sys::ListCell) -> *mut pg_sys::Node {
    // SAFETY: by contract.
    unsafe { cell.ptr_value.cast() }
}

/// What labels say of a column, and of its namesakes in the tables below, if their rows are wanted.
///
/// # Safety
/// A relation that is planned, and one of its columns.
unsafe fn labelled(table: pg_sys::Oid, column: i16, with_children: bool) -> Vec<Origin> {
    let shown = |name: *mut std::ffi::c_char| {
        // SAFETY: a C string of the server, or null for a column or table that is gone.
        (!name.is_null()).then(|| unsafe { encoding::shown(name) })
    };
    // SAFETY: by contract; look-ups in caches, whose results are copies. The planner has locked the parent,
    // and what has become of its children meanwhile is found out when they are opened.
    unsafe {
        let name = pg_sys::get_attname(table, column, true);
        if name.is_null() {
            return Vec::new();
        }
        let parent = table;
        let origin = |table: pg_sys::Oid| {
            let label = labels::of(table, pg_sys::get_attnum(table, name))?;
            Some(Origin {
                what: format!(
                    "column \"{}\" of table \"{}\"",
                    shown(name)?,
                    shown(pg_sys::get_rel_name(table))?,
                ),
                model: label.model,
                fingerprint: label.fingerprint,
                is_column: true,
                is_child: table != parent,
            })
        };
        if !with_children {
            return origin(table).into_iter().collect();
        }
        let no_lock = pg_sys::NoLock as pg_sys::LOCKMODE;
        let tables = pg_sys::ffi::pg_guard_ffi_boundary(|| {
            find_all_inheritors(table, no_lock, std::ptr::null_mut())
        });
        members(tables)
            .iter()
            .filter_map(|cell| origin(cell.oid_value))
            .collect()
    }
}

struct Look {
    /// Of the extension.
    namespace: pg_sys::Oid,
}

impl Look {
    /// Which model an expression's value comes from, if that can be known; several where it comes from a table
    /// with partitions or other children.
    ///
    /// # Safety
    /// An expression of this query, as the planner has it.
    unsafe fn origin(
        &self,
        node: *mut pg_sys::Node,
        query: *mut pg_sys::Query,
        depth: usize,
    ) -> Vec<Origin> {
        if node.is_null() || query.is_null() || depth == 0 {
            return Vec::new();
        }
        // SAFETY: a node is what its tag says; by contract.
        unsafe {
            match (*node).type_ {
                NodeTag::T_Var => self.column(&*node.cast(), query, depth),
                NodeTag::T_FuncExpr => {
                    let origins = self.call(&*node.cast(), query, depth);
                    origins.unwrap_or_default()
                }
                NodeTag::T_Const => self.constant(&*node.cast()).into_iter().collect(),
                NodeTag::T_RelabelType => {
                    let cast = &*node.cast::<pg_sys::RelabelType>();
                    self.origin(cast.arg.cast(), query, depth - 1)
                }
                NodeTag::T_SubLink => {
                    let link = &*node.cast::<pg_sys::SubLink>();
                    if link.subLinkType != pg_sys::SubLinkType::EXPR_SUBLINK {
                        return Vec::new();
                    }
                    self.output(link.subselect.cast(), 1, depth - 1)
                }
                _ => Vec::new(),
            }
        }
    }

    /// A column of a subquery's result, counted from 1.
    ///
    /// # Safety
    /// The query is a valid one, or null.
    unsafe fn output(&self, query: *mut pg_sys::Query, column: i16, depth: usize) -> Vec<Origin> {
        // SAFETY: by contract; a target list has entries.
        unsafe {
            if query.is_null() || !(*query).setOperations.is_null() {
                return Vec::new();
            }
            members((*query).targetList)
                .iter()
                .map(|cell| &*node(cell).cast::<pg_sys::TargetEntry>())
                .find(|entry| entry.resno == column)
                .map(|entry| self.origin(entry.expr.cast(), query, depth))
                .unwrap_or_default()
        }
    }

    /// # Safety
    /// As [`Look::origin`].
    unsafe fn column(
        &self,
        var: &pg_sys::Var,
        query: *mut pg_sys::Query,
        depth: usize,
    ) -> Vec<Origin> {
        // SAFETY: by contract; the range table has entries, and a relation that is planned exists.
        unsafe {
            let at = usize::try_from(var.varno).unwrap_or(0);
            let entry = at.checked_sub(1);
            let entry = entry.and_then(|at| members((*query).rtable).get(at));
            let Some(entry) = entry.filter(|_| var.varlevelsup == 0) else {
                return Vec::new();
            };
            let entry = &*node(entry).cast::<pg_sys::RangeTblEntry>();
            match entry.rtekind {
                pg_sys::RTEKind::RTE_SUBQUERY => {
                    self.output(entry.subquery, var.varattno, depth - 1)
                }
                pg_sys::RTEKind::RTE_RELATION if var.varattno > 0 => {
                    labelled(entry.relid, var.varattno, entry.inh)
                }
                _ => Vec::new(),
            }
        }
    }

    /// `laser_embed(…)`, and what leaves the model of its argument as it is.
    ///
    /// # Safety
    /// As [`Look::origin`].
    unsafe fn call(
        &self,
        call: &pg_sys::FuncExpr,
        query: *mut pg_sys::Query,
        depth: usize,
    ) -> Option<Vec<Origin>> {
        // SAFETY: by contract; a function that is planned exists.
        unsafe {
            let name = pg_sys::get_func_name(call.funcid);
            if name.is_null() || pg_sys::get_func_namespace(call.funcid) != self.namespace {
                return None;
            }
            let arguments = members(call.args);
            match CStr::from_ptr(name).to_bytes() {
                b"laser_embed" => {
                    let model = match arguments.get(1) {
                        None => resident::session_model()?,
                        Some(named) => text(node(named))?,
                    };
                    Some(vec![Origin {
                        what: "laser_embed".to_owned(),
                        model,
                        fingerprint: None,
                        is_column: false,
                        is_child: false,
                    }])
                }
                b"embedding"
                | b"halfembedding"
                | b"embedding_to_halfembedding"
                | b"halfembedding_to_embedding"
                | b"l2_normalize" => Some(self.origin(node(arguments.first()?), query, depth - 1)),
                _ => None,
            }
        }
    }

    /// An embedding that this statement has made.
    ///
    /// # Safety
    /// As [`Look::origin`].
    unsafe fn constant(&self, constant: &pg_sys::Const) -> Option<Origin> {
        if constant.constisnull {
            return None;
        }
        // SAFETY: by contract; a constant has a value of its type.
        let (model, fingerprint) = unsafe {
            let name = self.type_name(constant.consttype)?;
            match name.as_slice() {
                b"embedding" => {
                    let value = Embedding::from_raw(constant.constvalue);
                    recent::origin(value.as_slice().len(), |at, made| {
                        value.as_slice()[at] == made
                    })?
                }
                b"halfembedding" => {
                    let value = HalfEmbedding::from_raw(constant.constvalue);
                    recent::origin(value.as_slice().len(), |at, made| {
                        value.as_slice()[at] == f16::from_f32(made)
                    })?
                }
                _ => return None,
            }
        };
        Some(Origin {
            what: "laser_embed".to_owned(),
            model,
            fingerprint: Some(hex(&fingerprint)),
            is_column: false,
            is_child: false,
        })
    }

    /// The name of a type of the extension.
    fn type_name(&self, oid: pg_sys::Oid) -> Option<Vec<u8>> {
        // SAFETY: a look-up in a system cache; the row is released after what is in it was copied.
        unsafe {
            let row = pg_sys::SearchSysCache1(
                pg_sys::SysCacheIdentifier::TYPEOID as c_int,
                Datum::from(oid),
            );
            if row.is_null() {
                return None;
            }
            let form = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_type>();
            let own = form.typnamespace == self.namespace;
            let name = CStr::from_ptr(form.typname.data.as_ptr())
                .to_bytes()
                .to_vec();
            pg_sys::ReleaseSysCache(row);
            own.then_some(name)
        }
    }
}

/// The text of a constant.
///
/// # Safety
/// An expression.
unsafe fn text(node: *mut pg_sys::Node) -> Option<String> {
    // SAFETY: a node is what its tag says, a constant of type text has one; a copy that detoasting
    // makes is left to the planner's memory.
    unsafe {
        if (*node).type_ != NodeTag::T_Const {
            return None;
        }
        let constant = &*node.cast::<pg_sys::Const>();
        if constant.constisnull || constant.consttype != pg_sys::TEXTOID {
            return None;
        }
        let flat = pg_sys::pg_detoast_datum_packed(constant.constvalue.cast_mut_ptr());
        let bytes = std::slice::from_raw_parts(
            varlena::vardata_any(flat).cast::<u8>(),
            varlena::varsize_any_exhdr(flat),
        );
        str::from_utf8(bytes).ok().map(str::to_owned)
    }
}
