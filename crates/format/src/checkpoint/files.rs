//! Reading parts of weight files, and sampling them for the fingerprint.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use sws_os::identity::FileIdentity;
use sws_os::{file, open};

use super::CheckpointError;

/// Number of samples that the fingerprint takes of each file. 64 reads of a page in each of a
/// hundred files take well below a second on NVMe, whatever the size of the checkpoint.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;

pub(super) fn open_regular(path: &Path) -> Result<(File, FileIdentity), CheckpointError> {
    let refused = CheckpointError::reading(path);
    let file = open::open_regular(path).map_err(refused)?;
    let about = FileIdentity::of(&file).map_err(refused)?;
    Ok((file, about))
}

pub(super) fn read_at(
    file: &File,
    path: &Path,
    len: u64,
    offset: u64,
) -> Result<Vec<u8>, CheckpointError> {
    let mut bytes = vec![0; len as usize];
    match file::read_exact_at(file, &mut bytes, offset) {
        Ok(()) => Ok(bytes),
        Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
            Err(CheckpointError::Changed { path: path.to_owned() })
        }
        Err(cause) => Err(CheckpointError::Read { path: path.to_owned(), cause }),
    }
}

/// Returns the (offset, length) of the fingerprint's samples in `len` bytes of data, spread evenly
/// from the first byte to the last.
pub(super) fn samples(len: u64) -> impl Iterator<Item = (u64, u64)> {
    let whole = len <= SAMPLES * SAMPLE_BYTES;
    let count = if whole { u64::from(len > 0) } else { SAMPLES };
    (0..count).map(move |i| {
        if whole {
            return (0, len);
        }
        let last = u128::from(len - SAMPLE_BYTES);
        ((last * u128::from(i) / u128::from(SAMPLES - 1)) as u64, SAMPLE_BYTES)
    })
}

/// Hashes the samples of the bytes of a file in `data`.
pub(super) fn hash_samples(
    hasher: &mut blake3::Hasher,
    file: &File,
    path: &Path,
    data: Range<u64>,
) -> Result<(), CheckpointError> {
    for (offset, len) in samples(data.end.saturating_sub(data.start)) {
        hasher.update(&read_at(file, path, len, data.start + offset)?);
    }
    Ok(())
}

/// Hashes the length before the bytes, so that no two sequences of strings hash alike.
pub(super) fn hash_with_len(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
}
