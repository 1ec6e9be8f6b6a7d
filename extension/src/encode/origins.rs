//! Which model the embeddings that an expression gives come from: those of a column by its label
//! ([`labels`]), those of `laser_embed(…)` by its arguments, a constant because the statement has just
//! embedded it ([`recent`]).
#![allow(unsafe_code)]

use std::cell::Cell;
use std::collections::HashSet;
use std::ffi::CStr;

use laser_protocol::model_and_language;
use laser_vector::f16;
use pgrx::pg_sys::{self, NodeTag, SysCacheIdentifier};
use pgrx::varlena;

use super::labels::{self, Label, hex};
use super::{recent, session};
use crate::pg::catalogs::{self, attribute};
use crate::pg::encoding;
use crate::pg::interrupts::pause;
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
    /// Whether it is one of several in a UNION.
    pub is_united: bool,
    /// Whether it is one of several of which a CASE or COALESCE chooses by the row.
    pub is_choice: bool,
}

impl Origin {
    /// Embeddings that the session makes where no model is named; `what` is for messages.
    pub fn of_session(what: String) -> Option<Self> {
        Some(Self::made(what, session::session_model()?, None))
    }

    /// Embeddings of which a label says what they are of.
    pub fn of_label(what: String, label: Label) -> Self {
        Self {
            is_column: what != EMBED,
            ..Self::made(what, label.model, label.fingerprint)
        }
    }

    fn made(what: String, model: String, fingerprint: Option<String>) -> Self {
        Self {
            what,
            model,
            fingerprint,
            is_column: false,
            is_child: false,
            is_united: false,
            is_choice: false,
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

/// The function that embeds, as messages call its results.
pub const EMBED: &str = "laser_embed";
const EMBED_FUNCTION: &CStr = c"laser_embed";
/// `laser_same_model(model text, label text, what text, by_default boolean) -> text`, which compares models when a plan runs.
pub const SAME_MODEL: &CStr = c"laser_same_model";
/// Functions whose result is of the model that their argument is of.
const KEEPING: [&CStr; 6] = [
    c"embedding",
    c"halfembedding",
    c"embedding_to_halfembedding",
    c"halfembedding_to_embedding",
    c"l2_normalize",
    c"subvector",
];

/// Subqueries, casts and functions that are looked through.
const DEPTH: usize = 16;
/// Expressions of a list (elements of an array, rows of VALUES, leaves of a UNION) that are examined.
const MEMBERS: usize = 64;
/// Expressions that are examined for one distance: queries of WITH may each name the one before many times.
const EXPRESSIONS: usize = 1024;

/// Tables whose labels are looked up one by one.
const FEW_TABLES: usize = 16;

/// A query that an expression is of, last, and the queries around it.
type Scopes<'q> = &'q [*mut pg_sys::Query];

/// The queries that the planner has begun to plan, from the outermost to that of `root`.
///
/// # Safety
/// The planner's own, or null.
pub unsafe fn scopes_of(root: *const pg_sys::PlannerInfo) -> Vec<*mut pg_sys::Query> {
    let mut scopes = Vec::new();
    let mut root = root;
    // SAFETY: by contract; parents live as long as their children.
    while let Some(level) = unsafe { root.as_ref() } {
        scopes.push(level.parse);
        root = level.parent_root;
    }
    scopes.reverse();
    scopes
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
        let origin = |of: pg_sys::Oid, label: Label| {
            Some(Origin {
                what: format!(
                    "column \"{}\" of table \"{}\"",
                    shown(name)?,
                    shown(pg_sys::get_rel_name(of))?,
                ),
                model: label.model,
                fingerprint: label.fingerprint,
                is_column: true,
                is_child: of != table,
                is_united: false,
                is_choice: false,
            })
        };
        if !with_children {
            let label = labels::of(table, column);
            return label
                .and_then(|label| origin(table, label))
                .into_iter()
                .collect();
        }
        let tables = catalogs::all_below(table);
        let all = (tables.len() > FEW_TABLES).then(|| labels::of_tables(&tables));
        let label = |of: pg_sys::Oid| {
            let column = pg_sys::get_attnum(of, name);
            let Some(all) = &all else {
                return labels::of(of, column);
            };
            let mut of_table = all.get(&of)?.iter();
            let (_, label) = of_table.find(|(at, _)| *at == column)?;
            Some(label.clone())
        };
        let mut seen = HashSet::new();
        let mut origins = Vec::new();
        for of in tables {
            if let Some(label) = label(of)
                && seen.insert(label.clone())
            {
                origins.extend(origin(of, label));
            }
        }
        origins
    }
}

/// Finds origins in expressions.
pub struct Origins {
    /// Schema of the extension, whose types and functions are meant.
    namespace: pg_sys::Oid,
    /// Of [`EXPRESSIONS`], how many may still be examined.
    left: Cell<usize>,
}

impl Origins {
    /// For the extension in a schema.
    pub fn in_schema(namespace: pg_sys::Oid) -> Self {
        Self {
            namespace,
            left: Cell::new(EXPRESSIONS),
        }
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
    /// with partitions or other children, or from several tables.
    ///
    /// # Safety
    /// An expression of the last of these queries, after parse analysis or as the planner has it.
    pub unsafe fn of(&self, node: *mut pg_sys::Node, scopes: Scopes<'_>) -> Vec<Origin> {
        // SAFETY: by contract.
        unsafe { distinct(self.origin(node, scopes, DEPTH)) }
    }

    /// The same of a column of a query's result, counted from 1.
    ///
    /// # Safety
    /// A query after parse analysis, which is no part of another.
    pub unsafe fn of_output(&self, query: *mut pg_sys::Query, column: i16) -> Vec<Origin> {
        // SAFETY: by contract.
        unsafe { distinct(self.output(query, &[], column, DEPTH)) }
    }

    /// [`Origins::of`], looking through at most `depth` subqueries, casts and functions.
    ///
    /// # Safety
    /// As [`Origins::of`].
    unsafe fn origin(
        &self,
        node: *mut pg_sys::Node,
        scopes: Scopes<'_>,
        depth: usize,
    ) -> Vec<Origin> {
        if node.is_null() || depth == 0 || self.left.get() == 0 {
            return Vec::new();
        }
        self.left.set(self.left.get() - 1);
        // A column may be that of many partitions.
        pause();
        let depth = depth - 1;
        // SAFETY: a node is what its tag says; by contract.
        unsafe {
            match (*node).type_ {
                NodeTag::T_Var => self.column(&*node.cast(), scopes, depth),
                NodeTag::T_FuncExpr => {
                    let origins = self.call(&*node.cast(), scopes, depth);
                    origins.unwrap_or_default()
                }
                NodeTag::T_Const => self.constant(&*node.cast()).into_iter().collect(),
                NodeTag::T_RelabelType => {
                    let cast = &*node.cast::<pg_sys::RelabelType>();
                    self.origin(cast.arg.cast(), scopes, depth)
                }
                NodeTag::T_CoerceToDomain => {
                    let cast = &*node.cast::<pg_sys::CoerceToDomain>();
                    self.origin(cast.arg.cast(), scopes, depth)
                }
                NodeTag::T_ArrayCoerceExpr => {
                    let cast = &*node.cast::<pg_sys::ArrayCoerceExpr>();
                    self.origin(cast.arg.cast(), scopes, depth)
                }
                NodeTag::T_NamedArgExpr => {
                    let named = &*node.cast::<pg_sys::NamedArgExpr>();
                    self.origin(named.arg.cast(), scopes, depth)
                }
                // Sums and differences.
                NodeTag::T_OpExpr => {
                    let operator = &*node.cast::<pg_sys::OpExpr>();
                    match self.is_own_type(operator.opresulttype) {
                        true => self.any(operator.args, scopes, depth),
                        false => Vec::new(),
                    }
                }
                NodeTag::T_Aggref => {
                    let aggregate = &*node.cast::<pg_sys::Aggref>();
                    match self.is_own_type(aggregate.aggtype) {
                        true => self.any(aggregate.args, scopes, depth),
                        false => Vec::new(),
                    }
                }
                NodeTag::T_TargetEntry => {
                    let entry = &*node.cast::<pg_sys::TargetEntry>();
                    self.origin(entry.expr.cast(), scopes, depth)
                }
                NodeTag::T_CoalesceExpr => {
                    let either = &*node.cast::<pg_sys::CoalesceExpr>();
                    choice(self.any(either.args, scopes, depth))
                }
                NodeTag::T_CaseExpr => {
                    let case = &*node.cast::<pg_sys::CaseExpr>();
                    let mut origins = self.any(case.args, scopes, depth);
                    origins.extend(self.origin(case.defresult.cast(), scopes, depth));
                    choice(origins)
                }
                NodeTag::T_CaseWhen => {
                    let when = &*node.cast::<pg_sys::CaseWhen>();
                    self.origin(when.result.cast(), scopes, depth)
                }
                NodeTag::T_ArrayExpr => {
                    let array = &*node.cast::<pg_sys::ArrayExpr>();
                    self.any(array.elements, scopes, depth)
                }
                NodeTag::T_SubscriptingRef => {
                    let element = &*node.cast::<pg_sys::SubscriptingRef>();
                    self.origin(element.refexpr.cast(), scopes, depth)
                }
                NodeTag::T_SubLink => {
                    let link = &*node.cast::<pg_sys::SubLink>();
                    use pg_sys::SubLinkType::{ARRAY_SUBLINK, EXPR_SUBLINK};
                    match [EXPR_SUBLINK, ARRAY_SUBLINK].contains(&link.subLinkType) {
                        true => self.output(link.subselect.cast(), scopes, 1, depth),
                        false => Vec::new(),
                    }
                }
                _ => Vec::new(),
            }
        }
    }

    /// All origins of the expressions of a list.
    ///
    /// # Safety
    /// As [`Origins::of`].
    unsafe fn any(&self, list: *mut pg_sys::List, scopes: Scopes<'_>, depth: usize) -> Vec<Origin> {
        // SAFETY: by contract.
        unsafe {
            let list = members(list).iter().take(MEMBERS);
            list.flat_map(|cell| self.origin(node(cell), scopes, depth))
                .collect()
        }
    }

    /// A column of a subquery's result, counted from 1; `outer` are the queries around it.
    ///
    /// # Safety
    /// The queries are valid ones, the first may be null.
    unsafe fn output(
        &self,
        query: *mut pg_sys::Query,
        outer: Scopes<'_>,
        column: i16,
        depth: usize,
    ) -> Vec<Origin> {
        let scopes = [outer, &[query]].concat();
        // SAFETY: by contract; a target list has entries.
        unsafe {
            if query.is_null() {
                return Vec::new();
            }
            if !(*query).setOperations.is_null() {
                let mut leaves = Vec::new();
                leaves_of((*query).setOperations, &mut leaves);
                let entries = leaves.iter().filter_map(|at| range_table_entry(query, *at));
                return entries
                    .flat_map(|entry| self.output(entry.subquery, &scopes, column, depth))
                    .map(|origin| Origin {
                        is_united: true,
                        ..origin
                    })
                    .collect();
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
                .map(|entry| self.origin(entry.expr.cast(), &scopes, depth))
                .unwrap_or_default()
        }
    }

    /// # Safety
    /// As [`Origins::of`].
    unsafe fn column(&self, var: &pg_sys::Var, scopes: Scopes<'_>, depth: usize) -> Vec<Origin> {
        let around = |scopes: Scopes<'_>, levels: u32| scopes.len().checked_sub(levels as usize);
        let Some(scopes) = around(scopes, var.varlevelsup).map(|len| &scopes[..len]) else {
            return Vec::new();
        };
        let Some(query) = scopes.last() else {
            return Vec::new();
        };
        let column = usize::try_from(var.varattno).unwrap_or(0);
        // SAFETY: by contract; the range table has entries, and a relation that is planned exists.
        unsafe {
            let Some(entry) = range_table_entry(*query, var.varno as usize) else {
                return Vec::new();
            };
            match entry.rtekind {
                pg_sys::RTEKind::RTE_SUBQUERY => {
                    self.output(entry.subquery, scopes, var.varattno, depth)
                }
                // The planner has replaced such columns by those of the tables, parse analysis has not.
                pg_sys::RTEKind::RTE_JOIN => {
                    let column = column.checked_sub(1);
                    match column.and_then(|at| members(entry.joinaliasvars).get(at)) {
                        Some(column) => self.origin(node(column), scopes, depth),
                        None => Vec::new(),
                    }
                }
                pg_sys::RTEKind::RTE_CTE if !entry.self_reference => {
                    let Some(len) = around(scopes, entry.ctelevelsup) else {
                        return Vec::new();
                    };
                    let Some(owner) = scopes[..len].last() else {
                        return Vec::new();
                    };
                    let name = CStr::from_ptr(entry.ctename);
                    let of_name = members((**owner).cteList)
                        .iter()
                        .map(|cell| &*node(cell).cast::<pg_sys::CommonTableExpr>())
                        .find(|cte| CStr::from_ptr(cte.ctename) == name && !cte.cterecursive);
                    match of_name {
                        Some(cte) => {
                            let query = cte.ctequery.cast();
                            self.output(query, &scopes[..len], var.varattno, depth)
                        }
                        None => Vec::new(),
                    }
                }
                // The elements of an array.
                pg_sys::RTEKind::RTE_FUNCTION => match (members(entry.functions), column) {
                    ([function], 1) => {
                        let function = &*node(function).cast::<pg_sys::RangeTblFunction>();
                        match unnested(function.funcexpr) {
                            Some(array) => self.origin(array, scopes, depth),
                            None => Vec::new(),
                        }
                    }
                    _ => Vec::new(),
                },
                pg_sys::RTEKind::RTE_VALUES => members(entry.values_lists)
                    .iter()
                    .take(MEMBERS)
                    .filter_map(|row| members(node(row).cast()).get(column.checked_sub(1)?))
                    .flat_map(|cell| self.origin(node(cell), scopes, depth))
                    .collect(),
                // A column that the table does not have would be one of another query's table.
                pg_sys::RTEKind::RTE_RELATION
                    if var.varattno > 0
                        && pg_sys::get_atttype(entry.relid, var.varattno) == var.vartype =>
                {
                    let labelled = labelled(entry.relid, var.varattno, entry.inh);
                    match labelled.is_empty() {
                        true => self.generated(entry.relid, var.varattno),
                        false => labelled,
                    }
                }
                // From PostgreSQL 18 on columns that are grouped by are those of an entry of their own.
                #[cfg(feature = "pg18")]
                pg_sys::RTEKind::RTE_GROUP => {
                    let grouped = members(entry.groupexprs);
                    match column.checked_sub(1).and_then(|at| grouped.get(at)) {
                        Some(cell) => self.origin(node(cell), scopes, depth),
                        None => Vec::new(),
                    }
                }
                _ => Vec::new(),
            }
        }
    }

    /// What a generated column is generated by.
    ///
    /// # Safety
    /// A relation that is planned, hence locked, and one of its columns.
    unsafe fn generated(&self, table: pg_sys::Oid, column: i16) -> Vec<Origin> {
        // SAFETY: by contract; the description has the column, and the expression is a copy.
        unsafe {
            let no_lock = pg_sys::NoLock as pg_sys::LOCKMODE;
            let relation = pg_sys::table_open(table, no_lock);
            let described = attribute((*relation).rd_att, column as usize - 1);
            let generated = described.attgenerated != 0;
            let what = generated.then(|| {
                format!(
                    "column \"{}\" of table \"{}\"",
                    encoding::shown(described.attname.data.as_ptr()),
                    encoding::shown((*(*relation).rd_rel).relname.data.as_ptr()),
                )
            });
            let expression = match generated {
                true => pg_sys::build_column_default(relation, column.into()),
                false => std::ptr::null_mut(),
            };
            pg_sys::table_close(relation, no_lock);
            let Some(what) = what else {
                return Vec::new();
            };
            let origins = self.origin(expression, &[], DEPTH).into_iter();
            origins
                .map(|origin| Origin {
                    what: what.clone(),
                    is_column: true,
                    ..origin
                })
                .collect()
        }
    }

    /// `laser_embed(…)`, and what leaves the model of its argument as it is.
    ///
    /// # Safety
    /// As [`Origins::of`].
    unsafe fn call(
        &self,
        call: &pg_sys::FuncExpr,
        scopes: Scopes<'_>,
        depth: usize,
    ) -> Option<Vec<Origin>> {
        // SAFETY: by contract; a function that is planned exists.
        unsafe {
            if let Some(kept) = self.kept(call) {
                return Some(self.origin(kept, scopes, depth));
            }
            if self.own_name(call.funcid) != Some(EMBED_FUNCTION) {
                return None;
            }
            let model = match argument(call.args, 1) {
                Some(named) if !is_null(named) => text(named)?,
                // What a table has stored is of the setting that held then.
                _ if scopes.is_empty() => return None,
                _ => session::session_model()?,
            };
            Some(vec![Origin::made(EMBED.to_owned(), model, None)])
        }
    }

    /// The argument of a call whose result is of the same model.
    ///
    /// # Safety
    /// As [`Origins::of`].
    unsafe fn kept(&self, call: &pg_sys::FuncExpr) -> Option<*mut pg_sys::Node> {
        // A cast to or from pgvector's types, or to a length: the embedding stays that of its model.
        use pg_sys::CoercionForm::{COERCE_EXPLICIT_CAST, COERCE_IMPLICIT_CAST};
        // SAFETY: by contract.
        unsafe {
            let is_kept = [COERCE_EXPLICIT_CAST, COERCE_IMPLICIT_CAST].contains(&call.funcformat)
                || (self.own_name(call.funcid)).is_some_and(|name| KEEPING.contains(&name));
            is_kept.then(|| argument(call.args, 0)).flatten()
        }
    }

    /// The name of a function, which exists, if it is in the extension's schema.
    fn own_name(&self, function: pg_sys::Oid) -> Option<&CStr> {
        // SAFETY: look-ups in a cache, whose results are copies that the planner's memory keeps.
        unsafe {
            let name = pg_sys::get_func_name(function);
            let is_own = !name.is_null() && pg_sys::get_func_namespace(function) == self.namespace;
            is_own.then(|| CStr::from_ptr(name))
        }
    }

    /// The call of `laser_embed` that gives an expression's value, if its model is named when the plan runs.
    ///
    /// # Safety
    /// An expression as the planner has it.
    pub unsafe fn named_late(&self, node: *mut pg_sys::Node) -> Option<*mut pg_sys::FuncExpr> {
        let mut at = node;
        for _ in 0..DEPTH {
            // SAFETY: a node is what its tag says; by contract.
            unsafe {
                at = match (*at).type_ {
                    NodeTag::T_RelabelType => (*at.cast::<pg_sys::RelabelType>()).arg.cast(),
                    NodeTag::T_CoerceToDomain => (*at.cast::<pg_sys::CoerceToDomain>()).arg.cast(),
                    NodeTag::T_FuncExpr => {
                        let call = at.cast::<pg_sys::FuncExpr>();
                        match self.kept(&*call) {
                            Some(kept) => kept,
                            None if self.own_name((*call).funcid) == Some(EMBED_FUNCTION)
                                && is_of_extension((*call).funcid) =>
                            {
                                return self.is_late(model_argument(call)?).then_some(call);
                            }
                            None => return None,
                        }
                    }
                    _ => return None,
                };
            }
        }
        None
    }

    /// Whether the name of a model is not known before the plan runs, nor compared then already: the planner simplifies some
    /// expressions twice.
    ///
    /// # Safety
    /// An expression as the planner has it.
    unsafe fn is_late(&self, model: *mut pg_sys::Node) -> bool {
        // SAFETY: a node is what its tag says.
        unsafe {
            match (*model).type_ {
                _ if pg_sys::exprType(model) != pg_sys::TEXTOID => false,
                NodeTag::T_Const => false,
                NodeTag::T_FuncExpr => {
                    let function = (*model.cast::<pg_sys::FuncExpr>()).funcid;
                    self.own_name(function) != Some(SAME_MODEL)
                }
                _ => true,
            }
        }
    }

    /// Schema of the extension.
    pub fn namespace(&self) -> pg_sys::Oid {
        self.namespace
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
            let element = pg_sys::get_element_type(constant.consttype);
            let (of_type, value) = match element {
                pg_sys::InvalidOid => (constant.consttype, constant.constvalue),
                _ if !self.is_own_type(element) => return None,
                _ => (element, first_of_array(constant.constvalue, element)?),
            };
            let own = self.type_name(of_type);
            let is_half = match own.as_deref() {
                Some(b"embedding") => false,
                Some(b"halfembedding") => true,
                _ => pgvector(of_type)?.is_half,
            };
            match is_half {
                false => {
                    let value = Embedding::from_raw(value);
                    recent::origin(value.as_slice().len(), |at, made| {
                        value.as_slice()[at] == made
                    })?
                }
                true => {
                    let value = HalfEmbedding::from_raw(value);
                    recent::origin(value.as_slice().len(), |at, made| {
                        value.as_slice()[at] == f16::from_f32(made)
                    })?
                }
            }
        };
        let fingerprint = Some(hex(&fingerprint));
        Some(Origin::made(EMBED.to_owned(), model, fingerprint))
    }

    /// Whether it is the type of an embedding.
    fn is_own_type(&self, oid: pg_sys::Oid) -> bool {
        matches!(
            self.type_name(oid).as_deref(),
            Some(b"embedding" | b"halfembedding")
        )
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

/// The first element of an array of embeddings, if it has one that is not null.
///
/// # Safety
/// An array with elements of this type, which is one of variable length.
unsafe fn first_of_array(array: pg_sys::Datum, element: pg_sys::Oid) -> Option<pg_sys::Datum> {
    // SAFETY: by contract; copies are left to the planner's memory.
    unsafe {
        let (mut length, mut by_value, mut align) = (0, false, 0);
        pg_sys::get_typlenbyvalalign(element, &mut length, &mut by_value, &mut align);
        let array = pg_sys::pg_detoast_datum(array.cast_mut_ptr()).cast();
        let (mut values, mut nulls, mut count) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        pg_sys::deconstruct_array(
            array,
            element,
            length.into(),
            by_value,
            align,
            &mut values,
            &mut nulls,
            &mut count,
        );
        (count > 0 && !*nulls).then(|| *values)
    }
}

/// Origins of which an expression has one in each row.
fn choice(origins: Vec<Origin>) -> Vec<Origin> {
    let origins = origins.into_iter();
    origins
        .map(|origin| Origin {
            is_choice: true,
            ..origin
        })
        .collect()
}

/// One origin for each model and version of it, of those that are no choice the first.
fn distinct(mut origins: Vec<Origin>) -> Vec<Origin> {
    let mut seen = HashSet::new();
    origins.sort_by_key(|origin| origin.is_choice);
    origins.retain(|origin| seen.insert((origin.model.clone(), origin.fingerprint.clone())));
    origins
}

/// An entry of a query's range table, counted from 1.
///
/// # Safety
/// A valid query.
unsafe fn range_table_entry<'q>(
    query: *mut pg_sys::Query,
    at: usize,
) -> Option<&'q pg_sys::RangeTblEntry> {
    // SAFETY: by contract; a range table has entries.
    unsafe {
        let entry = members((*query).rtable).get(at.checked_sub(1)?)?;
        Some(&*node(entry).cast())
    }
}

/// The places in the range table of the queries whose rows a set operation gives.
///
/// # Safety
/// A set operation, or one of its sides.
unsafe fn leaves_of(side: *mut pg_sys::Node, leaves: &mut Vec<usize>) {
    // SAFETY: a node is what its tag says.
    unsafe {
        if side.is_null() || leaves.len() >= MEMBERS {
            return;
        }
        match (*side).type_ {
            NodeTag::T_RangeTblRef => {
                leaves.push((*side.cast::<pg_sys::RangeTblRef>()).rtindex as usize);
            }
            NodeTag::T_SetOperationStmt => {
                let operation = &*side.cast::<pg_sys::SetOperationStmt>();
                leaves_of(operation.larg, leaves);
                // What is taken away is given by nobody.
                if operation.op != pg_sys::SetOperation::SETOP_EXCEPT {
                    leaves_of(operation.rarg, leaves);
                }
            }
            _ => {}
        }
    }
}

/// The array whose elements a function of FROM gives.
///
/// # Safety
/// An expression.
unsafe fn unnested(function: *mut pg_sys::Node) -> Option<*mut pg_sys::Node> {
    // SAFETY: a node is what its tag says.
    unsafe {
        if (*function).type_ != NodeTag::T_FuncExpr {
            return None;
        }
        let call = &*function.cast::<pg_sys::FuncExpr>();
        match call.funcid == pg_sys::Oid::from(pg_sys::F_UNNEST_ANYARRAY) {
            true => argument(call.args, 0),
            false => None,
        }
    }
}

/// An argument of a call, counted from 0, whether it is written in its place or by its name.
///
/// # Safety
/// The arguments of a function call, after parse analysis or as the planner has them.
unsafe fn argument(arguments: *mut pg_sys::List, at: usize) -> Option<*mut pg_sys::Node> {
    // SAFETY: by contract; a node is what its tag says.
    unsafe {
        let arguments = members(arguments).iter().map(|cell| node(cell));
        for (place, argument) in arguments.enumerate() {
            if (*argument).type_ == NodeTag::T_NamedArgExpr {
                let named = &*argument.cast::<pg_sys::NamedArgExpr>();
                if named.argnumber as usize == at {
                    return Some(named.arg.cast());
                }
            } else if place == at {
                return Some(argument);
            }
        }
        None
    }
}

/// Whether a function is the extension's: whoever may create functions in its schema may give them its names.
pub fn is_of_extension(function: pg_sys::Oid) -> bool {
    catalogs::is_of_extension(pg_sys::ProcedureRelationId, function, c"laser")
}

/// The argument of a call of `laser_embed` that names the model, if it has one.
///
/// # Safety
/// Such a call, as the planner has it.
pub unsafe fn model_argument(call: *const pg_sys::FuncExpr) -> Option<*mut pg_sys::Node> {
    // SAFETY: by contract.
    unsafe { argument((*call).args, 1) }
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
