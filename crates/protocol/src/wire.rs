//! Reading and writing the fields of a message.

use crate::ProtocolError;
use crate::frame::PREFIX;

/// Writes one frame into a byte vector; the length prefix is filled in at the end.
pub(crate) struct Writer<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Writer<'a> {
    pub fn new(out: &'a mut Vec<u8>, kind: u8) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; PREFIX]);
        out.push(kind);
        Self { out, start }
    }

    pub fn finish(self) {
        let length = (self.out.len() - self.start - PREFIX) as u32;
        self.out[self.start..self.start + PREFIX].copy_from_slice(&length.to_le_bytes());
    }

    pub fn bool(&mut self, v: bool) {
        self.out.push(u8::from(v));
    }

    pub fn u16(&mut self, v: u16) {
        self.out.extend_from_slice(&v.to_le_bytes());
    }

    pub fn u32(&mut self, v: u32) {
        self.out.extend_from_slice(&v.to_le_bytes());
    }

    pub fn u64(&mut self, v: u64) {
        self.out.extend_from_slice(&v.to_le_bytes());
    }

    pub fn f64(&mut self, v: f64) {
        self.out.extend_from_slice(&v.to_le_bytes());
    }

    pub fn bytes(&mut self, v: &[u8]) {
        self.out.extend_from_slice(v);
    }

    pub fn str(&mut self, v: &str) {
        self.u32(v.len() as u32);
        self.bytes(v.as_bytes());
    }

    pub fn f32s(&mut self, values: &[f32]) {
        self.out.reserve(values.len() * 4);
        for v in values {
            self.out.extend_from_slice(&v.to_le_bytes());
        }
    }
}

/// Appends a message of nothing but an id.
pub(crate) fn id_only(out: &mut Vec<u8>, kind: u8, id: u64) {
    let mut w = Writer::new(out, kind);
    w.u64(id);
    w.finish();
}

/// Reads the fields of one payload.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    pub fn take(&mut self, n: usize, field: &'static str) -> Result<&'a [u8], ProtocolError> {
        let (head, rest) = self
            .rest
            .split_at_checked(n)
            .ok_or(ProtocolError::Truncated(field))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], ProtocolError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(ProtocolError::Truncated(field))?;
        self.rest = rest;
        Ok(*head)
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8, ProtocolError> {
        Ok(self.array::<1>(field)?[0])
    }

    pub fn bool(&mut self, field: &'static str) -> Result<bool, ProtocolError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(ProtocolError::OutOfRange(field)),
        }
    }

    pub fn u16(&mut self, field: &'static str) -> Result<u16, ProtocolError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32, ProtocolError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64, ProtocolError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub fn f64(&mut self, field: &'static str) -> Result<f64, ProtocolError> {
        Ok(f64::from_le_bytes(self.array(field)?))
    }

    pub fn digest(&mut self, field: &'static str) -> Result<[u8; 32], ProtocolError> {
        self.array(field)
    }

    /// A count of items of which each takes at least `least` bytes: bounded by what is left, so
    /// that a vector for them can be reserved.
    pub fn count(&mut self, least: usize, field: &'static str) -> Result<usize, ProtocolError> {
        let n = self.u32(field)? as usize;
        if n.checked_mul(least)
            .is_none_or(|bytes| bytes > self.rest.len())
        {
            return Err(ProtocolError::Truncated(field));
        }
        Ok(n)
    }

    pub fn str(&mut self, field: &'static str) -> Result<&'a str, ProtocolError> {
        let n = self.u32(field)? as usize;
        str::from_utf8(self.take(n, field)?).map_err(|_| ProtocolError::NotUtf8(field))
    }

    pub fn string(&mut self, field: &'static str) -> Result<String, ProtocolError> {
        self.str(field).map(str::to_owned)
    }

    pub fn finish(self) -> Result<(), ProtocolError> {
        match self.rest.len() {
            0 => Ok(()),
            n => Err(ProtocolError::Trailing(n)),
        }
    }
}
