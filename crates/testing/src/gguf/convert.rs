//! Checkpoints as the converter of llama.cpp writes them: its keys, its names, experts stacked,
//! vectors and routers in f32, and for llama the rows of each head of queries and keys in its order.

use std::path::Path;

use serde_json::Value;

use super::{GgufFile, Key, gpt_oss};
use crate::goldens::Tensors;

/// The number of a type in GGUF files, and the bytes of a number.
fn kind(dtype: safetensors::Dtype) -> (u32, usize) {
    match dtype {
        safetensors::Dtype::F32 => (0, 4),
        safetensors::Dtype::F16 => (1, 2),
        safetensors::Dtype::BF16 => (30, 2),
        other => panic!("{other:?} in a golden"),
    }
}

/// Converts a checkpoint. None if no architecture of llama.cpp has such a model.
pub fn converted(dir: &Path) -> Option<GgufFile> {
    let config: Value =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let (arch, model_type) = match config["model_type"].as_str().unwrap() {
        model_type @ ("llama" | "mistral" | "mixtral") => ("llama", model_type),
        "qwen2" => ("qwen2", "qwen2"),
        "qwen2_moe" => ("qwen2moe", "qwen2_moe"),
        "qwen3" => ("qwen3", "qwen3"),
        "qwen3_moe" => ("qwen3moe", "qwen3_moe"),
        "olmoe" => ("olmoe", "olmoe"),
        "gpt_oss" => ("gpt-oss", "gpt_oss"),
        "glm4_moe" => ("glm4moe", "glm4_moe"),
        _ => return None,
    };
    let dense_layers = config["mlp_only_layers"].as_array().is_some_and(|all| !all.is_empty());
    // Files of gpt-oss have no key for the limit of the activation.
    let limit = config["swiglu_limit"].as_f64().unwrap_or(7.0);
    let quantised = !config["quantization_config"].is_null();
    if config["use_sliding_window"] == true || dense_layers || quantised || limit != 7.0 {
        return None;
    }
    let tensors = all_tensors(dir);
    let mut file = GgufFile::default();
    keys(&mut file, arch, model_type, &config)?;
    let heads = config["num_attention_heads"].as_u64().unwrap() as usize;
    let kv_heads = config["num_key_value_heads"].as_u64().map_or(heads, |n| n as usize);
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    let beyond = format!("model.layers.{layers}.");
    for (name, (dtype, shape, bytes)) in &tensors.0 {
        if name.contains(".experts.") || name.starts_with(&beyond) {
            continue;
        }
        let (mut name, mut shape) = (renamed(name), shape.clone());
        let mut bytes = bytes.clone();
        if arch == "llama" && (name.contains("attn_q.") || name.contains("attn_k.")) {
            let heads = if name.contains("attn_q.") { heads } else { kv_heads };
            bytes = paired(&bytes, heads, shape[0]);
        }
        if ["gpt-oss", "glm4moe"].contains(&arch) {
            name = name.replace("ffn_norm", "post_attention_norm");
        }
        if name.ends_with("shexp.weight") && shape[0] == 1 {
            shape.remove(0);
            name = name.replace("ffn_gate_shexp", "ffn_gate_inp_shexp");
        }
        let (mut kind, size) = kind(*dtype);
        if kind == 30 && (shape.len() == 1 || name.contains("ffn_gate_inp")) {
            assert_eq!(size, 2);
            bytes = bytes.as_chunks::<2>().0.iter().flat_map(|&[a, b]| [0, 0, a, b]).collect();
            kind = 0;
        }
        let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
        file.tensor(&name, kind, &shape, bytes);
    }
    if config["num_nextn_predict_layers"].as_u64() > Some(0) {
        file.tensor(&format!("blk.{layers}.nextn.eh_proj.weight"), 0, &[4], vec![0; 16]);
    }
    match arch {
        "gpt-oss" => gpt_oss::stack(&mut file, &tensors, layers),
        _ => stack(&mut file, &tensors, layers),
    }
    Some(file)
}

/// The tensors of all files of a checkpoint.
fn all_tensors(dir: &Path) -> Tensors {
    let mut all = Tensors(Default::default());
    for entry in dir.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            all.0.extend(Tensors::read(&path).0);
        }
    }
    all
}

fn keys(file: &mut GgufFile, arch: &str, model_type: &str, config: &Value) -> Option<()> {
    let whole = |entry: &str| config[entry].as_u64().map(|n| Key::U32(n as u32));
    let float = |entry: &str| config[entry].as_f64().map(|x| Key::F32(x as f32));
    let experts = ["num_experts", "num_local_experts", "n_routed_experts"]
        .into_iter()
        .find_map(|entry| config[entry].as_u64());
    let head_dim = config["head_dim"].as_u64().unwrap_or_else(|| {
        config["hidden_size"].as_u64().unwrap() / config["num_attention_heads"].as_u64().unwrap()
    });
    let window = matches!(model_type, "mistral" | "mixtral" | "gpt_oss");
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    let ahead = config["num_nextn_predict_layers"].as_u64();
    let rope = [&config["rope_parameters"], &config["rope_scaling"]];
    let rope = rope.into_iter().find(|rope| rope.is_object()).unwrap_or(&Value::Null);
    let share = config["partial_rotary_factor"].as_f64().or(rope["partial_rotary_factor"].as_f64());
    let rotated = share.unwrap_or(1.0) * head_dim as f64;
    let theta = config["rope_theta"].as_f64().or(rope["rope_theta"].as_f64());
    let shared = whole("shared_expert_intermediate_size");
    let pairs = [
        ("vocab_size", whole("vocab_size")),
        ("context_length", whole("max_position_embeddings")),
        ("embedding_length", whole("hidden_size")),
        ("block_count", Some(Key::U32((layers + ahead.unwrap_or(0)) as u32))),
        ("nextn_predict_layers", ahead.map(|n| Key::U32(n as u32))),
        ("feed_forward_length", whole("intermediate_size")),
        ("attention.head_count", whole("num_attention_heads")),
        ("attention.head_count_kv", whole("num_key_value_heads")),
        ("attention.key_length", Some(Key::U32(head_dim as u32))),
        ("attention.value_length", Some(Key::U32(head_dim as u32))),
        ("rope.dimension_count", Some(Key::U32(rotated as u32))),
        ("rope.freq_base", theta.map(|theta| Key::F32(theta as f32))),
        ("attention.layer_norm_rms_epsilon", float("rms_norm_eps")),
        ("attention.clamp_kqv", float("clip_qkv")),
        ("attention.sliding_window", whole("sliding_window").filter(|_| window)),
        ("expert_count", experts.map(|n| Key::U32(n as u32))),
        ("expert_used_count", experts.and(whole("num_experts_per_tok"))),
        ("expert_feed_forward_length", whole("moe_intermediate_size")),
        ("expert_shared_feed_forward_length", shared),
        ("expert_group_count", whole("n_group")),
        ("expert_group_used_count", whole("topk_group")),
        ("expert_shared_count", whole("n_shared_experts")),
        ("leading_dense_block_count", whole("first_k_dense_replace")),
        ("expert_weights_scale", float("routed_scaling_factor")),
        ("expert_gating_func", (arch == "glm4moe").then_some(Key::U32(2))),
        ("expert_weights_norm", config["norm_topk_prob"].as_bool().map(Key::Bool)),
    ];
    file.key("general.architecture", arch.into());
    file.key("general.name", "golden".into());
    match rope["rope_type"].as_str() {
        None | Some("default") => {}
        Some("linear") => {
            file.key(&format!("{arch}.rope.scaling.type"), "linear".into());
            let factor = rope["factor"].as_f64().unwrap() as f32;
            file.key(&format!("{arch}.rope.scaling.factor"), Key::F32(factor));
        }
        Some("yarn") => {
            let key = |key: &str| format!("{arch}.rope.scaling.{key}");
            let trained = rope["original_max_position_embeddings"].as_u64()?;
            file.key(&key("type"), "yarn".into());
            file.key(&key("original_context_length"), Key::U32(trained as u32));
            for (entry, to) in [
                ("factor", "factor"),
                ("beta_fast", "yarn_beta_fast"),
                ("beta_slow", "yarn_beta_slow"),
            ] {
                file.key(&key(to), Key::F32(rope[entry].as_f64()? as f32));
            }
        }
        Some(_) => return None,
    }
    for (key, value) in pairs {
        if let Some(value) = value {
            file.key(&format!("{arch}.{key}"), value);
        }
    }
    file.key("tokenizer.ggml.eos_token_id", Key::U32(2));
    Some(())
}

/// The name of a tensor outside routed experts.
fn renamed(name: &str) -> String {
    let name = name.strip_prefix("model.").unwrap_or(name);
    [
        ("layers.", "blk."),
        ("embed_tokens.", "token_embd."),
        ("lm_head.", "output."),
        ("input_layernorm.", "attn_norm."),
        ("post_attention_layernorm.", "ffn_norm."),
        ("self_attn.q_proj.", "attn_q."),
        ("self_attn.k_proj.", "attn_k."),
        ("self_attn.v_proj.", "attn_v."),
        ("self_attn.o_proj.", "attn_output."),
        ("self_attn.q_norm.", "attn_q_norm."),
        ("self_attn.k_norm.", "attn_k_norm."),
        ("mlp.gate_proj.", "ffn_gate."),
        ("mlp.up_proj.", "ffn_up."),
        ("mlp.down_proj.", "ffn_down."),
        ("mlp.shared_expert.gate_proj.", "ffn_gate_shexp."),
        ("mlp.shared_expert.up_proj.", "ffn_up_shexp."),
        ("mlp.shared_expert.down_proj.", "ffn_down_shexp."),
        ("mlp.shared_experts.gate_proj.", "ffn_gate_shexp."),
        ("mlp.shared_experts.up_proj.", "ffn_up_shexp."),
        ("mlp.shared_experts.down_proj.", "ffn_down_shexp."),
        ("self_attn.sinks", "attn_sinks.weight"),
        ("mlp.router.", "ffn_gate_inp."),
        ("mlp.gate.e_score_correction_bias", "exp_probs_b.bias"),
        ("mlp.shared_expert_gate.", "ffn_gate_shexp."),
        ("block_sparse_moe.gate.", "ffn_gate_inp."),
        ("mlp.gate.", "ffn_gate_inp."),
    ]
    .iter()
    .fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
    .replacen("norm.weight", "output_norm.weight", usize::from(name == "norm.weight"))
}

/// Adds the experts of each layer, stacked.
fn stack(file: &mut GgufFile, tensors: &Tensors, layers: u64) {
    for layer in 0..layers {
        for (to, names) in [
            ("gate", ["mlp.experts.#.gate_proj", "block_sparse_moe.experts.#.w1"]),
            ("up", ["mlp.experts.#.up_proj", "block_sparse_moe.experts.#.w3"]),
            ("down", ["mlp.experts.#.down_proj", "block_sparse_moe.experts.#.w2"]),
        ] {
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
                    kind(*dtype).0,
                    &shape,
                    bytes,
                );
            }
        }
    }
}

/// The rows of each head in the order of llama.cpp: from [2, half] to [half, 2].
fn paired(bytes: &[u8], heads: usize, rows: usize) -> Vec<u8> {
    let row = bytes.len() / rows;
    let mut all = Vec::with_capacity(bytes.len());
    for head in bytes.chunks_exact(bytes.len() / heads) {
        let (first, second) = head.split_at(head.len() / 2);
        for (a, b) in first.chunks_exact(row).zip(second.chunks_exact(row)) {
            all.extend(a);
            all.extend(b);
        }
    }
    all
}
