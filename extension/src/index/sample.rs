//! A sample of the vectors that an index is to be built on, by which it is decided how they are
//! stored: rows that happen to come first may be unlike the others.
#![allow(unsafe_code)]

use std::ffi::c_void;

use laser_index::meta::Parameters;
use laser_index::sampling::stratified;
use laser_index::space;
use pgrx::pg_sys;

use super::element::{self, Element};
use super::errors::OrReport;
use crate::pg::interrupts::pause;

/// Of smaller tables the first rows are as good.
const LEAST_BLOCKS: u32 = 64;
/// Blocks that tell how many rows a block has.
const FIRST_BLOCKS: u32 = 16;

struct Sample<'a> {
    element: Element,
    parameters: &'a Parameters,
    size: usize,
    rows: usize,
    vectors: Vec<Vec<f32>>,
}

/// Prepared vectors of rows from all over the table, about `size` of them: those of
/// scattered blocks. `None` where that is not worth it, or not possible: texts would have to be embedded
/// twice, and other table access methods may have no blocks.
///
/// # Safety
/// The relations are open for a build, `info` describes the index.
pub unsafe fn draw(
    heap: pg_sys::Relation,
    index: pg_sys::Relation,
    info: *mut pg_sys::IndexInfo,
    element: Element,
    parameters: &Parameters,
    size: usize,
) -> Option<Vec<Vec<f32>>> {
    // SAFETY: by contract.
    unsafe {
        let heap_method = std::ptr::eq((*heap).rd_tableam, pg_sys::GetHeapamTableAmRoutine());
        let blocks =
            pg_sys::RelationGetNumberOfBlocksInFork(heap, pg_sys::ForkNumber::MAIN_FORKNUM);
        if element == Element::Text || !heap_method || blocks < LEAST_BLOCKS {
            return None;
        }
        let mut sample = Sample {
            element,
            parameters,
            size: 2 * size,
            rows: 0,
            vectors: Vec::new(),
        };
        let look = |sample: &mut Sample, count: u32, skipped: u32| {
            for at in stratified((blocks - skipped) as usize, count as usize) {
                pause();
                block(heap, index, info, at as u32 + skipped, sample);
            }
        };
        look(&mut sample, FIRST_BLOCKS, 0);
        let a_block = (sample.rows as f64 / f64::from(FIRST_BLOCKS)).max(0.5);
        let wanted = (size as f64 / a_block) as u32;
        look(&mut sample, wanted.clamp(FIRST_BLOCKS, blocks), 1);
        (sample.vectors.len() >= 64).then_some(sample.vectors)
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
    sample: &mut Sample<'_>,
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
    _tid: pg_sys::ItemPointer,
    values: *mut pg_sys::Datum,
    isnull: *mut bool,
    _alive: bool,
    state: *mut c_void,
) {
    // SAFETY: the server passes one value, and the state that the scan was given.
    unsafe {
        let sample = &mut *state.cast::<Sample>();
        sample.rows += 1;
        if *isnull || sample.vectors.len() >= sample.size {
            return;
        }
        let (metric, dims) = (sample.parameters.metric, sample.parameters.dims);
        let prepared =
            element::with_vector(sample.element, *values, |x| space::prepare(metric, dims, x));
        sample.vectors.extend(prepared.or_report());
    }
}
