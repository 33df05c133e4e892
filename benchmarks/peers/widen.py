"""Widens the hidden size of a Qwen3-MoE or Mixtral checkpoint without changing its function.

    python benchmarks/peers/widen.py CHECKPOINT OUT [--times 4]

llama.cpp's Q4_K packs 256 weights of a row, and tales-moe has rows of 192, which llama-quantize would store in other
formats. The added hidden values are always zero: what writes them has zero rows, and what reads them has random
columns, so that their blocks are quantised as trained ones are. A norm of a state four times as wide divides by half
the root mean square, which its weights, halved, make up for. No step rounds differently, but for sums in another order.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np

# Powers of four, whose roots divide without rounding.
TIMES = [4, 16, 64]
ATTENTION = ["embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj"]
READERS = [*ATTENTION, "mlp.gate", "gate_proj", "up_proj", "block_sparse_moe.gate", ".w1", ".w3"]
WRITERS = ["o_proj", "down_proj", ".w2"]
NORMS = ["input_layernorm", "post_attention_layernorm", "model.norm"]


def to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widened(name, bits, times, random):
    """The tensor in bf16 bits with so many times the hidden size."""
    of = name.removesuffix(".weight")
    if any(of.endswith(end) for end in NORMS):
        return np.tile(to_bf16(to_f32(bits) / np.float32(times**0.5)), times)
    if any(of.endswith(end) for end in WRITERS):
        return np.concatenate([bits, np.zeros((bits.shape[0] * (times - 1), bits.shape[1]), np.uint16)])
    if any(of.endswith(end) for end in READERS):
        added = (bits.shape[0], bits.shape[1] * (times - 1))
        if of.endswith("embed_tokens"):
            columns = np.zeros(added, np.uint16)
        else:
            scale = np.sqrt(np.mean(to_f32(bits).astype(np.float64) ** 2))
            columns = to_bf16(random.standard_normal(added, np.float32) * scale)
        return np.concatenate([bits, columns], axis=1)
    return bits


def load(directory):
    """Every tensor of a bf16 checkpoint, as bits."""
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                if entry["dtype"] != "BF16":
                    raise SystemExit(f"`{name}` is {entry['dtype']}; name a checkpoint in bf16")
                start, end = (8 + length + offset for offset in entry["data_offsets"])
                yield name, np.frombuffer(data[start:end], np.uint16).reshape(entry["shape"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, choices=TIMES, default=4)
    arguments = parser.parse_args()
    times = arguments.times
    config = json.loads((arguments.checkpoint / "config.json").read_text())
    if config["model_type"] not in ["qwen3_moe", "mixtral"] or config.get("tie_word_embeddings"):
        raise SystemExit(f"`{arguments.checkpoint}` is no Qwen3-MoE or Mixtral with an output matrix of its own")
    if not config.get("head_dim"):
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    config["hidden_size"] *= times
    config["rms_norm_eps"] /= times

    random = np.random.default_rng(0)
    header, parts, offset = {}, [], 0
    for name, bits in load(arguments.checkpoint):
        bits = widened(name, bits, times, random)
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": [offset, offset + bits.nbytes]}
        offset += bits.nbytes
        parts.append(bits)
    arguments.out.mkdir()
    words = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    words += b" " * (-len(words) % 8)
    with open(arguments.out / "model.safetensors", "wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        for part in parts:
            file.write(part.tobytes())
    (arguments.out / "config.json").write_text(json.dumps(config, indent=1))
    for path in arguments.checkpoint.glob("*.json"):
        if path.name not in ["config.json", "model.safetensors.index.json"]:
            shutil.copy(path, arguments.out)


if __name__ == "__main__":
    main()
