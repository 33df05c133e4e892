use std::fs::{File, Metadata, metadata, symlink_metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::FileIdentity;

pub(super) fn of(file: &File) -> io::Result<FileIdentity> {
    Ok(from(&file.metadata()?))
}

pub(super) fn at(path: &Path, follows: bool) -> io::Result<FileIdentity> {
    let about = if follows { metadata(path) } else { symlink_metadata(path) };
    Ok(from(&about?))
}

fn from(about: &Metadata) -> FileIdentity {
    FileIdentity {
        device: about.dev(),
        index: about.ino(),
        len: about.size(),
        modified: (about.mtime(), about.mtime_nsec()),
        changed: (about.ctime(), about.ctime_nsec()),
    }
}
