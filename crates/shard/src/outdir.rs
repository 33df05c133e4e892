//! The output directory: exclusive to one job, locked while written, and cleaned up after a kill.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use sws_format::{JOURNAL, is_plain_path};
use sws_os::file::{remove_any, sync_dir};
use sws_os::lock::DirLock;
use sws_os::space;

use super::ShardError;
use super::journal::Journal;

/// Suffix of incomplete files.
const UNFINISHED: &str = ".sws-tmp";

/// A directory that only this process writes to.
pub(super) struct OutDir {
    path: PathBuf,
    created: bool,
    /// The lock on the directory itself. A lock file would be one more file to clean up.
    _lock: DirLock,
}

impl OutDir {
    /// Creates the directory, or takes over one with earlier work of the same job: one with a
    /// journal, or one for which `is_ours` is true. It may contain only the paths in `planned`, and
    /// must not lie in the directory `input`.
    pub(super) fn open(
        path: &Path,
        input: Option<&Path>,
        planned: &HashSet<String>,
        is_ours: bool,
    ) -> Result<OutDir, ShardError> {
        let created = !path.exists();
        if let Some(input) = input
            && within(path, input)
        {
            return Err(ShardError::Inside { out: path.to_owned(), input: input.to_owned() });
        }
        std::fs::create_dir_all(path).map_err(ShardError::writing(path))?;
        // On a file system without locks, another writer is not detected.
        let Some(lock) = DirLock::take(path).map_err(ShardError::writing(path))? else {
            return Err(ShardError::Busy { dir: path.to_owned() });
        };
        let mut found = Vec::new();
        list(path, "", 0, &mut found)?;
        let begun = is_ours || Journal::begun(path);
        for name in &found {
            let ours = match name.strip_suffix(UNFINISHED) {
                Some(whole) => unfinished_of(whole, planned),
                None => name == JOURNAL || begun && planned.contains(name),
            };
            if !ours {
                return Err(ShardError::Foreign { dir: path.to_owned(), name: name.clone() });
            }
        }
        for name in found {
            if name.ends_with(UNFINISHED) {
                let file = path.join(name);
                std::fs::remove_file(&file).map_err(ShardError::writing(&file))?;
            }
        }
        Ok(OutDir { path: path.to_owned(), created, _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Fails if less than `needed` bytes are free.
    pub(super) fn check_space(&self, needed: u64) -> Result<(), ShardError> {
        let free = space::free(&self.path).map_err(ShardError::writing(&self.path))?;
        if let Some(free) = free
            && free < needed
        {
            return Err(ShardError::TooFull { dir: self.path.clone(), needed, free });
        }
        Ok(())
    }

    /// Removes the directory again if it was created here.
    pub(super) fn abandon(&self) {
        if self.created {
            // This fails, as intended, if the directory is not empty.
            let _ = std::fs::remove_dir(&self.path);
        }
    }

    /// Bytes of an earlier file with this name.
    pub(super) fn len(&self, name: &str) -> u64 {
        self.path.join(name).symlink_metadata().map_or(0, |about| about.len())
    }

    /// Removes an earlier file with this name, to free disk space. An empty directory is removed as
    /// well, as no file could replace it.
    pub(super) fn clear(&self, name: &str) -> Result<(), ShardError> {
        let path = self.path.join(name);
        match remove_any(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(ShardError::writing(&path)(e)),
            _ => Ok(()),
        }
    }

    /// Returns the temporary path of a file, and creates its directory.
    pub(super) fn unfinished(&self, name: &str) -> Result<PathBuf, ShardError> {
        let path = self.path.join(format!("{name}{UNFINISHED}"));
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(ShardError::writing(parent))?;
        }
        Ok(path)
    }

    /// Renames complete, synced files to their final names, and syncs their directories.
    pub(super) fn publish<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), ShardError> {
        let mut parents = HashSet::from([self.path.clone()]);
        for name in names {
            let path = self.path.join(name);
            std::fs::rename(self.path.join(format!("{name}{UNFINISHED}")), &path)
                .map_err(ShardError::writing(&path))?;
            parents.extend(path.parent().map(Path::to_owned));
        }
        for parent in &parents {
            sync_dir(parent).map_err(ShardError::writing(parent))?;
        }
        Ok(())
    }

    /// Writes a small file, which gets its name once it is complete.
    pub(super) fn write_small(&self, name: &str, bytes: &[u8]) -> Result<(), ShardError> {
        let path = self.unfinished(name)?;
        write_synced(&path, bytes).map_err(ShardError::writing(&path))?;
        self.publish([name])
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_data()
}

/// True if `name`, without [`UNFINISHED`], is a planned file or one of its spill files. The name of
/// a spill file has an additional word at the end.
fn unfinished_of(name: &str, planned: &HashSet<String>) -> bool {
    planned.contains(name)
        || name.rsplit_once('.').is_some_and(|(whole, _)| planned.contains(whole))
}

/// True if `out` is `input` or lies below it. `out` need not exist yet.
fn within(out: &Path, input: &Path) -> bool {
    let Ok(input) = input.canonicalize() else { return false };
    let absolute = std::path::absolute(out).unwrap_or_else(|_| out.to_owned());
    for dir in absolute.ancestors() {
        if let Ok(existing) = dir.canonicalize() {
            return existing.starts_with(&input);
        }
    }
    false
}

/// Lists the files below a directory, spelled as planned paths. A name that no plan can contain is
/// listed unchanged, for the caller to refuse.
fn list(root: &Path, below: &str, depth: u32, found: &mut Vec<String>) -> Result<(), ShardError> {
    let dir = root.join(below);
    let refused = ShardError::reading(&dir);
    for entry in dir.read_dir().map_err(refused)? {
        let entry = entry.map_err(refused)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if below.is_empty() { name } else { format!("{below}/{name}") };
        let is_dir = entry.file_type().map_err(refused)?.is_dir();
        if is_dir && depth < 2 && is_plain_path(&path) {
            list(root, &path, depth + 1, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}
