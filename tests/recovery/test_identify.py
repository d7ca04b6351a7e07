"""Which session of the database a stream speaks of, where only the database knows."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing
from typing import Any

import pytest
from hermes_supervise.supervisor.statedb import schema
from support import World, short

# As Hermes 0.20 does it: the parent's end, the child and what is in it in one transaction.
AGENT = """
import sqlite3
db = sqlite3.connect(os.environ["HERMES_HOME"] + "/state.db", isolation_level=None)

def stop(where):
    if os.environ["STOP"] == where:
        ready(where)
        forever()

def store(name, *said):
    for role, content in said:
        db.execute("INSERT INTO messages (session_id, role, content, timestamp) "
                   "VALUES (?, ?, ?, ?)", (name, role, content, time.time()))

chat = session("parent", source="cli", settles=True)
uid = chat.message("user", "the question")
db.execute("INSERT INTO sessions (id, source, started_at) VALUES ('parent', 'cli', ?)",
           (time.time(),))
store("parent", ("user", "the question"))
chat.settled([uid], [1])
chat.turn("start")
stop("before")
chat._say("session", becoming="child")
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE sessions SET ended_at = ?, end_reason = 'compression' WHERE id = 'parent'",
           (time.time(),))
db.execute("INSERT INTO sessions (id, source, parent_session_id, started_at) "
           "VALUES ('child', 'cli', 'parent', ?)", (time.time(),))
store("child", ("user", "a summary"))
stop("inside, not committed")
db.execute("COMMIT")
stop("inside, committed")
chat.rotate("child")
chat.delta("after it")
stop("after")
"""


@pytest.mark.parametrize(
    ("stop", "live"),
    [("before", "parent"), ("inside, not committed", "parent"), ("inside, committed", "child"),
     ("after", "child")],
)  # fmt: skip
def test_killed_around_a_rotation_in_one_transaction(world: World, stop: str, live: str) -> None:
    make(world)
    world.env["STOP"] = stop
    agent = world.supervise(AGENT, *world.hook)
    agent.wait_for(stop)
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    ends = {name: ended(world.session(name)) for name in ("parent", "child")}
    if live == "parent":
        assert ends == {"parent": "interrupted", "child": None}
    else:
        assert ends == {"parent": "compression", "child": "interrupted"}
        more = [("assistant", "after it")] if stop == "after" else []
        assert short(world.messages("child")) == [("user", "a summary"), *more]
    assert short(world.messages("parent")) == [("user", "the question")]
    assert [event["session_id"] for event in world.events()] == [live]
    assert world.runs() == []


# -- captured from the model's stream ----------------------------------------------------------

# Tells what the floor tells, of an agent that has stored `ROWS` in sessions of these names.
CAPTURED = """
import json, sqlite3
began = time.time()
db = sqlite3.connect(os.environ["HERMES_HOME"] + "/state.db", isolation_level=None)
for name, said in json.loads(os.environ["ROWS"]).items():
    db.execute("INSERT INTO sessions (id, source, started_at) VALUES (?, 'cli', ?)",
               (name, time.time()))
    for role, content in said:
        db.execute("INSERT INTO messages (session_id, role, content, timestamp) "
                   "VALUES (?, ?, ?, ?)", (name, role, content, time.time()))
chat = session("floor", source="unknown", settles=True, captured="model stream", since=began)
chat.title("not known")
history = json.loads(os.environ["HISTORY"])
if history:
    chat._say("history", messages=[{"role": role, "content": text} for role, text in history])
chat.message("user", "hello there, and a note of the agent's")
chat.delta("some words")
ready()
forever()
"""
HELLO = ("user", "hello there")
PAST = [("user", "long ago"), ("assistant", "yes")]
REPLY = ("assistant", "some words")


@pytest.mark.parametrize(
    ("rows", "history", "found"),
    [
        ({"own": [HELLO]}, [], "own"),
        ({"own": [HELLO], "other": [("user", "another thing")]}, [], "own"),
        ({"own": [HELLO], "other": [*PAST, HELLO]}, [], "own"),
        ({"own": [*PAST, HELLO], "other": [HELLO]}, PAST, "own"),
        ({"own": []}, [], "own"),
        ({"own": [*PAST]}, PAST, "own"),
        ({"own": [HELLO], "other": [HELLO]}, [], None),
        ({"own": [], "other": []}, [], None),
        ({"other": [("user", "another thing")]}, [], None),
        ({"other": [*PAST, HELLO]}, [], None),
        ({"other": [HELLO, ("tool", "a result of a call that we know nothing of")]}, [], None),
    ],
)
def test_the_session_is_found_by_its_rows_or_a_separate_one_says_so(
    world: World, rows: dict[str, Any], history: list[Any], found: str | None
) -> None:
    make(world)
    world.env |= {"ROWS": json.dumps(rows), "HISTORY": json.dumps(history)}
    agent = world.supervise(CAPTURED, *world.hook)
    agent.wait_for("ready")
    agent.kill_agent()
    assert agent.finish() == -signal.SIGKILL
    if found is not None:
        past = rows[found][:-1] if HELLO in rows[found] else rows[found]
        question = HELLO if HELLO in rows[found] else (HELLO[0], HELLO[1] + ASIDE)
        assert short(world.messages(found)) == [*past, question, REPLY]
        assert ended(world.session(found)) == "interrupted"
        assert world.session("floor") is None
    else:
        separate = world.session("floor")
        assert separate is not None
        assert separate["title"] == "not known"
        assert short(world.messages("floor"))[-2:] == [(HELLO[0], HELLO[1] + ASIDE), REPLY]
    for name in rows.keys() - {found}:
        assert short(world.messages(name)) == rows[name]
        assert ended(world.session(name)) is None
    assert world.runs() == []


ASIDE = ", and a note of the agent's"


def make(world: World) -> None:
    world.home.mkdir()
    with closing(sqlite3.connect(world.db)) as db:
        for statement in schema.statements():
            db.execute(statement)
        db.commit()


def ended(session: dict[str, Any] | None) -> str | None:
    return session["end_reason"] if session else None
