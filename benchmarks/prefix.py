#!/usr/bin/env python3
"""Time to the first token of a prompt: computed; with a token more, sent to a server that was started again, and
has it on disk; and with another token, sent to the same server, which has it in memory. Tests compare the texts.

benchmarks/prefix.py MODEL [--tokens N] [--rounds N] [-- OPTIONS of sws serve]
"""

import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SWS = Path(__file__).resolve().parent.parent / "target/release/sws"
WAIT = 600


class Server:
    def __init__(self, model, options, cache):
        command = [SWS, "serve", model, "--port", "0", "--quiet", "--kv-disk", "4GiB", *options]
        env = {**os.environ, "XDG_CACHE_HOME": cache}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
            if "ready" in line:
                return
        sys.exit("the server did not start")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(WAIT):
            sys.exit("the server failed")

    def ask(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        connection.request("POST", path, json.dumps(body))
        return connection.getresponse()

    def tokens(self, first, count):
        story = first + "The wolf went to the river and saw a boat. " * (count // 8)
        return json.load(self.ask("/tokenize", {"content": story}))["tokens"][:count]

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(name + " ")))

    def first_token(self, tokens):
        """Seconds to the first token."""
        body = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True}
        begun = time.monotonic()
        for line in self.ask("/v1/completions", body):
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                return time.monotonic() - begun
        sys.exit("there was no token")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    ours, _, options = " ".join(sys.argv[1:]).partition(" -- ")
    args = parser.parse_args(ours.split())
    args.options = options.split()
    rounds = [one_round(args, number) for number in range(args.rounds)]
    print(f"{args.tokens} tokens, {args.rounds} rounds: seconds to the first token, and how many times sooner than computed")
    for name in rounds[0]:
        seconds = [times[name] for times in rounds]
        ratios = [times["computed"] / times[name] for times in rounds]
        print(f"{name:9} {statistics.median(seconds):8.4f} s {statistics.median(ratios):7.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def one_round(args, number):
    """The times of a story that nothing has computed before. Each server computes another one first, so that
    its weights are as warm for all."""
    with tempfile.TemporaryDirectory() as cache:
        server = Server(args.model, args.options, cache)
        server.first_token(server.tokens(f"Another {number}. ", args.tokens))
        tokens = server.tokens(f"Story {number}. ", args.tokens)
        computed = server.first_token(tokens)
        server.end()
        server = Server(args.model, args.options, cache)
        server.first_token(server.tokens(f"Third {number}. ", args.tokens))
        disk = server.first_token(tokens + [7])
        memory = server.first_token(tokens + [8])
        read = server.metric("sws_kv_disk_tokens_total")
        server.end()
    if read != args.tokens:
        sys.exit(f"only {read} tokens were read from the disk")
    return {"computed": computed, "memory": memory, "disk": disk}


if __name__ == "__main__":
    main()
