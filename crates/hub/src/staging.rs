//! The directory of a download that is sharded. Only one process uses it.
//!
//! ```text
//! DIR/pull.json     the model and its commit
//! DIR/sketch/       small files, and sketches of the weight files
//! DIR/whole/FILE    a weight file, or its beginning
//! ```

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sws_os::lock::DirLock;

use crate::cache::{entries, real, remove, tree_size, write_by};
use crate::digest::Digest;
use crate::name::is_commit;
use crate::{HubError, Listing, ModelId, staging};

const RECORD: &str = "pull.json";
/// Name of the record before it is complete.
const UNRECORDED: &str = "pull.json.sws-tmp";
pub(crate) const SKETCH: &str = "sketch";
pub(crate) const WHOLE: &str = "whole";
/// Most bytes of the record.
const MAX_RECORD: u64 = 4096;

/// The job that a directory belongs to.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StagingRecord {
    model: String,
    commit: String,
    /// Hash of both fields, which early versions did not write.
    check: Option<String>,
}

impl StagingRecord {
    fn of(listing: &Listing) -> StagingRecord {
        let model = listing.id.to_string();
        let commit = listing.commit.clone();
        let check = Some(StagingRecord::hash(&model, &commit));
        StagingRecord { model, commit, check }
    }

    fn hash(model: &str, commit: &str) -> String {
        let mut hash = Digest::sha256();
        hash.update(format!("{model} {commit}").as_bytes());
        hash.hex()
    }

    fn is_intact(&self) -> bool {
        let StagingRecord { model, commit, check } = self;
        check.as_ref().is_none_or(|check| *check == StagingRecord::hash(model, commit))
    }
}

/// The state of a download in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BegunDownload {
    /// There is no download.
    Nothing,
    /// A download of this commit.
    Commit(String),
    /// A download of an unknown commit, because its record is damaged.
    Damaged,
}

/// Directory of a download, which only one process uses.
#[derive(Debug)]
pub struct Staging {
    pub(crate) dir: PathBuf,
    _lock: DirLock,
}

impl Staging {
    /// Opens the directory of a download, or creates it.
    pub fn open(dir: &Path) -> Result<Staging, HubError> {
        std::fs::create_dir_all(dir).map_err(HubError::writing(dir))?;
        let Some(lock) = DirLock::take(dir).map_err(HubError::reading(dir))? else {
            return Err(HubError::Busy { dir: dir.to_owned() });
        };
        Ok(Staging { dir: dir.to_owned(), _lock: lock })
    }

    /// The download of `id` that was begun in this directory.
    pub fn begun(&self, id: &ModelId) -> Result<BegunDownload, HubError> {
        let path = self.dir.join(RECORD);
        let bytes = match std::fs::metadata(&path) {
            Ok(about) if about.is_file() && about.len() <= MAX_RECORD => {
                std::fs::read(&path).map_err(HubError::reading(&path))?
            }
            Ok(_) => return Err(self.foreign(format!("a {RECORD} of another program"))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let entries = self.dir.read_dir().map_err(HubError::reading(&self.dir))?;
                let mut others = entries.flatten().filter(|entry| entry.file_name() != UNRECORDED);
                return match others.next() {
                    None => Ok(BegunDownload::Nothing),
                    Some(_) => Err(self.foreign("files of another program")),
                };
            }
            Err(e) => return Err(HubError::read(&path, e)),
        };
        let record = serde_json::from_slice::<StagingRecord>(&bytes).ok();
        match record.filter(|record| record.is_intact() && is_commit(&record.commit)) {
            Some(record) if record.model == id.as_str() => Ok(BegunDownload::Commit(record.commit)),
            Some(record) => Err(self.foreign(format!("the begun download of `{}`", record.model))),
            // The model of the download does not matter: sketches are removed, and other bytes are
            // compared with hashes.
            None if self.is_laid_out()? => Ok(BegunDownload::Damaged),
            None => Err(self.foreign(format!("a {RECORD} that is damaged, or of another program"))),
        }
    }

    /// The error for contents of another program.
    fn foreign(&self, what: impl Into<String>) -> HubError {
        HubError::Foreign { dir: self.dir.clone(), what: what.into() }
    }

    /// True if the directory contains only files of downloads.
    fn is_laid_out(&self) -> Result<bool, HubError> {
        let mut has_sketches = false;
        for entry in self.dir.read_dir().map_err(HubError::reading(&self.dir))? {
            let name = entry.map_err(HubError::reading(&self.dir))?.file_name();
            has_sketches |= name == SKETCH;
            if ![RECORD, UNRECORDED, SKETCH, WHOLE].iter().any(|ours| name == *ours) {
                return Ok(false);
            }
        }
        Ok(has_sketches)
    }

    /// Records the download. Sketches of another or an unknown commit are removed.
    pub(crate) fn begin(&self, listing: &Listing) -> Result<(), HubError> {
        if self.begun(&listing.id)? != BegunDownload::Commit(listing.commit.clone()) {
            remove(&self.dir.join(SKETCH))?;
        }
        let json = serde_json::to_vec(&StagingRecord::of(listing)).unwrap_or_default();
        let path = self.dir.join(RECORD);
        let fresh = self.dir.join(UNRECORDED);
        // A link could lead to a foreign file.
        remove(&fresh)?;
        write_by(&fresh, &path, &json).map_err(HubError::writing(&path))
    }

    /// Removes the shards `out` of this download after [`HubError::Sketch`], so that they are made
    /// again: the fingerprint in each of them includes the wrong header. Sketches are removed last,
    /// so that an interrupted call can be repeated.
    pub fn restart(&self, out: &Path) -> Result<(), HubError> {
        for entry in entries(out) {
            remove(&entry.path())?;
        }
        remove(&self.dir.join(SKETCH))
    }

    /// Removes the directory with its contents. The record is removed last, so that an interrupted
    /// removal can be repeated.
    pub fn remove(self) -> Result<(), HubError> {
        for name in [SKETCH, WHOLE] {
            remove(&self.dir.join(name))?;
        }
        remove(&self.dir)
    }
}

/// Bytes of a begun download for the shards `out`: finished shards, and weight files.
pub fn begun_bytes(out: &Path) -> u64 {
    tree_size(&real(out)).saturating_add(tree_size(&staging(out).join(WHOLE)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_belongs_to_one_download() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("x.pull");
        let id: ModelId = "a/b".parse().unwrap();
        let staging = Staging::open(&dir).unwrap();
        assert_eq!(staging.begun(&id).unwrap(), BegunDownload::Nothing);
        assert!(matches!(Staging::open(&dir), Err(HubError::Busy { .. })));
        let commit = "0".repeat(40);
        let listing = Listing { id: id.clone(), commit: commit.clone(), files: Vec::new() };
        staging.begin(&listing).unwrap();
        drop(staging);
        let staging = Staging::open(&dir).unwrap();
        assert_eq!(staging.begun(&id).unwrap(), BegunDownload::Commit(commit));
        let other = staging.begun(&"a/c".parse().unwrap()).unwrap_err();
        assert!(other.to_string().contains("the begun download of `a/b`"), "{other}");
        std::fs::write(dir.join(RECORD), "{}").unwrap();
        assert!(matches!(staging.begun(&id), Err(HubError::Foreign { .. })));
        std::fs::remove_file(dir.join(RECORD)).unwrap();
        std::fs::write(dir.join("mine.txt"), "").unwrap();
        assert!(matches!(staging.begun(&id), Err(HubError::Foreign { .. })));
        staging.remove().unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn a_damaged_record_tells_no_commit() {
        let temp = tempfile::tempdir().unwrap();
        let staging = Staging::open(&temp.path().join("x.pull")).unwrap();
        let id: ModelId = "a/b".parse().unwrap();
        let path = staging.dir.join(RECORD);
        let files = Vec::new();
        let listing = Listing { id: id.clone(), commit: "0".repeat(40), files };
        let begun = || staging.begun(&id);
        staging.begin(&listing).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let sketches = staging.dir.join(SKETCH);
        std::fs::create_dir(&sketches).unwrap();
        staging.begin(&listing).unwrap();
        assert!(sketches.exists(), "they are of this commit");
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &damaged).unwrap();
            assert_eq!(
                begun().unwrap(),
                BegunDownload::Damaged,
                "{:?}",
                String::from_utf8_lossy(&damaged)
            );
        }
        // As after a loss of power.
        for lost in [&b""[..], &[0; 90]] {
            std::fs::write(&path, lost).unwrap();
            assert_eq!(begun().unwrap(), BegunDownload::Damaged);
        }
        let mine = staging.dir.join("mine.txt");
        std::fs::write(&mine, "").unwrap();
        assert!(matches!(begun(), Err(HubError::Foreign { .. })));
        std::fs::remove_file(mine).unwrap();
        std::fs::write(&path, String::from_utf8(whole).unwrap().replace("00000", "00001")).unwrap();
        assert_eq!(begun().unwrap(), BegunDownload::Damaged);
        let foreign = temp.path().join("foreign");
        std::fs::write(&foreign, "precious").unwrap();
        sws_os::open::symlink(&foreign, staging.dir.join(UNRECORDED)).unwrap();
        staging.begin(&listing).unwrap();
        assert_eq!(std::fs::read(&foreign).unwrap(), b"precious");
        assert_eq!(begun().unwrap(), BegunDownload::Commit(listing.commit));
        assert!(!sketches.exists(), "they may be of another commit");
        // As earlier versions wrote it.
        let record = format!("{{\"model\":\"a/b\",\"commit\":\"{}\"}}", "1".repeat(40));
        std::fs::write(&path, record).unwrap();
        assert_eq!(begun().unwrap(), BegunDownload::Commit("1".repeat(40)));
    }
}
