#!/usr/bin/env python3
"""Time to the first token of a prompt: computed, sent again to the same server, and sent to a server that
was started again with `--kv-disk`. The texts must be the same.

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

    def first_token(self, tokens):
        """Seconds to the first token, and the text."""
        body = {"prompt": tokens, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "stream": True, "logprobs": 0}
        begun, first, text = time.monotonic(), None, ""
        for line in self.ask("/v1/completions", body):
            if line.startswith(b"data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    if choice["text"]:
                        first = first or time.monotonic() - begun
                        text += choice["text"]
        return first, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    times = {"computed": [], "memory": [], "disk": []}
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as cache:
            server = Server(args.model, args.options, cache)
            story = f"Story {number}. " + "The wolf went to the river and saw a boat. " * args.tokens
            tokens = json.load(server.ask("/tokenize", {"content": story}))["tokens"][: args.tokens]
            cold, text = server.first_token(tokens)
            memory, again = server.first_token(tokens)
            server.end()
            server = Server(args.model, args.options, cache)
            disk, later = server.first_token(tokens)
            server.end()
            if not text == again == later:
                sys.exit(f"the texts differ: {text!r}, {again!r}, {later!r}")
            for name, seconds in zip(times, (cold, memory, disk)):
                times[name].append(seconds)
    whole = statistics.median(times["computed"])
    print(f"{args.tokens} tokens, {args.rounds} rounds: seconds to the first token, and how many times sooner")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:9} {median:8.3f} ({min(seconds):.3f} to {max(seconds):.3f}) {whole / median:6.1f}")


if __name__ == "__main__":
    main()
