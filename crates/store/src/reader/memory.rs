//! Files in memory.

use std::io;

use super::ShardReader;

/// Reads from memory, for tests.
#[derive(Clone, Debug)]
pub struct MemoryReader {
    files: Vec<Vec<u8>>,
}

impl MemoryReader {
    /// Creates a reader of these files, in the order of the manifest's.
    pub fn new(files: Vec<Vec<u8>>) -> MemoryReader {
        MemoryReader { files }
    }
}

impl ShardReader for MemoryReader {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.files.get(file as usize).ok_or(io::ErrorKind::NotFound)?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let len = into.len().min(bytes.len() - from);
        into[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }
}
