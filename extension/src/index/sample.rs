//! A sample of the vectors that an index is to be built on, by which it is decided how they are
//! stored: rows that happen to come first may be unlike the others. Texts are embedded for it, and not
//! again when the build meets them.
#![allow(unsafe_code)]

use std::collections::{BTreeSet, HashMap};
use std::ffi::c_void;
use std::hash::{DefaultHasher, Hash, Hasher};

use laser_index::builder::BuildOptions;
use laser_index::meta::UNDECIDED;
use laser_index::space;
use laser_sampling::stratified;
use pgrx::pg_sys;

use super::element::{self, Element, TextBatch};
use super::errors::OrReport;
use crate::pg::interrupts::pause;
use crate::pg::memory;
use crate::pg::statistics::OneScan;
use crate::pg::tid::pack;

/// Of smaller tables the first rows are as good.
const LEAST_BLOCKS: u32 = 64;
/// Blocks that tell how many vectors a block has.
const FIRST_BLOCKS: u32 = 16;
/// A sample is of this number of blocks at least, if a table has them: rows of one source are often beside each other.
const EVENLY: usize = 256;
/// How many times as many blocks are read next where those before had hardly a vector.
const WIDEN: u32 = 8;
/// A gigabyte of blocks is enough to be read twice; what they hold is the sample then.
const MOST_BLOCKS: u32 = 1 << 17;
/// Fewer vectors than this part of a sample are worth less than as many as a build keeps of the first rows.
const LEAST_PART: usize = 8;

/// Embeddings of rows' texts, until they are taken.
#[derive(Default)]
pub struct Known(HashMap<Key, Vec<f32>>);

/// A row and its text.
type Key = (u64, u64);

/// By its address, which no other row gets while the index is built, and a hash of the text.
fn key(tid: u64, text: &[u8]) -> Key {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    (tid, hasher.finish())
}

impl Known {
    /// The embedding of a row's text, which is known no more.
    pub fn take(&mut self, tid: u64, text: &[u8]) -> Option<Vec<f32>> {
        match self.0.is_empty() {
            true => None,
            false => self.0.remove(&key(tid, text)),
        }
    }
}

/// Vectors of rows from all over a table.
pub struct Sample {
    element: Element,
    /// Those of the index; the first vector gives them its dimensions if they have none.
    options: BuildOptions,
    /// Rows that the index will have, of the blocks that were read.
    rows: usize,
    blocks_read: BTreeSet<u32>,
    blocks: u32,
    /// Vectors of the block that is being read.
    of_block: usize,
    /// Prepared.
    pub vectors: Vec<Vec<f32>>,
    /// Texts that wait to be embedded, and the embeddings of those that were.
    texts: TextBatch,
    pub known: Known,
}

impl Sample {
    /// Length of the vectors.
    pub fn dims(&self) -> usize {
        self.options.parameters.dims
    }

    /// How many rows the index will have, as far as the blocks that were read tell.
    pub fn table_rows(&self) -> usize {
        let a_block = self.rows as f64 / self.blocks_read.len().max(1) as f64;
        (a_block * f64::from(self.blocks)) as usize
    }

    /// How many blocks are to be read yet for as many vectors as are wanted, by those that were; none where these are
    /// nearly enough.
    fn blocks_wanted(&self) -> u32 {
        let read = self.blocks_read.len() as u32;
        let (wanted, found) = (self.options.sample_size(), self.found());
        let most = self.blocks.min(MOST_BLOCKS);
        if read >= most || found >= wanted - wanted / 8 {
            return 0;
        }
        let a_block = found as f64 / f64::from(read.max(1));
        let more = ((wanted - found) as f64 / a_block).ceil() as u32;
        more.clamp(FIRST_BLOCKS, read * WIDEN).min(most)
    }

    /// Vectors, and texts that will have some.
    fn found(&self) -> usize {
        self.vectors.len() + self.texts.len()
    }

    /// Embeds the texts that wait.
    fn embed(&mut self) {
        let parameters = self.options.parameters.clone();
        let mut texts = std::mem::take(&mut self.texts);
        texts.embed_with_texts(&parameters, |tid, text, x| {
            self.add(x);
            memory::entry(&mut self.known.0, key(tid, text)).or_insert_with(|| x.to_vec());
        });
    }

    /// Whether the vectors tell more than the first ones of the table.
    pub fn is_enough(&self) -> bool {
        let is_whole = self.blocks_read.len() as u32 >= self.blocks;
        let least = if is_whole {
            0
        } else {
            self.options.sample_size() / LEAST_PART
        };
        self.vectors.len() >= least.max(64)
    }

    fn add(&mut self, x: &[f32]) {
        let parameters = &mut self.options.parameters;
        if parameters.is_undecided() {
            parameters.dims = x.len();
            parameters.element &= !UNDECIDED;
        }
        // The build will refuse a row of another length, and say which.
        if x.len() == parameters.dims {
            let prepared = space::prepare(parameters.metric, parameters.dims, x);
            self.vectors.extend(prepared.or_report());
        }
    }
}

/// Prepared vectors of rows from all over the table, about as many as [`BuildOptions::sample_size`], or all there are: those
/// of scattered blocks. `None` where that is not worth it, or not possible: other table access methods may have no
/// blocks.
///
/// # Safety
/// The relations are open for a build, `info` describes the index.
pub unsafe fn draw(
    heap: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    element: Element,
    options: &BuildOptions,
) -> Option<Sample> {
    // SAFETY: by contract.
    unsafe {
        let heap_method = std::ptr::eq((*heap).rd_tableam, pg_sys::GetHeapamTableAmRoutine());
        let blocks =
            pg_sys::RelationGetNumberOfBlocksInFork(heap, pg_sys::ForkNumber::MAIN_FORKNUM);
        if !heap_method || blocks < LEAST_BLOCKS {
            return None;
        }
        let mut sample = Sample {
            element,
            options: options.clone(),
            rows: 0,
            blocks_read: BTreeSet::new(),
            blocks,
            of_block: 0,
            vectors: Vec::new(),
            texts: TextBatch::default(),
            known: Known::default(),
        };
        let mut wanted = FIRST_BLOCKS;
        let mut read = OneScan::of(heap);
        while wanted > 0 {
            let before = sample.blocks_read.len();
            for at in stratified(blocks as usize, wanted as usize) {
                pause();
                if sample.blocks_read.insert(at as u32) {
                    sample.of_block = 0;
                    block(heap, index, info, at as u32, &mut sample);
                    read.scanned();
                }
            }
            // Where all those had been read before, twice as many are next: not all, of which the first ones would do.
            wanted = match sample.blocks_read.len() > before {
                true => sample.blocks_wanted(),
                false => (2 * wanted).min(blocks.min(MOST_BLOCKS)),
            };
        }
        sample.embed();
        Some(sample)
    }
}

/// Reads the rows of a block as the build will.
///
/// # Safety
/// As for [`draw`].
unsafe fn block(
    heap: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    block: u32,
    sample: &mut Sample,
) {
    // SAFETY: by contract. No synchronized scan, no progress, one block.
    unsafe {
        let scan = (*(*heap).rd_tableam)
            .index_build_range_scan
            .expect("every table has it");
        let state = std::ptr::from_mut(sample).cast::<c_void>();
        let null = std::ptr::null_mut();
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            scan(
                heap,
                index,
                info,
                false,
                false,
                false,
                block,
                1,
                Some(collect),
                state,
                null,
            )
        });
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn collect(
    _index: pg_sys::Relation,
    tid: pg_sys::ItemPointer,
    values: *mut pg_sys::Datum,
    isnull: *mut bool,
    _alive: bool,
    state: *mut c_void,
) {
    // SAFETY: the server passes one value, and the state that the scan was given.
    unsafe {
        let sample = &mut *state.cast::<Sample>();
        sample.rows += 1;
        // So few of each that the last block has its share.
        let (wanted, evenly) = (
            sample.options.sample_size(),
            EVENLY.min(sample.blocks as usize),
        );
        if *isnull || sample.of_block >= wanted.div_ceil(evenly) || sample.found() >= 2 * wanted {
            return;
        }
        sample.of_block += 1;
        if sample.element != Element::Text {
            element::with_vector(sample.element, *values, |x| sample.add(x));
        } else if sample.texts.push(pack(tid), element::text(*values)) {
            sample.embed();
        }
    }
}
