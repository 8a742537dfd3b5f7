"""From a config to parts that work: the one place that knows every adapter, each imported when it is needed."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.config import SYSTEM, CriticConfig, RunConfig, TrainerConfig, as_toml, warms_up
from practicum.environments.environment import Environment
from practicum.environments.tools import Toolbox
from practicum.errors import MissingExtra, UserError
from practicum.sampling.formats import CallFormat, CompactCalls
from practicum.sampling.hermes import HermesCalls, hermes_of
from practicum.sampling.renderer import ByteTokenizer, ChatML, Renderer
from practicum.sampling.sampler import MessageSampler, Sampler
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.episode import Stage
from practicum.simulator.recorder import Limits
from practicum.types import Message, Task, stream_seed

if TYPE_CHECKING:
    from practicum.learning.algorithms import Algorithm
    from practicum.learning.trainer import Trainer
    from practicum.runs.run import Run
    from practicum.sampling.local.sampler import LocalSampler
    from practicum.tracking.tracker import Tracker
    from practicum.plan import Plan
    from practicum.training import Parts

Splits = Mapping[str, Sequence[Task]]


@dataclass(frozen=True)
class World:
    """A kind of environment with the tasks it has."""

    open: Callable[[], Environment]
    splits: Callable[[int, int, int, int], Splits]
    "(train, dev, test, seed) -> disjoint task sets."
    made: Callable[[int, int, Splits], Sequence[Task]] | None = None
    "(n, seed, splits) -> further training tasks, none of which is in the splits; None for a world that makes none."


def world(config: RunConfig) -> World:
    """The environment of a recipe. Raises UserError for an unknown kind or option."""
    kind, options = config.environment.kind, dict(config.environment.options)
    if kind == "retail":
        from practicum.environments import retail, retail_tasks

        check_options(retail.Retail, kind, options)
        shop = retail.Retail(**options)
        return World(
            open=lambda: retail.Retail(**options),
            splits=lambda train, dev, test, seed: retail_tasks.splits(
                shop.levels, train, dev, test, seed, strict=shop.strict
            ),
            made=lambda n, seed, splits: retail_tasks.generate(
                n,
                stream_seed("made", seed),
                retail_tasks.training_users(splits),
                shop.levels,
                known=[task for tasks in splits.values() for task in tasks],
                strict=shop.strict,
            ),
        )
    if kind == "tiny":
        from practicum.environments import tiny

        check_options(tiny.Lamps, kind, options)
        return World(open=tiny.Lamps, splits=tiny.splits)
    raise UserError(f"environment.kind {kind!r} is unknown; known: retail, tiny")


def check_options(cls: type, kind: str, options: Mapping[str, Any]) -> None:
    """Raise UserError for an option that the environment's constructor does not take."""
    known = [name for name in inspect.signature(cls).parameters if name != "self"]
    for name in options:
        if name not in known:
            raise UserError(
                f"unknown key environment.{name} for kind {kind!r}; known here: {', '.join(['kind', *known])}"
            )


def tasks_of(config: RunConfig) -> Splits:
    """The recipe's three splits; its fresh tasks, where it asks for some, in place of the first one."""
    tasks, place = config.tasks, world(config)
    splits = place.splits(tasks.train, tasks.dev, tasks.test, tasks.seed)
    if not tasks.made:
        return splits
    if place.made is None:
        raise UserError(f"tasks.made: the {config.environment.kind} environment makes no tasks; leave it out")
    return {**splits, "train": place.made(tasks.made, tasks.seed, splits)}


def tasks_in(config: RunConfig, path: Path) -> tuple[RunConfig, Any]:
    """Tasks of a user's file (an object with tasks, skipped, invalid), and the config whose world can play them.

    Whatever level is built is read; the tools shown are those of the recipe's levels and of the levels found.
    Raises UserError for a broken file, or a world that reads none.
    """
    if config.environment.kind != "retail":
        raise UserError(f"the {config.environment.kind} environment reads no files of tasks; leave --tasks out")
    from practicum.environments import retail, retail_rows

    world(config)  # a mistake in the recipe is told before the file is read
    options = dict(config.environment.options)
    shop = retail.Retail(**options)
    rows = retail_rows.sort_rows(retail_rows.read_rows(path), strict=shop.strict)
    options["levels"] = sorted({*shop.levels, *retail_rows.levels_needed(rows.tasks)})
    return replace(config, environment=replace(config.environment, options=options)), rows


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
        open_environment=world(config).open,
        agent=ToolLoop(system_of(config, renderer.calls), tuple(examples)),
        sampler=sampler,
        renderer=renderer,
        limits=limits,
        temperature=temperature,
        seed=config.seed,
        reward_weights=config.simulator.rewards,
        turn_discount=config.simulator.turn_discount,
        truncated_reward=config.simulator.truncated_reward,
    )


def scripted_stage(config: RunConfig) -> Stage:
    """A stage for scripted policies: no model is loaded."""
    return stage_of(config, ScriptedSampler([]), renderer_of(config, scripted=True), 1.0)


def local_sampler(config: RunConfig, model: Any) -> LocalSampler:
    """The torch sampler over a copy of `model`."""
    from practicum.sampling.local.sampler import LocalSampler

    context = min(config.simulator.context_tokens, model.config.max_position_embeddings)
    return LocalSampler(model, slots=config.sampler.slots, context_length=context, dtype=config.sampler.dtype)


@contextmanager
def torch_needed() -> Iterator[None]:
    """A missing torch, transformers or safetensors becomes the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in {"torch", "transformers", "safetensors"}:
            raise MissingExtra(error.name, "train") from None
        raise


def model_stage(config: RunConfig, name: str, examples: Sequence[Message] = ()) -> Stage:
    """A stage in which a model speaks: a known name, a folder, a run folder (its best checkpoint), or an endpoint's.

    The examples come on top of the recipe's context. Raises UserError where the model has not so much.
    """
    if config.sampler.kind == "api":
        return endpoint_stage(config, name, config.evaluation.temperature, examples)
    with torch_needed():
        from practicum.models.load import load_model

        name = trained_model(name)
        named = replace(config, model=replace(config.model, name=name))
        model, renderer = load_model(name, "auto"), renderer_of(named, scripted=False)
        check_vocabulary(name, renderer, model)
        if examples:
            tools = Toolbox(world(config).open()).specs
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
        return stage_of(named, local_sampler(named, model), renderer, config.evaluation.temperature, examples)


def endpoint_stage(config: RunConfig, model: str, temperature: float, examples: Sequence[Message] = ()) -> Stage:
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
    return stage_of(config, sampler, ChatML(ByteTokenizer(), calls or HermesCalls()), temperature, examples)


def demonstrator_of(config: RunConfig, stage: Stage) -> Any:
    """Who shows how tasks are done: tasks -> trajectories in the tokens of `stage`."""
    from functools import partial

    from practicum.simulator.demonstrate import shown_by_expert, shown_by_model

    imitation, simulator = config.imitation, config.simulator
    if imitation.demonstrator == "expert":
        return partial(shown_by_expert, stage)
    ask = partial(endpoint_stage, config, imitation.model, simulator.temperature)
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


def check_rewards(config: RunConfig, task: Task) -> None:
    """Raise UserError where the recipe weighs a reward that the environment's verifier does not give."""
    environment = world(config).open()
    try:
        environment.reset(task)
        given = environment.verify(task.secret)
    finally:
        environment.close()
    if unknown := sorted(config.simulator.rewards.keys() - given.keys()):
        raise UserError(
            f"simulator.rewards names {', '.join(unknown)}; {config.environment.kind} gives {', '.join(given)}"
        )


def plan_of(config: RunConfig) -> Plan:
    """The numbers of the loop."""
    from practicum.plan import Plan

    trainer, evaluation = config.trainer, config.evaluation
    return Plan(
        steps=trainer.steps,
        minutes=trainer.minutes,
        budget=trainer.budget,
        learns_from=trainer.learns_from,
        rows_per_update=config.imitation.rows_per_update,
        tasks_per_step=trainer.tasks_per_step,
        replace_silent_groups=trainer.replace_silent_groups,
        group_size=config.simulator.group_size,
        concurrency=config.simulator.concurrency,
        lockstep=config.simulator.lockstep,
        demonstrations=config.imitation.demonstrations,
        warms_up=warms_up(config),
        dev_steps=evaluation.dev_steps,
        dev_attempts=evaluation.dev_attempts,
        test_attempts=evaluation.test_attempts,
        evaluation_temperature=evaluation.temperature,
        measure_base=evaluation.base,
        checkpoint_every=trainer.checkpoint_every,
    )


@contextmanager
def begun(folder: Path, config_toml: str, resume: bool) -> Iterator[Run]:
    """A new run folder; when building fails before there is anything to store, it is taken back.

    With `resume` one that is there already. Raises UserError, with the difference, where it is of another recipe.
    """
    from practicum.runs.run import Run

    if resume:
        with Run.open(folder, writing=True) as run:
            if changed := changes(run.config.read_text(encoding="utf-8"), config_toml):
                raise UserError(
                    f"{folder} is a run of another recipe, and can only be resumed with its own; "
                    f"in the run (-) and in the recipe now (+):\n{changed}"
                )
            yield run
        return
    with Run.create(folder, config_toml) as run:
        try:
            yield run
        finally:
            if not run.database.exists():
                run.discard()


def changes(before: str, now: str) -> str:
    """Lines that differ between two recipes, with the headings of their sections; empty where none does."""
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), n=100, lineterm=""))[3:]
    return "\n".join(line for line in lines if line[:1] in "+-" or line.startswith(" [")) if lines else ""


@contextmanager
def parts_of(config: RunConfig, folder: Path, resume: bool = False) -> Iterator[Parts]:
    """Everything a training run needs, closed again at the end. Raises UserError before work begins."""
    with torch_needed():
        from practicum.models.load import load_model
        from practicum.training import Parts
    if importlib.util.find_spec("matplotlib") is None:  # it draws the report: too late to hear of it then
        raise MissingExtra("matplotlib", "train")
    from practicum.curriculum.curriculum import Curriculum
    from practicum.runs.database import Database
    from practicum.tracking.console import Console
    from practicum.tracking.jsonl import JsonLines

    if config.sampler.kind != "local":
        raise UserError(
            "sampler.kind is 'api': which tokens an endpoint samples is not known, so that its model can be measured "
            "(practicum evaluate) and copied from (imitation.demonstrator = 'api'), but not trained; train with 'local'"
        )
    chosen = algorithm_of(config)
    splits = tasks_of(config)
    check_rewards(config, splits["train"][0])
    with ExitStack() as opened:
        console = opened.enter_context(Console())
        run = opened.enter_context(begun(folder, as_toml(config), resume))
        with console.phase(f"loading {config.model.name}"):
            model = load_model(config.model.name)
            renderer = renderer_of(config, scripted=False)
            check_vocabulary(config.model.name, renderer, model)
            adapt(config, model)
            trainer = trainer_of(config, model, chosen)
            sampler = local_sampler(config, model)
            as_it_comes = trainer.policy.copied() if config.lora.rank else None  # beside a frozen base: small
        database = opened.enter_context(Database(run.database))
        console.say(f"run folder: {folder}")
        console.say(f"trainer: float32 weights, {'bfloat16 autocast' if trainer.policy.trunk.autocast else 'float32'}")
        lines = JsonLines(run.metrics)
        opened.callback(lines.close)
        trackers: list[Tracker] = [console, lines]
        stage = stage_of(config, sampler, renderer, config.simulator.temperature)
        yield Parts(
            run=run,
            database=database,
            trackers=trackers,
            console=console,
            stage=stage,
            demonstrate=demonstrator_of(config, stage),
            sampler=sampler,
            trainer=trainer,
            curriculum=Curriculum(splits["train"], config.seed),
            splits=splits,
            warm_up=warm_up_of(config, trainer.policy),
            base_weights=lambda: trainer.numbered(as_it_comes or learned_by(load_model(config.model.name))),
            stored_weights=lambda path: trainer.numbered(learned_by(load_model(path / "model"))),
            passes=lambda: trainer.passes + sampler.counts["prefilled"] + sampler.counts["decoded"],
        )


def adapt(config: RunConfig, model: Any) -> None:
    """Freeze the model under a new adapter where the recipe asks for one."""
    from practicum.models.adapter import add_adapter, has_adapter

    if not config.lora.rank:
        return
    if has_adapter(model):
        raise UserError(
            f"{config.model.name} is an adapter already, and is trained on as it is; leave [lora] out, or name its base"
        )
    add_adapter(model, config.model.name, config.lora.rank, config.lora.alpha, stream_seed(config.seed, "lora"))


def learned_by(model: Any) -> dict[str, Any]:
    """The parameters of a model that learn, by name: all, or its adapter's."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def algorithm_of(config: RunConfig) -> Algorithm:
    """The recipe's algorithm. Raises UserError for settings that it would not read."""
    from practicum.learning.algorithms import Knobs, algorithm

    trainer = config.trainer
    chosen = algorithm(trainer.algorithm, Knobs(trainer.clip, trainer.gamma, trainer.gae_lambda))
    default, names = TrainerConfig(), {"clip": "clip", "gamma": "gamma", "lam": "gae_lambda"}
    ignored = [
        f"trainer.{key}"
        for knob, key in names.items()
        if knob not in chosen.knobs and getattr(trainer, key) != getattr(default, key)
    ]
    if config.critic != CriticConfig() and not chosen.needs_critic:
        ignored.append("[critic]")
    if not trainer.kl:
        of_leash = ("kl_in", "reference")
        ignored += [f"trainer.{key}" for key in of_leash if getattr(trainer, key) != getattr(default, key)]
    if ignored:
        raise UserError(
            f"{', '.join(ignored)} would have no effect: trainer.algorithm is {chosen.name!r} and trainer.kl "
            f"{trainer.kl:g}; leave it out, or choose what uses it"
        )
    return chosen


def trainer_of(config: RunConfig, model: Any, chosen: Algorithm) -> Trainer:
    """Actor, critic, reference and their optimizers; 'auto' precision is measured on this machine."""
    from practicum.learning.critic import Critic
    from practicum.learning.policy import Policy, faster_with_autocast
    from practicum.learning.trainer import CriticSettings, Leash, Trainer
    from practicum.models.load import load_tokenizer

    trainer, critic = config.trainer, config.critic
    autocast = faster_with_autocast(model) if trainer.precision == "auto" else trainer.precision == "autocast"
    built = Trainer(
        Policy(model, autocast),
        chosen,
        update_settings(config, trainer.learning_rate, trainer.warmup_updates),
        epochs=trainer.epochs,
        minibatches=trainer.minibatches,
        shuffled_rewards=trainer.shuffled_rewards,
        seed=stream_seed(config.seed, "trainer"),
        tokenizer=load_tokenizer(config.model.name),
        leash=Leash(trainer.kl, in_reward=trainer.kl_in == "reward"),
        critic=CriticSettings(
            Critic(model, autocast),
            update_settings(config, critic.learning_rate, critic.warmup_updates),
            critic.clip,
            critic.warmup_steps,
        )
        if chosen.needs_critic
        else None,
    )
    if trainer.reference == "base":
        built.refer()
    return built


def update_settings(config: RunConfig, learning_rate: float, warmup_updates: int) -> Any:
    """How gradients become steps, for warm-up or reinforcement."""
    from practicum.learning.updater import UpdateSettings

    trainer = config.trainer
    return UpdateSettings(
        learning_rate, warmup_updates, trainer.weight_decay, trainer.max_grad_norm, trainer.tokens_per_microbatch
    )


def warm_up_of(config: RunConfig, policy: Any) -> Any:
    """Imitation with the recipe's settings."""
    from functools import partial

    from practicum.learning.imitation import imitate

    imitation = config.imitation
    return partial(
        imitate,
        policy,
        settings=update_settings(config, imitation.learning_rate, imitation.warmup_updates),
        rows_per_update=imitation.rows_per_update,
        epochs=imitation.epochs,
        plateau=imitation.plateau,
        seed=stream_seed(config.seed, "imitation"),
    )
