"""A world small enough for a model of a million parameters to learn in seconds: take the top item of a box."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.environments.tools import tool
from practicum.errors import ToolError, UserError
from practicum.types import Task, ToolCall, stream_seed

ITEMS = "abcdefghkmnprstuvwxyz"
PER_BOX = 5
BOXES = 2600


class Boxes:
    """Two calls that depend on one another: look into the box that the request names, take what lies on top.

    Items are listed from the bottom up; nothing says so, that is what is to be learned.
    Example: box k42 -> look("k42") -> "m t a e x" -> take("x") -> done()
    """

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.box = ""

    def reset(self, task: Task) -> None:
        """Close all boxes; nothing is taken."""
        self.taken, self.box = [], str(task.data["box"])

    @tool
    def look(self, box: str) -> str:
        """See inside."""
        if box not in NAMES:
            raise ToolError(f"no box {box}")
        return " ".join(contents(box))

    @tool
    def take(self, item: str) -> str:
        """Take one."""
        self.taken.append(item)
        return "taken"

    def verify(self, secret: Mapping[str, Any]) -> dict[str, float]:
        """1.0 when exactly the top item was taken."""
        return {"success": float(self.taken == [secret["top"]])}

    def solve(self, secret: Mapping[str, Any]) -> list[ToolCall]:
        """Look, then take the top item."""
        return [ToolCall("look", {"box": self.box}), ToolCall("take", {"item": secret["top"]})]

    def close(self) -> None:
        """Nothing is held."""


NAMES = {f"{letter}{number:02d}" for letter in "abcdefghijklmnopqrstuvwxyz" for number in range(100)}


def contents(box: str) -> list[str]:
    """What lies in a box, bottom first; always the same for the same box."""
    return random.Random(stream_seed("box", box)).sample(ITEMS, PER_BOX)


def splits(train: int, dev: int, test: int, seed: int) -> dict[str, list[Task]]:
    """Tasks over boxes that no two splits share. Raises UserError when more are asked for than there are boxes."""
    if train + dev + test > BOXES:
        raise UserError(f"the tiny world has {BOXES} boxes, asked for were {train + dev + test} tasks")
    names = sorted(NAMES)
    random.Random(stream_seed("boxes", seed)).shuffle(names)
    tasks = [Task(id=f"box_{n}", prompt=f"box {n}", data={"box": n}, secret={"top": contents(n)[-1]}) for n in names]
    return {"train": tasks[:train], "dev": tasks[train : train + dev], "test": tasks[train + dev : train + dev + test]}


def careless(box: str, attempt: int) -> Sequence[ToolCall]:
    """What a clerk does who never learned which item is meant: looks, and takes any."""
    item = random.Random(stream_seed("careless", box, attempt)).choice(contents(box))
    return [ToolCall("look", {"box": box}), ToolCall("take", {"item": item})]
