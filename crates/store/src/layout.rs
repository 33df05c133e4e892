//! Layout of a read: the bytes to read from files and their places in the slot.

use std::borrow::Cow;
use std::ops::Range;

use sws_format::{Extent, Manifest, PieceId, PieceKind, Tensor};
use sws_kernels::{Encoding, Matrix, MatrixError, PartRows};

use crate::SLOT_ALIGN;

/// Largest gap between extents of one file that are read as one: reading 64 KiB more takes less
/// time than another read.
const COALESCE: u64 = 64 << 10;
/// Smallest tensor that costs no more to read by itself than together with others.
const LARGE: u64 = 1 << 20;
/// Largest number of blocks in a part without checksums.
const MOST_BLOCKS: u64 = 1 << 20;
const ALIGN: u64 = SLOT_ALIGN as u64;

/// A piece, or part of one, to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Read {
    /// A whole piece.
    Piece(PieceId),
    /// The inexact copy of a piece.
    StandIn(PieceId),
    /// All parts of a piece that its inexact copy does not share.
    Beside(PieceId),
    /// One tensor of a piece, by its index in the piece.
    Tensor(PieceId, usize),
    /// Some rows of a tensor of a piece.
    Rows {
        /// The piece.
        piece: PieceId,
        /// Index of the tensor in the piece.
        tensor: usize,
        /// The rows.
        rows: Range<u64>,
        /// Parts of the encoding to read.
        parts: Parts,
    },
}

/// Parts of an encoding to read for a range of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parts {
    /// All parts.
    All,
    /// The first part, which is the large one. The caller holds the others.
    First,
    /// All other parts: table and patches, or scales. One checksum covers many more of their rows
    /// than of the first part's, so they would be read again with every block of rows.
    Rest,
}

impl Read {
    /// Piece that is read from.
    pub fn piece(&self) -> PieceId {
        match self {
            Read::Piece(id) | Read::StandIn(id) | Read::Beside(id) | Read::Tensor(id, _) => *id,
            Read::Rows { piece, .. } => *piece,
        }
    }
}

/// Reason that a read cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum LayoutError {
    /// No such piece.
    #[error("the model has no piece `{0}`; `sws inspect` lists them")]
    NoPiece(PieceId),
    /// No such stand-in.
    #[error("the piece `{0}` has no stand-in; shard the model with stand-ins to have some")]
    NoStandIn(PieceId),
    /// No such tensor.
    #[error("the piece `{0}` has no tensor {1}")]
    NoTensor(PieceId, usize),
    /// No such rows.
    #[error("tensor {tensor} has {rows} rows; there are none from {start} to {end}")]
    NoRows {
        /// Name of the tensor.
        tensor: String,
        /// Number of rows it has.
        rows: u64,
        start: u64,
        /// The row after the last one requested.
        end: u64,
    },
    /// The manifest is inconsistent.
    #[error("the manifest is wrong about tensor {tensor}: {what}; make the shards again")]
    Manifest {
        /// Name of the tensor.
        tensor: String,
        /// Description of the problem.
        what: &'static str,
    },
}

/// Sources of the bytes of a [`Read`] and their destinations in a slot.
#[derive(Clone, Debug)]
pub struct PieceLayout {
    read: Read,
    segments: Vec<Segment>,
    slot_len: usize,
    tensors: Vec<TensorLayout>,
    blocks: Vec<SlotBlock>,
}

/// An aligned range of a file, read into an aligned range of the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Index of the file.
    pub file: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Length in the slot. The last page of a file may exist only in part.
    pub len: usize,
    /// Number of these bytes that the file has.
    pub present: usize,
    /// Offset in the slot.
    pub at: usize,
}

/// A range of the slot with one checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotBlock {
    pub(crate) slot: Range<usize>,
    pub(crate) file: u32,
    pub(crate) offset: u64,
    /// Expected checksum; `None` for files without checksums.
    pub(crate) check: Option<u64>,
    /// Index into the layout's tensors.
    pub(crate) tensor: usize,
}

/// Location of a tensor in the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLayout {
    /// Index in the piece or stand-in.
    pub index: usize,
    /// Name of the tensor.
    pub name: String,
    /// Encoding of the stored bytes, as in [`Tensor::encoding`].
    pub encoding: Option<Encoding>,
    /// Rows of the whole tensor: the product of all dimensions but the last.
    pub rows: u64,
    /// Columns: the last dimension.
    pub cols: u64,
    /// Rows in the slot: those requested, extended to whole checksum blocks.
    pub range: Range<u64>,
    /// Range of each part of the encoding in the slot; `None` if it was not requested.
    pub parts: Vec<Option<Range<usize>>>,
}

impl TensorLayout {
    /// Returns the bytes of a part in `slot`; `None` if it was not read.
    pub fn part<'s>(&self, slot: &'s [u8], part: usize) -> Option<&'s [u8]> {
        slot.get(self.parts.get(part)?.clone()?)
    }

    /// Returns the bytes of all parts in `slot`; `None` if one was not read.
    pub fn parts<'s>(&self, slot: &'s [u8]) -> Option<Vec<&'s [u8]>> {
        (0..self.parts.len()).map(|part| self.part(slot, part)).collect()
    }

    /// Returns the rows in `slot` as a matrix; `None` if a part was not read, or if no kernel
    /// supports the numbers of the tensor.
    pub fn matrix<'s>(&self, slot: &'s [u8]) -> Option<Result<Matrix<'s>, MatrixError>> {
        let range = size(self.range.start)..size(self.range.end);
        let parts = self.parts(slot)?;
        Some(Matrix::block(self.encoding?, size(self.rows), size(self.cols), range, &parts))
    }
}

impl PieceLayout {
    /// Lays out `read`.
    pub fn new(manifest: &Manifest, read: Read) -> Result<PieceLayout, LayoutError> {
        let id = read.piece();
        let piece = manifest.piece(id).ok_or(LayoutError::NoPiece(id))?;
        let stand_in = match &read {
            Read::StandIn(_) | Read::Beside(_) => {
                piece.stand_in_tensors().ok_or(LayoutError::NoStandIn(id))?
            }
            _ => Cow::default(),
        };
        let tensors: Vec<(usize, &Tensor)> = match &read {
            Read::Piece(_) | Read::Beside(_) => piece.tensors.iter().enumerate().collect(),
            Read::StandIn(_) => stand_in.iter().enumerate().collect(),
            &(Read::Tensor(_, index) | Read::Rows { tensor: index, .. }) => {
                let tensor = piece.tensors.get(index);
                vec![(index, tensor.ok_or(LayoutError::NoTensor(id, index))?)]
            }
        };
        let shared = match &read {
            Read::Beside(_) => &stand_in[..],
            _ => &[],
        };
        let mut builder = Builder { manifest, shared, runs: Vec::new(), tensors: Vec::new() };
        for (index, tensor) in tensors {
            let (rows, parts) = match &read {
                Read::Rows { rows, parts, .. } => (Some(rows.clone()), *parts),
                _ => (None, Parts::All),
            };
            builder.add(index, tensor, rows, parts)?;
        }
        builder.finish(read)
    }

    /// The read that is laid out.
    pub fn read(&self) -> &Read {
        &self.read
    }

    /// Length of the slot that it needs.
    pub fn slot_len(&self) -> usize {
        self.slot_len
    }

    /// Segments to read, in the order of the slot.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Locations of the tensors, in the order of the piece.
    pub fn tensors(&self) -> &[TensorLayout] {
        &self.tensors
    }

    /// Blocks with one checksum each, in the order of the slot.
    pub(crate) fn blocks(&self) -> &[SlotBlock] {
        &self.blocks
    }
}

/// A requested range of a file: whole checksum blocks of one part.
struct BlockRun<'m> {
    extent: &'m Extent,
    /// Range relative to the first byte of the extent.
    bytes: Range<u64>,
    tensor: usize,
    part: usize,
    /// The part of `bytes` that holds the rows, relative to the extent as well.
    view: Range<u64>,
}

impl BlockRun<'_> {
    /// The file, and the offset of the first byte in it.
    fn place(&self) -> (u32, u64) {
        (self.extent.file, self.extent.offset + self.bytes.start)
    }
}

struct Builder<'m> {
    manifest: &'m Manifest,
    /// Tensors whose parts are left out.
    shared: &'m [Tensor],
    runs: Vec<BlockRun<'m>>,
    tensors: Vec<TensorLayout>,
}

impl<'m> Builder<'m> {
    fn add(
        &mut self,
        index: usize,
        tensor: &'m Tensor,
        wanted: Option<Range<u64>>,
        select: Parts,
    ) -> Result<(), LayoutError> {
        let wrong = |what| LayoutError::Manifest { tensor: tensor.name.clone(), what };
        let (cols, outer) = tensor.shape.split_last().map_or((1, &[][..]), |(c, r)| (*c, r));
        let mut rows = 1u64;
        for &dim in outer {
            let Some(more) = rows.checked_mul(dim) else {
                return Err(wrong("its shape is larger than any memory"));
            };
            rows = more;
        }
        let kinds = tensor.encoding.map_or(1, |encoding| encoding.parts().len());
        if tensor.parts.len() != kinds {
            return Err(wrong("the number of its parts is not its encoding's"));
        }
        for extent in &tensor.parts {
            self.check_extent(extent).map_err(wrong)?;
        }
        // The bytes of a part that hold a range of rows.
        let part_rows = |part: usize, range: Range<u64>| match tensor.encoding {
            Some(encoding) => encoding.parts()[part].rows(range, cols),
            None if range == (0..rows) => Some(PartRows::Whole),
            None => {
                let row = tensor.parts[part].len.checked_div(rows)?;
                Some(PartRows::Bytes(row.checked_mul(range.start)?..row.checked_mul(range.end)?))
            }
        };
        let range = match wanted {
            None => 0..rows,
            Some(range) if range.start >= range.end || range.end > rows => {
                return Err(LayoutError::NoRows {
                    tensor: tensor.name.clone(),
                    rows,
                    start: range.start,
                    end: range.end,
                });
            }
            // The range is extended to whole checksum blocks of the first part, which is the large
            // one.
            Some(range) => match (part_rows(0, range.clone()), part_rows(0, 0..1)) {
                (Some(PartRows::Bytes(bytes)), Some(PartRows::Bytes(row))) if row.end > 0 => {
                    let whole = whole_blocks(&tensor.parts[0], bytes);
                    whole.start.div_ceil(row.end)..(whole.end / row.end).min(rows)
                }
                (Some(_), Some(_)) => 0..rows,
                _ => return Err(wrong("its rows are larger than any memory")),
            },
        };
        let mut parts = vec![None; kinds];
        for (part, extent) in tensor.parts.iter().enumerate() {
            if matches!((select, part), (Parts::First, 1..) | (Parts::Rest, 0))
                || self.is_shared(extent, self.tensors.len())
            {
                continue;
            }
            let view = match part_rows(part, range.clone()) {
                Some(PartRows::Bytes(bytes)) => bytes,
                Some(PartRows::Whole) => 0..extent.len,
                None => return Err(wrong("its rows are larger than any memory")),
            };
            if view.end > extent.len {
                return Err(wrong("a part is too short for its shape"));
            }
            parts[part] = Some(0..0);
            if !view.is_empty() {
                let bytes = whole_blocks(extent, view.clone());
                self.runs.push(BlockRun { extent, bytes, tensor: self.tensors.len(), part, view });
            }
        }
        let name = tensor.name.clone();
        let encoding = tensor.encoding;
        self.tensors.push(TensorLayout { index, name, encoding, rows, cols, range, parts });
        Ok(())
    }

    /// True if the stand-in's tensor with this index shares the extent.
    fn is_shared(&self, extent: &Extent, index: usize) -> bool {
        let Some(tensor) = self.shared.get(index) else { return false };
        tensor.parts.iter().any(|part| (part.file, part.offset) == (extent.file, extent.offset))
    }

    fn check_extent(&self, extent: &Extent) -> Result<(), &'static str> {
        let file = self.manifest.files.get(extent.file as usize).ok_or("it has no such file")?;
        if extent.offset.checked_add(extent.len).is_none_or(|end| end > file.len) {
            return Err("a part reaches beyond the end of its file");
        }
        if extent.len == 0 {
            return Ok(());
        }
        if extent.checks.is_empty() {
            // Bookkeeping must stay small compared with the bytes, whatever the manifest says.
            let blocks = extent.len / block_len(extent);
            return if blocks > MOST_BLOCKS {
                Err("its check blocks are too small")
            } else {
                Ok(())
            };
        }
        if extent.check_len == 0
            || extent.len.div_ceil(extent.check_len) != extent.checks.len() as u64
        {
            return Err("the number of its checksums does not fit its length");
        }
        Ok(())
    }

    /// Index from which on an expert's tensors are read last, wherever they lie. The last tensor is
    /// the last to be computed with, so computation can begin before it has arrived. Returns
    /// `usize::MAX` for reads of anything else, and if the split would make small reads.
    fn last_of(&self, read: &Read) -> usize {
        let expert = match read {
            Read::Piece(id) | Read::Beside(id) => matches!(id.kind(), PieceKind::Expert(_)),
            _ => false,
        };
        let mut large = (0..self.tensors.len()).rev().filter(|&tensor| self.is_large(tensor));
        match (large.next(), large.next()) {
            (Some(last), Some(_)) if expert => last,
            _ => usize::MAX,
        }
    }

    fn is_large(&self, tensor: usize) -> bool {
        let mut bytes = 0;
        for run in &self.runs {
            if run.tensor == tensor {
                bytes += run.bytes.end - run.bytes.start;
            }
        }
        bytes >= LARGE
    }

    fn finish(mut self, read: Read) -> Result<PieceLayout, LayoutError> {
        let last = self.last_of(&read);
        self.runs.sort_by_key(|run| (run.tensor >= last, run.place()));
        let mut segments: Vec<Segment> = Vec::new();
        let mut slot_len = 0usize;
        let mut blocks = Vec::new();
        for run in &self.runs {
            let (file, start) = run.place();
            let end = run.extent.offset + run.bytes.end;
            let file_len = self.manifest.files[file as usize].len;
            let tensor = &mut self.tensors[run.tensor];
            let too_large = || LayoutError::Manifest {
                tensor: tensor.name.clone(),
                what: "its piece is larger than any memory",
            };
            let new = match segments.last() {
                Some(last) => {
                    let end = last.offset + last.len as u64;
                    last.file != file || start < last.offset || start > end + COALESCE
                }
                None => true,
            };
            if new {
                segments.push(Segment {
                    file,
                    offset: start / ALIGN * ALIGN,
                    len: 0,
                    present: 0,
                    at: slot_len,
                });
            }
            let segment = segments.last_mut().ok_or_else(too_large)?;
            let end_aligned = end.checked_next_multiple_of(ALIGN).ok_or_else(too_large)?;
            let len = usize::try_from(end_aligned - segment.offset).map_err(|_| too_large())?;
            segment.len = segment.len.max(len);
            segment.present = size(file_len - segment.offset).min(segment.len);
            slot_len = segment.at.checked_add(segment.len).ok_or_else(too_large)?;

            let in_slot =
                |byte: u64| segment.at + (run.extent.offset + byte - segment.offset) as usize;
            tensor.parts[run.part] = Some(in_slot(run.view.start)..in_slot(run.view.end));
            let step = block_len(run.extent);
            let mut at = run.bytes.start;
            while at < run.bytes.end {
                let end = at.saturating_add(step).min(run.extent.len);
                blocks.push(SlotBlock {
                    slot: in_slot(at)..in_slot(end),
                    file,
                    offset: run.extent.offset + at,
                    check: run.extent.checks.get((at / step) as usize).copied(),
                    tensor: run.tensor,
                });
                at = end;
            }
        }
        blocks.sort_by_key(|block| block.slot.start);
        Ok(PieceLayout { read, segments, slot_len, tensors: self.tensors, blocks })
    }
}

fn size(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Number of bytes that one checksum covers.
fn block_len(extent: &Extent) -> u64 {
    if extent.check_len == 0 { extent.len.max(1) } else { extent.check_len }
}

fn whole_blocks(extent: &Extent, bytes: Range<u64>) -> Range<u64> {
    let step = block_len(extent);
    let end = bytes.end.div_ceil(step).saturating_mul(step).min(extent.len);
    (bytes.start / step * step).min(end)..end
}
