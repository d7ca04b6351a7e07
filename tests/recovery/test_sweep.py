"""`sweep` ends what leaked, says why first, and leaves alone what it cannot prove."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hermes_supervise.supervisor.recovery import stale_sessions
from hermes_supervise.supervisor.statedb import schema
from support import World, until

ROOT = Path(__file__).parents[2]
DAY = 24 * 3600.0


@pytest.fixture
def db(world: World) -> Iterator[sqlite3.Connection]:
    """A state.db in WAL mode with one session that compression ended."""
    world.home.mkdir()
    made = sqlite3.connect(world.db, isolation_level=None)
    made.execute("PRAGMA journal_mode = WAL")
    for statement in schema.statements():
        made.execute(statement)
    add(made, "parent", ended="compression")
    yield made
    made.close()


def add(
    db: sqlite3.Connection, name: str, *, parent: str | None = None, days: float = 8,
    messages: int = 2, calls: int | None = 0, ended: str | None = None, title: str | None = None,
    source: str = "cli",
) -> None:  # fmt: skip
    now = time.time()
    db.execute(
        "INSERT INTO sessions (id, source, parent_session_id, started_at, api_call_count, "
        "ended_at, end_reason, title) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (name, source, parent, now - days * DAY, calls, now - DAY if ended else None, ended, title),
    )
    for number in range(messages):
        db.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) VALUES (?, 'user', ?, ?)",
            (name, f"message {number}", now - days * DAY + number),
        )


def ends(db: sqlite3.Connection) -> dict[str, str | None]:
    return dict(db.execute("SELECT id, end_reason FROM sessions").fetchall())


def sweep(world: World, *arguments: str) -> dict[str, Any]:
    answer = world.call("sweep", "--json", *arguments)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert isinstance(found, dict)
    return found


def fill(db: sqlite3.Connection) -> None:
    add(db, "other-parent", ended="cli_close")
    add(db, "still-open-parent")
    db.execute("UPDATE sessions SET end_reason = 'compression' WHERE id = 'still-open-parent'")
    add(db, "orphan", parent="parent")
    add(db, "titled", parent="parent", title="a title")
    add(db, "second-generation", parent="orphan")
    add(db, "no-parent")
    add(db, "recent", parent="parent", days=6)
    add(db, "ended", parent="parent", ended="cli_close")
    add(db, "parent-ended-otherwise", parent="other-parent")
    add(db, "parent-not-ended", parent="still-open-parent")
    add(db, "empty", parent="parent", messages=0)
    add(db, "used", parent="parent", calls=3)
    add(db, "calls-unknown", parent="parent", calls=None)


def test_only_orphaned_continuations_are_ended_also_if_they_have_a_title(
    world: World, db: sqlite3.Connection
) -> None:
    fill(db)
    before = ends(db)
    rows = db.execute("SELECT * FROM messages ORDER BY id").fetchall()
    dry = sweep(world, "--dry-run")
    assert ends(db) == before, "a dry run changes nothing"
    assert [session["session"] for session in dry["leaked"]] == ["orphan", "titled"]
    assert all(not session["ended"] for session in dry["leaked"])
    began = time.time()
    found = sweep(world)
    assert [(session["session"], session["ended"]) for session in found["leaked"]] == [
        ("orphan", True),
        ("titled", True),
    ]
    assert ends(db) == before | {
        "orphan": "orphaned_compression",
        "titled": "orphaned_compression",
    }
    [[at]] = db.execute("SELECT ended_at FROM sessions WHERE id = 'orphan'").fetchall()
    assert at >= began
    assert db.execute("SELECT * FROM messages ORDER BY id").fetchall() == rows
    assert sweep(world)["leaked"] == [], "and once is enough"


def test_hermes_own_rule_finds_the_same(world: World, db: sqlite3.Connection) -> None:
    fill(db)
    copy = world.folder / "copy" / "state.db"
    copy.parent.mkdir()
    target = sqlite3.connect(copy)
    db.backup(target)
    target.close()
    code = (
        "import sys, pathlib; from hermes_state import SessionDB; "
        "SessionDB(pathlib.Path(sys.argv[1])).finalize_orphaned_compression_sessions()"
    )
    python = ROOT / ".venv-hermes-0.19.0" / "bin" / "python"
    subprocess.run([python, "-c", code, copy], env=world.env, check=True, capture_output=True)
    sweep(world)
    theirs = sqlite3.connect(copy)
    assert ends(theirs) == ends(db)
    theirs.close()


def test_it_says_what_and_why_first_and_the_first_reason_wins(
    world: World, db: sqlite3.Connection
) -> None:
    add(db, "orphan", parent="parent")
    add(db, "other", parent="parent")
    db.execute("BEGIN IMMEDIATE")
    process = subprocess.Popen(
        [*world.command, "sweep"], env=world.env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(3)]
    assert said[1].startswith("orphan  ") and "orphaned_compression" in said[1]
    db.execute("UPDATE sessions SET ended_at = 1, end_reason = 'cli_close' WHERE id = 'orphan'")
    db.execute("COMMIT")
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "ended 1 of 2" in rest
    assert re.search("^orphan  ", rest, flags=re.M), "it says which one it left alone"
    assert ends(db)["orphan"] == "cli_close"
    assert ends(db)["other"] == "orphaned_compression"


def test_a_crashed_writers_wal_is_left_in_place(world: World, db: sqlite3.Connection) -> None:
    add(db, "orphan", parent="parent")
    crashed = world.folder / "crashed"
    crashed.mkdir()
    for name in ("state.db", "state.db-wal"):
        shutil.copy(world.home / name, crashed / name)  # as a SIGKILL leaves them
    before = (crashed / "state.db-wal").stat().st_size
    assert before > 0
    assert sweep(world, "--db", str(crashed / "state.db"), "--dry-run")["leaked"]
    assert (crashed / "state.db-wal").stat().st_size == before
    assert sweep(world, "--db", str(crashed / "state.db"))["leaked"][0]["ended"]
    assert (crashed / "state.db-wal").stat().st_size > before


# -- sessions whose process is gone --------------------------------------------------------------

KILLED = """
with session("chat", source="{source}") as chat:
    chat.message("user", "hi")
    ready()
    forever()
"""


def killed(world: World, source: str = "cli") -> float:
    """A session of an agent that was killed, open again as a resume leaves it; when it died."""
    agent = world.supervise(KILLED.format(source=source))
    agent.wait_for("ready")
    agent.kill_agent()
    agent.finish()
    change(world, "UPDATE sessions SET ended_at = NULL, end_reason = NULL")
    [report] = world.reports()
    return float(report["died_at"])


def change(world: World, sql: str, *values: Any) -> None:
    db = sqlite3.connect(world.db, isolation_level=None)
    db.execute(sql, values)
    db.close()


def row(world: World) -> dict[str, Any]:
    found = world.session("chat")
    assert found is not None
    return found


def test_a_session_whose_process_we_saw_die_is_ended_as_it_died(world: World) -> None:
    died = killed(world)
    found = sweep(world)
    assert found["leaked"][0]["why"].endswith("killed by SIGKILL")
    assert (row(world)["end_reason"], row(world)["ended_at"]) == ("interrupted", died)


def test_a_session_that_went_on_since_is_left_alone(world: World) -> None:
    killed(world)
    columns = "session_id, role, content, timestamp"
    later = time.time() + 1
    change(world, f"INSERT INTO messages ({columns}) VALUES ('chat', 'user', 'x', ?)", later)
    assert sweep(world)["left_alone"] == {stale_sessions.WENT_ON: 1}
    assert row(world)["end_reason"] is None


def test_a_session_that_another_process_may_have_taken_up_is_left_alone(world: World) -> None:
    killed(world)
    holder = sqlite3.connect(world.db)
    holder.execute("SELECT 1 FROM sessions").fetchall()
    assert sweep(world)["left_alone"] == {stale_sessions.FILE_IN_USE: 1}
    holder.close()
    assert sweep(world)["leaked"][0]["ended"]


def test_a_gateway_chat_is_left_for_the_gateway(world: World) -> None:
    killed(world, source="telegram")
    assert sweep(world)["left_alone"] == {stale_sessions.A_CHAT: 1}
    assert row(world)["end_reason"] is None


def test_sessions_that_are_supervised_or_wait_for_recover_are_left_alone(
    world: World,
) -> None:
    killed(world)
    world.env["HERMES_SUPERVISE_NO_ADOPT"] = "1"
    agent = world.supervise(KILLED.format(source="cli"))
    agent.wait_for("ready")
    until(lambda: sweep(world)["left_alone"] == {"in use": 1}, "it is seen to be in use")
    pid = agent.agent
    os.kill(agent.pid, signal.SIGKILL)
    agent.process.wait()
    assert sweep(world)["left_alone"] == {"in use": 1}, "its supervisor died, it did not"
    os.kill(pid, signal.SIGKILL)
    until(lambda: "recover" in next(iter(sweep(world)["left_alone"])), "it waits for recover")
    assert row(world)["end_reason"] is None


@pytest.mark.parametrize("holder", ["dead", "alive", "recycled", "dead and alive"])
def test_a_lease_of_a_dead_process_proves_that_it_is_gone(
    world: World, db: sqlite3.Connection, holder: str
) -> None:
    add(db, "leased", days=1)
    add(db, "unknown", days=1)
    db.close()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    dead = {"session_id": "leased", "pid": process.pid}
    dead["process_start_time"] = psutil.Process(process.pid).create_time()
    process.communicate(b"\n")
    me = {"session_id": "leased", "pid": os.getpid()}
    alive = me | {"process_start_time": psutil.Process().create_time()}
    recycled = me | {"process_start_time": psutil.Process().create_time() - 50}
    entries = {"dead": [dead], "alive": [alive], "recycled": [recycled]}
    entries["dead and alive"] = [dead, alive]
    (world.home / "runtime").mkdir()
    leases = world.home / "runtime" / "active_sessions.json"
    leases.write_text(json.dumps({"entries": entries[holder]}))
    before = leases.read_text()
    found = sweep(world)
    again = sqlite3.connect(world.db)
    if "alive" in holder:
        assert found["left_alone"] == {"in use": 1, "no evidence that its process is gone": 1}
        assert ends(again)["leased"] is None
    else:
        assert found["left_alone"] == {"no evidence that its process is gone": 1}
        assert ends(again)["leased"] == "interrupted"
        query = "SELECT ended_at, (SELECT max(timestamp) FROM messages WHERE session_id = 'leased')"
        [[at, last]] = again.execute(f"{query} FROM sessions WHERE id = 'leased'").fetchall()
        assert at == last, "its last sign of life"
    assert ends(again)["unknown"] is None
    assert leases.read_text() == before
    again.close()


def test_where_there_is_nothing_it_says_so_and_makes_nothing(world: World) -> None:
    answer = world.call("sweep")
    assert answer.returncode == 2
    assert str(world.db) in answer.stderr
    assert not world.db.exists()
    world.home.mkdir()
    world.broken.add(world.db)
    world.db.write_text("this is no database, and long enough to be looked at as one. " * 20)
    answer = world.call("sweep")
    assert answer.returncode == 125
    assert "not a database" in answer.stderr
    empty = world.folder / "empty.db"
    sqlite3.connect(empty).close()
    empty.touch()
    assert sweep(world, "--db", str(empty)) == {
        "db": str(empty), "dry_run": False, "leaked": [], "left_alone": {},
    }  # fmt: skip
    assert empty.stat().st_size == 0
