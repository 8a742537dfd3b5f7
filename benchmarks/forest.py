"""What a forest saves: one update of SmolLM2-135M on trees of siblings and on the same rows apart, in turn.

Rows are made: random tokens in the lengths of retail's, siblings that share their prompt and part inside a turn.
Speed does not depend on what tokens say. Prints JSON: for each case seconds (medians), tokens, the ratio of rows to
forest, and how far the two gradients lie apart; the time exponent of longer episodes; peak memory of processes of
their own that hold weights, optimizer and a sampler's copy in bfloat16 and take one update.

Run: python benchmarks/forest.py [--rounds 5] [--model SmolLM2-135M-Instruct] [--only demo 2000 turns peak]
"""

import argparse
import json
import math
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import torch

from practicum.learning.algorithms import Knobs, loop
from practicum.learning.batches import Row
from practicum.learning.budget import tokens_at_once
from practicum.learning.forest import micro_batches, trees_of
from practicum.learning.policy import Policy, faster_with_autocast
from practicum.learning.trainer import Trainer
from practicum.learning.updater import UpdateSettings
from practicum.models.load import load_model
from practicum.models.memory import peak_bytes
from practicum.runs.provenance import provenance

WORDS = range(100, 49_000)
"Tokens to draw from."
MODEL = "SmolLM2-135M-Instruct"


def siblings(draw, group, attempts, prompt, turns, said=20, heard=32, alike=0.82):
    """Attempts of one group, each like another up to a place: on average a share `alike` of what follows the prompt."""
    rows, opening, length = [], words(draw, prompt), turns * (said + heard) - heard
    positions = tuple(prompt + turn * (said + heard) + n for turn in range(turns) for n in range(said))
    for n in range(attempts):
        place = prompt + int(length * draw.random() ** (1 / alike - 1)) if alike and rows else prompt
        begun = rows[draw.integers(len(rows))].tokens[:place] if rows else opening
        tokens = begun + words(draw, prompt + length - len(begun))
        logprobs, advantage = tuple(draw.normal(-1, 0.1, len(positions))), float(draw.normal())
        rows.append(
            Row(tokens, positions, logprobs, 1.0, group, n, (0,) * len(positions), (advantage,) * len(positions))
        )
    return rows


def words(draw, count):
    """So many random tokens."""
    return tuple(map(int, draw.integers(WORDS.start, WORDS.stop, count)))


def made(name):
    """The rows of a case: "demo" (a step of retail), "2000" and "4000" (tokens of prompt), "turns-N"."""
    draw = np.random.default_rng(0)
    if name == "demo":
        return [row for n in range(10) for row in siblings(draw, f"g{n}", 8, 210, 3)]
    if name == "2000":
        return siblings(draw, "g", 8, 2000, 3)
    if name == "4000":
        return siblings(draw, "g", 32, 4000, 4, said=30, heard=27, alike=0)
    turns = int(name.removeprefix("turns-"))
    return [row for n in range(32 // turns) for row in siblings(draw, f"g{n}", 1, 64, turns, said=32, heard=32)]


def apart(rows):
    """The same rows, each for itself."""
    return [replace(row, group="") for row in rows]


def trainer_of(model, autocast=None):
    """A trainer as a recipe's defaults make it; `autocast` None is measured."""
    fast = faster_with_autocast(model) if autocast is None else autocast
    settings = UpdateSettings(1e-6, 1, 0.01, 1.0, *tokens_at_once(model, 0))
    options = {"epochs": 1, "minibatches": 1, "shuffled_rewards": False, "seed": 0}
    return Trainer(Policy(model, fast), loop(Knobs()), settings, **options)


def seconds_of(trainer, rows):
    """One update."""
    began = time.perf_counter()
    trainer.update(rows)
    return time.perf_counter() - began


def compared(trainer, rows, rounds):
    """Forest and rows in turn, after one of each to warm up."""
    taken = {"forest": [], "rows": []}
    for _ in range(1 + rounds):
        taken["forest"].append(seconds_of(trainer, rows))
        taken["rows"].append(seconds_of(trainer, apart(rows)))
    medians = {name: float(np.median(seconds[1:])) for name, seconds in taken.items()}
    return {
        "seconds": medians,
        "ratio": medians["rows"] / medians["forest"],
        "row_tokens": sum(len(row.tokens) for row in rows),
        "unique_tokens": sum(map(len, trees_of(rows))),
        "rounds": rounds,
    }


def gradient(trainer, rows):
    """Of all parameters, in one vector; nothing is updated."""
    batches = micro_batches(trees_of(rows), trainer.settings.tokens_per_microbatch, trainer.settings.tokens_kept)
    for trees in batches:
        trainer.objective(trees, [row for tree in trees for row in tree.rows])[0].sum().backward()
    found = torch.cat([parameter.grad.flatten() for parameter in trainer.updater.parameters.values()])
    trainer.updater.optimizer.zero_grad(set_to_none=True)
    return found


def gap(trainer, rows):
    """Relative L2 distance of the gradient of a forest from that of its rows, in float32."""
    autocast, trainer.policy.trunk.autocast = trainer.policy.trunk.autocast, False
    ours, theirs = gradient(trainer, rows), gradient(trainer, apart(rows))
    trainer.policy.trunk.autocast = autocast
    return float((ours - theirs).norm() / theirs.norm())


def exponent(trainer, rounds):
    """How the time of an episode grows from 2 turns to 32, of 64 tokens each: 1 is in proportion."""
    taken = {turns: [] for turns in (2, 8, 32)}
    for _ in range(1 + rounds):
        for turns, seconds in taken.items():
            seconds.append(seconds_of(trainer, made(f"turns-{turns}")))  # of 32 / turns episodes
    medians = {turns: float(np.median(seconds[1:])) * turns / 32 for turns, seconds in taken.items()}
    return {"seconds_per_episode": medians, "exponent": math.log(medians[32] / medians[2]) / math.log(16)}


def peak(model, name):
    """In this process: one update on a case beside a sampler's copy; what the process ever held, in GB."""
    copy = [parameter.detach().bfloat16() for parameter in model.parameters()]
    trainer = trainer_of(model)
    seconds = seconds_of(trainer, made(name))
    unique = sum(map(len, trees_of(made(name))))
    return {"peak_gb": peak_bytes()["peak"] / 1e9, "seconds": seconds, "unique_tokens": unique, "copies": len(copy)}


def main():
    """All cases, or those named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--only", nargs="*", default=["demo", "2000", "turns", "peak"])
    parser.add_argument("--peak-of", help="measure the peak of one case in this process, and nothing else")
    options = parser.parse_args()
    if options.peak_of:
        print(json.dumps(peak(load_model(options.model), options.peak_of)))
        return
    found = {"provenance": provenance(), "model": options.model}
    if set(options.only) - {"peak"}:
        trainer = trainer_of(load_model(options.model))
        found["autocast"] = trainer.policy.trunk.autocast
    for name in ("demo", "2000"):
        if name in options.only:
            rows = made(name)
            found[f"forest_{name}"] = {**compared(trainer, rows, options.rounds), "gap": gap(trainer, rows[:3])}
    if "turns" in options.only:
        found["turns"] = exponent(trainer, options.rounds)
    if "peak" in options.only:
        for name in ("demo", "4000"):
            command = [sys.executable, __file__, "--model", options.model, "--peak-of", name]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[f"peak_{name}"] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
