//! Verification: reads every byte of a shard directory and compares it with the manifest.

mod walk;

use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sws_format::{
    InvalidManifest, MANIFEST_FILE, Manifest, ManifestError, PieceId, Progress, Tensor,
    open_regular,
};
use sws_os::file::is_damage;

use super::direct::{SourceFile, buffer};
use super::{ShardError, copies, layout, reporter, start};
use walk::Walk;

/// Bytes per read.
pub(super) const STEP: usize = 4 << 20;
/// Number of files read at a time, which is also the queue depth of the device.
const READERS: usize = 4;

/// Result of [`verify`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// Number of shards checked.
    pub shards: usize,
    /// Bytes that the directory should have.
    pub bytes: u64,
    /// Damage found, in the order of the manifest.
    pub damage: Vec<Damage>,
}

/// A file that differs from the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file, relative to the directory.
    pub file: String,
    /// The piece stored in it, if it is a shard.
    pub piece: Option<PieceId>,
    /// Description of the damage, as the end of a sentence that begins with the file.
    pub what: String,
}

/// Options of [`verify_files`].
#[derive(Clone, Copy)]
pub struct VerifyOptions<'a> {
    /// Selects files by name.
    pub wanted: &'a dyn Fn(&str) -> bool,
    /// Gets the name and the bytes of each selected file, in order, on one of several threads.
    pub read: &'a (dyn Fn(&str, &[u8]) + Sync),
    /// True to count a file that the system refuses to read as damaged; false to fail.
    pub refused_is_damage: bool,
}

impl Default for VerifyOptions<'_> {
    fn default() -> Self {
        VerifyOptions { wanted: &|_| true, read: &|_, _| (), refused_is_damage: false }
    }
}

/// Verifies a shard directory: the manifest; the length, header, checksums and padding of every
/// shard; and the hash of every small file that was copied. No changed byte goes unnoticed.
///
/// Damage is part of the result. An error means that the directory could not be verified.
pub fn verify(dir: &Path, progress: &(dyn Fn(Progress) + Sync)) -> Result<Verified, ShardError> {
    let manifest = match Manifest::read(dir) {
        Ok(manifest) => manifest,
        Err(ManifestError::Invalid { reason, .. })
            if !matches!(reason, InvalidManifest::Version(_)) =>
        {
            let damage = Damage {
                file: MANIFEST_FILE.to_owned(),
                piece: None,
                what: format!("is damaged: {reason}"),
            };
            return Ok(Verified { shards: 0, bytes: 0, damage: vec![damage] });
        }
        Err(error) => return Err(error.into()),
    };
    verify_by(&manifest, dir, progress)
}

/// Verifies a shard directory by an existing manifest.
pub(super) fn verify_by(
    manifest: &Manifest,
    dir: &Path,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Verified, ShardError> {
    verify_files(manifest, dir, &VerifyOptions::default(), progress)
}

/// Like [`verify`], for some files of a directory, which may be a copy of the one that the manifest
/// is of.
pub fn verify_files(
    manifest: &Manifest,
    dir: &Path,
    options: &VerifyOptions<'_>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Verified, ShardError> {
    let &VerifyOptions { wanted, read, refused_is_damage } = options;
    let mut shards = shards(manifest);
    shards.retain(|shard| wanted(shard.path));
    let small = || manifest.copies.iter().filter(|copy| wanted(&copy.path));
    let lens = shards.iter().map(|shard| shard.len);
    let total = lens.chain(small().map(|copy| copy.len)).sum();
    let report = reporter(Progress { done: 0, total }, progress);
    report(0);
    let mut damage = Vec::new();
    for (index, what) in check(&shards, dir, &manifest.model.fingerprint, options, &report)? {
        let shard = &shards[index];
        damage.push(Damage { file: shard.path.to_owned(), piece: Some(shard.piece), what });
    }
    for copy in small() {
        match copy.read(dir) {
            Ok(bytes) => read(&copy.path, &bytes),
            Err(error) => {
                let what = copies::damage(error, refused_is_damage)?;
                damage.push(Damage { file: copy.path.clone(), piece: None, what });
            }
        }
        report(copy.len);
    }
    Ok(Verified { shards: shards.len(), bytes: total, damage })
}

/// Reads shards of a directory, several at a time. Returns the damage in the order of the shards,
/// each with the index of its shard. `report` gets numbers of bytes, whose sum is the length of all
/// shards.
pub(super) fn check(
    shards: &[Shard],
    dir: &Path,
    fingerprint: &str,
    options: &VerifyOptions<'_>,
    report: &(dyn Fn(u64) + Sync),
) -> Result<Vec<(usize, String)>, ShardError> {
    let &VerifyOptions { read, refused_is_damage, .. } = options;
    let check = ShardCheck {
        shards,
        dir,
        fingerprint,
        read,
        refused_is_damage,
        report,
        next: AtomicUsize::new(0),
        found: Mutex::default(),
        failure: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for _ in 0..READERS.min(shards.len()) {
            let started = start(scope, || {
                if let Err(error) = check.work() {
                    check.fail(error);
                }
            });
            if let Err(error) = started {
                check.fail(error);
            }
        }
    });
    if let Some(error) = check.failure.into_inner().expect("no holder panics") {
        return Err(error);
    }
    let mut found = check.found.into_inner().expect("no holder panics");
    // The sort is stable: damage within a shard stays in reading order.
    found.sort_by_key(|(index, _)| *index);
    Ok(found)
}

/// State shared by the threads of [`check`].
struct ShardCheck<'a> {
    shards: &'a [Shard<'a>],
    dir: &'a Path,
    fingerprint: &'a str,
    read: &'a (dyn Fn(&str, &[u8]) + Sync),
    refused_is_damage: bool,
    report: &'a (dyn Fn(u64) + Sync),
    /// Index of the next shard to check.
    next: AtomicUsize,
    /// Damage found, each with the index of its shard.
    found: Mutex<Vec<(usize, String)>>,
    /// The first error.
    failure: Mutex<Option<ShardError>>,
}

impl ShardCheck<'_> {
    /// Checks one shard after another until none is left.
    fn work(&self) -> Result<(), ShardError> {
        let mut buffer = buffer(SourceFile::room(STEP))?;
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(shard) = self.shards.get(index) else { return Ok(()) };
            let mut read = |bytes: &[u8]| {
                (self.read)(shard.path, bytes);
                Ok(())
            };
            let damage = match shard.check(
                self.dir,
                self.fingerprint,
                &mut buffer,
                self.report,
                &mut read,
            ) {
                Err(ShardError::Read { cause, .. }) if self.refused_is_damage => {
                    vec![unreadable(&cause)]
                }
                damage => damage?,
            };
            let mut found = self.found.lock().expect("no holder panics");
            for what in damage {
                found.push((index, what));
            }
        }
    }

    /// Keeps the first error, and lets the other threads stop.
    fn fail(&self, error: ShardError) {
        self.failure.lock().expect("no holder panics").get_or_insert(error);
        self.next.store(self.shards.len(), Ordering::Relaxed);
    }
}

/// Expected contents of a file.
#[derive(Clone, Copy)]
pub(super) struct Shard<'a> {
    /// File name, relative to the directory.
    pub(super) path: &'a str,
    pub(super) len: u64,
    pub(super) piece: PieceId,
    /// Offset of the first tensor.
    pub(super) data_start: u64,
    pub(super) tensors: &'a [Tensor],
}

/// The shards of a manifest. A piece without parts has no shard.
pub(super) fn shards(manifest: &Manifest) -> Vec<Shard<'_>> {
    let mut shards = Vec::with_capacity(manifest.files.len());
    for piece in &manifest.pieces {
        let stand_in = piece.stand_in.as_ref().map(|stand_in| &stand_in.tensors);
        for tensors in [&piece.tensors].into_iter().chain(stand_in) {
            let Some(first) = tensors.iter().flat_map(|tensor| &tensor.parts).next() else {
                continue;
            };
            let file = &manifest.files[first.file as usize];
            let path = &file.path;
            let len = file.len;
            let data_start = first.offset;
            shards.push(Shard { path, len, piece: piece.id, data_start, tensors });
        }
    }
    shards
}

impl Shard<'_> {
    /// Reads the shard in a directory and returns its damage. `each` gets its bytes, in order.
    pub(super) fn check(
        &self,
        dir: &Path,
        fingerprint: &str,
        buffer: &mut [u8],
        report: &dyn Fn(u64),
        each: &mut dyn FnMut(&[u8]) -> Result<(), ShardError>,
    ) -> Result<Vec<String>, ShardError> {
        let given_up = |what: String| {
            report(self.len);
            Ok(vec![what])
        };
        let path = dir.join(self.path);
        let metadata = match path.symlink_metadata() {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return given_up("is missing".to_owned());
            }
            Err(e) => return Err(ShardError::reading(&path)(e)),
        };
        if !metadata.is_file() {
            return given_up("is not a regular file".to_owned());
        }
        if let Some(what) = self.stranger(&path, fingerprint) {
            return given_up(what);
        }
        if metadata.len() != self.len {
            let found = metadata.len();
            let expected = self.len;
            return given_up(format!("has {found} bytes instead of {expected}"));
        }
        let header = match self.is_in_one_file() {
            true => {
                layout::header(self.piece, fingerprint, self.tensors, self.data_start, self.len)
            }
            false => None,
        };
        let Some(header) = header else {
            return given_up("cannot be laid out as the manifest says".to_owned());
        };
        let mut walk = Walk::new(self.tensors, &header, self.len);
        let source = match SourceFile::open(&path) {
            Ok(source) => source,
            Err(ShardError::Read { cause, .. }) if is_damage(&cause) => {
                return given_up(unreadable(&cause));
            }
            Err(error) => return Err(error),
        };
        let mut at = 0;
        while at < self.len {
            let n = (self.len - at).min(STEP as u64) as usize;
            match source.read(at, n, buffer) {
                Ok(range) => {
                    walk.feed(&buffer[range.clone()]);
                    each(&buffer[range])?;
                }
                Err(ShardError::Read { cause, .. }) if is_damage(&cause) => {
                    report(self.len - at);
                    walk.damage.push(unreadable(&cause));
                    return Ok(walk.damage);
                }
                Err(error) => return Err(error),
            }
            at += n as u64;
            report(n as u64);
        }
        Ok(walk.damage)
    }

    fn is_in_one_file(&self) -> bool {
        let mut files = self.tensors.iter().flat_map(|tensor| &tensor.parts).map(|part| part.file);
        let first = files.next();
        files.all(|file| Some(file) == first)
    }

    /// Recognises an intact shard in the place of another, as after a mixed-up copy.
    fn stranger(&self, path: &Path, fingerprint: &str) -> Option<String> {
        let mut file = open_regular(path).ok()?;
        let mut first = [0; 8];
        file.read_exact(&mut first).ok()?;
        let len = u64::from_le_bytes(first);
        if len > file.metadata().ok()?.len().min(sws_format::MAX_HEADER_BYTES) {
            return None;
        }
        let mut json = Vec::new();
        file.take(len).read_to_end(&mut json).ok()?;
        let header: serde_json::Value = serde_json::from_slice(&json).ok()?;
        let metadata = &header["__metadata__"];
        let model = metadata["sws.fingerprint"].as_str()?;
        let piece = metadata["sws.piece"].as_str()?;
        // A flipped bit in the right fingerprint is damage, not another model.
        let other_model = model.len() == fingerprint.len()
            && model.bytes().zip(fingerprint.bytes()).filter(|(a, b)| a != b).count() > 8;
        if other_model {
            return Some(format!("is a shard of another model ({piece})"));
        }
        match piece.parse::<PieceId>() {
            Ok(other) if other != self.piece => Some(format!("is the shard of {other}")),
            _ => None,
        }
    }
}

/// The damage of a file that cannot be read.
pub(super) fn unreadable(cause: &std::io::Error) -> String {
    format!("cannot be read ({cause})")
}
