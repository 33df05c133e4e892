//! The parts of a tensor as they are written: checksums on the way, small parts kept for later.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use sws_kernels::{EncodedRows, Encoding, ErrorSums};
use xxhash_rust::xxh3::Xxh3Default;

use super::ShardError;
use super::direct::Output;
use super::layout::TENSOR_ALIGN;
use crate::{ErrorNorms, Extent, PieceKind, Tensor, check_len};

/// What the smaller parts of a tensor may hold in memory while the first part is written.
const SPILL: usize = 2 << 20;

/// Where a tensor goes.
pub(super) struct Target<'a> {
    /// What its piece is.
    pub(super) kind: PieceKind,
    /// The index of the shard among the files of the new manifest.
    pub(super) file: u32,
    /// The shard.
    pub(super) out: &'a mut Output,
    /// The name of the shard while it is written.
    pub(super) path: &'a Path,
    /// Whether spectral norms are wanted of what is encoded.
    pub(super) norms: bool,
}

/// A part being written.
pub(super) struct Writing {
    extent: Extent,
    hasher: Xxh3Default,
    /// Bytes hashed since the last checksum.
    run: u64,
}

impl Writing {
    /// A part that will have `len` bytes.
    pub(super) fn begin(tensor: &Tensor, index: usize, len: u64, target: &Target) -> Writing {
        let rows = part_rows(tensor, index, len);
        let row_len = len.checked_div(rows).unwrap_or(0);
        let extent = Extent {
            file: target.file,
            offset: target.out.position(),
            len,
            check_len: check_len(row_len, rows, target.kind),
            checks: Vec::new(),
        };
        Writing { extent, hasher: Xxh3Default::new(), run: 0 }
    }

    pub(super) fn write(&mut self, out: &mut Output, mut bytes: &[u8]) -> Result<(), ShardError> {
        out.write(bytes)?;
        while !bytes.is_empty() {
            let n = (self.extent.check_len - self.run).min(bytes.len() as u64);
            self.hasher.update(&bytes[..n as usize]);
            bytes = &bytes[n as usize..];
            self.run += n;
            if self.run == self.extent.check_len {
                self.check();
            }
        }
        Ok(())
    }

    /// Ends the part; the next one begins at an aligned place.
    pub(super) fn end(mut self, out: &mut Output) -> Result<Extent, ShardError> {
        if self.run > 0 {
            self.check();
        }
        debug_assert_eq!(out.position(), self.extent.offset + self.extent.len);
        out.pad(TENSOR_ALIGN)?;
        Ok(self.extent)
    }

    fn check(&mut self) {
        self.extent.checks.push(self.hasher.digest());
        self.hasher.reset();
        self.run = 0;
    }
}

/// The rows that checksums go by. The table and the patches of bf12 are always read whole, but
/// patches can be many: they are checked as if each byte were a row.
fn part_rows(tensor: &Tensor, index: usize, len: u64) -> u64 {
    let (rows, _) = tensor.matrix_shape();
    match (tensor.encoding, index) {
        (Some(Encoding::Bf12), 1) => 1,
        (Some(Encoding::Bf12), 2) => len,
        (Some(Encoding::Fp8), 1) => rows.div_ceil(128),
        _ => rows,
    }
}

/// What comes with the rows and stands behind them: scales, patches, and the account of errors.
pub(super) struct Side {
    /// bf12: where each row's patches begin.
    offsets: Spill,
    /// bf12: the patches; else the scales.
    rest: Spill,
    error: Option<ErrorSums>,
    /// bf12: escapes so far.
    pub(super) escaped: u64,
}

impl Side {
    /// `shard` names the files that hold what is too much for memory.
    pub(super) fn new(encoding: Encoding, measured: bool, shard: &Path) -> Side {
        let mut offsets = Spill::new(shard, "offsets");
        if encoding == Encoding::Bf12 {
            offsets.memory.extend(0u32.to_le_bytes());
        }
        let rest = Spill::new(shard, "rest");
        Side { offsets, rest, error: measured.then(ErrorSums::default), escaped: 0 }
    }

    /// Adds the next rows.
    pub(super) fn push(&mut self, block: &EncodedRows) -> Result<(), ShardError> {
        for n in &block.escapes {
            self.escaped += u64::from(*n);
            // The caller gives up on bf12 before this wraps.
            self.offsets.push(&(self.escaped as u32).to_le_bytes())?;
        }
        self.rest.push(&block.exponents)?;
        self.rest.push(&block.parts[1])?;
        if let Some(error) = &mut self.error {
            error.difference += block.error.difference;
            error.total += block.error.total;
            error.max = error.max.max(block.error.max);
        }
        Ok(())
    }

    pub(super) fn len(&self) -> u64 {
        self.offsets.len() + self.rest.len()
    }

    /// What was lost, if anything was.
    pub(super) fn error(&self) -> Option<ErrorNorms> {
        self.error.map(|sums| ErrorNorms {
            relative: sums.relative(),
            max: sums.max,
            spectral: None,
            spectral_error: None,
        })
    }

    /// Hands out everything in order, in pieces no longer than `buffer`.
    pub(super) fn drain(
        self,
        buffer: &mut [u8],
        mut to: impl FnMut(&[u8]) -> Result<(), ShardError>,
    ) -> Result<(), ShardError> {
        self.offsets.drain(buffer, &mut to)?;
        self.rest.drain(buffer, &mut to)
    }
}

/// Bytes in memory up to a bound, and in a nameless file beyond it.
struct Spill {
    path: PathBuf,
    memory: Vec<u8>,
    file: Option<(File, u64)>,
}

impl Spill {
    fn new(shard: &Path, what: &str) -> Spill {
        // The ending stays that of unfinished files, should a kill hit before the name is gone.
        let mut path = shard.to_owned();
        let name = shard.file_stem().unwrap_or_default().to_string_lossy();
        let ending = shard.extension().unwrap_or_default().to_string_lossy();
        path.set_file_name(format!("{name}.{what}.{ending}"));
        Spill { path, memory: Vec::new(), file: None }
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), ShardError> {
        if self.memory.len() + bytes.len() > SPILL {
            self.spill()?;
        }
        self.memory.extend_from_slice(bytes);
        Ok(())
    }

    fn spill(&mut self) -> Result<(), ShardError> {
        let failed = |e| ShardError::writing(&self.path, e);
        if self.file.is_none() {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true);
            let file = options.open(&self.path).map_err(failed)?;
            std::fs::remove_file(&self.path).map_err(failed)?;
            self.file = Some((file, 0));
        }
        if let Some((file, len)) = &mut self.file {
            file.write_all(&self.memory).map_err(failed)?;
            *len += self.memory.len() as u64;
            self.memory.clear();
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.file.as_ref().map_or(0, |(_, len)| *len) + self.memory.len() as u64
    }

    fn drain(
        self,
        buffer: &mut [u8],
        to: &mut impl FnMut(&[u8]) -> Result<(), ShardError>,
    ) -> Result<(), ShardError> {
        if let Some((mut file, len)) = self.file {
            let failed = |e| ShardError::reading(&self.path, e);
            file.rewind().map_err(failed)?;
            let mut left = len;
            while left > 0 {
                let n = left.min(buffer.len() as u64) as usize;
                file.read_exact(&mut buffer[..n]).map_err(failed)?;
                to(&buffer[..n])?;
                left -= n as u64;
            }
        }
        to(&self.memory)
    }
}
