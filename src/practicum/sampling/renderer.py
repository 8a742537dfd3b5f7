"""Messages and tools to tokens and back, for one model family, so that a history only ever grows at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from practicum.sampling.formats import CallFormat, conversation, told
from practicum.types import Message, ToolSpec


class Tokenizer(Protocol):
    """What a renderer needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Tokens of ordinary text; spellings of special tokens inside it are never special."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        ...

    def special(self, name: str) -> int:
        """Id of a special token by its spelling."""
        ...


class Renderer(Protocol):
    """Keeps the extension property: opening + completion + continuation starts with what was sampled, bit for bit."""

    @property
    def calls(self) -> CallFormat:
        """How calls are written inside a message."""
        ...

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens that end an assistant message."""
        ...

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Tokens of a context that begins here, up to where the assistant speaks."""
        ...

    def continuation(self, completion: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """Tokens that follow a completion as sampled: its end if it was cut, then `messages`, up to the next reply."""
        ...

    def read(self, completion: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """The assistant message in a completion; what could not be read is said in its `problem`."""
        ...

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Tokens an assistant would have to sample to say `message`, stop token included."""
        ...


class ByteTokenizer:
    """UTF-8 bytes as tokens 0 to 255, special tokens above: for tiny models and scripted policies, needs no file."""

    SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    vocabulary_size = 256 + len(SPECIALS)

    def encode(self, text: str) -> list[int]:
        """One token per byte."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """The text, with broken byte sequences replaced."""
        return bytes(token for token in tokens if token < 256).decode(errors="replace")

    def special(self, name: str) -> int:
        """256, 257, 258 in the order of SPECIALS."""
        return 256 + self.SPECIALS.index(name)


class ChatML:
    """`<|im_start|>role`, newline, text, `<|im_end|>`, newline: the template of SmolLM2, Qwen and many others.

    Example:
        chatml = ChatML(ByteTokenizer(), CompactCalls())
        context = chatml.opening([Message("user", "hello")], tools=())
        context += completion.tokens + chatml.continuation(completion.tokens, [Message("tool", "42")])
    """

    def __init__(self, tokenizer: Tokenizer, calls: CallFormat, tool_role: str = "user") -> None:
        self.tokenizer = tokenizer
        self.calls = calls
        self.tool_role = tool_role
        "What a tool's answer is called, for templates without a role of its own for tools."
        self.start, self.end = tokenizer.special("<|im_start|>"), tokenizer.special("<|im_end|>")
        self.newline = tuple(tokenizer.encode("\n"))
        self.stop_tokens = (self.end, tokenizer.special("<|endoftext|>"))

    def block(self, role: str, text: str) -> tuple[int, ...]:
        """One whole message. Role and text are encoded as one piece, as the template's own text would be."""
        return (self.start, *self.tokenizer.encode(f"{role}\n{text}"), self.end, *self.newline)

    def spoken(self, said: Iterable[tuple[str, str]]) -> tuple[int, ...]:
        """Tokens of whole messages, given as (role, text)."""
        return tuple(token for role, text in said for token in self.block(role, text))

    def prompt(self) -> tuple[int, ...]:
        """Where the assistant begins to speak."""
        return (self.start, *self.tokenizer.encode("assistant\n"))

    def opening(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """All messages from the first; what is said of the tools stands in the system message."""
        return self.spoken(conversation(messages, tools, self.calls, self.tool_role)) + self.prompt()

    def continuation(self, completion: Sequence[int], messages: Sequence[Message]) -> tuple[int, ...]:
        """Ends a completion that was cut, then the new messages; nothing of the completion is rendered again."""
        ended = bool(completion) and completion[-1] == self.end
        said = told(messages, (), self.calls, self.tool_role)
        return (() if ended else (self.end,)) + self.newline + self.spoken(said) + self.prompt()

    def read(self, completion: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """The text up to the stop token, its call parsed."""
        stopped = bool(completion) and completion[-1] in self.stop_tokens
        return self.calls.read(self.tokenizer.decode(completion[:-1] if stopped else completion), tools)

    def write(self, message: Message, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The call as text, then the stop token."""
        return (*self.tokenizer.encode(self.calls.write(message, tools)), self.end)
