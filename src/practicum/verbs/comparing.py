"""Two or more systems on the same tasks: success, reliability, what each spent, and which differences are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from practicum.errors import UserError, counted
from practicum.evaluation import Evaluation, evaluated
from practicum.runs.database import Database
from practicum.runs.run import Run
from practicum.statistics.comparison import Difference, holm, mcnemar_p, paired_difference
from practicum.statistics.intervals import Interval
from practicum.statistics.planning import ALPHA
from practicum.statistics.repeated import pass_at_k, pass_hat_k, repeated_interval
from practicum.types import Group, Trajectory
from practicum.verbs.evaluating import Measured
from practicum.verbs.reporting import difference_summary

FINAL = ("evaluation", "test/rl", "test/imitation", "test/warm-up", "test/base")
"What a file or a run stands for where no phase is named: the first that there is."
TESTS = ("test/base", "test/warm-up", "test/rl", "test/imitation")


@dataclass(frozen=True)
class System:
    """One of those compared, on the tasks that all hold."""

    name: str
    evaluation: Evaluation
    k: int
    "Attempts that every task has at least."
    at_least_once: Interval | None
    "pass@k; None for k = 1, or where success is more than done or not done."
    every_time: Interval | None
    "pass^k, likewise."
    left_out: tuple[str, ...]
    "Its tasks that another one lacks."

    def summary(self) -> dict[str, Any]:
        """All figures as plain values."""
        figures = {name: value for name, value in self.evaluation.summary().items() if name != "seconds"}
        repeated = {"pass_at_k": self.at_least_once, "pass_hat_k": self.every_time}
        return {
            "name": self.name,
            **figures,
            "k": self.k,
            **{name: interval_summary(interval) for name, interval in repeated.items()},
            "left_out": list(self.left_out),
        }


@dataclass(frozen=True)
class Versus:
    """A later system less the first one."""

    system: str
    against: str
    difference: Difference
    adjusted_p: float
    "Holm's, over all rows of the table."
    mcnemar_p: float | None
    "McNemar's exact test; None where a task has several attempts."

    @property
    def verdict(self) -> str:
        """One sentence. Example: "B is better than A: +7.5 points [+2.5, +12.5]"."""
        found = self.difference
        span = f"{points(found.estimate)} points [{points(found.low)}, {points(found.high)}]"
        if self.adjusted_p < ALPHA:
            return f"{self.system} is {'better' if found.estimate > 0 else 'worse'} than {self.against}: {span}"
        least = (
            f"with {counted(found.n_tasks, 'task')} none could have been"
            if found.detectable is None
            else f"one of {100 * found.detectable:.1f} points or more would probably have been"
        )
        return f"no difference between {self.system} and {self.against} could be shown ({span}); {least}"

    def summary(self) -> dict[str, Any]:
        """All figures as plain values; 'first' is the system, 'second' the one it is measured against."""
        return {
            "system": self.system,
            "against": self.against,
            **difference_summary(self.difference),
            "p_holm": self.adjusted_p,
            "p_mcnemar": self.mcnemar_p,
            "detectable": self.difference.detectable,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class Comparison:
    """What came of comparing: the systems in the order given, and each later one against the first."""

    systems: tuple[System, ...]
    rows: tuple[Versus, ...]
    notes: tuple[str, ...] = ()
    "What makes the comparison say less than it seems to."

    def summary(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {
            "n_tasks": self.systems[0].evaluation.interval.n_tasks,
            "systems": [system.summary() for system in self.systems],
            "differences": [row.summary() for row in self.rows],
            "notes": list(self.notes),
        }


def compare(*systems: str | Path, **measured: Measured) -> Comparison:
    """Compare systems task by task on the tasks that all of them hold; each later one is measured against the first.

    A system is a file written by `evaluate --out`, a run folder (its test after RL), or either with a phase behind a
    colon: "runs/mine:test/warm-up"; "runs/mine:test" stands for all of a run's tests. What was just evaluated is given
    by name. A phase that was played at several steps counts as it last was. Raises UserError for what holds no
    results, for fewer than two systems, one given twice, and systems without a common task.

    Example: compare("runs/mine:test"); compare("a.sqlite", "b.sqlite"); compare(old=evaluate(…), new=evaluate(…))
    """
    for system in systems:
        if not isinstance(system, str | Path):
            raise UserError("what was just evaluated is given by name, as in compare(old=…, new=…)")
    found: dict[str, Sequence[Group]] = {}
    for name, groups in [pair for source in systems for pair in stored(str(source))]:
        if name in found:
            raise UserError(f"{name} is given twice; a system is not compared with itself")
        found[name] = groups
    for name, result in measured.items():
        if name in found:
            raise UserError(f"{name} is given twice; name what was evaluated otherwise")
        if result.evaluation is None:
            raise UserError(f"{name} was evaluated on no task, so there is nothing to compare")
        found[name] = result.evaluation.groups
    if len(found) < 2:
        raise UserError(f"a comparison needs two systems or more, found {', '.join(found) or 'none'}; name another one")
    return compared(found)


def compared(found: Mapping[str, Sequence[Group]]) -> Comparison:
    """The figures of systems with their groups. Raises UserError where no task is valid in all of them."""
    valid = {name: {group.task_id: group for group in groups if group.valid} for name, groups in found.items()}
    shared = set.intersection(*map(set, valid.values()))
    if not shared:
        held = "; ".join(
            f"{name} holds {len(groups)}, such as {min(groups, default='none')}" for name, groups in valid.items()
        )
        raise UserError(f"there is no task that all systems have a scored attempt at: {held}; evaluate them on one set")
    systems = tuple(
        system_of(name, [groups[task_id] for task_id in sorted(shared)], tuple(sorted(groups.keys() - shared)))
        for name, groups in valid.items()
    )
    first, *later = systems
    differences = [paired_difference(other.evaluation.successes, first.evaluation.successes) for other in later]
    adjusted = holm([difference.p_value for difference in differences])
    rows = tuple(
        Versus(
            system=other.name,
            against=first.name,
            difference=difference,
            adjusted_p=p,
            mcnemar_p=mcnemar_p(difference.only_a, difference.only_b) if single(first) and single(other) else None,
        )
        for other, difference, p in zip(later, differences, adjusted, strict=True)
    )
    return Comparison(systems, rows, tuple(copies(found)))


def copies(found: Mapping[str, Sequence[Group]]) -> list[str]:
    """A warning for every two names behind which the very same attempts stand, tokens, times and all."""
    return [
        f"{one} and {other} hold the very same attempts: they are one measurement under two names, and that they do "
        "not differ shows nothing"
        for one, other in combinations(found, 2)
        if sorted(found[one], key=lambda group: group.task_id) == sorted(found[other], key=lambda group: group.task_id)
    ]


def system_of(name: str, groups: Sequence[Group], left_out: tuple[str, ...]) -> System:
    """One system's figures on the shared tasks."""
    evaluation = evaluated(groups, seconds=0.0)
    k = min(map(len, evaluation.successes.values()))
    repeated = k > 1 and all(set(attempts) <= {0.0, 1.0} for attempts in evaluation.successes.values())
    at, hat = (
        repeated_interval(evaluation.successes, k, estimator) if repeated else None
        for estimator in (pass_at_k, pass_hat_k)
    )
    return System(name, evaluation, k, at, hat, left_out)


def single(system: System) -> bool:
    """True where every task has one valid attempt that is either done or not: what McNemar's test is for."""
    return all(attempts in ((0.0,), (1.0,)) for attempts in system.evaluation.successes.values())


def stored(name: str) -> list[tuple[str, list[Group]]]:
    """The systems that a name stands for, with their groups. Raises UserError naming the phases there are."""
    path, phase = located(name)
    file = path if path.is_file() else Run.open(path).database
    with Database(file, read_only=True) as database:
        last: dict[str, int] = {}
        for found, step in database.successes():
            last[found] = max(step, last.get(found, step))
        if phase is None:
            wanted = [final for final in FINAL if final in last][:1] or (list(last) if len(last) == 1 else [])
        elif phase == "test":
            wanted = [test for test in TESTS if test in last]
        else:
            wanted = [phase] if phase in last else []
        if not wanted:
            sought = f"of a phase {phase}" if phase else f"of a final phase ({', '.join(FINAL)})"
            raise UserError(
                f"{path} holds no scored attempt {sought}; its phases: {', '.join(sorted(last)) or 'none'}; "
                f"name one as {path}:PHASE"
            )
        names = [name] if phase != "test" else [f"{path}:{found}" for found in wanted]
        return [(title, groups_in(database, found, last[found])) for title, found in zip(names, wanted, strict=True)]


def located(name: str) -> tuple[Path, str | None]:
    """The path and the phase in a name such as runs/mine:test/rl; a path that exists as a whole has no phase."""
    head, colon, phase = name.rpartition(":")
    if colon and not Path(name).exists():
        return Path(head), phase
    return Path(name), None


def groups_in(database: Database, phase: str, step: int) -> list[Group]:
    """Everything that was tried in a phase at a step, task by task."""
    tried: dict[str, list[Trajectory]] = {}
    for _, _, trajectory in database.trajectories(phase, step):
        tried.setdefault(trajectory.task_id, []).append(trajectory)
    return [Group(f"{phase}:{task_id}", task_id, tuple(attempts)) for task_id, attempts in tried.items()]


def interval_summary(interval: Interval | None) -> dict[str, float] | None:
    """An interval as plain values."""
    return {"estimate": interval.estimate, "ci_low": interval.low, "ci_high": interval.high} if interval else None


def points(share: float) -> str:
    """A difference in percentage points: points(0.075) -> "+7.5"."""
    return f"{100 * share:+.1f}"


def as_text(comparison: Comparison) -> str:
    """The comparison as Markdown that also reads well in a terminal."""
    n_tasks = comparison.systems[0].evaluation.interval.n_tasks
    out = ", ".join(f"{len(system.left_out)} of {system.name}" for system in comparison.systems if system.left_out)
    lines = [
        f"{counted(n_tasks, 'task')} that all hold" + (f"; left out because another lacks them: {out}" if out else ""),
        "",
    ]
    lines += ["| system | success | pass@k | pass^k | attempts | turns | tokens |", "|---|---|---|---|---|---|---|"]
    for system in comparison.systems:
        found = system.evaluation
        repeated = " | ".join(
            f"{interval.estimate:.1%} [{interval.low:.1%}, {interval.high:.1%}], k = {system.k}" if interval else "-"
            for interval in (system.at_least_once, system.every_time)
        )
        success = f"{found.interval.estimate:.1%} [{found.interval.low:.1%}, {found.interval.high:.1%}]"
        attempts = found.interval.n_attempts
        lines.append(
            f"| {system.name} | {success} | {repeated} | {attempts} | {found.turns:.1f} | {found.tokens:.0f} |"
        )
    lines += ["", f"| less {comparison.systems[0].name} | points | p | p, Holm | tasks won | lost |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in comparison.rows:
        less = row.difference
        lines.append(
            f"| {row.system} | {points(less.estimate)} [{points(less.low)}, {points(less.high)}] "
            f"| {less.p_value:.2g} | {row.adjusted_p:.2g} | {less.only_a} | {less.only_b} |"
        )
    warnings = [f"- warning: {note}" for note in comparison.notes]
    return "\n".join([*lines, "", *(f"- {row.verdict}" for row in comparison.rows), *warnings])
