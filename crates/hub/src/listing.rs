//! The files of a repository at one commit.

use std::collections::HashSet;

use serde::Deserialize;
use sws_format::is_plain_path;

use crate::error::clipped;
use crate::name::{is_commit, is_hex};
use crate::{HubError, ModelId};

/// Maximum length of a file, larger than any disk.
const MAX_FILE: u64 = 1 << 50;

/// The files of a repository at one commit.
#[derive(Clone, Debug)]
pub struct Listing {
    /// The model.
    pub id: ModelId,
    /// The commit: 40 hexadecimal digits.
    pub commit: String,
    /// Files at the commit.
    pub files: Vec<HubFile>,
}

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// Path in the repository, which stays below its root.
    pub name: String,
    /// Length in bytes.
    pub len: u64,
    /// Name of its blob in the cache: the SHA-256 of a large file, or the git object id of a small
    /// one.
    pub etag: String,
    /// True if `etag` is the SHA-256 of the bytes.
    pub hashed: bool,
}

impl HubFile {
    /// The file name without folders.
    pub fn last_name(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

fn file(sibling: Sibling) -> Option<HubFile> {
    let (len, etag, hashed) = match sibling.lfs {
        Some(lfs) => (lfs.size, lfs.sha256, true),
        None => (sibling.size?, sibling.blob_id?, false),
    };
    let good = is_hex(&etag, if hashed { 64 } else { 40 }) && len <= MAX_FILE;
    good.then_some(HubFile { name: sibling.rfilename, len, etag, hashed })
}

impl Listing {
    /// Parses the answer of `url` about a model.
    pub fn from_json(id: &ModelId, url: &str, json: &[u8]) -> Result<Listing, HubError> {
        let wrong = |reason: String| HubError::Answer { url: url.to_owned(), reason };
        let info: Info = serde_json::from_slice(json).map_err(|e| wrong(e.to_string()))?;
        if !is_commit(&info.sha) {
            return Err(wrong(format!("{:?} is not a commit", info.sha)));
        }
        let mut names = HashSet::new();
        let mut files = Vec::with_capacity(info.siblings.len());
        for sibling in info.siblings {
            let name = sibling.rfilename.clone();
            if !is_plain_path(&name) {
                return Err(HubError::FileName { id: id.clone(), file: name });
            }
            if !names.insert(name.clone()) {
                let problem = format!("lists the file {:?} twice; report it there", clipped(&name));
                return Err(HubError::Contents { id: id.clone(), problem });
            }
            let Some(file) = file(sibling) else {
                return Err(wrong(format!("{name:?} has no hash or size")));
            };
            files.push(file);
        }
        Ok(Listing { id: id.clone(), commit: info.sha, files })
    }

    /// The file with this name.
    pub fn file(&self, name: &str) -> Option<&HubFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// The error for a repository whose contents have this problem.
    pub(crate) fn contents_error(&self, problem: impl Into<String>) -> HubError {
        HubError::Contents { id: self.id.clone(), problem: problem.into() }
    }
}
