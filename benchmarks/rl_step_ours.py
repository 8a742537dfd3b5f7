"""practicum's side of `rl_step.py`: a whole RL step as `training.one_step` makes it, and its two halves alone.

Runs as a worker that `rl_step.py` starts and keeps.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from forest import apart, made
from rl_step_episodes import Channel, Size, carried_out, texts

from practicum import build, config
from practicum.agents.agent import Model
from practicum.environments.tools import tool
from practicum.models.known import find
from practicum.models.load import load_model, load_tokenizer
from practicum.sampling.formats import CompactCalls
from practicum.sampling.renderer import ChatML
from practicum.training import one_step
from practicum.types import Group, Message, SamplingParams, Task, ToolCall, Weights, stream_seed


class Scripted(ChatML):
    """ChatML in which no token ends a reply: each is as long as it may be."""

    def __init__(self, folder: str) -> None:
        super().__init__(load_tokenizer(folder), CompactCalls())
        self.stop_tokens = ()


def shop(result: str) -> type:
    """An environment whose tool always gives the same text, and whose verifier draws a number."""

    class Shop:
        def reset(self, task: Task) -> None:
            self.looked_up = 0

        @tool
        def look_up(self, order: str) -> str:
            """Look an order up."""
            self.looked_up += 1
            return result

        def verify(self, secret: Any) -> dict[str, float]:
            return {"success": random.random()}

    return Shop


def agent_of(system: str, turns: int) -> Any:
    """An agent that looks an order up between two replies, whatever they say."""

    async def agent(task: Task, model: Model) -> str:
        messages = [Message("system", system), Message("user", task.prompt)]
        for turn in range(turns):
            messages.append(await model.chat(messages))
            if turn < turns - 1:
                messages.append(await model.use(ToolCall("look_up", {"order": "#W0000001"}, f"call_{turn}_0")))
        return ""

    return agent


class Side:
    """Everything that a step of one size needs, built when that size is first asked for and closed before the next."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = str(find(options.model).folder)
        self.texts = texts(self.folder)
        self.runner = asyncio.Runner()
        self.opened = ExitStack()
        self.built: tuple[str, Size] | None = None
        self.steps = 0
        self.precision: list[str] = []
        "As a setting, once it has been measured."

    def recipe(self, size: Size) -> config.RunConfig:
        """The recipe, with this size's numbers; every group teaches, since rewards are random."""
        settings = {
            "model.name": f'"{self.options.model}"',
            "simulator.group_size": size.attempts,
            "simulator.turns": size.turns,
            "simulator.tokens_per_turn": size.said,
            "simulator.context_tokens": size.context,
            "simulator.episode_seconds": 3600.0,
            "simulator.turn_discount": 1.0,
            "simulator.truncated_reward": 1.0,
            "imitation.demonstrations": 0,
            "trainer.algorithm": '"grpo"',
            "trainer.tasks_per_step": size.tasks,
            "trainer.minutes": 0.0,
        }
        own = [f"{name}={value}" for name, value in settings.items()]
        return config.load(self.options.recipe, own + self.precision + self.options.set)

    def has(self, what: str, size: Size) -> bool:
        """True where this is built already; else whatever was built is closed."""
        if self.built == (what, size):
            return True
        self.opened.close()
        self.opened, self.built = ExitStack(), None
        return False

    def ready(self, size: Size) -> None:
        """The parts of a run of this size, in a folder of its own."""
        if self.has("parts", size):
            return
        recipe = self.recipe(size)
        tasks = [Task(f"task_{n:02}", self.texts.request(size, n)) for n in range(size.tasks + 2)]
        own = build.Own(
            splits={"train": tasks[:-2], "dev": tasks[-2:-1], "test": tasks[-1:]},
            open=shop(self.texts.result(size, ended=True)),
            agent=agent_of(self.texts.system(size), size.turns),
        )
        folder = Path(self.opened.enter_context(tempfile.TemporaryDirectory())) / "run"
        parts = self.opened.enter_context(build.parts_of(recipe, folder, own=own))
        found = "autocast" if parts.trainer.policy.trunk.autocast else "float32"
        self.precision = [f'trainer.precision="{found}"']
        self.parts = replace(parts, stage=replace(parts.stage, renderer=Scripted(self.folder)))
        self.opened.callback(lambda: self.runner.run(parts.sampler.close()))
        self.plan, self.built = build.plan_of(recipe), ("parts", size)

    def step(self, size: Size) -> dict[str, Any]:
        """One step: publish, load, collect, learn, store."""
        self.ready(size)
        self.steps += 1
        began = time.perf_counter()
        step = self.runner.run(one_step(self.parts, self.plan, self.steps))
        wall = time.perf_counter() - began
        check_lengths(step.groups, size)
        found = step.metrics
        return {
            "wall": wall,
            "seconds": {"sample": found["seconds/collect"], "learn": found["seconds/learn"]},
            "tokens": {
                "rows": found["rows"],
                "row": found["row_tokens"],
                "sampled": found["trained_tokens"],
                "unique": found["unique_tokens"],
                "decoded": found["decoded_tokens"],
                "prefilled": found["prefilled_tokens"],
            },
            "metrics": dict(found),
            "precision": self.precision,
        }

    def update(self, size: Size, case: str, forest: bool) -> dict[str, Any]:
        """The trainer alone, as a forest or as rows apart, on the siblings of a case of forest.py."""
        self.ready(size)
        rows = made(case) if forest else apart(made(case))
        began = time.perf_counter()
        found = self.parts.trainer.update(rows)
        wall = time.perf_counter() - began
        tokens = {"rows": len(rows), "row": sum(len(row.tokens) for row in rows), "passed": found["unique_tokens"]}
        return {"wall": wall, "tokens": tokens}

    def sample(self, size: Size) -> dict[str, Any]:
        """The sampler alone: all episodes at once, after new weights, so that nothing is known of them."""
        if not self.has("sampler", size):
            model = load_model(self.folder)
            self.sampler = build.local_sampler(self.recipe(size), model)
            self.opened.callback(lambda: self.runner.run(self.sampler.close()))
            self.weights = dict(model.named_parameters())
            self.built = ("sampler", size)
        self.steps += 1
        self.runner.run(self.sampler.load(Weights(self.steps, "", self.weights)))
        before = dict(self.sampler.counts)
        began = time.perf_counter()
        lengths = self.runner.run(self.episodes(size))
        wall = time.perf_counter() - began
        counts = {name: count - before.get(name, 0) for name, count in self.sampler.counts.items()}
        return {"wall": wall, "tokens": {"sampled": counts["decoded"], "context": lengths[0], **counts}}

    async def episodes(self, size: Size) -> Sequence[int]:
        """Play them without agent or environment; how many tokens each had in the end."""
        renderer = Scripted(self.folder)
        system = Message("system", self.texts.system(size))
        told = renderer.continuation((0,), [Message("tool", self.texts.result(size, ended=True))])
        places = asyncio.Semaphore(self.recipe(size).simulator.concurrency)

        async def episode(task: int, attempt: int) -> int:
            context = renderer.opening([system, Message("user", self.texts.request(size, task))], ())
            async with places:
                for turn in range(size.turns):
                    context += told if turn else ()
                    seed = stream_seed(self.steps, task, attempt, turn)
                    completion = await self.sampler.sample(context, SamplingParams(1.0, size.said, (), seed))
                    context += completion.tokens
            return len(context)

        numbers = [(task, attempt) for task in range(size.tasks) for attempt in range(size.attempts)]
        return await asyncio.gather(*(episode(task, attempt) for task, attempt in numbers))


def check_lengths(groups: Sequence[Group], size: Size) -> None:
    """Raise ValueError where an episode is not exactly as long as it is to be."""
    for trajectory in (trajectory for group in groups for trajectory in group):
        last = len(trajectory.turns) - 1
        found = len(trajectory.context(last)) + trajectory.turns[last].completion.size if last >= 0 else 0
        if (found, last + 1) != (size.context, size.turns):
            raise ValueError(
                f"an episode of {size.turns} turns has {size.context} tokens, found {last + 1} turns and {found} "
                f"tokens, ending {trajectory.ending}: {trajectory.error}"
            )


def main() -> None:
    """Serve: {"do": "step" | "sample" | "update" | "versions"}."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a known model's name, or a folder")
    parser.add_argument("--recipe", default=str(Path(__file__).parents[1] / "recipes" / "retail.toml"))
    parser.add_argument("--set", action="append", default=[], help="a setting, as for practicum")
    channel = Channel()
    side = Side(parser.parse_args())
    commands = {"step": side.step, "sample": side.sample, "update": side.update, "versions": lambda: {}}
    while (asked := channel.next()) is not None:
        channel.answer(carried_out(commands, asked))
    side.opened.close()


if __name__ == "__main__":
    main()
