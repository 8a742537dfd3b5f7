"""One turn to a row of the database and back, losing nothing."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from practicum.types import Completion, Message, SamplingParams, ToolCall, Turn

Row = Mapping[str, Any]


def pack_integers(values: Sequence[int]) -> bytes:
    """Token ids or versions as zlib-compressed little-endian int32."""
    return zlib.compress(np.asarray(values, dtype="<i4").tobytes())


def unpack_integers(blob: bytes) -> tuple[int, ...]:
    """Reverse of `pack_integers`."""
    return tuple(np.frombuffer(zlib.decompress(blob), dtype="<i4").tolist())


def pack_numbers(values: Sequence[float]) -> bytes:
    """Log-probs or advantages: the letter f and zlib-compressed little-endian float32.

    Numbers that float32 cannot hold (of a sampler that computes in float64) are kept whole, behind the letter d.
    """
    wide = np.asarray(values, dtype="<f8")
    with np.errstate(over="ignore"):
        narrow = wide.astype("<f4")
    if np.array_equal(narrow, wide, equal_nan=True):
        return b"f" + zlib.compress(narrow.tobytes())
    return b"d" + zlib.compress(wide.tobytes())


def unpack_numbers(blob: bytes) -> tuple[float, ...]:
    """Reverse of `pack_numbers`."""
    values = np.frombuffer(zlib.decompress(blob[1:]), dtype="<f4" if blob[:1] == b"f" else "<f8")
    return tuple(values.tolist())


def pack_json(value: Any) -> str:
    """Compact JSON of a value that `plain` made fit."""
    return json.dumps(plain(value), separators=(",", ":"))


def plain(value: Any) -> Any:
    """The value in JSON's own types; what they have no form for (a set that a model wrote) becomes its repr."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else repr(value)


def storable(text: str) -> str:
    """Text as SQLite can hold it: lone surrogates, which UTF-8 has no form for, become question marks."""
    return text.encode(errors="replace").decode()


def message_to_json(message: Message) -> dict[str, Any]:
    """A message as a JSON object, without the fields that are at rest."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {"name": call.name, "arguments": call.arguments, "id": call.id} for call in message.tool_calls
        ]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    if message.problem:
        fields["problem"] = message.problem
    return fields


def message_from_json(fields: Mapping[str, Any]) -> Message:
    """Reverse of `message_to_json`."""
    calls = tuple(ToolCall(**call) for call in fields.get("tool_calls", ()))
    return Message(**{**fields, "tool_calls": calls})


def turn_to_row(turn: Turn, advantages_T: Sequence[float] | None) -> dict[str, Any]:
    """Columns of table `turns`, without those that place it. Raises ValueError for advantages of the wrong length."""
    done = turn.completion
    if advantages_T is not None and len(advantages_T) != len(done.tokens):
        raise ValueError(
            f"turn {turn.index} has {len(done.tokens)} sampled tokens, found {len(advantages_T)} advantages for it"
        )
    return {
        "position": turn.index,
        "continues": turn.continues,
        "policy": turn.policy,
        "added": pack_integers(turn.added),
        "tokens": pack_integers(done.tokens),
        "logprobs": pack_numbers(done.logprobs),
        "versions": pack_integers(done.versions),
        "stop_reason": done.stop_reason,
        "messages": pack_json([message_to_json(message) for message in turn.messages]),
        "action": pack_json(message_to_json(turn.action)),
        "sampling": pack_json(asdict(turn.sampling) | ({"counted": done.counted} if done.counted else {})),
        "observation_key": turn.observation_key,
        "rewards": pack_json(turn.rewards),
        "seconds": pack_json(turn.seconds),
        "delivered": int(turn.delivered),
        "advantages": None if advantages_T is None else pack_numbers(advantages_T),
    }


def turn_from_row(row: Row) -> Turn:
    """Reverse of `turn_to_row`."""
    sampling = json.loads(row["sampling"])
    counted = sampling.pop("counted", 0)
    return Turn(
        index=row["position"],
        continues=row["continues"],
        added=unpack_integers(row["added"]),
        completion=Completion(
            tokens=unpack_integers(row["tokens"]),
            logprobs=unpack_numbers(row["logprobs"]),
            versions=unpack_integers(row["versions"]),
            stop_reason=row["stop_reason"],
            counted=counted,
        ),
        messages=tuple(message_from_json(fields) for fields in json.loads(row["messages"])),
        action=message_from_json(json.loads(row["action"])),
        policy=row["policy"],
        sampling=SamplingParams(**{**sampling, "stop_tokens": tuple(sampling["stop_tokens"])}),
        observation_key=row["observation_key"],
        rewards=json.loads(row["rewards"]),
        seconds=json.loads(row["seconds"]),
        delivered=bool(row["delivered"]),
    )


def text_of(turn: Turn) -> str:
    """What full-text search finds a turn by."""
    return storable("\n".join(spelt(message) for message in (*turn.messages, turn.action)))


def spelt(message: Message) -> str:
    """What a message says, with those of its calls that are not in its words: `get_order {"order_id": "#W1"}`."""
    calls = [call for call in message.tool_calls if f"{call.name}(" not in message.content]
    return "\n".join([*([message.content] if message.content or not calls else []), *map(spelt_call, calls)])


def spelt_call(call: ToolCall) -> str:
    """Name and arguments of one call."""
    return f"{call.name} {json.dumps(plain(call.arguments), ensure_ascii=False)}"
