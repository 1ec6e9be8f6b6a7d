//! Which model an encoder process loads, noted in the same file as what it works on ([`crate::work`]).
//!
//! Where a library gets no memory, or does not survive a file, the process ends, and the next one ends by whoever asks
//! for that model again: all sessions' texts wait for a process that is always about to start. A model under whose
//! loading processes have ended several times in a row is refused for a while, twice as long after each further time.
//! The encoders of one model for different languages count as one: they lie in one folder, and end processes alike. That
//! one of them can be loaded says nothing of another, so what is forgotten then is what that one has ended by.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::model_and_language;
use crate::work::{self, DEATHS, Hash, LOADS_AT};

/// How long a model is refused, at first and at most.
const REFUSED: (u64, u64) = (30, 600);
/// Models that are remembered.
const MOST: usize = 64;

/// What stands in front of a model while it is loaded; another number for each layout of the record.
const LOADING: u64 = 0x3253_4441_4f4c_0000;
/// What the number of models has beside it, for the same reason.
const LAYOUT: u64 = 2 << 32;
const MODEL_AT: usize = 8;
const COUNT_AT: usize = MODEL_AT + MODEL_BYTES;
const LOADS: usize = COUNT_AT + 8;
/// The model, deaths (u64), time of the last one (u64).
const LOAD_BYTES: usize = MODEL_BYTES + 16;
const BYTES: usize = LOADS + MOST * LOAD_BYTES;

/// A model by its hashes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Model {
    /// Of the name of its folder.
    folder: Hash,
    /// Of its whole name, with the language.
    name: Hash,
}

const MODEL_BYTES: usize = 2 * size_of::<Hash>();

impl Model {
    fn of(name: &str) -> Self {
        Self {
            folder: work::hash(model_and_language(name).0, ""),
            name: work::hash(name, ""),
        }
    }

    fn to_bytes(self) -> [u8; MODEL_BYTES] {
        let mut bytes = [0; MODEL_BYTES];
        bytes[..size_of::<Hash>()].copy_from_slice(&self.folder);
        bytes[size_of::<Hash>()..].copy_from_slice(&self.name);
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let hash = |at: usize| *bytes[at..].first_chunk().expect("a hash");
        Self {
            folder: hash(0),
            name: hash(size_of::<Hash>()),
        }
    }
}

/// Notes what is loaded; one model at a time.
pub struct LoadNote(Option<File>);

impl LoadNote {
    /// Before a model is loaded.
    pub fn begin(&self, model: &str) {
        let Some(file) = &self.0 else { return };
        let mut bytes = LOADING.to_le_bytes().to_vec();
        bytes.extend_from_slice(&Model::of(model).to_bytes());
        let _ = file.write_all_at(&bytes, LOADS_AT);
    }

    /// Afterwards, however it went.
    pub fn end(&self) {
        if let Some(file) = &self.0 {
            let _ = file.write_all_at(&[0; MODEL_AT], LOADS_AT);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Load {
    /// The last one of its folder that a process has ended by.
    model: Model,
    deaths: u64,
    seconds: u64,
}

impl Load {
    /// Seconds for which it is still refused, never more than it was at first, wherever the clock was then.
    fn refused_for(&self, now: u64) -> u64 {
        let Some(further) = self.deaths.checked_sub(u64::from(DEATHS)) else {
            return 0;
        };
        let longer = REFUSED.0.saturating_mul(1 << further.min(32));
        let longer = longer.min(REFUSED.1);
        let end = self.seconds.saturating_add(longer);
        end.saturating_sub(now).min(longer)
    }
}

/// Models under whose loading processes have ended.
pub struct Loads {
    file: Option<File>,
    /// One for each folder, in the order of their last deaths.
    known: Vec<Load>,
}

impl Loads {
    /// Continues the record in `file`: what is noted there as being loaded is what the last process ended by. Without a
    /// file nothing is noted.
    pub fn open(file: Option<&File>) -> (LoadNote, Self) {
        let note = LoadNote(file.and_then(|file| file.try_clone().ok()));
        let mut loads = Self {
            file: file.and_then(|file| file.try_clone().ok()),
            known: Vec::new(),
        };
        let mut bytes = [0; BYTES];
        let Some(file) = &loads.file else {
            return (note, loads);
        };
        // A record that nobody has written to yet is shorter.
        if file.read_exact_at(&mut bytes, LOADS_AT).is_ok() {
            loads.known = read(&bytes);
            if number(&bytes, 0) == LOADING {
                let model = Model::from_bytes(&bytes[MODEL_AT..COUNT_AT]);
                loads.count(model, work::now());
            }
        }
        // It counts once: this process may end by something else before it loads anything.
        note.end();
        loads.write();
        (note, loads)
    }

    fn count(&mut self, model: Model, now: u64) {
        let same = |load: &Load| load.model.folder == model.folder;
        let before = self.known.iter().position(same);
        let deaths = before.map_or(0, |at| self.known.remove(at).deaths);
        if self.known.len() == MOST {
            // None that is refused for others that ended a process once; of these the one whose last death was the longest
            // ago, so that none that ends processes now is forgotten for what did so before.
            let not_refused = |load: &Load| load.deaths < u64::from(DEATHS);
            let oldest = self.known.iter().position(not_refused);
            self.known.remove(oldest.unwrap_or(0));
        }
        self.known.push(Load {
            model,
            deaths: deaths.saturating_add(1),
            seconds: now,
        });
    }

    fn write(&self) {
        let Some(file) = &self.file else { return };
        let mut bytes = (LAYOUT | self.known.len() as u64).to_le_bytes().to_vec();
        for load in &self.known {
            bytes.extend_from_slice(&load.model.to_bytes());
            bytes.extend_from_slice(&load.deaths.to_le_bytes());
            bytes.extend_from_slice(&load.seconds.to_le_bytes());
        }
        bytes.resize(BYTES - COUNT_AT, 0);
        let _ = file.write_all_at(&bytes, LOADS_AT + COUNT_AT as u64);
    }

    /// For how long a model is still refused.
    pub fn refused(&self, model: &str) -> Option<Duration> {
        let folder = Model::of(model).folder;
        let load = self.known.iter().find(|load| load.model.folder == folder)?;
        let rest = load.refused_for(work::now());
        (rest > 0).then(|| Duration::from_secs(rest))
    }

    /// A model was loaded, or could not be, and the process lives.
    pub fn clear(&mut self, model: &str) {
        let model = Model::of(model);
        let before = self.known.len();
        self.known.retain(|load| load.model != model);
        if self.known.len() < before {
            self.write();
        }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"))
}

fn read(bytes: &[u8; BYTES]) -> Vec<Load> {
    let count = number(bytes, COUNT_AT);
    // What an older version has left is of another layout.
    let count = if count & LAYOUT == LAYOUT {
        count & !LAYOUT
    } else {
        0
    };
    let entries = bytes[LOADS..].chunks_exact(LOAD_BYTES).take(count as usize);
    let load = |entry: &[u8]| Load {
        model: Model::from_bytes(entry),
        deaths: number(entry, MODEL_BYTES),
        seconds: number(entry, MODEL_BYTES + 8),
    };
    entries.map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_processes_again_and_again_is_refused() {
        let file = tempfile::tempfile().unwrap();
        for death in 0..5 {
            let (note, loads) = Loads::open(Some(&file));
            let rest = loads.refused("bad").map(|rest| rest.as_secs());
            match death {
                0..3 => assert_eq!(rest, None, "{death}"),
                3 => assert!(rest.is_some_and(|s| (25..=30).contains(&s)), "{rest:?}"),
                _ => assert!(rest.is_some_and(|s| (55..=60).contains(&s)), "{rest:?}"),
            }
            assert_eq!(loads.refused("good"), None);
            note.begin("good");
            note.end();
            note.begin("bad");
        }
        let (_, mut loads) = Loads::open(Some(&file));
        assert!(loads.refused("bad").is_some());
        loads.clear("bad");
        assert_eq!(loads.refused("bad"), None);
        // What other processes end by is nobody's fault here, and what was cleared stays so.
        let (note, loads) = Loads::open(Some(&file));
        assert_eq!(loads.refused("bad"), None);
        note.begin("bad");
        assert_eq!(Loads::open(Some(&file)).1.refused("bad"), None);
    }

    #[test]
    fn what_is_noted_counts_once() {
        let file = tempfile::tempfile().unwrap();
        Loads::open(Some(&file)).0.begin("model");
        for _ in 0..4 {
            let (_, loads) = Loads::open(Some(&file));
            assert_eq!(loads.refused("model"), None);
            assert_eq!(loads.known[0].deaths, 1);
        }
    }

    #[test]
    fn as_many_are_remembered_as_there_is_room_for() {
        let file = tempfile::tempfile().unwrap();
        for _ in 0..3 {
            for model in 0..MOST + 4 {
                Loads::open(Some(&file)).0.begin(&format!("model {model}"));
            }
        }
        let (_, loads) = Loads::open(Some(&file));
        assert_eq!(loads.known.len(), MOST);
        assert!(Loads::open(None).1.refused("model 1").is_none());
    }

    #[test]
    fn encoders_of_one_model_count_as_one() {
        let file = tempfile::tempfile().unwrap();
        for language in 0..30 {
            let (note, loads) = Loads::open(Some(&file));
            assert_eq!(loads.refused("pair@xx").is_some(), language >= 3);
            note.begin(&format!("pair@l{language}"));
        }
    }

    #[test]
    fn an_encoder_that_can_be_loaded_does_not_excuse_another_of_its_model() {
        let file = tempfile::tempfile().unwrap();
        for _ in 0..3 {
            let (note, mut loads) = Loads::open(Some(&file));
            note.begin("pair@en");
            note.end();
            loads.clear("pair@en");
            note.begin("pair@de");
        }
        let (_, mut loads) = Loads::open(Some(&file));
        loads.clear("pair@en");
        assert!(loads.refused("pair@de").is_some());
        assert!(loads.refused("pair@en").is_some());
        loads.clear("pair@de");
        assert!(loads.refused("pair@de").is_none());
    }

    #[test]
    fn two_in_turn_are_refused_where_all_places_are_taken() {
        let file = tempfile::tempfile().unwrap();
        for model in 0..MOST {
            for _ in 0..2 {
                Loads::open(Some(&file)).0.begin(&format!("model {model}"));
            }
        }
        for _ in 0..3 {
            for model in ["bad", "worse"] {
                Loads::open(Some(&file)).0.begin(model);
            }
        }
        let (_, loads) = Loads::open(Some(&file));
        assert!(loads.refused("bad").is_some());
        assert!(loads.refused("worse").is_some());
    }

    #[test]
    fn others_do_not_make_a_refused_model_be_forgotten() {
        let file = tempfile::tempfile().unwrap();
        for _ in 0..3 {
            Loads::open(Some(&file)).0.begin("bad");
        }
        for model in 0..3 * MOST {
            Loads::open(Some(&file)).0.begin(&format!("model {model}"));
        }
        assert!(Loads::open(Some(&file)).1.refused("bad").is_some());
    }

    #[test]
    fn a_clock_that_was_ahead_refuses_nothing_for_long() {
        let load = Load {
            model: Model::default(),
            deaths: 3,
            seconds: 1 << 40,
        };
        assert_eq!(load.refused_for(1), 30);
    }

    #[test]
    fn both_records_share_a_file() {
        let file = tempfile::tempfile().unwrap();
        for _ in 0..4 {
            let open = || work::Record::open(Some(file.try_clone().unwrap()), false);
            let (record, _) = open();
            let (note, _) = Loads::open(Some(&file));
            record.begin(0, std::iter::once(work::hash("m", "text")));
            note.begin("m");
        }
        assert!(work::was_working(&file));
        let (_, mut suspicion) = work::Record::open(Some(file.try_clone().unwrap()), false);
        assert!(suspicion.is_culprit(&work::hash("m", "text")));
        assert!(Loads::open(Some(&file)).1.refused("m").is_some());
    }
}
