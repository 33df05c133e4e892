#!/usr/bin/env python3
"""Runs sws, ramvamp, BigMoeOnEdge and llama.cpp in turns on a file of the shape of Qwen3-30B-A3B in Q4_K_M.

    benchmarks/real.py DIR --build --json benchmarks/results/real.json       # builds what is missing in DIR, and measures
    benchmarks/real.py DIR --layers 12 --only sws --groups 4 --sws old=OLD --sws new=NEW --rounds 5

DIR holds the model and the other programs; --build puts there what `peers/build.sh DIR source xllamacpp ramvamp
ramvamp-repack` makes, and a contender that is not there is left out by name. BigMoeOnEdge is on no registry: it takes
part if --bmoe names its program. Needs root, for control groups of version 1 that kill, and an empty page cache before
each run. The order is reversed every other round. All continue the same prompt of 128 tokens greedily by 64 tokens in a
context of 512. --json has the version of each program, and the day. docs/benchmarks/peers.md has what the columns mean.
"""

import argparse
import fcntl
import hashlib
import json
import os
import platform
import re
import select
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
GROUPS = Path("/sys/fs/cgroup/memory")
CONTEXT = 512
PROMPT_TOKENS = 128
# The beginning of benchmarks/prompt.txt that has so many tokens.
PROMPT_BYTES = 504
# BigMoeOnEdge sizes only its cache of experts; the rest of the process needs about this much.
BMOE_REST_MIB = 1792
# ramvamp refuses a larger cache, and takes 2485 MiB by default.
RAMVAMP_CACHE_MIB = 4095
BUILD_SECONDS = 15 * 60


class Sws:
    def __init__(self, program, options):
        self.program, self.options = Path(program).resolve(), options

    def missing(self, run):
        return None if self.program.exists() else f"there is no `{self.program}`"

    def version(self, run):
        return version_of(self.program)

    def command(self, run, limit):
        words = [self.program, "run", run.model, "--ram", limit, "--prompt-file", run.prompt, "-n", run.tokens]
        greedy = ["--temperature", 0, "--ignore-eos", "--no-warm-start", "--json"]
        return [*words, "--context", CONTEXT, "--threads", run.threads, *greedy, *self.options]

    def read(self, run, out, err):
        report = json.loads(out.text)
        metrics = report["metrics"]
        cost = metrics["cost"]["generation"]
        return {
            "prompt": metrics["prompt"]["tokens"],
            "tokens": len(report["tokens"]),
            "first": metrics["load_seconds"] + metrics["first_token_seconds"],
            "generation": cost["seconds"],
            "bytes": sum(cost["bytes_per_token"].values()) * cost["tokens"],
            "ids": hashlib.sha256(json.dumps(report["tokens"]).encode()).hexdigest()[:12],
            "metrics": metrics,
        }


class Ramvamp:
    def missing(self, run):
        for what in (run.dir / "bin/ramvamp", run.dir / "bin/ramvamp-repack"):
            if not what.exists():
                return f"there is no `{what}`; --build makes it"
        return None

    def version(self, run):
        return version_of(run.dir / "bin/ramvamp")

    def prepare(self, run):
        """Its own copy of the model."""
        self.model = run.model.with_suffix(".rvmp")
        if self.model.exists():
            return
        with tempfile.TemporaryDirectory() as files:
            called([run.dir / "venv/bin/python", HERE / "qwen30.py", run.vocab, files, "--tokenizer"])
            words = ["install", "--local", run.model, "--tokenizer-dir", files, "--skip-verify", "--overwrite"]
            called([run.dir / "bin/ramvamp-repack", *words, "--output", self.model])

    def command(self, run, limit):
        words = ["--model", self.model, "--prompt", run.prompt.read_text(), "--max-new", run.tokens, "--greedy"]
        cache = ["--cache-bytes", f"{RAMVAMP_CACHE_MIB}M"] if limit >= 8 << 30 else []
        return [run.dir / "bin/ramvamp", "generate", *words, "--context", CONTEXT, "--threads", run.threads, *cache]

    def read(self, run, out, err):
        prompt, tokens, seconds = re.search(r"prefill: (\d+) .*; decode: (\d+) tokens in ([\d.]+)s", err).groups()
        size, unit = re.search(r"^ +decode: .*; ([\d.]+) (\w+) read in", err, re.MULTILINE).groups()
        unit = 1 << 10 * ["B", "KiB", "MiB", "GiB"].index(unit)
        counts = {"prompt": int(prompt), "tokens": int(tokens)}
        return counts | {"first": out.first, "generation": float(seconds), "bytes": float(size) * unit}


class Bmoe:
    def missing(self, run):
        return None if run.bmoe else "--bmoe does not name its program"

    def version(self, run):
        return version_of(run.bmoe)

    def command(self, run, limit):
        cache = max(64, limit // 2**20 - BMOE_REST_MIB)
        # It also computes the logits after the last token, which the others leave out: a token less is the same work.
        words = ["-p", run.prompt.read_text(), "-n", run.tokens - 1, "--temp", 0, "-t", run.threads, "-c", CONTEXT]
        stream = ["--moe-stream", "--overlap", "--io-threads", 4, "--cache-mb", cache, "--force-cache"]
        return [run.bmoe, "-m", run.model, *words, *stream]

    def read(self, run, out, err):
        _, report = out.text.rsplit("\n\ngeneration: ", 1)
        seconds = (run.tokens - 1) / float(re.search(r"\(([\d.]+) tok/s\)", report).group(1))
        size = float(re.search(r"\(([\d.]+) MiB/token\)", report).group(1)) * 2**20 * (run.tokens - 1)
        counts = {"prompt": PROMPT_TOKENS, "tokens": run.tokens}
        return counts | {"first": out.seconds - seconds, "generation": seconds, "bytes": size}


class Llama:
    def missing(self, run):
        there = any((run.dir / "venv/lib").glob("python*/site-packages/xllamacpp"))
        return None if there else f"xllamacpp is not in `{run.dir / 'venv'}`; --build puts it there"

    def version(self, run):
        [info] = (run.dir / "venv/lib").glob("python*/site-packages/xllamacpp-*.dist-info")
        return info.stem.replace("-", " ")

    def command(self, run, limit):
        program = [run.dir / "venv/bin/python", HERE / "peers/greedy.py"]
        return [*program, run.model, run.prompt, run.tokens, run.threads, CONTEXT]

    def read(self, run, out, err):
        lines = [line.split() for line in out.text.splitlines()]
        came = [(float(seconds), int(size)) for seconds, size in (line for line in lines if "." in line[0])]
        # The last line counts. A text that was stopped has none.
        counts = [map(int, line) for line in lines if "." not in line[0]]
        prompt, tokens = counts[0] if counts else (PROMPT_TOKENS, len(came))
        if not came:
            raise NoResult("no token")
        (first, before), (last, after) = came[0], came[-1]
        return {"prompt": prompt, "tokens": tokens, "first": first, "generation": last - first, "bytes": after - before}


class NoResult(Exception):
    """No tokens, and why."""


class Output:
    """The text of a program, its seconds, and when its first byte came."""

    def __init__(self):
        self.text, self.first, self.seconds = "", None, None


@contextmanager
def group(limit):
    """A control group that kills above its limit, page cache included."""
    path = GROUPS / f"sws-real-{os.getpid()}"
    path.mkdir()
    try:
        (path / "memory.limit_in_bytes").write_text(str(limit))
        yield path
    finally:
        (path / "memory.force_empty").write_text("0")
        path.rmdir()


@contextmanager
def locked(path):
    """Holds the lock, if there is one."""
    with open(path or os.devnull, "w") as file:
        if path:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def held(run):
    """Has free memory touched, which a hypervisor would take back between runs, and freed as a run takes it."""
    if not run.hold:
        yield
        return
    program = HERE.parent / "target/release/sws-bench"
    with subprocess.Popen([program, "touch", "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        # `cat` starts once all is touched, and ends with its input.
        holder.stdin.write(b"\n")
        holder.stdin.flush()
        holder.stdout.read(1)
        yield


def called(words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"`{' '.join(map(str, words))}` failed: {done.stdout[-500:]}")
    return done.stdout


def version_of(program):
    """The first line that a program prints of its version."""
    return called([program, "--version"]).partition("\n")[0]


def busy():
    """CPU seconds of all programs so far, and those that the host took."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def execute(words, path, timeout):
    """Runs a program in the group. Returns its output, its standard error, its status and what it has used."""
    out, err, deadline = bytearray(), tempfile.TemporaryFile(), time.monotonic() + timeout
    enter = lambda: (path / "cgroup.procs").write_text(str(os.getpid()))
    output, started = Output(), time.monotonic()
    process = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, preexec_fn=enter
    )
    stopped = False
    while True:
        left = deadline - time.monotonic()
        if not stopped and (left <= 0 or not select.select([process.stdout], [], [], left)[0]):
            # Some are not killed at their limit, but read the same pages again and again.
            process.kill()
            stopped = True
        part = os.read(process.stdout.fileno(), 1 << 16)
        if not part:
            break
        output.first = output.first or time.monotonic() - started
        out += part
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    output.seconds, output.text = time.monotonic() - started, out.decode(errors="replace")
    process.stdout.close()
    err.seek(0)
    return output, err.read().decode(errors="replace"), "stopped" if stopped else process.returncode, used


def measure(contender, run, limit):
    """One run, from an empty page cache."""
    words = [str(word) for word in contender.command(run, limit)]
    with locked(run.lock), group(limit) as path:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        with held(run):
            before = busy()
            out, err, status, used = execute(words, path, run.timeout)
            others = busy() - before - used.ru_utime - used.ru_stime
        peak = int((path / "memory.max_usage_in_bytes").read_text())
    if status == -9:
        raise NoResult("killed")
    if status == "stopped" and not isinstance(contender, Llama):
        raise NoResult(f"not done after {run.timeout} s")
    if status not in (0, "stopped"):
        raise SystemExit(f"`{' '.join(words)}` failed ({status}): {err[-500:] or out.text[-500:]}")
    found = contender.read(run, out, err)
    if found["prompt"] != PROMPT_TOKENS:
        raise SystemExit(f"`{' '.join(words)}` has read {found['prompt']} tokens of prompt, not {PROMPT_TOKENS}")
    tokens, seconds = found["tokens"] - 1, found["generation"]
    return {
        "tokens": found["tokens"],
        "tokens_per_second": round(tokens / seconds, 4) if tokens > 0 else None,
        "first_token_seconds": round(found["first"], 2),
        "bytes_per_token": round(found["bytes"] / tokens) if tokens > 0 else None,
        # Blocks of 512 bytes, those that came through the page cache included.
        "read_bytes": used.ru_inblock * 512,
        "user_seconds": round(used.ru_utime, 2),
        "system_seconds": round(used.ru_stime, 2),
        "seconds": round(out.seconds, 2),
        "peak": peak,
        "others_seconds": round(max(others, 0), 2),
        **{key: found[key] for key in ("ids", "metrics") if key in found},
    }


def table(rows):
    """A table in Markdown: the median of each column, and the range of speeds."""
    words = ["group", "program", "tok/s", "range", "first token, s", "MB a token", "GB read in all"]
    words += ["CPU s, user + system", "peak MiB", "others, CPU s of s", "ids"]
    lines = [f"| {' | '.join(words)} |", "|---:|---|---:|---|" + "---:|" * 6 + "---|"]
    ids = list(dict.fromkeys(one["ids"] for row in rows for one in row["runs"] if "ids" in one))
    for row in rows:
        cells, runs = [f"{row['limit'] / 2**30:g} GiB", row["what"]], row["runs"]
        if not runs:
            lines.append(f"| {' | '.join(cells)} | {row['ended']} |" + " |" * 8)
            continue
        speeds = [one["tokens_per_second"] for one in runs if one["tokens_per_second"]]
        median = lambda key: statistics.median(one[key] or 0 for one in runs)
        cells.append(f"{statistics.median(speeds):.2f}" if speeds else "")
        cells.append(f"{min(speeds):.2f} to {max(speeds):.2f}" if len(speeds) > 1 else "")
        if median("tokens") < row["tokens"]:
            cells[1] += f", stopped with {median('tokens'):g} tokens"
        cells += [f"{median('first_token_seconds'):.1f}", f"{median('bytes_per_token') / 1e6:.0f}"]
        cells += [f"{median('read_bytes') / 1e9:.1f}", f"{median('user_seconds'):.0f} + {median('system_seconds'):.0f}"]
        cells += [f"{max(one['peak'] for one in runs) >> 20}"]
        cells += [f"{median('others_seconds'):.0f} of {median('seconds'):.0f}"]
        cells.append(" ".join(dict.fromkeys(chr(ord("a") + ids.index(one["ids"])) for one in runs if "ids" in one)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def machine():
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    named = {"cpu": cpu.group(1) if cpu else platform.machine(), "cores": os.cpu_count()}
    return named | {"memory": memory, "kernel": platform.release()}


def build(run, chosen):
    """What is missing in the directory, in a limited time each."""
    wanted = ["source"] + ["xllamacpp"] * ("llama" in chosen)
    wanted += ["ramvamp", "ramvamp-repack"] * ("ramvamp" in chosen)
    for what in wanted:
        try:
            subprocess.run([HERE / "peers/build.sh", run.dir, what], check=True, timeout=BUILD_SECONDS, stdout=sys.stderr)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as failed:
            print(f"real.py: {failed}; {what} is left out", file=sys.stderr)


def make(run):
    if run.model.exists():
        return
    for what in (run.vocab, run.dir / "venv/bin/python"):
        if not what.exists():
            raise SystemExit(f"there is no `{what}`, which making a model needs; --build puts it there")
    print(f"real.py: making `{run.model}`", file=sys.stderr)
    called([run.dir / "venv/bin/python", HERE / "qwen30.py", run.vocab, run.model, "--layers", run.layers])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--build", action="store_true", help="build and download what is missing in DIR")
    parser.add_argument("--make-only", action="store_true", help="make the model, and measure nothing")
    parser.add_argument("--layers", type=int, default=48, help="18.6 GB have 48, 5.0 GB have 12")
    parser.add_argument("--groups", default="4,8,16", help="memory in GiB")
    parser.add_argument("--only", default="sws,ramvamp,bmoe,llama")
    parser.add_argument("--sws", action="append", metavar="[NAME=]PROGRAM", help="default: target/release/sws")
    parser.add_argument("--sws-args", default="", help="more options of sws")
    parser.add_argument("--bmoe", type=Path, help="program of BigMoeOnEdge")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=170, help="seconds of a run")
    parser.add_argument("--hold", action="store_true", help="have `sws-bench touch` hold free memory, which a run gets")
    parser.add_argument("--lock", type=Path, help="file to lock during each run, which other work on the machine locks too")
    parser.add_argument("--json", type=Path, help="file to write")
    return parser.parse_args()


def contenders(run):
    chosen = run.only.split(",")
    found = {}
    for program in run.sws or [str(HERE.parent / "target/release/sws")]:
        name, _, path = program.rpartition("=")
        found["sws" + (f" {name}" if name else "")] = Sws(path, shlex.split(run.sws_args))
    found |= {"ramvamp": Ramvamp(), "bmoe": Bmoe(), "llama": Llama()}
    unknown = set(chosen) - {name.split()[0] for name in found}
    if unknown:
        raise SystemExit(f"--only knows sws, ramvamp, bmoe and llama, not {', '.join(sorted(unknown))}")
    for name in [name for name in found if name.split()[0] in chosen]:
        if reason := found[name].missing(run):
            print(f"real.py: {name} is left out: {reason}", file=sys.stderr)
        else:
            yield name, found[name]


def main():
    run = arguments()
    run.dir = run.dir.resolve()
    run.dir.mkdir(parents=True, exist_ok=True)
    run.model, run.prompt = run.dir / f"qwen30-{run.layers}.gguf", run.dir / "prompt.txt"
    run.vocab = run.dir / "llama.cpp/models/ggml-vocab-qwen2.gguf"
    if run.build:
        build(run, run.only.split(","))
    make(run)
    if run.make_only:
        return
    if not os.access(GROUPS / "cgroup.procs", os.W_OK):
        raise SystemExit(f"`{GROUPS}` is no control group of version 1 that can be written to; nothing is measured")
    run.prompt.write_bytes((HERE / "prompt.txt").read_bytes()[:PROMPT_BYTES])
    turns = dict(contenders(run))
    for contender in turns.values():
        getattr(contender, "prepare", lambda _: None)(run)
    limits = [int(float(size) * 2**30) for size in run.groups.split(",")]
    blank = {"tokens": run.tokens, "layers": run.layers, "threads": run.threads, "machine": machine()}
    blank["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    versions = {what: contender.version(run) for what, contender in turns.items()}
    rows = [
        {"what": what, "version": versions[what], "limit": limit, **blank, "runs": []}
        for limit in limits
        for what in turns
    ]
    for number in range(run.rounds):
        for limit in limits:
            now = [row for row in rows if row["limit"] == limit and "ended" not in row]
            for row in now if number % 2 == 0 else reversed(now):
                try:
                    one = measure(turns[row["what"]], run, limit)
                    row["runs"].append(one)
                    told = f"{one['tokens_per_second'] or 0:.2f} tok/s, {one['seconds']:.0f} s"
                except NoResult as ended:
                    row["ended"] = told = str(ended)
                print(f"{number + 1}: {limit / 2**30:g} GiB, {row['what']}: {told}", file=sys.stderr, flush=True)
                if run.json:
                    run.json.write_text("[\n" + ",\n".join(" " + json.dumps(row) for row in rows) + "\n]\n")
    print(table(rows))


if __name__ == "__main__":
    main()
