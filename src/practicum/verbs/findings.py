"""What a check found: problems, notes, figures; as plain values and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from practicum.errors import MissingExtra, UserError

GIGABYTE = 1e9


@dataclass
class Findings:
    """What was found; it grows while the check goes on."""

    problems: list[str] = field(default_factory=list)
    "Each would stop a run or spoil its result."
    notes: list[str] = field(default_factory=list)
    "Worth knowing; the run can go on."
    figures: dict[str, Any] = field(default_factory=dict)
    "Plain values by section: tasks, lengths, detectable, signal, memory, time, settings."

    def summary(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {"sound": not self.problems, "problems": self.problems, "notes": self.notes, **self.figures}

    @contextmanager
    def complaint(self) -> Iterator[None]:
        """What a recipe is refused for becomes a problem; what is not installed here becomes a note."""
        try:
            yield
        except MissingExtra as missing:
            self.notes.append(str(missing))
        except UserError as error:
            self.problems.append(str(error))


def as_text(findings: Findings) -> str:
    """The findings as Markdown that also reads well in a terminal; problems are left to whoever ends the command."""
    figures = findings.figures
    parts = [
        settings_text(figures["settings"]),
        tasks_text(figures["tasks"]),
        lengths_text(figures["lengths"]),
        detectable_text(figures["detectable"], figures["signal"]),
        memory_text(figures["memory"]),
        time_text(figures["time"]),
        "\n".join(f"- note: {note}" for note in findings.notes),
        "" if findings.problems else "nothing stands against this run",
    ]
    return "\n\n".join(part for part in parts if part)


def settings_text(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """All settings, those that differ from their default with a star."""
    wide = max(map(len, settings))
    lines = [
        f"{'*' if found['differs'] else ' '} {name:<{wide}}  {found['value']!r}"
        + (f"   (default {found['default']!r})" if found["differs"] and found["default"] is not None else "")
        for name, found in settings.items()
    ]
    return "\n".join(["settings, * where they differ from the default:", *lines])


def tasks_text(tasks: Mapping[str, Mapping[str, Any]]) -> str:
    """How the scripts fared."""

    def rate(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    rows = [
        f"| {split} | {found['n']} | {rate(found['expert'])} | {rate(found['noop'])} | {rate(found['random'])} |"
        for split, found in tasks.items()
    ]
    return "\n".join(["| split | tasks | expert | noop | random |", "|---|---|---|---|---|", *rows])


def lengths_text(lengths: Mapping[str, Any]) -> str:
    """How long prompts and the script's episodes are, beside the limit."""
    unit = lengths["unit"]
    text = f"longest opening prompt: {lengths['longest_opening']} {unit}, context_tokens {lengths['context_tokens']}"
    if lengths["of"] == "expert":
        text += (
            f"; the expert's longest episode: {lengths['longest']} {unit}, {lengths['turns']} turns, replies of up to "
            f"{lengths['longest_reply']}"
        )
    return text


def detectable_text(found: Mapping[str, Any], signal: Mapping[str, Any]) -> str:
    """What the held-out tasks can show, and what groups will teach."""
    each = "1 attempt" if found["attempts"] == 1 else f"{found['attempts']} attempts"
    lines = [
        f"a paired comparison on {found['n_tasks']} test tasks with {each} each (power 80 %, two-sided 5 %; assumed "
        f"correlation of attempts at one task: {found['same']:g} within a system, {found['across']:g} between two):",
        "",
        "| if the weaker one does | it shows differences from | tasks for 5 points | for 10 points |",
        "|---|---|---|---|",
    ]
    for rate, row in found["by_rate"].items():
        least = "none" if row["difference"] is None else f"{100 * row['difference']:.1f} points"
        lines.append(f"| {float(rate):.0%} | {least} | {row['tasks_for_5_points']} | {row['tasks_for_10_points']} |")
    chances = ", ".join(f"{chance:.0%} at {float(rate):.0%}" for rate, chance in signal["chance_by_rate"].items())
    return "\n".join([*lines, "", f"chance that a group of {signal['group_size']} teaches, by success: {chances}"])


def memory_text(memory: Mapping[str, Any]) -> str:
    """Bytes by purpose, in GB."""
    if "unknown" in memory:
        return f"memory: unknown, {memory['unknown']}"
    parts = ", ".join(f"{name} {size / GIGABYTE:.2f}" for name, size in memory["bytes"].items() if size)
    free = "" if memory["free"] is None else f"; free here now: {memory['free'] / GIGABYTE:.1f} GB"
    return f"memory, at most about {memory['total'] / GIGABYTE:.1f} GB: {parts}{free}"


def time_text(found: Mapping[str, Any]) -> str:
    """Minutes by phase, and what they rest on."""
    if "unknown" in found:
        return f"time: unknown, {found['unknown']}"
    parts = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in found["seconds"].items() if seconds)
    return (
        f"time, about {found['total'] / 60:.1f} minutes if episodes are as long as the expert's (a model that still "
        f"learns needs more): {parts}; measured here and now: {found['trained']:.0f} tokens trained and "
        f"{found['sampled']:.0f} sampled per second, {found['contexts']} contexts at once"
    )
