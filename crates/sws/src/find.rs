//! From a path or a name to the directory of a model.

use std::path::{Path, PathBuf};

use sws_store::open_regular;

use crate::{Error, Result};

/// The directory of a model: that of a path, or of the id of a model in the Hugging Face cache. Nothing
/// is downloaded.
pub fn locate(name: impl AsRef<Path>) -> Result<PathBuf> {
    let path = name.as_ref();
    if path.exists() {
        return Ok(path.to_owned());
    }
    let Some(id) = path.to_str().filter(|id| is_hub_id(id)) else {
        return Err(Error::NoPath { path: path.to_owned() });
    };
    let cache = hub_cache();
    // The name of a revision, which is opened there without a look at what it is.
    let revision = format!("models--{}/refs/main", id.replace('/', "--"));
    let found = cache.as_ref().filter(|cache| open_regular(cache.path().join(revision)).is_ok());
    let config = found.and_then(|cache| cache.model(id.to_owned()).get("config.json"));
    let dir = config.and_then(|path| Some(path.parent()?.to_owned()));
    dir.ok_or_else(|| Error::NotCached {
        name: id.to_owned(),
        cache: cache.map(|cache| cache.path().clone()),
    })
}

/// The place in which Python's library keeps models. None without a home: `from_env` would panic.
fn hub_cache() -> Option<hf_hub::Cache> {
    if let Some(dir) = std::env::var_os("HF_HUB_CACHE") {
        return Some(hf_hub::Cache::new(dir.into()));
    }
    let somewhere = std::env::var("HF_HOME").is_ok() || std::env::home_dir().is_some();
    somewhere.then(hf_hub::Cache::from_env)
}

/// `name` or `owner/name`.
fn is_hub_id(word: &str) -> bool {
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    word.split('/').count() <= 2 && word.split('/').all(part)
}
