"""Continues a prompt greedily with llama.cpp, by the wheel xllamacpp, for benchmarks/real.py.

    python benchmarks/peers/greedy.py MODEL PROMPT_FILE TOKENS THREADS CONTEXT

Prints a line for each piece of text as it comes: seconds since the start, and bytes read so far. The last line has the
tokens of the prompt and of the text. Weights stay mapped: they are not copied into another order.
"""

import sys
import time
from pathlib import Path

STARTED = time.monotonic()

import xllamacpp  # noqa: E402, its loading counts


def read_bytes():
    return int(Path("/proc/self/io").read_text().split("\nread_bytes: ")[1].split()[0])


def main():
    model, prompt, tokens, threads, context = sys.argv[1:]
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel = int(context), 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    params.load_mode = xllamacpp.llama_load_mode.LLAMA_LOAD_MODE_MMAP
    params.no_extra_bufts, params.warmup, params.fit_params, params.cache_ram_mib = True, False, False, 0
    server = xllamacpp.Server(params)

    def came(part):
        if part["choices"][0]["text"]:
            print(f"{time.monotonic() - STARTED:.4f} {read_bytes()}", flush=True)
        if usage := part.get("usage"):
            print(usage["prompt_tokens"], usage["completion_tokens"], flush=True)

    body = {"prompt": Path(prompt).read_text(), "n_predict": int(tokens), "temperature": 0, "ignore_eos": True}
    server.handle_completions({**body, "stream": True, "cache_prompt": False}, came)


main()
