"""The paper that describes a run: frozen dataclasses, TOML on disk, and the only home of defaults."""

from __future__ import annotations

import difflib
import math
import tomllib
import types
from collections.abc import Mapping, Sequence
from copy import deepcopy
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
    made: int = 0
    "So many fresh training tasks, made by the world, are practised in place of those of `train`; 0 means none."
    seed: int = 0
    "Of the split itself; another seed gives another split."
    digest: str = ""
    "Of tasks that a call brought: written by practicum, so that a run is resumed with its own; else empty."


SYSTEM = {
    "compact": "You serve the customers of a shop. Do what the customer asks, then end. Reply with one call only:",
    "other": "You serve the customers of a shop. Do what the customer asks by calling tools. "
    "When all is done, end with a short message without a call.",
}
"The default of agent.system: for the compact format, and for those in which words without a call end an episode."


@dataclass(frozen=True)
class AgentConfig:
    """The loop around the model."""

    kind: str = "tool_loop"
    system: str = "auto"
    "What the model is told before its tools; 'auto' is what suits the format, in SYSTEM."
    format: str = "auto"
    "How calls are written: 'compact', 'hermes', or 'auto' by the model's template; at an endpoint 'auto' is its own."
    patience: int = 3
    "Replies in a row that cannot be read before the agent gives up."


@dataclass(frozen=True)
class SamplerConfig:
    """What draws completions."""

    kind: str = "local"
    dtype: str = "auto"
    "bfloat16 where the processor has it, else float32; or one of the two by name."
    slots: int = 64
    "Contexts that are computed at once."
    memory_gb: float = 2.0
    "The most that keys and values of the local sampler take; what had to make room is computed again."
    deterministic: bool = False
    "What the local sampler draws does not depend, to the bit, on what else it draws or drew."
    weights: str = "process"
    "How vLLM gets them: in this 'process', or in one of its own through shared 'memory' or a 'folder'."
    url: str = ""
    "Of the endpoint: sampler.kind 'api', imitation.demonstrator 'api'."
    key_env: str = ""
    "Name of the environment variable that holds the endpoint's key; empty for an endpoint without one."
    request_seconds: float = 120.0
    "Deadline of one request to the endpoint."
    retry_seconds: float = 120.0
    "How long a request that failed for a moment (refused, 429, 500) is tried again."


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
    lockstep: bool = False
    "Episodes sample in rounds, each when the slowest has asked: a step collected again then gives the same tokens."
    turn_discount: float = 1.0
    "What is learned from an attempt is multiplied by this for every turn; below 1 it prefers the shorter of two ways."
    truncated_reward: float = 1.0
    "What is learned from an attempt that a limit cut short is multiplied by this; success as measured stays."
    rewards: Mapping[str, float] = field(default_factory=lambda: {"success": 1.0})
    "Weight of each named reward in the number learned from."


@dataclass(frozen=True)
class ImitationConfig:
    """Warm-up on demonstrations, by the environment's expert or by another model."""

    demonstrations: int = 32
    "How many training tasks are demonstrated; 0 leaves the warm-up out."
    demonstrator: str = "expert"
    "'expert', or 'api': what the endpoint's model did where it succeeded."
    model: str = ""
    "The endpoint's model."
    attempts: int = 4
    "How often it may try a task; a task at which it never succeeds is not demonstrated."
    learning_rate: float = 3e-5
    rows_per_update: int = 8
    epochs: int = 8
    "At most; it stops earlier when the dev demonstrations' loss no longer falls. 0 leaves the warm-up out."
    plateau: float = 0.02
    "An epoch that lowers the dev loss by less than this share is the last."
    warmup_updates: int = 4


@dataclass(frozen=True)
class TrainerConfig:
    """Online reinforcement learning from the verifier."""

    algorithm: str = "loop"
    learns_from: str = "reward"
    "'reward', or 'demonstrations': a control whose steps imitate the demonstrations further."
    steps: int = 10
    "0 means none: what the warm-up taught is tested."
    minutes: float = 0.0
    "No new step begins after this many minutes of reinforcement learning; 0 means no bound."
    budget: float = 0.0
    "No new step begins after so many forward-token passes; steps of imitation share it equally. 0 means no bound."
    tasks_per_step: int = 8
    replace_silent_groups: int = 0
    "At most so many further tasks are drawn in a step to replace groups without signal."
    learning_rate: float = 1.5e-5
    warmup_updates: int = 5
    "Updates over which the learning rate rises; a full first Adam step can ruin a policy."
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    clip: float = 0.1
    "How far a token's probability may move, as a ratio: [1 / (1 + clip), 1 + clip] in loop, 1 -+ clip in grpo and ppo."
    gamma: float = 1.0
    "Discount per sampled token (reinforce, ppo)."
    gae_lambda: float = 1.0
    "Of GAE (ppo): 1 trusts the outcome, 0 the critic."
    kl: float = 0.0
    "How strongly the policy is held near its reference; 0 needs no reference."
    kl_in: str = "loss"
    "Where: k3 on the 'loss' (as GRPO does), or k1 off the 'reward' of each token (as PPO and RLOO do)."
    reference: str = "start"
    "The policy at the 'start' of reinforcement learning, or the 'base' model as it comes."
    epochs: int = 1
    "Passes over a step's rows."
    minibatches: int = 1
    "Updates per pass; 1 is strictly on-policy."
    precision: str = "auto"
    "float32 weights; 'autocast' computes in bfloat16, 'float32' does not, 'auto' measures which is faster."
    tokens_per_microbatch: int = 0
    "Unique tokens that pass forward and backward together; 0 is what memory has room for and speed asks for."
    shuffled_rewards: bool = False
    "A control: rewards are dealt out at random among the attempts of a step; nothing can be learned."
    checkpoint_every: int = 5


@dataclass(frozen=True)
class CriticConfig:
    """The critic of `ppo`: a copy of the actor with one number as its head; under LoRA an adapter of its own."""

    learning_rate: float = 1e-4
    warmup_updates: int = 5
    warmup_steps: int = 0
    "So many first RL steps train the critic alone."
    clip: float = 0.5
    "How far a value may move in one step."


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters instead of training in full."""

    rank: int = 0
    "0 trains every parameter."
    alpha: float = 32.0
    "The adapter's output is scaled by alpha / rank."


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
    critic: CriticConfig = CriticConfig()
    lora: LoraConfig = LoraConfig()
    evaluation: EvaluationConfig = EvaluationConfig()


def load(recipe: Path | str | Mapping[str, Any], settings: Sequence[str] = ()) -> RunConfig:
    """Read a recipe, from a TOML file or from its sections as dicts, and apply `section.key=value` settings.

    Raises UserError naming file, key and what is known.
    """
    if isinstance(recipe, Mapping):
        table, path = deepcopy(dict(recipe)), Path("the recipe")
    else:
        table, path = read(Path(recipe)), Path(recipe)
    for setting in settings:
        apply(table, setting)
    source = " --set ".join([f"{path} with", *settings]) if settings else str(path)
    return checked(parsed(RunConfig, table, source, ""), source)


def read(path: Path) -> dict[str, Any]:
    """The table in a TOML file. Raises UserError."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"the recipe {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"the recipe {path} is not TOML: {error}") from None


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
    "tasks.train tasks.dev tasks.test agent.patience sampler.slots simulator.concurrency simulator.turns "
    "simulator.tokens_per_turn simulator.context_tokens imitation.attempts imitation.rows_per_update "
    "trainer.tasks_per_step trainer.epochs trainer.minibatches trainer.checkpoint_every "
    "evaluation.dev_attempts evaluation.test_attempts": 1,
    "tasks.made imitation.demonstrations imitation.epochs imitation.plateau imitation.warmup_updates trainer.steps "
    "trainer.minutes trainer.budget trainer.replace_silent_groups trainer.warmup_updates trainer.weight_decay "
    "trainer.kl trainer.gamma trainer.gae_lambda trainer.tokens_per_microbatch critic.warmup_updates "
    "critic.warmup_steps lora.rank evaluation.temperature": 0,
}
"The least value of a number that makes sense, by the names of those that share it."
POSITIVE = (
    "simulator.episode_seconds simulator.tool_seconds simulator.reset_seconds simulator.verify_seconds "
    "sampler.request_seconds sampler.retry_seconds imitation.learning_rate trainer.learning_rate trainer.max_grad_norm "
    "trainer.clip critic.learning_rate critic.clip "
    "lora.alpha"
)
"Numbers that must be above 0."
CHOICES = {
    "agent.kind": ("tool_loop", "own"),
    "agent.format": ("auto", "compact", "hermes"),
    "sampler.kind": ("local", "vllm", "api"),
    "imitation.demonstrator": ("expert", "api"),
    "sampler.dtype": ("auto", "bfloat16", "float32"),
    "sampler.weights": ("process", "memory", "folder"),
    "trainer.learns_from": ("reward", "demonstrations"),
    "trainer.precision": ("auto", "autocast", "float32"),
    "trainer.kl_in": ("loss", "reward"),
    "trainer.reference": ("start", "base"),
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
        *(
            (value(name) > 1, f"{name} must be at most 1, found {value(name)}")
            for name in ("trainer.gamma", "trainer.gae_lambda")
        ),
        *endpoint_mistakes(config),
        (
            config.sampler.weights != SamplerConfig.weights and config.sampler.kind != "vllm",
            "sampler.weights would have no effect: only sampler.kind 'vllm' reads it",
        ),
        (any(step < 0 for step in config.evaluation.dev_steps), "evaluation.dev_steps are RL steps, from 0 upwards"),
        (
            config.imitation.demonstrations > (practised := config.tasks.made or config.tasks.train),
            f"imitation.demonstrations is "
            f"{config.imitation.demonstrations}, but only {practised} training tasks can be demonstrated",
        ),
        (
            config.trainer.learns_from == "demonstrations" and not config.imitation.demonstrations,
            "trainer.learns_from is 'demonstrations', but imitation.demonstrations is 0: there are none to learn from",
        ),
        (
            not (config.trainer.steps or config.evaluation.base or warms_up(config)),
            "trainer.steps is 0, there is no warm-up and evaluation.base is false: nothing would be measured",
        ),
    ]
    for is_wrong, reason in wrong:
        if is_wrong:
            raise UserError(f"{source}: {reason}")
    return config


def warms_up(config: RunConfig) -> bool:
    """True where a run begins with imitation."""
    return bool(config.imitation.demonstrations and config.imitation.epochs)


def endpoint_mistakes(config: RunConfig) -> list[tuple[bool, str]]:
    """What is wrong between the settings of an endpoint and those who use it."""
    sampler, imitation, local = config.sampler, config.imitation, SamplerConfig()
    shown = imitation.demonstrations > 0 and imitation.demonstrator == "api"
    by_whom = "sampler.kind" if sampler.kind == "api" else "imitation.demonstrator"
    idle = [key for key in ("dtype", "slots") if getattr(sampler, key) != getattr(local, key)]
    return [
        (
            not sampler.url and (sampler.kind == "api" or shown),
            f"{by_whom} is 'api', which needs sampler.url, such as http://127.0.0.1:8000/v1",
        ),
        (
            shown and not imitation.model,
            "imitation.demonstrator is 'api', which needs imitation.model, the name that the endpoint knows it by",
        ),
        (
            sampler.kind == "api" and bool(idle),
            f"sampler.{' and sampler.'.join(idle)} would have no effect: the endpoint decides, sampler.kind is 'api'",
        ),
    ]


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
