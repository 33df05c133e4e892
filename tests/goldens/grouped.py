"""Tiny checkpoints of families whose attention has grouped heads, beyond those of variants.py.

Their tensors are those that transformers writes (see derived.py).
"""

from typing import Any

from variants import Config, Variant, sizes, spelled_v4, spelled_v5


def variant(name: str, purpose: str, config: Config, **options: Any) -> Variant:
    return Variant(name, purpose, config, derived=True, **options)


MINIMAX_M2 = spelled_v4(
    "minimax_m2",
    "MiniMaxM2ForCausalLM",
    **sizes(40, 3, 6, 2, 19, 151),
    head_dim=20,
    num_experts_per_tok=3,
    num_local_experts=7,
    output_router_logits=False,
    qk_norm_type="per_layer",
    rms_norm_eps=1e-6,
    rope_theta=5000000,
    rotary_dim=10,
    scoring_func="sigmoid",
    shared_intermediate_size=0,
    use_mtp=True,
    use_qk_norm=True,
    use_routing_bias=True,
)

DOTS1 = spelled_v4(
    "dots1",
    "Dots1ForCausalLM",
    **sizes(48, 3, 3, 3, 50, 131),
    attention_bias=False,
    first_k_dense_replace=1,
    moe_intermediate_size=17,
    n_group=1,
    n_routed_experts=7,
    n_shared_experts=2,
    norm_topk_prob=True,
    num_experts_per_tok=3,
    routed_scaling_factor=2.5,
    scoring_func="noaux_tc",
    sliding_window=None,
    topk_group=1,
)

SOLAR_OPEN = spelled_v4(
    "solar_open",
    "SolarOpenForCausalLM",
    **sizes(44, 3, 4, 2, 50, 127),
    attention_bias=False,
    head_dim=14,
    moe_intermediate_size=19,
    n_group=2,
    n_routed_experts=8,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=2,
    partial_rotary_factor=1.0,
    rope_scaling={"factor": 2.0, "original_max_position_embeddings": 64, "type": "yarn"},
    rope_theta=1000000,
    routed_scaling_factor=1.5,
    topk_group=1,
)

EXAONE_MOE = spelled_v4(
    "exaone_moe",
    "ExaoneMoEForCausalLM",
    **sizes(40, 5, 4, 2, 46, 113),
    first_k_dense_replace=1,
    head_dim=12,
    layer_types=["sliding_attention"] * 3 + ["full_attention"] * 2,
    moe_intermediate_size=17,
    n_group=1,
    norm_topk_prob=True,
    num_experts=6,
    num_experts_per_tok=2,
    num_shared_experts=1,
    rope_scaling=None,
    rope_theta=1000000,
    routed_scaling_factor=2.5,
    sliding_window=8,
    sliding_window_pattern="LLLG",
    topk_group=1,
)

HY_V3 = spelled_v4(
    "hy_v3",
    "HYV3ForCausalLM",
    **sizes(40, 3, 6, 3, 46, 139),
    attention_bias=False,
    enable_moe_fp32_combine=False,
    first_k_dense_replace=1,
    head_dim=14,
    moe_intermediate_size=17,
    num_experts=7,
    num_experts_per_tok=3,
    num_shared_experts=1,
    qk_norm=True,
    rope_theta=11158840.0,
    route_norm=True,
    router_scaling_factor=2.826,
)

ERNIE = spelled_v4(
    "ernie4_5_moe",
    "Ernie4_5_MoeForCausalLM",
    **sizes(48, 4, 4, 2, 50, 139),
    moe_intermediate_size=17,
    moe_k=3,
    moe_layer_end_index=-1,
    moe_layer_interval=1,
    moe_layer_start_index=1,
    moe_num_experts=7,
    moe_num_shared_experts=2,
    moe_use_aux_free=True,
    rope_theta=500000.0,
    tie_word_embeddings=True,
    use_bias=False,
)

HUNYUAN = spelled_v4(
    "hunyuan_v1_moe",
    "HunYuanMoEV1ForCausalLM",
    **sizes(40, 3, 4, 2, 21, 127),
    attention_bias=False,
    head_dim=14,
    moe_topk=[2] * 3,
    num_experts=6,
    num_shared_expert=[1] * 3,
    rope_scaling={"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
    use_cla=False,
    use_qk_norm=True,
)

MELLUM = spelled_v5(
    spelled_v4(
        "mellum",
        "MellumForCausalLM",
        **sizes(40, 4, 4, 2, 50, 131),
        attention_bias=False,
        head_dim=12,
        layer_types=["sliding_attention", "full_attention"] * 2,
        mlp_layer_types=["dense"] + ["sparse"] * 3,
        moe_intermediate_size=17,
        norm_topk_prob=True,
        num_experts=6,
        num_experts_per_tok=2,
        sliding_window=8,
    ),
    {
        "full_attention": {
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "rope_theta": 500000.0,
            "rope_type": "yarn",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
)

GEMMA2 = spelled_v4(
    "gemma2",
    "Gemma2ForCausalLM",
    **sizes(40, 4, 4, 2, 50, 127),
    attention_bias=False,
    attn_logit_softcapping=3.0,
    cache_implementation="hybrid",
    final_logit_softcapping=6.0,
    head_dim=14,
    hidden_act="gelu_pytorch_tanh",
    hidden_activation="gelu_pytorch_tanh",
    query_pre_attn_scalar=9,
    rms_norm_eps=1e-6,
    sliding_window=8,
    tie_word_embeddings=True,
)

GEMMA3 = {
    key: value
    for key, value in spelled_v4(
        "gemma3_text",
        "Gemma3ForCausalLM",
        **sizes(44, 4, 4, 1, 54, 131),
        attention_bias=False,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        head_dim=10,
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=10,
        rms_norm_eps=1e-6,
        rope_local_base_freq=10000.0,
        rope_scaling={"factor": 8.0, "rope_type": "linear"},
        rope_theta=1000000.0,
        sliding_window=8,
        sliding_window_pattern=3,
        tie_word_embeddings=True,
    ).items()
    if key != "hidden_act"
}

GEMMA4 = {
    key: value
    for key, value in spelled_v5(
        spelled_v4(
            "gemma4_text",
            "Gemma4ForCausalLM",
            **sizes(40, 4, 4, 2, 30, 127),
            attention_bias=False,
            attention_k_eq_v=True,
            enable_moe_block=True,
            final_logit_softcapping=6.0,
            global_head_dim=20,
            head_dim=10,
            hidden_activation="gelu_pytorch_tanh",
            hidden_size_per_layer_input=0,
            layer_types=["sliding_attention", "full_attention"] * 2,
            moe_intermediate_size=17,
            num_experts=6,
            num_global_key_value_heads=1,
            num_kv_shared_layers=0,
            rms_norm_eps=1e-6,
            sliding_window=8,
            tie_word_embeddings=True,
            top_k_experts=2,
            use_bidirectional_attention="vision",
            use_double_wide_mlp=False,
        ),
        {
            "full_attention": {"partial_rotary_factor": 0.4, "rope_theta": 1000000.0, "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
        },
    ).items()
    if key != "hidden_act"
}

SMOLLM3 = spelled_v4(
    "smollm3",
    "SmolLM3ForCausalLM",
    **sizes(48, 4, 4, 2, 66, 139),
    attention_bias=False,
    layer_types=["full_attention"] * 4,
    max_window_layers=4,
    mlp_bias=False,
    no_rope_layer_interval=4,
    no_rope_layers=[1, 0, 1, 1],
    pad_token_id=2,
    rope_scaling=None,
    rope_theta=5000000.0,
    sliding_window=None,
    tie_word_embeddings=True,
    use_sliding_window=False,
)

GRANITEMOE = spelled_v4(
    "granitemoe",
    "GraniteMoeForCausalLM",
    **sizes(48, 3, 4, 2, 19, 131),
    attention_bias=False,
    attention_multiplier=0.4,
    embedding_multiplier=3.0,
    logits_scaling=1.7,
    num_experts_per_tok=3,
    num_local_experts=7,
    output_router_logits=False,
    residual_multiplier=0.8,
    rms_norm_eps=1e-6,
    rope_scaling=None,
    tie_word_embeddings=True,
)

GROUPED: list[Variant] = [
    variant(
        "minimax_m2",
        "sigmoid scores with a correction, always renormalised; norms over the whole width; half of each head turns",
        MINIMAX_M2,
        controls=[{"rotary_dim": 20}, {"num_experts_per_tok": 2}],
        router_std=1.2,
    ),
    variant(
        "dots1",
        "the experts of DeepSeek V3 without groups; norms on heads; a dense layer first",
        DOTS1,
        controls=[{"norm_topk_prob": False}, {"routed_scaling_factor": 1.0}],
        router_std=1.2,
    ),
    variant(
        "dots1_swa",
        "a window of 8 from layer 2 on; biases on attention; no shared expert",
        DOTS1
        | sizes(40, 3, 4, 2, 46, 101)
        | {"attention_bias": True, "max_window_layers": 2, "n_shared_experts": 1, "sliding_window": 8},
        controls=[{"max_window_layers": 1}, {"sliding_window": 9}],
        router_std=1.2,
    ),
    variant(
        "solar_open",
        "the experts of GLM 4.5 in every layer, in groups; yarn; no norms on heads",
        SOLAR_OPEN,
        controls=[{"n_group": 1}, {"rope_scaling": None}, {"norm_topk_prob": False}],
        tokens=67,
        router_std=1.2,
    ),
    variant(
        "exaone_moe",
        "rotary embeddings in windowed layers only; a dense layer first; norms on heads",
        EXAONE_MOE,
        controls=[{"sliding_window": 9}, {"layer_types": ["full_attention"] * 5}, {"routed_scaling_factor": 1.0}],
        router_std=1.2,
    ),
    variant(
        "hy_v3",
        "sigmoid scores with a correction; a scaled sum; a dense layer first; norms on heads",
        HY_V3,
        controls=[{"router_scaling_factor": 1.0}, {"num_experts_per_tok": 2}],
        router_std=1.2,
    ),
    variant(
        "ernie4_5_moe",
        "ranks of softmax and correction; consecutive rotary pairs; tied; two shared experts",
        ERNIE,
        controls=[{"rope_theta": 10000.0}, {"moe_k": 2}, {"moe_norm_min": 1.0}],
        f32=(r"correction_bias$", r"mlp\.gate\.weight$"),
    ),
    variant(
        "ernie4_5_moe_every_other",
        "experts in every second layer up to an end; a least sum of weights; no shared experts; a head of its own",
        ERNIE
        | sizes(40, 6, 4, 4, 46, 101)
        | {"moe_layer_end_index": 4, "moe_layer_interval": 2, "moe_num_shared_experts": 0}
        | {"moe_norm_min": 0.9, "tie_word_embeddings": False},
        controls=[{"moe_norm_min": 1e-12}],
        f32=(r"correction_bias$", r"mlp\.gate\.weight$"),
    ),
    variant(
        "hunyuan_v1_moe",
        "norms on heads after their rotation; a base of angles stretched by alpha; a shared expert as wide as one",
        HUNYUAN,
        controls=[{"rope_scaling": None}, {"moe_topk": 1}],
        f32=(r"gate\.wg\.weight$",),
    ),
    variant(
        "gemma2",
        "norms after branches, with one plus their weights; capped logits and scores; windowed and full layers in turn",
        GEMMA2,
        controls=[
            {"attn_logit_softcapping": None},
            {"final_logit_softcapping": None},
            {"sliding_window": 9},
            {"query_pre_attn_scalar": 14},
        ],
        tokens=67,
        norm_mean=0.0,
        scaled=True,
    ),
    variant(
        "gemma3_text",
        "a rotary embedding for windowed layers and one, scaled, for every third; norms on heads; no caps",
        GEMMA3,
        controls=[
            {"rope_local_base_freq": 1000000.0},
            {"rope_scaling": None},
            {"sliding_window_pattern": 2},
            {"sliding_window": 9},
        ],
        tokens=67,
        norm_mean=0.0,
        scaled=True,
    ),
    variant(
        "gemma3_text_v5cfg",
        "the config as transformers 5 writes it: nested rotary embeddings",
        spelled_v5(
            GEMMA3 | {"sliding_window_pattern": None}
            | {"layer_types": ["sliding_attention", "full_attention"] * 2},
            {
                "full_attention": {"factor": 8.0, "rope_theta": 1000000.0, "rope_type": "linear"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
            },
        ),
        controls=[{"layer_types": ["full_attention"] * 4}],
        norm_mean=0.0,
        scaled=True,
    ),
    variant(
        "gemma4_text",
        "a dense MLP beside experts, each with norms of its own; full layers with longer heads whose values are keys",
        GEMMA4,
        controls=[
            {"final_logit_softcapping": None},
            {"sliding_window": 9},
            {"rope_parameters": GEMMA4["rope_parameters"] | {"full_attention": {"partial_rotary_factor": 0.8, "rope_theta": 1000000.0, "rope_type": "proportional"}}},
            {"top_k_experts": 1},
        ],
        router_std=10.0,
        scaled=True,
    ),
    variant(
        "gemma4_text_dense",
        "layers without experts; values of their own; three layers, whose last is full in any case",
        GEMMA4
        | sizes(44, 3, 4, 2, 50, 101)
        | {"attention_k_eq_v": False, "enable_moe_block": False, "layer_types": None, "num_experts": None}
        | {"final_logit_softcapping": None, "moe_intermediate_size": None, "top_k_experts": None},
        controls=[{"sliding_window": 9}],
        scaled=True,
    ),
    variant(
        "smollm3",
        "no rotary embedding in layer 1; tied",
        SMOLLM3,
        controls=[{"no_rope_layers": [1] * 4}, {"no_rope_layers": [1, 0, 1, 0]}],
    ),
    variant(
        "granitemoe",
        "multipliers of embeddings, branches, scores and logits; the softmax of the chosen; stacked experts in halves",
        GRANITEMOE,
        controls=[
            {"attention_multiplier": 0.3},
            {"embedding_multiplier": 1.0},
            {"logits_scaling": 1.0},
            {"residual_multiplier": 1.0},
        ],
    ),
    variant(
        "mellum",
        "windowed and full layers with rotary embeddings of their own; a dense layer first; yarn in full layers",
        MELLUM,
        controls=[
            {"sliding_window": 9},
            {"rope_parameters": MELLUM["rope_parameters"] | {"full_attention": {"rope_theta": 500000.0, "rope_type": "default"}}},
            {"norm_topk_prob": False},
        ],
        tokens=67,
    ),
]
