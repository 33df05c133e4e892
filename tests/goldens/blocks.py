"""Tiny checkpoints of families whose attention has grouped heads and selects blocks of positions."""

from grouped import variant
from variants import Config, Variant, sizes, spelled_v4, spelled_v5

SPARSE: Config = {
    "sparse_attention_freq": [0, 1, 1, 1],
    "sparse_block_size": 5,
    "sparse_disable_index_value": [0, 1, 1, 1],
    "sparse_index_dim": 10,
    "sparse_init_block": 0,
    "sparse_local_block": 1,
    "sparse_num_index_heads": 4,
    "sparse_score_type": "max",
    "sparse_topk_blocks": 3,
    "use_sparse_attention": True,
}
TEXT: Config = spelled_v4(
    "minimax_m3_vl_text",
    "MiniMaxM3SparseForCausalLM",
    **sizes(40, 4, 8, 4, 17, 131),
    dense_intermediate_size=46,
    head_dim=12,
    hidden_act="swigluoai",
    moe_layer_freq=[0, 1, 1, 1],
    n_shared_experts=1,
    num_experts_per_tok=2,
    num_local_experts=6,
    partial_rotary_factor=0.5,
    qk_norm_type="per_head",
    rms_norm_eps=1e-6,
    rope_theta=5000000,
    rotary_dim=6,
    routed_scaling_factor=2.0,
    scoring_func="sigmoid",
    shared_intermediate_size=19,
    sparse_attention_config=SPARSE,
    swiglu_alpha=1.702,
    swiglu_limit=1.5,
    use_gemma_norm=True,
    use_qk_norm=True,
    use_routing_bias=True,
)
MINIMAX_M3: Config = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "image_token_index": 120,
    "model_type": "minimax_m3_vl",
    "projector_hidden_size": 12,
    "text_config": TEXT,
    "tie_word_embeddings": False,
    "transformers_version": "5.23.0",
    "video_token_index": 121,
    "vision_config": {
        "hidden_size": 16,
        "image_size": 28,
        "intermediate_size": 16,
        "model_type": "minimax_m3_vl_vision",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 1,
        "patch_size": 2,
    },
}

HUB_ONLY = ("moe_layer_freq", "sparse_attention_config", "partial_rotary_factor", "n_shared_experts")
V5: Config = spelled_v5(
    {key: value for key, value in TEXT.items() if key not in HUB_ONLY},
    {"partial_rotary_factor": 0.4, "rope_theta": 1000000.0, "rope_type": "default"},
) | {
    **sizes(36, 3, 6, 3, 15, 101),
    "head_dim": 10,
    "hidden_act": "silu",
    "index_block_size": 3,
    "index_head_dim": 8,
    "index_local_blocks": 2,
    "index_n_heads": 2,
    "index_topk_blocks": 4,
    "layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse"],
    "mlp_layer_types": ["sparse", "dense", "sparse"],
    "num_local_experts": 5,
    "rotary_dim": 4,
    "routed_scaling_factor": 1.4,
    "swiglu_alpha": 1.2,
}

BLOCKS: list[Variant] = [
    variant(
        "minimax_m3",
        "the text of a model that sees images: blocks of 5 positions, three for each of four index heads; a shared expert, "
        "limits of activations everywhere",
        MINIMAX_M3,
        controls=[
            {"text_config": {"partial_rotary_factor": 1.0}},
            {"text_config": {"routed_scaling_factor": 1.0}},
            {"text_config": {"sparse_attention_config": SPARSE | {"sparse_block_size": 4}}},
            {"text_config": {"sparse_attention_config": SPARSE | {"sparse_local_block": 3}}},
            {"text_config": {"sparse_attention_config": SPARSE | {"sparse_topk_blocks": 2}}},
            {"text_config": {"swiglu_alpha": 1.0}},
            {"text_config": {"swiglu_limit": 0.7}},
        ],
        router_std=1.2,
        norm_mean=0.0,
        tokens=67,
    ),
    variant(
        "minimax_m3_v5cfg",
        "the config as transformers 5 writes it: two index heads for six query heads and three of keys, the last two blocks "
        "whatever their scores",
        MINIMAX_M3 | {"text_config": V5},
        controls=[
            {"text_config": {"index_block_size": 4}},
            {"text_config": {"index_local_blocks": 0}},
            {"text_config": {"index_topk_blocks": 3}},
        ],
        router_std=1.2,
        norm_mean=0.0,
        tokens=53,
        long=250,
    ),
    variant(
        "minimax_m3_far",
        "no block is seen whatever its score, not even that of the query",
        MINIMAX_M3
        | {
            "text_config": TEXT
            | sizes(32, 3, 4, 2, 15, 101)
            | {
                "moe_layer_freq": [1, 1, 1],
                "sparse_attention_config": SPARSE
                | {"sparse_attention_freq": [1, 1, 1], "sparse_disable_index_value": [1, 1, 1], "sparse_index_dim": 6}
                | {"sparse_block_size": 2, "sparse_local_block": 0, "sparse_num_index_heads": 1, "sparse_topk_blocks": 5},
            },
        },
        controls=[
            {"text_config": {"sparse_attention_config": SPARSE | {"sparse_attention_freq": [1, 1, 1], "sparse_block_size": 2}
                             | {"sparse_num_index_heads": 1, "sparse_index_dim": 6, "sparse_topk_blocks": 5}}},
        ],
        router_std=1.2,
        norm_mean=0.0,
    ),
]
