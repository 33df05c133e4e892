//! Learned from recordings of runs, for later runs: drafts, which forecast experts, and corrections
//! of the eviction policy.

pub mod draft;
pub mod eviction;
mod uses;

use std::io::{Read, Result};
use std::path::Path;

use sws_format::open_regular;

/// Reads a file of at most `most` bytes. `None` if it is longer.
fn read_within(path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
    let file = open_regular(path)?;
    let len = file.metadata()?.len();
    if len > most {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(len as usize);
    file.take(most).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
