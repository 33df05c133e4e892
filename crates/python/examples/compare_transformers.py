"""Compares logits with those of transformers in float32, at every position of a text.

    python compare_transformers.py CHECKPOINT [--ram RAM] [--tokens ID,ID,..]

Needs torch and transformers, and memory for the whole model.
"""

import argparse

import numpy as np
import sws
import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("checkpoint")
parser.add_argument("--ram", default="auto")
parser.add_argument("--tokens", default="5,17,3,29,11,2,31,7")
args = parser.parse_args()
tokens = [int(token) for token in args.tokens.split(",")]

# Room for up to 262,144 logits of each token.
with sws.Model(args.checkpoint, ram=args.ram, logits=True, reserve=len(tokens) << 20) as model:
    ours, _ = model.forward(tokens)

reference = transformers.AutoModelForCausalLM.from_pretrained(
    args.checkpoint, dtype=torch.float32, attn_implementation="eager"
)
with torch.no_grad():
    theirs = reference(torch.tensor([tokens])).logits[0].numpy()

largest = np.abs(ours - theirs).max()
same = (ours.argmax(axis=1) == theirs.argmax(axis=1)).mean()
print(f"{len(tokens)} positions, largest difference {largest:.2e} of logits up to {np.abs(theirs).max():.1f}")
print(f"the same likeliest token at {100 * same:.1f} % of them")
