//! Directories in which servers keep prefix caches.

use std::path::{Path, PathBuf};

use sws_os::places;
use sws_store::{BlobName, Blobs, BlobsError, user_cache};

use crate::here::entries;

/// The directory for the model in another directory. `None` if this user has no place for it.
pub(crate) fn dir(model: &Path) -> Option<PathBuf> {
    let model = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let name = BlobName::of(&[places::bytes(&model)]).to_string();
    Some(user_cache()?.join("kv").join(&name[..32]))
}

/// The directories for the models in these places, or in snapshots below them, that are there.
pub(crate) fn of<'p>(places: impl Iterator<Item = &'p Path>) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    for place in places {
        dirs.extend(dir(place));
        for snapshot in entries(&place.join("snapshots")) {
            dirs.extend(dir(&snapshot));
        }
    }
    dirs.retain(|dir| dir.is_dir());
    dirs
}

/// Those for all models.
pub(crate) fn all() -> Vec<PathBuf> {
    let Some(cache) = user_cache() else { return Vec::new() };
    let mut dirs = entries(&cache.join("kv"));
    dirs.retain(|dir| dir.is_dir());
    dirs.sort();
    dirs
}

/// Removes such directories. Returns their bytes.
pub(crate) fn remove(dirs: &[PathBuf]) -> Result<u64, BlobsError> {
    dirs.iter().map(|dir| Blobs::remove(dir)).sum()
}
