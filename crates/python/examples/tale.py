"""Tells a tale, piece by piece, and its cost.

    python tale.py [--model MODEL] [--ram RAM] [--prompt TEXT]
"""

import argparse

import sws

parser = argparse.ArgumentParser()
parser.add_argument("--model", default=sws.DEMO)
parser.add_argument("--ram", default="auto")
parser.add_argument("--prompt", default="The wolf")
args = parser.parse_args()

with sws.Model(args.model, ram=args.ram) as model:
    text = model.generate(args.prompt, seed=7)
    print(args.prompt, end="")
    try:
        for piece in text:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        pass
    cost = text.metrics
    print(f"\n\n{text.end}: {cost.tokens_per_second:.1f} tok/s, {cost.hits} hits, {cost.misses} misses, {cost.bytes_read} bytes read")
