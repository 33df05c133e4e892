//! Checksums of the bytes read, computed while the rest of a fetch is in flight.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use sws_format::{ChecksumBook, Clock, Manifest, Tensor};
use xxhash_rust::xxh3::Xxh3;

use crate::drives::Drives;
use crate::fetch::FetchError;
use crate::layout::{PieceLayout, SlotBlock};
use crate::slot::SlotMemory;
use crate::sync::Mutex;
use crate::{SLOT_ALIGN, Slot};

/// Bytes per read when a block is read again.
const REREAD: usize = 1 << 20;

/// Verifies the bytes of a manifest's files.
pub(crate) struct FileVerifier {
    pub(crate) drives: Drives,
    pub(crate) clock: Clock,
    /// Checksums of first reads, for files that have none.
    book: Option<ChecksumBook>,
    pub(crate) mismatches: AtomicU64,
    pub(crate) corrected: AtomicU64,
}

/// A slot being filled, with the progress of its checksums.
pub(crate) struct Transfer {
    pub(crate) layout: Arc<PieceLayout>,
    /// Memory of the slot, which its owner keeps until the last chunk has landed. A range belongs
    /// to the reader alone until it is passed to [`land`](Transfer::land).
    pub(crate) memory: SlotMemory,
    progress: Mutex<LandingProgress>,
}

#[derive(Default)]
struct LandingProgress {
    /// Ranges of the slot beyond `prefix` that have landed.
    landed: Vec<Range<usize>>,
    /// All bytes below this offset have landed.
    prefix: usize,
    /// All bytes below this offset are verified and no longer change.
    verified: usize,
    /// `None` while a thread is hashing.
    cursor: Option<Box<BlockCursor>>,
    spent: Duration,
}

#[derive(Default)]
struct BlockCursor {
    /// Index of the block being hashed, and the number of its bytes hashed so far.
    block: usize,
    done: usize,
    hasher: Xxh3,
    failed: bool,
}

impl Transfer {
    pub(crate) fn new(layout: Arc<PieceLayout>, memory: SlotMemory) -> Transfer {
        let progress =
            LandingProgress { cursor: Some(Box::default()), ..LandingProgress::default() };
        Transfer { layout, memory, progress: Mutex::new(progress) }
    }

    /// Time spent on checksums so far.
    pub(crate) fn spent(&self) -> Duration {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).spent
    }

    /// Length of the verified prefix of the slot. It is not written to any more.
    pub(crate) fn verified(&self) -> usize {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).verified
    }

    /// Records that a range of the slot has been filled, and hashes the bytes that have become
    /// contiguous. If another thread is already hashing, that thread continues with this range.
    ///
    /// Once every range has landed and every call has returned `Ok`, every block is verified.
    ///
    /// # Safety
    ///
    /// The slot must stay alive until this returns. The range must have been filled exactly once
    /// and must not be written again.
    pub(crate) unsafe fn land(
        &self,
        range: Range<usize>,
        verifier: &FileVerifier,
    ) -> Result<(), FetchError> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.landed.push(range);
        let Some(mut cursor) = progress.cursor.take() else { return Ok(()) };
        let mut result = Ok(());
        while progress.advance() && !cursor.failed {
            let prefix = progress.prefix;
            drop(progress);
            let started = verifier.clock.now();
            let hash = || {
                // SAFETY: all bytes below `prefix` have landed, so only the holder of the cursor,
                // which is this thread, writes there.
                unsafe { self.hash(&mut cursor, prefix, verifier) }
            };
            // If a panic dropped the cursor, later ranges would not be hashed.
            result = catch_unwind(AssertUnwindSafe(hash)).unwrap_or_else(|_| {
                Err(FetchError::Unverified { piece: self.layout.read().piece() })
            });
            cursor.failed = result.is_err();
            let spent = verifier.clock.now().saturating_sub(started);
            progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.spent += spent;
            if result.is_ok() {
                // A block may be rewritten until it agrees with its checksum.
                let blocks = self.layout.blocks();
                let next = blocks.get(cursor.block).map_or(usize::MAX, |block| block.slot.start);
                let before = cursor.block.checked_sub(1).map_or(0, |last| blocks[last].slot.end);
                progress.verified = before.min(next);
            }
        }
        progress.cursor = Some(cursor);
        result
    }

    /// Hashes up to `prefix`.
    ///
    /// # Safety
    ///
    /// The contract of [`land`](Transfer::land) applies, and no other thread may write below
    /// `prefix`.
    unsafe fn hash(
        &self,
        cursor: &mut BlockCursor,
        prefix: usize,
        verifier: &FileVerifier,
    ) -> Result<(), FetchError> {
        while let Some(block) = self.layout.blocks().get(cursor.block) {
            let from = block.slot.start + cursor.done;
            let to = block.slot.end.min(prefix);
            if from < to {
                // SAFETY: below `prefix`.
                cursor.hasher.update(unsafe { self.memory.slice(from..to) });
                cursor.done += to - from;
            }
            if cursor.done < block.slot.len() {
                break;
            }
            if !verifier.accepts(block, cursor.hasher.digest()) {
                // SAFETY: below `prefix`.
                let bytes = unsafe { self.memory.slice_mut(block.slot.clone()) };
                verifier.read_again(&self.layout, block, bytes)?;
            }
            cursor.hasher.reset();
            cursor.done = 0;
            cursor.block += 1;
        }
        Ok(())
    }
}

impl LandingProgress {
    /// Advances `prefix` over contiguous ranges. True if it moved.
    fn advance(&mut self) -> bool {
        let before = self.prefix;
        while let Some(at) = self.landed.iter().position(|range| range.start == self.prefix) {
            self.prefix = self.landed.swap_remove(at).end;
        }
        self.prefix > before
    }
}

fn is_unchecked(tensor: &Tensor) -> bool {
    tensor.parts.iter().any(|part| part.checks.is_empty() && part.len > 0)
}

impl FileVerifier {
    pub(crate) fn new(
        manifest: &Manifest,
        dir: &Path,
        drives: Drives,
        clock: Clock,
        cache: Option<PathBuf>,
    ) -> FileVerifier {
        let unchecked = manifest.pieces.iter().any(|piece| {
            let stand_in = piece.stand_in.iter().flat_map(|stand_in| &stand_in.tensors);
            piece.tensors.iter().chain(stand_in).any(is_unchecked)
        });
        let book = match unchecked {
            true => Some(ChecksumBook::open(manifest, dir, cache)),
            false => None,
        };
        FileVerifier {
            drives,
            clock,
            book,
            mismatches: AtomicU64::new(0),
            corrected: AtomicU64::new(0),
        }
    }

    /// Path of a file, for messages.
    pub(crate) fn path(&self, file: u32) -> PathBuf {
        self.drives.path(0, file)
    }

    fn accepts(&self, block: &SlotBlock, sum: u64) -> bool {
        match (block.check, &self.book) {
            (Some(expected), _) => sum == expected,
            (None, Some(book)) => {
                book.agrees(block.file, block.offset, block.slot.len() as u64, sum)
            }
            (None, None) => true,
        }
    }

    /// Reads a block into `bytes` again, from every drive that has it, and verifies it. If one yields
    /// the right bytes, those that do not are left out.
    fn read_again(
        &self,
        layout: &PieceLayout,
        block: &SlotBlock,
        bytes: &mut [u8],
    ) -> Result<(), FetchError> {
        self.mismatches.fetch_add(1, Ordering::Relaxed);
        let mut is_right = false;
        let mut failed = Vec::new();
        for drive in self.drives.having(block.file) {
            let into = (!is_right).then_some(&mut *bytes);
            match self.reread(drive, layout, block, into) {
                Ok(()) => is_right = true,
                Err(error) => failed.push((drive, error)),
            }
        }
        if is_right {
            self.corrected.fetch_add(1, Ordering::Relaxed);
            for (drive, error) in &failed {
                let why = match error {
                    FetchError::Read { source, .. } => format!("cannot be read ({source})"),
                    FetchError::Short { .. } => "is cut short".to_owned(),
                    _ => format!("has wrong bytes at {}", block.offset),
                };
                self.drives.leave_out(*drive, block.file, &why);
            }
            return Ok(());
        }
        failed.sort_by_key(|(drive, _)| *drive);
        let first = failed.into_iter().next().map(|(_, error)| error);
        Err(first.unwrap_or(FetchError::Cancelled))
    }

    /// Reads a block from a drive, bypassing all caches, and verifies it. The bytes are kept in
    /// `into`.
    fn reread(
        &self,
        drive: usize,
        layout: &PieceLayout,
        block: &SlotBlock,
        mut into: Option<&mut [u8]>,
    ) -> Result<(), FetchError> {
        let piece = layout.read().piece();
        let failed =
            |source| FetchError::Read { piece, file: self.drives.path(drive, block.file), source };
        // Not straight into the slot: the pages at the block's edges hold neighbours that are
        // already verified.
        let mut buffer = Slot::alone(REREAD).map_err(failed)?;
        let mut hasher = Xxh3::new();
        let len = block.slot.len();
        let mut done = 0;
        while done < len {
            let at = block.offset + done as u64;
            let skip = (at % SLOT_ALIGN as u64) as usize;
            let want = (len - done).min(REREAD - skip);
            let read = (skip + want).next_multiple_of(SLOT_ALIGN);
            let start = at - skip as u64;
            let got = self.drives.reread(drive, block.file, start, &mut buffer[..read]);
            let got = got.map_err(failed)?;
            if got < skip + want {
                return Err(FetchError::Short {
                    piece,
                    file: self.drives.path(drive, block.file),
                    offset: at,
                    wanted: want,
                    got: got.saturating_sub(skip),
                });
            }
            let fresh = &buffer[skip..skip + want];
            hasher.update(fresh);
            if let Some(into) = &mut into {
                into[done..done + want].copy_from_slice(fresh);
            }
            done += want;
        }
        if self.accepts(block, hasher.digest()) {
            return Ok(());
        }
        let tensor = layout.tensors()[block.tensor].name.clone();
        let file = self.drives.path(drive, block.file);
        let offset = block.offset;
        Err(match block.check {
            Some(_) => FetchError::Corrupt { piece, tensor, file, offset },
            None => FetchError::Changed { piece, tensor, file, offset },
        })
    }
}
