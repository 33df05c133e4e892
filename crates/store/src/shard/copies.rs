//! The checkpoint's small files: configuration, tokenizer, chat template, licence.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::ShardError;
use super::outdir::OutDir;
use crate::book::first_reading_agrees;
use crate::manifest::MAX_COPY_BYTES;
use crate::path::is_plain_name;
use crate::regular::open_regular;
use crate::{CopiedFile, MANIFEST_FILE, SMALL_FILES, SmallFileError, user_cache};

/// Endings of weight files and their indices, which are meaningless next to shards.
const WEIGHTS: [&str; 12] = [
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".pth",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
    ".ckpt",
    ".npz",
];

/// The small files of a checkpoint, all of which lie within it.
pub(super) struct Small {
    dir: PathBuf,
    /// Directories that links may lead to: the checkpoint itself and, for a snapshot in the Hugging
    /// Face cache, the blobs of its repository.
    within: Vec<PathBuf>,
    names: Vec<String>,
}

impl Small {
    /// Finds the files to copy. Links that lead out of the checkpoint are refused: shards are
    /// passed on to others, and a foreign link may lead to a private file.
    pub(super) fn of(dir: &Path) -> Result<Small, ShardError> {
        let refused = |e| ShardError::reading(dir, e);
        let whole = dir.canonicalize().map_err(refused)?;
        let blobs = blobs(&whole);
        let within = [whole].into_iter().chain(blobs).collect();
        let mut small = Small { dir: dir.to_owned(), within, names: Vec::new() };
        for entry in dir.read_dir().map_err(refused)? {
            let entry = entry.map_err(refused)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let fits = match entry.path().metadata() {
                Ok(about) if about.is_file() && about.len() <= MAX_COPY_BYTES => true,
                // Files needed to read the model are never skipped silently.
                Ok(_) if SMALL_FILES.contains(&&*name) => {
                    let what = format!("it is no file of at most {MAX_COPY_BYTES} bytes");
                    return Err(ShardError::reading(&entry.path(), io::Error::other(what)));
                }
                Err(e) if SMALL_FILES.contains(&&*name) => {
                    return Err(ShardError::reading(&entry.path(), e));
                }
                _ => false,
            };
            let hidden = name.starts_with('.') || name == MANIFEST_FILE;
            if fits
                && !hidden
                && is_plain_name(&name)
                && !WEIGHTS.iter().any(|ending| name.ends_with(ending))
            {
                small.open(&name)?;
                small.names.push(name);
            }
        }
        small.names.sort();
        Ok(small)
    }

    /// The names of the files, sorted.
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Copies the files into the shard directory.
    pub(super) fn copy(&self, to: &OutDir) -> Result<Vec<CopiedFile>, ShardError> {
        let copy = |name: &String| {
            let path = self.dir.join(name);
            let refused = |e| ShardError::reading(&path, e);
            let file = self.open(name)?;
            let about = file.metadata().map_err(refused)?;
            let mut bytes = Vec::new();
            file.take(MAX_COPY_BYTES).read_to_end(&mut bytes).map_err(refused)?;
            // Shards guarantee their sources, so a file must not have changed since its first
            // reading.
            if !first_reading_agrees(&about, &bytes, user_cache().as_deref()) {
                return Err(SmallFileError::Changed { path }.into());
            }
            to.write_small(name, &bytes)?;
            let blake3 = blake3::hash(&bytes).to_hex().to_string();
            Ok(CopiedFile { path: name.clone(), len: bytes.len() as u64, blake3 })
        };
        self.names.iter().map(copy).collect()
    }

    /// Opens a file. Its location is that of the open descriptor, so neither a chain of links nor a
    /// link that changes meanwhile can lead elsewhere.
    fn open(&self, name: &str) -> Result<File, ShardError> {
        let path = self.dir.join(name);
        let refused = |e| ShardError::reading(&path, e);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(file) => {
                let file = File::from(file);
                match file.metadata().map_err(refused)?.is_file() {
                    true => Ok(file),
                    false => Err(refused(io::ErrorKind::InvalidInput.into())),
                }
            }
            Err(rustix::io::Errno::LOOP) => {
                let file = open_regular(&path).map_err(refused)?;
                let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
                let target = std::fs::read_link(opened).map_err(refused)?;
                match self.within.iter().any(|dir| target.starts_with(dir)) {
                    true => Ok(file),
                    false => Err(ShardError::Elsewhere { link: path, target }),
                }
            }
            Err(e) => Err(refused(e.into())),
        }
    }
}

/// Returns `REPOSITORY/blobs` for `REPOSITORY/snapshots/REVISION` in the Hugging Face cache. The
/// links of a snapshot lead there.
fn blobs(dir: &Path) -> Option<PathBuf> {
    let snapshots = dir.parent().filter(|dir| dir.ends_with("snapshots"))?;
    Some(snapshots.with_file_name("blobs"))
}

/// Copies the small files back into a checkpoint, unchanged.
pub(super) fn copy_back(copies: &[CopiedFile], from: &Path, to: &OutDir) -> Result<(), ShardError> {
    for copy in copies {
        let bytes = match copy.read(from) {
            Ok(bytes) => bytes,
            Err(error) => {
                let (path, what) = (from.join(&copy.path), what(error)?);
                return Err(ShardError::DamagedCopy { path, what });
            }
        };
        to.write_small(&copy.path, &bytes)?;
    }
    Ok(())
}

/// Describes the damage of a copy, as the end of a sentence that begins with its name.
pub(super) fn damage(copy: &CopiedFile, dir: &Path) -> Result<Option<String>, ShardError> {
    copy.read(dir).err().map(what).transpose()
}

/// True if a failed read is the file's fault: not a limit of the process, nor its rights.
pub(super) fn is_damage(cause: &io::Error) -> bool {
    let number = rustix::io::Errno::from_io_error(cause);
    number.is_none_or(|number| number == rustix::io::Errno::IO)
}

fn what(error: SmallFileError) -> Result<String, ShardError> {
    Ok(match error {
        SmallFileError::Missing { .. } => "is missing".to_owned(),
        SmallFileError::NotAFile { .. } => "is not a regular file".to_owned(),
        SmallFileError::Length { expected, found, .. } => {
            format!("has {found} bytes instead of {expected}")
        }
        SmallFileError::Read { path, cause } if !is_damage(&cause) => {
            return Err(ShardError::reading(&path, cause));
        }
        SmallFileError::Read { cause, .. } => format!("cannot be read ({cause})"),
        _ => "is damaged".to_owned(),
    })
}
