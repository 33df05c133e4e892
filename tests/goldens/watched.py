"""Models of transformers, and what their routers and indexers choose in a pass."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import derived  # noqa: F401, tells transformers of models within models
from patched import correct, known_to_transformers


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


@dataclass(frozen=True)
class Choice:
    """What a router chose for some tokens."""

    # The numbers by which it ranked the experts: [tokens, experts].
    ranks: torch.Tensor
    # The experts, most probable first: [tokens, k].
    chosen: torch.Tensor
    # The distance between the last group kept and the first that was not: [tokens].
    group_gap: torch.Tensor

    def margins(self) -> torch.Tensor:
        """The distance between the last that was chosen and the first that was not, of experts or of groups."""
        gap = self.ranks.topk(self.chosen.shape[1] + 1).values
        return (gap[:, -2] - gap[:, -1]).minimum(self.group_gap)


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
    """The positions that an indexer selected for some tokens, or blocks or entries of them."""

    # Scores of all positions, those that a token does not see below all others: [tokens, positions].
    scores: torch.Tensor
    # The positions: [tokens, k].
    chosen: torch.Tensor
    # Heads that select by themselves; their rows come one head after another.
    lists: int = 1

    def narrowed(self) -> torch.Tensor:
        """True for tokens that see more than are selected, in the order of `by_token`."""
        seen = (self.scores > torch.finfo(self.scores.dtype).min / 2).sum(-1)
        return self.ordered(seen > self.chosen.shape[1])

    def by_token(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What was selected, and the gaps, with the heads of a token together."""
        return self.ordered(self.chosen), self.ordered(self.gaps())

    def ordered(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.unflatten(0, (self.lists, -1)).transpose(0, 1).flatten(0, 1)

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
        best = scores.sort(dim=-1, descending=True, stable=True)
        if scores.dim() == 1:
            # One that selects for a token at a time.
            seen.append(Selection(scores[None], best.indices[None, :k]))
            return torch.return_types.topk((best.values[:k], best.indices[:k]))
        running.pop()
        # Some indexers select for each of their heads.
        lists = scores.shape[1] if scores.dim() == 4 else 1
        seen.append(Selection(scores[0].flatten(0, -2), best.indices[0, ..., :k].flatten(0, -2), lists))
        return torch.return_types.topk((best.values[..., :k], best.indices[..., :k]))

    def enter(module: Any, _inputs: Any) -> None:
        running.append(module)

    indexers = [m for m in model.modules() if type(m).__name__.endswith("Indexer")]
    hooks = [indexer.register_forward_pre_hook(enter) for indexer in indexers]
    hooks += [indexer.register_forward_hook(lambda *_: running.clear()) for indexer in indexers]
    torch.Tensor.topk = note
    try:
        yield seen
    finally:
        torch.Tensor.topk = topk
        for hook in hooks:
            hook.remove()


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
