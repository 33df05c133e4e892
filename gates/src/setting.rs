//! Settings shared by all gates.

use std::cell::OnceCell;
use std::path::PathBuf;

use anyhow::Result;

use crate::models::Large;

/// Settings shared by all gates.
pub(crate) struct Setting {
    pub(crate) full: bool,
    pub(crate) only: Option<String>,
    pub(crate) scratch: PathBuf,
    pub(crate) large: OnceCell<Large>,
}

impl Setting {
    /// True if this case is selected.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.only.as_ref().is_none_or(|words| case.contains(words))
    }

    /// The model that is far larger than the process, made on first use.
    pub(crate) fn large(&self) -> Result<&Large> {
        if let Some(large) = self.large.get() {
            return Ok(large);
        }
        let expert_bytes = if self.full { 14 << 20 } else { 2 << 20 };
        let large = Large::make(&self.scratch, expert_bytes)?;
        Ok(self.large.get_or_init(|| large))
    }

    /// Path of the large model in a form: `shards`, or `in place`.
    pub(crate) fn model(&self, form: &str) -> Result<PathBuf> {
        let large = self.large()?;
        Ok(if form == "shards" { large.shards() } else { large.checkpoint() })
    }
}

/// Formats bytes for readers.
pub(crate) fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}
