//! Output files that appear once they are complete.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{anyhow, bail};
use sws_format::{open_stream, remedy};
use sws_os::open::{is_of_the_system, is_pipe, is_stream, stdout_if};
use sws_os::replace::Replacement;
use tempfile::TempDir;

/// Limit of symbolic links followed, as in the kernel.
const MOST_LINKS: usize = 40;

/// Temporary files, and directories behind their files, to remove when the program exits without
/// running destructors.
static UNDER_WAY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Output file that stays hidden until it is complete.
pub(crate) struct AtomicFile {
    file: PendingOutput,
    /// The path that was typed.
    path: PathBuf,
}

enum PendingOutput {
    /// Temporary file that replaces the file `target` atomically.
    Replace { file: Replacement, target: PathBuf },
    /// Anonymous file that is copied to a pipe or a device, which can be written only once.
    Stream { file: File, stream: File, is_stdout: bool },
}

/// Destination of an output, with links resolved.
#[derive(Debug)]
enum OutputTarget {
    /// A regular file, existing or not.
    File(PathBuf),
    /// A pipe, a character device, or a file that another program has open: written to, never
    /// replaced.
    Stream,
}

impl AtomicFile {
    /// Begins an output to `path`, following symbolic links. Refuses an unwritable path before
    /// anything is computed for it.
    pub(crate) fn create(path: &Path) -> anyhow::Result<AtomicFile> {
        let file = match target(path)? {
            OutputTarget::File(target) => {
                PendingOutput::Replace { file: beside(path, &target)?, target }
            }
            OutputTarget::Stream => {
                let (stream, is_stdout) = match stdout_if(path) {
                    Some(stdout) => (stdout, true),
                    None => (opened(path)?, false),
                };
                let file = tempfile::tempfile().map_err(refusal(&std::env::temp_dir()))?;
                PendingOutput::Stream { file, stream, is_stdout }
            }
        };
        Ok(AtomicFile { file, path: path.to_owned() })
    }

    /// Creates a temporary file in the same place, which is removed when dropped.
    pub(crate) fn beside(&self) -> anyhow::Result<File> {
        match &self.file {
            PendingOutput::Replace { file, .. } => {
                let dir = file.path().parent().unwrap_or(Path::new("."));
                tempfile::tempfile_in(dir).map_err(refusal(&self.path))
            }
            PendingOutput::Stream { .. } => tempfile::tempfile().map_err(refusal(&self.path)),
        }
    }

    /// True if the output goes to standard output, which must then hold nothing else.
    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self.file, PendingOutput::Stream { is_stdout: true, .. })
    }

    /// True if the output goes to a pipe or a device, once.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.file, PendingOutput::Stream { .. })
    }

    /// Like [`create`](Self::create), but refuses standard output, which holds other output.
    pub(crate) fn create_apart(path: &Path) -> anyhow::Result<AtomicFile> {
        if path == Path::new("-") {
            bail!("`-` is standard output, which holds the answer; name a file, as in `./-`");
        }
        let file = AtomicFile::create(path)?;
        if file.is_stdout() {
            bail!("`{}` is standard output, which holds the answer; name a file", path.display());
        }
        Ok(file)
    }

    /// True if both would replace the same file.
    pub(crate) fn is_same(&self, other: &AtomicFile) -> bool {
        match (&self.file, &other.file) {
            (
                PendingOutput::Replace { target: a, .. },
                PendingOutput::Replace { target: b, .. },
            ) => a == b,
            _ => false,
        }
    }

    /// Refuses to replace an input: a file, or one within a directory.
    pub(crate) fn check_apart(&self, input: &Path) -> anyhow::Result<()> {
        let PendingOutput::Replace { target, .. } = &self.file else { return Ok(()) };
        if let Ok(target) = target.canonicalize()
            && let Ok(input) = input.canonicalize()
            && target.starts_with(input)
        {
            bail!(
                "`{}` is an input of this command, or lies among the files of its model; name another file",
                self.path.display()
            );
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.file.get().write_all(bytes);
        written.map_err(refusal(&self.path))
    }

    /// Writes what `contents` writes, in small parts.
    pub(crate) fn write_by(
        &mut self,
        contents: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = BufWriter::new(self.file.get());
        contents(&mut out).map_err(refusal(&self.path))?;
        out.flush().map_err(refusal(&self.path))
    }

    /// Appends the contents of another file.
    pub(crate) fn append(&mut self, mut other: File) -> anyhow::Result<()> {
        copy(&mut other, self.file.get()).map_err(refusal(&self.path))
    }

    /// Overwrites the beginning of the file.
    pub(crate) fn rewrite(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let file = self.file.get();
        file.seek(SeekFrom::Start(0)).map_err(refusal(&self.path))?;
        file.write_all(bytes).map_err(refusal(&self.path))
    }

    pub(crate) fn publish(self) -> anyhow::Result<()> {
        let path = self.path;
        match self.file {
            PendingOutput::Replace { file, .. } => {
                let at = file.path().to_owned();
                file.publish().map_err(refusal(&path))?;
                under_way().retain(|file| *file != at);
            }
            PendingOutput::Stream { mut file, mut stream, .. } => {
                copy(&mut file, &mut stream).map_err(refusal(&path))?;
            }
        }
        Ok(())
    }
}

impl PendingOutput {
    fn get(&mut self) -> &mut File {
        match self {
            PendingOutput::Replace { file, .. } => file.file(),
            PendingOutput::Stream { file, .. } => file,
        }
    }
}

/// A temporary directory, which is removed when it is dropped, or by [`remove_all`] if it has files of
/// the given names only.
#[derive(Debug)]
pub(crate) struct TemporaryDir(TempDir);

impl TemporaryDir {
    #[cfg_attr(not(feature = "pull"), expect(dead_code, reason = "the hub is not asked"))]
    pub(crate) fn for_files<'a>(
        names: impl Iterator<Item = &'a str>,
    ) -> anyhow::Result<TemporaryDir> {
        let at = std::env::temp_dir();
        let dir = tempfile::tempdir_in(&at).map_err(refusal(&at))?;
        let path = dir.path();
        let mut files = under_way();
        for name in names {
            files.push(path.join(name));
        }
        files.push(path.to_owned());
        Ok(TemporaryDir(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for TemporaryDir {
    fn drop(&mut self) {
        under_way().retain(|file| !file.starts_with(self.0.path()));
    }
}

/// Removes unfinished files when the program exits without running destructors. Allocates nothing.
pub(crate) fn remove_all() {
    if let Ok(files) = UNDER_WAY.try_lock() {
        for path in &*files {
            if std::fs::remove_file(path).is_err() {
                let _ = std::fs::remove_dir(path);
            }
        }
    }
}

fn under_way() -> MutexGuard<'static, Vec<PathBuf>> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Appends all of a file to another.
fn copy(from: &mut File, to: &mut File) -> std::io::Result<()> {
    from.seek(SeekFrom::Start(0))?;
    std::io::copy(from, to)?;
    Ok(())
}

fn opened(path: &Path) -> anyhow::Result<File> {
    let error = match open_stream(path) {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    if error.kind() == ErrorKind::NotConnected
        && let Ok(about) = path.metadata()
        && is_pipe(&about.file_type())
    {
        bail!("`{}` is a pipe that nothing reads; start its reader first", path.display());
    }
    Err(refused(path, &error))
}

fn target(path: &Path) -> anyhow::Result<OutputTarget> {
    let shown = path.display();
    let chain = links(path).map_err(refusal(path))?;
    let passes_system = chain.iter().any(|path| is_of_the_system(path));
    let last = chain.last().map_or(path, PathBuf::as_path).to_owned();
    let kind = match path.metadata() {
        Ok(there) => there.file_type(),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let typed = path.as_os_str().as_encoded_bytes();
            return match () {
                () if passes_system => {
                    bail!("`{shown}` lies among the system's devices; name another place")
                }
                () if typed.ends_with(b"/") || typed.ends_with(b"/.") => {
                    bail!("`{shown}` is the name of a directory; name a file to write to")
                }
                () => Ok(OutputTarget::File(last)),
            };
        }
        Err(e) => return Err(refused(path, &e)),
    };
    match () {
        () if kind.is_dir() => bail!("`{shown}` is a directory; name a file to write to"),
        () if is_stream(&kind) => Ok(OutputTarget::Stream),
        () if !kind.is_file() => bail!("`{shown}` is not a regular file; name one to write to"),
        // `/dev/stdout` and the like, redirected to a file: other programs may write to that, too.
        () if passes_system && !is_of_the_system(&last) => Ok(OutputTarget::Stream),
        () if is_of_the_system(&last) => {
            bail!("`{shown}` is a file of the system, which is never replaced; name another place")
        }
        () => Ok(OutputTarget::File(last)),
    }
}

/// The path and the target of each link in turn, with every directory resolved.
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

fn beside(path: &Path, target: &Path) -> anyhow::Result<Replacement> {
    let file = Replacement::begin(target).map_err(refusal(path))?;
    under_way().push(file.path().to_owned());
    Ok(file)
}

/// Converts the failure of writing `path`, for `map_err`.
pub(crate) fn refusal(path: &Path) -> impl FnOnce(std::io::Error) -> anyhow::Error {
    move |error| refused(path, &error)
}

pub(crate) fn refused(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let remedy = remedy(error, "name a place that can be written to and has room");
    anyhow!("`{}` cannot be written: {error}; {remedy}", path.display())
}
