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

# Settings of a task by their names in the harness. The first are options of `Model.generate` by the same names.
OPTIONS = {"top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed"}
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


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
        for token in self.model.stop_tokens:
            return token
        raise sws.Error(f"{self.model.name} has no stop token; add `eos_token_id` to its generation_config.json")

    @property
    def prefix_token_id(self) -> int:
        # What the tokenizer puts before a text, if anything.
        for token in self.model.encode(""):
            return token
        return self.eot_token_id

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
            options = self._options(settings)
            prompts = [self._fitting(prompt, options["max_new_tokens"]) for prompt, _ in group]
            texts = [""] * len(prompts)
            for made in self.model.generate_all(prompts, **options):
                texts[made.number] = made.text
            results += texts
        return results

    def _options(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Options of `Model.generate_all` for the settings of a task."""
        given = {name: value for name, value in settings.items() if value is not None}
        until = given.pop("until", None) or []
        limits = [given.pop(name) for name in LIMITS if name in given]
        sampled = given.pop("do_sample", given.get("temperature", 0) > 0)
        temperature = given.pop("temperature", 1.0)
        if unknown := given.keys() - OPTIONS:
            raise sws.Error(f"texts of sws have no setting `{min(unknown)}`; leave it out of generation_kwargs")
        return {
            "stop": [until] if isinstance(until, str) else list(until),
            "max_new_tokens": limits[0] if limits else self.max_gen_toks,
            "temperature": temperature if sampled else 0.0,
            **given,
        }

    def _fitting(self, prompt: str, most: int) -> list[int]:
        """The last tokens of a prompt that leave room for the text."""
        room = self.model.context - most
        if room < 1:
            raise sws.Error(
                f"{most} new tokens leave no room for a prompt in a context of {self.model.context}; "
                "lower max_gen_toks, or raise context"
            )
        return self.tok_encode(prompt)[-room:]
