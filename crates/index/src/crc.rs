//! CRC-32C (Castagnoli, the polynomial of PostgreSQL's WAL), with the CPU's instruction where there
//! is one.
#![allow(unsafe_code)]

/// Checksum of `data`.
pub fn crc32c(data: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        // SAFETY: the CPU has the instruction.
        return unsafe { hardware(data) };
    }
    software(data)
}

/// Checksums of four pieces of equal length, in less time than one after the other.
pub fn crc32c_of_four(pieces: [&[u8]; 4]) -> [u32; 4] {
    assert!(pieces.iter().all(|piece| piece.len() == pieces[0].len()));
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") && pieces[0].len().is_multiple_of(8) {
        // SAFETY: the CPU has the instruction.
        return unsafe { hardware_four(pieces) };
    }
    pieces.map(crc32c)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn hardware_four(pieces: [&[u8]; 4]) -> [u32; 4] {
    use std::arch::x86_64::_mm_crc32_u64;
    let mut crcs = [u64::from(!0u32); 4];
    let [a, b, c, d] = pieces.map(|piece| piece.chunks_exact(8));
    for (((a, b), c), d) in a.zip(b).zip(c).zip(d) {
        for (crc, word) in crcs.iter_mut().zip([a, b, c, d]) {
            let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
            *crc = _mm_crc32_u64(*crc, word);
        }
    }
    crcs.map(|crc| !(crc as u32))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn hardware(data: &[u8]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let mut crc = u64::from(!0u32);
    let mut chunks = data.chunks_exact(8);
    for chunk in &mut chunks {
        crc = _mm_crc32_u64(
            crc,
            u64::from_le_bytes(chunk.try_into().expect("eight bytes")),
        );
    }
    let mut crc = crc as u32;
    for &byte in chunks.remainder() {
        crc = _mm_crc32_u8(crc, byte);
    }
    !crc
}

fn software(data: &[u8]) -> u32 {
    static TABLE: [u32; 256] = table();
    let mut crc = !0u32;
    for &byte in data {
        crc = TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
    }
    !crc
}

const fn table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut value = i as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 {
                (value >> 1) ^ 0x82f6_3b78
            } else {
                value >> 1
            };
            bit += 1;
        }
        table[i] = value;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_value() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(software(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn both_ways_agree() {
        let data: Vec<u8> = (0..1000u32).map(|i| (i * 7 + 3) as u8).collect();
        for n in [0, 1, 7, 8, 9, 63, 999] {
            assert_eq!(crc32c(&data[..n]), software(&data[..n]));
        }
    }
}
