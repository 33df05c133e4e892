//! The hashes of files on the hub: SHA-256 for large files, the git object id for small ones.

use std::io::{self, Read};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use crate::HubFile;

const BUFFER: usize = 256 << 10;

/// The hash of a file, of the kind that the hub lists.
#[derive(Clone)]
pub(crate) struct Digest(Context);

impl Digest {
    /// A hash without input yet, of the kind listed for a file.
    pub(crate) fn of(file: &HubFile) -> Digest {
        if file.hashed {
            return Digest::sha256();
        }
        // SHA-1 detects damage. An attacker who can replace a small file can also replace its
        // listed hash.
        let mut hash = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        hash.update(format!("blob {}\0", file.len).as_bytes());
        Digest(hash)
    }

    /// A SHA-256 without input yet.
    pub(crate) fn sha256() -> Digest {
        Digest(Context::new(&SHA256))
    }

    /// The hash of a file's bytes.
    pub(crate) fn of_bytes(file: &HubFile, bytes: &[u8]) -> Digest {
        let mut digest = Digest::of(file);
        digest.update(bytes);
        digest
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash in hexadecimal digits.
    pub(crate) fn hex(self) -> String {
        self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// True if the bytes of a reader are those that the hub lists.
pub(crate) fn matches(file: &HubFile, mut from: impl Read) -> io::Result<bool> {
    let mut hash = Digest::of(file);
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(hash.hex() == file.etag),
            Ok(read) => hash.update(&buffer[..read]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_git_and_of_sha256sum() {
        // `printf hello | git hash-object --stdin`, `printf hello | sha256sum`
        let git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        for (etag, hashed) in [(git, false), (sha256, true)] {
            let file = |len| HubFile { name: "x".to_owned(), len, etag: etag.to_owned(), hashed };
            assert!(matches(&file(5), &b"hello"[..]).unwrap());
            assert!(!matches(&file(5), &b"hellO"[..]).unwrap());
            assert_eq!(matches(&file(6), &b"hello"[..]).unwrap(), hashed, "git hashes the length");
        }
    }
}
