#!/usr/bin/env python3
"""Servers under load for a long time, disturbed again and again: topics change, a neighbour in the same control group
takes memory, the disk of the prefix cache fills and is freed, one read of a hundred fails.

    tests/soak.py [--minutes N] [--window SECONDS] [--json FILE] [--quiet-machine]

The load is that of tests/load.py, and so is what must hold: each finished text is the one that `sws run` writes, each
refusal is one sentence, nothing is left running. Besides, the memory must be flat within one percent, without the
prefixes that are kept, which have a limit of their own; with
--quiet-machine, on which nothing else runs, the tokens a second after each disturbance must be within 5 % of those
before it, in the median of all cycles. Needs root for the group and for the disk; what cannot be made is left out by name.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import load

# Share by which the memory of a server may grow.
FLAT = 0.01
# Share of the speed before a disturbance that must be there after it.
BACK = 0.95
# Bytes in the group beside the server's budget, and of them the neighbour's.
ROOM, TAKEN = 96 << 20, 64 << 20
# Bytes of the disk on which the prefix cache lies, and of the cache.
DISK, CACHE = 12 << 20, 8 << 20
NEIGHBOUR = """
import time
taken = bytearray(%d)
while True:
    for at in range(0, len(taken), 4096):
        taken[at] = (taken[at] + 1) %% 256
    time.sleep(0.05)
"""


class Soak(load.Load):
    """The load, in windows of time."""

    def __init__(self, server, texts):
        super().__init__(server, texts, 0, seed=1)
        self.all, self.until = texts, 0

    def take(self):
        with self.lock:
            self.next += 1
            return self.next if time.monotonic() < self.until else None

    def topic(self, number):
        """From now on, texts of one half of the prompts."""
        half = load.PROMPTS[: len(load.PROMPTS) // 2] if number % 2 == 0 else load.PROMPTS[len(load.PROMPTS) // 2 :]
        self.texts = {key: text for key, text in self.all.items() if key[0] in half}

    def window(self, seconds):
        """Tokens a second, over so many seconds."""
        began, tokens = time.monotonic(), self.server.metric("sws_generated_tokens_total")
        self.until = began + seconds
        threads = [threading.Thread(target=self.worker) for _ in range(load.WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if not self.server.idle():
            self.problem("something still runs or waits")
        return (self.server.metric("sws_generated_tokens_total") - tokens) / (time.monotonic() - began)


@contextlib.contextmanager
def neighbour(soak):
    process = subprocess.Popen(load.joined([sys.executable, "-c", NEIGHBOUR % TAKEN]))
    try:
        yield
        if process.poll() is not None:
            soak.problem(f"the neighbour ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def full(disk):
    """Writes until nothing more fits."""
    file = disk / "full"
    with open(file, "wb", buffering=0) as out:
        with contextlib.suppress(OSError):
            while True:
                out.write(bytes(1 << 16))
        try:
            yield
        finally:
            out.truncate(0)
            file.unlink()


@contextlib.contextmanager
def failing(server):
    server.fail(10)
    try:
        yield
    finally:
        server.fail(0)


@contextlib.contextmanager
def disk():
    """A small file system, or None where it cannot be mounted."""
    with tempfile.TemporaryDirectory(prefix="sws-soak-") as place:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "soak", place], capture_output=True).returncode:
            print("soak: skipped: the disk that fills, as no file system can be mounted here")
            yield None
            return
        try:
            yield Path(place)
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)


def cycles(name, soak, disturbances, until, window):
    """Each disturbance in turn, with a quiet window before and after; until the time is up."""
    found = {what: {"during": [], "after": []} for what in disturbances}
    memory, without_prefixes = [], []
    # Caches fill, and threads have run once.
    soak.window(window)
    number = 0
    while number < 4 or time.monotonic() < until:
        number += 1
        before = soak.window(window)
        for what, disturbance in disturbances.items():
            with disturbance():
                during = soak.window(window)
            after = soak.window(window)
            found[what]["during"].append(during / before)
            found[what]["after"].append(after / before)
            before = after
        memory.append(soak.server.memory())
        without_prefixes.append(memory[-1] - soak.server.metric("sws_kv_used_bytes"))
        left = max(0, until - time.monotonic())
        print(f"{name}: {number} cycles, {soak.next} requests, {memory[-1] / 2**20:.1f} MiB, {left / 60:.0f} min left", flush=True)
    # The first quarter is left out: threads and buffers are made when first needed.
    rest = without_prefixes[number // 4 :]
    growth = statistics.median(rest[-(len(rest) // 2) :]) - statistics.median(rest[: (len(rest) + 1) // 2])
    growth /= statistics.median(memory)
    if growth > FLAT:
        soak.problem(f"the memory of {name} has grown by {growth:.1%}")
    ratios = {what: {when: round(statistics.median(some), 3) for when, some in ratio.items()} for what, ratio in found.items()}
    return {"cycles": number, "growth": round(growth, 4), "speed": ratios}


def soaked(name, server, soak, disturbances, minutes, window):
    """Runs the cycles, and ends the server."""
    began = time.monotonic()
    try:
        result = cycles(name, soak, disturbances, began + minutes * 60, window)
    finally:
        code, peak = server.stop()
    if code != 0:
        soak.problem(f"{name} ended with {code}")
    right = sum(count for outcome, count in soak.seen.items() if outcome in ("whole: 200", "stream: 200", "slow: 200"))
    if not right:
        soak.problem("no text is whole")
    result |= {"minutes": round((time.monotonic() - began) / 60, 1), "requests": soak.next, "right": right}
    result |= {"read failed": sum(count for outcome, count in soak.seen.items() if outcome.endswith("a read failed"))}
    print(f"{name}: {right} texts are whole and right, memory {result['growth']:+.2%}; speed as a share of that before:")
    for what, ratio in result["speed"].items():
        print(f"  {what}: {ratio['during']} during, {ratio['after']} after")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--window", type=float, default=20, metavar="SECONDS")
    parser.add_argument("--model", default=str(load.ROOT / "shards/tales-moe"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--quiet-machine", action="store_true")
    arguments = parser.parse_args()
    half, window = arguments.minutes / 2, arguments.window
    texts = load.expected(arguments.model)
    results, problems = {}, []

    with disk() as place:
        environment = os.environ | {"XDG_CACHE_HOME": str(place)} if place else None
        options = ["--kv-disk", str(CACHE)] if place else []
        server = load.Server(arguments.model, options, environment, ROOM)
        soak = Soak(server, texts)
        topics = iter(range(1 << 30))

        @contextlib.contextmanager
        def topics_change():
            soak.topic(next(topics))
            yield
            soak.texts = soak.all

        disturbances = {"topics change": topics_change}
        if server.group:
            disturbances["a neighbour takes memory"] = lambda: neighbour(soak)
        if place:
            disturbances["the disk is full"] = lambda: full(place)
        results["a server"] = soaked("a server", server, soak, disturbances, half, window)
        problems += soak.problems
    server = load.Flaky(arguments.model, 0)
    soak = Soak(server, texts)
    disturbances = {"one read of a hundred fails": lambda: failing(server)}
    results["a flaky disk"] = soaked("a flaky disk", server, soak, disturbances, half, window)
    problems += soak.problems
    if not server.failed:
        problems.append("no read has failed")

    if arguments.quiet_machine:
        for result in results.values():
            slow = {what: ratio["after"] for what, ratio in result["speed"].items() if ratio["after"] < BACK}
            problems += [f"{ratio} of the speed after: {what}" for what, ratio in slow.items()]
    if arguments.json:
        arguments.json.write_text(json.dumps(results | {"wrong": len(problems)}, indent=2) + "\n")
    for problem in problems[:20]:
        print("FAILED", problem)
    print("failed" if problems else "all hold")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
