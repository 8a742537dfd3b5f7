"""The command line: each command reads a recipe, asks a verb, prints what came of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from practicum.errors import PracticumError, UserError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Let a language model practise your tasks, check what it really did, and learn from that.",
    epilog="Exit codes: 0 done, 1 the run failed, 2 a mistake in what was asked, 130 stopped by Ctrl-C.",
)
Recipe = Annotated[Path, typer.Argument(help="A recipe, such as recipes/retail.toml.", show_default=False)]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045  (typer reads it at run time)
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting of the recipe; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


@app.command()
def train(
    recipe: Recipe,
    settings: Settings = None,
    folder: Annotated[Optional[Path], typer.Option(help="The run's folder; made new.")] = None,  # noqa: UP045
    as_json: AsJson = False,
) -> None:
    """Train the recipe's model: warm-up, reinforcement learning, and a test on tasks it never saw."""
    from practicum import config, verbs

    run, report = verbs.train(config.load(find_recipe(recipe), settings or ()), folder, recipe.stem)
    print(
        json.dumps({"run": str(run), **report})
        if as_json
        else f"\n{verbs.as_text(report)}\nreport: {run / 'report.md'}"
    )


@app.command()
def evaluate(
    recipe: Recipe,
    settings: Settings = None,
    model: Annotated[Optional[str], typer.Option(help="A known model, a folder, or a run.")] = None,  # noqa: UP045
    policy: Annotated[Optional[str], typer.Option(help="A script instead: expert, noop or random.")] = None,  # noqa: UP045
    tasks: Annotated[Optional[Path], typer.Option(help="A file of tasks, instead of a split.")] = None,  # noqa: UP045
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    attempts: Annotated[int, typer.Option(help="Attempts at each task.")] = 1,
    out: Annotated[Optional[Path], typer.Option(help="Write all trajectories to this SQLite file.")] = None,  # noqa: UP045
    as_json: AsJson = False,
) -> None:
    """Measure a model or a scripted policy: success with its 95 % interval, turns, tokens, endings."""
    from practicum import config, verbs

    if model is not None and policy is not None:
        raise UserError("--model and --policy exclude each other: a script speaks instead of a model")
    loaded = config.load(find_recipe(recipe), settings or ())
    measured = verbs.evaluate(loaded, model=model, policy=policy, tasks=tasks, split=split, attempts=attempts, out=out)
    summary = measured.summary()
    if as_json:
        print(json.dumps(summary))
        return
    if measured.evaluation is None:
        print("no task was left to evaluate")
    else:
        print(f"success {measured.evaluation.interval} tasks, {summary['n_attempts']} attempts")
        print(
            f"turns {summary['turns']:.1f}, sampled tokens {summary['tokens']:.0f} per episode; {summary['seconds']:.1f} s"
        )
        print("endings: " + ", ".join(f"{name} {count}" for name, count in summary["endings"].items()))
    for title in ("skipped", "invalid"):
        for task_id, reason in summary[title].items():
            print(f"{title}: {task_id}: {reason}")


@app.command()
def show(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    task: Annotated[Optional[str], typer.Option(help="Id of a task: print its trajectories.")] = None,  # noqa: UP045
    phase: Annotated[Optional[str], typer.Option(help="Only this phase, such as train or test/rl.")] = None,  # noqa: UP045
) -> None:
    """List the tasks of a run, or print the trajectories of one, with what was trained in colour."""
    from practicum import verbs

    verbs.shown(run, task, phase)


def find_recipe(path: Path) -> Path:
    """The path as given, else the recipe of that name that the package ships."""
    shipped = Path(__file__).parents[1] / "recipes" / path.name
    return shipped if not path.exists() and shipped.is_file() else path


def main() -> None:
    """Run a command; a user's mistake is one message and exit code 2, another failure of ours is 1, Ctrl-C 130."""
    try:
        app(standalone_mode=True)
    except UserError as error:
        print(f"practicum: {error}", file=sys.stderr)
        sys.exit(2)
    except PracticumError as error:
        print(f"practicum: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("\npracticum: stopped; what was finished is stored in the run folder", file=sys.stderr)
        sys.exit(130)
