//! Token ids of words, remembered by all threads of a process and by the processes forked from it.
//!
//! A set-associative table of fixed size in [`Shared`] memory. There is no lock that a process could
//! die with: every slot is a sequence lock (H.-J. Boehm, "Can seqlocks get along with programming
//! language memory models?", MSPC 2012). Readers copy a slot and give up if it was written to
//! meanwhile; a writer that finds a slot taken leaves it. What is not found is computed again by the
//! caller, so nothing depends on whether a word has been kept.
//!
//! A word is kept when it is met for the second time. Most words of a corpus occur once; they would
//! drive out the others, and let every process touch a page for each of them.
//!
//! A set has two numbers, then come the slots with 16 numbers each:
//!
//! ```text
//! set   0     tags of its four slots, 16 bits each, 0: never used
//!       1     tags of the last four words that were not kept
//! slot  0     version: odd while it is written to
//!       1-15  one byte: length of the word, one byte: number of ids, the word, the ids (4 bytes each)
//! ```

use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

use ahash::RandomState;

use crate::shared::Shared;

/// Slots of a set.
const WAYS: usize = 4;

/// Bits of a tag.
const TAG: usize = u64::BITS as usize / WAYS;

/// Numbers of a slot: two cache lines.
const SLOT: usize = 16;

/// Bytes of a slot's word and ids, with their lengths.
const BYTES: usize = 8 * (SLOT - 1);

/// A table of words. A process that is killed while it writes makes one slot unusable.
pub struct WordCache {
    hasher: RandomState,
    sets: usize,
    numbers: Shared,
}

/// Where a word belongs.
struct Place<'a> {
    tags: &'a AtomicU64,
    seen: &'a AtomicU64,
    slots: &'a [[AtomicU64; SLOT]],
    tag: u64,
}

impl WordCache {
    /// An empty table for about `words` words, of 132 bytes each.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(words: usize) -> io::Result<Self> {
        let sets = words.div_ceil(WAYS).max(1);
        Ok(Self {
            hasher: RandomState::new(),
            sets,
            numbers: Shared::new(sets * (2 + WAYS * SLOT))?,
        })
    }

    /// Appends the ids of `word` to `ids`; whether they are known.
    pub fn get(&self, word: &str, ids: &mut Vec<u32>) -> bool {
        let place = self.place(word);
        let tags = place.tags.load(Relaxed);
        place
            .slots
            .iter()
            .enumerate()
            .any(|(way, slot)| lane(tags, way) == place.tag && read(slot, word.as_bytes(), ids))
    }

    /// Notes that a word was met. Remembers its ids if that is not the first time lately, unless they
    /// are too many or another writer is in the way.
    pub fn put(&self, word: &str, ids: &[u32]) {
        let size = 2 + word.len() + 4 * ids.len();
        if size > BYTES {
            return;
        }
        let place = self.place(word);
        let seen = place.seen.load(Relaxed);
        if (0..WAYS).all(|way| lane(seen, way) != place.tag) {
            // Another writer's tag may get lost: its word is kept one time later.
            place.seen.store(seen << TAG | place.tag, Relaxed);
            return;
        }
        let mut bytes = [0; BYTES];
        bytes[0] = word.len() as u8;
        bytes[1] = ids.len() as u8;
        bytes[2..2 + word.len()].copy_from_slice(word.as_bytes());
        for (chunk, id) in bytes[2 + word.len()..]
            .as_chunks_mut()
            .0
            .iter_mut()
            .zip(ids)
        {
            *chunk = id.to_le_bytes();
        }
        if let Some(way) = write(place.slots, &bytes) {
            let _ = place.tags.fetch_update(Relaxed, Relaxed, |tags| {
                let others = !(lane(u64::MAX, 0) << (TAG * way));
                Some(tags & others | place.tag << (TAG * way))
            });
        }
    }

    fn place(&self, word: &str) -> Place<'_> {
        let hash = self.hasher.hash_one(word);
        // The high bits, evenly: a division would take longer than the rest.
        let set = (((hash >> 32) * self.sets as u64) >> 32) as usize;
        let (heads, slots) = self.numbers.split_at(2 * self.sets);
        Place {
            tags: &heads[2 * set],
            seen: &heads[2 * set + 1],
            slots: &slots.as_chunks().0[WAYS * set..WAYS * (set + 1)],
            tag: lane(hash, 0).max(1),
        }
    }
}

/// One of the tags in a number.
fn lane(tags: u64, way: usize) -> u64 {
    tags >> (TAG * way) & ((1 << TAG) - 1)
}

/// Appends the ids of a slot to `ids` if it holds `word`.
fn read(slot: &[AtomicU64; SLOT], word: &[u8], ids: &mut Vec<u32>) -> bool {
    let version = slot[0].load(Acquire);
    if version % 2 == 1 {
        return false;
    }
    let mut bytes = [0; BYTES];
    for (chunk, number) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&slot[1..]) {
        *chunk = number.load(Relaxed).to_le_bytes();
    }
    fence(Acquire);
    if slot[0].load(Relaxed) != version {
        return false;
    }
    let [length, count, rest @ ..] = &bytes;
    let (known, rest) = rest.split_at(usize::from(*length));
    if known != word {
        return false;
    }
    let known = rest.as_chunks::<4>().0.iter().take(usize::from(*count));
    ids.extend(known.map(|id| u32::from_le_bytes(*id)));
    true
}

/// Writes to the slot whose turn it is and returns its place, unless another writer is there.
fn write(slots: &[[AtomicU64; SLOT]], bytes: &[u8; BYTES]) -> Option<usize> {
    let version = |way: usize| slots[way][0].load(Relaxed);
    // Half the sum of the versions is how often a slot was written to.
    let writes: u64 = (0..WAYS).map(|way| version(way) / 2).sum();
    let (way, version) = (0..WAYS)
        .map(|next| (writes as usize + next) % WAYS)
        .map(|way| (way, version(way)))
        .find(|(_, version)| version % 2 == 0)?;
    let slot = &slots[way];
    slot[0]
        .compare_exchange(version, version + 1, Acquire, Relaxed)
        .ok()?;
    // Whoever sees a number from below sees the odd version as well.
    fence(Release);
    for (number, chunk) in slot[1..].iter().zip(bytes.as_chunks::<8>().0) {
        number.store(u64::from_le_bytes(*chunk), Relaxed);
    }
    slot[0].store(version + 2, Release);
    Some(way)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn known(cache: &WordCache, word: &str) -> Option<Vec<u32>> {
        let mut ids = vec![42];
        cache.get(word, &mut ids).then(|| ids.split_off(1))
    }

    /// A word is kept when it is met again.
    fn meet_twice(cache: &WordCache, word: &str, ids: &[u32]) {
        cache.put(word, ids);
        cache.put(word, ids);
    }

    proptest! {
        #[test]
        fn what_is_known_is_what_was_put(
            entries: Vec<(String, Vec<u32>)>, words in 1usize..200,
        ) {
            let cache = WordCache::new(words).unwrap();
            let mut put = HashMap::new();
            for (word, ids) in &entries {
                if known(&cache, word).is_none() {
                    meet_twice(&cache, word, ids);
                    put.insert(word, ids);
                    let fits = 2 + word.len() + 4 * ids.len() <= BYTES;
                    prop_assert_eq!(known(&cache, word), fits.then(|| ids.clone()));
                }
            }
            for (word, ids) in put {
                prop_assert!(known(&cache, word).is_none_or(|known| known == *ids));
            }
        }
    }

    #[test]
    fn words_are_kept_when_they_are_met_again() {
        let cache = WordCache::new(1000).unwrap();
        cache.put("a", &[1, 2]);
        assert_eq!(known(&cache, "a"), None);
        cache.put("a", &[1, 2]);
        assert_eq!(known(&cache, "a"), Some(vec![1, 2]));
        assert_eq!(known(&cache, "b"), None);
    }

    #[test]
    fn a_set_keeps_the_last_words() {
        let cache = WordCache::new(1).unwrap();
        for word in ["a", "b", "c", "d", "e"] {
            meet_twice(&cache, word, &[7]);
        }
        let words = ["a", "b", "c", "d", "e"].map(|word| known(&cache, word).is_some());
        assert_eq!(words, [false, true, true, true, true]);
    }

    #[test]
    fn a_writer_that_died_costs_its_slot_alone() {
        let cache = WordCache::new(1).unwrap();
        meet_twice(&cache, "a", &[1]);
        cache.numbers[2].fetch_add(1, Relaxed);
        assert_eq!(known(&cache, "a"), None);
        for word in ["b", "c", "d", "e", "f"] {
            meet_twice(&cache, word, &[7]);
            assert_eq!(known(&cache, word), Some(vec![7]));
        }
    }

    /// Readers never see a mixture of two entries.
    #[test]
    fn threads_see_whole_entries() {
        let cache = WordCache::new(8).unwrap();
        let ids = |n: u32| vec![n; 1 + n as usize % 20];
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let cache = &cache;
                scope.spawn(move || {
                    let mut found = 0;
                    for i in 0..200_000u32 {
                        // Four times: it is kept the second time, and eight places are too few for all to come round.
                        let n = (i / 4 * 7 + thread * 13) % 40;
                        let word = format!("word {n}");
                        match known(cache, &word) {
                            Some(known) => {
                                assert_eq!(known, ids(n));
                                found += 1;
                            }
                            None => cache.put(&word, &ids(n)),
                        }
                    }
                    assert!(found > 0);
                });
            }
        });
    }
}
