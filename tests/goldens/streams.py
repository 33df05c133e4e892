"""Tiny checkpoints of families whose residual is several streams, beyond those of variants.py."""

from grouped import variant as derived_variant
from variants import Config, Tensor, Variant, sizes, spelled_v4, spelled_v5

DEEPSEEK_V4: Config = spelled_v4(
    "deepseek_v4",
    "DeepseekV4ForCausalLM",
    compress_ratios=[0, 4, 128, 4, 0],
    compress_rope_theta=40000,
    expert_dtype="fp4",
    hc_eps=1e-6,
    hc_mult=3,
    hc_sinkhorn_iters=5,
    head_dim=18,
    hidden_size=40,
    index_head_dim=14,
    index_n_heads=6,
    index_topk=7,
    moe_intermediate_size=19,
    n_routed_experts=6,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_attention_heads=6,
    num_experts_per_tok=2,
    num_hash_layers=2,
    num_hidden_layers=4,
    num_key_value_heads=1,
    num_nextn_predict_layers=1,
    o_groups=2,
    o_lora_rank=13,
    q_lora_rank=22,
    qk_rope_head_dim=6,
    rms_norm_eps=1e-6,
    rope_scaling={
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "original_max_position_embeddings": 64,
        "type": "yarn",
    },
    rope_theta=10000,
    routed_scaling_factor=1.5,
    scoring_func="sqrtsoftplus",
    sliding_window=9,
    swiglu_limit=2.0,
    topk_method="noaux_tc",
    vocab_size=97,
)

V5: Config = spelled_v5(
    DEEPSEEK_V4 | {"hc_mult": 4, "hidden_size": 36, "num_hidden_layers": 3, "n_shared_experts": 1, "vocab_size": 83},
    {
        "compress": {
            "attention_factor": 1.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 8,
            "original_max_position_embeddings": 32,
            "partial_rotary_factor": 1 / 3,
            "rope_theta": 160000.0,
            "rope_type": "yarn",
        },
        "main": {"partial_rotary_factor": 1 / 3, "rope_theta": 10000.0, "rope_type": "default"},
    },
)
for absent in ("compress_ratios", "expert_dtype", "num_hash_layers", "topk_method"):
    V5.pop(absent)
V5 |= {
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    "layer_types": ["heavily_compressed_attention", "compressed_sparse_attention", "sliding_attention"],
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
    "partial_rotary_factor": 1 / 3,
    "rope_theta": 10000.0,
}
FP4: Config = DEEPSEEK_V4 | {
    "compress_ratios": [4, 128, 0],
    "hc_mult": 2,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_hash_layers": 1,
    "num_hidden_layers": 2,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
    "vocab_size": 89,
}

GLM_TEXT: Config = spelled_v4(
    "glm5_next_text",
    "Glm5NextForConditionalGeneration",
    **sizes(32, 4, 3, 3, 46, 113),
    attention_bias=False,
    first_k_dense_replace=1,
    hc_eps=1e-6,
    hc_mult=3,
    hc_sinkhorn_iters=5,
    index_head_dim=14,
    index_kpool=4,
    index_kpool_always_select_tail=True,
    index_n_heads=8,
    index_topk=12,
    kv_lora_rank=22,
    layer_types=["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
    linear_attn_config={
        "gate_lower_bound": -5.0,
        "head_dim": 12,
        "num_heads": 3,
        "safe_gate": True,
        "short_conv_kernel_size": 4,
    },
    mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    moe_intermediate_size=17,
    n_group=1,
    n_routed_experts=6,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=2,
    pad_token_id=0,
    q_lora_rank=26,
    qk_nope_head_dim=14,
    qk_rope_head_dim=0,
    routed_scaling_factor=2.5,
    swiglu_limit=1.5,
    topk_group=1,
    v_head_dim=16,
)
GLM_NEXT: Config = {
    "architectures": ["Glm5NextForConditionalGeneration"],
    "image_token_id": 110,
    "model_type": "glm5_next",
    "text_config": GLM_TEXT,
    "tie_word_embeddings": False,
    "transformers_version": "5.23.0",
    "vision_config": {
        "depth": 1,
        "hidden_size": 16,
        "in_channels": 3,
        "intermediate_size": 16,
        "model_type": "glm5_next_vision",
        "num_heads": 2,
        "out_hidden_size": 32,
        "patch_size": 2,
        "projection_intermediate_size": 16,
    },
}


HY_V4: Config = spelled_v4(
    "hy_v4",
    "HYV4ForCausalLM",
    **sizes(40, 4, 3, 3, 46, 107),
    attention_bias=False,
    first_k_dense_replace=1,
    hc_eps=1e-6,
    hc_magnitude=1.6,
    hc_mult=3,
    index_head_dim=14,
    index_n_heads=8,
    index_topk=9,
    indexer_types=["full", "full", "shared", "full"],
    kv_lora_rank=22,
    mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    moe_intermediate_size=17,
    n_group=1,
    n_routed_experts=6,
    n_shared_experts=1,
    norm_topk_prob=True,
    num_experts_per_tok=2,
    pad_token_id=0,
    q_lora_rank=26,
    qk_nope_head_dim=14,
    qk_rope_head_dim=6,
    rope_theta=10000000.0,
    routed_scaling_factor=2.827,
    swiglu_limit=0.9,
    topk_group=1,
    v_head_dim=16,
)


def ratios(config: Config) -> list[int]:
    """The number of positions that an entry of each layer stands for; 0 for a layer that has none."""
    if "compress_ratios" in config:
        return config["compress_ratios"]
    rates = config["compress_rates"]
    return [rates.get(kind, 0) for kind in config["layer_types"]]


def hashed(config: Config) -> int:
    """The number of layers whose experts a table gives, which come first."""
    return config.get("num_hash_layers", config.get("mlp_layer_types", []).count("hash_moe"))


def overlapping(config: Config, layer: int) -> bool:
    if "compress_ratios" in config:
        return config["compress_ratios"][layer] == 4
    return config["layer_types"][layer] == "compressed_sparse_attention"


def tensors(variant: Variant) -> dict[str, Tensor]:
    """Every tensor under the name that the hub gives it. Transformers would write other ones."""
    config = variant.config
    hidden, streams, experts = config["hidden_size"], config["hc_mult"], config["n_routed_experts"]
    heads, dim, low = config["num_attention_heads"], config["head_dim"], config["q_lora_rank"]
    groups, rank, width = config["o_groups"], config["o_lora_rank"], config["moe_intermediate_size"]
    vocab = config["vocab_size"]
    table: dict[str, Tensor] = {}

    def linear(name: str, rows: int, columns: int, gain: float) -> None:
        table[f"{name}.weight"] = Tensor((rows, columns), gain / columns**0.5)

    def norm(name: str, length: int) -> None:
        table[f"{name}.weight"] = Tensor((length,), 0.2, mean=1.0)

    def mixing(name: str, weights: int, scales: int) -> None:
        table[f"{name}_fn"] = Tensor((weights, streams * hidden), 1.0 / (streams * hidden) ** 0.5, f32=True)
        table[f"{name}_base"] = Tensor((weights,), 0.5, f32=True)
        table[f"{name}_scale"] = Tensor((scales,), 0.2, mean=1.0, f32=True)

    def mlp(name: str) -> None:
        linear(f"{name}.w1", width, hidden, 1.4)
        linear(f"{name}.w2", hidden, width, 1.2)
        linear(f"{name}.w3", width, hidden, 1.4)

    def compressor(name: str, ratio: int, length: int, overlap: bool) -> None:
        both = length * (2 if overlap else 1)
        table[f"{name}.ape"] = Tensor((ratio, both), 0.5, f32=True)
        linear(f"{name}.wkv", both, hidden, 1.4)
        linear(f"{name}.wgate", both, hidden, 1.4)
        norm(f"{name}.norm", length)

    table["embed.weight"] = Tensor((vocab, hidden), 1.0)
    linear("head", vocab, hidden, 1.3)
    norm("norm", hidden)
    mixing("hc_head", streams, 1)
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"
        mixing(f"{at}.hc_attn", (2 + streams) * streams, 3)
        mixing(f"{at}.hc_ffn", (2 + streams) * streams, 3)
        norm(f"{at}.attn_norm", hidden)
        norm(f"{at}.ffn_norm", hidden)
        linear(f"{at}.attn.wq_a", low, hidden, 1.0)
        norm(f"{at}.attn.q_norm", low)
        linear(f"{at}.attn.wq_b", heads * dim, low, 1.4)
        linear(f"{at}.attn.wkv", dim, hidden, 1.4)
        norm(f"{at}.attn.kv_norm", dim)
        table[f"{at}.attn.attn_sink"] = Tensor((heads,), 1.0, f32=True)
        linear(f"{at}.attn.wo_a", groups * rank, heads * dim // groups, 1.6)
        linear(f"{at}.attn.wo_b", hidden, groups * rank, 1.6)
        ratio, overlap = ratios(config)[layer], overlapping(config, layer)
        if ratio:
            compressor(f"{at}.attn.compressor", ratio, dim, overlap)
        if overlap:
            index = config["index_head_dim"]
            linear(f"{at}.attn.indexer.wq_b", config["index_n_heads"] * index, low, 1.4)
            linear(f"{at}.attn.indexer.weights_proj", config["index_n_heads"], hidden, 1.4)
            compressor(f"{at}.attn.indexer.compressor", ratio, index, True)
        linear(f"{at}.ffn.gate", experts, hidden, variant.router_std)
        if layer < hashed(config):
            table[f"{at}.ffn.gate.tid2eid"] = Tensor((vocab, config["num_experts_per_tok"]), 0.0, ids=experts)
        else:
            table[f"{at}.ffn.gate.bias"] = Tensor((experts,), 0.15, f32=True)
        for expert in range(experts):
            mlp(f"{at}.ffn.experts.{expert}")
        mlp(f"{at}.ffn.shared_experts")
    # A layer that predicts further tokens, which is not part of the model.
    norm("mtp.0.norm", hidden)
    return table


STREAMS: list[Variant] = [
    Variant(
        "deepseek_v4",
        "three residual streams; windowed attention, entries of 4 positions selected by an indexer, entries of 128; "
        "experts by a table in two layers",
        DEEPSEEK_V4,
        controls=[
            {"hc_sinkhorn_iters": 1},
            {"index_topk": 5},
            {"sliding_window": 8},
            {"swiglu_limit": 1.0},
            {"compress_rope_theta": 500},
            {"routed_scaling_factor": 1.0},
            {"rope_scaling": None},
        ],
        tokens=141,
        router_std=3.0,
        table=tensors,
    ),
    Variant(
        "deepseek_v4_v5cfg",
        "the config as transformers 5 writes it: `layer_types`, `compress_rates`, nested rotary embeddings; four streams",
        V5,
        controls=[
            {"index_topk": 5},
            {"hc_eps": 0.3},
            {"compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}, "rms_norm_eps": 0.1},
        ],
        tokens=75,
        router_std=3.0,
        long=250,
        table=tensors,
    ),
    Variant(
        "deepseek_v4_fp4",
        "experts in fp4 and other matrices in fp8, with scales that are powers of two, as published",
        FP4,
        controls=[{"index_topk": 5}, {"swiglu_limit": 1.0}],
        router_std=3.0,
        quantised="dsv4",
        table=tensors,
    ),
    derived_variant(
        "glm5_next",
        "the text of a model that sees images: delta nets and latent attention to groups of 4 positions and those after "
        "them, three residual streams whose mean counts, limits of activations everywhere",
        GLM_NEXT,
        controls=[
            {"text_config": {"hc_sinkhorn_iters": 1}},
            {"text_config": {"index_topk": 8}},
            {"text_config": {"linear_attn_config": GLM_TEXT["linear_attn_config"] | {"gate_lower_bound": -2.0}}},
            {"text_config": {"routed_scaling_factor": 1.0}},
            {"text_config": {"swiglu_limit": 0.7}},
        ],
        router_std=1.2,
        tokens=67,
    ),
    derived_variant(
        "hy_v4",
        "latent attention to selected positions with sinks and a gate for each element; three residual streams that are not "
        "mixed; limits of activations in routed experts alone",
        HY_V4,
        controls=[
            {"hc_magnitude": 2.0},
            {"hc_eps": 0.3},
            {"index_topk": 6},
            {"rope_theta": 100.0},
            {"routed_scaling_factor": 1.0},
            {"swiglu_limit": 0.5},
        ],
        router_std=1.2,
        tokens=53,
        long=250,
    ),
    derived_variant(
        "hy_v4_yarn",
        "the spelling of transformers 5: yarn, two streams, groups of experts, two shared ones; layers without an indexer by "
        "their number",
        spelled_v5(
            {key: value for key, value in HY_V4.items() if key not in ("indexer_types", "mlp_layer_types")}
            | sizes(36, 3, 4, 4, 40, 97)
            | {"hc_mult": 2, "n_group": 2, "n_shared_experts": 2, "index_topk": 11},
            {
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 4.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 64,
                "rope_theta": 10000.0,
                "rope_type": "yarn",
            },
        )
        | {"pad_token_id": 0},
        controls=[{"n_group": 1}, {"index_topk": 8}],
        router_std=1.2,
    ),
    derived_variant(
        "glm5_next_shared",
        "the spelling of transformers 5: a layer with the positions that the last selected, in groups of 3; decays "
        "without a bound; two residual streams",
        GLM_NEXT
        | {
            "text_config": {key: value for key, value in GLM_TEXT.items() if key != "linear_attn_config"}
            | sizes(36, 4, 2, 2, 40, 97)
            | {"hc_mult": 2, "index_kpool": 3, "index_topk": 9, "index_n_heads": 9, "n_group": 2, "topk_group": 1}
            | {"indexer_types": ["full", "full", "full", "shared"], "linear_conv_kernel_dim": 3, "linear_head_dim": 10}
            | {"layer_types": ["indexed_attention", "linear_attention", "full_attention", "indexed_attention"]}
            | {"linear_lower_bound": None, "linear_num_heads": 2},
            "vision_config": GLM_NEXT["vision_config"] | {"out_hidden_size": 36},
        },
        controls=[
            {"text_config": {"index_topk": 6}},
            {"text_config": {"linear_lower_bound": -3.0}},
            {"text_config": {"n_group": 1}},
        ],
        router_std=1.2,
    ),
]
