"""A stand-in of today's Hermes (0.21), behind its launchers, killed at every moment: nothing lost,
nothing twice, every hook once. 0.21 itself was never run: see docs/hermes.md."""

from __future__ import annotations

import json
import signal
import subprocess
from typing import Any

import pytest
from hermes_supervise.supervisor.storage.journal import SEGMENT_BYTES
from hermes_today import Today
from support import Supervised, World, children, kill, short, until

WORDS = [("text", "some "), ("text", "words ")]
CALLS = [("call", ("look", "call_a", "{}")), ("call", ("look", "call_b", '{"hold": true}'))]
BOTH = ["on_session_end", "on_session_finalize"]
SAID = [("user", "hello"), ("assistant", "some words ")]


@pytest.fixture
def today(world: World) -> Today:
    return Today(world)


def asked(today: Today, *words: str, stop: str = "", at: str = "here", **popen: Any) -> Supervised:
    """It works on a question, and has come to where the script, or `stop`, holds it."""
    today.world.env["STOP"] = stop
    agent = today.world.run([today.command, *words], **popen)
    today.wait_until_held(stop or at)
    return agent


def killed(agent: Supervised) -> None:
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    assert b"captured" not in agent.errors, "all of it is"


def ended(today: Today, session: str) -> str | None:
    row = today.world.session(session)
    return row["end_reason"] if row else None


def leases(today: Today) -> list[str]:
    with today.world.database() as db:
        return [row["holder"] for row in db.execute("SELECT * FROM session_turn_leases")]


def test_every_capability_is_found_behind_the_launchers_by_the_best_way(today: Today) -> None:
    answer = json.loads(today.world.call("doctor", "--json", "--", today.command).stdout)
    found: dict[str, set[tuple[str, str]]] = {}
    for check in answer["checks"]:
        found.setdefault(check["name"], set()).add((check["state"], check["text"]))
    assert found["agent"] == {("ok", "Hermes 0.21.3")}
    assert {state for state, _ in found["capability"] | found["way in"]} == {"ok"}
    by = dict(text.split(", by ") for _, text in found["capability"])
    assert by["settled"] == "SessionDB.append_messages_batch"
    assert by["told to leave"] == "AIAgent.hard_interrupt"
    assert by["deltas"] == "AIAgent._fire_stream_delta"


@pytest.mark.parametrize("start", ["launcher", "hermes-agent", "serve"])
def test_killed_in_a_reply(today: Today, start: str) -> None:
    today.says([*WORDS, ("hold", "here")])
    command = [today.command]
    if start == "hermes-agent":
        command = [today.command, "--run-module", "hermes_cli.main"]
    elif start == "serve":  # Hermes starts Hermes: isolated, after it has replaced PYTHONPATH
        command = [today.command, "serve"]
    agent = today.world.run([*command, "chat", "hello"])
    today.wait_until_held("here")
    if start == "serve":
        [child] = children(agent.agent)
        kill(child)
        agent.finish()
    else:
        killed(agent)
    assert short(today.world.messages("chat")) == SAID
    assert ended(today, "chat") == "interrupted"
    assert [(name, session) for name, session, _ in today.hooks()] == [(n, "chat") for n in BOTH]


@pytest.mark.parametrize(
    ("platform", "reason"),
    [("kanban", "interrupted"), ("oneshot", "interrupted"), ("tool", "interrupted"),
     ("telegram", None)],
)  # fmt: skip
def test_only_a_chat_that_the_gateway_goes_on_with_stays_open(
    today: Today, platform: str, reason: str | None
) -> None:
    today.world.env["PLATFORM"] = platform
    today.says([*WORDS, ("hold", "here")])
    killed(asked(today, "chat", "hello"))
    assert short(today.world.messages("chat")) == SAID
    assert ended(today, "chat") == reason


def test_killed_in_the_second_of_two_tools(today: Today) -> None:
    today.says([*WORDS, *CALLS])
    killed(asked(today, "chat", "hello", at="tool"))
    rows = today.world.messages("chat")
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in json.loads(rows[1]["tool_calls"])] == ["call_a", "call_b"]
    assert rows[2]["content"] == "result of call_a"
    assert rows[3]["tool_call_id"] == "call_b" and rows[3]["effect_disposition"] == "unknown"
    assert ended(today, "chat") == "interrupted"


ROTATES = [[("rotate", None), ("text", "after it "), ("hold", "here")]]
AGAIN = [*SAID, ("user", "and now")]
SUMMARY = [("user", "a summary"), *AGAIN[1:]]


@pytest.mark.parametrize(
    ("stop", "live"),
    [("while it is summed up", "chat"), ("before it is published", "chat"),
     ("inside the transaction", "chat"), ("after the transaction", "chat-child"),
     ("", "chat-child")],
)  # fmt: skip
def test_killed_in_a_rotation(today: Today, stop: str, live: str) -> None:
    today.says([*WORDS])
    assert today.world.run([today.command, "chat", "hello"]).finish() == 0
    before = len(today.hooks())
    today.says(*ROTATES)
    agent = asked(today, "chat", "and now", stop=stop)
    assert len(leases(today)) == 1
    killed(agent)
    assert leases(today) == []
    assert short(today.world.messages("chat")) == AGAIN
    if live == "chat":
        assert (ended(today, "chat"), today.world.session("chat-child")) == ("interrupted", None)
    else:
        assert ended(today, "chat") == "compression"
        reply = [] if stop else [("assistant", "after it ")]
        assert short(today.world.messages("chat-child")) == [*SUMMARY, *reply]
        assert ended(today, "chat-child") == "interrupted"
    assert [hook[:2] for hook in today.hooks()[before:]] == [[name, live] for name in BOTH]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_comes_by_a_hard_interrupt_leaves_an_interrupted_turn(
    today: Today, number: signal.Signals
) -> None:
    """Hermes runs its own hooks and ends the row itself: both stay, and the words are there."""
    today.says([*WORDS, ("hold", "here")])
    agent = asked(today, "chat", "hello")
    agent.kill_agent(number)
    assert agent.finish() == 130
    assert short(today.world.messages("chat")) == SAID
    assert ended(today, "chat") == "cli_close"
    assert [name for name, _, _ in today.hooks()] == BOTH
    [report] = json.loads(today.world.call("sessions", "--json").stdout)
    assert (report["session"], report["outcome"]) == ("chat", "interrupted")


def test_a_turn_that_a_signal_broke_off_is_interrupted_also_if_the_exit_is_in_order(
    today: Today,
) -> None:
    """On a busy machine, `chat -q` of 0.13.0 may end a turn that was told to leave in a tool, run
    its hooks, end no row, and exit with 0."""
    today.world.env["LEAVES_OPEN"] = "1"
    today.says([*WORDS, ("hold", "here")])
    agent = asked(today, "chat", "hello")
    agent.kill_agent(signal.SIGTERM)
    assert agent.finish() == 0
    assert short(today.world.messages("chat")) == SAID
    assert ended(today, "chat") == "interrupted"
    assert [name for name, _, _ in today.hooks()] == BOTH


def test_the_lease_of_a_killed_turn_does_not_keep_the_next_one_waiting(today: Today) -> None:
    today.says([*WORDS])
    first = today.world.run([today.command, "chat", "hello"])
    assert first.wait_for("some words ended True")
    assert first.finish() == 0
    today.says([("text", "again "), ("hold", "here")])
    agent = asked(today, "chat", "and now")
    pid = agent.agent
    assert [holder.split(":")[0] for holder in leases(today)] == [f"pid={pid}"]
    killed(agent)
    assert leases(today) == []
    today.says([("text", "and on ")])
    third = today.world.run([today.command, "chat", "once more"])
    third.wait_for("and on ended True")
    assert third.finish() == 0
    assert short(today.world.messages("chat")) == [
        *SAID, ("user", "and now"), ("assistant", "again "), ("user", "once more"),
        ("assistant", "and on "),
    ]  # fmt: skip


def test_killed_in_a_turn_that_went_on_in_the_continuation_of_another_process(today: Today) -> None:
    for name in ("chat", "continuation"):
        today.says([*WORDS])
        assert today.world.run([today.command, name, "hello"]).finish() == 0
    today.world.env["CONTINUED_AS"] = "continuation"
    today.says([("text", "again "), ("hold", "here")])
    agent = asked(today, "chat", "and now")
    assert len(leases(today)) == 1
    killed(agent)
    assert leases(today) == []
    assert short(today.world.messages("chat")) == SAID
    assert short(today.world.messages("continuation")) == [*AGAIN, ("assistant", "again ")]


def test_a_question_that_was_refused_because_another_has_the_session_is_not_stored(
    today: Today,
) -> None:
    today.says([*WORDS])
    assert today.world.run([today.command, "chat", "hello"]).finish() == 0
    today.says([("text", "again "), ("hold", "here")])
    other = asked(today, "chat", "and now")
    refused = today.world.run([today.command, "chat", "me too"])
    refused.wait_for("ended session_busy")
    refused.finish()
    killed(other)
    contents = [content for _, content in short(today.world.messages("chat"))]
    assert contents == ["hello", "some words ", "and now", "again "]


def test_what_is_stored_in_batches_is_dropped_from_the_journal(today: Today) -> None:
    """A turn of many messages, each of which is in the journal twice: in pieces and as a whole."""
    big, many = "x" * 100_000, 120
    today.says(*[[("text", f"{number} {big}")] for number in range(many)], [("hold", "here")])
    agent = asked(today, "chat", "hello", stdout=subprocess.DEVNULL)
    [run] = today.world.runs()

    def size() -> int:
        return sum(path.stat().st_size for path in run.glob("*.log"))

    until(lambda: size() < SEGMENT_BYTES + 10 * len(big), "only the last segment is left")
    killed(agent)
    rows = today.world.messages("chat")
    assert [row["content"].split()[0] for row in rows[1:]] == [str(n) for n in range(many)]
    assert ended(today, "chat") == "interrupted"
