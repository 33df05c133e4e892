#!/usr/bin/env python3
"""Fails the n-th call of each kind into the operating system, for every n, once and from then on.

    tests/nth_fault.py target/release/sws [COMMAND..] [--every N] [--json FILE]

Needs strace. A fault is the n-th such call of each thread. After each there must be the right result, or a sentence and
an exit code, within a time limit; and the same command, run again in the same place without faults, must succeed with
the right result and leave no file that a run without faults does not leave. Prints a line for each command; fails if
there was any other outcome.

Left out: calls of the loader and of Rust's start, before the program's first line. Counted apart: memory that the
system refuses to Rust's standard library, which then aborts. Where writes fail, so may that of the sentence.
"""

import argparse
import contextlib
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARDS = ROOT / "shards/tales-moe"
# Calls, and the error that each fails with once, and from then on.
FAULTS = {
    "open": ("EIO", "EMFILE"),
    "openat": ("EIO", "EMFILE"),
    "read": ("EIO", "EIO"),
    "pread64": ("EIO", "EIO"),
    "preadv": ("EIO", "EIO"),
    "io_uring_setup": ("ENOMEM", "ENOSYS"),
    "io_uring_enter": ("EINTR", "EIO"),
    "write": ("ENOSPC", "ENOSPC"),
    "pwrite64": ("EIO", "ENOSPC"),
    "pwritev": ("EIO", "ENOSPC"),
    "fallocate": ("EIO", "ENOSPC"),
    "ftruncate": ("EIO", "EIO"),
    "copy_file_range": ("EIO", "EIO"),
    "fsync": ("EIO", "EIO"),
    "fdatasync": ("EIO", "EIO"),
    "rename": ("EIO", "EACCES"),
    "renameat2": ("EIO", "EACCES"),
    "link": ("EIO", "EPERM"),
    "symlink": ("EIO", "EPERM"),
    "unlink": ("EIO", "EACCES"),
    "rmdir": ("EIO", "EACCES"),
    "mkdir": ("EIO", "ENOSPC"),
    "chmod": ("EIO", "EPERM"),
    "fchmod": ("EIO", "EPERM"),
    "getdents64": ("EIO", "EIO"),
    "statx": ("EIO", "EACCES"),
    "fstat": ("EIO", "EIO"),
    "newfstatat": ("EIO", "EIO"),
    "statfs": ("EIO", "EIO"),
    "fstatfs": ("EIO", "EIO"),
    "fcntl": ("EIO", "EIO"),
    "flock": ("EINTR", "ENOLCK"),
    "lseek": ("EIO", "EIO"),
    "readlink": ("EIO", "EIO"),
    "ioctl": ("EIO", "ENOTTY"),
    "mmap": ("ENOMEM", "ENOMEM"),
    "mprotect": ("ENOMEM", "ENOMEM"),
    "mremap": ("ENOMEM", "ENOMEM"),
    "madvise": ("EINVAL", "ENOMEM"),
    "clone3": ("EAGAIN", "EAGAIN"),
    "sched_getaffinity": ("EIO", "EIO"),
    "prlimit64": ("EPERM", "EPERM"),
    "socket": ("EMFILE", "EMFILE"),
    "socketpair": ("EMFILE", "EMFILE"),
    "setsockopt": ("EINVAL", "EINVAL"),
    "bind": ("EADDRINUSE", "EACCES"),
    "listen": ("EADDRINUSE", "EADDRINUSE"),
    "connect": ("ECONNREFUSED", "ENETUNREACH"),
    "accept4": ("EMFILE", "EMFILE"),
    "sendto": ("EPIPE", "ECONNRESET"),
    "recvfrom": ("ECONNRESET", "EIO"),
    "epoll_create1": ("EMFILE", "EMFILE"),
    "epoll_ctl": ("ENOMEM", "ENOMEM"),
    "epoll_wait": ("EINTR", "EINTR"),
    "eventfd2": ("EMFILE", "EMFILE"),
}
# What Rust's standard library says where it cannot go on without memory, and signal-hook and tokio where a pair of
# sockets or an eventfd within the process fails.
ABORTED = ["memory allocation of", "stack_overflow.rs", "signal-hook", "runtime/io/driver.rs"]
# Seconds after which a run hangs. Without faults they take less than one.
LIMIT = 60


class Place:
    """An empty directory for one run, and the environment that keeps the run in it."""

    def __init__(self, path, prepared, hub):
        self.path = path
        if path.exists():
            shutil.rmtree(path)
        shutil.copytree(prepared, path, symlinks=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SWS_", "HF_", "XDG_", "RUST_"))}
        self.environment = kept | {
            "HOME": str(path / "home"), "SWS_CONFIG": "", "SWS_MODELS": str(path / "models"), "HF_HOME": str(path / "hf"),
            "HF_ENDPOINT": hub or "http://127.0.0.1:9",
        }

    def start(self, arguments):
        return subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, cwd=self.path,
            env=self.environment, start_new_session=True, text=True, errors="replace",
        )


def finish(process):
    """Code, output and messages of a process; the code is None if it hangs."""
    try:
        out, err = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, *process.communicate()
    return process.returncode, out, err


def plain(arguments):
    return lambda place, trace, sws: finish(place.start([*trace, sws, *arguments]))


def serving(arguments, prompt="The wolf"):
    """Starts a server, asks it for a text twice, and stops it."""

    def run(place, trace, sws):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = place.start([*trace, sws, "serve", *arguments, "--port", str(port)])
        text = ""
        if waited(port, process):
            for stream in (False, True):
                text += asked(port, prompt, stream, process)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        for child in children if trace else [process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGTERM)
        code, _, err = finish(process)
        return code, text, err

    return run


def waited(port, process):
    """Waits for the server; returns whether it listens."""
    for _ in range(LIMIT * 20):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return True
        if process.poll() is not None:
            return False
        time.sleep(0.05)
    return False


def asked(port, prompt, stream, process):
    """The answer of a server once it has loaded the model, or nothing if it sends an error or leaves."""
    body = {"model": SHARDS.name, "prompt": prompt, "max_tokens": 8, "seed": 7, "temperature": 0.7, "stream": stream}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode())
    for _ in range(LIMIT * 20):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=LIMIT).close()
            break
        except (OSError, http.client.HTTPException):
            if process.poll() is not None:
                return ""
            time.sleep(0.05)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            lines = response.read().decode()
        if not stream:
            return json.loads(lines)["choices"][0]["text"]
        events = [line.removeprefix("data: ") for line in lines.splitlines() if line.startswith("data: ")]
        if events[-1:] != ["[DONE]"]:
            return ""
        chunks = [json.loads(event) for event in events[:-1]]
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return ""


RUN = ["run", str(SHARDS), "The wolf", "-n", "8", "--seed", "7", "--threads", "2"]
# What is run, and whether its output is the same each time.
COMMANDS = {
    "run": (plain([*RUN, "--ram", "min"]), True),
    "run-direct": (plain([*RUN, "--ram", "min", "--reader", "direct"]), True),
    "run-mmap": (plain([*RUN, "--ram", "1GiB", "--reader", "mmap"]), True),
    "certify": (plain(["certify", "certificate", str(SHARDS), "--threads", "2"]), False),
    "inspect": (plain(["inspect", str(SHARDS)]), True),
    "verify": (plain(["verify", str(SHARDS)]), False),
    "shard": (plain(["shard", "checkpoint", "--out", "out"]), False),
    "unshard": (plain(["unshard", str(SHARDS), "--out", "out"]), False),
    "list": (plain(["list"]), True),
    "pull": (plain(["pull", "own/model"]), False),
    "draft": (plain(["draft", "train", str(SHARDS), "--traces", "trace", "other", "--out", "draft", "--eviction", "eviction", "--epochs", "1"]), False),
    "serve": (serving([str(SHARDS), "--ram", "min", "--threads", "2", "--kv-disk", "64MiB"]), True),
}


def tree(path):
    """Names and hashes of all files below a path, but for what runs learn."""
    files = (p for p in sorted(path.rglob("*")) if p.is_file() and ".cache" not in p.parts)
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def names(path):
    """All files and directories below a path. Checksums that are kept are named by what the file system calls a file."""
    return {str(p.relative_to(path)) for p in path.rglob("*") if p.suffix != ".sums"}


def counted(scratch, name):
    """Most calls of each kind by one thread."""
    counts = {}
    for thread in scratch.glob(f"{name}.*"):
        calls = [line.split("(")[0] for line in thread.read_text(errors="replace").splitlines()]
        for call in set(calls) & set(FAULTS):
            counts[call] = max(counts.get(call, 0), calls.count(call))
    return counts


class Campaign:
    def __init__(self, sws, scratch, prepared, hub, name):
        self.sws, self.scratch, self.prepared, self.hub = sws, scratch, prepared, hub
        self.name = name
        self.run, self.is_same = COMMANDS[name]
        place = self.place("clean")
        # The first run is counted, the second says what is right and what is left behind.
        trace = ["strace", "-f", "-ff", "-qq", "-o", str(scratch / f"{name}-calls"), "-e", f"trace={','.join(FAULTS)}"]
        code, self.out, err = self.run(place, trace, sws)
        assert code == 0 and (self.out or not self.is_same), (name, code, err)
        self.counts = counted(scratch, f"{name}-calls")
        trace[trace.index("-o") + 1] = str(scratch / f"{name}-start")
        finish(place.start([*trace, sws, "--version"]))
        self.start = counted(scratch, f"{name}-start")
        place = self.place("clean")
        code, out, err = self.run(place, [], sws)
        assert code == 0 and (not self.is_same or out == self.out), (name, code, out, self.out, err)
        self.tree = tree(place.path)
        # As after a fault: a second run in the same place.
        self.run(place, [], sws)
        self.names = names(place.path)

    def place(self, name):
        return Place(self.scratch / f"{self.name}-{name}", self.prepared, self.hub)

    def faults(self, every):
        for call, count in sorted(self.counts.items()):
            first = self.start.get(call, 0) + 1
            for n in range(first, count + 1, 1 if count - first < 2 * every else every):
                for suffix, error in zip(("", "+"), FAULTS[call]):
                    yield call, error, f"{n}{suffix}"

    def outcome(self, call, error, when):
        """What came of one fault: "right", "told", "aborted", or what is wrong with it."""
        place = self.place(f"{call}-{when}")
        trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error={error}:when={when}"]
        code, out, err = self.run(place, trace, self.sws)
        result = self.judged(place, code, out, err, call == "write")
        if result in ("right", "told", "aborted"):
            again, out, said = self.run(place, [], self.sws)
            if again != 0:
                result = f"after it, the command fails: {said.strip()[-300:]}"
            elif self.is_same and out != self.out:
                result = f"after it, the output differs: {out[:200]!r}"
            elif tree(place.path) != self.tree:
                result = f"after it, files differ: {set(tree(place.path).items()) ^ set(self.tree.items())}"
            elif left := names(place.path) - self.names:
                result = f"after it, files are left: {sorted(left)[:5]}"
        shutil.rmtree(place.path)
        return result

    def judged(self, place, code, out, err, is_mute):
        if code is None:
            return f"hangs: {err.strip()[-200:]}"
        if any(sentence in err for sentence in ABORTED):
            return "aborted"
        if "panicked" in err:
            return f"panics: {err.strip()[:400]}"
        # 130 is that of a server that was stopped while it loaded.
        if code < 0 or code > 127 and code != 130:
            return f"killed by {code}: {err.strip()[-300:]}"
        if code == 0:
            if self.is_same and out != self.out and not (self.name == "serve" and self.out.startswith(out)):
                return f"wrong output: {out[:200]!r}"
            found = tree(place.path)
            if wrong := [name for name, digest in self.tree.items() if found.get(name) != digest]:
                return f"wrong or missing files: {sorted(wrong)[:5]}"
            return "right"
        if "sws: " not in err and "sws: " not in out and not is_mute:
            return f"says nothing, code {code}: {err.strip()[-300:]!r}"
        half = {k for k, v in tree(place.path).items() if k in self.tree and self.tree[k] != v}
        return f"half-written under its name: {sorted(half)[:5]}" if half else "told"


def prepare(sws, path):
    """What commands find in their place: a checkpoint, a certificate, a recording."""
    path.mkdir()
    for name in ("home", "models", "hf"):
        (path / name).mkdir()
    golden = ROOT / "tests/goldens/qwen2_moe"
    shutil.copytree(golden, path / "checkpoint", ignore=shutil.ignore_patterns("golden*", "logits*"))
    environment = os.environ | {"HOME": str(path / "home"), "SWS_CONFIG": ""}
    for trace, more in (("trace", ["--certify", str(path / "certificate")]), ("other", [])):
        command = [sws, *RUN, "--ram", "64MiB", "--record", str(path / trace), "--record-hidden", *more]
        subprocess.run(command, check=True, capture_output=True, env=environment)


@contextlib.contextmanager
def hub_of(sws, prepared):
    """The address of a hub with the checkpoint as `own/model`, or None where the example is not built."""
    program = Path(sws).parent / "examples/hub"
    if not program.exists():
        yield None
        return
    command = [program, "own/model", prepared / "checkpoint"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sws")
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("--every", type=int, default=1, help="of calls of a kind, fail each N-th [default: 1]")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if not shutil.which("strace"):
        print("skipped: strace is not installed")
        return 0
    sws = str(Path(options.sws).resolve())
    results, wrong = {}, []
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        scratch = Path(scratch)
        prepared = scratch / "prepared"
        prepare(sws, prepared)
        hub = stack.enter_context(hub_of(sws, prepared))
        for name in options.commands or COMMANDS:
            if name == "pull" and not hub:
                print("pull: skipped, for the example `hub` of sws-testing is not built")
                continue
            campaign = Campaign(sws, scratch, prepared, hub, name)
            faults = list(campaign.faults(options.every))
            counts = dict.fromkeys(("right", "told", "aborted", "wrong"), 0)
            with ThreadPoolExecutor(options.jobs) as pool:
                for fault, outcome in zip(faults, pool.map(lambda fault: campaign.outcome(*fault), faults)):
                    if outcome not in counts:
                        wrong.append((name, *fault, outcome))
                        print(f"{name}: {fault[0]} {fault[1]} at {fault[2]}: {outcome}", flush=True)
                        outcome = "wrong"
                    counts[outcome] += 1
            results[name] = counts
            print(f"{name}: {len(faults)} faults: " + ", ".join(f"{n} {kind}" for kind, n in counts.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps({"every": options.every, "commands": results}, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
