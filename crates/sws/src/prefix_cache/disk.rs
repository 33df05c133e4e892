//! The prefix cache on disk, for a later run.

use std::path::Path;
use std::{env, fs, io};

use sws_kernels::ARITHMETIC;
use sws_model::Prefix;
use sws_store::{BlobDevice, BlobName, Blobs, BlobsError};

use crate::prefix_cache::PrefixEntry;
use crate::{Model, Options};

/// Bytes of the names of as many files as a directory has, and of files on their way.
const HEAP: u64 = 16 << 20;

/// Prefixes on disk: blocks of tokens, and the ends of texts. Their names depend on the
/// model, the program, the owner's key and all tokens from the first on.
#[derive(Debug)]
pub struct PrefixDisk {
    blobs: Blobs,
    /// The names from which those of each owner's blocks follow.
    owners: Vec<BlobName>,
    /// False once the disk refused a file.
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
    /// Tokens of prompts that were read instead of computed.
    pub tokens: u64,
    /// Files that were damaged, or could not be read or written.
    pub faults: u64,
}

impl PrefixDisk {
    /// Whatever decides about the numbers of a model's texts beside their tokens: its weights, the options
    /// that change numbers, and the program.
    pub fn identity(model: &Model, options: &Options) -> io::Result<Vec<String>> {
        let in_place = (!model.is_sharded()).then(|| model.dir());
        let program = env::current_exe()?;
        let about = fs::metadata(&program)?;
        Ok(vec![
            format!("{}, arithmetic {ARITHMETIC}", env!("CARGO_PKG_VERSION")),
            format!("{}, {}, {:?}", program.display(), about.len(), about.modified()?),
            model.manifest().state(in_place)?,
            format!("{:?}, {}, {}", options.kv, options.backend.name(), options.activations),
            // Stand-ins within a tolerance change numbers.
            format!("{:?}", options.streaming.tolerance),
        ])
    }

    /// Opens a private directory for at most `limit` bytes, or creates it. Texts of another
    /// [`identity`](Self::identity) are not found; `keys` has the secrets of the owners 1, 2 and so on,
    /// and the owner 0 has none.
    pub fn open(
        dir: &Path,
        limit: u64,
        identity: &[String],
        keys: &[String],
    ) -> Result<PrefixDisk, BlobsError> {
        Ok(PrefixDisk::of(Blobs::open(dir, limit)?, identity, keys))
    }

    /// As [`open`](Self::open), with files on another device than the system's.
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
        let keys = keys.iter().map(|key| base.then(key.as_bytes()));
        let owners = [base].into_iter().chain(keys).collect();
        let faults = blobs.faults();
        let counts =
            PrefixDiskCounts { faults: faults.len() as u64, ..PrefixDiskCounts::default() };
        let writes = true;
        PrefixDisk { blobs, owners, writes, faults, counts }
    }

    /// Bytes on the heap beside the prefixes.
    pub const fn heap() -> u64 {
        HEAP
    }

    /// Lets names depend on how a model's states are laid out, too.
    pub(crate) fn laid_out(mut self, layout: &[u8]) -> PrefixDisk {
        self.owners.iter_mut().for_each(|owner| *owner = owner.then(layout));
        self
    }

    /// Current counts.
    pub fn counts(&self) -> PrefixDiskCounts {
        let bytes = self.blobs.bytes();
        let files = self.blobs.len() as u64;
        PrefixDiskCounts { bytes, files, written: self.blobs.written(), ..self.counts }
    }

    /// Takes the errors since the last call.
    pub(crate) fn faults(&mut self) -> Vec<BlobsError> {
        std::mem::take(&mut self.faults)
    }

    /// Counts tokens that were read.
    pub(crate) fn read(&mut self, tokens: usize) {
        self.counts.tokens += tokens as u64;
    }

    /// Finds the longest prefix of an owner's prompt: whole blocks, and then an end, without which
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

    /// Reads the prefix that [`find`](Self::find) has found, into an empty prefix. Returns the number
    /// of tokens, less if a file is damaged.
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
                // What was read of a block is dropped again.
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

    /// Writes a block of a text, or its end. Returns false if all of it is there, or no more is written.
    pub(crate) fn store(&mut self, entry: &PrefixEntry) -> bool {
        let chain = self.chain(&entry.tokens, entry.owner).filter(|_| self.writes);
        let Some(chain) = chain else { return false };
        let names = names(&chain, &entry.tokens);
        self.blobs.used(&names);
        let missing = names.iter().position(|name| !self.blobs.has(name));
        let written = missing.is_some_and(|number| {
            let prefix = &entry.prefix;
            let written = self.blobs.put(&names[number], |to| match number < prefix.blocks() {
                true => prefix.write_block(number, to),
                false => prefix.write_end(to),
            });
            written.unwrap_or_else(|error| {
                // A directory in the place of a file stops no others.
                self.writes = matches!(error, BlobsError::Occupied(_));
                self.fault(error);
                false
            })
        });
        if !written {
            self.blobs.note_uses(&names);
        }
        written
    }

    fn get(
        &mut self,
        name: &BlobName,
        contents: impl FnMut(&mut dyn io::Read) -> io::Result<()>,
    ) -> bool {
        self.blobs.get(name, contents).unwrap_or_else(|error| {
            self.fault(error);
            false
        })
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

/// The names of all blocks of a text, and of its end.
fn names(chain: &[BlobName], tokens: &[u32]) -> Vec<BlobName> {
    let whole = (chain.len() - 1) * Prefix::BLOCK;
    let end = end(&chain[chain.len() - 1], &tokens[whole..]);
    chain[1..].iter().copied().chain([end]).collect()
}

/// The name of an end behind a block.
fn end(block: &BlobName, tokens: &[u32]) -> BlobName {
    block.then(&[&b"end"[..], &bytes(tokens)[..]].concat())
}

fn bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}
