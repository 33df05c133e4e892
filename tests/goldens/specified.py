"""Kimi K3, which transformers does not have: an implementation of its specification, in float64, by this project.

Nobody else's program stands behind these goldens. The parts that Kimi K3 shares with Kimi Linear are compared with what
transformers computes (`compare`); states kept from earlier layers, experts that read a latent, gates of latent attention, the
activation and the bound of decays are what their specification says, once more and in another language than the tests'.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor as Values
from torch import nn
from torch.nn import functional

from derived import drawn_as
from variants import Config, Tensor, Variant, sizes, spelled_v4, text

HERE = Path(__file__).resolve().parent
OF_K3 = ("activation_situ_beta", "attn_res_block_size", "routed_expert_hidden_size")
# The largest difference from transformers in a logit, where both compute the same.
AGREEMENT = 2e-5


def is_specified(config: Config) -> bool:
    return any(key in text(config) for key in OF_K3)


def linear(rows: int, columns: int) -> nn.Linear:
    return nn.Linear(columns, rows, bias=False)


class Configuration(SimpleNamespace):
    """Entries as attributes."""

    def get_text_config(self) -> "Configuration":
        return self


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Values) -> Values:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight


class Activation:
    """silu(g) u, or b tanh(g / b) sigmoid(g) l tanh(u / l)."""

    def __init__(self, config: Config) -> None:
        self.is_situ = config["hidden_act"] == "situ"
        self.gate = config.get("activation_situ_beta") or 1.0
        self.up = config.get("activation_situ_linear_beta")

    def __call__(self, gate: Values, up: Values) -> Values:
        if not self.is_situ:
            return functional.silu(gate) * up
        up = up if self.up is None else self.up * torch.tanh(up / self.up)
        return self.gate * torch.tanh(gate / self.gate) * torch.sigmoid(gate) * up


class Mlp(nn.Module):
    """Names of the matrices for gates, ups and back."""

    def __init__(self, config: Config, hidden: int, width: int, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.activation, self.names = Activation(config), names
        for name, shape in zip(names, ((width, hidden), (width, hidden), (hidden, width))):
            self.add_module(name, linear(*shape))

    def forward(self, x: Values) -> Values:
        gate, up, down = (self.get_submodule(name) for name in self.names)
        return down(self.activation(gate(x), up(x)))


class TopkRouter(nn.Module):
    """Sigmoids; choices by them and a correction, from the best groups by their two best."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        experts = config["num_experts"]
        self.weight = nn.Parameter(torch.empty(experts, config["hidden_size"]))
        self.e_score_correction_bias = nn.Parameter(torch.empty(experts))
        self.num_group, self.topk_group = config.get("num_expert_group", 1), config.get("topk_group", 1)
        self.top_k = config["num_experts_per_token"]
        self.renormalise = config.get("moe_renormalize", True)
        self.scale = config.get("routed_scaling_factor", 1.0)

    def forward(self, x: Values) -> tuple[Values, Values, Values]:
        logits = functional.linear(x, self.weight)
        scores = logits.sigmoid()
        ranks = scores + self.e_score_correction_bias
        if self.num_group > 1:
            groups = ranks.unflatten(-1, (self.num_group, -1))
            best = groups.topk(2).values.sum(-1).topk(self.topk_group).indices
            kept = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter(1, best, True)
            ranks = groups.masked_fill(~kept[..., None], float("-inf")).flatten(1)
        chosen = ranks.topk(self.top_k).indices
        weights = scores.gather(1, chosen)
        if self.renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return logits, weights * self.scale, chosen


class Experts(nn.Module):
    """Experts that read a latent of the state, where there is one; the router and the shared one read the state."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, width = config["hidden_size"], config["moe_intermediate_size"]
        latent = config.get("routed_expert_hidden_size")
        self.gate = TopkRouter(config)
        self.experts = nn.ModuleList(
            Mlp(config, latent or hidden, width, ("w1", "w3", "w2")) for _ in range(config["num_experts"])
        )
        shared = config.get("num_shared_experts", 0) * width
        self.shared_experts = Mlp(config, hidden, shared, ("gate_proj", "up_proj", "down_proj")) if shared else None
        if latent:
            self.routed_expert_down_proj, self.routed_expert_up_proj = linear(latent, hidden), linear(hidden, latent)
            if config.get("latent_moe_use_norm"):
                self.routed_expert_norm = Norm(latent, config["rms_norm_eps"])

    def forward(self, x: Values) -> Values:
        _, weights, chosen = self.gate(x)
        inputs = self.routed_expert_down_proj(x) if hasattr(self, "routed_expert_down_proj") else x
        y = torch.zeros_like(inputs)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            y.index_add_(0, token, expert(inputs[token]) * weights[token, place, None])
        if hasattr(self, "routed_expert_norm"):
            y = self.routed_expert_norm(y)
        if hasattr(self, "routed_expert_up_proj"):
            y = self.routed_expert_up_proj(y)
        return y if self.shared_experts is None else y + self.shared_experts(x)


class Convolution(nn.Module):
    """Each channel over the last tokens, then silu."""

    def __init__(self, channels: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps))

    def forward(self, x: Values, past: Values | None) -> tuple[Values, Values]:
        taps = self.weight.shape[-1]
        past = x.new_zeros(taps - 1, x.shape[1]) if past is None else past
        x = torch.cat([past, x])
        y = sum(x[tap : len(x) - taps + 1 + tap] * self.weight[:, 0, tap] for tap in range(taps))
        return functional.silu(y), x[len(x) - taps + 1 :]


class Delta(nn.Module):
    """A matrix for each head, of which every token lets the rows decay and corrects them, one token after another."""

    def __init__(self, config: Config, padded: bool) -> None:
        super().__init__()
        given, hidden = config["linear_attn_config"], config["hidden_size"]
        self.heads, self.dim = given["num_heads"], given["head_dim"]
        self.bound = given.get("gate_lower_bound")
        width, taps = self.heads * self.dim, given["short_conv_kernel_size"]
        for name in "qkv":
            self.add_module(f"{name}_proj", linear(width, hidden))
            self.add_module(f"{name}_conv1d", Convolution(width, taps))
        self.f_a_proj, self.f_b_proj = linear(self.dim, hidden), linear(width, self.dim)
        self.b_proj = linear(self.heads, hidden)
        if given.get("use_full_rank_gate"):
            self.g_proj = linear(width, hidden)
        else:
            self.g_a_proj, self.g_b_proj = linear(self.dim, hidden), linear(width, self.dim)
        # As published: more numbers than there are heads.
        self.A_log = nn.Parameter(torch.empty(max(self.dim, self.heads) if padded else self.heads))
        self.dt_bias = nn.Parameter(torch.empty(width))
        self.o_norm = Norm(self.dim, config["rms_norm_eps"])
        self.o_proj = linear(hidden, width)

    def forward(self, x: Values, cache: dict[str, Values]) -> Values:
        filtered = []
        for name in "qkv":
            raw = self.get_submodule(f"{name}_proj")(x)
            y, cache[name] = self.get_submodule(f"{name}_conv1d")(raw, cache.get(name))
            filtered.append(y.unflatten(-1, (self.heads, self.dim)))
        q, k, v = filtered
        q, k = (part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for part in (q, k))
        f = (self.f_b_proj(self.f_a_proj(x)) + self.dt_bias).unflatten(-1, (self.heads, self.dim))
        rate = self.A_log.flatten()[: self.heads].exp()[:, None]
        decay = -rate * functional.softplus(f) if self.bound is None else self.bound * torch.sigmoid(rate * f)
        beta = self.b_proj(x).sigmoid()
        state = cache.get("state", x.new_zeros(self.heads, self.dim, self.dim))
        outputs = []
        for token in range(len(x)):
            state = state * decay[token].exp()[..., None]
            seen = torch.einsum("hkv,hk->hv", state, k[token])
            change = beta[token][:, None] * (v[token] - seen)
            state = state + k[token][..., None] * change[:, None]
            outputs.append(torch.einsum("hkv,hk->hv", state, q[token] * self.dim**-0.5))
        cache["state"] = state
        gate = self.g_proj(x) if hasattr(self, "g_proj") else self.g_b_proj(self.g_a_proj(x))
        return self.o_proj(self.o_norm(torch.stack(outputs)).flatten(1) * gate.sigmoid())


class Latent(nn.Module):
    """Softmax attention; keys and values are products of a latent, and nothing is rotated."""

    def __init__(self, config: Config, eps: float) -> None:
        super().__init__()
        hidden, rank, low = config["hidden_size"], config["kv_lora_rank"], config.get("q_lora_rank")
        self.heads, self.rank, self.value = config["num_attention_heads"], rank, config["v_head_dim"]
        self.plain, self.shared = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        queries = self.heads * (self.plain + self.shared)
        if low:
            self.q_a_proj, self.q_b_proj = linear(low, hidden), linear(queries, low)
            self.q_a_layernorm = Norm(low, eps)
        else:
            self.q_proj = linear(queries, hidden)
        self.kv_a_proj_with_mqa = linear(rank + self.shared, hidden)
        self.kv_a_layernorm = Norm(rank, eps)
        self.kv_b_proj = linear(self.heads * (self.plain + self.value), rank)
        self.o_proj = linear(hidden, self.heads * self.value)
        if config.get("mla_use_output_gate"):
            self.g_proj = linear(self.heads * self.value, hidden)

    def forward(self, x: Values, cache: dict[str, Values]) -> Values:
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))) if hasattr(self, "q_a_proj") else self.q_proj(x)
        q = q.unflatten(-1, (self.heads, -1))
        latent, shared = self.kv_a_proj_with_mqa(x).split([self.rank, self.shared], dim=-1)
        both = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (self.heads, -1))
        plain, v = both.split([self.plain, self.value], dim=-1)
        k = torch.cat([plain, shared[:, None].expand(-1, self.heads, -1)], dim=-1)
        k, v = (torch.cat([cache[name], new]) if name in cache else new for name, new in (("k", k), ("v", v)))
        cache["k"], cache["v"] = k, v
        scores = torch.einsum("qhd,khd->hqk", q, k) * (self.plain + self.shared) ** -0.5
        unseen = torch.ones(len(q), len(k), dtype=torch.bool).triu(len(k) - len(q) + 1)
        y = torch.einsum("hqk,khd->qhd", scores.masked_fill(unseen, float("-inf")).softmax(-1), v).flatten(1)
        return self.o_proj(y * self.g_proj(x).sigmoid() if hasattr(self, "g_proj") else y)


def mixed(states: list[Values], norm: Norm, row: nn.Linear) -> Values:
    """Each token's states, by the softmax of a product with each of them, normed."""
    stacked = torch.stack(states, dim=-2)
    return (row(norm(stacked)).softmax(-2) * stacked).sum(-2)


class Layer(nn.Module):
    def __init__(self, config: Config, number: int, wrapped: bool) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.number, self.every = number, config.get("attn_res_block_size")
        is_delta = number + 1 in config["linear_attn_config"]["kda_layers"]
        latent_eps = eps if is_specified(config) else 1e-6
        self.self_attn = Delta(config, wrapped) if is_delta else Latent(config, latent_eps)
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden, eps), Norm(hidden, eps)
        if self.every:
            self.self_attention_res_norm, self.mlp_res_norm = Norm(hidden, eps), Norm(hidden, eps)
            self.self_attention_res_proj, self.mlp_res_proj = linear(1, hidden), linear(1, hidden)
        if number < config["first_k_dense_replace"]:
            names = ("gate_proj", "up_proj", "down_proj")
            self.mlp = Mlp(config, hidden, config["intermediate_size"], names)
        else:
            self.block_sparse_moe = Experts(config)

    def forward(self, x: Values, kept: list[Values], cache: dict[str, Values]) -> Values:
        read = mixed([*kept, x], self.self_attention_res_norm, self.self_attention_res_proj) if self.every else x
        branch = self.self_attn(self.input_layernorm(read), cache)
        if self.every and self.number % self.every == 0:
            kept.append(x)
            x = branch
        else:
            x = x + branch
        read = mixed([*kept, x], self.mlp_res_norm, self.mlp_res_proj) if self.every else x
        read = self.post_attention_layernorm(read)
        return x + (self.mlp(read) if hasattr(self, "mlp") else self.block_sparse_moe(read))


class Decoder(nn.Module):
    def __init__(self, config: Config, wrapped: bool) -> None:
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.layers = nn.ModuleList(Layer(config, number, wrapped) for number in range(config["num_hidden_layers"]))
        self.norm = Norm(hidden, eps)
        if config.get("attn_res_block_size"):
            self.output_attn_res_norm, self.output_attn_res_proj = Norm(hidden, eps), linear(1, hidden)

    def forward(self, tokens: Values, caches: list[dict[str, Values]]) -> Values:
        x, kept = self.embed_tokens(tokens), []
        for layer, cache in zip(self.layers, caches):
            x = layer(x, kept, cache)
        if kept:
            x = mixed([*kept, x], self.output_attn_res_norm, self.output_attn_res_proj)
        return self.norm(x)


class LanguageModel(nn.Module):
    def __init__(self, config: Config, wrapped: bool) -> None:
        super().__init__()
        self.model = Decoder(config, wrapped)
        self.lm_head = linear(config["vocab_size"], config["hidden_size"])


class Specified(nn.Module):
    """A model with the interface that generate.py asks of those of transformers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        wrapped = "text_config" in config
        self.config = Configuration(**(text(config) | {"model_type": config["model_type"]}))
        part = LanguageModel(text(config), wrapped)
        if wrapped:
            self.language_model = part
        else:
            self.model, self.lm_head = part.model, part.lm_head

    def new_cache(self) -> list[dict[str, Values]]:
        return [{} for _ in range(self.config.num_hidden_layers)]

    def forward(self, input_ids: Values, past_key_values: Any = None, use_cache: bool = False) -> SimpleNamespace:
        part = getattr(self, "language_model", self)
        caches = past_key_values if use_cache else self.new_cache()
        return SimpleNamespace(logits=part.lm_head(part.model(input_ids[0], caches))[None].float())


def load_specified(checkpoint: Path) -> Specified:
    """A checkpoint in float64. Tensors of images are left out, and those that a changed configuration does not use."""
    model = Specified(json.loads((checkpoint / "config.json").read_text())).double()
    weights = load_file(checkpoint / "model.safetensors")
    named = {name: tensor.double() for name, tensor in weights.items()}
    for name, tensor in model.state_dict().items():
        if name in named and named[name].numel() == tensor.numel():
            named[name] = named[name].view(tensor.shape)
    missing = model.load_state_dict(named, strict=False).missing_keys
    if missing:
        raise SystemExit(f"{checkpoint.name}: these tensors are missing: {missing}")
    return model.eval()


def compare() -> None:
    """Kimi Linear by this implementation, against what transformers computed."""
    golden = load_file(HERE / "kimi_linear" / "golden.safetensors")
    logits = load_specified(HERE / "kimi_linear")(golden["tokens"][None]).logits[0]
    difference = (logits - golden["logits"]).abs().max().item()
    if difference > AGREEMENT * golden["logits"].abs().max().item():
        raise SystemExit(f"Kimi Linear as specified differs from transformers by {difference:.1e}")


def tensors(variant: Variant) -> dict[str, Tensor]:
    """Every tensor under the name that the hub gives it, and some of the part that sees images."""
    model = Specified(variant.config)
    table = {name: drawn_as(variant, name, tuple(value.shape)) for name, value in sorted(model.state_dict().items())}
    if "vision_config" in variant.config:
        table["vision_tower.encoder.final_layernorm.weight"] = Tensor((16,), 0.2, mean=1.0)
        table["mm_projector.linear_1.weight"] = Tensor((40, 16), 0.2)
    return table


TEXT: Config = spelled_v4(
    "kimi_linear",
    "KimiLinearForCausalLM",
    **sizes(40, 5, 3, 3, 50, 131),
    activation_situ_beta=2.0,
    activation_situ_linear_beta=3.0,
    attn_res_block_size=2,
    first_k_dense_replace=1,
    kv_lora_rank=22,
    latent_moe_use_norm=True,
    linear_attn_config={
        "full_attn_layers": [3, 5],
        "gate_lower_bound": -5.0,
        "head_dim": 12,
        "kda_layers": [1, 2, 4],
        "num_heads": 3,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
    },
    mla_use_nope=True,
    mla_use_output_gate=True,
    moe_intermediate_size=17,
    moe_layer_freq=1,
    moe_renormalize=True,
    moe_router_activation_func="sigmoid",
    num_expert_group=1,
    num_experts=6,
    num_experts_per_token=2,
    num_nextn_predict_layers=0,
    num_shared_experts=2,
    q_lora_rank=26,
    qk_nope_head_dim=14,
    qk_rope_head_dim=6,
    routed_expert_hidden_size=22,
    routed_scaling_factor=1.0,
    topk_group=1,
    topk_method="noaux_tc",
    use_grouped_topk=True,
    v_head_dim=16,
) | {"hidden_act": "situ"}
for absent in ("attention_dropout", "rope_theta"):
    TEXT.pop(absent)

KIMI_K3: Config = {
    "architectures": ["KimiK3ForConditionalGeneration"],
    "model_type": "kimi_k3",
    "text_config": TEXT,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.56.2",
    "vision_config": {"qkv_hidden_size": 16, "vt_num_attention_heads": 2},
}
LINEAR: Config = TEXT["linear_attn_config"]

# The language model alone, with the other choice of all that is a choice.
OTHERWISE: Config = {key: value for key, value in TEXT.items() if key not in ("latent_moe_use_norm", "mla_use_output_gate")} | {
    "activation_situ_linear_beta": None,
    "attn_res_block_size": 1,
    "linear_attn_config": {
        "full_attn_layers": [2, 3],
        "head_dim": 14,
        "kda_layers": [1, 4],
        "num_heads": 2,
        "short_conv_kernel_size": 3,
    },
    "moe_renormalize": False,
    "num_expert_group": 2,
    "num_hidden_layers": 4,
    "num_shared_experts": 0,
    "q_lora_rank": None,
    "routed_scaling_factor": 1.7,
    "vocab_size": 97,
}

PACKED: Config = KIMI_K3 | {
    "text_config": TEXT
    | {
        "linear_attn_config": LINEAR | {"full_attn_layers": [3], "kda_layers": [1, 2]},
        "hidden_size": 48,
        "moe_intermediate_size": 64,
        "num_experts": 4,
        "num_hidden_layers": 3,
        "quantization_config": {
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {"group_size": 32, "num_bits": 4, "strategy": "group", "symmetric": True, "type": "float"},
                }
            },
            "format": "mxfp4-pack-quantized",
            "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\..*"],
            "quant_method": "compressed-tensors",
        },
        "routed_expert_hidden_size": 32,
        "vocab_size": 89,
    },
}

F32 = (r"correction_bias$", r"A_log$", r"dt_bias$", r"conv1d\.weight$", r"o_norm\.weight$")


def specified(name: str, purpose: str, config: Config, controls: list[Config], **options: Any) -> Variant:
    return Variant(name, purpose, config, controls=controls, router_std=1.2, f32=F32, table=tensors, **options)


def inner(**options: Any) -> Config:
    return {"text_config": options}


SPECIFIED: list[Variant] = [
    specified(
        "kimi_k3",
        "the text of a model that sees images: delta nets with a bound and gates of full rank, latent attention with a gate for "
        "each element, states kept every second layer, experts in a latent, caps of gates and values; no program but ours",
        KIMI_K3,
        [
            inner(activation_situ_beta=1.0),
            inner(activation_situ_linear_beta=1.0),
            inner(attn_res_block_size=3),
            inner(latent_moe_use_norm=False),
            inner(linear_attn_config=LINEAR | {"gate_lower_bound": -2.0}),
            inner(mla_use_output_gate=False),
            inner(rms_norm_eps=1e-1),
        ],
        tokens=53,
    ),
    specified(
        "kimi_k3_otherwise",
        "the language model alone: every state kept, gates from a latent, decays without a bound, values without a cap, groups of "
        "experts, none shared; no program but ours",
        OTHERWISE,
        [
            {"activation_situ_beta": 1.0},
            {"activation_situ_linear_beta": 2.0},
            {"attn_res_block_size": 2},
            {"moe_renormalize": True},
            {"num_expert_group": 1},
            {"routed_scaling_factor": 1.0},
        ],
    ),
    specified(
        "kimi_k3_mxfp4",
        "experts in mxfp4, packed as published; no program but ours",
        PACKED,
        [inner(activation_situ_beta=1.0), inner(attn_res_block_size=1)],
        quantised="mxfp4_pack",
    ),
]
