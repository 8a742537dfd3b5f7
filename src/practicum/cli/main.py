"""The command line: each command reads a recipe, asks a verb, prints what came of it."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from typer.core import TyperGroup

from practicum import __version__
from practicum.cli.interrupt import interrupt_in, listen
from practicum.errors import PracticumError, UserError, counted

if TYPE_CHECKING:
    from practicum.verbs.evaluating import Measured


class Stopped(Exception):
    """Ctrl-C, kept from typer, which would end without a word; the text says how far the work came."""


class Commands(TyperGroup):
    """The commands, with Ctrl-C taken out of typer's hands."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Raises Stopped for KeyboardInterrupt, also where an import made it an error of its own."""
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, PracticumError, ImportError, RuntimeError) as error:
            interrupt = interrupt_in(error)
            if interrupt is None:
                raise
            raise Stopped(*interrupt.args) from None


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help and plain errors: the same on a terminal, in a pipe and in a log
    context_settings={"help_option_names": ["--help", "-h"]},
)
Recipe = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="A recipe, such as recipes/retail.toml.", show_default=False)
]
Settings = Annotated[
    Optional[list[str]],  # noqa: UP045  (typer reads it at run time)
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Change a setting of the recipe, such as trainer.steps=30; may be repeated.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


@app.callback(invoke_without_command=True)
def practicum(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Let a language model practise your tasks, check what it really did, and learn from that.

    \b
    practicum evaluate recipes/retail.toml --policy expert   are the tasks sound? (needs no model)
    practicum check recipes/retail.toml                      what can a run show, what will it take?
    practicum profile recipes/retail.toml                    where does the time of a step go?
    practicum train recipes/retail.toml --folder runs/mine   train, and test on tasks never seen
    practicum show runs/mine                                 which tasks it can do now
    practicum show runs/mine --task ID                       what it did there, what was learned from
    practicum compare runs/mine:test                         was it RL, or chance?
    practicum experiment FILE.toml                           arms times seeds, one table

    Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 the run failed, 2 a mistake in what
    was asked, 130 stopped by Ctrl-C (a second Ctrl-C stops at once).
    """
    if version:
        print(f"practicum {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def train(
    recipe: Recipe,
    settings: Settings = None,
    folder: Annotated[
        Optional[str],  # noqa: UP045  (as a path, an empty one would be the present folder)
        typer.Option(
            metavar="FOLDER",
            help="Where the run is kept; made new. [default: runs/RECIPE-DATE-TIME]",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --folder, from its newest checkpoint.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train the recipe's model, and test it on tasks it never saw.

    Warm-up by imitation, reinforcement learning from the verifier, then one test of the model as it comes, after
    warm-up and after reinforcement, with 95 % intervals and paired differences.

    \b
    The run folder then holds
      config.toml    the recipe with every setting written out
      run.sqlite     every trajectory and metric (practicum show FOLDER)
      metrics.jsonl  the metrics again, one object a line
      checkpoints/   models (practicum evaluate RECIPE --model FOLDER takes the best)
      report.md, report.json, report.png

    \b
    practicum train recipes/tiny.toml                               under a minute
    practicum train recipes/retail.toml --set trainer.steps=30 --set seed=1

    Needs the extra [train]. Ctrl-C ends a run in order and keeps what was finished; the same command with --resume
    goes on. With simulator.lockstep = true it then learns to the bit what it would have learned undisturbed.
    """
    from practicum import config
    from practicum.verbs import reporting, training

    loaded = config.load(find_recipe(recipe), settings or ())
    run, report = training.train(loaded, folder, name=recipe.stem, resume=resume)
    print(
        json.dumps({"run": str(run), **report})
        if as_json
        else f"\n{reporting.as_text(report)}\nreport: {run / 'report.md'}"
    )


@app.command()
def evaluate(
    recipe: Recipe,
    settings: Settings = None,
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NAME",
            help="A known model, a model folder, a run folder (its best checkpoint) or a hub id. "
            "[default: the recipe's]",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="NAME", help="A script instead of a model: expert, noop or random."),
    ] = None,
    tasks: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Tasks of your own, one JSON object a line (.jsonl, .jsonl.gz)."),
    ] = None,
    split: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NAME", help="The recipe's tasks: train, dev, test or all. [default: test]", show_default=False
        ),
    ] = None,
    attempts: Annotated[int, typer.Option(metavar="N", help="Attempts at each task.")] = 1,
    examples: Annotated[
        int, typer.Option(metavar="N", help="Show the model N training tasks as the expert does them, in its prompt.")
    ] = 0,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Keep all trajectories in a new SQLite file, to be read by practicum show."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how often a model, or a script, does its tasks.

    The tasks are a split of the recipe, or a file. Says the success with its 95 % interval, turns and tokens per
    episode, how the attempts ended, and of a file which tasks were skipped (they need what is not built) or are
    invalid (the solution given is refused), and why.

    \b
    practicum evaluate recipes/retail.toml --policy noop --json
    practicum evaluate recipes/retail.toml --model runs/mine --attempts 4 --out attempts.sqlite
    practicum evaluate recipes/retail.toml --policy expert --tasks mine.jsonl
    practicum evaluate recipes/retail.toml --examples 3      shown three solved tasks first

    A model behind an OpenAI-compatible endpoint (needs the extra [api], no torch):

    \b
    practicum evaluate recipes/retail.toml --model NAME --set sampler.kind=api \\
        --set sampler.url=http://127.0.0.1:8000/v1 --set sampler.key_env=MY_KEY

    \b
    --json prints one object with
      success, ci_low, ci_high   a fraction and its interval; null when no task was left
      n_tasks, n_attempts        what it was measured on
      endings                    ending -> number of attempts
      skipped, invalid           task id -> reason
      turns, tokens, seconds     per episode; of the whole
    """
    from practicum import config
    from practicum.verbs import evaluating

    if model is not None and policy is not None:
        raise UserError("--model and --policy exclude each other: a script speaks instead of a model")
    if tasks is not None and split is not None:
        raise UserError("--tasks and --split exclude each other: a file of tasks is evaluated whole")
    loaded = config.load(find_recipe(recipe), settings or ())
    measured = evaluating.evaluate(
        loaded,
        model=model,
        policy=policy,
        tasks=tasks,
        split=split or ("all" if tasks else "test"),
        attempts=attempts,
        examples=examples,
        out=out,
    )
    print(json.dumps(measured.summary()) if as_json else as_text(measured))


@app.command()
def check(
    recipe: Recipe,
    settings: Settings = None,
    timing: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Load the model, if it is here, and time it for some seconds.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Say before a run whether its recipe is sound, what it can show and what it will take. Trains nothing.

    Every task is played by the expert, who must do it, by nobody and at random; the splits must share nothing. Then:
    the longest prompt beside simulator.context_tokens, the difference that the test tasks can show and how many tasks
    5 or 10 points would need, the chance that a group of attempts teaches anything, memory and time, all settings.
    Nothing is downloaded: what cannot be known without that is said to be unknown.

    \b
    practicum check recipes/retail.toml
    practicum check recipes/retail.toml --set tasks.test=80 --set simulator.group_size=16 --no-timing

    Exit code 0 when nothing stands against the run, 2 with every reason where something does.
    """
    from practicum import config
    from practicum.verbs import checking, findings

    found = checking.check(config.load(find_recipe(recipe), settings or ()), timing=timing)
    print(json.dumps(found.summary()) if as_json else findings.as_text(found))
    if found.problems:
        reasons = "".join(f"\n  {problem}" for problem in found.problems)
        raise UserError(f"{recipe} is not ready, {len(found.problems)} reasons:{reasons}")


@app.command()
def profile(
    recipe: Recipe,
    settings: Settings = None,
    steps: Annotated[int, typer.Option(metavar="N", help="Steps to take the mean of, after a small one.")] = 2,
    warm_up: Annotated[
        bool, typer.Option("--warm-up", help="Make the recipe's warm-up first; else the model is taken as it comes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take a few real steps of a recipe and say where their time went. Nothing is kept.

    Seconds and shares by phase (environment, decode, prefill, score, update, publish, other), how much of it is the
    simulator's own, tokens as rows, unique, decoded, prefilled and reused, tokens a second, peak memory. Then the
    machine is measured: what fraction of its fastest matrix product and of its memory's speed decode, prefill and
    update reach.

    \b
    practicum profile recipes/tiny.toml --steps 1
    practicum profile recipes/retail.toml --set model.name=runs/mine/checkpoints/step-000000/model
    practicum profile recipes/retail.toml --set trainer.tasks_per_step=4 --json

    Other programs on the machine make all of it look slower. Needs the extra [train].
    """
    from practicum import config
    from practicum.verbs import profiling

    found = profiling.profile(config.load(find_recipe(recipe), settings or ()), steps=steps, warm_up=warm_up)
    print(json.dumps(found.summary()) if as_json else f"\n{profiling.as_text(found)}")


@app.command()
def compare(
    systems: Annotated[
        list[str],
        typer.Argument(
            metavar="A B [C ...]",
            help="Files of evaluate --out, run folders, PATH:PHASE, RUN:test.",
            show_default=False,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Compare systems on the same tasks: which differences are shown, and which could have been.

    Each later system is measured against the first one, task by task, on the tasks that all hold. Says success with
    its 95 % interval, turns and tokens; with several attempts pass@k (done at least once in k) and pass^k (done every
    time); each difference with interval, p-value and the p-value after Holm's correction for the whole table.

    \b
    a.sqlite               a file written by practicum evaluate --out
    runs/mine              a run's last test, the model after RL
    runs/mine:test/warm-up another phase of it
    runs/mine:test         all of its tests: as it comes, after warm-up, after RL

    \b
    practicum compare runs/mine:test
    practicum compare old.sqlite new.sqlite other.sqlite --json
    """
    from practicum.verbs import comparing

    comparison = comparing.compare(*systems)
    print(json.dumps(comparison.summary()) if as_json else comparing.as_text(comparison))


@app.command()
def experiment(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="An experiment, in TOML; see docs/experiments.md.", show_default=False),
    ],
    folder: Annotated[
        Optional[str],  # noqa: UP045  (as a path, an empty one would be the present folder)
        typer.Option(
            metavar="FOLDER",
            help="Where results and runs are kept. [default: the file's own, else runs/NAME]",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Trials at once, which share the cores.")] = 1,
    only: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(metavar="ARM", help="Only this arm, and those it starts from; may be repeated."),
    ] = None,
    seed: Annotated[
        Optional[list[int]],  # noqa: UP045
        typer.Option(metavar="N", help="Only this seed; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Do an experiment, arms times seeds, and say which differences are shown.

    A trial is an arm of the file with one seed: a training run, or an evaluation. What is finished is skipped, and what
    was begun goes on, whenever and however it was stopped. Every arm is set against the baseline arm: paired by seed
    with a t interval, and paired by task with all seeds pooled.

    \b
    The folder then holds
      results/ARM-seedN.json           a trial, written when it is finished
      results/table.md, .json, .png    all of them, with intervals
      runs/ARM-seedN                   its run (practicum show FOLDER)

    \b
    practicum experiment benchmarks/experiments/headline.toml
    practicum experiment benchmarks/experiments/headline.toml --only rl --seed 0 --jobs 2

    Every mistake in the file is told, with arm and key, before anything is done. A trial that fails does not stop the
    others; the command then ends with exit code 1. Needs the extra [train].
    """
    from practicum.verbs import experimenting, tabling

    results, table = experimenting.experiment(
        file, folder, jobs=jobs, only=only or (), seeds=seed or (), find_recipe=find_recipe
    )
    print(
        json.dumps({"results": str(results), **table})
        if as_json
        else f"\n{tabling.as_text(table)}\ntable: {results / 'table.md'}"
    )


@app.command()
def show(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, or a file written by evaluate --out.", show_default=False),
    ],
    task: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="ID", help="Print every attempt at this task, turn by turn."),
    ] = None,
    phase: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="NAME", help="Only demonstration, train, dev, test/base, test/warm-up, test/rl or evaluation."
        ),
    ] = None,
) -> None:
    """Print the tasks of a run, or what was done at one of them.

    The tasks are listed with their successes. Of each phase the last step that has the task is shown. On a terminal
    sampled tokens are green where they were trained to become likelier, red where less likely, plain where they were
    not trained; elsewhere they stand in «+…» and «-…». Works while the run is going on.

    \b
    practicum show runs/mine
    practicum show runs/mine --task retail_train_36 --phase train
    """
    from practicum.verbs import showing

    showing.shown(run, task, phase)


def as_text(measured: Measured) -> str:
    """An evaluation in lines for people."""
    summary = measured.summary()
    lines = ["no task was left to evaluate"]
    if measured.evaluation is not None:
        noun = "task" if summary["n_tasks"] == 1 else "tasks"
        lines = [
            f"success {measured.evaluation.interval} {noun}, {counted(summary['n_attempts'], 'attempt')}",
            f"turns {summary['turns']:.1f}, sampled tokens {summary['tokens']:.0f} per episode",
            "endings: " + ", ".join(f"{name} {count}" for name, count in summary["endings"].items()),
            f"seconds: {summary['seconds']:.1f}",
        ]
    for title in ("skipped", "invalid"):
        lines += [f"{title}: {task_id}: {reason}" for task_id, reason in summary[title].items()]
    return "\n".join(lines)


def find_recipe(path: Path) -> Path:
    """The path as given; where nothing is there, the recipe that the package ships as recipes/NAME.toml."""
    shipped = Path(__file__).parents[1] / "recipes" / path.name
    is_shipped = path in (Path(path.name), Path("recipes", path.name)) and shipped.is_file()
    return shipped if is_shipped and not path.exists() else path


def main() -> None:
    """Run a command; a user's mistake is one message and exit code 2, another failure of ours is 1, Ctrl-C 130."""
    listen()
    try:
        app(prog_name="practicum")
    except SystemExit as done:
        code = done.code
    except UserError as error:
        code = said(str(error), 2)
    except PracticumError as error:
        code = said(str(error), 1)
    except (Stopped, KeyboardInterrupt) as stopped:
        code = said(f"stopped by Ctrl-C: {str(stopped) or 'there was nothing to keep yet'}", 130)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        code = said("no space is left where this was to be written", 1)
    sys.exit(flushed(code))


def flushed(code: Any) -> Any:
    """Write out stdout; returns the exit code, 1 where that failed. A reader that left early is not worth a word."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # What is still buffered must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not code and not isinstance(error, BrokenPipeError):
            said(f"stdout cannot be written: {error.strerror}", 1)
        return code or 1
    return code


def said(message: str, code: int) -> int:
    """Print a message for people; returns the exit code that goes with it."""
    print(f"practicum: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
