"""Tiny checkpoints of the small models of Gemma 4: a table of what tokens give to layers, and layers that see the keys and
values of earlier ones."""

from derived import derived
from grouped import GEMMA4
from grouped import variant as derived_variant
from variants import Config, Tensor, Variant, sizes, text

KINDS = ["sliding_attention", "sliding_attention", "full_attention"]

TEXT: Config = {key: value for key, value in GEMMA4.items() if key not in ("moe_intermediate_size", "top_k_experts")} | sizes(
    44, 7, 4, 1, 30, 101
) | {
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "hidden_size_per_layer_input": 6,
    "layer_types": KINDS + ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "num_experts": None,
    "num_global_key_value_heads": None,
    "num_kv_shared_layers": 4,
    "use_double_wide_mlp": True,
    "vocab_size_per_layer_input": 103,
}

OUTER: Config = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "audio_config": None,
    "audio_token_id": 94,
    "boa_token_id": 95,
    "boi_token_id": 96,
    "dtype": "bfloat16",
    "eoa_token_index": 97,
    "eoi_token_id": 98,
    "image_token_id": 99,
    "initializer_range": 0.02,
    "model_type": "gemma4",
    "text_config": TEXT
    | sizes(40, 6, 4, 2, 34, 93)
    | {
        "architectures": None,
        "pad_token_id": 0,
        "hidden_size_per_layer_input": 5,
        "layer_types": KINDS + ["full_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": False,
        "vocab_size_per_layer_input": 93,
    },
    "tie_word_embeddings": True,
    "transformers_version": "5.23.0",
    "video_token_id": 100,
    "vision_config": {
        "attention_bias": False,
        "head_dim": 8,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 16,
        "intermediate_size": 20,
        "model_type": "gemma4_vision",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "patch_size": 4,
        "pooling_kernel_size": 2,
        "position_embedding_size": 16,
        "rms_norm_eps": 1e-6,
    },
}


def with_unused(variant: Variant) -> dict[str, Tensor]:
    """The tensors of a model, and those for keys and values of layers that see others': published checkpoints have them."""
    table = derived(variant)
    config = text(variant.config)
    kinds, layers = config["layer_types"], config["num_hidden_layers"]
    for layer in range(layers - config["num_kv_shared_layers"], layers):
        own = kinds.index(kinds[layer])
        for name in ("k_proj", "v_proj", "k_norm"):
            name = f"model.language_model.layers.{{}}.self_attn.{name}.weight"
            table[name.format(layer)] = table[name.format(own)]
    return dict(sorted(table.items()))


MUSE_GLIMMER: Config = {
    "architectures": ["MuseGlimmerForConditionalGeneration"],
    "dtype": "bfloat16",
    "image_token_id": 121,
    "model_type": "muse_glimmer",
    "out_hidden_size": 64,
    "projector_hidden_size": 20,
    "text_config": {
        **sizes(40, 5, 4, 2, 46, 127),
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "final_logit_softcapping": 5.0,
        "head_dim": 14,
        "hidden_activation": "silu",
        "layer_rope_theta": [0, 10000.0, 10000.0, 10000.0, 0],
        "layer_types": ["full_attention"] + ["sliding_attention"] * 3 + ["full_attention"],
        "max_position_embeddings": 256,
        "model_type": "muse_glimmer_text",
        "output_multiplier": 1.5,
        "post_norm_eps": 1e-8,
        "qk_scale_factor": 2.5,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 8,
        "tie_word_embeddings": False,
    },
    "tie_word_embeddings": False,
    "transformers_version": "5.24.0",
    "video_token_id": 120,
    "vision_config": {
        "hidden_size": 16,
        "intermediate_size": 16,
        "merge_size": 2,
        "model_type": "muse_glimmer_vision",
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "patch_size": 2,
        "patch_temporal": 2,
        "pos_emb_height": 4,
        "pos_emb_width": 4,
    },
}

SPARK_TEXT: Config = {key: value for key, value in MUSE_GLIMMER["text_config"].items() if key != "hidden_activation"}
MUSE_SPARK: Config = MUSE_GLIMMER | {
    "architectures": ["MuseSparkForConditionalGeneration"],
    "audio_config": {
        "depths": [1],
        "hidden_sizes": [8],
        "model_type": "muse_spark_audio",
        "num_hidden_layers": 1,
        "out_hidden_size": 40,
        "patch_sizes": [4],
    },
    "audio_token_id": 119,
    "model_type": "muse_spark",
    "text_config": SPARK_TEXT
    | {
        "hidden_act": "silu",
        "mlp_layer_types": ["dense"] + ["sparse"] * 4,
        "model_type": "muse_spark_text",
        "moe_hidden_size": 22,
        "moe_intermediate_size": 17,
        "num_experts_per_tok": 3,
        "num_local_experts": 7,
        "qk_scale_factor": 1.5,
        "residual_gate_temperature": 0.3,
        "routed_scaling_factor": 1.0,
    },
    "vision_config": MUSE_GLIMMER["vision_config"] | {"model_type": "muse_spark_vision"},
}

GEMMA: list[Variant] = [
    derived_variant(
        "muse_spark",
        "the text of a model that sees and hears: shares of state and branches, norms without weights and of scaled states, normed "
        "outputs of heads; experts between two projections, each with a norm behind it",
        MUSE_SPARK,
        controls=[
            {"text_config": {"output_multiplier": 0.7}},
            {"text_config": {"post_norm_eps": 1e-1}},
            {"text_config": {"residual_gate_temperature": 1.0}},
            {"text_config": {"sliding_window": 7}},
        ],
        norm_mean=0.0,
        router_std=1.2,
        f32=(r"correction_bias$", r"residual_gate\.gate$", r"mlp\.gate\.weight$"),
    ),
    derived_variant(
        "muse_glimmer",
        "the text of a model that sees images: normed embeddings, norms without weights for queries and keys, another eps after "
        "branches, gates, capped logits; nothing turns in full layers",
        MUSE_GLIMMER,
        controls=[
            {"text_config": {"final_logit_softcapping": 20.0}},
            {"text_config": {"layer_rope_theta": [10000.0] * 5}},
            {"text_config": {"output_multiplier": 1.0}},
            {"text_config": {"post_norm_eps": 1e-1}},
            {"text_config": {"qk_scale_factor": 1.0}},
            {"text_config": {"sliding_window": 7}},
        ],
        norm_mean=0.0,
    ),
    derived_variant(
        "gemma4_text_inputs",
        "a table of what tokens give to layers, with more rows than tokens; the last four of seven layers see keys of others and have wide MLPs",
        TEXT,
        controls=[{"sliding_window": 9}, {"final_logit_softcapping": None}, {"rms_norm_eps": 1e-2}],
        tokens=83,
        scaled=True,
    ),
    Variant(
        "gemma4_inputs",
        "the same beside a model that sees images, as published: unused keys and values of layers that see those of others",
        OUTER,
        controls=[
            {"text_config": {"num_kv_shared_layers": 1}},
            {"text_config": {"num_kv_shared_layers": 0}},
            {"text_config": {"sliding_window": 9}},
        ],
        table=with_unused,
        tokens=37,
        scaled=True,
    ),
]
