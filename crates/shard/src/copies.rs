//! Copies of the checkpoint's small files beside the shards.

use std::path::Path;

use sws_format::{Checkpoint, CopiedFile, SmallFileError};
use sws_os::file::is_damage;

use super::ShardError;
use super::outdir::OutDir;
use super::verify::unreadable;

/// Copies the small files of these names into the shard directory.
pub(super) fn copy(
    checkpoint: &dyn Checkpoint,
    names: &[String],
    to: &OutDir,
) -> Result<Vec<CopiedFile>, ShardError> {
    let mut copies = Vec::with_capacity(names.len());
    for name in names {
        let bytes = checkpoint.read_small(name)?;
        to.clear(name)?;
        to.write_small(name, &bytes)?;
        let blake3 = blake3::hash(&bytes).to_hex().to_string();
        copies.push(CopiedFile { path: name.clone(), len: bytes.len() as u64, blake3 });
    }
    Ok(copies)
}

/// Copies the small files back into a checkpoint, unchanged.
pub(super) fn copy_back(copies: &[CopiedFile], from: &Path, to: &OutDir) -> Result<(), ShardError> {
    for copy in copies {
        let bytes = match copy.read(from) {
            Ok(bytes) => bytes,
            Err(error) => {
                let path = from.join(&copy.path);
                let what = damage(error, false)?;
                return Err(ShardError::DamagedCopy { path, what });
            }
        };
        to.write_small(&copy.path, &bytes)?;
    }
    Ok(())
}

/// Describes the damage of a copy, as the end of a sentence that begins with its name. Fails if the system refused the
/// read, unless that counts as damage.
pub(super) fn damage(error: SmallFileError, refused_is_damage: bool) -> Result<String, ShardError> {
    Ok(match error {
        SmallFileError::Missing { .. } => "is missing".to_owned(),
        SmallFileError::NotAFile { .. } => "is not a regular file".to_owned(),
        SmallFileError::Length { expected, found, .. } => {
            format!("has {found} bytes instead of {expected}")
        }
        SmallFileError::Read { path, cause } if !refused_is_damage && !is_damage(&cause) => {
            return Err(ShardError::reading(&path)(cause));
        }
        SmallFileError::Read { cause, .. } => unreadable(&cause),
        _ => "is damaged".to_owned(),
    })
}
