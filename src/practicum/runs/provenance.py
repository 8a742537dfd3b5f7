"""Where a result came from: commit, command, machine, versions, time."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = ("practicum", "torch", "transformers", "numpy")


def provenance() -> dict[str, Any]:
    """Plain values for a report, to be taken when the work begins: the code may change while it runs.

    Example: provenance()["machine"] -> {"processor": "AMD EPYC", "cores": 2, "memory_gib": 23.4, …}
    """
    return {
        "commit": commit(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": {
            "processor": processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "versions": {name: version(name) for name in PACKAGES},
        "began": now(),
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str:
    """The commit of the checkout this package lies in, '+' behind it where files differ; empty for an installed one."""
    home = Path(__file__).parents[3]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(home), *words], capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", __file__)
        changed = git("status", "--porcelain", "--", ":(glob)**/*.py", "recipes")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def processor() -> str:
    """The processor's name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def version(package: str) -> str:
    """The installed version, empty where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
