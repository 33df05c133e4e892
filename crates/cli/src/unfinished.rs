//! Outputs that appear when they are complete.

use std::fs::{File, FileType, Permissions};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{anyhow, bail};
use sws_store::{open_stream, remedy};
use tempfile::NamedTempFile;

/// The most links in a row, as in the kernel.
const MOST_LINKS: usize = 40;

/// Files under way, for an end at which nothing is dropped.
static UNDER_WAY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

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
    Apart { file: File, stream: File, is_stdout: bool },
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
                let stdout = stdout_if(path);
                let is_stdout = stdout.is_some();
                let stream = stdout.map_or_else(|| opened(path), Ok)?;
                let file = tempfile::tempfile().map_err(|e| refused(&std::env::temp_dir(), &e))?;
                Unseen::Apart { file, stream, is_stdout }
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

    /// True if it goes to standard output, where nothing else may go then.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self.file, Unseen::Apart { is_stdout: true, .. })
    }

    /// The same, refused if that is standard output: it has something else to hold.
    pub(crate) fn create_apart(path: &Path) -> anyhow::Result<Unfinished> {
        let file = Unfinished::create(path)?;
        if file.is_stdout() {
            bail!("`{}` is standard output, which holds the answer; name a file", path.display());
        }
        Ok(file)
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
                let at = file.path().to_owned();
                file.persist(target).map_err(|e| refused(&path, &e.error))?;
                under_way(|files| files.retain(|file| *file != at));
            }
            Unseen::Apart { mut file, mut stream, .. } => {
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

/// Removes what is unfinished, where the program ends and nothing is dropped. Takes no memory.
pub(crate) fn remove_all() {
    if let Ok(files) = UNDER_WAY.try_lock() {
        for file in &*files {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn under_way(change: impl FnOnce(&mut Vec<PathBuf>)) {
    change(&mut UNDER_WAY.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
}

/// Standard output, if `path` leads there. Opened anew it would be written to from its beginning,
/// behind the back of whoever writes to it as well.
fn stdout_if(path: &Path) -> Option<File> {
    let stdout = File::from(std::io::stdout().as_fd().try_clone_to_owned().ok()?);
    let (there, here) = (path.metadata().ok()?, stdout.metadata().ok()?);
    let same = (there.dev(), there.ino()) == (here.dev(), here.ino());
    (same && !there.file_type().is_char_device()).then_some(stdout)
}

fn opened(path: &Path) -> anyhow::Result<File> {
    open_stream(path).map_err(|e| match e.kind() {
        ErrorKind::NotConnected if path.metadata().is_ok_and(|m| m.file_type().is_fifo()) => {
            anyhow!("`{}` is a pipe that nothing reads; start its reader first", path.display())
        }
        _ => refused(path, &e),
    })
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
            let typed = path.as_os_str().as_encoded_bytes();
            return match () {
                () if chain.iter().any(system) => {
                    bail!("`{shown}` lies among the system's devices; name another place")
                }
                () if typed.ends_with(b"/") || typed.ends_with(b"/.") => {
                    bail!("`{shown}` is the name of a directory; name a file to write to")
                }
                () => Ok(Target::File(last)),
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
    let file = builder.tempfile_in(dir).map_err(|e| refused(path, &e))?;
    under_way(|files| files.push(file.path().to_owned()));
    Ok(file)
}

pub(crate) fn refused(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let remedy = remedy(error, "name a place that can be written to and has room");
    anyhow!("`{}` cannot be written: {error}; {remedy}", path.display())
}
