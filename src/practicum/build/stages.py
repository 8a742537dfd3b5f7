"""What episodes have in common: tokens, samplers, limits, and who speaks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.build.worlds import NOTHING, Own, world
from practicum.config import SYSTEM, RunConfig
from practicum.environments.tools import Toolbox
from practicum.errors import MissingExtra, UserError
from practicum.sampling.formats import CallFormat, CompactCalls
from practicum.sampling.hermes import HermesCalls, hermes_of
from practicum.sampling.renderer import ByteTokenizer, ChatML, Renderer
from practicum.sampling.sampler import MessageSampler, Sampler
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.episode import Stage
from practicum.simulator.recorder import Limits
from practicum.types import Message

if TYPE_CHECKING:
    from practicum.sampling.local.sampler import LocalSampler
    from practicum.sampling.vllm import VllmSampler


def renderer_of(config: RunConfig, scripted: bool) -> Renderer:
    """Tokens of the recipe's model; a scripted policy needs no model and speaks in bytes."""
    tokenizer = None
    if not scripted:
        from practicum.models.load import load_tokenizer

        tokenizer = load_tokenizer(config.model.name)
    return ChatML(tokenizer or ByteTokenizer(), calls_of(config, tokenizer.chat_template if tokenizer else ""))


def calls_of(config: RunConfig, template: str) -> CallFormat:
    """How calls are written: as the recipe says, else in the Hermes form where a model's template has tools in it."""
    form = config.agent.format
    if form == "auto":
        form = "hermes" if "<tool_call>" in template and "<tools>" in template else "compact"
    return CompactCalls() if form == "compact" else hermes_of(template)


def system_of(config: RunConfig, calls: CallFormat) -> str:
    """What an agent is told first: as the recipe says, else what suits the format."""
    if config.agent.system != "auto":
        return config.agent.system
    return SYSTEM["compact" if isinstance(calls, CompactCalls) else "other"]


def stage_of(
    config: RunConfig,
    sampler: Sampler | MessageSampler,
    renderer: Renderer,
    temperature: float,
    examples: Sequence[Message] = (),
    own: Own = NOTHING,
) -> Stage:
    """What all episodes have in common; `examples` come before each request."""
    from practicum.agents.tool_loop import ToolLoop

    simulator = config.simulator
    limits = Limits(
        turns=simulator.turns,
        tokens_per_turn=simulator.tokens_per_turn,
        context_tokens=simulator.context_tokens,
        seconds=simulator.episode_seconds,
        tool_seconds=simulator.tool_seconds,
        reset_seconds=simulator.reset_seconds,
        verify_seconds=simulator.verify_seconds,
    )
    return Stage(
        open_environment=world(config, own).open,
        agent=own.agent or ToolLoop(system_of(config, renderer.calls), config.agent.patience, tuple(examples)),
        sampler=sampler,
        renderer=renderer,
        limits=limits,
        temperature=temperature,
        seed=config.seed,
        reward_weights=config.simulator.rewards,
        turn_discount=config.simulator.turn_discount,
        truncated_reward=config.simulator.truncated_reward,
    )


def scripted_stage(config: RunConfig, own: Own = NOTHING, renderer: Renderer | None = None) -> Stage:
    """A stage for scripted policies, who speak through the default loop whatever agent is brought; no model is loaded.

    They speak in bytes, unless a renderer says otherwise.
    """
    looped = replace(config, agent=replace(config.agent, kind="tool_loop"))
    renderer = renderer or renderer_of(config, scripted=True)
    return stage_of(looped, ScriptedSampler([]), renderer, 1.0, own=replace(own, agent=None))


def local_sampler(config: RunConfig, model: Any) -> LocalSampler:
    """The torch sampler over a copy of `model`."""
    from practicum.sampling.local.sampler import LocalSampler

    context = min(config.simulator.context_tokens, model.config.max_position_embeddings)
    asked = config.sampler
    return LocalSampler(
        model,
        slots=asked.slots,
        context_length=context,
        dtype=asked.dtype,
        memory_gb=asked.memory_gb,
        exact=asked.deterministic,
    )


def sampler_of(config: RunConfig, model: Any) -> LocalSampler | VllmSampler:
    """The sampler of the recipe over a copy of `model`: vLLM's, or the torch one."""
    if config.sampler.kind != "vllm":
        return local_sampler(config, model)
    from practicum.sampling.vllm import VllmSampler

    asked, context = config.sampler, min(config.simulator.context_tokens, model.config.max_position_embeddings)
    return VllmSampler(model, slots=asked.slots, context_length=context, dtype=asked.dtype, weights=asked.weights)


def check_installed(config: RunConfig) -> None:
    """Raise MissingExtra, before models are loaded, where the recipe asks for vLLM and it is not there."""
    from practicum.sampling import vllm

    if config.sampler.kind == "vllm":
        vllm.check_installed()


@contextmanager
def torch_needed() -> Iterator[None]:
    """A missing torch, transformers or safetensors becomes the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in {"torch", "transformers", "safetensors"}:
            raise MissingExtra(error.name, "train") from None
        raise


def model_stage(config: RunConfig, name: str, examples: Sequence[Message] = (), own: Own = NOTHING) -> Stage:
    """A stage in which a model speaks: a known name, a folder, a run folder (its best checkpoint), or an endpoint's.

    The examples come on top of the recipe's context. Raises UserError where the model has not so much.
    """
    if config.sampler.kind == "api":
        return endpoint_stage(config, name, config.evaluation.temperature, examples, own)
    check_installed(config)
    with torch_needed():
        from practicum.models.load import load_model

        name = trained_model(name)
        named = replace(config, model=replace(config.model, name=name))
        model, renderer = load_model(name, "auto"), renderer_of(named, scripted=False)
        check_vocabulary(name, renderer, model)
        if examples:
            tools = Toolbox(world(config, own).open()).specs
            shown = len(renderer.opening(examples, tools)) - len(renderer.opening((), tools))
            wanted, most = (
                config.simulator.context_tokens + shown,
                model.config.get_text_config().max_position_embeddings,
            )
            if wanted > most:
                raise UserError(
                    f"the examples take {shown} tokens, which with simulator.context_tokens = "
                    f"{config.simulator.context_tokens} is more than the {most} that {name} can read; show fewer"
                )
            named = replace(named, simulator=replace(config.simulator, context_tokens=wanted))
        return stage_of(named, sampler_of(named, model), renderer, config.evaluation.temperature, examples, own)


def endpoint_stage(
    config: RunConfig, model: str, temperature: float, examples: Sequence[Message] = (), own: Own = NOTHING
) -> Stage:
    """A stage in which an endpoint's model speaks. Raises UserError for a key that the environment does not hold."""
    from practicum.sampling.api import ApiSampler

    asked = config.sampler
    key = os.environ.get(asked.key_env, "") if asked.key_env else ""
    if asked.key_env and not key:
        raise UserError(
            f"the environment variable {asked.key_env}, which sampler.key_env names, is not set; put the endpoint's "
            "key there, or leave sampler.key_env out for an endpoint that needs none"
        )
    calls = None if config.agent.format == "auto" else calls_of(config, "")
    sampler = ApiSampler(
        asked.url, model, key, calls=calls, request_seconds=asked.request_seconds, retry_seconds=asked.retry_seconds
    )
    return stage_of(config, sampler, ChatML(ByteTokenizer(), calls or HermesCalls()), temperature, examples, own)


def demonstrator_of(config: RunConfig, stage: Stage, own: Own = NOTHING) -> Any:
    """Who shows how tasks are done: tasks -> trajectories in the tokens of `stage`."""
    from practicum.simulator.demonstrate import shown_by_expert, shown_by_model

    imitation, simulator = config.imitation, config.simulator
    if imitation.demonstrator == "expert":
        return partial(shown_by_expert, stage)
    ask = partial(endpoint_stage, config, imitation.model, simulator.temperature, own=own)
    return partial(shown_by_model, stage, ask, imitation.attempts, simulator.concurrency)


def check_vocabulary(name: str, renderer: Renderer, model: Any) -> None:
    """Raise UserError where a model cannot have been trained on this renderer's tokens."""
    tokenizer: Any = renderer.tokenizer  # type: ignore[attr-defined]
    known, used = model.config.get_text_config().vocab_size, tokenizer.vocabulary_size
    if used > known:
        raise UserError(
            f"the tokenizer of {name} has {used} tokens, its model only {known}: they do not belong together; "
            "give the folder the tokenizer.json that the model was trained with"
        )
    if isinstance(tokenizer, ByteTokenizer) and known >= 2 * used:
        raise UserError(
            f"{name} has no tokenizer.json, so bytes would be its tokens, but its model has a vocabulary of {known}; "
            "give the folder the tokenizer.json that the model was trained with"
        )


def trained_model(name: str) -> str:
    """The best model of a run folder, else the name as it is. Raises UserError for a run without checkpoints."""
    from practicum.runs.run import CONFIG, Run

    if not (Path(name) / CONFIG).is_file():
        return name
    best = Run.open(name).best_checkpoint()
    if best is None:
        raise UserError(f"the run {name} has no checkpoint yet; name another run, or a model")
    return str(best.path / "model")
