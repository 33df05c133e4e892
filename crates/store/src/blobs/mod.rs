//! Private files in a directory of their own, by names that are hashes, within a limit.
//!
//! A file appears once it is complete, and is checked when it is read. The one that was used longest
//! ago goes first.

mod device;
mod file;
mod name;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};

pub use device::{BlobDevice, BlobWriter, SystemFiles};
pub use name::BlobName;

use file::{BlobContents, FRAME};

use sws_format::remedy;

const LOCK: &str = "lock";
/// Maximum number of files, whose names are in memory.
const MOST: usize = 1 << 16;
/// Ending of a file that is not complete.
const PART: &str = ".part";

/// Private files in a directory. One process uses it at a time.
#[derive(Debug)]
pub struct Blobs {
    dir: PathBuf,
    limit: u64,
    /// Bytes of all files.
    bytes: u64,
    files: HashMap<BlobName, BlobEntry>,
    /// Names by the times of their last uses.
    order: BTreeMap<u64, BlobName>,
    uses: u64,
    /// Bytes written by this process.
    written: u64,
    /// Files used since then do not go for others.
    protected: u64,
    /// Names that directories have, with files in them.
    occupied: HashSet<BlobName>,
    faults: Vec<BlobsError>,
    device: Box<dyn BlobDevice>,
    lock: File,
}

#[derive(Clone, Copy, Debug)]
struct BlobEntry {
    bytes: u64,
    used: u64,
}

/// Reasons why private files cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum BlobsError {
    /// The directory cannot be created or read.
    #[error("`{}` cannot be used: {cause}; choose another directory, or do without", .path.display())]
    Directory { path: PathBuf, cause: io::Error },
    /// Something else than a file has the name of the lock.
    #[error("`{}` is not a regular file; remove it", .0.display())]
    Lock(PathBuf),
    /// A directory that is not empty has the name of a file.
    #[error("`{}` is a directory with files in it, where a file of this one belongs; move it elsewhere", .0.display())]
    Occupied(PathBuf),
    /// The directory is a link, a file, or that of another user.
    #[error("`{}` is not a directory of this user; remove it, or choose another", .0.display())]
    Foreign(PathBuf),
    /// Another process uses the directory.
    #[error("`{}` is in use by another process; end that one first", .0.display())]
    Busy(PathBuf),
    /// A file whose bytes are not those that were written. It was removed.
    #[error("`{}` was damaged, and is removed; what it held is computed again", .0.display())]
    Damaged(PathBuf),
    /// A file that cannot be read. It was removed.
    #[error("`{}` cannot be read: {cause}; what it held is computed again", .path.display())]
    Read { path: PathBuf, cause: io::Error },
    /// A file that cannot be written.
    #[error("`{}` cannot be written: {cause}; {}", .path.display(),
            remedy(cause, "check that you may write there and that the disk works"))]
    Write { path: PathBuf, cause: io::Error },
}

impl Blobs {
    /// Opens a directory, or creates one that only its user can read. Files beyond `limit` bytes are
    /// removed.
    pub fn open(dir: &Path, limit: u64) -> Result<Blobs, BlobsError> {
        Blobs::open_on(dir, limit, Box::new(SystemFiles::beside(&dir.join(LOCK))))
    }

    /// As [`open`](Self::open), with files on another device than the system's.
    pub fn open_on(
        dir: &Path,
        limit: u64,
        device: Box<dyn BlobDevice>,
    ) -> Result<Blobs, BlobsError> {
        let failed = |cause| BlobsError::Directory { path: dir.to_owned(), cause };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let about = fs::symlink_metadata(dir).map_err(failed)?;
        if !about.is_dir() || about.uid() != rustix::process::geteuid().as_raw() {
            return Err(BlobsError::Foreign(dir.to_owned()));
        }
        if about.mode() & 0o077 != 0 {
            fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed)?;
        }
        let lock = open_lock(&dir.join(LOCK))?;
        let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive);
        // Some file systems have no locks.
        if locked == Err(rustix::io::Errno::WOULDBLOCK) {
            return Err(BlobsError::Busy(dir.to_owned()));
        }
        let mut blobs = Blobs {
            dir: dir.to_owned(),
            limit,
            bytes: 0,
            files: HashMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            written: 0,
            protected: u64::MAX,
            occupied: HashSet::new(),
            faults: Vec::new(),
            device,
            lock,
        };
        blobs.scan()?;
        blobs.make_room(0);
        Ok(blobs)
    }

    /// Finds the files of earlier processes, and removes those that were not completed.
    fn scan(&mut self) -> Result<(), BlobsError> {
        let dir = self.dir.clone();
        let failed = |cause| BlobsError::Directory { path: dir.clone(), cause };
        let mut found = Vec::new();
        for entry in dir.read_dir().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let about = entry.metadata();
            let is_file = about.as_ref().is_ok_and(|about| about.is_file());
            let (is_part, name) = match name.strip_suffix(PART) {
                Some(name) => (true, BlobName::parse(name)),
                None => (false, BlobName::parse(name)),
            };
            match (name, about) {
                (Some(name), Ok(about)) if is_file && !is_part => {
                    found.push(((about.mtime(), about.mtime_nsec()), name, about.len()));
                }
                (Some(_), about) if is_file => {
                    if !self.remove_file(&entry.path()) {
                        self.bytes += about.map_or(0, |about| about.len());
                    }
                }
                (Some(name), _) => {
                    let cleared = self.clear(&name, &entry.path());
                    let fault = cleared.err().unwrap_or(BlobsError::Damaged(entry.path()));
                    self.faults.push(fault);
                }
                (None, _) => {}
            }
        }
        found.sort_unstable_by_key(|&(time, ..)| time);
        found.into_iter().for_each(|(_, name, bytes)| self.insert(name, bytes));
        Ok(())
    }

    /// Removes the files of a directory, and then the directory, unless it holds anything else. Returns
    /// the bytes of the files.
    pub fn remove(dir: &Path) -> Result<u64, BlobsError> {
        let blobs = Blobs::open(dir, u64::MAX)?;
        let failed = |cause| BlobsError::Directory { path: dir.to_owned(), cause };
        for name in blobs.files.keys() {
            fs::remove_file(blobs.path(name)).map_err(failed)?;
        }
        fs::remove_file(dir.join(LOCK)).map_err(failed)?;
        match fs::remove_dir(dir) {
            Err(cause) if cause.kind() != ErrorKind::DirectoryNotEmpty => Err(failed(cause)),
            _ => Ok(blobs.bytes),
        }
    }

    /// True if there is such a file.
    pub fn has(&self, name: &BlobName) -> bool {
        self.files.contains_key(name)
    }

    /// Marks files as used, the first of them last, so that it stays longest. From now on others do not
    /// go for those that are [put](Self::put), until the next call.
    pub fn used(&mut self, names: &[BlobName]) {
        self.protected = self.uses + 1;
        for name in names.iter().rev() {
            if let Some(BlobEntry { bytes, .. }) = self.forget(name) {
                self.insert(*name, bytes);
            }
        }
    }

    /// Lets the [uses](Self::used) of files, in this order, be known to later processes.
    pub fn note_uses(&self, names: &[BlobName]) {
        let files = names.iter().filter(|name| self.has(name));
        let paths: Vec<PathBuf> = files.map(|name| self.path(name)).collect();
        // Only the order after a restart depends on it.
        let _ = self.device.used(&paths);
    }

    /// Reads a file by a function that gets its contents, and has to read them all. Returns false if
    /// there is none. One that is damaged is removed, and an error, and so is one that the function
    /// refuses: then nothing of what it has read is of use.
    pub fn get(
        &mut self,
        name: &BlobName,
        mut contents: impl FnMut(&mut dyn Read) -> io::Result<()>,
    ) -> Result<bool, BlobsError> {
        let Some(kept) = self.files.get(name).copied() else { return Ok(false) };
        let path = self.path(name);
        match file::read(&*self.device, &path, (name, kept.bytes), &mut contents) {
            Ok(BlobContents::Whole) => Ok(true),
            Ok(BlobContents::Damaged) => {
                self.discard(name);
                Err(BlobsError::Damaged(path))
            }
            Err(cause) => {
                self.discard(name);
                Err(BlobsError::Read { path, cause })
            }
        }
    }

    /// Writes a file by a function that is called twice, and writes the same contents both times. Others
    /// go as far as the limit demands. Returns false, and writes nothing, if there is one of that name, or
    /// no room beside those just [used](Self::used).
    pub fn put(
        &mut self,
        name: &BlobName,
        mut contents: impl FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<bool, BlobsError> {
        let path = self.path(name);
        let failed = |cause| BlobsError::Write { path: path.clone(), cause };
        if self.has(name) || self.occupied.contains(name) {
            return Ok(false);
        }
        let size = file::size(&mut contents).map_err(failed)?;
        if !self.make_room(FRAME + size) {
            return Ok(false);
        }
        let part = self.dir.join(format!("{name}{PART}"));
        self.clear(name, &part)?;
        self.clear(name, &path)?;
        let written = file::write(&*self.device, &part, name, size, &mut contents)
            .and_then(|()| self.device.rename(&part, &path));
        if let Err(cause) = written {
            if !self.remove_file(&part) {
                self.bytes += FRAME + size;
            }
            return Err(failed(cause));
        }
        self.insert(*name, FRAME + size);
        self.written += FRAME + size;
        Ok(true)
    }

    /// Takes what was wrong with the directory when it was opened.
    pub fn faults(&mut self) -> Vec<BlobsError> {
        std::mem::take(&mut self.faults)
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// True if there is no file.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the files that this process has written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Removes files, those used longest ago first, until another of this size has room, and a name.
    /// Returns false, and removes nothing, if those that may go are not enough.
    fn make_room(&mut self, size: u64) -> bool {
        let limit = self.limit;
        let fits = |bytes: u64, files| bytes.saturating_add(size) <= limit && files < MOST;
        let mut bytes = self.bytes;
        let mut files = self.files.len();
        let mut going = Vec::new();
        for name in self.order.range(..self.protected).map(|(_, name)| *name) {
            if fits(bytes, files) {
                break;
            }
            bytes -= self.files[&name].bytes;
            files -= 1;
            going.push(name);
        }
        if !fits(bytes, files) {
            return false;
        }
        going.iter().for_each(|name| self.discard(name));
        fits(self.bytes, self.files.len())
    }

    fn path(&self, name: &BlobName) -> PathBuf {
        self.dir.join(name.to_string())
    }

    /// Adds a file as the one that was used last.
    fn insert(&mut self, name: BlobName, bytes: u64) {
        self.uses += 1;
        self.bytes += bytes;
        self.order.insert(self.uses, name);
        self.files.insert(name, BlobEntry { bytes, used: self.uses });
    }

    fn forget(&mut self, name: &BlobName) -> Option<BlobEntry> {
        let kept = self.files.remove(name)?;
        self.bytes -= kept.bytes;
        self.order.remove(&kept.used);
        Some(kept)
    }

    /// Removes a file. If that fails, it is of no use, and its bytes count on.
    fn discard(&mut self, name: &BlobName) {
        if let Some(BlobEntry { bytes, .. }) = self.forget(name)
            && !self.remove_file(&self.path(name))
        {
            self.bytes += bytes;
        }
    }

    /// Removes what another program has put in the place of a file.
    fn clear(&mut self, name: &BlobName, path: &Path) -> Result<(), BlobsError> {
        match self.device.remove(path) {
            Err(cause) if cause.kind() == ErrorKind::DirectoryNotEmpty => {
                self.occupied.insert(*name);
                Err(BlobsError::Occupied(path.to_owned()))
            }
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                Err(BlobsError::Write { path: path.to_owned(), cause })
            }
            _ => Ok(()),
        }
    }

    /// Removes a file, if it is there. Returns false if that fails.
    fn remove_file(&self, path: &Path) -> bool {
        match self.device.remove(path) {
            Err(error) => error.kind() == ErrorKind::NotFound,
            Ok(()) => true,
        }
    }
}

impl Drop for Blobs {
    fn drop(&mut self) {
        // A process that begins just now has the file open, too, and would keep the lock.
        let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
    }
}

/// Opens the file whose lock keeps other processes out, or creates it.
fn open_lock(path: &Path) -> Result<File, BlobsError> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // A pipe in its place would block until it has a reader.
        .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
        .open(path);
    let is_file = path.symlink_metadata().map_or(true, |about| about.is_file());
    let checked = opened.and_then(|lock| Ok((lock.metadata()?.is_file(), lock)));
    match checked {
        Ok((true, lock)) if is_file => Ok(lock),
        Err(cause) if is_file => Err(BlobsError::Directory { path: path.to_owned(), cause }),
        _ => Err(BlobsError::Lock(path.to_owned())),
    }
}
