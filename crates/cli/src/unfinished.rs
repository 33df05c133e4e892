//! Files that appear when they are complete.

use std::fs::Permissions;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use tempfile::NamedTempFile;

/// A file under a name of its own, until it is complete.
pub(crate) struct Unfinished {
    file: NamedTempFile,
    path: PathBuf,
}

impl Unfinished {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Unfinished> {
        // The complete file takes the place of what has its name: never of a device, for one.
        match path.metadata() {
            Ok(there) if there.is_dir() => {
                bail!("`{}` is a directory; name a file to write to", path.display());
            }
            Ok(there) if !there.is_file() => {
                bail!("`{}` is not a regular file; name one to write to", path.display());
            }
            _ => {}
        }
        let dir = match path.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".sws-").suffix(".tmp");
        // As any other program would: the system takes off what the user does not want.
        #[cfg(unix)]
        builder.permissions(<Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666));
        let file = builder.tempfile_in(dir).map_err(|e| refused(path, &e))?;
        Ok(Unfinished { file, path: path.to_owned() })
    }

    /// Another file beside it, which goes when it is dropped.
    pub(crate) fn beside(&self) -> anyhow::Result<std::fs::File> {
        let dir = self.file.path().parent().unwrap_or(Path::new("."));
        tempfile::tempfile_in(dir).map_err(|e| refused(&self.path, &e))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.file.write_all(bytes).map_err(|e| refused(&self.path, &e))
    }

    /// Appends all of another file.
    pub(crate) fn append(&mut self, mut other: std::fs::File) -> anyhow::Result<()> {
        let copied = other
            .seek(SeekFrom::Start(0))
            .and_then(|_| std::io::copy(&mut other, self.file.as_file_mut()));
        copied.map(drop).map_err(|e| refused(&self.path, &e))
    }

    /// Writes over the beginning.
    pub(crate) fn rewrite(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let file = self.file.as_file_mut();
        let written = file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(bytes));
        written.map_err(|e| refused(&self.path, &e))
    }

    pub(crate) fn publish(self) -> anyhow::Result<()> {
        self.file.as_file().sync_all().map_err(|e| refused(&self.path, &e))?;
        self.file.persist(&self.path).map_err(|e| refused(&self.path, &e.error))?;
        Ok(())
    }
}

pub(crate) fn refused(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let remedy = "name a place that can be written to and has room";
    anyhow!("`{}` cannot be written: {error}; {remedy}", path.display())
}
