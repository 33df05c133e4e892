"""Replicas of `sws serve` on a Ray cluster, behind one address.

    serve run sws_ray:app model=/models/qwen3-30b ram=24GiB replicas=2

Each replica is a whole engine with the model on a drive of its node. Requests that begin alike go to the
same replica, which still has their keys and values. Where a replica is lost, its requests go to another:
answers with a seed or a temperature of 0 continue where they were, with the same bytes; others end with an
error, unless their client has nothing of them yet. docs/deploy.md has the options.
"""

import asyncio
import ctypes
import hashlib
import json
import logging
import os
import queue
import random
import re
import signal
import subprocess
import threading

import aiohttp
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.request_router import RequestRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

import resume

LOG = logging.getLogger("ray.serve")
# Headers that belong to a connection, or are written anew.
OWN = {"host", "connection", "content-length", "transfer-encoding", "keep-alive", "te", "upgrade", "server", "date"}
# The longest body that is read; replicas have a limit of their own.
LONGEST = 16 << 20
# Replicas that a request is sent to, at most.
TRIES = 3
# Seconds that running texts have when a replica is to end.
DRAIN = 600
# Characters of a prompt that choose its replica.
BEGINNING = 1024
# What the loss of a replica looks like.
FAILURES = (RayError, RayServeException)
# What is of one replica: its counters, its requests, its page.
LOCAL = re.compile(r"/(metrics|events|slots|v1/requests.*)?$")


class ByBeginning(RequestRouter):
    """Prefers the same replica for the same key: of all pairs of the key and a replica, the one with the
    lowest hash. If that replica is full, the next. A replica that comes or goes moves only its own keys."""

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        asked = pending_request.kwargs if pending_request else {}
        key = asked.get("key") or str(random.random())

        def rank(replica):
            name = replica.replica_id.unique_id
            return name in asked.get("lost", ()), hashlib.blake2b(f"{key} {name}".encode()).digest()

        return [[replica] for replica in sorted(candidate_replicas, key=rank)]


def ends_with_parent() -> None:
    """Lets the kernel end this process with the thread that began it, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@serve.deployment
class Replica:
    """An engine, with the process that runs it."""

    def __init__(self, command: list):
        self.name = serve.get_replica_context().replica_id.unique_id
        self.url, self.session, self.ends = None, None, False
        self.told = queue.Queue()
        threading.Thread(target=self.run, args=(command,), daemon=True).start()
        if failure := self.told.get():
            raise RuntimeError(f"no server: {failure}")

    def run(self, command: list) -> None:
        """Runs the engine, and logs what it says. The kernel ends it with this thread, so this is its own
        thread. A replica without its engine ends, so that it is replaced."""
        said = ""
        try:
            self.process = subprocess.Popen(
                command, stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=ends_with_parent
            )
        except OSError as error:
            return self.told.put(f"{command[0]}: {error.strerror}")
        for line in self.process.stderr:
            LOG.info(line.rstrip())
            said = line.strip() or said
            if found := re.search(r"listening on (http://\S+?);", line):
                self.url = found[1]
            if line.startswith("sws: ready"):
                self.told.put(None)
        status = self.process.wait()
        self.told.put(said)
        if not self.ends:
            LOG.error(f"sws ended with status {status}")
            os._exit(1)

    async def check_health(self) -> None:
        async with self.client().get(f"{self.url}/health") as response:
            if response.status != 200:
                raise RuntimeError(f"health of the engine: {response.status}")

    def client(self) -> aiohttp.ClientSession:
        if self.session is None:
            # Texts take as long as they take, and signs of life come between.
            self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False)
        return self.session

    async def answer(self, method: str, path: str, headers: list, body: bytes, key: str, lost: list):
        """Sends a request on: the replica's name, status and headers of the answer, then its pieces. If this
        is cancelled, the connection is closed, which ends the text."""
        yield self.name
        async with self.client().request(method, self.url + path, headers=headers, data=body) as response:
            yield response.status, [*kept(response.headers.items()), ("x-sws-replica", self.name)]
            async for piece in response.content.iter_any():
                yield piece

    async def __del__(self):
        self.ends = True
        if self.session:
            await self.session.close()
        self.process.terminate()
        await asyncio.to_thread(self.process.wait)


def kept(headers) -> list:
    names = [(name.lower(), value) for name, value in headers]
    return [(name, value) for name, value in names if name not in OWN]


@serve.deployment
class Front:
    """Takes requests, and sends each to a replica; to another if that is lost."""

    def __init__(self, replicas):
        self.replicas = replicas.options(stream=True, method_name="answer")

    async def __call__(self, request: Request) -> Response:
        path = request.url.path
        if path == "/health":
            return JSONResponse({"status": "ok"})
        if LOCAL.fullmatch(path):
            return failure(404, f"{path} belongs to one replica: ask it at its own address, which its log names")
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > LONGEST:
                return failure(413, f"the body is longer than {LONGEST >> 20} MiB")
        asked = parsed(bytes(body))
        path += f"?{request.url.query}" if request.url.query else ""
        job = Job(self.replicas, (request.method, path, kept(request.headers.items()), bytes(body)), asked)
        try:
            status, headers = await job.begin()
        except Lost as lost:
            return failure(502, str(lost))
        media = dict(headers).get("content-type", "")
        pieces = job.events() if media.startswith("text/event-stream") else job.whole()
        response = StreamingResponse(pieces, status)
        response.raw_headers = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        return response


class Lost(Exception):
    """No replica could answer, or not to the end."""


class Job:
    """A request, with the replica that answers it."""

    def __init__(self, replicas, request: tuple, asked: dict):
        self.replicas, self.request, self.asked = replicas, request, asked
        self.key, self.left, self.lost = beginning(asked), TRIES, []

    async def begin(self) -> tuple:
        """Sends the request to a replica. Returns status and headers."""
        while True:
            self.left -= 1
            self.stream = self.replicas.remote(*self.request, key=self.key, lost=self.lost)
            try:
                # One that is lost later is not asked again.
                self.lost.append(await anext(self.stream))
                return await anext(self.stream)
            except FAILURES as error:
                LOG.warning(f"a replica is lost before its answer: {error}")
                if self.left == 0:
                    raise Lost("no replica answers; try again later") from error

    async def again(self, error: Exception) -> None:
        LOG.warning(f"a replica is lost in its answer: {error}")
        if self.left == 0:
            raise Lost("the replica was lost, and others after it") from error
        status, _ = await self.begin()
        if status != 200:
            raise Lost(f"the replica was lost, and another answered with status {status}") from error

    async def pieces(self):
        """Pieces of the answer, and `None` where another replica begins."""
        try:
            while True:
                try:
                    yield await anext(self.stream)
                except StopAsyncIteration:
                    return
                except FAILURES as error:
                    await self.again(error)
                    yield None
        finally:
            # Of a client that has left, too.
            self.stream.cancel()

    async def whole(self):
        """An answer in one piece: nothing of it but blank lines is sent before its end."""
        text = b""
        try:
            async for piece in self.pieces():
                if piece is None:
                    text = b""
                elif piece.isspace() and not text:
                    yield piece
                else:
                    text += piece
            yield text
        except Lost as lost:
            yield json.dumps(error(str(lost))).encode()

    async def events(self):
        """A stream of events, which goes on where it was."""
        relay = resume.Relay()
        try:
            async for piece in self.pieces():
                if piece is not None:
                    text = relay.take(piece)
                    if text:
                        yield text
                elif relay.sent and not resume.is_seeded(self.asked):
                    raise Lost("the replica was lost; without a seed or a temperature of 0 no other has this text")
                else:
                    relay.begin()
        except resume.Diverged:
            yield event("the replica was lost, and another continued differently: do all have the same model?")
        except Lost as lost:
            yield event(str(lost))


def parsed(body: bytes) -> dict:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def beginning(asked: dict) -> str:
    """What requests with the same first keys and values have in common."""
    parts = [asked.get(name) for name in ("system", "instructions", "tools", "messages", "input", "prompt")]
    text = json.dumps([part for part in parts if part is not None])[:BEGINNING]
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() if any(parts) else ""


def error(message: str) -> dict:
    return {"error": {"message": message, "type": "server_error", "code": "replica_lost", "param": None}}


def event(message: str) -> bytes:
    return b"event: error\ndata: " + json.dumps({"type": "error", **error(message)}).encode() + b"\n\n"


def failure(status: int, message: str) -> Response:
    return JSONResponse(error(message), status)


def app(options: dict):
    """The application, with options as `name=value`: see docs/deploy.md."""
    known = {"model", "ram", "parallel", "replicas", "program", "arguments", "cpus", "drive", "up", "down"}
    if unknown := sorted(set(options) - known):
        raise ValueError(f"unknown option {unknown[0]}: the options are {', '.join(sorted(known))}")
    if not options.get("model"):
        raise ValueError("no model: add model=DIR, a directory that each node has")
    parallel = int(options.get("parallel", 4))
    few, _, many = str(options.get("replicas", 1)).partition("-")
    command = [options.get("program", "sws"), "serve", options["model"], "--port", "0", "--quiet"]
    command += ["--ram", options.get("ram", "auto"), "--parallel", str(parallel)]
    command += str(options.get("arguments", "")).split()
    scaling = AutoscalingConfig(
        min_replicas=int(few),
        max_replicas=int(many or few),
        target_ongoing_requests=max(1, parallel / 2),
        upscale_delay_s=float(options.get("up", 30)),
        downscale_delay_s=float(options.get("down", 1800)),
    )
    needs = {"num_cpus": float(options.get("cpus", 1))}
    if drive := options.get("drive"):
        needs["resources"] = {drive: 1}
    replicas = Replica.options(
        autoscaling_config=scaling,
        max_ongoing_requests=2 * parallel,
        ray_actor_options=needs,
        request_router_config=RequestRouterConfig(request_router_class=ByBeginning),
        health_check_period_s=5,
        graceful_shutdown_timeout_s=DRAIN,
    )
    front = Front.options(
        max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0}, graceful_shutdown_timeout_s=DRAIN
    )
    return front.bind(replicas.bind(command))
