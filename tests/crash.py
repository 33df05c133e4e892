#!/usr/bin/env python3
"""Cuts the power at every point of what a command writes, and starts it again on what the disk may then hold.

    tests/crash.py target/release/sws [COMMAND..] [--images N] [--seed S] [--json FILE]

Needs strace, whose log of a command has every call that changes files. At each of them the power fails: names are kept
up to any point behind the last sync of a directory, in their order, as journals keep them; bytes that were not synced
are there, lost, replaced by zeros, or there up to some sector. On each such image the same command must succeed, with
the right output and files, and leave no file that a run without crashes does not leave; and no file that is whole or
absent by promise may be torn. Images are drawn from a seed, N at most for a command, each different.

Prints a line for each command; fails if there was any other outcome.
"""

import argparse
import contextlib
import hashlib
import http.server
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nth_fault import RUN, SHARDS, Place, hub_of, names, plain, prepare, serving, tree

CALLS = (
    "open,openat,creat,close,write,pwrite64,writev,pwritev,lseek,ftruncate,fallocate,copy_file_range,sendfile,fsync,fdatasync,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,dup,dup2,dup3,fcntl"
)
SECTOR = 512
# A prompt of which a server keeps the KV cache.
LONG = "Once upon a time there was a wolf who lived near the harbour. " * 20
LINE = re.compile(rb"(\d+\.\d+) (\w+)\((.*)\) += (-?\d+)(?:<[^>]*>)?(?: \([^)]*\))?(?: [A-Z]+ \(.*\))? <(\d+\.\d+)>$")


def far(server):
    """Runs shards at a server, in one of ten starts once more while it refuses everything, which takes seconds; the
    output is the new tokens."""
    starts = itertools.count()

    def once(place, trace, sws):
        options = ["--tokens", "1,2,3", "-n", "8", "--seed", "7", "--ram", "64MiB", "--json"]
        code, out, err = plain(["run", f"{server.address}/shards", *options])(place, trace, sws)
        return code, str(json.loads(out)["tokens"]) if code == 0 else out, err

    def run(place, trace, sws):
        code, out, err = once(place, trace, sws)
        if code == 0 and not trace and next(starts) % 10 == 0:
            server.is_down = True
            code, again, err = once(place, trace, sws)
            server.is_down = False
            # It opens; a piece that was not kept is named.
            if code and "piece `" in err:
                return 0, out, err
            out = out if again == out else f"{out}, and then {again}"
        return code, out, err

    return run


def commands(server):
    """What writes: how it is run, whether its output is the same each time, and its files that are absent or whole at
    any time. Other files are checked when they are read."""
    draft = ["draft", "train", str(SHARDS), "--traces", "trace", "other", "--out", "draft", "--eviction", "eviction"]
    kept = [str(SHARDS), "--ram", "1GiB", "--threads", "2", "--kv-disk", "64MiB"]
    return {
        "shard": (plain(["shard", "checkpoint", "--out", "out"]), False, ()),
        "unshard": (plain(["unshard", "shards", "--out", "out"]), False, ()),
        "pull": (plain(["pull", "own/model"]), False, ()),
        "mirror": (plain(["mirror", "shards", "copy"]), False, ()),
        "far": (far(server), True, ()),
        "learned": (plain([*RUN, "--ram", "min"]), True, ()),
        "certificate": (plain([*RUN, "--ram", "min", "--certify", "told"]), True, ("told",)),
        "recording": (plain([*RUN, "--ram", "min", "--record", "routes"]), True, ("routes",)),
        "draft": (plain([*draft, "--epochs", "1"]), False, ("draft", "eviction")),
        "kv-disk": (serving(kept, LONG), True, ()),
    }


@contextlib.contextmanager
def served(root):
    """A server of the files below a directory, which answers requests of ranges."""

    class Ranges(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = root / self.path.lstrip("/")
            if server.is_down or not path.is_file():
                self.send_error(503 if server.is_down else 404)
                return
            data, status = path.read_bytes(), 200
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if asked:
                first, last = int(asked[1]), min(int(asked[2] or len(data)), len(data) - 1)
                total, data, status = len(data), data[first:last + 1], 206
            self.send_response(status)
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{total}")
            self.send_header("ETag", f'"{path.stat().st_size}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        server.address, server.is_down = f"http://127.0.0.1:{server.server_port}", False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


class Inode:
    """A file, by whatever names. `bytes` is what it held before the command."""

    def __init__(self, data=b""):
        self.before = data


class Change:
    """A change of names or bytes. It ended at `end`; `synced` is when a sync that covers it ended, or None."""

    def __init__(self, end, kind, *what):
        self.end, self.kind, self.what, self.synced = end, kind, what, None


def unhex(text):
    return bytes.fromhex(text.replace("\\x", "")) if text else b""


def arguments(text):
    """The arguments of a call, split at the commas between them; strings are decoded to bytes."""
    found, depth, start, quoted = [], 0, 0, False
    for i, c in enumerate(text):
        if c == '"':
            quoted = not quoted
        elif not quoted and c in "([{<":
            depth += 1
        elif not quoted and c in ")]}>":
            depth -= 1
        elif not quoted and not depth and c == ",":
            found.append(text[start:i].strip())
            start = i + 1
    found.append(text[start:].strip())
    return found


def held(root):
    """What is below a directory: paths, each with an Inode, None for a directory, or the target of a symbolic link."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else None if path.is_dir() else Inode(path.read_bytes())
        for path in sorted(root.rglob("*"))
    }


class Recording:
    """What a command changed below a directory, in order."""

    def __init__(self, root, before, logs):
        self.root, self.before, self.names = root, before, dict(before)
        self.changes = []
        self.open = {}  # descriptor -> [Inode or path of a directory, offset, whether it appends]
        self.contents = {}  # Inode -> bytearray, while the calls are followed
        self.lines = []
        for log in logs:
            for line in log.read_bytes().splitlines():
                if m := LINE.match(line):
                    start, call, rest, result, took = m.groups()
                    if int(result) >= 0:
                        self.lines.append((float(start) + float(took), float(start), call.decode(), rest.decode(), int(result)))
        # A descriptor is free before its closing has ended.
        self.lines.sort(key=lambda line: line[1] if line[2] == "close" else line[0])

    def follow(self):
        for end, start, call, rest, result in self.lines:
            getattr(self, f"on_{call}", self.ignored)(arguments(rest), result, start, end)

    def ignored(self, args, result, start, end):
        pass

    # Names.

    def below(self, at, path):
        """A path below the root, or None. `at` is as strace shows it: AT_FDCWD</directory> or 3</directory>."""
        directory = unhex(m.group(1)).decode() if (m := re.search(r"<((?:\\x..)*)>", at)) else str(self.root)
        path = os.path.normpath(os.path.join(directory, unhex(path.strip('"')).decode()))
        # The directory itself is resolved, and not a link that it names.
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        return os.path.relpath(path, self.root) if path.startswith(f"{self.root}/") else None

    def change(self, end, kind, *what):
        change = Change(end, kind, *what)
        self.changes.append(change)
        return change

    def on_openat(self, args, result, start, end):
        path, flags = self.below(args[0], args[1]), args[2]
        if path is None:
            self.open.pop(result, None)
            return
        if path not in self.names and "O_CREAT" in flags:
            self.names[path] = Inode()
            self.change(end, "name", path, self.names[path])
        inode = self.names.get(path)
        if isinstance(inode, str):
            return
        if inode is not None and "O_TRUNC" in flags and len(self.content(inode)):
            self.cut(inode, 0, end)
        self.open[result] = [inode if inode is not None else path, 0, "O_APPEND" in flags]

    def on_open(self, args, result, start, end):
        self.on_openat(["AT_FDCWD", *args], result, start, end)

    def on_mkdirat(self, args, result, start, end):
        if (path := self.below(args[0], args[1])) is not None:
            self.names[path] = None
            self.change(end, "name", path, None)

    def on_mkdir(self, args, result, start, end):
        self.on_mkdirat(["AT_FDCWD", *args], result, start, end)

    def on_symlinkat(self, args, result, start, end):
        if (path := self.below(args[1], args[2])) is not None:
            self.names[path] = unhex(args[0].strip('"')).decode()
            self.change(end, "name", path, self.names[path])

    def on_symlink(self, args, result, start, end):
        self.on_symlinkat([args[0], "AT_FDCWD", args[1]], result, start, end)

    def on_linkat(self, args, result, start, end):
        old, new = self.below(args[0], args[1]), self.below(args[2], args[3])
        if new is not None and old in self.names:
            self.names[new] = self.names[old]
            self.change(end, "name", new, self.names[new])

    def on_link(self, args, result, start, end):
        self.on_linkat(["AT_FDCWD", args[0], "AT_FDCWD", args[1]], result, start, end)

    def on_unlinkat(self, args, result, start, end):
        if (path := self.below(args[0], args[1])) in self.names:
            del self.names[path]
            self.change(end, "gone", path)

    def on_unlink(self, args, result, start, end):
        self.on_unlinkat(["AT_FDCWD", *args], result, start, end)

    on_rmdir = on_unlink

    def on_renameat(self, args, result, start, end):
        old, new = self.below(args[0], args[1]), self.below(args[2], args[3])
        moved = [path for path in self.names if path == old or path.startswith(f"{old}/")] if old else []
        if new is None or not moved:
            assert not moved and new is None, "a name that leaves the directory, or comes into it"
            return
        self.change(end, "moved", old, new)
        for path in moved:
            self.names[new + path[len(old):]] = self.names.pop(path)

    on_renameat2 = on_renameat

    def on_rename(self, args, result, start, end):
        self.on_renameat(["AT_FDCWD", args[0], "AT_FDCWD", args[1]], result, start, end)

    # Bytes.

    def content(self, inode):
        return self.contents.setdefault(inode, bytearray(inode.before))

    def descriptor(self, text):
        return self.open.get(int(re.match(r"\d+", text).group()))

    def wrote(self, inode, offset, data, end):
        content = self.content(inode)
        content.extend(bytes(max(0, offset - len(content))))
        content[offset:offset + len(data)] = data
        self.change(end, "bytes", inode, offset, bytes(data))

    def cut(self, inode, length, end):
        content = self.content(inode)
        content.extend(bytes(max(0, length - len(content))))
        del content[length:]
        self.change(end, "cut", inode, length)

    def data(self, text, result):
        return b"".join(unhex(part) for part in re.findall(r'"((?:\\x..)*)"', text))[:result]

    def on_write(self, args, result, start, end):
        if (file := self.descriptor(args[0])) and isinstance(file[0], Inode):
            if file[2]:
                file[1] = len(self.content(file[0]))
            self.wrote(file[0], file[1], self.data(args[1], result), end)
            file[1] += result

    on_writev = on_write

    def on_pwrite64(self, args, result, start, end):
        if (file := self.descriptor(args[0])) and isinstance(file[0], Inode):
            self.wrote(file[0], int(args[-1]), self.data(args[1], result), end)

    on_pwritev = on_pwrite64

    def on_lseek(self, args, result, start, end):
        if file := self.descriptor(args[0]):
            file[1] = result

    def on_ftruncate(self, args, result, start, end):
        if (file := self.descriptor(args[0])) and isinstance(file[0], Inode):
            self.cut(file[0], int(args[1]), end)

    def on_fallocate(self, args, result, start, end):
        if (file := self.descriptor(args[0])) and isinstance(file[0], Inode):
            length = int(args[2]) + int(args[3])
            if args[1] == "0" and length > len(self.content(file[0])):
                self.cut(file[0], length, end)

    def on_copy_file_range(self, args, result, start, end):
        out = self.descriptor(args[2])
        if not out or not isinstance(out[0], Inode) or not result:
            return
        source = self.descriptor(args[0])
        if source:
            data = bytes(self.content(source[0])[source[1]:source[1] + result])
            source[1] += result
        else:
            # A file outside, which does not change; it is copied in one go.
            path = unhex(re.search(r"<((?:\\x..)*)>", args[0]).group(1)).decode()
            data = Path(path).read_bytes()[out[1]:out[1] + result]
        assert args[1] == args[3] == "NULL" and len(data) == result, args
        self.wrote(out[0], out[1], data, end)
        out[1] += result

    def on_sendfile(self, args, result, start, end):
        self.on_copy_file_range([args[1], "NULL", args[0], "NULL"], result, start, end)

    def on_dup(self, args, result, start, end):
        if file := self.descriptor(args[0]):
            self.open[result] = file

    on_dup2 = on_dup3 = on_dup

    def on_fcntl(self, args, result, start, end):
        if "F_DUPFD" in args[1]:
            self.on_dup(args, result, start, end)

    def on_close(self, args, result, start, end):
        self.open.pop(int(re.match(r"\d+", args[0]).group()), None)

    def on_fsync(self, args, result, start, end):
        file = self.descriptor(args[0])
        if not file:
            return
        for change in self.changes:
            if isinstance(file[0], Inode):
                is_covered = change.kind in ("bytes", "cut") and change.what[0] is file[0]
            else:
                is_covered = change.kind not in ("bytes", "cut")
            if is_covered and change.synced is None and change.end <= start:
                change.synced = end

    on_fdatasync = on_fsync

    # Images.

    def image(self, random, at):
        """What the disk may hold if the power fails after so many changes: names with their bytes."""
        changes = self.changes[:at]
        now = changes[-1].end if changes else 0.0
        is_synced = [change.synced is not None and change.synced <= now for change in changes]
        is_name = [change.kind not in ("bytes", "cut") for change in changes]
        kept = max((i + 1 for i in range(at) if is_name[i] and is_synced[i]), default=0)
        names_until = random.choice([at, at, random.randint(kept, at)])
        # Of the bytes that are not synced: all, none, zeros, or each as it comes.
        fate = random.choice(["all", "none", "zeros", "each", "each"])
        found, contents = dict(self.before), {}
        for i, change in enumerate(changes):
            if is_name[i]:
                if i < names_until:
                    renamed(found, change)
                continue
            inode = change.what[0]
            content = contents.setdefault(inode, bytearray(inode.before))
            how = "all" if is_synced[i] else fate if fate != "each" else random.choice(["all", "none", "zeros", "torn"])
            if change.kind == "cut":
                if how != "none":
                    length = change.what[1]
                    content.extend(bytes(max(0, length - len(content))))
                    del content[length:]
                continue
            _, offset, data = change.what
            if how == "none":
                continue
            if how == "zeros":
                data = bytes(len(data))
            if how == "torn":
                data = data[: random.randint(0, len(data) // SECTOR) * SECTOR]
            content.extend(bytes(max(0, offset - len(content))))
            content[offset:offset + len(data)] = data
        return {
            path: bytes(contents.get(what, what.before)) if isinstance(what, Inode) else what for path, what in found.items()
        }


def renamed(found, change):
    if change.kind == "name":
        found[change.what[0]] = change.what[1]
    elif change.kind == "gone":
        found.pop(change.what[0], None)
    else:
        old, new = change.what
        for path in [path for path in found if path == old or path.startswith(f"{old}/")]:
            found[new + path[len(old):]] = found.pop(path)


def hashed(image):
    state = hashlib.sha256()
    for path, what in sorted(image.items()):
        state.update(repr((path, type(what).__name__)).encode())
        state.update(what if isinstance(what, bytes) else repr(what).encode())
    return state.digest()


def lay(image, root):
    """Makes the directory hold an image."""
    shutil.rmtree(root)
    root.mkdir()
    for path, what in sorted(image.items()):
        target = root / path
        if what is None:
            target.mkdir(parents=True, exist_ok=True)
            continue
        # A directory whose name is lost takes its files along.
        if not target.parent.is_dir():
            continue
        if isinstance(what, str):
            target.symlink_to(what)
        else:
            target.write_bytes(what)


class Crashes:
    """A command in a place of its own, and the images that it may leave."""

    def __init__(self, sws, scratch, prepared, hub, name, command):
        self.sws, self.name = sws, name
        self.run, self.is_same, self.promised = command
        place = Place(scratch / name, prepared, hub)
        self.place = place
        logs = scratch / f"{name}-log"
        trace = ["strace", "-f", "-ff", "-qq", "-y", "-xx", "-ttt", "-T", "-s", str(1 << 24), "-o", str(logs), "-e", f"trace={CALLS}"]
        before = held(place.path)
        code, self.out, err = self.run(place, trace, sws)
        assert code == 0 and (self.out or not self.is_same), (name, code, err)
        self.recording = Recording(place.path, before, sorted(scratch.glob(f"{logs.name}.*")))
        self.recording.follow()
        assert self.recording.changes, f"{name}: the log has no changes"
        for log in scratch.glob(f"{logs.name}.*"):
            log.unlink()
        self.tree = tree(place.path)
        self.check_recording()
        self.run(place, [], sws)
        self.names = names(place.path)

    def check_recording(self):
        """With all that was written, the image is what the command left."""
        everything = {
            path: bytes(self.recording.content(what)) for path, what in self.recording.names.items() if isinstance(what, Inode)
        }
        found = {path: hashlib.sha256(data).hexdigest() for path, data in everything.items() if ".cache" not in Path(path).parts}
        links = {path for path, what in self.recording.names.items() if isinstance(what, str)}
        left = {path: digest for path, digest in self.tree.items() if path not in links}
        assert found == left, f"{self.name}: the log does not explain {sorted(set(found.items()) ^ set(left.items()))[:4]}"

    def images(self, count, seed):
        drawn, seen = random.Random(f"{self.name} {seed}"), set()
        changes = len(self.recording.changes)
        for _ in range(4 * count):
            image = self.recording.image(drawn, drawn.randint(0, changes))
            if (digest := hashed(image)) not in seen:
                seen.add(digest)
                yield image
                if len(seen) == count:
                    return

    def outcome(self, image):
        """What is wrong with a start on an image, or None."""
        lay(image, self.place.path)
        for path in self.promised:
            digest = self.tree[path]
            if path in image and hashlib.sha256(image[path]).hexdigest() != digest:
                return f"torn under its name: {path}"
        code, out, err = self.run(self.place, [], self.sws)
        if code != 0:
            return f"the next start fails with {code}: {err.strip()[-300:]}"
        if self.is_same and out != self.out:
            return f"the next output differs: {out[:200]!r}"
        if tree(self.place.path) != self.tree:
            return f"files differ: {sorted(set(tree(self.place.path).items()) ^ set(self.tree.items()))[:4]}"
        if left := names(self.place.path) - self.names:
            return f"files are left: {sorted(left)[:5]}"
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sws")
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(commands(None)))
    parser.add_argument("--images", type=int, default=1000, help="most images of a command [default: 1000]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if not shutil.which("strace"):
        print("skipped: strace is not installed")
        return 0
    sws = Path(options.sws).resolve()
    results, is_wrong = {}, False
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        scratch = Path(os.path.realpath(scratch))
        prepared = scratch / "prepared"
        prepare(str(sws), prepared)
        shards = ["shard", prepared / "checkpoint", "--out", prepared / "shards"]
        subprocess.run([sws, *shards], check=True, capture_output=True, env=os.environ | {"HOME": scratch, "SWS_CONFIG": ""})
        hub = stack.enter_context(hub_of(sws, prepared))
        known = commands(stack.enter_context(served(prepared)))

        def tried(name):
            if name == "pull" and not hub:
                return name, None, []
            crashes = Crashes(str(sws), scratch, prepared, hub, name, known[name])
            outcomes = [crashes.outcome(image) for image in crashes.images(options.images, options.seed)]
            return name, {"changes": len(crashes.recording.changes), "images": len(outcomes)}, list(filter(None, outcomes))

        with ThreadPoolExecutor(options.jobs) as pool:
            for name, counts, wrong in pool.map(tried, options.commands or known):
                if counts is None:
                    print(f"{name}: skipped, for the example `hub` of sws-testing is not built")
                    continue
                for outcome in wrong[:10]:
                    print(f"{name}: {outcome}")
                is_wrong |= bool(wrong)
                results[name] = counts | {"wrong": len(wrong)}
                print(f"{name}: {counts['changes']} changes, {counts['images']} images, {len(wrong)} wrong", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, "commands": results}, indent=1) + "\n")
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
