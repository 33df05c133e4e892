//! Cells, the units in which shards are downloaded: runs of blocks with one checksum each.

use std::ops::Range;

use sws_format::{Extent, Manifest, PieceKind, Tensor};

/// Maximum bytes of a cell of several blocks. The cost of a request is small compared with this,
/// and several cells are downloaded at a time.
const CELL: u64 = 4 << 20;
/// Maximum bytes of a cell in tables of which single rows are read.
const ROWS: u64 = 64 << 10;
/// Maximum gap within a cell. Its bytes are downloaded, too.
const GAP: u64 = 64 << 10;

/// The cells of a manifest, in the order of files and offsets.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    cells: Vec<Cell>,
    /// Cells of each file.
    files: Vec<Range<u32>>,
    extents: Vec<CellPlace>,
    /// For each file, true if it is downloaded as a whole once any of it is read.
    whole: Vec<bool>,
}

/// The first block of a cell. The cell ends where the next one begins, or at the end of its file.
#[derive(Clone, Copy, Debug)]
struct Cell {
    extent: u32,
    block: u32,
}

/// An extent of a manifest, by its indices.
#[derive(Clone, Copy, Debug)]
struct CellPlace {
    piece: u32,
    tensor: u32,
    part: u16,
    stand_in: bool,
}

/// A range of a file with one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChecksumBlock {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) check: u64,
}

/// The range of a cell in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellSpan {
    pub(crate) file: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl CellSpan {
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }
}

impl Cells {
    /// The cells of a valid manifest.
    pub(crate) fn of(manifest: &Manifest) -> Cells {
        let mut places = Vec::new();
        for (piece, of) in (0u32..).zip(&manifest.pieces) {
            add_places(&mut places, piece, &of.tensors, false);
            if let Some(stand_in) = &of.stand_in {
                add_places(&mut places, piece, &stand_in.tensors, true);
            }
        }
        places.sort_unstable_by_key(|place| match extent(manifest, *place) {
            Some(extent) => (extent.file, extent.offset),
            None => (0, 0),
        });
        let mut cells = Cells {
            files: vec![0..0; manifest.files.len()],
            whole: vec![false; manifest.files.len()],
            ..Cells::default()
        };
        // The cell that is being extended: file, start and end.
        let mut open: Option<CellSpan> = None;
        for (index, &place) in (0u32..).zip(&places) {
            let Some(extent) = extent(manifest, place) else { continue };
            let kind = manifest.pieces[place.piece as usize].id.kind();
            let by_rows = matches!(kind, PieceKind::Embed | PieceKind::Table(_));
            let limit = if by_rows { ROWS } else { CELL };
            if let Some(whole) = cells.whole.get_mut(extent.file as usize) {
                // A stand-in within a nested expert is read on its own.
                let of = &manifest.pieces[place.piece as usize];
                let is_nested = of.stand_in.is_none() && of.stand_in_tensors().is_some();
                *whole = matches!(kind, PieceKind::Expert(_)) && !is_nested;
            }
            for block in 0..extent.len.div_ceil(extent.check_len) {
                let start = extent.offset + block * extent.check_len;
                let end = start.saturating_add(extent.check_len).min(extent.offset + extent.len);
                match &mut open {
                    Some(cell)
                        if cell.file == extent.file
                            && start - cell.end <= GAP
                            && end - cell.start <= limit =>
                    {
                        cell.end = end;
                    }
                    _ => {
                        let number = cells.cells.len() as u32;
                        if let Some(range) = cells.files.get_mut(extent.file as usize) {
                            let is_first = range.start == range.end;
                            let first = if is_first { number } else { range.start };
                            *range = first..number + 1;
                        }
                        cells.cells.push(Cell { extent: index, block: block as u32 });
                        open = Some(CellSpan { file: extent.file, start, end });
                    }
                }
            }
        }
        cells.cells.shrink_to_fit();
        cells.extents = places;
        cells
    }

    pub(crate) fn len(&self) -> u32 {
        self.cells.len() as u32
    }

    /// Cells of a file.
    pub(crate) fn of_file(&self, file: u32) -> Range<u32> {
        self.files.get(file as usize).cloned().unwrap_or_default()
    }

    /// True if the file is downloaded as a whole once any of it is read.
    pub(crate) fn is_whole(&self, file: u32) -> bool {
        self.whole.get(file as usize).copied().unwrap_or(false)
    }

    /// Number of files.
    pub(crate) fn files(&self) -> u32 {
        self.files.len() as u32
    }

    /// The cells that overlap this range of a file.
    pub(crate) fn within(
        &self,
        manifest: &Manifest,
        file: u32,
        offset: u64,
        len: u64,
    ) -> Range<u32> {
        let all = self.of_file(file);
        let end = offset.saturating_add(len);
        let mut numbers = all.clone();
        let mut low = all.start;
        let mut high = all.end;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.span(manifest, middle).end <= offset {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        numbers.start = low;
        let mut last = low;
        while last < all.end && self.span(manifest, last).start < end {
            last += 1;
        }
        numbers.end = last;
        numbers
    }

    /// The range of a cell.
    pub(crate) fn span(&self, manifest: &Manifest, cell: u32) -> CellSpan {
        let file = match self.extent(manifest, self.cells[cell as usize].extent) {
            Some(extent) => extent.file,
            None => 0,
        };
        let (start, mut end) = match self.blocks(manifest, cell).next() {
            Some(first) => (first.start, first.end),
            None => (0, 0),
        };
        if let Some((extent, block)) = self.last(manifest, cell)
            && let Some(extent) = self.extent(manifest, extent)
        {
            let start = extent.offset + block * extent.check_len;
            end = start.saturating_add(extent.check_len).min(extent.offset + extent.len);
        }
        CellSpan { file, start, end }
    }

    /// The last block of a cell, by its extent.
    fn last(&self, manifest: &Manifest, cell: u32) -> Option<(u32, u64)> {
        let (extent, block) = match self.cells.get(cell as usize + 1) {
            Some(next) => (next.extent, u64::from(next.block)),
            None => (self.extents.len() as u32, 0),
        };
        if block > 0 {
            return Some((extent, block - 1));
        }
        let before = extent.checked_sub(1)?;
        let blocks = self.extent(manifest, before)?;
        Some((before, blocks.len.div_ceil(blocks.check_len) - 1))
    }

    /// The blocks of a cell, in the order of offsets.
    pub(crate) fn blocks<'a>(
        &'a self,
        manifest: &'a Manifest,
        cell: u32,
    ) -> impl Iterator<Item = ChecksumBlock> + 'a {
        let Cell { extent, block } = self.cells[cell as usize];
        let end = self.last(manifest, cell).unwrap_or((0, 0));
        let mut at = (extent, u64::from(block));
        std::iter::from_fn(move || {
            if at > end {
                return None;
            }
            let extent = self.extent(manifest, at.0)?;
            let start = extent.offset + at.1 * extent.check_len;
            let stop = start.saturating_add(extent.check_len).min(extent.offset + extent.len);
            let check = *extent.checks.get(usize::try_from(at.1).ok()?)?;
            at.1 += 1;
            if at.1 >= extent.len.div_ceil(extent.check_len) {
                at = (at.0 + 1, 0);
            }
            Some(ChecksumBlock { start, end: stop, check })
        })
    }

    fn extent<'m>(&self, manifest: &'m Manifest, index: u32) -> Option<&'m Extent> {
        extent(manifest, *self.extents.get(index as usize)?)
    }
}

/// Adds the extents of a piece's tensors, or of those of its stand-in.
fn add_places(places: &mut Vec<CellPlace>, piece: u32, tensors: &[Tensor], stand_in: bool) {
    for (tensor, of) in (0u32..).zip(tensors) {
        for (part, extent) in (0u16..).zip(&of.parts) {
            if extent.len > 0 {
                places.push(CellPlace { piece, tensor, part, stand_in });
            }
        }
    }
}

fn extent(manifest: &Manifest, place: CellPlace) -> Option<&Extent> {
    let piece = manifest.pieces.get(place.piece as usize)?;
    let tensors = match (&piece.stand_in, place.stand_in) {
        (Some(stand_in), true) => &stand_in.tensors,
        _ => &piece.tensors,
    };
    tensors.get(place.tensor as usize)?.parts.get(usize::from(place.part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_every_block_once_in_order() {
        let manifest = Manifest::load(sws_testing::tales()).unwrap();
        let cells = Cells::of(&manifest);
        let mut blocks = 0;
        let mut before = (0, 0);
        for cell in 0..cells.len() {
            let span = cells.span(&manifest, cell);
            assert!(cells.of_file(span.file).contains(&cell));
            assert!((span.file, span.start) >= before && span.start < span.end);
            before = (span.file, span.end);
            let all: Vec<ChecksumBlock> = cells.blocks(&manifest, cell).collect();
            assert_eq!((all[0].start, all[all.len() - 1].end), (span.start, span.end));
            assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start));
            assert!(all.len() == 1 || span.len() <= CELL);
            blocks += all.len();
            assert!(cells.within(&manifest, span.file, span.start, 1) == (cell..cell + 1));
            assert!(cells.within(&manifest, span.file, span.end - 1, 1) == (cell..cell + 1));
        }
        let parts = manifest.pieces.iter().flat_map(|p| &p.tensors).flat_map(|t| &t.parts);
        assert_eq!(blocks, parts.map(|part| part.checks.len()).sum::<usize>());
        for file in 0..cells.files() {
            let all = cells.of_file(file);
            assert_eq!(cells.within(&manifest, file, 0, u64::MAX), all);
            let path = &manifest.files[file as usize].path;
            assert_eq!(cells.is_whole(file), path.contains("expert"), "{path}");
            assert_eq!(all.len() > 1, path.contains("embed"), "{path} has {}", all.len());
        }
    }
}
