//! Opening of untrusted files, and of pipes, without blocking.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a regular file for reading; anything else (a pipe, a socket, a device, a directory) is an
/// error of kind [`InvalidInput`](io::ErrorKind::InvalidInput).
///
/// It never blocks. Opening a pipe would wait for a writer forever, and ignore signals. Checking
/// the file's type beforehand would leave time to replace the file by a pipe. So the file is opened
/// with `O_NONBLOCK`, which has no effect on a regular file, and its type is checked afterwards.
/// Symbolic links are followed.
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
    let opened = rustix::fs::open(path.as_ref(), flags, Mode::empty());
    // The errors of a socket, and of a device without a driver.
    let file = File::from(opened.map_err(|e| match e {
        rustix::io::Errno::NXIO | rustix::io::Errno::NODEV => refused(),
        other => other.into(),
    })?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused()) }
}

/// Opens a file that a user names: a regular one, or the stream of `/dev/stdin` or of a descriptor
/// in `/dev/fd`. Shells use such names for the output of a command (`<(..)`).
///
/// It never blocks. Reads from a stream block as usual.
pub fn open_named(path: impl AsRef<Path>) -> io::Result<File> {
    let path = path.as_ref();
    let is_below = |dir: &str| path.parent() == Some(Path::new(dir));
    if path != "/dev/stdin" && !is_below("/dev/fd") && !is_below("/proc/self/fd") {
        return open_regular(path);
    }
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags | OFlags::NONBLOCK, Mode::empty())?;
    rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
    Ok(fd.into())
}

/// Opens a pipe, a character device or an open file of another program to append to it.
///
/// It never blocks: a pipe without a reader is an error of kind
/// [`NotConnected`](io::ErrorKind::NotConnected). Writes block as usual.
pub fn open_stream(path: impl AsRef<Path>) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path.as_ref(), flags | OFlags::NONBLOCK, Mode::empty());
    let fd = opened.map_err(|e| match e {
        rustix::io::Errno::NXIO => io::ErrorKind::NotConnected.into(),
        other => io::Error::from(other),
    })?;
    rustix::fs::fcntl_setfl(&fd, OFlags::APPEND)?;
    Ok(fd.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_nothing_blocks() {
        let dir = std::env::temp_dir().join(format!("sws-regular-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("file"), b"bytes").unwrap();
        std::os::unix::fs::symlink("file", dir.join("link")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, dir.join("pipe"), rustix::fs::FileType::Fifo, mode, 0)
            .unwrap();
        let _socket = UnixListener::bind(dir.join("socket")).unwrap();

        for (name, opens) in [("file", true), ("link", true), ("pipe", false), ("socket", false)] {
            let opened = open_regular(dir.join(name));
            assert_eq!(opened.is_ok(), opens, "{name}");
            assert_eq!(open_named(dir.join(name)).is_ok(), opens, "{name}");
            if let Err(error) = opened {
                assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
            }
        }
        let unread = open_stream(dir.join("pipe")).unwrap_err();
        assert_eq!(unread.kind(), io::ErrorKind::NotConnected);
        for other in [dir.as_path(), Path::new("/dev/null")] {
            assert_eq!(open_regular(other).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        let absent = open_regular(dir.join("absent")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        std::fs::remove_dir_all(&dir).unwrap();
    }
    #[test]
    fn open_streams_are_read_by_their_descriptors() {
        for dir in ["/dev/fd", "/proc/self/fd"] {
            let (from, mut to) = io::pipe().unwrap();
            let mut opened = open_named(format!("{dir}/{}", from.as_raw_fd())).unwrap();
            // A read waits for what is written later.
            let writer = std::thread::spawn(move || {
                crate::Clock::real().sleep(std::time::Duration::from_millis(50));
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
