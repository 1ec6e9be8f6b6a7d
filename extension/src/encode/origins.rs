//! Which model the embeddings that an expression gives come from: those of a column by its label
//! ([`labels`]), those of `laser_embed(…)` by its arguments, a constant because the statement has just
//! embedded it ([`recent`]).
#![allow(unsafe_code)]

use std::ffi::CStr;

use laser_protocol::model_and_language;
use laser_vector::f16;
use pgrx::pg_sys::{self, NodeTag, SysCacheIdentifier};
use pgrx::varlena;

use super::labels::{self, hex};
use super::{recent, session};
use crate::pg::catalogs;
use crate::pg::encoding;
use crate::pg::lists::{members, node};
use crate::types::{Embedding, HalfEmbedding, pgvector};

/// Where embeddings come from.
pub struct Origin {
    /// For the message.
    pub what: String,
    /// Name of their model.
    pub model: String,
    /// Its fingerprint in hexadecimal, where that is known.
    pub fingerprint: Option<String>,
    /// Whether a label says so.
    pub is_column: bool,
    /// Whether the column is that of a partition or another child of the table in the query.
    pub is_child: bool,
}

impl Origin {
    /// Embeddings that the session makes where no model is named; `what` is for messages.
    pub fn of_session(what: String) -> Option<Self> {
        Some(Self::made(what, session::session_model()?, None))
    }

    fn made(what: String, model: String, fingerprint: Option<String>) -> Self {
        Self {
            what,
            model,
            fingerprint,
            is_column: false,
            is_child: false,
        }
    }

    /// Whether the two are known to be of different models, or of two versions of one. The encoders of one model
    /// for different languages embed into one space, and have one fingerprint.
    pub fn differs(&self, other: &Self) -> bool {
        match (&self.fingerprint, &other.fingerprint) {
            (Some(a), Some(b)) => a != b,
            _ => !self.is_of_model(other),
        }
    }

    /// Whether both are of one model by its name, in whichever languages and versions of it.
    pub fn is_of_model(&self, other: &Self) -> bool {
        model_and_language(&self.model).0 == model_and_language(&other.model).0
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

/// Finds origins in expressions.
pub struct Origins {
    /// Schema of the extension, whose types and functions are meant.
    namespace: pg_sys::Oid,
}

impl Origins {
    /// For the extension in a schema.
    pub fn in_schema(namespace: pg_sys::Oid) -> Self {
        Self { namespace }
    }

    /// For the extension wherever it is: in the schema of its access method's handler.
    pub fn of_extension() -> Self {
        let handler = |form: &pg_sys::FormData_pg_am| form.amhandler;
        // SAFETY: look-ups by name and of a function that exists; rows of this cache.
        let namespace = unsafe {
            let method = pg_sys::get_index_am_oid(c"laser".as_ptr(), true);
            catalogs::row(SysCacheIdentifier::AMOID, method, handler)
                .map_or(pg_sys::InvalidOid, |handler| {
                    pg_sys::get_func_namespace(handler)
                })
        };
        Self::in_schema(namespace)
    }

    /// Which model an expression's value comes from, if that can be known; several where it comes from a table
    /// with partitions or other children.
    ///
    /// # Safety
    /// An expression of this query, after parse analysis or as the planner has it.
    pub unsafe fn of(&self, node: *mut pg_sys::Node, query: *mut pg_sys::Query) -> Vec<Origin> {
        // SAFETY: by contract.
        unsafe { self.origin(node, query, DEPTH) }
    }

    /// The same of a column of a query's result, counted from 1.
    ///
    /// # Safety
    /// A query after parse analysis.
    pub unsafe fn of_output(&self, query: *mut pg_sys::Query, column: i16) -> Vec<Origin> {
        // SAFETY: by contract.
        unsafe { self.output(query, column, DEPTH) }
    }

    /// [`Origins::of`], looking through at most `depth` subqueries and casts.
    ///
    /// # Safety
    /// As [`Origins::of`].
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
            // What a statement that writes returns is another list than what it writes.
            let columns = match (*query).commandType {
                pg_sys::CmdType::CMD_SELECT => (*query).targetList,
                _ => (*query).returningList,
            };
            members(columns)
                .iter()
                .map(|cell| &*node(cell).cast::<pg_sys::TargetEntry>())
                .find(|entry| entry.resno == column)
                .map(|entry| self.origin(entry.expr.cast(), query, depth))
                .unwrap_or_default()
        }
    }

    /// # Safety
    /// As [`Origins::of`].
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
                // The planner has replaced such columns by those of the tables, parse analysis has not.
                pg_sys::RTEKind::RTE_JOIN => {
                    let at = usize::try_from(var.varattno).unwrap_or(0);
                    let column = at.checked_sub(1);
                    match column.and_then(|at| members(entry.joinaliasvars).get(at)) {
                        Some(column) => self.origin(node(column), query, depth - 1),
                        None => Vec::new(),
                    }
                }
                pg_sys::RTEKind::RTE_CTE if entry.ctelevelsup == 0 && !entry.self_reference => {
                    let name = CStr::from_ptr(entry.ctename);
                    let of_name = members((*query).cteList)
                        .iter()
                        .map(|cell| &*node(cell).cast::<pg_sys::CommonTableExpr>())
                        .find(|cte| CStr::from_ptr(cte.ctename) == name && !cte.cterecursive);
                    match of_name {
                        Some(cte) => self.output(cte.ctequery.cast(), var.varattno, depth - 1),
                        None => Vec::new(),
                    }
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
    /// As [`Origins::of`].
    unsafe fn call(
        &self,
        call: &pg_sys::FuncExpr,
        query: *mut pg_sys::Query,
        depth: usize,
    ) -> Option<Vec<Origin>> {
        // SAFETY: by contract; a function that is planned exists.
        unsafe {
            // A cast to or from pgvector's types, or to a length: the embedding stays that of its model.
            use pg_sys::CoercionForm::{COERCE_EXPLICIT_CAST, COERCE_IMPLICIT_CAST};
            if [COERCE_EXPLICIT_CAST, COERCE_IMPLICIT_CAST].contains(&call.funcformat) {
                let argument = members(call.args).first();
                return argument.map(|argument| self.origin(node(argument), query, depth - 1));
            }
            let name = pg_sys::get_func_name(call.funcid);
            if name.is_null() || pg_sys::get_func_namespace(call.funcid) != self.namespace {
                return None;
            }
            let arguments = members(call.args);
            match CStr::from_ptr(name).to_bytes() {
                b"laser_embed" => {
                    let model = match arguments.get(1) {
                        None => session::session_model()?,
                        Some(named) if is_null(node(named)) => session::session_model()?,
                        Some(named) => text(node(named))?,
                    };
                    Some(vec![Origin::made("laser_embed".to_owned(), model, None)])
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
    /// As [`Origins::of`].
    unsafe fn constant(&self, constant: &pg_sys::Const) -> Option<Origin> {
        if constant.constisnull {
            return None;
        }
        // SAFETY: by contract; a constant has a value of its type.
        let (model, fingerprint) = unsafe {
            let own = self.type_name(constant.consttype);
            let is_half = match own.as_deref() {
                Some(b"embedding") => false,
                Some(b"halfembedding") => true,
                _ => pgvector(constant.consttype)?.is_half,
            };
            match is_half {
                false => {
                    let value = Embedding::from_raw(constant.constvalue);
                    recent::origin(value.as_slice().len(), |at, made| {
                        value.as_slice()[at] == made
                    })?
                }
                true => {
                    let value = HalfEmbedding::from_raw(constant.constvalue);
                    recent::origin(value.as_slice().len(), |at, made| {
                        value.as_slice()[at] == f16::from_f32(made)
                    })?
                }
            }
        };
        let fingerprint = Some(hex(&fingerprint));
        Some(Origin::made("laser_embed".to_owned(), model, fingerprint))
    }

    /// The name of a type of the extension.
    fn type_name(&self, oid: pg_sys::Oid) -> Option<Vec<u8>> {
        let look = |form: &pg_sys::FormData_pg_type| {
            // SAFETY: a name ends with a zero.
            let name = unsafe { CStr::from_ptr(form.typname.data.as_ptr()) };
            (form.typnamespace == self.namespace).then(|| name.to_bytes().to_vec())
        };
        // SAFETY: rows of this cache.
        unsafe { catalogs::row(SysCacheIdentifier::TYPEOID, oid, look) }.flatten()
    }
}

/// Whether an expression is the constant null.
///
/// # Safety
/// An expression.
unsafe fn is_null(node: *mut pg_sys::Node) -> bool {
    // SAFETY: a node is what its tag says.
    unsafe { (*node).type_ == NodeTag::T_Const && (*node.cast::<pg_sys::Const>()).constisnull }
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
