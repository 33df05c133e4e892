//! Latent attention as GGUF files have it.

use serde_json::Value;

use super::{GgufFile, GgufTensor, Key, number};
use crate::goldens::Tensors;

/// Adds the keys that are those of one key head as long as a latent, and the lengths of real heads.
pub(super) fn keys(file: &mut GgufFile, arch: &str, config: &Value) {
    let rank = number(config, "kv_lora_rank");
    let rotated = number(config, "qk_rope_head_dim");
    let pairs = [
        ("attention.head_count_kv", 1),
        ("attention.kv_lora_rank", rank),
        ("attention.key_length", rank + rotated),
        ("attention.value_length", rank),
        ("attention.key_length_mla", number(config, "qk_nope_head_dim") + rotated),
        ("attention.value_length_mla", number(config, "v_head_dim")),
        ("rope.dimension_count", rotated),
    ];
    for (key, number) in pairs {
        file.key(&format!("{arch}.{key}"), Key::U32(number as u32));
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
    let mut own = Vec::new();
    for layer in 0..layers {
        let name = format!("model.layers.{layer}.self_attn.indexer.wk.weight");
        own.push(tensors.0.contains_key(&name));
    }
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
    let heads = number(config, "num_attention_heads");
    let rank = number(config, "kv_lora_rank");
    let plain = number(config, "qk_nope_head_dim");
    let value = number(config, "v_head_dim");
    let mut keys = Vec::new();
    let mut values = Vec::new();
    for head in bytes.chunks(bytes.len() / heads as usize) {
        let (of_keys, of_values) = head.split_at((plain * rank) as usize * size);
        keys.extend(turned(of_keys, rank as usize, size));
        values.extend(of_values);
    }
    file.tensor(&name.replace("kv_b", "k_b"), kind, &[heads, rank, plain], keys);
    file.tensor(&name.replace("kv_b", "v_b"), kind, &[heads, value, rank], values);
}

/// The same model as older files have it: keys and values in one matrix, with the lengths of heads
/// under the keys that all architectures have.
pub fn fused(mut file: GgufFile) -> GgufFile {
    let count = value_of(&file, ".attention.head_count");
    for (key, from) in [("key_length", "key_length_mla"), ("value_length", "value_length_mla")] {
        let value = value_of(&file, from);
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
                let mut bytes = Vec::new();
                for (keys, values) in of_keys.zip(of_values) {
                    let cols = keys.len() / size / rank as usize;
                    bytes.extend(turned(keys, cols, size));
                    bytes.extend_from_slice(values);
                }
                let rows = heads * (keys.shape[2] + tensor.shape[1]);
                keys.name = keys.name.replace("attn_k_b", "attn_kv_b");
                keys.shape = vec![rows, rank];
                keys.bytes = bytes;
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
    let mut turned = Vec::with_capacity(matrix.len());
    for col in 0..cols {
        for row in 0..rows {
            turned.extend_from_slice(&matrix[(row * cols + col) * size..][..size]);
        }
    }
    turned
}

/// The value of the key with this end.
fn value_of(file: &GgufFile, end: &str) -> Key {
    let (_, value) = file.keys.iter().find(|(name, _)| name.ends_with(end)).unwrap();
    value.clone()
}
