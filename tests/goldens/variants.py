"""The table of tiny checkpoints: what each one is for, its config, and the tensors that config asks for.

A config here is what a checkpoint of that family carries on the hub, with small numbers in it. Most use the spelling of
transformers 4 (`rope_theta`, `torch_dtype`), because that is what nearly all published checkpoints carry; some use the
spelling that transformers 5 writes (`rope_parameters`, `dtype`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True)
class Tensor:
    """A tensor's shape and the normal distribution its values are drawn from. All but `f32` are stored as bf16."""

    shape: tuple[int, ...]
    std: float
    mean: float = 0.0
    f32: bool = False
    # Rows of different whole numbers below this instead, if it is above 0.
    ids: int = 0
    # These whole numbers instead, if there are any.
    whole: tuple[int, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One checkpoint, and the proof that it tests what it is for."""

    name: str
    purpose: str
    config: Config
    # Each of these config changes, made to the same weights, must move the logits visibly. A fixture in which the
    # option under test makes no difference would pass whatever an implementation does with it.
    controls: list[Config] = field(default_factory=list)
    tokens: int = 37
    files: int = 1
    router_std: float = 2.0
    # How the weights are stored (see quantised.py); the config says so too.
    quantised: str | None = None
    # True if names and shapes are those that transformers writes (see derived.py).
    derived: bool = False
    # The mean of the weights of norms, of derived tensors.
    norm_mean: float = 1.0
    # True if embeddings are multiplied by the square root of their width, and also the head.
    scaled: bool = False
    # Patterns of the names of derived tensors that are stored as f32.
    f32: tuple[str, ...] = (r"correction_bias$", r"expert_bias$")
    # Tokens of a longer text, of which choices of experts and positions are compared.
    long: int = 0
    # The tensors, of a family that has them under names which transformers reads and does not write.
    table: "Callable[[Variant], dict[str, Tensor]] | None" = None


def spelled_v4(model_type: str, architecture: str, **options: Any) -> Config:
    """The keys every published config has, in the spelling of transformers 4."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 256,
        "model_type": model_type,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.44.0",
        "use_cache": True,
    } | options


def spelled_v5(config: Config, rope: Config) -> Config:
    """The same as transformers 5 writes it: `dtype`, `rope_parameters`, and another name for qwen3_moe's `num_experts`."""
    config = dict(config)
    for key in ("torch_dtype", "rope_theta", "rope_scaling"):
        config.pop(key, None)
    if config["model_type"] == "qwen3_moe":
        config["num_local_experts"] = config.pop("num_experts")
        config.pop("max_window_layers", None)
    return config | {
        "dtype": "bfloat16",
        "pad_token_id": None,
        "rope_parameters": rope,
        "transformers_version": "5.23.0",
    }


def sizes(hidden: int, layers: int, heads: int, kv_heads: int, intermediate: int, vocab: int) -> Config:
    return {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": intermediate,
        "vocab_size": vocab,
    }


MIXTRAL = spelled_v4(
    "mixtral",
    "MixtralForCausalLM",
    **sizes(40, 3, 4, 2, 22, 211),
    num_local_experts=6,
    num_experts_per_tok=2,
    output_router_logits=False,
    router_aux_loss_coef=0.02,
    sliding_window=None,
)

QWEN2_MOE = spelled_v4(
    "qwen2_moe",
    "Qwen2MoeForCausalLM",
    **sizes(48, 3, 4, 4, 50, 151),
    decoder_sparse_step=1,
    max_window_layers=2,
    moe_intermediate_size=18,
    norm_topk_prob=False,
    num_experts=7,
    num_experts_per_tok=3,
    output_router_logits=False,
    rms_norm_eps=1e-6,
    rope_theta=1000000.0,
    router_aux_loss_coef=0.001,
    shared_expert_intermediate_size=34,
    sliding_window=32768,
    use_sliding_window=False,
)

QWEN3_MOE = spelled_v4(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    **sizes(40, 3, 6, 2, 54, 173),
    attention_bias=False,
    decoder_sparse_step=1,
    head_dim=14,
    max_window_layers=3,
    mlp_only_layers=[],
    moe_intermediate_size=19,
    norm_topk_prob=True,
    num_experts=7,
    num_experts_per_tok=3,
    output_router_logits=False,
    rms_norm_eps=1e-6,
    rope_scaling=None,
    rope_theta=1000000.0,
    router_aux_loss_coef=0.001,
    sliding_window=None,
    use_sliding_window=False,
)

OLMOE = spelled_v4(
    "olmoe",
    "OlmoeForCausalLM",
    **sizes(40, 3, 4, 4, 21, 127),
    attention_bias=False,
    clip_qkv=None,
    norm_topk_prob=False,
    num_experts=8,
    num_experts_per_tok=3,
    output_router_logits=False,
    pad_token_id=1,
    rope_scaling=None,
    router_aux_loss_coef=0.01,
)

GPT_OSS = spelled_v4(
    "gpt_oss",
    "GptOssForCausalLM",
    **sizes(48, 4, 4, 2, 18, 151),
    attention_bias=True,
    experts_per_token=3,
    head_dim=64,
    initial_context_length=32,
    layer_types=["sliding_attention", "full_attention"] * 2,
    num_experts_per_tok=3,
    num_local_experts=6,
    output_router_logits=False,
    pad_token_id=0,
    rope_scaling={
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "rope_type": "yarn",
        "truncate": False,
    },
    rope_theta=150000,
    router_aux_loss_coef=0.9,
    sliding_window=8,
    swiglu_limit=1.5,
)

DEEPSEEK_V2 = spelled_v4(
    "deepseek_v2",
    "DeepseekV2ForCausalLM",
    **sizes(40, 3, 4, 4, 50, 151),
    attention_bias=False,
    aux_loss_alpha=0.001,
    ep_size=1,
    first_k_dense_replace=1,
    kv_lora_rank=26,
    moe_intermediate_size=19,
    moe_layer_freq=1,
    n_group=1,
    n_routed_experts=7,
    n_shared_experts=2,
    norm_topk_prob=False,
    num_experts_per_tok=3,
    pretraining_tp=1,
    q_lora_rank=None,
    qk_nope_head_dim=12,
    qk_rope_head_dim=6,
    rms_norm_eps=1e-6,
    rope_scaling={
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
    routed_scaling_factor=1.0,
    scoring_func="softmax",
    seq_aux=True,
    topk_group=1,
    topk_method="greedy",
    v_head_dim=13,
)

DEEPSEEK_V3 = spelled_v4(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    **sizes(44, 3, 4, 4, 50, 151),
    attention_bias=False,
    ep_size=1,
    first_k_dense_replace=1,
    kv_lora_rank=33,
    moe_intermediate_size=17,
    moe_layer_freq=1,
    n_group=4,
    n_routed_experts=12,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=3,
    num_nextn_predict_layers=1,
    q_lora_rank=29,
    qk_nope_head_dim=13,
    qk_rope_head_dim=10,
    rms_norm_eps=1e-6,
    rope_scaling={
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
    routed_scaling_factor=2.5,
    scoring_func="sigmoid",
    topk_group=2,
    topk_method="noaux_tc",
    v_head_dim=9,
)

DEEPSEEK_V32 = DEEPSEEK_V3 | sizes(44, 3, 4, 4, 50, 101) | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "index_head_dim": 14,
    "index_n_heads": 9,
    "index_topk": 8,
    "max_position_embeddings": 512,
    "first_k_dense_replace": 2,
    "model_type": "deepseek_v32",
}

GLM_MOE_DSA = spelled_v4(
    "glm_moe_dsa",
    "GlmMoeDsaForCausalLM",
    **sizes(40, 4, 3, 3, 46, 113),
    attention_bias=False,
    first_k_dense_replace=2,
    index_head_dim=20,
    index_n_heads=8,
    index_topk=8,
    index_topk_freq=2,
    index_skip_topk_offset=2,
    indexer_rope_interleave=True,
    kv_lora_rank=27,
    max_position_embeddings=512,
    moe_intermediate_size=17,
    n_group=1,
    n_routed_experts=5,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=2,
    num_nextn_predict_layers=1,
    q_lora_rank=31,
    qk_nope_head_dim=12,
    qk_rope_head_dim=8,
    rope_interleave=True,
    rope_theta=1000000,
    routed_scaling_factor=2.5,
    scoring_func="sigmoid",
    topk_group=1,
    topk_method="noaux_tc",
    v_head_dim=15,
)

GLM4_MOE = spelled_v4(
    "glm4_moe",
    "Glm4MoeForCausalLM",
    **sizes(40, 3, 6, 2, 54, 173),
    attention_bias=True,
    first_k_dense_replace=1,
    head_dim=20,
    moe_intermediate_size=19,
    n_group=1,
    n_routed_experts=7,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=3,
    num_nextn_predict_layers=1,
    partial_rotary_factor=0.5,
    rope_scaling=None,
    routed_scaling_factor=1.5,
    topk_group=1,
    use_qk_norm=True,
)

GLM4_MOE_LITE = spelled_v4(
    "glm4_moe_lite",
    "Glm4MoeLiteForCausalLM",
    **sizes(40, 3, 5, 5, 54, 127),
    attention_bias=False,
    first_k_dense_replace=1,
    kv_lora_rank=25,
    moe_intermediate_size=21,
    n_group=1,
    n_routed_experts=6,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=2,
    num_nextn_predict_layers=1,
    partial_rotary_factor=1.0,
    q_lora_rank=23,
    qk_nope_head_dim=14,
    qk_rope_head_dim=8,
    rope_scaling=None,
    rope_theta=1000000,
    routed_scaling_factor=1.8,
    topk_group=1,
    topk_method="noaux_tc",
    v_head_dim=18,
)

QWEN3_NEXT = spelled_v4(
    "qwen3_next",
    "Qwen3NextForCausalLM",
    **sizes(36, 4, 4, 2, 42, 113),
    attention_bias=False,
    decoder_sparse_step=1,
    full_attention_interval=4,
    head_dim=16,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=10,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_value_head_dim=35,
    mlp_only_layers=[],
    moe_intermediate_size=13,
    norm_topk_prob=True,
    num_experts=6,
    num_experts_per_tok=3,
    output_router_logits=False,
    partial_rotary_factor=0.25,
    rms_norm_eps=1e-6,
    rope_scaling=None,
    rope_theta=10000000,
    router_aux_loss_coef=0.001,
    shared_expert_intermediate_size=17,
)


def qwen3_5(kind: str, architecture: str, text: Config, **outer: Any) -> Config:
    """A model that also sees images, as the hub has it: the language model is one part of its config."""
    text = {
        "attention_bias": False,
        "attn_output_gate": True,
        "bos_token_id": 1,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "full_attention_interval": 4,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 256,
        "mlp_only_layers": [],
        "model_type": f"{kind}_text",
        "mtp_num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [1, 1, 0],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "use_cache": True,
    } | text
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "in_channels": 3,
        "intermediate_size": 20,
        "model_type": kind,
        "num_heads": 2,
        "num_position_embeddings": 16,
        "out_hidden_size": text["hidden_size"],
        "patch_size": 2,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return {
        "architectures": [architecture],
        "image_token_id": text["vocab_size"] - 4,
        "model_type": kind,
        "text_config": text,
        "tie_word_embeddings": False,
        "transformers_version": "5.2.0",
        "video_token_id": text["vocab_size"] - 3,
        "vision_config": vision,
        "vision_end_token_id": text["vocab_size"] - 2,
        "vision_start_token_id": text["vocab_size"] - 1,
    } | outer


QWEN3_5_MOE = qwen3_5(
    "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration",
    {
        "head_dim": 24,
        "hidden_size": 40,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_key_head_dim": 11,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 9,
        "moe_intermediate_size": 15,
        "num_attention_heads": 4,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 2,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 18,
        "vocab_size": 127,
    },
)

QWEN3_5 = qwen3_5(
    "qwen3_5",
    "Qwen3_5ForConditionalGeneration",
    {
        "head_dim": 16,
        "hidden_size": 44,
        "intermediate_size": 50,
        "linear_key_head_dim": 13,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "linear_value_head_dim": 14,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "vocab_size": 109,
    },
    tie_word_embeddings=True,
)

# Families whose routers have a correction bias.
CORRECTED = ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa")

# Families whose norms have factors of one plus the weights.
ONE_PLUS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")

# Families whose queries come with gates of the outputs.
GATED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")

VARIANTS: list[Variant] = [
    Variant(
        "mixtral",
        "the base case: grouped queries, softmax router with renormalised top 2; 67 tokens, so that a chunk of 64 splits",
        MIXTRAL,
        controls=[{"rope_theta": 1000.0}, {"num_experts_per_tok": 1}],
        tokens=67,
    ),
    Variant(
        "mixtral_swa",
        "every layer sees the last 8 keys only; groups of 3",
        MIXTRAL | sizes(72, 3, 6, 2, 11, 97) | {"sliding_window": 8, "rope_theta": 1000000.0, "num_local_experts": 5},
        controls=[{"sliding_window": None}, {"sliding_window": 7}, {"sliding_window": 9}],
        tokens=67,
    ),
    Variant(
        "mixtral_sharded",
        "three files and an index; four layers, eight experts, top 3, one kv head",
        MIXTRAL | sizes(32, 4, 4, 1, 17, 101) | {"num_local_experts": 8, "num_experts_per_tok": 3},
        controls=[{"num_experts_per_tok": 2}],
        files=3,
    ),
    Variant(
        "qwen2_moe",
        "shared expert with its gate, biases on q, k and v, top-k weights not renormalised",
        QWEN2_MOE,
        controls=[{"norm_topk_prob": True}, {"rms_norm_eps": 1e-2}],
    ),
    Variant(
        "qwen2_moe_mlp_only",
        "layers 0, 2, 4 dense by `decoder_sparse_step` 2, layer 3 by `mlp_only_layers`; renormalised weights",
        QWEN2_MOE
        | sizes(40, 6, 4, 2, 26, 101)
        | {"decoder_sparse_step": 2, "mlp_only_layers": [3], "norm_topk_prob": True, "num_experts": 5},
        controls=[{"norm_topk_prob": False}],
    ),
    Variant(
        "qwen2_moe_swa",
        "window of 8 in even layers below `max_window_layers` 3 of 4, full attention elsewhere",
        QWEN2_MOE
        | sizes(40, 4, 4, 2, 50, 101)
        | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3, "num_experts": 5}
        | {"num_experts_per_tok": 2, "shared_expert_intermediate_size": 21, "moe_intermediate_size": 13},
        controls=[{"use_sliding_window": False}, {"max_window_layers": 1}, {"max_window_layers": 4, "sliding_window": 9}],
    ),
    Variant(
        "qwen3_moe",
        "norms on each head of q and k, head_dim 14 where hidden/heads is no integer, renormalised top 3",
        QWEN3_MOE,
        controls=[{"norm_topk_prob": False}, {"rope_theta": 10000.0}],
    ),
    Variant(
        "qwen3_moe_tied",
        "tied embeddings with no `lm_head.weight`; layer 0 dense by `mlp_only_layers`; biases on q, k, v and o",
        QWEN3_MOE
        | sizes(56, 3, 4, 4, 58, 139)
        | {"head_dim": 10, "tie_word_embeddings": True, "mlp_only_layers": [0], "attention_bias": True},
        controls=[{"norm_topk_prob": False}],
    ),
    Variant(
        "qwen3_moe_v5cfg",
        "the config as transformers 5 writes it (`num_local_experts`, `rope_parameters`, `dtype`); a window of 8; top 1",
        spelled_v5(
            QWEN3_MOE
            | {"num_experts": 5, "num_experts_per_tok": 1, "norm_topk_prob": False}
            | {"use_sliding_window": True, "sliding_window": 8},
            {"rope_theta": 500000.0, "rope_type": "default"},
        ),
        controls=[
            {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
            {"use_sliding_window": False},
            {"norm_topk_prob": True},
        ],
    ),
    Variant(
        "olmoe",
        "norms over the whole width of q and k; weights not renormalised",
        OLMOE,
        controls=[{"norm_topk_prob": True}, {"rms_norm_eps": 1e-2}],
    ),
    Variant(
        "olmoe_clip",
        "q, k and v clamped to 0.9 after the norms; two kv heads; renormalised weights",
        OLMOE | sizes(56, 3, 4, 2, 15, 101) | {"clip_qkv": 0.9, "norm_topk_prob": True, "num_experts": 6},
        controls=[{"clip_qkv": None}, {"clip_qkv": 1.0}, {"norm_topk_prob": False}],
    ),
    Variant(
        "gpt_oss",
        "sinks; windowed and full attention in turn; yarn, not truncated; experts stacked, transposed, interleaved and biased",
        GPT_OSS,
        controls=[
            {"layer_types": ["full_attention"] * 4},
            {"layer_types": ["sliding_attention"] * 4},
            {"swiglu_limit": 7.0},
            {"num_experts_per_tok": 2},
            {"rope_scaling": GPT_OSS["rope_scaling"] | {"truncate": True}},
            {"rope_scaling": GPT_OSS["rope_scaling"] | {"attention_factor": 1.0}},
        ],
        tokens=67,
    ),
    Variant(
        "gpt_oss_v5cfg",
        "the config as transformers 5 writes it, with another `swiglu_alpha`; no `layer_types`; yarn, truncated; tied; two files",
        spelled_v5(
            GPT_OSS
            | sizes(40, 3, 4, 4, 13, 101)
            | {"head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2, "tie_word_embeddings": True}
            | {"swiglu_alpha": 1.2, "swiglu_limit": 7.0, "layer_types": None},
            {"factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0, "rope_type": "yarn"},
        ),
        controls=[
            {"swiglu_alpha": 1.702},
            {"layer_types": ["full_attention"] * 3},
            {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
        ],
        files=2,
    ),
    Variant(
        "deepseek_v2",
        "latent attention without a latent query; yarn with mscale; softmax scores, two shared experts, a dense layer first",
        DEEPSEEK_V2,
        controls=[
            {"rope_scaling": None},
            {"rope_scaling": DEEPSEEK_V2["rope_scaling"] | {"mscale_all_dim": 1.0}},
            {"num_experts_per_tok": 2},
        ],
        tokens=67,
    ),
    Variant(
        "deepseek_v2_groups",
        "a latent query; experts in groups, two of three of which a token uses; scaled weights; two files",
        DEEPSEEK_V2
        | sizes(36, 3, 3, 3, 46, 101)
        | {"n_group": 3, "n_routed_experts": 9, "q_lora_rank": 21, "routed_scaling_factor": 2.5, "topk_group": 2}
        | {"n_shared_experts": 1, "rope_scaling": None, "topk_method": "group_limited_greedy", "v_head_dim": 16},
        controls=[{"topk_group": 1}, {"topk_method": "greedy"}, {"routed_scaling_factor": 1.0}],
        files=2,
        router_std=1.2,
    ),
    Variant(
        "deepseek_v3",
        "sigmoid scores with a correction bias; two of four groups; yarn with mscale in the scale of the softmax",
        DEEPSEEK_V3,
        controls=[
            {"rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"mscale_all_dim": 0.5, "mscale": 0.5}},
            {"n_group": 1, "topk_group": 1},
            {"topk_group": 3},
            {"norm_topk_prob": False},
            {"routed_scaling_factor": 1.0},
            {"rope_interleave": False},
        ],
        tokens=67,
        router_std=1.2,
    ),
    Variant(
        "deepseek_v3_v5cfg",
        "the config as transformers 5 writes it: rotary pairs in halves, no latent query, no groups; tied",
        spelled_v5(
            DEEPSEEK_V3
            | sizes(40, 3, 5, 5, 42, 113)
            | {"n_group": 1, "n_routed_experts": 6, "norm_topk_prob": False, "num_experts_per_tok": 2, "topk_group": 1}
            | {"q_lora_rank": None, "rope_interleave": False, "tie_word_embeddings": True, "n_shared_experts": 2}
            | {"head_dim": 10, "qk_head_dim": 23, "first_k_dense_replace": 0},
            {"rope_theta": 10000.0, "rope_type": "default"},
        ),
        controls=[{"rope_interleave": True}, {"norm_topk_prob": True}, {"routed_scaling_factor": 1.0}],
        router_std=1.2,
    ),
    Variant(
        "deepseek_v32",
        "an indexer in every layer selects 8 positions, its rotary pairs in halves; yarn with mscale; groups",
        DEEPSEEK_V32,
        controls=[
            {"index_topk": 7},
            {"index_topk": 256},
            {"rope_scaling": DEEPSEEK_V3["rope_scaling"] | {"mscale_all_dim": 0.5, "mscale": 0.5}},
            {"topk_group": 3},
        ],
        tokens=37,
        router_std=1.2,
        long=400,
    ),
    Variant(
        "glm_moe_dsa",
        "layers 0, 1 and 3 select 8 positions, which 2 shares with 1; the indexer's rotary pairs are neighbours",
        GLM_MOE_DSA,
        controls=[{"index_topk": 9}, {"index_topk": 256}, {"rope_theta": 10000}, {"routed_scaling_factor": 1.0}],
        tokens=37,
        router_std=1.2,
        long=400,
    ),
    Variant(
        "glm_moe_dsa_v5cfg",
        "the config as transformers 5 writes it: `indexer_types`, `mlp_layer_types`, `layer_types`; tied; yarn",
        spelled_v5(
            GLM_MOE_DSA
            | sizes(36, 3, 4, 4, 42, 101)
            | {"index_head_dim": 8, "index_n_heads": 7, "index_topk": 11, "kv_lora_rank": 24, "q_lora_rank": 22}
            | {"index_topk_freq": None, "index_skip_topk_offset": None, "first_k_dense_replace": 2}
            | {"indexer_types": ["full", "shared", "full"], "layer_types": ["indexed_attention"] * 3}
            | {"mlp_layer_types": ["dense", "sparse", "sparse"], "tie_word_embeddings": True, "head_dim": 8},
            {
                "factor": 4.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
                "rope_type": "yarn",
            },
        ),
        controls=[{"index_topk": 10}, {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}],
        router_std=1.2,
    ),
    Variant(
        "glm4_moe",
        "half of each head turns; biases on q, k and v, norms on heads; sigmoid scores with a correction bias",
        GLM4_MOE,
        controls=[{"partial_rotary_factor": 1.0}, {"routed_scaling_factor": 1.0}, {"norm_topk_prob": False}],
        tokens=67,
        router_std=1.2,
    ),
    Variant(
        "glm4_moe_v5cfg",
        "the config as transformers 5 writes it; no biases, no norms on heads, groups; two dense layers first",
        spelled_v5(
            GLM4_MOE
            | sizes(48, 4, 4, 2, 50, 101)
            | {"attention_bias": False, "head_dim": 12, "use_qk_norm": False, "first_k_dense_replace": 2}
            | {"n_group": 2, "n_routed_experts": 8, "num_experts_per_tok": 2, "partial_rotary_factor": None},
            {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
        ),
        controls=[
            {"rope_parameters": {"partial_rotary_factor": 1.0, "rope_theta": 10000.0, "rope_type": "default"}},
            {"n_group": 1},
        ],
        router_std=1.2,
    ),
    Variant(
        "glm4_moe_odd",
        "5 of 14 elements of a head turn: two pairs, and the fifth with the one behind it",
        GLM4_MOE
        | sizes(36, 2, 4, 2, 42, 97)
        | {"attention_bias": False, "head_dim": 14, "n_routed_experts": 5, "num_experts_per_tok": 2}
        | {"partial_rotary_factor": 0.4, "rope_theta": 500.0},
        controls=[{"partial_rotary_factor": 0.3}, {"partial_rotary_factor": 0.45}],
        router_std=1.2,
    ),
    Variant(
        "glm4_moe_lite",
        "latent attention of five heads; sigmoid scores with a correction bias; values longer than keys without rope",
        GLM4_MOE_LITE,
        controls=[{"rope_theta": 10000}, {"routed_scaling_factor": 1.0}, {"rope_interleave": False}],
        router_std=1.2,
    ),
    Variant(
        "qwen3_next",
        "three gated delta nets and an attention with a gate, a quarter of each head turns; a shared expert with a gate",
        QWEN3_NEXT,
        controls=[
            {"partial_rotary_factor": 0.5},
            {"norm_topk_prob": False},
            {"linear_num_key_heads": 4, "linear_key_head_dim": 5},
        ],
        tokens=83,
    ),
    Variant(
        "qwen3_5_moe",
        "the text of a model that sees images: stacked experts, separate inputs of delta nets, each of three value heads to a key head",
        QWEN3_5_MOE,
        controls=[{"text_config": {"num_experts_per_tok": 2}}, {"text_config": {"rms_norm_eps": 1e-2}}],
        tokens=67,
    ),
    Variant(
        "qwen3_5",
        "the dense text of a model that sees images; tied; a layer of four with attention, by its interval",
        QWEN3_5,
        controls=[
            {"text_config": {"rms_norm_eps": 1e-2}},
            {"text_config": {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 1e4, "rope_type": "default"}}},
        ],
        tokens=67,
    ),
    Variant(
        "llama",
        "llama3 rope scaling, with frequencies in all three of its bands",
        spelled_v4(
            "llama",
            "LlamaForCausalLM",
            **sizes(48, 3, 3, 1, 90, 157),
            attention_bias=False,
            eos_token_id=[2, 5, 9],
            mlp_bias=False,
            pretraining_tp=1,
            rope_scaling={
                "factor": 8.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 64,
                "rope_type": "llama3",
            },
        ),
        controls=[{"rope_scaling": None}, {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}],
        tokens=67,
    ),
    Variant(
        "llama_linear_tied",
        "linear rope scaling, tied embeddings, transformers 5 spelling; biases on attention and MLP",
        spelled_v5(
            spelled_v4(
                "llama",
                "LlamaForCausalLM",
                **sizes(40, 3, 4, 2, 66, 131),
                attention_bias=True,
                head_dim=10,
                mlp_bias=True,
                pretraining_tp=1,
                tie_word_embeddings=True,
            ),
            {"factor": 4.0, "rope_theta": 10000.0, "rope_type": "linear"},
        ),
        controls=[{"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}],
    ),
    Variant(
        "mistral",
        "window of 8; explicit head_dim 18 where hidden/heads is 10",
        spelled_v4(
            "mistral",
            "MistralForCausalLM",
            **sizes(40, 3, 4, 2, 50, 211),
            head_dim=18,
            sliding_window=8,
        ),
        controls=[{"sliding_window": None}, {"sliding_window": 7}],
        tokens=67,
    ),
    Variant(
        "qwen2",
        "biases on q, k and v; a window in the config that `use_sliding_window` switches off; tied, as the small ones are",
        spelled_v4(
            "qwen2",
            "Qwen2ForCausalLM",
            **sizes(56, 3, 4, 2, 74, 151),
            max_window_layers=1,
            rms_norm_eps=1e-6,
            rope_theta=1000000.0,
            sliding_window=8,
            tie_word_embeddings=True,
            use_sliding_window=False,
        ),
        controls=[{"use_sliding_window": True}, {"rope_theta": 10000.0}],
    ),
    Variant(
        "qwen2_swa",
        "window of 8 in layers from `max_window_layers` 2 on; full attention before",
        spelled_v4(
            "qwen2",
            "Qwen2ForCausalLM",
            **sizes(40, 4, 5, 1, 50, 113),
            max_window_layers=2,
            rms_norm_eps=1e-6,
            sliding_window=8,
            use_sliding_window=True,
        ),
        controls=[{"use_sliding_window": False}, {"max_window_layers": 3}, {"max_window_layers": 0}],
    ),
    Variant(
        "qwen3",
        "norms on each head of q and k, head_dim 12 where hidden/heads is 18",
        spelled_v4(
            "qwen3",
            "Qwen3ForCausalLM",
            **sizes(72, 3, 4, 2, 50, 113),
            attention_bias=False,
            head_dim=12,
            max_window_layers=3,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=1000000.0,
            sliding_window=None,
            use_sliding_window=False,
        ),
        controls=[{"rope_theta": 10000.0}, {"rms_norm_eps": 1e-2}],
    ),
    Variant(
        "qwen3_swa",
        "explicit `layer_types`, windowed and full in turn; tied; transformers 5 spelling",
        spelled_v5(
            spelled_v4(
                "qwen3",
                "Qwen3ForCausalLM",
                **sizes(40, 3, 3, 3, 50, 113),
                attention_bias=False,
                head_dim=16,
                layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                max_window_layers=0,
                rms_norm_eps=1e-6,
                sliding_window=8,
                tie_word_embeddings=True,
                use_sliding_window=True,
            ),
            {"rope_theta": 10000.0, "rope_type": "default"},
        ),
        controls=[{"layer_types": ["full_attention"] * 3}, {"layer_types": ["sliding_attention"] * 3}],
    ),
    Variant(
        "gpt_oss_mxfp4",
        "experts in mxfp4, read in place; three groups of 32 columns",
        GPT_OSS
        | sizes(96, 2, 4, 2, 32, 101)
        | {"head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2}
        | {"layer_types": ["sliding_attention", "full_attention"]}
        | {"quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"}},
        controls=[{"swiglu_limit": 7.0}],
        quantised="mxfp4",
    ),
    Variant(
        "deepseek_v3_fp8",
        "fp8 with f32 scales of 128 x 128, smaller at the edges, also in the matrices of latents",
        DEEPSEEK_V3
        | sizes(136, 2, 4, 4, 150, 101)
        | {"kv_lora_rank": 130, "q_lora_rank": 29, "n_routed_experts": 8, "num_experts_per_tok": 2}
        | {"qk_nope_head_dim": 26, "v_head_dim": 31}
        | {"quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}},
        controls=[{"num_experts_per_tok": 3}],
        quantised="fp8",
    ),
    Variant(
        "qwen3_moe_fp8",
        "fp8 with bf16 scales of 128 x 128",
        QWEN3_MOE
        | sizes(136, 2, 6, 2, 54, 101)
        | {"moe_intermediate_size": 37, "head_dim": 24}
        | {"quantization_config": {"activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"], "quant_method": "fp8", "weight_block_size": [128, 128]}},
        controls=[{"rope_theta": 10000.0}],
        quantised="fp8_bf16",
    ),
    Variant(
        "deepseek_v3_int4",
        "experts in int4, in groups of 32, with bf16 scales, as Kimi K2 Thinking",
        DEEPSEEK_V3
        | sizes(96, 2, 4, 4, 50, 101)
        | {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}
        | {
            "quantization_config": {
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"actorder": None, "group_size": 32, "num_bits": 4, "strategy": "group", "symmetric": True, "type": "int"}}},
                "format": "pack-quantized",
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|down)_proj.*"],
                "quant_method": "compressed-tensors",
            }
        },
        controls=[{"num_experts_per_tok": 3}],
        quantised="int4",
    ),
    Variant(
        "qwen3_moe_nvfp4",
        "nvfp4 as modelopt writes it, with scales of activations beside",
        QWEN3_MOE
        | sizes(80, 2, 6, 2, 54, 101)
        | {"moe_intermediate_size": 48, "head_dim": 16}
        | {"quantization_config": {"ignore": ["lm_head"], "quant_algo": "NVFP4", "quant_method": "modelopt"}},
        controls=[{"rope_theta": 10000.0}],
        quantised="nvfp4",
    ),
    Variant(
        "qwen3_moe_awq",
        "AWQ in groups of 32, with zero points; routers and head stay as they are",
        QWEN3_MOE
        | sizes(96, 2, 6, 2, 54, 101)
        | {"moe_intermediate_size": 64, "head_dim": 16}
        | {"quantization_config": {"bits": 4, "group_size": 32, "modules_to_not_convert": ["mlp.gate"], "quant_method": "awq", "version": "gemm", "zero_point": True}},
        controls=[{"rope_theta": 10000.0}],
        quantised="awq",
    ),
    Variant(
        "qwen3_moe_gptq",
        "experts in symmetric GPTQ, in groups of 64 of which the last has 32 columns",
        QWEN3_MOE
        | sizes(96, 2, 6, 2, 54, 101)
        | {"moe_intermediate_size": 40, "head_dim": 16}
        | {"quantization_config": {"bits": 4, "checkpoint_format": "gptq", "desc_act": False, "dynamic": {"-:.*mlp\\.gate$": {}, "-:.*self_attn.*": {}}, "group_size": 64, "lm_head": False, "pack_dtype": "int32", "quant_method": "gptq", "sym": True}},
        controls=[{"rope_theta": 10000.0}],
        quantised="gptq",
    ),
    Variant(
        "qwen3_gptq",
        "GPTQ with zero points less one, in groups of 128 of which the last has 32 columns",
        spelled_v4(
            "qwen3",
            "Qwen3ForCausalLM",
            **sizes(160, 2, 4, 2, 136, 101),
            attention_bias=False,
            head_dim=32,
            max_window_layers=2,
            rms_norm_eps=1e-6,
            rope_scaling=None,
            rope_theta=1000000.0,
            sliding_window=None,
            use_sliding_window=False,
        )
        | {"quantization_config": {"bits": 4, "checkpoint_format": "gptq", "desc_act": False, "group_size": 128, "quant_method": "gptq", "sym": False}},
        controls=[{"rope_theta": 10000.0}],
        quantised="gptq_asymmetric",
    ),
    Variant(
        "qwen3_moe_gptq_act_order",
        "GPTQ whose columns lie in groups in any order, with zero points less one",
        QWEN3_MOE
        | sizes(96, 2, 6, 2, 54, 101)
        | {"moe_intermediate_size": 64, "head_dim": 16}
        | {"quantization_config": {"bits": 4, "desc_act": True, "group_size": 32, "quant_method": "gptq", "sym": False}},
        controls=[{"rope_theta": 10000.0}],
        quantised="gptq_act_order",
    ),
    Variant(
        "deepseek_v3_gptq_v2",
        "the second version of GPTQ, columns in any order, also in the matrices of latents",
        DEEPSEEK_V3
        | sizes(96, 2, 4, 4, 64, 101)
        | {"kv_lora_rank": 64, "q_lora_rank": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        | {"qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 32}
        | {"quantization_config": {"bits": 4, "checkpoint_format": "gptq_v2", "desc_act": True, "group_size": 32, "quant_method": "gptq", "sym": False}},
        controls=[{"num_experts_per_tok": 3}],
        quantised="gptq_v2",
    ),
]


def text(config: Config) -> Config:
    """The config of the language model."""
    return config.get("text_config", config)


def changed(config: Config, control: Config) -> Config:
    """The config with entries replaced, within `text_config` too."""
    inner = {key: value | control[key] for key, value in config.items() if key == "text_config" and key in control}
    return config | control | inner


def experts(config: Config) -> int:
    return config.get("num_local_experts") or config.get("num_experts") or config.get("n_routed_experts") or 0


def moe_layers(config: Config) -> list[int]:
    """The layers that route, by the rule of the qwen families, which holds for the others with its defaults."""
    if not experts(config):
        return []
    if config.get("mlp_layer_types"):
        return [layer for layer, kind in enumerate(config["mlp_layer_types"]) if kind == "sparse"]
    if "first_k_dense_replace" in config:
        return list(range(config["first_k_dense_replace"], config["num_hidden_layers"]))
    dense, step = config.get("mlp_only_layers") or [], config.get("decoder_sparse_step", 1)
    return [i for i in range(config["num_hidden_layers"]) if i not in dense and (i + 1) % step == 0]


def kinds(config: Config) -> list[str]:
    """The kind of each layer's mixer in families with delta nets; attention in others."""
    layers = config["num_hidden_layers"]
    if "linear_num_key_heads" not in config:
        return ["full_attention"] * layers
    every = config["full_attention_interval"]
    by_interval = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(layers)]
    return config.get("layer_types") or by_interval


def has_indexer(config: Config, layer: int) -> bool:
    """True if a layer selects the positions that it sees, instead of sharing those of an earlier layer."""
    if config["model_type"] == "deepseek_v32":
        return True
    if config.get("indexer_types"):
        return config["indexer_types"][layer] == "full"
    return max(layer - config["index_skip_topk_offset"] + 1, 0) % config["index_topk_freq"] == 0


def tensors(variant: Variant) -> dict[str, Tensor]:
    """Every tensor under the name, and of the shape, that the hub gives it.

    A matrix's values have a deviation of `gain / sqrt(in)`, so that normalised inputs give outputs with a deviation of
    `gain`. The gains make attention attend (scores of deviation 1 to 2), routers choose clearly, each branch weigh about as
    much as the residual stream, and the logits reach 3 to 6.
    """
    config = text(variant.config)
    kind: str = config["model_type"]
    hidden: int = config["hidden_size"]
    head_dim: int = config.get("head_dim") or hidden // config["num_attention_heads"]
    q_width = config["num_attention_heads"] * head_dim
    kv_width = config["num_key_value_heads"] * head_dim
    tied: bool = config.get("tie_word_embeddings", False)
    wrapped = "text_config" in variant.config
    model = "model.language_model" if wrapped else "model"
    branch_gain = 0.8 if tied else 1.2
    table: dict[str, Tensor] = {}

    def linear(name: str, rows: int, columns: int, gain: float, bias: bool = False) -> None:
        table[f"{name}.weight"] = Tensor((rows, columns), gain / columns**0.5)
        if bias:
            table[f"{name}.bias"] = Tensor((rows,), 0.3)

    def stacked(name: str, columns: int, rows: int, gain: float) -> None:
        table[name] = Tensor((experts(config), columns, rows), gain / columns**0.5)
        table[f"{name}_bias"] = Tensor((experts(config), rows), 0.3)

    def norm(name: str, width: int) -> None:
        table[f"{name}.weight"] = Tensor((width,), 0.2, mean=0.0 if kind in ONE_PLUS else 1.0)

    def mlp(name: str, width: int, parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> None:
        bias = config.get("mlp_bias", False)
        gate, up, down = parts
        linear(f"{name}.{gate}", width, hidden, 1.4, bias)
        linear(f"{name}.{up}", width, hidden, 1.4, bias)
        linear(f"{name}.{down}", hidden, width, branch_gain, bias)

    def latent_attention(name: str) -> None:
        heads, rank, q_rank = config["num_attention_heads"], config["kv_lora_rank"], config["q_lora_rank"]
        nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
        if q_rank is None:
            linear(f"{name}.q_proj", heads * (nope + rope), hidden, 1.4)
        else:
            linear(f"{name}.q_a_proj", q_rank, hidden, 1.0)
            norm(f"{name}.q_a_layernorm", q_rank)
            linear(f"{name}.q_b_proj", heads * (nope + rope), q_rank, 1.4)
        linear(f"{name}.kv_a_proj_with_mqa", rank + rope, hidden, 1.4)
        norm(f"{name}.kv_a_layernorm", rank)
        linear(f"{name}.kv_b_proj", heads * (nope + value), rank, 1.4)
        linear(f"{name}.o_proj", hidden, heads * value, branch_gain)

    def delta_net(name: str) -> None:
        heads, key_heads = config["linear_num_value_heads"], config["linear_num_key_heads"]
        keys, values = key_heads * config["linear_key_head_dim"], heads * config["linear_value_head_dim"]
        apart = kind != "qwen3_next"
        if apart:
            linear(f"{name}.in_proj_qkv", 2 * keys + values, hidden, 1.4)
            linear(f"{name}.in_proj_z", values, hidden, 1.4)
            linear(f"{name}.in_proj_b", heads, hidden, 1.0)
            linear(f"{name}.in_proj_a", heads, hidden, 1.0)
        else:
            linear(f"{name}.in_proj_qkvz", 2 * keys + 2 * values, hidden, 1.4)
            linear(f"{name}.in_proj_ba", 2 * heads, hidden, 1.0)
        table[f"{name}.conv1d.weight"] = Tensor((2 * keys + values, 1, config["linear_conv_kernel_dim"]), 0.6)
        table[f"{name}.A_log"] = Tensor((heads,), 0.7, mean=-2.0, f32=apart)
        table[f"{name}.dt_bias"] = Tensor((heads,), 0.5)
        table[f"{name}.norm.weight"] = Tensor((config["linear_value_head_dim"],), 0.2, mean=1.0, f32=apart)
        linear(f"{name}.out_proj", hidden, values, 2.5 * branch_gain)

    def indexer(name: str) -> None:
        heads, dim = config["index_n_heads"], config["index_head_dim"]
        linear(f"{name}.wq_b", heads * dim, config["q_lora_rank"], 1.4)
        linear(f"{name}.wk", dim, hidden, 1.4)
        norm(f"{name}.k_norm", dim)
        table[f"{name}.k_norm.bias"] = Tensor((dim,), 0.3)
        linear(f"{name}.weights_proj", heads, hidden, 1.4)

    # A tied embedding is also the head, which wants a deviation of gain / sqrt(hidden), so that the residual stream begins
    # small and its branches must be smaller too: else a model only ever repeats its last token, or never heeds it.
    logit_gain = 1.3
    table[f"{model}.embed_tokens.weight"] = Tensor((config["vocab_size"], hidden), logit_gain / hidden**0.5 if tied else 1.0)
    if not tied:
        linear("lm_head", config["vocab_size"], hidden, logit_gain)
    norm(f"{model}.norm", hidden)

    for layer in range(config["num_hidden_layers"]):
        at = f"{model}.layers.{layer}"
        norm(f"{at}.input_layernorm", hidden)
        norm(f"{at}.post_attention_layernorm", hidden)

        all_biased: bool = config.get("attention_bias", False)
        qkv_biased = all_biased or kind in ("qwen2", "qwen2_moe")
        if "kv_lora_rank" in config:
            latent_attention(f"{at}.self_attn")
            if "index_topk" in config and has_indexer(config, layer):
                indexer(f"{at}.self_attn.indexer")
        elif kinds(config)[layer] == "linear_attention":
            delta_net(f"{at}.linear_attn")
        else:
            linear(f"{at}.self_attn.q_proj", q_width * (2 if kind in GATED else 1), hidden, 1.4, qkv_biased)
            linear(f"{at}.self_attn.k_proj", kv_width, hidden, 1.4, qkv_biased)
            linear(f"{at}.self_attn.v_proj", kv_width, hidden, 1.4, qkv_biased)
            linear(f"{at}.self_attn.o_proj", hidden, q_width, branch_gain, all_biased and kind != "glm4_moe")
        if kind in ("qwen3", "qwen3_moe") or (kind in GATED and kinds(config)[layer] == "full_attention") or config.get("use_qk_norm"):
            norm(f"{at}.self_attn.q_norm", head_dim)
            norm(f"{at}.self_attn.k_norm", head_dim)
        if kind == "olmoe":
            norm(f"{at}.self_attn.q_norm", q_width)
            norm(f"{at}.self_attn.k_norm", kv_width)

        if layer not in moe_layers(config):
            mlp(f"{at}.mlp", config["intermediate_size"])
            continue
        width = config.get("moe_intermediate_size") or config["intermediate_size"]
        if kind == "gpt_oss":
            table[f"{at}.self_attn.sinks"] = Tensor((config["num_attention_heads"],), 1.0)
            linear(f"{at}.mlp.router", experts(config), hidden, variant.router_std, True)
            stacked(f"{at}.mlp.experts.gate_up_proj", hidden, 2 * width, 1.4)
            stacked(f"{at}.mlp.experts.down_proj", width, hidden, branch_gain)
            continue
        block, parts = f"{at}.mlp", ("gate_proj", "up_proj", "down_proj")
        if kind == "mixtral":
            block, parts = f"{at}.block_sparse_moe", ("w1", "w3", "w2")
        linear(f"{block}.gate", experts(config), hidden, variant.router_std)
        if kind == "qwen3_5_moe_text":
            count = experts(config)
            table[f"{block}.experts.gate_up_proj"] = Tensor((count, 2 * width, hidden), 1.4 / hidden**0.5)
            table[f"{block}.experts.down_proj"] = Tensor((count, hidden, width), branch_gain / width**0.5)
        for expert in range(experts(config) if kind != "qwen3_5_moe_text" else 0):
            mlp(f"{block}.experts.{expert}", width, parts)
        if kind in CORRECTED:
            table[f"{block}.gate.e_score_correction_bias"] = Tensor((experts(config),), 0.15, f32=True)
        if "n_shared_experts" in config:
            mlp(f"{block}.shared_experts", width * config["n_shared_experts"])
        if "shared_expert_intermediate_size" in config:
            mlp(f"{block}.shared_expert", config["shared_expert_intermediate_size"])
            linear(f"{block}.shared_expert_gate", 1, hidden, 1.0)
    if wrapped:
        # Tensors that the language model does not use.
        table["model.visual.blocks.0.norm1.weight"] = Tensor((16,), 0.2)
        table["model.visual.patch_embed.proj.weight"] = Tensor((16, 3, 2, 2, 2), 0.2)
        table["mtp.layers.0.mlp.gate_proj.weight"] = Tensor((7, hidden), 0.2)
        table["mtp.norm.weight"] = Tensor((hidden,), 0.2)
    return table
