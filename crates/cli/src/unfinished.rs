//! Outputs that appear when they are complete.

use std::fs::{File, FileType, Permissions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use sws_store::{open_stream, remedy};
use tempfile::NamedTempFile;

/// The most links in a row, as in the kernel.
const MOST_LINKS: usize = 40;

/// A file that nobody sees until it is complete.
pub(crate) struct Unfinished {
    file: Unseen,
    /// The path that was typed.
    path: PathBuf,
}

enum Unseen {
    /// Takes the place of the file `target`, all at once.
    Beside { file: NamedTempFile, target: PathBuf },
    /// Goes to a pipe or a device, which can be written to only once.
    Apart { file: File, stream: File },
}

/// Where an output goes, links followed.
#[derive(Debug)]
enum Target {
    /// A regular file, which may be there.
    File(PathBuf),
    /// A pipe, a character device, or an open file of another program: it is written to, never replaced.
    Stream,
}

impl Unfinished {
    /// Begins an output that goes where `path` leads: through links to what they mean. Refuses what
    /// cannot be written, before anything is computed for it.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Unfinished> {
        let file = match target(path)? {
            Target::File(target) => Unseen::Beside { file: beside(path, &target)?, target },
            Target::Stream => {
                let stream = open_stream(path).map_err(|e| match e.kind() {
                    ErrorKind::NotConnected => anyhow!(
                        "`{}` is a pipe that nothing reads; start its reader first",
                        path.display()
                    ),
                    _ => refused(path, &e),
                })?;
                let file = tempfile::tempfile().map_err(|e| refused(&std::env::temp_dir(), &e))?;
                Unseen::Apart { file, stream }
            }
        };
        Ok(Unfinished { file, path: path.to_owned() })
    }

    /// Another file beside it, which goes when it is dropped.
    pub(crate) fn beside(&self) -> anyhow::Result<File> {
        match &self.file {
            Unseen::Beside { file, .. } => {
                let dir = file.path().parent().unwrap_or(Path::new("."));
                tempfile::tempfile_in(dir).map_err(|e| refused(&self.path, &e))
            }
            Unseen::Apart { .. } => tempfile::tempfile().map_err(|e| refused(&self.path, &e)),
        }
    }

    /// True if both would take the place of one file.
    pub(crate) fn is_same(&self, other: &Unfinished) -> bool {
        match (&self.file, &other.file) {
            (Unseen::Beside { target: a, .. }, Unseen::Beside { target: b, .. }) => a == b,
            _ => false,
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.file.get().write_all(bytes);
        written.map_err(|e| refused(&self.path, &e))
    }

    /// Appends all of another file.
    pub(crate) fn append(&mut self, mut other: File) -> anyhow::Result<()> {
        let copied =
            other.seek(SeekFrom::Start(0)).and_then(|_| std::io::copy(&mut other, self.file.get()));
        copied.map(drop).map_err(|e| refused(&self.path, &e))
    }

    /// Writes over the beginning.
    pub(crate) fn rewrite(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let file = self.file.get();
        let written = file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(bytes));
        written.map_err(|e| refused(&self.path, &e))
    }

    pub(crate) fn publish(self) -> anyhow::Result<()> {
        let path = self.path;
        match self.file {
            Unseen::Beside { file, target } => {
                file.as_file().sync_all().map_err(|e| refused(&path, &e))?;
                file.persist(target).map_err(|e| refused(&path, &e.error))?;
            }
            Unseen::Apart { mut file, mut stream } => {
                let copied = file
                    .seek(SeekFrom::Start(0))
                    .and_then(|_| std::io::copy(&mut file, &mut stream));
                copied.map_err(|e| refused(&path, &e))?;
            }
        }
        Ok(())
    }
}

impl Unseen {
    fn get(&mut self) -> &mut File {
        match self {
            Unseen::Beside { file, .. } => file.as_file_mut(),
            Unseen::Apart { file, .. } => file,
        }
    }
}

fn target(path: &Path) -> anyhow::Result<Target> {
    let shown = path.display();
    let chain = links(path).map_err(|e| refused(path, &e))?;
    let system = |path: &PathBuf| {
        // Shared memory is a file system for everybody's files.
        let whose = [Path::new("/dev"), Path::new("/proc")];
        whose.iter().any(|dir| path.starts_with(dir)) && !path.starts_with("/dev/shm")
    };
    let last = chain.last().map_or(path, PathBuf::as_path).to_owned();
    let kind = match path.metadata() {
        Ok(there) => there.file_type(),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return match chain.iter().any(system) {
                true => bail!("`{shown}` lies among the system's devices; name another place"),
                false => Ok(Target::File(last)),
            };
        }
        Err(e) => return Err(refused(path, &e)),
    };
    let is_stream = |kind: &FileType| kind.is_fifo() || kind.is_char_device();
    match () {
        () if kind.is_dir() => bail!("`{shown}` is a directory; name a file to write to"),
        () if is_stream(&kind) => Ok(Target::Stream),
        () if !kind.is_file() => bail!("`{shown}` is not a regular file; name one to write to"),
        // `/dev/stdout` and its like, sent to a file: others write to that, too.
        () if chain.iter().any(system) && !system(&last) => Ok(Target::Stream),
        () if system(&last) => {
            bail!("`{shown}` is a file of the system, which is never replaced; name another place")
        }
        () => Ok(Target::File(last)),
    }
}

/// The path, and what each link in its place leads to, every directory without links.
fn links(path: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut chain = Vec::new();
    let mut next = path.to_owned();
    while chain.len() <= MOST_LINKS {
        let dir = match next.parent() {
            Some(dir) if dir != Path::new("") => dir,
            _ => Path::new("."),
        };
        let Some(name) = next.file_name() else {
            // `..` and `/` are directories, which the caller refuses.
            chain.push(next.canonicalize()?);
            return Ok(chain);
        };
        let at = dir.canonicalize()?.join(name);
        let link = match at.symlink_metadata() {
            Ok(there) if there.is_symlink() => Some(at.read_link()?),
            _ => None,
        };
        let Some(link) = link else {
            chain.push(at);
            return Ok(chain);
        };
        next = at.parent().unwrap_or(Path::new("/")).join(link);
        chain.push(at);
    }
    Err(std::io::Error::other("too many links in a row"))
}

fn beside(path: &Path, target: &Path) -> anyhow::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".sws-").suffix(".tmp");
    // As any other program would: the system takes off what the user does not want.
    builder.permissions(<Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666));
    let dir = target.parent().unwrap_or(Path::new("/"));
    builder.tempfile_in(dir).map_err(|e| refused(path, &e))
}

pub(crate) fn refused(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let remedy = remedy(error, "name a place that can be written to and has room");
    anyhow!("`{}` cannot be written: {error}; {remedy}", path.display())
}
