#!/usr/bin/env python3
"""Writes logits_processors.json (parameters) and logits_processors.safetensors (logits before and after).

The processors and their order are transformers' own, taken from the list it builds for `generate`: repetition penalty,
temperature, top-k, top-p, min-p. Presence and frequency penalties, which transformers does not have, are as vLLM and the
OpenAI API define them, over generated tokens only, and stand between repetition penalty and temperature:

    logit -= frequency * count
    logit -= presence * (count > 0)
"""

import json
from pathlib import Path
from typing import Any

import numpy
import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent

# What a case leaves out: every processor off.
OFF: dict[str, Any] = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
}
# How far a probability must stay from the edge of a filter: rounding must not decide.
MARGIN = 1e-5

INF = float("inf")
# Logits that are easier to read than a random row. In all of them softmax and its running sums are exact or far from edges.
ROWS: dict[str, list[float]] = {
    "equal": [0.5] * 64,
    "steps": [float(i // 4) for i in range(48)],
    "two_peaks": [9.0 if i in (7, 31) else -3.0 for i in range(50)],
    "signs": [(-1.0) ** i * (i / 8) for i in range(56)],
    "barred": [-INF if i % 3 == 0 else i / 16 for i in range(60)],
    "zeros": [0.0 if i % 2 else -0.0 for i in range(52)],
}

# Half of 64 equal logits stay, but which half is an accident of torch's sort: only the number kept is worth comparing.
COUNT_ONLY = {"top_p_equal"}

# name, logits (a row above, or a seed and a size of vocabulary), settings.
CASES: list[tuple[str, str | tuple[int, int], dict[str, Any]]] = [
    ("nothing", (1, 97), {}),
    ("temperature_low", (2, 97), {"temperature": 0.3}),
    ("temperature_high", (3, 97), {"temperature": 1.7}),
    ("temperature_tiny", (4, 97), {"temperature": 0.001}),
    ("temperature_huge", (5, 97), {"temperature": 1000.0}),
    ("top_k_1", (6, 97), {"top_k": 1}),
    ("top_k_5", (7, 97), {"top_k": 5}),
    ("top_k_all", (8, 97), {"top_k": 97}),
    ("top_k_more_than_all", (9, 97), {"top_k": 1000}),
    ("top_k_ties_all_stay", "steps", {"top_k": 6}),
    ("top_k_1_tied", "two_peaks", {"top_k": 1}),
    ("top_k_reaches_barred", "barred", {"top_k": 50}),
    ("top_p_half", (10, 151), {"top_p": 0.5}),
    ("top_p_095", (11, 151), {"top_p": 0.95}),
    ("top_p_one", (12, 151), {"top_p": 1.0}),
    ("top_p_zero", (13, 151), {"top_p": 0.0}),
    ("top_p_tiny", (14, 151), {"top_p": 0.001}),
    ("top_p_nearly_one", (15, 151), {"top_p": 0.99}),
    ("top_p_equal", "equal", {"top_p": 0.5}),
    ("top_p_two_peaks_tied", "two_peaks", {"top_p": 0.6}),
    ("top_p_barred", "barred", {"top_p": 0.8}),
    ("min_p_01", (16, 151), {"min_p": 0.1}),
    ("min_p_one", (17, 151), {"min_p": 1.0}),
    ("min_p_one_tied", "two_peaks", {"min_p": 1.0}),
    ("min_p_tiny", (18, 151), {"min_p": 0.0001}),
    ("min_p_barred", "barred", {"min_p": 0.3}),
    ("repetition_13", (19, 97), {"repetition_penalty": 1.3}),
    ("repetition_below_one", (20, 97), {"repetition_penalty": 0.7}),
    ("repetition_prompt_only", (35, 97), {"repetition_penalty": 1.3, "generated": []}),
    ("repetition_signs", "signs", {"repetition_penalty": 2.0}),
    ("repetition_barred", "barred", {"repetition_penalty": 1.5}),
    ("repetition_zeros", "zeros", {"repetition_penalty": 1.5}),
    ("presence", (21, 97), {"presence_penalty": 0.6}),
    ("frequency", (22, 97), {"frequency_penalty": 0.4}),
    ("presence_nothing_generated", (34, 97), {"presence_penalty": 0.6, "frequency_penalty": 0.4, "generated": []}),
    ("presence_negative", (23, 97), {"presence_penalty": -1.5}),
    ("presence_and_frequency", (24, 97), {"presence_penalty": 1.1, "frequency_penalty": -0.3}),
    ("three_penalties", (25, 97), {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.25}),
    ("k_then_p", (26, 199), {"top_k": 10, "top_p": 0.7}),
    ("p_with_min_p", (27, 199), {"top_p": 0.9, "min_p": 0.05}),
    ("min_p_stricter_than_p", (28, 199), {"top_p": 0.99, "min_p": 0.5}),
    ("cold_k_p", (29, 199), {"temperature": 0.5, "top_k": 20, "top_p": 0.9}),
    ("hot_k_p_min_p", (30, 199), {"temperature": 1.8, "top_k": 40, "top_p": 0.85, "min_p": 0.02}),
    ("frozen_p", (31, 199), {"temperature": 0.01, "top_p": 0.9}),
    (
        "everything",
        (32, 199),
        {"repetition_penalty": 1.15, "presence_penalty": 0.3, "frequency_penalty": 0.2}
        | {"temperature": 0.8, "top_k": 50, "top_p": 0.92, "min_p": 0.03},
    ),
    (
        "everything_again",
        (33, 199),
        {"repetition_penalty": 0.9, "presence_penalty": -0.4, "frequency_penalty": 0.1}
        | {"temperature": 1.3, "top_k": 25, "top_p": 0.8, "min_p": 0.08},
    ),
    ("penalised_ties", "equal", {"repetition_penalty": 1.25, "top_k": 3}),
]


def main() -> None:
    torch.set_grad_enabled(False)
    tensors: dict[str, torch.Tensor] = {}
    cases: list[dict[str, Any]] = []
    for number, (name, source, settings) in enumerate(CASES):
        draw = numpy.random.RandomState(1000 + number)
        logits = row(source)
        # Tokens come back often enough for counts above one; some are in the prompt only, some in both.
        prompt = draw.randint(0, len(logits), 11).tolist()
        history = {"prompt": prompt, "generated": prompt[:2] + draw.randint(0, 9, 15).tolist()}
        compare = "count" if name in COUNT_ONLY else "values"
        case = {"name": name, "compare": compare} | OFF | history | settings
        tensors[f"{name}.logits"] = logits
        tensors[f"{name}.expected"] = processed(logits, case)
        cases.append(case)
    save_file(tensors, HERE / "logits_processors.safetensors")
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (HERE / "logits_processors.json").write_text(f"[\n{lines}\n]\n")


def row(source: str | tuple[int, int]) -> torch.Tensor:
    if isinstance(source, str):
        return torch.tensor(ROWS[source], dtype=torch.float32)
    seed, vocab = source
    return torch.from_numpy(numpy.random.RandomState(seed).normal(0.0, 2.5, vocab).astype(numpy.float32))


def processed(logits: torch.Tensor, case: dict[str, Any]) -> torch.Tensor:
    settings = transformers.GenerationConfig(
        do_sample=True,
        **{key: case[key] for key in ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")},
    )
    seen = torch.tensor([case["prompt"] + case["generated"]])
    scores = logits[None].clone()
    processors = builder()._get_logits_processor(settings, input_ids_seq_length=seen.shape[1])
    warpers = [p for p in processors if not isinstance(p, transformers.RepetitionPenaltyLogitsProcessor)]
    for processor in processors:
        if processor not in warpers:
            scores = processor(seen, scores)
    scores = penalised(scores, case)
    for warper in warpers:
        check_margin(warper, scores, case["name"])
        scores = warper(seen, scores)
    assert torch.isfinite(scores).any()
    return scores[0].contiguous()


def builder() -> Any:
    """Any model will do: only its way of turning settings into processors is wanted."""
    config = transformers.LlamaConfig(
        vocab_size=8, hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1
    )
    return transformers.LlamaForCausalLM(config)


def penalised(scores: torch.Tensor, case: dict[str, Any]) -> torch.Tensor:
    """Presence and frequency penalties, in float32 numpy."""
    values = scores.numpy().copy()
    counts = numpy.bincount(numpy.array(case["generated"], dtype=numpy.int64), minlength=values.shape[1])
    values -= numpy.float32(case["frequency_penalty"]) * counts.astype(numpy.float32)
    values -= numpy.float32(case["presence_penalty"]) * (counts > 0).astype(numpy.float32)
    return torch.from_numpy(values)


def check_margin(warper: Any, scores: torch.Tensor, name: str) -> None:
    """Fails if a probability stands so near to a filter's edge that rounding could decide."""
    probabilities = scores.double().softmax(-1)[0]
    if isinstance(warper, transformers.TopPLogitsWarper):
        distance = (probabilities.sort().values.cumsum(-1)[:-1] - (1 - warper.top_p)).abs().min().item()
    elif isinstance(warper, transformers.MinPLogitsWarper) and warper.min_p > 0:
        others = probabilities[probabilities < probabilities.max()]
        # min-p compares two probabilities, which may both be tiny; top-p a sum, which is not.
        distance = (others / (warper.min_p * probabilities.max()) - 1.0).abs().min().item()
    else:
        return
    if distance < MARGIN and name not in COUNT_ONLY:
        raise SystemExit(f"{name}: a probability is {distance:.1e} from the edge of {type(warper).__name__}")


if __name__ == "__main__":
    main()
