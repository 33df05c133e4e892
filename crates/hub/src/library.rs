//! Shards of models, found by the models' ids.
//!
//! ```text
//! OWNER--NAME/ENCODING            a directory of shards, or a link to one
//! OWNER--NAME/ENCODING@REVISION   the same of another revision than main
//! OWNER--NAME/gguf                a link to a GGUF file
//! ```
//!
//! Anything else in these directories is left alone.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sws_format::{JOURNAL, MANIFEST_FILE};
use sws_os::lock::DirLock;
use sws_os::open::symlink;
use sws_os::places;

use crate::cache::{names_in, real, remove, tree_size};
use crate::environment::variable;
use crate::name::begins_commit;
use crate::{HubError, ModelId};

/// Encodings in order of preference, if none was requested: lossless ones, of which bf12 is fast
/// and small.
const ORDER: [&str; 6] = ["bf12", "bf11", "nested", "bf16", "f16", "f32"];

/// The revision that is not part of the form of its shards.
const MAIN: &str = "main";

/// The form of a GGUF file that was given a name.
pub const GGUF: &str = "gguf";

/// Ending of a download directory beside the shards made from it.
const STAGING: &str = "pull";

/// Download directory for the shards `out`.
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
pub struct LibraryShards {
    /// The model.
    pub id: ModelId,
    /// Name of the encoding, with the revision unless it is main, as in `bf12@v1`.
    pub form: String,
    /// Directory of the shards in the library, or the link there.
    pub path: PathBuf,
}

impl Library {
    /// The library in a directory, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> Library {
        Library { dir: dir.into() }
    }

    /// The library configured by this process's environment: `SWS_MODELS`, or `sws/models` in the
    /// user's data directory; `None` without a home directory.
    pub fn of_process() -> Option<Library> {
        if let Some(dir) = variable("SWS_MODELS") {
            return Some(Library::new(PathBuf::from(dir)));
        }
        let data = places::of_user(variable, "XDG_DATA_HOME", ".local/share")?;
        Some(Library::new(data.join("sws/models")))
    }

    /// Directory of the library.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path for the shards of a model in a [form](form()).
    pub fn path(&self, id: &ModelId, form: &str) -> PathBuf {
        self.dir.join(id.flat()).join(form)
    }

    /// Path for new shards of a model in a [form](form()). Removes a record at this path whose
    /// shards no longer exist.
    pub fn place(&self, id: &ModelId, form: &str) -> Result<PathBuf, HubError> {
        let path = self.path(id, form);
        if path.is_symlink() && !path.exists() {
            std::fs::remove_file(&path).map_err(HubError::writing(&path))?;
        }
        Ok(path)
    }

    /// Complete shards of a model, of a revision or of main, in the encoding `tag` or in any.
    pub fn find(&self, id: &ModelId, tag: Option<&str>, revision: Option<&str>) -> Option<PathBuf> {
        let mut found = self.of(id);
        found.retain(|shards| shards.is_complete() && shards.is(tag, revision));
        let best = found.into_iter().min_by_key(LibraryShards::rank)?;
        // The link of a GGUF file is resolved, because the file's own name matters.
        match best.path.canonicalize() {
            Ok(target) if target.is_file() => Some(target),
            _ => Some(best.path),
        }
    }

    /// Records shards or a GGUF file in another place, so that they can be found by the id.
    pub fn record(&self, id: &ModelId, form: &str, at: &Path) -> Result<(), HubError> {
        let link = self.path(id, form);
        let at = at.canonicalize().map_err(HubError::reading(at))?;
        if link.canonicalize().is_ok_and(|there| there == at) {
            return Ok(());
        }
        match link.symlink_metadata() {
            // Shards in the library are kept. The user's shards are found by their path.
            Ok(there) if !there.is_symlink() => return Ok(()),
            Ok(_) => std::fs::remove_file(&link).map_err(HubError::writing(&link))?,
            Err(_) => {}
        }
        let parent = link.parent().unwrap_or(&self.dir);
        std::fs::create_dir_all(parent).map_err(HubError::writing(&link))?;
        symlink(&at, &link).map_err(HubError::writing(&link))
    }

    /// All shards, complete or not, sorted.
    pub fn all(&self) -> Vec<LibraryShards> {
        let mut ids: Vec<ModelId> =
            names_in(&self.dir).filter_map(|name| ModelId::from_flat(&name)).collect();
        ids.sort();
        ids.iter().flat_map(|id| self.of(id)).collect()
    }

    /// Shards of a model, complete or not, sorted by their form.
    pub fn of(&self, id: &ModelId) -> Vec<LibraryShards> {
        let names = names_in(&self.dir.join(id.flat()));
        let forms: BTreeSet<String> = names.map(form_of).collect();
        let mut found = Vec::new();
        for form in forms {
            let path = self.path(id, &form);
            let shards = LibraryShards { id: id.clone(), form, path };
            if shards.is_ours() {
                found.push(shards);
            }
        }
        found
    }
}

/// The form of shards, from the name of their directory or of their download directory.
fn form_of(name: String) -> String {
    match Path::new(&name).extension() {
        Some(ending) if ending == STAGING => name[..name.len() - STAGING.len() - 1].to_owned(),
        _ => name,
    }
}

/// The form of shards in this encoding, of a revision or of main.
pub fn form(encoding: &str, revision: Option<&str>) -> String {
    match revision {
        None | Some(MAIN) => encoding.to_owned(),
        Some(revision) => format!("{encoding}@{}", revision.replace('/', "--")),
    }
}

impl LibraryShards {
    /// Name of the encoding.
    pub fn encoding(&self) -> &str {
        self.parts().0
    }

    /// Name of the encoding, and the revision, empty for main.
    fn parts(&self) -> (&str, &str) {
        self.form.split_once('@').unwrap_or((&self.form, ""))
    }

    /// Place in the order of preference.
    fn rank(&self) -> (usize, String) {
        let place = ORDER.iter().position(|encoding| *encoding == self.encoding());
        (place.unwrap_or(ORDER.len()), self.form.clone())
    }

    /// True for shards of a revision or of main, in the encoding `tag` or in any. A commit may be
    /// abbreviated.
    pub fn is(&self, tag: Option<&str>, revision: Option<&str>) -> bool {
        let (encoding, own) = self.parts();
        let begins = revision.is_some_and(|digits| begins_commit(digits, own));
        tag.is_none_or(|tag| tag == encoding) && (begins || self.form == form(encoding, revision))
    }

    /// True for anything that this crate or the sharder creates: a directory of shards, incomplete
    /// shards, a link, or a download directory.
    fn is_ours(&self) -> bool {
        self.path.is_symlink() && (self.path.is_dir() || self.is_gguf())
            || self.path.is_dir() && (self.holds(MANIFEST_FILE) || self.holds(JOURNAL))
            || staging(&self.path).is_dir()
    }

    /// True if the directory has a file with this name.
    fn holds(&self, name: &str) -> bool {
        self.path.join(name).is_file()
    }

    /// True for a link to a GGUF file.
    fn is_gguf(&self) -> bool {
        self.form == GGUF && self.path.is_file()
    }

    /// True if a download for these shards has begun and not ended.
    pub fn is_pulled(&self) -> bool {
        staging(&self.path).is_dir()
    }

    /// The name with which these shards can be pulled.
    pub fn name(&self) -> String {
        let (encoding, revision) = self.parts();
        let mut name = self.id.to_string();
        if encoding != ORDER[0] {
            name += &format!(":{encoding}");
        }
        if !revision.is_empty() {
            name += &format!("@{}", revision.replace("--", "/"));
        }
        name
    }

    /// True if these shards can be run. An interrupted download leaves a directory without
    /// manifest.
    pub fn is_complete(&self) -> bool {
        self.holds(MANIFEST_FILE) || self.is_gguf()
    }

    /// Bytes on disk, with those of an unfinished download.
    pub fn size(&self) -> u64 {
        if self.is_gguf() {
            return self.path.metadata().map_or(0, |about| about.len());
        }
        let shards = tree_size(&real(&self.path));
        shards + tree_size(&staging(&self.path))
    }

    /// Removes the shards. Of shards in another place, removes only the record. Also removes the
    /// directory of the model if it becomes empty. Refused while another process writes to the
    /// shards.
    pub fn remove(&self) -> Result<(), HubError> {
        // Downloads lock the first directory, and sharders the second.
        for dir in [staging(&self.path), self.path.clone()] {
            // A file in another place has no lock of this program.
            if !self.is_gguf() && matches!(DirLock::take(&dir), Ok(None)) {
                return Err(HubError::InUse { dir });
            }
        }
        if let Some(model) = self.path.parent()
            && model.is_symlink()
        {
            let refused = std::io::Error::other("it is a link, which can be removed by hand");
            return Err(HubError::write(model, refused));
        }
        remove(&self.path)?;
        remove(&staging(&self.path))?;
        if let Some(model) = self.path.parent() {
            // This fails, as intended, while there are other shards.
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
        assert_eq!(library.find(&id, None, None).as_ref(), Some(&q4));
        let bf12 = shards("bf12");
        assert_eq!(library.find(&id, None, None).as_ref(), Some(&bf12));
        assert_eq!(library.find(&id, Some("q4"), Some("main")).as_ref(), Some(&q4));
        assert_eq!(library.find(&id, Some("q8"), None), None);
        let old = shards("q4@refs--pr--1");
        assert_eq!(library.find(&id, None, Some("refs/pr/1")).as_ref(), Some(&old));
        assert_eq!(library.find(&id, Some("bf12"), Some("refs/pr/1")), None);
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let pinned = shards(&format!("q4@{commit}"));
        for revision in [commit, &commit[..7]] {
            assert_eq!(library.find(&id, None, Some(revision)).as_ref(), Some(&pinned));
        }
        assert_eq!(library.find(&id, None, Some(&commit[..6])), None, "too short");
        std::fs::remove_dir_all(&pinned).unwrap();
        // What others have put there is no model, and stays.
        let foreign = library.path(&id, "notes.txt");
        std::fs::write(&foreign, "precious").unwrap();
        std::fs::create_dir(library.path(&id, "folder")).unwrap();
        std::fs::create_dir(library.path(&id, "a")).unwrap();
        std::fs::create_dir(staging(&library.path(&id, "a"))).unwrap();
        assert_eq!(library.find(&id, Some("a"), None), None, "not complete");

        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join(MANIFEST_FILE), b"{}").unwrap();
        library.record(&id, "bf16", &other).unwrap();
        library.record(&id, "bf16", &other).unwrap();
        library.record(&id, "bf12", &other).unwrap();
        assert_eq!(library.find(&id, Some("bf16"), None), Some(library.path(&id, "bf16")));
        let kept = library.path(&id, "bf16");
        assert_eq!(library.place(&id, "bf16").unwrap(), kept);
        assert!(kept.is_symlink(), "its shards are there");
        let gone = library.path(&id, "f32");
        symlink(dir.path().join("gone"), &gone).unwrap();
        assert_eq!(library.place(&id, "f32").unwrap(), gone);
        assert!(!gone.is_symlink());

        let file = dir.path().join("model-Q4_K_M.gguf");
        std::fs::write(&file, b"GGUF").unwrap();
        let named: ModelId = "mine".parse().unwrap();
        library.record(&named, GGUF, &file).unwrap();
        assert_eq!(library.find(&named, None, None), Some(file.canonicalize().unwrap()));
        let [link] = &library.of(&named)[..] else { panic!("one link") };
        assert_eq!((link.form.as_str(), link.size(), link.is_complete()), (GGUF, 4, true));
        link.remove().unwrap();
        assert!(file.exists() && library.of(&named).is_empty());

        let all = library.all();
        let names: Vec<&str> = all.iter().map(|shards| shards.form.as_str()).collect();
        assert_eq!(names, ["a", "bf12", "bf16", "q4", "q4@refs--pr--1"]);
        let pulled: Vec<String> = all.iter().map(LibraryShards::name).collect();
        let expected = ["own/model:a", "own/model", "own/model:bf16", "own/model:q4"];
        assert_eq!(pulled[..4], expected);
        assert_eq!(pulled[4], "own/model:q4@refs/pr/1");
        assert!(all[0].is_pulled() && !all[1].is_pulled());
        for shards in &all {
            shards.remove().unwrap();
        }
        assert!(other.join(MANIFEST_FILE).exists(), "only the record of it is removed");
        assert!(foreign.exists() && library.path(&id, "folder").exists());
    }
}
