"""lm-evaluation-harness in process.

    import lm_eval
    from sws.lm_eval import SwsLM

    lm_eval.simple_evaluate(model=SwsLM("MODEL", ram="16GiB"), tasks=["hellaswag"])

Importing it also registers the model `sws` of `lm_eval`.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import sws
from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model


@register_model("sws")
class SwsLM(TemplateLM):
    """A model of the harness. Options are those of `sws.Model`."""

    def __init__(
        self,
        model: str | sws.Model,
        max_gen_toks: int = 256,
        add_bos_token: bool = False,
        batch_size: int | str = 1,
        max_batch_size: int | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        options.setdefault("logits", True)
        options.setdefault("parallel", batch_size if isinstance(batch_size, int) else 1)
        self.model = model if isinstance(model, sws.Model) else sws.Model(model, **options)
        self.max_gen_toks = max_gen_toks
        self.add_bos_token = add_bos_token

    @property
    def eot_token_id(self) -> int:
        return self.model.stop_tokens[0]

    @property
    def prefix_token_id(self) -> int:
        # What the tokenizer puts before a text, if anything.
        return next(iter(self.model.encode("")), self.eot_token_id)

    @property
    def tokenizer_name(self) -> str:
        return self.model.fingerprint

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if not add_generation_prompt:
            raise NotImplementedError("answers that begin with given words are not supported")
        return self.model.chat_prompt(chat_history)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        return self.model.encode(string, special=special)

    def _loglikelihood_tokens(self, requests: list, disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        results = []
        for texts, context, continuation in requests:
            tokens = (context + continuation)[-self.model.context :]
            ranks = self.model.score(tokens)[-len(continuation) :] if continuation else []
            result = (sum(rank.logprob for rank in ranks), all(rank.token == rank.top[0][0] for rank in ranks))
            self.cache_hook.add_partial("loglikelihood", texts, result)
            results.append(result)
        return results

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        results = []
        for request in requests:
            (text,) = request.args
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.model.context - 1,
                context_len=1,
            )
            scored = [(("", ""), *utils.make_disjoint_window(window)) for window in windows]
            results.append(sum(logprob for logprob, _ in self._loglikelihood_tokens(scored)))
        return results

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        results: list[str] = []
        # Requests with the same settings, as those of a task are, share passes.
        for settings, group in groupby((request.args for request in requests), key=lambda args: args[1]):
            texts = [""] * len(prompts := [self._fitting(prompt, settings) for prompt, _ in group])
            for made in self.model.generate_all(prompts, **self._options(settings)):
                texts[made.number] = made.text
            results += texts
        return results

    def _options(self, settings: dict[str, Any]) -> dict[str, Any]:
        until = settings.get("until") or []
        sampled = settings.get("do_sample", settings.get("temperature", 0) > 0)
        return {
            "stop": [until] if isinstance(until, str) else list(until),
            "max_new_tokens": settings.get("max_gen_toks", self.max_gen_toks),
            "temperature": settings.get("temperature", 1.0) if sampled else 0.0,
        }

    def _fitting(self, prompt: str, settings: dict[str, Any]) -> list[int]:
        """The last tokens of a prompt that leave room for the text."""
        room = self.model.context - settings.get("max_gen_toks", self.max_gen_toks)
        return self.tok_encode(prompt)[-max(room, 1) :]
