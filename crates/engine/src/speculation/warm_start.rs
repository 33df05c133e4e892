//! What was learned of a model's use, in a file from one run to the next.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use sws_cache::{Saved, SavedError};
use sws_store::open_regular;

/// The longest file that is read: several times what the largest models' tables take.
const MAX_BYTES: u64 = 64 << 20;

/// The file, and the model that it is of.
#[derive(Clone, Debug)]
pub(crate) struct WarmStart {
    path: PathBuf,
    model: String,
}

/// Why a file is passed over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PassedOver {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("is longer than any such file")]
    TooLong,
    #[error(transparent)]
    Saved(#[from] SavedError),
}

impl WarmStart {
    /// `model`: what tells it from all others.
    pub(crate) fn new(path: PathBuf, model: &str) -> WarmStart {
        WarmStart { path, model: model.to_owned() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What was saved; None if nothing was.
    pub(crate) fn read(&self) -> Result<Option<Saved>, PassedOver> {
        let file = match open_regular(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if file.metadata()?.len() > MAX_BYTES {
            return Err(PassedOver::TooLong);
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(Some(Saved::read(&bytes, &self.model)?))
    }

    /// Takes the place of what was saved before, all at once; of a link, the place of what it leads to.
    pub(crate) fn write(&self, saved: &Saved) -> io::Result<()> {
        if let Some(dir) = self.path.parent() {
            fs::create_dir_all(dir)?;
        }
        let target = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        if target.symlink_metadata().is_ok_and(|there| !there.is_file()) {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut name = target.clone().into_os_string();
        name.push(format!(".{}.tmp", std::process::id()));
        let unfinished = PathBuf::from(name);
        let written = (|| {
            // One of this number that was killed may have left its own.
            let _ = fs::remove_file(&unfinished);
            let mut file = OpenOptions::new().write(true).create_new(true).open(&unfinished)?;
            file.write_all(&saved.write(&self.model))?;
            // Else a machine that stops may keep the name without what is in it.
            file.sync_all()?;
            fs::rename(&unfinished, &target)
        })();
        if written.is_err() {
            // What is left of it would only be in the way.
            let _ = fs::remove_file(&unfinished);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_in_nobodys_way() {
        let dir = std::env::temp_dir().join(format!("sws-warm-start-{}", std::process::id()));
        let path = dir.join("learned");
        let warm = WarmStart::new(path.clone(), "model");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("learned.{}.tmp", std::process::id())), b"half").unwrap();
        let saved = Saved::default();
        warm.write(&saved).unwrap();
        assert_eq!(warm.read().unwrap(), Some(saved));
        let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["learned"]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn links_stay_links_and_nothing_else_than_a_file_is_replaced() {
        let dir = std::env::temp_dir().join(format!("sws-warm-links-{}", std::process::id()));
        fs::create_dir_all(dir.join("directory")).unwrap();
        std::os::unix::fs::symlink("real", dir.join("link")).unwrap();
        fs::write(dir.join("real"), b"before").unwrap();
        WarmStart::new(dir.join("link"), "model").write(&Saved::default()).unwrap();
        assert!(dir.join("link").is_symlink());
        let read = WarmStart::new(dir.join("real"), "model").read().unwrap();
        assert_eq!(read, Some(Saved::default()));
        let other = WarmStart::new(dir.join("directory"), "model");
        assert!(other.write(&Saved::default()).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
