"""What travels through practicum: frozen records, no behaviour beyond what follows from their own fields.

Axes used in names: T tokens of one completion, N turns of one trajectory, G trajectories of one group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
StopReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class Task:
    """One thing an agent can be asked to do.

    Example:
        Task(id="retail_train_0", prompt="Return #W6067464 via credit_card_4190576: Electric Kettle; Wall Clock; ",
             data={"user_id": "omar_anderson_3203"}, secret={"changes": [...], "actions": [...]})
    """

    id: str
    "Stable and unique within a task set; results of two runs are paired by it."
    prompt: str
    "What the agent is told."
    scenario_id: str = ""
    "Tasks that are variants of one another share it; empty means the task is a scenario of its own."
    data: Mapping[str, Any] = field(default_factory=dict)
    "For the environment and the agent (an agent may read it)."
    secret: Mapping[str, Any] = field(default_factory=dict)
    "For `verify` and `solve` only; never within an agent's reach."


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed action: ToolCall("get_order", {"order_id": "#W6067464"}, id="call_0_1")."""

    name: str
    arguments: Mapping[str, Any]
    id: str = ""
    "Minted by the recorder; it anchors later messages to the turn that made the call."


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """What a model is told about a tool."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    "JSON schema of the arguments: {'type': 'object', 'properties': {...}, 'required': [...]}, in signature order."


@dataclass(frozen=True, slots=True)
class Message:
    """What is said, in the chat vocabulary every framework shares.

    Example: Message("assistant", 'get_order("#W6067464")', tool_calls=(ToolCall("get_order", {...}, "call_0_1"),))
    """

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    "Assistant only."
    tool_call_id: str = ""
    "Tool only: the call that this answers."
    problem: str = ""
    "Assistant only: why no action could be read from the content; what the model is to be told."


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one completion is drawn."""

    temperature: float = 1.0
    "0 means greedy; refused in training, where log-probs must be those of the distribution sampled from."
    max_tokens: int = 256
    stop_tokens: tuple[int, ...] = ()
    "Any of these ends the completion and is its last token."
    seed: int = 0
    "The random stream of this call alone: results do not depend on what else is sampled beside it."


@dataclass(frozen=True, slots=True)
class Completion:
    """What a sampler returned, in tokens as sampled.

    Example: Completion(tokens=(28, 41, 2), logprobs=(-0.1, -1.2, -0.01), versions=(3, 3, 3), stop_reason="stop")
    """

    tokens: tuple[int, ...]
    "Shape (T,)."
    logprobs: tuple[float, ...]
    "Shape (T,), nats, under the distribution really sampled from (after temperature and noise)."
    versions: tuple[int, ...]
    "Shape (T,): the weight version that sampled each token."
    stop_reason: StopReason
    counted: int = 0
    "How many tokens an endpoint says there were, where it does not say which; 0 where `tokens` holds them."

    @property
    def size(self) -> int:
        """Sampled tokens, known or only counted."""
        return len(self.tokens) or self.counted

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.logprobs) == len(self.versions):
            raise ValueError(
                f"a completion needs one log-prob and one version per token, found {len(self.tokens)} tokens, "
                f"{len(self.logprobs)} log-probs, {len(self.versions)} versions"
            )


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call: what it added to the context, and what was sampled there.

    The context of a call is its chain of turns, so storage stays linear in the number of turns.
    Example: turn 0 continues None and adds system prompt and request; turn 1 continues 0 and adds only the
    tool's result. After a compaction turn 2 continues None: a new row begins there.
    """

    index: int
    "Position in the trajectory, in the order in which calls started."
    continues: int | None
    "Index of the turn whose context this one extends; None where a context begins."
    added: tuple[int, ...]
    "Tokens that this call put behind the turn it continues, up to where sampling began."
    completion: Completion
    messages: tuple[Message, ...]
    "The same as `added`, as messages."
    action: Message
    "The same as `completion`, parsed."
    policy: str = "agent"
    "Name of the role that spoke, for several roles in one agent."
    sampling: SamplingParams = SamplingParams()
    observation_key: str = ""
    "Digest of `messages`, what the agent was newly told before it acted: for step-level credit."
    rewards: Mapping[str, float] = field(default_factory=dict)
    "Rewards paid for this step, by name."
    seconds: Mapping[str, float] = field(default_factory=dict)
    "Timings by name: 'sample' is waiting for the sampler, 'tool' the tool calls that followed."
    delivered: bool = True
    "False for an answer that the client never received: it is stored, never trained."


class Ending(StrEnum):
    """How an attempt ended. Discard only what the policy cannot have caused."""

    FINISHED = "finished"
    OUT_OF_TURNS = "out_of_turns"
    OUT_OF_TOKENS = "out_of_tokens"
    TIMED_OUT = "timed_out"
    AGENT_FAILED = "agent_failed"
    TOOL_CRASHED = "tool_crashed"
    ENVIRONMENT_FAILED = "environment_failed"
    VERIFIER_FAILED = "verifier_failed"
    SAMPLER_FAILED = "sampler_failed"

    @property
    def discarded(self) -> bool:
        """True when the attempt says nothing about the policy and is left out of every statistic."""
        return self in {Ending.ENVIRONMENT_FAILED, Ending.VERIFIER_FAILED, Ending.SAMPLER_FAILED}

    @property
    def truncated(self) -> bool:
        """True when a limit cut the attempt short; it is verified as it stands."""
        return self in {Ending.OUT_OF_TURNS, Ending.OUT_OF_TOKENS, Ending.TIMED_OUT}


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt at one task, from reset to verdict.

    Example: Trajectory("retail_train_0", attempt=3, turns=(...), ending=Ending.FINISHED, answer="",
                        rewards={"success": 1.0})
    """

    task_id: str
    attempt: int
    turns: tuple[Turn, ...]
    "Shape (N,)."
    ending: Ending
    answer: str = ""
    rewards: Mapping[str, float] = field(default_factory=dict)
    "What the verifier said, by name; empty when discarded. 'success' is 1.0 where the task was done."
    reward: float = 0.0
    "The one number learned from: the named rewards, weighted as the recipe says."
    scenario_id: str = ""
    seconds: float = 0.0
    error: str = ""
    "Traceback of what ended the attempt, word for word; empty when nothing failed."

    def __post_init__(self) -> None:
        for position, turn in enumerate(self.turns):
            if turn.index != position or (turn.continues is not None and not 0 <= turn.continues < position):
                raise ValueError(
                    f"turn {position} of {self.task_id} has index {turn.index}, continues {turn.continues}"
                )

    @property
    def success(self) -> float:
        """1.0 where the verifier says that the task was done."""
        return float(self.rewards.get("success", 0.0))

    def context(self, index: int) -> tuple[int, ...]:
        """Tokens the model saw before turn `index` sampled: the chain of turns it continues, then what it added."""
        chain: list[Turn] = []
        step: int | None = index
        while step is not None:
            chain.append(self.turns[step])
            step = self.turns[step].continues
        tokens: list[int] = []
        for turn in reversed(chain):
            tokens += turn.added
            if turn.index != index:
                tokens += turn.completion.tokens
        return tuple(tokens)


@dataclass(frozen=True, slots=True)
class Group:
    """Several attempts at one task; group statistics are over `valid`, whatever its size and order."""

    id: str
    task_id: str
    trajectories: tuple[Trajectory, ...]
    "Shape (G,)."

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """The attempts that say something about the policy."""
        return tuple(t for t in self.trajectories if not t.ending.discarded)

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of learning, after it: Step(number=3, groups=(...), metrics={"success": 0.41, "loss": -0.02, ...})."""

    number: int
    "From 1."
    groups: tuple[Group, ...]
    "What was learned from, in order of task id; empty where a step imitated demonstrations."
    metrics: Mapping[str, float]
    "What was logged of it, by name."


@dataclass(frozen=True)
class Weights:
    """A published set of parameters: Weights(version=4, digest="9f2c…", tensors={...})."""

    version: int
    "Rises by one per publication, never restarts."
    digest: str
    "SHA-256 over names and bytes of the tensors as published."
    tensors: Mapping[str, Any] = field(default_factory=dict, repr=False)
    "Parameter name to tensor; they may change with the next update, so whoever loads them copies."


def stream_seed(*parts: object) -> int:
    """A 63-bit seed from names and numbers, the same on every machine and in every process.

    Example: stream_seed(run_seed, task.id, attempt, turn)
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
