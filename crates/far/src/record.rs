//! The record of cached cells: for each cell 0, or the time of its last use. Processes share the
//! record and keep no copies, so that all of them see what one of them downloads or drops.
//!
//! The bytes of a cell are on the drive before the record says so. A wrong record, after a crash or
//! a manual change, leads to bytes with a wrong checksum, which are then downloaded again.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sws_os::file::{read_exact_at, write_all_at};
use sws_os::lock::wait_alone;
use sws_os::open::no_link;

use crate::files::create;

/// The file whose lock protects the record: itself, or another where a locked file cannot be read.
const LOCK: &str = if cfg!(windows) { "record.lock" } else { "record" };
const MAGIC: &[u8; 8] = b"swsfar01";
/// Bytes of the header: magic, time, and number of cached bytes.
const HEADER: u64 = 8 + 8 + 8;
const TIME: u64 = 8;
const BYTES: u64 = 16;
const ENTRY: u64 = 4;

/// The record of a model's cells.
#[derive(Debug)]
pub(crate) struct CellRecord {
    file: File,
    cells: u32,
    /// Lock for changing the number of cached bytes, together with a file lock against other
    /// processes.
    ledger: Mutex<File>,
}

/// The number of cached bytes, locked.
pub(crate) struct RecordLedger<'a> {
    record: &'a CellRecord,
    file: MutexGuard<'a, File>,
}

impl CellRecord {
    /// Opens the record in a directory, or creates one. A file that is not such a record is
    /// replaced.
    pub(crate) fn open(dir: &Path, cells: u32) -> io::Result<CellRecord> {
        let path = dir.join("record");
        let file = create(&path)?;
        let locked = create(&dir.join(LOCK))?;
        let len = HEADER + u64::from(cells) * ENTRY;
        wait_alone(&locked)?;
        let mut magic = [0; 8];
        let known = read_exact_at(&file, &mut magic, 0).is_ok() && magic == *MAGIC;
        if !known || file.metadata()?.len() != len {
            file.set_len(0)?;
            file.set_len(len)?;
            write_all_at(&file, MAGIC, 0)?;
        }
        locked.unlock()?;
        Ok(CellRecord { file, cells, ledger: Mutex::new(locked) })
    }

    /// The number of cached bytes in another directory, from its record.
    pub(crate) fn bytes_in(dir: &Path) -> Option<u64> {
        let file = no_link(File::options().read(true)).open(dir.join("record")).ok()?;
        let mut header = [0; HEADER as usize];
        read_exact_at(&file, &mut header, 0).ok()?;
        let magic = header.first_chunk()?;
        let bytes = header.last_chunk()?;
        (magic == MAGIC).then(|| u64::from_le_bytes(*bytes))
    }

    /// The entries of some cells.
    pub(crate) fn uses(&self, cells: Range<u32>) -> io::Result<Vec<u32>> {
        let cells = cells.start..cells.end.min(self.cells);
        let mut bytes = vec![0; cells.len() * ENTRY as usize];
        read_exact_at(&self.file, &mut bytes, at(cells.start))?;
        let number = |entry: &[u8]| entry.iter().rev().fold(0, |n, &byte| n << 8 | u32::from(byte));
        Ok(bytes.chunks_exact(ENTRY as usize).map(number).collect())
    }

    /// True if a cell is cached.
    pub(crate) fn has(&self, cell: u32) -> bool {
        self.uses(cell..cell + 1).is_ok_and(|uses| uses.first().is_some_and(|&used| used > 0))
    }

    /// Sets the entry of a cell: the time of its use, or 0 if it is not cached any more.
    pub(crate) fn set(&self, cell: u32, used: u32) -> io::Result<()> {
        match cell < self.cells {
            true => write_all_at(&self.file, &used.to_le_bytes(), at(cell)),
            false => Ok(()),
        }
    }

    /// The logical time, which advances with each downloaded cell. It is at least 1.
    pub(crate) fn time(&self) -> u32 {
        let now = self.number(TIME).unwrap_or(0);
        u32::try_from(now).unwrap_or(u32::MAX).max(1)
    }

    /// Advances the time, and returns it.
    pub(crate) fn tick(&self) -> u32 {
        let now = self.time().saturating_add(1);
        // Other processes may advance the time at once. It is harmless if they share a time.
        let _ = write_all_at(&self.file, &u64::from(now).to_le_bytes(), TIME);
        now
    }

    /// Locks the number of cached bytes.
    pub(crate) fn ledger(&self) -> io::Result<RecordLedger<'_>> {
        let file = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        wait_alone(&file)?;
        Ok(RecordLedger { record: self, file })
    }

    fn number(&self, at: u64) -> io::Result<u64> {
        let mut bytes = [0; 8];
        read_exact_at(&self.file, &mut bytes, at)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

impl RecordLedger<'_> {
    /// Bytes that are cached or about to be.
    pub(crate) fn bytes(&self) -> u64 {
        self.record.number(BYTES).unwrap_or(0)
    }

    /// Changes the number of cached bytes.
    pub(crate) fn set(&self, bytes: u64) -> io::Result<()> {
        write_all_at(&self.record.file, &bytes.to_le_bytes(), BYTES)
    }
}

impl Drop for RecordLedger<'_> {
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

fn at(cell: u32) -> u64 {
    HEADER + u64::from(cell) * ENTRY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_see_what_others_record() {
        let dir = tempfile::tempdir().unwrap();
        let one = CellRecord::open(dir.path(), 5).unwrap();
        let two = CellRecord::open(dir.path(), 5).unwrap();
        assert_eq!(one.uses(0..9).unwrap(), [0; 5]);
        one.set(3, 0x0102_0304).unwrap();
        one.set(5, 9).unwrap();
        assert_eq!(two.uses(2..5).unwrap(), [0, 0x0102_0304, 0]);
        assert!(two.has(3) && !two.has(2) && !two.has(5));
        assert_eq!((one.time(), one.tick(), two.time(), two.tick()), (1, 2, 2, 3));
        one.ledger().unwrap().set(7).unwrap();
        assert_eq!(two.ledger().unwrap().bytes(), 7);
        // Of other cells it says nothing.
        let other = CellRecord::open(dir.path(), 4).unwrap();
        assert_eq!((other.uses(0..4).unwrap(), other.time()), (vec![0; 4], 1));
    }
}
