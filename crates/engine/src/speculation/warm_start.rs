//! A file that keeps the learned state of a model's use from one run to the next.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sws_cache::history::HistoryShape;
use sws_cache::{SavedError, SavedTensors, Trace};
use sws_format::{MAX_LEARNED_BYTES, open_regular};
use sws_os::replace::Replacement;

/// The warm-start file, and its model.
#[derive(Clone, Debug)]
pub(crate) struct WarmStart {
    path: PathBuf,
    model: String,
}

/// Reasons why a file is ignored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassedOver {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("is longer than any valid one")]
    TooLong,
    #[error(transparent)]
    Saved(#[from] SavedError),
}

impl WarmStart {
    /// Uses the file at `path`. `model` is the fingerprint of the model.
    pub(crate) fn new(path: PathBuf, model: &str) -> WarmStart {
        WarmStart { path, model: model.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the saved state; `None` if there is no file.
    pub(crate) fn read(&self) -> Result<Option<SavedTensors>, PassedOver> {
        let file = match open_regular(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if file.metadata()?.len() > MAX_LEARNED_BYTES {
            return Err(PassedOver::TooLong);
        }
        let mut bytes = Vec::new();
        file.take(MAX_LEARNED_BYTES).read_to_end(&mut bytes)?;
        Ok(Some(SavedTensors::read(&bytes, &self.model)?))
    }

    /// Replaces the file atomically. If it is a symbolic link, replaces the link's target.
    pub(crate) fn write(&self, saved: &SavedTensors) -> io::Result<()> {
        if let Some(dir) = self.path.parent() {
            fs::create_dir_all(dir)?;
        }
        let target = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        if let Ok(there) = target.symlink_metadata()
            && !there.is_file()
        {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut replacement = Replacement::begin(&target)?;
        replacement.file().write_all(&saved.write(&self.model))?;
        replacement.publish()
    }
}

/// The routes of the last tokens of earlier runs, from the warm-start file of the model with this
/// fingerprint. `None` without a file, or without routes that fit the model.
pub fn earlier_routes(file: &Path, fingerprint: &str, shape: HistoryShape) -> Option<Trace> {
    WarmStart::new(file.to_owned(), fingerprint).read().ok()??.routes(shape).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_kept_and_only_regular_files_replaced() {
        let dir = std::env::temp_dir().join(format!("sws-warm-links-{}", std::process::id()));
        fs::create_dir_all(dir.join("directory")).unwrap();
        sws_os::open::symlink("real", dir.join("link")).unwrap();
        fs::write(dir.join("real"), b"before").unwrap();
        WarmStart::new(dir.join("link"), "model").write(&SavedTensors::default()).unwrap();
        assert!(dir.join("link").is_symlink());
        let read = WarmStart::new(dir.join("real"), "model").read().unwrap();
        assert_eq!(read, Some(SavedTensors::default()));
        let other = WarmStart::new(dir.join("directory"), "model");
        assert!(other.write(&SavedTensors::default()).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
