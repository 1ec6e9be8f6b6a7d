//! What statements may run that this extension makes of others' tables.
//!
//! Such a statement is made of names, and runs with the rights of whoever calls `laser_hybrid`, `laser_embed_table`
//! or the mining functions. What names mean, the owner of a table may change until the statement has been parsed:
//! give a column another type, whose casts and operators are then chosen, put a view in the place of the table,
//! or a function in that of a column. So a statement says of which table it is, in a comment ([`mark`]) that nobody can
//! foretell, since a text or a name which has it in some other statement would make that one fail, and
//! is checked when it has been parsed, with its tables locked, every time that it is: all that it runs
//! is the server's, a superuser's or the caller's own, so are the types of columns that it reads, rows as a whole included unless
//! they are but returned, and it reads no other table but the caller's.
//!
//! What a table brings along of itself (policies, rules, triggers, constraints, views) runs as in every statement
//! that is written by hand.
#![allow(unsafe_code)]

use std::cell::{Cell, OnceCell};
use std::ffi::{CStr, c_char, c_void};

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_extern;
use pgrx::pg_sys::{self, NodeTag, Oid, SysCacheIdentifier};

use laser_model::base::hex;

use crate::pg::catalogs;
use crate::pg::encoding::{to_server, to_utf8};
use crate::pg::errors::{raise, raise_hint};
use crate::pg::lists::{members, node};
use crate::pg::unguarded::{expression_tree_walker, query_tree_walker};

const AFTER: &str = ", and runs nothing of others */";

thread_local! {
    static NEXT_HOOK: Cell<pg_sys::post_parse_analyze_hook_type> = const { Cell::new(None) };
    /// What a mark begins with, with a number that this session has drawn.
    static BEFORE: OnceCell<String> = const { OnceCell::new() };
}

/// What a statement about a table begins with, in this session.
pub fn mark(table: Oid) -> String {
    BEFORE.with(|before| {
        let before = before.get_or_init(|| {
            let mut secret = [0u8; 32];
            // SAFETY: as many bytes are written as the buffer has.
            if !unsafe { pg_sys::pg_strong_random(secret.as_mut_ptr().cast(), secret.len()) } {
                raise(
                    Code::ERRCODE_INTERNAL_ERROR,
                    "could not generate random numbers".to_owned(),
                );
            }
            format!("/* laser {}: of table ", hex(&secret))
        });
        format!("{before}{}{AFTER} ", table.to_u32())
    })
}

/// The same for statements that SQL makes.
#[pg_extern(sql = "")]
fn laser_mark(table: Oid) -> String {
    mark(table)
}

/// Called while the library is loaded.
pub fn init() {
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before.
    unsafe {
        NEXT_HOOK.set(pg_sys::post_parse_analyze_hook);
        pg_sys::post_parse_analyze_hook = Some(parsed);
    }
}

unsafe extern "C-unwind" {
    /// `src/backend/nodes/nodeFuncs.c`
    fn check_functions_in_node(
        node: *mut pg_sys::Node,
        checker: unsafe extern "C-unwind" fn(Oid, *mut c_void) -> bool,
        context: *mut c_void,
    ) -> bool;

    /// `src/backend/nodes/list.c`
    fn lappend_oid(list: *mut pg_sys::List, oid: Oid) -> *mut pg_sys::List;
}

/// `post_parse_analyze_hook`. Errors of other hooks pass over this function, which has nothing to be dropped.
unsafe extern "C-unwind" fn parsed(
    state: *mut pg_sys::ParseState,
    query: *mut pg_sys::Query,
    jumble: *mut pg_sys::JumbleState,
) {
    // SAFETY: called by the server with a statement that was parsed, and its text.
    unsafe {
        if let Some(next) = NEXT_HOOK.get() {
            next(state, query, jumble);
        }
        if let Some(table) = marked((*state).p_sourcetext) {
            check(query, table);
        }
    }
}

/// The table of a statement with a mark.
///
/// # Safety
/// A C string or null.
unsafe fn marked(text: *const c_char) -> Option<Oid> {
    if text.is_null() {
        return None;
    }
    // SAFETY: by contract.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    let at = BEFORE.with(|before| {
        // A session that has made no such statement runs none.
        let before = before.get()?;
        Some(memchr::memmem::find(text, before.as_bytes())? + before.len())
    })?;
    let digits = text[at..].split(|byte| !byte.is_ascii_digit()).next()?;
    let number = std::str::from_utf8(digits).ok()?.parse::<u32>().ok()?;
    Some(Oid::from(number))
}

/// What a statement has, in lists of the server.
struct Found {
    /// What is called, by operators and casts as well.
    functions: *mut pg_sys::List,
    /// Types of columns that are read.
    types: *mut pg_sys::List,
    /// Domains that something is made a value of.
    domains: *mut pg_sys::List,
    tables: *mut pg_sys::List,
}

/// Raises an error at what may not run.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn check(query: *mut pg_sys::Query, table: Oid) {
    let mut found = Found {
        functions: std::ptr::null_mut(),
        types: std::ptr::null_mut(),
        domains: std::ptr::null_mut(),
        tables: std::ptr::null_mut(),
    };
    // SAFETY: a statement that was parsed; the lists are of OIDs.
    unsafe {
        let query = stated(query);
        pg_sys::ffi::pg_guard_ffi_boundary(|| visit(query, (&raw mut found).cast()));
        let oids = |list| members(list).iter().map(|cell| cell.oid_value);
        oids(found.tables).for_each(|other| check_table(other, table));
        oids(found.types).for_each(|of| check_type(pg_sys::getBaseType(of)));
        oids(found.domains).for_each(check_type);
        oids(found.functions).for_each(check_function);
    }
}

/// What EXPLAIN, a cursor or a new table is of, else the statement itself.
///
/// # Safety
/// A statement that was parsed.
unsafe fn stated(query: *mut pg_sys::Query) -> *mut pg_sys::Node {
    // SAFETY: by contract; a node is what its tag says.
    unsafe {
        let mut at = query;
        while (*at).commandType == pg_sys::CmdType::CMD_UTILITY && !(*at).utilityStmt.is_null() {
            let utility = (*at).utilityStmt;
            let of = match (*utility).type_ {
                NodeTag::T_ExplainStmt => (*utility.cast::<pg_sys::ExplainStmt>()).query,
                NodeTag::T_DeclareCursorStmt => {
                    (*utility.cast::<pg_sys::DeclareCursorStmt>()).query
                }
                NodeTag::T_CreateTableAsStmt => {
                    (*utility.cast::<pg_sys::CreateTableAsStmt>()).query
                }
                _ => break,
            };
            if of.is_null() || (*of).type_ != NodeTag::T_Query {
                break;
            }
            at = of.cast();
        }
        at.cast()
    }
}

/// Collects what a statement has. Errors of the server (of its limit of stack) pass over this function and
/// [`add_function`], which have nothing to be dropped; [`check`] has the guard.
unsafe extern "C-unwind" fn visit(at: *mut pg_sys::Node, context: *mut c_void) -> bool {
    // SAFETY: a node of the statement, or null; a node is what its tag says. The context is what is found, which
    // nobody else uses meanwhile.
    unsafe {
        if at.is_null() {
            return false;
        }
        let found = context.cast::<Found>();
        match (*at).type_ {
            NodeTag::T_Query => {
                let query = at.cast::<pg_sys::Query>();
                for cell in members((*query).rtable) {
                    let entry = &*node(cell).cast::<pg_sys::RangeTblEntry>();
                    if entry.rtekind == pg_sys::RTEKind::RTE_RELATION {
                        (*found).tables = lappend_oid((*found).tables, entry.relid);
                    }
                }
                // A join's list of columns names what nobody reads.
                let flags = pg_sys::QTW_IGNORE_JOINALIASES as i32;
                return query_tree_walker(query, visit, context, flags);
            }
            NodeTag::T_TargetEntry => {
                let given = (*at.cast::<pg_sys::TargetEntry>())
                    .expr
                    .cast::<pg_sys::Node>();
                // A row as a whole is given as it is, and never an argument: `t.f` is `f(t)` where there is no column `f`.
                let whole = |at: *mut pg_sys::Node| {
                    !at.is_null()
                        && (*at).type_ == NodeTag::T_Var
                        && (*at.cast::<pg_sys::Var>()).varattno == 0
                };
                if whole(given) {
                    return false;
                }
            }
            NodeTag::T_Var => {
                let column = (*at.cast::<pg_sys::Var>()).vartype;
                (*found).types = lappend_oid((*found).types, column);
            }
            NodeTag::T_CoerceToDomain => {
                let domain = (*at.cast::<pg_sys::CoerceToDomain>()).resulttype;
                (*found).domains = lappend_oid((*found).domains, domain);
            }
            _ => {}
        }
        check_functions_in_node(at, add_function, context);
        expression_tree_walker(at, visit, context)
    }
}

unsafe extern "C-unwind" fn add_function(function: Oid, context: *mut c_void) -> bool {
    // SAFETY: as in `visit`.
    unsafe {
        let found = context.cast::<Found>();
        (*found).functions = lappend_oid((*found).functions, function);
    }
    false
}

fn check_table(other: Oid, table: Oid) {
    if other == table {
        return;
    }
    let owner = |class: &pg_sys::FormData_pg_class| class.relowner;
    // SAFETY: rows of that cache.
    if unsafe { is_of_others(SysCacheIdentifier::RELOID, other, owner) } {
        raise_hint(
            Code::ERRCODE_OBJECT_IN_USE,
            "the table was replaced by another one meanwhile",
            "Try again.",
        );
    }
}

fn check_function(function: Oid) {
    if is_of_server(function) {
        return;
    }
    let owner = |function: &pg_sys::FormData_pg_proc| function.proowner;
    // SAFETY: rows of that cache.
    if unsafe { is_of_others(SysCacheIdentifier::PROCOID, function, owner) } {
        // SAFETY: a new C string.
        let name = unsafe { CStr::from_ptr(pg_sys::format_procedure_qualified(function)) };
        refuse(&format!("function {}", to_utf8(name.to_bytes())));
    }
}

/// With a type come casts and operators, those of its elements as well.
fn check_type(of: Oid) {
    if is_of_server(of) {
        return;
    }
    let owner = |of: &pg_sys::FormData_pg_type| of.typowner;
    // SAFETY: rows of that cache.
    if unsafe { is_of_others(SysCacheIdentifier::TYPEOID, of, owner) } {
        // SAFETY: a new C string.
        let name = unsafe { CStr::from_ptr(pg_sys::format_type_be_qualified(of)) };
        refuse(&format!("type {}", to_utf8(name.to_bytes())));
    }
}

/// Whether it has been there since the cluster was made.
fn is_of_server(object: Oid) -> bool {
    object.to_u32() < pg_sys::FirstNormalObjectId
}

/// Whether the owner of an object is neither whoever calls nor a superuser.
///
/// # Safety
/// Rows of the cache are of the type `T`.
unsafe fn is_of_others<T>(
    cache: SysCacheIdentifier::Type,
    object: Oid,
    owner: impl FnOnce(&T) -> Oid,
) -> bool {
    // SAFETY: by contract; plain questions to the server.
    unsafe {
        !catalogs::row(cache, object, owner)
            .is_some_and(|owner| owner == pg_sys::GetUserId() || pg_sys::superuser_arg(owner))
    }
}

#[cold]
fn refuse(what: &str) -> ! {
    raise_hint(
        Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
        to_server(&format!(
            "permission denied: {what} is owned by another role"
        )),
        "A column of the table, a cast or an operator uses it. Have a superuser own it, or call as the role \
         that owns it.",
    )
}
