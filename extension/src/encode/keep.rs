//! Columns of embeddings that stay in step with their text: what `laser_keep_embedded` puts on a table (`sql/keep.sql`).
//!
//! An embedding whose text has changed becomes null, in the same row version, and `laser_embed_table` computes it again as
//! it does for new rows: the nulls are the queue. So nothing is lost in a crash, a subscriber of logical replication gets
//! both columns as they are, and no process with more rights than whoever writes has any part in it.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::{self, Datum};

use super::texts::text;
use crate::pg::catalogs::attribute;
use crate::pg::encoding;
use crate::pg::errors::{raise, raise_hint};

/// As in `src/include/commands/trigger.h`.
const UPDATE: u32 = 2;
const OPERATION: u32 = 3;
const ROW: u32 = 4;
const BEFORE: u32 = 8;
const TIMING: u32 = 0x18;

/// `laser_forget_embedding(text_column, embedding_column [, model]) -> trigger`, before an update of each row: takes away the
/// embedding of a text that changes, unless the statement sets it as well. The model is for `laser_embed_table`.
///
/// # Safety
/// Called by the fmgr.
pub unsafe fn forget_embedding(fcinfo: pg_sys::FunctionCallInfo) -> Datum {
    // SAFETY: a call of the server; one by a trigger has a `TriggerData` as its context, whose tuples, relation and
    // arguments live as long as the call.
    unsafe {
        let context = (*fcinfo).context.cast::<pg_sys::TriggerData>();
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            raise(
                Code::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                "laser_forget_embedding() is called by triggers only",
            );
        }
        let (data, trigger) = (&*context, &*(*context).tg_trigger);
        let event = data.tg_event;
        let fits = event & OPERATION == UPDATE && event & ROW != 0 && event & TIMING == BEFORE;
        if !fits || !(2..=3).contains(&trigger.tgnargs) {
            raise_hint(
                Code::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
                "laser_forget_embedding() is for triggers before an update of each row, with two names of columns and one of a model",
                "laser_keep_embedded() makes them.",
            );
        }
        let description = (*data.tg_relation).rd_att;
        let arguments = std::slice::from_raw_parts(trigger.tgargs, 2);
        let text = column(data.tg_relation, description, arguments[0]);
        let embedding = column(data.tg_relation, description, arguments[1]);
        let (old, new) = (
            Row::of(data.tg_trigtuple, description),
            Row::of(data.tg_newtuple, description),
        );
        let stale = !new.is_null(embedding)
            && new.equals(&old, embedding, description)
            && !new.equals(&old, text, description);
        if !stale {
            return Datum::from(data.tg_newtuple);
        }
        let (mut column, mut null, mut is_null) = (embedding as i32 + 1, Datum::from(0), true);
        // Raw pointers, which become constant ones where it takes those, from PostgreSQL 18 on.
        let row = pg_sys::heap_modify_tuple_by_cols(
            data.tg_newtuple,
            description,
            1,
            &raw mut column,
            &raw mut null,
            &raw mut is_null,
        );
        Datum::from(row)
    }
}

/// The place of a column among a table's, from 0.
///
/// # Safety
/// The relation is open, the description its own; the name is a C string.
unsafe fn column(
    relation: pg_sys::Relation,
    description: pg_sys::TupleDesc,
    name: *const c_char,
) -> usize {
    // SAFETY: by contract.
    unsafe {
        let number = pg_sys::SPI_fnumber(description, name);
        if number <= 0 {
            let table = CStr::from_ptr((*(*relation).rd_rel).relname.data.as_ptr());
            raise_hint(
                Code::ERRCODE_UNDEFINED_COLUMN,
                format!(
                    "column \"{}\" of table \"{}\" does not exist, but a trigger of laser_keep_embedded() uses it",
                    encoding::shown(name),
                    encoding::shown(table.as_ptr())
                ),
                "Drop the trigger, and call laser_keep_embedded() again with the columns as they are named now.",
            );
        }
        let column = number as usize - 1;
        // It may have become one since the trigger was made: such a column is computed after all triggers.
        if attribute(description, column).attgenerated != 0 {
            raise_hint(
                Code::ERRCODE_INVALID_COLUMN_REFERENCE,
                format!(
                    "column \"{}\" of table \"{}\" is generated, so that no trigger sees it change",
                    encoding::shown(name),
                    encoding::shown((*(*relation).rd_rel).relname.data.as_ptr())
                ),
                "Drop the trigger that laser_keep_embedded() has made, or have an ordinary column of that name.",
            );
        }
        column
    }
}

/// The values of a row.
struct Row {
    values: Vec<Datum>,
    nulls: Vec<bool>,
}

impl Row {
    /// # Safety
    /// The tuple is one of the description, and outlives the result.
    unsafe fn of(tuple: pg_sys::HeapTuple, description: pg_sys::TupleDesc) -> Self {
        // SAFETY: by contract; both arrays have a place for each column.
        unsafe {
            let columns = (*description).natts as usize;
            let mut row = Self {
                values: vec![Datum::from(0); columns],
                nulls: vec![true; columns],
            };
            pg_sys::heap_deform_tuple(
                tuple,
                description,
                row.values.as_mut_ptr(),
                row.nulls.as_mut_ptr(),
            );
            row
        }
    }

    fn is_null(&self, column: usize) -> bool {
        self.nulls[column]
    }

    /// Whether a column has the same bytes in two rows, compressed or moved out of line or not.
    ///
    /// # Safety
    /// The description is that of both rows.
    unsafe fn equals(&self, other: &Self, column: usize, description: pg_sys::TupleDesc) -> bool {
        if self.nulls[column] || other.nulls[column] {
            return self.nulls[column] == other.nulls[column];
        }
        // SAFETY: by contract; values that are not null are of the column's type.
        unsafe {
            let attribute = attribute(description, column);
            let (by_value, length) = (attribute.attbyval, attribute.attlen);
            let (own, others) = (self.values[column], other.values[column]);
            let bytes = |value: Datum| match usize::try_from(length) {
                Ok(length) => std::slice::from_raw_parts(value.cast_mut_ptr::<u8>(), length),
                Err(_) => text(value),
            };
            match by_value {
                true => own.value() == others.value(),
                false => bytes(own) == bytes(others),
            }
        }
    }
}
