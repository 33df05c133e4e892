//! Reads the fields of a header in order, within its limits.

use std::io::{self, Read};

use super::{GgufError, LIST, MAX_GGUF_HEADER, TEXT};
use crate::Value;

/// Number of bytes that are skipped at a time.
const STEP: usize = 4096;

pub(super) struct GgufCursor<R> {
    from: R,
    at: u64,
    /// End of the file, or of the part that may be read.
    end: u64,
    file_len: u64,
}

/// The start of a list.
pub(super) struct List {
    /// Type of its elements.
    pub(super) kind: u32,
    /// Minimum bytes of an element; the exact size for a number.
    pub(super) least: u64,
    /// Number of elements. The remaining bytes have room for them.
    pub(super) count: u64,
}

impl<R: Read> GgufCursor<R> {
    pub(super) fn new(from: R, file_len: u64) -> GgufCursor<R> {
        GgufCursor { from, at: 0, end: file_len.min(MAX_GGUF_HEADER), file_len }
    }

    /// Number of bytes read.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Maximum number of remaining bytes of the header.
    pub(super) fn left(&self) -> u64 {
        self.end - self.at
    }

    pub(super) fn array<const N: usize>(
        &mut self,
        within: &'static str,
    ) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, within)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, within: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(within)?))
    }

    pub(super) fn u64(&mut self, within: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(within)?))
    }

    /// A text: its length and its bytes.
    pub(super) fn text(&mut self, within: &'static str) -> Result<String, GgufError> {
        let len = self.u64(within)?;
        self.check(len, within)?;
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes, within)?;
        String::from_utf8(bytes).map_err(|_| GgufError::Text)
    }

    pub(super) fn skip_text(&mut self, within: &'static str) -> Result<(), GgufError> {
        let len = self.u64(within)?;
        self.skip(len, within)
    }

    pub(super) fn skip(&mut self, len: u64, within: &'static str) -> Result<(), GgufError> {
        self.check(len, within)?;
        let mut bytes = [0; STEP];
        let mut left = len;
        while left > 0 {
            let n = left.min(STEP as u64);
            self.fill(&mut bytes[..n as usize], within)?;
            left -= n;
        }
        Ok(())
    }

    /// A number or a truth value.
    pub(super) fn number(&mut self, kind: u32) -> Result<Value, GgufError> {
        const NUMBER: &str = "a number";
        Ok(match kind {
            0 => Value::Int(u8::from_le_bytes(self.array(NUMBER)?).into()),
            1 => Value::Int(i8::from_le_bytes(self.array(NUMBER)?).into()),
            2 => Value::Int(u16::from_le_bytes(self.array(NUMBER)?).into()),
            3 => Value::Int(i16::from_le_bytes(self.array(NUMBER)?).into()),
            4 => Value::Int(self.u32(NUMBER)?.into()),
            5 => Value::Int(i32::from_le_bytes(self.array(NUMBER)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(NUMBER)?).into()),
            7 => match self.array::<1>(NUMBER)? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [other] => return Err(GgufError::Bool(other)),
            },
            10 => Value::Int(self.u64(NUMBER)?.into()),
            11 => Value::Int(i64::from_le_bytes(self.array(NUMBER)?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array(NUMBER)?)),
            _ => return Err(GgufError::Kind(kind)),
        })
    }

    pub(super) fn list_start(&mut self) -> Result<List, GgufError> {
        let kind = self.u32("a list")?;
        let count = self.u64("a list")?;
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            TEXT | 10..=12 => 8,
            LIST => 12,
            _ => return Err(GgufError::Kind(kind)),
        };
        let most = self.left() / least;
        match count > most {
            true => Err(GgufError::TooMany { what: "elements of a list", count, most }),
            false => Ok(List { kind, least, count }),
        }
    }

    fn fill(&mut self, bytes: &mut [u8], within: &'static str) -> Result<(), GgufError> {
        self.check(bytes.len() as u64, within)?;
        self.from.read_exact(bytes).map_err(|cause| match cause.kind() {
            io::ErrorKind::UnexpectedEof => GgufError::Ends { within },
            _ => GgufError::Read(cause),
        })?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn check(&self, len: u64, within: &'static str) -> Result<(), GgufError> {
        match len > self.left() {
            false => Ok(()),
            true if self.end < self.file_len && len <= self.file_len - self.at => {
                Err(GgufError::TooLong { limit: self.end })
            }
            true => Err(GgufError::Ends { within }),
        }
    }
}
