//! Gated delta nets as GGUF files have them.

use serde_json::Value;

use super::{GgufFile, Key, number};

/// Adds the keys of layers with delta nets.
pub(super) fn keys(file: &mut GgufFile, arch: &str, config: &Value) {
    let heads = number(config, "linear_num_value_heads");
    for (key, value) in [
        ("ssm.conv_kernel", number(config, "linear_conv_kernel_dim")),
        ("ssm.state_size", number(config, "linear_key_head_dim")),
        ("ssm.group_count", number(config, "linear_num_key_heads")),
        ("ssm.time_step_rank", heads),
        ("ssm.inner_size", heads * number(config, "linear_value_head_dim")),
    ] {
        file.key(&format!("{arch}.{key}"), Key::U32(value as u32));
    }
    if let Some(kinds) = config["layer_types"].as_array() {
        let recurrent = kinds.iter().map(|kind| kind == "linear_attention").collect();
        file.key(&format!("{arch}.attention.recurrent_layers"), Key::Bools(recurrent));
    }
    let every = config["full_attention_interval"].as_u64().unwrap_or(4);
    file.key(&format!("{arch}.full_attention_interval"), Key::U32(every as u32));
    if arch != "qwen3next" {
        file.key(&format!("{arch}.rope.dimension_sections"), Key::Ints(vec![1, 1, 0, 0]));
    }
}

/// The heads of a model.
struct Heads {
    keys: usize,
    values: usize,
    key_dim: usize,
    value_dim: usize,
}

impl Heads {
    fn of(config: &Value) -> Heads {
        Heads {
            keys: number(config, "linear_num_key_heads") as usize,
            values: number(config, "linear_num_value_heads") as usize,
            key_dim: number(config, "linear_key_head_dim") as usize,
            value_dim: number(config, "linear_value_head_dim") as usize,
        }
    }

    /// Parts of one size for each value head, from key head after key head to heads that are as far
    /// apart as there are key heads.
    fn tiled(&self, parts: &[u8]) -> Vec<u8> {
        let parts: Vec<&[u8]> = parts.chunks(parts.len() / self.values).collect();
        let each = self.values / self.keys;
        let mut tiled = Vec::new();
        for of in 0..each {
            for key in 0..self.keys {
                tiled.extend_from_slice(parts[key * each + of]);
            }
        }
        tiled
    }
}

/// Numbers of a tensor of Qwen3.5 in the order of the file, where rows are of `row` bytes.
pub(super) fn tiled(name: &str, bytes: &[u8], row: usize, config: &Value) -> Vec<u8> {
    let heads = Heads::of(config);
    match name.rsplit_once("attn_").or_else(|| name.rsplit_once("ssm_")).map(|(_, end)| end) {
        Some("qkv.weight" | "conv1d.weight") => {
            let (first, values) = bytes.split_at(2 * heads.keys * heads.key_dim * row);
            [first, &heads.tiled(values)].concat()
        }
        Some("gate.weight" | "alpha.weight" | "beta.weight" | "a" | "dt.bias") => {
            heads.tiled(bytes)
        }
        Some("out.weight") => bytes.chunks(row).flat_map(|row| heads.tiled(row)).collect(),
        _ => bytes.to_vec(),
    }
}

/// The matrix of all inputs of Qwen3-Next, taken apart: queries, keys and values, and gates.
pub(super) fn apart(bytes: &[u8], row: usize, config: &Value) -> [Vec<u8>; 2] {
    let Heads { keys, values, key_dim, value_dim } = Heads::of(config);
    let own = values / keys * value_dim;
    let lens = [key_dim, key_dim, own, own].map(|rows| rows * row);
    let mut parts = [const { Vec::new() }; 4];
    for head in bytes.chunks(lens.iter().sum()) {
        let mut from = 0;
        for (part, len) in parts.iter_mut().zip(lens) {
            part.extend_from_slice(&head[from..from + len]);
            from += len;
        }
    }
    let [queries, keys, values, gates] = parts;
    [[queries, keys, values].concat(), gates]
}

/// Rates of decay as the file has them, from their logarithms in f32.
pub(super) fn rates(bytes: &[u8]) -> Vec<u8> {
    let mut rates = Vec::with_capacity(bytes.len());
    for &number in bytes.as_chunks::<4>().0 {
        let log = f64::from(f32::from_le_bytes(number));
        rates.extend(((-log.exp()) as f32).to_le_bytes());
    }
    rates
}
