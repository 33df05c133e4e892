//! Small files next to the pieces: configuration, tokenizer, templates. Each is verified when it is
//! read.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sws_os::identity::FileIdentity;
use sws_os::open::open_regular;

use super::{CopiedFile, MAX_COPY_BYTES, Manifest};
use crate::book;

/// Files besides the weights that describe a model.
pub const SMALL_FILES: [&str; 5] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Reason that a small file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum SmallFileError {
    /// The file could not be read.
    #[error("`{}` cannot be read: {cause}; make it readable", path.display())]
    Read {
        path: PathBuf,
        /// Cause reported by the operating system.
        cause: io::Error,
    },
    /// The path is a directory, a device or a pipe. For a file that the manifest lists, also a
    /// link.
    #[error("`{}` is not a regular file; put the file itself there", path.display())]
    NotAFile { path: PathBuf },
    /// The file is implausibly large.
    #[error("`{}` has more than {limit} bytes; download it again", path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    /// A file that the manifest lists is missing.
    #[error("`{}` is missing, though the manifest lists it; copy it again or make the shards again", path.display())]
    Missing { path: PathBuf },
    /// The length is not the one that the manifest lists.
    #[error("`{}` has {found} bytes instead of {expected}; copy it again or make the shards again", path.display())]
    Length {
        path: PathBuf,
        /// The length in the manifest.
        expected: u64,
        /// The length of the file.
        found: u64,
    },
    /// The bytes do not match the checksum in the manifest.
    #[error("`{}` is damaged: its bytes do not agree with their checksum; copy it again or make the shards again", path.display())]
    Damaged { path: PathBuf },
    /// The bytes are not those of the first read, though the file's metadata is unchanged.
    #[error(
        "`{}` is not what it was when it was first read, though its time of modification is: the disk \
         fails, or it was edited without a trace; download it again, or `touch` it if it is right",
        path.display()
    )]
    Changed { path: PathBuf },
}

impl Manifest {
    /// Reads the small file `name` in `dir`, the directory of the manifest. Returns `None` if there
    /// is no such file.
    ///
    /// A file in [`copies`](Manifest::copies) must exist and match its checksum. Any other file, as
    /// in a checkpoint read in place, has no checksum in the manifest. Its first read is recorded
    /// in the folder `cache`, and later reads must agree with it for as long as inode, length and
    /// modification time stay the same.
    pub fn read_small(
        &self,
        dir: &Path,
        name: &str,
        cache: Option<&Path>,
    ) -> Result<Option<Vec<u8>>, SmallFileError> {
        match self.copies.iter().find(|copy| copy.path == name) {
            Some(copy) => copy.read(dir).map(Some),
            None => read_unlisted(dir.join(name), cache),
        }
    }
}

impl CopiedFile {
    /// Reads the file and verifies it.
    pub fn read(&self, dir: &Path) -> Result<Vec<u8>, SmallFileError> {
        let path = dir.join(&self.path);
        let refused = |cause: io::Error| match cause.kind() {
            io::ErrorKind::NotFound => SmallFileError::Missing { path: path.clone() },
            _ => refused(&path)(cause),
        };
        if path.symlink_metadata().map_err(refused)?.is_symlink() {
            return Err(SmallFileError::NotAFile { path });
        }
        let file = open_regular(&path).map_err(refused)?;
        let expected = self.len;
        let found = file.metadata().map_err(refused)?.len();
        if found != expected {
            return Err(SmallFileError::Length { path, expected, found });
        }
        let bytes = bounded(file, expected).map_err(refused)?;
        let good = bytes.len() as u64 == expected
            && blake3::hash(&bytes).to_hex().eq_ignore_ascii_case(&self.blake3);
        if good { Ok(bytes) } else { Err(SmallFileError::Damaged { path }) }
    }
}

fn read_unlisted(path: PathBuf, cache: Option<&Path>) -> Result<Option<Vec<u8>>, SmallFileError> {
    let file = match open_regular(&path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(refused(&path)(cause)),
    };
    let limit = MAX_COPY_BYTES;
    // The metadata are read first, as a write in the meantime changes the modification time.
    let about = FileIdentity::of(&file).map_err(refused(&path))?;
    let bytes = bounded(file, limit + 1).map_err(refused(&path))?;
    if bytes.len() as u64 > limit {
        return Err(SmallFileError::TooLarge { path, limit });
    }
    match book::first_reading_agrees(&about, &bytes, cache) {
        true => Ok(Some(bytes)),
        false => Err(SmallFileError::Changed { path }),
    }
}

/// The error for a cause while `path` was read, for `map_err`.
fn refused(path: &Path) -> impl Fn(io::Error) -> SmallFileError {
    move |cause| {
        let path = path.to_owned();
        match cause.kind() {
            io::ErrorKind::InvalidInput => SmallFileError::NotAFile { path },
            _ => SmallFileError::Read { path, cause },
        }
    }
}

fn bounded(file: File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
