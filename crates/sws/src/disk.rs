//! Beginnings of texts on disk, for a later run.

use std::path::Path;

use sws_model::{KvPrecision, ModelSpec, Prefix, State};
use sws_store::{BlobName, Blobs, BlobsError};

use crate::kept::Kept;

/// Bytes of the names of as many files as a directory has.
const NAMES: u64 = 12 << 20;

/// Beginnings of texts on disk: blocks of tokens, and the ends of texts. Their names depend on the
/// model, the program, the owner's key and all tokens from the first on.
#[derive(Debug)]
pub struct KvDisk {
    blobs: Blobs,
    /// The names from which those of each owner's blocks follow.
    owners: Vec<BlobName>,
    /// False once a file could not be written.
    writes: bool,
    faults: Vec<BlobsError>,
    counts: KvDiskCounts,
}

/// Counts of beginnings on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvDiskCounts {
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes written by this process.
    pub written: u64,
    /// Tokens of prompts that were read instead of computed.
    pub tokens: u64,
    /// Files that were damaged, or could not be read or written.
    pub faults: u64,
}

impl KvDisk {
    /// Opens a private directory for at most `limit` bytes, or creates it. `identity` is whatever
    /// decides about the numbers beside the tokens, such as the model's fingerprint; `keys` has the
    /// secrets of the owners 1, 2 and so on, and the owner 0 has none.
    pub fn open(
        dir: &Path,
        limit: u64,
        identity: &[&str],
        keys: &[String],
    ) -> Result<KvDisk, BlobsError> {
        let blobs = Blobs::open(dir, limit)?;
        let words = [env!("CARGO_PKG_VERSION")].into_iter().chain(identity.iter().copied());
        let parts: Vec<&[u8]> = words.map(str::as_bytes).collect();
        let base = BlobName::of(&parts);
        let keys = keys.iter().map(|key| base.then(key.as_bytes()));
        let owners = [base].into_iter().chain(keys).collect();
        let (writes, faults, counts) = (true, Vec::new(), KvDiskCounts::default());
        Ok(KvDisk { blobs, owners, writes, faults, counts })
    }

    /// Bytes on the heap beside the beginnings: names of files, and a block of a text on its way.
    pub fn heap(spec: &ModelSpec) -> u64 {
        let limit = spec.context.min(2 * Prefix::BLOCK);
        NAMES + 2 * State::cache_bytes(spec, limit, KvPrecision::F32)
    }

    /// Current counts.
    pub fn counts(&self) -> KvDiskCounts {
        let (bytes, files) = (self.blobs.bytes(), self.blobs.len() as u64);
        KvDiskCounts { bytes, files, ..self.counts }
    }

    /// Takes the errors since the last call.
    pub(crate) fn faults(&mut self) -> Vec<BlobsError> {
        std::mem::take(&mut self.faults)
    }

    /// Counts tokens that were read.
    pub(crate) fn read(&mut self, tokens: usize) {
        self.counts.tokens += tokens as u64;
    }

    /// Finds the longest beginning of an owner's prompt: whole blocks, and then an end, without which
    /// one that cannot go back is of no use. Returns the number of tokens.
    pub(crate) fn find(&self, prompt: &[u32], owner: u64, goes_back: bool) -> usize {
        let Some(mut chain) = self.chain(prompt, owner) else { return 0 };
        let there = chain.iter().skip(1).take_while(|name| self.blobs.has(name)).count();
        chain.truncate(there + 1);
        for (blocks, name) in chain.iter().enumerate().rev() {
            let rest = &prompt[blocks * Prefix::BLOCK..];
            let most = rest.len().min(Prefix::BLOCK - 1);
            let is_end = |&tail: &usize| self.blobs.has(&end(name, &rest[..tail]));
            if let Some(tail) = (0..=most).rev().find(is_end) {
                return blocks * Prefix::BLOCK + tail;
            }
            if goes_back {
                return blocks * Prefix::BLOCK;
            }
        }
        0
    }

    /// Reads the beginning that [`find`](Self::find) has found, into an empty prefix. Returns the number
    /// of tokens, less if a file is damaged.
    pub(crate) fn load(
        &mut self,
        prefix: &mut Prefix,
        (tokens, owner): (&[u32], u64),
        goes_back: bool,
    ) -> usize {
        let Some(chain) = self.chain(tokens, owner) else { return 0 };
        for (number, name) in chain.iter().enumerate().skip(1) {
            let added = self.get(name).is_some_and(|bytes| prefix.add_block(&bytes));
            if !added {
                // What was read of a block is dropped again.
                let whole = (number - 1) * Prefix::BLOCK;
                return if goes_back && prefix.truncate(whole) { whole } else { 0 };
            }
        }
        let whole = (chain.len() - 1) * Prefix::BLOCK;
        let name = end(&chain[chain.len() - 1], &tokens[whole..]);
        if goes_back && !self.blobs.has(&name) {
            return whole;
        }
        match self.get(&name).is_some_and(|bytes| prefix.add_end(tokens.len(), &bytes)) {
            true => tokens.len(),
            false if goes_back && prefix.truncate(whole) => whole,
            false => 0,
        }
    }

    /// Writes a block of a text, or its end. Returns false if all of it is there, or no more is written.
    pub(crate) fn store(&mut self, kept: &Kept) -> bool {
        let tokens = &kept.tokens;
        let chain = self.chain(tokens, kept.owner).filter(|_| self.writes);
        let Some(chain) = chain else { return false };
        let blocks = chain.len() - 1;
        let missing = chain.iter().skip(1).position(|name| !self.blobs.has(name));
        let (name, bytes) = match missing {
            Some(number) => (chain[number + 1], kept.prefix.block(number)),
            None => {
                let name = end(&chain[blocks], &tokens[blocks * Prefix::BLOCK..]);
                if self.blobs.has(&name) {
                    return false;
                }
                (name, kept.prefix.end())
            }
        };
        match self.blobs.put(&name, &bytes) {
            Ok(true) => {
                self.counts.written += bytes.len() as u64;
                missing.is_some()
            }
            Ok(false) => false,
            Err(error) => {
                self.writes = false;
                self.fault(error);
                false
            }
        }
    }

    fn get(&mut self, name: &BlobName) -> Option<Vec<u8>> {
        match self.blobs.get(name) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.fault(error);
                None
            }
        }
    }

    fn fault(&mut self, error: BlobsError) {
        self.counts.faults += 1;
        self.faults.push(error);
    }

    /// The name before the first block, and those of all whole blocks. `None` for an unknown owner.
    fn chain(&self, tokens: &[u32], owner: u64) -> Option<Vec<BlobName>> {
        let mut last = *self.owners.get(usize::try_from(owner).ok()?)?;
        let mut chain = vec![last];
        for block in tokens.chunks_exact(Prefix::BLOCK) {
            last = last.then(&bytes(block));
            chain.push(last);
        }
        Some(chain)
    }
}

/// The name of an end behind a block.
fn end(block: &BlobName, tokens: &[u32]) -> BlobName {
    block.then(&[&b"end"[..], &bytes(tokens)[..]].concat())
}

fn bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}
