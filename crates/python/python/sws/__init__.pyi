"""Runs Mixture-of-Experts language models larger than memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, TypedDict, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, Unpack

DEMO: str
"""Path of the bundled model, which tells tales."""

__version__: str
__all__ = ["DEMO", "Error", "Generated", "Metrics", "Model", "Rank", "Text", "Texts", "__version__", "plan"]

_End = Literal["stop_token", "stop_string", "complete", "repeats", "length", "context", "interrupted"]
_TextEnd = Literal[_End, "failed"]

class Error(Exception):
    """A model that cannot be opened, loaded or run: one sentence that names the problem and the remedy."""

class _ModelOptions(TypedDict, total=False):
    ram: str | int
    """Memory for the whole process: 8GiB, 80%, min, or auto for the memory that is free (default)."""
    resident: bool
    """Loads the whole model first, regardless of ram."""
    context: int | None
    """Context length in tokens; None for what fits in memory."""
    threads: int | None
    """Compute threads; None for one per core."""
    parallel: int
    """Texts that generate_all continues at a time."""
    logits: bool
    """Plans memory for the logits of all positions, which forward and score need."""
    reserve: str | int
    """Memory that this program takes later, within ram; arrays of logits need 4 bytes a number."""
    kv: Literal["f32", "bf16", "q8"]
    """Precision of the KV cache; bf16 and q8 are lossy."""
    activations: Literal["f32", "int8"]
    """Kind of activations of products; int8 is lossy."""
    reader: Literal["direct", "uring", "mmap"]
    max_disk_rate: str | int | None
    """Most bytes that are read in a second."""
    proposals: bool
    """Speculative decoding, as long as that measurably saves time."""
    policy: Literal["expected", "lru"]
    """Cache policy that evicts experts."""
    speculation: bool
    """Prefetches experts before a router has chosen them."""
    draft: str | PathLike[str] | bool
    """Draft file, or False for none."""
    warm_start: bool
    """Keeps statistics of the use of experts from one run to the next."""

class _Sampling(TypedDict, total=False):
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    """The same seed gives the same text on every machine."""
    max_new_tokens: int | None
    stop: str | Sequence[str] | None
    """Strings before which the text ends."""
    ignore_eos: bool

class _TextOptions(_Sampling, total=False):
    routes: bool
    """Records the experts of each token, for Text.routes and Text.trace."""
    logits: bool
    """Records the logits from which tokens are chosen, for Text.logits; max_new_tokens of them fit in reserve."""

@final
class Model:
    """A loaded model, which continues one text at a time, or several with generate_all.

    Calls may come from any thread: those of other threads wait until a text is over.
    """

    def __new__(cls, model: str | PathLike[str], **options: Unpack[_ModelOptions]) -> Self:
        """Loads a shard directory, a checkpoint directory, a GGUF file, or a model by its id."""
    def generate(self, prompt: str | Sequence[int], **options: Unpack[_TextOptions]) -> Text:
        """Continues a text. Each token is computed as the text is iterated over."""
    def chat(
        self, messages: Iterable[Mapping[str, str]], *, think: bool | None = None, **options: Unpack[_TextOptions]
    ) -> Text:
        """Answers the last of the messages, each with `role` and `content`.

        Some chat templates have a switch for reasoning; others refuse `think`.
        """
    def chat_prompt(self, messages: Iterable[Mapping[str, str]], *, think: bool | None = None) -> str:
        """The prompt with which the last of the messages would be answered."""
    def generate_all(self, prompts: Iterable[str | Sequence[int]], **options: Unpack[_Sampling]) -> Texts:
        """Continues texts in shared passes, each with the output that it has alone. Without a seed each has its own."""
    def forward(self, text: str | Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.uint32] | None]:
        """Logits [tokens, vocab] and routes [layers, tokens, k]; no routes of a model without experts.

        Refused if the logits take more than reserve.
        """
    def score(self, text: str | Sequence[int], *, top: int = 1) -> list[Rank]:
        """Probabilities of the tokens of a text, from the second on."""
    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text, by default with those that the tokenizer puts around it."""
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens. Special tokens have none."""
    def close(self) -> None:
        """Frees the model. Texts in progress end, and calls that wait for them are refused."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str:
        """Identity of the checkpoint."""
    @property
    def context(self) -> int:
        """Maximum number of positions of a text."""
    @property
    def vocab(self) -> int:
        """Number of logits of a position."""
    @property
    def stop_tokens(self) -> list[int]: ...
    @property
    def warnings(self) -> list[str]:
        """Warnings about loading, one sentence each."""

@final
class Text(Iterator[str]):
    """A text that is being generated: an iterator over the text of each token.

    Ctrl-C ends it, and raises KeyboardInterrupt; the text so far stays.
    """

    def __iter__(self) -> Self: ...
    def __next__(self) -> str: ...
    def read(self) -> str:
        """Reads the text to its end, and returns all of it."""
    def cancel(self) -> None:
        """Ends the text at the next layer; may be called from any thread."""
    def close(self) -> None:
        """Ends the text, and waits until the model can continue another."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...
    @property
    def text(self) -> str:
        """The text so far."""
    @property
    def reasoning(self) -> str:
        """The reasoning before an answer, so far."""
    @property
    def tokens(self) -> list[int]:
        """The new tokens so far."""
    @property
    def seed(self) -> int | None:
        """The seed of the text; None if it depends on none."""
    @property
    def end(self) -> _TextEnd | None:
        """Reason of the end; None while there may be more. After `failed`, reading raises the error again."""
    @property
    def metrics(self) -> Metrics | None:
        """The cost so far."""
    @property
    def details(self) -> dict[str, Any] | None:
        """The metrics of `sws run --json`; None before the end."""
    @property
    def routes(self) -> NDArray[np.uint32]:
        """The experts of each layer and token [layers, tokens, k], once the text is over."""
    @property
    def logits(self) -> NDArray[np.float32]:
        """The logits of each new token [tokens, vocab], once the text is over; the same memory each time."""
    @property
    def trace(self) -> bytes:
        """The routes as the contents of a file for `sws replay`, once the text is over."""

@final
class Texts(Iterator[Generated]):
    """Texts in the order in which they end. An error of one leaves the others as they are."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> Generated: ...
    def close(self) -> None:
        """Ends all texts that are not over."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

@final
class Generated:
    """A text that is over."""

    @property
    def number(self) -> int:
        """Its number among the prompts, from 0."""
    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def seed(self) -> int | None:
        """The seed of the text; None if it depends on none."""
    @property
    def end(self) -> _End: ...

@final
class Metrics:
    """Cost of a text, its prompt included."""

    @property
    def tokens(self) -> int: ...
    @property
    def seconds(self) -> float:
        """Time in passes."""
    @property
    def tokens_per_second(self) -> float: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def hits(self) -> int:
        """Experts that were in memory."""
    @property
    def late(self) -> int:
        """Experts that were in flight."""
    @property
    def misses(self) -> int:
        """Experts that had to be read."""

@final
class Rank:
    """A token with its probability among all."""

    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float: ...
    @property
    def top(self) -> list[tuple[int, float]]:
        """The likeliest tokens with their log probabilities, in descending order."""

def plan(model: str | PathLike[str], **options: Unpack[_ModelOptions]) -> dict[str, Any]:
    """The division of a budget, without loading anything: the fields of `sws plan --json` that need no measuring."""
