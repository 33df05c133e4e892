//! Download of whole files, several at a time, into the cache or into a directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sws_format::open_regular;
use tracing::info;

use crate::arriving::fetch;
use crate::digest::matches;
use crate::download::DownloadWatch;
use crate::name::is_hex;
use crate::{CachedModel, Client, HubError, HubFile, Listing, gguf_models, snapshot_files};

/// Number of hexadecimal digits of a SHA-256, and of a git object id.
const SHA256: usize = 64;
const GIT: usize = 40;

/// Files to download.
pub struct DownloadJob<'a> {
    /// The client.
    pub client: &'a Client,
    /// The repository.
    pub listing: &'a Listing,
    /// The files.
    pub files: &'a [HubFile],
    /// Number of files to download at a time.
    pub parallel: usize,
    /// The observer, which also gets the bytes that exist already.
    pub watch: &'a dyn DownloadWatch,
}

/// Downloads files into the cache, in the layout that Python's `huggingface_hub` shares. Once all
/// files are there, `revision` is recorded as a name of the commit.
pub fn keep(job: &DownloadJob, cached: &CachedModel, revision: &str) -> Result<(), HubError> {
    let commit = &job.listing.commit;
    job.each(&|file, watch| {
        let blob = cached.blob(&file.etag);
        let _lock = cached.lock(&file.etag, || watch.waiting(&file.name))?;
        // Other programs write blobs, too.
        if !(is_there(&blob, file) && is_whole(file, &blob, watch)?) {
            fetch(job.client, job.listing, file, &blob, watch)?;
        }
        cached.link(commit, &file.name, &file.etag)
    })?;
    cached.point(revision, commit)
}

/// Downloads files into a directory, without the folders of the repository. Refuses to replace
/// other files with these names.
pub fn save(job: &DownloadJob, dir: &Path) -> Result<(), HubError> {
    std::fs::create_dir_all(dir).map_err(HubError::writing(dir))?;
    job.each(&|file, watch| {
        let path = dir.join(file.last_name());
        if path.symlink_metadata().is_err() {
            return fetch(job.client, job.listing, file, &path, watch);
        }
        if is_there(&path, file) && is_same(file, &path)? {
            watch.moved(file.len as i64);
            return Ok(());
        }
        let what = format!("another `{}`", file.name);
        Err(HubError::Foreign { dir: dir.to_owned(), what })
    })
}

/// True if a file has the bytes that the hub lists.
fn is_same(file: &HubFile, path: &Path) -> Result<bool, HubError> {
    let opened = open_regular(path).map_err(HubError::reading(path))?;
    matches(file, opened).map_err(HubError::reading(path))
}

/// True if a file has the hash that the hub lists. Its bytes are then reported to the observer.
fn is_whole(file: &HubFile, path: &Path, watch: &dyn DownloadWatch) -> Result<bool, HubError> {
    let opened = File::open(path).map_err(HubError::reading(path))?;
    let mut counted = Counted { inner: opened, watch, moved: 0 };
    let found = matches(file, &mut counted);
    let moved = counted.moved;
    let is_whole = match found {
        Ok(is_whole) => is_whole,
        Err(_) if watch.stopped() => return Err(HubError::Stopped),
        Err(e) => return Err(HubError::read(path, e)),
    };
    if !is_whole {
        watch.moved(-moved);
        info!("`{}` in the Hugging Face cache is damaged", file.name);
    }
    Ok(is_whole)
}

/// Reader that reports its bytes, and fails once it should stop.
struct Counted<'a> {
    inner: File,
    watch: &'a dyn DownloadWatch,
    moved: i64,
}

impl Read for Counted<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.watch.stopped() {
            return Err(io::Error::other("stopped"));
        }
        let read = self.inner.read(into)?;
        self.moved += read as i64;
        self.watch.moved(read as i64);
        Ok(read)
    }
}

/// Files of a model in the cache that are named by their hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HubBlobs {
    /// Path, hash and length of each.
    files: Vec<(PathBuf, String, u64)>,
}

impl HubBlobs {
    /// The files of a checkpoint's directory, or of a GGUF file with its parts. A model outside the
    /// cache has none.
    pub fn of(model: &Path) -> HubBlobs {
        let paths = match model.is_dir() {
            true => checkpoint_files(model),
            false => gguf_parts(model),
        };
        HubBlobs { files: paths.iter().filter_map(|path| blob_of(path)).collect() }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        let mut bytes: u64 = 0;
        for (.., len) in &self.files {
            bytes = bytes.saturating_add(*len);
        }
        bytes
    }

    /// Reads all files, and compares their hashes with their names.
    pub fn check(&self, watch: &dyn DownloadWatch) -> Result<(), HubError> {
        for (path, hash, len) in &self.files {
            let name = path.display().to_string();
            let len = *len;
            let hashed = hash.len() == SHA256;
            let file = HubFile { name, len, etag: hash.clone(), hashed };
            if !is_whole(&file, path, watch)? {
                return Err(HubError::DamagedBlob { path: path.clone() });
            }
        }
        Ok(())
    }
}

/// Extensions of the checkpoint files that are read.
const CHECKPOINT: [&str; 4] = ["safetensors", "json", "jinja", "model"];

/// The files of a checkpoint's directory that are read.
fn checkpoint_files(dir: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for name in snapshot_files(dir) {
        if !name.contains('/')
            && let Some(ending) = Path::new(&name).extension().and_then(OsStr::to_str)
            && CHECKPOINT.contains(&ending)
        {
            paths.push(dir.join(name));
        }
    }
    paths
}

/// The parts of a GGUF model, one of which is `model`.
fn gguf_parts(model: &Path) -> Vec<PathBuf> {
    let name = model.file_name().unwrap_or_default();
    let dir = model.parent().unwrap_or(Path::new(""));
    let names = snapshot_files(dir);
    for files in gguf_models(names.iter().map(String::as_str)).into_values() {
        if files.iter().any(|file| name == *file) {
            return files.into_iter().map(|file| dir.join(file)).collect();
        }
    }
    Vec::new()
}

/// Path, hash and length of the blob behind a path, if it is one.
fn blob_of(path: &Path) -> Option<(PathBuf, String, u64)> {
    let blob = path.canonicalize().ok()?;
    let hash = blob.file_name()?.to_str()?.to_owned();
    let is_blob =
        blob.parent()?.file_name()? == "blobs" && (is_hex(&hash, SHA256) || is_hex(&hash, GIT));
    let len = blob.metadata().ok()?.len();
    is_blob.then_some((blob, hash, len))
}

/// True if a file has the length that the hub lists.
pub(crate) fn is_there(path: &Path, file: &HubFile) -> bool {
    path.metadata().is_ok_and(|about| about.is_file() && about.len() == file.len)
}

impl DownloadJob<'_> {
    /// Calls a function for each file, several at a time. The first error stops all of them.
    fn each(
        &self,
        work: &(dyn Fn(&HubFile, &dyn DownloadWatch) -> Result<(), HubError> + Sync),
    ) -> Result<(), HubError> {
        let next = AtomicUsize::new(0);
        let watch = Stoppable { inner: self.watch, stop: AtomicBool::new(false) };
        let run = || -> Result<(), HubError> {
            while !watch.stopped() {
                let Some(file) = self.files.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    break;
                };
                if let Err(error) = work(file, &watch) {
                    watch.stop.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
            Ok(())
        };
        let results = on_threads(self.parallel.clamp(1, self.files.len().max(1)), run);
        // The original error is returned, rather than those of the stopped downloads.
        let mut errors: Vec<HubError> = results.into_iter().filter_map(Result::err).collect();
        let cause = errors.iter().position(|error| !matches!(error, HubError::Stopped));
        match cause {
            Some(index) => Err(errors.swap_remove(index)),
            None if self.watch.stopped() => Err(HubError::Stopped),
            None => Ok(()),
        }
    }
}

/// Calls a function on so many threads at a time, one of which is this one. Returns all results, its
/// own first.
pub(crate) fn on_threads<T: Send>(count: usize, work: impl Fn() -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 1..count {
            threads.push(scope.spawn(&work));
        }
        let mut results = vec![work()];
        for thread in threads {
            match thread.join() {
                Ok(result) => results.push(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    })
}

/// Observer that can stop all downloads of a job.
struct Stoppable<'a> {
    inner: &'a dyn DownloadWatch,
    stop: AtomicBool,
}

impl DownloadWatch for Stoppable<'_> {
    fn moved(&self, bytes: i64) {
        self.inner.moved(bytes);
    }

    fn waiting(&self, file: &str) {
        self.inner.waiting(file);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.inner.stopped()
    }
}

#[cfg(test)]
mod tests {
    use sws_os::open::symlink;

    use super::*;
    use crate::digest::Digest;

    struct Unwatched;

    impl DownloadWatch for Unwatched {
        fn moved(&self, _: i64) {}
    }

    #[test]
    fn blobs_are_compared_with_their_names() {
        let temp = tempfile::tempdir().unwrap();
        let blobs = temp.path().join("blobs");
        let snapshot = temp.path().join("snapshots/1");
        for dir in [&blobs, &snapshot.join("sub")] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let link = |name: &str, hash: &str, bytes: &[u8]| {
            std::fs::write(blobs.join(hash), bytes).unwrap();
            symlink(blobs.join(hash), snapshot.join(name)).unwrap();
        };
        let hash_as = |bytes: &[u8], hashed| {
            let name = String::new();
            let len = bytes.len() as u64;
            let etag = String::new();
            let mut hash = Digest::of(&HubFile { name, len, etag, hashed });
            hash.update(bytes);
            hash.hex()
        };
        let hash = |bytes: &[u8]| hash_as(bytes, true);
        link("model.safetensors", &hash(b"weights"), b"weights");
        link("config.json", &hash_as(b"small", false), b"small");
        std::fs::write(snapshot.join("tokenizer.json"), b"no blob").unwrap();
        link("sub/model.safetensors", &"1".repeat(64), b"of another program");
        link("a-00001-of-00002.gguf", &hash(b"first"), b"first");
        link("a-00002-of-00002.gguf", &"2".repeat(64), b"second");
        link("b.gguf", &"3".repeat(64), b"other");

        let checkpoint = HubBlobs::of(&snapshot);
        assert_eq!((checkpoint.files.len(), checkpoint.bytes()), (2, 12));
        checkpoint.check(&Unwatched).unwrap();
        let split = HubBlobs::of(&snapshot.join("a-00001-of-00002.gguf"));
        assert_eq!(split.bytes(), 11);
        let error = split.check(&Unwatched).unwrap_err().to_string();
        assert!(error.contains(&"2".repeat(64)) && error.contains("remove it"), "{error}");
        assert_eq!(HubBlobs::of(&temp.path().join("none")), HubBlobs::default());

        std::fs::write(blobs.join(hash(b"weights")), b"w3ights").unwrap();
        assert!(matches!(checkpoint.check(&Unwatched), Err(HubError::DamagedBlob { .. })));
        std::fs::write(blobs.join(hash(b"weights")), b"weights").unwrap();
        std::fs::write(blobs.join(hash_as(b"small", false)), b"smaLl").unwrap();
        assert!(matches!(checkpoint.check(&Unwatched), Err(HubError::DamagedBlob { .. })));
    }
}
