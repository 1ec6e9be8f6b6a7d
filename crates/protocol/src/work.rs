//! What an encoder process works on, noted where it outlives the process: who dies by a text is told
//! afterwards which it may have been.
//!
//! The record is a file without a name that the parent of the process keeps ([`Record`]). The process
//! notes the texts of a batch, and those that its threads tokenize, as hashes, before it looks at them,
//! and strikes them out afterwards. What the next process finds there was under work when the last one
//! died: these texts are suspects. Each of them runs alone once, which clears all but one. A text under
//! which the process dies again and again although nothing else is under work is a culprit, and refused
//! for a while.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Stands for a text under a model.
pub type Hash = [u8; 16];

/// Texts that a batch has at most.
pub const BATCH_TEXTS: usize = 8192;
/// Texts that a thread tokenizes at a time, at most.
pub const PIECE_TEXTS: usize = 64;
/// Threads beside the one that encodes batches, at most.
pub const THREADS: usize = 64;
/// How often a process may die under a text that runs alone, or while it loads a model, before that is refused. Somebody
/// may end the process by chance, so once is not enough.
pub(crate) const DEATHS: u32 = 3;
/// What a process counts for that hung: nobody stops one by chance for so long.
const HUNG: u32 = 2;
/// How long a culprit is refused.
const REFUSED: Duration = Duration::from_secs(600);

const MAGIC: u64 = 0x3157_5245_5341_4c00;
const COUNT: usize = size_of::<u64>();
const PIECE_BYTES: usize = COUNT + PIECE_TEXTS * size_of::<Hash>();
const BATCH_AT: usize = COUNT + THREADS * PIECE_BYTES;
const SUSPECTS_AT: usize = BATCH_AT + COUNT + BATCH_TEXTS * size_of::<Hash>();
/// Suspects and culprits at most.
const SUSPECTS: usize = 2 * BATCH_TEXTS;
/// Hash, deaths (u32), unused (u32), time of the last death (u64).
const SUSPECT_BYTES: usize = 32;
/// Where [`crate::loads`] has its part of the record.
pub(crate) const LOADS_AT: u64 = (SUSPECTS_AT + COUNT + SUSPECTS * SUSPECT_BYTES) as u64;

/// What stands for a text under a model in the record: the first 16 bytes of their BLAKE3 hash.
#[must_use]
pub fn hash(model: &str, text: &str) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(model.as_bytes()).update(&[0]);
    hasher.update(text.as_bytes());
    let mut hash = Hash::default();
    hash.copy_from_slice(&hasher.finalize().as_bytes()[..size_of::<Hash>()]);
    hash
}

/// Where a place begins: 0 is the batch, others are threads.
fn at(place: usize) -> u64 {
    let at = match place {
        0 => BATCH_AT,
        thread => COUNT + (thread - 1) * PIECE_BYTES,
    };
    at as u64
}

/// A suspect, or a culprit.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    hash: Hash,
    deaths: u32,
    seconds: u64,
}

/// Whether anything was under work when the last process that had this record ended.
#[must_use]
pub fn was_working(file: &File) -> bool {
    read(file).is_ok_and(|bytes| !noted(&bytes).is_empty())
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let len = SUSPECTS_AT + COUNT + SUSPECTS * SUSPECT_BYTES;
    let mut bytes = vec![0; len.min(file.metadata()?.len() as usize)];
    file.read_exact_at(&mut bytes, 0)?;
    bytes.resize(len, 0);
    Ok(bytes)
}

fn number(bytes: &[u8], at: usize) -> usize {
    let bytes = bytes[at..at + COUNT].try_into().expect("eight bytes");
    usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
}

/// The texts that are noted as under work.
fn noted(bytes: &[u8]) -> Vec<Hash> {
    if number(bytes, 0) as u64 != MAGIC {
        return Vec::new();
    }
    let mut found = Vec::new();
    for place in 0..=THREADS {
        let most = if place == 0 { BATCH_TEXTS } else { PIECE_TEXTS };
        let at = at(place) as usize;
        let count = number(bytes, at).min(most);
        let hashes = &bytes[at + COUNT..][..count * size_of::<Hash>()];
        found.extend(hashes.as_chunks::<{ size_of::<Hash>() }>().0);
    }
    found.sort_unstable();
    found.dedup();
    found
}

fn suspects(bytes: &[u8]) -> Vec<Suspect> {
    if number(bytes, 0) as u64 != MAGIC {
        return Vec::new();
    }
    let count = number(bytes, SUSPECTS_AT).min(SUSPECTS);
    let entries = &bytes[SUSPECTS_AT + COUNT..][..count * SUSPECT_BYTES];
    let entries = entries.chunks_exact(SUSPECT_BYTES).map(|entry| Suspect {
        hash: entry[..16].try_into().expect("sixteen bytes"),
        deaths: u32::from_le_bytes(entry[16..20].try_into().expect("four bytes")),
        seconds: u64::from_le_bytes(entry[24..32].try_into().expect("eight bytes")),
    });
    entries.filter(|entry| entry.hash != CLEARED).collect()
}

/// Stands for a suspect that was cleared.
const CLEARED: Hash = [0; 16];

pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// The record of a process. Notes of several threads go to places of their own.
pub struct Record {
    file: Option<File>,
}

/// Texts under which processes have died.
#[derive(Debug, Default)]
pub struct Suspicion {
    /// Those that have to run alone, and where they are noted.
    suspects: HashMap<Hash, usize>,
    /// Those that are refused, until then.
    culprits: HashMap<Hash, u64>,
}

impl Record {
    /// Continues the record in `file`; what is noted there as under work becomes suspect. `hung`: the
    /// last process was ended because it hung. Without a file nothing is noted.
    pub fn open(file: Option<File>, hung: bool) -> (Self, Suspicion) {
        let Some(file) = file.filter(|file| file.metadata().is_ok_and(|m| m.is_file())) else {
            return (Self { file: None }, Suspicion::default());
        };
        let bytes = match read(&file) {
            Ok(bytes) => bytes,
            Err(_) => return (Self { file: None }, Suspicion::default()),
        };
        let known = judge(suspects(&bytes), &noted(&bytes), hung, now());
        let mut start = vec![0; SUSPECTS_AT + COUNT];
        start[..COUNT].copy_from_slice(&MAGIC.to_le_bytes());
        start[SUSPECTS_AT..].copy_from_slice(&(known.len() as u64).to_le_bytes());
        let mut entries = Vec::with_capacity(known.len() * SUSPECT_BYTES);
        let mut suspicion = Suspicion::default();
        for (place, entry) in known.iter().enumerate() {
            entries.extend_from_slice(&entry.hash);
            entries.extend_from_slice(&entry.deaths.to_le_bytes());
            entries.extend_from_slice(&[0; 4]);
            entries.extend_from_slice(&entry.seconds.to_le_bytes());
            if entry.deaths >= DEATHS {
                let end = entry.seconds.saturating_add(REFUSED.as_secs());
                suspicion.culprits.insert(entry.hash, end);
            } else {
                suspicion.suspects.insert(entry.hash, place);
            }
        }
        // The suspects come first: whoever dies here leaves what he has found.
        let written = file
            .write_all_at(&entries, (SUSPECTS_AT + COUNT) as u64)
            .and_then(|()| file.write_all_at(&start, 0));
        let file = written.is_ok().then_some(file);
        (Self { file }, suspicion)
    }

    /// Notes texts before they are processed: place 0 is for batches, others for threads.
    pub fn begin(&self, place: usize, hashes: impl Iterator<Item = Hash>) {
        let Some(file) = &self.file else { return };
        let most = if place == 0 { BATCH_TEXTS } else { PIECE_TEXTS };
        let mut bytes = vec![0; COUNT];
        hashes
            .take(most)
            .for_each(|hash| bytes.extend_from_slice(&hash));
        let count = (bytes.len() - COUNT) / size_of::<Hash>();
        bytes[..COUNT].copy_from_slice(&(count as u64).to_le_bytes());
        let _ = file.write_all_at(&bytes, at(place));
    }

    /// Strikes them out.
    pub fn end(&self, place: usize) {
        if let Some(file) = &self.file {
            let _ = file.write_all_at(&[0; COUNT], at(place));
        }
    }

    fn clear(&self, place: usize) {
        if let Some(file) = &self.file {
            let at = SUSPECTS_AT + COUNT + place * SUSPECT_BYTES;
            let _ = file.write_all_at(&CLEARED, at as u64);
        }
    }
}

/// What is known after a process has died with `noted` under work.
fn judge(mut known: Vec<Suspect>, noted: &[Hash], hung: bool, now: u64) -> Vec<Suspect> {
    known.retain(|entry| {
        let end = entry.seconds.saturating_add(REFUSED.as_secs());
        // A clock that was ahead refuses nothing for longer.
        entry.deaths < DEATHS || now < end && entry.seconds <= now
    });
    let alone = noted.len() == 1;
    let deaths = match (alone, hung) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => HUNG,
    };
    let mut places: HashMap<Hash, usize> = known
        .iter()
        .enumerate()
        .map(|(place, entry)| (entry.hash, place))
        .collect();
    for &hash in noted {
        let place = *places.entry(hash).or_insert(known.len());
        if place == known.len() {
            known.push(Suspect {
                hash,
                deaths: 0,
                seconds: now,
            });
        }
        known[place].deaths += deaths;
        known[place].seconds = now;
    }
    let surplus = known.len().saturating_sub(SUSPECTS);
    known.drain(..surplus);
    known
}

impl Suspicion {
    /// Whether a text has to run alone.
    pub fn is_suspect(&self, hash: &Hash) -> bool {
        !self.suspects.is_empty() && self.suspects.contains_key(hash)
    }

    /// Whether a text is refused.
    pub fn is_culprit(&mut self, hash: &Hash) -> bool {
        match self.culprits.get(hash) {
            Some(&end) if now() < end => true,
            Some(_) => {
                self.culprits.remove(hash);
                false
            }
            None => false,
        }
    }

    /// Whether there are any culprits.
    pub fn refuses(&self) -> bool {
        !self.culprits.is_empty()
    }

    /// A text has run alone, and the process lives.
    pub fn clear(&mut self, record: &Record, hash: &Hash) {
        if let Some(place) = self.suspects.remove(hash) {
            record.clear(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> File {
        tempfile::tempfile().unwrap()
    }

    fn open(file: &File, hung: bool) -> (Record, Suspicion) {
        Record::open(Some(file.try_clone().unwrap()), hung)
    }

    fn texts(n: u8) -> Vec<Hash> {
        (0..n)
            .map(|i| hash("model", &format!("text {i}")))
            .collect()
    }

    #[test]
    fn the_one_of_a_batch_under_which_processes_die_is_found() {
        let file = record();
        let batch = texts(40);
        let culprit = batch[7];
        open(&file, false).0.begin(0, batch.iter().copied());
        assert!(was_working(&file));
        let mut deaths = 1;
        loop {
            let (record, mut suspicion) = open(&file, false);
            assert!(!was_working(&file));
            if suspicion.is_culprit(&culprit) {
                break;
            }
            // All of them are suspects at first, and those that ran are cleared for good.
            let suspects = batch.iter().filter(|h| suspicion.is_suspect(h)).count();
            assert_eq!(suspects, if deaths == 1 { 40 } else { 33 });
            for &text in &batch {
                if suspicion.is_suspect(&text) {
                    record.begin(0, std::iter::once(text));
                    if text == culprit {
                        deaths += 1;
                        break;
                    }
                    record.end(0);
                    suspicion.clear(&record, &text);
                }
            }
        }
        assert_eq!(deaths, 1 + DEATHS);
        let (record, mut suspicion) = open(&file, false);
        assert!(suspicion.is_culprit(&culprit) && !suspicion.is_culprit(&batch[8]));
        // It stays refused when processes end for other reasons.
        record.begin(3, texts(2).into_iter());
        assert!(open(&file, false).1.is_culprit(&culprit));
    }

    #[test]
    fn a_process_that_hangs_counts_for_more() {
        let file = record();
        let [text] = texts(1)[..] else { unreachable!() };
        for refused in [false, false, true] {
            let (record, mut suspicion) = open(&file, true);
            assert_eq!(suspicion.is_culprit(&text), refused);
            record.begin(1, std::iter::once(text));
        }
    }

    #[test]
    fn a_culprit_is_forgiven() {
        let [text] = texts(1)[..] else { unreachable!() };
        let entry = Suspect {
            hash: text,
            deaths: DEATHS,
            seconds: 1000,
        };
        assert_eq!(judge(vec![entry], &[], false, 1599).len(), 1);
        assert!(judge(vec![entry], &[], false, 1600).is_empty());
    }

    #[test]
    fn what_is_no_record_is_none() {
        for bytes in [&b""[..], b"abc", &[0xff; 4096]] {
            let file = record();
            file.write_all_at(bytes, 0).unwrap();
            assert!(!was_working(&file));
            let (record, suspicion) = open(&file, false);
            assert!(suspicion.suspects.is_empty() && !suspicion.refuses());
            record.begin(0, texts(3).into_iter());
            assert!(was_working(&file));
        }
        let (record, _) = Record::open(None, false);
        record.begin(0, texts(1).into_iter());
        record.end(0);
    }

    #[test]
    fn too_many_suspects_are_forgotten() {
        let mut known = Vec::new();
        for round in 0..4u64 {
            let noted: Vec<Hash> = (0..BATCH_TEXTS)
                .map(|i| hash(&round.to_string(), &i.to_string()))
                .collect();
            known = judge(known, &noted, false, round);
        }
        assert_eq!(known.len(), SUSPECTS);
    }
}
