"""The simulator: where a call finds its place, and how an episode ends."""

import asyncio
import time
from dataclasses import replace

import pytest

from practicum.agents.tool_loop import ToolLoop
from practicum.environments.tools import Toolbox, tool
from practicum.errors import EpisodeOver, ToolError
from practicum.sampling.formats import CompactCalls
from practicum.sampling.renderer import ByteTokenizer, ChatML
from practicum.sampling.scripted import ScriptedSampler
from practicum.simulator.collect import collect
from practicum.simulator.episode import Stage, run_episode
from practicum.simulator.recorder import Limits, Recorder
from practicum.types import Ending, Message, Task, ToolCall

RENDERER = ChatML(ByteTokenizer(), CompactCalls())
TASK = Task(id="t", prompt="count to two", secret={"count": 2})


FAILURES = {"verify": RuntimeError("cannot tell"), "refuse": ToolError("cannot tell either")}


class Counter:
    """Counts calls of `up`; knows how to fail in every way a test asks for."""

    fail = ""

    def reset(self, task):
        self.count = 0
        if self.fail == "reset":
            raise OSError("no counter to be had")
        return "the counter stands at 0"

    @tool
    def up(self, by: int = 1) -> str:
        """Count up."""
        if by < 0:
            raise ToolError("by must not be negative")
        if self.fail == "tool":
            raise RuntimeError("the counter broke")
        self.count += by
        return str(self.count)

    def verify(self, secret):
        if self.fail in FAILURES:
            raise FAILURES[self.fail]
        if self.fail == "nameless":
            return {"points": 1.0}
        return {"success": float("nan") if self.fail == "nan" else float(self.count == secret["count"])}

    def close(self):
        if self.fail == "close":
            raise OSError("stuck")


def failing(where):
    return type("Failing", (Counter,), {"fail": where})


def said(text):
    return [*RENDERER.tokenizer.encode(text), RENDERER.end]


LIMITS = Limits(
    turns=8,
    tokens_per_turn=96,
    context_tokens=1024,
    seconds=120.0,
    tool_seconds=30.0,
    reset_seconds=60.0,
    verify_seconds=60.0,
)


def stage(replies, environment=Counter, agent=None, **limits):
    return Stage(
        open_environment=environment,
        agent=agent or ToolLoop("Count.", patience=3),
        sampler=ScriptedSampler([said(reply) for reply in replies]),
        renderer=RENDERER,
        limits=replace(LIMITS, **limits),
        temperature=1.0,
        seed=0,
        reward_weights={"success": 1.0},
        turn_discount=1.0,
        truncated_reward=1.0,
    )


def play(replies, **rest):
    return asyncio.run(run_episode(stage(replies, **rest), TASK, attempt=0))


def recorder(replies):
    return Recorder(ScriptedSampler([said(reply) for reply in replies]), RENDERER, LIMITS, temperature=1.0, seed=0)


def test_an_episode_holds_every_call_as_a_turn_and_is_scored_by_what_was_done():
    trajectory = play(["up()", "up()", 'done("two")'])
    assert (trajectory.ending, trajectory.answer, trajectory.reward) == (Ending.FINISHED, "two", 1.0)
    assert [turn.continues for turn in trajectory.turns] == [None, 0, 1]
    assert [turn.action.tool_calls[0].id for turn in trajectory.turns[:2]] == ["call_0_0", "call_1_0"]
    assert "the counter stands at 0" in RENDERER.tokenizer.decode(trajectory.turns[0].added)


def test_a_turns_context_is_the_chat_template_text_of_the_whole_history():
    trajectory = play(["up()", "done()"])
    text = "".join(
        chr(token) if token < 256 else ByteTokenizer.SPECIALS[token - 256]
        for token in trajectory.context(1) + trajectory.turns[1].completion.tokens
    )
    assert text == (
        "<|im_start|>system\nCount.\nup(by: int=1): Count up.\ndone(): End, when all that was asked is done.<|im_end|>\n"
        "<|im_start|>user\ncount to two\nthe counter stands at 0<|im_end|>\n"
        "<|im_start|>assistant\nup()<|im_end|>\n<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\ndone()<|im_end|>"
    )


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("hello", "error: the reply is not a call"),
        ("up(", "error: the reply is not a Python call"),
        ("up(1, 2)", "error: up takes 1 arguments (by), found 2"),
        ("up('x')", "error: up: by must be integer, found 'x'"),
        ("up(-1)", "error: by must not be negative"),
        ("down()", "error: there is no tool down; tools: up, done"),
        ("up(n=1)", "error: up has no argument n"),
        ("up(1, by=2)", "error: up was given by twice"),
        ("done(x=1)", "error: done was given x but done takes message only"),
        ("up()\nup()", "error: write one call per turn, found 2"),
        ("up(**{})", "error: arguments cannot be unpacked"),
        ("up(open('x'))", "error: arguments must be literals"),
        ("", "error: the reply was empty"),
    ],
)
def test_an_action_that_cannot_be_done_is_answered_with_what_was_wrong_and_the_episode_goes_on(reply, answer):
    trajectory = play([reply, "done()"])
    assert trajectory.ending is Ending.FINISHED
    assert trajectory.turns[1].messages[0].content.startswith(answer)


@pytest.mark.parametrize(
    ("where", "ending", "scored"),
    [
        ("reset", Ending.ENVIRONMENT_FAILED, False),
        ("tool", Ending.TOOL_CRASHED, True),
        ("verify", Ending.VERIFIER_FAILED, False),
        ("refuse", Ending.VERIFIER_FAILED, False),
        ("nameless", Ending.VERIFIER_FAILED, False),
        ("nan", Ending.VERIFIER_FAILED, False),
    ],
)
def test_whose_failure_it_was_decides_the_ending_and_whether_it_is_scored(where, ending, scored):
    trajectory = play(["up()", "done()"], environment=failing(where))
    assert trajectory.ending is ending
    assert bool(trajectory.rewards) is scored
    assert "Traceback" in trajectory.error


def test_an_environment_that_fails_to_close_changes_no_verdict():
    assert play(["up(2)", "done()"], environment=failing("close")).reward == 1.0


def test_a_reward_that_is_to_be_weighted_but_was_never_given_is_no_zero():
    weighted = replace(stage(["done()"]), reward_weights={"progress": 1.0})
    trajectory = asyncio.run(run_episode(weighted, TASK, 0))
    assert trajectory.ending is Ending.VERIFIER_FAILED and "no reward progress" in trajectory.error


def test_an_agent_whose_time_is_up_gets_no_further_answer():
    answered = []

    async def agent(task, model):
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            answered.append(await model.chat([Message("user", "still there?")]))

    trajectory = play(["up()"], agent=agent, seconds=0.05)
    assert trajectory.ending is Ending.TIMED_OUT and not answered and not trajectory.turns


def test_an_episode_that_is_cancelled_leaves_no_agent_running():
    stopped = []

    async def agent(task, model):
        try:
            await asyncio.sleep(5)
        finally:
            stopped.append(True)

    async def run():
        episode = asyncio.ensure_future(run_episode(stage([], agent=agent), TASK, 0))
        await asyncio.sleep(0.05)
        episode.cancel()
        await asyncio.wait({episode})
        await asyncio.sleep(0)

    asyncio.run(run())
    assert stopped


def test_a_sampler_that_fails_discards_the_attempt():
    trajectory = play(["up()"])
    assert trajectory.ending is Ending.SAMPLER_FAILED and trajectory.ending.discarded


def test_limits_cut_an_attempt_short_and_it_is_scored_as_it_stands():
    assert play(["up()", "up()"], turns=2).ending is Ending.OUT_OF_TURNS
    assert play(["up()", "up()"], turns=2).reward == 1.0
    assert play(["up()", "up()"], context_tokens=60).ending is Ending.OUT_OF_TOKENS


def test_what_is_learned_from_a_truncated_attempt_may_be_less_than_what_is_measured():
    cut = replace(stage(["up()", "up()"], turns=2), truncated_reward=0.25)
    trajectory = asyncio.run(run_episode(cut, TASK, 0))
    assert (trajectory.success, trajectory.reward) == (1.0, 0.25)
    whole = replace(stage(["up(2)", "done()"]), truncated_reward=0.25)
    assert asyncio.run(run_episode(whole, TASK, 0)).reward == 1.0


def test_of_two_ways_that_succeed_the_shorter_may_be_worth_more():
    shorter = replace(stage(["up(2)", "done()"]), turn_discount=0.5)
    longer = replace(stage(["up()", "up()", "done()"]), turn_discount=0.5)
    played = [asyncio.run(run_episode(way, TASK, 0)) for way in (shorter, longer)]
    assert [(t.success, t.reward) for t in played] == [(1.0, 0.25), (1.0, 0.125)]


def test_an_agent_that_raises_is_scored_and_its_traceback_kept():
    async def agent(task, model):
        raise KeyError("lost")

    trajectory = play([], agent=agent)
    assert trajectory.ending is Ending.AGENT_FAILED and "KeyError: 'lost'" in trajectory.error


def test_the_agents_clock_runs_for_its_own_time_and_not_for_the_samplers():
    class Slow(ScriptedSampler):
        async def sample(self, tokens, params):
            await asyncio.sleep(0.3)
            return await super().sample(tokens, params)

    async def idle(task, model):
        await asyncio.sleep(5)

    slow = replace(stage([], seconds=0.2), sampler=Slow([said("done()")]))
    assert asyncio.run(run_episode(slow, TASK, 0)).ending is Ending.FINISHED
    began = time.monotonic()
    assert play([], agent=idle, seconds=0.2).ending is Ending.TIMED_OUT
    assert time.monotonic() - began < 2


def test_a_limit_that_an_agent_swallowed_still_decides_the_ending():
    async def agent(task, model):
        for _ in range(3):
            try:
                await model.chat([Message("user", "again")], model.tools)
            except EpisodeOver:
                return "all is well"

    assert play(["up()", "up()"], agent=agent, turns=1).ending is Ending.OUT_OF_TURNS


def test_parallel_calls_branch_from_the_turn_they_share():
    model = recorder(["one", "two", "three", "four"])

    async def run():
        first = await model.chat([Message("user", "a")])
        history = [Message("user", "a"), first]
        return await asyncio.gather(*(model.chat([*history, Message("user", text)]) for text in ("b", "c")))

    asyncio.run(run())
    assert [turn.continues for turn in model.record()] == [None, 0, 0]


def test_a_rewritten_history_begins_a_context_of_its_own():
    model = recorder(["one", "two"])

    async def run():
        await model.chat([Message("user", "a")])
        await model.chat([Message("user", "a"), Message("assistant", "other"), Message("user", "b")])

    asyncio.run(run())
    turns = model.record()
    assert [turn.continues for turn in turns] == [None, None]
    assert len(turns[1].messages) == 3


def test_interleaved_sub_agents_keep_to_their_own_contexts():
    model = recorder(["m1", "s1", "m2", "s2", "m3"])

    async def run():
        main, sub = [Message("system", "main")], [Message("system", "sub")]
        for history, policy in ((main, "main"), (sub, "sub"), (main, "main"), (sub, "sub"), (main, "main")):
            history.append(Message("user", "go"))
            history.append(await model.chat(history, policy=policy))

    asyncio.run(run())
    turns = model.record()
    assert [turn.continues for turn in turns] == [None, None, 0, 1, 2]
    assert [turn.policy for turn in turns] == ["main", "sub", "main", "sub", "main"]


def test_a_call_id_anchors_a_message_whose_text_a_client_changed():
    model = recorder(["up()", "done()"])
    tools = Toolbox(Counter()).specs

    async def run():
        first = await model.chat([Message("user", "a")], tools)
        reshaped = replace(first, content="")
        await model.chat([Message("user", "a"), reshaped, Message("tool", "1", tool_call_id="call_0_0")], tools)

    asyncio.run(run())
    assert [turn.continues for turn in model.record()] == [None, 0]


def test_a_call_that_was_never_answered_leaves_no_turn_and_no_gap():
    class Fails(ScriptedSampler):
        async def sample(self, tokens, params):
            if bytes(t for t in tokens if t < 256).endswith(b"bad\nassistant\n"):
                await asyncio.sleep(0.01)
                raise OSError("gone")
            return await super().sample(tokens, params)

    model = Recorder(Fails([said("one"), said("two")]), RENDERER, LIMITS, temperature=1.0, seed=0)

    async def run():
        return await asyncio.gather(
            model.chat([Message("user", "bad")]), model.chat([Message("user", "good")]), return_exceptions=True
        )

    asyncio.run(run())
    assert [(turn.index, turn.continues) for turn in model.record()] == [(0, None)]
    assert model.flag is Ending.SAMPLER_FAILED


def test_every_turn_samples_from_a_stream_of_its_own():
    seeds = {
        turn.sampling.seed
        for attempt in range(3)
        for turn in asyncio.run(run_episode(stage(["up()", "done()"]), TASK, attempt)).turns
    }
    assert len(seeds) == 6


def test_an_environment_that_is_done_ends_the_episode_as_finished():
    class Ends(Counter):
        @property
        def done(self):
            return self.count == 2

    trajectory = play(["up(2)", "up(2)"], environment=Ends)
    assert (trajectory.ending, trajectory.reward, len(trajectory.turns)) == (Ending.FINISHED, 1.0, 1)


def test_groups_are_whole_and_never_more_episodes_run_than_allowed():
    running, most = 0, 0

    async def episode(task, attempt):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return await run_episode(stage(["done()"]), task, attempt)

    async def run():
        tasks = [Task(id=str(n), prompt="x", secret={"count": 0}) for n in range(5)]
        return [group async for group in collect(tasks, 3, episode, concurrency=4)]

    groups = asyncio.run(run())
    assert most == 4
    assert sorted(group.task_id for group in groups) == list("01234")
    assert all([t.attempt for t in group] == [0, 1, 2] for group in groups)


def test_a_slow_synchronous_tool_delays_no_other_episode():
    class Sleeps(Counter):
        @tool
        def up(self) -> str:
            """Count up, slowly."""
            time.sleep(0.2)
            self.count += 1
            return "ok"

    async def run():
        return await asyncio.gather(
            *(run_episode(stage(["up()", "done()"], environment=Sleeps), TASK, n) for n in range(4))
        )

    began = time.monotonic()
    asyncio.run(run())
    assert time.monotonic() - began < 0.6


def test_use_refuses_a_call_when_there_is_no_environment():
    with pytest.raises(ValueError, match="no environment"):
        asyncio.run(recorder([]).use(ToolCall("up", {})))


def test_the_default_agent_gives_up_after_replies_in_a_row_that_cannot_be_read():
    trajectory = play(["?", "up()", "?", "?", "?", "up()"], turns=8)
    assert trajectory.ending is Ending.FINISHED and len(trajectory.turns) == 5


def test_what_a_world_and_an_agent_do_to_a_tasks_data_stays_in_the_attempt():
    class Till:
        def reset(self, task):
            self.paid = task.data["paid"]
            return "go"

        @tool
        def refund(self) -> str:
            """Refund it."""
            return str(self.paid.pop())

        def verify(self, secret):
            return {"success": float(secret["wanted"].pop() not in self.paid)}

    async def agent(task, model):
        task.data["paid"].clear()
        return ""

    task = Task("t", "", data={"paid": [1]}, secret={"wanted": [1]})
    scene = replace(stage(["done()"]), open_environment=Till, agent=agent)
    assert [asyncio.run(run_episode(scene, task, n)).success for n in range(2)] == [0.0, 0.0]
    assert (task.data, task.secret) == ({"paid": [1]}, {"wanted": [1]})


@pytest.mark.parametrize("answer", [5, ["a"], 0, Message("assistant", "words")])
def test_an_answer_that_is_no_text_is_the_agents_failure(answer):
    async def agent(task, model):
        return answer

    trajectory = play([], agent=agent)
    assert trajectory.ending is Ending.AGENT_FAILED and "an answer is a str" in trajectory.error
