"""Greedy texts of `sws run` and of llama.cpp, on files that llama.cpp's own converter makes of tales-moe.

    python tests/llama_cpp.py SWS LLAMA PROGRAMS [--tokens 64] [--prompts 40] [--files FILE..]

SWS is the command, LLAMA the source of llama.cpp, PROGRAMS a directory with its `llama-completion` and
`llama-quantize` (benchmarks/peers/build.sh makes both). Needs torch, transformers, gguf and numpy, for the converter.
llama.cpp keeps keys and values in f32 and does without flash attention. On the file in F32 all texts have to be
equal, and the exit status is 1 if they are not. In other types llama.cpp rounds activations to 16 or 8 bits, which SWS
never does: there the table shows how long the texts stay equal.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
# Types that the converter writes, and types that llama-quantize makes of its F32. Rows of 192 weights are no whole
# blocks of 256: of those llama-quantize stores the nearest type of blocks of 32.
CONVERTED = ["f32", "bf16", "f16", "q8_0"]
QUANTISED = ["Q4_0", "Q5_1", "Q6_K", "Q4_K_M", "Q2_K"]


def convert(llama, checkpoint, outtype, out):
    """Runs the converter. It refuses tokenizers that it does not know; this one splits as GPT-2 does."""
    child = (
        "import runpy, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from conversion import base\n"
        "base.TextModel.get_vocab_base_pre = lambda self, tokenizer: 'gpt-2'\n"
        "script = sys.argv[1] + '/convert_hf_to_gguf.py'\n"
        "sys.argv = [script] + sys.argv[2:]\n"
        "runpy.run_path(script, run_name='__main__')\n"
    )
    words = [sys.executable, "-c", child, llama, checkpoint, "--outtype", outtype, "--outfile", out]
    run(words)


def run(words):
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"`{words[0]}` failed: {done.stderr.decode(errors='replace')[-600:]}")
    return done.stdout.decode(errors="replace")


def ours(sws, file, prompt, tokens):
    words = ["run", file, "--ram", "400MiB", "-p", prompt, "-n", tokens, "--temperature", 0, "--ignore-eos", "--json"]
    return json.loads(run([sws, *words]))["text"]


def theirs(programs, file, prompt, tokens):
    words = ["-m", file, "-p", prompt, "-n", tokens, "-t", 2, "-c", 512, "--temp", 0, "--ignore-eos", "--no-warmup"]
    exact = ["-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    return run([programs / "llama-completion", *words, *exact, "-no-cnv", "--no-display-prompt"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sws", type=Path)
    parser.add_argument("llama", type=Path)
    parser.add_argument("programs", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--files", type=Path, nargs="+", help="GGUF files to compare, in place of tales-moe's")
    given = parser.parse_args()
    sws, programs = given.sws.resolve(), given.programs.resolve()
    prompts = (REPOSITORY / "shards/tales-moe-training/beginnings.txt").read_text().splitlines()[: given.prompts]

    print("| type | equal texts | characters equal, median, where they part | characters of a text, median |")
    print("|---|---:|---:|---:|")
    if given.files:
        for file in given.files:
            compare(sws, programs, file, prompts, given.tokens)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        run([sws, "unshard", REPOSITORY / "shards/tales-moe", "--out", scratch / "tales"])
        parted = {}
        for name in CONVERTED + QUANTISED:
            file = scratch / f"{name}.gguf"
            if name in CONVERTED:
                convert(given.llama.resolve(), scratch / "tales", name, file)
            else:
                run([programs / "llama-quantize", scratch / "f32.gguf", file, name, 2])
            parted[name] = compare(sws, programs, file, prompts, given.tokens)
    return 1 if parted["f32"] else 0


def compare(sws, programs, file, prompts, tokens):
    """Prints a row of the table. Returns the number of texts that differ."""
    lengths, parted = [], []
    for prompt in prompts:
        text = ours(sws, file, prompt, tokens)
        other = theirs(programs, file, prompt, tokens)
        lengths.append(len(text))
        # A program may end its output with a line end of its own.
        if text.rstrip("\n") != other.rstrip("\n"):
            parted.append(len(os.path.commonprefix([text, other])))
            print(f"{file.name}: {prompt!r} parts after {parted[-1]} characters", file=sys.stderr)
    equal = f"{len(prompts) - len(parted)} of {len(prompts)}"
    middle = sorted(parted)[len(parted) // 2] if parted else ""
    print(f"| {file.stem.upper()} | {equal} | {middle} | {sorted(lengths)[len(lengths) // 2]} |", flush=True)
    return len(parted)


if __name__ == "__main__":
    sys.exit(main())
