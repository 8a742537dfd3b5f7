"""What all sides of `rl_step.py` play, token for token, and how its workers are spoken to. Needs tokenizers only."""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

WORDS = """
order item return refund customer address product payment card gift account price size color blue green large
small status shipped pending delivered reason email phone name number week today please check change cancel
keep other same first second water bottle lamp table chair light shirt shoes watch camera speaker
"""


@dataclass(frozen=True)
class Size:
    """How large one step's episodes are, in tokens and turns. Example: Size(16, 8, turns=3, prompt=202, shared=130)."""

    tasks: int
    attempts: int
    turns: int
    prompt: int
    "Tokens before the first reply: system message, request, and what the template puts around them."
    shared: int
    "So many of them, the system message, are the same for all tasks."
    said: int = 35
    "Sampled in each turn, always exactly so many."
    told: int = 60
    "Put between two replies: the tool's result and what the template puts around it."

    @property
    def episodes(self) -> int:
        """Attempts over all tasks."""
        return self.tasks * self.attempts

    @property
    def context(self) -> int:
        """Tokens of an episode at its end."""
        return self.prompt + self.turns * self.said + (self.turns - 1) * self.told

    def plain(self) -> dict[str, int]:
        """As JSON has it."""
        return asdict(self)


DEMO = Size(tasks=16, attempts=8, turns=3, prompt=202, shared=130)
"As the demo's episodes are (recipes/retail.toml)."
LONG = Size(tasks=2, attempts=8, turns=8, prompt=1000, shared=900)
DEEP = Size(tasks=1, attempts=32, turns=3, prompt=4000, shared=3900)
"Memory is measured with it."


class Texts:
    """Words that become exactly so many tokens in a ChatML block, in every process the same.

    Example: Texts(folder).block("user", 40, "task 3") -> "order blue …", whose block, with `<|im_start|>user`, newline,
    `<|im_end|>`, newline, is 40 tokens long.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.words = [word for word in WORDS.split() if len(self.count(f" {word}")) == 1]
        self.prompt_tokens = 1 + len(self.count("assistant\n"))
        "Of the template, from the end of a message to where the assistant speaks."

    def count(self, text: str) -> list[int]:
        """Tokens of plain text."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def block(self, role: str, tokens: int, seed: str) -> str:
        """A text whose whole block has so many tokens. Raises ValueError where there is no room for a word."""
        choose = random.Random(seed)
        text = choose.choice(self.words)
        missing = tokens - 3 - len(self.count(f"{role}\n{text}"))
        text += "".join(f" {choose.choice(self.words)}" for _ in range(missing))
        if 3 + len(self.count(f"{role}\n{text}")) != tokens:
            raise ValueError(f"no text makes a block of {tokens} tokens for {role}; ask for at least 8")
        return text

    def system(self, size: Size) -> str:
        """The system message, the same for all tasks."""
        return self.block("system", size.shared, f"system {size.shared}")

    def request(self, size: Size, task: int) -> str:
        """What the customer of a task asks."""
        return self.block("user", size.prompt - size.shared - self.prompt_tokens, f"task {task}")

    def result(self, size: Size, ended: bool) -> str:
        """What a tool answers. `ended`: the template first ends the reply that was cut, with one token."""
        framing = 1 + ended + self.prompt_tokens  # a newline, the end, the next reply's beginning
        return self.block("user", size.told - framing, "result")


@cache
def texts(folder: str) -> Texts:
    """The texts of a model's folder, its tokenizer read once."""
    return Texts(folder)


def peak_gb(since_start: bool = True) -> float:
    """The most memory that this process ever had resident, in GB; else what it has now."""
    name = "VmHWM" if since_start else "VmRSS"
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024 / 1e9, 3)


def serve(commands: Mapping[str, Callable[..., Mapping[str, Any]]]) -> None:
    """Do what is asked on standard input, a line of JSON each, and answer on standard output, until it is closed.

    Whatever libraries print goes to standard error.
    Example: {"do": "step", "size": {...}} calls commands["step"](Size(...)).
    """
    channel = Channel()
    while (asked := channel.next()) is not None:
        channel.answer(carried_out(commands, asked))


def carried_out(commands: Mapping[str, Callable[..., Mapping[str, Any]]], asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to one command; what was raised is told in its `error`."""
    began = time.perf_counter()
    name = asked.pop("do")
    if "size" in asked:
        asked["size"] = Size(**asked["size"])
    try:
        found = dict(commands[name](**asked))
    except Exception:
        return {"error": traceback.format_exc()}
    return {"wall": time.perf_counter() - began, "peak_gb": peak_gb(), **found}


class Channel:
    """Commands in, answers out, with standard output kept free of what libraries print."""

    def __init__(self) -> None:
        self.out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)

    def next(self) -> dict[str, Any] | None:
        """The next command; None when there will be none."""
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else None

    def answer(self, found: Mapping[str, Any]) -> None:
        """One line of JSON."""
        self.out.write(json.dumps(found) + "\n")
        self.out.flush()
