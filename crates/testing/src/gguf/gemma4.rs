//! Gemma 4 as GGUF files have it.

use serde_json::Value;

use super::{GgufFile, Key, number};

/// Adds the keys of layers with and without windows, and the divisors of angles of the latter.
pub(super) fn keys(file: &mut GgufFile, arch: &str, config: &Value) {
    let local = number(config, "head_dim") as u32;
    let full = number(config, "global_head_dim") as u32;
    let ropes = &config["rope_parameters"];
    let theta = |kind: &str| Key::F32(ropes[kind]["rope_theta"].as_f64().unwrap() as f32);
    let kinds = config["layer_types"].as_array().unwrap();
    let windows: Vec<bool> = kinds.iter().map(|kind| kind == "sliding_attention").collect();
    let of_local = number(config, "num_key_value_heads") as u32;
    let heads = match config["num_global_key_value_heads"].as_u64() {
        None => Key::U32(of_local),
        Some(of_full) => {
            let mut heads = Vec::new();
            for &window in &windows {
                heads.push(if window { of_local as i32 } else { of_full as i32 });
            }
            Key::Ints(heads)
        }
    };
    let shared = config["num_kv_shared_layers"].as_u64().unwrap_or(0) as u32;
    let width = number(config, "intermediate_size") as u32;
    let width = match config["use_double_wide_mlp"] == true {
        false => Key::U32(width),
        true => {
            let mut widths = vec![width as i32; kinds.len() - shared as usize];
            widths.resize(kinds.len(), 2 * width as i32);
            Key::Ints(widths)
        }
    };
    for (key, value) in [
        ("attention.key_length", Key::U32(full)),
        ("attention.value_length", Key::U32(full)),
        ("attention.key_length_swa", Key::U32(local)),
        ("attention.value_length_swa", Key::U32(local)),
        ("rope.dimension_count", Key::U32(full)),
        ("rope.dimension_count_swa", Key::U32(local)),
        ("rope.freq_base", theta("full_attention")),
        ("rope.freq_base_swa", theta("sliding_attention")),
        ("attention.head_count_kv", heads),
        ("attention.sliding_window_pattern", Key::Bools(windows)),
        ("attention.shared_kv_layers", Key::U32(shared)),
        (
            "embedding_length_per_layer_input",
            Key::U32(number(config, "hidden_size_per_layer_input") as u32),
        ),
        ("feed_forward_length", width),
    ] {
        file.key(&format!("{arch}.{key}"), value);
    }
    let share = ropes["full_attention"]["partial_rotary_factor"].as_f64().unwrap();
    let turned = (f64::from(full) * share / 2.0) as u32;
    let divisors = (0..full / 2).map(|i| if i < turned { 1.0f32 } else { 1e30 });
    let bytes = divisors.flat_map(f32::to_le_bytes).collect();
    file.tensor("rope_freqs.weight", 0, &[u64::from(full) / 2], bytes);
}
