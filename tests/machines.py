#!/usr/bin/env python3
"""Runs the program on machines that differ: file systems, sectors, threads, processors, what the system refuses.

    tests/machines.py target/release/sws [MACHINE..] [--e2e BINARY] [--json FILE]

On each, a model is verified, runs within the least memory by each reader, and is sharded and unsharded: certificates,
texts and files must be those of this machine, or one sentence must say what is missing. --e2e runs the tests of the
command there, too, with their directories on that file system. Machines that cannot be made here are skipped by name;
most need root, for loop devices and mounts.
"""

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READERS = ("direct", "uring", "mmap")
# Seconds after which a command hangs; emulated processors take the longest.
LIMIT = 1800


class Missing(Exception):
    """What this machine lacks to make another."""


class Machine:
    """A directory, and what is put before each command."""

    def __init__(self, at, before=(), prepare=None, readers=READERS, is_emulated=False, lacks=()):
        self.at, self.before, self.prepare, self.readers, self.is_emulated = at, list(before), prepare, readers, is_emulated
        # What commands may say instead of working.
        self.lacks = lacks


def called(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise Missing((done.stderr or done.stdout).strip().splitlines()[-1] if (done.stderr or done.stdout).strip() else command[0])
    return done.stdout.strip()


def needs(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Missing(f"{program} is not installed")
    if os.geteuid():
        raise Missing("needs root")


@contextlib.contextmanager
def mounted(scratch, *arguments):
    needs("mount")
    at = scratch / "mounted"
    at.mkdir()
    called("mount", *arguments, at)
    try:
        yield Machine(at)
    finally:
        subprocess.run(["umount", "-l", at], check=False)


@contextlib.contextmanager
def image(scratch, kind, sector, options=()):
    """A file system in a file, behind a loop device with sectors of so many bytes."""
    needs("losetup", f"mkfs.{kind}")
    path = scratch / "image"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    device = called("losetup", "--find", "--show", "--direct-io=on", "--sector-size", sector, path)
    try:
        called(f"mkfs.{kind}", *options, device)
        with mounted(scratch, device) as machine:
            yield machine
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


@contextlib.contextmanager
def overlay(scratch):
    parts = [scratch / name for name in ("lower", "upper", "work")]
    for part in parts:
        part.mkdir()
    lower, upper, work = parts
    with mounted(scratch, "-t", "overlay", "overlay", "-o", f"lowerdir={lower},upperdir={upper},workdir={work}") as machine:
        yield machine


@contextlib.contextmanager
def fuse(scratch):
    needs("bindfs", "fusermount")
    below, at = scratch / "below", scratch / "mounted"
    below.mkdir()
    at.mkdir()
    called("bindfs", below, at)
    try:
        yield Machine(at)
    finally:
        subprocess.run(["fusermount", "-uz", at], check=False)


@contextlib.contextmanager
def refused(scratch, call, error, readers=READERS, lacks=()):
    """A system that refuses a call."""
    if not shutil.which("strace"):
        raise Missing("strace is not installed")
    inject = f"inject={call}:error={error}"
    yield Machine(scratch, ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject], readers=readers, lacks=lacks)


@contextlib.contextmanager
def without_huge_pages(scratch):
    def prepare():
        PR_SET_THP_DISABLE = 41
        assert ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0

    yield Machine(scratch, prepare=prepare)


@contextlib.contextmanager
def one_processor(scratch):
    yield Machine(scratch, prepare=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}))


@contextlib.contextmanager
def emulated(scratch, cpu):
    program = shutil.which("qemu-x86_64") or shutil.which("qemu-x86_64-static")
    if not program:
        raise Missing("qemu-x86_64 is not installed")
    yield Machine(scratch, [program, "-cpu", cpu], readers=("direct",), is_emulated=True)


@contextlib.contextmanager
def clock_ahead(scratch):
    """A monotonic clock that is a year ahead: nothing may take one process's times for another's."""
    needs("unshare")
    offset = 365 * 24 * 3600
    command = ["unshare", "--time", "--monotonic", str(offset), "--boottime", str(offset), "--"]
    called(*command, "true")
    yield Machine(scratch, command)


MACHINES = {
    "tmpfs": lambda at: mounted(at, "-t", "tmpfs", "tmpfs"),
    "overlay": overlay,
    "fuse": fuse,
    "ext4": lambda at: image(at, "ext4", 512),
    "ext4, 1 KiB blocks": lambda at: image(at, "ext4", 512, ("-b", "1024")),
    "ext4, 4 KiB sectors": lambda at: image(at, "ext4", 4096),
    "xfs, 4 KiB sectors": lambda at: image(at, "xfs", 4096),
    "btrfs": lambda at: image(at, "btrfs", 4096),
    "no io_uring": lambda at: refused(at, "io_uring_setup", "ENOSYS", lacks=("this system has no io_uring",)),
    "io_uring forbidden": lambda at: refused(at, "io_uring_setup", "EPERM", lacks=("this system has no io_uring",)),
    "no huge pages": without_huge_pages,
    "no statx": lambda at: refused(at, "statx", "ENOSYS", ("direct",)),
    "no fallocate": lambda at: refused(at, "fallocate", "EOPNOTSUPP", ("direct",)),
    "no copy_file_range": lambda at: refused(at, "copy_file_range", "EXDEV", ("direct",)),
    "no locks": lambda at: refused(at, "flock", "ENOLCK", ("direct",)),
    "one processor": one_processor,
    "clock a year ahead": clock_ahead,
    "Haswell": lambda at: emulated(at, "Haswell"),
    "Nehalem": lambda at: emulated(at, "Nehalem"),
}
TELL = ("--prompt", "The wolf", "--seed", "7", "-n", "16")
IDS = ("--tokens", "1,2,3", "--seed", "7", "-n", "4", "--json")


def tree(path):
    files = (p for p in sorted(path.rglob("*")) if p.is_file())
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


class Trial:
    """What is done on each machine, and what came of it on this one."""

    def __init__(self, sws):
        self.sws, self.expected = sws, {}

    def called(self, machine, *arguments):
        home = machine.at / "home"
        home.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SWS_", "HF_", "XDG_"))}
        return subprocess.run(
            [*machine.before, self.sws, *map(str, arguments)], capture_output=True, text=True, errors="replace", timeout=LIMIT,
            env=kept | {"HOME": str(home), "SWS_CONFIG": "", "TMPDIR": str(machine.at)}, cwd=machine.at,
            preexec_fn=machine.prepare, stdin=subprocess.DEVNULL,
        )

    def steps(self, machine):
        """Name, command, and what it must give, in order."""
        at, golden = machine.at, "golden"
        model = golden if machine.is_emulated else "tales"
        text = IDS if machine.is_emulated else TELL
        yield "verify", ("verify", model), lambda out: ""
        for reader in machine.readers:
            for ram in ("min", "1GiB"):
                told = f"{model} {reader}"
                run = ("run", model, *text, "--ram", ram, "--reader", reader, "--certify", "told")
                yield f"{told} {ram}", run, lambda out: hashlib.sha256((at / "told").read_bytes()).hexdigest()
        for threads in () if machine.is_emulated else (1, 7, 64):
            run = ("run", model, *text, "--threads", threads, "--certify", "told")
            yield f"{threads} threads", run, lambda out: hashlib.sha256((at / "told").read_bytes()).hexdigest()
        yield "certify", ("certify", "told", model), lambda out: ""
        yield "shard", ("shard", "checkpoint", "--out", "out"), lambda out: tree(at / "out")
        yield "unshard", ("unshard", "out", "--out", "back"), lambda out: tree(at / "back")

    def of(self, machine):
        """Problems, and sentences about what is missing."""
        shutil.copytree(ROOT / "shards/tales-moe", machine.at / "tales")
        ignored = shutil.ignore_patterns("golden*", "logits*")
        shutil.copytree(ROOT / "tests/goldens/qwen2_moe", machine.at / "checkpoint", ignore=ignored)
        plain = Machine(machine.at)
        assert self.called(plain, "shard", "checkpoint", "--out", "golden").returncode == 0
        problems, missing = [], []
        for name, command, result in self.steps(machine):
            done = self.called(machine, *command)
            said = done.stderr.strip().splitlines()
            if done.returncode == 0:
                found = result(done.stdout)
                # A certificate does not name readers, threads or budgets.
                kind = "text" if command[0] == "run" else name
                if found != self.expected.setdefault((kind, command[1]), found):
                    problems.append(f"{name}: another result")
            elif done.returncode == 2 and said and said[-1].startswith("sws: ") and any(lack in said[-1] for lack in machine.lacks):
                missing.append(f"{name}: {said[-1].removeprefix('sws: ')}")
            else:
                problems.append(f"{name}: code {done.returncode}: {' '.join(said[-2:])[-300:]}")
        return problems, missing


def end_to_end(machine, binary):
    """Problems of the tests of the command, with their directories on a machine."""
    environment = os.environ | {"TMPDIR": str(machine.at)}
    done = subprocess.run(
        [binary, "--test-threads", str(os.cpu_count())], capture_output=True, text=True, errors="replace", env=environment,
        cwd=ROOT / "crates/cli", preexec_fn=machine.prepare, stdin=subprocess.DEVNULL,
    )
    failed = [line.strip() for line in done.stdout.split("failures:")[-1].splitlines() if line.startswith("    ")]
    return [f"e2e: {name}" for name in failed or [f"ended with {done.returncode}"]] if done.returncode else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sws")
    parser.add_argument("machines", nargs="*", metavar="MACHINE", help="; ".join(MACHINES))
    parser.add_argument("--e2e", type=Path, metavar="BINARY", help="tests of the command, as `cargo test --test e2e` builds them")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if unknown := [name for name in options.machines if name not in MACHINES]:
        parser.error(f"no machine `{unknown[0]}`")
    trial = Trial(str(Path(options.sws).resolve()))
    with tempfile.TemporaryDirectory() as scratch:
        problems, missing = trial.of(Machine(Path(scratch)))
        assert not problems and not missing, problems + missing
    with tempfile.TemporaryDirectory() as scratch:
        # What an emulated processor runs is small.
        problems, missing = trial.of(Machine(Path(scratch), readers=("direct",), is_emulated=True))
        assert not problems and not missing, problems + missing
    results, is_wrong = {}, False
    for name in options.machines or MACHINES:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                with MACHINES[name](Path(scratch)) as machine:
                    problems, missing = trial.of(machine)
                    if options.e2e and not machine.before:
                        problems += end_to_end(machine, options.e2e.resolve())
            except Missing as why:
                print(f"{name}: skipped: {why}", flush=True)
                results[name] = {"skipped": str(why)}
                continue
        for line in problems:
            print(f"{name}: {line}")
        for line in missing:
            print(f"{name}: says: {line}")
        print(f"{name}: {'wrong' if problems else 'ok'}", flush=True)
        is_wrong |= bool(problems)
        results[name] = {"wrong": problems, "says": missing}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
