//! [`Table`]: small numbers by short keys, a cache line a lookup.

/// Entries of a bucket.
const WAYS: usize = 8;

/// One bit in each of four lanes of 16 bits.
const ONES: u64 = 0x0001_0001_0001_0001;

/// The first bit of [`Bucket::rest`] says that there are entries in the next bucket that belong here.
const OVERFLOW: u32 = 1 << 31;

/// A cache line of entries; those that are not used have the key 0.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct Bucket {
    /// The low 16 bits of the keys, lane 4 l + i in word l.
    tags: [u64; 2],
    /// The other 31 bits of the keys.
    rest: [u32; WAYS],
    values: [u16; WAYS],
}

impl Bucket {
    /// The entries that may have a key with the low bits `tag`, as a mask of [`Bucket::way`].
    #[inline]
    fn candidates(&self, tag: u16) -> u64 {
        let spread = u64::from(tag) * ONES;
        // Lanes that are 0 (and perhaps lanes above them) by "Bit Twiddling Hacks", "zero in word".
        let equal = |word: u64| {
            let x = word ^ spread;
            x.wrapping_sub(ONES) & !x & ONES << 15
        };
        equal(self.tags[0]) >> 15 | equal(self.tags[1]) >> 14
    }

    /// The entry of the lowest bit of a mask.
    #[inline]
    fn way(candidates: u64) -> usize {
        let bit = candidates.trailing_zeros() as usize;
        ((bit / 16) | ((bit & 1) << 2)) % WAYS
    }

    fn key(&self, way: usize) -> u64 {
        let tag = self.tags[way / 4] >> (16 * (way % 4)) & 0xffff;
        u64::from(self.rest[way] & !OVERFLOW) << 16 | tag
    }
}

/// Numbers of 16 bits by keys of 47 bits that are not 0.
#[derive(Debug, Clone)]
pub(super) struct Table {
    buckets: Vec<Bucket>,
}

impl Table {
    /// Of keys that occur several times the last one counts.
    pub fn new(entries: impl ExactSizeIterator<Item = (u64, u16)>) -> Self {
        // Six of eight are used: fewer would be farther away, and with more of them a bucket in four would be full.
        let mut table = Self {
            buckets: vec![Bucket::default(); entries.len() / 6 + 1],
        };
        for (key, value) in entries {
            table.insert(key, value);
        }
        table
    }

    fn insert(&mut self, key: u64, value: u16) {
        debug_assert!(key > 0 && key >> 47 == 0);
        let mut at = self.place(key);
        loop {
            let bucket = &mut self.buckets[at];
            let free = |way: &usize| [0, key].contains(&bucket.key(*way));
            if let Some(way) = (0..WAYS).find(free) {
                let lane = 16 * (way % 4);
                bucket.tags[way / 4] &= !(0xffff << lane);
                bucket.tags[way / 4] |= (key & 0xffff) << lane;
                bucket.rest[way] = bucket.rest[way] & OVERFLOW | (key >> 16) as u32;
                bucket.values[way] = value;
                return;
            }
            bucket.rest[0] |= OVERFLOW;
            at = (at + 1) % self.buckets.len();
        }
    }

    #[inline]
    fn place(&self, key: u64) -> usize {
        // Fibonacci hashing (Knuth, volume 3, section 6.4).
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    pub fn get(&self, key: u64) -> Option<u16> {
        let mut at = self.place(key);
        loop {
            let bucket = &self.buckets[at];
            let mut candidates = bucket.candidates(key as u16);
            while candidates != 0 {
                let way = Bucket::way(candidates);
                if bucket.rest[way] & !OVERFLOW == (key >> 16) as u32 && bucket.key(way) == key {
                    return Some(bucket.values[way]);
                }
                candidates &= candidates - 1;
            }
            if bucket.rest[0] & OVERFLOW == 0 {
                return None;
            }
            at = (at + 1) % self.buckets.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn tables_are_maps(
            entries in prop::collection::vec((1u64..1 << 47, any::<u16>()), 0..300),
            close in prop::collection::vec((1u64..200, any::<u16>()), 0..300),
            tags in prop::collection::vec((1u64..200, any::<u16>()), 0..300),
            others in prop::collection::vec(1u64..1 << 47, 0..100),
        ) {
            let tags = tags.iter().map(|(key, value)| (key << 16 | 7, *value));
            let entries: Vec<_> = entries.into_iter().chain(close).chain(tags).collect();
            let map: HashMap<u64, u16> = entries.iter().copied().collect();
            let table = Table::new(entries.into_iter());
            for key in map.keys().copied().chain(others).chain(1..300) {
                prop_assert_eq!(table.get(key), map.get(&key).copied());
            }
        }
    }
}
