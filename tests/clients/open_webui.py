#!/usr/bin/env python3
"""Runs Open WebUI against both interfaces of `sws serve` that it speaks.

    python3 -m venv /tmp/webui && /tmp/webui/bin/pip install open-webui
    tests/clients/open_webui.py target/release/sws /tmp/webui/bin/open-webui

Open WebUI needs 7 GB and some versions that no other client takes, so it has an environment of its own.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import model

START_SECONDS = 300
BIAS = {"temperature": 0, "logit_bias": {str(model.TOKEN): 100}}
ASKED = [{"role": "user", "content": "where"}]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class WebUi:
    """Open WebUI with one connection, whose only user is signed in. It shows a model once, by whichever
    interface, so each has a run of its own."""

    def __init__(self, program: Path, directory: Path, sws: str, interface: str) -> None:
        port = free_port()
        self.url, self.token = f"http://127.0.0.1:{port}", None
        settings = {
            "DATA_DIR": directory,
            "WEBUI_AUTH": "False",
            "WEBUI_SECRET_KEY": "any",
            "ENABLE_OPENAI_API": interface == "openai",
            "OPENAI_API_BASE_URL": f"{sws}/v1",
            "OPENAI_API_KEY": "any",
            "ENABLE_OLLAMA_API": interface == "ollama",
            "OLLAMA_BASE_URL": sws,
            # Nothing is downloaded.
            "HF_HUB_OFFLINE": "1",
            "OFFLINE_MODE": "True",
            "RAG_EMBEDDING_ENGINE": "openai",
        }
        environment = os.environ | {name: str(value) for name, value in settings.items()}
        command = [program, "serve", "--host", "127.0.0.1", "--port", str(port)]
        with open(directory / "log", "wb") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=directory, stdout=log, stderr=log)
        end = time.monotonic() + START_SECONDS
        while not self.is_up():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit((directory / "log").read_text()[-2000:])
            time.sleep(1)
        # Without authentication any name is its administrator.
        self.token = self.ask("/api/v1/auths/signin", {"email": "", "password": ""})["token"]

    def is_up(self) -> bool:
        try:
            return self.ask("/health")["status"]
        except (urllib.error.URLError, ConnectionError):
            return False

    def open(self, path: str, body: dict | None = None):
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = json.dumps(body).encode() if body else None
        return urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers))

    def ask(self, path: str, body: dict | None = None) -> dict:
        with self.open(path, body) as answer:
            return json.load(answer)

    def lines(self, path: str, body: dict) -> list[str]:
        with self.open(path, body | {"stream": True}) as answer:
            return [line for line in answer.read().decode().splitlines() if line]


def check_openai(webui: WebUi) -> None:
    [found] = webui.ask("/api/models")["data"]
    name = found["id"]
    assert found["owned_by"] != "ollama", found
    body = {"model": name, "messages": ASKED, "max_tokens": 8, "stop": ["STOP"], **BIAS}
    whole = webui.ask("/api/chat/completions", body | {"stream": False})
    message = whole["choices"][0]["message"]
    assert message["content"].strip().startswith(model.TEXT), whole
    parts = [line.removeprefix("data: ") for line in webui.lines("/api/chat/completions", body)]
    assert parts[-1] == "[DONE]", parts
    deltas = [choice["delta"] for part in parts[:-1] for choice in json.loads(part).get("choices", [])]
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text == message["content"], text


def check_ollama(webui: WebUi) -> None:
    [tag] = webui.ask("/ollama/api/tags")["models"]
    name = tag["model"]
    options = {"temperature": 0, "num_predict": 8, "seed": 1}
    body = {"model": name, "messages": ASKED, "options": options}
    whole = webui.ask("/ollama/api/chat", body | {"stream": False})
    lines = [json.loads(line) for line in webui.lines("/ollama/api/chat", body)]
    assert lines[-1]["done"], lines
    text = "".join(line["message"].get("content", "") for line in lines)
    assert text == whole["message"]["content"] and whole["eval_count"] > 0, (text, whole)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sws, program = (Path(path).absolute() for path in sys.argv[1:])
    with tempfile.TemporaryDirectory() as temp:
        directory = Path(temp) / "tiny"
        model.make(directory)
        command = [sws, "serve", directory, "--resident", "--port", "0", "--quiet"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            url = next(line.split()[3].rstrip(";") for line in server.stderr if "listening on" in line)
            next(line for line in server.stderr if "ready" in line)
            for interface, check in {"openai": check_openai, "ollama": check_ollama}.items():
                data = Path(temp) / interface
                data.mkdir()
                webui = WebUi(program, data, url, interface)
                try:
                    check(webui)
                finally:
                    webui.process.terminate()
                    webui.process.wait()
                print(f"Open WebUI, interface {interface}: as it should")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
