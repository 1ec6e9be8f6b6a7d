//! What is appended to the file of a segment, and not to its pages: a [`Guide`], so that who opens the file need not look
//! at all nodes of its graph. Files without one are as good, and slower to open.
//!
//! ```text
//!  0      b"LaserAp3", u64 identity of the segment
//!  16     u32 CRC-32C of what follows
//!  20     u32 seed level, then the numbers of sums, seeds and wanted nodes, u32 each
//!  36     f32 the distance within which queries are familiar, NaN where that is not known
//!  40     u32 1 where lengths differ ([`Guide::lengths_differ`]), else 0
//!  44     the sums, seeds and wanted nodes, u32 each
//! ```
//!
//! All numbers are little-endian.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crc_fast::crc32_iscsi as crc32c;

use crate::walk::Guide;

const MAGIC: &[u8; 8] = b"LaserAp3";
/// Where what the checksum is of begins.
const CHECKED: usize = 20;
const HEAD: usize = 44;

fn bytes(nonce: u64, guide: &Guide) -> Vec<u8> {
    let lists = [&*guide.sums, &guide.seeds, &guide.wanted];
    let mut bytes = MAGIC.to_vec();
    bytes.extend(nonce.to_le_bytes());
    bytes.extend([0; 4]);
    let lens = lists.iter().map(|list| list.len() as u32);
    let numbers = lists.iter().flat_map(|list| list.iter().copied());
    let familiar = guide.familiar.unwrap_or(f32::NAN).to_bits();
    let last = [familiar, u32::from(guide.lengths_differ)];
    let head = [guide.seed_level].into_iter().chain(lens).chain(last);
    for number in head.chain(numbers) {
        bytes.extend(number.to_le_bytes());
    }
    let crc = crc32c(&bytes[CHECKED..]);
    bytes[CHECKED - 4..CHECKED].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Appends the guide to a file whose segment ends at `end`. Where there is no room, the file stays as it was.
pub fn append(file: &File, end: u64, nonce: u64, guide: &Guide) -> bool {
    let done = file.write_all_at(&bytes(nonce, guide), end).is_ok();
    if !done {
        // What was written in part is no guide to anybody: at worst the next one makes the file again.
        let _ = file.set_len(end);
    }
    done
}

/// The guide of a segment from what stands behind it in its file.
pub fn read(nonce: u64, bytes: &[u8]) -> Option<Guide> {
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let is_its = bytes.get(..8)? == MAGIC && bytes.get(8..16)? == nonce.to_le_bytes();
    let lens = [number(24)?, number(28)?, number(32)?].map(|len| len as usize);
    let numbers = bytes.get(HEAD..)?;
    // Before the checksum, which takes its time where a file has grown.
    if !is_its || Some(numbers.len()) != lens.iter().sum::<usize>().checked_mul(4) {
        return None;
    }
    if number(CHECKED - 4)? != crc32c(bytes.get(CHECKED..)?) {
        return None;
    }
    let mut numbers = numbers
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let [sums, seeds, wanted] = lens.map(|len| numbers.by_ref().take(len).collect());
    Some(Guide {
        sums: Arc::new(sums),
        seeds,
        seed_level: number(CHECKED)?,
        wanted,
        familiar: Some(f32::from_bits(number(36)?)).filter(|distance| !distance.is_nan()),
        lengths_differ: number(40)? == 1,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guides() -> impl Strategy<Value = Guide> {
        let list = || proptest::collection::vec(any::<u32>(), 0..70);
        let distance = proptest::option::of(any::<f32>());
        let last = (distance, any::<bool>());
        (list(), list(), any::<u32>(), list(), last).prop_map(
            |(sums, seeds, seed_level, wanted, (familiar, lengths_differ))| Guide {
                sums: Arc::new(sums),
                seeds,
                seed_level,
                wanted,
                familiar,
                lengths_differ,
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_appended_is_read(guide in guides(), nonce: u64, other: u64, flip: usize) {
            let written = bytes(nonce, &guide);
            prop_assert_eq!(read(nonce, &written), Some(guide));
            if other != nonce {
                prop_assert_eq!(read(other, &written), None);
            }
            for end in 0..written.len() {
                prop_assert_eq!(read(nonce, &written[..end]), None);
            }
            let mut damaged = written;
            let bit = flip % (8 * damaged.len());
            damaged[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(read(nonce, &damaged), None);
        }

        #[test]
        fn no_bytes_are_too_strange(nonce: u64, bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            read(nonce, &bytes);
        }
    }
}
