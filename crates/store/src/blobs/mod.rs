//! Private files in a directory of their own, with hashes as names, within a size limit.
//!
//! A file appears once it is complete, and is verified when it is read. The least recently used
//! files are removed first.

mod device;
mod file;
mod name;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use sws_os::lock::lock_alone;
use sws_os::open::{create_private_dir, is_own_dir, no_link, private};

pub use device::{BlobDevice, BlobWriter, SystemFiles};
pub use name::BlobName;

use file::{BlobContents, FRAME};

use sws_format::remedy;

const LOCK: &str = "lock";
/// Maximum number of files, because their names are kept in memory.
const MOST: usize = 1 << 16;
/// Suffix of an incomplete file.
const PART: &str = ".part";

/// Private files in a directory. One process uses it at a time.
#[derive(Debug)]
pub struct Blobs {
    dir: PathBuf,
    limit: u64,
    /// Bytes of all files.
    bytes: u64,
    files: HashMap<BlobName, BlobEntry>,
    /// Names, in the order of their last uses.
    order: BTreeMap<u64, BlobName>,
    uses: u64,
    /// Bytes written by this process.
    written: u64,
    /// Files used since this point in the order are not removed for new ones.
    protected: u64,
    /// Names of files that are taken by non-empty directories.
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
    /// The name of the lock file is taken by something other than a file.
    #[error("`{}` is not a regular file; remove it", .0.display())]
    Lock(PathBuf),
    /// A non-empty directory has the name of a file.
    #[error("`{}` is a directory with files in it, where a file of this one belongs; move it elsewhere", .0.display())]
    Occupied(PathBuf),
    /// The directory is a link, a file, or owned by another user.
    #[error("`{}` is not a directory of this user; remove it, or choose another", .0.display())]
    Foreign(PathBuf),
    /// Another process uses the directory.
    #[error("`{}` is in use by another process; end that one first", .0.display())]
    Busy(PathBuf),
    /// The bytes of a file are not those that were written. It was removed.
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

    /// Like [`open`](Self::open), with files on another device than the system's.
    pub fn open_on(
        dir: &Path,
        limit: u64,
        device: Box<dyn BlobDevice>,
    ) -> Result<Blobs, BlobsError> {
        let failed = directory_failed(dir);
        create_private_dir(dir).map_err(failed)?;
        if !is_own_dir(dir).map_err(failed)? {
            return Err(BlobsError::Foreign(dir.to_owned()));
        }
        let lock = open_lock(&dir.join(LOCK))?;
        // Some file systems have no locks.
        if !lock_alone(&lock) {
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

    /// Finds the files of earlier processes, and removes incomplete ones.
    fn scan(&mut self) -> Result<(), BlobsError> {
        let dir = self.dir.clone();
        let failed = directory_failed(&dir);
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
                    found.push((about.modified().ok(), name, about.len()));
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
        for (_, name, bytes) in found {
            self.insert(name, bytes);
        }
        Ok(())
    }

    /// Removes the files of a directory, and then the directory, unless it holds anything else. Returns
    /// the bytes of the files.
    pub fn remove(dir: &Path) -> Result<u64, BlobsError> {
        let blobs = Blobs::open(dir, u64::MAX)?;
        let failed = directory_failed(dir);
        for name in blobs.files.keys() {
            fs::remove_file(blobs.path(name)).map_err(failed)?;
        }
        fs::remove_file(dir.join(LOCK)).map_err(failed)?;
        match fs::remove_dir(dir) {
            Err(cause) if cause.kind() != ErrorKind::DirectoryNotEmpty => Err(failed(cause)),
            _ => Ok(blobs.bytes),
        }
    }

    /// True if the file exists.
    pub fn has(&self, name: &BlobName) -> bool {
        self.files.contains_key(name)
    }

    /// Marks files as used, the first of them as the most recent. Until the next call, no file that
    /// is [put](Self::put) displaces them.
    pub fn used(&mut self, names: &[BlobName]) {
        self.protected = self.uses + 1;
        for name in names.iter().rev() {
            if let Some(BlobEntry { bytes, .. }) = self.forget(name) {
                self.insert(*name, bytes);
            }
        }
    }

    /// Stores the [uses](Self::used) of files, in this order, for later processes.
    pub fn note_uses(&self, names: &[BlobName]) {
        let mut paths = Vec::with_capacity(names.len());
        for name in names {
            if self.has(name) {
                paths.push(self.path(name));
            }
        }
        // A failure only affects the order after a restart.
        let _ = self.device.used(&paths);
    }

    /// Reads a file. `contents` gets a reader, and has to read all of the contents. Returns false
    /// if there is no such file. A file that is damaged, or that `contents` refuses, is removed and
    /// gives an error. In that case nothing that `contents` has read is valid.
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

    /// Writes a file. `contents` is called twice, and must write the same both times. Least
    /// recently used files are removed to stay within the limit. Returns false, and writes nothing,
    /// if the file exists, or if there is no room without the files just [used](Self::used).
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

    /// Returns the problems found in the directory when it was opened.
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

    /// Removes the least recently used files until there is room for another file of this size, and
    /// for its name. Returns false, and removes nothing, if the removable files do not suffice.
    fn make_room(&mut self, size: u64) -> bool {
        let mut bytes = self.bytes;
        let mut files = self.files.len();
        let mut going = Vec::new();
        for (_, &name) in self.order.range(..self.protected) {
            if self.has_room(bytes, files, size) {
                break;
            }
            bytes -= self.files[&name].bytes;
            files -= 1;
            going.push(name);
        }
        if !self.has_room(bytes, files, size) {
            return false;
        }
        for name in &going {
            self.discard(name);
        }
        self.has_room(self.bytes, self.files.len(), size)
    }

    /// True if there is room for a file of this size beside this many files of `bytes` bytes.
    fn has_room(&self, bytes: u64, files: usize, size: u64) -> bool {
        bytes.saturating_add(size) <= self.limit && files < MOST
    }

    fn path(&self, name: &BlobName) -> PathBuf {
        self.dir.join(name.to_string())
    }

    /// Adds a file as the most recently used one.
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

    /// Removes a file. If that fails, the file is not used any more, but its bytes still count.
    fn discard(&mut self, name: &BlobName) {
        if let Some(BlobEntry { bytes, .. }) = self.forget(name)
            && !self.remove_file(&self.path(name))
        {
            self.bytes += bytes;
        }
    }

    /// Removes whatever another program has put in place of a file.
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

    /// Removes a file, if it exists. Returns false on failure.
    fn remove_file(&self, path: &Path) -> bool {
        match self.device.remove(path) {
            Err(error) => error.kind() == ErrorKind::NotFound,
            Ok(()) => true,
        }
    }
}

impl Drop for Blobs {
    fn drop(&mut self) {
        // A process that is just being started may have inherited the open file, which would keep
        // the lock.
        let _ = self.lock.unlock();
    }
}

/// The error for a cause while the directory was used, for `map_err`.
fn directory_failed(dir: &Path) -> impl Fn(io::Error) -> BlobsError + Copy {
    move |cause| BlobsError::Directory { path: dir.to_owned(), cause }
}

/// Opens or creates the file whose lock keeps other processes out.
fn open_lock(path: &Path) -> Result<File, BlobsError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    // Opening a pipe in its place would block until it has a reader.
    let opened = private(no_link(&mut options)).open(path);
    let is_file = path.symlink_metadata().map_or(true, |about| about.is_file());
    let checked = opened.and_then(|lock| Ok((lock.metadata()?.is_file(), lock)));
    match checked {
        Ok((true, lock)) if is_file => Ok(lock),
        Err(cause) if is_file => Err(BlobsError::Directory { path: path.to_owned(), cause }),
        _ => Err(BlobsError::Lock(path.to_owned())),
    }
}
