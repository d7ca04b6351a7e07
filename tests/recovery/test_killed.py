"""SIGKILL at the worst moment, and what is on disk afterwards: the promise itself (G1)."""

from __future__ import annotations

import json
import signal

import pytest
from support import World, short

pytestmark = pytest.mark.both_platforms


def test_killed_between_two_deltas_keeps_exactly_the_streamed_prefix(world: World) -> None:
    agent = world.supervise(
        """
with session("chat", source="cli", model="gpt-x", platform="terminal") as chat:
    chat.message("user", "tell me")
    for number in range(1000):
        chat.delta(f"word{number} ")
        ready(f"word{number}")
        if number == 41:
            forever()
""",
        *world.hook,
    )
    agent.wait_for("word41")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL

    streamed = "".join(f"word{number} " for number in range(42))
    rows = world.messages("chat")
    assert short(rows) == [("user", "tell me"), ("assistant", streamed)]
    assert rows[-1]["finish_reason"] == "interrupted"
    ended = world.session("chat")
    assert ended is not None
    assert (ended["end_reason"], ended["message_count"]) == ("interrupted", 2)
    assert ended["ended_at"] > ended["started_at"]
    [event] = world.events()
    assert event["hook_event_name"] == "on_session_end"
    assert event["session_id"] == "chat"
    extra = event["extra"]
    assert (extra["completed"], extra["interrupted"]) == (False, True)
    assert (extra["model"], extra["platform"]) == ("gpt-x", "terminal")
    assert extra["reason"] == "killed by SIGKILL"
    assert world.runs() == [], "a settled run leaves nothing behind"


def test_reasoning_goes_into_its_own_column(world: World) -> None:
    agent = world.supervise(
        """
with session("chat") as chat:
    chat.message("user", "why")
    chat.delta("let me ", reasoning=True)
    chat.delta("think", reasoning=True)
    chat.delta("Because")
    ready()
    forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    reply = world.messages("chat")[-1]
    assert (reply["reasoning"], reply["content"]) == ("let me think", "Because")


def test_killed_in_the_second_of_three_tool_calls_answers_every_call_once(world: World) -> None:
    agent = world.supervise(
        """
def call(id, name):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}

with session("chat") as chat:
    chat.message("user", "do three things")
    calls = [call("c1", "one"), call("c2", "two"), call("c3", "three")]
    chat.message("assistant", None, tool_calls=calls)
    with chat.tool("one", call="c1") as tool:
        tool.result = "done one"
    with chat.tool("two", call="c2") as tool:
        ready()
        forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    rows = world.messages("chat")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool", "tool"]
    calls = [call["id"] for call in json.loads(rows[1]["tool_calls"])]
    assert [row["tool_call_id"] for row in rows[2:]] == calls == ["c1", "c2", "c3"]
    assert rows[2]["content"] == "done one"
    assert rows[3]["effect_disposition"] == "unknown"
    assert "unknown" in rows[3]["content"]
    assert rows[4]["effect_disposition"] == "none", "the third was never started"
    ended = world.session("chat")
    assert ended is not None
    assert (ended["message_count"], ended["tool_call_count"]) == (5, 3)


def test_killed_with_two_calls_in_parallel_keeps_the_result_that_was_there(world: World) -> None:
    agent = world.supervise(
        """
def call(id, name):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}}

with session("chat") as chat:
    chat.message("user", "do both")
    chat.message("assistant", "Both now.", tool_calls=[call("a", "slow"), call("b", "quick")])
    began = threading.Barrier(2)
    def slow():
        with chat.tool("slow", call="a"):
            began.wait()
            forever()
    threading.Thread(target=slow, daemon=True).start()
    with chat.tool("quick", call="b") as tool:
        began.wait()
        tool.result = "quick result"
    ready()
    forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    rows = world.messages("chat")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool"]
    answers = {row["tool_call_id"]: row for row in rows[2:]}
    assert answers["b"]["content"] == "quick result"
    assert answers["a"]["effect_disposition"] == "unknown"


def test_a_reply_that_was_broken_off_keeps_its_place_when_the_user_goes_on(world: World) -> None:
    agent = world.supervise(
        """
with session("chat") as chat:
    chat.message("user", "first")
    chat.delta("half an answ")
    chat.message("user", "stop, something else")
    chat.delta("a quarter of ")
    chat.message("assistant", "Operation stopped.", aside=True)
    chat.message("user", "third")
    chat.delta("now")
    ready()
    forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    rows = world.messages("chat")
    assert short(rows) == [
        ("user", "first"),
        ("assistant", "half an answ"),
        ("user", "stop, something else"),
        ("assistant", "a quarter of "),
        ("assistant", "Operation stopped."),
        ("user", "third"),
        ("assistant", "now"),
    ]
    assert [row["finish_reason"] for row in rows if row["finish_reason"]] == ["interrupted"] * 3


def test_history_said_again_live_stays_in_its_place_and_the_live_words_win(world: World) -> None:
    agent = world.supervise(
        """
old = [{"role": "user", "content": "one", "uid": "u1"},
       {"role": "assistant", "content": "two, as it was", "uid": "u2"},
       {"role": "user", "content": "three", "uid": "u3"}]
chat = session("chat", history=old)
chat.message("assistant", "two, as it is", uid="u2")
chat.message("assistant", "four")
ready()
forever()
"""
    )
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    contents = [row["content"] for row in world.messages("chat")]
    assert contents == ["one", "two, as it is", "three", "four"]
