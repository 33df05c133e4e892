//! Files that take the place of others once they are complete.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::identity::FileIdentity;
use crate::open::private;

/// An unfinished file is `.sws-TARGET-PROCESS-NUMBER.tmp`, with a hash of the target's name.
const START: &str = ".sws-";
const END: &str = ".tmp";
/// Names that are tried.
const ATTEMPTS: usize = 100;

/// A file that replaces another once it is complete, or is removed when it is dropped.
///
/// It is locked. So the next replacement of the same target removes what a process that was killed, or a
/// machine that lost its power, has left of an earlier one.
///
/// ```
/// use std::io::Write;
///
/// let target = std::env::temp_dir().join(format!("sws-replace-{}", std::process::id()));
/// let mut replacement = sws_os::replace::Replacement::begin(&target)?;
/// replacement.file().write_all(b"all of it")?;
/// replacement.publish()?;
/// assert_eq!(std::fs::read(&target)?, b"all of it");
/// # std::fs::remove_file(&target)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Replacement {
    file: File,
    unfinished: PathBuf,
    target: PathBuf,
    is_published: bool,
}

impl Replacement {
    /// Begins a file beside `target`, whose directory has to be there. Links are not followed.
    pub fn begin(target: &Path) -> io::Result<Replacement> {
        Replacement::with(target, &mut File::options())
    }

    /// Like [`begin`](Self::begin), for a file that other users cannot read.
    pub fn begin_private(target: &Path) -> io::Result<Replacement> {
        Replacement::with(target, private(&mut File::options()))
    }

    fn with(target: &Path, options: &mut OpenOptions) -> io::Result<Replacement> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
        let dir = match target.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        };
        let start = format!("{START}{:016x}-", hash(name));
        sweep_named(dir, &start);
        options.read(true).write(true).create_new(true);
        for _ in 0..ATTEMPTS {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let unfinished = dir.join(format!("{start}{}-{number}{END}", std::process::id()));
            let file = match options.open(&unfinished) {
                Ok(file) => file,
                // Left by a process with the same id on a file system without locks.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            let is_locked = file.try_lock().is_ok();
            let target = target.to_owned();
            let replacement = Replacement { file, unfinished, target, is_published: false };
            // Another process may have swept it before it was locked.
            if !is_locked || !replacement.is_gone() {
                return Ok(replacement);
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    fn is_gone(&self) -> bool {
        let there = FileIdentity::at_link(&self.unfinished);
        there.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    }

    /// The unfinished file.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Where the unfinished file is.
    pub fn path(&self) -> &Path {
        &self.unfinished
    }

    /// Replaces the target. The bytes are on the device before the name is, so that no crash leaves the
    /// name with other bytes.
    pub fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        self.publish_unsynced()
    }

    /// Replaces the target. After a crash the name may have other bytes, which its readers must notice.
    pub fn publish_unsynced(mut self) -> io::Result<()> {
        fs::rename(&self.unfinished, &self.target)?;
        self.is_published = true;
        Ok(())
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

/// Removes the unfinished files of a directory that no process writes any more.
pub fn sweep(dir: &Path) {
    sweep_named(dir, START);
}

fn sweep_named(dir: &Path, start: &str) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if !name.starts_with(start.as_bytes()) || !name.ends_with(END.as_bytes()) {
            continue;
        }
        let path = entry.path();
        // Where there are no locks, the file may be another's.
        if entry.file_type().is_ok_and(|kind| kind.is_file())
            && File::open(&path).is_ok_and(|file| file.try_lock().is_ok())
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// FNV-1a.
fn hash(name: &OsStr) -> u64 {
    name.as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_target_changes_once_its_replacement_is_published() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("it");
        fs::write(&target, b"before").unwrap();
        let mut one = Replacement::begin(&target).unwrap();
        one.file().write_all(b"after").unwrap();
        // Of the same target at the same time, in the same process.
        let two = Replacement::begin_private(&target).unwrap();
        assert!(one.path().exists() && two.path().exists());
        assert_eq!(fs::read(&target).unwrap(), b"before");
        drop(two);
        one.publish().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"after");
        assert_eq!(names(dir.path()), ["it"]);
    }

    #[test]
    fn what_a_killed_process_left_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("it");
        let written = Replacement::begin(&target).unwrap();
        let start = format!("{START}{:016x}-", hash(OsStr::new("it")));
        let other = format!("{START}{:016x}-7-7{END}", hash(OsStr::new("other")));
        let left = dir.path().join(format!("{start}1-0{END}"));
        for name in [&left, &dir.path().join(&other), &dir.path().join(".sws-mine.txt")] {
            fs::write(name, b"half").unwrap();
        }
        let second = Replacement::begin(&target).unwrap();
        assert!(!left.exists() && written.path().exists() && dir.path().join(&other).exists());
        sweep(dir.path());
        assert!(!dir.path().join(&other).exists() && second.path().exists());
        drop((written, second));
        assert_eq!(names(dir.path()), [".sws-mine.txt"]);
    }

    #[test]
    fn places_without_a_name_or_a_directory_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for target in [Path::new("/"), Path::new(".."), &dir.path().join("none/it")] {
            assert!(Replacement::begin(target).is_err(), "{}", target.display());
        }
    }
}
