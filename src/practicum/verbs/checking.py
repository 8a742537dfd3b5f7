"""Before a run, without training: are the tasks sound, do they fit, what can they show, what will it take?"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from practicum import build
from practicum.agents.agent import Agent
from practicum.config import RunConfig, as_table
from practicum.environments.environment import Environment, Solvable, close
from practicum.environments.own import Reward
from practicum.environments.task_sets import overlaps, some
from practicum.errors import MissingExtra, UserError, counted
from practicum.models.catalogue import KNOWN
from practicum.models.known import find
from practicum.models.memory import free_memory
from practicum.models.shape import shape_of
from practicum.simulator.collect import collect
from practicum.simulator.demonstrate import POLICIES, demonstrate
from practicum.simulator.episode import Stage
from practicum.statistics.planning import Design, detectable, signal_chance, tasks_needed
from practicum.types import Task, Trajectory
from practicum.verbs.findings import Findings
from practicum.verbs.forecasting import (
    Lengths,
    expected_memory,
    expected_seconds,
    lengths_of,
    measured_pace,
    pace_unknown,
    whole_length,
)
from practicum.verbs.interruption import interruptible

RATES = (0.25, 0.5, 0.75)
"Success rates that detectable differences are told for: nobody knows the real one yet."
SIGNAL_RATES = (0.02, 0.05, 0.1, 0.25, 0.5)

Played = Mapping[str, Mapping[str, Sequence[Trajectory]]]
"Split -> policy -> its episodes, one per task."


def check(
    recipe: build.Recipe,
    *,
    tasks: build.Tasks | None = None,
    environment: Callable[[], Environment] | None = None,
    agent: Agent | None = None,
    reward: Reward | None = None,
    timing: bool = True,
) -> Findings:
    """Look at a recipe before a run: tasks, limits, detectable differences, settings, memory and time. Trains nothing.

    Every task is played by the expert where there is one, by nobody and at random; nothing is downloaded. With
    `timing` the recipe's model is loaded, if it is on this machine, and timed for some seconds. Raises UserError where
    the recipe has no tasks that can be played; whatever else is wrong is in `problems`. For tasks, environment, agent
    and reward see `train`; scripts speak through the default loop, whatever agent is given.

    Example: check("recipes/retail.toml", timing=False).problems -> []
    """
    config, own = build.settled(recipe, tasks=tasks, environment=environment, agent=agent, reward=reward)
    found = Findings()
    splits = build.tasks_of(config, own)
    found.problems += overlaps(splits)
    with found.complaint():
        build.check_rewards(config, splits["train"][0], own)
    with found.complaint():
        build.check_expert(config, own)
    with found.complaint(), build.torch_needed():
        build.algorithm_of(config)
    stage, unit = stage_with_tokens(config, own, found)
    stage = replace(stage, reward_weights={"success": 1.0})  # a wrong weight was complained of once
    played = interruptible(play(stage, splits, policies_for(config, own, found), config.simulator.concurrency))
    judge(played, found)
    lengths = fitting(config, played, unit, found)
    planned(config, found)
    needs(config, played, lengths if unit == "tokens" else None, timing, found)
    found.figures["settings"] = settings_of(config)
    return found


def stage_with_tokens(config: RunConfig, own: build.Own, found: Findings) -> tuple[Stage, str]:
    """A stage for scripted policies that counts in the model's tokens, or in bytes where that tokenizer is not here."""
    try:
        find(config.model.name, progress=False, download=False)
    except UserError as absent:
        is_hub_id = re.fullmatch(r"\w[\w.-]*/[\w.-]+", config.model.name) and not Path(config.model.name).is_dir()
        if config.model.name not in KNOWN and not is_hub_id:
            found.problems.append(str(absent))
        else:
            found.notes.append(
                f"{config.model.name} is not on this machine and would be looked for when the run begins: lengths "
                "are in bytes, of which there are never fewer than tokens"
            )
        return build.scripted_stage(config, own), "bytes"
    try:
        renderer = build.renderer_of(config, scripted=False)
    except UserError as refused:
        (found.notes if isinstance(refused, MissingExtra) else found.problems).append(str(refused))
        return build.scripted_stage(config, own), "bytes"
    return build.scripted_stage(config, own, renderer), "tokens"


def policies_for(config: RunConfig, own: build.Own, found: Findings) -> list[str]:
    """The scripts that can play in this world."""
    environment = build.world(config, own).open()
    try:
        if isinstance(environment, Solvable):
            return list(POLICIES)
    finally:
        close(environment)
    found.notes.append("the environment has no solve(secret), so nobody knows whether its tasks can be done")
    return [name for name in POLICIES if name != "expert"]


async def play(
    stage: Stage, splits: Mapping[str, Sequence[Task]], policies: Sequence[str], concurrency: int
) -> dict[str, dict[str, list[Trajectory]]]:
    """One episode of each policy at each task, under a progress bar; in order of task id."""
    from practicum.tracking.console import Console

    played: dict[str, dict[str, list[Trajectory]]] = {}
    with Console() as console, console.phase("episodes", len(policies) * sum(map(len, splits.values()))) as bar:
        for split, tasks in splits.items():
            played[split] = {}
            for name in policies:
                episodes = played[split].setdefault(name, [])
                async for group in collect(
                    tasks, 1, partial(demonstrate, stage, POLICIES[name]), concurrency=concurrency
                ):
                    episodes += group
                    bar.advance()
                episodes.sort(key=lambda episode: episode.task_id)
    return played


def judge(played: Played, found: Findings) -> None:
    """The expert must do every task; nobody should, and chance hardly."""
    found.figures["tasks"] = {}
    for split, by_policy in played.items():
        figures: dict[str, Any] = {"n": len(next(iter(by_policy.values()))), "expert": None}
        for policy, episodes in by_policy.items():
            broken = [episode for episode in episodes if episode.ending.discarded]
            if broken:
                words = broken[0].error.strip().splitlines()[-1:] or ["no reason was given"]
                found.problems.append(
                    f"{len(broken)} of {counted(len(episodes), 'task')} of {split} cannot be played: "
                    f"{some([episode.task_id for episode in broken])}; the first: {words[0]}"
                )
            scored = [episode.success for episode in episodes if not episode.ending.discarded]
            figures[policy] = sum(scored) / len(scored) if scored else None
            done = [episode.task_id for episode in episodes if episode.success == 1.0]
            missed = [e for e in episodes if e.success < 1.0 and not e.ending.discarded]
            if policy == "expert" and missed:
                found.problems.append(
                    f"the expert fails {len(missed)} of {counted(len(episodes), 'task')} of {split}: "
                    f"{some([f'{e.task_id} ({e.ending})' for e in missed])}; correct the tasks or their solve()"
                )
            if policy == "noop" and done:
                found.notes.append(f"done by doing nothing: {counted(len(done), 'task')} of {split}: {some(done)}")
        found.figures["tasks"][split] = figures


def fitting(config: RunConfig, played: Played, unit: str, found: Findings) -> Lengths:
    """Does every opening leave room for a reply, and what the expert does fit the limits of an episode?"""
    simulator = config.simulator
    best = "expert" if "expert" in next(iter(played.values())) else "noop"
    episodes = [e for by_policy in played.values() for e in by_policy[best] if e.turns]
    if not episodes:
        raise UserError("\n".join(["no task can be played:", *found.problems]))
    lengths = lengths_of(episodes)
    found.figures["lengths"] = {"unit": unit, "of": best, **asdict(lengths), "context_tokens": simulator.context_tokens}
    full = [e.task_id for e in episodes if len(e.turns[0].added) >= simulator.context_tokens]
    if full:
        words = (
            f"the opening prompt of {counted(len(full), 'task')} leaves no room for a reply in "
            f"simulator.context_tokens = {simulator.context_tokens}: it has up to "
            f"{lengths.longest_opening} {unit}; {some(full)}"
        )
        (found.problems if unit == "tokens" else found.notes).append(words)
    limits = {
        "context_tokens": (simulator.context_tokens, whole_length),
        "turns": (simulator.turns, lambda episode: len(episode.turns)),
        "tokens_per_turn": (
            simulator.tokens_per_turn,
            lambda episode: max(len(turn.completion.tokens) for turn in episode.turns),
        ),
    }
    for name, (limit, used) in limits.items():
        over = [episode for episode in episodes if used(episode) > limit]
        if over and best == "expert" and (unit == "tokens" or name == "turns"):
            found.notes.append(
                f"the expert needs more than simulator.{name} = {limit} in {counted(len(over), 'task')} (up to "
                f"{max(map(used, over))}): {some([e.task_id for e in over])}; a model must do these in less"
            )
    return lengths


def planned(config: RunConfig, found: Findings) -> None:
    """What the held-out tasks can show, and how likely a group of attempts is to teach anything."""
    design = Design(config.tasks.test, config.evaluation.test_attempts)
    found.figures["detectable"] = {
        "n_tasks": design.n_tasks,
        "attempts": design.attempts,
        "same": design.same,
        "across": design.across,
        "by_rate": {
            str(rate): {
                "difference": detectable(replace(design, rate=rate)),
                "tasks_for_5_points": tasks_needed(replace(design, rate=rate), 0.05),
                "tasks_for_10_points": tasks_needed(replace(design, rate=rate), 0.10),
            }
            for rate in RATES
        },
    }
    size = config.simulator.group_size
    found.figures["signal"] = {
        "group_size": size,
        "chance_by_rate": {str(rate): signal_chance(rate, size) for rate in SIGNAL_RATES},
    }


def needs(config: RunConfig, played: Played, lengths: Lengths | None, timing: bool, found: Findings) -> None:
    """Memory and time, or why they are unknown. `lengths` in tokens; None where the model is not on this machine."""
    figures = found.figures
    if config.sampler.kind == "api":
        figures["memory"] = figures["time"] = {"unknown": f"sampler.kind is {config.sampler.kind!r}: it runs elsewhere"}
        return
    if lengths is None:
        figures["memory"] = figures["time"] = {"unknown": "the model and its tokenizer are not on this machine"}
        return
    try:
        shape = shape_of(find(config.model.name, progress=False, download=False))
    except UserError as error:
        figures["memory"] = figures["time"] = {"unknown": str(error)}
        return
    if config.lora.rank > shape.narrowest:
        found.problems.append(
            f"lora.rank must lie between 1 and {shape.narrowest}, the width of the model's layers; "
            f"found {config.lora.rank}"
        )
    memory = expected_memory(config, shape, lengths)
    figures["memory"] = {"bytes": memory, "total": sum(memory.values()), "free": free_memory()}
    if shape.context < config.simulator.context_tokens:
        found.notes.append(
            f"the model was made for {shape.context} positions, fewer than simulator.context_tokens = "
            f"{config.simulator.context_tokens}: the smaller number holds"
        )
    if figures["memory"]["free"] is not None and figures["memory"]["total"] > figures["memory"]["free"]:
        found.notes.append("the run is expected to need more memory than is free on this machine now")
    unknown = pace_unknown(memory) if timing else "it was not asked for"
    episodes = [e for by_policy in played.values() for e in by_policy.get("expert", ()) if e.turns]
    if not unknown and not episodes:
        unknown = "there is no expert whose episodes say how long one is"
    if unknown:
        figures["time"] = {"unknown": unknown}
        return
    with found.complaint():
        pace = measured_pace(config, episodes)
        if pace is None:
            figures["time"] = {"unknown": "a training pass took too long: the machine is too slow, or too busy now"}
            return
        sizes = {split: len(by_policy["noop"]) for split, by_policy in played.items()}
        seconds = expected_seconds(config, sizes, lengths, pace)
        figures["time"] = {"seconds": seconds, "total": sum(seconds.values()), **asdict(pace)}
    figures.setdefault("time", {"unknown": "the model could not be timed"})


def settings_of(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Every setting with its value and default; an option of the world has no default here (null)."""
    ours, defaults = as_table(config), as_table(RunConfig())
    found = {}
    for section, value in ours.items():
        rows = value if isinstance(value, Mapping) else {"": value}
        for key, setting in rows.items():
            default = defaults[section].get(key) if isinstance(value, Mapping) else defaults[section]
            name = f"{section}.{key}" if key else section
            found[name] = {"value": setting, "default": default, "differs": setting != default}
    return found
