"""The hub, played by a real HTTP server on this machine.

Each case runs in a process of its own: the hub's client reads its settings at import.
"""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from autotune.models.presets import PRESETS

CONFIG = json.dumps(PRESETS["qwen3-tiny"]).encode()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODE = """
import json
from autotune.errors import AutotuneError
from autotune.models.resolve import resolve_model
try:
    print(json.dumps([0, resolve_model("org/tiny", load_weights=False).num_parameters]))
except AutotuneError as error:
    print(json.dumps([error.exit_code, str(error)]))
"""


class Hub(BaseHTTPRequestHandler):
    """Answers for one repository, or with one error."""

    error: tuple[int, str] | None = None

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, *, with_body: bool) -> None:
        if self.error is not None:
            self.send_response(self.error[0])
            self.send_header("X-Error-Code", self.error[1])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = CONFIG
        if self.path.startswith("/api/"):
            files = [{"rfilename": "config.json"}, {"rfilename": "model.safetensors"}]
            body = json.dumps({"id": "org/tiny", "sha": COMMIT, "siblings": files}).encode()
        if "/tree/" in self.path:
            entry = {"type": "file", "path": "config.json", "size": len(CONFIG), "oid": "abc"}
            body = json.dumps([entry]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"abc"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def resolve(tmp_path):
    """Start a hub that gives ``error`` or the repository; return what resolving said."""

    def run(error: tuple[int, str] | None) -> list:
        handler = type("Handler", (Hub,), {"error": error})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                return ask(f"http://127.0.0.1:{server.server_port}")
            finally:
                server.shutdown()
                thread.join()

    def ask(endpoint: str) -> list:
        done = subprocess.run(
            [sys.executable, "-c", CODE],
            env={
                "PYTHONPATH": ":".join(sys.path),
                "HF_ENDPOINT": endpoint,
                "HF_HOME": str(tmp_path / "cache"),
                "HF_HUB_DISABLE_XET": "1",
                "NO_PROXY": "*",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(done.stdout)

    run.ask = ask
    return run


def test_hub_id_is_downloaded_and_works_without_the_hub_afterwards(resolve):
    assert resolve(None) == [0, 1_049_984]
    assert resolve.ask("http://127.0.0.1:9") == [0, 1_049_984]


def test_repository_that_the_hub_does_not_have_is_an_input_error(resolve):
    code, message = resolve((404, "RepoNotFound"))
    assert code == 2
    assert "org/tiny" in message
    assert "no such repository" in message


def test_gated_repository_is_the_environments_fault(resolve):
    code, message = resolve((403, "GatedRepo"))
    assert code == 3
    assert "does not let this machine read" in message


def test_hub_that_is_not_reached_is_the_environments_fault(resolve):
    code, message = resolve.ask("http://127.0.0.1:9")
    assert code == 3
    assert message.startswith("model org/tiny is no folder here, and the hub was not reached")


def test_broken_hub_is_the_environments_fault(resolve):
    code, message = resolve((503, ""))
    assert code == 3
    assert "was not reached" in message
