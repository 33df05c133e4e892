//! The checkpoint's small files: configuration, tokenizer, chat template, licence.

use std::path::Path;

use super::ShardError;
use super::outdir::OutDir;
use crate::MANIFEST_FILE;

/// A tokenizer has 20 MB at most; what is larger holds weights in some form.
const MAX_BYTES: u64 = 64 << 20;
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
        let small = entry.path().metadata().is_ok_and(|m| m.is_file() && m.len() <= MAX_BYTES);
        let hidden = name.starts_with('.') || name == MANIFEST_FILE;
        if small && !hidden && !WEIGHTS.iter().any(|ending| name.ends_with(ending)) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Copies them.
pub(super) fn copy(names: &[String], from: &Path, to: &OutDir) -> Result<(), ShardError> {
    for name in names {
        let path = from.join(name);
        let bytes = std::fs::read(&path).map_err(|e| ShardError::reading(&path, e))?;
        to.write_small(name, &bytes)?;
    }
    Ok(())
}
