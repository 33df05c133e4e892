"""What llama.cpp's converter makes of goldens: the keys of its files, and their tensors as hashes.

    python gguf_files.py LLAMA_CPP

LLAMA_CPP is a source tree of llama.cpp (its converter of 2026-10 was used) with the packages its
converter needs. Writes `gguf_files.json`. Tests compare it with the files that they convert themselves.
"""

import json
import logging
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# One for each architecture.
NAMES = """deepseek_v2 deepseek_v3 deepseek_v32 dots1 ernie4_5_moe gemma2 gemma3_text gemma4_text
glm4_moe glm_moe_dsa gpt_oss granitemoe hunyuan_v1_moe lfm2_moe minimax_m2 mixtral olmoe qwen2
qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_moe qwen3_next smollm3""".split()


def adapted(name, config):
    """Options as published models have them, where files have no keys for them or the converter looks for them."""
    if name in ("gemma2", "gemma3_text"):
        config["query_pre_attn_scalar"] = config["head_dim"]
    if name == "gemma3_text":
        config["sliding_window_pattern"] = 6
    if name == "dots1":
        config["scoring_func"] = "sigmoid"
    if name == "hunyuan_v1_moe":
        layers = config["num_hidden_layers"]
        config["rope_scaling"] = None
        config["moe_intermediate_size"] = [config["intermediate_size"]] * layers
        config["num_shared_expert"] = [1] * layers
        if not isinstance(config["moe_topk"], list):
            config["moe_topk"] = [config["moe_topk"]] * layers
    return config


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def convert(name, dir, out):
    hparams = ModelBase.load_hparams(dir, False)
    model = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
    # Layers of multi-token prediction are not whole in goldens.
    model.no_mtp = True
    model = model(dir, gguf.LlamaFileType.MOSTLY_BF16, out, eager=True)
    model.set_vocab = lambda: model.gguf_writer.add_eos_token_id(2)
    model.write()


def described(path):
    file = gguf.GGUFReader(path)
    own = file.fields["general.architecture"].contents() + "."
    keys = {name: field.contents() for name, field in file.fields.items() if name.startswith(own)}
    tensors = {}
    for tensor in file.tensors:
        # Its numbers are powers of e, whose last bits are the converter's own.
        hashed = "" if tensor.name.endswith("ssm_a") else f" {fnv(tensor.data.tobytes()):016x}"
        shape = "x".join(str(dim) for dim in reversed(tensor.shape.tolist()))
        tensors[tensor.name] = f"{tensor.tensor_type.name} {shape}{hashed}"
    return {"architecture": own[:-1], "keys": keys, "tensors": tensors}


tree = Path(sys.argv[1])
sys.path[:0] = [str(tree / "gguf-py"), str(tree)]
import gguf
from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

logging.disable(logging.INFO)
found = {}
for name in NAMES:
    with tempfile.TemporaryDirectory() as temp:
        dir = Path(temp) / name
        shutil.copytree(HERE / name, dir)
        config = adapted(name, json.loads((dir / "config.json").read_text()))
        (dir / "config.json").write_text(json.dumps(config))
        # The converter of Gemma 3 counts tokens.
        vocab = {f"t{id}": id for id in range(config.get("text_config", config)["vocab_size"])}
        (dir / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
        convert(name, dir, Path(temp) / "model.gguf")
        found[name] = described(Path(temp) / "model.gguf")
(HERE / "gguf_files.json").write_text(json.dumps(found, indent=1) + "\n")
