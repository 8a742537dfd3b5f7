"""One RL step of multi-turn episodes: practicum against TRL; its sampler against generate() and vLLM; forest and rows.

Every comparison plays the same prompts, turns and numbers of sampled tokens on both sides, interleaved: ours, theirs,
ours, theirs … Each side is a process that stays alive and waits while the other works. A ratio says how many times
faster ours is, the median over pairs of runs; its interval is their least and greatest. What has been measured for the
same source is kept, so that a run that was broken off goes on.

Run: python benchmarks/rl_step.py --trl-python ENV/bin/python --vllm-python ENV/bin/python
TRL's environment is made with `pip install -r benchmarks/requirements-trl.txt`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from rl_step_curves import AXES, curves_of, draw
from rl_step_episodes import DEEP, DEMO, LONG, Size
from rl_step_workers import Worker, WorkerFailed, opened

from practicum.models.known import find
from practicum.runs.provenance import commit, now, provenance

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src" / "practicum"
ANSWER_WITHIN_S = 3600.0
WARM_UP = Size(tasks=1, attempts=2, turns=2, prompt=60, shared=30, said=4, told=30)
SINGLE = Size(tasks=1, attempts=16, turns=1, prompt=202, shared=130, said=64)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a worker, and what it is asked to do with a size."""

    worker: str
    does: Mapping[str, Any]


@dataclass(frozen=True)
class Comparison:
    """Two sides on episodes of one size."""

    size: Size
    theirs: Side
    least: float
    "How many times faster ours is meant to be."
    ours: Side = Side("ours", {"do": "step"})


def forest_against_rows(case: str, least: float) -> Comparison:
    """The trainer with itself, on a case of forest.py; the size only decides what is built around it."""
    asked = {"do": "update", "case": case}
    rows, forest = Side("ours", asked | {"forest": False}), Side("ours", asked | {"forest": True})
    return Comparison(WARM_UP, rows, least, forest)


TRL = Side("trl", {"do": "step"})
GENERATE = Side("trl", {"do": "generate"})
VLLM = Side("vllm", {"do": "sample"})
SAMPLE = Side("ours", {"do": "sample"})
COMPARISONS = {
    "trl_demo": Comparison(DEMO, TRL, 3.0),
    "trl_long": Comparison(LONG, TRL, 5.0),
    "generate_demo": Comparison(DEMO, GENERATE, 4.0, SAMPLE),
    "generate_long": Comparison(LONG, GENERATE, 8.0, SAMPLE),
    "vllm_single_16": Comparison(SINGLE, VLLM, 0.7, SAMPLE),
    "vllm_single_64": Comparison(replace(SINGLE, attempts=64), VLLM, 0.7, SAMPLE),
    "vllm_multi_16": Comparison(replace(DEMO, tasks=2), VLLM, 0.8, SAMPLE),
    "vllm_multi_64": Comparison(replace(DEMO, tasks=8), VLLM, 0.8, SAMPLE),
    "forest_demo": forest_against_rows("demo", 1.3),
    "forest_2000": forest_against_rows("2000", 4.0),
}
KEYS = (*COMPARISONS, "overhead", "peak_gb", "curves")


def main() -> None:
    """Measure what is asked for and missing; write the results and the picture."""
    options = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the workers are ended, too
    results: dict[str, Any] = json.loads(options.results.read_text()) if options.results.exists() else {}
    results["provenance"] = provenance()
    source = digest_of(SOURCE)
    try:
        for key in options.only or KEYS:
            if kept(results.get(key, {}), source, options):
                say(f"{key}: measured for this source already; --again measures it anew")
                continue
            began = time.perf_counter()
            results[key] = measured(key, options, results) | {
                "source": source,
                "commit": commit(),
                "measured": now(),
                "took_s": round(time.perf_counter() - began),
                "quick": options.quick,
            }
            write(options.results, results)
            say(f"{key}: {told(results[key])}")
    except KeyboardInterrupt:
        say("stopped; what was measured is kept, and the same command goes on")
        sys.exit(130)
    if "curves" in results and "ours" in results["curves"]:
        draw(results["curves"], options.results.with_suffix(".png"))


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer episodes, one run each, no curves of TRL")
    parser.add_argument("--only", nargs="+", choices=KEYS, metavar="KEY", help=f"of {', '.join(KEYS)}")
    parser.add_argument("--again", action="store_true", help="measure what has been measured, too")
    parser.add_argument("--runs", type=int, default=0, help="of each side; 3, or 1 with --quick")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "rl_step.json")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--set", action="append", default=[], help="a setting of our recipe, as for practicum")
    parser.add_argument("--trl-python", type=Path, help="Python of an environment with TRL")
    parser.add_argument("--trl-precision", choices=("autocast", "float32", "bfloat16"), default="autocast")
    parser.add_argument("--vllm-python", type=Path, help="Python of an environment with vLLM")
    parser.add_argument("--openmp", type=Path, help="libiomp5.so for both sides of vllm_*; that of vLLM's environment")
    parser.add_argument("--curve-seconds", type=float, default=240.0, help="a curve of TRL ends before a longer step")
    options = parser.parse_args()
    options.runs = options.runs or (1 if options.quick else 3)
    if options.openmp is None and options.vllm_python:
        found = sorted(options.vllm_python.parents[1].rglob("libiomp5.so"))
        options.openmp = found[0] if found else None
    return options


def kept(found: Mapping[str, Any], source: str, options: argparse.Namespace) -> bool:
    """True where a result needs no new measurement. A quick one does not stand for a whole one, nor a skipped one."""
    same = found.get("source") == source and "skipped" not in found and (options.quick or not found.get("quick"))
    return same and not options.again


def measured(key: str, options: argparse.Namespace, results: Mapping[str, Any]) -> dict[str, Any]:
    """One key's result; where it cannot be had, the reason."""
    try:
        if key in COMPARISONS:
            return compared(key, quick(COMPARISONS[key]) if options.quick else COMPARISONS[key], options)
        if key == "overhead":
            return overhead(options, results)
        if key == "peak_gb":
            return peaks(options, results)
        return curves(options)
    except WorkerFailed as failure:
        return {"skipped": str(failure)}


def quick(comparison: Comparison) -> Comparison:
    """The same with fewer tasks, those against vLLM as they are."""
    size = comparison.size
    whole = comparison.theirs.worker == "vllm"
    return comparison if whole else replace(comparison, size=replace(size, tasks=max(1, size.tasks // 4)))


def compared(key: str, comparison: Comparison, options: argparse.Namespace) -> dict[str, Any]:
    """Both sides in turn, after a small step each that is not counted."""
    ours, theirs = comparison.ours, comparison.theirs
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name in {ours.worker: 0, theirs.worker: 0}:
            workers[name] = stack.enter_context(started(name, options, with_openmp=theirs.worker == "vllm"))
        versions = workers[theirs.worker].ask({"do": "versions"}, ANSWER_WITHIN_S)
        for side in (ours, theirs):
            workers[side.worker].ask({**side.does, "size": WARM_UP.plain()}, ANSWER_WITHIN_S)
        runs: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
        for number in range(options.runs):
            for name, side in (("ours", ours), ("theirs", theirs)):
                found = workers[side.worker].ask({**side.does, "size": comparison.size.plain()}, ANSWER_WITHIN_S)
                runs[name].append(found)
                say(f"{key}: {name} {number + 1}/{options.runs}: {found['wall']:.1f} s")
    check_same_work(key, runs["ours"][0]["tokens"], runs["theirs"][0]["tokens"])
    ratios = [b["wall"] / a["wall"] for a, b in zip(runs["ours"], runs["theirs"], strict=True)]
    return {
        "ratio": median(ratios),
        "interval": [min(ratios), max(ratios)],
        "n": len(ratios),
        "least": comparison.least,
        "size": comparison.size.plain(),
        "theirs_are": versions,
        **{name: {"median_s": median(run["wall"] for run in found), "runs": found} for name, found in runs.items()},
    }


def check_same_work(key: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raise WorkerFailed where the two sides did not sample, or train on, the same number of tokens."""
    for name in {"sampled", "context", "rows", "row"} & ours.keys() & theirs.keys():
        if ours[name] != theirs[name]:
            raise WorkerFailed(f"{key}: unequal work, {name} tokens are {ours[name]} here and {theirs[name]} there")


def started(name: str, options: argparse.Namespace, with_openmp: bool = False) -> Any:
    """A worker, by its name. Raises WorkerFailed where its interpreter is missing."""
    folder = str(find(options.model).folder)
    python = {"ours": Path(sys.executable), "trl": options.trl_python, "vllm": options.vllm_python}[name]
    if python is None or not python.exists():
        raise WorkerFailed(f"there is no Python at {python}" if python else f"--{name}-python was not given")
    extra = {"trl": ["--precision", options.trl_precision]}.get(name, [])
    if name == "ours":
        extra = [word for setting in options.set for word in ("--set", setting)]
    environment = {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    if with_openmp and options.openmp:
        environment["LD_PRELOAD"] = str(options.openmp)
    return opened([str(python), str(HERE / f"rl_step_{name}.py"), folder, *extra], environment)


def overhead(options: argparse.Namespace, results: Mapping[str, Any]) -> dict[str, Any]:
    """The share of a step that is neither model nor environment: of the runs of trl_demo, or of new ones."""
    known = results.get("trl_demo", {})
    runs = known.get("ours", {}).get("runs", []) if known.get("source") == digest_of(SOURCE) else []
    if not runs:
        size = (quick(COMPARISONS["trl_demo"]) if options.quick else COMPARISONS["trl_demo"]).size
        with started("ours", options) as worker:
            worker.ask({"do": "step", "size": WARM_UP.plain()}, ANSWER_WITHIN_S)
            asked = {"do": "step", "size": size.plain()}
            runs = [worker.ask(asked, ANSWER_WITHIN_S) for _ in range(options.runs)]
    shares = [run["metrics"]["seconds/simulator"] / run["metrics"]["seconds"] for run in runs]
    others = [run["metrics"]["seconds/other"] / run["metrics"]["seconds"] for run in runs]
    seconds = {
        name.removeprefix("seconds/"): median(run["metrics"][name] for run in runs)
        for name in runs[0]["metrics"]
        if name.startswith("seconds/")
    }
    about = {"interval": [min(shares), max(shares)], "n": len(shares), "most": 0.05}
    return {"share": median(shares), **about, "share_other": median(others), "seconds": seconds}


def peaks(options: argparse.Namespace, results: Mapping[str, Any]) -> dict[str, Any]:
    """The most memory that a fresh process has resident: two demo steps, and one of a long prompt with 32 attempts."""
    found: dict[str, Any] = {"demo_most": 6.0, "deep_most": 10.0}
    sizes = {"demo": (DEMO, 2), "deep": (DEEP, 1)}
    for name, (size, steps) in sizes.items():
        size = replace(size, tasks=max(1, size.tasks // 4)) if options.quick else size
        with started("ours", options) as worker:
            answers = [worker.ask({"do": "step", "size": size.plain()}, ANSWER_WITHIN_S) for _ in range(steps)]
        found |= {name: answers[-1]["peak_gb"], f"{name}_s": answers[-1]["wall"], f"{name}_size": size.plain()}
        say(f"peak_gb: {name} {found[name]} GB")
    runs = results.get("trl_demo", {}).get("theirs", {}).get("runs", [])
    return found | ({"trl_demo": runs[-1]["peak_gb"]} if runs else {})


def curves(options: argparse.Namespace) -> dict[str, Any]:
    """Cost against turns, prompt and group size: ours, and TRL's as far as it ends in reasonable time."""

    def step(worker: Worker, size: Size) -> dict[str, Any]:
        found = worker.ask({"do": "step", "size": size.plain()}, ANSWER_WITHIN_S)
        say(f"curves: {size.turns} turns, prompt {size.prompt}, {size.attempts} attempts: {found['wall']:.1f} s")
        return found

    found: dict[str, Any] = {}
    for name, runs, most_s in (("ours", min(2, options.runs), 1e9), ("trl", 1, options.curve_seconds)):
        if name == "trl" and (options.quick or not options.trl_python):
            found["trl_skipped"] = "--quick was given" if options.quick else "--trl-python was not given"
            continue
        with started(name, options) as worker:
            step(worker, WARM_UP)
            axes = {axis: values[:-1] for axis, values in AXES.items()} if options.quick else AXES
            found[name] = curves_of(lambda size, worker=worker: step(worker, size), axes, runs, most_s)
    return found


def digest_of(folder: Path) -> str:
    """SHA-256 of all Python below a folder: a commit says too little while files are being changed."""
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def write(path: Path, results: Mapping[str, Any]) -> None:
    """The results as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(path)


def told(found: Mapping[str, Any]) -> str:
    """A result in a few words."""
    if "skipped" in found:
        return f"skipped: {found['skipped']}"
    if "ratio" in found:
        low, high = found["interval"]
        return f"{found['ratio']:.2f} times faster [{low:.2f}, {high:.2f}], n {found['n']}, wanted {found['least']}"
    numbers = {name: value for name, value in found.items() if isinstance(value, (int, float)) and value is not False}
    plain: Sequence[str] = [f"{name} {value}" for name, value in numbers.items()]
    return ", ".join(plain)


def say(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
