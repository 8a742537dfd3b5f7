"""Arms times seeds: do what is not finished, keep each result as it ends, and the table of them all."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.errors import MissingExtra, PracticumError, UserError
from practicum.tracking.console import Console, clock_time
from practicum.verbs.arms import Experiment, Trial, read
from practicum.verbs.tabling import write_table
from practicum.verbs.trials import Result, done, finished, run_folder, starting_point, tidied

POLL_S = 0.1
"Between two looks at the processes."


def experiment(
    file: Path,
    folder: str | Path | None = None,
    *,
    jobs: int = 1,
    only: Collection[str] = (),
    seeds: Collection[int] = (),
    find_recipe: Callable[[Path], Path] = Path,
) -> tuple[Path, dict[str, Any]]:
    """Do an experiment's unfinished trials, up to `jobs` at once; returns the folder of the results and their table.

    `only` and `seeds` choose among arms and seeds; what those start from is done, too. Where a trial fails, the others
    go on, and at the end PracticumError says which failed and why. Raises UserError, before anything is done, for a
    mistake in the file. KeyboardInterrupt passes and says where it stands: the same call goes on.

    Example: experiment(Path("benchmarks/experiments/headline.toml"), only=["rl"], seeds=[0])
    """
    if folder == "":
        raise UserError("--folder is empty; name the folder of results and runs, or leave --folder out")
    if jobs < 1:
        raise UserError(f"--jobs must be at least 1, found {jobs}")
    paper = read(file, Path(folder) if folder else None, find_recipe)
    chosen = paper.chosen(only, seeds)
    if importlib.util.find_spec("matplotlib") is None:  # it draws the table: too late to hear of it then
        raise MissingExtra("matplotlib", "train")
    results = paper.folder / "results"
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the results cannot be kept in {results}: {error.strerror or error}; name another --folder"
        ) from None
    work = Work(paper, chosen, finished(paper), {}, Console())
    for trial in work.left():
        if (source := paper.arms[trial.arm].source) and (there := work.results.get(Trial(trial.seed, source))):
            starting_point(paper, trial, there)
    if work.left():
        work.console.say(f"{file}: {work.standing}")
    try:
        (one_by_one if jobs == 1 else side_by_side)(work, jobs)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{work.standing}; the same command goes on from there") from None
    finally:
        # What other processes of the same experiment finished meanwhile is in the table, too.
        work.results.update(finished(paper))
        found = write_table(paper, work.results) if work.results else {}
    if work.failed:
        reasons = "".join(f"\n  {trial}: {reason}" for trial, reason in work.failed.items())
        raise PracticumError(f"{work.standing}; the same command tries those that failed again:{reasons}")
    return results, found


@dataclass(frozen=True)
class Work:
    """Where an experiment stands; what it remembers changes as trials end."""

    paper: Experiment
    chosen: Sequence[Trial]
    results: dict[Trial, Result]
    failed: dict[Trial, str]
    "Trial to reason, also of those that could not be begun because of another."
    console: Console

    def left(self) -> list[Trial]:
        """Chosen trials that are neither finished nor failed."""
        return [trial for trial in self.chosen if trial not in self.results and trial not in self.failed]

    def ready(self) -> list[Trial]:
        """Those of them that can begin; what waits for a failed one is failed, too."""
        for trial in self.left():
            if lost := [str(need) for need in self.paper.needed(trial) if need in self.failed]:
                self.failed[trial] = f"needs {', '.join(lost)}"
        return [t for t in self.left() if all(need in self.results for need in self.paper.needed(t))]

    @property
    def standing(self) -> str:
        """In words. Example: "3 of 15 trials are finished, in runs/headline/results"."""
        count = sum(trial in self.results for trial in self.chosen)
        text = f"{count} of {len(self.chosen)} trials are finished, in {self.paper.folder / 'results'}"
        return text + (f"; {len(self.failed)} failed" if self.failed else "")

    def ended(self, trial: Trial, result: Result) -> None:
        """A trial is finished: say so, write the table, delete checkpoints that nobody needs any more."""
        self.results[trial] = result
        tidied(self.paper, self.results)
        write_table(self.paper, self.results)
        left_s = expected_s(self.left(), self.results)
        rest = "" if left_s is None or not self.left() else f", about {clock_time(left_s)} of work left"
        self.console.say(f"{trial}: success {result['test']['success']:.1%}; {self.standing}{rest}")

    def lost(self, trial: Trial, reason: str) -> None:
        """A trial failed: say so; it is tried again by the next call."""
        self.failed[trial] = reason
        self.console.say(f"{trial} failed: {reason}")


def expected_s(left: Sequence[Trial], results: Mapping[Trial, Result]) -> float | None:
    """Seconds for trials, one after another, each as its arm's finished ones or else as all; None where none is."""
    hours = [result["hours"] for result in results.values()]
    if not hours:
        return None
    total = 0.0
    for trial in left:
        of_arm = [result["hours"] for t, result in results.items() if t.arm == trial.arm] or hours
        total += sum(of_arm) / len(of_arm)
    return 3600 * total


def one_by_one(work: Work, jobs: int) -> None:
    """All in this process."""
    while ready := work.ready():
        trial = ready[0]
        work.console.say(f"{trial}: begins")
        try:
            result = done(work.paper, trial, work.results)
        except PracticumError as error:
            work.lost(trial, str(error))
        else:
            work.ended(trial, result)


def side_by_side(work: Work, jobs: int) -> None:
    """Each in a process of its own, which runs the same command for one arm and seed; Ctrl-C is passed on."""
    running: dict[Trial, subprocess.Popen[bytes]] = {}
    try:
        while running or work.ready():
            for trial in [trial for trial in work.ready() if trial not in running][: jobs - len(running)]:
                work.console.say(f"{trial}: begins, its progress is in {log_of(work, trial)}")
                running[trial] = started(work, trial, jobs)
            time.sleep(POLL_S)
            for trial, process in list(running.items()):
                if process.poll() is not None:
                    del running[trial]
                    result = finished(work.paper).get(trial)
                    if result is None:
                        work.lost(trial, reason_in(log_of(work, trial), process.returncode))
                    else:
                        work.ended(trial, result)
    finally:
        for process in running.values():
            process.send_signal(signal.SIGINT)
        for process in running.values():
            process.wait()


def started(work: Work, trial: Trial, jobs: int) -> subprocess.Popen[bytes]:
    """A process for one trial, with its share of the cores, whose output goes to a file."""
    threads = int(os.environ.get("OMP_NUM_THREADS", "0") or 0) or len(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "practicum.cli.main", "experiment", str(work.paper.file)]
    command += ["--folder", str(work.paper.folder), "--only", trial.arm, "--seed", str(trial.seed), "--json"]
    log = log_of(work, trial)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=os.environ | {"OMP_NUM_THREADS": str(max(1, threads // jobs))},
            start_new_session=True,  # a terminal's Ctrl-C reaches it once, through this process
        )


def log_of(work: Work, trial: Trial) -> Path:
    """Where a trial's process writes."""
    return run_folder(work.paper, trial).with_name(f"{trial}.log")


def reason_in(log: Path, code: int) -> str:
    """Why a trial's process failed: the last message in what it wrote, else its exit code."""
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit code {code}; the end of {log}: {said[-1] if said else 'it wrote nothing'}"
