"""From a config to parts that work: the one place that knows every adapter, each imported when it is needed."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.config import RunConfig, as_toml
from practicum.environments.environment import Environment
from practicum.errors import MissingExtra, UserError
from practicum.sampling.formats import CompactCalls
from practicum.sampling.renderer import ByteTokenizer, ChatML, Renderer
from practicum.sampling.sampler import Sampler
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.episode import Stage
from practicum.simulator.recorder import Limits
from practicum.types import Task, stream_seed

if TYPE_CHECKING:
    from practicum.runs.run import Run
    from practicum.tracking.tracker import Tracker
    from practicum.training import Parts, Plan

Splits = Mapping[str, Sequence[Task]]


@dataclass(frozen=True)
class World:
    """A kind of environment with the tasks it has."""

    open: Callable[[], Environment]
    splits: Callable[[int, int, int, int], Splits]
    "(train, dev, test, seed) -> disjoint task sets."


def world(config: RunConfig) -> World:
    """The environment of a recipe. Raises UserError for an unknown kind or option."""
    kind, options = config.environment.kind, dict(config.environment.options)
    if kind == "retail":
        from practicum.environments import retail, retail_tasks

        check_options(retail.Retail, kind, options)
        levels = options.get("levels", retail.BUILT_LEVELS)
        retail.Retail(**options)
        return World(
            open=lambda: retail.Retail(**options),
            splits=lambda train, dev, test, seed: retail_tasks.splits(levels, train, dev, test, seed),
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
    """The recipe's three splits."""
    tasks = config.tasks
    return world(config).splits(tasks.train, tasks.dev, tasks.test, tasks.seed)


def tasks_in(config: RunConfig, path: Path) -> tuple[RunConfig, Any]:
    """Tasks of a user's file (an object with tasks, skipped, invalid), and the config whose world can play them.

    Whatever level is built is read; the tools shown are those of the recipe's levels and of the levels found.
    Raises UserError for a broken file, or a world that reads none.
    """
    if config.environment.kind != "retail":
        raise UserError(f"the {config.environment.kind} environment reads no files of tasks; leave --tasks out")
    from practicum.environments import retail, retail_tasks

    rows = retail_tasks.sort_rows(retail_tasks.read_rows(path), retail.BUILT_LEVELS)
    options = dict(config.environment.options)
    levels = {*options.get("levels", retail.BUILT_LEVELS), *(task.data["level"] for task in rows.tasks)}
    options["levels"] = sorted(levels)
    return replace(config, environment=replace(config.environment, options=options)), rows


def renderer_of(config: RunConfig, scripted: bool) -> Renderer:
    """Tokens of the recipe's model; a scripted policy needs no model and speaks in bytes."""
    tokenizer = None
    if not scripted:
        from practicum.models.load import load_tokenizer

        tokenizer = load_tokenizer(config.model.name)
    return ChatML(tokenizer or ByteTokenizer(), CompactCalls())


def stage_of(config: RunConfig, sampler: Sampler, renderer: Renderer, temperature: float) -> Stage:
    """What all episodes have in common."""
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
        agent=ToolLoop(config.agent.system),
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


def local_sampler(config: RunConfig, model: Any) -> Sampler:
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


def model_stage(config: RunConfig, name: str) -> Stage:
    """A stage in which a model speaks: a known name, a model folder, or a run folder (its best checkpoint)."""
    with torch_needed():
        from practicum.models.load import load_model

        name = trained_model(name)
        named = replace(config, model=replace(config.model, name=name))
        model, renderer = load_model(name), renderer_of(named, scripted=False)
        check_vocabulary(name, renderer, model)
        return stage_of(named, local_sampler(named, model), renderer, config.evaluation.temperature)


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
    from practicum.training import Plan

    trainer, evaluation = config.trainer, config.evaluation
    return Plan(
        steps=trainer.steps,
        minutes=trainer.minutes,
        tasks_per_step=trainer.tasks_per_step,
        replace_silent_groups=trainer.replace_silent_groups,
        group_size=config.simulator.group_size,
        concurrency=config.simulator.concurrency,
        demonstrations=config.imitation.demonstrations,
        dev_steps=evaluation.dev_steps,
        dev_attempts=evaluation.dev_attempts,
        test_attempts=evaluation.test_attempts,
        evaluation_temperature=evaluation.temperature,
        measure_base=evaluation.base,
        checkpoint_every=trainer.checkpoint_every,
    )


@contextmanager
def begun(folder: Path, config_toml: str) -> Iterator[Run]:
    """A new run folder; when building fails before there is anything to store, it is taken back."""
    from practicum.runs.run import Run

    with Run.create(folder, config_toml) as run:
        try:
            yield run
        finally:
            if not run.database.exists():
                run.discard()


@contextmanager
def parts_of(config: RunConfig, folder: Path) -> Iterator[Parts]:
    """Everything a training run needs, closed again at the end. Raises UserError before work begins."""
    with torch_needed():
        from practicum.models.load import load_model
        from practicum.training import Parts
    if importlib.util.find_spec("matplotlib") is None:  # it draws the report: too late to hear of it then
        raise MissingExtra("matplotlib", "train")
    from practicum.curriculum.curriculum import Curriculum
    from practicum.learning.algorithms import algorithm
    from practicum.runs.database import Database
    from practicum.tracking.console import Console
    from practicum.tracking.jsonl import JsonLines

    chosen = algorithm(config.trainer.algorithm, config.trainer.clip)
    splits = tasks_of(config)
    check_rewards(config, splits["train"][0])
    with ExitStack() as opened:
        console = opened.enter_context(Console())
        run = opened.enter_context(begun(folder, as_toml(config)))
        with console.phase(f"loading {config.model.name}"):
            model = load_model(config.model.name)
            renderer = renderer_of(config, scripted=False)
            check_vocabulary(config.model.name, renderer, model)
            trainer = trainer_of(config, model, chosen)
            sampler = local_sampler(config, model)
        database = opened.enter_context(Database(run.database))
        console.say(f"run folder: {folder}")
        console.say(f"trainer: float32 weights, {'bfloat16 autocast' if trainer.policy.autocast else 'float32'}")
        lines = JsonLines(run.metrics)
        opened.callback(lines.close)
        trackers: list[Tracker] = [console, lines]
        yield Parts(
            run=run,
            database=database,
            trackers=trackers,
            console=console,
            stage=stage_of(config, sampler, renderer, config.simulator.temperature),
            sampler=sampler,
            trainer=trainer,
            curriculum=Curriculum(splits["train"], config.seed),
            splits=splits,
            warm_up=warm_up_of(config, trainer.policy),
            base_weights=lambda: trainer.numbered(load_model(config.model.name)),
            stored_weights=lambda path: trainer.numbered(load_model(path / "model")),
        )


def trainer_of(config: RunConfig, model: Any, chosen: Any) -> Any:
    """Actor and optimizer; 'auto' precision is measured on this machine."""
    from practicum.learning.policy import Policy, faster_with_autocast
    from practicum.learning.trainer import Trainer
    from practicum.models.load import load_tokenizer

    precision = config.trainer.precision
    autocast = faster_with_autocast(model) if precision == "auto" else precision == "autocast"
    return Trainer(
        Policy(model, autocast),
        chosen,
        update_settings(config, config.trainer.learning_rate, config.trainer.warmup_updates),
        epochs=config.trainer.epochs,
        minibatches=config.trainer.minibatches,
        shuffled_rewards=config.trainer.shuffled_rewards,
        seed=stream_seed(config.seed, "trainer"),
        tokenizer=load_tokenizer(config.model.name),
    )


def update_settings(config: RunConfig, learning_rate: float, warmup_updates: int) -> Any:
    """How gradients become steps, for warm-up or reinforcement."""
    from practicum.learning.trainer import UpdateSettings

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
