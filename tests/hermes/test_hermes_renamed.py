"""Hermes with its methods under other names, one at a time and all at once, killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import Any

import pytest
from hermes_agents import handed_over
from hermes_drift import ALL, TAPPED, Drifted, renamed
from hermes_world import Model, call, say
from support import Supervised, World, short, until
from test_hermes_moments import (
    SERVER,
    Talk,
    check_the_turn,
    continuation,
    history,
    prepare,
    rows_of,
)

VERSIONS = ("0.19.0", "0.13.0")
# In turns: what a rename costs hardly differs from one release to the other. SLOW=all has both.
ONE_AT_A_TIME = [
    (version, (name,))
    for place, name in enumerate(TAPPED)
    for version in (VERSIONS if os.environ.get("SLOW") == "all" else [VERSIONS[place % 2]])
]
ALL_AT_ONCE = [(version, ALL) for version in VERSIONS]
# While the summary is made; when the continuation has a row and nothing in it; in its first reply.
ROTATION = [(version, moment) for moment in ("rotated", "summing", "torn") for version in VERSIONS][
    : None if os.environ.get("SLOW") == "all" else 1
]


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


@pytest.mark.parametrize(("version", "moment"), ROTATION)
def test_all_renamed_and_killed_in_a_rotation(version: str, moment: str, world: World) -> None:
    with contextlib.closing(Talk()) as model:
        hermes = start(version, ALL, world, model)
        flags = prepare(hermes)
        look = [call("terminal", {"command": "echo looked"}, "call_look"), ("usage", 70_000)]
        model.scripts = {moment: [[*look], [*say("And then"), ("hold", "rotated")]]}
        model.summaries = {"summing": [("hold", "summing")]}
        plan = world.folder / "plan.json"
        plan.write_text(json.dumps([(moment, history(moment), False)]))
        # Without the SDK, in whose presence the floor makes no session.
        server = world.folder / "server.py"
        source = hermes.adapted(SERVER) + "\nthreading.Event().wait()\n"
        server.write_text("import os, sys, threading\n" + source)
        agent = world.run([hermes.python, str(server), str(plan)])
        if moment == "torn":
            until((flags / "torn").exists, "it has rotated and stored nothing yet")
        else:
            model.wait_until_held(moment)
        handed_over(hermes, "then " if moment == "rotated" else "call_look")
        agent.kill_agent()
        assert agent.finish(120) == -signal.SIGKILL
    assert world.runs() == [], agent.errors.decode()
    session, rows = rows_of(hermes, moment)
    before = [(message["role"], message["content"]) for message in history(moment)]
    assert short(rows[: len(before)]) == before
    question, asked, answer = rows[len(before) :]
    assert short([question]) == [("user", f"question of {moment}")]
    assert [made["id"] for made in json.loads(asked["tool_calls"])] == ["call_look"]
    # 0.13.0 has not stored the result, and no request has carried it.
    assert ("looked" if version == "0.19.0" else "unknown") in answer["content"]
    with world.database() as db:
        [[count]] = db.execute("SELECT count(*) FROM sessions").fetchall()
    if moment == "summing":
        assert (count, session["end_reason"]) == (1, "interrupted")
        return
    assert (count, session["end_reason"]) == (2, "compression")
    child, rows = rows_of(hermes, continuation(hermes, moment))
    if moment == "torn":
        assert rows == [], "all is in the session that it continues"
        return
    check_the_turn(rows[:-1], moment)
    assert "A summary of what was said" in "".join(row["content"] or "" for row in rows)
    assert short(rows[-1:]) == [("assistant", "And then ")]
    assert child["end_reason"] == "interrupted"
