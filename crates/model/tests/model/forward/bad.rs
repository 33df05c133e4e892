//! Configurations and weights that cannot be used, each refused with one sentence.

use std::fs;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};
use sws_format::{Manifest, open_checkpoint};
use sws_model::{CausalLm, Inventory, ModelSpec, ResidentSource};

use crate::forward::support::{Fixture, goldens};

fn config(variant: &str) -> Map<String, Value> {
    let json = fs::read(goldens().join(variant).join("config.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
}

#[test]
fn configurations() {
    /// Removes the entry.
    const ABSENT: &str = "(absent)";
    let rope = |kind: &str| json!({"rope_type": kind, "factor": 2.0, "rope_theta": 1e4});
    let llama3 = |low: f64, high: f64| {
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": 64})
    };
    #[rustfmt::skip]
    let cases = [
        ("llama", "num_hidden_layers", json!(1_000_000_000), "1000000000 for `num_hidden_layers`, and no model has more than 4096"),
        ("llama", "num_hidden_layers", json!(0), "0 for `num_hidden_layers`, which must be at least 1"),
        ("llama", "num_hidden_layers", json!(ABSENT), "has no `num_hidden_layers`"),
        ("llama", "hidden_size", json!(ABSENT), "has no `hidden_size`"),
        ("llama", "hidden_size", json!(null), "has no `hidden_size`"),
        ("llama", "hidden_size", json!("48"), "`hidden_size` is \"48\" instead of a whole number"),
        ("llama", "hidden_size", json!(48.5), "48.5 instead of a whole number"),
        ("llama", "hidden_size", json!(-1), "-1 instead of a whole number"),
        ("llama", "hidden_size", json!(1u64 << 40), "no model has more than"),
        ("llama", "vocab_size", json!(0), "`vocab_size`, which must be at least 1"),
        ("llama", "intermediate_size", json!(ABSENT), "has no `intermediate_size`"),
        ("llama", "num_attention_heads", json!(0), "`num_attention_heads`, which must be at least 1"),
        ("llama", "num_attention_heads", json!(49), "leaves 0 of the 48 elements"),
        ("llama", "num_attention_heads", json!(16), "leaves 3 of the 48 elements of the hidden state for a head, where an even number"),
        ("llama", "num_key_value_heads", json!(2), "3 for `num_attention_heads`, which is not a multiple of the 2 key and value heads"),
        ("llama", "num_key_value_heads", json!(0), "`num_key_value_heads`, which must be at least 1"),
        ("llama", "head_dim", json!(0), "`head_dim`, which must be at least 1"),
        ("llama", "head_dim", json!(7), "7 for `head_dim`, and a rotary embedding turns pairs"),
        ("llama", "head_dim", json!(65_536_000_000u64), "`head_dim`"),
        ("llama", "max_position_embeddings", json!(0), "`max_position_embeddings`"),
        ("llama", "rms_norm_eps", json!(0), "0 for `rms_norm_eps`, which must be a number above 0 that 32 bits can hold"),
        ("llama", "rms_norm_eps", json!(1e300), "`rms_norm_eps`"),
        ("llama", "rms_norm_eps", json!(1.5), "1.5 for `rms_norm_eps`, and no model has more than 0.1"),
        ("llama", "rope_theta", json!(-1.0), "`rope_theta`, which must be a number above 0 that 32 bits can hold"),
        ("llama", "rope_scaling", rope("longrope"), "`rope_type` = \"longrope\" in a model of type `llama`, which is not supported; supported: default, linear, llama3, yarn"),
        ("gpt_oss", "rope_scaling", json!(ABSENT), "has no `rope_scaling`"),
        ("gpt_oss", "swiglu_limit", json!(0), "0 for `swiglu_limit`, which must be a number above 0"),
        ("gpt_oss", "hidden_act", json!("gelu"), "`hidden_act` = \"gelu\" in a model of type `gpt_oss`"),
        ("gpt_oss", "num_experts_per_tok", json!(7), "there are only 6 experts to choose from"),
        ("gpt_oss", "sliding_window", json!(null), "no `sliding_window` is in use"),
        ("deepseek_v2", "topk_method", json!("noaux_tc"), "`topk_method` = \"noaux_tc\" in a model of type `deepseek_v2`, which is not supported; supported: greedy, group_limited_greedy"),
        ("deepseek_v2", "norm_topk_prob", json!(true), "`norm_topk_prob` = true in a model of type `deepseek_v2`"),
        ("deepseek_v2", "scoring_func", json!("sigmoid"), "`scoring_func` = \"sigmoid\" in a model of type `deepseek_v2`"),
        ("deepseek_v2", "attention_bias", json!(true), "`attention_bias` = true in a model of type `deepseek_v2`"),
        ("deepseek_v2", "mlp_bias", json!(true), "`mlp_bias` = true"),
        ("deepseek_v2", "moe_layer_freq", json!(2), "`moe_layer_freq` = 2 in a model of type `deepseek_v2`"),
        ("deepseek_v2", "moe_layer_freq", json!([0, 1, 1]), "`moe_layer_freq` = [0,1,1]"),
        ("deepseek_v2", "q_lora_rank", json!(ABSENT), "has no `q_lora_rank`"),
        ("deepseek_v2", "q_lora_rank", json!(0), "`q_lora_rank`, which must be at least 1"),
        ("deepseek_v2", "kv_lora_rank", json!(ABSENT), "has no `kv_lora_rank`"),
        ("deepseek_v2", "qk_rope_head_dim", json!(5), "5 for `qk_rope_head_dim`, and a rotary embedding turns pairs"),
        ("deepseek_v2", "v_head_dim", json!(0), "`v_head_dim`, which must be at least 1"),
        ("deepseek_v2", "num_attention_heads", json!(65_536), "`num_key_value_heads` = 4 in a model of type `deepseek_v2`, which is not supported; supported: as many as `num_attention_heads`"),
        ("deepseek_v2", "num_key_value_heads", json!(2), "`num_key_value_heads` = 2"),
        ("deepseek_v2", "rope_scaling", json!({"type": "linear", "factor": 2, "mscale_all_dim": 1}), "`mscale_all_dim` = 1 in a model of type `deepseek_v2`, which is not supported; supported: with yarn"),
        ("deepseek_v2", "rope_scaling", rope("longrope"), "`rope_type` = \"longrope\""),
        ("deepseek_v2", "layer_types", json!(["full_attention", "sliding_attention", "full_attention"]), "with sliding attention, and no `sliding_window` is in use"),
        ("deepseek_v2_groups", "n_group", json!(2), "2 for `n_group`, and 9 experts cannot be divided into 2 such groups"),
        ("deepseek_v2_groups", "topk_group", json!(4), "4 for `topk_group`, and 4 of 3 groups have no 3 experts to choose"),
        ("deepseek_v3", "topk_method", json!("greedy"), "`topk_method` = \"greedy\" in a model of type `deepseek_v3`"),
        ("deepseek_v3", "scoring_func", json!("softmax"), "`scoring_func` = \"softmax\" in a model of type `deepseek_v3`"),
        ("deepseek_v3", "n_group", json!(12), "12 for `n_group`, and 12 experts cannot be divided into 12 such groups"),
        ("deepseek_v3", "n_group", json!(257), "257 for `n_group`, and no model has more than 256"),
        ("deepseek_v3", "topk_group", json!(0), "`topk_group`, which must be at least 1"),
        ("deepseek_v3", "num_experts_per_tok", json!(7), "2 for `topk_group`, and 2 of 4 groups have no 7 experts to choose"),
        ("deepseek_v3", "index_topk", json!(2048), "`index_topk` = 2048 in a model of type `deepseek_v3`"),
        ("deepseek_v3", "partial_rotary_factor", json!(0.5), "`partial_rotary_factor` = 0.5"),
        ("glm4_moe", "partial_rotary_factor", json!(0.04), "0.04 for `partial_rotary_factor`, by which 0 of the 20 elements of a head are rotated"),
        ("glm4_moe", "partial_rotary_factor", json!(1.5), "1.5 for `partial_rotary_factor`, by which 30 of the 20 elements"),
        ("glm4_moe_lite", "mlp_layer_types", json!(["dense", "sparse"]), "`mlp_layer_types`, of 2 entries for 3 layers"),
        ("glm4_moe_lite", "mlp_layer_types", json!(["dense", "sparse", "both"]), "supported: dense and sparse"),
        ("glm_moe_dsa", "index_topk", json!(0), "`index_topk`, which must be at least 1"),
        ("glm_moe_dsa", "index_topk", json!(1u64 << 60), "`index_topk`, and no model has more than"),
        ("glm_moe_dsa", "index_n_heads", json!(0), "`index_n_heads`, which must be at least 1"),
        ("glm_moe_dsa", "index_head_dim", json!(7), "7 for `index_head_dim`, which is less than the 8 elements that are rotated"),
        ("glm_moe_dsa", "q_lora_rank", json!(null), "has no `q_lora_rank`"),
        ("glm_moe_dsa", "rope_interleave", json!(false), "`rope_interleave` = false in a model of type `glm_moe_dsa`, which is not supported; supported: true"),
        ("glm_moe_dsa", "indexer_rope_interleave", json!(false), "`indexer_rope_interleave` = false"),
        ("glm_moe_dsa", "indexer_types", json!(["full", "full"]), "`indexer_types`, of 2 entries for 4 layers"),
        ("glm_moe_dsa", "indexer_types", json!(["shared", "full", "full", "full"]), "the first layer has no selection to share"),
        ("glm_moe_dsa", "indexer_types", json!(["full", "half", "full", "full"]), "supported: full and shared"),
        ("glm_moe_dsa", "index_topk_pattern", json!("SFFF"), "the first layer has no selection to share"),
        ("glm_moe_dsa", "index_topk_pattern", json!("FFFX"), "supported: full and shared"),
        ("glm_moe_dsa", "index_topk_freq", json!(-1), "`index_topk_freq` is -1 instead of a whole number"),
        ("glm_moe_dsa", "layer_types", json!(["full_attention", "indexed_attention"]), "supported: indexed_attention in all layers"),
        ("deepseek_v32", "indexer_rope_interleave", json!(true), "`indexer_rope_interleave` = true in a model of type `deepseek_v32`"),
        ("deepseek_v4", "compress_ratios", json!([0, 4, 64, 4]), "`compress_ratios` = [0,4,64,4] in a model of type `deepseek_v4`, which is not supported; supported: 0, 4 and 128"),
        ("deepseek_v4", "compress_ratios", json!([0, 4]), "of 2 entries for 4 layers"),
        ("deepseek_v4", "hc_mult", json!(17), "17 for `hc_mult`, and no model has more than 16"),
        ("deepseek_v4", "hc_sinkhorn_iters", json!(0), "`hc_sinkhorn_iters`, which must be at least 1"),
        ("deepseek_v4", "hc_eps", json!(0), "0 for `hc_eps`, which must be a number above 0"),
        ("deepseek_v4", "index_head_dim", json!(4), "4 for `index_head_dim`, which is less than the 6 elements that are rotated"),
        ("deepseek_v4", "n_shared_experts", json!(2), "`n_shared_experts` = 2"),
        ("deepseek_v4", "norm_topk_prob", json!(false), "`norm_topk_prob` = false"),
        ("deepseek_v4", "num_key_value_heads", json!(2), "`num_key_value_heads` = 2"),
        ("deepseek_v4", "o_groups", json!(4), "4 for `o_groups`, into which 6 heads cannot be divided"),
        ("deepseek_v4", "scoring_func", json!("sigmoid"), "supported: sqrtsoftplus"),
        ("deepseek_v4", "swiglu_limit", json!(0), "0 for `swiglu_limit`, which must be a number above 0"),
        ("deepseek_v4_v5cfg", "layer_types", json!(["full_attention", "sliding_attention", "sliding_attention"]), "supported: sliding_attention, compressed_sparse_attention"),
        ("deepseek_v4_v5cfg", "mlp_layer_types", json!(["moe", "dense", "moe"]), "supported: hash_moe and moe"),
        ("deepseek_v4_v5cfg", "compress_rates", json!({"compressed_sparse_attention": 0}), "0 for `compressed_sparse_attention`, which must be at least 1"),
        ("granitemoehybrid", "mamba_n_groups", json!(4), "4 for `mamba_n_groups`, which 6 heads cannot share"),
        ("granitemoehybrid", "mamba_n_heads", json!(5), "5 for `mamba_n_heads`, and 5 heads of 14 elements are not 84"),
        ("granitemoehybrid", "mamba_d_conv", json!(9), "`mamba_d_conv` = 9 in a model of type `granitemoehybrid`, which is not supported; supported: up to 8"),
        ("granitemoehybrid", "mamba_d_state", json!(0), "`mamba_d_state`, which must be at least 1"),
        ("granitemoehybrid", "layer_types", json!(["mamba", "attention"]), "`layer_types`, of 2 entries for 4 layers"),
        ("granitemoehybrid", "layer_types", json!(["mamba", "mamba", "attention", "moe"]), "supported: mamba and attention"),
        ("granitemoehybrid", "position_embedding_type", json!("alibi"), "`position_embedding_type` = \"alibi\""),
        ("granitemoehybrid", "time_step_limit", json!([0.0, 0.5]), "`time_step_limit` = [0.0,0.5] in a model of type `granitemoehybrid`, which is not supported; supported: [0, Infinity]"),
        ("granitemoehybrid", "normalization_function", json!("layernorm"), "`normalization_function` = \"layernorm\""),
        ("nemotron_h", "hybrid_override_pattern", json!("MEM*-M"), "`hybrid_override_pattern`, of 6 entries for 7 layers"),
        ("nemotron_h", "hybrid_override_pattern", json!("MEM*-MX"), "supported: M, E, * and -"),
        ("nemotron_h", "time_step_limit", json!([0.0, 1e29]), "supported: [0, Infinity]"),
        ("nemotron_h", "time_step_limit", json!([1e-3, 1e30]), "supported: [0, Infinity]"),
        ("nemotron_h", "mlp_hidden_act", json!("silu"), "`mlp_hidden_act` = \"silu\""),
        ("nemotron_h", "mlp_bias", json!(true), "`mlp_bias` = true"),
        ("nemotron_h", "n_groups", json!(4), "4 for `n_groups`, which 6 heads cannot share"),
        ("nemotron_h", "sliding_window", json!(8), "`sliding_window` = 8"),
        ("nemotron_h", "n_shared_experts", json!(2), "`n_shared_experts` = 2"),
        ("nemotron_h_latent", "moe_latent_size", json!(41), "41 for `moe_latent_size`, which is more than"),
        ("kimi_linear", "mla_use_nope", json!(false), "`mla_use_nope` = false"),
        ("kimi_linear", "moe_router_activation_func", json!("softmax"), "`moe_router_activation_func` = \"softmax\""),
        ("kimi_linear", "linear_attn_config", json!({"kda_layers": [1, 2], "full_attn_layers": [3, 5]}), "some layers are of neither kind"),
        ("kimi_linear", "linear_attn_config", json!({"kda_layers": [1, 2, 4], "full_attn_layers": [3, 6]}), "a layer twice, or one that does not exist"),
        ("kimi_linear", "linear_attn_config", json!({"kda_layers": [0, 1, 2, 4], "full_attn_layers": [3, 5]}), "a layer twice, or one that does not exist"),
        ("kimi_linear", "num_expert_group", json!(4), "4 for `num_expert_group`, and 6 experts cannot be divided into 4 such groups"),
        ("kimi_linear", "num_experts_per_token", json!(7), "7 for `num_experts_per_token`, and there are only 6 experts"),
        ("bailing_hybrid", "kda_lower_bound", json!(1.0), "1.0 for `kda_lower_bound`, which must be a number from -1000 up to 0"),
        ("bailing_hybrid", "no_kda_lora", json!(false), "`no_kda_lora` = false"),
        ("bailing_hybrid", "q_lora_rank", json!(-1), "`q_lora_rank` is -1"),
        ("bailing_hybrid", "moe_router_enable_expert_bias", json!(false), "`moe_router_enable_expert_bias` = false"),
        ("bailing_hybrid", "short_conv_kernel_size", json!(9), "supported: up to 8"),
        ("bailing_hybrid", "expert_swiglu_limit_list", json!([0.0]), "of 1 entries for 5 layers"),
        ("bailing_moe", "norm_head", json!(true), "`norm_head` = true in a model of type `bailing_moe`, which is not supported; supported: false"),
        ("bailing_moe", "use_rmsnorm", json!(false), "`use_rmsnorm` = false"),
        ("bailing_moe", "partial_rotary_factor", json!(0.5), "`partial_rotary_factor` = 0.5"),
        ("bailing_moe_v2", "score_function", json!("softmax"), "`score_function` = \"softmax\""),
        ("bailing_moe_v2", "rotary_dim", json!("ten"), "`rotary_dim` is \"ten\""),
        ("bailing_moe_v2", "topk_group", json!(5), "and 5 of 4 groups have no 2 experts to choose"),
        ("bailing_hybrid_unbounded", "layer_group_size", json!(3), "supported: a divisor of the number of layers"),
        ("axk1", "q_lora_rank", json!(null), "has no `q_lora_rank`"),
        ("axk1", "n_group", json!(2), "2 for `n_group`, and 9 experts cannot be divided into 2 such groups"),
        ("axk2", "n_group", json!(7), "`n_group` = 7 in a model of type `axk2`, which is not supported; supported: null, one group of experts"),
        ("axk2", "gated_norm_rank", json!(0), "`gated_norm_rank`, which must be at least 1"),
        ("axk2", "index_head_dim", json!(4), "4 for `index_head_dim`, which is less than the 6 elements that are rotated"),
        ("dots3_note", "swa_head_dim", json!(17), "17 for `swa_head_dim`, and a head in a window must be its two parts"),
        ("dots3_note", "swa_num_key_value_heads", json!(2), "where windows must have as many key heads as heads"),
        ("dots3_note", "num_key_value_heads", json!(1), "1 for `num_key_value_heads`, where there are 3 heads"),
        ("dots3_note", "moe_layer_freq", json!([0, 1]), "`moe_layer_freq`, of 2 entries for 5 layers"),
        ("dots3_note", "layer_types", json!(["full_attention"]), "`layer_types`, of 1 entries for 5 layers"),
        ("dots3_note", "layer_types", json!(["conv", "conv", "conv", "conv", "conv"]), "supported: indexed_attention and sliding_attention"),
        ("dots3_note", "per_layer_config", json!({"1": {"q_lora_rank": 3}}), "the same entries for all layers of a kind"),
        ("dots3_note", "per_layer_config", json!(7), "`per_layer_config` is 7 instead of an object"),
        ("dots3_note", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0}), "supported: no scaling, and the share"),
        ("dots3_note", "swa_rope_theta", json!(1e-300), "`swa_rope_theta`, which must be a number above 0"),
        ("lfm3", "layer_types", json!(["conv", "mamba", "conv", "conv", "conv", "conv"]), "supported: conv, full_attention and sliding_attention"),
        ("lfm3", "layer_types", json!(["conv"]), "`layer_types`, of 1 entries for 6 layers"),
        ("lfm3", "sliding_window", json!(null), "with sliding attention, and no `sliding_window` is in use"),
        ("lfm3", "conv_L_cache", json!(9), "supported: up to 8"),
        ("lfm3", "rope_parameters", json!({"full_attention": {"rope_type": "default"}}), "has no `sliding_attention`"),
        ("lfm3", "rope_scaling", json!({"rope_type": "linear", "factor": 2.0}), "supported: null"),
        ("longcat_flash", "zero_expert_num", json!(65_536), "65536 for `zero_expert_num`, and no router has so many rows"),
        ("longcat_flash", "zero_expert_num", json!("three"), "`zero_expert_num` is \"three\" instead of a whole number"),
        ("longcat_flash", "zero_expert_type", json!("drop"), "`zero_expert_type` = \"drop\""),
        ("longcat_flash", "q_lora_rank", json!(ABSENT), "has no `q_lora_rank`"),
        ("longcat_flash", "num_layers", json!(ABSENT), "has no `num_layers`"),
        ("longcat_flash", "num_layers", json!(40_000), "`num_layers`, and no model has more than 2048"),
        ("longcat_flash", "ffn_hidden_size", json!(ABSENT), "has no `ffn_hidden_size`"),
        ("longcat_flash", "mla_scale_q_lora", json!(false), "`mla_scale_q_lora` = false"),
        ("longcat_flash", "moe_topk", json!(7), "7 for `moe_topk`, and there are only 6 experts"),
        ("afmoe", "score_func", json!("softmax"), "`score_func` = \"softmax\" in a model of type `afmoe`"),
        ("afmoe", "n_group", json!(2), "`n_group` = 2 in a model of type `afmoe`, which is not supported; supported: 1"),
        ("laguna", "gating", json!(false), "supported: true, per-head, per-element"),
        ("laguna", "moe_router_logit_softcapping", json!(30.0), "`moe_router_logit_softcapping` = 30.0"),
        ("laguna", "moe_apply_router_weight_on_input", json!(true), "`moe_apply_router_weight_on_input` = true"),
        ("laguna", "num_attention_heads_per_layer", json!([4, 6, 4]), "of 3 entries for 4 layers"),
        ("laguna", "num_attention_heads_per_layer", json!([4, 5, 4, 6]), "and 5 is not a multiple of the 2 key and value heads"),
        ("laguna", "num_attention_heads_per_layer", json!([4, 1u64 << 40, 4, 6]), "`num_attention_heads_per_layer`, and no model has more than"),
        ("cohere2_moe", "expert_selection_fn", json!("tanh"), "supported: softmax, sigmoid"),
        ("cohere2_moe", "shared_expert_combination_strategy", json!("max"), "supported: average, sum"),
        ("cohere2_moe", "logit_scale", json!(0), "`logit_scale`, which must be a number above 0"),
        ("mimo_v2_flash", "attention_projection_layout", json!("fused_qkv"), "`attention_projection_layout` = \"fused_qkv\""),
        ("mimo_v2_flash", "add_full_attention_sink_bias", json!(true), "`add_full_attention_sink_bias` = true"),
        ("mimo_v2_flash", "swa_head_dim", json!(20), "supported: the same in all layers"),
        ("mimo_v2_flash", "swa_num_key_value_heads", json!(3), "leaves windowed layers uneven groups of heads"),
        ("mimo_v2_flash", "v_head_dim", json!(0), "`v_head_dim`, which must be at least 1"),
        ("mistral4", "rope_parameters", json!(ABSENT), "has no `rope_parameters`"),
        ("mistral4", "rope_parameters", json!({"rope_type": "default", "llama_4_scaling_beta": 0.1}), "has no `original_max_position_embeddings`"),
        ("mistral4", "rope_parameters", json!({"rope_type": "default", "partial_rotary_factor": 0.5}), "0.5 for `partial_rotary_factor`, where 8 elements of a head are rotated"),
        ("llama4_text", "num_experts_per_tok", json!(2), "`num_experts_per_tok` = 2 in a model of type `llama4_text`, which is not supported; supported: 1"),
        ("llama4_text", "no_rope_layers", json!([1, 2, 1, 1]), "`no_rope_layers`, which must list a 0 or a 1 for each layer"),
        ("llama4_text", "moe_layers", json!([-1]), "`moe_layers`, which must list numbers of layers"),
        ("llama4_text", "attention_chunk_size", json!(0), "`attention_chunk_size`, which must be at least 1"),
        ("llama4_text", "attn_temperature_tuning", json!("on"), "instead of true or false"),
        ("llama4_text", "floor_scale", json!(0), "`floor_scale`, which must be a number above 0"),
        ("phimoe", "num_experts_per_tok", json!(3), "supported: 2"),
        ("phimoe", "rope_scaling", json!({"type": "longrope", "short_factor": [1.0]}), "which must have a number for each pair of a head"),
        ("phimoe", "rope_scaling", json!({"type": "longrope", "short_factor": [1.0, 1.0, 1.0, 1.0, 1.0]}), "has no `short_mscale`"),
        ("llama", "rope_scaling", json!({"type": "dynamic", "factor": 2}), "`type` = \"dynamic\""),
        ("llama", "rope_scaling", json!({"type": "linear"}), "has no `factor`"),
        ("llama", "rope_scaling", json!({"type": "linear", "factor": 1e-37}), "1e-37 for `factor`, by which angles of rotary embeddings become infinite"),
        ("llama", "rope_scaling", json!({"type": "linear", "factor": 1e12}), "1000000000000.0 for `factor`, and no model has more than 1000000"),
        ("llama", "rope_scaling", json!({"factor": 8.0}), "8.0 for `factor`, which only a scaling reads, and `rope_scaling` names none by `rope_type` or `type`"),
        ("llama", "rope_parameters", json!({"rope_type": null, "beta_fast": 2}), "2 for `beta_fast`, which only a scaling reads, and `rope_parameters` names none"),
        ("gemma3_text_v5cfg", "rope_parameters", json!({"full_attention": {"factor": 8.0}, "sliding_attention": {}}), "8.0 for `factor`, which only a scaling reads"),
        ("phimoe", "rope_scaling", json!({"long_factor": [1.0], "short_factor": [1.0]}), "[1.0] for `long_factor`, which only a scaling reads"),
        ("llama", "rope_scaling", json!({"type": "yarn", "factor": 2.5, "original_max_position_embeddings": 1u64 << 63}), "9223372036854775808 for `original_max_position_embeddings`, and no model has more than 4294967296"),
        ("llama", "rope_scaling", json!({"type": "yarn", "factor": 2.5, "mscale": 1e12, "mscale_all_dim": 1}), "for `mscale`, and no model has more than 1000"),
        ("llama", "rope_scaling", json!({"type": "yarn", "factor": 2.5, "beta_slow": 1u64 << 63}), "for `beta_slow`, and no model has more than 1000000"),
        ("llama", "rope_scaling", json!({"type": "yarn", "factor": 2.5, "beta_slow": 33}), "33 for `beta_slow`, where 33 is above 32, the `beta_fast`"),
        ("llama", "rope_scaling", json!({"type": "yarn", "factor": 2.5, "beta_fast": 0.5}), "0.5 for `beta_fast`, where 1 is above 0.5, the `beta_fast`"),
        ("kimi_linear", "linear_attn_config", json!({"kda_layers": [1, 2, 3, 4, 5]}), "has no `full_attn_layers`"),
        ("llama", "rope_theta", json!(1e-44), "by which angles of rotary embeddings become infinite"),
        ("llama", "rope_scaling", json!({"type": 3}), "`type` is 3 instead of a string"),
        ("llama", "rope_scaling", json!([1]), "`rope_scaling` is [1] instead of an object"),
        ("llama", "rope_scaling", llama3(4.0, 3.5), "3.5 for `high_freq_factor`, which must not be below `low_freq_factor`"),
        ("llama", "rope_scaling", llama3(0.0, 4.0), "`low_freq_factor`"),
        ("llama", "rope_scaling", json!({"full_attention": {"rope_type": "default"}}), "supported: one rotary embedding for all layers"),
        ("llama", "partial_rotary_factor", json!(0.5), "`partial_rotary_factor` = 0.5"),
        ("llama", "hidden_act", json!("gelu"), "`hidden_act` = \"gelu\" in a model of type `llama`, which is not supported; supported: silu"),
        ("llama", "attention_bias", json!(1), "`attention_bias` is 1 instead of true or false"),
        ("llama", "quantization_config", json!({"quant_method": "bitsandbytes", "bits": 4}), "`quant_method` = \"bitsandbytes\" in a model of type `llama`, which is not supported; supported: weights in f32, f16 or bf16, and mxfp4, mxfp8, fp8, compressed-tensors, modelopt, awq and gptq"),
        ("llama", "quantization_config", json!({"quant_method": "fp8", "fmt": "e5m2"}), "`fmt` = \"e5m2\" in a model of type `llama`, which is not supported; supported: e4m3"),
        ("llama", "quantization_config", json!({"quant_method": "fp8", "weight_block_size": [32, 32]}), "`weight_block_size` = [32,32]"),
        ("llama", "quantization_config", json!({"quant_method": "fp8", "weight_block_size": [128]}), "`weight_block_size` = [128]"),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": {"weights": {"num_bits": 8}}}}), "`num_bits` = 8"),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": {"weights": {"type": "float"}}}}), "`type` = \"float\""),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"a": {"weights": {"group_size": 48}}}}), "`group_size` = 48"),
        ("llama", "quantization_config", json!({"quant_method": "fp8", "weight_block_size": 128}), "`weight_block_size` is 128 instead of a list"),
        ("llama", "quantization_config", json!({"quant_method": 8}), "`quant_method` is 8 instead of a string"),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": {}}}), "`format` = \"int-quantized\""),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"symmetric": false}}}}), "`symmetric` = false"),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"actorder": "group"}}}}), "`actorder` = \"group\""),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors", "config_groups": [1]}), "`config_groups` is [1] instead of an object"),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}), "`sparsity_config` = an object"),
        ("llama", "quantization_config", json!({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R1": {}}}}), "`transform_config` = an object"),
        ("llama", "quantization_config", json!({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}), "`quant_algo` = \"W4A8_AWQ\""),
        ("llama", "quantization_config", json!({"bits": 4}), "`quantization_config` = an object"),
        ("llama", "quantization_config", json!("fp8"), "`quantization_config` is \"fp8\" instead of an object"),
        ("llama", "layer_types", json!(["full_attention", "chunked_attention", "full_attention"]), "supported: full_attention and sliding_attention"),
        ("llama", "text_config", json!(3), "`text_config` is 3 instead of an object"),
        ("llama", "model_type", json!("llama5"), "`llama5`, which is not supported; docs/supported.md names those"),
        ("llama", "model_type", json!("deepseek_v41"), "`deepseek_v41`, which is not supported (it has tables of n-grams for which there is no code in transformers); docs"),
        ("mistral", "sliding_window", json!(0), "`sliding_window`, which must be at least 1"),
        ("mistral", "layer_types", json!(["full_attention", "sliding_attention", "full_attention"]), "supported: in every layer what `sliding_window` says"),
        ("qwen2_swa", "sliding_window", json!("8"), "`sliding_window` is \"8\" instead of a whole number"),
        ("qwen3_swa", "layer_types", json!(["full_attention"]), "`layer_types`, of 1 entries for 3 layers"),
        ("qwen3_swa", "layer_types", json!("full_attention"), "instead of a list"),
        ("qwen3_swa", "sliding_window", json!(null), "with sliding attention, and no `sliding_window` is in use"),
        ("mixtral", "num_experts_per_tok", json!(7), "7 for `num_experts_per_tok`, and there are only 6 experts"),
        ("mixtral", "num_experts_per_tok", json!(0), "`num_experts_per_tok`, which must be at least 1"),
        ("mixtral", "num_experts_per_tok", json!(ABSENT), "has no `num_experts_per_tok`"),
        ("mixtral", "num_local_experts", json!(0), "and there are only 0 experts"),
        ("mixtral", "num_local_experts", json!(u64::MAX), "`num_local_experts`, and no model has more than 65536"),
        ("mixtral", "num_local_experts", json!(ABSENT), "has no `num_local_experts`"),
        ("qwen2_moe", "decoder_sparse_step", json!(0), "`decoder_sparse_step`, which must be at least 1"),
        ("qwen2_moe", "mlp_only_layers", json!([-1]), "[-1] for `mlp_only_layers`, which must list numbers of layers"),
        ("qwen2_moe", "norm_topk_prob", json!("yes"), "`norm_topk_prob` is \"yes\""),
        ("qwen2_moe", "moe_intermediate_size", json!(ABSENT), "has no `moe_intermediate_size`"),
        ("olmoe", "clip_qkv", json!(-2), "`clip_qkv`, which must be a number above 0 that 32 bits can hold"),
    ];
    for (variant, key, value, expected) in cases {
        let mut config = config(variant);
        match value == json!(ABSENT) {
            true => config.remove(key),
            false => config.insert(key.to_owned(), value.clone()),
        };
        let json = serde_json::to_vec(&config).unwrap();
        let Err(error) = ModelSpec::parse(&json) else { panic!("{key} {value} was accepted") };
        let message = error.to_string();
        assert!(message.contains("config.json") && message.contains(expected), "{message}");
        assert!(!message.contains('\n') && message.len() < 400, "{message}");
    }
}

/// A change to one tensor of a checkpoint.
enum Change {
    Drop,
    Shape(&'static [usize]),
    Type(Dtype),
    /// Overwrites the bytes at this offset.
    Bytes(usize, &'static [u8]),
}

#[test]
fn tensors() {
    const GATE: &str = "model.layers.1.mlp.gate.weight";
    const UP: &str = "model.layers.2.mlp.experts.6.up_proj.weight";
    const NORM: &str = "model.layers.0.self_attn.k_norm.weight";
    #[rustfmt::skip]
    let cases = [
        (GATE, Change::Drop, "the weights lack `model.layers.1.mlp.gate.weight`, which their configuration asks for"),
        (UP, Change::Drop, "`model.layers.2.mlp.experts.6.up_proj.weight`"),
        (NORM, Change::Drop, "`model.layers.0.self_attn.k_norm.weight`"),
        ("lm_head.weight", Change::Drop, "`lm_head.weight`"),
        ("model.norm.weight", Change::Drop, "`model.norm.weight`"),
        ("model.embed_tokens.weight", Change::Drop, "`model.embed_tokens.weight`"),
        (UP, Change::Shape(&[40, 19]), "up_proj.weight` has the shape [40, 19] where the configuration asks for [19, 40]"),
        (UP, Change::Shape(&[760]), "has the shape [760]"),
        (NORM, Change::Shape(&[2, 7]), "has the shape [2, 7] where the configuration asks for [14]"),
        (UP, Change::Type(Dtype::I16), "up_proj.weight` is stored as I16, and f32, f16, bf16 and our encodings"),
        (NORM, Change::Type(Dtype::U16), "k_norm.weight` is stored as U16, and f32, f16 and bf16 can"),
        (UP, Change::Bytes(2 * (3 * 40 + 7), &[0xc1, 0x7f]), "up_proj.weight` holds NaN (row 3, column 7)"),
        (UP, Change::Bytes(2 * (3 * 40 + 7), &[0x80, 0x7f]), "up_proj.weight` holds inf (row 3, column 7)"),
        (UP, Change::Bytes(0, &[0x80, 0xff]), "up_proj.weight` holds -inf (row 0, column 0)"),
        (NORM, Change::Bytes(26, &[0xff, 0xff]), "k_norm.weight` holds NaN (row 0, column 13)"),
        ("model.embed_tokens.weight", Change::Bytes(0, &[0xc0, 0xff]), "holds NaN (row 0, column 0)"),
    ];
    changed("qwen3_moe", cases);
}

#[test]
fn inputs_of_layers() {
    const TABLE: &str = "model.embed_tokens_per_layer.weight";
    const GATE: &str = "model.layers.3.per_layer_input_gate.weight";
    #[rustfmt::skip]
    let cases = [
        (TABLE, Change::Drop, "`model.embed_tokens_per_layer.weight`"),
        (TABLE, Change::Shape(&[42, 103]), "has the shape [42, 103] where the configuration asks for [103, 42]"),
        (TABLE, Change::Bytes(2 * (5 * 42 + 3), &[0xc0, 0x7f]), "holds NaN (row 5, column 3)"),
        (GATE, Change::Drop, "`model.layers.3.per_layer_input_gate.weight`"),
        (GATE, Change::Shape(&[44, 6]), "has the shape [44, 6] where the configuration asks for [6, 44]"),
        ("model.layers.6.per_layer_projection.weight", Change::Drop, "`model.layers.6.per_layer_projection.weight`"),
        ("model.layers.0.post_per_layer_input_norm.weight", Change::Drop, "`model.layers.0.post_per_layer_input_norm.weight`"),
        ("model.per_layer_model_projection.weight", Change::Drop, "`model.per_layer_model_projection.weight`"),
        ("model.per_layer_projection_norm.weight", Change::Type(Dtype::I16), "is stored as I16"),
    ];
    changed("gemma4_text_inputs", cases);
}

#[test]
fn parts_of_new_families() {
    #[rustfmt::skip]
    changed("mistral_large4", [
        ("lerope.alpha", Change::Drop, "`lerope.alpha`"),
        ("layers.1.attention.wkv_a_with_mqa.weight", Change::Drop, "`layers.1.attention.wkv_a_with_mqa.weight`"),
        ("layers.2.attention.ssmax_scaling.b", Change::Drop, "`layers.2.attention.ssmax_scaling.b`"),
        ("layers.3.attention.indexer.q_input_norm.bias", Change::Drop, "`layers.3.attention.indexer.q_input_norm.bias`"),
    ]);
    #[rustfmt::skip]
    changed("inkling2", [
        ("model.llm.attn_res.attn_queries.0", Change::Shape(&[4, 30]), "has the shape [4, 30] where the configuration asks for [3, 40]"),
        ("model.llm.attn_res.attn_queries.1", Change::Drop, "`model.llm.attn_res.attn_queries.1`"),
        ("model.llm.attn_res.mlp_queries.3", Change::Drop, "`model.llm.attn_res.mlp_queries.3`"),
        ("model.llm.attn_res.output_query", Change::Drop, "`model.llm.attn_res.output_query`"),
        ("model.llm.layers.1.attn.k_sconv.static_w", Change::Drop, "the weights lack `model.llm.layers.1.attn.k_sconv.weight` or `model.llm.layers.1.attn.k_sconv.static_w`, which"),
        ("model.llm.layers.1.k_input_norm.weight", Change::Drop, "`model.llm.layers.1.k_input_norm.weight`"),
        ("model.llm.layers.3.attn.v_sconv.weight_proj", Change::Drop, "`model.llm.layers.3.attn.v_sconv.weight_proj`"),
        ("model.llm.layers.0.attn.q_l2_clip.scale", Change::Shape(&[10, 6]), "has the shape [10, 6] where the configuration asks for [6, 10]"),
        ("model.llm.layers.1.attn.k_sconv.static_w", Change::Shape(&[24, 4]), "has the shape [24, 4] where the configuration asks for [4, 24]"),
    ]);
    #[rustfmt::skip]
    changed("axk1", [
        ("model.layers.2.mlp.gate.e_score_correction_bias", Change::Drop, "`model.layers.2.mlp.gate.e_score_correction_bias`"),
        ("model.layers.1.post_mlp_layernorm.weight", Change::Drop, "`model.layers.1.post_mlp_layernorm.weight`"),
    ]);
    #[rustfmt::skip]
    changed("axk2", [
        ("model.layers.1.input_layernorm.W_down.weight", Change::Shape(&[40, 5]), "has the shape [40, 5] where the configuration asks for [5, 40]"),
        ("model.layers.2.post_attention_layernorm.W_up.weight", Change::Drop, "`model.layers.2.post_attention_layernorm.W_up.weight`"),
    ]);
    #[rustfmt::skip]
    changed("dots3_note", [
        ("model.layers.1.self_attn.k_rope_only_layernorm.weight", Change::Shape(&[2, 2]), "has the shape [2, 2] where the configuration asks for [4]"),
    ]);
    #[rustfmt::skip]
    changed("muse_spark", [
        ("model.language_model.layers.1.post_attention_residual_gate.gate", Change::Drop, "`model.language_model.layers.1.post_attention_residual_gate.gate`"),
        ("model.language_model.layers.2.mlp.pre_expert_norm.weight", Change::Drop, "`model.language_model.layers.2.mlp.pre_expert_norm.weight`"),
    ]);
}

#[test]
fn tables_of_experts() {
    const TABLE: &str = "layers.1.ffn.gate.tid2eid";
    #[rustfmt::skip]
    let cases = [
        (TABLE, Change::Drop, "`layers.1.ffn.gate.tid2eid`"),
        (TABLE, Change::Shape(&[2, 97]), "has the shape [2, 97] where the configuration asks for [97, 2]"),
        (TABLE, Change::Type(Dtype::F64), "tid2eid` is stored as F64, and i64 can"),
        (TABLE, Change::Bytes(0, &[0xff; 8]), "tid2eid` holds NaN (row 0, column 0)"),
    ];
    changed("deepseek_v4", cases);
}

/// Makes each of the changes to a checkpoint, and checks that the error contains the sentence.
fn changed<const N: usize>(variant: &str, cases: [(&str, Change, &str); N]) {
    let fixture = goldens().join(variant);
    let config = fs::read(fixture.join("config.json")).unwrap();
    let weights = fs::read(fixture.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&weights).unwrap();
    for (name, change, expected) in cases {
        let dir = tempfile::tempdir().unwrap();
        let tensors = file.iter().filter_map(|(found, tensor)| {
            let (mut dtype, mut shape) = (tensor.dtype(), tensor.shape().to_vec());
            let mut data = tensor.data().to_vec();
            if found == name {
                match change {
                    Change::Drop => return None,
                    Change::Shape(other) => shape = other.to_vec(),
                    Change::Type(other) => dtype = other,
                    Change::Bytes(at, bytes) => data[at..at + bytes.len()].copy_from_slice(bytes),
                }
            }
            Some((found.to_owned(), dtype, shape, data))
        });
        let tensors: Vec<_> = tensors.collect();
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
        fs::write(dir.path().join("config.json"), &config).unwrap();
        let message = refusal(dir.path());
        assert!(message.contains(expected), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

/// The error of loading a checkpoint.
fn refusal(dir: &Path) -> String {
    let checkpoint = open_checkpoint(dir, None).unwrap();
    let naming = sws_model::naming(checkpoint.config()).unwrap();
    let manifest = Manifest::in_place(&*checkpoint, &*naming).unwrap();
    let spec = ModelSpec::of(checkpoint.config()).unwrap();
    let bytes = fs::read(dir.join("model.safetensors")).unwrap();
    let loaded = ResidentSource::load(&spec, &manifest, |extent, to| {
        to.copy_from_slice(&bytes[extent.offset as usize..][..to.len()]);
        Ok(())
    });
    loaded.expect_err("it was accepted").to_string()
}

/// A table may give the token 5 an expert beyond the last, or one twice: then the token is refused.
#[test]
fn experts_that_a_table_cannot_give() {
    let fixture = goldens().join("deepseek_v4");
    let weights = fs::read(fixture.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&weights).unwrap();
    for row in [[6u64, 0], [3, 3], [0, 1 << 32], [2, 4]] {
        let dir = tempfile::tempdir().unwrap();
        let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = file
            .iter()
            .map(|(name, tensor)| {
                (name.to_owned(), tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec())
            })
            .collect();
        let name = "layers.0.ffn.gate.tid2eid";
        let table = tensors.iter_mut().find(|(found, ..)| found == name).unwrap();
        for (place, expert) in row.into_iter().enumerate() {
            table.3[(5 * 2 + place) * 8..][..8].copy_from_slice(&expert.to_le_bytes());
        }
        let views = tensors.iter().map(|(name, dtype, shape, data)| {
            (name, TensorView::new(*dtype, shape.clone(), data).unwrap())
        });
        safetensors::serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
        fs::copy(fixture.join("config.json"), dir.path().join("config.json")).unwrap();
        let mut session = Fixture::at(dir.path()).session();
        let expected = "the table of experts of layer 0 gives the token 5 an expert that does not \
                        exist, or one twice; download it again";
        match session.prefill(&[4, 5]) {
            Ok(_) => assert_eq!(row, [2, 4]),
            Err(error) => assert_eq!(error.to_string(), expected),
        }
        assert!(row == [2, 4] || session.prefill(&[4]).is_err(), "the pass failed in the middle");
    }
}

/// Matrices that are stored as [columns, rows] come in order in shards only.
#[test]
fn transposed_matrices_are_refused_in_place() {
    let (manifest, spec) = sws_testing::open(&goldens().join("gpt_oss")).unwrap();
    let error = Inventory::new(&spec, &manifest).unwrap_err().to_string();
    assert_eq!(
        error,
        "the tensor `model.layers.0.mlp.experts.gate_up_proj` is stored with rows and columns \
         exchanged, and cannot be read in place; make shards with `sws shard` and use those"
    );
}

/// A configuration that asks for more than any file holds is refused at the first missing tensors,
/// without counting to four billion.
#[test]
fn many_missing_tensors() {
    let fixture = Fixture::open("mixtral");
    for (key, count) in [("num_hidden_layers", 4096), ("num_local_experts", 65_536)] {
        let mut config = config("mixtral");
        config.insert(key.to_owned(), json!(count));
        let spec = ModelSpec::parse(&serde_json::to_vec(&config).unwrap()).unwrap();
        let error = sws_model::Inventory::new(&spec, &fixture.manifest).unwrap_err().to_string();
        let asked = "has the shape [6, 40] where the configuration asks for [65536, 40]";
        assert!(
            error.contains("and more, which their configuration") || error.contains(asked),
            "{error}"
        );
    }
    let other = Fixture::open("llama");
    let error = sws_model::Inventory::new(&fixture.spec, &other.manifest).unwrap_err().to_string();
    assert!(error.contains("model type `llama`, and the configuration says `mixtral`"), "{error}");
}
