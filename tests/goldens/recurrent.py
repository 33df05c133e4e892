"""Tiny checkpoints of families most of whose layers remember a fixed number of values, beyond those of variants.py."""

from grouped import variant
from variants import Config, Variant, sizes, spelled_v4, spelled_v5

LFM2_MOE: Config = spelled_v4(
    "lfm2_moe",
    "Lfm2MoeForCausalLM",
    **sizes(40, 5, 4, 2, 50, 131),
    conv_L_cache=3,
    conv_bias=False,
    eos_token_id=7,
    layer_types=["conv", "conv", "full_attention", "conv", "full_attention"],
    moe_intermediate_size=15,
    norm_eps=1e-5,
    norm_topk_prob=True,
    num_dense_layers=2,
    num_experts=6,
    num_experts_per_tok=3,
    rope_theta=1000000.0,
    routed_scaling_factor=1.0,
    tie_word_embeddings=True,
    use_expert_bias=True,
)
for absent in ("hidden_act", "rms_norm_eps", "attention_dropout"):
    LFM2_MOE.pop(absent)

GRANITE_HYBRID: Config = spelled_v4(
    "granitemoehybrid",
    "GraniteMoeHybridForCausalLM",
    **sizes(42, 4, 3, 1, 17, 131),
    attention_bias=False,
    attention_multiplier=0.2,
    embedding_multiplier=1.5,
    layer_types=["mamba", "mamba", "attention", "mamba"],
    logits_scaling=0.7,
    mamba_chunk_size=256,
    mamba_conv_bias=True,
    mamba_d_conv=4,
    mamba_d_head=14,
    mamba_d_state=18,
    mamba_expand=2,
    mamba_n_groups=1,
    mamba_n_heads=6,
    mamba_proj_bias=False,
    normalization_function="rmsnorm",
    num_experts_per_tok=3,
    num_local_experts=6,
    position_embedding_type="nope",
    residual_multiplier=0.6,
    rope_scaling=None,
    shared_intermediate_size=23,
    tie_word_embeddings=True,
)

GRANITE_DENSE: Config = spelled_v5(
    GRANITE_HYBRID
    | {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mamba_n_groups": 3,
        "mamba_proj_bias": True,
        "num_experts_per_tok": 0,
        "num_hidden_layers": 3,
        "num_local_experts": 0,
        "position_embedding_type": "rope",
        "tie_word_embeddings": False,
    },
    {"rope_theta": 10000.0, "rope_type": "default"},
)

NEMOTRON_H: Config = spelled_v4(
    "nemotron_h",
    "NemotronHForCausalLM",
    **sizes(40, 7, 4, 2, 50, 131),
    attention_bias=False,
    chunk_size=128,
    conv_kernel=4,
    expand=2,
    head_dim=14,
    hidden_dropout=0.0,
    hybrid_override_pattern="MEM*-ME",
    layer_norm_epsilon=1e-5,
    mamba_head_dim=18,
    mamba_hidden_act="silu",
    mamba_num_heads=6,
    mamba_proj_bias=False,
    mamba_ssm_cache_dtype="float32",
    mlp_bias=False,
    mlp_hidden_act="relu2",
    moe_intermediate_size=17,
    moe_shared_expert_intermediate_size=23,
    n_group=1,
    n_groups=2,
    n_routed_experts=6,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=3,
    num_logits_to_keep=1,
    partial_rotary_factor=1.0,
    rescale_prenorm_residual=True,
    residual_in_fp32=False,
    routed_scaling_factor=2.5,
    sliding_window=None,
    ssm_state_size=20,
    time_step_floor=0.0001,
    time_step_limit=[0.0, {"__float__": "Infinity"}],
    time_step_max=0.1,
    time_step_min=0.001,
    topk_group=1,
    use_bias=False,
    use_conv_bias=True,
    use_mamba_kernels=True,
)
for absent in ("hidden_act", "rms_norm_eps"):
    NEMOTRON_H.pop(absent)

NEMOTRON_LATENT: Config = {
    key: value
    for key, value in NEMOTRON_H.items()
    if key not in ("hybrid_override_pattern", "num_hidden_layers", "time_step_limit")
} | {
    "layers_block_type": ["mamba", "moe", "attention", "moe", "mamba"],
    "moe_latent_size": 22,
    "n_group": 2,
    "use_bias": True,
}

KIMI_LINEAR: Config = spelled_v4(
    "kimi_linear",
    "KimiLinearForCausalLM",
    **sizes(40, 5, 3, 3, 50, 131),
    first_k_dense_replace=2,
    head_dim=14,
    kv_lora_rank=22,
    linear_attn_config={
        "full_attn_layers": [3, 5],
        "head_dim": 12,
        "kda_layers": [1, 2, 4],
        "num_heads": 3,
        "short_conv_kernel_size": 4,
    },
    mla_use_nope=True,
    model_max_length=256,
    moe_intermediate_size=17,
    moe_layer_freq=1,
    moe_renormalize=True,
    moe_router_activation_func="sigmoid",
    num_expert_group=1,
    num_experts=6,
    num_experts_per_token=2,
    num_nextn_predict_layers=0,
    num_shared_experts=1,
    q_lora_rank=None,
    qk_nope_head_dim=14,
    qk_rope_head_dim=6,
    rope_scaling=None,
    routed_scaling_factor=2.446,
    topk_group=1,
    use_grouped_topk=True,
    pad_token_id=0,
    v_head_dim=16,
)
for absent in ("attention_dropout", "max_position_embeddings"):
    KIMI_LINEAR.pop(absent)

LFM3: Config = spelled_v5(
    spelled_v4(
        "lfm3",
        "Lfm3ForCausalLM",
        **sizes(40, 6, 4, 2, 50, 131),
        attention_bias=False,
        conv_L_cache=5,
        conv_bias=False,
        head_dim=12,
        layer_types=["conv", "conv", "full_attention", "conv", "sliding_attention", "full_attention"],
        norm_eps=1e-5,
        sliding_window=8,
        tie_word_embeddings=True,
        use_attention_gate=True,
        use_sandwich_norm=True,
    ),
    {
        "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
)
for absent in ("hidden_act", "rms_norm_eps"):
    LFM3.pop(absent)

LFM3_PLAIN: Config = LFM3 | {
    "attention_bias": True,
    "conv_bias": True,
    "layer_types": ["conv", "sliding_attention", "full_attention"],
    "num_hidden_layers": 3,
    "tie_word_embeddings": False,
    "use_attention_gate": False,
    "use_sandwich_norm": False,
}

RECURRENT: list[Variant] = [
    variant(
        "lfm3",
        "short convolutions, attention to all positions and in a window, with embeddings of their own; gates of heads; norms after "
        "branches; tied",
        LFM3,
        controls=[
            {"norm_eps": 1e-1},
            {"rope_parameters": LFM3["rope_parameters"] | {"full_attention": LFM3["rope_parameters"]["sliding_attention"]}},
            {"sliding_window": 7},
        ],
        tokens=67,
    ),
    variant(
        "lfm3_plain",
        "biases of convolutions and attention; neither gates nor norms after branches",
        LFM3_PLAIN,
        controls=[{"sliding_window": 7}],
    ),
    variant(
        "lfm2_moe",
        "gated short convolutions and attention; sigmoid scores with a correction bias behind two dense layers; tied",
        LFM2_MOE,
        controls=[{"norm_topk_prob": False}, {"routed_scaling_factor": 2.0}, {"norm_eps": 1e-1}],
        router_std=1.2,
        tokens=67,
    ),
    variant(
        "granitemoehybrid",
        "a state space in most layers, attention without rotary embedding, a shared expert without gate, all multipliers; tied",
        GRANITE_HYBRID,
        controls=[
            {"attention_multiplier": 0.7},
            {"embedding_multiplier": 3.0},
            {"logits_scaling": 1.0},
            {"position_embedding_type": "rope"},
            {"residual_multiplier": 1.0},
            {"rms_norm_eps": 1e-1},
        ],
        tokens=67,
    ),
    variant(
        "granitemoehybrid_dense",
        "a state space in groups, with biases; attention with rotary embedding; no experts",
        GRANITE_DENSE,
        controls=[{"position_embedding_type": "nope"}],
    ),
    variant(
        "nemotron_h",
        "one branch in each layer: a state space in groups, experts and MLPs without gates, attention without rotary embedding",
        NEMOTRON_H,
        controls=[
            {"layer_norm_epsilon": 1e-1},
            {"mlp_hidden_act": "relu"},
            {"norm_topk_prob": False},
            {"routed_scaling_factor": 1.0},
        ],
        router_std=1.2,
        tokens=67,
    ),
    variant(
        "nemotron_h_latent",
        "experts that see a projection of the state, in groups; biases of state spaces; the spelling of transformers 5",
        NEMOTRON_LATENT,
        controls=[{"n_group": 1}, {"routed_scaling_factor": 1.0}],
        router_std=1.2,
    ),
    variant(
        "kimi_linear",
        "a decay for each element of a key in most layers, latent attention without rotary embedding in the others",
        KIMI_LINEAR,
        controls=[{"moe_renormalize": False}, {"rms_norm_eps": 1e-1}, {"routed_scaling_factor": 1.0}],
        router_std=1.2,
        tokens=67,
    ),
]
