"""Writes a checkpoint made by `sws-bench random` or `inflate` (Mixtral or Qwen3-MoE) as GGUF.

    pip install gguf
    python benchmarks/to_gguf.py CHECKPOINT OUT.gguf --type bf16

llama.cpp's converter wants a tokenizer that random weights have not, or one it knows, and torch. The tensors are laid
out as it does; the rows of queries and keys stay in their order, on which no speed depends.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np

BF16, F32 = gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F32


class Checkpoint:
    """The tensors of all safetensors files of a directory, mapped."""

    def __init__(self, path):
        self.tensors = {}
        for file in sorted(path.glob("*.safetensors")):
            with open(file, "rb") as opened:
                length = int.from_bytes(opened.read(8), "little")
                header = json.loads(opened.read(length))
            mapped = np.memmap(file, np.uint8, "r", 8 + length)
            for name, entry in header.items():
                if name != "__metadata__":
                    assert entry["dtype"] == "BF16", name
                    start, end = entry["data_offsets"]
                    data = mapped[start:end].view(np.uint16)
                    self.tensors[name] = data.reshape(entry["shape"])

    def __getitem__(self, name):
        return self.tensors[name]


def plan(config, experts):
    """Names in the file, each with the tensors that are stacked in it; a string stands alone."""
    yield "token_embd.weight", "model.embed_tokens.weight"
    mixtral = config["model_type"] == "mixtral"
    block, names = ("block_sparse_moe", "w1 w3 w2") if mixtral else ("mlp", "gate_proj up_proj down_proj")
    for layer in range(config["num_hidden_layers"]):
        ours, theirs = f"model.layers.{layer}.", f"blk.{layer}."
        plain = {
            "attn_norm": "input_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_gate_inp": f"{block}.gate",
        }
        if not mixtral:
            plain |= {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
        for their, our in plain.items():
            yield f"{theirs}{their}.weight", f"{ours}{our}.weight"
        for their, our in zip(["gate", "up", "down"], names.split()):
            stacked = [f"{ours}{block}.experts.{e}.{our}.weight" for e in range(experts)]
            yield f"{theirs}ffn_{their}_exps.weight", stacked
    yield "output_norm.weight", "model.norm.weight"
    yield "output.weight", "lm_head.weight"


def add_tokenizer(writer, file, config):
    """The tokenizer, if there is one: a byte-level BPE that splits as GPT-2 does."""
    if not file.exists():
        return writer.add_tokenizer_model("none")
    tokenizer = json.loads(file.read_text())
    assert tokenizer["model"]["type"] == "BPE" and tokenizer["pre_tokenizer"]["type"] == "ByteLevel"
    special = {token["id"] for token in tokenizer["added_tokens"]}
    vocab = {id: word for word, id in tokenizer["model"]["vocab"].items()}
    vocab |= {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    words = [vocab.get(id, f"[unused{id}]") for id in range(config["vocab_size"])]
    types = [gguf.TokenType.CONTROL if id in special else gguf.TokenType.NORMAL for id in range(len(words))]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(words)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=["bf16", "f32"], default="bf16")
    arguments = parser.parse_args()
    config = json.loads((arguments.checkpoint / "config.json").read_text())
    checkpoint = Checkpoint(arguments.checkpoint)
    mixtral = config["model_type"] == "mixtral"
    experts = config["num_local_experts" if mixtral else "num_experts"]
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads

    writer = gguf.GGUFWriter(arguments.out, "llama" if mixtral else "qwen3moe")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if not mixtral:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_vocab_size(config["vocab_size"])
    add_tokenizer(writer, arguments.checkpoint / "tokenizer.json", config)

    tensors = []
    for name, sources in plan(config, experts):
        parts = [checkpoint[s] for s in ([sources] if isinstance(sources, str) else sources)]
        shape = parts[0].shape if isinstance(sources, str) else (len(parts), *parts[0].shape)
        # Norms and routers are small, and the converter widens them too.
        wide = arguments.type == "f32" or len(shape) == 1 or "ffn_gate_inp" in name
        size = int(np.prod(shape)) * (4 if wide else 2)
        dtype = np.dtype(np.float32 if wide else np.uint16)
        writer.add_tensor_info(name, shape, dtype, size, F32 if wide else BF16)
        tensors.append((parts, shape, wide))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for parts, shape, wide in tensors:
        data = np.stack(parts).reshape(shape)
        if wide:
            data = (data.astype(np.uint32) << 16).view(np.float32)
        writer.write_tensor_data(data)
    writer.close()


if __name__ == "__main__":
    main()
