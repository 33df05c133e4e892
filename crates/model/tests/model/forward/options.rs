//! Options of configurations that change the model, and spellings that do not.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sws_model::{CausalLm, ModelSpec};
use sws_testing::goldens::{Tensors, change, copy, golden_dir, goldens};

use crate::forward::support::{Fixture, Recorder};

/// Removes the entry.
const ABSENT: &str = "(absent)";

/// An entry, with `.` between the levels of nested ones, and its new value.
type Change = (&'static str, Value);

/// The configuration of a golden with some entries changed. A name `outer/golden` is the golden as
/// the language model of the model type `outer`.
fn changed(golden: &str, changes: &[Change]) -> Value {
    let (outer, golden) =
        golden.split_once('/').map_or((None, golden), |(outer, golden)| (Some(outer), golden));
    let text = fs::read(golden_dir(golden).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    if let Some(outer) = outer {
        config = json!({"model_type": outer, "text_config": config});
    }
    for (path, value) in changes {
        let (levels, key) = path.rsplit_once('.').unwrap_or(("", *path));
        let levels = levels.split('.').filter(|level| !level.is_empty());
        let within = levels.fold(&mut config, |within, level| &mut within[level]);
        match *value == json!(ABSENT) {
            true => drop(within.as_object_mut().unwrap().remove(key)),
            false => within[key] = value.clone(),
        }
    }
    config
}

/// The sizes of dots3-note's windows, as transformers writes them.
fn windows_of_dots3() -> Value {
    let sizes = json!({"num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 21, "kv_lora_rank": 27,
        "head_dim": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 10});
    json!({"1": sizes, "2": sizes, "4": sizes})
}

#[test]
fn spellings_that_describe_the_same_model() {
    let absent = || json!(ABSENT);
    #[rustfmt::skip]
    let cases: &[(&str, &[Change], &[Change])] = &[
        // Of a model around the language model, either may say that they share the head.
        ("qwen3_5", &[("tie_word_embeddings", json!(false))], &[]),
        ("qwen3_5", &[("text_config.tie_word_embeddings", json!(false))], &[]),
        ("qwen3_5", &[("tie_word_embeddings", absent())], &[]),
        ("qwen3_5", &[("tie_word_embeddings", json!(null))], &[]),
        ("llama", &[("tie_embedding", json!(true))], &[]),
        ("lfm2_moe", &[("tie_embedding", json!(false))], &[("tie_word_embeddings", json!(false))]),
        // What the language model says itself comes first.
        ("inkling2_loop", &[("loop_config", json!({"num_passes": 3}))], &[]),
        // Layers with a window have another base than the others.
        ("gemma3_text_v5cfg",
            &[("rope_parameters.sliding_attention.rope_theta", absent()), ("rope_local_base_freq", json!(5000)),
                ("rope_theta", json!(77))],
            &[("rope_parameters.sliding_attention.rope_theta", json!(5000))]),
        ("gemma3_text_v5cfg",
            &[("rope_parameters.sliding_attention.rope_theta", absent()), ("rope_local_base_freq", absent()),
                ("rope_theta", json!(77))], &[]),
        ("gemma3_text_v5cfg",
            &[("rope_parameters.sliding_attention", absent()), ("rope_local_base_freq", absent())], &[]),
        // What no class reads, and the largest of numbers in place of infinity.
        ("gemma2", &[("hidden_act", json!("gelu"))], &[]),
        ("gemma3_text", &[("hidden_act", json!("silu"))], &[]),
        ("gemma4_text", &[("hidden_act", json!("silu"))], &[]),
        ("gemma4_inputs", &[("text_config.hidden_act", json!("relu"))], &[]),
        ("nemotron_h", &[("time_step_limit", json!([0, 1e30]))], &[]),
        ("nemotron_h", &[("time_step_limit", json!([0.0, f64::MAX]))], &[]),
        ("granitemoehybrid", &[("time_step_limit", json!([0.0, "Infinity"]))], &[("time_step_limit", json!([0.0, 3.4e38]))]),
        // The old spelling of the kind.
        ("gemma4_text",
            &[("rope_parameters.full_attention", json!({"type": "linear", "factor": 2, "rope_theta": 1e6}))],
            &[("rope_parameters.full_attention", json!({"rope_type": "linear", "factor": 2, "rope_theta": 1e6}))]),
        ("gemma4_text",
            &[("rope_parameters.full_attention.type", json!("proportional")),
                ("rope_parameters.full_attention.rope_type", absent())], &[]),
        // The original context beside the other entries counts, unless these are apart for each kind
        // of layer.
        ("deepseek_v2", &[("original_max_position_embeddings", json!(32))],
            &[("rope_scaling.original_max_position_embeddings", json!(32))]),
        ("mellum", &[("original_max_position_embeddings", json!(32))], &[]),
        ("deepseek_v2", &[("rope_scaling.mscale", json!(0)), ("rope_scaling.mscale_all_dim", json!(0.0))],
            &[("rope_scaling.mscale", absent()), ("rope_scaling.mscale_all_dim", absent())]),
        ("deepseek_v2", &[("rope_scaling.beta_fast", json!(0)), ("rope_scaling.beta_slow", json!(0))], &[]),
        ("afmoe", &[("layer_types", absent())], &[]),
        // The entries of the language model beside those of the model around it, and old names of them.
        ("dots3_note", &[("model_type", json!("dots3_note")), ("text_config", json!(null))],
            &[("model_type", json!("dots3_note")), ("text_config", json!({"model_type": "dots3_note_text"}))]),
        ("dots3_note", &[("use_dsa", absent()), ("first_k_dense_replace", absent())], &[]),
        ("dots3_note", &[("use_dsa", json!(false))], &[("use_dsa", absent()), ("per_layer_config", windows_of_dots3()),
            ("rope_parameters", json!({"full_attention": {"rope_theta": 10000.0}, "sliding_attention": {"rope_theta": 500.0}}))]),
        ("dots3_note", &[("sliding_window_size", absent()), ("sliding_window", json!(8))], &[]),
        ("dots3_note", &[("moe_layer_freq", json!(1))], &[]),
        ("lfm3", &[("rope_parameters", absent())], &[]),
        ("lfm3", &[("use_attention_gate", absent()), ("use_sandwich_norm", json!(null))], &[]),
        ("lfm3_plain", &[("attention_bias", absent()), ("num_hidden_layers", json!(5)), ("layer_types", absent())],
            &[("attention_bias", json!(false)), ("num_hidden_layers", json!(5)), ("layer_types",
                json!(["conv", "conv", "full_attention", "conv", "sliding_attention"]))]),
        ("muse_glimmer", &[("text_config.layer_types", absent()), ("text_config.layer_rope_theta", absent())], &[]),
        ("muse_spark", &[("text_config.routed_scaling_factor", absent()), ("text_config.post_norm_eps", absent())], &[]),
        ("laguna", &[("gating", json!("per-head"))], &[]),
        ("cohere2_moe", &[], &[("layer_types", json!(["full_attention", "sliding_attention", "full_attention",
            "sliding_attention", "full_attention"]))]),
        // The lists of the hub, whose window does not count the query itself.
        ("mimo_v2_flash", &[("layer_types", absent()), ("hybrid_layer_pattern", json!([0, 1, 1, 0]))], &[]),
        ("mimo_v2_flash", &[("mlp_layer_types", absent()), ("moe_layer_freq", json!([0, 1, 1, 1]))], &[]),
        ("mimo_v2_flash", &[("rms_norm_eps", absent()), ("layernorm_epsilon", json!(1e-5))], &[]),
        ("mimo_v2_flash", &[("sliding_window", absent()), ("sliding_window_size", json!(8))], &[]),
        ("mistral3/ministral3", &[], &[("text_config.sliding_window", absent())]),
        ("llama4_text", &[("moe_layers", absent())], &[("moe_layers", json!([0, 1, 2, 3]))]),
        ("llama4_text", &[("no_rope_layers", absent())], &[("no_rope_layers", json!([1, 1, 1, 0]))]),
        ("llama4_text", &[("attn_temperature_tuning", json!(4))], &[]),
        ("step3p7", &[("text_config.moe_layers_enum", absent()),
            ("text_config.mlp_layer_types", json!(["dense", "sparse", "sparse", "sparse"]))], &[]),
        // Names of the same entries in the two spellings, and defaults.
        ("bailing_hybrid", &[("kda_lower_bound", absent()), ("max_position_embeddings", absent()), ("n_group", absent()),
            ("norm_topk_prob", absent()), ("num_experts_per_tok", absent()), ("num_experts_per_token", json!(2)),
            ("model_max_length", json!(256)), ("moe_renormalize", json!(true)), ("num_expert_group", json!(4))], &[]),
        ("bailing_hybrid_unbounded", &[("layer_types", json!(["linear_attention", "full_attention", "linear_attention",
            "full_attention"]))], &[]),
        ("bailing_hybrid_limits", &[("expert_swiglu_limit_list", json!([0.0, 0.0, 0.8, 0.6]))], &[]),
        ("bailing_moe_v2", &[("partial_rotary_factor", absent())], &[]),
        ("bailing_moe_v2", &[("partial_rotary_factor", absent()), ("rotary_dim", json!(10))], &[]),
        ("bailing_moe", &[("score_function", json!("softmax"))], &[]),
        ("glm5_next", &[("text_config.linear_attn_config.gate_lower_bound", absent()), ("text_config.index_topk_freq", json!(1)),
            ("text_config.mlp_layer_types", absent())], &[]),
        ("glm5_next", &[("text_config.layer_types", json!(["linear_attention", "full_attention", "linear_attention",
            "full_attention"]))], &[]),
        ("kimi_k3", &[("text_config.model_type", absent()), ("text_config.moe_renormalize", absent()), ("text_config.num_expert_group", absent()),
            ("text_config.routed_scaling_factor", absent()), ("text_config.q_lora_rank", json!(26))], &[]),
        ("kimi_k3_otherwise", &[("latent_moe_use_norm", json!(false)), ("mla_use_output_gate", json!(false)),
            ("linear_attn_config.use_full_rank_gate", json!(false)), ("linear_attn_config.gate_lower_bound", json!(null))], &[]),
        ("hy_v4", &[("num_key_value_heads", json!(7)), ("head_dim", json!(256)), ("mlp_layer_types", absent()),
            ("hc_eps", absent())], &[]),
        ("hy_v4", &[("indexer_types", absent()), ("index_topk_pattern", json!("FFSF"))], &[]),
        ("hy_v4_yarn", &[("indexer_types", json!(["full", "full", "shared"]))], &[]),
        ("qwen4_exp", &[("text_config.layer_types", absent()), ("text_config.full_attention_interval", json!(2)),
            ("text_config.hc_lowrank", json!(22)), ("text_config.seed", absent())], &[]),
        ("qwen4_exp", &[("text_config.layer_types", json!(["linear_attention", "indexed_attention", "linear_attention",
            "full_attention"])), ("text_config.ple_layer_ids", json!([3, 1, 3])), ("text_config.output_gate_type", json!("silu"))], &[]),
        ("qwen4_exp", &[("text_config.eos_token_id", json!([2, 9])), ("text_config.ngram_size", absent())], &[]),
        ("inkling", &[("text_config.conv_kernel_size", absent()), ("text_config.sconv_kernel_size", json!(4)),
            ("text_config.sliding_window_size", absent()), ("text_config.sliding_window", json!(11)),
            ("text_config.max_position_embeddings", absent()), ("text_config.model_max_length", json!(256))], &[]),
        ("inkling", &[("text_config.mlp_layer_types", absent()), ("text_config.dense_mlp_idx", json!(1)),
            ("text_config.local_layer_ids", absent()),
            ("text_config.layer_types", json!(["hybrid_sliding", "hybrid_sliding", "hybrid", "hybrid_sliding"]))], &[]),
        ("inkling", &[("text_config.dense_intermediate_size", absent()), ("text_config.intermediate_size", json!(46)),
            ("text_config.moe_intermediate_size", json!(17)), ("text_config.unpadded_vocab_size", json!(131)),
            ("text_config.model_type", absent())], &[]),
        // Two spellings that agree.
        ("minimax_m3", &[("text_config.model_type", absent()), ("text_config.index_topk_blocks", json!(3)),
            ("text_config.sparse_attention_config.sparse_local_block", absent()), ("text_config.hidden_act", json!("silu"))], &[]),
        ("minimax_m3", &[("text_config.sparse_attention_config", absent()), ("text_config.index_topk_blocks", json!(3)),
            ("text_config.index_block_size", json!(5)), ("text_config.index_head_dim", json!(10)),
            ("text_config.layer_types", json!(["full_attention", "minimax_m3_sparse", "minimax_m3_sparse", "minimax_m3_sparse"])),
            ("text_config.mlp_layer_types", json!(["dense", "sparse", "sparse", "sparse"]))], &[]),
        // Where transformers wrote the file, it turns whole heads unless there is a share.
        ("minimax_m3_v5cfg", &[("text_config.rope_parameters.partial_rotary_factor", absent()), ("text_config.index_head_dim", json!(10))],
            &[("text_config.rope_parameters.partial_rotary_factor", json!(1.0)), ("text_config.index_head_dim", json!(10))]),
        ("qwen3_moe", &[("n_routed_experts", json!(7.0))], &[]),
        ("minimax_m3", &[("text_config.num_key_value_heads", absent()),
            ("text_config.sparse_attention_config.sparse_attention_freq", json!([0, 1, 1, 1, 1]))], &[]),
        ("longcat_flash", &[("num_layers", absent()), ("num_hidden_layers", json!(4))], &[]),
        ("longcat_flash", &[("ffn_hidden_size", absent()), ("intermediate_size", json!(46)), ("expert_ffn_hidden_size", absent()),
            ("moe_intermediate_size", json!(17)), ("moe_topk", absent()), ("num_experts_per_tok", json!(3))], &[]),
        ("longcat_flash", &[("zero_expert_type", absent()), ("mla_scale_kv_lora", absent())], &[]),
        ("longcat_flash", &[("routed_scaling_factor", absent())], &[("routed_scaling_factor", json!(6.0))]),
        // Entries of single layers, as transformers 5 writes them.
        ("gemma4_text", &[("global_head_dim", absent()), ("num_global_key_value_heads", absent()),
            ("per_layer_config", json!({"1": {"head_dim": 20, "num_key_value_heads": 1},
                "03": {"head_dim": 20, "num_key_value_heads": 1}}))], &[]),
        ("gemma4_text_dense", &[("per_layer_config", json!({"1": {"head_dim": 10}})), ("attention_k_eq_v", json!(true))],
            &[("global_head_dim", json!(10)), ("num_global_key_value_heads", absent()), ("attention_k_eq_v", json!(true))]),
        ("step3p7", &[("text_config.attention_other_setting", absent()), ("text_config.num_sliding_attention_heads", json!(4)),
            ("text_config.per_layer_config", json!({"1": {"num_attention_heads": 6}, "2": {"num_attention_heads": 6}}))], &[]),
        ("qwen3_moe", &[("per_layer_config", json!({"2": {"head_dim": 14, "hidden_act": "silu"}}))], &[]),
        // Where both spellings are given, that of transformers 4 counts, unless it is empty.
        ("glm4_moe_v5cfg", &[("rope_scaling", json!({"type": "linear", "factor": 2, "rope_theta": 77}))],
            &[("rope_parameters", json!({"type": "linear", "factor": 2, "rope_theta": 77}))]),
        ("glm4_moe_v5cfg", &[("rope_scaling", json!({}))], &[]),
        ("deepseek_v2", &[("rope_scaling.original_max_position_embeddings", absent())],
            &[("rope_scaling.original_max_position_embeddings", json!(256))]),
        // A kind of layer that gives no share turns all of each head.
        ("mimo_v2_flash", &[("rope_parameters.sliding_attention.partial_rotary_factor", absent())],
            &[("rope_parameters.sliding_attention.partial_rotary_factor", json!(1.0))]),
        // Without a window there is no pattern of windows.
        ("exaone_moe", &[("sliding_window", json!(null)), ("layer_types", absent())],
            &[("sliding_window", json!(null)), ("layer_types", json!(vec!["full_attention"; 5]))]),
    ];
    for (golden, one, other) in cases {
        let [one, other] = [one, other].map(|changes| {
            let config = changed(golden, changes).to_string();
            ModelSpec::parse(config.as_bytes()).unwrap_or_else(|e| panic!("{golden}: {e}"))
        });
        assert_eq!(one, other, "{golden}");
    }
}

/// Transformers writes configurations otherwise than the hub has them, and leaves out what it takes
/// for a default.
#[test]
fn spellings_of_transformers_describe_the_same_model() {
    let text = fs::read(goldens().join("spellings.json")).unwrap();
    let versions: BTreeMap<String, BTreeMap<String, Value>> =
        serde_json::from_slice(&text).unwrap();
    assert_eq!(versions.len(), 2);
    for (version, configs) in versions {
        assert!(configs.len() > 40, "{version}: {}", configs.len());
        for (golden, config) in configs {
            let spec = |config: &Value| ModelSpec::parse(config.to_string().as_bytes());
            let found =
                spec(&config).unwrap_or_else(|error| panic!("{golden}, {version}: {error}"));
            assert_eq!(found, spec(&changed(&golden, &[])).unwrap(), "{golden}, {version}");
        }
    }
}

#[test]
fn options_that_are_refused() {
    #[rustfmt::skip]
    let cases: &[(&str, &[Change], &str)] = &[
        ("glm_moe_dsa", &[("index_skip_topk_offset", json!(0)), ("index_topk_freq", json!(4))],
            "4 for `index_topk_freq`, and the first layer has no selection to share"),
        ("gemma3_text", &[("attn_logit_softcapping", json!(5.0))],
            "`attn_logit_softcapping` = 5.0 in a model of type `gemma3_text`, which is not supported; supported: null"),
        ("gemma3/gemma3_text", &[("text_config.final_logit_softcapping", json!(5.0))],
            "`final_logit_softcapping` = 5.0"),
        ("gemma3_text", &[("sliding_window", json!(null))], "`sliding_window` = null"),
        ("gemma3_text_v5cfg",
            &[("rope_parameters.sliding_attention", json!({"rope_type": "linear", "factor": 2}))],
            "`rope_type` = \"linear\""),
        ("gemma3_text", &[("rope_local_base_freq", json!(1e-44)), ("max_position_embeddings", json!(1_000_000))],
            "1e-44 for `rope_local_base_freq`, by which angles of rotary embeddings become infinite"),
        ("gemma4_text", &[("rope_parameters.full_attention.rope_type", json!(ABSENT))], "`partial_rotary_factor` = 0.4"),
        ("gemma4_text", &[("rope_parameters.full_attention", json!(null))], "has no `full_attention`"),
        ("gemma4_text_inputs", &[("hidden_size_per_layer_input", json!(ABSENT))], "has no `hidden_size_per_layer_input`"),
        ("gemma4_text_inputs", &[("hidden_size_per_layer_input", json!(1 << 24))], "with which rows of the table are wider than those of any model"),
        ("gemma4_text_inputs", &[("hidden_size_per_layer_input", json!(-1))], "`hidden_size_per_layer_input` is -1"),
        ("gemma4_text_inputs", &[("vocab_size_per_layer_input", json!(100))], "100 for `vocab_size_per_layer_input`, and each of the 101 tokens needs a row"),
        ("gemma4_text_inputs", &[("num_kv_shared_layers", json!(8))], "8 for `num_kv_shared_layers`"),
        ("gemma4_text_inputs", &[("num_kv_shared_layers", json!(7))], "which leaves no layer of a kind with keys of its own"),
        ("gemma4_text_inputs", &[("num_kv_shared_layers", json!(5))], "which leaves no layer of a kind with keys of its own"),
        ("gemma4_text_inputs", &[("num_kv_shared_layers", json!("4"))], "`num_kv_shared_layers` is \"4\""),
        ("gemma4_text_inputs", &[("use_double_wide_mlp", json!(1))], "`use_double_wide_mlp` is 1"),
        ("gemma4_text", &[("rope_scaling", json!({"type": "linear", "factor": 2}))], "`rope_scaling` = an object"),
        ("gemma4_text", &[("num_attention_heads", json!(65_536)), ("global_head_dim", json!(4096))],
            "4096 for `global_head_dim`, with which heads are wider than those of any model"),
        ("mellum", &[("rope_scaling", json!({"type": "linear", "factor": 2}))], "`rope_scaling` = an object"),
        ("muse_glimmer", &[("text_config.layer_rope_theta", json!([0, 1]))], "`layer_rope_theta`, of 2 entries for 5 layers"),
        ("muse_glimmer", &[("text_config.layer_rope_theta", json!([0, 77.0, 0, 0, 0]))], "supported: 0, or the base of all layers"),
        ("muse_glimmer", &[("text_config.post_norm_eps", json!(-1))], "`post_norm_eps`, which must be a number above 0"),
        ("muse_glimmer", &[("text_config.final_logit_softcapping", json!(0))], "`final_logit_softcapping`, which must be a number above 0"),
        ("muse_spark", &[("text_config.moe_hidden_size", json!(0))], "`moe_hidden_size`, which must be at least 1"),
        ("muse_spark", &[("text_config.residual_gate_temperature", json!(0))], "`residual_gate_temperature`, which must be a number above 0"),
        ("muse_spark", &[("text_config.mlp_layer_types", json!(["sparse"]))], "`mlp_layer_types`, of 1 entries for 5 layers"),
        ("bailing_hybrid", &[("kda_lower_bound", json!(ABSENT)), ("kda_safe_gate", json!(ABSENT)), ("no_kda_lora", json!(ABSENT))],
            "has no `kda_lower_bound`"),
        ("glm5_next", &[("text_config.index_kpool", json!(5))], "5 for `index_kpool`, and 12 positions are not a multiple of 5"),
        ("glm5_next", &[("text_config.index_kpool", json!(0))], "`index_kpool`, which must be at least 1"),
        ("glm5_next", &[("text_config.index_kpool_always_select_tail", json!(false))], "`index_kpool_always_select_tail` = false"),
        ("glm5_next", &[("text_config.qk_rope_head_dim", json!(6))], "`qk_rope_head_dim` = 6"),
        ("glm5_next", &[("text_config.layer_types", json!(["full_attention"]))], "of 1 entries for 4 layers"),
        ("glm5_next", &[("text_config.layer_types", json!(vec!["sliding_attention"; 4]))], "supported: linear_attention and indexed_attention"),
        ("glm5_next", &[("text_config.linear_attn_config.gate_lower_bound", json!(0.5))],
            "0.5 for `gate_lower_bound`, which must be a number from -1000 up to 0"),
        ("glm5_next", &[("text_config.linear_attn_config.gate_lower_bound", json!(null)),
            ("text_config.linear_attn_config.safe_gate", json!(false))], "`safe_gate` = false"),
        ("glm5_next", &[("text_config.hc_mult", json!("four"))], "`hc_mult` is \"four\""),
        ("glm5_next", &[("text_config.swiglu_limit", json!(-1))], "`swiglu_limit`, which must be a number above 0"),
        ("glm5_next_shared", &[("text_config.indexer_types", json!(["shared", "full", "full", "full"]))],
            "and the first layer has no selection to share"),
        ("kimi_k3", &[("text_config.attn_res_block_size", json!(0))], "0 for `attn_res_block_size`, which must be at least 1"),
        ("kimi_k3", &[("text_config.attn_res_block_size", json!("three"))], "`attn_res_block_size` is \"three\""),
        ("kimi_k3", &[("text_config.attn_res_block_size", json!(1)), ("text_config.num_hidden_layers", json!(64))],
            "supported: such that fewer than 64 states are kept"),
        ("kimi_k3", &[("text_config.hidden_act", json!("gelu"))], "`hidden_act` = \"gelu\""),
        ("kimi_k3", &[("text_config.activation_situ_beta", json!(0))], "0 for `activation_situ_beta`, which must be a number above 0"),
        ("kimi_k3", &[("text_config.activation_situ_linear_beta", json!(-1))], "`activation_situ_linear_beta`, which must be a number above 0"),
        ("kimi_k3", &[("text_config.routed_expert_hidden_size", json!(41))],
            "41 for `routed_expert_hidden_size`, which is more than the elements of the hidden state"),
        ("kimi_k3", &[("text_config.latent_moe_use_norm", json!("yes"))], "`latent_moe_use_norm` is \"yes\""),
        ("kimi_k3", &[("text_config.mla_use_nope", json!(false))], "`mla_use_nope` = false"),
        ("kimi_k3", &[("text_config.mla_use_output_gate", json!(1))], "`mla_use_output_gate` is 1"),
        ("kimi_k3", &[("text_config.topk_method", json!("greedy"))], "`topk_method` = \"greedy\""),
        ("kimi_k3", &[("text_config.moe_router_activation_func", json!("softmax"))], "`moe_router_activation_func` = \"softmax\""),
        ("kimi_k3", &[("text_config.num_key_value_heads", json!(1))], "supported: as many as `num_attention_heads`"),
        ("kimi_k3", &[("text_config.linear_attn_config.gate_lower_bound", json!(0.5))],
            "0.5 for `gate_lower_bound`, which must be a number from -1000 up to 0"),
        ("kimi_k3", &[("text_config.linear_attn_config.use_full_rank_gate", json!("yes"))], "`use_full_rank_gate` is \"yes\""),
        ("kimi_k3", &[("text_config.linear_attn_config.kda_layers", json!([1, 2]))], "and some layers are of neither kind"),
        ("hy_v4", &[("hc_mult", json!(17))], "17 for `hc_mult`"),
        ("hy_v4", &[("hc_magnitude", json!(0))], "0 for `hc_magnitude`, which must be a number above 0"),
        ("hy_v4", &[("swiglu_limit", json!(0))], "0 for `swiglu_limit`, which must be a number above 0"),
        ("hy_v4", &[("attention_bias", json!(true))], "`attention_bias` = true"),
        ("hy_v4", &[("indexer_types", json!(["shared", "full", "full", "full"]))], "and the first layer has no selection to share"),
        ("hy_v4", &[("layer_types", json!(vec!["full_attention"; 4]))], "supported: indexed_attention in all layers"),
        ("hy_v4", &[("index_head_dim", json!(4))], "4 for `index_head_dim`, which is less than the 6 elements that are rotated"),
        ("hy_v4", &[("qk_rope_head_dim", json!(5))], "5 for `qk_rope_head_dim`, and a rotary embedding turns pairs"),
        ("mistral_large4", &[("text_config.kv_source_layers", json!([0, 1, 1, 3, 1, 3]))], "`kv_source_layers`, of 6 entries for 7 layers"),
        ("mistral_large4", &[("text_config.kv_source_layers", json!([0, 1, 1, 3, 3, 3, 6]))], "supported: for each layer itself, or the last earlier one of its kind"),
        ("mistral_large4", &[("text_config.kv_source_layers", json!([0, 1, 2, 3, 4, 3, 9]))], "supported: for each layer itself"),
        ("mistral_large4", &[("text_config.kv_source_layers", json!([0, 1, 1, 3, 2, 3, 6]))], "supported: for each layer itself"),
        ("mistral_large4", &[("text_config.kv_source_layers", json!([0, 1, 0, 3, 1, 3, 6]))], "supported: for each layer itself"),
        ("mistral_large4", &[("text_config.kv_source_layers", json!([0, 1, -1, 3, 1, 3, 6]))], "supported: for each layer itself"),
        ("mistral_large4", &[("text_config.kv_source_layers", json!("all"))], "`kv_source_layers` is \"all\" instead of a list"),
        ("mistral_large4", &[("text_config.no_rope_layers", json!([1, 1]))], "`no_rope_layers`, of 2 entries for 7 layers"),
        ("mistral_large4", &[("text_config.no_rope_layers", json!([1, 1, 2, 0, 1, 0, 1]))], "supported: 1 for layers that turn, 0 for the others"),
        ("mistral_large4", &[("text_config.no_rope_layers", json!(ABSENT)), ("text_config.no_rope_layer_interval", json!(0))], "`no_rope_layer_interval`, which must be at least 1"),
        ("mistral_large4", &[("text_config.rope_parameters", json!(ABSENT))], "has no `rope_parameters`"),
        ("mistral_large4", &[("text_config.qk_rope_head_dim", json!(5))], "`qk_rope_head_dim`, and a rotary embedding turns pairs"),
        ("mistral_large4", &[("text_config.indexer_types", json!(vec!["shared"; 7]))], "and the first layer has no selection to share"),
        ("mistral_large4", &[("text_config.index_head_dim", json!(4))], "4 for `index_head_dim`, which is less than the 6 elements"),
        ("mistral_large4", &[("text_config.attention_bias", json!(true))], "`attention_bias` = true"),
        ("mistral_large4", &[("text_config.n_group", json!(2))], "2 for `n_group`, and 7 experts cannot be divided"),
        ("mistral_large4", &[("text_config.num_key_value_heads", json!(2))], "supported: as many as `num_attention_heads`"),
        ("mistral_large4", &[("text_config.final_logit_softcapping", json!("30"))], "`final_logit_softcapping` is \"30\""),
        ("mistral_large4", &[("text_config.kv_lora_rank", json!(0))], "`kv_lora_rank`, which must be at least 1"),
        ("inkling2", &[("text_config.scoring_func", json!("softmax"))], "`scoring_func` = \"softmax\""),
        ("inkling2", &[("text_config.conv_kernel_size", json!(9))], "`conv_kernel_size` = 9"),
        ("inkling2", &[("text_config.hidden_act", json!("gelu"))], "`hidden_act` = \"gelu\""),
        ("inkling2", &[("text_config.layer_types", json!(vec!["hybrid"; 3]))], "of 3 entries for 4 layers"),
        ("inkling2", &[("text_config.layer_types", json!(vec!["full_attention"; 4]))], "supported: hybrid, hybrid_sliding"),
        ("inkling2", &[("text_config.swa_num_attention_heads", json!(7))], "which does not fit 3 key and value heads of 10"),
        ("inkling2", &[("text_config.swa_num_attention_heads", json!(ABSENT)), ("text_config.swa_num_key_value_heads", json!(7))], "7 for `swa_num_key_value_heads`, which does not fit 7"),
        ("inkling2", &[("text_config.n_layers_per_attn_res_block", json!(0))], "`n_layers_per_attn_res_block`, which must be at least 1"),
        ("inkling2", &[("text_config.n_layers_per_attn_res_block", json!("six"))], "`n_layers_per_attn_res_block` is \"six\""),
        ("inkling2", &[("text_config.qk_l2_clip_threshold", json!(0))], "`qk_l2_clip_threshold`, which must be a number above 0"),
        ("inkling2", &[("text_config.rel_l2_clip_threshold", json!(-8))], "`rel_l2_clip_threshold`, which must be a number above 0"),
        ("inkling2", &[("text_config.mlp_gate_softcap", json!(1e39))], "`mlp_gate_softcap`, which must be a number above 0"),
        ("inkling2", &[("text_config.mlp_up_softcap", json!("none"))], "`mlp_up_softcap` is \"none\""),
        ("inkling2", &[("text_config.final_logit_softcapping", json!(0))], "`final_logit_softcapping`, which must be a number above 0"),
        ("inkling2", &[("text_config.log_scaling_n_floor", json!(0))], "`log_scaling_n_floor`, which must be a number above 0"),
        ("inkling2", &[("text_config.rel_extent", json!(1 << 30))], "`rel_extent`, and no model has more than"),
        ("inkling2", &[("text_config.n_routed_experts", json!(1))], "and there are only 1 experts to choose from"),
        ("inkling2", &[("text_config.num_hidden_layers", json!(400)), ("text_config.layer_types", json!(ABSENT)), ("text_config.n_layers_per_attn_res_block", json!(ABSENT))], "supported: such that fewer than 64 states are kept"),
        ("inkling2", &[("text_config.sconv_kernel_size", json!(3))], "3 for `sconv_kernel_size`, which is another name of `conv_kernel_size`"),
        ("inkling2", &[("text_config.intermediate_size", json!(18))], "18 for `intermediate_size`, which is another name of `moe_intermediate_size`"),
        ("inkling2", &[("text_config.routed_scaling_factor", json!(1))], "1 for `routed_scaling_factor`, which is another name of `route_scale`"),
        ("inkling2", &[("text_config.moe_intermediate_size", json!(ABSENT))], "has no `moe_intermediate_size`"),
        ("inkling2_loop", &[("text_config.loop_layer_index_start", json!(0))], "`loop_layer_index_start`, which must be at least 1"),
        ("inkling2_loop", &[("text_config.loop_layer_index_start", json!(3))], "3 for `loop_layer_index_start`, which must be a multiple of 2 below 6"),
        ("inkling2_loop", &[("text_config.loop_layer_index_start", json!(6))], "6 for `loop_layer_index_start`, which must be a multiple of 2 below 6"),
        ("inkling2_loop", &[("text_config.loop_layer_index_end", json!(5))], "5 for `loop_layer_index_end`, which must be a multiple of 2 up to the 6 layers"),
        ("inkling2_loop", &[("text_config.loop_layer_index_end", json!(8))], "8 for `loop_layer_index_end`, which must be a multiple of 2 up to the 6 layers"),
        ("inkling2_loop", &[("text_config.loop_layer_index_end", json!(ABSENT))], "has no `loop_layer_index_end`"),
        ("inkling2_loop", &[("text_config.loop_num_passes", json!(0))], "`loop_num_passes`, which must be at least 1"),
        ("inkling2_loop", &[("text_config.loop_num_passes", json!(65))], "`loop_num_passes`, and no model has more than 64"),
        ("inkling2_loop", &[("text_config.loop_gate_rank", json!("low"))], "`loop_gate_rank` is \"low\""),
        ("inkling2_loop", &[("text_config.num_hidden_layers", json!(4000)), ("text_config.layer_types", json!(ABSENT)),
            ("text_config.n_layers_per_attn_res_block", json!(100)), ("text_config.loop_layer_index_start", json!(100)),
            ("text_config.loop_layer_index_end", json!(4000))], "so that a pass would visit more than 4096 layers"),
        ("inkling2_loop", &[("text_config.loop_config", json!({"num_passes": 3}))], "is another name of"),
        ("inkling2_loop_text", &[("loop_config", json!(3))], "`loop_config` is 3 instead of an object"),
        ("inkling", &[("text_config.shared_expert_sink", json!(false))], "`shared_expert_sink` = false"),
        ("inkling", &[("text_config.conv_kernel_size", json!(9))], "`conv_kernel_size` = 9"),
        ("inkling", &[("text_config.local_layer_ids", json!([4]))], "which must list numbers of layers below 4"),
        ("inkling", &[("text_config.layer_types", json!(vec!["hybrid"; 3]))], "of 3 entries for 4 layers"),
        ("inkling", &[("text_config.layer_types", json!(vec!["full_attention"; 4]))], "`layer_types`"),
        ("inkling", &[("text_config.swa_num_attention_heads", json!(7))], "which does not fit 3 key and value heads of 10"),
        ("inkling", &[("text_config.n_routed_experts", json!(1))], "and there are only 1 experts to choose from"),
        ("inkling", &[("text_config.route_scale", json!(0))], "`route_scale`"),
        ("inkling", &[("text_config.hidden_act", json!("gelu"))], "`hidden_act` = \"gelu\""),
        ("qwen4_exp", &[("text_config.hc_count", json!(1))], "`hc_count` = 1"),
        ("qwen4_exp", &[("text_config.hc_count", json!(17))], "17 for `hc_count`"),
        ("qwen4_exp", &[("text_config.indexer_kv_heads", json!(2))], "`indexer_kv_heads` = 2"),
        ("qwen4_exp", &[("text_config.indexer_n_heads", json!(null))], "no `indexer_n_heads`"),
        ("qwen4_exp", &[("text_config.indexer_budget", json!(13))], "13 for `indexer_budget`, which is not a multiple of the 4 of a block"),
        ("qwen4_exp", &[("text_config.indexer_head_dim", json!(4))], "4 for `indexer_head_dim`, which is less than the 6 elements"),
        ("qwen4_exp", &[("text_config.layer_types", json!(vec!["sliding_attention"; 4]))],
            "supported: full_attention, indexed_attention and linear_attention"),
        ("qwen4_exp", &[("text_config.output_gate_type", json!("tanh"))], "`output_gate_type` = \"tanh\""),
        ("qwen4_exp", &[("text_config.ple_layer_ids", json!([5]))], "which must list numbers of layers, from 1 to 4"),
        ("qwen4_exp", &[("text_config.ple_layer_ids", json!([2]))], "supported: layers with delta nets"),
        ("qwen4_exp", &[("text_config.ple_embed_dim", json!(21))], "21 for `ple_embed_dim`, and 21 elements do not divide among 4 rows"),
        ("qwen4_exp", &[("text_config.ple_conv_kernel_size", json!(9))], "`ple_conv_kernel_size` = 9"),
        ("qwen4_exp", &[("text_config.ngram_size", json!(1))], "1 for `ngram_size`, which must be at least 2"),
        ("qwen4_exp", &[("text_config.eos_token_id", json!(null))], "no `eos_token_id`"),
        ("qwen4_exp", &[("text_config.eos_token_id", json!([]))], "no `eos_token_id`"),
        ("qwen4_exp", &[("text_config.attn_output_gate", json!(false))], "`attn_output_gate` = false"),
        ("minimax_m3", &[("text_config.sparse_attention_config.sparse_attention_freq", json!(ABSENT))], "has no `sparse_attention_freq`"),
        ("kimi_k3", &[("text_config.linear_attn_config.full_attn_layers", json!(ABSENT)),
            ("text_config.linear_attn_config.kda_layers", json!(ABSENT))], "has no `full_attn_layers`"),
        ("minimax_m3", &[("text_config.hidden_act", json!("gelu"))], "`hidden_act` = \"gelu\""),
        ("minimax_m3", &[("text_config.n_shared_experts", json!(2))], "`n_shared_experts` = 2"),
        ("minimax_m3", &[("text_config.attention_output_gate", json!(true))], "`attention_output_gate` = true"),
        ("minimax_m3", &[("text_config.use_gemma_norm", json!(false))], "`use_gemma_norm` = false"),
        ("minimax_m3", &[("text_config.qk_norm_type", json!("per_layer"))], "`qk_norm_type` = \"per_layer\""),
        ("minimax_m3", &[("text_config.layer_types", json!(vec!["sliding_attention"; 4]))], "full_attention, minimax_m3_sparse"),
        ("minimax_m3", &[("text_config.moe_layer_freq", json!([0, 1]))], "of 2 entries for 4 layers"),
        ("minimax_m3", &[("text_config.partial_rotary_factor", json!(ABSENT))],
            "`rotary_dim` = 6 in a model of type `minimax_m3_vl_text`, which is not supported; supported: a share of heads"),
        // Two names of one entry.
        ("minimax_m3", &[("text_config.index_topk_blocks", json!(7))],
            "7 for `index_topk_blocks`, which is another name of `sparse_attention_config.sparse_topk_blocks`, and that is 3"),
        ("qwen3_moe", &[("n_routed_experts", json!(9))], "9 for `n_routed_experts`, which is another name of `num_experts`"),
        ("qwen3_moe", &[("moe_topk", json!("2"))], "`moe_topk`, which is another name of `num_experts_per_tok`"),
        ("deepseek_v3", &[("num_expert_group", json!(1))], "1 for `num_expert_group`, which is another name of `n_group`"),
        ("bailing_hybrid", &[("moe_renormalize", json!(false))], "`norm_topk_prob`, which is another name of `moe_renormalize`, and that is false"),
        ("longcat_flash", &[("intermediate_size", json!(48))], "48 for `intermediate_size`, which is another name of `ffn_hidden_size`"),
        ("inkling", &[("text_config.sconv_kernel_size", json!(3))], "3 for `sconv_kernel_size`, which is another name of `conv_kernel_size`"),
        ("inkling", &[("text_config.sliding_window", json!(12))], "12 for `sliding_window`, which is another name of `sliding_window_size`"),
        ("inkling", &[("text_config.embedding_multiplier", json!(2))], "2 for `embedding_multiplier`"),
        ("inkling", &[("text_config.swa_head_dim", json!(0))], "`swa_head_dim`, which must be at least 1"),
        ("inkling", &[("text_config.rel_extent", json!(1 << 30))], "`rel_extent`, and no model has more than"),
        ("inkling", &[("text_config.rel_extent", json!("far"))], "`rel_extent` is \"far\""),
        ("inkling", &[("text_config.d_rel", json!(-1))], "`d_rel` is -1"),
        ("inkling", &[("text_config.n_shared_experts", json!(0))], "`n_shared_experts`, which must be at least 1"),
        ("inkling", &[("text_config.n_shared_experts", json!(65))], "65 for `n_shared_experts`"),
        ("inkling", &[("text_config.log_scaling_n_floor", json!(0))], "`log_scaling_n_floor`, which must be a number above 0"),
        ("inkling", &[("text_config.mlp_layer_types", json!(["dense", "moe", "moe", "moe"]))], "supported: dense, sparse"),
        ("inkling", &[("text_config.intermediate_size", json!(ABSENT))], "has no `intermediate_size`"),
        ("inkling", &[("text_config", json!(ABSENT))], "has no `text_config`"),
        ("inkling", &[("text_config.use_sconv", json!(false))], "`use_sconv` = false"),
        ("inkling", &[("text_config.q_bias", json!(true))], "`q_bias` = true"),
        ("inkling", &[("text_config.gate_activation", json!("softmax"))], "`gate_activation` = \"softmax\""),
        ("inkling", &[("text_config.final_logit_softcapping", json!(30))], "`final_logit_softcapping` = 30"),
        ("minimax_m3", &[("text_config.sparse_attention_config", json!([]))], "`sparse_attention_config` is [] instead of an object"),
        ("minimax_m3", &[("text_config.sparse_attention_config.use_sparse_attention", json!(false))], "`use_sparse_attention` = false"),
        ("minimax_m3", &[("text_config.sparse_attention_config.sparse_init_block", json!(1))], "`sparse_init_block` = 1"),
        ("minimax_m3", &[("text_config.sparse_attention_config.sparse_score_type", json!("mean"))], "`sparse_score_type` = \"mean\""),
        ("minimax_m3", &[("text_config.sparse_attention_config.sparse_disable_index_value", json!([0, 1, 0, 1]))],
            "`sparse_disable_index_value`"),
        ("minimax_m3", &[("text_config.sparse_attention_config.sparse_num_index_heads", json!(3))],
            "3 for `sparse_num_index_heads`, of which the 8 query heads are not a multiple"),
        ("minimax_m3", &[("text_config.sparse_attention_config.sparse_index_dim", json!(4))],
            "4 for `sparse_index_dim`, which is less than the 6 elements that are rotated"),
        ("minimax_m3", &[("text_config.sparse_attention_config.sparse_local_block", json!(4))],
            "4 for `sparse_local_block`, and only 3 blocks are selected"),
        ("minimax_m3", &[("text_config.sparse_attention_config.sparse_topk_blocks", json!(1u64 << 40))], "`sparse_topk_blocks`"),
        ("minimax_m3", &[("text_config.sparse_attention_config.sparse_block_size", json!(0))],
            "`sparse_block_size`, which must be at least 1"),
        ("gemma3_text_v5cfg", &[("rope_parameters", json!({"rope_type": "linear", "factor": 2.0}))],
            "supported: full_attention and sliding_attention"),
        ("gemma3_text_v5cfg", &[("rope_scaling", json!({"type": "linear", "factor": 2}))], "`rope_scaling` = an object"),
        ("laguna", &[("rope_scaling", json!({"type": "linear", "factor": 2}))], "`rope_scaling` = an object"),
        ("laguna", &[("rope_parameters", json!(ABSENT)), ("rope_theta", json!(1e4))],
            "supported: `rope_parameters` for each kind of layer"),
        ("laguna", &[("rope_parameters", json!(ABSENT)), ("partial_rotary_factor", json!(0.25))], "`partial_rotary_factor` = 0.25"),
        ("mellum", &[("rope_parameters", json!(ABSENT)), ("rope_theta", json!(1e4))], "`rope_theta` = 10000.0"),
        ("mimo_v2_flash", &[("rope_parameters", json!(ABSENT)), ("swa_rope_theta", json!(2e4))], "`swa_rope_theta` = 20000.0"),
        ("afmoe", &[("route_norm", json!(false))], "`route_norm` = false"),
        ("cohere2_moe", &[("rope_scaling", json!({"type": "linear", "factor": 2}))], "`rope_scaling` = an object"),
        ("qwen3_moe", &[("per_layer_config", json!({"1": {"moe_intermediate_size": 8}}))],
            "`per_layer_config` = an object in a model of type `qwen3_moe`, which is not supported; supported: the same entries for all layers"),
        ("qwen3_moe", &[("per_layer_config", json!({"1": {"skip": ["mlp"]}}))], "supported: the same entries for all layers"),
        ("qwen3_moe", &[("per_layer_config", json!({"3": {}}))], "which must have numbers of the 3 layers as its keys"),
        ("qwen3_moe", &[("per_layer_config", json!({"one": {}}))], "which must have numbers of the 3 layers as its keys"),
        ("qwen3_moe", &[("per_layer_config", json!({"1": []}))], "`per_layer_config` is [] instead of an object"),
        ("gemma4_text", &[("per_layer_config", json!({"1": {"head_dim": 20}}))], "supported: the same entries for all layers of a kind"),
        ("gemma4_text", &[("per_layer_config", json!({"0": {"head_dim": 20}}))], "supported: the same entries for all layers of a kind"),
        ("glm4_moe", &[("head_dim", json!(14)), ("partial_rotary_factor", json!(0.01))], "by which 0 of the 14 elements of a head"),
        ("glm4_moe", &[("head_dim", json!(22)), ("rope_scaling", json!({"type": "yarn", "factor": 2}))],
            "by which 11 elements are rotated, and yarn needs pairs"),
        ("deepseek_v4", &[("qk_rope_head_dim", json!(5))], "5 for `qk_rope_head_dim`, and 5 elements of a head are not pairs"),
        ("hy_v3", &[("route_norm", json!(false))], "`route_norm` = false"),
        ("hy_v3", &[("n_group", json!(7))], "`n_group` = 7"),
        ("hy_v3", &[("topk_group", json!(2))], "`topk_group` = 2"),
        ("hunyuan_v1_moe", &[("rope_scaling.alpha", json!(1e-41))],
            "1e-41 for `alpha`, by which angles of rotary embeddings become infinite"),
        ("deepseek_v2", &[("rope_scaling.mscale_all_dim", json!(1e30))],
            "1e+30 for `mscale_all_dim`, and no model has more than 1000"),
        ("deepseek_v2", &[("rope_scaling.attention_factor", json!(0))], "0 for `attention_factor`"),
    ];
    for (golden, changes, expected) in cases {
        let config = changed(golden, changes).to_string();
        let Err(error) = ModelSpec::parse(config.as_bytes()) else {
            panic!("{changes:?} was accepted")
        };
        let message = error.to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
}

/// As in transformers, which ties the two only if they are equal.
#[test]
fn a_head_beside_tied_embeddings_is_used() {
    const HEAD: &str = "lm_head.weight";
    let golden = golden_dir("llama_linear_tied");
    let mut tensors = Tensors::read(&golden.join("model.safetensors"));
    let logits = |tensors: &Tensors, changes: &[Change]| {
        let dir = tempfile::tempdir().unwrap();
        tensors.write(&dir.path().join("model.safetensors"));
        let config = changed("llama_linear_tied", changes).to_string();
        fs::write(dir.path().join("config.json"), config).unwrap();
        scored(dir.path())
    };
    let tied = logits(&tensors, &[]);
    let (dtype, shape, bytes) = tensors.0["model.embed_tokens.weight"].clone();
    tensors.0.insert(HEAD.to_owned(), (dtype, shape.clone(), bytes.clone()));
    assert_eq!(logits(&tensors, &[]), tied, "a copy of the embedding");

    let rows = bytes.chunks_exact(bytes.len() / shape[0]).rev().flatten().copied();
    tensors.0.insert(HEAD.to_owned(), (dtype, shape, rows.collect()));
    let apart = logits(&tensors, &[("tie_word_embeddings", json!(false))]);
    assert_ne!(apart, tied);
    assert_eq!(logits(&tensors, &[]), apart, "another head");
}

#[test]
fn heads_that_nothing_turns_may_have_an_odd_length() {
    let parsed = |golden: &str, changes: &[Change]| {
        ModelSpec::parse(changed(golden, changes).to_string().as_bytes())
    };
    let odd = ("head_dim", json!(7));
    let position = |kind| ("position_embedding_type", json!(kind));
    assert!(parsed("nemotron_h", std::slice::from_ref(&odd)).is_ok());
    assert!(parsed("granitemoehybrid", &[odd.clone(), position("nope")]).is_ok());
    let error = parsed("granitemoehybrid", &[odd, position("rope")]).unwrap_err().to_string();
    assert!(error.contains("7 for `head_dim`, and a rotary embedding turns pairs"), "{error}");
}

/// Inkling predicts fewer tokens than it reads, and its head may have rows for these alone.
#[test]
fn tokens_beyond_the_head_are_never_predicted() {
    const HEAD: &str = "model.llm.unembed.weight";
    let golden = golden_dir("inkling");
    let mut tensors = Tensors::read(&golden.join("model.safetensors"));
    let (vocab, predicted) = (131, 120);
    let config = changed("inkling", &[("text_config.unpadded_vocab_size", json!(predicted))]);
    let all = scored(&golden);
    let mut logits = |rows: usize| {
        let dir = tempfile::tempdir().unwrap();
        let (dtype, shape, bytes) = tensors.0[HEAD].clone();
        let bytes = bytes[..bytes.len() / shape[0] * rows].to_vec();
        tensors.0.insert(HEAD.to_owned(), (dtype, vec![rows, shape[1]], bytes));
        tensors.write(&dir.path().join("model.safetensors"));
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        scored(dir.path())
    };
    for found in [logits(vocab), logits(predicted)] {
        for (found, all) in found.chunks_exact(vocab).zip(all.chunks_exact(vocab)) {
            assert_eq!(found[..predicted], all[..predicted]);
            assert!(found[predicted..].iter().all(|logit| *logit == f32::NEG_INFINITY));
        }
    }
}

/// As transformers writes it where it read the larger model.
#[test]
fn a_language_model_alone_may_have_the_names_of_that_within_a_larger_one() {
    for name in ["qwen3_5", "qwen3_5_moe"] {
        let golden = golden_dir(name);
        let dir = tempfile::tempdir().unwrap();
        let text = fs::read(golden.join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&text).unwrap();
        fs::write(dir.path().join("config.json"), config["text_config"].to_string()).unwrap();
        let weights = "model.safetensors";
        fs::copy(golden.join(weights), dir.path().join(weights)).unwrap();
        assert_eq!(scored(dir.path()), scored(&golden), "{name}");
    }
}

/// The logits of some tokens.
fn scored(dir: &Path) -> Vec<f32> {
    let mut seen = Recorder::default();
    Fixture::at(dir).session().score(&[1, 5, 9, 2], &mut seen).unwrap();
    seen.logits
}

/// Under a cap, too; the others have the logits that they have with all tokens.
#[test]
fn tokens_that_a_model_lacks_are_never_chosen() {
    const PREDICTED: usize = 90;
    let score = |fixture: &Fixture, tokens: &[u32]| {
        let mut seen = Recorder::default();
        fixture.session().score(tokens, &mut seen).unwrap();
        seen.logits
    };
    for name in ["inkling", "inkling2", "inkling2_text"] {
        let dir = tempfile::tempdir().unwrap();
        copy(name, dir.path());
        change(dir.path(), "config.json", |config| {
            let text =
                if config["text_config"].is_object() { &mut config["text_config"] } else { config };
            text["unpadded_vocab_size"] = PREDICTED.into();
        });
        let (all, fewer) = (Fixture::open(name), Fixture::at(dir.path()));
        let tokens: Vec<u32> =
            all.golden().tokens.into_iter().map(|t| t % PREDICTED as u32).collect();
        let vocab = all.spec.vocab;
        assert!(vocab > PREDICTED, "{name}");
        let (expected, found) = (score(&all, &tokens), score(&fewer, &tokens));
        for (expected, found) in expected.chunks(vocab).zip(found.chunks(vocab)) {
            assert_eq!(expected[..PREDICTED], found[..PREDICTED], "{name}");
            assert!(found[PREDICTED..].iter().all(|&x| x == f32::NEG_INFINITY), "{name}");
        }
    }
}
