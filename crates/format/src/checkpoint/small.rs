//! The small files of a checkpoint: configuration, tokenizer, chat template, licence.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sws_os::identity::FileIdentity;
use sws_os::open::{open_regular, open_unless_link, path_of};

use super::CheckpointError;
use crate::book::first_reading_agrees;
use crate::manifest::MAX_COPY_BYTES;
use crate::path::is_plain_name;
use crate::{MANIFEST_FILE, SMALL_FILES, SmallFileError};

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

/// True if a file with this name and length is copied beside shards: not weights, not hidden, and
/// not large.
pub fn is_small_file(name: &str, len: u64) -> bool {
    let hidden = name.starts_with('.') || name == MANIFEST_FILE;
    let weights = WEIGHTS.iter().any(|ending| name.ends_with(ending));
    len <= MAX_COPY_BYTES && !hidden && is_plain_name(name) && !weights
}

/// Lists the small files in `dir`, sorted by name. Links that lead out of the checkpoint are
/// refused: shards are passed on to others, and a foreign link may lead to a private file.
pub(super) fn list(dir: &Path) -> Result<Vec<String>, CheckpointError> {
    let refused = CheckpointError::reading(dir);
    let mut names = Vec::new();
    for entry in dir.read_dir().map_err(refused)? {
        let entry = entry.map_err(refused)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let copied = match entry.path().metadata() {
            Ok(about) if about.is_file() && about.len() <= MAX_COPY_BYTES => {
                is_small_file(&name, about.len())
            }
            // Files needed to read the model are never skipped silently.
            Ok(_) if SMALL_FILES.contains(&&*name) => {
                let what = format!("it is not a file of at most {MAX_COPY_BYTES} bytes");
                return Err(CheckpointError::reading(&entry.path())(io::Error::other(what)));
            }
            // A link to nothing.
            Err(e) if e.kind() == io::ErrorKind::NotFound && !SMALL_FILES.contains(&&*name) => {
                false
            }
            Err(e) => return Err(CheckpointError::reading(&entry.path())(e)),
            Ok(_) => false,
        };
        if copied {
            open(dir, &name)?;
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Reads a file that [`list`] found in `dir`, and compares it with its first reading, which is
/// recorded in the folder `cache`.
pub(super) fn read(
    dir: &Path,
    name: &str,
    cache: Option<&Path>,
) -> Result<Vec<u8>, CheckpointError> {
    let path = dir.join(name);
    let refused = CheckpointError::reading(&path);
    let file = open(dir, name)?;
    let about = FileIdentity::of(&file).map_err(refused)?;
    let mut bytes = Vec::new();
    file.take(MAX_COPY_BYTES + 1).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > MAX_COPY_BYTES {
        return Err(SmallFileError::TooLarge { path, limit: MAX_COPY_BYTES }.into());
    }
    match first_reading_agrees(&about, &bytes, cache) {
        true => Ok(bytes),
        false => Err(SmallFileError::Changed { path }.into()),
    }
}

/// Opens a file. Its location is that of the open descriptor, so neither a chain of links nor a
/// link that changes meanwhile can lead elsewhere.
fn open(dir: &Path, name: &str) -> Result<File, CheckpointError> {
    let path = dir.join(name);
    let refused = CheckpointError::reading(&path);
    if let Some(file) = open_unless_link(&path).map_err(refused)? {
        return Ok(file);
    }
    let file = open_regular(&path).map_err(refused)?;
    let target = path_of(&file).map_err(refused)?;
    match is_within(dir, &target).map_err(refused)? {
        true => Ok(file),
        false => Err(CheckpointError::Elsewhere { link: path, target }),
    }
}

/// True if `target` belongs to the checkpoint in `dir`: it lies there or, for a snapshot in the
/// Hugging Face cache (`REPOSITORY/snapshots/REVISION`), among the blobs of its repository.
fn is_within(dir: &Path, target: &Path) -> io::Result<bool> {
    let whole = dir.canonicalize()?;
    let snapshots = whole.parent().filter(|dir| dir.ends_with("snapshots"));
    let blobs: Option<PathBuf> = snapshots.map(|dir| dir.with_file_name("blobs"));
    Ok(target.starts_with(&whole) || blobs.is_some_and(|blobs| target.starts_with(blobs)))
}
