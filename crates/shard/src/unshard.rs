//! Conversion of shards back to the checkpoint they were made from.

mod packed;
mod part;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sws_format::{Dtype, Extent, Header, Manifest, PieceId, Progress, Tensor};
use sws_kernels::{EncodeError, Encoding, Matrix, OffsetWriter, SourceDtype as Numbers};
use xxhash_rust::xxh3::Xxh3Default;

use super::direct::{ALIGN, ShardOutput, SourceFile, buffer};
use super::journal::Journal;
use super::outdir::OutDir;
use super::transpose::Lines;
use super::{ShardError, WORKERS, begins_with, copies, pool, reporter, start};
use part::{RangedPart, round};

/// Index of the patches among the parts of encodings that have some.
const PATCHES: usize = 2;
/// Bytes read, decoded and written at a time.
const STEP: u64 = 4 << 20;
/// Maximum number of bytes of a transposed matrix that are gathered at a time. The longest line
/// that a manifest may have is as long.
const BAND: usize = 16 << 20;
/// Bytes that one thread decodes at a time.
const CHUNK: u64 = 512 << 10;
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Result of [`unshard`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsharded {
    /// Number of weight files.
    pub files: usize,
    /// Tensors in these files.
    pub tensors: usize,
    /// Bytes of these tensors.
    pub bytes: u64,
    /// Tensors that differ from the checkpoint, because they were stored in a lossy encoding.
    pub lossy: usize,
}

/// Writes the checkpoint that shards were made from: the same files and the same tensors, bit for
/// bit.
///
/// Weights changed by a lossy encoding are refused, unless `lossy` has them decoded. An interrupted
/// call resumes when repeated, file by file.
pub fn unshard(
    dir: &Path,
    out: &Path,
    lossy: bool,
    threads: Option<usize>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Unsharded, ShardError> {
    let manifest = Manifest::load(dir)?;
    let files = plan(dir, &manifest)?;
    let mut changed = Vec::new();
    for tensor in manifest.pieces.iter().flat_map(|piece| &piece.tensors) {
        if tensor.error.is_some() {
            changed.push(tensor);
        }
    }
    if let Some(tensor) = changed.first()
        && let Some(encoding) = tensor.encoding
        && !lossy
    {
        let dir = dir.to_owned();
        let tensor = tensor.name.clone();
        return Err(ShardError::Lossy { dir, tensor, encoding });
    }
    let copied: Vec<String> = manifest.copies.iter().map(|copy| copy.path.clone()).collect();
    let done = Unsharded {
        files: files.len(),
        tensors: files.iter().map(|file| file.tensors.len()).sum(),
        bytes: files.iter().map(|file| file.data_len).sum(),
        lossy: changed.len(),
    };
    if finished(out, &files, &copied) {
        progress(Progress { done: done.bytes, total: done.bytes });
        return Ok(done);
    }
    let mut planned: HashSet<String> = files.iter().map(|file| file.name.clone()).collect();
    planned.extend(copied.iter().cloned());
    planned.insert(INDEX.to_owned());
    let target = OutDir::open(out, Some(dir), &planned, false)?;
    let identity = UnshardIdentity {
        unshard: manifest.model.fingerprint.clone(),
        encoding: manifest.encoding.map_or("none", Encoding::name).to_owned(),
    };
    let (journal, written) = Journal::open::<_, usize>(target.path(), &identity)?;
    let mut order = Vec::new();
    let mut needed = 0;
    let mut left = 0;
    for (index, file) in files.iter().enumerate() {
        if written.contains(&index) && file.has_len_in(target.path()) {
            continue;
        }
        order.push(index);
        needed += file.len();
        left += file.data_len;
    }
    if let Err(error) = target.check_space(needed) {
        if written.is_empty() {
            journal.remove()?;
            target.abandon();
        }
        return Err(error);
    }

    let total = done.bytes;
    let report = reporter(Progress { done: total - left, total }, progress);
    report(0);
    let pool = pool(threads)?;
    let work = UnshardWork {
        dir,
        manifest: &manifest,
        files: &files,
        target: &target,
        pool: &pool,
        report: &report,
        journal: Mutex::new(journal),
    };
    work.run(&order)?;
    copies::copy_back(&manifest.copies, dir, &target)?;
    if files.len() != 1 || files[0].name != SINGLE {
        target.write_small(INDEX, &index(&files))?;
    }
    work.journal.into_inner().expect("no holder panics").remove()?;
    Ok(done)
}

/// True if all files are complete, and there is no journal of unfinished work.
fn finished(out: &Path, files: &[Planned], copied: &[String]) -> bool {
    !Journal::begun(out)
        && files.iter().all(|file| file.is_whole_in(out))
        && copied.iter().all(|name| out.join(name).exists())
}

/// Identifies the job that a journal belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct UnshardIdentity {
    unshard: String,
    encoding: String,
}

/// A safetensors file to write.
struct Planned<'a> {
    name: String,
    tensors: Vec<Restored<'a>>,
    header: Vec<u8>,
    data_len: u64,
}

/// A tensor of a safetensors file to write.
struct Restored<'a> {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    len: u64,
    from: Slices<'a>,
    /// The part of the stored tensors to copy, if no decoding is needed.
    part: Option<usize>,
}

impl Planned<'_> {
    fn len(&self) -> u64 {
        self.header.len() as u64 + self.data_len
    }

    /// True if the file in a directory has the planned length.
    fn has_len_in(&self, dir: &Path) -> bool {
        dir.join(&self.name).metadata().is_ok_and(|about| about.len() == self.len())
    }

    /// True if the file in a directory also begins as planned.
    fn is_whole_in(&self, dir: &Path) -> bool {
        self.has_len_in(dir) && begins_with(&dir.join(&self.name), &self.header)
    }
}

impl<'a> Restored<'a> {
    fn new(
        name: &str,
        dtype: Dtype,
        shape: Vec<u64>,
        from: &Slices<'a>,
        part: Option<usize>,
    ) -> Restored<'a> {
        let bits = shape.iter().product::<u64>() * dtype.bits();
        let name = name.to_owned();
        Restored { name, dtype, shape, len: bits / 8, from: from.clone(), part }
    }

    /// Key of the order in a file. Tensors with the widest types come first, which keeps all
    /// tensors aligned.
    fn order(&self) -> (Reverse<u64>, String) {
        (Reverse(self.dtype.bits()), self.name.clone())
    }
}

/// The stored tensors that form a tensor of the checkpoint: several slices if it is stacked,
/// otherwise one.
type Slices<'a> = Vec<(PieceId, &'a Tensor)>;

fn plan<'a>(dir: &Path, manifest: &'a Manifest) -> Result<Vec<Planned<'a>>, ShardError> {
    let mut sources: BTreeMap<&str, BTreeMap<&str, Slices<'a>>> = BTreeMap::new();
    for piece in &manifest.pieces {
        for tensor in &piece.tensors {
            if tensor.source.ends_with(".gguf") {
                let dir = dir.to_owned();
                let file = tensor.source.clone();
                return Err(ShardError::FromGguf { dir, file });
            }
            let names = sources.entry(&tensor.source).or_default();
            names.entry(&tensor.name).or_default().push((piece.id, tensor));
        }
    }
    let mut files = Vec::with_capacity(sources.len());
    for (source, names) in sources {
        let mut tensors = Vec::new();
        for from in names.into_values() {
            restore(dir, from, &mut tensors)?;
        }
        tensors.sort_by_cached_key(Restored::order);
        let header = header(&tensors);
        let data_len = tensors.iter().map(|tensor| tensor.len).sum();
        files.push(Planned { name: source.to_owned(), tensors, header, data_len });
    }
    Ok(files)
}

/// Adds the checkpoint's tensors (weights and possibly scales) from which a tensor of the model was
/// made.
fn restore<'a>(
    dir: &Path,
    mut from: Slices<'a>,
    tensors: &mut Vec<Restored<'a>>,
) -> Result<(), ShardError> {
    from.sort_by_key(|(_, tensor)| tensor.slice.map(|slice| slice.index));
    let first = from[0].1;
    let count = first.slice.map(|slice| slice.count);
    let whole = from.len() as u64 == count.unwrap_or(1)
        && from.iter().zip(0..).all(|((_, tensor), index)| {
            tensor.slice.is_none_or(|slice| slice.index == index && Some(slice.count) == count)
                && (&tensor.shape, tensor.dtype) == (&first.shape, first.dtype)
                && tensor.transposed == first.transposed
                && (&tensor.origins, tensor.packing) == (&first.origins, first.packing)
                && tensor.slice.is_some() == first.slice.is_some()
                && (raw_encoding(tensor) || numbers(tensor.dtype).is_some())
        });
    if !whole {
        return Err(ShardError::Incomplete { dir: dir.to_owned(), tensor: first.name.clone() });
    }
    for (part, origin) in first.origins.iter().enumerate() {
        let shape = count.into_iter().chain(origin.shape.iter().copied()).collect();
        tensors.push(Restored::new(&origin.name, origin.dtype, shape, &from, Some(part)));
    }
    if first.origins.is_empty() {
        let shape = count.into_iter().chain(first.source_shape()).collect();
        tensors.push(Restored::new(&first.name, first.dtype, shape, &from, None));
    }
    Ok(())
}

/// True if the stored bytes are the checkpoint's bytes, or are restored without decoding.
fn raw_encoding(tensor: &Tensor) -> bool {
    match tensor.encoding {
        None => true,
        Some(_) if !tensor.origins.is_empty() => true,
        Some(encoding) => numbers(tensor.dtype).map(Numbers::encoding) == Some(encoding),
    }
}

fn numbers(dtype: Dtype) -> Option<Numbers> {
    match dtype {
        Dtype::F32 => Some(Numbers::F32),
        Dtype::F16 => Some(Numbers::F16),
        Dtype::BF16 => Some(Numbers::Bf16),
        _ => None,
    }
}

fn header(tensors: &[Restored]) -> Vec<u8> {
    let mut json = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut at = 0;
    for tensor in tensors {
        let name = serde_json::Value::from(tensor.name.as_str());
        let dtype = tensor.dtype;
        let shape = &tensor.shape;
        let end = at + tensor.len;
        let shape = serde_json::Value::from(shape.as_slice());
        json.push_str(&format!(
            r#",{name}:{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    json.push('}');
    Header::framed(json, ALIGN)
}

/// Builds `model.safetensors.index.json`.
fn index(files: &[Planned]) -> Vec<u8> {
    let mut weight_map: BTreeMap<&str, &str> = BTreeMap::new();
    for file in files {
        for tensor in &file.tensors {
            weight_map.insert(&tensor.name, &file.name);
        }
    }
    let total_size: u64 = files.iter().map(|file| file.data_len).sum();
    let json = serde_json::json!({
        "metadata": { "total_size": total_size },
        "weight_map": weight_map,
    });
    format!("{json:#}\n").into_bytes()
}

struct UnshardWork<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
    files: &'a [Planned<'a>],
    target: &'a OutDir,
    pool: &'a rayon::ThreadPool,
    report: &'a (dyn Fn(u64) + Sync),
    journal: Mutex<Journal>,
}

impl UnshardWork<'_> {
    fn run(&self, order: &[usize]) -> Result<(), ShardError> {
        let next = AtomicUsize::new(0);
        let failure = Mutex::new(None);
        let fail = |error| {
            failure.lock().expect("no holder panics").get_or_insert(error);
            next.store(order.len(), Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            for _ in 0..WORKERS.min(order.len()) {
                let started = start(scope, || {
                    while let Some(&index) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if let Err(error) = self.file(index) {
                            fail(error);
                        }
                    }
                });
                if let Err(error) = started {
                    fail(error);
                }
            }
        });
        failure.into_inner().expect("no holder panics").map_or(Ok(()), Err)
    }

    fn file(&self, index: usize) -> Result<(), ShardError> {
        let file = &self.files[index];
        let path = self.target.unfinished(&file.name)?;
        let mut out = ShardOutput::create(&path, file.header.len() as u64, file.len())?;
        let mut buffer = buffer(SourceFile::room(STEP as usize))?;
        for tensor in &file.tensors {
            for &(piece, from) in &tensor.from {
                match tensor.part {
                    Some(part) if from.packing.is_some() => {
                        self.pack(piece, from, part, &mut out)?
                    }
                    Some(0) if from.encoding.is_some_and(Encoding::packs_codes) => {
                        self.write_decoded(piece, from, &mut out)?
                    }
                    // The scales of packed codes are the last part.
                    Some(_) if from.encoding.is_some_and(Encoding::packs_codes) => {
                        self.copy(piece, from, from.parts.len() - 1, &mut out, &mut buffer)?
                    }
                    Some(part) => self.copy(piece, from, part, &mut out, &mut buffer)?,
                    None if from.transposed => self.turn(piece, from, &mut out)?,
                    None if raw_encoding(from) => {
                        self.copy(piece, from, 0, &mut out, &mut buffer)?
                    }
                    None => self.write_decoded(piece, from, &mut out)?,
                }
            }
        }
        debug_assert_eq!(out.position(), file.len());
        let len = out.position();
        out.pad(ALIGN as u64)?;
        out.finish(&file.header, len)?;
        self.target.publish([file.name.as_str()])?;
        self.journal.lock().expect("no holder panics").append([index])
    }

    fn open(&self, extent: &Extent) -> Result<SourceFile, ShardError> {
        SourceFile::open(&self.dir.join(&self.manifest.files[extent.file as usize].path))
    }

    fn damaged(&self, piece: PieceId, tensor: &Tensor) -> ShardError {
        let file = match tensor.parts.first() {
            Some(part) => part.file as usize,
            None => 0,
        };
        ShardError::Damaged {
            path: self.dir.join(&self.manifest.files[file].path),
            piece,
            tensor: tensor.name.clone(),
        }
    }

    /// Copies a part unchanged. Damage is detected before the file gets its name.
    fn copy(
        &self,
        piece: PieceId,
        tensor: &Tensor,
        part: usize,
        out: &mut ShardOutput,
        buffer: &mut [u8],
    ) -> Result<(), ShardError> {
        let part = &tensor.parts[part];
        let source = self.open(part)?;
        for (check, run) in part.checks.iter().zip((0..part.len).step_by(part.check_len as usize)) {
            let end = run.saturating_add(part.check_len).min(part.len);
            let mut hasher = Xxh3Default::new();
            let mut at = run;
            while at < end {
                let n = (end - at).min(STEP);
                let range = source.read(part.offset + at, n as usize, buffer)?;
                hasher.update(&buffer[range.clone()]);
                out.write(&buffer[range])?;
                (self.report)(n);
                at += n;
            }
            if hasher.digest() != *check {
                return Err(self.damaged(piece, tensor));
            }
        }
        Ok(())
    }

    /// Writes the decoded rows of a matrix.
    fn write_decoded(
        &self,
        piece: PieceId,
        tensor: &Tensor,
        out: &mut ShardOutput,
    ) -> Result<(), ShardError> {
        self.decode(piece, tensor, |_, bytes| {
            out.write(bytes)?;
            (self.report)(bytes.len() as u64);
            Ok(())
        })
    }

    /// Writes a matrix that the checkpoint stores as [columns, rows]. As many columns as fit in
    /// memory are written at a time, and all rows are decoded for them.
    fn turn(
        &self,
        piece: PieceId,
        tensor: &Tensor,
        out: &mut ShardOutput,
    ) -> Result<(), ShardError> {
        let Some(to) = numbers(tensor.dtype) else { return Err(self.damaged(piece, tensor)) };
        let size = to.size();
        let (rows, cols) = tensor.matrix_shape();
        let line = rows as usize * size;
        let row_len = cols as usize * size;
        let most = (BAND / line.max(1)).clamp(1, (cols as usize).max(1));
        let mut band = vec![0; most.saturating_mul(line)];
        for first in (0..cols as usize).step_by(most) {
            let lines = &mut band[..most.min(cols as usize - first) * line];
            self.decode(piece, tensor, |row, bytes| {
                let rows = Lines { bytes, step: row_len, from: first * size, size };
                rows.write_columns(self.pool, lines, line, row as usize);
                Ok(())
            })?;
            out.write(lines)?;
            (self.report)(lines.len() as u64);
        }
        Ok(())
    }

    /// Decodes a matrix in blocks of rows, and passes each block to `write` with the number of its
    /// first row.
    fn decode(
        &self,
        piece: PieceId,
        tensor: &Tensor,
        mut write: impl FnMut(u64, &[u8]) -> Result<(), ShardError>,
    ) -> Result<(), ShardError> {
        let to = match tensor.encoding {
            Some(encoding) if encoding.packs_codes() => Some(Numbers::E4m3),
            _ => numbers(tensor.dtype),
        };
        let Some(encoding) = tensor.encoding else { return Err(self.damaged(piece, tensor)) };
        let Some(to) = to else { return Err(self.damaged(piece, tensor)) };
        let (rows, cols) = tensor.matrix_shape();
        let row_len = cols * to.size() as u64;
        let mut parts = Vec::new();
        for part in &tensor.parts {
            parts.push(RangedPart::new(self.open(part)?, part));
        }
        let exact = tensor.error.is_none();
        let multiple = encoding.row_multiple() as u64;
        let step = (STEP / row_len.max(1) / multiple).max(1) * multiple;
        let chunk = (CHUNK / row_len.max(1) / multiple).max(1) * multiple;
        let mut first = 0;
        while first < rows {
            let count = step.min(rows - first);
            let block = self.block(piece, tensor, encoding, &mut parts, first..first + count)?;
            let slices: Vec<&[u8]> = block.iter().map(Vec::as_slice).collect();
            let matrix = Matrix::new(encoding, count as usize, cols as usize, &slices);
            let Ok(matrix) = matrix else { return Err(self.damaged(piece, tensor)) };
            let starts: Vec<u64> = (0..count).step_by(chunk as usize).collect();
            let decoded: Vec<Result<Vec<u8>, EncodeError>> = self.pool.install(|| {
                let chunks = starts.into_par_iter().map(|start| {
                    let rows = matrix.rows(start as usize..(start + chunk).min(count) as usize);
                    let mut bytes = Vec::with_capacity((chunk * row_len) as usize);
                    match exact {
                        true => rows.to_source(to, &mut bytes)?,
                        false => round(&rows, to, &mut bytes),
                    }
                    Ok(bytes)
                });
                chunks.collect()
            });
            for (bytes, start) in decoded.into_iter().zip((first..).step_by(chunk as usize)) {
                let Ok(bytes) = bytes else { return Err(self.damaged(piece, tensor)) };
                write(start, &bytes)?;
            }
            first += count;
        }
        Ok(())
    }

    /// Reads the parts of a block of rows, as if it were a matrix of its own.
    fn block(
        &self,
        piece: PieceId,
        tensor: &Tensor,
        encoding: Encoding,
        parts: &mut [RangedPart],
        rows: Range<u64>,
    ) -> Result<Vec<Vec<u8>>, ShardError> {
        let (all, cols) = tensor.matrix_shape();
        let damaged = || self.damaged(piece, tensor);
        let mut block = Vec::with_capacity(parts.len());
        for (index, (kind, part)) in encoding.parts().iter().zip(parts.iter_mut()).enumerate() {
            let bytes = match kind.rows(rows.clone(), cols).ok_or_else(damaged)? {
                sws_kernels::PartRows::Bytes(range) => part.read(range)?,
                sws_kernels::PartRows::Whole if index != PATCHES => {
                    part.read(0..part.extent.len)?
                }
                // The offsets of these rows, relative to the first one, and the patches between
                // them.
                sws_kernels::PartRows::Whole => {
                    let kind = encoding.offsets(cols);
                    let list = kind.len(all).ok_or_else(damaged)?;
                    let first = kind.first(rows.start);
                    let place = kind.place(first);
                    let len = kind.len(rows.end - first).ok_or_else(damaged)?;
                    let Some(read) = part.read(place..place + len)? else {
                        return Err(damaged());
                    };
                    let offsets = rows.start - first..rows.end - first + 1;
                    let offsets: Vec<u64> =
                        offsets.map(|row| kind.get(&read, row as usize) as u64).collect();
                    let listed = offsets[0]..offsets[offsets.len() - 1];
                    // A row has at most twice as many bytes of patches as columns.
                    let fit = |[a, b]: &[u64; 2]| a <= b && b - a <= 2 * cols;
                    if !offsets.array_windows().all(fit) || listed.end > part.extent.len - list {
                        return Err(damaged());
                    }
                    let mut writer = OffsetWriter::new(kind);
                    let mut bytes = Vec::new();
                    for offset in &offsets {
                        bytes.extend_from_slice(writer.push((offset - listed.start) as u32));
                    }
                    let escapes = part.read(list + listed.start..list + listed.end)?;
                    bytes.extend(escapes.ok_or_else(damaged)?);
                    Some(bytes)
                }
            };
            block.push(bytes.ok_or_else(damaged)?);
        }
        Ok(block)
    }
}
