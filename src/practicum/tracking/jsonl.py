"""metrics.jsonl: one JSON object a line, for whatever program wants to read a run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path


class JsonLines:
    """Appends {"step": 3, "success": 0.61, …} to a file, a line per `log`, handed to the system at once.

    NaN and infinity, for which JSON has no form, become null. Of several lines of one step the last counts.
    """

    def __init__(self, path: str | Path) -> None:
        """Open `path` for appending; half a line left by a killed process is cut off. Raises OSError."""
        self.path = Path(path)
        self._file = self.path.open("ab")
        cut_torn_line(self.path)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one line."""
        numbers = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        line = json.dumps({"step": step, **numbers})
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cut_torn_line(path: Path) -> None:
    """Truncate a file behind its last line feed."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
