//! The bundled model with enlarged experts, as a checkpoint and as shards.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sws_format::open_checkpoint;
use sws_kernels::Encoding;
use sws_shard::{ShardOptions, shard, unshard};

use crate::inflate::{Neurons, inflate};

/// Makes `checkpoint` (bf16) and `shards` (bf12) in `dir` from the shards `tales`, with experts of
/// at least `expert_bytes`. With `stand_ins`, also makes the directory `stand-ins`, whose shards
/// include them.
pub fn make(tales: &Path, dir: &Path, expert_bytes: u64, stand_ins: bool) -> Result<()> {
    let checkpoint = make_checkpoint(tales, dir, expert_bytes)?;
    make_shards(&checkpoint, &dir.join("shards"), &ShardOptions::default())?;
    if stand_ins {
        let options = ShardOptions { stand_ins: Some(Encoding::Q4), ..ShardOptions::default() };
        make_shards(&checkpoint, &dir.join("stand-ins"), &options)?;
    }
    Ok(())
}

/// Makes `checkpoint` in `dir` unless it exists, and returns its path.
pub fn make_checkpoint(tales: &Path, dir: &Path, expert_bytes: u64) -> Result<PathBuf> {
    let small = dir.join("small");
    let checkpoint = dir.join("checkpoint");
    if !checkpoint.join("config.json").exists() {
        unshard(tales, &small, false, None, &|_| ())
            .with_context(|| format!("`{}`", tales.display()))?;
        inflate(&small, expert_bytes, &checkpoint, 1 << 30, (0, Neurons::Scattered))?;
        std::fs::remove_dir_all(&small)?;
    }
    Ok(checkpoint)
}

/// Shards a checkpoint unless `out` exists.
pub fn make_shards(checkpoint: &Path, out: &Path, options: &ShardOptions) -> Result<()> {
    if out.join("manifest.json").exists() {
        return Ok(());
    }
    let source = open_checkpoint(checkpoint, None)?;
    let naming = sws_model::naming(source.config())?;
    shard(&*source, &*naming, out, options, &|_| ())?;
    Ok(())
}
