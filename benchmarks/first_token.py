#!/usr/bin/env python3
"""The time to the first token of prompts as `sws plan` estimates it, beside runs, in turns.

benchmarks/first_token.py MODEL [--budgets 25% 50%] [--rounds N] [-- OPTIONS of both]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SWS = Path(__file__).resolve().parent.parent / "target/release/sws"
SENTENCE = "The wolf went to the river and saw a boat. "


def told(command):
    done = subprocess.run([SWS, *command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1] if command[0] == "run" else done.stdout)


def run(model, sentences, options):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write((SENTENCE * sentences).strip())
        file.flush()
        what = ["run", model, "--prompt-file", file.name, "-n", "1", "--json", "--no-warm-start", *options]
        return told(what)["metrics"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--budgets", nargs="+", default=["25%", "50%"])
    parser.add_argument("--rounds", type=int, default=3)
    ours, _, options = " ".join(sys.argv[1:]).partition(" -- ")
    args, options = parser.parse_args(ours.split()), options.split()
    each = (run(args.model, 41, options)["prompt"]["tokens"] - 1) / 41
    print("| --ram | tokens | chunk | MB planned | found | s planned | found | planned / found |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for budget in args.budgets:
        of_budget = [*options, "--ram", budget]
        rounds = []
        for _ in range(args.rounds):
            plan = told(["plan", args.model, "--json", *of_budget])
            found = []
            for prompt in plan["prompts"]:
                # Room for the first token, which the context has to hold too.
                sentences = int((prompt["tokens"] - 8) / each)
                found.append(run(args.model, sentences, of_budget))
            rounds.append((plan, found))
        for at, prompt in enumerate(rounds[0][0]["prompts"]):
            planned = [plan["prompts"][at] for plan, _ in rounds]
            found = [found[at] for _, found in rounds]
            seconds = [prompt["first_token_seconds"] for prompt in planned]
            taken = [metrics["first_token_seconds"] for metrics in found]
            read = found[0]["cost"]["prompt"]["disk"]["bytes"]
            print(
                f"| {budget} | {prompt['tokens']} | {rounds[0][0]['plan']['chunk']} "
                f"| {prompt['read_bytes'] / 1e6:.0f} | {read / 1e6:.0f} "
                f"| {statistics.median(seconds):.2f} | {statistics.median(taken):.2f} "
                f"| {statistics.median(a / b for a, b in zip(seconds, taken)):.2f} |"
            )


main()
