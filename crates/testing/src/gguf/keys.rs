//! The keys of files, from the configurations of checkpoints.

use serde_json::Value;

use super::{GgufFile, Key, delta, gemma4, latent};

/// Adds the keys of an architecture. None for a configuration that they cannot say.
pub(super) fn keys(
    file: &mut GgufFile,
    arch: &str,
    model_type: &str,
    config: &Value,
) -> Option<()> {
    let whole = |entry: &str| config[entry].as_u64().map(|n| Key::U32(n as u32));
    let float = |entry: &str| config[entry].as_f64().map(|x| Key::F32(x as f32));
    let experts = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"]
        .into_iter()
        .find_map(|entry| config[entry].as_u64());
    let head_dim = config["head_dim"].as_u64().unwrap_or_else(|| {
        config["hidden_size"].as_u64().unwrap() / config["num_attention_heads"].as_u64().unwrap()
    });
    let window = matches!(
        model_type,
        "mistral" | "mixtral" | "gpt_oss" | "gemma2" | "gemma3_text" | "gemma4_text"
    );
    let layers = config["num_hidden_layers"].as_u64().unwrap();
    let ahead = config["num_nextn_predict_layers"].as_u64();
    let rope = [&config["rope_parameters"], &config["rope_scaling"]];
    let rope = rope.into_iter().find(|rope| rope.is_object()).unwrap_or(&Value::Null);
    let share = config["partial_rotary_factor"].as_f64().or(rope["partial_rotary_factor"].as_f64());
    let rotated = config["rotary_dim"].as_f64();
    let rotated = rotated.unwrap_or(share.unwrap_or(1.0) * head_dim as f64);
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
        ("attention.head_count_kv", key_heads(config)),
        ("attention.key_length", Some(Key::U32(head_dim as u32))),
        ("attention.value_length", Some(Key::U32(head_dim as u32))),
        ("rope.dimension_count", Some(Key::U32(rotated as u32))),
        ("rope.freq_base", theta.map(|theta| Key::F32(theta as f32))),
        ("attention.layer_norm_rms_epsilon", float("rms_norm_eps").or_else(|| float("norm_eps"))),
        ("shortconv.l_cache", whole("conv_L_cache")),
        ("attn_logit_softcapping", float("attn_logit_softcapping")),
        ("final_logit_softcapping", float("final_logit_softcapping")),
        ("attention.scale", float("attention_multiplier")),
        ("embedding_scale", float("embedding_multiplier")),
        ("residual_scale", float("residual_multiplier")),
        ("logit_scale", float("logits_scaling")),
        ("interleave_moe_layer_step", whole("moe_layer_interval")),
        ("attention.clamp_kqv", float("clip_qkv")),
        ("attention.sliding_window", whole("sliding_window").filter(|_| window)),
        ("expert_count", experts.map(|n| Key::U32(n as u32))),
        (
            "expert_used_count",
            experts
                .and(first(config, ["num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"])),
        ),
        ("expert_feed_forward_length", whole("moe_intermediate_size")),
        ("expert_shared_feed_forward_length", shared),
        ("expert_group_count", whole("n_group")),
        ("expert_group_used_count", whole("topk_group")),
        (
            "expert_shared_count",
            first(config, ["n_shared_experts", "moe_num_shared_experts", "num_shared_expert"]),
        ),
        ("leading_dense_block_count", dense_layers(config)),
        ("expert_weights_scale", float("routed_scaling_factor")),
        ("expert_gating_func", gating(arch, model_type).map(Key::U32)),
        ("expert_weights_norm", config["norm_topk_prob"].as_bool().map(Key::Bool)),
    ];
    file.key("general.architecture", arch.into());
    file.key("general.name", "golden".into());
    scaling(file, arch, rope)?;
    if config["kv_lora_rank"].is_u64() {
        latent::keys(file, arch, config);
    }
    if config["linear_num_key_heads"].is_u64() {
        delta::keys(file, arch, config);
    }
    if arch == "gemma4" {
        gemma4::keys(file, arch, config);
    }
    let replaced = file.keys.clone();
    for (key, value) in pairs {
        if replaced.iter().any(|(name, _)| *name == format!("{arch}.{key}")) {
            continue;
        }
        if let Some(value) = value {
            file.key(&format!("{arch}.{key}"), value);
        }
    }
    file.key("tokenizer.ggml.eos_token_id", Key::U32(2));
    Some(())
}

/// Adds the keys of a scaled rotary embedding.
fn scaling(file: &mut GgufFile, arch: &str, rope: &Value) -> Option<()> {
    match rope["rope_type"].as_str().or(rope["type"].as_str()) {
        None | Some("default") => {}
        Some("linear") => {
            file.key(&format!("{arch}.rope.scaling.type"), "linear".into());
            let factor = rope["factor"].as_f64().unwrap() as f32;
            file.key(&format!("{arch}.rope.scaling.factor"), Key::F32(factor));
        }
        Some("yarn") => {
            if let Some(factor) = rope["mscale_all_dim"].as_f64() {
                let key = format!("{arch}.rope.scaling.yarn_log_multiplier");
                file.key(&key, Key::F32((0.1 * factor) as f32));
            }
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
    Some(())
}

/// The first of these entries that is given, as one number.
fn first<const N: usize>(config: &Value, entries: [&str; N]) -> Option<Key> {
    let number = |entry: &&str| match &config[*entry] {
        Value::Array(all) => all.first()?.as_u64(),
        value => value.as_u64(),
    };
    entries.iter().find_map(number).map(|n| Key::U32(n as u32))
}

/// The number of layers before those with experts.
fn dense_layers(config: &Value) -> Option<Key> {
    if let Some(kinds) = config["mlp_layer_types"].as_array() {
        let dense = kinds.iter().take_while(|kind| *kind == "dense").count();
        return Some(Key::U32(dense as u32));
    }
    first(config, ["first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"])
}

/// The number of key heads, or that of each layer where some have none.
fn key_heads(config: &Value) -> Option<Key> {
    let heads = config["num_key_value_heads"].as_u64()?;
    let Some(kinds) = config["layer_types"].as_array().filter(|_| config["conv_L_cache"].is_u64())
    else {
        return Some(Key::U32(heads as u32));
    };
    let mut each = Vec::with_capacity(kinds.len());
    for kind in kinds {
        each.push(if kind == "conv" { 0 } else { heads as i32 });
    }
    Some(Key::Ints(each))
}

/// The number of the function of a router.
fn gating(arch: &str, model_type: &str) -> Option<u32> {
    match (arch, model_type) {
        // The configuration has no entry for it, so that the converter writes none.
        (_, "glm4_moe_lite") => None,
        (_, "deepseek_v2") => Some(1),
        ("glm4moe" | "deepseek2" | "deepseek32" | "glm-dsa" | "dots1", _) => Some(2),
        ("minimax-m2" | "lfm2moe", _) => Some(2),
        _ => None,
    }
}
