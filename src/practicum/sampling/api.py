"""Any server with an OpenAI-compatible chat endpoint: vLLM, llama.cpp, Ollama and the commercial ones.

It takes messages and gives messages; which tokens it sampled is not known, so that it can be measured and copied from,
but not trained.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from practicum.errors import EndpointError, MissingExtra, UserError
from practicum.sampling.formats import CallFormat, called, conversation
from practicum.sampling.hermes import DONE, as_function
from practicum.sampling.sampler import Reply
from practicum.types import Completion, Message, SamplingParams, StopReason, ToolCall, ToolSpec

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
"Before the second try, and the most that doubling it leads to; each is drawn from its upper half."
FIRST_CONTACT_S = 15.0
"How long a server that refuses connections and never answered is waited for: its address is probably wrong."
TRANSIENT = {408, 425, 429}
"Statuses that another try may change, beside all from 500 upwards."
SHOWN = 300
"Characters of a server's answer that are shown."


class ApiSampler:
    """A `MessageSampler` over one model of an endpoint.

    Calls travel as the endpoint's own `tools` and `tool_calls`, or, with `calls`, in words. Refused or broken
    connections, time-outs, 408, 425, 429 (its Retry-After is kept to) and 500 upwards are tried again, with growing
    pauses, for `retry_seconds`. `counts` says how many requests were sent, how many of them again, and the tokens that
    the endpoint counted.

    Example:
        sampler = ApiSampler("http://127.0.0.1:8000/v1", "Qwen/Qwen2.5-7B-Instruct", key="")
        reply = await sampler.converse([Message("user", "2 + 2?")], (), SamplingParams(max_tokens=20))
    """

    def __init__(
        self,
        url: str,
        model: str,
        key: str,
        *,
        calls: CallFormat | None = None,
        request_seconds: float = 120.0,
        retry_seconds: float = 120.0,
    ) -> None:
        """Raises UserError for an address that is none, MissingExtra without httpx."""
        try:
            import httpx
        except ImportError:
            raise MissingExtra("httpx", "api") from None
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise UserError(
                f"sampler.url {url!r} is no address of an endpoint; write one such as http://127.0.0.1:8000/v1"
            )
        self.url = url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        self.model = model
        self.calls = calls
        self.request_seconds, self.retry_seconds = request_seconds, retry_seconds
        self.counts = {"requests": 0, "retries": 0, "prompt_tokens": 0, "completion_tokens": 0}
        self.has_answered = False
        self._httpx = httpx
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._limit = "max_tokens"
        self._client: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def converse(self, messages: Sequence[Message], tools: Sequence[ToolSpec], params: SamplingParams) -> Reply:
        """Answer a conversation; one that is too long for the model has stop_reason 'length' and size 0.

        Raises EndpointError when there is no usable answer, UserError when none can be hoped for: a wrong address, key
        or model.
        """
        if self._closed:
            raise RuntimeError("this sampler was closed and can sample no more")
        if not messages:
            raise ValueError("the conversation is empty; give at least one message to answer")
        body: dict[str, Any] = {
            "model": self.model,
            "messages": as_sent(messages) if self.calls is None else in_words(messages, tools, self.calls),
            "temperature": params.temperature,
            "seed": params.seed % 2**31,
        }
        if self.calls is None and tools:
            body["tools"] = [as_function(tool) for tool in tools]
        response = await self._post({**body, self._limit: params.max_tokens})
        if response.status_code == 400 and self._limit == "max_tokens" and "max_completion_tokens" in response.text:
            self._limit = "max_completion_tokens"
            response = await self._post({**body, self._limit: params.max_tokens})
        if response.status_code != 200:
            if response.status_code in (400, 413) and is_too_long(response.text):
                return Reply(Message("assistant", ""), Completion((), (), (), "length"))
            raise self._refused(response.status_code, response.text)
        return self._read(response, tools)

    async def close(self) -> None:
        """Close the connections and answer no more."""
        self._closed = True
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.aclose()
        self._client = None

    async def _post(self, body: Mapping[str, Any]) -> Any:
        """The response to a request, repeated for as long as a fault may pass. Raises EndpointError, UserError."""
        began, wait_s, tries = time.monotonic(), FIRST_WAIT_S, 0
        while True:
            tries += 1
            self.counts["requests"] += 1
            self.counts["retries"] += tries > 1
            pause_s, patience_s = random.uniform(wait_s / 2, wait_s), self.retry_seconds
            try:
                response = await self._connection().post(self.url, json=body, headers=self._headers)
            except self._httpx.TransportError as error:
                fault = f"{type(error).__name__}: {error}"
                if isinstance(error, self._httpx.ConnectError) and not self.has_answered:
                    patience_s = min(patience_s, FIRST_CONTACT_S)
            else:
                self.has_answered = True
                if response.status_code not in TRANSIENT and response.status_code < 500:
                    return response
                fault = f"{response.status_code} {response.text[:SHOWN]}"
                pause_s = retry_after(response.headers.get("retry-after", ""), pause_s)
            if time.monotonic() - began + pause_s > patience_s:
                raise self._gave_up(fault, tries, time.monotonic() - began)
            await asyncio.sleep(pause_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _connection(self) -> Any:
        """The client of the running event loop; connections cannot change loops."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            httpx = self._httpx
            # However many episodes there are, each has a connection: their number is bounded elsewhere.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            self._client = httpx.AsyncClient(timeout=httpx.Timeout(self.request_seconds), limits=limits)
            self._loop = loop
        return self._client

    def _gave_up(self, fault: str, tries: int, seconds: float) -> EndpointError | UserError:
        told = f"the endpoint {self.url} gave no answer, {tries} times in {seconds:.1f} s; the last time: {fault}"
        if self.has_answered:
            return EndpointError(told)
        return UserError(f"{told}. It has never answered: start its server, or correct sampler.url")

    def _refused(self, status: int, text: str) -> EndpointError | UserError:
        told = f"the endpoint {self.url} refused a request with {status}: {' '.join(text.split())[:SHOWN] or 'no text'}"
        if status in (401, 403):
            return UserError(f"{told}. Name the environment variable that holds a valid key in sampler.key_env")
        if status == 404:
            return UserError(f"{told}. It knows no model {self.model!r}, or sampler.url is not its address")
        return EndpointError(told)

    def _read(self, response: Any, tools: Sequence[ToolSpec]) -> Reply:
        try:
            answer = response.json()
            choice = answer["choices"][0]
            said = choice["message"]
            content, tool_calls = said.get("content") or "", said.get("tool_calls") or []
            raw = [(call["function"]["name"], call["function"]["arguments"]) for call in tool_calls]
            usage = answer.get("usage") or {}
            prompt, completion = int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            shown = " ".join(response.text.split())[:SHOWN] or "nothing"
            raise EndpointError(
                f"the endpoint {self.url} gave no chat completion ({type(error).__name__}: {error}); it said: {shown}"
            ) from None
        self.counts["prompt_tokens"] += prompt
        self.counts["completion_tokens"] += completion
        stop_reason: StopReason = "length" if choice.get("finish_reason") == "length" else "stop"
        message = self.calls.read(str(content), tools) if self.calls else understood(str(content), raw, tools)
        return Reply(message, Completion((), (), (), stop_reason, completion))


def as_sent(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as the endpoint's own; what is told of a call that could not be read comes from the user."""
    sent: list[dict[str, Any]] = []
    for message in messages:
        if message.tool_calls:
            calls = [as_call(call) for call in message.tool_calls]
            sent.append({"role": "assistant", "content": message.content or None, "tool_calls": calls})
        elif message.role == "tool" and message.tool_call_id:
            sent.append({"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content})
        elif message.role == "assistant":
            sent.append({"role": "assistant", "content": message.content or DONE})
        elif message.role != "system" or message.content:
            sent.append({"role": "user" if message.role == "tool" else message.role, "content": message.content})
    return sent


def in_words(messages: Sequence[Message], tools: Sequence[ToolSpec], calls: CallFormat) -> list[dict[str, Any]]:
    """Messages as text only, tools and calls in the words of a format."""
    return [{"role": role, "content": text} for role, text in conversation(messages, tools, calls)]


def as_call(call: ToolCall) -> dict[str, Any]:
    """A call as the endpoint writes it, its arguments as JSON in a string."""
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


def understood(content: str, raw: Sequence[tuple[Any, Any]], tools: Sequence[ToolSpec]) -> Message:
    """A reply with the calls that the endpoint found in it; one that cannot be made is said in `problem`."""
    if not raw and tools and not content.strip():
        return Message("assistant", content, problem="the reply was empty; call a tool, or end with an answer in words")
    try:
        calls = tuple(called(name, arguments_of(name, written), tools) for name, written in raw)
    except ValueError as reason:
        spelt = "\n".join(f"{name}({written})" for name, written in raw)
        return Message("assistant", f"{content}\n{spelt}".strip(), problem=str(reason))
    return Message("assistant", content, tool_calls=calls)


def arguments_of(name: Any, written: Any) -> Any:
    """The JSON value in a call's arguments, which some servers send as it is. Raises ValueError for the model."""
    if not isinstance(written, str):
        return written
    try:
        return json.loads(written or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments of {name} are not JSON: {error}; write one JSON object") from None


def retry_after(header: str, pause_s: float) -> float:
    """Seconds that a server asks to be left alone, given as a number or a date; else `pause_s`."""
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return pause_s


def is_too_long(text: str) -> bool:
    """True where a refusal says that a conversation does not fit the model's context."""
    lower = text.lower()
    return "context_length_exceeded" in lower or "context length" in lower or "context size" in lower
