//! Names of private files.

use std::fmt;

/// The name of a file: a hash of the inputs from which its contents were computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlobName([u8; 32]);

impl BlobName {
    /// The name for these inputs. The boundaries between parts count, too.
    pub fn of(parts: &[&[u8]]) -> BlobName {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        BlobName(*hasher.finalize().as_bytes())
    }

    /// The name derived from this one and from these bytes.
    pub fn then(&self, bytes: &[u8]) -> BlobName {
        BlobName::of(&[&self.0, bytes])
    }

    pub(super) fn parse(word: &str) -> Option<BlobName> {
        if word.len() != 64 || !word.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut name = [0; 32];
        for (byte, pair) in name.iter_mut().zip(word.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(BlobName(name))
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
