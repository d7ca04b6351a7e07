"""Hooks while an agent lives: a new conversation replaces another one, a session is idle."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

from hermes_supervise.supervisor.model.stream import ReplayedStream, Session
from hermes_supervise.supervisor.process.cause import UNSUPERVISED, Cause
from hermes_supervise.supervisor.recovery import idle
from hermes_supervise.supervisor.storage.run_folder import Run
from support import World, alive, short, until

RESETS = """
from hermes_supervise.agent_shim import sdk
chat = session("old", model="m", platform="terminal")
chat.message("user", "q")
chat.message("assistant", "a")
chat = chat.reset("new")
chat.message("user", "something else")
assert sdk.connection().acknowledged(20)
ready()
forever()
"""


def every_event(world: World, *options: str) -> tuple[str, ...]:
    """Options for hooks that append what they get to `hooked`, one for each event."""
    command = world.hook[1]
    names = ("end", "finalize", "reset")
    return tuple(word for name in names for word in (f"--on-session-{name}", command)) + options


def triggered(world: World) -> list[tuple[str, str, str]]:
    return [
        (event["hook_event_name"].removeprefix("on_session_"), event["session_id"],
         event["extra"]["reason"])
        for event in world.events()
    ]  # fmt: skip


def row(world: World, session: str) -> dict[str, Any]:
    try:
        return world.session(session) or {}
    except sqlite3.OperationalError:  # no file or no table yet
        return {}


BOTH = [("finalize", "old", "new_session"), ("reset", "new", "new_session")]


def test_a_new_conversation_finalises_the_old_one_before_it_is_announced(world: World) -> None:
    agent = world.supervise(RESETS, *every_event(world))
    agent.wait_for("ready")
    until(lambda: len(world.events()) == 2, "both hooks have run")
    assert alive(agent.agent), "while the agent lives"
    assert triggered(world) == BOTH
    for event in world.events():
        extra = event["extra"]
        assert (extra["old_session_id"], extra["new_session_id"]) == ("old", "new")
        assert (extra["completed"], extra["interrupted"], extra["attempt"]) == (True, False, 1)
    agent.kill_agent()
    agent.finish()
    death = "killed by SIGKILL"
    assert triggered(world) == [*BOTH, ("end", "new", death), ("finalize", "new", death)]
    assert row(world, "old")["end_reason"] == "new_session"
    assert row(world, "new")["end_reason"] == "interrupted"
    assert short(world.messages("new")) == [("user", "something else")]


def test_recover_runs_the_hooks_of_a_new_conversation_whose_supervisor_died_at_once(
    world: World,
) -> None:
    agent = world.supervise(RESETS, "--no-adopt", *every_event(world))
    agent.wait_for("ready")
    agent.abandon()
    before = triggered(world)
    assert BOTH[: len(before)] == before
    # A process that the supervisor had just started may still be at work, and hold the run.
    until(lambda: world.call("recover").returncode == 0 and world.runs() == [], "recovered")
    until(lambda: len(world.events()) >= 4, "the hooks have run")
    unknown = str(Cause(unseen=UNSUPERVISED))
    rest = [("end", "new", unknown), ("finalize", "new", unknown)]
    repeated = [event for event in world.events() if event["extra"]["repeated"]]
    once = [event for n, event in enumerate(triggered(world)) if event not in triggered(world)[:n]]
    assert once == [*BOTH, *rest]
    assert len(triggered(world)) == 4 + len(repeated), "a hook that was cut off is repeated"


SILENT = """
from hermes_supervise.agent_shim import sdk
busy = session("busy")
busy.message("user", "work")
chat = session("chat")
chat.message("user", "q")
chat.message("assistant", "a")
ready()
open(sys.argv[1]).read()
chat.message("user", "again")
assert sdk.connection().acknowledged(20)
ready("again")
open(sys.argv[1]).read()
chat.message("assistant", "b")
ready("answered")
open(sys.argv[1]).read()
os._exit(0)
"""


def test_a_silent_session_is_finalised_once_and_opened_again_by_its_next_message(
    world: World,
) -> None:
    gate = world.folder / "gate"
    os.mkfifo(gate)
    command = [sys.executable, world.script(SILENT), str(gate)]
    agent = world.run(command, "--idle-finalize", "0.3", *every_event(world))
    agent.wait_for("ready")
    silence = ("finalize", "chat", "idle")
    until(world.events, "the hook has run")
    until(lambda: row(world, "chat").get("end_reason") == "idle", "the row says so")
    assert triggered(world) == [silence]
    assert row(world, "busy")["ended_at"] is None, "somebody works in that one"

    gate.write_text("go on")
    agent.wait_for("again")
    until(lambda: row(world, "chat")["ended_at"] is None, "its next message opens it again")
    gate.write_text("go on")
    agent.wait_for("answered")
    until(lambda: len(world.events()) == 2, "silent again")
    until(lambda: row(world, "chat")["end_reason"] == "idle", "the row says so again")
    gate.write_text("go on")
    assert agent.finish() == 0
    assert triggered(world)[:2] == [silence, silence]
    assert {session for _, session, _ in triggered(world)[2:]} == {"busy"}, "nothing more is owed"
    assert short(world.messages("chat")) == [
        ("user", "q"), ("assistant", "a"), ("user", "again"), ("assistant", "b")
    ]  # fmt: skip
    assert row(world, "chat")["end_reason"] == "idle"
    outcomes = {report["session"]: report["outcome"] for report in world.reports()}
    assert outcomes == {"chat": "finalised when idle", "busy": "interrupted"}


def test_a_silent_session_that_went_on_is_interrupted_like_any_other(world: World) -> None:
    gate = world.folder / "gate"
    os.mkfifo(gate)
    command = [sys.executable, world.script(SILENT), str(gate)]
    agent = world.run(command, "--idle-finalize", "0.3", "--checkpoint", "0", *every_event(world))
    agent.wait_for("ready")
    until(lambda: row(world, "chat").get("end_reason") == "idle", "the row says so")
    gate.write_text("go on")
    agent.wait_for("again")
    agent.kill_agent()
    agent.finish()
    ended = row(world, "chat")
    assert ended["end_reason"] == "interrupted"
    assert [event for event in triggered(world) if event[1] == "chat"] == [
        ("finalize", "chat", "idle"),
        ("end", "chat", "killed by SIGKILL"),
        ("finalize", "chat", "killed by SIGKILL"),
    ]


def test_a_silence_counts_until_a_later_record_speaks(tmp_path: Path) -> None:
    lines = (
        '{"stream": "s", "session": "chat", "heard": 7, "at": 5.0}\n',
        '\n{"stream": "other", "session": "chat", "heard": 99, "at": 6.0}\n{"stream": "s", "se',
    )
    (tmp_path / "idle.jsonl").write_text("".join(lines))
    run = Run(str(tmp_path), -1)

    def marked(heard: int, ended: str | None = None) -> tuple[str | None, float, bool]:
        session = Session("chat", heard=heard, ended=ended)
        idle.mark(run, "s", ReplayedStream(sessions={"chat": session}))
        return session.ended, session.ended_at, session.idle

    assert marked(7) == ("idle", 5.0, True)
    assert marked(8) == (None, 0.0, False)
    assert marked(7, "by the agent") == ("by the agent", 0.0, False)
