#!/usr/bin/env python3
"""Measures what a listener to /events costs a token of `sws serve`: pairs of the same text, with a
listener and without one, in changing order; medians of their ratios with intervals of 95 %. Time of the
processor is that of all threads of the server, and less noisy than time on the clock.

benchmarks/listening.py MODEL [--pairs N] [--tokens N] [-- OPTIONS OF sws serve]
"""

import argparse
import http.client
import json
import subprocess
import sys
import threading
from math import comb
from pathlib import Path

SWS = Path(__file__).resolve().parent.parent / "target/release/sws"


class Listener:
    """Reads events as fast as they come."""

    def __init__(self, address):
        self.connection = http.client.HTTPConnection(*address)
        self.connection.request("GET", "/events")
        self.response = self.connection.getresponse()
        self.socket = self.response.fp
        self.frames = self.bytes = 0
        self.first = threading.Event()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()
        self.first.wait(10)

    def read(self):
        try:
            while line := self.socket.readline():
                self.bytes += len(line)
                self.frames += line.startswith(b"event: frame")
                self.first.set()
        except (OSError, ValueError):
            pass

    def close(self):
        self.connection.sock and self.connection.sock.shutdown(2)
        self.thread.join()
        self.response.close()


def processor(server):
    """Milliseconds for which the threads of a process have run."""
    tasks = Path(f"/proc/{server.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def ask(server, address, number, again, tokens):
    """Milliseconds of a token, on the clock and of the processor. A text that is not the same to the server is computed again."""
    connection = http.client.HTTPConnection(*address)
    stop = "\x01\x02" if again else "\x01\x03"
    body = {"prompt": "The wolf", "seed": number, "max_tokens": tokens, "ignore_eos": True, "stop": stop}
    before = processor(server)
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    timings = answer["timings"]
    assert timings["predicted_n"] == tokens, timings
    return timings["predicted_ms"] / (tokens - 1), (processor(server) - before) / tokens


def interval(ratios):
    """Between the k-th smallest and the k-th largest, at a confidence of 95 % or more."""
    n, below, k = len(ratios), 0.0, 0
    while (below := below + comb(n, k) / 2**n) <= 0.025:
        k += 1
    return (ratios[k - 1], ratios[n - k]) if k else (float("nan"), float("nan"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=41)
    parser.add_argument("--tokens", type=int, default=400)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:cut])
    command = [SWS, "serve", arguments.model, "--port", "0", "--quiet", *words[cut + 1:]]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        address = None
        for line in server.stderr:
            if "listening on http://" in line:
                host, port = line.split("http://")[1].split(";")[0].rsplit(":", 1)
                address = (host, int(port))
            if "ready" in line:
                break
        else:
            sys.exit("the server did not start")
        threading.Thread(target=server.stderr.read, daemon=True).start()
        ask(server, address, 0, False, arguments.tokens)
        pairs, frames, heard = [], 0, 0
        for pair in range(1, arguments.pairs + 1):
            times = {}
            order = (False, True) if pair % 2 else (True, False)
            for turn, listened in enumerate(order):
                listener = Listener(address) if listened else None
                times[listened] = ask(server, address, pair, turn == 1, arguments.tokens)
                if listener:
                    frames, heard = frames + listener.frames, heard + listener.bytes
                    listener.close()
            pairs.append((times[False], times[True]))
        print(f"{len(pairs)} pairs of {arguments.tokens} tokens, {frames} frames of {heard / max(1, frames):.0f} bytes")
        for kind, name in enumerate(("on the clock", "of the processor")):
            alone = sorted(plain[kind] for plain, _ in pairs)
            ratios = sorted(listened[kind] / plain[kind] for plain, listened in pairs)
            low, high = interval(ratios)
            middle = len(pairs) // 2
            print(f"{name}: {alone[middle]:.3f} ms a token; with a listener {ratios[middle]:.4f} times that "
                  f"({low:.4f} to {high:.4f})")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
