#!/usr/bin/env python3
"""Runs fuzz targets under AddressSanitizer, and prints for each the inputs tried and the edges of code reached.

    tests/fuzz.py [TARGET..] [--seconds N] [--json FILE]

Needs cargo-fuzz and a C++ compiler. With a nightly toolchain it uses that, and else lets the present one have what
only nightly ones may. New inputs go into a directory that is deleted, not into fuzz/corpus; one that fails goes into
fuzz/artifacts. Results of targets that are not run stay in FILE.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FUZZ = Path(__file__).resolve().parent.parent / "fuzz"
# Bytes that one allocation may have.
MALLOC_MIB = 64


def toolchain():
    """The start of a command of cargo, and its environment."""
    # An input that fails is told with the lines of the source.
    environment = os.environ | {"CARGO_PROFILE_RELEASE_DEBUG": "line-tables-only"}
    if subprocess.run(["cargo", "+nightly", "--version"], capture_output=True).returncode == 0:
        return ["cargo", "+nightly"], environment
    return ["cargo"], environment | {"RUSTC_BOOTSTRAP": "1"}


def fuzzed(target, seconds, cargo, environment):
    """Inputs tried, edges reached and true for a failure, after so many seconds."""
    with tempfile.TemporaryDirectory() as found:
        command = [*cargo, "fuzz", "run", target, found, FUZZ / "corpus" / target, "--", f"-max_total_time={seconds}"]
        command += [f"-malloc_limit_mb={MALLOC_MIB}", "-print_final_stats=1"]
        run = subprocess.run(command, cwd=FUZZ.parent, env=environment, stderr=subprocess.PIPE, text=True, errors="replace")
    tried = re.search(r"stat::number_of_executed_units: (\d+)", run.stderr)
    edges = re.findall(r"cov: (\d+)", run.stderr)
    failed = run.returncode != 0 or not tried or not edges
    if failed:
        print(run.stderr[-4000:], file=sys.stderr)
    return int(tried[1]) if tried else 0, int(edges[-1]) if edges else 0, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=180, help="for each target")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if not shutil.which("cargo-fuzz"):
        sys.exit("fuzz: cargo-fuzz is not installed (cargo install cargo-fuzz)")
    everything = sorted(file.stem for file in (FUZZ / "fuzz_targets").glob("*.rs"))
    if unknown := set(arguments.targets) - set(everything):
        parser.error(f"no target {', '.join(sorted(unknown))}: {', '.join(everything)}")
    cargo, environment = toolchain()
    subprocess.run([*cargo, "fuzz", "build"], cwd=FUZZ.parent, env=environment, check=True)
    results = json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    failed = []
    print(f"{'target':12} {'inputs':>14} {'edges':>8} {'seconds':>8}", flush=True)
    for target in arguments.targets or everything:
        began = time.monotonic()
        tried, edges, bad = fuzzed(target, arguments.seconds, cargo, environment)
        took = round(time.monotonic() - began)
        print(f"{target:12} {tried:14,} {edges:8,} {took:8}" + (" FAILED" if bad else ""), flush=True)
        results[target] = {"inputs": tried, "edges": edges, "seconds": took, "failed": bad}
        failed += [target] if bad else []
        if arguments.json:
            arguments.json.write_text(json.dumps(dict(sorted(results.items())), indent=2) + "\n")
    print(f"failed: {', '.join(failed)}" if failed else "fuzz: ok")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
