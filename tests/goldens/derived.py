"""The tensors of a checkpoint as transformers itself names and shapes them, with a distribution for each name."""

import copy
import re
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors import safe_open

from variants import Tensor, Variant, text

# The gain of a matrix by its name (see `tensors` in variants.py); the first pattern that matches counts.
ROUTER = r"(mlp|moe|feed_forward|router|mixer)\.(gate|wg|router|layer|proj|router\.gate|gate\.wg|router\.classifier)(\.weight)?$"
BACK = r"(o_proj|down_proj|w2|output_linear|dense|out_proj)(\.weight)?$"
SHARED_GATE = r"shared_expert_gate"
LOGIT_GAIN = 1.3

# Transformers uses these within models that also read images, and has no entry for their text alone.
for config, model in (
    (transformers.Mistral4Config, transformers.Mistral4ForCausalLM),
    (transformers.MistralLarge4Config, transformers.MistralLarge4ForConditionalGeneration),
    (transformers.Step3p7Config, transformers.Step3p7ForConditionalGeneration),
    (transformers.MuseGlimmerConfig, transformers.MuseGlimmerForConditionalGeneration),
    (transformers.MuseSparkConfig, transformers.MuseSparkForConditionalGeneration),
    (transformers.Qwen4ExpConfig, transformers.Qwen4ExpForConditionalGeneration),
    (transformers.InklingConfig, transformers.InklingForConditionalGeneration),
    (transformers.Inkling2Config, transformers.Inkling2ForConditionalGeneration),
    (transformers.Inkling2LoopConfig, transformers.Inkling2LoopForConditionalGeneration),
    (transformers.Glm5NextConfig, transformers.Glm5NextForConditionalGeneration),
    (transformers.MiniMaxM3VLConfig, transformers.MiniMaxM3SparseForConditionalGeneration),
):
    transformers.AutoModelForCausalLM.register(config, model, exist_ok=True)


def published(name: str) -> str:
    """A name that transformers writes, as the hub has it: what renames experts also reaches dense layers."""
    name = re.sub(r"\.block_sparse_moe\.((gate|up|down)_proj)\.", r".mlp.\1.", name)
    # Of Hy4, what renames gates of attention, and parts of names of streams in another order.
    name = re.sub(r"\.mlp\.(shared_experts\.)?linear_gate\.", r".mlp.\1gate_proj.", name)
    return re.sub(r"\.hc_pre\.(hc_attn_layer|hc_mlp_layer)\.", r".\1.hc_pre.", name).replace(".hc_pre.hc_head.", ".hc_head.")


def derived(variant: Variant) -> dict[str, Tensor]:
    """Every tensor of the model that the config describes, in the order of their names."""
    config = transformers.AutoConfig.for_model(**copy.deepcopy(variant.config))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "pt") as file:
            shapes = {published(name): tuple(file.get_slice(name).get_shape()) for name in file.keys()}
            whole = {name: file.get_tensor(name) for name in file.keys() if file.get_slice(name).get_dtype() == "I64"}
    # Numbers by which n-grams are hashed follow from the configuration.
    known = {name: Tensor(shapes[name], 0.0, whole=tuple(numbers.tolist())) for name, numbers in whole.items()}
    return {name: known.get(name) or drawn_as(variant, name, shapes[name]) for name in sorted(shapes)}


def drawn_as(variant: Variant, name: str, shape: tuple[int, ...]) -> Tensor:
    f32 = any(re.search(pattern, name) for pattern in variant.f32)
    tied = text(variant.config).get("tie_word_embeddings", False)
    if re.search(r"(correction_bias|expert_bias|router_bias)$", name):
        return Tensor(shape, 0.15, f32=f32)
    if re.search(r"ssmax_scaling\.[sb]$", name):
        # Queries of all heads that grow by some tenths.
        return Tensor(shape, 0.1, mean=float(name.endswith("b")), f32=f32)
    if re.search(r"attn_res\.|static_w$", name):
        # Queries for mixes of states, and weights of convolutions by tap.
        return Tensor(shape, 0.5 if name.endswith("static_w") else 1.5, f32=f32)
    if re.search(r"middle_cycle|controllers\.", name):
        # Messages between rounds, which rounds would amplify.
        return Tensor(shape, 0.7 if "middle" in name else 0.35 / shape[-1] ** 0.5, f32=f32)
    if name.endswith(("layer_scalar", "per_expert_scale", "router.scale", "global_scale", "l2_clip.scale")):
        return Tensor(shape, 0.2, mean=1.0, f32=f32)
    if name.endswith("A_log"):
        # States that last for some ten tokens.
        return Tensor(shape, 0.5, mean=-2.0, f32=f32)
    if re.search(r"hc_(\w+_)?(fn|base|scale)$|_hc\.(fn|base|scale)$", name):
        # Weights of residual streams.
        if len(shape) == 2:
            return Tensor(shape, 1.0 / shape[-1] ** 0.5, f32=f32)
        return Tensor(shape, 0.2, mean=1.0, f32=f32) if name.endswith("scale") else Tensor(shape, 0.5, f32=f32)
    if name.endswith("compress_ape"):
        return Tensor(shape, 0.5, f32=f32)
    if len(shape) == 1:
        if variant.scaled and name in ("model.norm.weight", "model.language_model.norm.weight"):
            # The head is small, so that the embedding does not outweigh the layers.
            return Tensor(shape, 0.2, mean=shape[0] ** 0.5 + variant.norm_mean - 1.0)
        if re.search(r"norm", name) and name.endswith("weight"):
            # Those of delta nets, and the last of Muse, are never one plus the weights.
            plain = name.endswith("linear_attn.norm.weight") or variant.name.startswith("muse") and name.endswith("model.norm.weight")
            mean = 1.0 if plain else variant.norm_mean
            return Tensor(shape, 0.2, mean=mean, f32=f32)
        return Tensor(shape, 1.0 if name.endswith(("sinks", "sink_param", "softmax_offset")) else 0.3, mean=float(name.endswith(".D")), f32=f32)
    columns = shape[-1]
    if name.endswith("embed_tokens_per_layer.weight"):
        # Rows are multiplied by the root of the part of a layer, and added to what is normed.
        return Tensor(shape, text(variant.config)["hidden_size_per_layer_input"] ** -0.5)
    if re.search(r"embed_tokens|word_embeddings|embeddings\.weight", name):
        gain = LOGIT_GAIN / columns**0.5 if tied else 1.0
        return Tensor(shape, gain / columns**0.5 if variant.scaled else gain)
    gain = 1.4
    if re.search(r"lm_head", name):
        gain = LOGIT_GAIN
    elif re.search(SHARED_GATE, name):
        gain = 1.0
    elif re.search(ROUTER, name):
        gain = variant.router_std
    elif re.search(BACK, name):
        gain = 0.8 if tied else 1.2
    return Tensor(shape, gain / columns**0.5, f32=f32)
