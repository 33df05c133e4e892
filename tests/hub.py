"""Caches that `sws pull` shares with Python's huggingface_hub, in both directions.

    python tests/hub.py SWS HUB

SWS is the command, and HUB the example `hub` of sws-testing, which serves a directory on loopback. Prints the cache
that Python leaves, for tests/fixtures/hub-cache.txt.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ID = "own/tiny-model"
FILES = ["config.json", "model.safetensors"]
GOLDEN = Path(__file__).parent / "goldens/qwen2_moe"
PYTHON = """
import sys
from huggingface_hub import snapshot_download
print(snapshot_download(sys.argv[1], local_files_only=sys.argv[2] == "offline"))
"""


def listing(cache):
    """One line for each file and link of the model, without what Python keeps besides."""
    lines = []
    model = cache / f"models--{ID.replace('/', '--')}"
    for path in sorted(path for part in ("blobs", "refs", "snapshots") for path in (model / part).rglob("*")):
        name = path.relative_to(cache)
        if path.is_symlink():
            lines.append(f"link {name} {os.readlink(path)}")
        elif path.is_file() and path.parent.name == "refs":
            lines.append(f"text {name} {path.read_text()}")
        elif path.is_file():
            lines.append(f"file {name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return lines


def main(sws, hub):
    with tempfile.TemporaryDirectory() as temp:
        temp = Path(temp)
        model = temp / "model"
        model.mkdir()
        for name in FILES:
            shutil.copy(GOLDEN / name, model)
        server = subprocess.Popen([hub, ID, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        endpoint = server.stdout.readline().strip()
        kept = {k: v for k, v in os.environ.items() if not k.upper().endswith("_PROXY") and not k.startswith("HF_")}

        def call(home, *command, **more):
            env = kept | {"HF_ENDPOINT": endpoint, "HF_HOME": str(temp / home), "SWS_MODELS": str(temp / home / "sws")}
            done = subprocess.run(command, env=env | more, capture_output=True, text=True)
            assert done.returncode == 0, (command, done.stderr)
            return done.stdout

        def run(home, which, **more):
            made = call(home, sws, "run", which, "--tokens", "5,9,100", "--max-new-tokens", "8", "--json", **more)
            return json.loads(made)["tokens"]

        # Python downloads, sws runs.
        call("python", sys.executable, "-c", PYTHON, ID, "online")
        expected = run("none", str(model))
        assert run("python", ID, HF_HUB_OFFLINE="1") == expected
        # And finds everything there.
        call("python", sws, "pull", ID, "--as", "stored")
        theirs = listing(temp / "python/hub")

        # The other way round.
        call("sws", sws, "pull", ID, "--as", "stored")
        ours = listing(temp / "sws/hub")
        assert ours == theirs, "\n".join(["ours", *ours, "theirs", *theirs])
        found = Path(call("sws", sys.executable, "-c", PYTHON, ID, "offline").strip())
        for name in FILES:
            assert (found / name).read_bytes() == (model / name).read_bytes(), name
        written = {path: path.stat().st_mtime_ns for path in (temp / "sws/hub").rglob("blobs/*")}
        call("sws", sys.executable, "-c", PYTHON, ID, "online")
        assert all(path.stat().st_mtime_ns == time for path, time in written.items()), "downloaded again"
        assert listing(temp / "sws/hub") == ours

        server.stdin.close()
        server.wait()
        print(*theirs, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
