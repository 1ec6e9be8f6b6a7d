//! INSERT, COPY, and UPDATE where it is not HOT.
#![allow(unsafe_code)]

use laser_index::IndexError;
use laser_index::maintain::{self, Merge, Plan};
use laser_index::meta::Meta;
use laser_index::pending;
use pgrx::pg_sys::{self, Datum};

use super::build::{build_options, keep, pack, pages_of};
use super::element::{self, Element};
use super::errors::{OrReport, report};
use super::options;
use super::pages::{MergeLock, RelationStore};
use super::undecided;

/// `aminsert`: appends to the pending list. Nothing is locked while a text is embedded.
#[pgrx::pg_guard]
#[allow(clippy::too_many_arguments)] // the signature is the server's
pub unsafe extern "C-unwind" fn insert(
    index: pg_sys::Relation,
    values: *mut Datum,
    isnull: *mut bool,
    tid: pg_sys::ItemPointer,
    _heap: pg_sys::Relation,
    _unique: pg_sys::IndexUniqueCheck::Type,
    _unchanged: bool,
    _info: *mut pg_sys::IndexInfo,
) -> bool {
    // SAFETY: the server passes an open index and one value.
    unsafe {
        if *isnull {
            return false;
        }
        let store = RelationStore::new(index);
        let mut parameters = Meta::read(&store).or_report().parameters;
        if undecided::is_undecided(&parameters) {
            let dims = element::with_vector(element::of(&parameters), *values, <[f32]>::len);
            parameters = undecided::decide(&store, dims);
        }
        let codec = parameters.codec;
        let mut stored = vec![0; codec.len()];
        let indexable = match element::of(&parameters) {
            Element::Text => {
                let text = element::text(*values);
                let x = element::embed(&parameters, &[&text]);
                codec.encode(&x, &mut stored)
            }
            element => element::with_vector(element, *values, |x| codec.encode(x, &mut stored)),
        };
        if !indexable.or_report() {
            return false;
        }
        let pages = pending::append(&store, &codec, pack(tid), &stored).or_report();
        if let Some(pages) = pages
            && pages > pages_of(options::of(index).pending_list_limit).max(1)
            && let Some(lock) = MergeLock::attempt(index)
        {
            let options = build_options(&parameters, 0);
            let how = Merge {
                plan: Plan::Insert,
                options: &options,
            };
            match maintain::merge(&store, &how, |entry, built| keep(index, entry, built)) {
                Ok(_) => {}
                // The row is in the index already; merging can wait until there is room.
                Err(error @ IndexError::Io { .. }) => {
                    pgrx::warning!("could not merge the pending list of a laser index: {error}");
                }
                Err(error) => report(error),
            }
            drop(lock);
        }
        false
    }
}
