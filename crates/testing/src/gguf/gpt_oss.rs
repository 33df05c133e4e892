//! The experts of gpt-oss as GGUF files have them: gates and ups apart, and rows as rows.

use super::GgufFile;
use crate::goldens::Tensors;

/// Adds the experts of each layer, from matrices of bf16 that are stored as [columns, rows].
pub(super) fn stack(file: &mut GgufFile, tensors: &Tensors, layers: u64) {
    for layer in 0..layers {
        let name = |rest: &str| format!("model.layers.{layer}.mlp.experts.{rest}");
        let (_, shape, both) = &tensors.0[&name("gate_up_proj")];
        let (_, _, down) = &tensors.0[&name("down_proj")];
        let count = shape[0];
        let hidden = shape[1];
        let width = shape[2] / 2;
        let (_, _, both_bias) = &tensors.0[&name("gate_up_proj_bias")];
        let (_, _, down_bias) = &tensors.0[&name("down_proj_bias")];
        for (odd, to) in ["gate", "up"].into_iter().enumerate() {
            let of = |expert: usize, row: usize, col: usize| {
                (expert * hidden + col) * 2 * width + 2 * row + odd
            };
            add(file, layer, to, [count, width, hidden], both, of);
            add_bias(file, layer, to, [count, width], both_bias, |i| 2 * i + odd);
        }
        let of = |expert: usize, row: usize, col: usize| (expert * width + col) * hidden + row;
        add(file, layer, "down", [count, hidden, width], down, of);
        add_bias(file, layer, "down", [count, hidden], down_bias, |i| i);
    }
}

fn add(
    file: &mut GgufFile,
    layer: u64,
    to: &str,
    [count, rows, cols]: [usize; 3],
    from: &[u8],
    of: impl Fn(usize, usize, usize) -> usize,
) {
    let numbers = from.as_chunks::<2>().0;
    let mut bytes = Vec::with_capacity(2 * count * rows * cols);
    for expert in 0..count {
        for row in 0..rows {
            for col in 0..cols {
                bytes.extend(numbers[of(expert, row, col)]);
            }
        }
    }
    let shape = [count, rows, cols].map(|dim| dim as u64);
    file.tensor(&format!("blk.{layer}.ffn_{to}_exps.weight"), 30, &shape, bytes);
}

/// Widened to f32.
fn add_bias(
    file: &mut GgufFile,
    layer: u64,
    to: &str,
    [count, len]: [usize; 2],
    from: &[u8],
    of: impl Fn(usize) -> usize,
) {
    let numbers = from.as_chunks::<2>().0;
    let mut bytes = Vec::with_capacity(4 * count * len);
    for i in 0..count * len {
        let [a, b] = numbers[of(i)];
        bytes.extend([0, 0, a, b]);
    }
    let shape = [count, len].map(|dim| dim as u64);
    file.tensor(&format!("blk.{layer}.ffn_{to}_exps.bias"), 0, &shape, bytes);
}
