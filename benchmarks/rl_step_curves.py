"""How the cost of a step grows with turns, prompt and group size: measured points, fitted exponents, the picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rl_step_episodes import Size

BASE = Size(tasks=1, attempts=8, turns=3, prompt=202, shared=130)
AXES: Mapping[str, Sequence[int]] = {
    "turns": (2, 4, 8, 16, 32),
    "prompt": (200, 500, 1000, 2000, 4000),
    "attempts": (2, 4, 8, 16, 32),
}
LABELS = {"turns": "turns", "prompt": "tokens of the prompt", "attempts": "attempts per group"}
GROWTH = 2.5
"How much longer the next point of a curve may take than the last, at most."

Step = Callable[[Size], Mapping[str, Any]]


def sized(axis: str, value: int) -> Size:
    """The base size with one number changed; of a prompt all but the request is the system message."""
    if axis == "prompt":
        return replace(BASE, prompt=value, shared=value - (BASE.prompt - BASE.shared))
    return replace(BASE, **{axis: value})


def curves_of(step: Step, axes: Mapping[str, Sequence[int]], runs: int, most_s: float) -> dict[str, Any]:
    """Points along each axis, until one would take longer than `most_s`; exponents along turns."""
    found: dict[str, Any] = {}
    for axis, values in axes.items():
        points: list[dict[str, Any]] = []
        for value in values:
            if points and points[-1]["wall"] * GROWTH > most_s:
                break
            points.append(point(value, [step(sized(axis, value)) for _ in range(runs)]))
        found[axis] = points
    found["exponents"] = {part: exponent(found["turns"], part) for part in ("sample", "learn", "wall")}
    found["computed_is_linear_in_turns"] = is_linear(found["turns"])
    return found


def point(value: int, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the runs of one size."""
    return {
        "value": value,
        "wall": median(answer["wall"] for answer in answers),
        "sample": median(answer["seconds"]["sample"] for answer in answers),
        "learn": median(answer["seconds"]["learn"] for answer in answers),
        "tokens": answers[-1]["tokens"],
        "n": len(answers),
    }


def exponent(points: Sequence[Mapping[str, Any]], part: str) -> float | None:
    """Least-squares slope of log seconds on log value; None for fewer than three points.

    Example: seconds 1, 2, 4 at 2, 4, 8 turns -> 1.0
    """
    if len(points) < 3:
        return None
    x = [math.log(p["value"]) for p in points]
    y = [math.log(p[part]) for p in points]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = [(a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)]
    return sum(products) / sum((a - mean_x) ** 2 for a in x)


def is_linear(points: Sequence[Mapping[str, Any]]) -> bool | None:
    """True where each turn more costs the sampler the same number of computed tokens; None where it does not count."""
    if len(points) < 3 or "prefilled" not in points[0]["tokens"]:
        return None
    computed = [(p["value"], p["tokens"]["prefilled"] + p["tokens"]["decoded"]) for p in points]
    return len({(tokens - before) / (turns - fewer) for (fewer, before), (turns, tokens) in pairwise(computed)}) == 1


def draw(curves: Mapping[str, Any], path: Path) -> None:
    """One picture: a panel for each axis, seconds on both logarithmic scales."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = [
        ("ours", "wall", "practicum, whole step", "C0", "-"),
        ("ours", "sample", "practicum, sampling", "C0", "--"),
        ("ours", "learn", "practicum, training", "C0", ":"),
        ("trl", "wall", "TRL, whole step", "C3", "-"),
        ("trl", "sample", "TRL, sampling", "C3", "--"),
        ("trl", "learn", "TRL, training", "C3", ":"),
    ]
    figure, panels = pyplot.subplots(1, len(AXES), figsize=(13, 4), sharey=True, layout="constrained")
    for panel, axis in zip(panels, AXES, strict=True):
        for side, part, label, color, style in lines:
            points = curves.get(side, {}).get(axis, [])
            if points:
                seconds = [p[part] for p in points]
                panel.plot([p["value"] for p in points], seconds, style, color=color, marker="o", ms=3, label=label)
        panel.set(xscale="log", yscale="log", xlabel=LABELS[axis])
        panel.set_xticks(AXES[axis], [str(value) for value in AXES[axis]])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("seconds")
    panels[0].legend(fontsize=8)
    found = curves.get("ours", {}).get("exponents", {})
    if found.get("sample") is not None and found.get("learn") is not None:
        panels[0].set_title(f"time grows as turns^{found['sample']:.2f} (sampling), ^{found['learn']:.2f} (training)")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
