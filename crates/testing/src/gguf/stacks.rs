//! Experts, of which files have a tensor for all of a layer.

use super::GgufFile;
use super::convert::kind_of;
use crate::goldens::Tensors;

/// Adds the experts of each layer, stacked.
pub(super) fn stack(file: &mut GgufFile, tensors: &Tensors, layers: u64) {
    for layer in 0..layers {
        for (to, names) in [
            ("gate", ["gate_proj", "w1"]),
            ("up", ["up_proj", "w3"]),
            ("down", ["down_proj", "w2"]),
        ] {
            let before =
                ["mlp", "block_sparse_moe", "feed_forward"].map(|it| format!("{it}.experts.#"));
            let names =
                before.iter().flat_map(|before| names.map(|name| format!("{before}.{name}")));
            for name in names {
                let of = |expert: u64| {
                    let name = name.replace('#', &expert.to_string());
                    tensors.0.get(&format!("model.layers.{layer}.{name}.weight"))
                };
                let all: Vec<_> = (0..).map_while(of).collect();
                let Some((dtype, shape, _)) = all.first() else { continue };
                let shape = [all.len() as u64, shape[0] as u64, shape[1] as u64];
                let bytes = all.iter().flat_map(|(.., bytes)| bytes).copied().collect();
                file.tensor(
                    &format!("blk.{layer}.ffn_{to}_exps.weight"),
                    kind_of(*dtype).0,
                    &shape,
                    bytes,
                );
            }
        }
    }
}

/// Adds the experts of each layer, whose gates and ups are one matrix in the checkpoint.
pub(super) fn halve(file: &mut GgufFile, tensors: &Tensors, layers: u64) {
    for layer in 0..layers {
        let of = |name: &str| {
            &tensors.0[&format!("model.layers.{layer}.block_sparse_moe.{name}_linear.weight")]
        };
        let mut add = |to: &str, shape: [usize; 3], bytes: Vec<u8>| {
            let shape = shape.map(|dim| dim as u64);
            file.tensor(&format!("blk.{layer}.ffn_{to}_exps.weight"), 30, &shape, bytes);
        };
        let (_, shape, both) = of("input");
        let (count, width, cols) = (shape[0], shape[1] / 2, shape[2]);
        let halves = both.chunks(2 * width * cols).collect::<Vec<_>>();
        for (half, to) in ["gate", "up"].into_iter().enumerate() {
            let bytes = halves.iter().skip(half).step_by(2).flat_map(|half| half.to_vec());
            add(to, [count, width, cols], bytes.collect());
        }
        let (_, shape, down) = of("output");
        add("down", [shape[0], shape[1], shape[2]], down.clone());
    }
}
