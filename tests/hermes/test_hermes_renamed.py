"""Hermes with its methods under other names, one at a time and all at once, killed."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from hermes_agents import handed_over
from hermes_drift import ALL, TAPPED, Drifted, renamed
from hermes_world import Model, call, say
from support import Supervised, World, until

VERSIONS = ("0.19.0", "0.13.0")
# In turns: what a rename costs hardly differs from one release to the other. SLOW=all has both.
ONE_AT_A_TIME = [
    (version, (name,))
    for place, name in enumerate(TAPPED)
    for version in (VERSIONS if os.environ.get("SLOW") == "all" else [VERSIONS[place % 2]])
]
ALL_AT_ONCE = [(version, ALL) for version in VERSIONS]


def names_of(value: tuple[str, ...]) -> str:
    return "all" if len(value) > 1 else value[0]


def start(version: str, names: tuple[str, ...], world: World, model: Model) -> Any:
    hermes = Drifted(version, world, model)
    hermes.take(rename=renamed(names))
    return hermes


def run(hermes: Drifted) -> Supervised:
    return hermes.world.run([hermes.command, "chat", "-q", "hello there", "-Q", "--yolo"])


def killed(hermes: Drifted, agent: Supervised) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    with hermes.world.database() as db:
        [found] = db.execute("SELECT * FROM sessions").fetchall()
    assert hermes.world.runs() == [], agent.errors.decode()
    return dict(found), hermes.world.messages(found["id"])


@pytest.mark.parametrize(
    ("version", "names"), [*ONE_AT_A_TIME, *ALL_AT_ONCE],
    ids=lambda value: names_of(value) if isinstance(value, tuple) else value,
)  # fmt: skip
def test_killed_in_a_reply_after_a_tool(
    version: str, names: tuple[str, ...], world: World, model: Model
) -> None:
    hermes = start(version, names, world, model)
    model.script = [
        [*say("I look first"), call("terminal", {"command": "echo tool-says-hi"}, "call_a")],
        [("reasoning", "a thought"), *say("It says hi and"), ("hold", "here")],
    ]
    agent = run(hermes)
    model.wait_until_held()
    handed_over(hermes, "and ")
    floor = b"model stream" in world.said()
    assert floor == (names is ALL), "only if nothing else tells which conversation it is"
    session, rows = killed(hermes, agent)
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "assistant"]
    assert rows[0]["content"] == "hello there"
    assert rows[1]["content"].strip() == "I look first"
    assert [made["id"] for made in json.loads(rows[1]["tool_calls"])] == ["call_a"]
    assert "tool-says-hi" in rows[2]["content"]
    assert rows[3]["content"] == "It says hi and "
    assert rows[3]["reasoning"] == "a thought"
    assert rows[3]["finish_reason"] == "interrupted"
    assert session["end_reason"] == "interrupted"
    assert session["source"] == "cli"


@pytest.mark.parametrize(
    ("version", "names"),
    [*[pair for pair in ONE_AT_A_TIME if pair[1][0] in TAPPED[:3]], *ALL_AT_ONCE],
    ids=lambda value: names_of(value) if isinstance(value, tuple) else value,
)
def test_killed_in_a_tool(version: str, names: tuple[str, ...], world: World, model: Model) -> None:
    hermes = start(version, names, world, model)
    fifo, runs = world.folder / "fifo", world.folder / "runs"
    os.mkfifo(fifo)
    command = f"touch {runs}; cat {fifo}"
    model.script = [[*say("I wait"), call("terminal", {"command": command}, "call_w")]]
    agent = run(hermes)
    until(runs.exists, "the tool runs", deadline=120)
    session, rows = killed(hermes, agent)
    assert [row["role"] for row in rows] == ["user", "assistant", "tool"]
    assert rows[0]["content"] == "hello there"
    assert rows[1]["content"].strip() == "I wait"
    assert [made["id"] for made in json.loads(rows[1]["tool_calls"])] == ["call_w"]
    assert rows[2]["tool_call_id"] == "call_w"
    assert "unknown" in rows[2]["content"]
    assert session["end_reason"] == "interrupted"
