//! Data in the program's own file, read without bringing it into memory.

use std::io;

/// A run of bytes of this program, such as those of `include_bytes!`.
#[derive(Debug)]
pub struct OwnBytes {
    #[cfg(target_os = "linux")]
    program: std::fs::File,
    /// Offset in the program's file.
    #[cfg(target_os = "linux")]
    offset: u64,
    /// Pages of a program count for nobody elsewhere, so they may be read where they are.
    #[cfg(not(target_os = "linux"))]
    bytes: &'static [u8],
}

#[cfg(target_os = "linux")]
impl OwnBytes {
    /// Finds bytes in the program's file, from the place of its memory.
    pub fn of(bytes: &'static [u8]) -> io::Result<OwnBytes> {
        let address = bytes.as_ptr() as u64;
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        let Some(offset) = maps.lines().find_map(|line| offset_in(line, address)) else {
            return Err(io::Error::other("the program does not find its own file"));
        };
        Ok(OwnBytes { program: std::fs::File::open("/proc/self/exe")?, offset })
    }

    /// Reads bytes from a place among them.
    pub fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        crate::file::read_exact_at(&self.program, into, self.offset + at)
    }
}

/// Offset of an address in the file of a mapping, unless the mapping does not contain it.
#[cfg(target_os = "linux")]
fn offset_in(mapping: &str, address: u64) -> Option<u64> {
    // 7f00-7f20 r--p 00001000 fe:00 1234 /usr/bin/sws
    let mut words = mapping.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    if (start..end).contains(&address) { Some(address - start + offset) } else { None }
}

#[cfg(not(target_os = "linux"))]
impl OwnBytes {
    /// Finds bytes of the program.
    pub fn of(bytes: &'static [u8]) -> io::Result<OwnBytes> {
        Ok(OwnBytes { bytes })
    }

    /// Reads bytes from a place among them.
    pub fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..)?.get(..into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
