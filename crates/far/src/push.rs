//! Uploads a directory of shards to object storage.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ring::digest::{Context, SHA256};
use sws_format::{
    LEARNED_FILE, MANIFEST_FILE, MAX_LEARNED_BYTES, MAX_MANIFEST_BYTES, Manifest, Progress,
    open_regular,
};
use sws_hub::http::{ATTEMPTS, ByteRange, HttpFailure, text};
use sws_os::file::read_exact_at;
use sws_shard::verify_files;
use tracing::info;
use ureq::http::{StatusCode, header};

use crate::key::{finished, sha256};
use crate::{FarError, FarOrigin};

/// Number of files uploaded at a time.
const FILES: usize = 4;
/// Maximum bytes of a file that a bucket accepts in one request.
const LONGEST: u64 = 5 << 30;
const BUFFER: usize = 256 << 10;
/// Number of bytes at the end of a file that are read back. With the length, they show cheaply
/// whether the file was stored.
const END: u64 = 64 << 10;

/// An upload to object storage.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// Directory of the shards.
    pub dir: &'a Path,
    /// Directories with copies of them, whole or partial, whose sound files take the place of damaged
    /// ones.
    pub copies: &'a [PathBuf],
    /// A file with the usage statistics [learned](LEARNED_FILE) by runs of the model. It is
    /// uploaded even if the shards exist already.
    pub learned: Option<&'a Path>,
    /// Destination.
    pub to: &'a FarOrigin,
    /// True to upload shards that exist already, as they may have been damaged.
    pub again: bool,
}

/// Progress of [`push`].
#[derive(Clone, Copy, Debug)]
pub enum PushStep {
    /// The shards on this machine are being verified.
    Verified(Progress),
    /// A file of this many bytes was uploaded.
    Moved(u64),
}

/// Result of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Number of files, the manifest included.
    pub files: usize,
    /// Bytes of these files.
    pub bytes: u64,
    /// True if the shards existed already.
    pub there: bool,
    /// Files of copies that took the place of damaged ones.
    pub from_copies: Vec<PathBuf>,
}

/// A file to upload.
struct PushFile {
    name: String,
    path: PathBuf,
    len: u64,
}

/// Uploads the shards of a directory to an address, unless any file of them is damaged there and in
/// all copies. The manifest is uploaded last, so that incomplete shards are never taken for complete ones.
pub fn push(what: &Push<'_>, report: &(dyn Fn(PushStep) + Sync)) -> Result<Pushed, FarError> {
    let &Push { dir, copies, learned, to, again } = what;
    let moved = &|bytes| report(PushStep::Moved(bytes));
    let manifest = Manifest::load(dir)?;
    let path = dir.join(MANIFEST_FILE);
    let mut json = Vec::new();
    let file = open_regular(&path).map_err(FarError::reading(&path))?;
    file.take(MAX_MANIFEST_BYTES).read_to_end(&mut json).map_err(FarError::reading(&path))?;
    let learned = learned.map(learned_job).transpose()?;
    let mut jobs = jobs(dir, &manifest)?;
    let bytes = jobs.iter().map(|job| job.len).sum::<u64>() + json.len() as u64;
    let pushed = Pushed { files: jobs.len() + 1, bytes, there: false, from_copies: Vec::new() };
    match to.read(MANIFEST_FILE, MAX_MANIFEST_BYTES, None) {
        Ok(Some((there, _))) if there == json && again => {}
        Ok(Some((there, _))) if there == json => {
            if let Some(learned) = learned {
                learned.send(to, moved)?;
            }
            return Ok(Pushed { there: true, ..pushed });
        }
        Ok(_) => return Err(FarError::Occupied { address: to.address().to_string() }),
        Err(FarError::NoManifest { .. }) => {}
        // A bucket that may be written but not listed denies access to missing files.
        Err(FarError::Refused { status: 403, code, .. }) if code == "AccessDenied" => {}
        Err(error) => return Err(error),
    }
    let verifying = &|progress| report(PushStep::Verified(progress));
    let from_copies = mend(&mut jobs, &manifest, (dir, copies), verifying)?;
    jobs.extend(learned);
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..FILES.min(jobs.len()) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed)
                    && let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Err(error) = job.send(to, moved) {
                        stop.store(true, Ordering::Relaxed);
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let len = json.len() as u64;
    let hash = sha256(&json);
    let end = &json[json.len().saturating_sub(END as usize)..];
    put(to, &What { name: MANIFEST_FILE, len, hash: &hash, end }, moved, &|| {
        Ok(Box::new(std::io::Cursor::new(json.clone())) as Box<dyn Read>)
    })?;
    Ok(Pushed { from_copies, ..pushed })
}

/// Verifies the files of a directory, and takes those that are damaged from copies. Returns those of
/// the copies.
fn mend(
    jobs: &mut [PushFile],
    manifest: &Manifest,
    (dir, copies): (&Path, &[PathBuf]),
    verifying: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<PathBuf>, FarError> {
    let verified = verify_files(manifest, dir, &|_| true, verifying)?;
    let mut damaged = BTreeMap::new();
    for damage in verified.damage {
        damaged.entry(damage.file).or_insert(damage.what);
    }
    let mut taken = Vec::new();
    for copy in copies {
        if damaged.is_empty() {
            break;
        }
        let found = verify_files(manifest, copy, &|name| damaged.contains_key(name), verifying);
        let bad: BTreeSet<String> = match found {
            Ok(verified) => verified.damage.into_iter().map(|damage| damage.file).collect(),
            Err(error) => {
                info!("the copy in `{}` is left out: {error}", copy.display());
                continue;
            }
        };
        for job in &mut *jobs {
            if damaged.contains_key(&job.name) && !bad.contains(&job.name) {
                job.path = copy.join(&job.name);
                taken.push(job.path.clone());
                damaged.remove(&job.name);
            }
        }
    }
    match damaged.pop_first() {
        Some((name, what)) => Err(FarError::DamagedHere { path: dir.join(name), what }),
        None => Ok(taken),
    }
}

fn learned_job(path: &Path) -> Result<PushFile, FarError> {
    let file = open_regular(path).map_err(FarError::reading(path))?;
    let len = file.metadata().map_err(FarError::reading(path))?.len().min(MAX_LEARNED_BYTES);
    Ok(PushFile { name: LEARNED_FILE.to_owned(), path: path.to_owned(), len })
}

/// The files that a manifest lists.
fn jobs(dir: &Path, manifest: &Manifest) -> Result<Vec<PushFile>, FarError> {
    let mut jobs = Vec::new();
    for copy in &manifest.copies {
        let path = dir.join(&copy.path);
        jobs.push(PushFile { name: copy.path.clone(), len: copy.len, path });
    }
    for file in &manifest.files {
        let path = dir.join(&file.path);
        if file.len > LONGEST {
            return Err(FarError::TooLong { path });
        }
        jobs.push(PushFile { name: file.path.clone(), len: file.len, path });
    }
    Ok(jobs)
}

impl PushFile {
    fn send(&self, to: &FarOrigin, moved: &(dyn Fn(u64) + Sync)) -> Result<(), FarError> {
        let file = open_regular(&self.path).map_err(FarError::reading(&self.path))?;
        let mut file = file.take(self.len);
        let mut hash = Context::new(&SHA256);
        let mut buffer = vec![0; BUFFER];
        loop {
            match file.read(&mut buffer).map_err(FarError::reading(&self.path))? {
                0 => break,
                read => hash.update(&buffer[..read]),
            }
        }
        let hash = finished(hash.finish());
        let mut end = vec![0; self.len.min(END) as usize];
        let at = self.len - end.len() as u64;
        read_exact_at(&file.into_inner(), &mut end, at).map_err(FarError::reading(&self.path))?;
        let what = What { name: &self.name, len: self.len, hash: &hash, end: &end };
        put(to, &what, moved, &|| {
            let file = open_regular(&self.path).map_err(FarError::reading(&self.path))?;
            Ok(Box::new(file.take(self.len)) as Box<dyn Read>)
        })
    }
}

/// A file to upload: its SHA-256, and the bytes at its end.
struct What<'a> {
    name: &'a str,
    len: u64,
    hash: &'a str,
    end: &'a [u8],
}

/// Uploads a file until it succeeds or fails permanently. Repeats it once if the server stored
/// something else.
fn put(
    to: &FarOrigin,
    what: &What<'_>,
    moved: &(dyn Fn(u64) + Sync),
    open: &dyn Fn() -> Result<Box<dyn Read>, FarError>,
) -> Result<(), FarError> {
    for _ in 0..2 {
        send(to, what, open)?;
        if is_kept(to, what) {
            moved(what.len);
            return Ok(());
        }
        info!("{} has other bytes than those that were sent", to.render(what.name));
    }
    Err(FarError::NotKept { url: to.render(what.name) })
}

/// False if the server returns another length or other last bytes. True if it permits no reading.
fn is_kept(to: &FarOrigin, what: &What<'_>) -> bool {
    let &What { name, len, end, .. } = what;
    let first = len - end.len() as u64;
    let kept = to.http().attempted(ATTEMPTS, &mut |_| {
        let mut reply = to.get(name, Some(ByteRange(first, Some(len.saturating_sub(1)))), None)?;
        let total = match reply.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = text(reply.headers(), header::CONTENT_RANGE.as_str());
                range.and_then(|range| range.rsplit('/').next())
            }
            _ => text(reply.headers(), header::CONTENT_LENGTH.as_str()),
        };
        let has_length = total.and_then(|total| total.parse().ok()).is_none_or(|it: u64| it == len);
        if !has_length || (reply.status() != StatusCode::PARTIAL_CONTENT && first > 0) {
            return Ok(has_length);
        }
        let mut bytes = Vec::new();
        let body = to.http().body(&mut reply);
        let read = body.take(end.len() as u64 + 1).read_to_end(&mut bytes);
        to.count(bytes.len());
        match read {
            Ok(_) => Ok(bytes == end),
            Err(e) => Err(HttpFailure::Connection { url: to.render(name), reason: e.to_string() }),
        }
    });
    match kept {
        Ok(kept) => kept,
        Err(HttpFailure::Status { status: 416, .. }) => len == 0,
        Err(HttpFailure::Status { status: 404 | 410, .. }) => false,
        Err(failure) => {
            info!("{} does not tell what it has: {}", to.render(name), failure.reason());
            true
        }
    }
}

/// Sends a file until the server has accepted it, or fails permanently.
fn send(
    to: &FarOrigin,
    what: &What<'_>,
    open: &dyn Fn() -> Result<Box<dyn Read>, FarError>,
) -> Result<(), FarError> {
    let &What { name, len, hash, .. } = what;
    let mut unread = None;
    let sent = to.http().attempted(ATTEMPTS, &mut |_| {
        let mut body = || match open() {
            Ok(body) => Ok(body),
            Err(error) => {
                unread = Some(error);
                let reason = "the file cannot be read".to_owned();
                Err(HttpFailure::Answer { url: to.render(name), reason })
            }
        };
        to.put(name, len, hash, &mut body)
    });
    match (sent, unread) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(error)) => Err(error),
        (Err(HttpFailure::Status { url, status: status @ (404 | 405 | 501), code, .. }), None)
            if code != "NoSuchBucket" =>
        {
            Err(FarError::NotTaken { url, status })
        }
        (Err(failure), None) => Err(to.explained(failure, name)),
    }
}
