"""Where the time of a recipe's step goes, and how near it comes to what the machine can do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum import build
from practicum.agents.agent import Agent
from practicum.config import RunConfig, warms_up
from practicum.environments.environment import Environment
from practicum.environments.own import Reward
from practicum.errors import UserError
from practicum.ledger import PHASES, depths
from practicum.models.cost import Cost
from practicum.types import Step
from practicum.verbs.interruption import interruptible

if TYPE_CHECKING:
    from practicum.models.machine import Peaks
    from practicum.training import Parts

GRADIENT, ADAM = 12, 28
"Bytes per parameter that an update moves at least: read forward and backward, a gradient written; all of AdamW's."


@dataclass(frozen=True)
class Profile:
    """What the mean of some steps spent, and what of the machine that used.

    Example: profile("recipes/retail.toml").shares["decode"] -> 0.61
    """

    about: Mapping[str, Any]
    "What was profiled: model, environment, steps, tasks and attempts of a step, threads, device."
    seconds: Mapping[str, float]
    "By phase, of a step; 'simulator' is a part of 'other'."
    tokens: Mapping[str, float]
    "Of a step, by what was done with them."
    per_second: Mapping[str, float]
    "Tokens: decoded while decoding, prefilled while prefilling, trained while scoring and updating, all episodes'."
    peaks: Mapping[str, float]
    "Of the machine: 'float32' and 'bfloat16' operations, 'memory' bytes a second."
    reached: Mapping[str, Mapping[str, float]]
    "Operations and bytes a second in decode, prefill and update; 'of_float32' and so on as fractions of the peaks."
    peak_gb: float
    notes: Sequence[str] = field(default=())

    @property
    def shares(self) -> dict[str, float]:
        """Fraction of a step by phase."""
        return {name: value / sum(self.seconds[phase] for phase in PHASES) for name, value in self.seconds.items()}

    def summary(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {**asdict(self), "shares": self.shares}


def profile(
    recipe: build.Recipe,
    *,
    tasks: build.Tasks | None = None,
    environment: Callable[[], Environment] | None = None,
    agent: Agent | None = None,
    reward: Reward | None = None,
    steps: int = 2,
    warm_up: bool = False,
) -> Profile:
    """Take some real steps of a recipe and measure the machine; nothing is kept. About as long as `steps` + 1 steps.

    A small step before them is not counted: it allocates and loads what later ones find. With `warm_up` the model first
    imitates, as in a run. For tasks, environment, agent and reward see `train`. Raises UserError as a training run
    would, and for a recipe without steps of reinforcement.

    Example: profile("recipes/tiny.toml", steps=1).shares["other"] -> 0.08
    """
    if steps < 1:
        raise UserError(f"a profile needs at least one step, found {steps}")
    config, own = build.settled(recipe, tasks=tasks, environment=environment, agent=agent, reward=reward)
    if config.trainer.learns_from != "reward":
        raise UserError(
            "trainer.learns_from is 'demonstrations': a profile is of steps that sample and learn from rewards; add "
            "--set trainer.learns_from=reward"
        )
    with tempfile.TemporaryDirectory() as folder, build.parts_of(config, Path(folder) / "run", own=own) as parts:
        taken = interruptible(some_steps(parts, config, steps, warm_up and warms_up(config)))
        cost, device = parts.ledger.cost, str(parts.trainer.policy.trunk.device)
        learned = sum(parameter.numel() for parameter in parts.trainer.policy.trunk.trained.values())
        from practicum.models.machine import measured_peaks
    assert cost is not None
    return figures(config, taken, cost, learned, measured_peaks(device), notes_on(config, taken, warm_up))


async def some_steps(parts: Parts, config: RunConfig, steps: int, warm_up: bool) -> list[Step]:
    """The steps that count, behind a small one."""
    from practicum.training import imitate, one_step

    plan = build.plan_of(config)
    try:
        if warm_up:
            await imitate(parts, plan)
        parts.trainer.refer()
        with parts.console.phase("profile", steps) as phase:
            await one_step(parts, replace(plan, tasks_per_step=1, replace_silent_groups=0), 0)
            taken = []
            for step in range(1, steps + 1):
                taken.append(await one_step(parts, plan, step))
                phase.advance()
        return taken
    finally:
        await parts.sampler.close()


def figures(
    config: RunConfig, taken: Sequence[Step], cost: Cost, learned: int, peaks: Peaks, notes: Sequence[str]
) -> Profile:
    """The profile of steps: means of what they logged, rates, fractions of the peaks."""
    names = {name for step in taken for name in step.metrics}
    mean = {name: sum(step.metrics.get(name, 0.0) for step in taken) / len(taken) for name in names}
    seconds = {name: mean[f"seconds/{name}"] for name in (*PHASES, "simulator")}
    kinds = ("row", "unique", "decoded", "prefilled", "reused", "recomputed")
    tokens = {kind: mean[f"{kind}_tokens"] for kind in kinds if f"{kind}_tokens" in mean}
    learning_s = seconds["score"] + seconds["update"]
    (added, _), (sampled, sees) = depths([group for step in taken for group in step.groups])
    # `unique_tokens` is a mean over the updates of a step.
    updates = config.trainer.epochs * min(config.trainer.minibatches, mean.get("rows", 0.0))
    per_second = {
        "decoded": rate(tokens["decoded"], seconds["decode"]),
        "prefilled": rate(tokens.get("prefilled", 0.0), seconds["prefill"]),
        "trained": rate(updates * tokens.get("unique", 0.0), learning_s),
        "episodes": rate((added + sampled) / len(taken), mean["seconds"]),
    }
    size = 4 if config.sampler.dtype == "float32" else 2
    rows = min(config.sampler.slots, config.simulator.concurrency, mean["groups"] * config.simulator.group_size)
    sampling_s, passes = seconds["decode"] + seconds["prefill"], mean.get("passes", 0.0)
    whole = cost.layers + cost.head
    read = passes * rate(seconds["decode"], sampling_s) if passes else tokens["decoded"] / rows
    moved = {
        "decode": size * (read * whole + tokens["decoded"] * sees * cost.kept),
        "prefill": size * passes * rate(seconds["prefill"], sampling_s) * whole,
        "update": updates * (GRADIENT * whole + ADAM * learned),
    }
    worked_s = {"decode": seconds["decode"], "prefill": seconds["prefill"], "update": learning_s}
    flops = {"decode": mean["flops/decode"], "prefill": mean["flops/prefill"], "update": mean["flops/learn"]}
    return Profile(
        about={
            "model": config.model.name,
            "environment": config.environment.options.get("name", config.environment.kind),
            "steps": len(taken),
            "tasks": mean["groups"],
            "attempts": config.simulator.group_size,
            "threads": peaks.threads,
            "device": peaks.device,
        },
        seconds={"step": mean["seconds"], **seconds},
        tokens=tokens,
        per_second=per_second,
        peaks={"float32": peaks.float32, "bfloat16": peaks.bfloat16, "memory": peaks.memory},
        reached={name: reach(flops[name], moved[name], worked_s[name], peaks) for name in worked_s},
        peak_gb=max(step.metrics["memory/peak_gb"] for step in taken),
        notes=notes,
    )


def reach(flops: float, moved: float, seconds: float, peaks: Peaks) -> dict[str, float]:
    """Operations and bytes a second, and as fractions of the machine's peaks; without bytes where they are unknown."""
    done = rate(flops, seconds)
    found = {"flops": done, "of_float32": done / peaks.float32, "of_bfloat16": done / peaks.bfloat16}
    if not moved:
        return found
    return found | {"bytes": rate(moved, seconds), "of_memory": rate(moved, seconds) / peaks.memory}


def rate(amount: float, seconds: float) -> float:
    """So much a second; 0 where no time was spent."""
    return amount / seconds if seconds > 0 else 0.0


def notes_on(config: RunConfig, taken: Sequence[Step], warm_up: bool) -> tuple[str, ...]:
    """What makes these steps unlike those of a run."""
    notes = []
    if warms_up(config) and not warm_up:
        notes.append(
            "the model was taken as it comes, without the recipe's warm-up, and its episodes may be of another length: "
            "--warm-up makes it first, --set model.name=RUN/checkpoints/step-000000/model takes that of a run"
        )
    silent = sum(not step.metrics.get("rows") for step in taken)
    if silent:
        notes.append(
            f"in {silent} of {len(taken)} steps no group had attempts of different reward: nothing was trained there, "
            "and score and update took no time"
        )
    return tuple(notes)


def as_text(found: Profile) -> str:
    """The profile as Markdown that also reads well in a terminal."""
    about = found.about
    steps = "1 step" if about["steps"] == 1 else f"mean of {about['steps']} steps"
    rates = found.per_second
    lines = [
        f"{about['model']} on {about['environment']}: {steps} of {about['tasks']:g} tasks with {about['attempts']} "
        f"attempts each, {about['device']}, {about['threads']} threads",
        "",
        "| phase | seconds | share |",
        "|---|---|---|",
        *(f"| {name} | {found.seconds[name]:.2f} | {found.shares[name]:.1%} |" for name in PHASES),
        f"| a step | {found.seconds['step']:.2f} | |",
        "",
        f"- of other, the simulator's own: {found.seconds['simulator']:.2f} s, {found.shares['simulator']:.1%} of a "
        "step",
        "- tokens of a step: " + ", ".join(f"{kind} {count:,.0f}" for kind, count in found.tokens.items()),
        f"- tokens a second: {rates['decoded']:,.0f} decoded while decoding, {rates['prefilled']:,.0f} prefilled while "
        f"prefilling, {rates['trained']:,.0f} unique while learning; {rates['episodes']:,.0f} of episodes over all",
        f"- peak memory {found.peak_gb:.1f} GB",
        "",
        f"| of the machine's peak | float32, {found.peaks['float32'] / 1e9:,.0f} GFLOP/s | "
        f"bfloat16, {found.peaks['bfloat16'] / 1e9:,.0f} GFLOP/s | memory, {found.peaks['memory'] / 1e9:.1f} GB/s |",
        "|---|---|---|---|",
    ]
    for name, reached in found.reached.items():
        memory = f"at least {reached['of_memory']:.0%}" if "of_memory" in reached else "unknown"
        lines.append(f"| {name} | {reached['of_float32']:.0%} | {reached['of_bfloat16']:.0%} | {memory} |")
    return "\n".join([*lines, *(["", *(f"- note: {note}" for note in found.notes)] if found.notes else [])])
