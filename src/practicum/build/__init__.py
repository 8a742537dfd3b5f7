"""From a recipe to parts that work: the one place that knows every adapter, each imported when it is needed."""

from __future__ import annotations

from practicum.build.learner import adapt, algorithm_of
from practicum.build.own import Recipe, Tasks, settled
from practicum.build.parts import parts_of, plan_of
from practicum.build.stages import (
    calls_of,
    endpoint_stage,
    local_sampler,
    model_stage,
    renderer_of,
    sampler_of,
    scripted_stage,
    stage_of,
    system_of,
    torch_needed,
)
from practicum.build.worlds import NOTHING, Own, check_expert, check_rewards, tasks_of, world

__all__ = [
    "NOTHING",
    "Own",
    "Recipe",
    "Tasks",
    "adapt",
    "algorithm_of",
    "calls_of",
    "check_expert",
    "check_rewards",
    "endpoint_stage",
    "local_sampler",
    "model_stage",
    "parts_of",
    "plan_of",
    "renderer_of",
    "sampler_of",
    "scripted_stage",
    "settled",
    "stage_of",
    "system_of",
    "tasks_of",
    "torch_needed",
    "world",
]
