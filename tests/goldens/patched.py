"""What transformers lacks of a family, or computes otherwise than the models of its makers."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers.models.bailing_hybrid import modeling_bailing_hybrid as ling
from transformers.models.longcat_flash import modeling_longcat_flash as longcat

from variants import Config

# Ling 1 and 2 are the attention and experts of GLM 4.5 under other names: (theirs, those of transformers).
LING_KEYS = [("num_experts", "n_routed_experts"), ("num_shared_experts", "n_shared_experts"), ("use_qkv_bias", "attention_bias")]
LING_NAMES = [
    ("model.word_embeddings.", "model.embed_tokens."),
    (".attention.", ".self_attn."),
    (".query_layernorm.", ".q_norm."),
    (".key_layernorm.", ".k_norm."),
    (".self_attn.dense.", ".self_attn.o_proj."),
    (".gate.expert_bias", ".gate.e_score_correction_bias"),
]
FUSED = "query_key_value"


def is_ling(config: Config) -> bool:
    return config["model_type"] in ("bailing_moe", "bailing_moe_v2")


def as_glm(config: Config) -> Config:
    """A configuration of Ling 1 or 2 as one of GLM 4.5."""
    config = dict(config)
    for theirs, known in LING_KEYS:
        config[known] = config.pop(theirs)
    first = config["model_type"] == "bailing_moe"
    groups = {"n_group": 1, "topk_group": 1, "partial_rotary_factor": 1.0, "use_qk_norm": False}
    if not first:
        share = {"partial_rotary_factor": config.pop("rotary_dim") / config["head_dim"]} if "rotary_dim" in config else {}
        groups = {"partial_rotary_factor": 0.5, "use_qk_norm": True} | share
    return groups | config | {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe"}


def published_as_ling(name: str) -> str:
    """A name of GLM 4.5 as Ling 1 and 2 have it."""
    for theirs, known in reversed(LING_NAMES):
        name = name.replace(known, theirs)
    return name


def weights_as_glm(config: Config, weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    heads, kv_heads, dim = (config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    known: dict[str, torch.Tensor] = {}
    for name, tensor in weights.items():
        for theirs, of_glm in LING_NAMES:
            name = name.replace(theirs, of_glm)
        if FUSED in name:
            rows = [heads * dim, kv_heads * dim, kv_heads * dim]
            for letter, part in zip("qkv", tensor.split(rows)):
                known[name.replace(FUSED, f"{letter}_proj")] = part.contiguous()
            continue
        known[name] = tensor
        if config["model_type"] == "bailing_moe" and name.endswith("mlp.gate.weight"):
            # Taken out again below.
            known[name.replace("weight", "e_score_correction_bias")] = torch.zeros(len(tensor))
    return known


@contextmanager
def known_to_transformers(checkpoint: Path) -> Iterator[Path]:
    """A folder with the same checkpoint as one of a family that transformers has."""
    config = json.loads((checkpoint / "config.json").read_text())
    if not is_ling(config):
        yield checkpoint
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text(json.dumps(as_glm(config)))
        weights = weights_as_glm(config, load_file(checkpoint / "model.safetensors"))
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        yield folder


def correct(model: Any, config: Config) -> None:
    """Lets a model compute what its makers' computes."""
    for module in model.modules():
        # Prompts in transformers raise the steps of Nemotron's recurrences to the least of those that training began
        # with; its single tokens and the kernels that the model was made with do not.
        if type(module).__name__ == "NemotronHMamba2Mixer":
            module.time_step_limit = (0.0, float("inf"))
        # For those who watch it.
        if type(module).__name__ == "LongcatFlashTopkRouter":
            module.score_fn = lambda logits: logits.softmax(-1)
        if config["model_type"] == "bailing_moe" and type(module).__name__ == "Glm4MoeTopkRouter":
            del module.e_score_correction_bias, module.num_group
            module.forward = softmax_router(module)
    if config["model_type"] == "bailing_hybrid":
        limit_ling(model, config)


def softmax_router(module: Any) -> Any:
    """The router of Ling 1."""

    def forward(hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = functional.linear(hidden_states.view(-1, module.hidden_dim), module.weight)
        weights, chosen = logits.softmax(-1).topk(module.top_k)
        if module.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, chosen

    return forward


def limit_ling(model: Any, config: Config) -> None:
    """The limits of activations in Ling 3, which transformers ignores and everybody else measured to matter."""
    lists = [config.get(key) for key in ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")]
    for number, layer in enumerate(model.model.layers):
        if not hasattr(layer.mlp, "experts"):
            continue
        of_experts, of_shared = (limits[number] if limits else None for limits in lists)
        if of_experts:
            limit_experts(layer.mlp.experts, of_experts)
        if of_shared:
            limit_mlp(layer.mlp.shared_experts, of_shared)


def limited(gate: torch.Tensor, up: torch.Tensor, limit: float) -> torch.Tensor:
    return functional.silu(gate).clamp(max=limit) * up.clamp(-limit, limit)


def limit_mlp(mlp: Any, limit: float) -> None:
    mlp.forward = lambda x: mlp.down_proj(limited(mlp.gate_proj(x), mlp.up_proj(x), limit))


def limit_experts(experts: Any, limit: float) -> None:
    def forward(x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        for expert in chosen.unique():
            token, place = torch.where(chosen == expert)
            gate, up = functional.linear(x[token], experts.gate_up_proj[expert]).chunk(2, dim=-1)
            out = functional.linear(limited(gate, up, limit), experts.down_proj[expert])
            y.index_add_(0, token, out * weights[token, place, None])
        return y

    experts.forward = forward


def with_latent_queries(build: Any) -> Any:
    """The attention of Ling 3, which in smaller models has latent queries that transformers does not know."""

    def init(self: Any, config: Any, layer_idx: int) -> None:
        build(self, config, layer_idx)
        rank = getattr(config, "q_lora_rank", None)
        if rank:
            rows, columns = self.q_proj.weight.shape
            del self.q_proj
            self.q_a_proj = torch.nn.Linear(columns, rank, bias=False)
            self.q_a_layernorm = ling.BailingHybridRMSNorm(rank)
            self.q_b_proj = torch.nn.Linear(rank, rows, bias=False)
            self.q_proj = lambda x: self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))

    return init


def with_real_experts(build: Any) -> Any:
    """The experts of LongCat, of which transformers would also give those that return their input weights."""

    def init(self: Any, config: Any) -> None:
        build(self, config)
        self.gate_up_proj = torch.nn.Parameter(self.gate_up_proj[: config.n_routed_experts])

    return init


def readable(model: Any, chosen: torch.Tensor) -> torch.Tensor:
    """The choices of a router [tokens, k] with the first expert of a token in place of those that have no weights."""
    experts = getattr(model.config, "n_routed_experts", None)
    if not experts or not getattr(model.config, "zero_expert_num", 0):
        return chosen
    real = chosen < experts
    first = real.int().argmax(-1, keepdim=True)
    own = chosen.gather(1, first).where(real.any(-1, keepdim=True), torch.zeros_like(first))
    return chosen.where(real, own)


def layers_of(model: Any, name: str) -> int:
    """The number of a router's layer."""
    number = int(name.split("layers.")[1].split(".")[0])
    return 2 * number if model.config.model_type == "longcat_flash" else number


def depth(model: Any) -> float:
    """Visits of a layer in a pass, on average: more than one where some are visited several times."""
    config = model.config.get_text_config()
    return getattr(config, "total_num_hidden_layers", config.num_hidden_layers) / config.num_hidden_layers


def visits_of(model: Any, layers: list[int]) -> list[int]:
    """The numbers of the layers that route; where layers are visited several times, those of all visits."""
    config = model.config.get_text_config()
    return list(range(config.total_num_hidden_layers)) if hasattr(config, "total_num_hidden_layers") else layers


longcat.LongcatFlashExperts.__init__ = with_real_experts(longcat.LongcatFlashExperts.__init__)
ling.BailingHybridAttention.__init__ = with_latent_queries(ling.BailingHybridAttention.__init__)
