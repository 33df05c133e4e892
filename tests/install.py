#!/usr/bin/env python3
"""packaging/install.sh against releases on loopback: what it installs, and what it leaves where it cannot.

    tests/install.py SWS             a release with this program and stand-ins for other systems
    tests/install.py --release DIR   each archive for Linux in DIR that this machine can run
    tests/install.py --missing       what this needs and this machine lacks; nothing if it can run

SCHEMAS   directory with the published schemas of manifests, checked where `jsonschema` and `yaml` are
          installed: scoop.json, and winget's as installer.json, version.json, defaultLocale.json
"""

import contextlib
import hashlib
import http.server
import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = subprocess.check_output([ROOT / "packaging/version"], text=True).strip()
GNU, MUSL, ARM, MAC, WINDOWS = (
    "x86_64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-gnu",
    "aarch64-apple-darwin",
    "x86_64-pc-windows-gnu",
)
TOOLS = "awk basename cat cp cut df dirname find getconf grep gzip head ln mkdir mktemp mv rm rmdir sed sh sort tar uname"
NOBODY = 65534
# The system that runs this.
HERE = MAC if os.uname().sysname == "Darwin" else f"{os.uname().machine}-unknown-linux-gnu"
LOADER = pathlib.Path("/lib64/ld-linux-x86-64.so.2")
# The script as a release has it (`packaging/installer`).
script = ""


def missing():
    tools = [tool for tool in TOOLS.split() if not shutil.which(tool)]
    if tools:
        return f"no {tools[0]}"
    if not shutil.which("sha256sum") and not shutil.which("shasum"):
        return "neither sha256sum nor shasum"
    return "" if shutil.which("curl") or shutil.which("wget") else "neither curl nor wget"


class Release:
    """A directory that is served; `faults` names the ways in which some files are served wrongly."""

    def __init__(self, directory):
        self.directory, self.faults, self.asked = directory, {}, []
        release = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                release.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, request):
        name = request.path.rpartition("/")[2]
        self.asked.append(name)
        file, fault = self.directory / name, self.faults.get(name)
        if fault == "missing" or not file.is_file():
            return request.send_error(404)
        body = file.read_bytes()
        request.send_response(200)
        # Without a length, the end of the connection is that of the file.
        if fault != "cut without a length":
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        with contextlib.suppress(OSError):
            request.wfile.write(body[: len(body) // 2] if fault else body)
            request.wfile.flush()
            while fault == "stalled" and not self.server._BaseServer__shutdown_request:
                time.sleep(0.05)

    def name(self, target):
        return f"sws-{VERSION}-{target}" + (".zip" if "windows" in target else ".tar.gz")

    def add(self, target, program, files=("share/man/man1/sws.1",), **extra):
        """Adds an archive with a script as the program."""
        name = f"sws-{VERSION}-{target}"
        contents = {file: file.encode() for file in files} | {"bin/sws": program.encode()} | extra
        with tarfile.open(self.directory / f"{name}.tar.gz", "w:gz") as archive:
            for file, content in contents.items():
                info = tarfile.TarInfo(f"{name}/{file}")
                info.size, info.mode = len(content), 0o755
                archive.addfile(info, io.BytesIO(content))
        self.sum()

    def sum(self):
        """Lists the files as `sha256sum` does."""
        files = sorted(file for file in self.directory.iterdir() if file.name != "SHA256SUMS")
        lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  ./{file.name}\n" for file in files]
        (self.directory / "SHA256SUMS").write_text("".join(lines))


def says(words, code=0):
    return f"#!/bin/sh\necho {words}\nexit {code}\n"


def files_of(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in pathlib.Path(directory).rglob("*")
    }


class Run:
    """One run of the script, piped into a shell as a user would, with a home of its own."""

    def __init__(self, home, *options, path=None, shell="sh", text=None, user=None, before=None):
        env = {name: value for name, value in os.environ.items() if name.startswith("QEMU_")}
        env |= {"HOME": str(home), "PATH": path or os.environ["PATH"], "TMPDIR": str(home)}
        self.process = subprocess.Popen(
            [*shell.split(), "-s", "--", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
            cwd=home if user is None else "/",
            user=user,
            start_new_session=True,
        )
        self.process.stdin.write(script if text is None else text)
        self.process.stdin.close()
        self.process.stdin = None
        if before:
            before(self.process)
        self.out, self.err = self.process.communicate(timeout=120)
        self.code = self.process.returncode


def check(holds, words, run=None):
    if not holds:
        about = f": {run.code}, {run.out!r}, {run.err!r}" if run else ""
        sys.exit(f"install: {words}{about}")


def installed(words, run, prefix, program):
    """The run ended well, and its program says this."""
    check(run.code == 0 and not run.err, words, run)
    answer = subprocess.check_output([prefix / "bin/sws", "--version"], text=True)
    check(answer.strip() == program.strip(), f"{words}: {answer!r} instead of {program!r}", run)
    check(f"Installed {program.splitlines()[0]} as {prefix}/bin/sws\n" in run.out, words, run)
    check(not list(prefix.glob(".sws*")), f"{words}: something is left in {prefix}")


def refused(words, sentence, run, home=None, before=None):
    """The run ended in one sentence, and the home is as it was."""
    check(run.code == 2, words, run)
    lines = run.err.splitlines()
    check(len(lines) == 1 and lines[0].startswith("install: ") and sentence in lines[0], words, run)
    if home:
        left = files_of(home)
        check(left == (before or {}), f"{words}: left {sorted(set(left) ^ set(before or {}))}", run)
    print(f"  {words}: {lines[0]}")


def tools(directory, without=(), **stubs):
    """A directory for PATH: tools of this machine, and scripts in place of some."""
    directory.mkdir()
    for tool in [*TOOLS.split(), "curl", "sha256sum", "shasum"]:
        if tool not in without and tool not in stubs and shutil.which(tool):
            (directory / tool).symlink_to(shutil.which(tool))
    for tool, text in stubs.items():
        (directory / tool).write_text(text)
        (directory / tool).chmod(0o755)
    return str(directory)


@contextlib.contextmanager
def homes(temp):
    """Hands out empty homes."""
    count = iter(range(1000))

    def home():
        path = temp / f"home-{next(count)}"
        path.mkdir()
        return path

    yield home


def real_release(directory, program):
    """A release with this program, as `packaging/tree` lays it out."""
    name = f"sws-{VERSION}-{HERE}"
    subprocess.run([ROOT / "packaging/tree", program, directory / name], check=True)
    subprocess.run(["strip", directory / name / "bin/sws"], check=True)
    archive = directory / f"{name}.tar.gz"
    subprocess.run(f"tar -C {directory} -cf - {name} | gzip -1 >{archive}", shell=True, check=True)
    shutil.rmtree(directory / name)
    release = Release(directory)
    release.sum()
    return release


def bake(release, address=None):
    global script
    command = [ROOT / "packaging/installer", address or release.address, release.directory]
    script = subprocess.check_output(command, text=True)


def removes(words, run, prefix):
    """The command that the script names removes every file."""
    command = run.out.splitlines()[-1].removeprefix("Remove it with  ")
    subprocess.run(["sh", "-c", command], check=True)
    left = [path for path, content in files_of(prefix).items() if content is not None]
    check(not left, f"{words}: {left} are left")


def a_real_program(temp, home, program):
    release = real_release(temp, program)
    bake(release)
    wanted = subprocess.check_output([program, "--version"], text=True)
    prefix = home() / ".local"
    run = Run(prefix.parent, "--target", HERE)
    installed("a release", run, prefix, wanted)
    check("is not on PATH" in run.out, "PATH", run)
    tale = [prefix / "bin/sws", "run", "--seed", "1", "-n", "8", "--ram", "64MiB"]
    env = {"HOME": str(prefix.parent), "PATH": os.environ["PATH"], "SWS_CONFIG": ""}
    told = subprocess.run(tale, env=env, cwd=prefix, capture_output=True, text=True)
    check(told.returncode == 0 and "share/sws/shards/tales-moe" in told.stderr, f"a tale: {told}")
    removes("a release", run, prefix)
    print(f"  {wanted.splitlines()[0]}: installed, run, removed")
    return release


def choice(temp, home, release):
    """The archive for each system, or the sentence that refuses it."""
    new = "#!/bin/sh\necho glibc 2.99\n"
    rows = [
        ("Linux", "x86_64", new, GNU),
        ("Linux", "amd64", "#!/bin/sh\necho glibc 9.0\n", GNU),
        ("Linux", "x86_64", "#!/bin/sh\necho glibc 2.5\n", MUSL),
        ("Linux", "x86_64", "#!/bin/sh\necho glibc 1.99\n", MUSL),
        ("Linux", "x86_64", "#!/bin/sh\necho unknown\n", MUSL),
        ("Linux", "x86_64", "#!/bin/sh\nexit 1\n", MUSL),
        ("Linux", "aarch64", new, ARM),
        ("Linux", "aarch64", "#!/bin/sh\nexit 1\n", "glibc 2."),
        ("Darwin", "arm64", "#!/bin/sh\nexit 1\n", MAC),
        ("Darwin", "x86_64", new, "no archive is for macOS on x86_64"),
        ("Linux", "riscv64", new, "cargo install --locked --path crates/cli"),
        ("FreeBSD", "amd64", new, "no archive is for FreeBSD on amd64"),
        ("MINGW64_NT-10.0", "x86_64", new, "Scoop and winget"),
    ]
    for number, (system, machine, getconf, wanted) in enumerate(rows):
        uname = f'#!/bin/sh\ncase $1 in -s) echo {system} ;; -m) echo {machine} ;; esac\n'
        path = tools(temp / f"system-{number}", uname=uname, getconf=getconf)
        if wanted == GNU and not LOADER.exists():
            wanted = MUSL
        where, words = home(), f"{system} {machine}"
        run = Run(where, path=path)
        if wanted in (GNU, MUSL, ARM, MAC):
            installed(words, run, where / ".local", f"sws {wanted}")
        else:
            refused(words, wanted, run, where)
    # A name that another one contains is another one.
    where = home()
    refused("a target without an archive", "no archive for linux-gnux", Run(where, "--target", "linux-gnux"), where)


def faults(temp, home, release):
    """Wrong bytes, and none."""
    archive = release.name(MUSL)
    good = (release.directory / "SHA256SUMS").read_text()
    wrong = good.replace(hashlib.sha256((release.directory / archive).read_bytes()).hexdigest(), "0" * 64)
    rows = [
        ("a wrong hash", "does not have the SHA-256", {}, wrong),
        ("a cut body", "cannot be downloaded", {archive: "cut"}, good),
        ("a body cut without a length", "does not have the SHA-256", {archive: "cut without a length"}, good),
        ("no archive", "cannot be downloaded", {archive: "missing"}, good),
        ("no sums", "SHA256SUMS cannot be downloaded", {"SHA256SUMS": "missing"}, good),
        ("sums of nothing", "has no archive for", {}, "nothing\n"),
        ("sums with two versions", "several archives", {}, good + good.replace(VERSION, "9.9.9")),
    ]
    for downloader in ("curl", "wget"):
        if not shutil.which(downloader):
            print(f"skipped: {downloader} is not installed")
            continue
        stub = {"wget": f'#!/bin/sh\nexec {shutil.which("wget")} "$@"\n'} if downloader == "wget" else {}
        path = tools(temp / downloader, without=["curl"] if downloader == "wget" else [], **stub)
        for words, sentence, served, sums in rows:
            release.faults = served
            (release.directory / "SHA256SUMS").write_text(sums)
            where = home()
            refused(f"{words} ({downloader})", sentence, Run(where, "--target", MUSL, path=path), where)
        release.faults = {}
        (release.directory / "SHA256SUMS").write_text(good)
        where = home()
        installed(downloader, Run(where, "--target", MUSL, path=path), where / ".local", f"sws {MUSL}")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        where = home()
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        refused("no server", "cannot be downloaded", Run(where, "--address", address), where)


def tools_that_lack(temp, home, release):
    rows = [
        ("curl", "`curl` or `wget`"),
        ("tar", "`tar`"),
        ("gzip", "`gzip`"),
        ("sha256sum shasum", "`sha256sum` or `shasum`"),
    ]
    for tool, sentence in rows:
        where = home()
        path = tools(temp / f"no-{tool}", without=tool.split())
        refused(f"without {tool}", sentence, Run(where, "--target", MUSL, path=path), where)


def programs(temp, home, release):
    """Archives of the right hash that are no good."""
    target = "x86_64-unknown-none"
    name = f"sws-{VERSION}-{target}"
    release.add(target, says("no", 3))
    where = home()
    refused("a program that does not run", "does not run on this system", Run(where, "--target", target), where)
    (release.directory / f"{name}.tar.gz").write_bytes(b"no gzip")
    release.sum()
    where = home()
    refused("no archive", "cannot be unpacked", Run(where, "--target", target), where)
    with tarfile.open(release.directory / f"{name}.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo(f"{name}/bin/sws")
        info.type, info.linkname = tarfile.SYMTYPE, "/bin/true"
        archive.addfile(info)
    release.sum()
    where = home()
    refused("an archive of links", "is not an archive of sws", Run(where, "--target", target), where)
    (release.directory / f"{name}.tar.gz").unlink()
    release.sum()


def updates(temp, home, release):
    """A newer version replaces an older one, wholly or not at all."""
    where = home()
    prefix = where / "a prefix"
    options = ("--target", MUSL, "--prefix", str(prefix))
    (prefix / "share/man/man1").mkdir(parents=True)
    (prefix / "share/man/man1/other.1").write_text("other")
    release.add(MUSL, says("old"), files=["share/man/man1/sws.1", "share/man/man1/sws-old.1"])
    installed("an older version", Run(where, *options), prefix, "old")
    before = files_of(where)
    release.add(MUSL, says("new"), files=["share/man/man1/sws.1", "share/man/man1/sws-new.1", "share/x/y"])
    (prefix / "share/x/y").mkdir(parents=True)
    before = files_of(where)
    refused("a directory in the way", "is as it was", Run(where, *options), where, before)
    shutil.rmtree(prefix / "share/x")
    before = files_of(where)
    # The third file is not moved: the whole group gets a signal instead.
    mv = f'#!/bin/sh\ncase $3 in */y) kill -TERM 0 ;; *) exec {shutil.which("mv")} "$@" ;; esac\n'
    run = Run(where, *options, path=tools(temp / "mv", mv=mv))
    check(run.code in (2, 143), "interrupted while files are replaced", run)
    check(files_of(where) == before, f"interrupted while files are replaced: {files_of(where)}", run)
    run = Run(where, *options)
    installed("a newer version", run, prefix, "new")
    after = files_of(prefix)
    check("share/man/man1/sws-new.1" in after and "share/man/man1/sws-old.1" not in after, f"{after}")
    (prefix / "share/man/man1/other.1").unlink()
    removes("a newer version", run, prefix)
    release.add(MUSL, says(f"sws {MUSL}"))


def rights(home, release, temp):
    where = home()
    (where / "file").write_text("")
    before = files_of(where)
    run = Run(where, "--prefix", str(where / "file"))
    refused("a file as the prefix", "cannot be made", run, where, before)
    refused("no prefix", "--prefix needs a value", Run(where, "--prefix", ""), where, before)
    refused("an unknown option", "no option `--force`", Run(where, "--force"), where, before)
    if os.getuid() != 0:
        print("skipped: only root can try a directory of another user, and one without space")
        return
    os.chmod(temp, 0o755)
    prefix = where / "owned"
    prefix.mkdir()
    before = files_of(where)
    run = Run(where, "--target", MUSL, "--prefix", str(prefix), user=NOBODY)
    refused("another user's prefix", "cannot be written", run, where, before)
    run = Run(where, "--target", MUSL, "--prefix", str(where / "new/prefix"), user=NOBODY)
    refused("another user's directory", "cannot be made", run, where, before)
    # The prefix may be written, and not what is in it.
    release.add(MUSL, says(f"sws {MUSL}"), files=["share/man/man1/sws.1", "aside/b"])
    prefix.chmod(0o777)
    (prefix / "share").mkdir()
    before = files_of(where)
    run = Run(where, "--target", MUSL, "--prefix", str(prefix), user=NOBODY)
    refused("another user's share", "is as it was", run, where, before)


def space(home, release):
    if os.getuid() != 0:
        return
    large = {"share/large": os.urandom(3 << 20)}
    for words, size in (("no space for the archive", "2m"), ("no space to unpack", "5m")):
        release.add(MUSL, says(f"sws {MUSL}"), **large)
        where = home()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", where], capture_output=True)
        if mounted.returncode:
            print("skipped: no file system can be mounted here, so none runs out of space")
            return
        try:
            refused(words, "no space is left", Run(where, "--target", MUSL), where)
        finally:
            subprocess.run(["umount", where], check=True)
    release.add(MUSL, says(f"sws {MUSL}"))


def interruptions(home, release):
    for name in ("SHA256SUMS", release.name(MUSL)):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            release.faults, release.asked = {name: "stalled"}, []

            def interrupt(process, name=name, number=number):
                while name not in release.asked and process.poll() is None:
                    time.sleep(0.01)
                os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)

            where = home()
            run = Run(where, "--target", MUSL, before=interrupt)
            check(run.code == 128 + number and not run.err, f"{number.name} during {name}", run)
            check(not files_of(where), f"{number.name} during {name}: left {files_of(where)}")
    release.faults = {}
    print("  interrupted during downloads: nothing left")
    for part in range(1, 10):
        where = home()
        Run(where, "--target", MUSL, text=script[: len(script) * part // 10])
        check(not files_of(where), f"{part} tenths of the script: left {files_of(where)}")
    print("  parts of the script do nothing")


def shells(temp, home, release):
    for shell in ("dash", "bash --posix", "busybox sh", "ksh", "zsh --emulate sh"):
        if not shutil.which(shell.split()[0]):
            continue
        where = home()
        installed(shell, Run(where, "--target", MUSL, shell=shell), where / ".local", f"sws {MUSL}")
        where = home()
        refused(shell, "does not have the SHA-256", with_fault(release, where, shell), where)


    busybox = shutil.which("busybox")
    if busybox:
        # A system that has nothing else, such as Alpine.
        path = temp / "busybox"
        path.mkdir()
        for tool in [*TOOLS.split(), "sha256sum", "wget"]:
            (path / tool).symlink_to(busybox)
        where = home()
        run = Run(where, path=str(path), shell=f"{busybox} sh")
        if os.uname().machine == "x86_64":
            installed("busybox alone", run, where / ".local", f"sws {MUSL}")


def with_fault(release, where, shell):
    release.faults = {release.name(MUSL): "cut without a length"}
    try:
        return Run(where, "--target", MUSL, shell=shell)
    finally:
        release.faults = {}


def manifests(temp, release):
    """Formula and manifests name the archives and their hashes."""
    address = "https://host.example/owner/repository/releases/download/v1"
    with zipfile.ZipFile(release.directory / release.name(WINDOWS), "w") as archive:
        archive.writestr(f"sws-{VERSION}-{WINDOWS}/bin/sws.exe", "")
    out = temp / "manifests"
    make = lambda name, *more: subprocess.check_output(  # noqa: E731
        [ROOT / "packaging" / name, address, release.directory, *more], text=True
    )
    texts = {"sws.rb": make("homebrew"), "sws.json": make("scoop")}
    make("winget", out)
    texts |= {file.name: file.read_text() for file in out.iterdir()}
    about = json.loads(texts["sws.json"])
    check(about["bin"] == "bin\\sws.exe" and about["version"] == VERSION, "sws.json")
    check(f"sws-{VERSION}-{WINDOWS}\\bin\\sws.exe" in texts["SWS.SWS.installer.yaml"], "winget's program")
    names = {"sws.rb": [GNU, ARM, MAC], "sws.json": [WINDOWS], "SWS.SWS.installer.yaml": [WINDOWS]}
    for file, targets in names.items():
        for target in targets:
            archive = release.directory / release.name(target)
            digest = hashlib.sha256(archive.read_bytes()).hexdigest()
            check(f"{address}/{archive.name}" in texts[file], f"{file} lacks the address of {target}")
            check(digest in texts[file].lower(), f"{file} lacks the hash of {target}")
    if shutil.which("ruby"):
        subprocess.run(["ruby", "-c"], input=texts["sws.rb"], text=True, check=True, stdout=subprocess.DEVNULL)
    schemas = os.environ.get("SCHEMAS")
    if schemas:
        import jsonschema
        import yaml

        kinds = {
            "sws.json": "scoop",
            "SWS.SWS.yaml": "version",
            "SWS.SWS.installer.yaml": "installer",
            "SWS.SWS.locale.en-US.yaml": "defaultLocale",
        }
        for file, kind in kinds.items():
            schema = json.loads((pathlib.Path(schemas) / f"{kind}.json").read_text())
            jsonschema.Draft7Validator(schema).validate(yaml.safe_load(texts[file]))
    print(f"  manifests{' by their schemas' if schemas else ''}: {', '.join(sorted(texts))}")


def try_release(temp, home, directory):
    """Installs each archive of a directory, as far as this machine runs it."""
    copy = temp / "release"
    shutil.copytree(directory, copy)
    release = Release(copy)
    release.sum()
    bake(release)
    archives = sorted(copy.glob("sws-*-linux-*.tar.gz"))
    check(archives, f"no archives for Linux in {directory}")
    for archive in archives:
        target = archive.name.removeprefix(f"sws-{VERSION}-").removesuffix(".tar.gz")
        prefix = home() / ".local"
        run = Run(prefix.parent, "--target", target)
        if run.code and target.split("-")[0] != os.uname().machine and "does not run" in run.err:
            print(f"skipped: {target}: {run.err.strip()}")
            continue
        check(run.code == 0, target, run)
        version = subprocess.check_output([prefix / "bin/sws", "--version"], text=True)
        installed(target, run, prefix, version)
        removes(target, run, prefix)
        print(f"  {target}: {version.splitlines()[0]}")


def main():
    if sys.argv[1:] == ["--missing"]:
        return print(missing(), end="")
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    lack = missing()
    if lack:
        return print(f"install: skipped: {lack}")
    # What a shell starts in the background ignores this signal, and so would the scripts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as name, homes(pathlib.Path(name)) as home:
        temp = pathlib.Path(name)
        if sys.argv[1] == "--release":
            try_release(temp, home, pathlib.Path(sys.argv[2]))
            return print("install: ok")
        (temp / "real").mkdir()
        a_real_program(temp / "real", home, pathlib.Path(sys.argv[1]).resolve())
        (temp / "stand-ins").mkdir()
        release = Release(temp / "stand-ins")
        for target in (GNU, MUSL, ARM, MAC):
            release.add(target, says(f"sws {target}") + ("# GLIBC_2.34\n" if "gnu" in target else ""))
        bake(release)
        check("glibc='2.34'" in script, "the C library that archives need")
        choice(temp, home, release)
        faults(temp, home, release)
        tools_that_lack(temp, home, release)
        programs(temp, home, release)
        updates(temp, home, release)
        rights(home, release, temp)
        space(home, release)
        interruptions(home, release)
        shells(temp, home, release)
        manifests(temp, release)
    print("install: ok")


if __name__ == "__main__":
    main()
