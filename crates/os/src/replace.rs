//! Files that take the place of others once they are complete.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::identity::FileIdentity;
use crate::open::private;

/// An unfinished file is `.sws-TARGET-RANDOM.tmp`, with a hash of the target's name.
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
        sweep_named(dir_of(target), &start_of(target)?);
        Replacement::begin_unswept(target)
    }

    /// Like [`begin`](Self::begin), for a file that other users cannot read.
    pub fn begin_private(target: &Path) -> io::Result<Replacement> {
        sweep_named(dir_of(target), &start_of(target)?);
        Replacement::with(target, private(&mut File::options()))
    }

    /// Like [`begin`](Self::begin), in a directory that is [swept](sweep) as a whole.
    pub fn begin_unswept(target: &Path) -> io::Result<Replacement> {
        Replacement::with(target, &mut File::options())
    }

    fn with(target: &Path, options: &mut OpenOptions) -> io::Result<Replacement> {
        let start = start_of(target)?;
        options.read(true).write(true).create_new(true);
        for _ in 0..ATTEMPTS {
            let random = RandomState::new().hash_one(0);
            let unfinished = dir_of(target).join(format!("{start}{random:016x}{END}"));
            let file = match options.open(&unfinished) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            };
            let locked = file.try_lock();
            let target = target.to_owned();
            let replacement = Replacement { file, unfinished, target, is_published: false };
            match locked {
                // Another process sweeps it just now.
                Err(TryLockError::WouldBlock) => {}
                // There are no locks here, and nothing is swept.
                Err(TryLockError::Error(_)) => return Ok(replacement),
                // It may have been swept before it was locked.
                Ok(()) if replacement.is_gone() => {}
                Ok(()) => return Ok(replacement),
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
        crate::file::replace(&self.unfinished, &self.target)?;
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
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // The lock is held until the file is gone. Where there are no locks, it may be another's.
        if let Ok(file) = File::options().write(true).open(&path)
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(&path);
        }
    }
}

fn dir_of(target: &Path) -> &Path {
    match target.parent() {
        Some(dir) if dir != Path::new("") => dir,
        _ => Path::new("."),
    }
}

/// The beginning of the names of a target's unfinished files.
fn start_of(target: &Path) -> io::Result<String> {
    let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
    Ok(format!("{START}{:016x}-", hash(name)))
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
    fn replacements_at_the_same_time_are_all_published() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("it");
        let replace = || {
            for _ in 0..300 {
                let mut replacement = Replacement::begin(&target).unwrap();
                replacement.file().write_all(b"whole").unwrap();
                replacement.publish_unsynced().unwrap();
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(replace);
            }
        });
        assert_eq!(fs::read(&target).unwrap(), b"whole");
        assert_eq!(names(dir.path()), ["it"]);
    }

    #[test]
    fn places_without_a_name_or_a_directory_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        for target in [Path::new("/"), Path::new(".."), &dir.path().join("none/it")] {
            assert!(Replacement::begin(target).is_err(), "{}", target.display());
        }
    }
}
