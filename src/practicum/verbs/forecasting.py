"""What a run will need: memory by a formula, time from a short measurement of this machine."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from practicum import build
from practicum.config import RunConfig, warms_up
from practicum.learning.budget import STATES, TOGETHER
from practicum.models.memory import free_memory
from practicum.models.shape import ModelShape
from practicum.types import SamplingParams, Trajectory
from practicum.verbs.interruption import interruptible

FLOAT32, MOMENTS = 4, 8
"Bytes of a number; of Adam's two moments of it."
DECODED = 24
"Tokens that each context samples while the sampler is timed."
TIMED_CONTEXTS = 32
PATIENCE_S = 8.0
"Where a training pass over one episode takes longer, the measurement is given up."
MARGIN = 1.25
"Measured peaks of an update were 1.02 to 1.21 times what the formula counts."


@dataclass(frozen=True)
class Lengths:
    """How long episodes are, in tokens or, where no tokenizer is at hand, in bytes (which are never fewer)."""

    opening: float
    "Before the first reply, mean."
    longest_opening: int
    sampled: float
    "Sampled in an episode, mean."
    whole: float
    "At the end of an episode, mean."
    longest: int
    turns: int
    "Model calls of the longest episode."
    longest_reply: int


@dataclass(frozen=True)
class Pace:
    """What this machine does in a second."""

    trained: float
    "Unique tokens forward and backward."
    sampled: float
    "Tokens drawn, all contexts together."
    contexts: int
    "Drawn for at once."


def lengths_of(episodes: Sequence[Trajectory]) -> Lengths:
    """The lengths of episodes that have turns."""
    openings = [len(episode.turns[0].added) for episode in episodes]
    sampled = [sum(len(turn.completion.tokens) for turn in episode.turns) for episode in episodes]
    whole = [whole_length(episode) for episode in episodes]
    return Lengths(
        opening=sum(openings) / len(openings),
        longest_opening=max(openings),
        sampled=sum(sampled) / len(sampled),
        whole=sum(whole) / len(whole),
        longest=max(whole),
        turns=max(len(episode.turns) for episode in episodes),
        longest_reply=max(len(turn.completion.tokens) for episode in episodes for turn in episode.turns),
    )


def whole_length(episode: Trajectory) -> int:
    """Tokens of an episode's last context with what was sampled there."""
    return len(episode.context(len(episode.turns) - 1)) + len(episode.turns[-1].completion.tokens)


def group_tokens(lengths: Lengths, group_size: int) -> float:
    """Unique tokens of a group whose attempts share the opening only."""
    return lengths.opening + group_size * (lengths.whole - lengths.opening)


def expected_memory(config: RunConfig, shape: ModelShape, lengths: Lengths) -> dict[str, int]:
    """Bytes by purpose, at the widest moment of an update; the formula stands in docs/evaluation.md.

    Numbers of 4 bytes throughout: bfloat16, where it is used, makes the sampler's half as large.
    """
    trainer, simulator = config.trainer, config.simulator
    full, n = not config.lora.rank, shape.parameters
    learns = n if full else config.lora.rank * shape.adapter_per_rank
    copies = 2 if trainer.algorithm == "ppo" else 1
    context = min(simulator.context_tokens, shape.context)
    tree = group_tokens(lengths, simulator.group_size)
    batch = float(trainer.tokens_per_microbatch or max(TOGETHER, tree))
    per_token = 8 * shape.hidden + 2 * shape.kv_width + 4 * shape.intermediate + shape.heads * min(tree, batch)
    followed = min(STATES, batch * (simulator.group_size * lengths.sampled / tree))
    return {
        "weights": FLOAT32 * (n + (copies - 1 if full else copies) * learns),
        "gradients": FLOAT32 * copies * learns,
        "Adam's moments": MOMENTS * copies * learns,
        "reference": FLOAT32 * learns if trainer.kl else 0,
        "sampler's copy": FLOAT32 * n,
        "kept keys and values": FLOAT32 * 2 * config.sampler.slots * context * shape.layers * shape.kv_width,
        "activations": round(MARGIN * FLOAT32 * (batch * per_token * shape.layers + 3 * followed * shape.vocabulary)),
    }


def pace_unknown(memory: Mapping[str, int]) -> str:
    """Why the pace cannot be measured here; empty where it can."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    free = free_memory()
    if free is not None and sum(memory.values()) > free:
        return "the run would need more memory than is free here"
    return ""


def measured_pace(config: RunConfig, episodes: Sequence[Trajectory]) -> Pace | None:
    """Load the recipe's model, pass an episode forward and backward, and sample from the openings of several.

    No step is taken. A small model needs seconds for it; None where this machine is too slow, or too busy, for that.
    Raises UserError as a training run would.
    """
    from practicum.learning.batches import rows_of
    from practicum.learning.forest import tree_of
    from practicum.learning.policy import Policy
    from practicum.models.load import load_model

    model = load_model(config.model.name)
    build.adapt(config, model)
    policy = Policy(model, autocast=False)
    mean = lengths_of(episodes).whole
    usual = min(episodes, key=lambda episode: abs(whole_length(episode) - mean))
    trees = [tree_of([row]) for row in rows_of(usual)]
    ways = {"auto": (False, True), "float32": (False,), "autocast": (True,)}[config.trainer.precision]
    trained = 0.0
    for autocast in (ways[0], *ways):  # the first pass warms up
        policy.trunk.autocast = autocast
        began = time.perf_counter()
        policy.score(trees).logprobs_P.sum().backward()
        model.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
        if seconds > PATIENCE_S:
            return None
        trained = max(trained, sum(len(tree.tokens_U) for tree in trees) / seconds)
    most = min(TIMED_CONTEXTS, config.sampler.slots, config.simulator.concurrency)
    prompts = [episode.turns[0].added for episode in episodes[:most]]
    return Pace(trained, interruptible(sampling_pace(config, model, prompts)), len(prompts))


async def sampling_pace(config: RunConfig, model: Any, prompts: Sequence[tuple[int, ...]]) -> float:
    """Tokens per second drawn for all prompts at once, their own keys and values kept."""
    import asyncio

    sampler = build.sampler_of(config, model)
    params = SamplingParams(temperature=config.simulator.temperature, max_tokens=1)

    async def drawn(tokens: int) -> int:
        each = replace(params, max_tokens=tokens)
        found = await asyncio.gather(*(sampler.sample(prompt, each) for prompt in prompts))
        return sum(len(completion.tokens) for completion in found)

    try:
        await drawn(1)
        began = time.perf_counter()
        return await drawn(DECODED) / (time.perf_counter() - began)
    finally:
        await sampler.close()


def expected_seconds(config: RunConfig, sizes: Mapping[str, int], lengths: Lengths, pace: Pace) -> dict[str, float]:
    """Seconds by phase if all episodes are as long as these; the formula stands in docs/evaluation.md."""
    simulator, trainer, evaluation = config.simulator, config.trainer, config.evaluation

    def played(tasks: int, attempts: int) -> float:
        """Sampling, and reading what was given at a forward pass, a third of a trained token."""
        given = lengths.opening + attempts * (lengths.whole - lengths.opening - lengths.sampled)
        return tasks * (attempts * lengths.sampled / pace.sampled + given / (3 * pace.trained))

    learned = trainer.tasks_per_step * group_tokens(lengths, simulator.group_size) * trainer.epochs / pace.trained
    learned *= 2 if trainer.algorithm == "ppo" else 1
    learned *= 4 / 3 if trainer.kl else 1
    epoch = config.imitation.demonstrations * lengths.whole / pace.trained
    steps, rl = "reinforcement", trainer.steps * (played(trainer.tasks_per_step, simulator.group_size) + learned)
    if trainer.learns_from == "demonstrations":
        steps, rl = "further imitation", trainer.budget / (3 * pace.trained) or trainer.steps * epoch
    measured = len({step for step in evaluation.dev_steps if step < trainer.steps} | {trainer.steps})
    tests = (trainer.steps > 0) + warms_up(config) + evaluation.base
    return {
        "warm-up, at most": config.imitation.epochs * epoch * 7 / 6,  # half as many on dev, forward only
        steps: min(rl, 60 * trainer.minutes) if trainer.minutes else rl,
        "dev": measured * played(sizes["dev"], evaluation.dev_attempts),
        "test": tests * played(sizes["test"], evaluation.test_attempts),
    }
