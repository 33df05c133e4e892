//! File access that bypasses the page cache, so that sharding a terabyte does not fill memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sws_format::open_regular;
use sws_os::{direct, file};
use sws_store::Slot;

use super::ShardError;

/// Alignment of addresses, offsets and lengths of direct transfers. Every device accepts 4096.
pub(super) const ALIGN: usize = 4096;
/// Bytes per write. On a device measured at 2.2 GB/s, writes of 1 MiB already reached 0.9 of that.
const STAGING: usize = 4 << 20;
/// Without direct writes, the maximum number of dirty bytes before they are synced and dropped.
const DIRTY: u64 = 32 << 20;

/// Memory for direct transfers. A [`Slot`] has huge pages: a device accepts a limited number of
/// memory segments per request, and scattered small pages were measured to cost two thirds of its
/// speed.
pub(super) fn buffer(len: usize) -> Result<Slot, ShardError> {
    Slot::alone(len).map_err(|_| ShardError::Memory { len })
}

/// A file to read from.
pub(super) struct SourceFile {
    path: PathBuf,
    direct: Option<File>,
    buffered: File,
    refused: AtomicBool,
}

impl SourceFile {
    pub(super) fn open(path: &Path) -> Result<SourceFile, ShardError> {
        let buffered = open_regular(path).map_err(ShardError::reading(path))?;
        let direct = direct::open(path, ALIGN).ok();
        Ok(SourceFile { path: path.to_owned(), direct, buffered, refused: AtomicBool::new(false) })
    }

    /// Maximum buffer size for reading `len` bytes at any offset.
    pub(super) fn room(len: usize) -> usize {
        len.next_multiple_of(ALIGN) + ALIGN
    }

    /// Reads `len` bytes at `offset` into `buffer`, which has [`SourceFile::room`] for them. Returns
    /// their range in the buffer.
    pub(super) fn read(
        &self,
        offset: u64,
        len: usize,
        buffer: &mut [u8],
    ) -> Result<Range<usize>, ShardError> {
        if let Some(file) = &self.direct
            && !self.refused.load(Ordering::Relaxed)
        {
            let skip = (offset % ALIGN as u64) as usize;
            let span = (skip + len).next_multiple_of(ALIGN);
            let read = |into: &mut [u8], at| direct::read_at(file, into, at);
            match read_up_to(read, offset - skip as u64, &mut buffer[..span], skip + len) {
                Ok(()) => return Ok(skip..skip + len),
                // The file system accepts the flag but refuses the read.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                    self.refused.store(true, Ordering::Relaxed);
                }
                Err(e) => return Err(ShardError::reading(&self.path)(e)),
            }
        }
        let read = |into: &mut [u8], at| file::read_at(&self.buffered, into, at);
        read_up_to(read, offset, &mut buffer[..len], len)
            .map_err(ShardError::reading(&self.path))?;
        file::forget(&self.buffered, offset, Some(len as u64));
        Ok(0..len)
    }
}

/// Fills `buffer`. Only bytes beyond `needed` may be missing, at the end of the file.
fn read_up_to(
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
    offset: u64,
    buffer: &mut [u8],
    needed: usize,
) -> io::Result<()> {
    let mut done = 0;
    while done < needed {
        match read(&mut buffer[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A file being written from front to back under a temporary name. It is deleted if dropped before
/// [`ShardOutput::finish`].
pub(super) struct ShardOutput {
    path: PathBuf,
    file: File,
    direct: bool,
    staging: Slot,
    /// File offset of the staging buffer.
    base: u64,
    fill: usize,
    /// Bytes written since the last sync, if writes are not direct.
    dirty: u64,
    finished: bool,
}

/// A position that [`ShardOutput::rewind`] returns to.
pub(super) struct OutputMark {
    base: u64,
    fill: usize,
    /// The last bytes of the staging buffer, starting at a multiple of [`ALIGN`].
    tail: Vec<u8>,
}

impl ShardOutput {
    /// Creates a file of about `len` bytes. The first `reserved`, a multiple of [`ALIGN`], are
    /// written last.
    pub(super) fn create(path: &Path, reserved: u64, len: u64) -> Result<ShardOutput, ShardError> {
        debug_assert!(reserved.is_multiple_of(ALIGN as u64));
        let (file, direct) = match direct::create(path) {
            Ok(file) => (file, true),
            Err(_) => (File::create(path).map_err(ShardError::writing(path))?, false),
        };
        // With preallocation, direct writes neither extend the file one by one nor find the disk
        // full halfway. Not every file system supports it.
        if let Err(e) = file::allocate(&file, len.max(1))
            && e.kind() == io::ErrorKind::StorageFull
        {
            drop(file);
            let _ = std::fs::remove_file(path);
            return Err(ShardError::NoSpace { path: path.to_owned() });
        }
        Ok(ShardOutput {
            path: path.to_owned(),
            file,
            direct,
            staging: buffer(STAGING)?,
            base: reserved,
            fill: 0,
            dirty: 0,
            finished: false,
        })
    }

    pub(super) fn position(&self) -> u64 {
        self.base + self.fill as u64
    }

    pub(super) fn write(&mut self, mut bytes: &[u8]) -> Result<(), ShardError> {
        while !bytes.is_empty() {
            let n = bytes.len().min(self.staging.len() - self.fill);
            self.staging[self.fill..][..n].copy_from_slice(&bytes[..n]);
            self.fill += n;
            bytes = &bytes[n..];
            if self.fill == self.staging.len() {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes zeros up to a multiple of `multiple`.
    pub(super) fn pad(&mut self, multiple: u64) -> Result<(), ShardError> {
        const ZEROS: [u8; ALIGN] = [0; ALIGN];
        let gap = self.position().next_multiple_of(multiple) - self.position();
        self.write(&ZEROS[..gap as usize])
    }

    pub(super) fn mark(&self) -> OutputMark {
        let whole = self.fill - self.fill % ALIGN;
        let tail = self.staging[whole..self.fill].to_vec();
        OutputMark { base: self.base, fill: self.fill, tail }
    }

    /// Discards everything written since `mark`.
    pub(super) fn rewind(&mut self, mark: OutputMark) {
        let OutputMark { base, fill, tail } = mark;
        if self.base == base {
            // Nothing was flushed since the mark, so the bytes before it are still in the buffer.
            self.fill = fill;
            return;
        }
        self.base = base + (fill - tail.len()) as u64;
        self.fill = tail.len();
        self.staging[..self.fill].copy_from_slice(&tail);
    }

    /// Writes `header` into the reserved beginning, truncates the file to `len`, and syncs it. The
    /// caller has padded the end to a multiple of [`ALIGN`].
    pub(super) fn finish(mut self, header: &[u8], len: u64) -> Result<(), ShardError> {
        if self.fill > 0 {
            self.flush()?;
        }
        self.base = 0;
        self.write(header)?;
        if self.fill > 0 {
            self.flush()?;
        }
        self.file.set_len(len).map_err(ShardError::writing(&self.path))?;
        self.file.sync_data().map_err(ShardError::writing(&self.path))?;
        self.drop_pages();
        self.finished = true;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ShardError> {
        let written = self.write_staging();
        written.map_err(ShardError::writing(&self.path))?;
        self.base += self.fill as u64;
        self.fill = 0;
        Ok(())
    }

    fn write_staging(&mut self) -> io::Result<()> {
        let bytes = &self.staging[..self.fill];
        if self.direct {
            match file::write_all_at(&self.file, bytes, self.base) {
                Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                    // As for reads: the flag was accepted, but the write is refused.
                    self.file = OpenOptions::new().write(true).open(&self.path)?;
                    self.direct = false;
                }
                done => return done,
            }
        }
        file::write_all_at(&self.file, bytes, self.base)?;
        self.dirty += bytes.len() as u64;
        if self.dirty >= DIRTY {
            self.file.sync_data()?;
            self.drop_pages();
            self.dirty = 0;
        }
        Ok(())
    }

    fn drop_pages(&self) {
        if !self.direct {
            file::forget(&self.file, 0, None);
        }
    }
}

impl Drop for ShardOutput {
    fn drop(&mut self) {
        if !self.finished {
            // The error was reported already, and resuming would delete the file as well.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewound_output_keeps_what_came_before_the_mark() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = |n: usize, seed: usize| -> Vec<u8> {
            (0..n).map(|i| (i.wrapping_mul(31) + seed) as u8).collect()
        };
        for before in [0, 5, ALIGN, 3 * ALIGN + 7, STAGING - 1, STAGING + 9] {
            for discarded in [0, 1, 10 * ALIGN, STAGING, 2 * STAGING + 3] {
                let path = dir.path().join("file");
                let mut output = ShardOutput::create(&path, ALIGN as u64, 0).unwrap();
                let kept = bytes(before, 1);
                let after = bytes(2 * ALIGN + 3, 9);
                output.write(&kept).unwrap();
                let mark = output.mark();
                output.write(&bytes(discarded, 5)).unwrap();
                output.rewind(mark);
                output.write(&after).unwrap();
                output.pad(ALIGN as u64).unwrap();
                let len = output.position();
                output.finish(&vec![3; ALIGN], len).unwrap();
                let found = std::fs::read(&path).unwrap();
                let end = ALIGN + before + after.len();
                let case = format!("{before} before, {discarded} discarded");
                assert_eq!(found.len() as u64, len, "{case}");
                assert!(found[ALIGN..end] == [kept, after].concat(), "{case}");
            }
        }
    }
}
