"""The result of a run as a picture: held-out success before and after, and how it came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.errors import MissingExtra
from practicum.statistics.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind people can tell apart.
GREY, ORANGE, BLUE, INK = "#8a8a8a", "#e69f00", "#0072b2", "#333333"
STYLE = {
    "font.size": 11,
    "axes.titlesize": 11.5,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.edgecolor": GREY,
    "text.color": INK,
    "axes.labelcolor": INK,
    "svg.hashsalt": "practicum",
}


@contextmanager
def drawn(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure, sizes in inches, saved when the `with` ends in order. Raises MissingExtra without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise MissingExtra("matplotlib", "train") from error
    with mpl.rc_context(STYLE):
        # A figure of its own: pyplot would leave a global window and pick a backend.
        figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(wspace=0.08))
        FigureCanvasAgg(figure)
        yield figure
        metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, dpi=160, facecolor="white", metadata=metadata)


def draw_report(
    path: Path,
    bars: Mapping[str, Interval],
    curve: Mapping[int, Interval],
    chosen_step: int | None = None,
    step: str = "RL step",
) -> None:
    """Draw held-out success of each system and, where `curve` has points, dev success against the step.

    `bars` maps the name of a system to its success on the test tasks, in the order to be drawn; `curve` a step to
    success on the dev tasks; `chosen_step` is the checkpoint that the test was read with, `step` what a step is called.
    The kind of file follows from the path's suffix (.png, .svg, .pdf). Raises MissingExtra without matplotlib,
    ValueError for no bars.

    Example: draw_report(run.report(".png"), {"as it comes": base, "after RL": last}, {0: first, 10: last}, 10)
    """
    if not bars:
        raise ValueError("a picture needs at least one system to draw")
    with drawn(path, 9.6 if curve else 4.8, 3.6) as figure:
        axes = figure.subplots(1, 2 if curve else 1, squeeze=False, width_ratios=[1, 1.15] if curve else [1])[0]
        draw_systems(axes[0], bars)
        if curve:
            draw_curve(axes[1], curve, chosen_step, step)
        figure.supxlabel("whiskers and band: 95 % intervals over tasks", fontsize=9, color=GREY)


def draw_arms(path: Path, seeds: Mapping[str, Sequence[float]], intervals: Mapping[str, tuple[float, float]]) -> None:
    """Draw test success of each arm of an experiment: a dot a seed, the mean, and its interval where there is one.

    Raises MissingExtra without matplotlib. Example: draw_arms(path, {"rl": [0.6, 0.7]}, {"rl": (0.02, 1.0)})
    """
    with drawn(path, 8.0, 1.4 + 0.5 * len(seeds)) as figure:
        axes = figure.subplots()
        for place, (name, values) in enumerate(seeds.items()):
            mean = sum(values) / len(values)
            if name in intervals:
                axes.plot(intervals[name], (place, place), color=BLUE, linewidth=2, zorder=2)
            axes.plot(values, [place] * len(values), "o", color=ORANGE, markersize=6, alpha=0.8, zorder=3)
            axes.plot(mean, place, "|", color=BLUE, markersize=18, markeredgewidth=3, zorder=4)
            axes.annotate(
                f"{100 * mean:.1f} %, n = {len(values)}",
                (1.02, place),
                xycoords=("axes fraction", "data"),
                va="center",
                weight="bold",
            )
        axes.set_yticks(range(len(seeds)), list(seeds))
        axes.set_ylim(len(seeds) - 0.5, -0.5)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
        axes.grid(axis="x", color="#e3e3e3", zorder=0)
        axes.tick_params(length=0)
        axes.set_title("Success on held-out tasks", loc="left")
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        figure.supxlabel("a dot a seed, a bar their mean; lines: 95 % intervals over seeds", fontsize=9, color=GREY)


def draw_systems(axes: Axes, bars: Mapping[str, Interval]) -> None:
    """One bar a system with its interval; the number above it, n in the title."""
    colours = [GREY, ORANGE, BLUE]
    for position, interval in enumerate(bars.values()):
        axes.bar(position, interval.estimate, width=0.62, color=colours[min(position, 2)], zorder=2)
        reach = [[interval.estimate - interval.low], [interval.high - interval.estimate]]
        axes.errorbar(position, interval.estimate, yerr=reach, color=INK, capsize=5, linewidth=1.5, zorder=3)
        axes.annotate(
            f"{100 * interval.estimate:.1f} %",
            (position, interval.high),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            weight="bold",
        )
    axes.set_xticks(range(len(bars)), list(bars))
    axes.set_title(f"Success on held-out tasks ({sizes(bars.values())})", loc="left")
    percent_axis(axes)


def draw_curve(axes: Axes, curve: Mapping[int, Interval], chosen_step: int | None, step: str) -> None:
    """Success on dev against the step, the interval as a band, the chosen checkpoint ringed."""
    steps = sorted(curve)
    estimates = [curve[step].estimate for step in steps]
    lows, highs = [curve[step].low for step in steps], [curve[step].high for step in steps]
    axes.fill_between(steps, lows, highs, color=BLUE, alpha=0.18, linewidth=0, zorder=1)
    axes.plot(steps, estimates, color=BLUE, marker="o", linewidth=2, zorder=3)
    if len(steps) == 1:
        axes.vlines(steps, lows, highs, color=BLUE)
        axes.set_xlim(steps[0] - 1, steps[0] + 1)
    if chosen_step is not None and chosen_step in curve:
        chosen = curve[chosen_step].estimate
        axes.plot(chosen_step, chosen, marker="o", markersize=13, mfc="none", mec=ORANGE, mew=2, zorder=4)
        axes.annotate("chosen", (chosen_step, chosen), xytext=(0, -20), textcoords="offset points", ha="center")
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel(step)
    axes.set_title(f"Success on dev tasks ({sizes(curve.values())})", loc="left")
    percent_axis(axes)


def percent_axis(axes: Axes) -> None:
    """0 to 100 %, light lines, no frame."""
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.grid(axis="y", color="#e3e3e3", zorder=0)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def sizes(intervals: Any) -> str:
    """'n = 152', or the range where the numbers of tasks differ."""
    found = sorted({interval.n_tasks for interval in intervals})
    n = str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
    return f"n = {n}"
