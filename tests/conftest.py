"""What every test can count on: the same draws on every machine, no hub, no network."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
from collections.abc import Iterator
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
