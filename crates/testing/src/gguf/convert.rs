//! Checkpoints as the converter of llama.cpp writes them: its keys, its names, experts stacked,
//! vectors and routers in f32, and for llama the rows of each head of queries and keys in its order.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::keys::keys;
use super::names::renamed;
use super::stacks::{GRANITE, QWEN, fused, halve, stack};
use super::{GgufFile, Key, delta, gpt_oss, kind_of, latent};
use crate::goldens::{self, Tensors};

/// The architecture of each model type.
const ARCHITECTURES: &[(&str, &str)] = &[
    ("llama", "llama"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen2_moe", "qwen2moe"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
    ("olmoe", "olmoe"),
    ("gpt_oss", "gpt-oss"),
    ("glm4_moe", "glm4moe"),
    ("solar_open", "glm4moe"),
    ("deepseek_v2", "deepseek2"),
    ("deepseek_v3", "deepseek2"),
    ("glm4_moe_lite", "deepseek2"),
    ("deepseek_v32", "deepseek32"),
    ("glm_moe_dsa", "glm-dsa"),
    ("dots1", "dots1"),
    ("minimax_m2", "minimax-m2"),
    ("ernie4_5_moe", "ernie4_5-moe"),
    ("hunyuan_v1_moe", "hunyuan-moe"),
    ("lfm2_moe", "lfm2moe"),
    ("smollm3", "smollm3"),
    ("granitemoe", "granitemoe"),
    ("gemma2", "gemma2"),
    ("gemma3_text", "gemma3"),
    ("gemma4_text", "gemma4"),
    ("qwen3_next", "qwen3next"),
    ("qwen3_5_moe_text", "qwen35moe"),
    ("qwen3_5_text", "qwen35"),
];

/// Names, copies and files of all goldens of which there are GGUF files. Options that files have no
/// keys for are in the copies those of published models.
pub fn convertible() -> Vec<(String, TempDir, GgufFile)> {
    let mut all = Vec::new();
    for name in goldens::variants() {
        let copy = tempfile::tempdir().unwrap();
        goldens::copy(&name, copy.path());
        goldens::change(copy.path(), "config.json", as_published);
        if name == "gemma4_text_inputs" {
            cut_table(copy.path());
        }
        if let Some(file) = converted(copy.path()) {
            all.push((name, copy, file));
        }
    }
    all
}

/// Sets the options that files have no keys for to those of published models.
fn as_published(config: &mut Value) {
    match config["model_type"].as_str().unwrap() {
        "gpt_oss" => config["swiglu_limit"] = 7.0.into(),
        "gemma4_text" if config["layer_types"].is_null() => {
            let kinds = ["sliding_attention", "sliding_attention", "full_attention"];
            config["layer_types"] = kinds.into();
            config["num_global_key_value_heads"] = Value::Null;
        }
        "smollm3" => config["no_rope_layers"] = Value::Null,
        "hunyuan_v1_moe" => config["rope_scaling"] = Value::Null,
        "gemma2" => config["query_pre_attn_scalar"] = config["head_dim"].clone(),
        "gemma3_text" => {
            config["query_pre_attn_scalar"] = config["head_dim"].clone();
            config["sliding_window_pattern"] = 6.into();
        }
        _ => {}
    }
}

/// Leaves a row of the table of Gemma 4 for each token, as published models have it.
fn cut_table(dir: &Path) {
    let config = goldens::change(dir, "config.json", |config| {
        config["vocab_size_per_layer_input"] = config["vocab_size"].clone();
    });
    let rows = config["vocab_size"].as_u64().unwrap() as usize;
    let path = dir.join("model.safetensors");
    let mut tensors = Tensors::read(&path);
    let (_, shape, bytes) = tensors.0.get_mut("model.embed_tokens_per_layer.weight").unwrap();
    bytes.truncate(bytes.len() / shape[0] * rows);
    shape[0] = rows;
    tensors.write(&path);
}

/// Converts a checkpoint with its tokenizer, which is that of [`goldens::copy`], and adds a chat template.
pub fn conversational(dir: &Path, template: &str) -> Option<GgufFile> {
    let mut file = converted(dir)?;
    let vocab = crate::spec(dir).vocab as u32;
    let json = goldens::tokenizer(vocab);
    let mut tokens = vec![String::new(); vocab as usize];
    for (token, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens[id.as_u64().unwrap() as usize].clone_from(token);
    }
    let kinds = (0..vocab).map(|id| if id == 0 { 3 } else { 1 }).collect();
    file.key("tokenizer.ggml.model", "gpt2".into());
    file.key("tokenizer.ggml.pre", "gpt-2".into());
    file.key("tokenizer.ggml.tokens", Key::Texts(tokens));
    file.key("tokenizer.ggml.token_type", Key::Ints(kinds));
    file.key("tokenizer.ggml.merges", Key::Texts(Vec::new()));
    file.key("tokenizer.chat_template", template.into());
    Some(file)
}

/// Converts a checkpoint. None if no architecture of llama.cpp has such a model.
pub fn converted(dir: &Path) -> Option<GgufFile> {
    let config: Value =
        serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    let config = config.get("text_config").unwrap_or(&config).clone();
    let model_type = config["model_type"].as_str().unwrap();
    let (_, arch) = *ARCHITECTURES.iter().find(|(of, _)| *of == model_type)?;
    if !is_said(arch, &config) {
        return None;
    }
    let tensors = all_tensors(dir);
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    let mut file = GgufFile::default();
    keys(&mut file, arch, model_type, &config)?;
    if arch == "glm-dsa" {
        latent::indexers(&mut file, arch, &tensors, layers);
    }
    let beyond = format!("model.layers.{layers}.");
    for (name, tensor) in &tensors.0 {
        let others = ["input_linear", "output_linear", "mtp.", "visual.", "vision", "audio"];
        let others = others.iter().any(|part| name.contains(part));
        if !name.contains(".experts.") && !others && !name.starts_with(&beyond) {
            add(&mut file, (arch, &config), name, tensor.clone());
        }
    }
    if config["num_nextn_predict_layers"].as_u64() > Some(0) {
        file.tensor(&format!("blk.{layers}.nextn.eh_proj.weight"), 0, &[4], vec![0; 16]);
    }
    match arch {
        "gpt-oss" => gpt_oss::stack(&mut file, &tensors, layers),
        "granitemoe" => halve(&mut file, &tensors, layers, GRANITE),
        "qwen35moe" => halve(&mut file, &tensors, layers, QWEN),
        "gemma4" => fused(&mut file, &tensors, layers),
        _ => stack(&mut file, &tensors, layers),
    }
    Some(file)
}

/// False for options that files have no keys for.
fn is_said(arch: &str, config: &Value) -> bool {
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    let window = config["use_sliding_window"] == true
        || (arch == "dots1" && config["sliding_window"].is_u64());
    let dense = config["mlp_only_layers"].as_array().is_some_and(|all| !all.is_empty())
        || config["moe_layer_end_index"].as_u64().is_some_and(|last| last + 1 < layers);
    let gemma = ["gemma2", "gemma3"].contains(&arch)
        && (config["query_pre_attn_scalar"] != config["head_dim"]
            || config["sliding_window_pattern"].as_u64().is_some_and(|n| n != 6)
            || config["layer_types"].is_array());
    let gemma = gemma || (arch == "gemma4" && config["layer_types"].is_null());
    let rows = config["vocab_size_per_layer_input"].as_u64();
    let gemma = gemma || rows.is_some_and(|rows| Some(rows) != config["vocab_size"].as_u64());
    let limit = config["swiglu_limit"].as_f64().is_some_and(|limit| limit != 7.0);
    let quantised = !config["quantization_config"].is_null();
    let turned = config["rope_interleave"] == false || config["no_rope_layers"].is_array();
    !(window || dense || gemma || limit || quantised || turned)
}

/// Adds a tensor outside routed experts.
fn add(
    file: &mut GgufFile,
    (arch, config): (&str, &Value),
    name: &str,
    (dtype, mut shape, mut bytes): (safetensors::Dtype, Vec<usize>, Vec<u8>),
) {
    let mut name = renamed(name);
    let gemma = arch.starts_with("gemma");
    let post = ["gpt-oss", "glm4moe", "qwen3next", "qwen35moe", "qwen35"].contains(&arch);
    if gemma && name.contains("feedforward_layernorm") {
        name = name.replace("pre_feedforward_layernorm", "ffn_norm");
        name = name.replace("post_feedforward_layernorm", "post_ffw_norm");
    } else if gemma || post {
        name = name.replace("ffn_norm", "post_attention_norm");
    }
    let (mut kind, _) = kind_of(dtype);
    if name.ends_with("attn_kv_b.weight") {
        return latent::split(file, &name, kind_of(dtype), &bytes, config);
    }
    if ["llama", "smollm3", "granitemoe"].contains(&arch)
        && (name.contains("attn_q.") || name.contains("attn_k."))
    {
        let all = config["num_attention_heads"].as_u64().unwrap();
        let kv_heads = config["num_key_value_heads"].as_u64().unwrap_or(all);
        let heads = if name.contains("attn_q.") { all } else { kv_heads };
        bytes = paired(&bytes, heads as usize, shape[0]);
    }
    if name.contains("shortconv.conv") || name.contains("ssm_conv1d") {
        shape.remove(1);
    }
    let row = bytes.len() / shape[0];
    if name.contains("in_proj_qkvz") {
        let parts = delta::apart(&bytes, row, config);
        for (part, end) in parts.into_iter().zip(["attn_qkv", "attn_gate"]) {
            let rows = part.len() / row;
            let name = name.replace("linear_attn.in_proj_qkvz", end);
            file.tensor(&name, kind, &[rows as u64, shape[1] as u64], part);
        }
        return;
    }
    if arch.starts_with("qwen35") {
        bytes = delta::tiled(&name, &bytes, row, config);
    }
    let small = ["ffn_gate_inp", "indexer.proj", "conv.weight", "ssm_conv1d", "exp_probs_b"];
    if kind == 30 && (shape.len() == 1 || small.iter().any(|part| name.contains(part))) {
        bytes = bytes.as_chunks::<2>().0.iter().flat_map(|&[a, b]| [0, 0, a, b]).collect();
        kind = 0;
    }
    if name.ends_with("ssm_a") {
        bytes = delta::rates(&bytes);
    }
    let greater = ["gemma2", "gemma3", "qwen3next", "qwen35moe", "qwen35"].contains(&arch);
    if greater && name.contains("norm") && !name.contains("ssm_norm") {
        let numbers = bytes.as_chunks::<4>().0.iter();
        bytes = numbers.flat_map(|n| (1.0 + f32::from_le_bytes(*n)).to_le_bytes()).collect();
    }
    let shape: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
    file.tensor(&name, kind, &shape, bytes);
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
