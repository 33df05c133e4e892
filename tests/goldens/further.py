"""Tiny checkpoints of families with gates on attention, widths of their own, or branches side by side."""

from typing import Any

from grouped import variant
from variants import Config, Variant, sizes, spelled_v4, spelled_v5


def without(config: Config, *keys: str) -> Config:
    return {key: value for key, value in config.items() if key not in keys}


AFMOE = spelled_v4(
    "afmoe",
    "AfmoeForCausalLM",
    **sizes(40, 4, 4, 2, 46, 127),
    global_attn_every_n_layers=3,
    head_dim=14,
    layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    moe_intermediate_size=17,
    mup_enabled=True,
    n_group=1,
    num_dense_layers=1,
    num_expert_groups=1,
    num_experts=7,
    num_experts_per_tok=3,
    num_limited_groups=1,
    num_shared_experts=1,
    rope_scaling=None,
    route_norm=True,
    route_scale=2.4,
    score_func="sigmoid",
    sliding_window=8,
    topk_group=1,
    use_grouped_mm=True,
)


def laguna_ropes(**changes: Any) -> Config:
    full = {"partial_rotary_factor": 0.5, "rope_theta": 500000.0, "rope_type": "default"} | changes
    return {
        "full_attention": full,
        "sliding_attention": {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"},
    }


LAGUNA = spelled_v5(
    spelled_v4(
        "laguna",
        "LagunaForCausalLM",
        **sizes(40, 4, 4, 2, 46, 127),
        attention_bias=False,
        gating=True,
        head_dim=12,
        layer_types=["full_attention", "sliding_attention"] * 2,
        mlp_layer_types=["dense"] + ["sparse"] * 3,
        moe_apply_router_weight_on_input=False,
        moe_intermediate_size=17,
        moe_routed_scaling_factor=2.5,
        moe_router_logit_softcapping=0.0,
        num_attention_heads_per_layer=[4, 6, 4, 6],
        num_experts=7,
        num_experts_per_tok=3,
        shared_expert_intermediate_size=19,
        sliding_window=8,
    ),
    laguna_ropes(),
)

COHERE2_MOE = without(
    spelled_v4(
        "cohere2_moe",
        "Cohere2MoeForCausalLM",
        **sizes(40, 5, 4, 2, 17, 131),
        attention_bias=False,
        expert_selection_fn="sigmoid",
        first_k_dense_replace=1,
        head_dim=10,
        layer_norm_eps=1e-5,
        logit_scale=1.5,
        norm_topk_prob=True,
        num_experts=7,
        num_experts_per_tok=3,
        num_shared_experts=2,
        pad_token_id=0,
        prefix_dense_intermediate_size=46,
        prefix_dense_sliding_window_pattern=1,
        rope_scaling=None,
        rope_theta=50000.0,
        shared_expert_combination_strategy="average",
        sliding_window=8,
        sliding_window_pattern=2,
        tie_word_embeddings=True,
    ),
    "rms_norm_eps",
)

FLINT = spelled_v4(
    "flint",
    "FlintForCausalLM",
    **sizes(40, 5, 4, 2, 46, 127),
    attention_bias=False,
    head_dim=14,
    layer_types=["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"],
    mlp_only_layers=[0],
    moe_intermediate_size=17,
    norm_topk_prob=True,
    num_experts=7,
    num_experts_per_tok=3,
    rms_norm_eps=1e-6,
    shared_expert_intermediate_size=19,
    sliding_window=8,
)

MIMO = spelled_v5(
    spelled_v4(
        "mimo_v2_flash",
        "MiMoV2FlashForCausalLM",
        **sizes(40, 4, 4, 1, 46, 127),
        attention_bias=False,
        attention_value_scale=0.6,
        head_dim=18,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        mlp_layer_types=["dense"] + ["sparse"] * 3,
        moe_intermediate_size=17,
        n_group=1,
        n_routed_experts=7,
        norm_topk_prob=True,
        num_experts_per_tok=3,
        routed_scaling_factor=None,
        sliding_window=9,
        topk_group=1,
        v_head_dim=13,
    ),
    {
        "full_attention": {"partial_rotary_factor": 0.334, "rope_theta": 5000000.0, "rope_type": "default"},
        "sliding_attention": {"partial_rotary_factor": 0.334, "rope_theta": 10000.0, "rope_type": "default"},
    },
)


def mistral_ropes(**changes: Any) -> Config:
    return {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "llama_4_scaling_beta": 0.4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 10000.0,
        "rope_type": "yarn",
    } | changes


MISTRAL4 = spelled_v5(
    spelled_v4(
        "mistral4",
        "Mistral4ForCausalLM",
        **sizes(44, 3, 4, 4, 50, 127),
        attention_bias=False,
        first_k_dense_replace=0,
        kv_lora_rank=27,
        moe_intermediate_size=17,
        n_group=1,
        n_routed_experts=8,
        n_shared_experts=1,
        norm_topk_prob=True,
        num_experts_per_tok=3,
        q_lora_rank=31,
        qk_nope_head_dim=12,
        qk_rope_head_dim=8,
        rms_norm_eps=1e-6,
        rope_interleave=True,
        routed_scaling_factor=1.0,
        topk_group=1,
        v_head_dim=15,
    ),
    mistral_ropes(),
)

MINISTRAL3 = spelled_v5(
    spelled_v4(
        "ministral3",
        "Ministral3ForCausalLM",
        **sizes(48, 3, 4, 2, 66, 131),
        head_dim=14,
        sliding_window=None,
        tie_word_embeddings=True,
    ),
    mistral_ropes(),
)

PHIMOE = spelled_v4(
    "phimoe",
    "PhimoeForCausalLM",
    **sizes(40, 3, 4, 2, 19, 127),
    attention_bias=True,
    input_jitter_noise=0.01,
    lm_head_bias=True,
    num_experts_per_tok=2,
    num_local_experts=7,
    output_router_logits=False,
    rope_scaling=None,
    router_aux_loss_coef=0.0,
    router_jitter_noise=0.2,
    sliding_window=131072,
)

LLAMA4 = spelled_v4(
    "llama4_text",
    "Llama4ForCausalLM",
    **sizes(40, 4, 4, 2, 17, 127),
    attention_bias=False,
    attention_chunk_size=16,
    attn_scale=0.5,
    attn_temperature_tuning=True,
    floor_scale=8,
    for_llm_compressor=False,
    head_dim=12,
    interleave_moe_layer_step=1,
    intermediate_size_mlp=46,
    moe_layers=[0, 2, 3],
    no_rope_layers=[1, 0, 1, 1],
    num_experts_per_tok=1,
    num_local_experts=5,
    output_router_logits=False,
    rope_scaling=None,
    rope_theta=500000.0,
    router_aux_loss_coef=0.001,
    router_jitter_noise=0.0,
    use_qk_norm=True,
)

GRANITE_ATTENTION = spelled_v4(
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    **sizes(48, 3, 4, 2, 66, 131),
    attention_bias=False,
    attention_multiplier=0.4,
    embedding_multiplier=3.0,
    layer_types=["attention"] * 3,
    logits_scaling=1.7,
    mamba_d_head=12,
    mamba_n_heads=8,
    num_experts_per_tok=0,
    num_local_experts=0,
    position_embedding_type="rope",
    residual_multiplier=0.8,
    rope_scaling=None,
    shared_intermediate_size=66,
    tie_word_embeddings=True,
)

STEP: Config = {
    "architectures": ["Step3p7ForConditionalGeneration"],
    "bos_token_id": 0,
    "eos_token_id": 7,
    "image_token_id": 126,
    "model_type": "step3p7",
    "text_config": {
        "attention_other_setting": {
            "attention_type": "sliding_attention",
            "head_dim": 12,
            "num_attention_groups": 2,
            "num_attention_heads": 6,
        },
        "head_dim": 12,
        "hidden_size": 40,
        "intermediate_size": 46,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "full_attention"],
        "max_position_embeddings": 256,
        "model_type": "step3p5",
        "moe_intermediate_size": 17,
        "moe_layers_enum": "1,2,3",
        "moe_num_experts": 7,
        "moe_router_scaling_factor": 2.0,
        "moe_top_k": 3,
        "num_attention_groups": 2,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 1,
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5, 0.5],
        "rms_norm_eps": 1e-5,
        "rope_scaling": {
            "factor": 4.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 32,
            "rope_type": "llama3",
        },
        "rope_theta": [5000000.0, 10000.0, 10000.0, 5000000.0, 10000.0],
        "share_expert_dim": 19,
        "sliding_window": 8,
        "swiglu_limits": [0.0, 0.0, 0.6, 0.5, 0.0],
        "swiglu_limits_shared": [0.8, 0.0, 0.0, 0.7, 0.0],
        "vocab_size": 127,
    },
    "tie_word_embeddings": False,
    "transformers_version": "4.57.1",
    "vision_config": {
        "heads": 2,
        "image_size": 28,
        "layers": 1,
        "model_type": "perception_encoder",
        "patch_size": 14,
        "width": 16,
    },
}

LONGCAT: Config = without(
    spelled_v4(
        "longcat_flash",
        "LongcatFlashForCausalLM",
        **sizes(40, 2, 3, 3, 0, 113),
        attention_bias=False,
        attention_method="MLA",
        expert_ffn_hidden_size=17,
        ffn_hidden_size=46,
        head_dim=6,
        kv_lora_rank=22,
        mla_scale_kv_lora=True,
        mla_scale_q_lora=True,
        moe_topk=3,
        n_routed_experts=6,
        num_layers=2,
        q_lora_rank=26,
        qk_nope_head_dim=14,
        qk_rope_head_dim=6,
        rope_theta=10000000.0,
        routed_scaling_factor=6.0,
        router_bias=False,
        v_head_dim=13,
        zero_expert_num=3,
        zero_expert_type="identity",
    ),
    "intermediate_size",
    "num_hidden_layers",
    "num_key_value_heads",
)

FURTHER: list[Variant] = [
    variant(
        "afmoe",
        "norms after branches; gated attention; rotary embeddings in windowed layers; scaled embeddings",
        AFMOE,
        controls=[{"mup_enabled": False}, {"route_scale": 1.0}, {"sliding_window": 9}],
        router_std=1.2,
    ),
    variant(
        "laguna",
        "a gate for each head; more heads in windowed layers; a rotary embedding for each kind of layer",
        LAGUNA,
        controls=[
            {"moe_routed_scaling_factor": 1.0},
            {"rope_parameters": laguna_ropes(partial_rotary_factor=1.0)},
            {"sliding_window": 9},
        ],
        router_std=1.2,
    ),
    variant(
        "laguna_elements",
        "a gate for each element of a head; yarn in full layers; as many heads everywhere",
        LAGUNA
        | {"gating": "per-element", "num_attention_heads_per_layer": None}
        | {
            "rope_parameters": laguna_ropes(
                factor=4.0, original_max_position_embeddings=32, rope_type="yarn", attention_factor=1.1
            )
        },
        controls=[{"rope_parameters": laguna_ropes()}, {"mlp_layer_types": None, "num_experts_per_tok": 2}],
        router_std=1.2,
    ),
    variant(
        "cohere2_moe",
        "LayerNorm; both branches side by side; sigmoids of the chosen; the mean with shared experts; scaled logits; tied",
        COHERE2_MOE,
        controls=[
            {"logit_scale": 1.0},
            {"norm_topk_prob": False},
            {"prefix_dense_sliding_window_pattern": 2},
            {"shared_expert_combination_strategy": "sum"},
            {"sliding_window": 9},
        ],
        router_std=1.2,
    ),
    variant(
        "cohere2_moe_softmax",
        "the softmax of the chosen; the sum with a shared expert; root mean square norms; a head of its own",
        COHERE2_MOE
        | sizes(44, 4, 4, 4, 19, 101)
        | {"expert_selection_fn": "softmax", "first_k_dense_replace": 0, "num_shared_experts": 1, "rms_norm_eps": 1e-5}
        | {"shared_expert_combination_strategy": "sum", "tie_word_embeddings": False},
        controls=[{"expert_selection_fn": "sigmoid"}, {"sliding_window_pattern": 3}],
        router_std=1.2,
    ),
    variant(
        "flint",
        "sinks in all layers, rotary embeddings in windowed layers only, experts by the sigmoid of their logits beside a shared "
        "one without a gate",
        FLINT,
        controls=[
            {"norm_topk_prob": False},
            {"rope_theta": 100.0},
            {"sliding_window": 5},
        ],
        f32=(r"mlp\.gate\.weight", r"softmax_offset"),
    ),
    variant(
        "mimo_v2_flash",
        "values shorter than keys, and scaled; sinks and twice the key heads in windowed layers; a third of a head turns",
        MIMO,
        controls=[{"attention_value_scale": 1.0}, {"sliding_window": 10}, {"norm_topk_prob": False}],
        router_std=1.2,
    ),
    variant(
        "mistral4",
        "latent attention whose queries grow with the position; softmax scores divided by their sum; stacked experts",
        MISTRAL4,
        controls=[
            {"rope_parameters": mistral_ropes(llama_4_scaling_beta=0.2)},
            {"rope_parameters": mistral_ropes(original_max_position_embeddings=32)},
            {"norm_topk_prob": False},
        ],
    ),
    variant(
        "mistral4_groups",
        "two of four groups of experts by their two best; a scaled sum; queries of one matrix; rotary halves",
        MISTRAL4
        | sizes(40, 2, 4, 4, 46, 101)
        | {"n_group": 4, "num_experts_per_tok": 2, "q_lora_rank": None, "rope_interleave": False}
        | {"routed_scaling_factor": 1.7, "topk_group": 2},
        controls=[{"n_group": 1, "topk_group": 1}, {"rope_interleave": True}, {"routed_scaling_factor": 1.0}],
    ),
    variant(
        "ministral3",
        "queries that grow with the position; yarn; tied",
        MINISTRAL3,
        controls=[
            {"rope_parameters": mistral_ropes(llama_4_scaling_beta=0.2)},
            {"rope_parameters": mistral_ropes(original_max_position_embeddings=32)},
        ],
        tokens=67,
    ),
    variant(
        "phimoe",
        "LayerNorm with biases; biases on attention and the head; each expert weighted against those near it",
        PHIMOE,
        controls=[{"router_jitter_noise": 0.01}, {"num_key_value_heads": 2, "rope_theta": 1000.0}],
        router_std=1.2,
    ),
    variant(
        "llama4_text",
        "weights on the inputs of experts; keys of the own chunk; queries that grow with the position where nothing turns",
        LLAMA4,
        controls=[
            {"attention_chunk_size": 17},
            {"attn_temperature_tuning": False},
            {"no_rope_layers": [1, 1, 1, 1]},
            {"use_qk_norm": False},
        ],
    ),
    variant(
        "granitemoehybrid_attention",
        "attention in all layers and no experts; gates and ups in one matrix; the multipliers of Granite; tied",
        GRANITE_ATTENTION,
        controls=[{"embedding_multiplier": 1.0}, {"logits_scaling": 1.0}, {"residual_multiplier": 1.0}],
    ),
    variant(
        "step3p7",
        "the text of a model that sees images: a gate for each head, limits of activations by layer, more heads in windows",
        STEP,
        controls=[
            {"text_config": {"moe_router_scaling_factor": 1.0}},
            {"text_config": {"rope_scaling": None}},
            {"text_config": {"sliding_window": 9}},
            {"text_config": {"swiglu_limits": None}},
            {"text_config": {"swiglu_limits_shared": None}},
        ],
        norm_mean=0.0,
        router_std=1.2,
        f32=(r"router_bias$",),
    ),
    variant(
        "longcat_flash",
        "two latent attentions in a layer, scaled latents; experts beside two MLPs; choices that return their input",
        LONGCAT,
        controls=[{"kv_lora_rank": 22, "routed_scaling_factor": 1.0}, {"rope_theta": 100.0}],
        router_std=1.2,
        f32=(r"correction_bias$", r"classifier"),
    ),
    variant(
        "longcat_flash_few",
        "tokens without any expert; latent queries as long as the state",
        LONGCAT
        | {"hidden_size": 36, "moe_topk": 2, "n_routed_experts": 3, "num_layers": 3, "q_lora_rank": 36, "vocab_size": 101}
        | {"zero_expert_num": 4},
        controls=[{"routed_scaling_factor": 1.0}],
        router_std=1.2,
    ),
]
