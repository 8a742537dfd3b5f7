"""One arm with one seed: what it is given, what is done, and the small file in which the result is kept."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from practicum.config import RunConfig, as_table
from practicum.errors import UserError
from practicum.evaluation import Evaluation
from practicum.runs import checkpoint
from practicum.runs.provenance import now, provenance
from practicum.runs.run import Run, write_whole
from practicum.verbs.arms import WARM_UP, Arm, Experiment, Trial
from practicum.verbs.comparing import stored, system_of
from practicum.verbs.evaluating import evaluate
from practicum.verbs.training import train

Result = Mapping[str, Any]
"What is kept of a trial, as plain values; docs/experiments.md names every field."
ASKED = ("kind", "start", "compute_of", "model", "policy", "examples")
"Keys of an arm that decide its result, beside its settings."


def result_file(experiment: Experiment, trial: Trial) -> Path:
    """The trial's result; where it is, the trial is finished."""
    return experiment.folder / "results" / f"{trial}.json"


def run_folder(experiment: Experiment, trial: Trial) -> Path:
    """The folder of a trained trial's run."""
    return experiment.folder / "runs" / str(trial)


def finished(experiment: Experiment) -> dict[Trial, Result]:
    """The results there are. Raises UserError for one of other settings than the file's now, naming arm and key."""
    found: dict[Trial, Result] = {}
    for trial, config in experiment.configs.items():
        path = result_file(experiment, trial)
        if path.is_file():
            try:
                found[trial] = json.loads(path.read_text(encoding="utf-8"))
                before = found[trial]["asked"]
            except (OSError, ValueError, KeyError, TypeError):
                raise UserError(f"{path} is no result of a trial; delete it to have that done again") from None
            now = asked(experiment.arms[trial.arm], config)
            if changed := [f"{key} was {old!r} and is {new!r}" for key, old, new in differences(before, now)]:
                raise UserError(
                    f"{experiment.file}: arms.{trial.arm} has changed since seed {trial.seed} was finished: "
                    f"{'; '.join(changed)}. Delete {path} to have it done again, or name another --folder"
                )
    return found


def asked(arm: Arm, config: RunConfig) -> dict[str, Any]:
    """Everything that decides a trial's result, as JSON gives it back."""
    table = {"arm": {key: getattr(arm, key) for key in ASKED}, "settings": as_table(config)}
    plain: dict[str, Any] = json.loads(json.dumps(table))
    return plain


def differences(before: Mapping[str, Any], now: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(key, old, new) of what differs; a key that was not known before is no difference."""
    for key, old in before.items():
        new = now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from differences(old, new, f"{place}{key}.")
        elif old != new:
            yield f"{place}{key}", old, new


def done(experiment: Experiment, trial: Trial, results: Mapping[Trial, Result]) -> Result:
    """Do what a trial still lacks, keep its result and return it. Raises PracticumError; KeyboardInterrupt passes."""
    arm, source = experiment.arms[trial.arm], provenance()
    config, extra = given(experiment, trial, results)
    figures = (trained if arm.kind == "train" else measured)(experiment, trial, config)
    compute = figures["compute"]
    before = extra.pop("compute_before")
    result = {
        "arm": trial.arm,
        "seed": trial.seed,
        "kind": arm.kind,
        **figures,
        **extra,
        "compute_total": sum(compute.values()) + before,
        "hours": round(sum(figures["seconds"].values()) / 3600, 4),
        "asked": asked(arm, experiment.configs[trial]),
        "provenance": {**source, "ended": now()},
    }
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in result.items())
    write_whole(result_file(experiment, trial), "{\n" + lines + "\n}\n")
    return result


def given(experiment: Experiment, trial: Trial, results: Mapping[Trial, Result]) -> tuple[RunConfig, dict[str, Any]]:
    """The settings with which a trial is done, and what is to be told of them beside its figures."""
    arm, config = experiment.arms[trial.arm], experiment.configs[trial]
    extra: dict[str, Any] = {"compute_before": 0}
    if arm.start:
        source = Trial(trial.seed, arm.source)
        extra = {"started_from": arm.start, "compute_before": compute_behind(results[source], arm.start)}
        config = begun(config, str(starting_point(experiment, trial, results[source])), has_adapter(experiment, source))
    if arm.compute_of:
        budget = float(steps_compute(results[Trial(trial.seed, arm.compute_of)]))
        config = replace(config, trainer=replace(config.trainer, budget=budget))
        extra["budget"] = round(budget)
    return config, extra


def begun(config: RunConfig, model: str, is_adapter: bool) -> RunConfig:
    """Settings of a run that begins with a checkpoint: no warm-up, no second adapter, nobody to measure before it."""
    imitation = config.imitation
    if config.trainer.learns_from == "reward":
        imitation = replace(imitation, demonstrations=0)
    return replace(
        config,
        model=replace(config.model, name=model),
        imitation=replace(imitation, epochs=0),
        evaluation=replace(config.evaluation, base=False),
        lora=replace(config.lora, rank=0) if is_adapter else config.lora,
    )


def has_adapter(experiment: Experiment, trial: Trial) -> bool:
    """True where a trial's checkpoints are adapters."""
    source = experiment.arms[trial.arm].source
    behind = has_adapter(experiment, Trial(trial.seed, source)) if source else False
    return behind or experiment.configs[trial].lora.rank > 0


def starting_point(experiment: Experiment, trial: Trial, source: Result) -> Path:
    """The folder of the model that a trial begins with. Raises UserError where it was deleted."""
    start, arm = experiment.arms[trial.arm].start, experiment.arms[trial.arm].source
    step = 0 if start.endswith(WARM_UP) else source["best_step"]
    folder = run_folder(experiment, Trial(trial.seed, arm)).resolve() / "checkpoints" / f"step-{step:06d}" / "model"
    if not folder.is_dir():
        raise UserError(
            f"{experiment.file}: arms.{trial.arm} starts from {start}, whose result for seed {trial.seed} is there, "
            f"but not {folder}; delete {result_file(experiment, Trial(trial.seed, arm))} to have it trained again"
        )
    return folder


def steps_compute(result: Result) -> float:
    """Forward-token passes of a trained trial's steps."""
    return float(sum(value for phase, value in result["compute"].items() if phase != "warm-up"))


def compute_behind(source: Result, start: str) -> float:
    """Forward-token passes that went into a starting point."""
    total = float(source["compute_total"])
    return total - steps_compute(source) if start.endswith(WARM_UP) else total


def trained(experiment: Experiment, trial: Trial, config: RunConfig) -> dict[str, Any]:
    """Train, or go on with a run that was begun; the figures of its last policy, and how it got there."""
    folder = run_folder(experiment, trial)
    _, report = train(config, folder, resume=Run(folder).config.is_file())
    last = list(report["test"])[-1]
    ((_, groups),) = stored(f"{folder}:test/{last}")
    measured = system_of(str(trial), groups, ()).evaluation
    return of_test(measured) | {
        "tested": last,
        "before": {name: figures for name, figures in report["test"].items() if name != last},
        "dev": {step: figures["success"] for step, figures in report["dev"].items()},
        **{key: report[key] for key in ("steps", "best_step", "compute", "seconds")},
    }


def measured(experiment: Experiment, trial: Trial, config: RunConfig) -> dict[str, Any]:
    """Evaluate a model or a script on the test tasks; broken off before, it begins anew."""
    arm, out = experiment.arms[trial.arm], run_folder(experiment, trial).with_name(f"{trial}.sqlite")
    out.parent.mkdir(parents=True, exist_ok=True)
    for leftover in out.parent.glob(f"{out.name}*"):
        leftover.unlink()
    model = config.model.name if arm.start else arm.model or None
    attempts = config.evaluation.test_attempts
    found = evaluate(
        config, model=model, policy=arm.policy or None, attempts=attempts, examples=arm.examples, out=out
    ).evaluation
    assert found is not None  # a recipe has at least one test task
    return of_test(found) | {"tested": "evaluation", "compute": {}, "seconds": {"test": round(found.seconds, 1)}}


def of_test(evaluation: Evaluation) -> dict[str, Any]:
    """Figures on the test tasks, and every attempt's success by task, for pairing."""
    return {"test": evaluation.summary(), "successes": {name: list(s) for name, s in evaluation.successes.items()}}


def tidied(experiment: Experiment, results: Mapping[Trial, Result]) -> None:
    """Delete checkpoints of finished trials that the paper does not keep and no unfinished trial begins with."""
    starts_of: dict[int, set[str]] = {}
    for trial in experiment.configs:
        arm = experiment.arms[trial.arm]
        while trial not in results and arm.start:  # an adapter needs the model that its own source began with, too
            starts_of.setdefault(trial.seed, set()).add(arm.start)
            arm = experiment.arms[arm.source]
    for trial, result in results.items():
        if experiment.arms[trial.arm].kind == "train":
            starts = starts_of.get(trial.seed, set())
            wanted = {0} if f"{trial.arm}{WARM_UP}" in starts else set()
            if experiment.paper.keep == "best" or trial.arm in starts:
                wanted.add(result["best_step"])
            prune(run_folder(experiment, trial) / "checkpoints", wanted)


def prune(checkpoints: Path, wanted: Collection[int]) -> None:
    """Only the models of the wanted steps stay: a finished run is not resumed."""
    for found in checkpoint.complete(checkpoints):
        with suppress(FileNotFoundError):  # another process of the same experiment was faster
            if found.step in wanted:
                (found.path / checkpoint.STATE).unlink()
            else:
                checkpoint.discard(found.path)
