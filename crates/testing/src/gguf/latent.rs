//! Latent attention as GGUF files have it.

use serde_json::Value;

use super::{GgufFile, GgufTensor, Key};
use crate::goldens::Tensors;

/// Adds the keys that are those of one key head as long as a latent, and the lengths of real heads.
pub(super) fn keys(file: &mut GgufFile, arch: &str, config: &Value) {
    let number = |entry: &str| config[entry].as_u64().unwrap() as u32;
    let rank = number("kv_lora_rank");
    let rotated = number("qk_rope_head_dim");
    let pairs = [
        ("attention.head_count_kv", 1),
        ("attention.kv_lora_rank", rank),
        ("attention.key_length", rank + rotated),
        ("attention.value_length", rank),
        ("attention.key_length_mla", number("qk_nope_head_dim") + rotated),
        ("attention.value_length_mla", number("v_head_dim")),
        ("rope.dimension_count", rotated),
    ];
    for (key, number) in pairs {
        file.key(&format!("{arch}.{key}"), Key::U32(number));
    }
    for (entry, key) in [
        ("q_lora_rank", "q_lora_rank"),
        ("index_n_heads", "indexer.head_count"),
        ("index_head_dim", "indexer.key_length"),
        ("index_topk", "indexer.top_k"),
    ] {
        if let Some(number) = config[entry].as_u64() {
            file.key(&format!("{arch}.attention.{key}"), Key::U32(number as u32));
        }
    }
}

/// Adds the key that says which layers have an indexer of their own.
pub(super) fn indexers(file: &mut GgufFile, arch: &str, tensors: &Tensors, layers: u64) {
    let name = |layer| format!("model.layers.{layer}.self_attn.indexer.wk.weight");
    let own = (0..layers).map(|layer| tensors.0.contains_key(&name(layer))).collect();
    file.key(&format!("{arch}.attention.indexer.types"), Key::Bools(own));
}

/// Adds the matrices of keys, each head's rows and columns exchanged, and of values.
pub(super) fn split(
    file: &mut GgufFile,
    name: &str,
    (kind, size): (u32, usize),
    bytes: &[u8],
    config: &Value,
) {
    let number = |entry: &str| config[entry].as_u64().unwrap() as usize;
    let heads = number("num_attention_heads");
    let rank = number("kv_lora_rank");
    let plain = number("qk_nope_head_dim");
    let value = number("v_head_dim");
    let mut keys = Vec::new();
    let mut values = Vec::new();
    for head in bytes.chunks(bytes.len() / heads) {
        let (of_keys, of_values) = head.split_at(plain * rank * size);
        keys.extend(turned(of_keys, rank, size));
        values.extend(of_values);
    }
    let shape = |of: [usize; 3]| of.map(|dim| dim as u64);
    let k = shape([heads, rank, plain]);
    file.tensor(&name.replace("kv_b", "k_b"), kind, &k, keys);
    let v = shape([heads, value, rank]);
    file.tensor(&name.replace("kv_b", "v_b"), kind, &v, values);
}

/// The same model as older files have it: keys and values in one matrix, with the lengths of heads
/// under the keys that all architectures have.
pub fn fused(mut file: GgufFile) -> GgufFile {
    let find = |file: &GgufFile, end: &str| {
        file.keys.iter().find(|(name, _)| name.ends_with(end)).map(|(_, value)| value.clone())
    };
    let count = find(&file, ".attention.head_count").unwrap();
    for (key, from) in [("key_length", "key_length_mla"), ("value_length", "value_length_mla")] {
        let value = find(&file, from).unwrap();
        file.keys.retain(|(name, _)| !name.ends_with(from));
        for (name, old) in &mut file.keys {
            if name.ends_with(&format!(".attention.{key}")) {
                *old = value.clone();
            }
        }
    }
    for (name, value) in &mut file.keys {
        if name.ends_with("head_count_kv") {
            *value = count.clone();
        }
    }
    let mut tensors: Vec<GgufTensor> = Vec::new();
    for tensor in file.tensors.drain(..) {
        match tensors.last_mut() {
            Some(keys) if tensor.name.ends_with("attn_v_b.weight") => {
                let heads = keys.shape[0];
                let rank = keys.shape[1];
                let size = (keys.bytes.len() as u64 / keys.shape.iter().product::<u64>()) as usize;
                let of_keys = keys.bytes.chunks(keys.bytes.len() / heads as usize);
                let of_values = tensor.bytes.chunks(tensor.bytes.len() / heads as usize);
                let both = of_keys.zip(of_values).flat_map(|(keys, values)| {
                    let cols = keys.len() / size / rank as usize;
                    [turned(keys, cols, size), values.to_vec()].concat()
                });
                let bytes = both.collect();
                let rows = heads * (keys.shape[2] + tensor.shape[1]);
                keys.name = keys.name.replace("attn_k_b", "attn_kv_b");
                (keys.shape, keys.bytes) = (vec![rows, rank], bytes);
            }
            _ => tensors.push(tensor),
        }
    }
    file.tensors = tensors;
    file
}

/// A matrix of `cols` columns with rows and columns exchanged.
fn turned(matrix: &[u8], cols: usize, size: usize) -> Vec<u8> {
    let rows = matrix.len() / size / cols;
    let place = |i: usize| (i % rows * cols + i / rows) * size;
    (0..rows * cols).flat_map(|i| &matrix[place(i)..][..size]).copied().collect()
}
