//! Shards of models, found by the models' ids.
//!
//! ```text
//! OWNER--NAME/ENCODING    a directory of shards, or a link to one
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sws_store::MANIFEST_FILE;

use crate::cache::{remove, tree_size};
use crate::{HubError, ModelId};

/// Encodings by preference, where none was asked for: exact ones first, and of those the smallest.
const ORDER: [&str; 4] = ["bf12", "bf16", "f16", "f32"];

/// Ending of the directory of a download beside the shards made of it.
const STAGING: &str = "pull";

/// Directory of the download that ends in the shards `out`.
pub fn staging(out: &Path) -> PathBuf {
    out.with_added_extension(STAGING)
}

/// A directory of shards by model and encoding.
#[derive(Clone, Debug)]
pub struct Library {
    dir: PathBuf,
}

/// Shards of a model in the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shards {
    /// The model.
    pub id: ModelId,
    /// Name of the encoding.
    pub encoding: String,
    /// Their directory in the library, or the link there.
    pub path: PathBuf,
}

impl Library {
    /// The library in a directory, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> Library {
        Library { dir: dir.into() }
    }

    /// The library of this process's environment: `SWS_MODELS`, or `sws/models` in the user's data
    /// directory. None without a home directory.
    pub fn of_process() -> Option<Library> {
        let get = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        if let Some(dir) = get("SWS_MODELS") {
            return Some(Library::new(dir));
        }
        let absolute = |name| get(name).filter(|path| path.is_absolute());
        let home = || Some(absolute("HOME")?.join(".local/share"));
        Some(Library::new(absolute("XDG_DATA_HOME").or_else(home)?.join("sws/models")))
    }

    /// Directory of the library.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path for the shards of a model in an encoding.
    pub fn path(&self, id: &ModelId, encoding: &str) -> PathBuf {
        self.dir.join(id.flat()).join(encoding)
    }

    /// Complete shards of a model, in the encoding `tag` or in any.
    pub fn find(&self, id: &ModelId, tag: Option<&str>) -> Option<PathBuf> {
        let mut found = self.of(id);
        found.retain(|shards| shards.is_complete());
        let rank = |shards: &Shards| {
            let place = ORDER.iter().position(|encoding| *encoding == shards.encoding);
            (place.unwrap_or(ORDER.len()), shards.encoding.clone())
        };
        found.sort_by_key(rank);
        let wanted = |shards: &Shards| tag.is_none_or(|tag| tag == shards.encoding);
        found.into_iter().find(wanted).map(|shards| shards.path)
    }

    /// Records shards that lie elsewhere, so that the id finds them.
    pub fn record(&self, id: &ModelId, encoding: &str, at: &Path) -> Result<(), HubError> {
        let link = self.path(id, encoding);
        let at = at.canonicalize().map_err(|e| HubError::read(at, e))?;
        if link.canonicalize().is_ok_and(|there| there == at) {
            return Ok(());
        }
        match link.symlink_metadata() {
            // Shards that are in the library stay; those typed are found by their path.
            Ok(there) if !there.is_symlink() => return Ok(()),
            Ok(_) => std::fs::remove_file(&link).map_err(|e| HubError::write(&link, e))?,
            Err(_) => {}
        }
        let parent = link.parent().unwrap_or(&self.dir);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::os::unix::fs::symlink(&at, &link))
            .map_err(|e| HubError::write(&link, e))
    }

    /// All shards, complete or not, sorted.
    pub fn all(&self) -> Vec<Shards> {
        let entries = self.dir.read_dir().into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut ids: Vec<ModelId> = names.filter_map(|name| ModelId::from_flat(&name)).collect();
        ids.sort();
        ids.iter().flat_map(|id| self.of(id)).collect()
    }

    /// Shards of a model, complete or not, sorted by the name of their encoding.
    pub fn of(&self, id: &ModelId) -> Vec<Shards> {
        let entries = self.dir.join(id.flat()).read_dir().into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let encoding = |name: String| match Path::new(&name).extension() {
            Some(ending) if ending == STAGING => name[..name.len() - STAGING.len() - 1].to_owned(),
            _ => name,
        };
        let encodings: BTreeSet<String> = names.map(encoding).collect();
        let shards = |encoding: String| {
            let path = self.path(id, &encoding);
            Shards { id: id.clone(), encoding, path }
        };
        encodings.into_iter().map(shards).collect()
    }
}

impl Shards {
    /// True if they can be run: a download leaves a directory without manifest when interrupted.
    pub fn is_complete(&self) -> bool {
        self.path.join(MANIFEST_FILE).is_file()
    }

    /// Bytes on disk, with those of an unfinished download.
    pub fn size(&self) -> u64 {
        let shards = tree_size(&self.path.canonicalize().unwrap_or_else(|_| self.path.clone()));
        shards + tree_size(&staging(&self.path))
    }

    /// Removes them; of shards that lie elsewhere, only the record. Removes the directory of the
    /// model with the last.
    pub fn remove(&self) -> Result<(), HubError> {
        remove(&self.path)?;
        remove(&staging(&self.path))?;
        if let Some(model) = self.path.parent() {
            // Fails, as it should, while there are others.
            let _ = std::fs::remove_dir(model);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_found_by_id_and_encoding() {
        let dir = tempfile::tempdir().unwrap();
        let library = Library::new(dir.path().join("models"));
        let id: ModelId = "own/model".parse().unwrap();
        assert!(library.all().is_empty());
        let shards = |encoding: &str| {
            let path = library.path(&id, encoding);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join(MANIFEST_FILE), b"{}").unwrap();
            path
        };
        let q4 = shards("q4");
        assert_eq!(library.find(&id, None).as_ref(), Some(&q4));
        let bf12 = shards("bf12");
        assert_eq!(library.find(&id, None).as_ref(), Some(&bf12));
        assert_eq!(library.find(&id, Some("q4")).as_ref(), Some(&q4));
        assert_eq!(library.find(&id, Some("q8")), None);
        std::fs::create_dir(library.path(&id, "a")).unwrap();
        std::fs::create_dir(staging(&library.path(&id, "a"))).unwrap();
        assert_eq!(library.find(&id, Some("a")), None, "not complete");

        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join(MANIFEST_FILE), b"{}").unwrap();
        library.record(&id, "bf16", &other).unwrap();
        library.record(&id, "bf16", &other).unwrap();
        library.record(&id, "bf12", &other).unwrap();
        assert_eq!(library.find(&id, Some("bf16")), Some(library.path(&id, "bf16")));
        let all = library.all();
        let names: Vec<&str> = all.iter().map(|shards| shards.encoding.as_str()).collect();
        assert_eq!(names, ["a", "bf12", "bf16", "q4"]);
        for shards in &all {
            shards.remove().unwrap();
        }
        assert!(other.join(MANIFEST_FILE).exists(), "only the record of it is removed");
        assert!(library.dir().read_dir().unwrap().next().is_none());
    }
}
