//! The bytes of a private file: a magic number, the contents, and a checksum of name and contents.

use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::path::Path;

use super::device::{BlobDevice, BlobWriter};
use super::name::BlobName;

const MAGIC: &[u8; 8] = b"swsblob1";
const SUM: usize = 32;
/// Bytes of a file in addition to its contents.
pub(super) const FRAME: u64 = (MAGIC.len() + SUM) as u64;
/// Bytes that are read or written at once.
const BUFFER: usize = 64 << 10;

/// Function that writes the contents of a file. It is called twice, and must write the same both
/// times.
pub(super) type Contents<'a> = &'a mut dyn FnMut(&mut dyn Write) -> io::Result<()>;

/// Result of reading a file.
pub(super) enum BlobContents {
    /// The file was read, and is intact.
    Whole,
    /// The file is damaged, or its contents were refused.
    Damaged,
}

/// Bytes of the contents.
pub(super) fn size(contents: Contents<'_>) -> io::Result<u64> {
    let mut size = ByteCount(0);
    contents(&mut size)?;
    Ok(size.0)
}

/// Writes a file with contents of `size` bytes.
pub(super) fn write(
    device: &dyn BlobDevice,
    path: &Path,
    name: &BlobName,
    size: u64,
    contents: Contents<'_>,
) -> io::Result<()> {
    let inner = BufWriter::with_capacity(BUFFER, device.create(path)?);
    let mut to = Summed { inner, sum: sum(name, size) };
    to.inner.write_all(MAGIC)?;
    contents(&mut to)?;
    let Summed { mut inner, sum } = to;
    inner.write_all(sum.finalize().as_bytes())?;
    inner.flush()?;
    inner.get_mut().finish()
}

/// Reads a file that should have `len` bytes. `contents` gets a reader of the contents, and has to
/// read all of them. The result is valid only once this returns [`BlobContents::Whole`].
pub(super) fn read(
    device: &dyn BlobDevice,
    path: &Path,
    (name, len): (&BlobName, u64),
    contents: &mut dyn FnMut(&mut dyn Read) -> io::Result<()>,
) -> io::Result<BlobContents> {
    let (mut file, found) = device.open(path)?;
    let Some(size) = len.checked_sub(FRAME).filter(|_| found == len) else {
        return Ok(BlobContents::Damaged);
    };
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Ok(BlobContents::Damaged);
    }
    let inner = BufReader::with_capacity(BUFFER, file);
    let mut from = Checked { inner, left: size, sum: sum(name, size), failed: None };
    let read = contents(&mut from);
    if let Some(error) = from.failed {
        return Err(error);
    }
    if read.is_err() || from.left > 0 {
        return Ok(BlobContents::Damaged);
    }
    let mut expected = [0; SUM];
    from.inner.read_exact(&mut expected)?;
    Ok(if from.sum.finalize() == expected { BlobContents::Whole } else { BlobContents::Damaged })
}

/// The state of the checksum before the contents. It covers the name and the size.
fn sum(name: &BlobName, size: u64) -> blake3::Hasher {
    let mut sum = blake3::Hasher::new();
    sum.update(&(SUM as u64).to_le_bytes()).update(name.bytes()).update(&size.to_le_bytes());
    sum
}

struct ByteCount(u64);

impl Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Summed {
    inner: BufWriter<Box<dyn BlobWriter>>,
    sum: blake3::Hasher,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write_all(bytes)?;
        self.sum.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

struct Checked<R> {
    inner: R,
    left: u64,
    sum: blake3::Hasher,
    /// An error of the device.
    failed: Option<io::Error>,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = usize::try_from(self.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        match self.inner.read(&mut bytes[..len]) {
            // The file was longer when it was opened.
            Ok(0) if len > 0 => {
                self.failed = Some(ErrorKind::UnexpectedEof.into());
                Ok(0)
            }
            Ok(read) => {
                self.sum.update(&bytes[..read]);
                self.left -= read as u64;
                Ok(read)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let kind = error.kind();
                self.failed = Some(error);
                Err(kind.into())
            }
        }
    }
}
