//! The local cache of a model: its small files, the downloaded cells of its shards, and the disk
//! space for them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use sws_format::{Manifest, SMALL_FILES};
use sws_hub::free_space;
use sws_os::file::{allocated, forget, make_sparse, punch as free_range, touch};
use sws_os::identity::FileIdentity;
use sws_os::lock::{wait_alone, wait_shared};
use sws_os::open::{create_private_dir, no_link};
use tracing::{debug, info};

use crate::FarError;
use crate::cells::{CellSpan, Cells};
use crate::files::{create, is_file};
use crate::record::CellRecord;

/// Disk space that stays free for everything else: a twentieth of the space that is free at first,
/// up to this maximum.
const SPARE: u64 = 4 << 30;
/// The file that records the last use of a model. It is locked while the model is in use.
const USED: &str = "used";
/// Number of locks that keep processes from downloading the same cell twice.
const LOCKS: u32 = 64;
/// Share of the limit that is freed in addition, so that not every cell has to make room.
const SLACK: u64 = 64;

/// The local cache of a model.
#[derive(Debug)]
pub(crate) struct ModelPlace {
    /// Directory of the files, in the form of a shard directory.
    pub(crate) files: PathBuf,
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) cells: Cells,
    pub(crate) record: CellRecord,
    locks: PathBuf,
    /// Directory of the caches of all models.
    root: PathBuf,
    /// Maximum bytes of shards of all models.
    limit: u64,
    /// Bytes that stay free on the disk.
    spare: u64,
    /// Lock for reading cells, which is exclusive while cells are dropped.
    reading: RwLock<()>,
    /// Lock held while the model is in use.
    _used: File,
}

impl ModelPlace {
    /// Opens or creates the cache of a model, in the directory of all caches. Models that no
    /// process uses are removed if the common limit requires it.
    pub(crate) fn open(
        root: &Path,
        key: &str,
        manifest: Arc<Manifest>,
        limit: Option<u64>,
    ) -> Result<ModelPlace, FarError> {
        loop {
            if let Some(place) = ModelPlace::claimed(root, key, &manifest, limit)? {
                return Ok(place);
            }
        }
    }

    /// `None` if another process removed the model while its lock was changed.
    fn claimed(
        root: &Path,
        key: &str,
        manifest: &Arc<Manifest>,
        limit: Option<u64>,
    ) -> Result<Option<ModelPlace>, FarError> {
        let dir = root.join(key);
        let files = dir.join("files");
        let locks = dir.join("locks");
        let (used, alone) = claim(&dir, &[&files, &locks]).map_err(FarError::writing(&dir))?;
        let cells = Cells::of(manifest);
        let record = CellRecord::open(&dir, cells.len()).map_err(FarError::writing(&dir))?;
        let free = free_space(&dir)?.unwrap_or(u64::MAX);
        let place = ModelPlace {
            root: root.to_owned(),
            files,
            manifest: manifest.clone(),
            cells,
            record,
            locks,
            limit: limit.unwrap_or(u64::MAX),
            spare: (free / 20).min(SPARE),
            reading: RwLock::new(()),
            _used: used,
        };
        if alone {
            place.count().map_err(FarError::writing(&dir))?;
        }
        // Where a lock cannot change, it is given up first.
        if cfg!(windows) && alone {
            place._used.unlock().map_err(FarError::writing(&dir))?;
        }
        // No system changes a lock in one step.
        wait_shared(&place._used).map_err(FarError::writing(&dir))?;
        if !is_at(&place._used, &dir.join(USED)).map_err(FarError::writing(&dir))? {
            return Ok(None);
        }
        make_room(root, key, place.limit);
        Ok(Some(place))
    }

    /// Counts the cached bytes. A killed process may have left a wrong number.
    fn count(&self) -> io::Result<()> {
        let ledger = self.record.ledger()?;
        let uses = self.record.uses(0..self.cells.len())?;
        let mut bytes = 0;
        for (cell, used) in (0u32..).zip(uses) {
            if used > 0 {
                bytes += self.span(cell).len();
            }
        }
        ledger.set(bytes)
    }

    pub(crate) fn span(&self, cell: u32) -> CellSpan {
        self.cells.span(&self.manifest, cell)
    }

    /// Path of a file.
    pub(crate) fn path(&self, file: u32) -> PathBuf {
        let entry = self.manifest.files.get(file as usize);
        entry.map_or_else(PathBuf::new, |entry| self.files.join(&entry.path))
    }

    /// Opens a file for writing. A new file has its final length, and no bytes.
    pub(crate) fn file(&self, file: u32) -> Result<File, FarError> {
        let path = self.path(file);
        let parent = path.parent().unwrap_or(&self.files);
        create_private_dir(parent).map_err(FarError::writing(parent))?;
        let open = create(&path).map_err(FarError::writing(&path))?;
        let len = self.manifest.files.get(file as usize).map_or(0, |entry| entry.len);
        if open.metadata().map_err(FarError::writing(&path))?.len() != len {
            make_sparse(&open)
                .and_then(|()| open.set_len(len))
                .map_err(FarError::writing(&path))?;
        }
        Ok(open)
    }

    /// Locks a cell against other processes, until the file is dropped.
    pub(crate) fn lock(&self, cell: u32) -> Result<File, FarError> {
        let path = self.locks.join((cell % LOCKS).to_string());
        let file = create(&path).map_err(FarError::writing(&path))?;
        wait_alone(&file).map_err(FarError::writing(&path))?;
        Ok(file)
    }

    /// Calls `read`. Meanwhile this process drops no cell.
    pub(crate) fn reading<T>(&self, read: impl FnOnce() -> T) -> T {
        let _guard = self.reading.read().unwrap_or_else(PoisonError::into_inner);
        read()
    }

    /// Reserves disk space for a cell, and counts it. False if there is none. Other cells are
    /// dropped only if `others_go`.
    pub(crate) fn reserve(&self, span: CellSpan, others_go: bool) -> Result<bool, FarError> {
        let ledger = self.record.ledger().map_err(FarError::writing(&self.files))?;
        let free = free_space(&self.files)?.unwrap_or(u64::MAX);
        let mut bytes = ledger.bytes();
        let limit = self.share();
        let over = |bytes: u64| bytes.saturating_add(span.len()).saturating_sub(limit);
        let short = span.len().saturating_add(self.spare).saturating_sub(free);
        if over(bytes) > 0 || short > 0 {
            if !others_go {
                return Ok(false);
            }
            let slack = limit.min(bytes) / SLACK;
            let wanted = over(bytes).max(short).saturating_add(slack);
            let freed =
                self.drop_cells(wanted, span.file).map_err(FarError::writing(&self.files))?;
            bytes = bytes.saturating_sub(freed);
            ledger.set(bytes).map_err(FarError::writing(&self.files))?;
            if over(bytes) > 0 || freed < short {
                return Ok(false);
            }
        }
        ledger.set(bytes + span.len()).map_err(FarError::writing(&self.files))?;
        Ok(true)
    }

    /// Maximum bytes of this model: the space that other models leave, or an equal share of the
    /// limit. A model with more than its share frees the excess when it downloads something.
    fn share(&self) -> u64 {
        if self.limit == u64::MAX {
            return self.limit;
        }
        let own = self.files.parent();
        let mut models = 1;
        let mut left = self.limit;
        for entry in self.root.read_dir().into_iter().flatten().flatten() {
            let path = entry.path();
            if Some(path.as_path()) != own
                && let Some(bytes) = CellRecord::bytes_in(&path)
            {
                models += 1;
                left = left.saturating_sub(bytes);
            }
        }
        left.max(self.limit / models)
    }

    /// Subtracts a cell that was not downloaded.
    pub(crate) fn release(&self, span: CellSpan) {
        if let Ok(ledger) = self.record.ledger() {
            let _ = ledger.set(ledger.bytes().saturating_sub(span.len()));
        }
    }

    /// Drops cells whose bytes do not match the record.
    pub(crate) fn forget(&self, cells: Range<u32>) -> io::Result<()> {
        let ledger = self.record.ledger()?;
        let uses = self.record.uses(cells.clone())?;
        let mut bytes = ledger.bytes();
        for (cell, used) in cells.zip(uses) {
            if used > 0 {
                self.record.set(cell, 0)?;
                bytes = bytes.saturating_sub(self.span(cell).len());
            }
        }
        ledger.set(bytes)
    }

    /// Drops the cells of whole files, the least recently used ones first, until `wanted` bytes
    /// were freed. Returns the number of freed bytes.
    fn drop_cells(&self, wanted: u64, except: u32) -> io::Result<u64> {
        let uses = self.record.uses(0..self.cells.len())?;
        let mut files: Vec<(u32, u32)> = Vec::new();
        for file in 0..self.cells.files() {
            let all = self.cells.of_file(file);
            let used = uses[all.start as usize..all.end as usize].iter().copied().max();
            if let Some(used @ 1..) = used
                && file != except
            {
                files.push((used, file));
            }
        }
        files.sort_unstable();
        let mut freed = 0;
        for (_, file) in files {
            if freed >= wanted {
                break;
            }
            let _alone = self.reading.write().unwrap_or_else(PoisonError::into_inner);
            let all = self.cells.of_file(file);
            let there = all.clone().filter(|&cell| uses[cell as usize] > 0);
            let spans: Vec<CellSpan> = there.clone().map(|cell| self.span(cell)).collect();
            for cell in there {
                self.record.set(cell, 0)?;
            }
            let len = self.manifest.files.get(file as usize).map_or(0, |entry| entry.len);
            if !punch(&self.path(file), &spans, len)? {
                // Cells that were downloaded in the meantime are dropped, too.
                for cell in all {
                    self.record.set(cell, 0)?;
                }
            }
            debug!("`{}` went to make room", self.path(file).display());
            let bytes: u64 = spans.iter().map(CellSpan::len).sum();
            freed += bytes;
        }
        Ok(freed)
    }

    /// True if a small file is cached and matches the manifest.
    pub(crate) fn has_small(&self, name: &str) -> bool {
        let is_listed = self.manifest.copies.iter().any(|copy| copy.path == name);
        is_listed && self.manifest.read_small(&self.files, name, None).is_ok()
    }

    /// The small files that are needed to open a model.
    pub(crate) fn small(&self) -> impl Iterator<Item = (&str, u64)> {
        let copies = self.manifest.copies.iter();
        let used = copies.filter(|copy| SMALL_FILES.contains(&copy.path.as_str()));
        used.map(|copy| (copy.path.as_str(), copy.len))
    }
}

/// Creates the directories of a model, and locks them for use. True if no other process uses the
/// model. It is then locked exclusively until the lock is made shared.
fn claim(dir: &Path, below: &[&Path]) -> io::Result<(File, bool)> {
    loop {
        for dir in below {
            create_private_dir(dir)?;
        }
        let path = dir.join(USED);
        let used = create(&path)?;
        let alone = used.try_lock().is_ok();
        if !alone {
            wait_shared(&used)?;
        }
        // Another process may have removed the model just before it was locked.
        if is_at(&used, &path)? {
            // The time of the last use decides which models are removed. On failure the model may be
            // removed before others.
            let _ = touch(&used);
            return Ok((used, alone));
        }
    }
}

/// True if the path still leads to this open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let it = FileIdentity::of(file)?;
    Ok(FileIdentity::at_link(path).is_ok_and(|there| there.is_same_file(&it)))
}

/// Frees ranges of a file, which keeps its length. False if all of its bytes were freed.
fn punch(path: &Path, spans: &[CellSpan], len: u64) -> io::Result<bool> {
    // A link could lead to a foreign file.
    let file = match no_link(OpenOptions::new().write(true)).open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(true),
        Err(_) if !is_file(path) => return Ok(true),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Ok(true);
    }
    let punched = |span: &CellSpan| free_range(&file, span.start, span.len()).is_ok();
    if spans.iter().all(punched) {
        return Ok(true);
    }
    // The file system cannot make holes in files.
    file.set_len(0)?;
    file.set_len(len)?;
    Ok(false)
}

/// Writes a range to the drive, and drops its pages from memory.
pub(crate) fn settle(file: &File, span: CellSpan) -> io::Result<()> {
    file.sync_data()?;
    forget(file, span.start, Some(span.len()));
    Ok(())
}

/// Removes other models, the least recently used first, until they take at most half of a limit.
/// Models in use are kept.
fn make_room(root: &Path, key: &str, limit: u64) {
    let mut models = Vec::new();
    for entry in root.read_dir().into_iter().flatten().flatten() {
        let used = entry.path().join(USED);
        if entry.file_name().to_str() != Some(key)
            && let Ok(about) = used.symlink_metadata()
        {
            models.push((about.modified().ok(), blocks(&entry.path()), entry.path()));
        }
    }
    models.sort();
    let mut sum: u64 = models.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, path) in models {
        if sum <= limit / 2 {
            break;
        }
        let Ok(used) = create(&path.join(USED)) else { continue };
        if used.try_lock().is_ok() && fs::remove_dir_all(&path).is_ok() {
            info!("`{}` went to make room", path.display());
            sum -= bytes;
        }
    }
}

/// Bytes on the disk below a directory.
fn blocks(dir: &Path) -> u64 {
    let mut ahead = vec![dir.to_owned()];
    let mut sum: u64 = 0;
    while let Some(dir) = ahead.pop() {
        for entry in dir.read_dir().into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(about) if about.is_dir() => ahead.push(entry.path()),
                Ok(about) if about.is_file() => {
                    sum = sum.saturating_add(allocated(&entry.path(), &about));
                }
                _ => {}
            }
        }
    }
    sum
}
