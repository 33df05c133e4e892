#!/usr/bin/env python3
"""Speed of a model on two throttled drives, alone and together, in turns.

benchmarks/drives.py SHARDS [--rates 60:60 90:30] [--ram SIZE] [--tokens N] [--rounds N] [--scratch DIR]

Each drive is a file behind a loop device, whose reads the blkio control group (version 1) limits to so many MB
a second. Needs root; skips where that, loop devices or the group are missing.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SWS = Path(__file__).resolve().parent.parent / "target/release/sws"
BLKIO = Path("/sys/fs/cgroup/blkio")
LIMIT = "blkio.throttle.read_bps_device"


def told(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def skip(why):
    print(f"skipped: {why}")
    sys.exit(0)


def check():
    if os.geteuid() != 0:
        skip("only root may make loop devices and control groups")
    if not (BLKIO / LIMIT).exists():
        skip(f"this system has no {BLKIO / LIMIT}")
    for tool in ["losetup", "mkfs.ext4", "mount"]:
        if not shutil.which(tool):
            skip(f"there is no {tool}")


@contextlib.contextmanager
def drive(scratch, name, size):
    """A file system on a loop device: its directory and its device number."""
    image, place = scratch / f"{name}.img", scratch / name
    with open(image, "wb") as file:
        file.truncate(size)
    told("mkfs.ext4", "-q", image)
    made = subprocess.run(["losetup", "-f", "--show", str(image)], capture_output=True, text=True)
    if made.returncode:
        skip(f"no loop device: {made.stderr.strip()}")
    device = made.stdout.strip()
    try:
        place.mkdir()
        told("mount", device, place)
        try:
            number = os.stat(device).st_rdev
            yield place / "copy", f"{os.major(number)}:{os.minor(number)}"
        finally:
            told("umount", place)
    finally:
        told("losetup", "-d", device)


@contextlib.contextmanager
def throttled(limits):
    group = BLKIO / f"sws-drives-{os.getpid()}"
    group.mkdir()
    try:
        for device, rate in limits:
            (group / LIMIT).write_text(f"{device} {rate * 10**6}")
        yield group
    finally:
        group.rmdir()


def run(group, model, others, args):
    command = [SWS, "run", model, "--prompt", "The wolf", "-n", args.tokens, "--ram", args.ram, "--json"]
    command += ["--temperature", "0", "--ignore-eos", "--no-warm-start", "--context", "512"]
    for other in others:
        command += ["--also", other]
    shell = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group]
    printed = json.loads(told(*shell, *command))
    return printed["text"], printed["metrics"]["cost"]["generation"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("shards", type=Path)
    parser.add_argument("--rates", nargs="+", default=["60:60", "90:30"])
    parser.add_argument("--ram", default="min")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path)
    args = parser.parse_args()
    check()
    size = sum(file.stat().st_size for file in args.shards.rglob("*") if file.is_file())
    texts = set()
    print("| MB/s | tok/s: first alone | second alone | both | over the sum |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch, contextlib.ExitStack() as stack:
        size = size * 5 // 4 + (64 << 20)
        drives = [stack.enter_context(drive(Path(scratch), name, size)) for name in ["one", "two"]]
        for copy, _ in drives:
            told(SWS, "mirror", args.shards, copy)
        one, two = [copy for copy, _ in drives]
        for rates in args.rates:
            limits = [int(rate) for rate in rates.split(":")]
            with throttled(zip([device for _, device in drives], limits)) as group:
                rounds = []
                for _ in range(args.rounds):
                    found = [run(group, *which, args) for which in [(one, []), (two, []), (one, [two])]]
                    texts |= {text for text, _ in found}
                    rounds.append([cost for _, cost in found])
            speeds = [statistics.median(cost["tokens_per_second"] for cost in costs) for costs in zip(*rounds)]
            over = speeds[2] / (speeds[0] + speeds[1])
            row = [rates, *(f"{speed:.1f}" for speed in speeds), f"{over:.2f}"]
            print("|", " | ".join(row), "|", flush=True)
    if len(texts) != 1:
        sys.exit("the texts differ; please report this")


main()
