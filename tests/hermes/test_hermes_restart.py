"""Real Hermes, crashed and started again: the same session, and it knows what happened."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest
from hermes_world import Hermes, Model, call, say
from support import Supervised, World, until
from terminals import Terminal
from test_hermes import journal, only_session
from test_hermes_terminal import ask, classic

RESTART = ("--restart", "on-crash")


@pytest.fixture
def hermes(world: World, model: Model) -> Hermes:
    return Hermes("0.19.0", world, model)


def sent(request: dict[str, Any]) -> list[tuple[str, str]]:
    """What the model was sent, without the system's words."""
    messages = [message for message in request["messages"] if message["role"] != "system"]
    return [(message["role"], str(message.get("content") or "")) for message in messages]


def left(terminal: Terminal, agent: Supervised) -> int:
    """End of input, as often as it takes: the moment Hermes prints something, its terminal is
    not in raw mode, and there the key is nothing."""
    for _ in range(60):
        terminal.type("\x04")
        try:
            return agent.process.wait(1)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"it does not end; it shows\n{terminal.screen}")


def test_a_question_cut_off_in_its_answer_is_gone_on_with_and_not_asked_again(
    hermes: Hermes,
) -> None:
    hermes.model.script = [
        [*say("I begin with the"), ("hold", "here")],
        say("the rest of it"),
    ]
    command = [hermes.command, "chat", "-q", "do the thing", "-Q", "--yolo"]
    agent = hermes.world.run(command, *RESTART)
    hermes.model.wait_until_held()
    until(lambda: b"begin with the " in journal(hermes.world), "the last word is handed over")
    agent.kill_agent()
    assert agent.finish(120) == 0, agent.errors
    session = only_session(hermes.world)
    rows = hermes.world.messages(session["id"])
    assert len(rows) == 4, [(r["role"], r["content"]) for r in rows]
    first, cut, notice, rest = rows
    assert (first["role"], first["content"]) == ("user", "do the thing")
    assert (cut["content"], cut["finish_reason"]) == ("I begin with the ", "interrupted")
    assert notice["role"] == "user"
    assert notice["content"].startswith("[hermes-supervise] ")
    assert "killed by SIGKILL" in notice["content"]
    assert (rest["role"], rest["content"].strip()) == ("assistant", "the rest of it")
    # The model was sent all of it, and the question once.
    second = sent(hermes.model.requests[1])
    assert second[0] == ("user", "do the thing")
    assert second[1][0] == "assistant" and "I begin with the" in second[1][1]
    assert second[2][0] == "user" and "reply" in second[2][1]
    assert sum("do the thing" in text for _, text in second) == 1
    assert f"chat -Q --yolo --resume {session['id']} -q …" in agent.errors.decode()
    assert session["end_reason"] != "interrupted"


def test_at_the_terminal_it_comes_back_on_the_session_and_knows_of_the_tool_in_flight(
    hermes: Hermes, tmp_path: Any
) -> None:
    flag = tmp_path / "runs"
    hermes.model.script = [
        [call("terminal", {"command": f"touch {flag}; sleep 300", "timeout": 600}, "call_a")],
        say("so it may have happened"),
    ]
    terminal = Terminal()
    try:
        agent = terminal.run(hermes.world, classic(hermes), *RESTART)
        ask(terminal, "touch it", 0)
        until(flag.exists, "the tool runs", deadline=120)
        before = len(terminal.text)
        agent.kill_agent(signal.SIGSEGV)
        terminal.wait_for("(1 of 5)", since=before)
        session = only_session(hermes.world)
        seen = terminal.text.rindex("(1 of 5)")
        ask(terminal, "what now?", seen)
        terminal.wait_for("may have happened", since=seen)
        again = sent(hermes.model.requests[1])
        assert again[0] == ("user", "touch it")
        [result] = [text for role, text in again if role == "tool"]
        assert "unknown" in result.lower()
        assert again[-1] == ("user", "what now?")
        assert left(terminal, agent) == 0
    finally:
        terminal.close()
    assert only_session(hermes.world)["id"] == session["id"]
    assert hermes.world.runs() == []


def test_left_without_a_word_after_a_restart_the_session_is_closed_and_offered(
    hermes: Hermes,
) -> None:
    hermes.model.script = [[*say("some words of it"), ("hold", "here")]]
    terminal = Terminal()
    try:
        agent = terminal.run(hermes.world, classic(hermes), *RESTART)
        ask(terminal, "hello there", 0)
        hermes.model.wait_until_held()
        until(lambda: b"words of it " in journal(hermes.world), "the last word is handed over")
        before = len(terminal.text)
        agent.kill_agent()
        terminal.wait_for("(1 of 5)", since=before)
        terminal.wait_for("❯", since=terminal.text.rindex("(1 of 5)"))
        assert left(terminal, agent) == 0
    finally:
        terminal.close()
    session = only_session(hermes.world)
    assert session["end_reason"] == "interrupted"
    assert f"--resume {session['id']}" in hermes.world.call("sessions").stdout
    assert session["id"] not in hermes.world.call("sweep", "--dry-run").stdout
