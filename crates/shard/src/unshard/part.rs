//! Parts of an encoded matrix, read and verified in ranges, and rounding of lossy ones.

use std::ops::Range;

use half::{bf16, f16};
use sws_format::Extent;
use sws_kernels::{Matrix, SourceDtype as Numbers};
use xxhash_rust::xxh3::xxh3_64;

use crate::ShardError;
use crate::direct::{SourceFile, buffer};

/// A part that is read in ranges. Each range is verified before it is returned.
pub(super) struct RangedPart<'a> {
    source: SourceFile,
    pub(super) extent: &'a Extent,
    /// Range held in memory, in whole checksum runs.
    held: Range<u64>,
    bytes: Vec<u8>,
}

impl<'a> RangedPart<'a> {
    pub(super) fn new(source: SourceFile, extent: &'a Extent) -> RangedPart<'a> {
        RangedPart { source, extent, held: 0..0, bytes: Vec::new() }
    }

    /// Returns the bytes of `range`; `None` if they are damaged.
    pub(super) fn read(&mut self, range: Range<u64>) -> Result<Option<Vec<u8>>, ShardError> {
        if range.is_empty() {
            return Ok(Some(Vec::new()));
        }
        if range.end > self.extent.len {
            return Ok(None);
        }
        if range.start < self.held.start || range.end > self.held.end {
            let check_len = self.extent.check_len;
            let first = range.start / check_len;
            let start = first * check_len;
            let end = range.end.next_multiple_of(check_len).min(self.extent.len);
            let len = (end - start) as usize;
            let mut buffer = buffer(SourceFile::room(len))?;
            let at = self.source.read(self.extent.offset + start, len, &mut buffer)?;
            let runs = buffer[at.clone()].chunks(check_len as usize);
            let checks = &self.extent.checks[first as usize..];
            if !runs.zip(checks).all(|(run, check)| xxh3_64(run) == *check) {
                return Ok(None);
            }
            self.bytes.clear();
            self.bytes.extend_from_slice(&buffer[at]);
            self.held = start..end;
        }
        let from = (range.start - self.held.start) as usize;
        Ok(Some(self.bytes[from..from + (range.end - range.start) as usize].to_vec()))
    }
}

/// Decodes rows of a lossy encoding to the nearest numbers of the checkpoint's type.
pub(super) fn round(rows: &Matrix, to: Numbers, out: &mut Vec<u8>) {
    let mut wide = vec![0.0; rows.cols()];
    for row in 0..rows.row_count() {
        rows.decode_row(row, &mut wide);
        match to {
            Numbers::F32 => out.extend(wide.iter().flat_map(|w| w.to_le_bytes())),
            Numbers::F16 => out.extend(wide.iter().flat_map(|w| f16::from_f32(*w).to_le_bytes())),
            Numbers::Bf16 => out.extend(wide.iter().flat_map(|w| bf16::from_f32(*w).to_le_bytes())),
            Numbers::E4m3 => unreachable!("packed codes have no error"),
        }
    }
}
