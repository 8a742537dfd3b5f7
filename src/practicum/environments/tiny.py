"""A world that a model of a million parameters learns in seconds: press what the colour of a lamp calls for."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.environments.tools import tool
from practicum.errors import UserError
from practicum.types import Task, ToolCall, stream_seed

BUTTON_OF = {"red": "stop", "amber": "wait", "green": "go", "blue": "call", "white": "rest"}
NAMES = sorted(f"{letter}{number:02d}" for letter in "abcdefghijklmnopqrstuvwxyz" for number in range(100))


class Lamps:
    """Two calls, the second of which depends on what the first one showed; nothing says what a colour calls for.

    Example: lamp k42 -> look() -> "green" -> press("go")
    """

    def __init__(self) -> None:
        self.pressed: list[str] = []
        self.lamp = ""

    def reset(self, task: Task) -> None:
        """Another lamp; nothing is pressed."""
        self.pressed, self.lamp = [], str(task.data["lamp"])

    @property
    def done(self) -> bool:
        """True once a button was pressed."""
        return bool(self.pressed)

    @tool
    def look(self) -> str:
        """See the lamp."""
        return colour_of(self.lamp)

    @tool
    def press(self, button: str) -> str:
        """Press."""
        self.pressed.append(button)
        return "ok"

    def verify(self, secret: Mapping[str, Any]) -> dict[str, float]:
        """1.0 when exactly the right button was pressed, once."""
        return {"success": float(self.pressed == [secret["button"]])}

    def solve(self, secret: Mapping[str, Any]) -> list[ToolCall]:
        """Look, then press the right button."""
        return [ToolCall("look", {}), ToolCall("press", {"button": secret["button"]})]

    def close(self) -> None:
        """Nothing is held."""


def colour_of(lamp: str) -> str:
    """The colour of a lamp; always the same for the same lamp."""
    return random.Random(stream_seed("lamp", lamp)).choice(list(BUTTON_OF))


def splits(train: int, dev: int, test: int, seed: int) -> dict[str, list[Task]]:
    """Tasks over lamps that no two splits share. Raises UserError when more are asked for than there are lamps."""
    if train + dev + test > len(NAMES):
        raise UserError(f"the tiny world has {len(NAMES)} lamps, asked for were {train + dev + test} tasks")
    names = list(NAMES)
    random.Random(stream_seed("lamps", seed)).shuffle(names)
    tasks = [
        Task(f"lamp_{n}", f"lamp {n}", data={"lamp": n}, secret={"button": BUTTON_OF[colour_of(n)]}) for n in names
    ]
    return {"train": tasks[:train], "dev": tasks[train : train + dev], "test": tasks[train + dev : train + dev + test]}


def careless(lamp: str, attempt: int) -> Sequence[ToolCall]:
    """What clerks do of whom five in ten follow last year's code, one knows the new one, and four know none.

    So the right button is pressed less than one time in five.
    """
    draw = random.Random(stream_seed("careless", lamp, attempt))
    colours, buttons = list(BUTTON_OF), list(BUTTON_OF.values())
    place, knows = colours.index(colour_of(lamp)), draw.random()
    last_year, any_button = buttons[(place + 1) % len(buttons)], draw.choice(buttons)
    button = last_year if knows < 0.5 else buttons[place] if knows < 0.6 else any_button
    return [ToolCall("look", {}), ToolCall("press", {"button": button})]
