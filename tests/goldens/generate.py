#!/usr/bin/env python3
"""Writes tiny random checkpoints, laid out as on the hub, and what transformers computes with them.

    python generate.py                    # all variants, into this folder
    python generate.py --only mixtral     # one of them
    python generate.py --out DIR --seed N # other weights, elsewhere
    python generate.py --only deepseek_v3 --long 32768 --out DIR # a long text for an existing one, see README.md

Needs the packages that README.md pins. The same packages on the same kind of machine give the same bytes.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

from blocks import BLOCKS
from derived import derived, published
from further import FURTHER
from grouped import GROUPED
from ling import LING
from patched import correct, known_to_transformers, layers_of, readable
from quantised import quantised
from recurrent import RECURRENT
from streams import STREAMS
from variants import VARIANTS as FIRST
from variants import Config, Tensor, Variant, changed, tensors, text

VARIANTS: list[Variant] = FIRST + GROUPED + RECURRENT + STREAMS + FURTHER + LING + BLOCKS

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
# Tokens of a long text that go through together, and positions at its end whose logits are kept.
LONG_CHUNK, LONG_LOGITS = 512, 64
# A model that repeats one token for ever tests little of its decoding.
DISTINCT = 10
# Tensors of images, and of tokens predicted ahead.
IGNORED = (
    "model.visual.",
    "mtp.",
    "multi_modal_projector.",
    "patch_merge_mlp.",
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
    parser.add_argument("--long", type=int, metavar="TOKENS", help="write a long text for existing variants to --out")
    args = parser.parse_args()

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_grad_enabled(False)
    # Sums are split by thread; one thread gives the same bits on every run.
    torch.set_num_threads(1)

    args.out.mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        if args.only and variant.name not in args.only:
            continue
        if args.long:
            write_long(HERE / variant.name, args.out / variant.name, args.long)
            continue
        facts = generate(variant, args.out / variant.name, args.seed)
        print(variant.name, json.dumps(facts), flush=True)
    if not args.long:
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
                save_file(long_text(load(checkpoint), variant.long), checkpoint / "long.safetensors")
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
    layers = [layers_of(model, name) for name, _ in routers(model)]

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
    if disagreement > AGREEMENT * scale:
        raise SystemExit(f"{variant.name}: logits with a cache differ by {disagreement:.1e} from those without")

    effect = min(control_effect(checkpoint, config, control, prompt, logits) for control in variant.controls)
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


def load(checkpoint: Path) -> Any:
    """The model in float32, widened from the bf16 on disk, with the plain implementations of attention and experts."""
    with known_to_transformers(checkpoint) as folder:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    wrong = {kind: names for kind, names in info.items() if names}
    if wrong:
        raise SystemExit(f"{checkpoint.name}: transformers reads this checkpoint otherwise: {wrong}")
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32
    correct(model, json.loads((checkpoint / "config.json").read_text()))
    return model.eval()


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


@dataclass(frozen=True)
class Choice:
    """What a router chose for some tokens."""

    # The numbers by which it ranked the experts: [tokens, experts].
    ranks: torch.Tensor
    # The experts, most probable first: [tokens, k].
    chosen: torch.Tensor
    # The distance between the last group kept and the first that was not: [tokens].
    group_gap: torch.Tensor


@contextmanager
def routers_watched(model: Any) -> Iterator[list[Choice]]:
    """Collects the choices of every routed layer, in layer order, from the forward pass itself."""
    seen: list[Choice] = []

    def note(module: Any, inputs: Any, outputs: Any) -> None:
        # The router of Llama 4 returns no choice.
        logits, chosen = outputs[1::-1] if len(outputs) == 2 else (outputs[0], outputs[2])
        if len(outputs) == 2:
            chosen = chosen.topk(module.top_k).indices
        ranks, group_gap = ranked(module, logits, inputs)
        # Some routers do not sort their choices.
        order = ranks.gather(1, chosen).argsort(dim=-1, descending=True, stable=True)
        seen.append(Choice(ranks, chosen.gather(1, order), group_gap))

    hooks = [router.register_forward_hook(note) for _, router in routers(model)]
    yield seen
    for hook in hooks:
        hook.remove()


@dataclass(frozen=True)
class Selection:
    """The positions that an indexer selected for some tokens."""

    # Scores of all positions, those that a token does not see below all others: [tokens, positions].
    scores: torch.Tensor
    # The positions: [tokens, k].
    chosen: torch.Tensor

    def gaps(self) -> torch.Tensor:
        """The distance between the last position selected and the first that was not."""
        k = self.chosen.shape[1]
        if k == self.scores.shape[1]:
            return torch.full((len(self.scores),), float("inf"))
        best = self.scores.topk(k + 1).values
        # Positions that a token does not see have the lowest score there is.
        unseen = best[:, k - 1] < torch.finfo(best.dtype).min / 2
        return (best[:, k - 1] - best[:, k]).masked_fill(unseen, float("inf"))


@contextmanager
def indexers_watched(model: Any) -> Iterator[list[Selection]]:
    """Collects the selections of every indexer, in layer order, from the forward pass itself.

    Which of several equal scores `topk` takes is undefined. Here it is the lower position first.
    """
    seen: list[Selection] = []
    running: list[Any] = []
    topk = torch.Tensor.topk

    def note(scores: torch.Tensor, k: int, *args: Any, **kwargs: Any) -> Any:
        if not running:
            return topk(scores, k, *args, **kwargs)
        running.pop()
        best = scores.sort(dim=-1, descending=True, stable=True)
        # Some indexers select for each of their heads.
        seen.append(Selection(scores[0].flatten(0, -2), best.indices[0, ..., :k].flatten(0, -2)))
        return torch.return_types.topk((best.values[..., :k], best.indices[..., :k]))

    def enter(module: Any, _inputs: Any) -> None:
        running.append(module)

    indexers = [m for m in model.modules() if type(m).__name__.endswith("Indexer")]
    hooks = [indexer.register_forward_pre_hook(enter) for indexer in indexers]
    torch.Tensor.topk = note
    try:
        yield seen
    finally:
        torch.Tensor.topk = topk
        for hook in hooks:
            hook.remove()


def index_gap(selected: list[Selection]) -> float:
    return min((selection.gaps().min().item() for selection in selected), default=float("inf"))


def long_text(model: Any, count: int) -> dict[str, torch.Tensor]:
    """A random text, the choices for each of its tokens with their margins, and the last logits."""
    draw = numpy.random.RandomState(count)
    vocab = model.config.get_text_config().vocab_size
    tokens = torch.from_numpy(draw.randint(0, vocab, count).astype(numpy.int64))
    cache = transformers.DynamicCache(config=model.config)
    found: dict[str, list[torch.Tensor]] = {}
    logits = torch.empty(0)
    for part in tokens.split(LONG_CHUNK):
        with routers_watched(model) as routed, indexers_watched(model) as selected:
            out = model(input_ids=part[None], past_key_values=cache, use_cache=True, logits_to_keep=LONG_LOGITS).logits[0]
        logits = torch.cat([logits, out])[-LONG_LOGITS:] if len(logits) else out
        for layer, choice in enumerate(routed):
            found.setdefault(f"routes.{layer}", []).append(choice.chosen.sort().values.to(torch.int32))
            gap = choice.ranks.topk(choice.chosen.shape[1] + 1).values
            margin = (gap[:, -2] - gap[:, -1]).minimum(choice.group_gap)
            found.setdefault(f"route_margins.{layer}", []).append(margin)
        for layer, selection in enumerate(selected if hasattr(model.config, "index_topk") else []):
            k = model.config.index_topk
            chosen = selection.chosen.sort().values
            # Of a token that sees fewer positions, those it does not see are listed, too.
            chosen = torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=count)
            found.setdefault(f"selected.{layer}", []).append(chosen.to(torch.int32))
            found.setdefault(f"selected_margins.{layer}", []).append(selection.gaps())
    return {name: torch.cat(parts).contiguous() for name, parts in found.items()} | {
        "tokens": tokens,
        "logits": logits.contiguous(),
    }


def write_long(golden: Path, folder: Path, count: int) -> None:
    """A copy of a checkpoint with room for a long text, and that text."""
    shutil.copytree(golden, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"max_position_embeddings": count})
    save_file(long_text(load(folder), count), folder / "long.safetensors")


def routers(model: Any) -> list[tuple[str, Any]]:
    """The routers of a model and their names, in the order of layers."""
    names = ("topkrouter", "v1gate", "tokenchoicerouter", "gemma4textrouter", "hashrouter", "llama4router")
    return [(name, m) for name, m in model.named_modules() if type(m).__name__.lower().endswith(names)]


def ranked(router: Any, logits: torch.Tensor, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The numbers by which a router ranks experts, -inf in groups that it drops, and the gaps between groups."""
    gap = torch.full((len(logits),), float("inf"))
    if hasattr(router, "moe_statics"):
        return logits.softmax(-1) + router.moe_statics.e_score_correction_bias, gap
    if hasattr(router, "tid2eid"):
        # A table gives the experts, in this order, whatever the logits.
        chosen = router.tid2eid[inputs[1].reshape(-1)]
        places = torch.arange(chosen.shape[1], 0, -1).float().expand_as(chosen)
        return torch.zeros_like(logits).scatter(1, chosen, places), gap
    # Some blocks pass the correction to their router.
    correction = inputs[1] if len(inputs) > 1 else getattr(router, "e_score_correction_bias", None)
    if correction is None and not hasattr(router, "num_group"):
        return logits, gap
    scored = getattr(router, "score_fn", torch.sigmoid)
    scores = logits.softmax(-1) if correction is None else scored(logits) + correction
    if correction is None and not hasattr(router, "topk_method") and router.num_group == 1:
        return logits, gap
    greedy = correction is None and getattr(router, "topk_method", None) == "greedy"
    if (getattr(router, "num_group", 1) or 1) == 1 or greedy:
        return scores, gap
    groups = scores.view(len(scores), router.num_group, -1)
    by_best = correction is None and hasattr(router, "topk_method")
    of_groups = groups.max(-1).values if by_best else groups.topk(2).values.sum(-1)
    best = of_groups.topk(router.num_group)
    kept = best.indices[:, : router.topk_group]
    if router.topk_group < router.num_group:
        gap = best.values[:, router.topk_group - 1] - best.values[:, router.topk_group]
    mask = torch.full_like(of_groups, float("-inf")).scatter(1, kept, 0.0)
    return (groups + mask[..., None]).flatten(1), gap


def forward(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    return model(input_ids=tokens[None], use_cache=False).logits[0]


def greedy_with_cache(model: Any, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of largest logit, whatever they are (an end-of-text token ends nothing), and the logits they won."""
    feed, cache = prompt, transformers.DynamicCache(config=model.config)
    tokens, logits = [], []
    for _ in range(GREEDY):
        step = model(input_ids=feed[None], past_key_values=cache, use_cache=True)
        logits.append(step.logits[0, -1])
        feed = logits[-1].argmax(-1, keepdim=True)
        tokens.append(feed)
    return torch.cat(tokens), torch.stack(logits)


def in_chunks(model: Any, tokens: torch.Tensor, size: int) -> torch.Tensor:
    cache = transformers.DynamicCache(config=model.config)
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
