//! Gated delta nets as GGUF files have them.

use serde_json::Value;

use super::{GgufFile, Key};

/// Adds the keys of layers with delta nets.
pub(super) fn keys(file: &mut GgufFile, arch: &str, config: &Value) {
    let number = |entry: &str| config[entry].as_u64().unwrap() as u32;
    let heads = number("linear_num_value_heads");
    for (key, value) in [
        ("ssm.conv_kernel", number("linear_conv_kernel_dim")),
        ("ssm.state_size", number("linear_key_head_dim")),
        ("ssm.group_count", number("linear_num_key_heads")),
        ("ssm.time_step_rank", heads),
        ("ssm.inner_size", heads * number("linear_value_head_dim")),
    ] {
        file.key(&format!("{arch}.{key}"), Key::U32(value));
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
        let number = |entry: &str| config[entry].as_u64().unwrap() as usize;
        Heads {
            keys: number("linear_num_key_heads"),
            values: number("linear_num_value_heads"),
            key_dim: number("linear_key_head_dim"),
            value_dim: number("linear_value_head_dim"),
        }
    }

    /// Parts of one size for each value head, from key head after key head to heads that are as far
    /// apart as there are key heads.
    fn tiled(&self, parts: &[u8]) -> Vec<u8> {
        let parts: Vec<&[u8]> = parts.chunks(parts.len() / self.values).collect();
        let each = self.values / self.keys;
        let order = (0..each).flat_map(|of| (0..self.keys).map(move |key| key * each + of));
        order.flat_map(|head| parts[head]).copied().collect()
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
    let of = |part: usize| {
        let from = lens[..part].iter().sum::<usize>();
        let heads = bytes.chunks(lens.iter().sum());
        heads.flat_map(move |head| &head[from..][..lens[part]]).copied().collect::<Vec<u8>>()
    };
    [[of(0), of(1), of(2)].concat(), of(3)]
}

/// Rates of decay as the file has them, from their logarithms in f32.
pub(super) fn rates(bytes: &[u8]) -> Vec<u8> {
    let numbers = bytes.as_chunks::<4>().0.iter().map(|n| f64::from(f32::from_le_bytes(*n)));
    numbers.flat_map(|log| ((-log.exp()) as f32).to_le_bytes()).collect()
}
