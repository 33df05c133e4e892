"""Tiny checkpoints of Ling: the first and second have no class in transformers (see patched.py)."""

from dataclasses import replace

from derived import derived, drawn_as
from grouped import variant
from patched import FUSED, as_glm, published_as_ling
from variants import Config, Tensor, Variant, sizes, spelled_v4


def tensors(variant: Variant) -> dict[str, Tensor]:
    """The tensors of GLM 4.5 under the names of Ling, with queries, keys and values in one matrix."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, tensor in derived(replace(variant, config=as_glm(variant.config))).items():
        name, shape = published_as_ling(name), tensor.shape
        if name.endswith("expert_bias") and variant.config["model_type"] == "bailing_moe":
            continue
        for part in ("q_proj", "k_proj", "v_proj"):
            if part in name:
                name = name.replace(part, FUSED)
                shape = (shapes.get(name, (0,))[0] + shape[0], *shape[1:])
        shapes[name] = shape
    return {name: drawn_as(variant, name, shapes[name]) for name in sorted(shapes)}


LING_1: Config = spelled_v4(
    "bailing_moe",
    "BailingMoeForCausalLM",
    **sizes(40, 3, 6, 2, 50, 131),
    embedding_dropout=0.0,
    first_k_dense_replace=0,
    head_dim=14,
    moe_intermediate_size=17,
    norm_head=False,
    norm_softmax=False,
    norm_topk_prob=True,
    num_experts=7,
    num_experts_per_tok=3,
    num_shared_experts=2,
    output_dropout=0.0,
    rms_norm_eps=1e-6,
    rope_scaling=None,
    rope_theta=600000,
    use_bias=False,
    use_qkv_bias=False,
    use_rmsnorm=True,
)

LING_2: Config = spelled_v4(
    "bailing_moe_v2",
    "BailingMoeV2ForCausalLM",
    **sizes(40, 3, 4, 2, 50, 127),
    embedding_dropout=0.0,
    first_k_dense_replace=1,
    head_dim=20,
    moe_intermediate_size=17,
    moe_router_enable_expert_bias=True,
    n_group=4,
    norm_topk_prob=True,
    num_experts=8,
    num_experts_per_tok=2,
    num_nextn_predict_layers=0,
    num_shared_experts=1,
    output_dropout=0.0,
    partial_rotary_factor=0.5,
    rms_norm_eps=1e-6,
    rope_scaling=None,
    rope_theta=600000,
    routed_scaling_factor=2.5,
    score_function="sigmoid",
    topk_group=2,
    use_bias=False,
    use_qk_norm=True,
    use_qkv_bias=False,
    use_rmsnorm=True,
)

LING_3: Config = spelled_v4(
    "bailing_hybrid",
    "BailingHybridForCausalLM",
    **sizes(40, 5, 3, 3, 50, 131),
    first_k_dense_replace=1,
    head_dim=12,
    kda_lower_bound=-5.0,
    kda_safe_gate=True,
    kv_lora_rank=22,
    layer_group_size=3,
    layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention"],
    moe_intermediate_size=17,
    moe_router_enable_expert_bias=True,
    n_group=4,
    no_kda_lora=True,
    norm_topk_prob=True,
    num_experts=8,
    num_experts_per_tok=2,
    num_mtp_layers=0,
    num_shared_experts=1,
    pad_token_id=0,
    qk_nope_head_dim=14,
    qk_rope_head_dim=6,
    rope_theta=6000000.0,
    routed_scaling_factor=2.5,
    short_conv_kernel_size=4,
    topk_group=2,
    v_head_dim=16,
)

LING: list[Variant] = [
    variant(
        "bailing_hybrid",
        "decays within a bound for each element of a key, made without latents; latent attention with a gate for each head",
        LING_3,
        controls=[
            {"kda_lower_bound": -2.0},
            {"kda_safe_gate": False},
            {"n_group": 1, "topk_group": 1},
            {"routed_scaling_factor": 1.0},
        ],
        router_std=1.2,
        tokens=67,
    ),
    variant(
        "bailing_hybrid_unbounded",
        "decays without a bound; one group of experts; the last layer of each group of layers is full",
        LING_3
        | sizes(44, 4, 4, 4, 46, 101)
        | {"kda_safe_gate": False, "layer_group_size": 2, "layer_types": None, "n_group": 1, "topk_group": 1}
        | {"first_k_dense_replace": 0},
        controls=[{"kda_safe_gate": True}, {"norm_topk_prob": False}],
        router_std=1.2,
    ),
    variant(
        "bailing_hybrid_limits",
        "limits of activations in the last layers; a latent query",
        LING_3
        | sizes(36, 4, 3, 3, 46, 101)
        | {"expert_swiglu_limit_list": [0, None, 0.8, 0.6, 0], "layer_group_size": 2, "layer_types": None}
        | {"q_lora_rank": 18, "share_expert_swiglu_limit_list": [0, 0, 0, 0.7, 0]},
        controls=[{"expert_swiglu_limit_list": None}, {"share_expert_swiglu_limit_list": None}],
        router_std=1.2,
    ),
    Variant(
        "bailing_moe",
        "queries, keys and values of one matrix; the softmax of all experts; two shared experts",
        LING_1,
        controls=[{"norm_topk_prob": False}, {"rope_theta": 1000}],
        router_std=1.2,
        table=tensors,
    ),
    Variant(
        "bailing_moe_v2",
        "the same with norms on heads, half of each turned; sigmoid scores with a correction, two of four groups",
        LING_2,
        controls=[
            {"n_group": 1, "topk_group": 1},
            {"partial_rotary_factor": 1.0},
            {"routed_scaling_factor": 1.0},
        ],
        router_std=1.2,
        table=tensors,
    ),
]
