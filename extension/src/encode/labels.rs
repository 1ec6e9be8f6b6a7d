//! The model of a column of embeddings: a security label.
//!
//! `SECURITY LABEL FOR laser ON COLUMN t.m IS 'model fingerprint'` says which model has made the
//! embeddings of a column. The server keeps such labels for whoever registers as a provider: it lets only
//! the owner of the table set them, gives them up with the column, follows its names, and pg_dump has
//! them, for a single table as well. A catalogue of the extension's own would have to do each of these.
#![allow(unsafe_code)]

pub use laser_model::base::hex;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString, c_char};

use laser_protocol::valid_model_name;
use pgrx::{PgSqlErrorCode as Code, pg_extern, pg_guard, pg_sys};

use super::embed::{check_privilege, describe_model, model_name};
use crate::pg::catalogs;
use crate::pg::encoding::{name, to_server};
use crate::pg::errors::{raise, raise_hint};
use crate::pg::interrupts::pause;

const PROVIDER: &CStr = c"laser";

/// What a label says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Label {
    /// Name of the model.
    pub model: String,
    /// Its fingerprint in hexadecimal, if the label has one.
    pub fingerprint: Option<String>,
}

impl Label {
    /// As it is written, if that is a label.
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let model = words.next().filter(|name| valid_model_name(name))?;
        let fingerprint = words.next();
        let hexadecimal = |word: &str| {
            word.len() == 64 && word.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        (words.next().is_none() && fingerprint.is_none_or(hexadecimal)).then(|| Self {
            model: model.to_owned(),
            fingerprint: fingerprint.map(str::to_owned),
        })
    }
}

/// A label as it is written, which [`Label::parse`] reads.
pub fn written(model: &str, fingerprint: Option<&str>) -> String {
    match fingerprint {
        Some(fingerprint) => format!("{model} {fingerprint}"),
        None => model.to_owned(),
    }
}

/// Registers laser as a provider of labels.
pub fn init() {
    // SAFETY: called once, while the library is loaded; the name is a constant.
    unsafe { pg_sys::register_label_provider(PROVIDER.as_ptr(), Some(check)) };
}

/// A column as the server's catalogs name it.
fn address(table: pg_sys::Oid, column: i16) -> pg_sys::ObjectAddress {
    pg_sys::ObjectAddress {
        classId: pg_sys::RelationRelationId,
        objectId: table,
        objectSubId: i32::from(column),
    }
}

/// The label of a column, if it has one.
pub fn of(table: pg_sys::Oid, column: i16) -> Option<Label> {
    let object = address(table, column);
    // SAFETY: a look-up in a catalogue; the result is a new C string, or null.
    unsafe {
        let label = pg_sys::GetSecurityLabel(&object, PROVIDER.as_ptr());
        (!label.is_null())
            .then(|| CStr::from_ptr(label).to_str().ok())
            .flatten()
            .and_then(Label::parse)
    }
}

/// Pages of the catalogue and its index that a search for the labels of a table reads, about.
const PAGES_OF_SEARCH: usize = 3;

/// The labels of the columns of many tables: from one pass over the catalogue, or from a search for each, whichever reads
/// fewer pages. Anybody's labels are in it, of whatever provider.
pub fn of_tables(tables: &[pg_sys::Oid]) -> HashMap<pg_sys::Oid, Vec<(i16, Label)>> {
    let mut found = HashMap::new();
    // SAFETY: the catalogue is open while it is read.
    unsafe {
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let catalog = pg_sys::table_open(pg_sys::SecLabelRelationId, lock);
        let main = pg_sys::ForkNumber::MAIN_FORKNUM;
        let pages = pg_sys::RelationGetNumberOfBlocksInFork(catalog, main) as usize;
        if pages > PAGES_OF_SEARCH * tables.len() {
            for table in tables {
                scan(catalog, Some(*table), &mut found);
            }
        } else {
            scan(catalog, None, &mut found);
            let tables: HashSet<_> = tables.iter().copied().collect();
            found.retain(|table, _| tables.contains(table));
        }
        pg_sys::table_close(catalog, lock);
    }
    found
}

/// Adds the labels of the columns of a table, or of all, to those found before.
///
/// # Safety
/// `catalog` is pg_seclabel, open.
unsafe fn scan(
    catalog: pg_sys::Relation,
    table: Option<pg_sys::Oid>,
    found: &mut HashMap<pg_sys::Oid, Vec<(i16, Label)>>,
) {
    const COLUMNS: usize = pg_sys::Natts_pg_seclabel as usize;
    let equals = |column: u32, oid: pg_sys::Oid| {
        let mut key = pg_sys::ScanKeyData::default();
        // SAFETY: fills in a key for a column of type oid.
        unsafe {
            pg_sys::ScanKeyInit(
                &raw mut key,
                column as i16,
                pg_sys::BTEqualStrategyNumber as u16,
                pg_sys::F_OIDEQ.into(),
                oid.into(),
            );
        }
        key
    };
    let mut keys: Vec<_> = table
        .map(|table| {
            [
                equals(pg_sys::Anum_pg_seclabel_objoid, table),
                equals(
                    pg_sys::Anum_pg_seclabel_classoid,
                    pg_sys::RelationRelationId,
                ),
            ]
        })
        .into_iter()
        .flatten()
        .collect();
    // SAFETY: by contract; rows are read before the next one is fetched, none of their columns is null, and the last two are
    // texts. The keys live as long as the scan.
    unsafe {
        let scan = pg_sys::systable_beginscan(
            catalog,
            pg_sys::SecLabelObjectIndexId.into(),
            table.is_some(),
            std::ptr::null_mut(),
            keys.len() as i32,
            keys.as_mut_ptr(),
        );
        loop {
            pause();
            let row = pg_sys::systable_getnext(scan);
            if row.is_null() {
                break;
            }
            let (mut values, mut nulls) = ([pg_sys::Datum::from(0); COLUMNS], [true; COLUMNS]);
            let description = (*catalog).rd_att;
            pg_sys::heap_deform_tuple(row, description, values.as_mut_ptr(), nulls.as_mut_ptr());
            let [table, class, column, provider, label] = values;
            let oid = |value: pg_sys::Datum| pg_sys::Oid::from(value.value() as u32);
            let text = |value: pg_sys::Datum| {
                CStr::from_ptr(pg_sys::text_to_cstring(value.cast_mut_ptr()))
            };
            if oid(class) == pg_sys::RelationRelationId
                && text(provider) == PROVIDER
                && let Some(label) = text(label).to_str().ok().and_then(Label::parse)
            {
                let of_table = found.entry(oid(table)).or_default();
                of_table.push((column.value() as i16, label));
            }
        }
        pg_sys::systable_endscan(scan);
    }
}

/// Called by the server for a new label, of which it has checked who sets it; null takes it away.
#[pg_guard]
unsafe extern "C-unwind" fn check(object: *const pg_sys::ObjectAddress, label: *const c_char) {
    // SAFETY: the server passes an object that it has locked, and a C string or null.
    unsafe {
        let object = &*object;
        if object.classId != pg_sys::RelationRelationId || object.objectSubId == 0 {
            raise_hint(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "laser has labels for columns only",
                "SECURITY LABEL FOR laser ON COLUMN table.column IS 'model';",
            );
        }
        if !label.is_null()
            && CStr::from_ptr(label)
                .to_str()
                .ok()
                .and_then(Label::parse)
                .is_none()
        {
            raise_hint(
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                "invalid label of a column of embeddings",
                "A label is the name of a model, and after a space, if it is known, its fingerprint: \
                 both are in view laser_models.",
            );
        }
        // Plans have been checked against the old label.
        pg_sys::CacheInvalidateRelcacheByRelid(object.objectId);
    }
}

/// The label of a column; null if it has none.
#[pg_extern(sql = "")]
fn laser_column_label(table: pg_sys::Oid, attribute: i16) -> Option<String> {
    of(table, attribute).map(|label| written(&label.model, label.fingerprint.as_deref()))
}

/// Gives a column a label as `SECURITY LABEL` does, whatever name its table has by now.
#[pg_extern(sql = "")]
fn laser_label_column(table: pg_sys::Oid, attribute: i16, label: &[u8]) {
    // No text of the server has a zero.
    let label = CString::new(label).unwrap_or_default();
    let object = address(table, attribute);
    let may = || {
        // SAFETY: plain questions to the server. A column that was dropped has no type.
        let (kind, column) = unsafe {
            let kind = pg_sys::get_rel_relkind(table) as u8;
            (kind, pg_sys::get_atttype(table, attribute))
        };
        let is_table =
            [pg_sys::RELKIND_RELATION, pg_sys::RELKIND_PARTITIONED_TABLE].contains(&kind);
        if attribute <= 0 || !is_table || column == pg_sys::InvalidOid || !catalogs::owns(table) {
            raise(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                "only the owner of a table can label its columns".to_owned(),
            );
        }
    };
    // SAFETY: the server raises an error, or does nothing.
    unsafe {
        let name = c"laser_label_column()".as_ptr();
        pg_sys::PreventCommandIfReadOnly(name);
        pg_sys::PreventCommandIfParallelMode(name);
    }
    // Before anything is locked: nobody holds up a table of others.
    may();
    // SAFETY: a relation that was there; the label is a C string, and the object's column exists, under the lock.
    unsafe {
        lock(table);
        may();
        check(&object, label.as_ptr());
        pg_sys::SetSecurityLabel(&object, PROVIDER.as_ptr(), label.as_ptr());
    }
}

/// Keeps a table from being changed or dropped, and others that call this from it, until the transaction ends.
///
/// The second by a lock on the table as an object, which neither its maintenance nor its users take: whoever has such a table
/// under the lock of an UPDATE, and waits for its maintenance, may already be waited for by that.
pub fn lock(table: pg_sys::Oid) {
    // SAFETY: locks of this transaction.
    unsafe {
        pg_sys::LockRelationOid(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let lock = pg_sys::ShareUpdateExclusiveLock as pg_sys::LOCKMODE;
        pg_sys::LockDatabaseObject(pg_sys::RelationRelationId, table, 0, lock);
    }
}

/// The label for what a model embeds; an empty name means that in `laser.model`.
#[pg_extern(sql = "")]
fn laser_model_label(model: &[u8]) -> String {
    let model = name(model);
    let named = (!model.is_empty()).then_some(&*model);
    // Before it is loaded.
    check_privilege(&model_name(named));
    let model = describe_model(named);
    written(&to_server(&model.name), Some(&hex(&model.fingerprint)))
}
