"""The paper that describes a run: frozen dataclasses, TOML on disk, and the only home of defaults."""

from __future__ import annotations

import difflib
import math
import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from practicum.errors import UserError

C = TypeVar("C")


@dataclass(frozen=True)
class ModelConfig:
    """The model that learns."""

    name: str = "SmolLM2-135M-Instruct"
    "A known model's name, a folder, or a hub id."


@dataclass(frozen=True)
class EnvironmentConfig:
    """The world that is practised in; further keys are options of that world and checked by it."""

    kind: str = "retail"
    options: Mapping[str, Any] = field(default_factory=dict)
    "Written beside `kind`; for retail: levels = [1]."


@dataclass(frozen=True)
class TasksConfig:
    """The three splits, disjoint by id, by user and by content."""

    train: int = 72
    "Tasks that are practised."
    dev: int = 40
    "Tasks by which a checkpoint is chosen."
    test: int = 160
    "Tasks read once, at the end."
    seed: int = 0
    "Of the split itself; another seed gives another split."


@dataclass(frozen=True)
class AgentConfig:
    """The loop around the model."""

    kind: str = "tool_loop"
    system: str = "You serve the customers of a shop. Do what the customer asks, then end. Reply with one call only:"
    "What the model is told before its tools."


@dataclass(frozen=True)
class SamplerConfig:
    """What draws completions."""

    kind: str = "local"
    dtype: str = "auto"
    "bfloat16 where the processor has it, else float32; or one of the two by name."
    slots: int = 64
    "Contexts whose keys and values are kept at once."


@dataclass(frozen=True)
class SimulatorConfig:
    """How episodes are played."""

    group_size: int = 8
    "Attempts at one task; group advantages need at least 2."
    concurrency: int = 64
    "Episodes at once."
    temperature: float = 1.0
    turns: int = 8
    "Model calls in one episode."
    tokens_per_turn: int = 88
    context_tokens: int = 896
    episode_seconds: float = 120.0
    tool_seconds: float = 30.0
    reset_seconds: float = 60.0
    verify_seconds: float = 60.0
    turn_discount: float = 1.0
    "What is learned from an attempt is multiplied by this for every turn; below 1 it prefers the shorter of two ways."
    truncated_reward: float = 1.0
    "What is learned from an attempt that a limit cut short is multiplied by this; success as measured stays."
    rewards: Mapping[str, float] = field(default_factory=lambda: {"success": 1.0})
    "Weight of each named reward in the number learned from."


@dataclass(frozen=True)
class ImitationConfig:
    """Warm-up on demonstrations by the environment's expert."""

    demonstrations: int = 32
    "How many training tasks are demonstrated; 0 leaves the warm-up out."
    learning_rate: float = 3e-5
    rows_per_update: int = 8
    epochs: int = 8
    "At most; it stops earlier when the dev demonstrations' loss no longer falls."
    plateau: float = 0.02
    "An epoch that lowers the dev loss by less than this share is the last."
    warmup_updates: int = 4


@dataclass(frozen=True)
class TrainerConfig:
    """Online reinforcement learning from the verifier."""

    algorithm: str = "loop"
    steps: int = 10
    minutes: float = 0.0
    "No new step begins after this many minutes of reinforcement learning; 0 means no bound."
    tasks_per_step: int = 8
    replace_silent_groups: int = 0
    "At most so many further tasks are drawn in a step to replace groups without signal."
    learning_rate: float = 1.5e-5
    warmup_updates: int = 5
    "Updates over which the learning rate rises; a full first Adam step can ruin a policy."
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    clip: float = 0.1
    "Token ratios are clipped to [1 / (1 + clip), 1 + clip]."
    epochs: int = 1
    "Passes over a step's rows."
    minibatches: int = 1
    "Updates per pass; 1 is strictly on-policy."
    precision: str = "auto"
    "float32 weights; 'autocast' computes in bfloat16, 'float32' does not, 'auto' measures which is faster."
    tokens_per_microbatch: int = 1024
    shuffled_rewards: bool = False
    "A control: rewards are dealt out at random among the attempts of a step; nothing can be learned."
    checkpoint_every: int = 5


@dataclass(frozen=True)
class EvaluationConfig:
    """When dev is measured, and how test is."""

    temperature: float = 1.0
    "What success is measured at; 0 is greedy."
    dev_steps: Sequence[int] = (0, 5, 10)
    "RL steps after which dev is measured; the last step always is."
    dev_attempts: int = 2
    test_attempts: int = 1
    base: bool = True
    "Measure the model as it comes, too."


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run. Example: load("recipes/retail.toml", ["trainer.steps=30"])."""

    seed: int = 0
    model: ModelConfig = ModelConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    tasks: TasksConfig = TasksConfig()
    agent: AgentConfig = AgentConfig()
    sampler: SamplerConfig = SamplerConfig()
    simulator: SimulatorConfig = SimulatorConfig()
    imitation: ImitationConfig = ImitationConfig()
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()


def load(path: Path | str, settings: Sequence[str] = ()) -> RunConfig:
    """Read a recipe and apply `section.key=value` settings. Raises UserError naming file, key and what is known."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the recipe {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the recipe {path} is not TOML: {error}") from None
    for setting in settings:
        apply(table, setting)
    source = " --set ".join([f"{path} with", *settings]) if settings else str(path)
    return checked(parsed(RunConfig, table, source, ""), source)


def apply(table: dict[str, Any], setting: str) -> None:
    """Write one `section.key=value` into a table; a value that is not TOML is taken as text."""
    name, equals, value = setting.partition("=")
    if not equals or not all(part.strip() for part in name.split(".")):
        raise UserError(f"--set needs section.key=value, found {setting!r}")
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        found = value
    *sections, key = name.strip().split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {setting}: {section} is not a section")
    table[key] = found


def parsed(cls: type[C], table: Mapping[str, Any], source: str, section: str) -> C:
    """A dataclass from a table, every key known and of the right type. Raises UserError."""
    hints = get_type_hints(cls)
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    if cls is EnvironmentConfig:
        options = {key: value for key, value in table.items() if key != "kind"}
        table = {key: value for key, value in table.items() if key == "kind"} | {"options": options}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{section}.{key}" if section else key
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
            raise UserError(f"{source}: unknown key {name}; {hint}")
        if is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise UserError(f"{source}: {name} is a section, found {value!r}; write [{name}]")
            values[key] = parsed(hints[key], value, source, name)
        else:
            values[key] = typed(value, hints[key], f"{source}: {name}")
    missing = [n for n, f in known.items() if n not in values and f.default is MISSING and f.default_factory is MISSING]
    if missing:
        raise UserError(f"{source}: {section or 'the recipe'} needs {', '.join(missing)}")
    return cls(**values)


def typed(value: Any, hint: Any, where: str) -> Any:
    """The value as the field's type; whole numbers pass as float. Raises UserError."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else typed(value, arguments[0], where)
    if origin is not None and issubclass(origin, Mapping):
        if isinstance(value, Mapping):
            return {str(key): typed(item, arguments[1], f"{where}.{key}") for key, item in value.items()}
    elif origin is not None and issubclass(origin, Sequence):
        if isinstance(value, (list, tuple)):
            return tuple(typed(item, arguments[0], where) for item in value)
    elif hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise UserError(f"{where} needs a finite number, found {value}")
        return float(value)
    elif isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise UserError(f"{where} needs {getattr(hint, '__name__', hint)}, found {value!r}")


LEAST = {
    "tasks.train tasks.dev tasks.test sampler.slots simulator.concurrency simulator.turns simulator.tokens_per_turn "
    "simulator.context_tokens imitation.rows_per_update imitation.epochs trainer.tasks_per_step trainer.epochs "
    "trainer.minibatches trainer.tokens_per_microbatch trainer.checkpoint_every evaluation.dev_attempts "
    "evaluation.test_attempts": 1,
    "imitation.demonstrations imitation.plateau imitation.warmup_updates trainer.steps trainer.minutes "
    "trainer.replace_silent_groups trainer.warmup_updates trainer.weight_decay evaluation.temperature": 0,
}
"The least value of a number that makes sense, by the names of those that share it."
POSITIVE = (
    "simulator.episode_seconds simulator.tool_seconds simulator.reset_seconds simulator.verify_seconds "
    "imitation.learning_rate trainer.learning_rate trainer.max_grad_norm trainer.clip"
)
"Numbers that must be above 0."
CHOICES = {
    "agent.kind": ("tool_loop",),
    "sampler.kind": ("local",),
    "sampler.dtype": ("auto", "bfloat16", "float32"),
    "trainer.precision": ("auto", "autocast", "float32"),
}


def checked(config: RunConfig, source: str) -> RunConfig:
    """Settings that make no sense, alone or together. Raises UserError with the reason."""

    def value(name: str) -> Any:
        section, key = name.split(".")
        return getattr(getattr(config, section), key)

    least = [(name, bound) for names, bound in LEAST.items() for name in names.split()]
    wrong = [
        *(
            (value(name) not in known, f"{name} {value(name)!r} is unknown; known: {', '.join(known)}")
            for name, known in CHOICES.items()
        ),
        (
            config.simulator.group_size < 2,
            f"simulator.group_size must be at least 2, found {config.simulator.group_size}: "
            "an attempt is compared with others",
        ),
        (
            config.simulator.temperature <= 0,
            "simulator.temperature must be above 0 in training: log-probs must be those "
            "of the distribution sampled from",
        ),
        *(
            (not 0 <= value(name) <= 1, f"{name} must lie between 0 and 1, found {value(name)}")
            for name in ("simulator.turn_discount", "simulator.truncated_reward")
        ),
        *((value(name) < bound, f"{name} must be at least {bound}, found {value(name)}") for name, bound in least),
        *((value(name) <= 0, f"{name} must be above 0, found {value(name)}") for name in POSITIVE.split()),
        (any(step < 0 for step in config.evaluation.dev_steps), "evaluation.dev_steps are RL steps, from 0 upwards"),
        (
            config.imitation.demonstrations > config.tasks.train,
            f"imitation.demonstrations is "
            f"{config.imitation.demonstrations}, but only {config.tasks.train} training tasks can be demonstrated",
        ),
    ]
    for is_wrong, reason in wrong:
        if is_wrong:
            raise UserError(f"{source}: {reason}")
    return config


def as_table(config: RunConfig) -> dict[str, Any]:
    """The config as nested plain tables, options beside their kind, every default written out."""
    table = asdict(config)
    environment = table["environment"]
    table["environment"] = {"kind": environment["kind"], **environment["options"]}
    return table


def as_toml(config: RunConfig) -> str:
    """The resolved config as TOML, ready to be read again by `load`."""
    import tomli_w

    return tomli_w.dumps(as_table(config))
