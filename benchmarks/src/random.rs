//! Checkpoints of random weights in the shapes of published models.

use std::path::Path;

use anyhow::Result;
use rayon::prelude::*;
use safetensors::Dtype;
use serde_json::Value;

use crate::checkpoint::{Output, PlannedTensor};
use crate::gaussian::{Gaussian, mix, quantile, stream};

/// Bytes that one task of the thread pool fills.
const TASK: usize = 256 << 10;

/// Standard deviation of e4m3 numbers, whose largest is 448.
const FP8: f32 = 64.0;
/// Standard deviation of uniform e2m1 numbers.
const FP4: f32 = 2.93;
/// Standard deviation of uniform integers of four bits.
const INT4: f32 = 4.61;
/// Ends of the names of embeddings.
const EMBEDDINGS: [&str; 2] = ["embed_tokens.weight", "embed.weight"];

/// Writes a checkpoint with these tensors into the new directory `out`.
///
/// The same tensors and seed give the same bytes anywhere. Files hold at most `file_bytes`.
pub fn write_random(
    configs: &[(&str, &Value)],
    tensors: &[PlannedTensor],
    out: &Path,
    file_bytes: u64,
    seed: u64,
) -> Result<()> {
    let output = Output::create(out)?;
    for (name, config) in configs {
        output.file(name, &serde_json::to_vec_pretty(config)?)?;
    }
    let mut current = None;
    output.tensors("random", tensors, file_bytes, |index, offset, chunk| {
        let (key, fill) = match &current {
            Some((i, key, fill)) if *i == index => (*key, fill),
            _ => {
                let key = stream(seed, &tensors[index].name);
                let fresh = current.insert((index, key, Fill::of(&tensors[index], key)));
                (key, &fresh.2)
            }
        };
        chunk.par_chunks_mut(TASK).enumerate().for_each(|(i, part)| {
            fill.fill(key, offset + (i * TASK) as u64, part);
        });
        Ok(())
    })?;
    output.finish()
}

/// The bytes of a tensor.
enum Fill {
    Bf16(Gaussian),
    /// Each of these bytes with the same probability.
    Bytes(Box<[u8; 256]>),
    F32(f32),
    /// The same numbers as in bf16, in f32.
    Singles(Gaussian),
    /// Rows of different whole numbers below a limit, all of them equally often.
    Table {
        row: u64,
        below: u64,
    },
}

impl Fill {
    /// Distribution that keeps a deep random model's activations near 1: matrices are scaled by
    /// their fan-in, and vary a little from one to the next as trained ones do.
    fn of(tensor: &PlannedTensor, key: u64) -> Fill {
        let varied = 0.75 + mix(key, u64::MAX) as f32 / u64::MAX as f32 * 0.5;
        let matrix = |cols: usize| varied / (cols as f32).sqrt();
        match (tensor.dtype, &tensor.shape[..]) {
            (Dtype::F8_E4M3, _) => Fill::Bytes(Box::new(std::array::from_fn(|i| {
                e4m3(FP8 * quantile((i as f32 + 0.5) / 256.0))
            }))),
            (Dtype::U8, [.., cols]) if tensor.name.ends_with("_scales") => {
                let exponent = (matrix(32 * cols) / FP4).log2().round();
                Fill::Bytes(Box::new([(127.0 + exponent) as u8; 256]))
            }
            (Dtype::F8_E8M0, [.., cols]) => {
                // Of DeepSeek V4, whose experts alone are in e2m1.
                let is_expert = tensor.name.contains(".experts.");
                let (of, size) = if is_expert { (32, FP4) } else { (128, FP8) };
                let exponent = (matrix(of * cols) / size).log2().round();
                Fill::Bytes(Box::new([(127.0 + exponent) as u8; 256]))
            }
            (Dtype::I64, [.., cols]) => Fill::Table { row: *cols as u64, below: tensor.below },
            (Dtype::BF16, [.., cols]) if tensor.name.ends_with("_scale") => {
                let scale = matrix(32 * cols) / INT4;
                Fill::Bf16(Gaussian::new(scale, scale / 8.0))
            }
            (Dtype::U8 | Dtype::I8 | Dtype::I32, _) => {
                Fill::Bytes(Box::new(std::array::from_fn(|i| i as u8)))
            }
            (Dtype::F32, [.., cols]) if tensor.name.ends_with("_scale_inv") => {
                Fill::F32(matrix(128 * cols) / FP8)
            }
            (Dtype::F32, [_, cols]) => Fill::Singles(Gaussian::new(0.0, matrix(*cols))),
            (Dtype::F32, _) => Fill::Singles(Gaussian::new(0.0, 0.1)),
            (_, [_]) if tensor.name.ends_with("norm.weight") => Fill::Bf16(Gaussian::new(1.0, 0.1)),
            (_, [_, _]) if EMBEDDINGS.iter().any(|name| tensor.name.ends_with(name)) => {
                Fill::Bf16(Gaussian::new(0.0, 1.0))
            }
            (_, [.., _, cols]) => Fill::Bf16(Gaussian::new(0.0, matrix(*cols))),
            _ => Fill::Bf16(Gaussian::new(0.0, 0.1)),
        }
    }

    /// Writes the bytes from `offset` on.
    fn fill(&self, key: u64, offset: u64, out: &mut [u8]) {
        match self {
            Fill::Bf16(gaussian) => gaussian.fill(key, offset / 2, out),
            Fill::Bytes(table) => {
                let mut drawn = (u64::MAX, 0);
                for (index, byte) in (offset..).zip(out) {
                    if drawn.0 != index / 8 {
                        drawn = (index / 8, mix(key, index / 8));
                    }
                    *byte = table[usize::from((drawn.1 >> (index % 8 * 8)) as u8)];
                }
            }
            Fill::F32(value) => {
                for out in out.as_chunks_mut::<4>().0 {
                    *out = value.to_le_bytes();
                }
            }
            Fill::Singles(gaussian) => {
                for (index, out) in (offset / 4..).zip(out.as_chunks_mut::<4>().0) {
                    let (low, high) = out.split_at_mut(2);
                    low.fill(0);
                    gaussian.fill(key, index, high);
                }
            }
            Fill::Table { row, below } => {
                // Steps that together are shorter than the range repeat nothing within a row.
                for (index, out) in (offset / 8..).zip(out.as_chunks_mut::<8>().0) {
                    let drawn = mix(key, index / row);
                    let step = 1 + (drawn >> 32) % (below / row).max(1);
                    *out = (((drawn & 0xffff) + index % row * step) % below).to_le_bytes();
                }
            }
        }
    }
}

/// The nearest e4m3 number.
fn e4m3(value: f32) -> u8 {
    let mut nearest = 0;
    let mut least = f32::INFINITY;
    for code in 0..=u8::MAX {
        // 0x7f and 0xff are NaN.
        if code & 0x7f == 0x7f {
            continue;
        }
        let distance = (decoded_e4m3(code) - value).abs();
        if distance < least {
            nearest = code;
            least = distance;
        }
    }
    nearest
}

fn decoded_e4m3(code: u8) -> f32 {
    let exponent = i32::from(code >> 3 & 15);
    let mantissa = f32::from(code & 7) / 8.0;
    let size = match exponent {
        0 => mantissa * 2f32.powi(-6),
        _ => (1.0 + mantissa) * 2f32.powi(exponent - 7),
    };
    if code >> 7 == 1 { -size } else { size }
}
