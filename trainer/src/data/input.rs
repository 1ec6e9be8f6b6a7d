//! Opens text files, plain or compressed, and reads them line by line in bounded memory.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use super::{DataError, Result};

/// First bytes of a Zstandard frame.
pub const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// First bytes of a gzip member.
pub const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Longest line that is read, in bytes; a longer one is malformed. Bounds the memory that a file
/// without line breaks could take.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Largest window of a Zstandard frame, as a power of two: what `zstd --ultra --long=31` makes.
const ZSTD_WINDOW_LOG: u32 = 31;

/// Opens a file for reading, decompressing gzip (also of several members) and Zstandard, which are
/// told by their first bytes and not by the name.
///
/// # Errors
/// [`DataError::Io`] if the file cannot be opened.
pub fn open(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    let file = File::open(path).map_err(|e| DataError::io(path, e))?;
    decompress(Box::new(file)).map_err(|e| DataError::io(path, e))
}

/// Decompresses a stream by its first bytes.
///
/// # Errors
/// If the stream cannot be read or a decompressor cannot be made.
pub fn decompress(mut stream: Box<dyn Read + Send>) -> std::io::Result<Box<dyn BufRead + Send>> {
    let mut magic = Vec::with_capacity(4);
    stream.by_ref().take(4).read_to_end(&mut magic)?;
    let stream = std::io::Cursor::new(magic.clone()).chain(stream);
    if magic == ZSTD_MAGIC {
        let mut decoder = zstd::Decoder::new(stream)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG)?;
        Ok(Box::new(BufReader::with_capacity(1 << 17, decoder)))
    } else if magic.starts_with(&GZIP_MAGIC) {
        let decoder = flate2::read::MultiGzDecoder::new(BufReader::new(stream));
        Ok(Box::new(BufReader::with_capacity(1 << 17, decoder)))
    } else {
        Ok(Box::new(BufReader::with_capacity(1 << 17, stream)))
    }
}

/// What [`Lines::next_line`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A line without its end (`\n` or `\r\n`).
    Text(&'a str),
    /// A line that is not UTF-8, too long, or has a NUL; with the reason.
    Malformed(&'static str),
    /// The end of the file.
    End,
}

/// Reads lines into one buffer that is used again.
pub struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// Reads the lines of `input`.
    pub fn new(input: R) -> Self {
        Self {
            input,
            buffer: Vec::new(),
            number: 0,
        }
    }

    /// Number of the last line, from 1.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Reads the next line. A line longer than [`MAX_LINE_BYTES`] is skipped to its end.
    ///
    /// # Errors
    /// If the stream cannot be read or decompressed.
    pub fn next_line(&mut self) -> std::io::Result<Line<'_>> {
        self.buffer.clear();
        let mut limited = (&mut self.input).take(MAX_LINE_BYTES as u64 + 1);
        let n = limited.read_until(b'\n', &mut self.buffer)?;
        if n == 0 {
            return Ok(Line::End);
        }
        self.number += 1;
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
            if self.buffer.last() == Some(&b'\r') {
                self.buffer.pop();
            }
        } else if n > MAX_LINE_BYTES {
            self.skip_line()?;
            return Ok(Line::Malformed("the line is longer than 1 MiB"));
        }
        match std::str::from_utf8(&self.buffer) {
            Err(_) => Ok(Line::Malformed("the line is not valid UTF-8")),
            Ok(text) if text.contains('\0') => Ok(Line::Malformed("the line contains a NUL")),
            Ok(text) => Ok(Line::Text(text)),
        }
    }

    fn skip_line(&mut self) -> std::io::Result<()> {
        loop {
            let available = self.input.fill_buf()?;
            if available.is_empty() {
                return Ok(());
            }
            if let Some(end) = available.iter().position(|b| *b == b'\n') {
                self.input.consume(end + 1);
                return Ok(());
            }
            let n = available.len();
            self.input.consume(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn read_all(bytes: Vec<u8>) -> String {
        let mut text = String::new();
        decompress(Box::new(std::io::Cursor::new(bytes)))
            .and_then(|mut r| r.read_to_string(&mut text))
            .expect("readable");
        text
    }

    #[test]
    fn formats_are_told_by_magic() {
        assert_eq!(read_all(b"a\nb\n".to_vec()), "a\nb\n");
        assert_eq!(read_all(Vec::new()), "");
        assert_eq!(
            read_all(zstd::encode_all(&b"zst"[..], 3).expect("zstd")),
            "zst"
        );
        let gzip = |text: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            encoder.write_all(text).expect("write");
            encoder.finish().expect("finish")
        };
        let two_members = [gzip(b"one "), gzip(b"two")].concat();
        assert_eq!(read_all(two_members), "one two");
    }

    #[test]
    fn truncated_gzip_is_an_error() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
        encoder.write_all(&[7; 5000]).expect("write");
        let mut bytes = encoder.finish().expect("finish");
        bytes.truncate(bytes.len() - 9);
        let mut out = Vec::new();
        let result = decompress(Box::new(std::io::Cursor::new(bytes)))
            .and_then(|mut r| r.read_to_end(&mut out));
        assert!(result.is_err());
    }

    #[test]
    fn hostile_lines() {
        let mut bytes = b"ok\r\n\xff\xfe\n".to_vec();
        bytes.extend(std::iter::repeat_n(b'x', MAX_LINE_BYTES * 2));
        bytes.extend(b"\nnul\0\nlast");
        let mut lines = Lines::new(std::io::Cursor::new(bytes));
        assert_eq!(lines.next_line().expect("io"), Line::Text("ok"));
        assert!(matches!(lines.next_line().expect("io"), Line::Malformed(_)));
        assert!(matches!(lines.next_line().expect("io"), Line::Malformed(_)));
        assert!(matches!(lines.next_line().expect("io"), Line::Malformed(_)));
        assert_eq!(lines.next_line().expect("io"), Line::Text("last"));
        assert_eq!(lines.number(), 5);
        assert_eq!(lines.next_line().expect("io"), Line::End);
    }
}
