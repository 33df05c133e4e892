//! Opening of untrusted files, of pipes, and of files for this user alone.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// Opens a regular file for reading; anything else (a pipe, a socket, a device, a directory) is an
/// error of kind [`InvalidInput`](io::ErrorKind::InvalidInput).
///
/// It never blocks. Opening a pipe would wait for a writer forever, and ignore signals. Checking
/// the file's type beforehand would leave time to replace the file by a pipe. So the file is opened
/// without waiting, which has no effect on a regular file, and its type is checked afterwards.
/// Symbolic links are followed.
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    let file = match system::without_waiting(path.as_ref()) {
        Err(e) if system::is_no_file(&e) => return Err(not_regular()),
        opened => opened?,
    };
    if system::is_regular(&file)? { Ok(file) } else { Err(not_regular()) }
}

fn not_regular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")
}

/// Opens a file that a user names: a regular one, or the stream of `/dev/stdin` or of a descriptor
/// in `/dev/fd`. Shells use such names for the output of a command (`<(..)`).
///
/// It never blocks. Reads from a stream block as usual.
pub fn open_named(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    match system::is_stream_name(path) {
        true => system::open_descriptor(path),
        false => open_regular(path),
    }
}

/// Opens a pipe, a character device or an open file of another program to append to it.
///
/// It never blocks: a pipe without a reader is an error of kind
/// [`NotConnected`](io::ErrorKind::NotConnected). Writes block as usual.
pub fn open_stream(path: impl AsRef<Path>) -> io::Result<File> {
    system::open_stream(path.as_ref())
}

/// Opens a regular file for reading. `None` if its name is a link, which is not followed.
pub fn open_unless_link(path: &Path) -> io::Result<Option<File>> {
    match no_link(File::options().read(true)).open(path) {
        Ok(file) if file.metadata()?.is_symlink() => Ok(None),
        Ok(file) if system::is_regular(&file)? => Ok(Some(file)),
        Ok(_) => Err(io::ErrorKind::InvalidInput.into()),
        Err(error) if is_link(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes an open neither follow a link in the last place of the path nor wait for the other end of a
/// pipe. What was opened may still be no regular file: ask its metadata.
pub fn no_link(options: &mut OpenOptions) -> &mut OpenOptions {
    system::no_link(options)
}

/// True if [`no_link`] refused a link.
pub fn is_link(error: &io::Error) -> bool {
    system::is_link(error)
}

/// Makes a created file readable by its user alone.
pub fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    system::private(options)
}

/// Creates a directory that only this user can access, and those above it.
pub fn create_private_dir(dir: &Path) -> io::Result<()> {
    system::create_private_dir(dir)
}

/// True if a directory, not a link to one, belongs to this user. It is then made private.
pub fn is_own_dir(dir: &Path) -> io::Result<bool> {
    system::is_own_dir(dir)
}

/// Where an open file lies, whatever links led there.
pub fn path_of(file: &File) -> io::Result<PathBuf> {
    system::path_of(file)
}

/// Returns standard output if `path` leads there and it is no device. A newly opened file would be
/// written from its beginning, over the output of other writers.
pub fn stdout_if(path: &Path) -> Option<File> {
    system::stdout_if(path)
}

/// True for pipes and character devices, which can be written only once.
pub fn is_stream(kind: &FileType) -> bool {
    system::is_pipe(kind) || system::is_character_device(kind)
}

/// True for a named pipe.
pub fn is_pipe(kind: &FileType) -> bool {
    system::is_pipe(kind)
}

/// True for paths in the system's own file systems, such as `/dev`.
pub fn is_of_the_system(path: &Path) -> bool {
    system::is_of_the_system(path)
}

/// Makes a symbolic link to a file or a directory.
pub fn symlink(original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
    system::symlink(original.as_ref(), link.as_ref())
}

/// Makes a named pipe, where there are files of this kind.
pub fn make_pipe(path: &Path) -> io::Result<()> {
    system::make_pipe(path)
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_blocks() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path();
        std::fs::write(dir.join("file"), b"bytes").unwrap();
        symlink("file", dir.join("link")).unwrap();
        make_pipe(&dir.join("pipe")).unwrap();
        let _socket = UnixListener::bind(dir.join("socket")).unwrap();

        for (name, opens) in [("file", true), ("link", true), ("pipe", false), ("socket", false)] {
            let opened = open_regular(dir.join(name));
            assert_eq!(opened.is_ok(), opens, "{name}");
            assert_eq!(open_named(dir.join(name)).is_ok(), opens, "{name}");
            if let Err(error) = opened {
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
            }
        }
        assert!(open_unless_link(&dir.join("link")).unwrap().is_none());
        assert!(open_unless_link(&dir.join("file")).unwrap().is_some());
        let unread = open_stream(dir.join("pipe")).unwrap_err();
        assert_eq!(unread.kind(), io::ErrorKind::NotConnected);
        for other in [dir, Path::new("/dev/null")] {
            assert_eq!(open_regular(other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let absent = open_regular(dir.join("absent")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn open_streams_are_read_by_their_descriptors() {
        let dirs = ["/dev/fd", "/proc/self/fd"].into_iter().filter(|dir| Path::new(dir).exists());
        for dir in dirs {
            let (from, mut to) = io::pipe().unwrap();
            let mut opened = open_named(format!("{dir}/{}", from.as_raw_fd())).unwrap();
            // A read waits for what is written later.
            let writer = std::thread::spawn(move || {
                #[expect(clippy::disallowed_methods, reason = "the system's time")]
                std::thread::sleep(std::time::Duration::from_millis(50));
                to.write_all(b"bytes").unwrap();
            });
            let mut text = String::new();
            opened.read_to_string(&mut text).unwrap();
            writer.join().unwrap();
            assert_eq!(text, "bytes");
        }
        assert!(open_named("/dev/fd/999999").is_err());
    }
}
