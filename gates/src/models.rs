//! Models used by the gates: tiny ones of every family, and one that is far larger than the
//! process.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use sws_benchmarks::large;
use sws_shard::ShardOptions;
use sws_testing::tales;
use tempfile::TempDir;

/// The bundled model with its experts enlarged.
#[derive(Debug)]
pub(crate) struct Large {
    dir: PathBuf,
    /// Deleted on drop.
    _temp: Option<TempDir>,
}

impl Large {
    /// Makes a model with experts of at least `expert_bytes` in a new directory below `scratch`.
    pub(crate) fn make(scratch: &Path, expert_bytes: u64) -> Result<Large> {
        std::fs::create_dir_all(scratch)?;
        let temp = TempDir::with_prefix_in("gates-", scratch)?;
        let large = Large { dir: temp.path().to_owned(), _temp: Some(temp) };
        large::make(&tales(), &large.dir, expert_bytes, false)?;
        Ok(large)
    }

    /// Opens an existing model.
    pub(crate) fn at(dir: &Path) -> Result<Large> {
        let large = Large { dir: dir.to_owned(), _temp: None };
        for part in [large.checkpoint(), large.shards()] {
            ensure!(
                part.join("config.json").exists(),
                "`{}` has no model; make one there with `sws-bench inflate` and `sws shard`",
                part.display()
            );
        }
        Ok(large)
    }

    /// The checkpoint as published: bf16, in place.
    pub(crate) fn checkpoint(&self) -> PathBuf {
        self.dir.join("checkpoint")
    }

    /// The model in shards, without loss.
    pub(crate) fn shards(&self) -> PathBuf {
        self.dir.join("shards")
    }
}

/// Shards a checkpoint in the default encoding.
pub(crate) fn make_shards(checkpoint: &Path, out: &Path) -> Result<()> {
    large::make_shards(checkpoint, out, &ShardOptions::default())
}
