#!/usr/bin/env python3
"""The simulation of `sws-bench replicas` beside two real replicas on this machine.

The model tells the texts (`sws-bench replicas --record`), so servers and simulation choose the same experts. The
passes of one replica, as its `/events` tell them, give the costs of a pass, of a token, of an expert and of a read.
With these two replicas are simulated, and two servers with a thread each answer the same clients.

One replica is measured while both work, as they share the memory and the drive of this machine, and while it works
alone. Each request has a key of its own, so that nothing is kept for another.

benchmarks/replicas.py MODEL --dir DIR [--ram SIZE] [--clients N,..] [--requests N] [--rounds N] [--parallel N] [--json FILE]
"""

import argparse
import http.client
import json
import math
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "target/release"
WAIT = 600
KEYS = 8000
# Requests to each server that warm it, and as many that are measured.
WARMING = 40
# Simulations of each case, with other choices of the router.
SEEDS = range(1, 8)
ROUTING = ["affinity", "random", "least-loaded"]
# Ratios that are compared, simulated over measured, and the share by which they may be off.
MEASURES = {
    "tokens_per_second": "tok/s of all",
    "hit_rate": "hits",
    "first_mean": "first token s, mean",
    "first": "first token s, median",
    "first_most": "first token s, 95 %",
    "between_mean": "between tokens s, mean",
    "between": "between tokens s, median",
    "between_most": "between tokens s, 95 %",
}
ALLOWED = 0.1


class Server:
    """A replica, and its listener."""

    def __init__(self, model, options, keys):
        command = [TARGET / "sws", "serve", model, "--port", "0", "--quiet", "--threads", "1", "--no-warm-start"]
        command += ["--no-speculation", "--api-key-file", keys, "--queue", "1000", *options]
        self.process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
        said = ""
        for line in self.process.stderr:
            said += line
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
            if "sws: ready" in line:
                break
        else:
            sys.exit(f"replicas: the server did not start: {said}")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()
        self.load = 0

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(WAIT):
            sys.exit("replicas: the server failed")

    def ask(self, method, path, key, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        connection.request(method, path, body and json.dumps(body), {"x-api-key": f"key-{key}"})
        return connection, connection.getresponse()

    def metrics(self):
        connection, response = self.ask("GET", "/metrics", 0)
        text = response.read().decode()
        connection.close()
        return text

    def metric(self, name):
        return int(re.search(rf"^{re.escape(name)} (\d+)$", self.metrics(), re.M)[1])

    def experts(self):
        """Experts that were in memory when they were chosen, and all that were chosen."""
        found = re.findall(r'sws_expert_requests_total{outcome="(\w+)"} (\d+)', self.metrics())
        counts = {name: int(count) for name, count in found}
        return counts["hit"], sum(counts.values())

    def listen(self, passes):
        """Adds the passes from now on, until the server ends."""
        connection, response = self.ask("GET", "/events", 0)

        def read():
            try:
                for line in response:
                    if line.startswith(b"data: "):
                        frame = json.loads(line[6:])
                        passes.extend(frame.get("passes", ()))
                        if frame.get("lost"):
                            print(f"replicas: {frame['lost']} passes and tokens were not told", file=sys.stderr)
            except (OSError, ValueError, AttributeError):
                connection.close()

        threading.Thread(target=read, daemon=True).start()


class Clients:
    """Clients that ask as those of the simulation do: each has a topic, and one request at a time."""

    keys = 0

    def __init__(self, servers, texts, clients, requests, routing, parallel, seed=1):
        self.servers, self.clients, self.requests, self.routing = servers, clients, requests, routing
        self.topics = [[text for text in texts if text["topic"] == topic] for topic in range(1 + texts[-1]["topic"])]
        self.random, self.lock, self.most = random.Random(seed), threading.Lock(), 2 * parallel
        self.sent = self.ended = self.tokens = 0
        self.half = self.last = None
        self.first, self.between, self.waits = [], [], []

    def choose(self, topic):
        loads = [server.load for server in self.servers]
        least = [number for number, load in enumerate(loads) if load == min(loads)]
        if self.routing == "random":
            chosen = self.random.randrange(len(loads))
        else:
            has_room = [number for number, load in enumerate(loads) if load < self.most]
            by_topic = self.routing == "affinity" and has_room
            chosen = min(has_room, key=lambda number: rank(topic, number)) if by_topic else self.random.choice(least)
        self.servers[chosen].load += 1
        return self.servers[chosen]

    def client(self, number):
        topic, before = number % len(self.topics), 0
        texts = self.topics[topic]
        while True:
            with self.lock:
                if self.sent == self.requests:
                    return
                self.sent += 1
                asked, counts, key = time.monotonic(), self.half is not None, self.keys % KEYS
                Clients.keys += 1
                if self.sent == self.requests:
                    self.last = asked, self.tokens
                server = self.choose(topic)
            text = texts[(number // len(self.topics) + before) % len(texts)]
            before += 1
            times = self.answer(server, text, key)
            with self.lock:
                server.load -= 1
                self.ended += 1
                self.waits.append(times[-1] - asked)
                if counts:
                    self.first.append(times[0] - asked)
                    self.between.extend(b - a for a, b in zip(times, times[1:]))
                if self.ended == -(-self.requests // 2):
                    self.half = time.monotonic(), self.tokens, [server.experts() for server in self.servers]

    def answer(self, server, text, key):
        """Asks for a text. Returns the times of its tokens, and of the end."""
        body = {"prompt": text["prompt"], "seed": text["seed"], "max_tokens": text["new"], "stream": True}
        body |= {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "ignore_eos": True}
        connection, response = server.ask("POST", "/v1/completions", key, body)
        times = []
        for line in response:
            if line.startswith(b"data: {") and b'"finish_reason":null' in line:
                times.append(time.monotonic())
                with self.lock:
                    self.tokens += 1
        connection.close()
        # Now and then a token is a part of a character, and comes with the next.
        if not 0.9 * text["new"] <= len(times) <= text["new"]:
            sys.exit(f"replicas: {len(times)} tokens of {text['new']} came, with status {response.status}")
        return times

    def run(self):
        threads = [threading.Thread(target=self.client, args=(number,)) for number in range(self.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        after = [server.experts() for server in self.servers]
        hits, uses = (sum(b[at] - a[at] for a, b in zip(self.half[2], after)) for at in (0, 1))
        return {
            "tokens_per_second": (self.last[1] - self.half[1]) / (self.last[0] - self.half[0]),
            "first": quantile(self.first, 0.5),
            "first_most": quantile(self.first, 0.95),
            "between": quantile(self.between, 0.5),
            "between_most": quantile(self.between, 0.95),
            "first_mean": statistics.mean(self.first),
            "between_mean": statistics.mean(self.between),
            "hit_rate": hits / uses,
        }


def quantile(times, share):
    """The time that this share of the times does not exceed."""
    return sorted(times)[math.ceil(share * len(times)) - 1]


def mixed(state):
    """The next number of SplitMix64, with the state after it."""
    mask = (1 << 64) - 1
    state = (state + 0x9E3779B97F4A7C15) & mask
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def rank(topic, replica):
    return mixed(mixed(topic) ^ (replica * 0xD6E8FEB86659FD93 & (1 << 64) - 1))


def solved(rows, right):
    """The solution of as many equations as unknowns, by elimination."""
    count = len(rows)
    rows = [[*row, value] for row, value in zip(rows, right)]
    for at in range(count):
        pivot = max(range(at, count), key=lambda row: abs(rows[row][at]))
        rows[at], rows[pivot] = rows[pivot], rows[at]
        if abs(rows[at][at]) < 1e-12:
            return None
        for row in range(count):
            if row != at:
                factor = rows[row][at] / rows[at][at]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[at])]
    return [rows[at][count] / rows[at][at] for at in range(count)]


def fitted(passes):
    """Costs of a pass, a token, an expert and a read, none below 0: least squares, in shares of the mean time of the
    passes with as many tokens."""
    rows, times = [], []
    for tokens in {each["tokens"] for each in passes}:
        same = [each["step"] for each in passes if each["tokens"] == tokens]
        mean = statistics.mean(step["seconds"] for step in same)
        for step in same:
            work = 1.0, tokens, step["hits"] + step["misses"], step["misses"]
            rows.append([each / mean for each in work])
            times.append(step["seconds"] / mean)
    used = [0, 1, 2, 3]
    while used:
        square = [[sum(row[a] * row[b] for row in rows) for b in used] for a in used]
        found = solved(square, [sum(row[a] * time for row, time in zip(rows, times)) for a in used])
        worst = None if found is None else min(range(len(used)), key=lambda at: found[at])
        if found is not None and found[worst] >= 0:
            costs = dict(zip(used, found))
            return dict(zip(["pass", "token", "expert", "read"], (costs.get(at, 0.0) for at in range(4))))
        used.pop(1 if worst is None else worst)
    sys.exit("replicas: the passes have no costs")


def busy(servers, texts, clients, requests, parallel):
    """So many clients ask each server. Returns the seconds until those of the first have their answers."""
    seconds = [0.0] * len(servers)
    began = time.monotonic()

    def run(at):
        Clients([servers[at]], texts, clients, requests, "affinity", parallel).run()
        seconds[at] = time.monotonic() - began

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(servers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seconds[0]


def calibrated(servers, texts, parallel):
    """Costs of the first replica, as its passes tell, while the others are as busy, and while they rest."""
    # The drive is slower where it is read for the first time.
    busy(servers, texts, parallel, WARMING, parallel)
    passes = []
    servers[0].listen(passes)
    time.sleep(0.5)
    busy(servers, texts, parallel, WARMING, parallel)
    time.sleep(0.5)
    shared = len(passes)
    busy(servers[:1], texts, parallel, WARMING, parallel)
    time.sleep(0.5)
    # With one client, what is not of passes is between requests.
    before, seconds = len(passes), busy(servers, texts, 1, WARMING, parallel)
    time.sleep(0.5)
    seconds -= sum(each["step"]["seconds"] for each in passes[before:])
    costs = fitted(passes[:shared] + passes[before:]) | {"alone": fitted(passes[shared:before])}
    return costs | {"between": max(0.0, seconds / WARMING)}, len(passes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--dir", type=Path, required=True, help="a directory for texts and costs")
    parser.add_argument("--ram", default="min")
    parser.add_argument("--clients", default="2,6")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--topics", type=int, default=8)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    out, parallel = arguments.dir, str(arguments.parallel)
    bench = [TARGET / "sws-bench", "replicas", "--topics", arguments.topics, "--new", arguments.new, "--per-topic", 8]
    bench = [*map(str, bench), "--model", arguments.model]
    if not (out / "texts.json").exists():
        subprocess.run([*bench, "--record", str(out)], check=True)
    texts = json.loads((out / "texts.json").read_text())
    (out / "keys").write_text("".join(f"key-{number}\n" for number in range(KEYS)))
    options = ["--ram", arguments.ram, "--parallel", parallel, "--context", "256", "--max-gap", "10"]
    servers = [Server(arguments.model, options, out / "keys") for _ in range(2)]
    measured = {}
    try:
        slots, lent = (servers[0].metric(f'sws_expert_slots{{kind="{kind}"}}') for kind in ["own", "lent"])
        costs, count = calibrated(servers, texts, arguments.parallel)
        costs |= {"expert_bytes": 1}
        (out / "costs.json").write_text(json.dumps(costs))
        words = ", ".join(
            f"{name} {1e3 * costs[name]:.3f} ({1e3 * costs['alone'].get(name, costs[name]):.3f})"
            for name in ["pass", "token", "expert", "read", "between"]
        )
        print(f"costs of {count} passes in ms, and of one replica alone: {words}; {slots} slots, {lent} lent")
        for number in map(int, arguments.clients.split(",")):
            for routing in ROUTING:
                for server in servers:
                    server.load = 0
                rounds = [
                    Clients(servers, texts, number, arguments.requests, routing, arguments.parallel, seed).run()
                    for seed in range(arguments.rounds)
                ]
                measured[number, routing] = {name: statistics.median(r[name] for r in rounds) for name in MEASURES}
    finally:
        for server in servers:
            server.end()
    simulated = [*bench, "--costs", str(out / "costs.json"), "--replicas", "2", "--clients", arguments.clients]
    simulated += ["--parallel", parallel, "--slots", str(slots), "--lent", str(lent), "--requests", str(arguments.requests)]
    outcomes = []
    for seed in SEEDS:
        command = [*simulated, "--seed", str(seed), "--json", str(out / "simulated.json")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        outcomes += json.loads((out / "simulated.json").read_text())["outcomes"]
    report(measured, outcomes, arguments, costs)


def of(outcome, name):
    """A measure of a simulation."""
    if name.endswith("_mean"):
        return outcome["means"][["first_mean", "between_mean"].index(name)]
    if name.endswith("_most"):
        return outcome[name.removesuffix("_most")][1]
    return outcome[name][0] if isinstance(outcome[name], list) else outcome[name]


def report(measured, outcomes, arguments, costs):
    print("| clients | routing | measure | measured | simulated | ratio | |\n|---:|---|---|---:|---:|---:|---|")
    rows, met = [], 0
    for (clients, routing), real in measured.items():
        same = [o for o in outcomes if (o["clients"], o["routing"]) == (clients, routing)]
        for name, words in MEASURES.items():
            there = statistics.median(of(outcome, name) for outcome in same)
            ratio = there / real[name]
            is_met = abs(ratio - 1) <= ALLOWED
            met += is_met
            rows.append({"clients": clients, "routing": routing, "measure": name, "measured": real[name], "simulated": there})
            print(f"| {clients} | {routing} | {words} | {real[name]:.4g} | {there:.4g} | {ratio:.3f} | {'met' if is_met else 'missed'} |")
    print(f"{met} of {len(rows)} within {ALLOWED:.0%}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"costs": costs, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
