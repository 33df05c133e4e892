#!/usr/bin/env python3
"""Writes tiny random checkpoints, laid out as on the hub, and what transformers computes with them, or specified.py.

    python generate.py                    # all variants, into this folder
    python generate.py --only mixtral     # one of them
    python generate.py --out DIR --seed N # other weights, elsewhere

Needs the packages that README.md pins. The same packages on the same kind of machine give the same bytes.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

from blocks import BLOCKS
from derived import derived, published
from further import FURTHER
from gemma import GEMMA
from grouped import GROUPED
from inkling import INKLINGS
from latents import LATENTS
from ling import LING
from long import long_text
from ngrams import NGRAMS
from patched import depth, layers_of, readable, visits_of
from quantised import quantised
from recurrent import RECURRENT
from specified import SPECIFIED, compare, is_specified, load_specified
from streams import STREAMS
from variants import VARIANTS as FIRST
from variants import Config, Tensor, Variant, changed, tensors, text
from watched import Choice, Selection, indexers_watched, load, routers, routers_watched

VARIANTS: list[Variant] = FIRST + GROUPED + RECURRENT + STREAMS + FURTHER + LING + BLOCKS + GEMMA + NGRAMS + INKLINGS + LATENTS + SPECIFIED

HERE = Path(__file__).resolve().parent

GREEDY = 24
# Below this distance between the chosen and the first not chosen, honest rounding could choose otherwise.
GAP = 1e-3
# What a control (see `Variant.controls`) must move some logit by: a thousand times what a comparison lets pass.
VISIBLE = 0.1
# The agreement asked of transformers with itself, with and without a KV cache.
AGREEMENT = 1e-5
# Below this distance between the last position selected and the first not selected, rounding could select otherwise.
INDEX_GAP = 1e-4
# A model that repeats one token for ever tests little of its decoding.
DISTINCT = 10
# Tensors of images, and of tokens predicted ahead.
IGNORED = (
    "model.audio.",
    "model.audio_",
    "model.vision_",
    "model.visual.",
    "mtp.",
    "multi_modal_projector.",
    "patch_merger.",
    "patch_merge_mlp.",
    "pre_mm_projector_norm.",
    "vision_encoder.",
    "vision_language_adapter.",
    "vision_model.",
    "vision_tower.",
    "vit_large_projector.",
)
SEEDS_TRIED = 3000


class Unsuitable(Exception):
    """These weights make a poor test; another seed may do."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE, help="folder that gets one folder for each variant")
    parser.add_argument("--only", metavar="NAME", action="append", choices=[v.name for v in VARIANTS])
    parser.add_argument("--seed", type=int, default=1, help="first seed tried; the first suitable one is used")
    args = parser.parse_args()

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_grad_enabled(False)
    # Sums are split by thread; one thread gives the same bits on every run.
    torch.set_num_threads(1)

    args.out.mkdir(parents=True, exist_ok=True)
    compare()
    for variant in VARIANTS:
        if args.only and variant.name not in args.only:
            continue
        facts = generate(variant, args.out / variant.name, args.seed)
        print(variant.name, json.dumps(facts), flush=True)
    (args.out / "facts.md").write_text(facts_table(args.out))


def generate(variant: Variant, folder: Path, first_seed: int) -> Config:
    """Writes `folder` from the first seed whose weights suit, and returns the facts about them."""
    table = (variant.table or (derived if variant.derived else tensors))(variant)
    for seed in range(first_seed, first_seed + SEEDS_TRIED):
        draw = numpy.random.RandomState(seed)  # its stream is frozen: the weights are the same with every numpy
        weights = {name: drawn(draw, tensor) for name, tensor in table.items()}
        prompt = torch.from_numpy(draw.randint(0, text(variant.config)["vocab_size"], variant.tokens).astype(numpy.int64))
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint = Path(scratch) / "checkpoint"
            stored, exact = quantised(variant.quantised, weights) if variant.quantised else (weights, weights)
            config = {key: value for key, value in variant.config.items() if key != "quantization_config"}
            write_checkpoint(checkpoint, config, exact, variant.files)
            try:
                golden, facts = measure(variant, checkpoint, prompt)
            except Unsuitable:
                continue
            if variant.quantised:
                shutil.rmtree(checkpoint)
                write_checkpoint(checkpoint, variant.config, stored, variant.files)
            elif not variant.table:
                check_layout(variant.name, checkpoint, used(weights))
            if variant.long:
                ids = numpy.random.RandomState(variant.long).randint(0, text(variant.config)["vocab_size"], variant.long)
                longer = long_text(load(checkpoint), torch.from_numpy(ids.astype(numpy.int64)))
                save_file(longer, checkpoint / "long.safetensors")
            save_file(golden, checkpoint / "golden.safetensors")
            facts = {"seed": seed} | facts
            write_json(checkpoint / "facts.json", facts)
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(checkpoint, folder)
        return facts
    raise SystemExit(f"{variant.name}: none of {SEEDS_TRIED} seeds suits; look at the gains in variants.py")


def drawn(draw: numpy.random.RandomState, tensor: Tensor) -> torch.Tensor:
    if tensor.ids:
        rows, columns = tensor.shape
        return torch.from_numpy(numpy.stack([draw.permutation(tensor.ids)[:columns] for _ in range(rows)]).astype(numpy.int64))
    if tensor.whole:
        return torch.tensor(tensor.whole, dtype=torch.int64)
    values = torch.from_numpy(draw.normal(tensor.mean, tensor.std, tensor.shape)).to(torch.bfloat16)
    return values.float() if tensor.f32 else values


def write_checkpoint(folder: Path, config: Config, weights: dict[str, torch.Tensor], files: int) -> None:
    """One `model.safetensors`, or `files` of them and an index."""
    folder.mkdir()
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation_config(config))
    metadata = {"format": "pt"}
    if files == 1:
        save_file(weights, folder / "model.safetensors", metadata)
        return
    total = sum(tensor.nbytes for tensor in weights.values())
    weight_map: dict[str, str] = {}
    parts: list[dict[str, torch.Tensor]] = [{} for _ in range(files)]
    written = 0
    for name, tensor in weights.items():
        part = written * files // total  # by bytes, so that layers and even experts straddle the files
        parts[part][name] = tensor
        weight_map[name] = f"model-{part + 1:05}-of-{files:05}.safetensors"
        written += tensor.nbytes
    for part, held in enumerate(parts):
        save_file(held, folder / f"model-{part + 1:05}-of-{files:05}.safetensors", metadata)
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def generation_config(config: Config) -> Config:
    ours = {key: (config | text(config))[key] for key in ("bos_token_id", "eos_token_id", "transformers_version")}
    if config["model_type"].startswith("qwen"):
        return ours | {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8}
    return ours | {"_from_model_config": True}


def measure(variant: Variant, checkpoint: Path, prompt: torch.Tensor) -> tuple[dict[str, torch.Tensor], Config]:
    """Runs the checkpoint in float32, refuses weights that would make a poor test, and returns goldens and facts."""
    config = json.loads((checkpoint / "config.json").read_text())
    model = load(checkpoint)
    layers = visits_of(model, [layers_of(model, name) for name, _ in routers(model)])

    with routers_watched(model) as routed, indexers_watched(model) as selected:
        logits = forward(model, prompt)
    check_suits(index_gap(selected) > INDEX_GAP)
    routes, facts = torch.empty(0), {}
    if layers:
        routes = torch.stack([readable(model, choice.chosen) for choice in routed])
        if routes.shape[:2] != (len(layers), len(prompt)):
            raise SystemExit(f"{variant.name}: transformers routes {routes.shape}, expected layers {layers}")
        check_suits(router_gap(routed) > GAP)
        check_suits(all(len(choice.chosen.unique()) == choice.ranks.shape[1] for choice in routed))
    check_suits(argmax_gap(logits) > GAP)
    check_suits(2.0 < logits.abs().max().item() < 9.0)

    greedy, cached = greedy_with_cache(model, prompt)
    check_suits(len(greedy.unique()) >= DISTINCT)
    whole = torch.cat([prompt, greedy[:-1]])
    with routers_watched(model) as routed, indexers_watched(model) as selected:
        all_logits = forward(model, whole)
    check_suits(argmax_gap(all_logits) > GAP)
    if selected:
        facts["index_gap"] = index_gap(selected)
        check_suits(facts["index_gap"] > INDEX_GAP)
    if layers:
        gap = router_gap(routed)
        check_suits(gap > GAP)
        facts["router_gap"] = gap

    # From here on a failure is no bad luck with a seed: transformers disagrees with itself.
    scale = max(1.0, logits.abs().max().item())
    if not torch.equal(all_logits[len(prompt) - 1 :].argmax(-1), greedy):
        raise SystemExit(f"{variant.name}: greedy decoding with a cache chooses other tokens than without")
    disagreement = (cached - all_logits[len(prompt) - 1 :]).abs().max().item()
    for chunk in (1, 7):
        disagreement = max(disagreement, (in_chunks(model, whole, chunk) - all_logits).abs().max().item())
    # Layers that are visited several times pass errors of rounding on as often.
    if disagreement > AGREEMENT * scale * depth(model):
        raise SystemExit(f"{variant.name}: logits with a cache differ by {disagreement:.1e} from those without")

    effects = (control_effect(checkpoint, config, control, prompt, logits) for control in variant.controls)
    effect = min(effects, default=float("inf"))
    check_suits(effect > VISIBLE)

    golden = {"tokens": prompt, "logits": logits, "greedy": greedy}
    if layers:
        golden |= {"routes": routes.to(torch.int32), "moe_layers": torch.tensor(layers, dtype=torch.int32)}
    facts |= {
        "max_logit": logits.abs().max().item(),
        "argmax_gap": argmax_gap(all_logits),
        "control_effect": effect,
        "cache_disagreement": disagreement,
    }
    return {name: tensor.contiguous() for name, tensor in golden.items()}, facts


def check_suits(condition: bool) -> None:
    if not condition:
        raise Unsuitable


def used(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of the language model."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith(IGNORED)}


def check_layout(name: str, checkpoint: Path, weights: dict[str, torch.Tensor]) -> None:
    """Transformers must write back the tensors that it read: the names, the shapes and the bits that the hub holds."""
    with tempfile.TemporaryDirectory() as scratch:
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
        model.save_pretrained(scratch)
        written = used(load_file(Path(scratch) / "model.safetensors"))
        written = {published(name): tensor for name, tensor in written.items()}
    if written.keys() != weights.keys():
        raise SystemExit(f"{name}: transformers would name these differently: {written.keys() ^ weights.keys()}")
    for key, tensor in weights.items():
        # Values that are stored as f32 are those of bf16, too.
        if not torch.equal(written[key].float(), tensor.float()):
            raise SystemExit(f"{name}: transformers writes other values in {key}")


def index_gap(selected: list[Selection]) -> float:
    return min((selection.gaps().min().item() for selection in selected), default=float("inf"))


def forward(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens[None], use_cache=False).logits[0]


def greedy_with_cache(model: Any, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of largest logit, whatever they are (an end-of-text token ends nothing), and the logits they won."""
    feed, cache = prompt, cache_of(model)
    tokens, logits = [], []
    for _ in range(GREEDY):
        step = model(input_ids=feed[None], past_key_values=cache, use_cache=True)
        logits.append(step.logits[0, -1])
        feed = logits[-1].argmax(-1, keepdim=True)
        tokens.append(feed)
    return torch.cat(tokens), torch.stack(logits)


def cache_of(model: Any) -> Any:
    return model.new_cache() if hasattr(model, "new_cache") else transformers.DynamicCache(config=model.config)


def in_chunks(model: Any, tokens: torch.Tensor, size: int) -> torch.Tensor:
    cache = cache_of(model)
    return torch.cat(
        [model(input_ids=part[None], past_key_values=cache, use_cache=True).logits[0] for part in tokens.split(size)]
    )


def router_gap(routed: list[Choice]) -> float:
    """The least distance between neighbours among the k + 1 largest ranks, and around the edge of the groups kept."""
    gaps = [choice.group_gap.min().item() for choice in routed]
    for choice in routed:
        best = choice.ranks.topk(choice.chosen.shape[1] + 1).values
        gaps.append((best[..., :-1] - best[..., 1:]).min().item())
    return min(gaps)


def argmax_gap(logits: torch.Tensor) -> float:
    best = logits.topk(2).values
    return (best[:, 0] - best[:, 1]).min().item()


def control_effect(checkpoint: Path, config: Config, control: Config, prompt: torch.Tensor, logits: torch.Tensor) -> float:
    """The largest change of a logit when the config is changed and the weights are not."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "control"
        shutil.copytree(checkpoint, folder)
        write_json(folder / "config.json", changed(config, control))
        return (forward(load(folder), prompt) - logits).abs().max().item()


def facts_table(folder: Path) -> str:
    """A Markdown table of every variant in `folder`, made of the facts beside each."""

    def number(key: str) -> Callable[[Config], str]:
        return lambda facts: f"{facts[key]:.2g}" if key in facts else ""

    columns: list[tuple[str, Callable[[Config], str]]] = [
        ("seed", lambda f: str(f["seed"])),
        ("largest logit", number("max_logit")),
        ("least argmax gap", number("argmax_gap")),
        ("least router gap", number("router_gap")),
        ("least effect of a control", number("control_effect")),
        ("cache against none", number("cache_disagreement")),
    ]
    lines = ["<!-- Written by generate.py. -->", ""]
    lines.append("| variant | size | tokens | " + " | ".join(title for title, _ in columns) + " | what it is for |")
    lines.append("|---" * (len(columns) + 4) + "|")
    for variant in VARIANTS:
        at = folder / variant.name
        if not (at / "facts.json").exists():
            continue
        facts = json.loads((at / "facts.json").read_text())
        size = sum(file.stat().st_size for file in at.iterdir())
        cells = " | ".join(cell(facts) for _, cell in columns)
        tokens = len(load_file(at / "golden.safetensors")["tokens"])
        lines.append(f"| `{variant.name}` | {size // 1000} kB | {tokens} | {cells} | {variant.purpose} |")
    return "\n".join(lines) + "\n"


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
