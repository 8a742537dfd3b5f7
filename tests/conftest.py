"""What every test can count on: the same draws on every machine, no hub, no network."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tiny models gain nothing from a second thread, and on a busy machine threads that wait for one another lose minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("practicum", deadline=None, derandomize=True, database=None)
settings.load_profile("practicum")


def pytest_report_header() -> str:
    found = []
    for name in ("torch", "transformers", "numpy"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return f"practicum: {os.cpu_count()} cores, {platform.machine()}, {', '.join(found)}"


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """A connection to another machine fails at once; servers of the tests' own, on this machine, are reachable."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"tests use no network, but something connects to {address[0]}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


class Endpoint:
    """A chat endpoint on this machine that answers as a test wrote down; `requests` is what it was asked.

    An answer is a completion (`said`), a status, (status, headers, text), a number of seconds to keep silent before the
    connection is closed, None to close it at once, or a function from the request to one of these. The last is repeated.
    """

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        endpoint = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                answer = endpoint.next_answer(self.path, body, dict(self.headers))
                if answer is None or isinstance(answer, float):
                    time.sleep(answer or 0.0)
                    self.close_connection = True
                    return
                status, headers, text = answer
                content = text.encode()
                self.send_response(status)
                for name, value in {"content-length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def next_answer(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
        with self._lock:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.requests.append(body)
            self.headers.append(headers)
        if path != "/v1/chat/completions":
            return 404, {}, f"no such path: {path}"
        if callable(answer):
            answer = answer(body)
        if isinstance(answer, dict):
            return 200, {}, json.dumps(answer)
        return (answer, {}, json.dumps({"error": f"status {answer}"})) if isinstance(answer, int) else answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def completion(content: str | None, calls: Any = (), reason: str = "stop", tokens: int = 7) -> dict[str, Any]:
    """A completion as an endpoint sends it; calls are (name, arguments as text)."""
    tool_calls = [
        {"id": f"theirs_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": content, **({"tool_calls": tool_calls} if calls else {})}
    usage = {"prompt_tokens": 100, "completion_tokens": tokens}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    served = Endpoint()
    yield served
    served.close()


@pytest.fixture
def said() -> Callable[..., dict[str, Any]]:
    return completion
