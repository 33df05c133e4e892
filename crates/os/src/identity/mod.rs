//! Identity of files: which file it is, and which state of it.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// A file and its state. Times are seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Number of the file system.
    pub device: u64,
    /// Number of the file in it.
    pub index: u64,
    /// Length in bytes.
    pub len: u64,
    /// Time of the last modification, which programs can set.
    pub modified: (i64, i64),
    /// Time of the last change, of which a program cannot set an earlier one.
    pub changed: (i64, i64),
}

impl FileIdentity {
    /// The identity of an open file.
    pub fn of(file: &File) -> io::Result<FileIdentity> {
        system::of(file)
    }

    /// The identity of the file or directory to which a path leads.
    pub fn at(path: &Path) -> io::Result<FileIdentity> {
        system::at(path, true)
    }

    /// The same, of a link itself.
    pub fn at_link(path: &Path) -> io::Result<FileIdentity> {
        system::at(path, false)
    }

    /// True if both are the same file, in whatever state.
    pub fn is_same_file(&self, other: &FileIdentity) -> bool {
        (self.device, self.index) == (other.device, other.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_identity_and_others_have_theirs() {
        let temp = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| temp.path().join(name));
        std::fs::write(&one, b"one").unwrap();
        std::fs::write(&two, b"another").unwrap();
        let file = File::open(&one).unwrap();
        let before = FileIdentity::of(&file).unwrap();
        assert_eq!(FileIdentity::at(&one).unwrap(), before);
        assert!(!FileIdentity::at(&two).unwrap().is_same_file(&before));
        std::fs::hard_link(&one, temp.path().join("three")).unwrap();
        let after = FileIdentity::at(&temp.path().join("three")).unwrap();
        assert!(after.is_same_file(&before) && after.len == 3);
        assert_eq!(FileIdentity::at(temp.path()).unwrap().device, before.device);
    }
}
