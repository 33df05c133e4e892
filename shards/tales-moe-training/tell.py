#!/usr/bin/env python3
"""Lets a model that train.py wrote tell many tales at once, and writes them as ids, for other models to learn from.

    sws unshard ../tales-moe --out tales
    python tell.py --checkpoint tales --out told.bin --tokens 3000000
"""

import argparse
import json
import time
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from train import Layer, Model, turned

# Tales that are told at once.
ROWS = 512


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="ids as 16-bit numbers")
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--length", type=int, default=512, help="tokens of a tale")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def load(checkpoint: Path) -> Model:
    """The model of a checkpoint of Qwen3-MoE, as train.py has it."""
    config = json.loads((checkpoint / "config.json").read_text())
    model = Model(
        argparse.Namespace(
            family="qwen3_moe",
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            width=config["moe_intermediate_size"],
            experts=config["num_experts"],
            top_k=config["num_experts_per_tok"],
            heads=config["num_attention_heads"],
            kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
        )
    )
    tensors = {}
    for file in checkpoint.glob("*.safetensors"):
        tensors |= {name: tensor.float() for name, tensor in load_file(file).items()}
    state = {
        "embedding.weight": tensors["model.embed_tokens.weight"],
        "norm.weight": tensors["model.norm.weight"],
        "head.weight": tensors["lm_head.weight"],
    }
    for number in range(config["num_hidden_layers"]):
        at, to = f"model.layers.{number}", f"layers.{number}"
        state |= {
            f"{to}.before_attention.weight": tensors[f"{at}.input_layernorm.weight"],
            f"{to}.before_experts.weight": tensors[f"{at}.post_attention_layernorm.weight"],
            f"{to}.q_norm.weight": tensors[f"{at}.self_attn.q_norm.weight"],
            f"{to}.k_norm.weight": tensors[f"{at}.self_attn.k_norm.weight"],
            f"{to}.router.weight": tensors[f"{at}.mlp.gate.weight"],
        }
        for name in "qkvo":
            state[f"{to}.{name}.weight"] = tensors[f"{at}.self_attn.{name}_proj.weight"]
        gate, up, down = (
            torch.stack([tensors[f"{at}.mlp.experts.{expert}.{name}_proj.weight"] for expert in range(config["num_experts"])])
            for name in ("gate", "up", "down")
        )
        state[f"{to}.gate_up"] = torch.cat([gate, up], 1).transpose(1, 2)
        state[f"{to}.down"] = down.transpose(1, 2)
    model.load_state_dict(state)
    return model.to(torch.bfloat16)


def attention(layer: Layer, h: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, at: int) -> Tensor:
    """That of one token of each row behind those in `keys` and `values`."""
    args, rows = layer.args, len(h)
    q = layer.q_norm(layer.q(h).view(rows, args.heads, 1, args.head_dim))
    k = layer.k_norm(layer.k(h).view(rows, args.kv_heads, args.head_dim))
    q, k = q * cos[at] + turned(q) * sin[at], k * cos[at] + turned(k) * sin[at]
    keys[:, :, at], values[:, :, at] = k, layer.v(h).view(rows, args.kv_heads, args.head_dim)
    o = F.scaled_dot_product_attention(q, keys[:, :, : at + 1], values[:, :, : at + 1], enable_gqa=True)
    return layer.o(o.reshape(rows, -1))


@torch.no_grad()
def told(model: Model, length: int, temperature: float) -> Tensor:
    """A tale in each row."""
    args = model.layers[0].args
    shape = (ROWS, args.kv_heads, length, args.head_dim)
    memory = [(torch.zeros(shape, dtype=torch.bfloat16), torch.zeros(shape, dtype=torch.bfloat16)) for _ in model.layers]
    ids = torch.zeros(ROWS, length, dtype=torch.long)
    cos, sin = model.cos.to(torch.bfloat16), model.sin.to(torch.bfloat16)
    for at in range(length - 1):
        x = model.embedding(ids[:, at])
        for layer, (keys, values) in zip(model.layers, memory):
            x = x + attention(layer, layer.before_attention(x), cos, sin, keys, values, at)
            x = x + layer.mixture(layer.before_experts(x))[0].to(x.dtype)
        probabilities = F.softmax(model.head(model.norm(x)).float() / temperature, -1)
        ids[:, at + 1] = torch.multinomial(probabilities, 1)[:, 0]
    return ids


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    model, written, started = load(args.checkpoint), 0, time.monotonic()
    with args.out.open("wb") as out:
        while written < args.tokens:
            ids = told(model, args.length, args.temperature)
            ids.numpy().astype(numpy.uint16).tofile(out)
            written += ids.numel()
            print(f"{written} tokens, {written / (time.monotonic() - started):.0f} a second", flush=True)


if __name__ == "__main__":
    main()
