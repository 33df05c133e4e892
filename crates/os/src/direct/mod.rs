//! Files whose reads and writes bypass the page cache.
//!
//! Offsets, lengths and addresses of memory must be multiples of an alignment, which 4096 satisfies on
//! every device. Some file systems accept the opening and refuse a read or write, with an error of kind
//! [`InvalidInput`](io::ErrorKind::InvalidInput).

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

use std::fs::File;
use std::io;
use std::path::Path;

#[cfg(unix)]
use unix as system;
#[cfg(windows)]
use windows as system;

/// Opens a regular file for reading at multiples of `align`, without waiting for a pipe in its place.
/// Anything else, and a file system that cannot do this, is an error of kind
/// [`InvalidInput`](io::ErrorKind::InvalidInput).
///
/// Read it by [`read_at`] only, from as many threads as reads shall be in flight.
pub fn open(path: &Path, align: usize) -> io::Result<File> {
    system::open(path, align)
}

/// Reads at an offset, and returns the number of bytes: fewer at the end of the file.
pub fn read_at(file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
    system::read_at(file, into, offset)
}

/// Creates or empties a file for writing. Write it by [`write_all_at`](crate::file::write_all_at).
pub fn create(path: &Path) -> io::Result<File> {
    system::create(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::ReservedPages;

    #[test]
    fn aligned_ranges_are_read_up_to_the_end() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("file");
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = match open(&path, 4096) {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => return,
            file => file.unwrap(),
        };
        let mut pages = ReservedPages::reserve(16_384, 4096).unwrap();
        let into = pages.as_mut_slice();
        assert_eq!(read_at(&file, &mut into[..8192], 4096).unwrap(), bytes.len() - 4096);
        assert!(into[..bytes.len() - 4096] == bytes[4096..]);
        assert_eq!(read_at(&file, &mut into[..4096], 1 << 20).unwrap(), 0);
    }
}
