"""What an experiment came to so far: arms over their seeds, and less the baseline, each with interval and n."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from practicum.runs.provenance import provenance
from practicum.runs.run import write_whole
from practicum.statistics.comparison import holm, paired_difference
from practicum.statistics.intervals import success_interval
from practicum.statistics.seeds import seed_interval, seed_p
from practicum.verbs.arms import Experiment, Trial
from practicum.verbs.comparing import points
from practicum.verbs.reporting import difference_summary
from practicum.verbs.trials import Result

Successes = dict[str, list[float]]


def tabled(experiment: Experiment, results: Mapping[Trial, Result]) -> dict[str, Any]:
    """All figures as plain values; docs/experiments.md names every field. Arms without a result are left out."""
    of_arm = {
        name: {trial.seed: result for trial, result in results.items() if trial.arm == name} for name in experiment.arms
    }
    of_arm = {name: by_seed for name, by_seed in of_arm.items() if by_seed}
    base = of_arm.get(experiment.baseline, {})
    less = {
        name: difference(by_seed, base)
        for name, by_seed in of_arm.items()
        if name != experiment.baseline and set(by_seed) & set(base)
    }
    for kind in ("over_seeds", "over_tasks"):
        rows = [row[kind] for row in less.values() if row[kind] is not None]
        for row, p in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
            row["p_holm"] = p
    return {
        "file": str(experiment.file),
        "recipe": experiment.paper.recipe,
        "baseline": experiment.baseline,
        "finished": len(results),
        "trials": len(experiment.configs),
        "arms": {name: {"note": experiment.arms[name].note, **over_seeds(by_seed)} for name, by_seed in of_arm.items()},
        "differences": less,
        "provenance": provenance(),
    }


def over_seeds(by_seed: Mapping[int, Result]) -> dict[str, Any]:
    """One arm: the mean over its seeds with Student's t interval (null for one seed), each seed, the pooled tasks."""
    values = {seed: by_seed[seed]["test"]["success"] for seed in sorted(by_seed)}
    interval = seed_interval(list(values.values())) if len(values) > 1 else None
    pooled = success_interval(together(list(by_seed.values())))
    return {
        "success": math.fsum(values.values()) / len(values),
        "ci_low": interval.low if interval else None,
        "ci_high": interval.high if interval else None,
        "n_seeds": len(values),
        "per_seed": {str(seed): value for seed, value in values.items()},
        "over_tasks": {
            "ci_low": pooled.low,
            "ci_high": pooled.high,
            "n_tasks": pooled.n_tasks,
            "n_attempts": pooled.n_attempts,
        },
        "hours": round(math.fsum(result["hours"] for result in by_seed.values()), 3),
        "compute": round(math.fsum(result["compute_total"] for result in by_seed.values()) / len(values)),
    }


def difference(a: Mapping[int, Result], b: Mapping[int, Result]) -> dict[str, Any]:
    """An arm less the baseline at the seeds that both have: paired by seed, and paired by task with all seeds pooled.

    Only tasks that both have a scored attempt at count.
    """
    seeds = sorted(set(a) & set(b))
    pairs = {seed: shared(a[seed]["successes"], b[seed]["successes"]) for seed in seeds}
    by_seed = {seed: mean(first) - mean(second) for seed, (first, second) in pairs.items()}
    values = list(by_seed.values())
    interval = seed_interval(values, bounds=(-1.0, 1.0)) if len(seeds) > 1 else None
    pooled = paired_difference(*shared(*(together([side[seed] for seed in seeds]) for side in (a, b))))
    return {
        "per_seed": {str(seed): value for seed, value in by_seed.items()},
        "over_seeds": {
            "estimate": interval.estimate,
            "ci_low": interval.low,
            "ci_high": interval.high,
            "p_value": seed_p(values),
            "n_seeds": interval.n_seeds,
        }
        if interval
        else None,
        "over_tasks": difference_summary(pooled) | {"n_seeds": len(seeds)},
    }


def shared(a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> tuple[Successes, Successes]:
    """Both without the tasks that the other lacks, in the same order."""
    ids = sorted(a.keys() & b.keys())
    return {i: list(a[i]) for i in ids}, {i: list(b[i]) for i in ids}


def mean(successes: Mapping[str, Sequence[float]]) -> float:
    """Mean over tasks of each task's mean."""
    return math.fsum(math.fsum(attempts) / len(attempts) for attempts in successes.values()) / len(successes)


def together(results: Sequence[Result]) -> Successes:
    """Every task with its attempts of all seeds."""
    pooled: Successes = {}
    for result in results:
        for task_id, attempts in result["successes"].items():
            pooled.setdefault(task_id, []).extend(attempts)
    return pooled


def write_table(experiment: Experiment, results: Mapping[Trial, Result]) -> dict[str, Any]:
    """table.json for programs, table.md for people, table.png for both; returns the first."""
    from practicum.tracking.picture import draw_arms

    found = tabled(experiment, results)
    place = experiment.folder / "results"
    write_whole(place / "table.json", json.dumps(found, indent=2) + "\n")
    write_whole(place / "table.md", as_text(found))
    draw_arms(
        place / "table.png",
        {name: list(arm["per_seed"].values()) for name, arm in found["arms"].items()},
        {name: (arm["ci_low"], arm["ci_high"]) for name, arm in found["arms"].items() if arm["ci_low"] is not None},
    )
    return found


def as_text(found: Mapping[str, Any]) -> str:
    """The table as Markdown that also reads well in a terminal."""
    lines = [
        f"# {found['file']}: {found['finished']} of {found['trials']} trials finished",
        "",
        "| arm | success | 95 % over seeds | by seed | 95 % over tasks | n tasks, attempts | hours | compute |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, arm in found["arms"].items():
        over = arm["over_tasks"]
        seeds = ", ".join(f"{seed}: {value:.1%}" for seed, value in arm["per_seed"].items())
        span = "none, one seed" if arm["ci_low"] is None else f"{arm['ci_low']:.1%} to {arm['ci_high']:.1%}"
        lines.append(
            f"| {titled(name, arm['note'])} | {arm['success']:.1%} | {span} | {seeds} "
            f"| {over['ci_low']:.1%} to {over['ci_high']:.1%} | {over['n_tasks']}, {over['n_attempts']} "
            f"| {arm['hours']:.2f} | {arm['compute'] / 1e6:.2f} |"
        )
    lines += [
        "",
        f"| less {found['baseline']} | over seeds | p | p, Holm | over tasks | p | p, Holm | n seeds, tasks |",
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, row in found["differences"].items():
        tasks = row["over_tasks"]
        ends = [cells(row["over_seeds"]), cells(tasks), f"{tasks['n_seeds']}, {tasks['n_tasks']}"]
        lines.append(f"| {titled(name, found['arms'][name]['note'])} | {' | '.join(ends)} |")
    lines += [
        "",
        "- over seeds: Student's t over one number per seed, how another seed would fare on these tasks; one seed "
        "gives no such interval",
        "- over tasks: all seeds pooled, whole tasks drawn again, how other tasks would fare with these seeds",
        "- p, Holm: corrected for the rows of this table; hours: of all seeds together; compute: million forward-token "
        "passes, mean of a seed, what an arm starts from included",
        "",
    ]
    return "\n".join(lines)


def cells(row: Mapping[str, Any] | None) -> str:
    """A difference with its interval and both p-values, as three cells."""
    if row is None:
        return "none, one seed | - | -"
    span = f"{points(row['estimate'])} [{points(row['ci_low'])}, {points(row['ci_high'])}]"
    return f"{span} | {row['p_value']:.2g} | {row['p_holm']:.2g}"


def titled(name: str, note: str) -> str:
    """An arm's name with its note."""
    return f"{name}: {note}" if note else name
