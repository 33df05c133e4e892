//! Download of whole files, several at a time: into the cache, or into a directory.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use sws_store::open_regular;

use crate::arriving::fetch;
use crate::download::{Watch, sha256};
use crate::{CachedModel, Client, HubError, HubFile, Listing};

/// Files to download.
pub struct Job<'a> {
    /// The client.
    pub client: &'a Client,
    /// The repository.
    pub listing: &'a Listing,
    /// The files.
    pub files: &'a [HubFile],
    /// Files to download at a time.
    pub parallel: usize,
    /// The observer, which is also told of bytes that are there already.
    pub watch: &'a dyn Watch,
}

/// Downloads files into the cache, in the layout that Python's `huggingface_hub` shares. `revision`
/// is recorded as the name of the commit once all are there.
pub fn keep(job: &Job, cached: &CachedModel, revision: &str) -> Result<(), HubError> {
    let commit = &job.listing.commit;
    job.each(&|file, watch| {
        let blob = cached.blob(&file.etag);
        let _lock = cached.lock(&file.etag, || watch.waiting(&file.name))?;
        if is_there(&blob, file) {
            watch.moved(file.len as i64);
        } else {
            fetch(job.client, job.listing, file, &blob, watch)?;
        }
        cached.link(commit, &file.name, &file.etag)
    })?;
    cached.point(revision, commit)
}

/// Downloads files into a directory, without the folders of the repository. Refuses to replace other
/// files of these names.
pub fn save(job: &Job, dir: &Path) -> Result<(), HubError> {
    std::fs::create_dir_all(dir).map_err(|e| HubError::write(dir, e))?;
    job.each(&|file, watch| {
        let path = dir.join(file.name.rsplit('/').next().unwrap_or(&file.name));
        if path.symlink_metadata().is_err() {
            return fetch(job.client, job.listing, file, &path, watch);
        }
        if is_there(&path, file) && is_same(job, file, &path)? {
            watch.moved(file.len as i64);
            return Ok(());
        }
        let what = format!("another `{}`", file.name);
        Err(HubError::Foreign { dir: dir.to_owned(), what })
    })
}

/// True if a file has the bytes that the hub lists, or has.
fn is_same(job: &Job, file: &HubFile, path: &Path) -> Result<bool, HubError> {
    let opened = || open_regular(path).map_err(|e| HubError::read(path, e));
    if file.hashed {
        return Ok(sha256(opened()?).map_err(|e| HubError::read(path, e))? == file.etag);
    }
    let published = job.client.read(job.listing, file)?;
    let mut found = Vec::new();
    let read = opened()?.take(file.len + 1).read_to_end(&mut found);
    read.map_err(|e| HubError::read(path, e))?;
    Ok(found == published)
}

fn is_there(path: &Path, file: &HubFile) -> bool {
    path.metadata().is_ok_and(|about| about.is_file() && about.len() == file.len)
}

impl Job<'_> {
    /// Does the same with each file, several at a time. The first error stops all of them.
    fn each(
        &self,
        work: &(dyn Fn(&HubFile, &dyn Watch) -> Result<(), HubError> + Sync),
    ) -> Result<(), HubError> {
        let next = AtomicUsize::new(0);
        let watch = Stoppable { inner: self.watch, stop: AtomicBool::new(false) };
        let run = || -> Result<(), HubError> {
            while !watch.stopped() {
                let Some(file) = self.files.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    break;
                };
                work(file, &watch).inspect_err(|_| watch.stop.store(true, Ordering::Relaxed))?;
            }
            Ok(())
        };
        let results: Vec<Result<(), HubError>> = std::thread::scope(|scope| {
            let count = self.parallel.clamp(1, self.files.len().max(1));
            let threads: Vec<_> = (1..count).map(|_| scope.spawn(run)).collect();
            let mine = run();
            let others = threads.into_iter().map(|thread| thread.join());
            let others = others.map(|done| done.unwrap_or_else(|e| std::panic::resume_unwind(e)));
            std::iter::once(mine).chain(others).collect()
        });
        // The error that stopped the others, rather than theirs.
        let mut errors: Vec<HubError> = results.into_iter().filter_map(Result::err).collect();
        let cause = errors.iter().position(|error| !matches!(error, HubError::Stopped));
        match cause {
            Some(index) => Err(errors.swap_remove(index)),
            None if self.watch.stopped() => Err(HubError::Stopped),
            None => Ok(()),
        }
    }
}

/// Observer that can stop all downloads of a job.
struct Stoppable<'a> {
    inner: &'a dyn Watch,
    stop: AtomicBool,
}

impl Watch for Stoppable<'_> {
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
