//! Free disk space.

use std::path::Path;

use crate::HubError;

/// Bytes free on the disk of `dir`, which need not exist yet. `None` for a file system that does not
/// report them.
pub fn free_space(dir: &Path) -> Result<Option<u64>, HubError> {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let existing = absolute.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    sws_os::space::free(existing).map_err(HubError::reading(existing))
}

/// Fails if the disk of `dir`, which need not exist yet, has less than `needed` bytes free.
pub fn check_space(dir: &Path, needed: u64) -> Result<(), HubError> {
    match free_space(dir)? {
        Some(free) if free < needed => Err(HubError::Space { dir: dir.to_owned(), needed, free }),
        _ => Ok(()),
    }
}
