//! Writing the parts of a tensor. Checksums are computed on the way, and small parts are collected
//! for later.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use sws_format::{ErrorNorms, Extent, PieceKind, Tensor, check_len, part_rows};
use sws_kernels::{EncodedRows, Encoding, ErrorSums, OffsetWriter};
use xxhash_rust::xxh3::Xxh3Default;

use super::ShardError;
use super::direct::ShardOutput;
use super::layout::TENSOR_ALIGN;

/// Maximum size of a buffer for smaller parts, which wait in memory while the first part is
/// written.
const SPILL: usize = 2 << 20;

/// Destination of a tensor.
pub(super) struct TensorTarget<'a> {
    /// Kind of its piece.
    pub(super) kind: PieceKind,
    /// Index of the shard among the files of the new manifest.
    pub(super) file: u32,
    /// The shard.
    pub(super) out: &'a mut ShardOutput,
    /// Path of the shard while it is written.
    pub(super) path: &'a Path,
    /// True if spectral norms of encoded matrices are wanted.
    pub(super) norms: bool,
}

/// A part being written.
pub(super) struct PartWriter {
    extent: Extent,
    hasher: Xxh3Default,
    /// Bytes hashed since the last checksum.
    run: u64,
}

impl PartWriter {
    /// Begins a part of `len` bytes.
    pub(super) fn begin(
        tensor: &Tensor,
        index: usize,
        len: u64,
        target: &TensorTarget,
    ) -> PartWriter {
        let rows = part_rows(tensor.encoding, index, tensor.matrix_shape().0, len);
        let row_len = len.checked_div(rows).unwrap_or(0);
        let extent = Extent {
            file: target.file,
            offset: target.out.position(),
            len,
            check_len: check_len(row_len, rows, target.kind),
            checks: Vec::new(),
        };
        PartWriter { extent, hasher: Xxh3Default::new(), run: 0 }
    }

    pub(super) fn write(
        &mut self,
        out: &mut ShardOutput,
        mut bytes: &[u8],
    ) -> Result<(), ShardError> {
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

    /// Ends the part, and pads so that the next one is aligned.
    pub(super) fn end(mut self, out: &mut ShardOutput) -> Result<Extent, ShardError> {
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

/// Data that accumulates with the rows and is stored after them: scales and patches. Also sums up
/// the errors.
pub(super) struct Side {
    /// Offset of each row's patches.
    offsets: Spill,
    writer: OffsetWriter,
    patches: Spill,
    /// The second part, if it belongs to rows: scales, or the top of nested.
    second: Spill,
    error: Option<ErrorSums>,
    /// Bytes of patches so far.
    pub(super) escaped: u64,
}

impl Side {
    /// Creates empty parts. The names of spill files derive from `shard`.
    pub(super) fn new(encoding: Encoding, cols: u64, measured: bool, shard: &Path) -> Side {
        let mut offsets = Spill::new(shard, "offsets");
        let mut writer = OffsetWriter::new(encoding.offsets(cols));
        if encoding.has_patches() {
            offsets.memory.extend(writer.push(0));
        }
        let patches = Spill::new(shard, "patches");
        let second = Spill::new(shard, "second");
        let error = measured.then(ErrorSums::default);
        Side { offsets, writer, patches, second, error, escaped: 0 }
    }

    /// Adds the next rows.
    pub(super) fn push(&mut self, block: &EncodedRows) -> Result<(), ShardError> {
        for n in &block.escapes {
            self.escaped += u64::from(*n);
            // The caller gives up before this number overflows.
            self.offsets.push(self.writer.push(self.escaped as u32))?;
        }
        self.patches.push(&block.exponents)?;
        self.second.push(&block.parts[1])?;
        if let Some(error) = &mut self.error {
            error.difference += block.error.difference;
            error.total += block.error.total;
            error.max = error.max.max(block.error.max);
        }
        Ok(())
    }

    /// The error of the encoding, if it is measured.
    pub(super) fn error(&self) -> Option<ErrorNorms> {
        self.error.map(|sums| ErrorNorms {
            relative: sums.relative(),
            max: sums.max,
            spectral: None,
            spectral_error: None,
        })
    }

    /// The parts after those that are written, each as consecutive spills.
    pub(super) fn parts(self, encoding: Encoding, written: usize) -> Vec<Vec<Spill>> {
        let patches = vec![self.offsets, self.patches];
        // Scales of packed codes are copied later.
        let copied = usize::from(encoding.packs_codes());
        match (encoding.has_patches(), encoding.parts().len() - written - copied) {
            (_, 0) => Vec::new(),
            (true, 1) => vec![patches],
            (true, _) => vec![vec![self.second], patches],
            (false, _) => vec![vec![self.second]],
        }
    }
}

/// Bytes in memory up to a maximum, and in an unlinked file beyond it.
pub(super) struct Spill {
    path: PathBuf,
    memory: Vec<u8>,
    file: Option<(File, u64)>,
}

impl Spill {
    fn new(shard: &Path, what: &str) -> Spill {
        // The name keeps the ending of unfinished files, in case the process is killed before the
        // file is unlinked.
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
        let failed = ShardError::writing(&self.path);
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

    pub(super) fn len(&self) -> u64 {
        self.file.as_ref().map_or(0, |(_, len)| *len) + self.memory.len() as u64
    }

    /// Passes all bytes to `to`, in order and in runs no longer than `buffer`.
    pub(super) fn drain(
        self,
        buffer: &mut [u8],
        to: &mut impl FnMut(&[u8]) -> Result<(), ShardError>,
    ) -> Result<(), ShardError> {
        if let Some((mut file, len)) = self.file {
            let failed = ShardError::reading(&self.path);
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
