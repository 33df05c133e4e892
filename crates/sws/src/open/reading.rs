//! Memory for reading a model's files, before there is a plan.

use std::path::Path;

use sws_engine::{RamBudget, memory};
use sws_format::MANIFEST_FILE;
use sws_store::SystemMemory;
use sws_text::TokenizerMemory;

use crate::{Error, Result};

/// Memory for reading a model's files, which is done before there is a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadingRoom {
    /// The budget in bytes.
    pub budget: u64,
    /// Bytes of the budget that the process does not use yet.
    pub left: u64,
}

/// Minimum memory for reading. A budget that leaves less cannot run any model, and the error comes
/// from its plan.
const LEAST_READING: u64 = 32 << 20;

impl ReadingRoom {
    /// The memory for reading in a budget. `None` for `min`, which depends on the files, and where
    /// the system reports no memory.
    pub fn of(ram: RamBudget) -> Option<ReadingRoom> {
        let SystemMemory { total, available, .. } = SystemMemory::now()?;
        if ram == RamBudget::Min {
            return None;
        }
        let budget = ram.resolve(total, available, 0);
        let left = budget.saturating_sub(memory().unwrap_or(0)).max(LEAST_READING);
        Some(ReadingRoom { budget, left })
    }
}

/// Memory of a tokenizer that is about to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenizerReading {
    /// Minimum memory of reading it.
    pub(crate) least: u64,
    /// Memory that suffices for reading it.
    pub(crate) memory: TokenizerMemory,
}

impl TokenizerReading {
    pub(super) fn exact(memory: TokenizerMemory) -> TokenizerReading {
        TokenizerReading { least: memory.peak, memory }
    }

    /// Memory for reading a file of which only the length is known. The file is read as a whole,
    /// and the parsed contents take less than twice as much in all known vocabularies.
    pub(super) fn of_file(len: u64) -> TokenizerReading {
        TokenizerReading { least: len, memory: TokenizerMemory { held: len, peak: 3 * len } }
    }
}

/// Refuses a budget in which the manifest of a directory cannot be read. It is read as a whole,
/// before its contents are known.
pub(super) fn check_manifest(dir: &Path, ram: Option<RamBudget>) -> Result<()> {
    let path = dir.join(MANIFEST_FILE);
    let Some(room) = ram.and_then(ReadingRoom::of) else { return Ok(()) };
    let Ok(about) = path.metadata() else { return Ok(()) };
    let len = about.len();
    let budget = room.budget;
    if len <= room.left {
        return Ok(());
    }
    let enough = memory().unwrap_or(0) + MANIFEST_PARTS * len;
    Err(Error::ManifestMemory { path, len, budget, enough })
}

/// Memory for reading a manifest, in multiples of its length: its bytes, and its parsed contents.
const MANIFEST_PARTS: u64 = 2;
