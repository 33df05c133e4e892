//! Uploads a directory of shards to object storage.

mod upload;

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use ring::digest::{Context, SHA256};
use sws_format::{
    LEARNED_FILE, MANIFEST_FILE, MAX_LEARNED_BYTES, MAX_MANIFEST_BYTES, Manifest, Progress,
    open_regular,
};
use sws_shard::{VerifyOptions, verify_files};

use crate::key::{finished, sha256};
use crate::{FarError, FarOrigin};
use upload::{UploadedFile, upload};

/// Number of files uploaded at a time.
const FILES: usize = 4;
/// Maximum bytes of a file that a bucket accepts in one request.
const LONGEST: u64 = 5 << 30;

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
pub enum PushStep<'a> {
    /// The shards on this machine are being verified.
    Verified(Progress),
    /// A copy cannot serve files that are damaged in the directory.
    Unserved {
        /// The first of these files.
        path: &'a Path,
        /// A description of its damage, as the end of a sentence that begins with it.
        what: &'a str,
        /// Number of further ones.
        more: usize,
    },
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
    /// The SHA-256 of the bytes that were verified; `None` before that.
    hash: Option<String>,
}

/// Uploads the shards of a directory to an address, unless any file of them is damaged there and in
/// all copies. The bytes sent are those that were verified. The manifest is uploaded last, so that incomplete shards
/// are never taken for complete ones.
pub fn push(what: &Push<'_>, report: &(dyn Fn(PushStep<'_>) + Sync)) -> Result<Pushed, FarError> {
    let &Push { dir, copies, learned, to, again } = what;
    let moved = &|bytes| report(PushStep::Moved(bytes));
    let (manifest, json) = Manifest::read_with_json(dir)?;
    // Copies may serve what is absent.
    if copies.is_empty() {
        manifest.check_disk(dir)?;
    }
    let learned = learned.map(|path| Ok::<_, FarError>((path, read_learned(path)?))).transpose()?;
    let send_learned = || match &learned {
        Some((path, bytes)) => upload_bytes(to, LEARNED_FILE, path, bytes, moved),
        None => Ok(()),
    };
    let mut jobs = jobs(dir, &manifest)?;
    let bytes = jobs.iter().map(|job| job.len).sum::<u64>() + json.len() as u64;
    let pushed = Pushed { files: jobs.len() + 1, bytes, there: false, from_copies: Vec::new() };
    match to.read(MANIFEST_FILE, MAX_MANIFEST_BYTES, None) {
        Ok(Some((there, _))) if there == json && again => {}
        Ok(Some((there, _))) if there == json => {
            send_learned()?;
            return Ok(Pushed { there: true, ..pushed });
        }
        Ok(_) => return Err(FarError::Occupied { address: to.address().to_string() }),
        Err(FarError::NoManifest { .. }) => {}
        // A bucket that may be written but not listed denies access to missing files.
        Err(FarError::Refused { status: 403, code, .. }) if code == "AccessDenied" => {}
        Err(error) => return Err(error),
    }
    let from_copies = verify(&mut jobs, &manifest, (dir, copies), report)?;
    upload_all(&jobs, to, moved)?;
    send_learned()?;
    upload_bytes(to, MANIFEST_FILE, &dir.join(MANIFEST_FILE), &json, moved)?;
    Ok(Pushed { from_copies, ..pushed })
}

/// Verifies the files of a directory, and takes those that are damaged or cannot be read from copies. Returns those
/// of the copies.
fn verify(
    jobs: &mut [PushFile],
    manifest: &Manifest,
    (dir, copies): (&Path, &[PathBuf]),
    report: &(dyn Fn(PushStep<'_>) + Sync),
) -> Result<Vec<PathBuf>, FarError> {
    let refused_is_damage = !copies.is_empty();
    let own = Found::in_dir(manifest, dir, &|_| true, refused_is_damage, report)?;
    let mut damaged = own.settle(jobs, dir);
    let mut taken = Vec::new();
    for copy in copies {
        if damaged.is_empty() {
            break;
        }
        let wanted = |name: &str| damaged.contains_key(name);
        let found = Found::in_dir(manifest, copy, &wanted, refused_is_damage, report)?;
        let unserved = found.settle(jobs, copy);
        if let Some((name, what)) = unserved.first_key_value() {
            let (path, more) = (copy.join(name), unserved.len() - 1);
            report(PushStep::Unserved { path: &path, what, more });
        }
        damaged.retain(|name, _| {
            let is_damaged = unserved.contains_key(name);
            if !is_damaged {
                taken.push(copy.join(name));
            }
            is_damaged
        });
    }
    match damaged.pop_first() {
        Some((name, what)) => Err(FarError::DamagedHere { path: dir.join(name), what }),
        None => Ok(taken),
    }
}

/// The files that were read in a directory.
struct Found {
    /// The SHA-256 of each file.
    hashes: HashMap<String, String>,
    /// The first damage of each damaged one.
    damage: HashMap<String, String>,
}

impl Found {
    /// Reads and verifies the files of a directory that are wanted.
    fn in_dir(
        manifest: &Manifest,
        dir: &Path,
        wanted: &dyn Fn(&str) -> bool,
        refused_is_damage: bool,
        report: &(dyn Fn(PushStep<'_>) + Sync),
    ) -> Result<Found, FarError> {
        let reading: Mutex<HashMap<String, Context>> = Mutex::default();
        let read = |name: &str, bytes: &[u8]| {
            let lock = || reading.lock().unwrap_or_else(PoisonError::into_inner);
            let known = lock().remove(name);
            let mut hash = known.unwrap_or_else(|| Context::new(&SHA256));
            hash.update(bytes);
            lock().insert(name.to_owned(), hash);
        };
        let options = VerifyOptions { wanted, read: &read, refused_is_damage };
        let verifying = &|progress| report(PushStep::Verified(progress));
        let verified = verify_files(manifest, dir, &options, verifying)?;
        let mut damage = HashMap::new();
        for found in verified.damage {
            damage.entry(found.file).or_insert(found.what);
        }
        let mut hashes = HashMap::new();
        for (name, hash) in reading.into_inner().unwrap_or_else(PoisonError::into_inner) {
            hashes.insert(name, finished(hash.finish()));
        }
        Ok(Found { hashes, damage })
    }

    /// Gives the sound files to the jobs that have none yet. Returns the names of the others, and what is wrong with
    /// each.
    fn settle(mut self, jobs: &mut [PushFile], dir: &Path) -> BTreeMap<String, String> {
        let mut left = BTreeMap::new();
        for job in jobs.iter_mut().filter(|job| job.hash.is_none()) {
            match (self.damage.remove(&job.name), self.hashes.remove(&job.name)) {
                (None, Some(hash)) => {
                    job.path = dir.join(&job.name);
                    job.hash = Some(hash);
                }
                (what, _) => {
                    let what = what.unwrap_or_else(|| "has no checksum in the manifest".to_owned());
                    left.insert(job.name.clone(), what);
                }
            }
        }
        left
    }
}

/// The files that a manifest lists.
fn jobs(dir: &Path, manifest: &Manifest) -> Result<Vec<PushFile>, FarError> {
    let mut jobs = Vec::new();
    for copy in &manifest.copies {
        let path = dir.join(&copy.path);
        jobs.push(PushFile { name: copy.path.clone(), len: copy.len, path, hash: None });
    }
    for file in &manifest.files {
        let path = dir.join(&file.path);
        if file.len > LONGEST {
            return Err(FarError::TooLong { path });
        }
        jobs.push(PushFile { name: file.path.clone(), len: file.len, path, hash: None });
    }
    Ok(jobs)
}

/// Uploads verified files, several at a time.
fn upload_all(
    jobs: &[PushFile],
    to: &FarOrigin,
    moved: &(dyn Fn(u64) + Sync),
) -> Result<(), FarError> {
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
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

impl PushFile {
    fn send(&self, to: &FarOrigin, moved: &(dyn Fn(u64) + Sync)) -> Result<(), FarError> {
        let PushFile { name, path, len, hash } = self;
        let hash = hash.as_deref().unwrap_or("");
        upload(to, &UploadedFile { name, path, len: *len, hash }, moved, &|| {
            Ok(Box::new(open_regular(path)?.take(*len)))
        })
    }
}

/// Reads what was learned of a model, at most as much as is accepted of it there.
fn read_learned(path: &Path) -> Result<Vec<u8>, FarError> {
    let mut bytes = Vec::new();
    let file = open_regular(path).map_err(FarError::reading(path))?;
    file.take(MAX_LEARNED_BYTES).read_to_end(&mut bytes).map_err(FarError::reading(path))?;
    Ok(bytes)
}

/// Uploads a file that was read whole.
fn upload_bytes(
    to: &FarOrigin,
    name: &str,
    path: &Path,
    bytes: &[u8],
    moved: &(dyn Fn(u64) + Sync),
) -> Result<(), FarError> {
    let hash = &sha256(bytes);
    let len = bytes.len() as u64;
    upload(to, &UploadedFile { name, path, len, hash }, moved, &|| Ok(Box::new(bytes)))
}
