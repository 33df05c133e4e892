//! Finding a model by path or name.

use std::path::{Path, PathBuf};

use sws_hub::{CachedModel, HubCache, Library, ModelId, ModelName, choose_gguf, snapshot_files};
use tracing::{debug, info};

use crate::{Error, Result};

/// Returns the path of a model, given its path or its id: of the shards made of it, or of its
/// checkpoint in the Hugging Face cache. Nothing is downloaded.
///
/// An id may have a tag, which names the encoding of the shards or one of several GGUF files, and a
/// revision: `OWNER/NAME:q8`, `OWNER/NAME:Q4_K_M`, `OWNER/NAME@v1`.
pub fn locate(name: impl AsRef<Path>) -> Result<PathBuf> {
    find(name.as_ref(), true)
}

/// Like [`locate`], but never returns shards found by an id.
pub fn locate_checkpoint(name: impl AsRef<Path>) -> Result<PathBuf> {
    find(name.as_ref(), false)
}

fn find(path: &Path, shards: bool) -> Result<PathBuf> {
    if path.exists() {
        info!("the model is named by its path");
        return Ok(path.to_owned());
    }
    let Some(Ok(name)) = path.to_str().map(str::parse::<ModelName>) else {
        return Err(Error::NoPath { path: path.to_owned() });
    };
    let tag = name.tag.as_deref();
    let revision = name.revision.as_deref();
    if shards
        && let Some(library) = Library::of_process()
        && let Some(found) = library.find(&name.id, tag, revision)
    {
        info!("`{name}` has shards on this machine");
        debug!("they are in `{}`", found.display());
        return Ok(found);
    }
    let cache = HubCache::of_process();
    let cached = cache.as_ref().map(|cache| cache.model(&name.id));
    if let Some(cached) = &cached
        && let Some(dir) = cached.snapshot(revision)
        && let Some(found) = in_snapshot(&dir, &name)?
    {
        info!("`{name}` is in the Hugging Face cache");
        debug!("it is `{}`", found.display());
        return Ok(found);
    }
    sws_hub::check_places().map_err(Error::Place)?;
    let snapshots = match &cached {
        Some(cached) => snapshots(cached, &name),
        None => Vec::new(),
    };
    let similar = similar(&name, cache.as_ref());
    Err(Error::NotHere { path: path.to_owned(), name: Box::new(name), similar, snapshots })
}

/// Names of a model's snapshots by commit, if no branch decides between them.
fn snapshots(cached: &CachedModel, name: &ModelName) -> Vec<ModelName> {
    let mut names = Vec::new();
    for commit in cached.commits() {
        let Some(dir) = cached.snapshot(Some(&commit)) else { continue };
        if !matches!(in_snapshot(&dir, name), Ok(None)) {
            names.push(ModelName { revision: Some(commit), ..name.clone() });
        }
    }
    names
}

/// The model in a snapshot: the snapshot's directory, or one of its GGUF files.
fn in_snapshot(dir: &Path, name: &ModelName) -> Result<Option<PathBuf>> {
    if name.tag.is_none() && dir.join("config.json").exists() {
        return Ok(Some(dir.to_owned()));
    }
    let names = snapshot_files(dir);
    match choose_gguf(names.iter().map(String::as_str), name.tag.as_deref()) {
        Ok(files) => Ok(files.first().map(|file| dir.join(file))),
        Err(unclear) if unclear.none => Ok(None),
        Err(unclear) => Err(Error::Several { name: name.clone(), models: unclear.models }),
    }
}

/// A model on this machine whose name contains the typed one, or is contained in it. Never the
/// typed name itself, nor an id that finds no model.
fn similar(name: &ModelName, cache: Option<&HubCache>) -> Option<ModelId> {
    let typed = plain(&name.id);
    let is_bare = name.tag.is_none() && name.revision.is_none();
    let cached = cache.into_iter().flat_map(HubCache::models);
    let sharded = Library::of_process().into_iter().flat_map(|library| library.all());
    let mut known = cached.chain(sharded.map(|shards| shards.id));
    known.find(|id| {
        let known = plain(id);
        !typed.is_empty()
            && (known.contains(&typed) || typed.contains(&known))
            && (*id != name.id || !is_bare && find(Path::new(id.as_str()), true).is_ok())
    })
}

/// The letters and digits of a model's name, without its owner.
fn plain(id: &ModelId) -> String {
    let name = id.as_str().rsplit('/').next().unwrap_or("");
    name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
}
