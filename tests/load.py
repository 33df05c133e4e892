#!/usr/bin/env python3
"""Many requests to `sws serve` in a control group that kills, with the budget as its limit: texts whole
and streamed, cancelled, left by their clients in each state, read slowly; bodies that are malformed or
hostile. Each finished text must be the one that `sws run` writes, each refusal one sentence; at the end
nothing runs or waits, and the memory is what it was after the first hundred requests.

With --faults, so many reads of a thousand fail: that ends the texts that need them, with a failure that
names the piece, and no other. The server is then the example `flaky` of crates/serve, which counts its heap.

tests/load.py [--requests N] [--faults PERMILLE] [--seed N] [--model DIR]
"""

import argparse
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SWS = ROOT / "target/release/sws"
FLAKY = ROOT / "target/release/examples/flaky"
GROUP = Path("/sys/fs/cgroup/memory") / f"sws-load-{os.getpid()}"
PROMPTS = ["The wolf", "Once upon a time", "A cat", "Rain fell", "In the forest", "She said"]
WORKERS = 12
# Bytes by which the memory may grow while nothing runs: pages of the allocator.
SLACK = 2 << 20
# Bytes by which the counted heap may: tokens of the texts whose keys and values are kept.
HEAP_SLACK = 256 << 10

MALFORMED = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": 3.5}', b'{"prompt": "a", "max_tokens": "many"}',
    b'{"prompt": "a", "max_tokens": 1e400}', b'{"prompt": [1, "a"]}', b'{"prompt": [99999999]}',
    b'{"prompt": "a", "temperature": "hot"}', b'{"prompt": "a", "stop": ' + json.dumps(["x"] * 99).encode() + b"}",
    b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"prompt": "' + b"a" * 300000 + b'"}',
    b'{"prompt": "a", "guided_regex": "(((((a{1000}){1000}){1000}))))"}', b'{"prompt": "a", "n": 100000}',
    b'{"prompt": "a", "logit_bias": {"a": 1}}', b'{"model": "\x00", "prompt": "a"}', b'{"prompt": "a", "suffix": "b"}',
]
RAW = [
    b"GET /nonesuch HTTP/1.1\r\nhost: localhost\r\n\r\n", b"PUT /v1/completions HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: evil.example\r\ncontent-length: 2\r\n\r\n{}", b"\x16\x03\x01\x02\x00",
    b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 80000 + b" HTTP/1.1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
]


def joined(command):
    """The command, within the group."""
    return ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(GROUP), *map(str, command)]


class Server:
    faults = False

    def __init__(self, model, options=(), environment=None, room=0):
        """Starts it with these options; in its group there is room for so many bytes of others."""
        serve = [SWS, "serve", model, "--port", "0", "--quiet", "--no-warm-start", *options]
        ram = subprocess.run([*serve, "--ram", "1MiB"], capture_output=True, text=True, env=environment)
        found = re.search(r"smallest that works here is --ram (\d+)MiB", ram.stderr)
        self.budget = int(found[1]) << 20
        command = self.within([*serve, "--ram", str(self.budget)], room)
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        for line in self.process.stderr:
            if "listening on http://" in line:
                host, port = line.split("http://")[1].split(";")[0].rsplit(":", 1)
                self.address = (host, int(port))
            if "ready" in line:
                break
        else:
            sys.exit("load: the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def within(self, command, room=0):
        """The command, in a group that is limited to its budget."""
        self.group = self.limited(room)
        return joined(command) if self.group else [str(word) for word in command]

    def limited(self, room):
        """Makes a group that kills above the budget, if that is allowed here."""
        try:
            GROUP.mkdir()
            (GROUP / "memory.limit_in_bytes").write_text(str(self.budget + room))
            return True
        except OSError as error:
            print(f"load: skipped: the limit, as no control group of version 1 can be made here ({error})")
            return False

    def get(self, path):
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def metric(self, name):
        return float(re.search(rf"^{name} (\S+)$", self.get("/metrics"), re.M)[1])

    def idle(self):
        for _ in range(600):
            if self.metric("sws_requests_running") == 0 and self.metric("sws_requests_waiting") == 0:
                return json.loads(self.get("/v1/requests"))["data"] == []
            time.sleep(0.1)
        return False

    def memory(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10

    def end(self):
        self.process.terminate()

    def stop(self):
        self.end()
        code = self.process.wait(60)
        peak = int((GROUP / "memory.max_usage_in_bytes").read_text()) if self.group else None
        for _ in range(50 if self.group else 0):
            try:
                GROUP.rmdir()
                break
            except OSError:
                time.sleep(0.1)
        return code, peak


class Flaky(Server):
    """A server whose reads fail now and then, and which counts its heap."""

    faults = True

    def __init__(self, model, per_mille):
        plan = subprocess.run([FLAKY, model, "0", "0"], capture_output=True, text=True, check=True)
        self.budget = int(plan.stdout)
        command = self.within([FLAKY, model, self.budget, per_mille])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if "listening on http://" not in line:
            sys.exit("load: the server did not start")
        host, port = line.split("http://")[1].strip().rsplit(":", 1)
        self.address = (host, int(port))

    def fail(self, per_mille):
        """From now on, so many reads of a thousand fail."""
        self.process.stdin.write(f"{per_mille}\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def counted(self):
        """The bytes on its heap, and the number of reads that have failed."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        heap, failed = self.process.stdout.readline().split()
        return int(heap), int(failed)

    def memory(self):
        return self.counted()[0]

    def end(self):
        self.failed = self.counted()[1]
        self.process.stdin.close()


def expected(model):
    """The texts of `sws run`, by prompt and seed."""
    texts = {}
    for number, prompt in enumerate(PROMPTS):
        for seed in (number, number + 100):
            command = [SWS, "run", model, "--prompt", prompt, "--seed", str(seed), "-n", str(8 + number * 6), "--json", "--no-warm-start"]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            texts[prompt, seed] = (8 + number * 6, json.loads(run.stdout)["text"])
    return texts


class Load:
    def __init__(self, server, texts, count, seed):
        self.server, self.texts, self.count, self.seed = server, texts, count, seed
        self.seen, self.problems, self.lock, self.next = Counter(), [], threading.Lock(), 0
        self.early = None

    def take(self):
        with self.lock:
            self.next += 1
            return self.next - 1 if self.next <= self.count else None

    def problem(self, words):
        with self.lock:
            self.problems.append(words)

    def worker(self):
        while (number := self.take()) is not None:
            chance = random.Random(self.seed * 1_000_003 + number)
            kind = chance.choices(["whole", "stream", "leave", "cancel", "slow", "malformed", "raw"], [30, 20, 15, 10, 5, 15, 5])[0]
            try:
                outcome = getattr(self, kind)(chance)
            except (OSError, http.client.HTTPException) as error:
                outcome = f"{type(error).__name__}"
                self.problem(f"request {number}, {kind}: {error!r}")
            with self.lock:
                self.seen[f"{kind}: {outcome}"] += 1

    def body(self, chance, stream):
        prompt, seed = chance.choice(list(self.texts))
        tokens, text = self.texts[prompt, seed]
        return {"prompt": prompt, "seed": seed, "max_tokens": tokens, "stream": stream}, text

    def post(self, body):
        stream = socket.create_connection(self.server.address, timeout=120)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        try:
            stream.sendall(head.encode() + data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # Refused before all of it was read.
        return stream

    def answer(self, stream):
        response = http.client.HTTPResponse(stream)
        response.begin()
        return response.status, response.read().decode(), response

    def refused(self, status, text, allowed):
        if status == 500 and self.server.faults:
            return self.unread(json.loads(text))
        if status not in allowed:
            self.problem(f"status {status}: {text[:200]}")
        elif not json.loads(text)["error"]["message"]:
            self.problem(f"status {status} without words")
        return status

    def unread(self, failure):
        """A text that ended with a read that failed, which must be named."""
        message = failure["error"]["message"]
        if "piece `" not in message:
            self.problem(f"a failure that names no piece: {message[:200]}")
        return "a read failed"

    def whole(self, chance):
        body, text = self.body(chance, False)
        status, answer, _ = self.answer(self.post(body))
        if status != 200:
            return self.refused(status, answer, {429})
        if json.loads(answer)["choices"][0]["text"] != text:
            self.problem(f"another text for {body}: {answer[:200]}")
        return status

    def stream(self, chance, pause=0.0):
        body, text = self.body(chance, True)
        stream = self.post(body)
        if pause:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        response = http.client.HTTPResponse(stream)
        response.begin()
        if response.status != 200:
            return self.refused(response.status, response.read().decode(), {429})
        found, ended = "", False
        for line in response:
            if line.startswith(b"data: [DONE]"):
                ended = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event and event["error"]["type"] == "server_error" and self.server.faults:
                    return self.unread(event)
                if "error" in event:
                    return "refused in the stream"
                found += event["choices"][0]["text"]
            time.sleep(pause)
        if not ended or found != text:
            self.problem(f"another text for {body}: {found[:200]!r}")
        return response.status

    def slow(self, chance):
        return self.stream(chance, pause=0.02)

    def leave(self, chance):
        body, _ = self.body(chance, chance.random() < 0.5)
        body["max_tokens"] = 200
        stream = self.post(body)
        if chance.random() < 0.7:
            time.sleep(chance.random() * 0.5)
        stream.close()
        return "left"

    def cancel(self, chance):
        body, _ = self.body(chance, True)
        body |= {"max_tokens": 200, "ignore_eos": True, "seed": chance.randrange(1 << 30)}
        stream = self.post(body)
        response = http.client.HTTPResponse(stream)
        response.begin()
        if response.status != 200:
            return self.refused(response.status, response.read().decode(), {429})
        connection = http.client.HTTPConnection(*self.server.address, timeout=60)
        connection.request("DELETE", "/v1/requests/" + response.headers["x-request-id"])
        status = connection.getresponse().status
        rest = response.read()
        if self.server.faults and b"server_error" in rest:
            return "a read failed"
        if status == 200 and b"cancelled_error" not in rest and b"[DONE]" not in rest:
            self.problem(f"a cancelled text ends with {rest[-200:]}")
        return status

    def malformed(self, chance):
        status, text, _ = self.answer(self.post(chance.choice(MALFORMED)))
        return self.refused(status, text, {400, 413, 429})

    def raw(self, chance):
        stream = socket.create_connection(self.server.address, timeout=60)
        stream.sendall(chance.choice(RAW))
        stream.settimeout(2)
        try:
            first = stream.recv(4096)
        except (TimeoutError, ConnectionResetError):
            return "no answer"
        if first and not re.match(rb"HTTP/1\.[01] (4\d\d|505)", first):
            self.problem(f"an answer to nonsense: {first[:100]}")
        return first[9:12].decode() or "closed"

    def run(self):
        # The vocabulary of forms is made once, and kept until no request has had a form for some time.
        self.answer(self.post({"prompt": "a", "max_tokens": 2, "guided_choice": ["a"]}))
        first = min(100, self.count)
        for start, end in ((0, first), (first, self.count)):
            self.next, self.count = start, end
            threads = [threading.Thread(target=self.worker) for _ in range(WORKERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if not self.server.idle():
                self.problem("something still runs or waits")
            self.early = self.early or self.server.memory()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--faults", type=int, default=0, metavar="PERMILLE")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default=str(ROOT / "shards/tales-moe"))
    arguments = parser.parse_args()
    texts = expected(arguments.model)
    server = Flaky(arguments.model, arguments.faults) if arguments.faults else Server(arguments.model)
    load = Load(server, texts, arguments.requests, arguments.seed)
    began = time.monotonic()
    try:
        load.run()
        late = server.memory()
    finally:
        code, peak = server.stop()
    for outcome, count in sorted(load.seen.items()):
        print(f"{count:6} {outcome}")
    mib = lambda size: f"{size / 2**20:.1f} MiB"
    print(f"{arguments.requests} requests in {time.monotonic() - began:.0f} s; memory {mib(load.early)} after 100, {mib(late)} at the end")
    if peak is not None:
        print(f"the control group counted {mib(peak)} of {mib(server.budget)}")
    right = sum(count for outcome, count in load.seen.items() if outcome in ("whole: 200", "stream: 200", "slow: 200"))
    print(f"{right} texts are whole and right")
    if not right:
        load.problem("no text is whole")
    if server.faults:
        ended = sum(count for outcome, count in load.seen.items() if outcome.endswith("a read failed"))
        print(f"{server.failed} reads have failed, and {ended} texts with them")
        if not server.failed:
            load.problem("no read has failed")
    if late > load.early + (HEAP_SLACK if server.faults else SLACK):
        load.problem("the memory has grown")
    if code != 0:
        load.problem(f"the server ended with {code}")
    for problem in load.problems[:20]:
        print("FAILED", problem)
    print("failed" if load.problems else "all hold")
    sys.exit(bool(load.problems))


if __name__ == "__main__":
    main()
