//! Checkpoints of random weights in the shapes of published models.

use std::path::Path;

use anyhow::Result;
use rayon::prelude::*;

use crate::checkpoint::{Output, PlannedTensor};
use crate::gaussian::{Gaussian, mix, stream};
use crate::shapes::Shape;

/// Bytes that one task of the thread pool fills.
const TASK: usize = 256 << 10;

/// Writes a checkpoint of this shape into the new directory `out`.
///
/// The same shape and seed give the same bytes anywhere. Files hold at most `file_bytes`.
pub fn write_random(shape: &Shape, out: &Path, file_bytes: u64, seed: u64) -> Result<()> {
    let output = Output::create(out)?;
    output.file("config.json", &serde_json::to_vec_pretty(&shape.config())?)?;
    let generation = serde_json::to_vec_pretty(&shape.generation_config())?;
    output.file("generation_config.json", &generation)?;
    let tensors = shape.tensors();
    let mut current = None;
    output.tensors("random", &tensors, file_bytes, |index, offset, chunk| {
        let (key, gaussian) = match &current {
            Some((i, key, gaussian)) if *i == index => (*key, gaussian),
            _ => {
                let key = stream(seed, &tensors[index].name);
                let fresh = current.insert((index, key, distribution(&tensors[index], key)));
                (key, &fresh.2)
            }
        };
        chunk.par_chunks_mut(TASK).enumerate().for_each(|(i, part)| {
            gaussian.fill(key, (offset + (i * TASK) as u64) / 2, part);
        });
        Ok(())
    })?;
    output.finish()
}

/// Distribution that keeps a deep random model's activations near 1: matrices are scaled by their
/// fan-in, and vary a little from one to the next as trained ones do.
fn distribution(tensor: &PlannedTensor, key: u64) -> Gaussian {
    let varied = 0.75 + mix(key, u64::MAX) as f32 / u64::MAX as f32 * 0.5;
    match tensor.shape[..] {
        [_] if tensor.name.ends_with("norm.weight") => Gaussian::new(1.0, 0.1),
        [_, _] if tensor.name.ends_with("embed_tokens.weight") => Gaussian::new(0.0, 1.0),
        [_, cols] => Gaussian::new(0.0, varied / (cols as f32).sqrt()),
        _ => Gaussian::new(0.0, 0.1),
    }
}
