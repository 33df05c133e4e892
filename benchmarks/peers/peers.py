"""Runs sws, llama.cpp and BigMoeOnEdge on the same weights in turns, each in a control group that kills.

    python benchmarks/peers/peers.py DIR --programs PROGRAMS --json benchmarks/results/peers.json
    python benchmarks/peers/peers.py DIR --programs PROGRAMS --encodings --shares 12,25,50,75,100 --json FILE

DIR holds `big`, `big-bf12`, `big.gguf` and `big-q4_k_m.gguf`, and for --encodings `big-bf11`, `big-bf11-trained` and
`big-nested`; PROGRAMS is the directory that build.sh filled, or one whose `bin` has your own `llama-completion`, and
`sws-bench` is beside `sws`. BigMoeOnEdge is on no registry: it takes part if --bmoe names its program. Needs root, for
control groups of version 1 and an empty page cache. The order is reversed every other round. All continue the same prompt by
the same number of tokens, sampled with a seed for each round; samplers differ, and so do the texts of different
programs. A contender that was killed, or not done in time, is not run again in that memory. docs/benchmarks/peers.md
has what the columns mean.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/memory")
THREADS = 2
CONTEXT = 512
# BigMoeOnEdge sizes only its cache of experts; the rest of the process needs about this much.
BMOE_REST_MIB = 170
# First word of its contenders.
BMOE = "BigMoeOnEdge"
SAMPLING = ["--temp", 1, "--top-k", 40, "--top-p", 0.95]


def sws(model, *options):
    def command(run):
        words = ["--ram", run.limit, "--prompt-file", run.prompt, "-n", run.tokens, "--threads", THREADS]
        sampling = ["--temperature", 1, "--top-k", 40, "--top-p", 0.95, "--seed", run.seed]
        quiet = ["--ignore-eos", "--no-warm-start", "--json"]
        return [run.sws, "run", run.dir / model, *words, *sampling, *quiet, *options]

    def read(stdout, _):
        report = json.loads(stdout)
        cost = report["metrics"]["cost"]["generation"]
        read = sum(cost["bytes_per_token"].values())
        return report["text"], 1 / cost["tokens_per_second"], read

    return command, read, model


def llama(model, *options):
    def command(run):
        words = ["-f", run.prompt, "-n", run.llama_tokens, "-t", THREADS, "-c", CONTEXT, "--perf"]
        sampling = [*SAMPLING, "--seed", run.seed, "--samplers", "top_k;top_p;temperature"]
        quiet = ["-no-cnv", "--no-display-prompt", "--ignore-eos", "--no-warmup"]
        return [run.programs / "llama-completion", "-m", run.dir / model, *words, *sampling, *quiet, *options]

    def read(stdout, stderr):
        lines = [line for line in stderr.splitlines() if " eval time =" in line and "prompt eval" not in line]
        ms, runs = re.search(r"eval time =\s*([\d.]+) ms /\s*(\d+) runs", lines[-1]).groups()
        return stdout, float(ms) / 1e3 / int(runs), None

    return command, read, None


def bmoe(model):
    def command(run):
        cache = max(64, run.limit // 2**20 - BMOE_REST_MIB)
        # It also computes the logits after the last token, which the others leave out: a token less is the same work.
        words = ["-p", run.prompt.read_text(), "-n", run.tokens - 1, "-t", THREADS, "-c", CONTEXT, "--ubatch", 256]
        stream = ["--moe-stream", "--overlap", "--io-threads", 4, "--cache-mb", cache, "--force-cache"]
        return [run.bmoe, "-m", run.dir / model, *words, *SAMPLING, "--seed", run.seed, *stream]

    def read(stdout, _):
        text, report = stdout.rsplit("\n\ngeneration: ", 1)
        speed = float(re.search(r"\(([\d.]+) tok/s\)", report).group(1))
        read = float(re.search(r"\(([\d.]+) MiB/token\)", report).group(1)) * 2**20
        return text, 1 / speed, read

    return command, read, None


CONTENDERS = {
    "sws, bf16 in place": sws("big"),
    "sws, bf12 shards": sws("big-bf12"),
    "sws, Q4_K_M in place": sws("big-q4_k_m.gguf"),
    "BigMoeOnEdge, bf16": bmoe("big.gguf"),
    "BigMoeOnEdge, Q4_K_M": bmoe("big-q4_k_m.gguf"),
    "llama.cpp with mmap, bf16": llama("big.gguf"),
    "llama.cpp without mmap, bf16": llama("big.gguf", "--load-mode", "none"),
    "llama.cpp with mmap, Q4_K_M": llama("big-q4_k_m.gguf"),
    # Weights stay mapped, where it would otherwise keep a copy of them in another order.
    "llama.cpp with mmap, Q4_K_M, --no-repack": llama("big-q4_k_m.gguf", "--no-repack"),
    "llama.cpp without mmap, Q4_K_M": llama("big-q4_k_m.gguf", "--load-mode", "none"),
}

# Without loss, in the same memory.
ENCODINGS = {
    "sws, bf16, LRU": sws("big", "--policy", "lru", "--no-draft"),
    "sws, bf16": sws("big"),
    "sws, bf12": sws("big-bf12"),
    "sws, bf11": sws("big-bf11"),
    "sws, bf11, trained on recordings": sws("big-bf11-trained"),
    "sws, nested, proposals": sws("big-nested", "--stand-ins", "all", "--proposals"),
    **{name: CONTENDERS[name] for name in ["BigMoeOnEdge, bf16", "llama.cpp with mmap, bf16"]},
}


class NoResult(Exception):
    """No tokens, and why."""


# Words of `sws` where the memory is too small for its options.
TOO_SMALL = "the smallest that"


class Group:
    """A control group that kills above its limit, page cache included."""

    def __init__(self, limit):
        self.path = GROUPS / f"sws-peers-{os.getpid()}"
        self.path.mkdir()
        (self.path / "memory.limit_in_bytes").write_text(str(limit))

    def __enter__(self):
        return self

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        return int((self.path / "memory.max_usage_in_bytes").read_text())

    def __exit__(self, *_):
        (self.path / "memory.force_empty").write_text("0")
        self.path.rmdir()


def measure(contender, run):
    """One run, from an empty page cache."""
    command, read, model = contender
    words = [str(word) for word in command(run)]
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    before = os.times()
    with Group(run.limit) as group:
        started = time.monotonic()
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=group.enter
        )
        try:
            outputs = process.communicate(timeout=run.timeout)
        except subprocess.TimeoutExpired:
            # Some are not killed at their limit, but read the same pages again and again.
            process.kill()
            process.communicate()
            raise NoResult(f"not done after {run.timeout} s") from None
        stdout, stderr = (bytes.decode(out, errors="replace") for out in outputs)
        seconds, peak = time.monotonic() - started, group.peak()
    after = os.times()
    if process.returncode == -9:
        raise NoResult("killed")
    if process.returncode == 2 and TOO_SMALL in stderr:
        raise NoResult("no room")
    if process.returncode != 0:
        raise SystemExit(f"`{' '.join(words)}` failed ({process.returncode}): {stderr[-300:] or stdout[-300:]}")
    text, seconds_per_token, bytes_per_token = read(stdout, stderr)
    alone = model and bytes_per_token and reader_alone(run, model, bytes_per_token * (run.tokens - 1))
    return {
        "seconds_per_token": round(seconds_per_token, 6),
        "bytes_per_token": bytes_per_token and round(bytes_per_token),
        "seconds": round(seconds, 3),
        "cpu_seconds": round(after.children_user + after.children_system - before[2] - before[3], 2),
        "peak": peak,
        "alone": alone,
        "text": text,
    }


def reader_alone(run, model, size):
    """Bytes a second at which the reader reads experts of this size in all, without computing."""
    words = [run.sws.with_name("sws-bench"), "alone", run.dir / model, "--bytes", str(round(size))]
    return round(float(subprocess.run(words, capture_output=True, text=True, check=True).stdout))


def continuation(text, prompt):
    """The new text alone."""
    return text.removeprefix(prompt).rstrip("\n")


def table(rows):
    """A table of medians, in Markdown. Rows with the same letter have the same texts."""
    words = ["memory", "program", "tok/s", "range", "MB per token", "of the reader alone"]
    words += ["whole run, s", "peak MiB", "text"]
    lines = [f"| {' | '.join(words)} |", "|---" * 2 + "|---:" + "|---" + "|---:" * 4 + "|---|"]
    texts = list(dict.fromkeys(row["same_text_as"] for row in rows if "same_text_as" in row))
    for row in rows:
        cells = [f"{row['share']:g} %, {row['limit'] >> 20} MiB", row["what"]]
        runs = row["runs"]
        if not runs:
            lines.append(f"| {' | '.join(cells)} | {row['ended']} | | | | | | |")
            continue
        if "ended" in row:
            cells[1] += f" ({row['ended']} in another round)"
        speeds = [1 / run["seconds_per_token"] for run in runs]
        read = [run["bytes_per_token"] for run in runs if run["bytes_per_token"] is not None]
        cells += [f"{statistics.median(speeds):.3g}", f"{min(speeds):.3g} to {max(speeds):.3g}"]
        cells.append(f"{statistics.median(read) / 1e6:.1f}" if read else "")
        of_reader = [
            run["bytes_per_token"] / run["seconds_per_token"] / run["alone"] for run in runs if run.get("alone")
        ]
        cells.append(f"{statistics.median(of_reader):.2f}" if of_reader else "")
        cells += [f"{statistics.median(run['seconds'] for run in runs):.1f}"]
        cells += [f"{max(run['peak'] for run in runs) >> 20}", chr(ord("a") + texts.index(row["same_text_as"]))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dir", type=Path)
    parser.add_argument("--programs", type=Path, required=True, help="the directory that build.sh filled")
    parser.add_argument("--bmoe", type=Path, help="program of BigMoeOnEdge [default: it is left out]")
    parser.add_argument("--sws", type=Path, default=Path("target/release/sws"))
    parser.add_argument("--prompt", type=Path, default=Path(__file__).parent.parent / "prompt.txt")
    parser.add_argument("--tokens", type=int, default=33, help="the first comes from the prompt, and is not counted")
    parser.add_argument("--llama-tokens", type=int, help="tokens of llama.cpp [default: as many]")
    parser.add_argument("--encodings", action="store_true", help="lossless encodings, and one of each peer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shares", default="110,50,25", help="memory in percent of the bf16 file")
    parser.add_argument("--timeout", type=int, default=90, help="seconds of a run")
    parser.add_argument("--only", help="contenders with these words in their name")
    parser.add_argument("--json", type=Path, help="file to write")
    run = parser.parse_args()
    run.programs, run.sws = run.programs.resolve() / "bin", run.sws.resolve()
    run.bmoe = run.bmoe and run.bmoe.resolve()
    run.llama_tokens = run.llama_tokens or run.tokens
    contenders = ENCODINGS if run.encodings else CONTENDERS
    if not run.sws.with_name("sws-bench").exists():
        parser.error(f"`sws-bench` is not beside `{run.sws}`; `cargo build --release --workspace` makes both")
    prompt = run.prompt.read_text()
    size = (run.dir / "big.gguf").stat().st_size
    takes_part = lambda name: (run.only or "") in name and (run.bmoe or not name.startswith(BMOE))
    chosen = [name for name in contenders if takes_part(name)]

    def tokens(what):
        return run.llama_tokens if what.startswith("llama") else run.tokens

    def planned(share, what):
        limit = int(size * share / 100)
        return {"what": what, "share": share, "policy": "", "limit": limit, "tokens": tokens(what), "runs": []}

    rows = [planned(share, what) for share in map(float, run.shares.split(",")) for what in chosen]
    for number in range(run.rounds):
        for share in dict.fromkeys(row["share"] for row in rows):
            turns = [row for row in rows if row["share"] == share]
            for row in turns if number % 2 == 0 else reversed(turns):
                if row.get("ended"):
                    continue
                run.limit, run.seed = row["limit"], number + 1
                try:
                    measured = measure(contenders[row["what"]], run)
                    measured["text"] = continuation(measured["text"], prompt)
                    row["runs"].append(measured)
                    told = f"{1 / measured['seconds_per_token']:.2f} tok/s, {measured['seconds']:.1f} s"
                except NoResult as ended:
                    row["ended"] = told = str(ended)
                print(f"{number + 1}: {share:g} %, {row['what']}: {told}", file=sys.stderr, flush=True)
        compare(rows)
        if run.json:
            run.json.write_text("[\n" + ",\n".join(" " + json.dumps(row) for row in rows) + "\n]\n")
    print(table(rows))


def compare(rows):
    """Names for each row the first contender that wrote the same texts."""
    first = {}
    for row in rows:
        texts = [run["text"] for run in row["runs"]]
        # BigMoeOnEdge writes a token less.
        same = [what for what, others in first.items() if all(map(begins, zip(others, texts)))]
        if texts:
            first.setdefault(row["what"], texts)
            row["same_text_as"] = same[0] if same else row["what"]


def begins(pair):
    shorter, longer = sorted(pair, key=len)
    return longer.startswith(shorter)


if __name__ == "__main__":
    main()
