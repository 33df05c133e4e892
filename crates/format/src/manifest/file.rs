//! Reading and writing of `manifest.json`.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Manifest;
use super::check::is_blake3;
use crate::remedy;
use sws_os::file::sync_dir;
use sws_os::open::open_regular;

/// File name of the manifest in its directory.
pub const MANIFEST_FILE: &str = "manifest.json";

/// File name of the journal in a directory of shards that is not complete yet.
pub const JOURNAL: &str = ".sws-journal";

/// Name of a file beside the manifest of a model in remote storage, with expert usage statistics
/// from another machine.
pub const LEARNED_FILE: &str = "learned";
/// Maximum bytes of learned statistics: more than twice the tables of the largest models.
pub const MAX_LEARNED_BYTES: u64 = 128 << 20;

/// The newest supported version of the format. Each manifest has the oldest version that can
/// describe it.
const NEWEST_VERSION: u64 = 2;

/// The first bytes of a manifest, before the hash of its body in hexadecimal digits.
const HASH_START: &str = "{\"blake3\":\"";
const HASH_LEN: usize = 64;

/// Largest accepted manifest. A model with 70,000 expert matrices needs about 60 MB.
pub const MAX_MANIFEST_BYTES: u64 = 256 << 20;

/// Reason that a directory of shards cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum ManifestError {
    /// A file could not be read.
    #[error("`{}` cannot be read ({cause}); {}", path.display(),
            remedy(cause, "check that it exists and that you may read it"))]
    Read {
        path: PathBuf,
        /// Cause reported by the operating system.
        cause: io::Error,
    },
    /// The manifest could not be written.
    #[error("`{}` cannot be written ({cause}); {}", path.display(),
            remedy(cause, "check that you may write there and that the disk has room"))]
    Write {
        path: PathBuf,
        /// Cause reported by the operating system.
        cause: io::Error,
    },
    /// The directory has no manifest.
    #[error("`{}` has no manifest.json; give a directory that `sws shard` has finished", dir.display())]
    Absent { dir: PathBuf },
    /// The manifest is implausibly large.
    #[error("`{}` has {len} bytes, more than the {limit} that a manifest can have; copy it again or make the shards again", path.display())]
    TooLarge { path: PathBuf, len: u64, limit: u64 },
    /// The contents of the manifest are invalid.
    #[error("`{}` cannot be used: {reason}; {}", path.display(), reason.remedy())]
    Invalid {
        path: PathBuf,
        /// Problem with the contents.
        reason: InvalidManifest,
    },
    /// A symbolic link, a directory or a device in place of a shard.
    #[error("`{}` is not a regular file of its directory; put the shard itself there, or make the shards again", path.display())]
    NotAFile { path: PathBuf },
    /// A shard is missing.
    #[error("`{}` is missing, though the manifest lists it; copy it again or make the shards again", path.display())]
    Missing { path: PathBuf },
    /// A shard has the wrong length.
    #[error("`{}` has {found} bytes instead of {expected}; copy it again or make the shards again", path.display())]
    Length {
        path: PathBuf,
        /// Length in the manifest.
        expected: u64,
        /// Length of the file.
        found: u64,
    },
}

/// Problem with the contents of a manifest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidManifest {
    /// Malformed JSON, or JSON of the wrong structure.
    #[error("it is not what the format asks for ({0})")]
    Json(#[source] serde_json::Error),
    /// The checksum does not match the contents.
    #[error("its checksum does not match its contents")]
    Checksum,
    /// Written by another version of the format.
    #[error("it is of version {0} and this program reads versions up to {NEWEST_VERSION}")]
    Version(u64),
    /// Inconsistent contents, or paths and extents out of bounds.
    #[error("{0}")]
    Content(String),
}

impl InvalidManifest {
    fn remedy(&self) -> &'static str {
        match self {
            InvalidManifest::Version(_) => "use the sws that wrote it, or make the shards again",
            _ => "copy it again or make the shards again",
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<'a> {
    blake3: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// The version is parsed first, as the body of another version may have any structure.
#[derive(Deserialize)]
struct Version {
    version: u64,
}

#[derive(Serialize)]
struct ManifestBody<'a> {
    version: u64,
    #[serde(flatten)]
    manifest: &'a Manifest,
}

impl Manifest {
    /// Loads the manifest of a shard directory. Checks its consistency and the lengths of the files
    /// that it lists.
    pub fn load(dir: impl AsRef<Path>) -> Result<Manifest, ManifestError> {
        let manifest = Manifest::read(dir.as_ref())?;
        manifest.check_disk(dir.as_ref())?;
        Ok(manifest)
    }

    /// Loads the manifest without checking the files, for callers that report on each of them.
    pub fn read(dir: &Path) -> Result<Manifest, ManifestError> {
        Ok(Manifest::read_with_json(dir)?.0)
    }

    /// Like [`read`](Self::read), with the contents of the file.
    pub fn read_with_json(dir: &Path) -> Result<(Manifest, Vec<u8>), ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        let json = read(&path)?.ok_or_else(|| ManifestError::Absent { dir: dir.to_owned() })?;
        match Manifest::from_json(&json) {
            Ok(manifest) => Ok((manifest, json)),
            Err(reason) => Err(ManifestError::Invalid { path, reason }),
        }
    }

    /// The hash that the manifest of a directory bears, which tells it from any other; `None` without
    /// a manifest. Nothing else of it is read or checked.
    pub fn hash_in(dir: &Path) -> Result<Option<String>, ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        let refused = |cause| ManifestError::Read { path: path.clone(), cause };
        let mut start = String::new();
        match path.symlink_metadata() {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(about) if !about.is_file() => return Err(ManifestError::NotAFile { path }),
            _ => {}
        }
        let file = open_regular(&path).map_err(refused)?;
        let len = HASH_START.len() + HASH_LEN + 1;
        let read = file.take(len as u64).read_to_string(&mut start);
        let hash = start.strip_prefix(HASH_START).and_then(|hash| hash.strip_suffix('"'));
        match (read, hash) {
            (Err(cause), _) if cause.kind() != io::ErrorKind::InvalidData => Err(refused(cause)),
            (Ok(_), Some(hash)) if is_blake3(hash) => Ok(Some(hash.to_owned())),
            _ => Err(ManifestError::Invalid { path, reason: InvalidManifest::Checksum }),
        }
    }

    /// Parses the contents of a `manifest.json` and checks everything but the files it lists.
    pub fn from_json(json: &[u8]) -> Result<Manifest, InvalidManifest> {
        let envelope: Envelope<'_> = serde_json::from_slice(json).map_err(InvalidManifest::Json)?;
        let body = envelope.body.get();
        if blake3::hash(body.as_bytes()).to_hex().as_str() != envelope.blake3 {
            return Err(InvalidManifest::Checksum);
        }
        let Version { version } = serde_json::from_str(body).map_err(InvalidManifest::Json)?;
        if !(1..=NEWEST_VERSION).contains(&version) {
            return Err(InvalidManifest::Version(version));
        }
        let manifest: Manifest = serde_json::from_str(body).map_err(InvalidManifest::Json)?;
        if manifest.version() > version {
            let reason = format!("it has transposed tensors, which version {version} has not");
            return Err(InvalidManifest::Content(reason));
        }
        manifest.check(true).map_err(InvalidManifest::Content)?;
        Ok(manifest)
    }

    /// Returns the contents of `manifest.json`. The same manifest gives the same bytes.
    ///
    /// Fails if the manifest could not be read back, because it is inconsistent or lacks checksums.
    pub fn to_json(&self) -> Result<Vec<u8>, InvalidManifest> {
        self.check(true).map_err(InvalidManifest::Content)?;
        let body = ManifestBody { version: self.version(), manifest: self };
        let body = serde_json::to_string(&body).map_err(InvalidManifest::Json)?;
        let hash = blake3::hash(body.as_bytes()).to_hex();
        Ok(format!("{HASH_START}{hash}\",\"body\":{body}}}\n").into_bytes())
    }

    /// Writes `manifest.json` into `dir` atomically and flushes it to the device.
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<(), ManifestError> {
        let dir = dir.as_ref();
        let path = dir.join(MANIFEST_FILE);
        let json = self
            .to_json()
            .map_err(|reason| ManifestError::Invalid { path: path.clone(), reason })?;
        let temporary = dir.join(format!("{MANIFEST_FILE}.tmp"));
        match write_as(&json, &temporary, &path).and_then(|()| sync_dir(dir)) {
            Ok(()) => Ok(()),
            Err(cause) => {
                // The first error is the one worth reporting.
                let _ = fs::remove_file(&temporary);
                Err(ManifestError::Write { path, cause })
            }
        }
    }

    /// Checks that every listed file is a regular file of the right length, reached through no
    /// symbolic link.
    pub fn check_disk(&self, dir: &Path) -> Result<(), ManifestError> {
        let mut folders = HashSet::new();
        for file in &self.files {
            let path = dir.join(&file.path);
            for (at, _) in file.path.match_indices('/') {
                let folder = &file.path[..at];
                if folders.insert(folder) && !lstat(&dir.join(folder))?.is_dir() {
                    return Err(ManifestError::NotAFile { path });
                }
            }
            let metadata = lstat(&path)?;
            if !metadata.is_file() {
                return Err(ManifestError::NotAFile { path });
            }
            if metadata.len() != file.len {
                let expected = file.len;
                let found = metadata.len();
                return Err(ManifestError::Length { path, expected, found });
            }
        }
        Ok(())
    }
}

/// Writes and syncs a file under a temporary path before it gets its own.
fn write_as(bytes: &[u8], temporary: &Path, path: &Path) -> io::Result<()> {
    let mut file = File::create(temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(temporary, path)
}

fn lstat(path: &Path) -> Result<fs::Metadata, ManifestError> {
    path.symlink_metadata().map_err(|cause| match cause.kind() {
        io::ErrorKind::NotFound => ManifestError::Missing { path: path.to_owned() },
        _ => ManifestError::Read { path: path.to_owned(), cause },
    })
}

/// Reads the bytes of the manifest; `None` if there is no such file.
fn read(path: &Path) -> Result<Option<Vec<u8>>, ManifestError> {
    let refused = |cause| ManifestError::Read { path: path.to_owned(), cause };
    let metadata = match path.symlink_metadata() {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(refused)?,
    };
    if !metadata.is_file() {
        return Err(ManifestError::NotAFile { path: path.to_owned() });
    }
    let len = metadata.len();
    let limit = MAX_MANIFEST_BYTES;
    if len > limit {
        return Err(ManifestError::TooLarge { path: path.to_owned(), len, limit });
    }
    let mut json = Vec::with_capacity(len as usize);
    open_regular(path).and_then(|file| file.take(limit).read_to_end(&mut json)).map_err(refused)?;
    Ok(Some(json))
}
