//! A sample of what indexes were searched for, under `laser.track_queries`: the queries that `laser_index_recall` and
//! `laser_index_tune` ask on `queries => 'asked'`.
//!
//! As the counters ([`super::table`]) it is a mapping that the postmaster makes, and nobody waits for it. It is a number of
//! blocks, one an index. A block has as many vectors as fit, and holds each query with the same probability since it
//! was emptied (reservoir sampling, Vitter's algorithm R).
//!
//! What somebody searches for is his own. Nothing gives a vector of these back: whoever maintains the index is told what
//! searches with them find, and how long they take. They go with the index, and when its counters are reset.
//!
//! A vector carries a checksum, of its index, model and metric as well. So two sessions that write to one place, one
//! that is killed while it writes, an index that takes the block of another, and one that was rebuilt with another
//! model leave what nobody takes for a query.
#![allow(unsafe_code)]

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use laser_index::meta::{Parameters, UNDECIDED};
use laser_index::query::Query;
use laser_model::shared::Shared;
use pgrx::pg_sys;

use super::super::options;
use super::table::{is_gone, key};

/// Indexes whose queries are kept.
const BLOCKS: usize = 64;
/// Numbers of a block: 256 kB, which take memory once they are written to.
const BLOCK: usize = 1 << 15;
/// Numbers of each block that lie before all blocks: its key, the queries since it was emptied, how much of it was
/// written to, and what its queries are of.
const HEADER: usize = 4;
const KEY: usize = 0;
const ASKED: usize = 1;
const WRITTEN: usize = 2;
const OF: usize = 3;
/// The most queries of an index.
const MOST: usize = 1000;

static SAMPLES: OnceLock<Shared> = OnceLock::new();

/// Makes the memory, if the postmaster is loading the library.
pub fn init() {
    // SAFETY: a plain variable of the server.
    if !unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        return;
    }
    match Shared::new(BLOCKS * (HEADER + BLOCK)) {
        Ok(samples) => drop(SAMPLES.set(samples)),
        Err(error) => pgrx::warning!("could not set up laser.track_queries: {error}"),
    }
}

/// Whether the server has memory for queries.
pub fn is_possible() -> bool {
    SAMPLES.get().is_some()
}

/// The part of the memory that an index has.
#[derive(Clone, Copy)]
struct Block {
    header: &'static [AtomicU64],
    numbers: &'static [AtomicU64],
}

impl Block {
    fn all() -> impl Iterator<Item = Self> {
        let memory = SAMPLES
            .get()
            .map(|samples| &samples[..])
            .unwrap_or_default();
        let (headers, blocks) = memory.split_at(memory.len().min(BLOCKS * HEADER));
        headers
            .chunks_exact(HEADER)
            .zip(blocks.chunks_exact(BLOCK))
            .map(|(header, numbers)| Self { header, numbers })
    }

    fn of(key: u64) -> Option<Self> {
        Self::all().find(|block| block.header[KEY].load(Ordering::Acquire) == key)
    }

    /// The block of an index that has none yet.
    fn take(key: u64) -> Option<Self> {
        let take = |block: Self, from: u64| {
            let taken =
                block.header[KEY].compare_exchange(from, key, Ordering::AcqRel, Ordering::Acquire);
            match taken {
                Ok(_) => {
                    block.clear();
                    Some(block)
                }
                // Another session was faster, with the same index perhaps.
                Err(now) => (now == key).then_some(block),
            }
        };
        let free = Self::all().find_map(|block| take(block, 0));
        free.or_else(|| {
            Self::all().find_map(|block| {
                let other = block.header[KEY].load(Ordering::Acquire);
                is_gone(other).then(|| take(block, other)).flatten()
            })
        })
    }

    /// Forgets all queries: not even those that know where to look find them.
    fn clear(self) {
        let written = self.header[WRITTEN].swap(0, Ordering::Relaxed) as usize;
        for number in self.numbers.iter().take(written) {
            number.store(0, Ordering::Relaxed);
        }
        self.header[ASKED].store(0, Ordering::Relaxed);
    }

    /// Forgets the queries unless they are of what the index is now, by [`checksum`]'s identity: it was built again with
    /// another model, and queries of the new one would take places of old ones by chance.
    fn keep_only(self, identity: u64) {
        let of = self.header[OF].swap(identity, Ordering::AcqRel);
        if of != identity {
            self.clear();
        }
    }

    /// The places for queries with this number of dimensions: a checksum each, and two components a number.
    fn places(self, dims: usize) -> impl Iterator<Item = &'static [AtomicU64]> {
        self.numbers.chunks_exact(1 + dims.div_ceil(2)).take(MOST)
    }
}

/// What a checksum is made of besides the vector.
fn identity(key: u64, parameters: &Parameters) -> DefaultHasher {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    (parameters.element & !UNDECIDED).hash(&mut hasher);
    parameters.metric.name().hash(&mut hasher);
    parameters.dims.hash(&mut hasher);
    parameters.fingerprint.hash(&mut hasher);
    hasher
}

/// The checksum of a vector, which is never that of an empty place.
fn checksum(mut identity: DefaultHasher, numbers: impl Iterator<Item = u64>) -> u64 {
    for number in numbers {
        number.hash(&mut identity);
    }
    identity.finish().max(1)
}

fn pack(pair: &[f32]) -> u64 {
    let bits = |at: usize| pair.get(at).map_or(0, |x| u64::from(x.to_bits()));
    bits(0) | bits(1) << 32
}

/// Keeps a query that an index was asked, perhaps, if `laser.track_queries` says so. Indexes of temporary tables, and
/// those that this transaction has made, keep none; neither does who finds no block.
///
/// # Safety
/// The index is open, and has these parameters.
pub unsafe fn record(index: pg_sys::Relation, parameters: &Parameters, query: &Query) {
    if !options::track_queries() || !is_possible() || !query.has_distances() {
        return;
    }
    // SAFETY: by contract.
    let (oid, is_kept) = unsafe {
        let is_temporary = (*(*index).rd_rel).relpersistence as u8 == pg_sys::RELPERSISTENCE_TEMP;
        (
            (*index).rd_id,
            (*index).rd_createSubid == 0 && !is_temporary,
        )
    };
    if parameters.is_undecided() || !is_kept {
        return;
    }
    let key = key(oid);
    let Some(block) = Block::of(key).or_else(|| Block::take(key)) else {
        return;
    };
    let identity = identity(key, parameters);
    block.keep_only(identity.clone().finish());
    let places = block.places(parameters.dims).count() as u64;
    let asked = block.header[ASKED].fetch_add(1, Ordering::Relaxed);
    let at = match asked < places {
        true => asked,
        false => laser_index::meta::nonce() % (asked + 1),
    };
    let Some(place) = block.places(parameters.dims).nth(at as usize) else {
        return;
    };
    let end = (at as usize + 1) * place.len();
    block.header[WRITTEN].fetch_max(end as u64, Ordering::Relaxed);
    let numbers = || query.given().chunks(2).map(pack);
    for (stored, number) in place[1..].iter().zip(numbers()) {
        stored.store(number, Ordering::Relaxed);
    }
    let sum = checksum(identity, numbers());
    place[0].store(sum, Ordering::Release);
}

/// The queries that are kept of an index of this database with these parameters, at most [`MOST`] vectors and 256 kB.
/// The caller has the rights to maintain it, and shows them to nobody.
pub fn asked(index: pg_sys::Oid, parameters: &Parameters) -> Vec<Vec<f32>> {
    let key = key(index);
    let Some(block) = Block::of(key) else {
        return Vec::new();
    };
    let identity = identity(key, parameters);
    let vectors = block.places(parameters.dims).filter_map(|place| {
        let sum = place[0].load(Ordering::Acquire);
        if sum == 0 {
            return None;
        }
        let numbers: Vec<u64> = place[1..]
            .iter()
            .map(|n| n.load(Ordering::Relaxed))
            .collect();
        (checksum(identity.clone(), numbers.iter().copied()) == sum).then(|| {
            let halves = numbers.iter().flat_map(|n| [*n as u32, (n >> 32) as u32]);
            halves.map(f32::from_bits).take(parameters.dims).collect()
        })
    });
    vectors.collect()
}

/// Whether queries of an index of this database are kept.
pub fn are_kept(index: pg_sys::Oid) -> bool {
    Block::of(key(index)).is_some()
}

/// Forgets the queries of an index of this database.
pub fn forget(index: pg_sys::Oid) {
    if let Some(block) = Block::of(key(index)) {
        block.clear();
    }
}

/// Forgets the queries of an index that is gone, and gives up its block.
pub fn release(index: pg_sys::Oid) {
    if let Some(block) = Block::of(key(index)) {
        block.clear();
        block.header[KEY].store(0, Ordering::Release);
    }
}
