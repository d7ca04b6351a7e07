"""Real Hermes on a machine that is lost: on another one it is resumed, and the model is sent every
word."""

from __future__ import annotations

from typing import Any

from fleet import Fleet, Machine
from hermes_world import Hermes, Model, call, say
from support import until

VERSION = "0.19.0"


def sent(request: dict[str, Any]) -> list[tuple[str, str]]:
    """What the model was sent, without the system's words."""
    messages = [message for message in request["messages"] if message["role"] != "system"]
    return [(message["role"], str(message.get("content") or "")) for message in messages]


def chat(hermes: Hermes, question: str, *more: str) -> list[str]:
    return [hermes.command, "chat", "-q", question, "-Q", "--yolo", *more]


def only_session(machine: Machine) -> str:
    with machine.database() as db:
        [row] = db.execute("SELECT id FROM sessions").fetchall()
    return str(row["id"])


def resumed(fleet: Fleet, here: Machine, there: Machine, model: Model) -> list[tuple[str, str]]:
    """Lose the one, recover on the other, resume there; what the model is sent."""
    lost = here.id
    here.lose()
    hermes = Hermes(VERSION, there, model)
    ledger = hermes.plugin()
    fleet.declare_lost(lost, there)
    done = there.call("fleet", "recover", "--all-lost")
    assert done.returncode == 0, done.stderr
    session = only_session(there)
    assert f"hermes --resume {session}" in done.stdout
    # The plugins of the Hermes that is installed there are called.
    called = until(lambda: ledger.exists() and ledger.read_text().splitlines(), "its plugin")
    assert any("on_session_end" in line and session in line for line in called)
    model.script = [say("and so it goes on")]
    before = len(model.requests)
    again = there.run(chat(hermes, "go on", "--resume", session))
    assert again.finish(120) == 0, again.errors
    return sent(model.requests[before])


def test_lost_in_the_middle_of_a_reply(fleet: Fleet, model: Model) -> None:
    """The session began in an earlier run: its rows come with it."""
    here, there = fleet.machine(), fleet.machine()
    hermes = Hermes(VERSION, here, model)
    model.script = [say("the first answer")]
    first = here.run(chat(hermes, "the first question"))
    assert first.finish(120) == 0, first.errors
    here.until_shipped()
    session = only_session(here)
    model.script = [[*say("I begin with a quetzal"), ("hold", "here")]]
    here.run(chat(hermes, "the second question", "--resume", session))
    model.wait_until_held()
    fleet.until_there("quetzal")
    request = resumed(fleet, here, there, model)
    assert [role for role, _ in request] == ["user", "assistant", "user", "assistant", "user"]
    texts = [text.strip() for _, text in request]
    assert texts[:3] == ["the first question", "the first answer", "the second question"]
    assert texts[3].startswith("I begin with a quetzal")
    assert "go on" in texts[4]


def test_lost_in_the_middle_of_a_tool(fleet: Fleet, model: Model, tmp_path: Any) -> None:
    here, there = fleet.machine(), fleet.machine()
    hermes = Hermes(VERSION, here, model)
    mark = tmp_path / "running"
    command = f"touch {mark}; sleep 600"
    model.script = [[*say("I run it"), call("terminal", {"command": command}, "call_1")]]
    here.run(chat(hermes, "run the thing"))
    until(mark.exists, "the tool runs", 120)
    # The call itself: a turn has a "start" as well, and is there long before.
    fleet.until_there("call_1")
    request = resumed(fleet, here, there, model)
    assert request[0] == ("user", "run the thing")
    assert request[1][0] == "assistant" and request[1][1].strip() == "I run it"
    assert request[2][0] == "tool" and "unknown" in request[2][1]
    assert "go on" in request[-1][1]
    assert sum("run the thing" in text for _, text in request) == 1
