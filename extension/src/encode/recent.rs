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

use pgrx::pg_sys;

use super::embed::{self, Tell};
use super::embedded::Embedded;
use super::guc;
use crate::memory::or_raise;

/// Embeddings that are kept, and bytes of their texts.
const MOST: usize = 16;
const MOST_BYTES: usize = 2 << 20;

/// One text's embedding.
#[derive(Debug)]
pub struct Known {
    /// The embedding.
    pub data: Vec<f32>,
    /// Fingerprint of the model that made it.
    pub fingerprint: [u8; 32],
}

struct Entry {
    /// As the encoder process takes it.
    model: String,
    text: Vec<u8>,
    /// Whether the text was longer than the model reads.
    cut: bool,
    known: Rc<Known>,
}

struct Recent {
    /// Start of the statement that they belong to.
    statement: pg_sys::TimestampTz,
    /// What was asked for last comes first.
    entries: VecDeque<Entry>,
}

thread_local! {
    static RECENT: RefCell<Recent> = const {
        RefCell::new(Recent { statement: i64::MIN, entries: VecDeque::new() })
    };
}

/// What is kept for this statement. `look` must not call the server.
fn with<R>(look: impl FnOnce(&mut VecDeque<Entry>) -> R) -> R {
    // SAFETY: reads a variable of the session.
    let statement = unsafe { pg_sys::GetCurrentStatementStartTimestamp() };
    RECENT.with_borrow_mut(|recent| {
        if recent.statement != statement {
            recent.statement = statement;
            recent.entries.clear();
        }
        look(&mut recent.entries)
    })
}

fn recall(model: &str, text: &[u8], tell: Tell) -> Option<Rc<Known>> {
    with(|entries| {
        let at = entries
            .iter()
            .position(|entry| entry.text == text && entry.model == model)?;
        // A text that was cut under another value of the setting is refused by whoever embeds it.
        if tell != Tell::Nothing && entries[at].cut && guc::LONG_TEXT.get() == guc::LongText::Error
        {
            return None;
        }
        let entry = entries.remove(at)?;
        let known = Rc::clone(&entry.known);
        entries.push_front(entry);
        Some(known)
    })
}

fn keep(model: &str, text: &[u8], cut: bool, known: &Rc<Known>) {
    if text.len() > MOST_BYTES {
        return;
    }
    let text = or_raise(laser_memory::copied(text));
    with(|entries| {
        entries.retain(|entry| {
            entry.model != model
                || (entry.known.fingerprint == known.fingerprint && entry.text != text)
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
            text,
            cut,
            known: Rc::clone(known),
        });
    });
}

/// The embedding of a text by a model (`None`: `laser.model`), made once a statement as long as few
/// others are asked for meanwhile. Raises SQL errors as [`embed::embed_texts`] does.
pub fn embed_once(model: Option<&str>, text: &[u8], tell: Tell) -> Rc<Known> {
    once(&embed::model_name(model), text, tell)
}

fn once(name: &str, text: &[u8], tell: Tell) -> Rc<Known> {
    if let Some(known) = recall(name, text, tell) {
        return known;
    }
    let (embedded, cut) = embed::embed_by(name, &[text], tell);
    let known = Rc::new(Known {
        fingerprint: embedded.fingerprint,
        data: embedded.data,
    });
    keep(name, text, cut.texts > 0, &known);
    known
}

/// As [`embed_once`] with `laser.model` for two texts; both embeddings are of the same version of it. Texts that
/// the session may not be told of are cut in silence.
pub fn embed_pair(a: &[u8], b: &[u8], tell: [Tell; 2]) -> (Rc<Known>, Rc<Known>) {
    let name = embed::model_name(None);
    let known = match (recall(&name, a, tell[0]), recall(&name, b, tell[1])) {
        (None, None) if tell[0] == tell[1] => None,
        (None, None) => Some((once(&name, a, tell[0]), once(&name, b, tell[1]))),
        (Some(a), Some(b)) => Some((a, b)),
        (Some(known), None) => Some((known, once(&name, b, tell[1]))),
        (None, Some(known)) => Some((once(&name, a, tell[0]), known)),
    };
    if let Some((a, b)) = known
        && a.fingerprint == b.fingerprint
    {
        return (a, b);
    }
    // Of one that may not be told of nothing is, and of the other something was.
    let told = match tell[0] == tell[1] {
        true => tell[0],
        false => Tell::Nothing,
    };
    let (embedded, cut) = embed::embed_by(&name, &[a, b], told);
    let [x, y] = [0, 1].map(|i| known_row(&embedded, i));
    keep(&name, a, cut.texts > 0, &x);
    keep(&name, b, cut.texts > 0, &y);
    (x, y)
}

fn known_row(embedded: &Embedded, i: usize) -> Rc<Known> {
    Rc::new(Known {
        data: or_raise(laser_memory::copied(embedded.row(i))),
        fingerprint: embedded.fingerprint,
    })
}

/// Name and fingerprint of the model that has made an embedding with so many dimensions and these
/// components, if the statement remembers it.
pub fn origin(dimensions: usize, is: impl Fn(usize, f32) -> bool) -> Option<(String, [u8; 32])> {
    with(|entries| {
        entries.iter().find_map(|entry| {
            let made = &entry.known.data;
            let same =
                made.len() == dimensions && made.iter().enumerate().all(|(at, x)| is(at, *x));
            same.then(|| (entry.model.clone(), entry.known.fingerprint))
        })
    })
}

/// Forgets all of them: a model was found to be another than it was.
pub fn forget() {
    with(VecDeque::clear);
}
