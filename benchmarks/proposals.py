#!/usr/bin/env python3
"""The speed of texts with proposals and without, in turns within one budget, and whether they are equal.

benchmarks/proposals.py SHARDS --ram SIZE [--plain SHARDS] [--tokens N] [--seeds N ...] [-- OPTIONS of both]

SHARDS has stand-ins of all experts, and SIZE has room for them. Without proposals that memory holds experts, those of
--plain if the model has other shards for that.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from pathlib import Path

SWS = Path(__file__).resolve().parent.parent / "target/release/sws"
SAMPLING = ["--temperature", "1", "--top-k", "40", "--top-p", "0.95", "--ignore-eos"]


def run(args, shards, seed, options):
    what = ["run", shards, "--ram", args.ram, "--prompt", args.prompt, "-n", str(args.tokens), "--seed", str(seed)]
    command = [SWS, *what, *SAMPLING, "--json", "--no-warm-start", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards")
    parser.add_argument("--ram", required=True)
    parser.add_argument("--plain", metavar="SHARDS")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--prompt", default="Once upon a time there was a fox who lived in a deep wood")
    parser.add_argument("--json", type=Path)
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    args, both = parser.parse_args(words[:end]), words[end + 1 :]
    print("| seed | tok/s without | with | speed-up | MB a token without | with | passes, right of proposed | text |")
    print("|---:|---:|---:|---:|---:|---:|---|---|")
    rows = []
    shards = [args.plain or args.shards, args.shards]
    for number, seed in enumerate(args.seeds):
        ways = [both, [*both, "--stand-ins", "all", "--proposals"]]
        order = [0, 1] if number % 2 == 0 else [1, 0]
        done = {at: run(args, shards[at], seed, ways[at]) for at in order}
        speeds, read = [], []
        for at in (0, 1):
            of = done[at]["metrics"]["cost"]["generation"]
            speeds.append(of["tokens_per_second"])
            read.append(of["disk"]["bytes"] / of["tokens"] / 1e6)
        # Equal numbers of tokens, so the digest says whether the texts are.
        digests = [hashlib.sha256(json.dumps(done[at]["tokens"]).encode()).hexdigest()[:12] for at in (0, 1)]
        counts = done[1]["metrics"]["cost"]["generation"].get("proposals", {"passes": 0, "proposed": 0, "accepted": 0})
        rows.append({"seed": seed, "tokens_per_second": speeds, "megabytes": read, "proposals": counts, "digests": digests})
        equal = digests[0] if digests[0] == digests[1] else "DIFFERS"
        print(
            f"| {seed} | {speeds[0]:.2f} | {speeds[1]:.2f} | {speeds[1] / speeds[0]:.2f} | {read[0]:.0f} | {read[1]:.0f} "
            f"| {counts['passes']}, {counts['accepted']} of {counts['proposed']} | {equal} |",
            flush=True,
        )
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"median speed-up {statistics.median(b / a for a, b in (row['tokens_per_second'] for row in rows)):.2f}")
    if any(a != b for a, b in (row["digests"] for row in rows)):
        sys.exit("a text with proposals differs from that without")


main()
