#!/usr/bin/env python3
"""Trains the tokenizer on some texts, and writes the texts as ids.

    python tokenizer.py --out tales BOOK.txt...

writes `tales.json`, the tokenizer, and `tales.bin`, the ids as 16-bit numbers.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
END = "<|endoftext|>"
# Of one file no more counts towards the merges, so that no author dominates them.
SAMPLE_CHARS = 15_000_000
# A text without marks between its parts is encoded in runs of this many characters.
RUN_CHARS = 20_000
BATCH = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="name of the files to write, without their endings")
    parser.add_argument("books", type=Path, nargs="+", help=f"texts; {END} may stand before each tale in them")
    args = parser.parse_args()

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample(args.books), trainer)
    tokenizer.save(str(args.out.with_suffix(".json")))

    ids = numpy.concatenate([part for book in args.books for part in encoded(tokenizer, book)])
    ids.tofile(args.out.with_suffix(".bin"))
    print(f"{tokenizer.get_vocab_size()} tokens in the vocabulary, {len(ids)} in the texts")


def sample(books: list[Path]) -> Iterator[str]:
    for book in books:
        chars = 0
        with book.open(encoding="utf-8", errors="ignore") as lines:
            for line in lines:
                yield line
                chars += len(line)
                if chars > SAMPLE_CHARS:
                    break


def encoded(tokenizer: Tokenizer, book: Path) -> Iterator[numpy.ndarray]:
    text = book.read_text(encoding="utf-8", errors="ignore")
    if END in text:
        before, parts = [tokenizer.token_to_id(END)], text.split(END)
    else:
        before, parts = [], [text[at : at + RUN_CHARS] for at in range(0, len(text), RUN_CHARS)]
    for at in range(0, len(parts), BATCH):
        for encoding in tokenizer.encode_batch(parts[at : at + BATCH]):
            yield numpy.array(before + encoding.ids, dtype=numpy.uint16)


if __name__ == "__main__":
    main()
