//! Which utility statement the server is executing, and in whose name: the session's user's, or that of somebody whose code
//! is run for another, as of a function with the rights of its owner (SECURITY DEFINER), or of an index expression that
//! ANALYZE evaluates (`SECURITY_RESTRICTED_OPERATION` in `miscadmin.h`).
//!
//! The server changes the user itself while it builds an index, so that the security context then does not tell: it is
//! noted when the statement begins, within those around it, whose restrictions it has. What is noted of a statement that has
//! ended by an error goes with the transaction, or the subtransaction, that the error has ended.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};

use pgrx::pg_sys::{self, NodeTag};

use super::lists::{members, node};
use super::unguarded::standard_ProcessUtility;

/// What is noted of a utility statement.
#[derive(Debug, Clone, Copy)]
struct Noted {
    /// The security context in which it began.
    restrictions: c_int,
    /// How deep in subtransactions it began.
    level: c_int,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// CREATE INDEX
    MakesIndex,
    /// CREATE TABLE, which by itself makes the indexes of a partition alone, as those of its parent are.
    MakesTable,
    /// EXECUTE by the client itself, of a portal that nobody else can fetch from
    Executes,
    /// COPY by the client itself
    Copies,
    /// ALTER with the storage parameter that is watched, and without it.
    SetsParameter,
    LeavesParameter,
    Other,
}

thread_local! {
    static NEXT_HOOK: Cell<pg_sys::ProcessUtility_hook_type> = const { Cell::new(None) };
    /// Utility statements, each within the one before.
    static NOTED: RefCell<Vec<Noted>> = const { RefCell::new(Vec::new()) };
    /// The storage parameter that is watched.
    static PARAMETER: Cell<&CStr> = const { Cell::new(c"") };
    /// What looks at the relation of a statement that has set it.
    static LOOK: Cell<Option<fn(pg_sys::Oid)>> = const { Cell::new(None) };
}

/// Called while the library is loaded, which serves indexes of an access method, and wants to know of statements that set
/// one of their storage parameters: `look` is called with the relation after each, and may raise an error.
pub fn init(method: &CStr, parameter: &'static CStr, look: fn(pg_sys::Oid)) {
    PARAMETER.set(parameter);
    LOOK.set(Some(look));
    // SAFETY: hooks are set by whoever is loaded, and call those that were there before; callbacks stay where they are.
    unsafe {
        NEXT_HOOK.set(pg_sys::ProcessUtility_hook);
        pg_sys::ProcessUtility_hook = Some(run);
        pg_sys::RegisterXactCallback(Some(transaction_ends), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(subtransaction_ends), std::ptr::null_mut());
        let loading = loaded_by(method);
        NOTED.with_borrow_mut(|noted| noted.extend(loading));
    }
}

/// The statement that has the library loaded, if it is the session's own and makes or alters an index of the access method, or
/// a table, maybe with such indexes, or executes what was prepared, or copies. What begins in the session itself has no restrictions. Where
/// code within has the library loaded, it is not known for which statement: such code, of whatever language, and what it
/// executes has something to say about errors.
///
/// # Safety
/// Called while the library is loaded.
unsafe fn loaded_by(method: &CStr) -> Option<Noted> {
    // SAFETY: a portal that is active lives as long as its statements; a node is what its tag says.
    unsafe {
        if !pg_sys::error_context_stack.is_null() {
            return None;
        }
        let portal = pg_sys::ActivePortal.as_ref()?;
        let [statement] = members(portal.stmts) else {
            return None;
        };
        let statement = node(statement);
        if (*statement).type_ != NodeTag::T_PlannedStmt {
            return None;
        }
        let statement = (*statement.cast::<pg_sys::PlannedStmt>()).utilityStmt;
        let runs_others = match statement.as_ref()?.type_ {
            NodeTag::T_IndexStmt => {
                let name = (*statement.cast::<pg_sys::IndexStmt>()).accessMethod;
                if name.is_null() || CStr::from_ptr(name) != method {
                    return None;
                }
                false
            }
            NodeTag::T_AlterTableStmt => {
                let alter = &*statement.cast::<pg_sys::AlterTableStmt>();
                alter.objtype != pg_sys::ObjectType::OBJECT_INDEX
            }
            NodeTag::T_CreateStmt | NodeTag::T_ExecuteStmt | NodeTag::T_CopyStmt => true,
            _ => return None,
        };
        let (mut user, mut context) = (pg_sys::InvalidOid, 0);
        if runs_others {
            pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        }
        Some(Noted {
            restrictions: context,
            level: pg_sys::GetCurrentTransactionNestLevel(),
            kind: kind_of(statement, true),
        })
    }
}

/// The innermost utility statement.
fn innermost() -> Option<Noted> {
    NOTED.with_borrow(|noted| noted.last().copied())
}

/// Whether the utility statement that runs is the session's user's, and no code of another's that is run for him. Where that is
/// not known, it is denied.
pub fn is_of_user() -> bool {
    let restrictions = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
    innermost().is_some_and(|noted| noted.restrictions & restrictions as c_int == 0)
}

/// Whether the utility statement that runs is known to make indexes. Others build again what is there, also what an earlier
/// one has left unbuilt.
pub fn makes_indexes() -> bool {
    innermost().is_some_and(|noted| matches!(noted.kind, Kind::MakesIndex | Kind::MakesTable))
}

/// Whether the utility statement that runs is known to be EXECUTE, sent by the client: not one that a function runs.
pub fn executes_for_client() -> bool {
    innermost().is_some_and(|noted| noted.kind == Kind::Executes)
}

/// The same of COPY.
pub fn copies_for_client() -> bool {
    innermost().is_some_and(|noted| noted.kind == Kind::Copies)
}

/// Whether the utility statement that runs is known to leave the storage parameter that is watched as it was.
pub fn leaves_parameter() -> bool {
    innermost().is_some_and(|noted| matches!(noted.kind, Kind::MakesTable | Kind::LeavesParameter))
}

/// Whether whoever knows its name can fetch from the portal that runs: as long as a client that has named it, or has asked for
/// some of its rows, leaves others in it.
fn is_visible() -> bool {
    // SAFETY: a portal that is active lives.
    unsafe {
        pg_sys::ActivePortal
            .as_ref()
            .is_none_or(|portal| portal.visible)
    }
}

/// # Safety
/// A statement as the parser has it.
unsafe fn kind_of(statement: *mut pg_sys::Node, is_of_client: bool) -> Kind {
    // SAFETY: by contract; a node is what its tag says, and lists are of these.
    unsafe {
        match (*statement).type_ {
            NodeTag::T_IndexStmt => Kind::MakesIndex,
            NodeTag::T_CreateStmt => Kind::MakesTable,
            NodeTag::T_CopyStmt if is_of_client => Kind::Copies,
            NodeTag::T_ExecuteStmt if is_of_client && !is_visible() => Kind::Executes,
            NodeTag::T_AlterTableStmt => {
                use pg_sys::AlterTableType::{AT_ReplaceRelOptions, AT_SetRelOptions};
                let sets = |command: &pg_sys::ListCell| {
                    let command = &*node(command).cast::<pg_sys::AlterTableCmd>();
                    [AT_SetRelOptions, AT_ReplaceRelOptions].contains(&command.subtype)
                        && members(command.def.cast()).iter().any(|parameter| {
                            let parameter = &*node(parameter).cast::<pg_sys::DefElem>();
                            CStr::from_ptr(parameter.defname) == PARAMETER.get()
                        })
                };
                let commands = members((*statement.cast::<pg_sys::AlterTableStmt>()).cmds);
                match commands.iter().any(sets) {
                    true => Kind::SetsParameter,
                    false => Kind::LeavesParameter,
                }
            }
            _ => Kind::Other,
        }
    }
}

/// Nothing in it panics or raises.
unsafe extern "C-unwind" fn transaction_ends(event: pg_sys::XactEvent::Type, _state: *mut c_void) {
    if event == pg_sys::XactEvent::XACT_EVENT_ABORT {
        NOTED.with_borrow_mut(Vec::clear);
    }
}

/// Nothing in it panics or raises.
unsafe extern "C-unwind" fn subtransaction_ends(
    event: pg_sys::SubXactEvent::Type,
    _own: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _state: *mut c_void,
) {
    if event == pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB {
        // SAFETY: a plain question to the server, which is still in the subtransaction that ends.
        let level = unsafe { pg_sys::GetCurrentTransactionNestLevel() };
        NOTED.with_borrow_mut(|noted| noted.retain(|noted| noted.level < level));
    }
}

/// Shows `look` the relation that a statement has altered, which is locked until the transaction ends.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn look_at(alter: *const pg_sys::AlterTableStmt) {
    // SAFETY: called by `run`, with a statement that has succeeded.
    unsafe {
        let relation = pg_sys::RangeVarGetRelidExtended(
            (*alter).relation,
            pg_sys::NoLock as pg_sys::LOCKMODE,
            pg_sys::RVROption::RVR_MISSING_OK,
            None,
            std::ptr::null_mut(),
        );
        if let Some(look) = LOOK.get()
            && relation != pg_sys::InvalidOid
        {
            look(relation);
        }
    }
}

/// Errors pass over this function as over one in C, for the reasons that [`super::unguarded`] has.
unsafe extern "C-unwind" fn run(
    statement: *mut pg_sys::PlannedStmt,
    text: *const c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: called by the server, whose arguments are handed on.
    unsafe {
        let (mut user, mut restrictions) = (pg_sys::InvalidOid, 0);
        pg_sys::GetUserIdAndSecContext(&raw mut user, &raw mut restrictions);
        let is_outermost = context == pg_sys::ProcessUtilityContext::PROCESS_UTILITY_TOPLEVEL;
        let kind = kind_of((*statement).utilityStmt, is_outermost);
        let level = pg_sys::GetCurrentTransactionNestLevel();
        let around = NOTED.with_borrow_mut(|noted| {
            if is_outermost {
                noted.clear();
            }
            noted.push(Noted {
                restrictions,
                level,
                kind,
            });
            noted.len() - 1
        });
        let next = NEXT_HOOK.get().unwrap_or(standard_ProcessUtility);
        next(
            statement,
            text,
            read_only,
            context,
            parameters,
            environment,
            destination,
            completion,
        );
        if kind == Kind::SetsParameter {
            look_at((*statement).utilityStmt.cast());
        }
        // The first statement of a session that has the library loaded ends without this.
        NOTED.with_borrow_mut(|noted| noted.truncate(around));
    }
}
