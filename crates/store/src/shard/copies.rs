//! The checkpoint's small files: configuration, tokenizer, chat template, licence.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::ShardError;
use super::outdir::OutDir;
use crate::manifest::MAX_COPY_BYTES;
use crate::path::is_plain_name;
use crate::{CopiedFile, MANIFEST_FILE};

/// Weights, and what lists them: neither means anything beside shards.
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

/// The names of the files to be copied, sorted.
pub(super) fn names(dir: &Path) -> Result<Vec<String>, ShardError> {
    let refused = |e| ShardError::reading(dir, e);
    let mut names = Vec::new();
    for entry in dir.read_dir().map_err(refused)? {
        let entry = entry.map_err(refused)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        // The cache of the hub is made of symbolic links, so these are followed.
        let small = entry.path().metadata().is_ok_and(|m| m.is_file() && m.len() <= MAX_COPY_BYTES);
        let hidden = name.starts_with('.') || name == MANIFEST_FILE;
        if small
            && !hidden
            && is_plain_name(&name)
            && !WEIGHTS.iter().any(|ending| name.ends_with(ending))
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Copies the files of a checkpoint beside its shards.
pub(super) fn copy(
    names: &[String],
    from: &Path,
    to: &OutDir,
) -> Result<Vec<CopiedFile>, ShardError> {
    let copy = |name: &String| {
        let bytes = read(&from.join(name))?;
        to.write_small(name, &bytes)?;
        let blake3 = blake3::hash(&bytes).to_hex().to_string();
        Ok(CopiedFile { path: name.clone(), len: bytes.len() as u64, blake3 })
    };
    names.iter().map(copy).collect()
}

/// Copies them back, as they were.
pub(super) fn copy_back(copies: &[CopiedFile], from: &Path, to: &OutDir) -> Result<(), ShardError> {
    for copy in copies {
        if let Some(what) = damage(copy, from) {
            return Err(ShardError::DamagedCopy { path: from.join(&copy.path), what });
        }
        to.write_small(&copy.path, &read(&from.join(&copy.path))?)?;
    }
    Ok(())
}

/// What is wrong with a copy, as the end of a sentence that begins with its name.
pub(super) fn damage(copy: &CopiedFile, dir: &Path) -> Option<String> {
    let path = dir.join(&copy.path);
    let unreadable = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => "is missing".to_owned(),
        _ => format!("cannot be read ({e})"),
    };
    let metadata = match path.symlink_metadata() {
        Ok(metadata) => metadata,
        Err(e) => return Some(unreadable(e)),
    };
    if !metadata.is_file() {
        return Some("is not a regular file".to_owned());
    }
    if metadata.len() != copy.len {
        return Some(format!("has {} bytes instead of {}", metadata.len(), copy.len));
    }
    let mut hasher = blake3::Hasher::new();
    match File::open(&path).and_then(|file| hasher.update_reader(file.take(copy.len)).map(|_| ())) {
        Err(e) => Some(unreadable(e)),
        Ok(()) if !hasher.finalize().to_hex().eq_ignore_ascii_case(&copy.blake3) => {
            Some("is damaged".to_owned())
        }
        Ok(()) => None,
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ShardError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_COPY_BYTES).read_to_end(&mut bytes));
    read.map_err(|e| ShardError::reading(path, e))?;
    Ok(bytes)
}
