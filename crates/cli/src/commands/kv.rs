//! Directories in which servers keep prefix caches.

use std::path::{Path, PathBuf};

use sws_os::places;
use sws_store::{BlobName, Blobs, BlobsError, user_cache};

/// The directory for the model in another directory. `None` if this user has no place for it.
pub(crate) fn dir(model: &Path) -> Option<PathBuf> {
    let model = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let name = BlobName::of(&[places::bytes(&model)]).to_string();
    Some(user_cache()?.join("kv").join(&name[..32]))
}

/// The directories for the models in these places, or in snapshots below them, that are there.
pub(crate) fn of<'p>(places: impl Iterator<Item = &'p Path>) -> Vec<PathBuf> {
    let with_snapshots = places.flat_map(|place| {
        let snapshots = place.join("snapshots").read_dir().into_iter().flatten().flatten();
        let snapshots = snapshots.map(|entry| entry.path());
        [place.to_owned()].into_iter().chain(snapshots).collect::<Vec<_>>()
    });
    with_snapshots.filter_map(|place| dir(&place)).filter(|dir| dir.is_dir()).collect()
}

/// Those for all models.
pub(crate) fn all() -> Vec<PathBuf> {
    let dirs = user_cache().map(|cache| cache.join("kv").read_dir());
    let dirs = dirs.into_iter().flatten().flatten().flatten().map(|entry| entry.path());
    let mut dirs: Vec<PathBuf> = dirs.filter(|dir| dir.is_dir()).collect();
    dirs.sort();
    dirs
}

/// Removes such directories. Returns their bytes.
pub(crate) fn remove(dirs: &[PathBuf]) -> Result<u64, BlobsError> {
    dirs.iter().map(|dir| Blobs::remove(dir)).sum()
}
