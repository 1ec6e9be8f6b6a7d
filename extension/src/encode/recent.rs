//! Embeddings that the session has made for the statement that it is running.
//!
//! A statement asks for the same text again and again: the text that it searches for is an operand
//! beside every row, in each expression that has it, and in each scan. What was asked for last is kept
//! here until the next statement, so that it is embedded once.
//!
//! Invariants:
//! - Nothing outlives the statement: whatever has become of the model, the next one asks again.
//! - Embeddings that are compared with each other are of one model, and of one version of it.
//! - What is kept is bounded, whatever the statement embeds.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use laser_protocol::Role;
use pgrx::pg_sys;

use super::embed::{self, TruncationReport};
use super::embedded::Embedded;
use super::error::CallError;
use super::guc;
use crate::pg::memory::or_raise;

/// Embeddings that are kept, and bytes of their texts.
const MOST: usize = 16;
const MOST_BYTES: usize = 2 << 20;
/// Components that tell the beginning of an embedding from a vector that is like it by chance.
const LEAST_BEGINNING: usize = 8;

/// The embedding of one text, as cache and callers share it.
#[derive(Debug)]
pub struct CachedEmbedding {
    /// As many components as the model has dimensions.
    pub data: Vec<f32>,
    /// Fingerprint of the model that made it.
    pub fingerprint: [u8; 32],
}

struct Entry {
    /// As the encoder process takes it.
    model: String,
    role: Role,
    text: Vec<u8>,
    /// Whether the text was longer than the model reads.
    cut: bool,
    embedding: Rc<CachedEmbedding>,
}

struct Recent {
    /// Start of the statement that they belong to.
    statement: pg_sys::TimestampTz,
    /// What was asked for last comes first.
    entries: VecDeque<Entry>,
    /// The first embeddings of arrays, with the names of their models: nobody asks for them again, but where the planner
    /// has them as constants they have an origin.
    of_arrays: VecDeque<(String, Rc<CachedEmbedding>)>,
}

thread_local! {
    static RECENT: RefCell<Recent> = const {
        RefCell::new(Recent {
            statement: i64::MIN,
            entries: VecDeque::new(),
            of_arrays: VecDeque::new(),
        })
    };
}

/// As [`with_all`], of single texts.
fn with<R>(look: impl FnOnce(&mut VecDeque<Entry>) -> R) -> R {
    with_all(|recent| look(&mut recent.entries))
}

/// What is kept for this statement. `look` must not call the server.
fn with_all<R>(look: impl FnOnce(&mut Recent) -> R) -> R {
    // SAFETY: reads a variable of the session.
    let statement = unsafe { pg_sys::GetCurrentStatementStartTimestamp() };
    RECENT.with_borrow_mut(|recent| {
        if recent.statement != statement {
            recent.statement = statement;
            recent.entries.clear();
            recent.of_arrays.clear();
        }
        look(recent)
    })
}

fn recall(
    model: &str,
    role: Role,
    text: &[u8],
    report: TruncationReport,
) -> Option<Rc<CachedEmbedding>> {
    with(|entries| {
        let at = entries
            .iter()
            .position(|entry| entry.text == text && entry.model == model && entry.role == role)?;
        // A text that was cut under another value of the setting is refused by whoever embeds it.
        if report != TruncationReport::Silent
            && entries[at].cut
            && guc::LONG_TEXT.get() == guc::LongText::Error
        {
            return None;
        }
        let entry = entries.remove(at)?;
        let known = Rc::clone(&entry.embedding);
        entries.push_front(entry);
        Some(known)
    })
}

fn keep(model: &str, role: Role, text: &[u8], cut: bool, known: &Rc<CachedEmbedding>) {
    if text.len() > MOST_BYTES {
        return;
    }
    let text = or_raise(laser_memory::copied(text));
    with(|entries| {
        entries.retain(|entry| {
            entry.model != model
                || (entry.embedding.fingerprint == known.fingerprint
                    && (entry.text != text || entry.role != role))
        });
        let mut bytes = text.len();
        let kept = entries.iter().take(MOST - 1).take_while(|entry| {
            bytes += entry.text.len();
            bytes <= MOST_BYTES
        });
        let kept = kept.count();
        entries.truncate(kept);
        entries.push_front(Entry {
            model: model.to_owned(),
            role,
            text,
            cut,
            embedding: Rc::clone(known),
        });
    });
}

/// The embedding of a text, which is what `role` says, by a model (`None`: `laser.model`), made once a statement as long as few
/// others are asked for meanwhile. Raises SQL errors as [`embed::embed_texts`] does.
pub fn embed_once(model: Option<&str>, role: Role, text: &[u8]) -> Rc<CachedEmbedding> {
    let name = embed::model_name(model);
    // Another role may have embedded it in this statement.
    embed::check_privilege(&name);
    once(&name, role, text, TruncationReport::Count)
}

fn once(name: &str, role: Role, text: &[u8], report: TruncationReport) -> Rc<CachedEmbedding> {
    if let Some(known) = recall(name, role, text, report) {
        return known;
    }
    let (embedded, cut) = embed::embed_by(name, role, &[text], report);
    let known = Rc::new(CachedEmbedding {
        fingerprint: embedded.fingerprint,
        data: embedded.data,
    });
    keep(name, role, text, cut > 0, &known);
    known
}

/// One of the two texts of a distance.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'t> {
    /// In the encoding of the database.
    pub text: &'t [u8],
    /// Whether it is embedded as a query, as a passage, or as it is.
    pub role: Role,
    /// What may be reported of it.
    pub report: TruncationReport,
}

/// As [`embed_once`] with `laser.model` for two texts; both embeddings are of the same version of it. Where the two
/// may not be reported alike, neither is.
pub fn embed_pair(operands: [Operand<'_>; 2]) -> (Rc<CachedEmbedding>, Rc<CachedEmbedding>) {
    let name = embed::model_name(None);
    embed::check_privilege(&name);
    let of = |operand: Operand<'_>| once(&name, operand.role, operand.text, operand.report);
    let [a, b] = operands;
    let alike = a.report == b.report && a.role == b.role;
    let known = operands.map(|operand| recall(&name, operand.role, operand.text, operand.report));
    let known = match known {
        [None, None] if alike => None,
        [a_known, b_known] => Some((
            a_known.unwrap_or_else(|| of(a)),
            b_known.unwrap_or_else(|| of(b)),
        )),
    };
    if let Some((a, b)) = known
        && a.fingerprint == b.fingerprint
    {
        return (a, b);
    }
    if a.role != b.role {
        // One of them may be from before the model was replaced.
        forget();
        let (a, b) = (of(a), of(b));
        if a.fingerprint != b.fingerprint {
            CallError::Replaced.raise();
        }
        return (a, b);
    }
    // Where one may not be reported, nothing is; the other one was reported when it was embedded by itself.
    let report = match alike {
        true => a.report,
        false => TruncationReport::Silent,
    };
    let (embedded, cut) = embed::embed_by(&name, a.role, &[a.text, b.text], report);
    let [x, y] = [0, 1].map(|i| cached_row(&embedded, i));
    keep(&name, a.role, a.text, cut > 0, &x);
    keep(&name, b.role, b.text, cut > 0, &y);
    (x, y)
}

fn cached_row(embedded: &Embedded, i: usize) -> Rc<CachedEmbedding> {
    Rc::new(CachedEmbedding {
        data: or_raise(laser_memory::copied(embedded.row(i))),
        fingerprint: embedded.fingerprint,
    })
}

/// Notes the first embedding of an array, by a model (`None`: `laser.model`).
pub fn note_array(model: Option<&str>, embedded: &Embedded) {
    if embedded.fingerprint == [0; 32] {
        return;
    }
    let (name, first) = (embed::model_name(model), cached_row(embedded, 0));
    with_all(|recent| {
        recent.of_arrays.truncate(MOST - 1);
        recent.of_arrays.push_front((name, first));
    });
}

/// Name and fingerprint of the model that has made an embedding of which these are the components, or the first
/// of them, if the statement remembers it.
pub fn origin(dimensions: usize, is: impl Fn(usize, f32) -> bool) -> Option<(String, [u8; 32])> {
    with_all(|recent| {
        let single = recent.entries.iter();
        let single = single.map(|entry| (&entry.model, &entry.embedding));
        let of_arrays = recent.of_arrays.iter().map(|(model, first)| (model, first));
        let mut found = single.chain(of_arrays).filter_map(|(model, embedding)| {
            let made = &embedding.data;
            let long_enough = made.len() == dimensions
                || made.len() > dimensions && dimensions >= LEAST_BEGINNING;
            let mut components = made.iter().take(dimensions).enumerate();
            let same = long_enough && components.all(|(at, x)| is(at, *x));
            same.then_some((model, embedding.fingerprint))
        });
        let (model, fingerprint) = found.next()?;
        // Models may give one embedding, as those that share a vocabulary of words for a text of one word.
        let is_one = found.all(|(_, other)| other == fingerprint);
        is_one.then(|| (model.clone(), fingerprint))
    })
}

/// Forgets all of them: a model was found to be another than it was.
pub fn forget() {
    with_all(|recent| {
        recent.entries.clear();
        recent.of_arrays.clear();
    });
}
