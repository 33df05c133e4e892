#!/usr/bin/env python3
"""Tokens of a megabyte of text by sws and by llama.cpp, for every pre-tokenizer that both know.

    python tests/llama_tokens.py TOKENS LLAMA TOKENIZE [--only NAME]

TOKENS is the example `tokens` of crates/model, LLAMA the source of llama.cpp, whose models/ has the vocabularies of
published tokenizers, TOKENIZE its program `llama-tokenize`. A name without a vocabulary of its own gets another one, and
with it only the splitting into words is compared. Beside each vocabulary are texts with the tokens that the published
tokenizer gives; these are compared, too. Needs gguf and numpy. The exit status is 1 if any token differs, or,
for the names of LOOSE, a thousandth of them.

The text is prose and code of this repository, and random words of many scripts, all in the normal form C, which some
published tokenizers make and llama.cpp does not.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

import gguf

REPOSITORY = Path(__file__).resolve().parent.parent
SIZE = 1 << 20

# Files of models/ by the name of their pre-tokenizer, and names without one by a file with another.
OWN = {
    "gpt-2": "gpt-2", "llama-bpe": "llama-bpe", "qwen2": "qwen2", "qwen35": "qwen35", "deepseek-llm": "deepseek-llm",
    "deepseek-coder": "deepseek-coder", "starcoder": "starcoder", "refact": "refact", "command-r": "command-r",
    "mpt": "mpt", "SentencePiece": "llama-spm", "SentencePiece of Phi 3": "phi-3", "gemma4": "gemma-4",
}
BORROWED = {
    "llama-bpe": ["glm4", "chatglm-bpe", "dbrx", "smaug-bpe", "gpt-4o", "llama4", "minimax-m2", "tekken", "falcon3", "lfm2"],
    "qwen2": ["hunyuan", "stablelm2", "grok-2", "megrez", "deepseek-r1-qwen", "kimi-k2", "bailingmoe", "bailingmoe2", "llada-moe"],
    "deepseek-llm": ["deepseek-v3", "hunyuan-dense"],
    "gpt-2": ["olmo", "phi-2", "exaone4", "mellum", "a.x-4.0", "smollm", "codeshell", "exaone", "minerva-7b"],
}

# What llama.cpp splits otherwise than the published pattern does.
LOOSE = {
    "gpt-4o": "letters by case only in ASCII", "llama4": "the same", "minimax-m2": "the same", "tekken": "the same",
    "kimi-k2": "letters regardless of case", "deepseek-llm": "blanks before U+3000 and behind U+2029",
}

# Ranges of characters, with the share of words that they have.
SCRIPTS = [
    (0x21, 0x7F, 20), (0x61, 0x7B, 20), (0x30, 0x3A, 8), (0xA1, 0x250, 6), (0x370, 0x400, 4), (0x400, 0x530, 5),
    (0x531, 0x590, 1), (0x590, 0x600, 2), (0x600, 0x700, 4), (0x900, 0xA00, 4), (0xE00, 0xE80, 3), (0x10A0, 0x1100, 1),
    (0x1780, 0x1800, 1), (0x2000, 0x2070, 2), (0x2070, 0x2100, 1), (0x2190, 0x2600, 2), (0x3000, 0x3100, 5),
    (0x4E00, 0x9FF0, 10), (0xAC00, 0xD7A0, 5), (0xFF00, 0xFFF0, 2), (0x1F300, 0x1F650, 4), (0x1D400, 0x1D800, 1),
]
BETWEEN = [" "] * 12 + ["", "", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\n    ", "\u00a0", "\u3000", "\u200d", "\ufe0f"]
PIECES = ["'s", "'S", "'ll", "'LL", "'ve", "'re", "'t", "'D", "'m", "’s", "I'm", "DON'T", "x_y", "a1b22c333d4444", "1,234.5", "12345678"]


def corpus() -> str:
    """A megabyte: half of this repository, half at random, always the same."""
    draw = random.Random(1)
    names = sorted((REPOSITORY / "docs").glob("*.md")) + sorted((REPOSITORY / "crates/model/src").rglob("*.rs"))
    prose = "".join(path.read_text() for path in names)[: SIZE // 2]
    starts, ends, shares = zip(*SCRIPTS)
    words, size = [], 0
    while size < SIZE // 2:
        if draw.random() < 0.08:
            word = draw.choice(PIECES)
        else:
            which = draw.choices(range(len(SCRIPTS)), shares)[0]
            length = min(draw.randint(1, 12), draw.randint(1, 12))
            word = "".join(chr(draw.randrange(starts[which], ends[which])) for _ in range(length))
            # Characters that the tables of one program may not have yet.
            word = "".join(it for it in word if unicodedata.category(it) != "Cn")
            word = word.capitalize() if draw.random() < 0.2 else word
        words.append(word + draw.choice(BETWEEN))
        size += len(words[-1].encode())
    return unicodedata.normalize("NFC", prose + "".join(words))


def renamed(source: Path, name: str, out: Path) -> None:
    """A copy of a file with another name of its pre-tokenizer."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = name if field.name == "tokenizer.ggml.pre" else field.contents()
        kinds = field.types
        writer.add_key_value(field.name, value, kinds[0], sub_type=kinds[-1] if len(kinds) > 1 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def ours(program: str, file: Path, text: Path) -> list[int]:
    with text.open("rb") as stdin:
        out = subprocess.run([program, file], stdin=stdin, capture_output=True)
    if out.returncode:
        sys.exit(f"{file}: {out.stderr.decode()}")
    return [int(line) for line in out.stdout.split()]


def theirs(program: str, file: Path, text: Path) -> list[int]:
    words = [program, "-m", file, "-f", text, "--ids", "--no-bos", "--no-escape", "--no-parse-special", "--log-disable"]
    out = subprocess.run(words, capture_output=True)
    if out.returncode:
        sys.exit(f"{file}: {out.stderr.decode()[-400:]}")
    return [int(word) for word in out.stdout.decode().strip().strip("[]").split(",")]


def places(found: list[int], expected: list[int]) -> int:
    """How often two lists part and meet again."""
    count, i, j = 0, 0, 0
    while i < len(found) and j < len(expected):
        if found[i] == expected[j]:
            i, j = i + 1, j + 1
            continue
        count += 1
        # They meet where four tokens are the same.
        near = [(a + b, a, b) for a in range(32) for b in range(32)]
        meets = (at for at in sorted(near) if found[i + at[1] : i + at[1] + 4] == expected[j + at[2] : j + at[2] + 4])
        _, a, b = next(meets, (0, len(found), len(expected)))
        i, j = i + a, j + b
    return count + (i < len(found) or j < len(expected))


def recorded(program: str, file: Path, scratch: Path) -> tuple[int, int]:
    """Texts beside a vocabulary, and those of them that get other tokens than the published tokenizer gives."""
    texts = Path(f"{file}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{file}.out").read_text().split("\n")
    # Texts in another form than C are brought into it by some published tokenizers, and were not when these were recorded.
    pairs = [(text, line) for text, line in zip(texts, lines) if unicodedata.is_normalized("NFC", text)]
    wrong, path = 0, scratch / "recorded"
    for text, line in pairs:
        path.write_bytes(text.encode())
        wrong += ours(program, file, path) != [int(word) for word in line.split()]
    return len(pairs), wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens")
    parser.add_argument("llama", type=Path)
    parser.add_argument("tokenize")
    parser.add_argument("--only", metavar="NAME")
    args = parser.parse_args()
    models = args.llama / "models"
    cases = [(name, models / f"ggml-vocab-{file}.gguf", None) for name, file in OWN.items()]
    cases += [(name, models / f"ggml-vocab-{OWN[of]}.gguf", of) for of, names in BORROWED.items() for name in names]
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch) / "text"
        text.write_bytes(corpus().encode())
        print(f"{text.stat().st_size} bytes\n")
        print("| pre-tokenizer | vocabulary | tokens | places that differ | recorded texts | other tokens |")
        print("|---|---|---:|---:|---:|---:|")
        for name, file, of in cases:
            if args.only not in (None, name):
                continue
            known, other = recorded(args.tokens, file, Path(scratch)) if not of else ("", 0)
            if of:
                changed = Path(scratch) / f"{name}.gguf"
                renamed(file, name, changed)
                file = changed
            found, expected = ours(args.tokens, file, text), theirs(args.tokenize, file, text)
            apart = places(found, expected)
            wrong += other + (apart > len(expected) // 1000 if name in LOOSE else apart)
            why = f": {LOOSE[name]}" if apart and name in LOOSE else ""
            print(f"| {name} | {of or 'its own'} | {len(expected)} | {apart}{why} | {known} | {other if known else ''} |", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
