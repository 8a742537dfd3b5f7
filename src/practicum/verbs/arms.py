"""The paper that describes an experiment: arms that differ by settings, seeds, and which arm begins with another."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from practicum import build
from practicum.config import RunConfig, load, parsed
from practicum.errors import PracticumError, UserError
from practicum.simulator.demonstrate import POLICIES

KINDS, KEEP = ("train", "evaluate"), ("best", "none")
WARM_UP = ":warm-up"
"Behind an arm's name: its checkpoint of step 0."
LETTERS = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


@dataclass(frozen=True)
class Arm:
    """One of the things compared: Arm(set=["trainer.steps=20"], start="warm-up")."""

    kind: str = "train"
    "'train', or 'evaluate': a model or a script on the test tasks."
    set: Sequence[str] = ()
    "Settings on top of the recipe and of those that all arms have."
    seeds: Sequence[int] = ()
    "Empty: those of the experiment."
    start: str = ""
    "The arm whose best checkpoint of the same seed it begins with; with ':warm-up' behind, its step 0."
    compute_of: str = ""
    "The arm whose steps' compute, at the same seed, its own steps may take."
    model: str = ""
    "Of kind 'evaluate': a model's name; empty for the recipe's."
    policy: str = ""
    "Of kind 'evaluate': a script instead of a model."
    examples: int = 0
    "Of kind 'evaluate': training tasks shown to the model first."
    note: str = ""
    "What stands beside its name in the table."

    @property
    def source(self) -> str:
        """The arm it begins with, without ':warm-up'."""
        return self.start.removesuffix(WARM_UP)

    @property
    def needs(self) -> tuple[str, ...]:
        """Arms that must be finished first."""
        return tuple(name for name in (self.source, self.compute_of) if name)


@dataclass(frozen=True)
class Paper:
    """The file's keys beside its arms."""

    recipe: str
    seeds: Sequence[int] = (0,)
    set: Sequence[str] = ()
    "Settings that all arms have."
    baseline: str = ""
    "The arm that the others are measured against; empty for the first."
    folder: str = ""
    "Where results and runs are kept; empty for runs/ and the file's name."
    keep: str = "best"
    "Which checkpoint of a finished arm stays: 'best' or 'none'; what an unfinished one begins with stays until then."


@dataclass(frozen=True, order=True)
class Trial:
    """One arm with one seed: Trial(seed=1, arm="rl")."""

    seed: int
    arm: str

    def __str__(self) -> str:
        return f"{self.arm}-seed{self.seed}"


@dataclass(frozen=True)
class Experiment:
    """A file that was read and found to be sound."""

    file: Path
    paper: Paper
    folder: Path
    arms: Mapping[str, Arm]
    configs: Mapping[Trial, RunConfig]
    "Each trial's settings, before it is known what it begins with; seed by seed, an arm after those it needs."

    @property
    def baseline(self) -> str:
        """The arm that the others are measured against."""
        return self.paper.baseline or next(iter(self.arms))

    def needed(self, trial: Trial) -> list[Trial]:
        """The trials that must be finished before one."""
        return [Trial(trial.seed, name) for name in self.arms[trial.arm].needs]

    def chosen(self, arms: Iterable[str], seeds: Iterable[int]) -> list[Trial]:
        """The trials of these arms and seeds, and all that they need; nothing named means all. Raises UserError."""
        wanted, numbers = set(arms), set(seeds)
        if unknown := sorted(wanted - self.arms.keys()):
            raise UserError(f"--only {unknown[0]}: {self.file} has no such arm; its arms: {', '.join(self.arms)}")
        found = {t for t in self.configs if t.arm in (wanted or self.arms) and t.seed in (numbers or {t.seed})}
        if not found:
            raise UserError(f"--seed {', '.join(map(str, sorted(numbers)))}: no arm asked for has this seed")
        while more := {need for trial in found for need in self.needed(trial)} - found:
            found |= more
        return [trial for trial in self.configs if trial in found]


def read(file: Path, folder: Path | None = None, find_recipe: Callable[[Path], Path] = Path) -> Experiment:
    """Read an experiment's file and check all of it, settings included. Raises UserError naming arm and key.

    Example: read(Path("benchmarks/experiments/headline.toml")).arms["rl"].start -> "warm-up"
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the experiment {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the experiment {file} is not TOML: {error}") from None
    tables = table.pop("arms", None)
    if not isinstance(tables, dict) or not tables or not all(isinstance(arm, dict) for arm in tables.values()):
        raise UserError(f"{file} needs at least one arm; write [arms.NAME]")
    paper = parsed(Paper, table, str(file), "")
    arms = {name: parsed(Arm, arm, str(file), f"arms.{name}") for name, arm in tables.items()}
    arms = {name: replace(arm, seeds=arm.seeds or paper.seeds) for name, arm in arms.items()}
    check_paper(file, paper, arms)
    for name, arm in arms.items():
        check_arm(f"{file}: arms.{name}", name, arm, arms)
    order = in_order(file, arms)
    recipe = find_recipe(Path(paper.recipe))
    configs = {
        Trial(seed, name): settings_of(f"{file}: arms.{name}", recipe, paper, arms[name], seed)
        for seed in sorted({seed for arm in arms.values() for seed in arm.seeds})
        for name in order
        if seed in arms[name].seeds
    }
    found = Experiment(file, paper, folder or Path(paper.folder or f"runs/{file.stem}"), arms, configs)
    check_together(found)
    return found


def check_paper(file: Path, paper: Paper, arms: Mapping[str, Arm]) -> None:
    """The keys beside the arms."""
    if paper.keep not in KEEP:
        raise UserError(f"{file}: keep is {paper.keep!r}; known: {', '.join(KEEP)}")
    if paper.baseline and paper.baseline not in arms:
        raise UserError(f"{file}: baseline names {paper.baseline!r}, which is no arm; arms: {', '.join(arms)}")


def check_arm(where: str, name: str, arm: Arm, arms: Mapping[str, Arm]) -> None:
    """What can be said of an arm without its recipe. `where` names file and arm."""
    if not set(name) <= LETTERS or name.startswith("."):
        raise UserError(f"{where}: an arm's name is that of a file, so of letters, digits, '-', '_' and '.'")
    if len(set(arm.seeds)) < len(arm.seeds) or min(arm.seeds, default=-1) < 0:
        raise UserError(f"{where}.seeds: different whole numbers from 0 upwards are needed, found {list(arm.seeds)}")
    if arm.kind not in KINDS:
        raise UserError(f"{where}.kind is {arm.kind!r}; known: {', '.join(KINDS)}")
    for key in ("model", "policy", "examples") if arm.kind == "train" else ("compute_of",):
        if getattr(arm, key):
            raise UserError(f"{where}.{key} would have no effect: the arm's kind is {arm.kind!r}")
    if arm.policy and (arm.policy not in POLICIES or arm.model or arm.start or arm.examples):
        raise UserError(f"{where}.policy is one of {', '.join(POLICIES)}, and stands without model, start and examples")
    if arm.start and arm.model:
        raise UserError(f"{where}: start and model exclude each other")
    if arm.examples < 0:
        raise UserError(f"{where}.examples must be at least 0, found {arm.examples}")
    for key in ("start", "compute_of"):
        other = arm.source if key == "start" else arm.compute_of
        if not other:
            continue
        if other not in arms:
            raise UserError(f"{where}.{key} names {other!r}, which is no arm; arms: {', '.join(arms)}")
        if arms[other].kind != "train":
            raise UserError(f"{where}.{key} names {other!r}, which is not trained: its kind is {arms[other].kind!r}")
        if missing := sorted(set(arm.seeds) - set(arms[other].seeds)):
            raise UserError(f"{where}.{key} names {other!r}, which has no seed {missing[0]}")
    if arm.compute_of and arm.start != arms[arm.compute_of].start:
        raise UserError(
            f"{where}.compute_of names {arm.compute_of!r}, which starts from "
            f"{arms[arm.compute_of].start or 'its own warm-up'!r}: with equal steps two arms have had the same compute "
            "only if they start from the same"
        )
    given = {"seed": "seeds"} | ({"model.name": "start"} if arm.start else {})
    given |= {"trainer.budget": "compute_of"} if arm.compute_of else {}
    for setting in arm.set:
        if (key := setting.partition("=")[0].strip()) in given:
            raise UserError(f"{where}.set: {key} is given by {given[key]}; leave one of them out")


def in_order(file: Path, arms: Mapping[str, Arm]) -> list[str]:
    """The arms as they stand, each behind those it needs. Raises UserError for a cycle."""
    order: list[str] = []
    while left := [name for name in arms if name not in order]:
        ready = [name for name in left if set(arms[name].needs) <= set(order)]
        if not ready:
            keys = ", ".join(
                f"arms.{name}.{key} = {getattr(arms[name], key)!r}"
                for name in left
                for key in ("start", "compute_of")
                if getattr(arms[name], key)
            )
            raise UserError(f"{file}: {', '.join(left)} wait for one another: {keys}")
        order.append(ready[0])
    return order


def settings_of(where: str, recipe: Path, paper: Paper, arm: Arm, seed: int) -> RunConfig:
    """An arm's settings. Raises UserError, naming file and arm, for what the recipe refuses."""
    try:
        return load(recipe, [*paper.set, *arm.set, f"seed={seed}"])
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def check_together(experiment: Experiment) -> None:
    """Every arm can be built, all are tested on the same tasks, and equal compute is equal. Raises UserError."""
    held_out: list[str] = []
    of_arm = {trial.arm: config for trial, config in experiment.configs.items()}
    for name, config in of_arm.items():
        arm, where = experiment.arms[name], f"{experiment.file}: arms.{name}"
        tests = buildable(where, arm, config)
        held_out = held_out or tests
        if tests != held_out:
            raise UserError(
                f"{where}.set changes the test tasks, but all arms are compared on the same ones; give settings of "
                "[environment] and [tasks] that do so to all arms, as the file's own set"
            )
        if arm.compute_of and not arm.start and of_arm[arm.compute_of].imitation != config.imitation:
            raise UserError(
                f"{where}.compute_of names {arm.compute_of!r}, whose [imitation] is another, so that the two would "
                "not have had the same compute; let both start from a third arm"
            )


def buildable(where: str, arm: Arm, config: RunConfig) -> list[str]:
    """The ids of an arm's test tasks. Raises UserError for what the parts that are to be built refuse."""
    try:
        if arm.kind == "train":
            build.algorithm_of(config)
            if config.sampler.kind == "api":
                raise UserError("sampler.kind is 'api', whose model can be evaluated and not trained")
            if arm.start and not config.trainer.steps:
                raise UserError("it starts from another arm and trainer.steps is 0: make its kind 'evaluate'")
        splits = build.tasks_of(config)
        build.check_rewards(config, splits["train"][0])
    except PracticumError as error:
        raise UserError(f"{where}: {error}") from None
    return [task.id for task in splits["test"]]
