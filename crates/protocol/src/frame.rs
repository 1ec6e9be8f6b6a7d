//! Splitting a byte stream into frames.

use crate::{MAX_FRAME, ProtocolError};

/// Length prefix of a frame in bytes.
pub(crate) const PREFIX: usize = 4;

/// Bytes that have arrived, taken out frame by frame.
///
/// The buffer never holds more than what was pushed; a frame's announced length alone reserves
/// nothing.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    data: Vec<u8>,
    start: usize,
}

impl FrameBuffer {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes that have arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.data.len() {
            self.data.clear();
            self.start = 0;
        } else if self.start >= 1 << 16 && self.start * 2 >= self.data.len() {
            self.data.drain(..self.start);
            self.start = 0;
        }
        self.data.extend_from_slice(bytes);
    }

    /// Bytes that are not yet taken out.
    pub fn len(&self) -> usize {
        self.data.len() - self.start
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The payload of the next frame, if it has arrived completely.
    ///
    /// # Errors
    /// [`ProtocolError::FrameTooLong`] as soon as the length prefix is there.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, ProtocolError> {
        let pending = &self.data[self.start..];
        let Some(prefix) = pending.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > MAX_FRAME {
            return Err(ProtocolError::FrameTooLong(length));
        }
        if pending.len() < PREFIX + length {
            return Ok(None);
        }
        let begin = self.start + PREFIX;
        self.start = begin + length;
        Ok(Some(&self.data[begin..begin + length]))
    }

    /// Gives memory beyond `keep` bytes back, after a large message.
    pub fn shrink(&mut self, keep: usize) {
        if self.is_empty() && self.data.capacity() > keep {
            self.data = Vec::new();
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_arrive_in_pieces() {
        let mut stream = Vec::new();
        for payload in [&b"one"[..], b"", b"three"] {
            stream.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            stream.extend_from_slice(payload);
        }
        for step in 1..stream.len() {
            let mut buffer = FrameBuffer::new();
            let mut seen = Vec::new();
            for piece in stream.chunks(step) {
                buffer.push(piece);
                while let Some(frame) = buffer.next_frame().unwrap() {
                    seen.push(frame.to_vec());
                }
            }
            assert_eq!(seen, [b"one".to_vec(), b"".to_vec(), b"three".to_vec()]);
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_long_frame_is_refused_at_its_prefix() {
        let mut buffer = FrameBuffer::new();
        buffer.push(&u32::MAX.to_le_bytes());
        assert_eq!(
            buffer.next_frame(),
            Err(ProtocolError::FrameTooLong(u32::MAX as usize))
        );
    }
}
