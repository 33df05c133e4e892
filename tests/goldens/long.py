#!/usr/bin/env python3
"""Writes what transformers computes of very long texts, which it gets in parts, with its cache.

    python long.py                 # all kinds of long/kinds.json, into long/
    python long.py --only latents  # one of them
    python long.py --full DIR      # every choice of every token as well, to find where a digest differs

Needs the packages that README.md pins, and minutes for each kind.
"""

import argparse
import copy
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

from variants import Config, changed, text
from watched import Choice, Selection, indexers_watched, load, routers_watched

HERE = Path(__file__).resolve().parent

# Tokens that go through together, and positions at the end whose logits are kept.
CHUNK, LOGITS = 512, 64
# Tokens of a digest.
BLOCK = 256
# Choices whose margin is smaller are left out of digests, unless it is none at all: lower numbers come first.
MARGIN = 1e-5


def main() -> None:
    kinds = json.loads((HERE / "long/kinds.json").read_text())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "long", help="folder for the files")
    parser.add_argument("--only", metavar="KIND", action="append", choices=list(kinds))
    parser.add_argument("--full", type=Path, metavar="DIR", help="folder that gets a checkpoint with every choice")
    args = parser.parse_args()

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    for kind, entry in kinds.items():
        if args.only and kind not in args.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            folder = args.full / kind if args.full else Path(scratch) / kind
            shutil.copytree(HERE / entry["checkpoint"], folder, dirs_exist_ok=True)
            config = changed(json.loads((folder / "config.json").read_text()), entry["config"])
            (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
            ids = torch.from_numpy(tokens(entry["tokens"], text(config)["vocab_size"]))
            start, clear = time.monotonic(), entry.get("clear", False)
            if args.full:
                save_file(long_text(load(folder), ids, clear), folder / "long.safetensors")
            else:
                found = digests(load(folder), ids, clear)
                save_arrays(found, args.out / f"{kind}.safetensors")
                left = {key: len(found[key]) for key in found if key.endswith(("left_out", "replaced"))}
                print(kind, f"{time.monotonic() - start:.0f} s,", "left out:", json.dumps(left), flush=True)


def tokens(count: int, vocab: int) -> numpy.ndarray:
    """Token i is a hash of i, modulo the vocabulary."""
    return (mix(numpy.arange(1, count + 1, dtype=numpy.uint64)) % numpy.uint64(vocab)).astype(numpy.int64)


def mix(x: numpy.ndarray) -> numpy.ndarray:
    """A hash of each number: the last step of splitmix64."""
    x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return x ^ (x >> numpy.uint64(31))


@dataclass(frozen=True)
class Part:
    """A pass over some tokens."""

    # The number of the first token.
    first: int
    # The choices of each router, and the selections of each indexer.
    routed: list[Choice]
    selected: list[Selection]
    # At the last positions.
    logits: torch.Tensor

    def unclear(self) -> int | None:
        """The first of the tokens with a choice that digests leave out, or with experts that are equal by chance."""
        found = [(choice.margins() <= MARGIN).nonzero() for choice in self.routed]
        for selection in self.selected:
            _, margins = selection.by_token()
            found.append((selection.narrowed() & ~compared(margins)).nonzero() // selection.lists)
        return min((int(rows[0]) for rows in found if len(rows)), default=None)


def compared(margins: torch.Tensor) -> torch.Tensor:
    """True for choices that digests have."""
    return (margins > MARGIN) | (margins == 0.0)


def passes(model: Any, ids: torch.Tensor, clear: bool) -> Iterator[Part]:
    """Runs a text in parts, with a cache. If its choices have to be clear, other tokens take the places in `ids` of
    those with a choice that is not: after such a choice another would be as right, and so would all that follows."""
    cache, first = transformers.DynamicCache(config=model.config), 0
    vocab = model.config.get_text_config().vocab_size
    for piece in ids.split(CHUNK):
        while True:
            before = copy.deepcopy(cache) if clear else cache
            with routers_watched(model) as routed, indexers_watched(model) as selected:
                out = model(input_ids=piece[None], past_key_values=cache, use_cache=True, logits_to_keep=LOGITS)
            part = Part(first, routed, selected, out.logits[0])
            at = part.unclear() if clear else None
            if at is None:
                break
            piece[at], cache = (piece[at] + 1) % vocab, before
        yield part
        first += len(piece)


def digests(model: Any, ids: torch.Tensor, clear: bool) -> dict[str, numpy.ndarray]:
    """The last logits, and of each router and indexer the digests of its choices."""
    first_ids = ids.clone()
    sums: dict[str, numpy.ndarray] = {}
    left: dict[str, list[numpy.ndarray]] = {}
    logits = torch.empty(0)

    def add(name: str, first: int, lists: int, chosen: torch.Tensor, margins: torch.Tensor, counts: torch.Tensor) -> None:
        rows = first * lists + numpy.arange(len(chosen), dtype=numpy.int64)
        counts_, compared_ = counts.numpy(), compared(margins).numpy()
        left.setdefault(f"{name}_left_out", []).append(rows[counts_ & ~compared_].astype(numpy.int32))
        with numpy.errstate(over="ignore"):
            sets = mix(chosen.numpy().astype(numpy.uint64) + numpy.uint64(1)).sum(axis=1, dtype=numpy.uint64)
            hashes = mix(sets ^ mix(rows.astype(numpy.uint64) + numpy.uint64(1)))
        blocks = -(-len(ids) // BLOCK)
        of_blocks = sums.setdefault(name, numpy.zeros(blocks, dtype=numpy.uint64))
        kept = counts_ & compared_
        numpy.add.at(of_blocks, rows[kept] // (BLOCK * lists), hashes[kept])

    for part in passes(model, ids, clear):
        logits = torch.cat([logits, part.logits])[-LOGITS:] if len(logits) else part.logits
        for number, choice in enumerate(part.routed):
            every = torch.ones(len(choice.chosen), dtype=torch.bool)
            add(f"routes.{number}", part.first, 1, choice.chosen, choice.margins(), every)
        for number, selection in enumerate(part.selected):
            chosen, margins = selection.by_token()
            add(f"selected.{number}", part.first, selection.lists, chosen, margins, selection.narrowed())
    found = sums | {name: numpy.concatenate(rows) for name, rows in left.items()}
    if clear:
        places = (ids != first_ids).nonzero()[:, 0]
        found["replaced"] = torch.stack([places, ids[places]], 1).to(torch.int32).numpy()
    return found | {"logits": logits.contiguous().numpy()}


def long_text(model: Any, ids: torch.Tensor, clear: bool) -> dict[str, torch.Tensor]:
    """The choices for each token of a text with their margins, and the last logits."""
    found: dict[str, list[torch.Tensor]] = {}
    logits = torch.empty(0)
    for part in passes(model, ids, clear):
        logits = torch.cat([logits, part.logits])[-LOGITS:] if len(logits) else part.logits
        for layer, choice in enumerate(part.routed):
            found.setdefault(f"routes.{layer}", []).append(choice.chosen.sort().values.to(torch.int32))
            found.setdefault(f"route_margins.{layer}", []).append(choice.margins())
        for layer, selection in enumerate(part.selected if hasattr(model.config, "index_topk") else []):
            k = model.config.index_topk
            chosen = selection.chosen.sort().values
            # Of a token that sees fewer positions, those it does not see are listed, too.
            chosen = torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=len(ids))
            found.setdefault(f"selected.{layer}", []).append(chosen.to(torch.int32))
            found.setdefault(f"selected_margins.{layer}", []).append(selection.gaps())
    return {name: torch.cat(parts).contiguous() for name, parts in found.items()} | {
        "tokens": ids,
        "logits": logits.contiguous(),
    }


if __name__ == "__main__":
    main()
