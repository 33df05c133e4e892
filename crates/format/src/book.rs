//! Checksums recorded at the first read, for files that have none.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use sws_os::identity::FileIdentity;
use sws_os::open::open_regular;
use sws_os::replace::{self, Replacement};

use crate::Manifest;
use crate::checksum::checksum;

const MAGIC: &[u8; 8] = b"swssums1";
const ENTRY: usize = 24;
/// Maximum number of blocks recorded for one file. At the usual block sizes no file has nearly as
/// many.
const MOST_ENTRIES: usize = 1 << 18;
/// Maximum disk space of the records; the oldest are removed first.
const MOST_BYTES: u64 = 256 << 20;
/// Number of new blocks after which the records are saved, so that a killed process loses little.
const SAVE_EVERY: usize = 4096;

/// Checksums of the blocks of a checkpoint read in place, recorded at their first read. They are
/// kept in the user's cache folder, one record per file. A record is named by device, inode, size
/// and modification time, so that an edited file gets a new one.
#[derive(Debug)]
pub struct ChecksumBook {
    /// Path of each file's record; `None` if the file's metadata cannot be read or there is no
    /// cache folder.
    records: Vec<Option<PathBuf>>,
    folder: Option<PathBuf>,
    state: Mutex<BookState>,
}

#[derive(Debug, Default)]
struct BookState {
    sums: HashMap<(u32, u64, u64), u64>,
    unsaved: usize,
}

impl ChecksumBook {
    /// Opens the records of a manifest's files that earlier processes wrote to `folder`. Damaged or
    /// unreadable records are ignored.
    pub fn open(manifest: &Manifest, dir: &Path, folder: Option<PathBuf>) -> ChecksumBook {
        let mut records: Vec<Option<PathBuf>> = Vec::with_capacity(manifest.files.len());
        let mut sums = HashMap::new();
        for (number, file) in (0..).zip(&manifest.files) {
            let record = match (FileIdentity::at(&dir.join(&file.path)), &folder) {
                (Ok(about), Some(folder)) => Some(record_path(&about, folder)),
                _ => None,
            };
            if let Some(record) = &record {
                for (offset, len, sum) in load(record).unwrap_or_default() {
                    sums.insert((number, offset, len), sum);
                }
            }
            records.push(record);
        }
        ChecksumBook { records, folder, state: Mutex::new(BookState { sums, unsaved: 0 }) }
    }

    /// True if a block has the checksum of its first read. A first read is recorded and agrees.
    pub fn agrees(&self, file: u32, offset: u64, len: u64, sum: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (file, offset, len);
        if let Some(&before) = state.sums.get(&key) {
            return before == sum;
        }
        state.sums.insert(key, sum);
        state.unsaved += 1;
        if state.unsaved >= SAVE_EVERY {
            self.save_locked(&mut state);
        }
        true
    }

    /// Saves new checksums to the cache folder. Failure is not an error: the checksums then last
    /// only as long as the process.
    pub fn save(&self) {
        self.save_locked(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn save_locked(&self, state: &mut BookState) {
        let Some(folder) = &self.folder else { return };
        if std::mem::take(&mut state.unsaved) == 0 {
            return;
        }
        let mut by_file: HashMap<u32, Vec<(u64, u64, u64)>> = HashMap::new();
        for (&(file, offset, len), &sum) in &state.sums {
            by_file.entry(file).or_default().push((offset, len, sum));
        }
        if fs::create_dir_all(folder).is_err() {
            return;
        }
        for (file, mut entries) in by_file {
            if let Some(Some(path)) = self.records.get(file as usize) {
                entries.sort_unstable();
                entries.truncate(MOST_ENTRIES);
                let _ = store(path, &entries);
            }
        }
        let _ = drop_oldest(folder);
    }
}

impl Drop for ChecksumBook {
    fn drop(&mut self) {
        self.save();
    }
}

/// True if `bytes`, the contents of a file outside any manifest, have the checksum of the file's
/// first read. A first read is recorded and agrees, and so does any read if the record can be
/// neither read nor written.
pub(crate) fn first_reading_agrees(
    about: &FileIdentity,
    bytes: &[u8],
    folder: Option<&Path>,
) -> bool {
    let Some(folder) = folder else { return true };
    let record = record_path(about, folder);
    let entry = (0, bytes.len() as u64, checksum(bytes));
    if let Ok(before) = load(&record) {
        return before == [entry];
    }
    if fs::create_dir_all(folder).and_then(|()| store(&record, &[entry])).is_ok() {
        let _ = drop_oldest(folder);
    }
    true
}

fn record_path(about: &FileIdentity, folder: &Path) -> PathBuf {
    let FileIdentity { device, index, len, modified: (seconds, nanos), .. } = about;
    folder.join(format!("{device:x}-{index:x}-{len:x}-{seconds:x}.{nanos:09}.sums"))
}

/// Reads a record: magic, entries of (offset, length, sum), and a checksum over all of it.
fn load(path: &Path) -> io::Result<Vec<(u64, u64, u64)>> {
    let most = MAGIC.len() + MOST_ENTRIES * ENTRY + 8;
    let mut bytes = Vec::new();
    open_regular(path)?.take(most as u64).read_to_end(&mut bytes)?;
    let damaged = io::ErrorKind::InvalidData;
    let (body, sum) = bytes.split_last_chunk::<8>().ok_or(damaged)?;
    let (entries, rest) = body.strip_prefix(MAGIC).ok_or(damaged)?.as_chunks::<ENTRY>();
    if u64::from_le_bytes(*sum) != checksum(body) || !rest.is_empty() {
        return Err(damaged.into());
    }
    let mut found = Vec::with_capacity(entries.len());
    for entry in entries {
        let numbers = entry.as_chunks::<8>().0;
        let [offset, len, sum] = [numbers[0], numbers[1], numbers[2]].map(u64::from_le_bytes);
        found.push((offset, len, sum));
    }
    Ok(found)
}

fn store(path: &Path, entries: &[(u64, u64, u64)]) -> io::Result<()> {
    let mut bytes = MAGIC.to_vec();
    for &(offset, len, sum) in entries {
        bytes.extend([offset, len, sum].into_iter().flat_map(u64::to_le_bytes));
    }
    bytes.extend(checksum(&bytes).to_le_bytes());
    let mut record = Replacement::begin_unswept(path)?;
    record.file().write_all(&bytes)?;
    // A record that a crash has damaged has another checksum.
    record.publish_unsynced()
}

/// Keeps the records within their room, and removes what killed processes left.
fn drop_oldest(folder: &Path) -> io::Result<()> {
    replace::sweep(folder);
    let mut records = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Another process may have removed it.
        let Ok(stat) = entry.metadata() else { continue };
        if entry.path().extension().is_some_and(|end| end == "sums") {
            // Even the shortest record takes a whole disk block.
            records.push((stat.modified()?, stat.len().next_multiple_of(4096), entry.path()));
        }
    }
    records.sort_unstable();
    let mut total: u64 = records.iter().map(|(_, len, _)| len).sum();
    for (_, len, path) in records {
        if total <= MOST_BYTES {
            break;
        }
        fs::remove_file(path)?;
        total -= len;
    }
    Ok(())
}
