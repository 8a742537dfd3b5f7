"""What a training run came to: figures, text, picture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from practicum.config import RunConfig
from practicum.errors import counted
from practicum.runs.run import write_whole
from practicum.statistics.comparison import Difference, paired_difference

if TYPE_CHECKING:
    from practicum.evaluation import Outcome


def reported(config: RunConfig, outcome: Outcome) -> dict[str, Any]:
    """The figures of a training run, differences paired task by task."""
    test = outcome.test
    *before, last = test
    compared = {f"{last} - {name}": paired_difference(test[last].successes, test[name].successes) for name in before}
    return {
        "model": config.model.name,
        "environment": config.environment.options.get("name", config.environment.kind),
        "seed": config.seed,
        "learns_from": config.trainer.learns_from,
        "steps": outcome.steps,
        "best_step": outcome.best_step,
        "test": {name: evaluation.summary() for name, evaluation in test.items()},
        "differences": {name: difference_summary(difference) for name, difference in compared.items()},
        "dev": {str(step): evaluation.summary() for step, evaluation in outcome.dev.items()},
        "seconds": {name: round(value, 1) for name, value in outcome.seconds.items()},
        "compute": {name: round(value) for name, value in outcome.compute.items()},
    }


def difference_summary(difference: Difference) -> dict[str, Any]:
    """A paired difference as plain values."""
    return {
        "estimate": difference.estimate,
        "ci_low": difference.low,
        "ci_high": difference.high,
        "p_value": difference.p_value,
        "n_tasks": difference.n_tasks,
        "only_first": difference.only_a,
        "only_second": difference.only_b,
    }


NAMES = {
    "base": "as it comes",
    "warm-up": "after warm-up",
    "rl": "after RL",
    "imitation": "after further imitation",
}
STEPS = {"reward": "RL step", "demonstrations": "step of further imitation"}


def write_report(run: Any, outcome: Outcome, report: dict[str, Any]) -> None:
    """report.json for programs, report.md for people, report.png for both; a run with the first is finished."""
    from practicum.tracking.picture import draw_report

    write_whole(run.report(".md"), as_text(report))
    draw_report(
        run.report(".png"),
        {NAMES[name]: evaluation.interval for name, evaluation in outcome.test.items()},
        {step: evaluation.interval for step, evaluation in outcome.dev.items()},
        outcome.best_step,
        STEPS[report["learns_from"]],
    )
    write_whole(run.report(".json"), json.dumps(report, indent=2) + "\n")


def as_text(report: Mapping[str, Any]) -> str:
    """The report as Markdown that also reads well in a terminal."""
    step = STEPS[report["learns_from"]]
    steps = f"{report['steps']} {step.replace('step', 'steps', 1)}"
    lines = [
        f"# {report['model']} on {report['environment']}: {steps}, seed {report['seed']}",
        "",
        "| held-out tasks | success | 95 % interval | n tasks | turns | tokens | endings |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, figures in report["test"].items():
        endings = ", ".join(f"{ending} {count}" for ending, count in figures["endings"].items())
        lines.append(
            f"| {NAMES[name]} | {figures['success']:.1%} | {figures['ci_low']:.1%} to {figures['ci_high']:.1%} "
            f"| {figures['n_tasks']} | {figures['turns']:.1f} | {figures['tokens']:.0f} | {endings} |"
        )
    lines.append("")
    for name, difference in report["differences"].items():
        first, second = (NAMES[part] for part in name.split(" - "))
        lines.append(
            f"- {first} less {second}: {100 * difference['estimate']:+.1f} points "
            f"({100 * difference['ci_low']:+.1f} to {100 * difference['ci_high']:+.1f}, "
            f"p = {difference['p_value']:.2g}, paired over {counted(difference['n_tasks'], 'task')}: "
            f"{difference['only_first']} won, {difference['only_second']} lost)"
        )
    curve = ", ".join(f"{step}: {figures['success']:.1%}" for step, figures in report["dev"].items())
    seconds = ", ".join(f"{name} {value:.0f}" for name, value in report["seconds"].items())
    compute = ", ".join(f"{name} {value / 1e6:.2f}" for name, value in report["compute"].items())
    lines += [
        f"- dev success by {step}: {curve}; step {report['best_step']} was chosen on dev",
        f"- seconds: {seconds}",
        f"- compute, in million forward-token passes: {compute}",
        "",
    ]
    return "\n".join(lines)
