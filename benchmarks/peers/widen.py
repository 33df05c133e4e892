"""Widens the hidden size of a Qwen3-MoE checkpoint four times without changing its function.

    python benchmarks/peers/widen.py CHECKPOINT OUT

llama.cpp's Q4_K packs 256 weights of a row, and tales-moe has rows of 192, which llama-quantize would store in other
formats. The added hidden values are always zero: what writes them has zero rows, and what reads them has random
columns, so that their blocks are quantised as trained ones are. A norm then divides by half the root mean square,
which its weights, halved, make up for. No step rounds differently, but for sums in another order.
"""

import argparse
import json
import shutil
from pathlib import Path

import numpy as np

TIMES = 4
READERS = ["embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "mlp.gate", "gate_proj", "up_proj"]
WRITERS = ["o_proj", "down_proj"]
NORMS = ["input_layernorm", "post_attention_layernorm", "model.norm"]


def to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values):
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widened(name, bits, random):
    """The tensor in bf16 bits with four times the hidden size."""
    of = name.removesuffix(".weight")
    if any(of.endswith(end) for end in NORMS):
        return np.tile(to_bf16(to_f32(bits) / 2), TIMES)
    if any(of.endswith(end) for end in WRITERS):
        return np.concatenate([bits, np.zeros((bits.shape[0] * (TIMES - 1), bits.shape[1]), np.uint16)])
    if any(of.endswith(end) for end in READERS):
        added = (bits.shape[0], bits.shape[1] * (TIMES - 1))
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
    arguments = parser.parse_args()
    config = json.loads((arguments.checkpoint / "config.json").read_text())
    if config["model_type"] != "qwen3_moe" or config["tie_word_embeddings"]:
        raise SystemExit(f"`{arguments.checkpoint}` is no Qwen3-MoE with an output matrix of its own")
    config["hidden_size"] *= TIMES
    config["rms_norm_eps"] /= TIMES

    random = np.random.default_rng(0)
    header, parts, offset = {}, [], 0
    for name, bits in load(arguments.checkpoint):
        bits = widened(name, bits, random)
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
