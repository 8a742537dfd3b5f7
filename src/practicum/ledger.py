"""What a step spent: wall time by phase, tokens by what was done with them, floating-point operations, memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from practicum.models.cost import Cost
from practicum.models.memory import peak_bytes
from practicum.sampling.sampler import Counting
from practicum.simulator.stopwatch import Stopwatch
from practicum.types import Group

PHASES = ("environment", "decode", "prefill", "score", "update", "publish", "other")
"Together they are the wall time of a step."


@dataclass(frozen=True)
class Reading:
    """What had been spent at a moment; what lies between two was spent between them."""

    time_s: float
    waited_s: float
    "During which some episode waited for the sampler."
    environment_s: float
    "During which none did, but some environment worked."
    trained: float
    "Forward-token passes of the trainer."
    counts: Mapping[str, int]
    "Of the sampler, by kind; empty where it does not count."
    seconds: Mapping[str, float]

    def since(self, before: Reading) -> Reading:
        """What was spent after `before`."""
        return Reading(
            self.time_s - before.time_s,
            self.waited_s - before.waited_s,
            self.environment_s - before.environment_s,
            self.trained - before.trained,
            {name: count - before.counts.get(name, 0) for name, count in self.counts.items()},
            {name: seconds - before.seconds.get(name, 0.0) for name, seconds in self.seconds.items()},
        )


@dataclass(frozen=True)
class Ledger:
    """Reads the meters of those who work in a step.

    Example: began = ledger.read(); …; ledger.read().since(began).time_s
    """

    sampler: object
    stopwatch: Stopwatch
    trained: Callable[[], float]
    cost: Cost | None = None
    "Of a token; None where operations are not counted."

    def read(self) -> Reading:
        """The meters now."""
        counting = self.sampler if isinstance(self.sampler, Counting) else None
        waited_s, environment_s = self.stopwatch.read()
        return Reading(
            time.perf_counter(),
            waited_s,
            environment_s,
            self.trained(),
            dict(counting.counts) if counting else {},
            dict(counting.seconds) if counting else {},
        )


def spent(readings: Sequence[Reading], learning: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a step by phase, from readings when it began, had published, collected, learned, and was stored.

    `learning` is what the trainer logged of the step. "seconds/simulator" is the part of "seconds/other" that passed
    while episodes were collected, and neither the model nor an environment worked.
    """
    published, collected, learned, _ = (after.since(before) for before, after in pairwise(readings))
    whole_s = readings[-1].time_s - readings[0].time_s
    worked = collected.seconds or {"decode": collected.waited_s}
    seconds = {
        "environment": collected.environment_s,
        "decode": worked.get("decode", 0.0) + worked.get("draw", 0.0),
        "prefill": worked.get("prefill", 0.0),
        "score": learning.get("seconds/score", 0.0),
        "update": learning.get("seconds/update", 0.0),
        "publish": published.time_s,
    }
    seconds["other"] = whole_s - sum(seconds.values())
    seconds["simulator"] = collected.time_s - sum(seconds[name] for name in ("environment", "decode", "prefill"))
    seconds |= {"collect": collected.time_s, "learn": learned.time_s}
    return {"seconds": whole_s} | {f"seconds/{name}": value for name, value in seconds.items()}


def computed(
    collected: Reading, learned: Reading, groups: Sequence[Group], learning: Mapping[str, float], cost: Cost | None
) -> dict[str, float]:
    """Tokens of a step by what the sampler did with them; operations by what they were for, where a cost is given.

    Operations are an estimate: a token is taken to see as many tokens as those of its kind do on average over the
    step's episodes, and the share of trained tokens whose logits are computed to be that of sampled ones in their rows.
    """
    (added, sees_added), (sampled, sees_sampled) = depths(groups)
    tokens = {"decoded": collected.counts.get("decoded", sampled)} | {
        name: collected.counts[name] for name in ("prefilled", "reused", "recomputed") if name in collected.counts
    }
    found = {f"{name}_tokens": float(count) for name, count in tokens.items()}
    if "passes" in collected.counts:
        found["passes"] = float(collected.counts["passes"])
    if cost is None:
        return found
    sees = (added * sees_added + sampled * sees_sampled) / max(1, added + sampled)
    continued = learning.get("trained_tokens", 0.0) / max(1.0, learning.get("row_tokens", 0.0))
    flops = {
        "prefill": cost.flops(tokens.get("prefilled", 0), sees_added, 0),
        "decode": cost.flops(tokens["decoded"], sees_sampled, tokens["decoded"]),
        "learn": cost.flops(learned.trained, sees, learned.trained * continued),
    }
    return found | {"flops": sum(flops.values())} | {f"flops/{name}": value for name, value in flops.items()}


def depths(groups: Sequence[Group]) -> tuple[tuple[int, float], tuple[int, float]]:
    """How many tokens the turns of all attempts added, and how many each sees on average; the same of sampled ones."""
    tokens, seen = {"added": 0, "sampled": 0}, {"added": 0.0, "sampled": 0.0}
    for trajectory in (trajectory for group in groups for trajectory in group):
        ends: list[int] = []
        for turn in trajectory.turns:
            end = 0 if turn.continues is None else ends[turn.continues]
            for kind, more in (("added", len(turn.added)), ("sampled", turn.completion.size)):
                tokens[kind] += more
                seen[kind] += more * (end + (more + 1) / 2)
                end += more
            ends.append(end)
    added, sampled = ((tokens[kind], seen[kind] / max(1, tokens[kind])) for kind in tokens)
    return added, sampled


def entries(
    readings: Sequence[Reading], groups: Sequence[Group], learning: Mapping[str, float], cost: Cost | None
) -> dict[str, float]:
    """All that a step logs of what it spent; see `spent` for the readings and `learning`."""
    _, collected, learned, _ = (after.since(before) for before, after in pairwise(readings))
    memory = {f"memory/{name}_gb": held / 1e9 for name, held in peak_bytes().items()}
    return spent(readings, learning) | computed(collected, learned, groups, learning, cost) | memory
