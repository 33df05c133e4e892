//! Hashes for names and signatures.

use ring::digest::{Digest, SHA256, digest};

/// The SHA-256 of these bytes, in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A short name for a directory or file, derived from this text.
pub(crate) fn short(text: &[u8]) -> String {
    sha256(text)[..32].to_owned()
}

/// A finished hash in hexadecimal digits.
pub(crate) fn finished(digest: Digest) -> String {
    hex(digest.as_ref())
}
