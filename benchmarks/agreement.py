"""Do sampler and trainer agree on sampled tokens, given the same weights?

Plays episodes of a recipe with its sampler, scores the very tokens with the trainer, and compares log-probs:
in float32 they should be equal to rounding; in bfloat16 the mean k3 (exp(d) - 1 - d, d = trainer - sampler) says how
far the policy that is trained is from the one that sampled.

Run: python benchmarks/agreement.py recipes/retail.toml --model runs/NAME/checkpoints/step-000000/model
"""

import argparse
import asyncio
import json
from dataclasses import replace
from functools import partial

import torch

from practicum import build, config
from practicum.learning.batches import rows_of
from practicum.learning.forest import micro_batches, trees_of
from practicum.learning.policy import Policy
from practicum.learning.trainer import column
from practicum.models.load import load_model
from practicum.runs.provenance import provenance
from practicum.simulator.collect import collect
from practicum.simulator.episode import run_episode


async def sampled_rows(recipe, model, temperature, tasks, attempts):
    """Rows of a few groups, as they are sampled now."""
    sampler = build.sampler_of(recipe, model)
    stage = build.stage_of(recipe, sampler, build.renderer_of(recipe, scripted=False), temperature)
    chosen = build.tasks_of(recipe)["train"][:tasks]
    groups = [group async for group in collect(chosen, attempts, partial(run_episode, stage), concurrency=64)]
    await sampler.close()
    return [row for group in groups for t in group.valid for row in rows_of(t, group.id)]


def gaps(policy, rows):
    """Trainer's log-prob less the recorded one, for every sampled token."""
    found = []
    with torch.no_grad():
        for trees in micro_batches(trees_of(rows), 2048):
            batch = [row for tree in trees for row in tree.rows]
            logprobs_P = policy.score(trees).logprobs_P
            found.append(logprobs_P - column(batch, "logprobs", logprobs_P))
    return torch.cat(found).double()


def main() -> None:
    """One line of JSON: for each precision and temperature the number of tokens, mean |difference|, worst, mean k3."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("--model")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--attempts", type=int, default=4)
    parser.add_argument("--set", action="append", default=[], help="a setting, as for practicum")
    options = parser.parse_args()
    source = provenance()
    recipe = config.load(options.recipe, options.set)
    recipe = replace(recipe, model=replace(recipe.model, name=options.model or recipe.model.name))
    model = load_model(recipe.model.name)
    results = {}
    for dtype, autocast in (("float32", False), ("bfloat16", True)):
        for temperature in (0.7, 1.0, 1.3):
            precise = replace(recipe, sampler=replace(recipe.sampler, dtype=dtype))
            rows = asyncio.run(sampled_rows(precise, model, temperature, options.tasks, options.attempts))
            gaps_P = gaps(Policy(model, autocast), rows)
            results[f"{dtype} {temperature}"] = {
                "tokens": len(gaps_P),
                "mean_abs": float(gaps_P.abs().mean()),
                "max_abs": float(gaps_P.abs().max()),
                "mean_k3": float((gaps_P.exp() - 1 - gaps_P).mean()),
            }
    about = {"model": recipe.model.name, "recipe": options.recipe, "provenance": source}
    print(json.dumps({**about, **results}, indent=2))


if __name__ == "__main__":
    main()
