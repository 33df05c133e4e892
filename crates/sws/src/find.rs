//! Finding the directory of a model by path or name.

use std::fs::DirEntry;
use std::io::Read;
use std::path::{Path, PathBuf};

use sws_store::open_regular;

use crate::{Error, Result};

/// Returns the directory of a model, given its path or its id in the Hugging Face cache. Nothing is
/// downloaded.
pub fn locate(name: impl AsRef<Path>) -> Result<PathBuf> {
    let path = name.as_ref();
    if path.exists() {
        return Ok(path.to_owned());
    }
    let Some(id) = path.to_str().filter(|id| is_hub_id(id)) else {
        return Err(Error::NoPath { path: path.to_owned() });
    };
    let cache = hub_cache();
    // `hf_hub` opens this file, the name of a revision, without checking that it is a regular file.
    let revision = format!("models--{}/refs/main", id.replace('/', "--"));
    let found = cache.as_ref().filter(|cache| open_regular(cache.path().join(revision)).is_ok());
    let config = found.and_then(|cache| cache.model(id.to_owned()).get("config.json"));
    let dir = config.and_then(|path| Some(path.parent()?.to_owned()));
    let folder = found.map(|cache| cache.path().join(format!("models--{}", id.replace('/', "--"))));
    let dir = dir.or_else(|| snapshot_of_gguf(&folder?));
    dir.ok_or_else(|| Error::NotCached {
        name: id.to_owned(),
        cache: cache.map(|cache| cache.path().clone()),
    })
}

/// The snapshot of a repository of GGUF files, which often has no configuration.
fn snapshot_of_gguf(folder: &Path) -> Option<PathBuf> {
    let mut commit = String::new();
    let file = open_regular(folder.join("refs/main")).ok()?;
    file.take(128).read_to_string(&mut commit).ok()?;
    let plain = !commit.is_empty() && commit.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let dir = folder.join("snapshots").join(plain.then_some(commit)?);
    let is_gguf = |entry: &DirEntry| entry.path().extension().is_some_and(|end| end == "gguf");
    dir.read_dir().ok()?.flatten().any(|entry| is_gguf(&entry)).then_some(dir)
}

/// The model cache of the Python library. `None` without a home directory, where `from_env` would
/// panic.
fn hub_cache() -> Option<hf_hub::Cache> {
    if let Some(dir) = std::env::var_os("HF_HUB_CACHE") {
        return Some(hf_hub::Cache::new(dir.into()));
    }
    let somewhere = std::env::var("HF_HOME").is_ok() || std::env::home_dir().is_some();
    somewhere.then(hf_hub::Cache::from_env)
}

/// True for `name` or `owner/name`.
fn is_hub_id(word: &str) -> bool {
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    word.split('/').count() <= 2 && word.split('/').all(part)
}
