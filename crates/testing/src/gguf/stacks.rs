//! Experts, of which files have a tensor for all of a layer.

use super::{GgufFile, kind_of};
use crate::goldens::Tensors;

/// Adds the experts of each layer, stacked.
pub(super) fn stack(file: &mut GgufFile, tensors: &Tensors, layers: u64) {
    for layer in 0..layers {
        for (to, names) in [
            ("gate", ["gate_proj", "w1"]),
            ("up", ["up_proj", "w3"]),
            ("down", ["down_proj", "w2"]),
        ] {
            for within in ["mlp", "block_sparse_moe", "feed_forward"] {
                for name in names {
                    let before = format!("model.layers.{layer}.{within}.experts");
                    let mut all = Vec::new();
                    while let Some(expert) =
                        tensors.0.get(&format!("{before}.{}.{name}.weight", all.len()))
                    {
                        all.push(expert);
                    }
                    let Some((dtype, shape, _)) = all.first() else { continue };
                    let shape = [all.len() as u64, shape[0] as u64, shape[1] as u64];
                    let bytes = all.iter().flat_map(|(.., bytes)| bytes).copied().collect();
                    let name = format!("blk.{layer}.ffn_{to}_exps.weight");
                    file.tensor(&name, kind_of(*dtype).0, &shape, bytes);
                }
            }
        }
    }
}

/// The names of gates and ups in one, and of downs.
pub(super) const GRANITE: [&str; 2] =
    ["block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight"];
pub(super) const QWEN: [&str; 2] = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"];
const GEMMA: [&str; 2] = ["experts.gate_up_proj", "experts.down_proj"];

/// Adds the experts of each layer, whose gates and ups are one matrix in the checkpoint.
pub(super) fn halve(file: &mut GgufFile, tensors: &Tensors, layers: u64, names: [&str; 2]) {
    for (name, shape, both, is_down) in in_stacks(tensors, layers, names) {
        if is_down {
            add(file, &name.replace('#', "down"), shape, both.clone());
            continue;
        }
        let [count, rows, cols] = shape;
        let halves = both.chunks(rows * cols).collect::<Vec<_>>();
        for (half, to) in ["gate", "up"].into_iter().enumerate() {
            let bytes = halves.iter().skip(half).step_by(2).flat_map(|half| half.to_vec());
            add(file, &name.replace('#', to), [count, rows / 2, cols], bytes.collect());
        }
    }
}

/// The same, in one matrix in the file as well.
pub(super) fn fused(file: &mut GgufFile, tensors: &Tensors, layers: u64) {
    for (name, shape, bytes, is_down) in in_stacks(tensors, layers, GEMMA) {
        let to = if is_down { "down" } else { "gate_up" };
        add(file, &name.replace('#', to), shape, bytes.clone());
    }
}

/// The stacks of all layers: names with `#` for the matrix, shapes, bytes, and if they are downs.
fn in_stacks<'a>(
    tensors: &'a Tensors,
    layers: u64,
    names: [&'a str; 2],
) -> Vec<(String, [usize; 3], &'a Vec<u8>, bool)> {
    let mut stacks = Vec::new();
    for layer in 0..layers {
        for (i, end) in names.into_iter().enumerate() {
            let plain = tensors.0.get(&format!("model.layers.{layer}.{end}"));
            let within = tensors.0.get(&format!("model.language_model.layers.{layer}.{end}"));
            if let Some((_, shape, bytes)) = plain.or(within) {
                let name = format!("blk.{layer}.ffn_#_exps.weight");
                stacks.push((name, shape[..].try_into().unwrap(), bytes, i == 1));
            }
        }
    }
    stacks
}

fn add(file: &mut GgufFile, name: &str, shape: [usize; 3], bytes: Vec<u8>) {
    file.tensor(name, 30, &shape.map(|dim| dim as u64), bytes);
}
