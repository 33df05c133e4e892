//! Memory for reading a model's files, before there is a plan.

use std::path::Path;

use sws_engine::{RamBudget, memory};
use sws_model::text::TokenizerMemory;
use sws_store::{MANIFEST_FILE, SystemMemory};

use crate::{Error, Result};

/// Memory for reading a model's files, which is done before there is a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadingRoom {
    /// The budget in bytes.
    pub budget: u64,
    /// Bytes of it that are left beside the process as it is.
    pub left: u64,
}

/// Least memory for reading. With less no model runs, and its plan says so.
const LEAST_READING: u64 = 32 << 20;

impl ReadingRoom {
    /// The room in a budget. `None` for `min`, which follows from the files, and where the system reports
    /// no memory.
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
    /// Memory that it takes for certain.
    pub(crate) least: u64,
    /// Memory in which it can be read.
    pub(crate) memory: TokenizerMemory,
}

impl TokenizerReading {
    pub(super) fn exact(memory: TokenizerMemory) -> TokenizerReading {
        TokenizerReading { least: memory.peak, memory }
    }

    /// Memory of a file of which nothing but its length is known. It is read as a whole; what
    /// becomes of it takes less than twice as much, in all known vocabularies.
    pub(super) fn of_file(len: u64) -> TokenizerReading {
        TokenizerReading { least: len, memory: TokenizerMemory { held: len, peak: 3 * len } }
    }
}

/// Refuses a budget in which the manifest of a directory cannot be read: as a whole, before what it lists
/// is known.
pub(super) fn check_manifest(dir: &Path, ram: Option<RamBudget>) -> Result<()> {
    let path = dir.join(MANIFEST_FILE);
    let (Some(room), Ok(about)) = (ram.and_then(ReadingRoom::of), path.metadata()) else {
        return Ok(());
    };
    let len = about.len();
    let budget = room.budget;
    if len <= room.left {
        return Ok(());
    }
    let enough = memory().unwrap_or(0) + MANIFEST_PARTS * len;
    Err(Error::ManifestMemory { path, len, budget, enough })
}

/// Memory of a manifest while it is read, in parts of its length: its bytes, and what it lists.
const MANIFEST_PARTS: u64 = 2;
