//! The parts of the zip format that PyTorch writes: stored entries, ZIP64 sizes (PKWARE's
//! APPNOTE.TXT, sections 4.3 and 4.5.3).

use std::collections::HashMap;
use std::ops::Range;

/// Where each entry's data lies in the archive.
pub type Entries = HashMap<String, Range<usize>>;

fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b)))
}

/// Reads the directory of an archive.
pub fn entries(bytes: &[u8]) -> Result<Entries, String> {
    read(bytes)
        .unwrap_or_else(|| Err("the zip archive is truncated or damaged: download it again".into()))
}

/// None: something points outside of the file.
fn read(bytes: &[u8]) -> Option<Result<Entries, String>> {
    // The end record is the last thing but a comment of up to 64 KiB.
    let lowest = bytes.len().saturating_sub(22 + 0xffff);
    let end = (lowest..=bytes.len().checked_sub(22)?)
        .rev()
        .find(|&at| bytes[at..].starts_with(b"PK\x05\x06"))?;
    let mut count = number(bytes, end + 10, 2)?;
    let mut at = number(bytes, end + 16, 4)?;
    if count == 0xffff || at == 0xffff_ffff {
        let locator = end.checked_sub(20)?;
        if bytes.get(locator..locator + 4)? != b"PK\x06\x07" {
            return None;
        }
        let end64 = usize::try_from(number(bytes, locator + 8, 8)?).ok()?;
        if bytes.get(end64..end64.checked_add(4)?)? != b"PK\x06\x06" {
            return None;
        }
        count = number(bytes, end64.checked_add(32)?, 8)?;
        at = number(bytes, end64.checked_add(48)?, 8)?;
    }
    let mut at = usize::try_from(at).ok()?;
    let mut entries = Entries::new();
    for _ in 0..count {
        let header = bytes.get(at..at.checked_add(46)?)?;
        if !header.starts_with(b"PK\x01\x02") {
            return None;
        }
        let method = number(header, 10, 2)?;
        let mut packed = number(header, 20, 4)?;
        let mut size = number(header, 24, 4)?;
        let name_length = number(header, 28, 2)? as usize;
        let extra_length = number(header, 30, 2)? as usize;
        let comment_length = number(header, 32, 2)? as usize;
        let mut offset = number(header, 42, 4)?;
        let name = bytes.get(at + 46..at + 46 + name_length)?;
        let extra = bytes.get(at + 46 + name_length..at + 46 + name_length + extra_length)?;
        let mut field = 0;
        while field + 4 <= extra.len() {
            let (tag, length) = (
                number(extra, field, 2)?,
                number(extra, field + 2, 2)? as usize,
            );
            if tag == 1 {
                // Present only for the values that are all ones above, in this order.
                let mut at = field + 4;
                for value in [&mut size, &mut packed, &mut offset] {
                    if *value == 0xffff_ffff {
                        *value = number(extra, at, 8)?;
                        at += 8;
                    }
                }
            }
            field += 4 + length;
        }
        at += 46 + name_length + extra_length + comment_length;
        let name = String::from_utf8_lossy(name).into_owned();
        if method != 0 {
            return Some(Err(format!(
                "entry \"{name}\" of the zip archive is compressed"
            )));
        }
        let local = usize::try_from(offset).ok()?;
        if bytes.get(local..local.checked_add(4)?)? != b"PK\x03\x04" {
            return None;
        }
        let start = local
            + 30
            + number(bytes, local + 26, 2)? as usize
            + number(bytes, local + 28, 2)? as usize;
        let range = start..start.checked_add(usize::try_from(size).ok()?)?;
        bytes.get(range.clone())?;
        entries.insert(name, range);
    }
    Some(Ok(entries))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(
            head in prop::collection::vec(any::<u8>(), 0..200),
            fields in prop::collection::vec(any::<u8>(), 18),
        ) {
            let mut bytes = head;
            bytes.extend(b"PK\x01\x02");
            bytes.extend(&fields);
            bytes.extend(b"PK\x05\x06");
            bytes.extend(&fields);
            let _ = super::entries(&bytes);
        }
    }
}
