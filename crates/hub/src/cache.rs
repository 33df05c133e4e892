//! The cache that Python's `huggingface_hub` shares: blobs named by their hashes, snapshots of links
//! to them, and the commits of branches.
//!
//! ```text
//! models--OWNER--NAME/blobs/ETAG              a file
//! models--OWNER--NAME/blobs/ETAG.incomplete   the beginning of one
//! models--OWNER--NAME/snapshots/COMMIT/FILE   a link to the blob
//! models--OWNER--NAME/refs/main               the commit of a branch
//! .locks/models--OWNER--NAME/ETAG.lock        held while a blob is written
//! ```

use std::collections::BTreeSet;
use std::fs::{DirEntry, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hf_hub::{Cache, Repo};
use sws_format::{is_plain_name, is_plain_path, open_regular};
use sws_os::identity::FileIdentity;
use sws_os::lock::{lock_alone, wait_alone};
use sws_os::open::symlink;

use crate::environment::variable;
use crate::name::{is_commit, is_revision};
use crate::{HubError, ModelId};

const PREFIX: &str = "models--";
/// Name of the lock of all branches.
const REFS: &str = "refs";

/// The cache of the Hugging Face hub.
#[derive(Clone, Debug)]
pub struct HubCache {
    inner: Cache,
}

/// The part of the cache that belongs to one model.
#[derive(Clone, Debug)]
pub struct CachedModel {
    cache: Cache,
    repo: Repo,
    dir: PathBuf,
    locks: PathBuf,
}

impl HubCache {
    /// The cache in a directory, which need not exist.
    pub fn new(dir: impl Into<PathBuf>) -> HubCache {
        HubCache { inner: Cache::new(dir.into()) }
    }

    /// The cache configured by this process's environment; `None` without a home directory.
    pub fn of_process() -> Option<HubCache> {
        crate::environment::cache(&variable).map(HubCache::new)
    }

    /// Directory of the cache.
    pub fn dir(&self) -> &Path {
        self.inner.path()
    }

    /// The part of the cache for a model, which need not exist.
    pub fn model(&self, id: &ModelId) -> CachedModel {
        let repo = Repo::model(id.as_str().to_owned());
        let name = repo.folder_name();
        let locks = self.dir().join(".locks").join(&name);
        CachedModel { cache: self.inner.clone(), repo, locks, dir: self.dir().join(name) }
    }

    /// All models in the cache, complete or not, sorted.
    pub fn models(&self) -> Vec<ModelId> {
        let mut ids: Vec<ModelId> = names_in(self.dir())
            .filter_map(|name| ModelId::from_flat(name.strip_prefix(PREFIX)?))
            .collect();
        ids.sort();
        ids
    }
}

impl CachedModel {
    /// Directory of the model's blobs and snapshots.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Directory of the snapshot of a commit, which need not exist.
    pub fn at(&self, commit: &str) -> PathBuf {
        self.cache.repo(self.repo.clone()).pointer_path(commit)
    }

    /// Path of a blob, which need not exist yet.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.dir.join("blobs").join(etag)
    }

    /// Locks a blob for writing, until the file is dropped. Calls `busy` before waiting for another
    /// process.
    pub fn lock(&self, etag: &str, busy: impl FnOnce()) -> Result<File, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        for dir in [self.locks.as_path(), &self.dir.join("blobs")] {
            std::fs::create_dir_all(dir).map_err(HubError::writing(dir))?;
        }
        let mut options = File::options();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(HubError::writing(&path))?;
        if !lock_alone(&file) {
            busy();
            wait_alone(&file).map_err(HubError::writing(&path))?;
        }
        Ok(file)
    }

    /// Links a blob into the snapshot of a commit under its name. Replaces an existing file.
    pub fn link(&self, commit: &str, name: &str, etag: &str) -> Result<(), HubError> {
        let path = self.at(commit).join(name);
        let blob = self.blob(etag);
        if !is_commit(commit) || !is_plain_path(name) || !is_plain_name(etag) {
            return Err(HubError::write(&path, io::ErrorKind::InvalidInput.into()));
        }
        if let Ok(there) = FileIdentity::at(&path)
            && let Ok(blob) = FileIdentity::at(&blob)
            && there.is_same_file(&blob)
        {
            return Ok(());
        }
        let parent = path.parent().unwrap_or(&self.dir);
        std::fs::create_dir_all(parent).map_err(HubError::writing(parent))?;
        let up = "../".repeat(name.split('/').count() + 1);
        let fresh = parent.join(format!(".{etag}.sws-tmp"));
        let _ = std::fs::remove_file(&fresh);
        let mut linked = symlink(format!("{up}blobs/{etag}"), &fresh);
        if linked.is_err() {
            // The file system has no symbolic links.
            linked = std::fs::hard_link(&blob, &fresh);
        }
        if linked.is_err() {
            linked = std::fs::copy(&blob, &fresh).map(drop);
        }
        linked.map_err(HubError::writing(&path))?;
        std::fs::rename(&fresh, &path).map_err(HubError::writing(&path))
    }

    /// Records the commit of a branch or a tag atomically, unlike `create_ref` of `hf_hub`.
    pub fn point(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if !is_revision(revision) || is_commit(revision) {
            return Ok(());
        }
        let _lock = self.lock(REFS, || ())?;
        let path = self.dir.join("refs").join(revision);
        let fresh = path.with_added_extension("sws-tmp");
        let parent = path.parent().unwrap_or(&self.dir);
        std::fs::create_dir_all(parent).map_err(HubError::writing(&path))?;
        write_by(&fresh, &path, commit.as_bytes()).map_err(HubError::writing(&path))
    }

    /// True if a download into the cache was begun and not finished.
    pub fn is_partial(&self) -> bool {
        entries(&self.dir.join("blobs"))
            .any(|blob| blob.path().extension() == Some("incomplete".as_ref()))
    }

    /// Bytes on disk.
    pub fn size(&self) -> u64 {
        tree_size(&self.dir)
    }

    /// Removes files of a snapshot, and blobs that no other file uses. Targets of links outside the
    /// model's directory are kept. Returns the bytes freed.
    pub fn remove_files(&self, snapshot: &Path, names: &[&str]) -> Result<u64, HubError> {
        let own = real(&self.dir);
        let mut gone = BTreeSet::new();
        for name in names {
            let path = snapshot.join(name);
            if let Ok(blob) = path.canonicalize()
                && blob.starts_with(&own)
            {
                gone.extend(identity(&path));
            }
            std::fs::remove_file(&path).map_err(HubError::writing(&path))?;
        }
        let mut left = BTreeSet::new();
        for snapshot in entries(&self.dir.join("snapshots")) {
            let dir = snapshot.path();
            for name in snapshot_files(&dir) {
                left.extend(identity(&dir.join(name)));
            }
        }
        let mut freed: u64 = 0;
        for entry in entries(&self.dir.join("blobs")) {
            let blob = entry.path();
            let Ok(about) = blob.symlink_metadata() else { continue };
            if let Some(it) = identity(&blob)
                && gone.contains(&it)
                && !left.contains(&it)
            {
                std::fs::remove_file(&blob).map_err(HubError::writing(&blob))?;
                freed = freed.saturating_add(about.len());
            }
        }
        Ok(freed)
    }

    /// Removes the model from the cache, with all its revisions. Refused while a download is under way.
    pub fn remove(&self) -> Result<(), HubError> {
        for entry in entries(&self.locks) {
            if open_regular(entry.path()).is_ok_and(|lock| !lock_alone(&lock)) {
                return Err(HubError::InUse { dir: self.dir.clone() });
            }
        }
        remove(&self.dir)?;
        remove(&self.locks)
    }
}

/// Device and number of a file. Where there are no symbolic links, blobs and files of snapshots are
/// the same by hard links.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let identity = FileIdentity::at(path).ok()?;
    Some((identity.device, identity.index))
}

/// Entries of a directory; none if it cannot be read.
pub(crate) fn entries(dir: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    dir.read_dir().into_iter().flatten().flatten()
}

/// Names in a directory, except those that are not UTF-8.
pub(crate) fn names_in(dir: &Path) -> impl Iterator<Item = String> + use<> {
    entries(dir).filter_map(|entry| entry.file_name().into_string().ok())
}

/// Removes a directory. Of a link, removes only the link. Succeeds if nothing exists.
pub(crate) fn remove(dir: &Path) -> Result<(), HubError> {
    let removed = match dir.symlink_metadata() {
        Ok(there) if there.is_dir() => std::fs::remove_dir_all(dir),
        Ok(_) => std::fs::remove_file(dir),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(HubError::write(dir, e)),
        _ => Ok(()),
    }
}

/// Bytes of the files below a directory. Links do not count.
pub(crate) fn tree_size(dir: &Path) -> u64 {
    let mut ahead = vec![dir.to_owned()];
    let mut sum: u64 = 0;
    while let Some(dir) = ahead.pop() {
        for entry in entries(&dir) {
            match entry.metadata() {
                Ok(about) if about.is_dir() => ahead.push(entry.path()),
                Ok(about) if about.is_file() => sum = sum.saturating_add(about.len()),
                _ => {}
            }
        }
    }
    sum
}

/// Files of a snapshot and its folders, with their names in the repository.
pub fn snapshot_files(dir: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in entries(dir) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !entry.path().is_dir() {
            names.push(name);
            continue;
        }
        names.extend(names_in(&entry.path()).map(|below| format!("{name}/{below}")));
    }
    names.sort();
    names
}

/// A path without links; as it is, if it does not exist.
pub(crate) fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Writes a file, which gets its name once its bytes are on the disk.
pub(crate) fn write_by(fresh: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    // Some file systems do not rename a file that is open.
    drop(file);
    std::fs::rename(fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    const OTHER: &str = "1123456789abcdef0123456789abcdef01234567";

    #[test]
    fn snapshots_are_links_to_blobs() {
        let dir = tempfile::tempdir().unwrap();
        let cache = HubCache::new(dir.path());
        let id: ModelId = "own/model".parse().unwrap();
        let model = cache.model(&id);
        let lock = model.lock("abc", || panic!("nobody else")).unwrap();
        std::fs::write(model.blob("abc"), b"bytes").unwrap();
        model.link(COMMIT, "config.json", "abc").unwrap();
        model.link(COMMIT, "sub/config.json", "abc").unwrap();
        model.link(COMMIT, "config.json", "abc").unwrap();
        drop(lock);
        let snapshot = dir.path().join("models--own--model/snapshots").join(COMMIT);
        for name in ["config.json", "sub/config.json"] {
            assert_eq!(std::fs::read(snapshot.join(name)).unwrap(), b"bytes");
        }
        let link = std::fs::read_link(snapshot.join("config.json")).unwrap();
        assert_eq!(link, Path::new("../../blobs/abc"), "as Python writes them");

        assert_eq!(cache.models(), [id]);
        assert_eq!(model.size(), 5);
        model.remove().unwrap();
        model.remove().unwrap();
        assert!(cache.models().is_empty());
    }

    #[test]
    fn removed_files_keep_what_others_share() {
        let dir = tempfile::tempdir().unwrap();
        let model = HubCache::new(dir.path()).model(&"a/b".parse().unwrap());
        std::fs::create_dir_all(model.dir().join("blobs")).unwrap();
        for blob in ["one", "two"] {
            std::fs::write(model.blob(blob), blob).unwrap();
        }
        model.link(COMMIT, "x.gguf", "one").unwrap();
        model.link(COMMIT, "sub/y.gguf", "two").unwrap();
        model.link(OTHER, "x.gguf", "one").unwrap();
        let snapshot = model.at(COMMIT);
        let foreign = dir.path().join("foreign");
        std::fs::write(&foreign, "precious").unwrap();
        symlink(&foreign, snapshot.join("z.gguf")).unwrap();
        assert_eq!(model.remove_files(&snapshot, &["z.gguf"]).unwrap(), 0);
        assert!(foreign.exists());
        assert_eq!(snapshot_files(&snapshot), ["sub/y.gguf", "x.gguf"]);
        assert_eq!(model.remove_files(&snapshot, &["x.gguf", "sub/y.gguf"]).unwrap(), 3);
        assert!(model.blob("one").exists() && !model.blob("two").exists());
        assert!(snapshot_files(&snapshot).is_empty());
        assert_eq!(snapshot_files(&model.at(OTHER)), ["x.gguf"]);
    }

    #[test]
    fn names_never_lead_out_of_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let model = HubCache::new(dir.path()).model(&"a/b".parse().unwrap());
        for (commit, name, etag) in
            [(COMMIT, "../x", "e"), (COMMIT, "/x", "e"), (COMMIT, "x", "../e"), ("..", "x", "e")]
        {
            model.link(commit, name, etag).unwrap_err();
        }
        model.point("../../x", COMMIT).unwrap();
        assert!(dir.path().read_dir().unwrap().next().is_none(), "nothing was written");
    }

    #[test]
    fn a_second_process_waits() {
        let dir = tempfile::tempdir().unwrap();
        let model = HubCache::new(dir.path()).model(&"a/b".parse().unwrap());
        let first = model.lock("e", || ()).unwrap();
        let (waiting, waits) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| model.lock("e", move || waiting.send(()).unwrap()));
            waits.recv().unwrap();
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap().unwrap();
        });
    }
}
