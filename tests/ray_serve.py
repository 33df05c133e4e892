#!/usr/bin/env python3
"""Two replicas of `sws serve` under Ray Serve on this machine: the same bytes from each; an engine and a
replica that are killed in mid-stream; a client that leaves; a replica that ends while it answers; one
replica, two and one again.

    pip install 'ray[serve]==2.60.0'
    tests/ray_serve.py [PROGRAM] [--model DIR]
"""

import argparse
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "deploy/ray"
sys.path.insert(0, str(APP))
sys.dont_write_bytecode = True
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(APP)}

import ray  # noqa: E402
import resume  # noqa: E402
import sws_ray  # noqa: E402
from ray import serve  # noqa: E402

PORT = 18417
ADDRESS = ("127.0.0.1", PORT)
PROMPTS = ["The wolf", "Once upon a time", "A cat", "Rain fell", "In the forest", "She said", "Snow", "The king"]
PROMPTS += [f"{word} was" for word in ["He", "She", "It", "Day", "Night", "Gold", "Iron", "Wood"]]
LONG = 400


def post(body: dict, path="/v1/completions"):
    connection = http.client.HTTPConnection(*ADDRESS, timeout=120)
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    return connection, connection.getresponse()


def events(response, during=lambda number: None):
    """The values of a stream's events, and its last one as text."""
    found, rest, number = [], b"", 0
    while piece := response.read1(65536):
        *whole, rest = (rest + piece).split(b"\n\n")
        for event in whole:
            data = event.partition(b"data: ")[2]
            if data and data != b"[DONE]":
                found.append(json.loads(data))
                number += 1
                during(number)
    return found


def told(found) -> str:
    return "".join(each["choices"][0]["text"] for each in found if each.get("choices"))


def ask(prompt: str, tokens: int, **options) -> dict:
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, **options}


def engines() -> dict:
    """Processes of engines, with those that started them."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    return {int(pid): int(parent) for pid, parent, words in rows if words.startswith(PROGRAM + " serve ")}


def wait_for(what: str, seconds: float, condition):
    end = time.time() + seconds
    while not (value := condition()):
        assert time.time() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)
    return value


def replicas() -> int:
    deployments = serve.status().applications["sws"].deployments
    return deployments["Replica"].replica_states.get("RUNNING", 0)


def deploy(**options) -> None:
    options = {"model": MODEL, "ram": "min", "program": PROGRAM, "cpus": "1", "drive": "sws_drive", **options}
    serve.run(sws_ray.app(options), name="sws")
    wait_for("replicas", 120, lambda: replicas() == len(engines()) >= int(options["replicas"][0]))


def resumed() -> None:
    """Streams of two replicas, cut at each byte: the client has the first one's, whole."""

    def stream(id: str, time: int, signs: int, cost: float) -> bytes:
        number, out = 0, b""

        def event(kind: str, value: dict):
            nonlocal number, out
            data = json.dumps({"type": kind, "sequence_number": number, **value}, separators=(",", ":"))
            out += f"event: {kind}\ndata: {data}\n\n".encode()
            number += 1

        response = {"id": f"resp-{time:x}-{id}", "created_at": time}
        event("response.created", {"response": response})
        for _ in range(signs):
            event("response.in_progress", {"response": response})
        for text in ["a", '"id":"b-12345678-9"', "\n\n", ": c"]:
            event("response.output_text.delta", {"item_id": f"item-{time:x}-{id}f", "delta": text})
            out += b": keep-alive\n\n" * signs
        event("response.completed", {"response": {**response, "usage": {"n": signs}}, "timings": {"ms": cost}})
        return out

    first, second = stream("1", 0x6B04C1FC, 0, 1.5), stream("a", 0x6B04C2FF, 2, 2.5)
    texts = lambda out: [each for each in out.split(b"\n\n") if each and not resume.lacks_text(each)]
    for cut in range(len(first)):
        relay = resume.Relay()
        got = relay.take(first[:cut])
        relay.begin()
        for at in range(0, len(second), 7):
            got += relay.take(second[at : at + 7])
        got = got.split(b"\n\n")
        numbers = [int(found[0].split(b":")[1]) for found in resume.NUMBER.finditer(b"".join(got))]
        assert numbers == list(range(len(numbers))), numbers
        got, want = texts(b"\n\n".join(got)), texts(first)
        assert list(map(resume.plain, got)) == list(map(resume.plain, want)), cut
        ids = {found[2] for each in got for found in resume.ID.finditer(each)}
        assert len(ids) == 2, (cut, ids)
    relay = resume.Relay()
    relay.take(first)
    relay.begin()
    try:
        relay.take(second.replace(b'"a"', b'"x"'))
        raise AssertionError("another text was taken for the same")
    except resume.Diverged:
        pass
    print(f"a stream cut at each of {len(first)} bytes goes on as it was")


def alone(prompt: str, tokens: int, seed: int) -> str:
    command = [PROGRAM, "run", "-m", MODEL, "--ram", "min", "-p", prompt, "-n", str(tokens), "--seed", str(seed)]
    out = subprocess.run([*command, "--ignore-eos"], capture_output=True, text=True, check=True)
    return out.stdout.removesuffix("\n")


def same_bytes() -> None:
    used = {}
    for prompt in PROMPTS:
        for _ in range(2):
            connection, response = post(ask(prompt, 20, seed=7))
            used.setdefault(prompt, set()).add(response.getheader("x-sws-replica"))
            assert told(events(response)) == alone(prompt, 20, 7), prompt
            connection.close()
    assert all(len(of) == 1 for of in used.values()), used
    both = {next(iter(of)) for of in used.values()}
    assert len(both) == 2, both
    print(f"{len(PROMPTS)} prompts: the bytes of sws run from 2 replicas, each prompt from one of them")


def killed(victim: str) -> None:
    reference = alone(PROMPTS[0], LONG, 7)
    for seed in [7, None]:
        before = engines()
        connection, response = post(ask(PROMPTS[0], LONG, **({"seed": seed} if seed else {"temperature": 1})))
        engine = wait_for("a text that runs", 20, lambda: busy(before))

        def kill(number):
            if number == 30:
                os.kill(engine if victim == "engine" else before[engine], signal.SIGKILL)

        found = events(response, kill)
        assert len(found) >= 30
        ids = {each.get("id") for each in found if "choices" in each}
        if seed:
            assert told(found) == reference and len(ids) == 1, (told(found), reference, ids)
            print(f"{victim} killed at event 30 of {len(found)}: the same {len(reference)} characters, one id")
        else:
            assert "error" in found[-1], (len(found), found[-1])
            assert len(found) < LONG
            print(f"{victim} killed without a seed: {found[-1]['error']['message']}")
        connection.close()
        wait_for("the engine's end", 20, lambda: engine not in engines())
        wait_for("a new replica", 60, lambda: replicas() == len(engines()) == 2)


def metric(pid: int, name: str) -> float:
    """A counter of an engine, from its own address."""
    listed = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True).stdout
    port = next(line.split()[3].rsplit(":", 1)[1] for line in listed.splitlines() if f"pid={pid}," in line)
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
    connection.request("GET", "/metrics")
    return float(re.search(rf"^{name} (\S+)$", connection.getresponse().read().decode(), re.M)[1])


def busy(processes) -> int | None:
    """An engine with a text."""
    return next((pid for pid in processes if metric(pid, "sws_requests_running")), None)


def left() -> None:
    for stream in [True, False]:
        body = ask(PROMPTS[1], LONG, seed=9) | {"stream": stream}
        connection = http.client.HTTPConnection(*ADDRESS, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body))
        engine = wait_for("a text that runs", 20, lambda: busy(engines()))
        tokens = metric(engine, "sws_tokens_total")
        connection.sock.close()
        wait_for("an idle engine", 20, lambda: not metric(engine, "sws_requests_running"))
        tokens = metric(engine, "sws_tokens_total") - tokens
        assert tokens < LONG / 2, tokens
        what = "a stream" if stream else "an answer in one piece"
        print(f"a client leaves {what}: its text ends {tokens:.0f} tokens later")


def drained() -> None:
    answers = {}

    def stream(prompt):
        connection, response = post(ask(prompt, LONG, seed=5))
        answers[prompt] = told(events(response))

    threads = [threading.Thread(target=stream, args=(prompt,)) for prompt in PROMPTS[:6]]
    [thread.start() for thread in threads]
    wait_for("texts that run", 20, lambda: busy(engines()))
    deploy(replicas="1")
    [thread.join() for thread in threads]
    assert len(answers) == 6 and all(text == alone(prompt, LONG, 5) for prompt, text in answers.items())
    wait_for("one replica", 60, lambda: replicas() == len(engines()) == 1)
    print(f"two replicas become one while {len(threads)} texts run: all whole")


def scaled() -> None:
    deploy(replicas="1-2", up="1", down="3", parallel="2")
    wait_for("one replica", 60, lambda: replicas() == 1)
    stop = threading.Event()

    def client(number):
        while not stop.is_set():
            connection, response = post(ask(PROMPTS[number], 100, seed=number))
            events(response)
            connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    [thread.start() for thread in threads]
    wait_for("a second replica", 90, lambda: replicas() == 2)
    stop.set()
    [thread.join() for thread in threads]
    wait_for("one replica again", 120, lambda: replicas() == 1 and len(engines()) == 1)
    print("one replica, two while six clients ask, one again")


def refused() -> None:
    connection, response = post({"prompt": 3.5})
    refusal = response.read()
    assert response.status == 400 and json.loads(refusal)["error"]["code"] != "replica_lost", refusal
    for path in ["/metrics", "/v1/requests", "/"]:
        connection = http.client.HTTPConnection(*ADDRESS, timeout=60)
        connection.request("GET", path)
        assert connection.getresponse().status == 404, path
    print("refusals pass through; what belongs to one replica is refused")


parser = argparse.ArgumentParser()
parser.add_argument("program", nargs="?", default=str(ROOT / "target/release/sws"))
parser.add_argument("--model", default=str(ROOT / "shards/tales-moe"))
arguments = parser.parse_args()
PROGRAM, MODEL = arguments.program, arguments.model
resumed()
ray.init(num_cpus=4, resources={"sws_drive": 2}, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"port": PORT})
try:
    deploy(replicas="2")
    same_bytes()
    refused()
    killed("engine")
    killed("replica")
    left()
    drained()
    scaled()
finally:
    serve.shutdown()
    ray.shutdown()
wait_for("the engines' end", 20, lambda: not engines())
print("no engine is left")
