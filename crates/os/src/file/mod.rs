//! Reads and writes at positions, advice, and space within files.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::time::SystemTime;

use memmap2::MmapOptions;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// Reads at an offset, and returns the number of bytes: fewer at the end of the file, or after a signal.
pub fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    system::read_at(file, into, offset)
}

/// Fills `into` from an offset. The end of the file is an error of kind
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof).
pub fn read_exact_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < into.len() {
        match read_at(file, &mut into[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all bytes at an offset.
pub fn write_all_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match system::write_at(file, bytes, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => (bytes, offset) = (&bytes[count..], offset + count as u64),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Copies a range of a file out of a mapping that lasts as long. The range must lie within the file: if
/// another process shortens it meanwhile, this one may be killed.
pub fn copy_mapped(file: &File, into: &mut [u8], offset: u64) -> io::Result<()> {
    // SAFETY: the map is local to this function and read only. What happens to a file that shrinks is
    // described above.
    let map = unsafe { MmapOptions::new().offset(offset).len(into.len()).populate().map(file)? };
    into.copy_from_slice(&map);
    Ok(())
}

/// Drops bytes of a file from the page cache, which may count against the process's memory: `len` of them,
/// or all after the offset.
///
/// Advice only: where the system does not take it, the pages stay until it reclaims them.
pub fn forget(file: &File, offset: u64, len: Option<u64>) {
    system::forget(file, offset, len);
}

/// Switches readahead off, which would load pages that are neither requested nor dropped. Advice only.
pub fn read_at_random(file: &File) {
    system::read_at_random(file);
}

/// Allocates the space of a file's first `len` bytes. A full disk is an error of kind
/// [`StorageFull`](io::ErrorKind::StorageFull); not every file system can do this.
pub fn allocate(file: &File, len: u64) -> io::Result<()> {
    system::allocate(file, len)
}

/// Frees the space of a range, which then reads as zeros. The file keeps its length.
pub fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    system::punch(file, offset, len)
}

/// Prepares a new file for ranges that are never written, where this has to be said.
pub fn make_sparse(file: &File) -> io::Result<()> {
    system::make_sparse(file)
}

/// Space that a file takes on its disk.
pub fn allocated(path: &Path, about: &Metadata) -> u64 {
    system::allocated(path, about)
}

/// Sets the modification time of a file to now, as its file system has it.
pub fn touch(file: &File) -> io::Result<()> {
    system::touch(file)
}

/// Sets the modification time of a file or a link, which is not followed: to now if none is given.
pub fn set_modified(path: &Path, time: Option<SystemTime>) -> io::Result<()> {
    system::set_modified(path, time)
}

/// Writes a directory's list of names to the disk, where directories can be synced.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    system::sync_dir(dir)
}

/// Gives a file the name of another, which is gone then.
pub(crate) fn replace(from: &Path, to: &Path) -> io::Result<()> {
    system::replace(from, to)
}

/// Removes a file, a link or an empty directory.
pub fn remove_any(path: &Path) -> io::Result<()> {
    let kind = path.symlink_metadata()?.file_type();
    match kind.is_dir() || system::is_link_to_dir(&kind) {
        true => std::fs::remove_dir(path),
        false => std::fs::remove_file(path),
    }
}

/// True for errors of the file itself, as opposed to those of limits and rights.
pub fn is_damage(error: &io::Error) -> bool {
    system::is_damage(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_written_read_and_freed() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        make_sparse(&file).unwrap();
        file.set_len(3 << 20).unwrap();
        write_all_at(&file, &[7; 1 << 20], 1 << 20).unwrap();
        let mut found = [0; 3];
        read_exact_at(&file, &mut found, (2 << 20) - 2).unwrap();
        assert_eq!(found, [7, 7, 0]);
        let beyond = read_exact_at(&file, &mut found, (3 << 20) - 2).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read_at(&file, &mut found, 9 << 20).unwrap(), 0);
        copy_mapped(&file, &mut found, (1 << 20) - 1).unwrap();
        assert_eq!(found, [0, 7, 7]);
        // Not every file system can do this.
        if punch(&file, 1 << 20, 1 << 20).is_ok() {
            read_exact_at(&file, &mut found, 1 << 20).unwrap();
            assert_eq!(found, [0; 3]);
        }
        assert_eq!(file.metadata().unwrap().len(), 3 << 20);
    }
}
