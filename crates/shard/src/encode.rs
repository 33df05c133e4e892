//! Encoding of a tensor from the checkpoint into a shard, in blocks of rows.

mod repack;

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use sws_format::{Checkpoint, ErrorNorms, Extent, Manifest, ShardReader, Tensor};
use sws_kernels::{
    EncodeError, EncodedRows, Encoder, Encoding, ExponentCounts, ExponentTable, ExponentTiers,
};
use sws_store::{DirectReader, Slot};

use super::ShardError;
use super::direct::{ALIGN, SourceFile, buffer};
use super::narrow;
use super::parts::{PartWriter, Side, Spill, TensorTarget};
use super::plan::{WINDOW, least_len, numbers};
use super::spectral::Norms;
use super::transpose::Lines;

/// Larger tensors are read and encoded in steps of about this size.
const STEP: usize = 4 << 20;
/// Bytes that one thread encodes at a time.
const CHUNK: usize = 512 << 10;
/// The exponents of a matrix above [`WINDOW`] are counted in this many blocks of
/// [`SAMPLE`] bytes at even distances: two million weights or more, in which every exponent that matters
/// (one weight in ten thousand) is seen two hundred times.
const SAMPLES: u64 = 16;
const SAMPLE: usize = 256 << 10;
/// Most bits of a weight of bf11, without padding: bf12 takes no more, and is faster.
const BITS: u64 = 12;
/// State shared by all workers.
pub(super) struct EncodeContext<'a> {
    /// The checkpoint's directory and manifest.
    pub(super) dir: &'a Path,
    pub(super) manifest: &'a Manifest,
    pub(super) pool: &'a rayon::ThreadPool,
    /// Called with the length of each finished run of source bytes.
    pub(super) progress: &'a (dyn Fn(u64) + Sync),
    /// Set by the first worker that fails.
    pub(super) stop: AtomicBool,
    reader: Arc<dyn ShardReader>,
}

impl<'a> EncodeContext<'a> {
    pub(super) fn new(
        checkpoint: &'a dyn Checkpoint,
        manifest: &'a Manifest,
        pool: &'a rayon::ThreadPool,
        progress: &'a (dyn Fn(u64) + Sync),
    ) -> Self {
        let dir = checkpoint.dir();
        let reader = match checkpoint.reader() {
            Some(reader) => reader,
            None => {
                let files = checkpoint.files().iter();
                let in_place = files.map(|file| dir.join(&file.name)).collect();
                Arc::new(DirectReader::of(in_place))
            }
        };
        EncodeContext { dir, manifest, pool, progress, stop: AtomicBool::new(false), reader }
    }

    /// Reads a range of a file into `buffer`, which has [`SourceFile::room`] for it. Returns its range in
    /// the buffer.
    fn read(
        &self,
        file: u32,
        offset: u64,
        len: usize,
        buffer: &mut [u8],
    ) -> Result<Range<usize>, ShardError> {
        let skip = (offset % ALIGN as u64) as usize;
        let span = (skip + len).next_multiple_of(ALIGN);
        match self.reader.read_at(file, offset - skip as u64, &mut buffer[..span]) {
            Ok(got) if got >= skip + len => Ok(skip..skip + len),
            got => {
                let path = &self.manifest.files[file as usize].path;
                let cause = match got {
                    Err(cause) => cause,
                    Ok(_) => io::ErrorKind::UnexpectedEof.into(),
                };
                Err(ShardError::reading(&self.dir.join(path))(cause))
            }
        }
    }
}

/// The buffers of one worker.
pub(super) struct EncodeWorker<'a> {
    context: &'a EncodeContext<'a>,
    input: Slot,
    /// Rows of a transposed matrix in `input`.
    band: Range<u64>,
    /// Buffer for lines of a transposed matrix as stored; `None` before the first.
    lines: Option<Slot>,
    blocks: Vec<EncodedRows>,
}

impl<'a> EncodeWorker<'a> {
    pub(super) fn new(context: &'a EncodeContext<'a>) -> Result<Self, ShardError> {
        let input = buffer(SourceFile::room(WINDOW))?;
        Ok(EncodeWorker { context, input, band: 0..0, lines: None, blocks: Vec::new() })
    }

    /// Writes `tensor` in the requested encoding, or unchanged if the encoding gains nothing.
    pub(super) fn tensor(
        &mut self,
        tensor: &Tensor,
        encoding: Option<Encoding>,
        target: &mut TensorTarget,
    ) -> Result<Tensor, ShardError> {
        if encoding == tensor.encoding {
            return self.copy(tensor, target);
        }
        // The plan requests another encoding only if all of these exist.
        let (Some(encoding), Some(kind), &[rows, cols]) =
            (encoding, numbers(tensor.encoding), tensor.shape.as_slice())
        else {
            return self.copy(tensor, target);
        };
        let row_len = cols * kind.size() as u64;
        let mut matrix = SourceMatrix { tensor, encoding, rows, cols, row_len };
        if matrix.row_len == 0 || rows == 0 {
            return self.copy(tensor, target);
        }
        self.band = 0..0;
        let whole = match matrix.len() <= WINDOW as u64 {
            true => Some(self.read_rows(&matrix, 0, rows)?),
            false => None,
        };
        let encoder = match encoding {
            Encoding::Bf12 | Encoding::Bf11 => {
                let histogram = self.histogram(&matrix, whole.clone())?;
                let Some(encoder) = packing(encoding, cols as usize, &histogram) else {
                    return self.copy(tensor, target);
                };
                matrix.encoding = encoder.encoding();
                Recoder::Kernel(Box::new(encoder))
            }
            Encoding::Fp7(scales) => {
                let histogram = self.histogram(&matrix, whole.clone())?;
                let tiers = ExponentTiers::from_histogram(&histogram);
                let count: u64 = histogram.0.iter().sum();
                if tiers.patch_bits(&histogram) * encoding.most_patches() > 8 * count {
                    return self.copy(tensor, target);
                }
                Recoder::Kernel(Box::new(Encoder::fp7(scales, cols as usize, tiers)))
            }
            Encoding::F16 | Encoding::Bf16 => Recoder::Narrow { from: kind, to: encoding },
            _ => {
                let encoder = Encoder::new(encoding, kind, cols as usize);
                let encoder = encoder.map_err(|e| matrix.error(self.context, 0, e))?;
                Recoder::Kernel(Box::new(encoder))
            }
        };
        let mark = target.out.mark();
        match self.encode(&matrix, &encoder, whole, target)? {
            Some(stored) => Ok(stored),
            // The sample underestimated the patches.
            None => {
                target.out.rewind(mark);
                self.copy(tensor, target)
            }
        }
    }

    /// Writes the parts of a tensor unchanged, except that numbers of transposed or packed tensors
    /// are reordered.
    fn copy(&mut self, tensor: &Tensor, target: &mut TensorTarget) -> Result<Tensor, ShardError> {
        if let Some(packing) = tensor.packing {
            return self.repack(tensor, packing, target);
        }
        if tensor.transposed
            && tensor.origins.is_empty()
            && let Some(encoding) = tensor.encoding
            && let Some(kind) = encoding.numbers()
            && let &[rows, cols] = tensor.shape.as_slice()
        {
            let row_len = cols * kind.size() as u64;
            return self.turn(&SourceMatrix { tensor, encoding, rows, cols, row_len }, target);
        }
        let mut parts = Vec::with_capacity(tensor.parts.len());
        for (index, part) in tensor.parts.iter().enumerate() {
            parts.push(self.copy_part(part, (tensor, index), target)?);
        }
        Ok(Tensor { parts, ..tensor.clone() })
    }

    /// Copies a part unchanged, as a part of a stored tensor.
    fn copy_part(
        &mut self,
        part: &Extent,
        (stored, index): (&Tensor, usize),
        target: &mut TensorTarget,
    ) -> Result<Extent, ShardError> {
        let mut extent = PartWriter::begin(stored, index, part.len, target);
        let mut done = 0;
        while done < part.len {
            let n = (part.len - done).min(STEP as u64);
            let range = self.read(part.file, part.offset + done, n as usize)?;
            extent.write(target.out, &self.input[range])?;
            done += n;
            self.advance(n)?;
        }
        extent.end(target.out)
    }

    /// Writes the rows of a transposed matrix in its own encoding.
    fn turn(
        &mut self,
        matrix: &SourceMatrix,
        target: &mut TensorTarget,
    ) -> Result<Tensor, ShardError> {
        self.band = 0..0;
        let mut extent = PartWriter::begin(matrix.tensor, 0, matrix.len(), target);
        let step = matrix.group(STEP as u64);
        let mut row = 0;
        while row < matrix.rows && matrix.row_len > 0 {
            let rows = step.min(matrix.rows - row);
            let range = self.read_rows(matrix, row, rows)?;
            extent.write(target.out, &self.input[range])?;
            row += rows;
            self.advance(rows * matrix.row_len)?;
        }
        let parts = vec![extent.end(target.out)?];
        Ok(Tensor { parts, ..matrix.tensor.clone() })
    }

    /// Encodes and writes all rows; `None` if they need too many patches.
    fn encode(
        &mut self,
        matrix: &SourceMatrix,
        recoder: &Recoder,
        whole: Option<Range<usize>>,
        target: &mut TensorTarget,
    ) -> Result<Option<Tensor>, ShardError> {
        let stored = Tensor { encoding: Some(matrix.encoding), ..matrix.tensor.clone() };
        let first_len = least_len(matrix.encoding, 0, matrix.rows, matrix.cols).unwrap_or(0);
        let mut first = PartWriter::begin(&stored, 0, first_len, target);
        let mut side = Side::new(matrix.encoding, matrix.cols, recoder.loses(), target.path);
        let mut norms = target.norms.then(Norms::default);
        let step = matrix.group(STEP as u64);
        let mut row = 0;
        while row < matrix.rows {
            let rows = step.min(matrix.rows - row);
            let range = match &whole {
                Some(range) => {
                    let at = range.start + (row * matrix.row_len) as usize;
                    at..at + (rows * matrix.row_len) as usize
                }
                None => self.read_rows(matrix, row, rows)?,
            };
            let blocks = self.encode_rows(matrix, recoder, row, range.clone())?;
            if let Some(norms) = &mut norms
                && let Some(source) = matrix.tensor.encoding
            {
                let blocks = (matrix.encoding, &self.blocks[..blocks]);
                let cols = matrix.cols as usize;
                norms.add(self.context.pool, cols, (source, &self.input[range]), blocks);
            }
            for block in &self.blocks[..blocks] {
                first.write(target.out, &block.parts[0])?;
                side.push(block)?;
            }
            let most = matrix.rows * matrix.cols / matrix.encoding.most_patches();
            if side.escaped > most.min(u64::from(u32::MAX)) {
                return Ok(None);
            }
            row += rows;
            self.advance(rows * matrix.row_len)?;
        }
        let mut parts = vec![first.end(target.out)?];
        if let Recoder::Kernel(encoder) = recoder
            && let Some(table) = encoder.table()
        {
            let mut extent = PartWriter::begin(&stored, 1, table.len() as u64, target);
            extent.write(target.out, &table)?;
            parts.push(extent.end(target.out)?);
        }
        // Conversion to a narrower float type is exact if every weight fits.
        let mut error = side.error().filter(|e| matrix.encoding.is_lossy() || e.max > 0.0);
        if let Some(error) = &mut error
            && let Some(norms) = norms
        {
            let [spectral, spectral_error] = norms.bounds().map(Some);
            *error = ErrorNorms { spectral, spectral_error, ..*error };
        }
        for part in side.parts(matrix.encoding, parts.len()) {
            let len = part.iter().map(Spill::len).sum();
            let mut extent = PartWriter::begin(&stored, parts.len(), len, target);
            self.band = 0..0;
            for spill in part {
                spill.drain(&mut self.input, &mut |bytes| extent.write(target.out, bytes))?;
            }
            parts.push(extent.end(target.out)?);
        }
        if matrix.encoding.packs_codes()
            && let Some(scales) = matrix.tensor.parts.get(1)
        {
            parts.push(self.copy_part(scales, (&stored, parts.len()), target)?);
        }
        Ok(Some(Tensor { parts, error, ..stored }))
    }

    /// Encodes rows in memory with all threads. Returns the number of blocks.
    fn encode_rows(
        &mut self,
        matrix: &SourceMatrix,
        recoder: &Recoder,
        first_row: u64,
        range: Range<usize>,
    ) -> Result<usize, ShardError> {
        let chunk_rows = matrix.group(CHUNK as u64);
        let chunk = (chunk_rows * matrix.row_len) as usize;
        let blocks = range.len().div_ceil(chunk);
        if self.blocks.len() < blocks {
            self.blocks.resize_with(blocks, EncodedRows::default);
        }
        let rows = &self.input[range];
        let into = &mut self.blocks[..blocks];
        let encoded = self.context.pool.install(|| {
            let chunks = rows.par_chunks(chunk).zip(into).enumerate();
            chunks
                .map(|(i, (rows, block))| {
                    let first = first_row + i as u64 * chunk_rows;
                    recoder.encode(rows, matrix.cols as usize, block).map_err(|e| (first, e))
                })
                // Results are collected in row order, so that the first error is always the same.
                .collect::<Vec<_>>()
        });
        for result in encoded {
            if let Err((row, e)) = result {
                return Err(matrix.error(self.context, row, e));
            }
        }
        Ok(blocks)
    }

    /// Counts the exponents of a matrix: all of them if it is in memory, otherwise those of a
    /// sample.
    fn histogram(
        &mut self,
        matrix: &SourceMatrix,
        whole: Option<Range<usize>>,
    ) -> Result<ExponentCounts, ShardError> {
        let add = match matrix.encoding.packs_codes() {
            true => ExponentCounts::add_e4m3,
            false => ExponentCounts::add,
        };
        if let Some(range) = whole {
            let bytes = &self.input[range];
            return Ok(self.context.pool.install(|| {
                let counts = bytes.par_chunks(CHUNK).map(|chunk| {
                    let mut histogram = ExponentCounts::default();
                    add(&mut histogram, chunk);
                    histogram
                });
                counts.reduce(ExponentCounts::default, |mut a, b| {
                    a.merge(&b);
                    a
                })
            }));
        }
        let mut histogram = ExponentCounts::default();
        let part = &matrix.tensor.parts[0];
        for i in 0..SAMPLES {
            let last = u128::from(matrix.len() - SAMPLE as u64);
            let at = (last * u128::from(i) / u128::from(SAMPLES - 1)) as u64 & !1;
            let range = self.read(part.file, part.offset + at, SAMPLE)?;
            add(&mut histogram, &self.input[range]);
        }
        Ok(histogram)
    }

    fn read_rows(
        &mut self,
        matrix: &SourceMatrix,
        row: u64,
        rows: u64,
    ) -> Result<Range<usize>, ShardError> {
        let part = &matrix.tensor.parts[0];
        let len = rows * matrix.row_len;
        if matrix.tensor.is_turned() {
            if row < self.band.start || row + rows > self.band.end {
                self.read_band(matrix, row)?;
            }
            let start = ((row - self.band.start) * matrix.row_len) as usize;
            return Ok(start..start + len as usize);
        }
        self.read(part.file, part.offset + row * matrix.row_len, len as usize)
    }

    /// Fills `input` with as many rows of a transposed matrix as fit, from `row` on. Every line of
    /// the checkpoint contains a number of each row, so all lines are read.
    fn read_band(&mut self, matrix: &SourceMatrix, row: u64) -> Result<(), ShardError> {
        let part = &matrix.tensor.parts[0];
        let size = matrix.row_len / matrix.cols;
        let band = row..(row + matrix.group(WINDOW as u64)).min(matrix.rows);
        let used = ((band.end - band.start) * matrix.row_len) as usize;
        let row_len = matrix.row_len as usize;
        let line = matrix.rows * size;
        // Several whole lines at a time, or parts of one.
        let together = (STEP as u64 / line).min(matrix.cols);
        let piece = if together == 0 { STEP as u64 / size } else { band.end - band.start };
        let slot = match &mut self.lines {
            Some(slot) => slot,
            none => none.insert(buffer(SourceFile::room(STEP))?),
        };
        let mut first = 0;
        while first < matrix.cols {
            let lines = together.clamp(1, matrix.cols - first);
            let mut done = band.start;
            while done < band.end {
                let rows = piece.min(band.end - done);
                let (skip, len) = match together {
                    0 => (done * size, rows * size),
                    _ => (0, lines * line),
                };
                let range = self.context.read(
                    part.file,
                    part.offset + first * line + skip,
                    len as usize,
                    slot,
                )?;
                let bytes = &slot[range];
                let (step, from) = match together {
                    0 => (bytes.len(), 0),
                    _ => (line as usize, (done * size) as usize),
                };
                let lines = Lines { bytes, step, from, size: size as usize };
                let at = (done - band.start) as usize * row_len;
                let to = &mut self.input[..used][at..][..rows as usize * row_len];
                lines.write_columns(self.context.pool, to, row_len, first as usize);
                done += rows;
            }
            first += lines;
            if self.context.stop.load(Ordering::Relaxed) {
                return Err(ShardError::Stopped);
            }
        }
        self.band = band;
        Ok(())
    }

    fn read(&mut self, file: u32, offset: u64, len: usize) -> Result<Range<usize>, ShardError> {
        self.band = 0..0;
        self.context.read(file, offset, len, &mut self.input)
    }

    fn advance(&self, bytes: u64) -> Result<(), ShardError> {
        (self.context.progress)(bytes);
        if self.context.stop.load(Ordering::Relaxed) { Err(ShardError::Stopped) } else { Ok(()) }
    }
}

/// A matrix to encode.
struct SourceMatrix<'a> {
    tensor: &'a Tensor,
    encoding: Encoding,
    rows: u64,
    cols: u64,
    /// Bytes per row in the checkpoint.
    row_len: u64,
}

impl SourceMatrix<'_> {
    fn len(&self) -> u64 {
        self.rows * self.row_len
    }

    /// Number of rows in about `bytes` bytes, rounded to a multiple that the encoding allows.
    fn group(&self, bytes: u64) -> u64 {
        let multiple = self.encoding.row_multiple() as u64;
        (bytes / self.row_len / multiple).max(1) * multiple
    }

    fn error(&self, context: &EncodeContext, first_row: u64, error: EncodeError) -> ShardError {
        let path = context.dir.join(&self.tensor.source);
        let tensor = self.tensor.name.clone();
        match error {
            EncodeError::NotFinite { encoding, row, .. } => {
                ShardError::NotFinite { path, tensor, row: first_row + row as u64, encoding }
            }
            cause => ShardError::Encode { path, tensor, cause },
        }
    }
}

/// The encoder for numbers with these exponents: bf11 if it is requested and smaller, otherwise
/// bf12; `None` if there are too many different exponents.
fn packing(wanted: Encoding, cols: usize, histogram: &ExponentCounts) -> Option<Encoder> {
    let count: u64 = histogram.0.iter().sum();
    let tiers = ExponentTiers::from_histogram(histogram);
    if wanted == Encoding::Bf11 && tiers.bits(histogram) < BITS * count {
        return Some(Encoder::bf11(cols, tiers));
    }
    let table = ExponentTable::from_histogram(histogram);
    if histogram.escapes(&table) > count / Encoding::Bf12.most_patches() {
        return None;
    }
    Some(Encoder::bf12(cols, table))
}

/// Converts rows of the checkpoint to rows of a shard.
enum Recoder {
    Kernel(Box<Encoder>),
    Narrow { from: sws_kernels::SourceDtype, to: Encoding },
}

impl Recoder {
    fn loses(&self) -> bool {
        match self {
            Recoder::Kernel(encoder) => encoder.encoding().is_lossy(),
            Recoder::Narrow { .. } => true,
        }
    }

    fn encode(&self, rows: &[u8], cols: usize, out: &mut EncodedRows) -> Result<(), EncodeError> {
        match self {
            Recoder::Kernel(encoder) => encoder.encode(rows, out),
            Recoder::Narrow { from, to } => narrow::encode(*from, *to, cols, rows, out),
        }
    }
}
