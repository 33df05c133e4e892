//! Tensor names of every family, and errors for configurations that cannot be used.

use std::collections::BTreeMap;

use sws_format::{Configuration, Naming, Placement, Value};
use sws_model::{ForwardState, InvalidConfig, KvPrecision, Mixer, ModelSpec, supported};

fn config(model_type: &str) -> String {
    format!(
        r#"{{"model_type":"{model_type}","num_hidden_layers":4,"num_experts":16,
        "tie_word_embeddings":false}}"#
    )
}

fn naming(config: &str) -> Result<Box<dyn Naming>, InvalidConfig> {
    sws_model::naming(&Configuration::from_json("config.json", config.as_bytes())?)
}

/// The piece of a tensor, marked `*` if it may be re-encoded.
fn place(config: &str, name: &str) -> String {
    match naming(config).unwrap().place(name, &[8, 8]) {
        Placement::Piece { id, matrix, .. } => format!("{id}{}", if matrix { "*" } else { "" }),
        Placement::Experts { layer, .. } => format!("layer_{layer}/experts"),
        Placement::Extra => "extra".to_owned(),
    }
}

#[test]
fn tensors_of_every_family() {
    #[rustfmt::skip]
    let everywhere = [
        ("model.embed_tokens.weight", "embed*"),
        ("model.norm.weight", "final_norm"),
        ("lm_head.weight", "lm_head*"),
        ("model.layers.3.input_layernorm.weight", "layer_3/norms"),
        ("model.layers.3.post_attention_layernorm.weight", "layer_3/norms"),
        ("model.layers.0.self_attn.q_proj.weight", "layer_0/attention*"),
        ("model.layers.0.self_attn.o_proj.weight", "layer_0/attention*"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "extra"),
        ("model.layers.4.input_layernorm.weight", "extra"),      // multi-token prediction
        ("model.layers.03.input_layernorm.weight", "extra"),
        ("model.layers.input_layernorm.weight", "extra"),
        ("model.visual.patch_embed.weight", "extra"),
        ("", "extra"),
    ];
    // Other names of their own.
    const LING: &[&str] = &["bailing_hybrid", "bailing_moe", "bailing_moe_v2"];
    const OTHERS: &[&str] = &[
        "axk2",
        "lfm2_moe",
        "lfm3",
        "deepseek_v4",
        "nemotron_h",
        "longcat_flash",
        "qwen4_exp_text",
        "inkling_text",
        "inkling2_loop_text",
        "inkling2_text",
        "mistral_large4_text",
    ];
    let own = [OTHERS, LING].concat();
    for model_type in supported().filter(|model_type| !own.contains(model_type)) {
        for (name, expected) in everywhere {
            assert_eq!(place(&config(model_type), name), expected, "{model_type} {name}");
        }
    }

    #[rustfmt::skip]
    let cases: &[(&[&str], &str, &str)] = &[
        (&["mistral_large4_text"], "layers.3.experts.5.w1.weight", "layer_3/expert_5*"),
        (&["mistral_large4_text"], "layers.3.experts.16.w1.weight", "extra"),
        (&["inkling2_text"], "model.llm.layers.3.mlp.experts.w13_weight", "extra"),
        (&["nemotron_h"], "backbone.embeddings.weight", "embed*"),
        (&["nemotron_h"], "backbone.norm_f.weight", "final_norm"),
        (&["nemotron_h"], "lm_head.weight", "lm_head*"),
        (&["nemotron_h"], "model.embed_tokens.weight", "extra"),
        (&["nemotron_h"], "mtp.layers.0.norm.weight", "extra"),
        (&["nemotron_h"], "backbone.layers.1.norm.weight", "layer_1/norms"),
        (&["nemotron_h"], "backbone.layers.1.mixer.q_proj.weight", "layer_1/attention*"),
        (&["nemotron_h"], "backbone.layers.1.mixer.in_proj.weight", "layer_1/attention*"),
        (&["nemotron_h"], "backbone.layers.1.mixer.norm.weight", "layer_1/attention"),
        (&["nemotron_h"], "backbone.layers.1.mixer.D", "layer_1/attention"),
        (&["nemotron_h"], "backbone.layers.1.mixer.up_proj.weight", "layer_1/mlp*"),
        (&["nemotron_h"], "backbone.layers.1.mixer.gate.e_score_correction_bias", "layer_1/router"),
        (&["nemotron_h"], "backbone.layers.1.mixer.shared_experts.up_proj.weight", "layer_1/shared_expert*"),
        (&["nemotron_h"], "backbone.layers.1.mixer.experts.3.down_proj.weight", "layer_1/expert_3*"),
        (&["nemotron_h"], "backbone.layers.1.mixer.fc2_latent_proj.weight", "layer_1/shared_expert*"),
        (&["granitemoehybrid"], "model.layers.1.mamba.in_proj.weight", "layer_1/attention*"),
        (&["granitemoehybrid"], "model.layers.1.mamba.dt_bias", "layer_1/attention"),
        (&["granitemoehybrid"], "model.layers.1.shared_mlp.input_linear.weight", "layer_1/mlp*"),
        (&["granitemoehybrid"], "model.layers.1.block_sparse_moe.router.layer.weight", "layer_1/router"),
        (&["kimi_linear"], "model.layers.1.self_attn.f_b_proj.weight", "layer_1/attention*"),
        (&["kimi_linear"], "model.layers.1.self_attn.b_proj.weight", "layer_1/attention"),
        (&["kimi_linear"], "model.layers.1.self_attn.k_conv1d.weight", "layer_1/attention"),
        (&["kimi_linear"], "model.layers.1.self_attn.A_log", "layer_1/attention"),
        (&["kimi_linear"], "model.layers.1.self_attn.kv_b_proj.weight", "layer_1/attention*"),
        (&["kimi_linear"], "model.layers.1.block_sparse_moe.experts.3.w1.weight", "layer_1/expert_3*"),
        (&["kimi_linear"], "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight", "layer_1/shared_expert*"),
        // Of Kimi K3, whose language model has the same model type.
        (&["kimi_linear"], "model.output_attn_res_proj.weight", "final_norm"),
        (&["kimi_linear"], "model.layers.1.self_attention_res_norm.weight", "layer_1/attention"),
        (&["kimi_linear"], "model.layers.1.mlp_res_proj.weight", "layer_1/router"),
        (&["kimi_linear"], "model.layers.1.self_attn.g_proj.weight", "layer_1/attention*"),
        (&["kimi_linear"], "model.layers.1.block_sparse_moe.routed_expert_down_proj.weight", "layer_1/shared_expert*"),
        (&["kimi_linear"], "model.layers.1.block_sparse_moe.routed_expert_norm.weight", "layer_1/shared_expert"),
        (&["lfm2_moe"], "model.embedding_norm.weight", "final_norm"),
        (&["lfm2_moe"], "lm_head.weight", "lm_head*"),
        (&["lfm2_moe"], "model.layers.1.conv.conv.weight", "layer_1/attention"),
        (&["lfm2_moe"], "model.layers.1.feed_forward.experts.3.w2.weight", "layer_1/expert_3*"),
        (&["qwen3_next", "qwen3_5_moe_text"], "model.layers.1.linear_attn.A_log", "layer_1/attention"),
        (&["qwen3_next"], "model.layers.1.linear_attn.in_proj_qkvz.weight", "layer_1/attention*"),
        (&["qwen3_5_moe_text", "qwen3_5_text"], "model.layers.1.linear_attn.in_proj_b.weight", "layer_1/attention"),
        (&["qwen3_5_moe_text"], "model.layers.1.mlp.experts.3.up_proj.weight", "layer_1/expert_3*"),
        (&["mixtral"], "model.layers.1.block_sparse_moe.gate.weight", "layer_1/router"),
        (&["mixtral"], "model.layers.1.block_sparse_moe.experts.15.w1.weight", "layer_1/expert_15*"),
        (&["mixtral"], "model.layers.1.block_sparse_moe.experts.0.w2.weight", "layer_1/expert_0*"),
        (&["mixtral"], "model.layers.1.block_sparse_moe.experts.0.w3.weight", "layer_1/expert_0*"),
        (&["mixtral"], "model.layers.1.block_sparse_moe.experts.16.w1.weight", "extra"),
        (&["mixtral"], "model.layers.1.block_sparse_moe.experts..w1.weight", "extra"),
        (&["mixtral"], "model.layers.1.mlp.gate_proj.weight", "extra"),
        (&["qwen2_moe", "qwen3_moe", "olmoe"], "model.layers.2.mlp.gate.weight", "layer_2/router"),
        (&["qwen2_moe", "qwen3_moe", "olmoe"], "model.layers.2.mlp.experts.7.gate_proj.weight", "layer_2/expert_7*"),
        (&["qwen2_moe", "qwen3_moe", "olmoe"], "model.layers.2.mlp.experts.07.gate_proj.weight", "extra"),
        (&["qwen2_moe", "qwen3_moe", "olmoe"], "model.layers.2.mlp.experts.7.w1.weight", "extra"),
        (&["qwen2_moe"], "model.layers.2.mlp.shared_expert.down_proj.weight", "layer_2/shared_expert*"),
        (&["qwen2_moe"], "model.layers.2.mlp.shared_expert_gate.weight", "layer_2/shared_expert"),
        (&["qwen2_moe", "llama", "mistral", "qwen2", "qwen3"], "model.layers.2.mlp.up_proj.weight", "layer_2/mlp*"),
        (&["qwen3", "qwen3_moe", "olmoe"], "model.layers.2.self_attn.q_norm.weight", "layer_2/attention"),
        (&["llama"], "model.layers.2.mlp.experts.7.gate_proj.weight", "extra"),
        (&["llama", "qwen2_moe", "glm4_moe"], "model.layers.0.self_attn.k_proj.bias", "layer_0/attention"),
        (&["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"], "model.layers.0.self_attn.k_proj.bias", "extra"),
        (&["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"], "model.layers.2.self_attn.q_a_proj.weight", "layer_2/attention*"),
        (&["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"], "model.layers.2.self_attn.q_a_layernorm.weight", "layer_2/attention"),
        (&["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"], "model.layers.2.self_attn.kv_a_proj_with_mqa.weight", "layer_2/attention*"),
        (&["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"], "model.layers.2.self_attn.kv_a_layernorm.weight", "layer_2/attention"),
        (&["deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe_lite"], "model.layers.2.self_attn.kv_b_proj.weight", "layer_2/attention*"),
        (&["deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite"], "model.layers.2.mlp.gate.e_score_correction_bias", "layer_2/router"),
        (&["deepseek_v3", "kimi_k2", "glm4_moe", "glm4_moe_lite"], "model.layers.2.mlp.gate.weight", "layer_2/router"),
        (&["deepseek_v2", "glm4_moe"], "model.layers.2.mlp.shared_experts.up_proj.weight", "layer_2/shared_expert*"),
        (&["deepseek_v2", "glm4_moe"], "model.layers.0.mlp.up_proj.weight", "layer_0/mlp*"),
        (&["deepseek_v3", "glm4_moe"], "model.layers.4.eh_proj.weight", "extra"),
        (&["deepseek_v32", "glm_moe_dsa"], "model.layers.2.self_attn.indexer.wq_b.weight", "layer_2/attention*"),
        (&["deepseek_v32", "glm_moe_dsa"], "model.layers.2.self_attn.indexer.wk.weight", "layer_2/attention*"),
        (&["deepseek_v32", "glm_moe_dsa"], "model.layers.2.self_attn.indexer.k_norm.weight", "layer_2/attention"),
        (&["deepseek_v32", "glm_moe_dsa"], "model.layers.2.self_attn.indexer.k_norm.bias", "layer_2/attention"),
        (&["deepseek_v32", "glm_moe_dsa"], "model.layers.2.self_attn.indexer.weights_proj.weight", "layer_2/attention"),
        (&["deepseek_v32", "glm_moe_dsa"], "model.layers.4.self_attn.indexer.wk.weight", "extra"),
        (&["glm4_moe"], "model.layers.2.self_attn.q_norm.weight", "layer_2/attention"),
        (&["gpt_oss"], "model.layers.2.mlp.router.weight", "layer_2/router"),
        (&["gpt_oss"], "model.layers.2.mlp.router.bias", "layer_2/router"),
        (&["gpt_oss"], "model.layers.2.self_attn.sinks", "layer_2/attention"),
        (&["llama"], "model.layers.2.self_attn.sinks", "extra"),
        (&["minimax_m2"], "model.layers.2.block_sparse_moe.e_score_correction_bias", "layer_2/router"),
        (&["dots1", "solar_open"], "model.layers.2.mlp.gate.e_score_correction_bias", "layer_2/router"),
        (&["exaone_moe"], "model.layers.2.mlp.e_score_correction_bias", "layer_2/router"),
        (&["hy_v3"], "model.layers.2.mlp.expert_bias", "layer_2/router"),
        (&["hy_v3"], "model.layers.2.mlp.router.gate.weight", "layer_2/router"),
        (&["hy_v3", "hunyuan_v1_moe"], "model.layers.2.mlp.shared_mlp.up_proj.weight", "layer_2/shared_expert*"),
        (&["hunyuan_v1_moe"], "model.layers.2.mlp.gate.wg.weight", "layer_2/router"),
        (&["hunyuan_v1_moe"], "model.layers.2.self_attn.query_layernorm.weight", "layer_2/attention"),
        (&["ernie4_5_moe"], "model.layers.2.mlp.moe_statics.e_score_correction_bias", "layer_2/router"),
        (&["ernie4_5_moe"], "model.layers.2.mlp.shared_experts.up_proj.weight", "layer_2/shared_expert*"),
        (&["mellum"], "model.layers.2.mlp.experts.7.gate_proj.weight", "layer_2/expert_7*"),
        (&["gemma2", "gemma3_text", "gemma4_text"], "model.layers.2.post_feedforward_layernorm.weight", "layer_2/norms"),
        (&["gemma4_text"], "model.layers.2.pre_feedforward_layernorm_2.weight", "layer_2/norms"),
        (&["gemma4_text"], "model.layers.2.layer_scalar", "layer_2/norms"),
        (&["gemma4_text"], "model.layers.2.router.per_expert_scale", "layer_2/router"),
        (&["gemma4_text"], "model.layers.2.mlp.up_proj.weight", "layer_2/mlp*"),
        (&["gemma4_text"], "model.embed_tokens_per_layer.weight", "layer_0/table_0*"),
        (&["gemma4_text"], "model.per_layer_model_projection.weight", "layer_0/layer_input*"),
        (&["gemma4_text"], "model.per_layer_projection_norm.weight", "layer_0/norms"),
        (&["gemma4_text"], "model.layers.2.per_layer_input_gate.weight", "layer_2/layer_input*"),
        (&["gemma4_text"], "model.layers.2.per_layer_projection.weight", "layer_2/layer_input*"),
        (&["gemma4_text"], "model.layers.2.post_per_layer_input_norm.weight", "layer_2/norms"),
        (&["gemma2"], "model.embed_tokens_per_layer.weight", "extra"),
        (&["glm5_next_text"], "model.layers.1.hc_ffn_fn", "layer_1/router"),
        (&["glm5_next_text"], "model.layers.1.hc_attn_scale", "layer_1/attention"),
        (&["glm5_next_text"], "model.layers.1.self_attn.f_b_proj.weight", "layer_1/attention*"),
        (&["glm5_next_text"], "model.layers.1.self_attn.indexer.index_kpool_compress_ape", "layer_1/attention"),
        (&["glm5_next_text"], "model.layers.1.self_attn.indexer.index_kpool_compress_gate", "layer_1/attention"),
        (&["hy_v4"], "model.hc_head.hc_head_scale", "final_norm"),
        (&["hy_v4"], "model.layers.1.hc_attn_layer.hc_pre.hc_fn", "layer_1/attention"),
        (&["hy_v4"], "model.layers.1.hc_mlp_layer.hc_pre.hc_base", "layer_1/router"),
        (&["hy_v4"], "model.layers.1.self_attn.linear_gate.weight", "layer_1/attention*"),
        (&["hy_v4"], "model.layers.1.self_attn.learnable_sink_param", "layer_1/attention"),
        (&["hy_v4"], "model.mtp_layers.0.eh_proj.weight", "extra"),
        (&["minimax_m3_vl_text"], "model.layers.1.self_attn.index_q_proj.weight", "layer_1/attention*"),
        (&["minimax_m3_vl_text"], "model.layers.1.self_attn.index_k_norm.weight", "layer_1/attention"),
        (&["minimax_m3_vl_text"], "model.layers.1.block_sparse_moe.shared_experts.up_proj.weight", "layer_1/shared_expert*"),
        (&["minimax_m3_vl_text"], "model.layers.1.block_sparse_moe.experts.5.w2.weight", "layer_1/expert_5*"),
        (&["longcat_flash"], "model.embed_tokens.weight", "embed*"),
        (&["longcat_flash"], "model.layers.0.self_attn.0.q_a_proj.weight", "layer_0/attention*"),
        (&["longcat_flash"], "model.layers.0.self_attn.1.q_a_proj.weight", "layer_1/attention*"),
        (&["longcat_flash"], "model.layers.0.self_attn.2.q_a_proj.weight", "extra"),
        (&["longcat_flash"], "model.layers.1.input_layernorm.1.weight", "layer_3/norms"),
        (&["longcat_flash"], "model.layers.1.mlps.0.gate_proj.weight", "layer_2/mlp*"),
        (&["longcat_flash"], "model.layers.1.mlp.router.classifier.weight", "layer_2/router"),
        (&["longcat_flash"], "model.layers.1.mlp.experts.15.up_proj.weight", "layer_2/expert_15*"),
        (&["longcat_flash"], "model.layers.1.mlp.experts.16.up_proj.weight", "extra"),
        (&["longcat_flash"], "model.layers.2.mlps.0.gate_proj.weight", "extra"),
        (&["longcat_flash"], "model.mtp.layers.0.norm.weight", "extra"),
        (&["qwen4_exp_text"], "model.embed_tokens.weight", "embed*"),
        (&["qwen4_exp_text"], "lm_head.weight", "lm_head*"),
        (&["qwen4_exp_text"], "model.norm.weight", "extra"),
        (&["qwen4_exp_text"], "model.hyper_connection_mixer.hc_norm.weight", "final_norm"),
        (&["qwen4_exp_text"], "model.hyper_connection_mixer.input_mix_weight_up.weight", "final_norm"),
        (&["qwen4_exp_text"], "model.layers.1.attn_hyper_connection.block_inject_weight.weight", "layer_1/attention"),
        (&["qwen4_exp_text"], "model.layers.1.mlp_hyper_connection.input_mix_weight_down.weight", "layer_1/router"),
        (&["qwen4_exp_text"], "model.layers.1.input_layernorm.weight", "extra"),
        (&["qwen4_exp_text"], "model.layers.1.linear_attn.in_proj_qkv.weight", "layer_1/attention*"),
        (&["qwen4_exp_text"], "model.layers.1.self_attn.indexer.index_qk_proj.weight", "layer_1/attention*"),
        (&["qwen4_exp_text"], "model.layers.1.self_attn.indexer.k_layernorm.weight", "layer_1/attention"),
        (&["qwen4_exp_text"], "model.layers.1.ple.key_proj.weight", "layer_1/attention*"),
        (&["qwen4_exp_text"], "model.layers.1.ple.conv1d.weight", "layer_1/attention"),
        (&["qwen4_exp_text"], "model.layers.1.ple.ple_embedding.layer_multipliers", "layer_1/table_0"),
        (&["qwen4_exp_text"], "model.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight", "layer_1/table_0"),
        (&["qwen4_exp_text"], "model.layers.1.ple.ple_embedding.ngram_embedding.shard_511.weight", "layer_1/table_511"),
        (&["qwen4_exp_text"], "model.layers.1.ple.ple_embedding.ngram_embedding.shard_512.weight", "extra"),
        (&["qwen4_exp_text"], "model.layers.1.ple.ple_embedding.ngram_embedding.shard_01.weight", "extra"),
        (&["qwen4_exp_text"], "model.layers.1.mlp.experts.3.up_proj.weight", "layer_1/expert_3*"),
        (&["qwen4_exp_text"], "mtp.layers.0.mlp.gate.weight", "extra"),
        (LING, "model.word_embeddings.weight", "embed*"),
        (LING, "model.norm.weight", "final_norm"),
        (LING, "lm_head.weight", "lm_head*"),
        (LING, "model.layers.1.attention.dense.weight", "layer_1/attention*"),
        (LING, "model.layers.1.mlp.gate.expert_bias", "layer_1/router"),
        (LING, "model.layers.1.mlp.experts.3.up_proj.weight", "layer_1/expert_3*"),
        (LING, "model.layers.9.mlp.gate.weight", "extra"),
        (&LING[1..], "model.layers.1.attention.query_key_value.weight", "layer_1/attention*"),
        (&LING[1..], "model.layers.1.attention.query_layernorm.weight", "layer_1/attention"),
        (&LING[1..], "model.layers.1.mlp.shared_experts.down_proj.weight", "layer_1/shared_expert*"),
        (&["bailing_hybrid"], "model.layers.1.attention.q_b_proj.weight", "layer_1/attention*"),
        (&["bailing_hybrid"], "model.layers.1.attention.q_conv1d.weight", "layer_1/attention"),
        (&["bailing_hybrid"], "model.layers.1.attention.o_proj.weight", "layer_1/attention*"),
        (&["afmoe"], "model.layers.2.pre_mlp_layernorm.weight", "layer_2/norms"),
        (&["afmoe"], "model.layers.2.post_mlp_layernorm.weight", "layer_2/norms"),
        (&["afmoe"], "model.layers.2.self_attn.gate_proj.weight", "layer_2/attention*"),
        (&["afmoe"], "model.layers.2.mlp.router.gate.weight", "layer_2/router"),
        (&["afmoe"], "model.layers.2.mlp.expert_bias", "layer_2/router"),
        (&["laguna"], "model.layers.2.self_attn.g_proj.weight", "layer_2/attention"),
        (&["laguna"], "model.layers.2.mlp.experts.e_score_correction_bias", "layer_2/router"),
        (&["laguna"], "model.layers.2.mlp.shared_expert.down_proj.weight", "layer_2/shared_expert*"),
        (&["afmoe", "cohere2_moe", "mistral4"], "model.layers.2.mlp.shared_experts.down_proj.weight", "layer_2/shared_expert*"),
        (&["afmoe", "laguna", "cohere2_moe", "mimo_v2_flash"], "model.layers.2.mlp.experts.7.down_proj.weight", "layer_2/expert_7*"),
        (&["flint"], "model.layers.2.self_attn.softmax_offset", "layer_2/attention"),
        (&["axk1"], "model.layers.2.post_mlp_layernorm.weight", "layer_2/norms"),
        (&["axk1", "axk2", "dots3_note_text"], "model.layers.2.self_attn.kv_a_layernorm.weight", "layer_2/attention"),
        (&["axk2"], "model.layers.2.input_layernorm.norm.weight", "layer_2/norms"),
        (&["axk2"], "model.layers.2.input_layernorm.W_down.weight", "layer_2/attention"),
        (&["axk2"], "model.layers.2.post_attention_layernorm.weight", "layer_2/norms"),
        (&["axk2"], "model.layers.2.post_attention_layernorm.W_up.weight", "layer_2/router"),
        (&["axk2"], "model.layers.2.self_attn.indexer.wq_b.weight", "layer_2/attention*"),
        (&["dots3_note_text"], "model.layers.2.self_attn.k_rope_only_layernorm.weight", "layer_2/attention"),
        (&["dots3_note_text"], "model.language_model.layers.2.self_attn.g_proj.weight", "layer_2/attention*"),
        (&["lfm3"], "model.embedding_norm.weight", "final_norm"),
        (&["lfm3"], "model.layers.2.post_operator_norm.weight", "layer_2/norms"),
        (&["lfm3"], "model.layers.2.conv.conv.weight", "layer_2/attention"),
        (&["lfm3"], "model.layers.2.self_attn.gate_proj.weight", "layer_2/attention*"),
        (&["muse_glimmer_text", "muse_spark_text"], "model.layers.2.self_attn.gate_proj.weight", "layer_2/attention*"),
        (&["muse_glimmer_text"], "model.language_model.layers.2.post_feedforward_layernorm.weight", "layer_2/norms"),
        (&["muse_spark_text"], "model.layers.2.post_attention_residual_gate.gate", "layer_2/norms"),
        (&["muse_spark_text"], "model.layers.2.mlp.pre_expert_norm.weight", "layer_2/shared_expert"),
        (&["muse_spark_text"], "model.layers.2.mlp.experts.post_expert_norm.weight", "layer_2/shared_expert"),
        (&["mimo_v2_flash"], "model.layers.2.self_attn.attention_sink_bias", "layer_2/attention"),
        (&["mistral4"], "model.layers.2.self_attn.kv_b_proj.weight", "layer_2/attention*"),
        (&["llama4_text"], "model.layers.2.feed_forward.router.weight", "layer_2/router"),
        (&["llama4_text"], "model.layers.2.feed_forward.up_proj.weight", "layer_2/mlp*"),
        (&["llama4_text"], "model.layers.2.feed_forward.shared_expert.up_proj.weight", "layer_2/shared_expert*"),
        (&["granitemoehybrid"], "model.layers.2.shared_mlp.input_linear.weight", "layer_2/mlp*"),
        (&["step3p5"], "model.layers.2.self_attn.g_proj.weight", "layer_2/attention"),
        (&["step3p5"], "model.layers.2.moe.router_bias", "layer_2/router"),
        (&["step3p5"], "model.layers.2.share_expert.up_proj.weight", "layer_2/shared_expert*"),
        (&["phimoe"], "model.layers.2.input_layernorm.bias", "layer_2/norms"),
        (&["phimoe"], "model.layers.2.block_sparse_moe.experts.7.w2.weight", "layer_2/expert_7*"),
        (&["phimoe"], "model.norm.bias", "final_norm"),
        (&["phimoe"], "lm_head.bias", "final_norm"),
        (&["granitemoe"], "model.layers.2.block_sparse_moe.router.layer.weight", "layer_2/router"),
        (&["deepseek_v4"], "embed.weight", "embed*"),
        (&["deepseek_v4"], "norm.weight", "final_norm"),
        (&["deepseek_v4"], "head.weight", "lm_head*"),
        (&["deepseek_v4"], "hc_head_fn", "final_norm"),
        (&["deepseek_v4"], "layers.1.attn_norm.weight", "layer_1/norms"),
        (&["deepseek_v4"], "layers.1.hc_attn_fn", "layer_1/attention"),
        (&["deepseek_v4"], "layers.1.hc_ffn_scale", "layer_1/router"),
        (&["deepseek_v4"], "layers.1.attn.attn_sink", "layer_1/attention"),
        (&["deepseek_v4"], "layers.1.attn.wo_a.weight", "layer_1/attention*"),
        (&["deepseek_v4"], "layers.1.attn.compressor.ape", "layer_1/attention"),
        (&["deepseek_v4"], "layers.1.attn.indexer.compressor.wkv.weight", "layer_1/attention*"),
        (&["deepseek_v4"], "layers.1.ffn.gate.tid2eid", "layer_1/router"),
        (&["deepseek_v4"], "layers.1.ffn.gate.bias", "layer_1/router"),
        (&["deepseek_v4"], "layers.1.ffn.gate.bias_vl", "extra"),
        (&["deepseek_v4"], "layers.1.ffn.experts.3.w2.weight", "layer_1/expert_3*"),
        (&["deepseek_v4"], "layers.1.ffn.shared_experts.w1.weight", "layer_1/shared_expert*"),
        (&["deepseek_v4"], "layers.4.attn_norm.weight", "extra"),
        (&["deepseek_v4"], "mtp.0.attn_norm.weight", "extra"),
        (&["deepseek_v4"], "model.layers.1.attn_norm.weight", "extra"),
    ];
    for (model_types, name, expected) in cases {
        for model_type in *model_types {
            assert_eq!(place(&config(model_type), name), *expected, "{model_type} {name}");
        }
    }
}

/// The configuration of a published model, as far as it matters here.
#[test]
fn kimi_k2_is_read_as_deepseek_v3() {
    let spec = |model_type: &str| {
        let config = format!(
            r#"{{"model_type": "{model_type}", "attention_bias": false, "ep_size": 1,
            "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168,
            "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 131072,
            "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 1,
            "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": true,
            "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61,
            "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "q_lora_rank": 1536,
            "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
            "rope_scaling": {{"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}},
            "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "scoring_func": "sigmoid",
            "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
            "v_head_dim": 128, "vocab_size": 163840}}"#
        );
        ModelSpec::parse(config.as_bytes()).unwrap()
    };
    let (kimi, deepseek) = (spec("kimi_k2"), spec("deepseek_v3"));
    assert_eq!(ModelSpec { model_type: "deepseek_v3".to_owned(), ..kimi.clone() }, deepseek);
    assert!(kimi.layers[0].moe().is_none() && kimi.layers[1].moe().is_some());
    let Mixer::Latent(latent) = kimi.layers[1].mixer else { panic!("{:?}", kimi.layers[1]) };
    let amplitude = 0.1 * 32f64.ln() + 1.0;
    let expected = amplitude * amplitude / 192f64.sqrt();
    assert!((f64::from(latent.scale) / expected - 1.0).abs() < 1e-6, "{latent:?}");
    assert_eq!((kimi.ropes[0].factor, kimi.ropes[0].inv_freq.len()), (1.0, 32));
    // A latent of 512 and 64 rotated elements in each layer, not 64 keys and values.
    let bytes = ForwardState::cache_bytes(&kimi, 1000, KvPrecision::F32);
    assert_eq!(bytes, 61 * 1000 * 576 * 4);
}

/// The layers with an indexer, by any of the spellings; entries for further layers are not read.
#[test]
fn layers_share_the_positions_that_others_select() {
    let text = std::fs::read(sws_testing::goldens::golden_dir("glm_moe_dsa").join("config.json"));
    let golden: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&text.unwrap()).unwrap();
    let full_and_shared = |kinds: &str| -> serde_json::Value {
        let kind = |letter| if letter == 'F' { "full" } else { "shared" };
        kinds.chars().map(kind).collect::<Vec<_>>().into()
    };
    #[rustfmt::skip]
    let cases: [(&[(&str, serde_json::Value)], &str); 8] = [
        (&[], "FFFF"),
        (&[("index_topk_freq", 0.into())], "FFFF"),
        (&[("index_topk_freq", 2.into())], "FFSF"),
        (&[("index_topk_freq", 3.into()), ("index_skip_topk_offset", 3.into())], "FFFS"),
        (&[("index_topk_freq", 4.into()), ("index_skip_topk_offset", 1.into())], "FSSS"),
        (&[("index_topk_pattern", "FSSFFS".into()), ("index_topk_freq", 2.into())], "FSSF"),
        (&[("index_topk_pattern", full_and_shared("FSFS"))], "FSFS"),
        (&[("indexer_types", full_and_shared("FSSSFF")), ("index_topk_pattern", "FFFFF".into())], "FSSS"),
    ];
    for (entries, expected) in cases {
        let mut config = golden.clone();
        for key in ["index_topk_freq", "index_skip_topk_offset"] {
            config.remove(key);
        }
        config.extend(entries.iter().map(|(key, value)| (key.to_string(), value.clone())));
        let spec = ModelSpec::parse(&serde_json::to_vec(&config).unwrap()).unwrap();
        let own = |layer: &sws_model::LayerSpec| match &layer.mixer {
            Mixer::Latent(latent) if latent.sparse.unwrap().indexer.is_some() => 'F',
            _ => 'S',
        };
        assert_eq!(spec.layers.iter().map(own).collect::<String>(), expected, "{entries:?}");
        // Latents of 35 elements in each layer, and keys of 20 in those with an indexer.
        let bytes = ForwardState::cache_bytes(&spec, 100, KvPrecision::F32);
        let indexers = expected.matches('F').count() as u64;
        assert_eq!(bytes, 100 * 4 * (4 * 35 + 20 * indexers), "{entries:?}");
    }
}

#[test]
fn stacked_tensors_belong_to_all_experts() {
    #[rustfmt::skip]
    let cases = [
        // name, shape, place, true for a matrix, true if it is transposed
        ("model.layers.3.mlp.experts.gate_up_proj", &[16u64, 8, 4][..], "layer_3/experts", true, true),
        ("model.layers.3.mlp.experts.gate_up_proj_bias", &[16, 4], "layer_3/experts", false, false),
        ("model.layers.3.mlp.experts.down_proj", &[16, 2, 8], "layer_3/experts", true, true),
        ("model.layers.3.mlp.experts.down_proj_bias", &[16, 8], "layer_3/experts", false, false),
        ("model.layers.3.mlp.experts.down_proj", &[15, 2, 8], "extra", false, false),
        ("model.layers.4.mlp.experts.down_proj", &[16, 2, 8], "extra", false, false),
        ("model.layers.3.mlp.experts.0.down_proj", &[16, 2, 8], "extra", false, false),
    ];
    let naming = naming(&config("gpt_oss")).unwrap();
    for (name, shape, expected, is_matrix, is_transposed) in cases {
        let found = match naming.place(name, shape) {
            Placement::Experts { layer, matrix, transposed, .. } => {
                (format!("layer_{layer}/experts"), matrix, transposed)
            }
            other => (if other == Placement::Extra { "extra" } else { "" }.into(), false, false),
        };
        assert_eq!(found, (expected.to_owned(), is_matrix, is_transposed), "{name} {shape:?}");
    }
}

#[test]
fn a_language_model_within_another_has_a_prefix() {
    let config = |tied: &str| {
        format!(
            r#"{{"model_type": "kimi_k25", {tied} "num_hidden_layers": 9, "text_config":
            {{"model_type": "kimi_k2", "num_hidden_layers": 4, "n_routed_experts": 16}}}}"#
        )
    };
    let apart = config("");
    #[rustfmt::skip]
    let cases = [
        ("language_model.model.embed_tokens.weight", "embed*"),
        ("language_model.model.norm.weight", "final_norm"),
        ("language_model.lm_head.weight", "lm_head*"),
        ("language_model.model.layers.3.self_attn.o_proj.weight", "layer_3/attention*"),
        ("language_model.model.layers.3.mlp.experts.15.up_proj.weight", "layer_3/expert_15*"),
        ("language_model.model.layers.4.self_attn.o_proj.weight", "extra"),
        ("model.layers.3.self_attn.o_proj.weight", "extra"),
        ("lm_head.weight", "extra"),
        ("vision_tower.encoder.layers.0.norm.weight", "extra"),
    ];
    for (name, expected) in cases {
        assert_eq!(place(&apart, name), expected, "{name}");
    }
    // Weights with a head have it whatever the configuration says.
    let tied = config(r#""tie_word_embeddings": true,"#);
    assert_eq!(place(&tied, "language_model.lm_head.weight"), "lm_head*");
    assert_eq!(naming(&apart).unwrap().model_type(), "kimi_k2");
}

#[test]
fn prefixes_of_language_models() {
    #[rustfmt::skip]
    let cases = [
        ("gemma3", "gemma3_text", "language_model.model.layers.3.mlp.up_proj.weight", "layer_3/mlp*"),
        ("gemma3", "gemma3_text", "model.layers.3.mlp.up_proj.weight", "extra"),
        ("gemma4", "gemma4_text", "model.language_model.layers.3.mlp.up_proj.weight", "layer_3/mlp*"),
        ("gemma4", "gemma4_text", "model.vision_tower.patch_embedder.input_proj.weight", "extra"),
        ("gemma4", "gemma4_text", "lm_head.weight", "lm_head*"),
        ("gemma4", "gemma4_text", "model.language_model.embed_tokens_per_layer.weight", "layer_0/table_0*"),
        ("gemma4", "gemma4_text", "model.embed_audio.embedding_projection.weight", "extra"),
        ("kimi_k3", "kimi_linear", "language_model.model.layers.3.mlp_res_norm.weight", "layer_3/router"),
        ("kimi_k3", "kimi_linear", "language_model.model.output_attn_res_norm.weight", "final_norm"),
        ("inkling_mm_model", "inkling_text", "model.llm.embed.weight", "embed*"),
        ("inkling_mm_model", "inkling_text", "model.llm.embed_norm.weight", "layer_0/norms"),
        ("inkling_mm_model", "inkling_text", "model.llm.norm.weight", "final_norm"),
        ("inkling_mm_model", "inkling_text", "model.llm.unembed.weight", "lm_head*"),
        ("inkling_mm_model", "inkling_text", "model.llm.layers.3.attn.wr_du.weight", "layer_3/attention*"),
        ("inkling_mm_model", "inkling_text", "model.llm.layers.3.attn.k_sconv.weight", "layer_3/attention"),
        ("inkling_mm_model", "inkling_text", "model.llm.layers.3.attn.rel_logits_proj.proj", "layer_3/attention"),
        ("inkling_mm_model", "inkling_text", "model.llm.layers.3.mlp_sconv.weight", "layer_3/norms"),
        ("inkling_mm_model", "inkling_text", "model.llm.layers.3.mlp.w13_dn.weight", "layer_3/mlp*"),
        ("inkling_mm_model", "inkling_text", "model.llm.layers.3.mlp.gate.global_scale", "layer_3/router"),
        ("inkling_mm_model", "inkling_text", "model.llm.layers.3.mlp.shared_experts.shared_w2_weight", "layer_3/shared_expert*"),
        ("inkling_mm_model", "inkling_text", "model.mtp.layers.0.norm.weight", "extra"),
        ("inkling_mm_model", "inkling_text", "model.visual.final_norm.weight", "extra"),
        ("inkling2", "inkling2_text", "model.llm.unembed.weight", "lm_head*"),
        ("inkling2", "inkling2_text", "model.llm.attn_res.output_query", "final_norm"),
        ("inkling2", "inkling2_text", "model.llm.attn_res.attn_queries.0", "layer_1/attention"),
        ("inkling2", "inkling2_text", "model.llm.attn_res.attn_queries.2", "layer_3/attention"),
        ("inkling2", "inkling2_text", "model.llm.attn_res.attn_queries.3", "extra"),
        ("inkling2", "inkling2_text", "model.llm.attn_res.attn_queries.00", "extra"),
        ("inkling2", "inkling2_text", "model.llm.attn_res.mlp_queries.3", "layer_3/router"),
        ("inkling2", "inkling2_text", "model.llm.attn_res.mlp_queries.4", "extra"),
        ("inkling2", "inkling2_text", "model.llm.attn_res.mlp_queries.", "extra"),
        ("inkling2", "inkling2_text", "model.llm.layers.3.attn.attn_sink_proj.weight", "layer_3/attention*"),
        ("inkling2", "inkling2_text", "model.llm.layers.3.attn.k_sconv.static_w", "layer_3/attention"),
        ("inkling2", "inkling2_text", "model.llm.layers.3.attn.k_sconv.weight_proj", "layer_3/attention*"),
        ("inkling2", "inkling2_text", "model.llm.layers.3.v_input_norm.weight", "layer_3/norms"),
        ("inkling2", "inkling2_text", "model.llm.layers.3.attn_res.mlp_queries.3", "extra"),
        ("inkling2", "inkling2_text", "model.visual.backbone.ln_pre.weight", "extra"),
        ("inkling2", "inkling2_text", "model.llm.middle_cycle_cross_pass_queries", "extra"),
        ("inkling2", "inkling2_text", "model.llm.layers.3.controllers.k.down_weight", "extra"),
        ("inkling2_loop", "inkling2_loop_text", "model.llm.middle_cycle_cross_pass_queries", "layer_0/norms"),
        ("inkling2_loop", "inkling2_loop_text", "model.llm.middle_cycle_cross_pass_kv_queries", "layer_0/norms"),
        ("inkling2_loop", "inkling2_loop_text", "model.llm.layers.3.controllers.attn.down_weight", "layer_3/attention*"),
        ("inkling2_loop", "inkling2_loop_text", "model.llm.layers.3.controllers.k.gain_weight", "layer_3/attention"),
        ("inkling2_loop", "inkling2_loop_text", "model.llm.layers.3.controllers.mlp.forget_weight", "layer_3/router"),
        ("inkling2_loop", "inkling2_loop_text", "model.llm.attn_res.attn_queries.0", "layer_1/attention"),
        ("mistral_large4", "mistral_large4_text", "tok_embeddings.weight", "embed*"),
        ("mistral_large4", "mistral_large4_text", "norm.weight", "final_norm"),
        ("mistral_large4", "mistral_large4_text", "output.weight", "lm_head*"),
        ("mistral_large4", "mistral_large4_text", "lerope.alpha", "layer_0/norms"),
        ("mistral_large4", "mistral_large4_text", "layers.3.attention.wkv_b.weight", "layer_3/attention*"),
        ("mistral_large4", "mistral_large4_text", "layers.3.attention.indexer.ssmax_scaling.s", "layer_3/attention"),
        ("mistral_large4", "mistral_large4_text", "layers.3.gate.weight", "layer_3/router"),
        ("mistral_large4", "mistral_large4_text", "layers.3.shared_experts.w3.weight", "layer_3/shared_expert*"),
        ("mistral_large4", "mistral_large4_text", "layers.3.feed_forward.w2.weight", "layer_3/mlp*"),
        ("mistral_large4", "mistral_large4_text", "model.norm.weight", "extra"),
        ("mistral_large4", "mistral_large4_text", "vision_encoder.transformer.layers.0.attention.wq.weight", "extra"),
        ("mistral_large4", "mistral_large4_text", "mtp_dspark.norm.weight", "extra"),
        ("kimi_k3", "kimi_linear", "language_model.lm_head.weight", "lm_head*"),
        ("kimi_k3", "kimi_linear", "vision_tower.encoder.final_layernorm.weight", "extra"),
        ("kimi_k3", "kimi_linear", "mm_projector.linear_1.weight", "extra"),
        ("llama4", "llama4_text", "language_model.model.layers.3.feed_forward.router.weight", "layer_3/router"),
        ("step3p7", "step3p5", "model.layers.3.moe.gate.weight", "layer_3/router"),
        ("step3p7", "step3p5", "vision_model.conv1.weight", "extra"),
        ("mistral3", "mistral4", "language_model.model.layers.3.mlp.gate.weight", "layer_3/router"),
        ("mistral3", "mistral", "language_model.model.layers.3.mlp.up_proj.weight", "layer_3/mlp*"),
        ("mistral3", "ministral3", "language_model.model.layers.3.mlp.up_proj.weight", "layer_3/mlp*"),
        ("mistral3", "mistral", "language_model.lm_head.weight", "lm_head*"),
        ("mistral3", "mistral", "vision_tower.patch_conv.weight", "extra"),
    ];
    for (outer, inner, name, expected) in cases {
        let config = format!(
            r#"{{"model_type": "{outer}", "text_config": {{"model_type": "{inner}",
            "num_hidden_layers": 4, "n_routed_experts": 16, "enable_moe_block": false}}}}"#
        );
        assert_eq!(place(&config, name), expected, "{outer} {name}");
    }
}

/// Published checkpoints have keys and values of layers that see those of others.
#[test]
fn unused_keys_and_values_are_left_out() {
    let config = r#"{"model_type": "gemma4_text", "num_hidden_layers": 4, "num_experts": 0,
        "num_kv_shared_layers": 2}"#;
    for (name, own, shared) in [
        ("q_proj.weight", "attention*", "attention*"),
        ("k_proj.weight", "attention*", "extra"),
        ("v_proj.weight", "attention*", "extra"),
        ("v_proj.bias", "attention", "extra"),
        ("k_norm.weight", "attention", "extra"),
        ("q_norm.weight", "attention", "attention"),
    ] {
        for layer in 0..4 {
            let expected = match if layer < 2 { own } else { shared } {
                "extra" => "extra".to_owned(),
                piece => format!("layer_{layer}/{piece}"),
            };
            let name = format!("model.layers.{layer}.self_attn.{name}");
            assert_eq!(place(config, &name), expected, "{name}");
        }
    }
}

#[test]
fn tensors_of_a_piece_are_in_order_of_computation() {
    #[rustfmt::skip]
    let cases: &[(&str, &str, &[&str])] = &[
        ("mixtral", "block_sparse_moe.experts.3", &["w1.weight", "w3.weight", "w2.weight"]),
        ("qwen3_moe", "mlp.experts.3", &["gate_proj.weight", "up_proj.weight", "down_proj.weight"]),
        ("qwen2_moe", "mlp", &["shared_expert.gate_proj.weight", "shared_expert.up_proj.weight",
            "shared_expert.down_proj.weight", "shared_expert_gate.weight"]),
        ("llama", "mlp", &["gate_proj.weight", "up_proj.weight", "down_proj.weight"]),
        ("qwen2", "self_attn", &["q_proj.weight", "k_proj.weight", "v_proj.weight", "q_proj.bias",
            "k_proj.bias", "v_proj.bias", "o_proj.weight"]),
        ("deepseek_v3", "self_attn", &["q_a_proj.weight", "kv_a_proj_with_mqa.weight",
            "q_a_layernorm.weight", "q_b_proj.weight", "kv_a_layernorm.weight", "kv_b_proj.weight",
            "o_proj.weight"]),
        ("qwen3", "self_attn", &["q_proj.weight", "k_proj.weight", "v_proj.weight", "q_norm.weight",
            "k_norm.weight", "o_proj.weight"]),
    ];
    for (model_type, below, names) in cases {
        let naming = naming(&config(model_type)).unwrap();
        let ranks: Vec<u16> = names
            .iter()
            .map(|name| match naming.place(&format!("model.layers.0.{below}.{name}"), &[8, 8]) {
                Placement::Piece { rank, .. } => rank,
                other => panic!("{name}: {other:?}"),
            })
            .collect();
        assert!(ranks.windows(2).all(|pair| pair[0] < pair[1]), "{model_type} {ranks:?}");
    }
}

#[test]
fn configurations_are_read_in_every_spelling() {
    let head = "lm_head.weight";
    let expert = "model.layers.1.mlp.experts.2.up_proj.weight";
    #[rustfmt::skip]
    let cases = [
        (r#"{"model_type":"qwen3_moe","num_hidden_layers":2,"num_local_experts":3}"#, expert, "layer_1/expert_2*"),
        (r#"{"model_type":"qwen3_moe","num_hidden_layers":2,"num_experts":2}"#, expert, "extra"),
        (r#"{"model_type":"qwen3_moe","num_hidden_layers":9,"text_config":{"num_hidden_layers":2,"num_experts":3}}"#, expert, "layer_1/expert_2*"),
        (r#"{"model_type":"llama","num_hidden_layers":2,"num_experts":null}"#, head, "lm_head*"),
        (r#"{"model_type":"llama","num_hidden_layers":2,"tie_word_embeddings":true}"#, head, "lm_head*"),
    ];
    for (config, name, expected) in cases {
        assert_eq!(place(config, name), expected, "{config}");
    }
    assert_eq!(naming(&config("olmoe")).unwrap().model_type(), "olmoe");
}

#[test]
fn other_configurations_are_refused_with_a_sentence() {
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    #[rustfmt::skip]
    let cases = [
        ("", "damaged"),
        ("{", "download it again"),
        ("[]", "damaged"),
        (deep.as_str(), "damaged"),
        (r#"{"model_type":7}"#, "damaged"),
        (r#"{"num_hidden_layers":2}"#, "no `model_type`"),
        (r#"{"model_type":"llama"}"#, "no `num_hidden_layers`"),
        (r#"{"model_type":"llama","num_hidden_layers":-1}"#, "damaged"),
        (r#"{"model_type":"llama","num_hidden_layers":4097}"#, "4097 for `num_hidden_layers`"),
        (r#"{"model_type":"llama","num_hidden_layers":18446744073709551615}"#, "download it again"),
        (r#"{"model_type":"mixtral","num_hidden_layers":2}"#, "no `num_local_experts`"),
        (r#"{"model_type":"mixtral","num_hidden_layers":2,"num_local_experts":4294967296}"#, "`num_local_experts`"),
        (r#"{"model_type":"kimi_k25","num_hidden_layers":2}"#, "no `text_config`"),
        (r#"{"model_type":"kimi_k25","text_config":{}}"#, "no `model_type` in `text_config`"),
        (r#"{"model_type":"kimi_k25","text_config":{"model_type":"kimi_k25"}}"#, "`kimi_k25`, which is not supported"),
        (r#"{"model_type":"bert\n","num_hidden_layers":2}"#, r"`bert\n`, which is not supported; docs/supported.md names "),
    ];
    for (config, expected) in cases {
        let Err(error) = naming(config) else { panic!("{config} was accepted") };
        let message = error.to_string();
        assert!(message.contains("config.json") && message.contains(expected), "{message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

/// Values need not come from JSON, nor from a file called config.json.
#[test]
fn typed_values_are_a_configuration_and_errors_name_their_origin() {
    let entries = [
        ("model_type", Value::String("llama".to_owned())),
        ("num_hidden_layers", Value::Int(2)),
        ("hidden_size", Value::Int(64)),
        ("num_attention_heads", Value::Int(4)),
        ("intermediate_size", Value::Int(96)),
        ("vocab_size", Value::Int(100)),
        ("rms_norm_eps", Value::Float(1e-5)),
        ("rope_theta", Value::Int(10_000)),
        ("layer_types", Value::List(vec![Value::String("full_attention".to_owned()); 2])),
    ];
    let entries: BTreeMap<String, Value> =
        entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let typed = Configuration { origin: "model.gguf".to_owned(), entries };
    let json = Value::Map(typed.entries.clone()).to_string();
    assert_eq!(ModelSpec::of(&typed).unwrap(), ModelSpec::parse(json.as_bytes()).unwrap());

    #[rustfmt::skip]
    let cases = [
        ("hidden_size", Value::Null, "has no `hidden_size`; take the one that"),
        ("hidden_size", Value::Int(i128::MAX), "instead of a whole number of at least 0)"),
        ("rms_norm_eps", Value::Float(f64::NAN), "gives null for `rms_norm_eps`, which must be a number"),
        ("rope_theta", Value::Bool(true), "is damaged (`rope_theta` is true instead of a number)"),
        ("model_type", Value::String("none".to_owned()), "names the model type `none`"),
        ("hidden_act", Value::String("gelu".to_owned()), "asks for `hidden_act` = \"gelu\""),
    ];
    for (key, value, expected) in cases {
        let mut typed = typed.clone();
        typed.entries.insert(key.to_owned(), value);
        let message = ModelSpec::of(&typed).unwrap_err().to_string();
        assert!(message.starts_with("model.gguf ") && message.contains(expected), "{message}");
    }
}
