"""Tiny checkpoints of families most of whose layers remember a fixed number of values, beyond those of variants.py."""

from grouped import variant
from variants import Config, Variant, sizes, spelled_v4

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

RECURRENT: list[Variant] = [
    variant(
        "lfm2_moe",
        "gated short convolutions and attention; sigmoid scores with a correction bias behind two dense layers; tied",
        LFM2_MOE,
        controls=[{"norm_topk_prob": False}, {"routed_scaling_factor": 2.0}, {"norm_eps": 1e-1}],
        router_std=1.2,
        tokens=67,
    ),
]
