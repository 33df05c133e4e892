"""Files of llama.cpp's converter for architectures that the tests do not convert themselves, with goldens.

    python gguf_converted.py LLAMA_CPP [ARCHITECTURE..]

LLAMA_CPP is a source tree of llama.cpp, as for `gguf_files.py`. Writes `gguf/ARCHITECTURE`: a file made of a checkpoint
like those of `generate.py`, and what transformers computes with that checkpoint.
"""

import json
import logging
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent

# For each architecture the variant of `generate.py`; options that files have keys for, or that llama.cpp takes for
# granted; and entries that only the converter reads.
FILES = {
    "deepseek4": ("deepseek_v4_fp4", {}, {}),
    "qwen4exp": ("qwen4_exp", {"text_config": {"output_gate_type": "sigmoid", "ple_layer_ids": [3]}}, {}),
    "llama4": (
        "llama4_text",
        {
            "attention_chunk_size": 8192,
            "attn_scale": 0.1,
            "floor_scale": 8192,
            "interleave_moe_layer_step": 2,
            "moe_layers": [1, 3],
            "no_rope_layers": [1, 1, 1, 0],
        },
        {},
    ),
    "granitehybrid": ("granitemoehybrid", {}, {}),
    "minimax-m3": ("minimax_m3", {"text_config": {"shared_intermediate_size": 17, "swiglu_limit": 7.0}}, {}),
    "nemotron_h_moe": ("nemotron_h_latent", {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_group": 1, "use_bias": False}, {}),
    "kimi-linear": ("kimi_linear", {}, {}),
    "bailingmoe": ("bailing_moe", {}, {}),
    "bailingmoe2": ("bailing_moe_v2", {}, {}),
    "afmoe": (
        "afmoe",
        {"global_attn_every_n_layers": 4, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
        {},
    ),
    "step35": ("step3p7", {}, {}),
    "mimo2": (
        "mimo_v2_flash",
        {"sliding_window": 9},
        {
            # Transformers counts the query itself.
            "sliding_window": 8,
            "hybrid_layer_pattern": [0, 1, 1, 0],
            "layernorm_epsilon": 1e-5,
            "moe_layer_freq": [0, 1, 1, 1],
            "partial_rotary_factor": 0.334,
            "rope_parameters": None,
            "rope_theta": 5000000.0,
            "scoring_func": "sigmoid",
            "swa_head_dim": 18,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "swa_rope_theta": 10000.0,
            "swa_v_head_dim": 13,
            "topk_method": "noaux_tc",
        },
    ),
    "laguna": (
        "laguna",
        {
            "layer_types": ["full_attention"] + ["sliding_attention"] * 3,
            "num_attention_heads_per_layer": [4, 6, 6, 6],
        },
        {},
    ),
    "cohere2moe": ("cohere2_moe", {}, {"layer_types": (["full_attention", "sliding_attention"] * 3)[:5]}),
    "glm5-next": ("glm5_next", {}, {"text_config": {"mhc": True, "mla_use_nope": True}}),
    "bailingmoe3": (
        "bailing_hybrid_limits",
        {},
        {
            "architectures": ["BailingMoeV3ForCausalLM"],
            "gated_attention_proj_granularity_type": "head_wise",
            "moe_shared_expert_intermediate_size": 17,
        },
    ),
    "mellum": ("mellum", {"mlp_layer_types": ["sparse"] * 4}, {}),
    "mistral4": (
        "mistral4",
        {
            "rope_parameters": {
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "factor": 8.0,
                "llama_4_scaling_beta": 0.1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "original_max_position_embeddings": 16,
                "partial_rotary_factor": 0.4,
                "rope_theta": 10000.0,
                "rope_type": "yarn",
            }
        },
        {"architectures": ["Mistral3ForConditionalGeneration"]},
    ),
    "muse-glimmer": ("muse_glimmer", {}, {}),
    "hy_v3": ("hy_v3", {}, {}),
    "hy_v4": ("hy_v4", {}, {}),
    "dots3note": (
        "dots3_note",
        {
            "moe_layer_freq": 1,
            "moe_shared_expert_intermediate_size": 17,
            "swa_head_dim": 18,
            "swa_q_lora_rank": 26,
            "swa_qk_rope_head_dim": 6,
        },
        {"apply_mla_qkv_lora_rescale": True, "scoring_func": "sigmoid"},
    ),
    "exaone-moe": ("exaone_moe", {}, {}),
    # Rows of whole blocks.
    "qwen3moe": (
        "qwen3_moe_nvfp4",
        {"head_dim": 32, "hidden_size": 64, "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2},
        {},
    ),
}


def in_bf16(folder):
    """Writes matrices in fp8 as the same numbers in bf16, since the converter would round them to Q8_0."""
    import torch
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name, tensor in tensors.items() if tensor.dtype == torch.float8_e4m3fn]:
        scales = tensors.pop(name.removesuffix(".weight") + ".scale").float()
        rows, cols = tensors[name].shape
        scales = scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :cols]
        exact = tensors[name].float() * scales
        tensors[name] = exact.bfloat16()
        assert torch.equal(tensors[name].float(), exact)
    save_file(tensors, path, {"format": "pt"})


def merged(config, changes):
    both = [key for key, value in changes.items() if isinstance(value, dict) and isinstance(config.get(key), dict)]
    return config | changes | {key: merged(config[key], changes[key]) for key in both}


def convert(tree, folder, out):
    """Runs in a process of its own, as the converter's tables keep what one architecture changes in them."""
    sys.path[:0] = [str(tree / "gguf-py"), str(tree)]
    import gguf
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class

    logging.disable(logging.INFO)
    # The entries as published, which transformers would spell otherwise.
    entries = json.loads((folder / "config.json").read_text())
    ModelBase.load_hparams = staticmethod(lambda *_, **__: dict(entries))
    model = get_model_class(get_model_architecture(dict(entries), ModelType.TEXT))
    # Layers of multi-token prediction are not whole in goldens.
    model.no_mtp = True
    model = model(folder, gguf.LlamaFileType.MOSTLY_BF16, out, eager=True)
    # Some converters are two, by the configuration.
    model = getattr(model, "impl", model)
    rows = model.hparams["vocab_size"]

    def set_vocab():
        model.gguf_writer.add_tokenizer_model("gpt2")
        model.gguf_writer.add_tokenizer_pre("gpt-2")
        model.gguf_writer.add_token_list([f"t{id}" for id in range(rows)])
        model.gguf_writer.add_eos_token_id(2)

    model.set_vocab = set_vocab
    model.write()


def main(tree, only):
    import transformers
    import torch
    from generate import VARIANTS, generate
    from variants import changed

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    for architecture, (name, options, for_converter) in FILES.items():
        if only and architecture not in only:
            continue
        with tempfile.TemporaryDirectory() as temp:
            folder = Path(temp) / "checkpoint"
            variant = next(variant for variant in VARIANTS if variant.name == name)
            first_seed = json.loads((HERE / name / "facts.json").read_text())["seed"] if not options else 1
            generate(replace(variant, config=changed(variant.config, options), controls=[], long=0), folder, first_seed)
            if architecture == "deepseek4":
                in_bf16(folder)
            config = merged(json.loads((folder / "config.json").read_text()), for_converter)
            config = {key: value for key, value in config.items() if value is not None or key not in for_converter}
            (folder / "config.json").write_text(json.dumps(config))
            out = HERE / "gguf" / architecture
            out.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, __file__, str(tree), "--convert", str(folder), str(out / "model.gguf")]
            subprocess.run(command, check=True)
            shutil.copy(folder / "golden.safetensors", out)
        print(architecture, flush=True)


if __name__ == "__main__":
    tree = Path(sys.argv[1])
    if sys.argv[2:3] == ["--convert"]:
        convert(tree, Path(sys.argv[3]), Path(sys.argv[4]))
    else:
        main(tree, sys.argv[2:])
