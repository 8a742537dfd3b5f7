"""An OpenAI-compatible endpoint as a model: what is sent, what is understood, and what happens when it fails."""

import asyncio
import importlib.util
import json
import time
from dataclasses import replace
from email.utils import formatdate

import pytest

pytest.importorskip("httpx")

from practicum import build, config
from practicum.agents.tool_loop import ToolLoop
from practicum.errors import EndpointError, PracticumError, UserError
from practicum.sampling import api
from practicum.sampling.api import ApiSampler
from practicum.sampling.formats import CompactCalls
from practicum.sampling.hermes import HermesCalls
from practicum.simulator.demonstrate import shown_by_model, worked_examples
from practicum.simulator.episode import run_episode
from practicum.types import Ending, Message, SamplingParams, ToolCall
from practicum.verbs import evaluating, training

RECIPE = "recipes/tiny.toml"
PARAMS = SamplingParams(temperature=0.5, max_tokens=20, seed=2**40)
HELLO = [Message("user", "hello")]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(api, "FIRST_WAIT_S", 0.01)


def recipe(endpoint, *settings):
    """The tiny world, played by the model of the endpoint."""
    asked = ["sampler.kind=api", f"sampler.url={endpoint.url}", "sampler.dtype=auto", "sampler.slots=64"]
    return config.load(RECIPE, [*asked, "sampler.retry_seconds=0.5", "tasks.test=3", "agent.system=Press.", *settings])


def ask(sampler, messages=HELLO, tools=(), params=PARAMS):
    async def run():
        try:
            return await sampler.converse(messages, tools, params)
        finally:
            await sampler.close()

    return asyncio.run(run())


def tiny_tools():
    from practicum.environments.tiny import Lamps
    from practicum.environments.tools import Toolbox

    return Toolbox(Lamps()).specs


def clerk(said, right=True):
    """A model that looks at the lamp and then presses what its colour calls for, or something else."""
    from practicum.environments.tiny import BUTTON_OF

    def answer(body):
        last = body["messages"][-1]
        if last["role"] == "user":
            return said(None, [("look", "{}")])
        return said("I press.", [("press", json.dumps({"button": BUTTON_OF[last["content"]] if right else "none"}))])

    return answer


# What is sent and understood


def test_calls_and_answers_travel_in_the_endpoints_own_form(endpoint, said):
    endpoint.answers = [said("", [("look", ""), ("press", '{"button": "go"}')])]
    history = [
        Message("system", "s"),
        Message("user", "u"),
        Message("assistant", "", tool_calls=(ToolCall("look", {}, "call_0_0"),)),
        Message("tool", "green", tool_call_id="call_0_0"),
        Message("assistant", "pres(1)", problem="no such tool"),
        Message("tool", "error: no such tool"),
    ]
    reply = ask(ApiSampler(endpoint.url + "/", "some-model", "secret"), history, tiny_tools())
    assert reply.message.tool_calls == (ToolCall("look", {}), ToolCall("press", {"button": "go"}))
    assert (reply.completion.tokens, reply.completion.size, reply.completion.stop_reason) == ((), 7, "stop")
    (body,), (headers,) = endpoint.requests, endpoint.headers
    assert headers["Authorization"] == "Bearer secret"
    assert (body["model"], body["temperature"], body["max_tokens"], body["seed"]) == ("some-model", 0.5, 20, 0)
    assert [tool["function"]["name"] for tool in body["tools"]] == ["look", "press"]
    function = {"name": "look", "arguments": "{}"}
    assert body["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0_0", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_0_0", "content": "green"},
        {"role": "assistant", "content": "pres(1)"},
        {"role": "user", "content": "error: no such tool"},
    ]


@pytest.mark.parametrize(
    ("calls", "text", "shown"),
    [
        (CompactCalls(), "look()", "look(): See the lamp."),
        (HermesCalls(), '<tool_call>{"name": "look", "arguments": {}}</tool_call>', '"name": "look", "description"'),
    ],
)
def test_in_words_an_endpoint_needs_no_tools_of_its_own(endpoint, said, calls, text, shown):
    endpoint.answers = [said(text)]
    reply = ask(ApiSampler(endpoint.url, "m", "", calls=calls), [Message("system", "s"), *HELLO], tiny_tools())
    assert reply.message.tool_calls == (ToolCall("look", {}),)
    (body,) = endpoint.requests
    assert "tools" not in body and shown in body["messages"][0]["content"]
    assert "Authorization" not in endpoint.headers[0]


@pytest.mark.parametrize(
    ("content", "calls", "problem"),
    [
        ("", [], "the reply was empty; call a tool"),
        ("", [("look", "{")], "the arguments of look are not JSON: Expecting property name"),
        ("", [("look", "[1]")], "the arguments of look must be a JSON object"),
        ("", [("fly", "{}")], "there is no tool fly; tools: look, press"),
        ("", [("press", {"button": ["a"]})], ""),
    ],
)
def test_a_call_that_cannot_be_made_is_told_to_the_model_and_no_failure(endpoint, said, content, calls, problem):
    endpoint.answers = [said(content, calls)]
    message = ask(ApiSampler(endpoint.url, "m", ""), tools=tiny_tools()).message
    assert message.problem.startswith(problem) and bool(message.problem) is not bool(message.tool_calls)


def test_a_reply_that_was_cut_and_a_conversation_that_is_too_long_end_with_length(endpoint, said):
    endpoint.answers = [said("and so", reason="length", tokens=20)]
    cut = ask(ApiSampler(endpoint.url, "m", "")).completion
    assert (cut.stop_reason, cut.size) == ("length", 20)
    endpoint.answers = [(400, {}, '{"error": {"code": "context_length_exceeded"}}')]
    full = ask(ApiSampler(endpoint.url, "m", "")).completion
    assert (full.stop_reason, full.size) == ("length", 0)


def test_an_endpoint_that_knows_the_limit_by_another_name_is_asked_again_with_that_name(endpoint, said):
    endpoint.answers = [(400, {}, "use 'max_completion_tokens' instead of 'max_tokens'"), said("ok")]
    assert ask(ApiSampler(endpoint.url, "m", "")).message.content == "ok"
    assert endpoint.requests[1]["max_completion_tokens"] == 20 and "max_tokens" not in endpoint.requests[1]


# What passes, and what does not


@pytest.mark.parametrize(
    "fault",
    [
        500,
        502,
        503,
        408,
        429,
        None,
        (429, {"retry-after": "0"}, ""),
        (503, {"retry-after": formatdate(0, usegmt=True)}, ""),
    ],
)
def test_a_fault_that_may_pass_is_tried_again(endpoint, said, fault):
    endpoint.answers = [fault, fault, said("at last")]
    sampler = ApiSampler(endpoint.url, "m", "", retry_seconds=5)
    assert ask(sampler).message.content == "at last"
    assert (sampler.counts["requests"], sampler.counts["retries"]) == (3, 2)


def test_a_server_that_asks_to_be_left_alone_is_left_alone_for_so_long(endpoint, said):
    endpoint.answers = [(429, {"retry-after": "0.3"}, ""), said("ok")]
    began = time.monotonic()
    ask(ApiSampler(endpoint.url, "m", ""))
    assert 0.3 <= time.monotonic() - began < 2
    endpoint.answers = [(429, {"retry-after": "3600"}, "")]
    with pytest.raises(EndpointError, match=r"gave no answer, 1 times in 0\.\d s; the last time: 429"):
        ask(ApiSampler(endpoint.url, "m", ""))


def test_a_slow_answer_is_not_waited_for_beyond_the_deadline_of_a_request(endpoint, said):
    endpoint.answers = [1.0, said("ok")]
    began = time.monotonic()
    assert ask(ApiSampler(endpoint.url, "m", "", request_seconds=0.2)).message.content == "ok"
    assert time.monotonic() - began < 0.9


def test_pauses_grow_and_a_fault_that_stays_is_given_up_at_the_deadline(endpoint):
    endpoint.answers = [500]
    sampler = ApiSampler(endpoint.url, "m", "", retry_seconds=0.5)
    with pytest.raises(EndpointError, match=r"gave no answer, \d times in 0\.\d s; the last time: 500 .*status 500"):
        ask(sampler)
    assert 3 <= sampler.counts["requests"] <= 10


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (401, UserError, "refused a request with 401: .*Name the environment variable .* sampler.key_env"),
        (403, UserError, "403"),
        (404, UserError, "It knows no model 'm', or sampler.url is not its address"),
        (400, EndpointError, 'refused a request with 400: {"error": "status 400"}'),
        ((200, {}, "<html>hello</html>"), EndpointError, "gave no chat completion .*it said: <html>hello"),
        ((200, {}, ""), EndpointError, "it said: nothing"),
        ((200, {}, "[]"), EndpointError, "gave no chat completion"),
        ((200, {}, '{"choices": []}'), EndpointError, r'gave no chat completion \(IndexError.*"choices": \[\]'),
        ((200, {}, '{"choices": [{"message": null}]}'), EndpointError, "gave no chat completion"),
    ],
)
def test_a_fault_that_does_not_pass_is_one_clear_message_at_once(endpoint, answer, error, words):
    endpoint.answers = [answer]
    with pytest.raises(error, match=words):
        ask(ApiSampler(endpoint.url, "m", ""))
    assert len(endpoint.requests) == 1


def test_a_server_that_never_answered_is_a_mistake_in_the_recipe(endpoint, monkeypatch):
    endpoint.close()
    monkeypatch.setattr(api, "FIRST_CONTACT_S", 0.1)
    with pytest.raises(UserError, match=r"It has never answered: start its server, or correct sampler\.url"):
        ask(ApiSampler(endpoint.url, "m", "", retry_seconds=60))


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://a/b", "http://"])
def test_an_address_that_is_none_is_refused_before_anything_is_sent(url):
    with pytest.raises(UserError, match="is no address of an endpoint"):
        ApiSampler(url, "m", "")


# In an evaluation


def test_an_endpoints_model_is_measured_like_any_other(endpoint, said):
    endpoint.answers = [clerk(said)]
    summary = evaluating.evaluate(recipe(endpoint), model="m").summary()
    assert (summary["success"], summary["n_tasks"], summary["endings"]) == (1.0, 3, {"finished": 3})
    assert (summary["turns"], summary["tokens"]) == (2.0, 14.0)


def test_what_an_endpoint_did_can_be_stored_found_and_shown(endpoint, said, tmp_path, capsys):
    from practicum.runs.database import Database
    from practicum.runs.show import show

    endpoint.answers = [clerk(said)]
    evaluating.evaluate(recipe(endpoint), model="m", out=tmp_path / "a.sqlite")
    with Database(tmp_path / "a.sqlite", read_only=True) as database:
        task_id = database.task_ids()[0]
        turns = next(iter(database.stored("evaluation", 0, task_id))).trajectory.turns
        assert [turn.completion.counted for turn in turns] == [7, 7]
        assert database.search("press")
    show(tmp_path / "a.sqlite", task_id)
    assert 'press {"button": ' in capsys.readouterr().out


@pytest.mark.parametrize("answer", [(200, {}, "nonsense"), 400])
def test_when_no_attempt_gets_an_answer_the_run_ends_with_one_message_without_a_traceback(endpoint, answer):
    endpoint.answers = [answer]
    with pytest.raises(PracticumError) as caught:
        evaluating.evaluate(recipe(endpoint), model="m")
    assert not isinstance(caught.value, UserError)
    assert "{'sampler_failed': 3}" in str(caught.value) and "the endpoint http" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_wrong_key_stops_the_run_at_once(endpoint):
    endpoint.answers = [401]
    with pytest.raises(UserError, match="401"):
        evaluating.evaluate(recipe(endpoint, "tasks.test=50", "simulator.concurrency=5"), model="m")
    assert len(endpoint.requests) < 25


def test_an_attempt_whose_fault_stays_is_discarded_and_the_others_count(endpoint, said):
    def picky(body):
        right = clerk(said)
        return 500 if endpoint.lamp in str(body["messages"][1]["content"]) else right(body)

    loaded = recipe(endpoint, "sampler.retry_seconds=0.1")
    endpoint.lamp = build.tasks_of(loaded)["test"][0].prompt
    endpoint.answers = [picky]
    summary = evaluating.evaluate(loaded, model="m").summary()
    assert (summary["success"], summary["n_tasks"]) == (1.0, 2)
    assert summary["endings"] == {"finished": 2, "sampler_failed": 1}


def test_a_conversation_that_grew_too_long_is_scored_as_it_stands(endpoint, said):
    endpoint.answers = [(400, {}, "This model's maximum context length is 10 tokens")]
    summary = evaluating.evaluate(recipe(endpoint), model="m").summary()
    assert (summary["endings"], summary["success"]) == ({"out_of_tokens": 3}, 0.0)


def test_a_key_that_the_environment_does_not_hold_is_named(endpoint, monkeypatch):
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(UserError, match=r"NO_SUCH_KEY, which sampler\.key_env names, is not set"):
        evaluating.evaluate(recipe(endpoint, "sampler.key_env=NO_SUCH_KEY"), model="m")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="training needs torch")
def test_training_an_endpoints_model_is_refused(endpoint, tmp_path):
    with pytest.raises(UserError, match="an endpoint samples is not known, so that its model can be measured"):
        training.train(recipe(endpoint), tmp_path / "run")
    assert not (tmp_path / "run").exists() and not endpoint.requests


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["sampler.kind=api"], "sampler.kind is 'api', which needs sampler.url"),
        (["imitation.demonstrations=2", "imitation.demonstrator=api"], "imitation.demonstrator is 'api', which needs"),
        (
            ["imitation.demonstrations=2", "imitation.demonstrator=api", "sampler.url=http://127.0.0.1:1"],
            "needs imitation.model",
        ),
        (["sampler.kind=api", "sampler.url=http://127.0.0.1:1", "sampler.slots=8"], "slots would have no effect"),
    ],
)
def test_settings_of_an_endpoint_that_make_no_sense_are_refused_before_anything_is_sent(settings, words):
    with pytest.raises(UserError, match=words):
        config.load(RECIPE, settings)


# As a demonstrator, and shown examples


def shown(endpoint, loaded, tasks, attempts=2):
    stage = build.scripted_stage(loaded)
    return asyncio.run(shown_by_model(stage, lambda: build.endpoint_stage(loaded, "teacher", 1.0), attempts, 4, tasks))


@pytest.mark.parametrize("form", ["compact", "hermes"])
def test_what_a_model_did_where_it_succeeded_is_retold_in_the_tokens_of_another(endpoint, said, form):
    def stumbles(body):
        """Fails every first attempt, and is refused once before it succeeds."""
        last, told = body["messages"][-1], body["messages"]
        if last["role"] == "user" and len(told) == 2:
            stumbles.asked += 1
            return said(None, [("press", '{"wrong": 1}')])
        if "has no argument wrong" in last["content"]:
            return said(None, [("look", "{}")])
        return clerk(said, right=stumbles.asked > 1)(body)

    stumbles.asked = 0
    endpoint.answers = [stumbles]
    tasks = build.tasks_of(recipe(endpoint))["train"][:2]
    loaded = recipe(endpoint)
    speaks = build.scripted_stage(replace(loaded, agent=replace(loaded.agent, format=form)))
    ask_stage = lambda: build.endpoint_stage(loaded, "teacher", 1.0)  # noqa: E731
    demonstrations = asyncio.run(shown_by_model(speaks, ask_stage, 2, 1, tasks))
    assert [t.task_id for t in demonstrations] == [task.id for task in tasks]
    for trajectory in demonstrations:
        assert (trajectory.success, trajectory.ending) == (1.0, Ending.FINISHED)
        names = [call.name for turn in trajectory.turns for call in turn.action.tool_calls]
        assert names == ["look", "press"]
        assert all(turn.completion.tokens for turn in trajectory.turns)
    assert stumbles.asked == 3  # the first task needed two attempts


def test_a_demonstrator_that_never_succeeds_is_named_with_how_its_attempts_ended(endpoint, said):
    endpoint.answers = [clerk(said, right=False)]
    loaded = recipe(endpoint)
    tasks = build.tasks_of(loaded)["train"][:2]
    with pytest.raises(PracticumError, match=r"did none of 2 tasks in 2 attempts each; endings: \{'finished': 4\}"):
        shown(endpoint, loaded, tasks)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="training needs torch")
def test_a_run_can_begin_with_what_an_endpoints_model_showed(endpoint, said, tmp_path):
    endpoint.answers = [clerk(said)]
    settings = ["imitation.demonstrator=api", "imitation.model=teacher", "imitation.demonstrations=4"]
    quick = ["imitation.epochs=1", "trainer.steps=0", "tasks.dev=2", "tasks.test=2", "evaluation.base=false"]
    loaded = config.load(RECIPE, [f"sampler.url={endpoint.url}", *settings, *quick])
    folder, _ = training.train(loaded, tmp_path / "run")
    from practicum.runs.database import Database

    with Database(folder / "run.sqlite", read_only=True) as database:
        successes = database.successes("demonstration")
    assert len(next(iter(successes.values()))) == 6  # four to learn from, two of dev to watch
    assert {request["model"] for request in endpoint.requests} == {"teacher"}


def test_examples_stand_before_the_request_as_whole_conversations(endpoint, said):
    endpoint.answers = [clerk(said)]
    loaded = recipe(endpoint)
    result = evaluating.evaluate(loaded, model="m", examples=2).summary()
    assert result["success"] == 1.0
    first = next(body["messages"] for body in endpoint.requests if len(body["messages"]) == 10)
    train = build.tasks_of(loaded)["train"]
    assert [m["content"] for m in first if m["role"] == "user"][:2] == [task.prompt for task in train[:2]]
    assert [m["role"] for m in first] == ["system", *["user", "assistant", "tool", "assistant"] * 2, "user"]
    answered = {m["tool_call_id"] for m in first if m["role"] == "tool"}
    assert answered <= {call["id"] for m in first for call in m.get("tool_calls", ())} and len(answered) == 2


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"examples": 2, "split": "train"}, "to the model, so it cannot be measured there"),
        ({"examples": 9999}, "is more than the recipe's 400 training tasks"),
        ({"examples": -1}, "a number from 0 upwards"),
        ({"examples": 1, "policy": "expert", "model": None}, "a policy reads none"),
    ],
)
def test_examples_that_cannot_be_shown_are_refused(endpoint, wanted, words):
    with pytest.raises(UserError, match=words):
        evaluating.evaluate(recipe(endpoint), **{"model": "m", **wanted})
    assert not endpoint.requests


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the local sampler needs torch")
def test_examples_come_on_top_of_the_context_and_are_computed_once():
    loaded = config.load(RECIPE, ["tasks.test=6", "simulator.context_tokens=256"])
    tasks = build.tasks_of(loaded)
    shown = asyncio.run(worked_examples(build.scripted_stage(loaded), tasks["train"][:2]))
    stage = build.model_stage(loaded, "tiny-start", shown)
    tools = tiny_tools()
    length = len(stage.renderer.opening(shown, tools)) - len(stage.renderer.opening((), tools))
    assert stage.limits.context_tokens == 256 + length

    async def play():
        try:
            return [await run_episode(stage, task, 0) for task in tasks["test"]], dict(stage.sampler.counts)
        finally:
            await stage.sampler.close()

    trajectories, counts = asyncio.run(play())
    assert all(t.turns[0].messages[1:-1] == shown for t in trajectories)
    assert counts["reused"] > 5 * length > 0 and counts["prefilled"] < 2 * length + 6 * 200
    assert isinstance(stage.agent, ToolLoop)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the local sampler needs torch")
def test_more_examples_than_a_model_can_read_are_refused():
    with pytest.raises(
        UserError, match=r"the examples take \d+ tokens, .* is more than the \d+ that tiny-start can read"
    ):
        evaluating.evaluate(config.load(RECIPE), examples=100)
