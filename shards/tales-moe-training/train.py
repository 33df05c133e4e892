#!/usr/bin/env python3
"""Trains the model on what tokenizer.py wrote, and writes it as a Hugging Face checkpoint (Qwen3-MoE or Mixtral, bf16).

    python train.py --data tales.bin --tokenizer tales.json --out checkpoint --minutes 300
"""

import argparse
import json
import math
import shutil
import time
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

VOCABULARY = 4096
CONTEXT = 4096
THETA = 10000.0
EPS = 1e-6
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
WARMUP_STEPS = 100
# What is left of the learning rate at the end.
LEAST_RATE = 0.02
# Ids at the end of the corpus on which nothing is trained.
HELD_OUT = 200_000
EVALUATIONS = 40
# A machine that sleeps in the middle of a step has not trained for as long.
LONGEST_STEP = 4.0
SAVE_SECONDS = 900


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="ids as 16-bit numbers")
    parser.add_argument("--tokenizer", type=Path, required=True, help="is copied beside the weights")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--minutes", type=float, required=True, help="how long to train; the learning rate follows it")
    parser.add_argument("--steps", type=int, help="stop after so many, however long they took")
    parser.add_argument("--family", choices=["qwen3_moe", "mixtral"], default="qwen3_moe")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--width", type=int, default=96, help="inner width of an expert")
    parser.add_argument("--experts", type=int, default=32)
    parser.add_argument("--top-k", type=int, default=4)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=256, help="tokens in each row of a batch")
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--balance", type=float, default=0.01, help="weight of the loss that spreads tokens over experts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)).to(x.dtype) * self.weight


def turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


class Layer(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.args = args
        hidden, width, experts, head_dim = args.hidden, args.width, args.experts, args.head_dim
        self.before_attention, self.before_experts = Norm(hidden), Norm(hidden)
        self.q = nn.Linear(hidden, args.heads * head_dim, bias=False)
        self.k = nn.Linear(hidden, args.kv_heads * head_dim, bias=False)
        self.v = nn.Linear(hidden, args.kv_heads * head_dim, bias=False)
        self.o = nn.Linear(args.heads * head_dim, hidden, bias=False)
        # Mixtral has no norms of heads.
        norm = Norm if args.family == "qwen3_moe" else lambda _: nn.Identity()
        self.q_norm, self.k_norm = norm(head_dim), norm(head_dim)
        self.router = nn.Linear(hidden, experts, bias=False)
        # Gate and up side by side; [experts, in, out], as `bmm` wants them.
        self.gate_up = nn.Parameter(torch.randn(experts, hidden, 2 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, width, hidden) * 0.02 / math.sqrt(2 * args.layers))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.before_attention(x), cos, sin)
        y, imbalance = self.mixture(self.before_experts(x))
        return x + y.to(x.dtype), imbalance

    def attention(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        args, (rows, length, _) = self.args, h.shape
        q = self.q_norm(self.q(h).view(rows, length, args.heads, args.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k(h).view(rows, length, args.kv_heads, args.head_dim)).transpose(1, 2)
        v = self.v(h).view(rows, length, args.kv_heads, args.head_dim).transpose(1, 2)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        o = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=True)
        return self.o(o.transpose(1, 2).reshape(rows, length, -1))

    def mixture(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Every expert's tokens are gathered into one batch, filled up to the longest."""
        args, hidden = self.args, x.shape[-1]
        h = x.reshape(-1, hidden)
        probabilities = F.softmax(self.router(h).float(), -1)
        weights, chosen = probabilities.topk(args.top_k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        flat = chosen.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=args.experts)
        expert, token = flat[order], order // args.top_k
        place = torch.arange(len(flat)) - (torch.cumsum(counts, 0) - counts)[expert]
        gathered = h.new_zeros(args.experts, int(counts.max()), hidden).index_put((expert, place), h[token])
        gate, up = torch.bmm(gathered, self.gate_up.to(h.dtype)).chunk(2, -1)
        y = torch.bmm(F.silu(gate) * up, self.down.to(h.dtype))[expert, place].float()
        y = torch.zeros(h.shape).index_add(0, token, y * weights.reshape(-1)[order].unsqueeze(-1))
        imbalance = args.experts * (counts.float() / len(flat) * probabilities.mean(0)).sum()
        return y.view(x.shape), imbalance


class Model(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, args.hidden)
        self.layers = nn.ModuleList(Layer(args) for _ in range(args.layers))
        self.norm = Norm(args.hidden)
        self.head = nn.Linear(args.hidden, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * args.layers) if ".o." in name else 1))
        frequencies = THETA ** (-torch.arange(0, args.head_dim, 2).float() / args.head_dim)
        angles = torch.outer(torch.arange(CONTEXT).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x, length, imbalance = self.embedding(ids), ids.shape[1], torch.zeros(())
        for layer in self.layers:
            x, more = layer(x, self.cos[:length], self.sin[:length])
            imbalance = imbalance + more
        return self.head(self.norm(x)), imbalance / len(self.layers)


def rows(ids: numpy.ndarray, starts: list[int], length: int) -> tuple[Tensor, Tensor]:
    """Rows of text, and the token that follows each of theirs."""
    taken = numpy.stack([ids[start : start + length + 1] for start in starts]).astype(numpy.int64)
    return torch.from_numpy(taken[:, :-1]), torch.from_numpy(taken[:, 1:])


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().view(-1, VOCABULARY), targets.reshape(-1))


@torch.no_grad()
def validation(model: Model, ids: numpy.ndarray, length: int) -> float:
    count = min(EVALUATIONS, (len(ids) - 1) // (2 * length))
    losses = []
    for start in range(0, count * 2 * length, 2 * length):
        with torch.autocast("cpu", torch.bfloat16):
            x, y = rows(ids, [start, start + length], length)
            losses.append(loss_of(model(x)[0], y).item())
    return sum(losses) / len(losses)


# Where a family has the tensors of its mixtures.
NAMES = {
    "qwen3_moe": ("mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
    "mixtral": ("block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}),
}


def configuration(args: argparse.Namespace) -> dict:
    common = {
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "head_dim": args.head_dim,
        "hidden_act": "silu",
        "hidden_size": args.hidden,
        "initializer_range": 0.02,
        "max_position_embeddings": CONTEXT,
        "num_attention_heads": args.heads,
        "num_experts_per_tok": args.top_k,
        "num_hidden_layers": args.layers,
        "num_key_value_heads": args.kv_heads,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "router_aux_loss_coef": args.balance,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCABULARY,
    }
    if args.family == "mixtral":
        return common | {
            "architectures": ["MixtralForCausalLM"],
            "intermediate_size": args.width,
            "model_type": "mixtral",
            "num_local_experts": args.experts,
        }
    return common | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "intermediate_size": args.width * args.top_k,
        "mlp_only_layers": [],
        "model_type": "qwen3_moe",
        "moe_intermediate_size": args.width,
        "norm_topk_prob": True,
        "num_experts": args.experts,
        "use_sliding_window": False,
    }


def write(model: Model, args: argparse.Namespace) -> None:
    """The checkpoint, laid out and named as on the hub."""
    tensors = {
        "model.embed_tokens.weight": model.embedding.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.head.weight,
    }
    block, names = NAMES[args.family]
    for number, layer in enumerate(model.layers):
        at = f"model.layers.{number}"
        tensors |= {
            f"{at}.input_layernorm.weight": layer.before_attention.weight,
            f"{at}.post_attention_layernorm.weight": layer.before_experts.weight,
            f"{at}.{block}.gate.weight": layer.router.weight,
        }
        if args.family == "qwen3_moe":
            tensors |= {
                f"{at}.self_attn.q_norm.weight": layer.q_norm.weight,
                f"{at}.self_attn.k_norm.weight": layer.k_norm.weight,
            }
        for name in "qkvo":
            tensors[f"{at}.self_attn.{name}_proj.weight"] = getattr(layer, name).weight
        for expert in range(args.experts):
            gate, up = layer.gate_up[expert].t().chunk(2, 0)
            for name, weight in (("gate", gate), ("up", up), ("down", layer.down[expert].t())):
                tensors[f"{at}.{block}.experts.{expert}.{names[name]}.weight"] = weight
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    end = "<|endoftext|>"
    small = {
        "config.json": configuration(args),
        "generation_config.json": {"bos_token_id": 0, "do_sample": True, "eos_token_id": 0, "max_new_tokens": 300, "temperature": 0.8},
        "tokenizer_config.json": {
            "bos_token": end,
            "clean_up_tokenization_spaces": False,
            "eos_token": end,
            "model_max_length": CONTEXT,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    for name, value in small.items():
        (args.out / name).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
    shutil.copyfile(args.tokenizer, args.out / "tokenizer.json")


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    draw = numpy.random.default_rng(args.seed)
    ids = numpy.memmap(args.data, dtype=numpy.uint16, mode="r")
    held = min(HELD_OUT, len(ids) // 10)
    ids, held_out = ids[:-held], ids[-held:]
    if held <= 2 * args.length:
        raise SystemExit(f"{args.data} has too few tokens for rows of {args.length}; give more text, or less --length")

    model = Model(args)
    print(f"{sum(parameter.numel() for parameter in model.parameters())} parameters", flush=True)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=BETAS, fused=True)

    started = last = saved = time.monotonic()
    trained, step, average = 0.0, 0, None
    while args.steps is None or step < args.steps:
        now = time.monotonic()
        trained, last = trained + min(now - last, LONGEST_STEP), now
        share = trained / (args.minutes * 60)
        if share >= 1:
            break
        cosine = 0.5 * (1 + math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1, (step + 1) / WARMUP_STEPS) * (LEAST_RATE + (1 - LEAST_RATE) * cosine)
        starts = draw.integers(0, len(ids) - args.length - 1, args.batch)
        x, y = rows(ids, starts, args.length)
        with torch.autocast("cpu", torch.bfloat16):
            logits, imbalance = model(x)
            loss = loss_of(logits, y)
        (loss + args.balance * imbalance).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        if step % 50 == 0 or step < 4:
            rate = step * x.numel() / (time.monotonic() - started)
            print(f"step {step}: loss {average:.3f}, imbalance {imbalance.item():.3f}, {rate:.0f} tokens/s", flush=True)
        if now - saved > SAVE_SECONDS:
            write(model, args)
            print(f"validation loss {validation(model, held_out, args.length):.3f}", flush=True)
            saved = now
    write(model, args)
    print(f"validation loss {validation(model, held_out, args.length):.3f} after {step} steps", flush=True)


if __name__ == "__main__":
    main()
