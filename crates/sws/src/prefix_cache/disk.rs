//! The prefix cache on disk, for a later run.

use std::path::Path;
use std::{env, fs, io};

use sws_kernels::ARITHMETIC;
use sws_model::Prefix;
use sws_store::{BlobDevice, BlobName, Blobs, BlobsError};

use crate::prefix_cache::PrefixEntry;
use crate::{Model, Options};

/// Bytes of the file names, for the maximum number of files, and of files in flight.
const HEAP: u64 = 16 << 20;

/// The prefix cache on disk. A stored prefix consists of blocks of tokens and of its end. File
/// names depend on the model, the program, the owner's key and all tokens from the first on.
#[derive(Debug)]
pub struct PrefixDisk {
    blobs: Blobs,
    /// The part of the owners' names that depends on no layout.
    bases: Vec<BlobName>,
    /// The first link of each owner's chain of names.
    owners: Vec<BlobName>,
    /// False once the disk has refused a file.
    writes: bool,
    faults: Vec<BlobsError>,
    counts: PrefixDiskCounts,
}

/// Counts of the prefix cache on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixDiskCounts {
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes written by this process.
    pub written: u64,
    /// Prompt tokens that were read instead of computed.
    pub tokens: u64,
    /// Files that were damaged, or could not be read or written.
    pub faults: u64,
}

impl PrefixDisk {
    /// Everything that determines the computed states of given tokens: the model's weights, the
    /// options that change results, and the program.
    pub fn identity(model: &Model, options: &Options) -> io::Result<Vec<String>> {
        let in_place = if model.is_sharded() { None } else { Some(model.dir()) };
        let program = env::current_exe()?;
        let about = fs::metadata(&program)?;
        Ok(vec![
            format!("{}, arithmetic {ARITHMETIC}", env!("CARGO_PKG_VERSION")),
            format!("{}, {}, {:?}", program.display(), about.len(), about.modified()?),
            model.manifest().state(in_place)?,
            format!("{:?}, {}, {}", options.kv, options.backend.name(), options.activations),
            // Stand-ins within a tolerance change results.
            format!("{:?}", options.streaming.tolerance),
        ])
    }

    /// Opens a private directory for at most `limit` bytes, or creates it. Prefixes of another
    /// [`identity`](Self::identity) are not found. `keys` has the secrets of the owners 1, 2 and so
    /// on; the owner 0 has none.
    pub fn open(
        dir: &Path,
        limit: u64,
        identity: &[String],
        keys: &[String],
    ) -> Result<PrefixDisk, BlobsError> {
        Ok(PrefixDisk::of(Blobs::open(dir, limit)?, identity, keys))
    }

    /// Like [`open`](Self::open), with files on another device than the system's.
    pub fn open_on(
        dir: &Path,
        limit: u64,
        identity: &[String],
        keys: &[String],
        device: Box<dyn BlobDevice>,
    ) -> Result<PrefixDisk, BlobsError> {
        Ok(PrefixDisk::of(Blobs::open_on(dir, limit, device)?, identity, keys))
    }

    fn of(mut blobs: Blobs, identity: &[String], keys: &[String]) -> PrefixDisk {
        let parts: Vec<&[u8]> = identity.iter().map(String::as_bytes).collect();
        let base = BlobName::of(&parts);
        let mut bases = vec![base];
        for key in keys {
            bases.push(base.then(key.as_bytes()));
        }
        let owners = bases.clone();
        let faults = blobs.faults();
        let counts =
            PrefixDiskCounts { faults: faults.len() as u64, ..PrefixDiskCounts::default() };
        let writes = true;
        PrefixDisk { blobs, bases, owners, writes, faults, counts }
    }

    /// Heap bytes of the disk cache, without the prefixes.
    pub const fn heap() -> u64 {
        HEAP
    }

    /// Makes the names depend on the layout of a model's states, too.
    pub(crate) fn laid_out(mut self, layout: &[u8]) -> PrefixDisk {
        self.owners = self.bases.iter().map(|base| base.then(layout)).collect();
        self
    }

    /// Current counts.
    pub fn counts(&self) -> PrefixDiskCounts {
        let bytes = self.blobs.bytes();
        let files = self.blobs.len() as u64;
        PrefixDiskCounts { bytes, files, written: self.blobs.written(), ..self.counts }
    }

    /// Returns the errors since the last call.
    pub(crate) fn faults(&mut self) -> Vec<BlobsError> {
        std::mem::take(&mut self.faults)
    }

    /// Counts tokens that were read.
    pub(crate) fn read(&mut self, tokens: usize) {
        self.counts.tokens += tokens as u64;
    }

    /// Finds the longest prefix of an owner's prompt: whole blocks, then an end. A prefix that
    /// cannot be cut is useless without its end. Returns the number of tokens.
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

    /// Reads the prefix found by [`find`](Self::find) into an empty prefix. Returns the number of
    /// tokens, which is smaller if a file is damaged.
    pub(crate) fn load(
        &mut self,
        prefix: &mut Prefix,
        (tokens, owner): (&[u32], u64),
        goes_back: bool,
    ) -> usize {
        let Some(chain) = self.chain(tokens, owner) else { return 0 };
        let mut names = names(&chain, tokens);
        let end = names.pop().filter(|end| !goes_back || self.blobs.has(end));
        for (number, name) in names.iter().enumerate() {
            if !self.get(name, |from| prefix.read_block(from)) {
                // A block that was read in part is dropped.
                let whole = number * Prefix::BLOCK;
                return if goes_back && prefix.truncate(whole) { whole } else { 0 };
            }
        }
        let whole = names.len() * Prefix::BLOCK;
        let mut read = whole;
        if let Some(end) = end {
            if self.get(&end, |from| prefix.read_end(tokens.len(), from)) {
                read = tokens.len();
                names.push(end);
            } else if !goes_back || !prefix.truncate(whole) {
                return 0;
            }
        }
        self.blobs.used(&names);
        self.blobs.note_uses(&names);
        read
    }

    /// Writes the next missing block of a prefix, or its end. Returns false if nothing is missing,
    /// or if writing has stopped.
    pub(crate) fn store(&mut self, entry: &PrefixEntry) -> bool {
        let Some(chain) = self.chain(&entry.tokens, entry.owner) else { return false };
        if !self.writes {
            return false;
        }
        let names = names(&chain, &entry.tokens);
        self.blobs.used(&names);
        let written = match names.iter().position(|name| !self.blobs.has(name)) {
            Some(number) => self.put(&names[number], &entry.prefix, number),
            None => false,
        };
        if !written {
            self.blobs.note_uses(&names);
        }
        written
    }

    /// Writes a block of a prefix, or its end after the last block. Returns false if it was not
    /// written.
    fn put(&mut self, name: &BlobName, prefix: &Prefix, number: usize) -> bool {
        let written = self.blobs.put(name, |to| match number < prefix.blocks() {
            true => prefix.write_block(number, to),
            false => prefix.write_end(to),
        });
        match written {
            Ok(written) => written,
            Err(error) => {
                // A directory in the place of one file does not affect other files.
                self.writes = matches!(error, BlobsError::Occupied(_));
                self.fault(error);
                false
            }
        }
    }

    fn get(
        &mut self,
        name: &BlobName,
        contents: impl FnMut(&mut dyn io::Read) -> io::Result<()>,
    ) -> bool {
        match self.blobs.get(name, contents) {
            Ok(found) => found,
            Err(error) => {
                self.fault(error);
                false
            }
        }
    }

    fn fault(&mut self, error: BlobsError) {
        self.counts.faults += 1;
        self.faults.push(error);
    }

    /// The owner's first name, followed by those of all whole blocks. `None` for an unknown owner.
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

/// The names of all blocks of a prefix, and of its end.
fn names(chain: &[BlobName], tokens: &[u32]) -> Vec<BlobName> {
    let whole = (chain.len() - 1) * Prefix::BLOCK;
    let end = end(&chain[chain.len() - 1], &tokens[whole..]);
    chain[1..].iter().copied().chain([end]).collect()
}

/// The name of the end that follows a block.
fn end(block: &BlobName, tokens: &[u32]) -> BlobName {
    block.then(&[&b"end"[..], &bytes(tokens)[..]].concat())
}

fn bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}
