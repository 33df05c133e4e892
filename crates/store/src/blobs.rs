//! Private files in a directory of their own, by names that are hashes, within a limit.
//!
//! A file has a magic number, a checksum of its name and bytes, and the bytes. It appears once it is
//! complete, and is read whole. The file that was used longest ago goes first.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::regular::open_regular;

const MAGIC: &[u8; 8] = b"swsblob1";
const HEAD: usize = MAGIC.len() + 32;
const LOCK: &str = "lock";
/// Maximum number of files, whose names are in memory.
const MOST: usize = 1 << 16;
/// Ending of a file that is not complete.
const PART: &str = ".part";

/// The name of a file: a hash of what its bytes were computed from.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlobName([u8; 32]);

/// Private files in a directory. One process uses it at a time.
#[derive(Debug)]
pub struct Blobs {
    dir: PathBuf,
    limit: u64,
    /// Bytes of all files.
    bytes: u64,
    files: HashMap<BlobName, Kept>,
    /// Names by the times of their last uses.
    order: BTreeMap<u64, BlobName>,
    uses: u64,
    _lock: File,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    bytes: u64,
    used: u64,
}

/// Reasons why private files cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobsError {
    /// The directory cannot be created or read.
    #[error("`{}` cannot be used: {cause}; choose another directory, or do without", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
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
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// A file that cannot be written.
    #[error("`{}` cannot be written: {cause}; make room on that disk", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
}

impl BlobName {
    /// The name of what some parts decide about. Their borders count, too.
    pub fn of(parts: &[&[u8]]) -> BlobName {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        BlobName(*hasher.finalize().as_bytes())
    }

    /// The name of what follows this one and has these bytes.
    pub fn then(&self, bytes: &[u8]) -> BlobName {
        BlobName::of(&[&self.0, bytes])
    }

    fn parse(word: &str) -> Option<BlobName> {
        let is_hex = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if word.len() != 64 || !word.bytes().all(is_hex) {
            return None;
        }
        let mut name = [0; 32];
        for (byte, pair) in name.iter_mut().zip(word.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(BlobName(name))
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Blobs {
    /// Opens a directory, or creates one that only its user can read. Files beyond `limit` bytes are
    /// removed.
    pub fn open(dir: &Path, limit: u64) -> Result<Blobs, BlobsError> {
        let failed = |cause| BlobsError::Directory { path: dir.to_owned(), cause };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let about = fs::symlink_metadata(dir).map_err(failed)?;
        if !about.is_dir() || about.uid() != rustix::process::geteuid().as_raw() {
            return Err(BlobsError::Foreign(dir.to_owned()));
        }
        if about.mode() & 0o077 != 0 {
            fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed)?;
        }
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(dir.join(LOCK))
            .map_err(failed)?;
        let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive);
        // Some file systems have no locks.
        if locked == Err(rustix::io::Errno::WOULDBLOCK) {
            return Err(BlobsError::Busy(dir.to_owned()));
        }
        let (files, order) = (HashMap::new(), BTreeMap::new());
        let dir = dir.to_owned();
        let mut blobs = Blobs { dir, limit, bytes: 0, files, order, uses: 0, _lock: lock };
        blobs.scan()?;
        blobs.make_room(0);
        Ok(blobs)
    }

    /// Finds the files of earlier processes, and removes those that were not completed.
    fn scan(&mut self) -> Result<(), BlobsError> {
        let failed = |cause| BlobsError::Directory { path: self.dir.clone(), cause };
        let mut found = Vec::new();
        for entry in self.dir.read_dir().map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            if is_part(name) {
                let _ = fs::remove_file(entry.path());
            } else if let Some(name) = BlobName::parse(name)
                && let Ok(about) = entry.metadata()
                && about.is_file()
            {
                found.push(((about.mtime(), about.mtime_nsec()), name, about.len()));
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

    /// Reads a file. One that is damaged is removed, and an error.
    pub fn get(&mut self, name: &BlobName) -> Result<Option<Vec<u8>>, BlobsError> {
        let Some(kept) = self.files.get(name).copied() else { return Ok(None) };
        let path = self.path(name);
        match read(&path, kept.bytes, name) {
            Ok(Some(bytes)) => {
                self.forget(name);
                self.insert(*name, kept.bytes);
                Ok(Some(bytes))
            }
            Ok(None) => {
                self.discard(name);
                Err(BlobsError::Damaged(path))
            }
            Err(cause) => {
                self.discard(name);
                Err(BlobsError::Read { path, cause })
            }
        }
    }

    /// Writes a file, and removes others as far as the limit demands. Returns false, and writes nothing,
    /// if there is one of that name, or it is larger than the limit.
    pub fn put(&mut self, name: &BlobName, bytes: &[u8]) -> Result<bool, BlobsError> {
        let size = (HEAD + bytes.len()) as u64;
        if self.has(name) || size > self.limit {
            return Ok(false);
        }
        self.make_room(size);
        let path = self.path(name);
        let part = self.dir.join(format!("{name}{PART}"));
        let written = write(&part, name, bytes).and_then(|()| fs::rename(&part, &path));
        if let Err(cause) = written {
            let _ = fs::remove_file(&part);
            return Err(BlobsError::Write { path, cause });
        }
        self.insert(*name, size);
        Ok(true)
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

    /// Removes files, those used longest ago first, until another of this size has room, and a name.
    fn make_room(&mut self, size: u64) {
        while (self.bytes.saturating_add(size) > self.limit || self.files.len() >= MOST)
            && let Some((_, &name)) = self.order.first_key_value()
        {
            self.discard(&name);
        }
    }

    fn path(&self, name: &BlobName) -> PathBuf {
        self.dir.join(name.to_string())
    }

    /// Adds a file as the one that was used last.
    fn insert(&mut self, name: BlobName, bytes: u64) {
        self.uses += 1;
        self.bytes += bytes;
        self.order.insert(self.uses, name);
        self.files.insert(name, Kept { bytes, used: self.uses });
    }

    fn forget(&mut self, name: &BlobName) {
        if let Some(Kept { bytes, used }) = self.files.remove(name) {
            self.bytes -= bytes;
            self.order.remove(&used);
        }
    }

    /// Removes a file.
    fn discard(&mut self, name: &BlobName) {
        self.forget(name);
        let _ = fs::remove_file(self.path(name));
    }
}

/// True for the name of a file that is not complete.
fn is_part(name: &str) -> bool {
    name.strip_suffix(PART).is_some_and(|name| BlobName::parse(name).is_some())
}

/// Reads a file of `len` bytes, and marks it as used. `None` if it is not what was written.
fn read(path: &Path, len: u64, name: &BlobName) -> io::Result<Option<Vec<u8>>> {
    let file = open_regular(path)?;
    let mut bytes = Vec::new();
    let Some(rest) = usize::try_from(len).ok().and_then(|len| len.checked_sub(HEAD)) else {
        return Ok(None);
    };
    if file.metadata()?.len() != len {
        return Ok(None);
    }
    let mut head = [0; HEAD];
    (&file).read_exact(&mut head)?;
    bytes.try_reserve_exact(rest).map_err(|_| ErrorKind::OutOfMemory)?;
    (&file).take(rest as u64).read_to_end(&mut bytes)?;
    let (magic, sum) = head.split_at(MAGIC.len());
    if magic != MAGIC || bytes.len() != rest || sum != name.then(&bytes).0 {
        return Ok(None);
    }
    let unchanged = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: unchanged, last_modification: now };
    // Only the order after a restart depends on it.
    let _ = rustix::fs::futimens(&file, &times);
    Ok(Some(bytes))
}

fn write(path: &Path, name: &BlobName, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(MAGIC)?;
    file.write_all(&name.then(bytes).0)?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(word: &str) -> BlobName {
        BlobName::of(&[word.as_bytes()])
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn files_are_private_and_found_again() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("private");
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        let mut blobs = Blobs::open(&dir, 1 << 20).unwrap();
        assert!(blobs.put(&name("a"), b"bytes").unwrap());
        assert!(!blobs.put(&name("a"), b"bytes").unwrap(), "it is there");
        assert_eq!(mode(&dir), 0o700);
        for entry in dir.read_dir().unwrap() {
            assert_eq!(mode(&entry.unwrap().path()), 0o600);
        }
        assert!(matches!(Blobs::open(&dir, 1 << 20), Err(BlobsError::Busy(_))));
        drop(blobs);
        fs::write(dir.join(format!("{}{PART}", name("b"))), b"half").unwrap();
        let mut blobs = Blobs::open(&dir, 1 << 20).unwrap();
        assert_eq!(blobs.get(&name("a")).unwrap().unwrap(), b"bytes");
        assert_eq!(blobs.get(&name("b")).unwrap(), None);
        assert_eq!((blobs.len(), blobs.bytes()), (1, HEAD as u64 + 5));
        drop(blobs);
        assert_eq!(Blobs::remove(&dir).unwrap(), HEAD as u64 + 5);
        assert!(!dir.exists());
    }

    #[test]
    fn what_was_used_longest_ago_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let size = HEAD as u64 + 100;
        let mut blobs = Blobs::open(dir.path(), 3 * size).unwrap();
        for word in ["a", "b", "c"] {
            assert!(blobs.put(&name(word), &[7; 100]).unwrap());
        }
        blobs.get(&name("a")).unwrap().unwrap();
        assert!(blobs.put(&name("d"), &[7; 100]).unwrap());
        assert!(!blobs.put(&name("e"), &[7; 400]).unwrap(), "larger than the limit");
        let has = |blobs: &Blobs| ["a", "b", "c", "d"].map(|word| blobs.has(&name(word)));
        assert_eq!(has(&blobs), [true, false, true, true]);
        drop(blobs);
        let blobs = Blobs::open(dir.path(), size).unwrap();
        assert_eq!((blobs.len(), blobs.bytes()), (1, size));
    }

    #[test]
    fn damaged_files_are_removed_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut blobs = Blobs::open(dir.path(), 1 << 20).unwrap();
        let bytes: Vec<u8> = (0..200).collect();
        let path = dir.path().join(name("a").to_string());
        let damages: [fn(&mut Vec<u8>); 5] = [
            |file| file[3] ^= 1,
            |file| file[20] ^= 1,
            |file| file[HEAD + 150] ^= 1,
            |file| file.truncate(HEAD + 10),
            |file| file.clear(),
        ];
        for (number, damage) in damages.iter().enumerate() {
            blobs.put(&name("a"), &bytes).unwrap();
            let mut file = fs::read(&path).unwrap();
            damage(&mut file);
            fs::write(&path, file).unwrap();
            let error = blobs.get(&name("a")).unwrap_err();
            assert!(matches!(error, BlobsError::Damaged(_)), "{number}: {error}");
            assert!(!path.exists() && !blobs.has(&name("a")) && blobs.bytes() == 0, "{number}");
        }
        // A whole file under the name of another.
        blobs.put(&name("a"), &bytes).unwrap();
        blobs.put(&name("b"), &bytes).unwrap();
        fs::copy(&path, dir.path().join(name("b").to_string())).unwrap();
        assert!(matches!(blobs.get(&name("b")), Err(BlobsError::Damaged(_))));
    }

    #[test]
    fn links_and_files_are_no_directories() {
        let top = tempfile::tempdir().unwrap();
        let (real, link, file) = ("real", "link", "file");
        fs::create_dir(top.path().join(real)).unwrap();
        std::os::unix::fs::symlink(real, top.path().join(link)).unwrap();
        fs::write(top.path().join(file), b"").unwrap();
        for (name, opens) in [(real, true), (link, false), (file, false), ("new/one", true)] {
            let opened = Blobs::open(&top.path().join(name), 1 << 20);
            assert_eq!(opened.is_ok(), opens, "{name}: {opened:?}");
        }
    }
}
