"""Several clients at a time of `sws serve` and of llama-server, with the same file and memory.

    python benchmarks/peers/servers.py MODEL.gguf --programs PROGRAMS --json FILE

PROGRAMS is the directory that build.sh filled. Each server is started in a control group that kills, with an empty
page cache, and gets as many requests at once as there are clients: texts that each begin with a line of its own.
Needs root, for control groups of version 1. Tokens are counted as they arrive here, bytes as the system counts the
reads of the server's process. docs/benchmarks/peers.md has what the columns mean.
"""

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from peers import THREADS, Group, NoResult

ROOT = Path(__file__).resolve().parent.parent.parent
BEGINNINGS = ROOT / "shards/tales-moe-training/beginnings.txt"
SAMPLING = {"temperature": 1, "top_k": 40, "top_p": 0.95, "min_p": 0, "ignore_eos": True}
CONTEXT = 512


def sws(*options, texts=None):
    def command(run):
        words = ["serve", run.model, "--ram", run.limit, "--threads", THREADS, "--port", run.port, "--quiet"]
        several = ["--context", CONTEXT, "--parallel", texts or run.most, "--no-warm-start"]
        return [run.sws, *words, *several, *options]

    return command


def llama(*options):
    def command(run):
        words = ["-m", run.model, "-t", THREADS, "--port", run.port, "-c", CONTEXT * run.most, "-np", run.most]
        return [run.programs / "llama-server", *words, "--no-warmup", *options]

    return command


CONTENDERS = {
    "sws, as decided": sws(),
    "sws, shared passes": sws("--max-gap", 0),
    "sws, one after the other": sws(texts=1),
    "llama-server with mmap": llama(),
    "llama-server without mmap": llama("--load-mode", "none"),
}


class Server:
    def __init__(self, command, group, run):
        words = [str(word) for word in command]
        self.address, self.group = ("127.0.0.1", run.port), group
        self.log = open(run.log, "w+")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log, preexec_fn=group.enter)
        until = time.monotonic() + run.timeout
        while time.monotonic() < until:
            if self.process.poll() is not None:
                self.ended()
            try:
                connection = http.client.HTTPConnection(*self.address, timeout=10)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        self.stop()
        raise NoResult(f"not ready after {run.timeout} s")

    def ended(self):
        if self.process.returncode == -9:
            raise NoResult("killed")
        self.log.seek(0)
        raise SystemExit(f"`{self.process.args}` failed ({self.process.returncode}): {self.log.read()[-600:]}")

    def read_bytes(self):
        """Bytes read from the device for the process, those of mapped files included."""
        try:
            return int(re.search(r"^read_bytes: (\d+)", Path(f"/proc/{self.process.pid}/io").read_text(), re.M)[1])
        except (OSError, TypeError):
            return 0

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class Seen:
    """Tokens of all clients, with the moment at which the measured ones begin."""

    def __init__(self, server, clients, warm_up, tokens):
        self.server, self.lock = server, threading.Lock()
        self.warm_up, self.total = warm_up * clients, (warm_up + tokens) * clients
        self.count, self.began, self.ended = 0, None, None
        self.over, self.failed = threading.Event(), None

    def token(self):
        with self.lock:
            self.count += 1
            if self.count == self.warm_up:
                self.began = (time.monotonic(), self.server.read_bytes(), self.count)
            if self.count == self.total:
                self.end()

    def end(self):
        if self.ended is None:
            self.ended = (time.monotonic(), self.server.read_bytes(), self.count)
        self.over.set()


class Client(threading.Thread):
    """Reads a stream, and notes when its tokens come."""

    def __init__(self, server, seen, number, tokens):
        super().__init__(daemon=True)
        self.server, self.seen, self.times = server, seen, []
        prompt = BEGINNINGS.read_text().splitlines()[number]
        self.body = {**SAMPLING, "prompt": prompt, "seed": 7 + number, "max_tokens": tokens, "stream": True}
        self.asked = time.monotonic()

    def run(self):
        try:
            connection = http.client.HTTPConnection(*self.server.address, timeout=600)
            connection.request("POST", "/v1/completions", json.dumps(self.body), {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise SystemExit(answer.read().decode())
            for line in answer:
                if self.seen.over.is_set():
                    return connection.sock and connection.close()
                if line.startswith(b"data: {") and json.loads(line[6:]).get("choices", [{}])[0].get("text"):
                    self.times.append(time.monotonic())
                    self.seen.token()
        except (OSError, http.client.HTTPException, SystemExit, ValueError) as error:
            if not self.seen.over.is_set():
                self.seen.failed = error
                self.seen.over.set()


def measure(command, clients, run):
    """One server from an empty page cache, and its clients."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    with Group(run.limit) as group:
        server = Server(command(run), group, run)
        try:
            seen = Seen(server, clients, run.warm_up, run.tokens)
            threads = [Client(server, seen, number, run.warm_up + run.tokens) for number in range(clients)]
            asked = time.monotonic()
            for thread in threads:
                thread.start()
            seen.over.wait(run.timeout)
            with seen.lock:
                seen.end()
            if server.process.poll() is not None:
                server.ended()
            if seen.failed:
                raise SystemExit(f"a client of `{server.process.args}` failed: {seen.failed}")
            if seen.began is None or seen.ended[2] - seen.began[2] < clients:
                raise NoResult(f"{seen.count} tokens after {run.timeout} s")
        finally:
            server.stop()
        peak = group.peak()
    (began, before, first), (ended, after, last) = seen.began, seen.ended
    firsts = [thread.times[0] - asked if thread.times else ended - asked for thread in threads]
    pairs = [pair for thread in threads for pair in zip(thread.times, thread.times[1:])]
    between = [later - sooner for sooner, later in pairs if later >= began]
    return {
        "tokens": last - first,
        "tokens_per_second": round((last - first) / (ended - began), 3),
        "bytes_per_token": round((after - before) / (last - first)),
        "first": [round(statistics.median(firsts), 4), round(max(firsts), 4)],
        "between": [round(statistics.median(between or [0]), 5), round(max(between or [0]), 5)],
        "peak": peak,
    }


def table(rows):
    """A table of medians, in Markdown."""
    words = ["memory", "clients", "server", "tok/s of all", "range", "MB a token", "first token s, longest"]
    words += ["between tokens ms, longest", "peak MiB"]
    lines = [f"| {' | '.join(words)} |", "|---:|---:|---|---:|---" + "|---:" * 4 + "|"]
    for row in rows:
        cells = [f"{row['share']:g} %, {row['limit'] >> 20} MiB", str(row["clients"]), row["what"]]
        runs = row["runs"]
        if not runs:
            lines.append(f"| {' | '.join(cells)} | {row['ended']} | | | | | |")
            continue
        middle = lambda of: statistics.median(map(of, runs))
        speeds = [run["tokens_per_second"] for run in runs]
        cells += [f"{statistics.median(speeds):.3g}", f"{min(speeds):.3g} to {max(speeds):.3g}"]
        cells.append(f"{middle(lambda run: run['bytes_per_token']) / 1e6:.1f}")
        cells.append(f"{middle(lambda run: run['first'][0]):.2f}, {max(run['first'][1] for run in runs):.2f}")
        between = 1e3 * middle(lambda run: run["between"][0]), 1e3 * max(run["between"][1] for run in runs)
        cells += [f"{between[0]:.0f}, {between[1]:.0f}", f"{max(run['peak'] for run in runs) >> 20}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="a GGUF file with the tokenizer of tales-moe")
    parser.add_argument("--programs", type=Path, required=True, help="the directory that build.sh filled")
    parser.add_argument("--sws", type=Path, default=ROOT / "target/release/sws")
    parser.add_argument("--shares", default="110,50,25", help="memory in percent of the file")
    parser.add_argument("--clients", default="1,2,4,8")
    parser.add_argument("--tokens", type=int, default=96, help="measured tokens of each client")
    parser.add_argument("--warm-up", type=int, default=32, help="tokens of each client before those")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--timeout", type=int, default=30, help="seconds of a run; what has come until then counts")
    parser.add_argument("--port", type=int, default=18371)
    parser.add_argument("--only", default="", help="contenders with these words in their name")
    parser.add_argument("--json", type=Path, help="file to write, to which rows of an earlier one are kept")
    run = parser.parse_args()
    run.programs, run.sws = run.programs.resolve() / "bin", run.sws.resolve()
    run.log = run.programs.parent / "server.log"
    size = run.model.stat().st_size
    rows = json.loads(run.json.read_text()) if run.json and run.json.exists() else []
    asked = [
        (share, clients, what)
        for share in map(float, run.shares.split(","))
        for clients in map(int, run.clients.split(","))
        for what in CONTENDERS
        if run.only in what
    ]
    run.most = max(clients for _, clients, _ in asked)
    for number in range(run.rounds):
        for share, clients, what in asked if number % 2 == 0 else reversed(asked):
            key = {"share": share, "clients": clients, "what": what, "limit": int(size * share / 100)}
            row = next((row for row in rows if all(row[name] == value for name, value in key.items())), None)
            if row is None:
                rows.append(row := {**key, "runs": []})
            if "ended" in row:
                continue
            run.limit = row["limit"]
            try:
                row["runs"].append(measure(CONTENDERS[what], clients, run))
                told = f"{row['runs'][-1]['tokens_per_second']:.2f} tok/s"
            except NoResult as ended:
                row["ended"] = told = str(ended)
            print(f"{number + 1}: {share:g} %, {clients} clients, {what}: {told}", file=sys.stderr, flush=True)
            if run.json:
                run.json.write_text("[\n" + ",\n".join(" " + json.dumps(row) for row in rows) + "\n]\n")
    rows.sort(key=lambda row: (-row["share"], row["clients"], list(CONTENDERS).index(row["what"])))
    print(table(rows))


if __name__ == "__main__":
    main()
