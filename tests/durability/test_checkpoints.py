"""What an agent says is in state.db while it runs, and whoever dies when: once, and in order."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.ingest.connection import Stream
from hermes_supervise.supervisor.model.job_result import JobResult
from hermes_supervise.supervisor.process.loop import Loop
from hermes_supervise.supervisor.recovery.checkpoint import checkpoint
from hermes_supervise.supervisor.recovery.compact import compact
from hermes_supervise.supervisor.recovery.gather import gather
from hermes_supervise.supervisor.recovery.replay import replay
from hermes_supervise.supervisor.run.checkpoints import Checkpoints
from hermes_supervise.supervisor.run.jobs import JobQueue
from hermes_supervise.supervisor.statedb.reconcile import NOT_REPORTED
from hermes_supervise.supervisor.statedb.writer import StateDb
from hermes_supervise.supervisor.storage import run_folder as runs
from hermes_supervise.supervisor.storage.journal import Journal
from streams import recover
from support import Supervised, World, alive, child_of, children, kill, short, until, wait_dead

SOON = "--checkpoint=0.2"
NOT_SOON = "--checkpoint=3600"

# Waits for a line of the test's between two things that it does.
STEPWISE = """
def step(what):
    ready(what)
    sys.stdin.readline()
"""


def encoded(number: int, record: dict[str, Any]) -> bytes:
    return frames.encode(number, records.pack(record))


def started(world: World, source: str, *options: str) -> Supervised:
    return world.supervise(STEPWISE + source, *options, stdin=subprocess.PIPE)


def go_on(agent: Supervised) -> None:
    assert agent.process.stdin is not None
    agent.process.stdin.write(b"\n")
    agent.process.stdin.flush()


def rows(world: World, session: str = "chat") -> list[tuple[str, str | None]]:
    """What another tool sees at this moment."""
    if not world.db.exists():
        return []
    try:
        return short(world.messages(session))
    except sqlite3.OperationalError:  # the tables are being made
        return []


def wait_rows(world: World, expected: list[tuple[str, str | None]], session: str = "chat") -> None:
    until(lambda: rows(world, session) == expected, f"{expected}, not {rows(world, session)}")


def marker(world: World, session: str = "chat") -> dict[str, Any]:
    with world.database() as db:
        [row] = db.execute(
            "SELECT value FROM state_meta WHERE key LIKE 'hermes_supervise:%:' || ?", (session,)
        ).fetchall()
        found = json.loads(row[0])
        assert isinstance(found, dict)
        return found


@pytest.mark.parametrize("length", [14, 255, 256, 100_000])
def test_the_users_message_is_there_before_the_agent_has_answered(
    world: World, length: int
) -> None:
    question = "are you there?".ljust(length, "?")
    agent = started(
        world,
        f"""
with session("chat", source="cli", model="gpt-x") as chat:
    chat.message("user", {question!r})
    step("asked")
""",
        NOT_SOON,
    )
    agent.wait_for("asked")
    wait_rows(world, [("user", question)])
    row = world.session("chat")
    assert row is not None
    assert (row["ended_at"], row["end_reason"], row["message_count"]) == (None, None, 1)
    assert (row["source"], row["model"]) == ("cli", "gpt-x")
    go_on(agent)
    assert agent.finish() == 0
    assert rows(world) == [("user", question)]
    assert world.session("chat")["end_reason"] == "completed"  # type: ignore[index]
    assert world.runs() == []


def test_what_is_complete_follows_and_what_still_grows_waits(world: World) -> None:
    agent = started(
        world,
        """
chat = session("chat")
chat.message("user", "q")
chat.message("assistant", "a")
chat.delta("a reply that gr")
step("said")
forever()
""",
        SOON,
    )
    agent.wait_for("said")
    wait_rows(world, [("user", "q"), ("assistant", "a")])
    first = until(lambda: marker(world).get("at"))
    agent.kill_agent()
    agent.finish()
    expected = [("user", "q"), ("assistant", "a"), ("assistant", "a reply that gr")]
    assert rows(world) == expected
    assert world.session("chat")["end_reason"] == "interrupted"  # type: ignore[index]
    done = marker(world)
    assert done["done"]
    assert done["at"] >= first
    assert "rows" not in done
    [report] = world.reports()
    assert report["recovered"]["messages"] == 1, "what was left to recover"


def test_whoever_follows_a_run_sees_when_it_last_moved(world: World) -> None:
    agent = started(
        world,
        """
chat = session("chat")
chat.message("user", "q")
step("asked")
chat.delta("word ")
step("streamed")
forever()
""",
        SOON,
    )
    agent.wait_for("asked")
    wait_rows(world, [("user", "q")])
    until(lambda: marker(world).get("told"))
    before = marker(world)
    go_on(agent)
    agent.wait_for("streamed")
    until(lambda: marker(world)["at"] > before["at"], "the time moves with the stream")
    assert rows(world) == [("user", "q")]
    agent.kill_agent()
    agent.finish()


def test_an_open_call_is_stored_and_closed_only_by_its_result(world: World) -> None:
    agent = started(
        world,
        """
chat = session("chat")
chat.message("user", "q")
with chat.tool("terminal", {"command": "ls"}, call=None) as tool:
    step("calling")
    tool.result = "file.txt"
step("called")
forever()
""",
        SOON,
    )
    agent.wait_for("calling")
    wait_rows(world, [("user", "q"), ("assistant", None)])
    assert world.session("chat")["tool_call_count"] == 1  # type: ignore[index]
    go_on(agent)
    agent.wait_for("called")
    wait_rows(world, [("user", "q"), ("assistant", None), ("tool", "file.txt")])
    agent.kill_agent()
    agent.finish()
    assert rows(world) == [("user", "q"), ("assistant", None), ("tool", "file.txt")]


def test_a_call_that_the_user_went_on_without_gets_an_answer_and_later_its_result(
    world: World,
) -> None:
    agent = started(
        world,
        """
call = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
chat = session("chat")
chat.message("user", "q")
chat.message("assistant", None, tool_calls=call)
chat.message("assistant", "still waiting")
step("waiting")
chat.message("user", "go on")
step("went on")
chat.message("tool", "late", tool_call_id="c1")
step("late")
forever()
""",
        SOON,
    )
    agent.wait_for("waiting")
    wait_rows(world, [("user", "q"), ("assistant", None)])
    go_on(agent)
    agent.wait_for("went on")
    until(lambda: len(rows(world)) == 5, "all of it")
    assert [role for role, _ in rows(world)] == ["user", "assistant", "tool", "assistant", "user"]
    assert rows(world)[2][1] == NOT_REPORTED
    go_on(agent)
    agent.wait_for("late")
    until(lambda: rows(world)[2][1] == "late", "the answer is the real one now")
    agent.kill_agent()
    agent.finish()
    assert [role for role, _ in rows(world)] == ["user", "assistant", "tool", "assistant", "user"]


def test_a_message_said_again_takes_the_place_of_its_earlier_self(world: World) -> None:
    agent = started(
        world,
        """
chat = session("chat")
chat.message("user", "q")
chat.message("assistant", "first", uid="grows")
chat.message("assistant", "another", uid="other")
step("first")
chat.message("assistant", "first and second", uid="grows")
step("second")
chat.message("assistant", "first, second and third", uid="grows")
step("third")
forever()
""",
        SOON,
    )
    agent.wait_for("first")
    wait_rows(world, [("user", "q"), ("assistant", "first"), ("assistant", "another")])
    go_on(agent)
    agent.wait_for("second")
    wait_rows(world, [("user", "q"), ("assistant", "first and second"), ("assistant", "another")])
    assert found(world, "second") == ["first and second"], "by the search index, too"
    go_on(agent)
    agent.wait_for("third")
    agent.kill_agent()
    agent.finish()
    expected = [("user", "q"), ("assistant", "first, second and third"), ("assistant", "another")]
    assert rows(world) == expected


def found(world: World, word: str) -> list[str]:
    with world.database() as db:
        query = (
            "SELECT m.content FROM messages_fts JOIN messages m ON m.id = messages_fts.rowid "
            "WHERE messages_fts MATCH ?"
        )
        return [row[0] for row in db.execute(query, (word,))]


def test_titles_ends_and_rotations_are_as_the_agent_has_them(world: World) -> None:
    agent = started(
        world,
        """
chat = session("chat")
chat.message("user", "q")
chat.title("First")
step("titled")
chat.title("Second")
chat.message("assistant", "a")
step("retitled")
chat.end("completed")
step("ended")
chat.message("user", "once more")
step("open again")
chat.rotate("chat-2")
chat.message("user", "in the new one")
step("rotated")
forever()
""",
        SOON,
    )

    def row(session: str = "chat") -> dict[str, Any]:
        return world.session(session) or {}

    agent.wait_for("titled")
    until(lambda: rows(world) and row()["title"] == "First")
    go_on(agent)
    agent.wait_for("retitled")
    until(lambda: row()["title"] == "Second")
    go_on(agent)
    agent.wait_for("ended")
    until(lambda: row()["end_reason"] == "completed")
    go_on(agent)
    agent.wait_for("open again")
    until(lambda: len(rows(world)) == 3)
    assert (row()["ended_at"], row()["end_reason"]) == (None, None)
    go_on(agent)
    agent.wait_for("rotated")
    wait_rows(world, [("user", "in the new one")], "chat-2")
    assert row()["end_reason"] == "compression"
    assert (row("chat-2")["parent_session_id"], row("chat-2")["ended_at"]) == ("chat", None)
    agent.kill_agent()
    agent.finish()
    assert row()["end_reason"] == "compression"
    assert row("chat-2")["end_reason"] == "interrupted"
    assert len(rows(world)) == 3
    assert rows(world, "chat-2") == [("user", "in the new one")]


def test_an_interrupted_session_that_goes_on_is_open_meanwhile_and_keeps_its_past(
    world: World,
) -> None:
    source = """
chat = session("chat")
chat.message("user", "again")
step("asked")
forever()
"""
    for life in (1, 2):
        agent = started(world, source, NOT_SOON)
        agent.wait_for("asked")
        wait_rows(world, [("user", "again")] * life)
        until(lambda: world.session("chat")["ended_at"] is None)  # type: ignore[index]
        agent.kill_agent()
        agent.finish()
        assert world.session("chat")["end_reason"] == "interrupted"  # type: ignore[index]
    assert rows(world) == [("user", "again")] * 2


def test_what_an_agent_writes_that_knows_nothing_of_us_is_stored_as_it_goes(world: World) -> None:
    path = world.folder / "talk.jsonl"
    line = json.dumps({"role": "user", "content": "from a file"})
    script = f"""echo '{line}' >> {path}; echo ready; read forever"""
    agent = world.run(["sh", "-c", script], NOT_SOON, "--watch", str(path), stdin=subprocess.PIPE)
    agent.wait_for("ready")

    def seen() -> list[Any]:
        query = (
            "SELECT role, content, ended_at FROM messages JOIN sessions ON sessions.id = session_id"
        )
        try:
            with world.database() as db:
                return [tuple(row) for row in db.execute(query)]
        except sqlite3.OperationalError:  # not there, or being made
            return []

    until(lambda: seen() == [("user", "from a file", None)], "it is there, and open")
    agent.kill_agent()
    agent.finish()
    [report] = world.reports()
    assert report["outcome"] == "interrupted"
    assert [row[:2] for row in seen()] == [("user", "from a file")]


# -- who is left alone -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["says so", "has made the row"])
def test_an_agent_that_stores_its_messages_itself_is_left_to_do_so(world: World, how: str) -> None:
    make_tables(world, row=how == "has made the row")
    about = "settles=True" if how == "says so" else ""
    agent = started(
        world,
        f"""
session("chat", {about}).message("user", "q")
session("other").message("user", "not stored by anybody else")
step("asked")
forever()
""",
        SOON,
    )
    agent.wait_for("asked")
    wait_rows(world, [("user", "not stored by anybody else")], "other")
    assert rows(world) == []
    agent.kill_agent()
    agent.finish()
    assert rows(world) == [("user", "q")], "recovery does what the agent did not live to do"


@pytest.mark.parametrize(
    ("hello", "more"),
    [
        ({"agent": "hermes"}, []),
        ({}, [{"kind": "settled", "uids": ["u"], "rows": [7]}]),
        ({}, [{"kind": "rewritten"}]),
    ],
    ids=["hermes", "settled", "rewritten"],
)
def test_who_has_said_that_it_stores_its_messages_is_not_looked_at_again(
    tmp_path: Path, hello: dict[str, Any], more: list[dict[str, Any]]
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"db": str(tmp_path / "state.db")}))
    (tmp_path / "lock").touch()
    run = runs.claim(str(tmp_path))
    assert run is not None
    journal = Journal(str(tmp_path), "5" * 32, encoded(0, {"kind": "hello", **hello}))
    message = {"kind": "message", "uid": "u", "message": {"role": "user", "content": "q"}}
    sent = [{"kind": "session", "session": "chat"}, message]
    for number, record in enumerate([*sent, *more], 1):
        journal.append(encoded(number, {"session": "chat", **record}))
    journal.close()
    assert checkpoint(run, "5" * 32) == JobResult.NOT_OURS
    assert not (tmp_path / "state.db").exists()
    run.release()


def make_tables(world: World, *, row: bool) -> None:
    world.home.mkdir()
    StateDb(str(world.db)).close()
    if row:
        db = sqlite3.connect(world.db)
        with db:
            db.execute("INSERT INTO sessions (id, source, started_at) VALUES ('chat', 'cli', 1)")
        db.close()


def test_the_journal_of_an_agent_that_never_ends_stays_small(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"db": str(tmp_path / "state.db")}))
    (tmp_path / "lock").touch()
    run = runs.claim(str(tmp_path))
    assert run is not None
    name = "5" * 32
    journal = Journal(str(tmp_path), name, encoded(0, {"kind": "hello"}), segment_bytes=64 * 1024)
    journal.append(encoded(1, {"kind": "session", "session": "chat", "at": 1e9}))
    for number in range(2, 1202):
        text = f"{number} " + "x" * 1000
        message = {"role": "user" if number % 2 else "assistant", "content": text}
        journal.append(
            encoded(number, {"kind": "message", "at": 1e9 + number, "uid": f"u{number}",
                             "message": message})
        )  # fmt: skip
        if journal.full:
            closed = journal.begin_next_segment()
            if closed % 3 == 0:
                assert checkpoint(run, name) == JobResult.DONE
                compact(str(tmp_path), name, closed)
    journal.close()
    left = sum(path.stat().st_size for path in tmp_path.glob(f"{name}.*"))
    assert left < 5 * 64 * 1024 < 1200 * 1000
    replayed = replay(gather(str(tmp_path), name).frames)
    db = StateDb(str(tmp_path / "state.db"))
    recover(db, replayed.sessions["chat"], 2e9, (2e9, "interrupted"), name)
    _, stored = db.reader.transcript("chat")
    db.close()
    assert [row["content"].split()[0] for row in stored] == [str(n) for n in range(2, 1202)]
    run.release()


def test_with_zero_nothing_is_stored_before_the_end(world: World) -> None:
    agent = started(
        world,
        """
chat = session("chat")
chat.message("user", "q")
step("asked")
""",
        "--checkpoint=0",
    )
    agent.wait_for("asked")
    assert not world.db.exists()
    go_on(agent)
    agent.finish()
    assert rows(world) == [("user", "q")]


def test_an_idle_agent_costs_nothing(tmp_path: Path) -> None:
    """Once what was said has been looked at, the loop waits without an end to it."""
    loop = Loop()
    warned: list[str] = []
    jobs = JobQueue(lambda: None, warned.append)
    (tmp_path / "lock").touch()
    run = runs.claim(str(tmp_path))
    assert run is not None
    checkpoints = Checkpoints(loop, jobs, run, 0.01)
    stream = Stream(
        "5" * 32, os.getpid(), Journal(str(tmp_path), "5" * 32, encoded(0, {"kind": "hello"}))
    )
    assert loop._time_left() is None
    stream.append([(1, encoded(1, {"kind": "session", "session": "chat"}))], always_sync=False)
    checkpoints.records_arrived(stream)
    assert loop._time_left() is not None
    loop.run_until(lambda: jobs.busy)
    assert jobs.reaped(*os.waitpid(jobs.pid, 0))
    assert loop._time_left() is None
    assert not warned
    stream.journal.close()
    run.release()


def test_what_is_only_in_memory_is_tried_again_soon(tmp_path: Path) -> None:
    """If it cannot be stored now, it is still nowhere else."""
    loop = Loop()
    jobs = JobQueue(lambda: None, print)
    run = runs.Run(str(tmp_path), -1)
    checkpoints = Checkpoints(loop, jobs, run, 600)
    stream = Stream("5" * 32, os.getpid(), Journal(str(tmp_path), "5" * 32, b""))
    checkpoints._began[stream.name] = 0.0
    checkpoints._done(stream, JobResult.AGAIN, [])
    left = loop._time_left()
    assert left is not None and left > 500_000, "the journal has it"
    checkpoints.forget(stream)
    stream.unwritten.frames = [(1, encoded(1, {"kind": "session", "session": "chat"}))]
    checkpoints._began[stream.name] = 0.0
    checkpoints._done(stream, JobResult.AGAIN, [])
    left = loop._time_left()
    assert left is not None and left <= 1000
    stream.journal.close()


# -- whoever dies, whenever --------------------------------------------------------------------

MANY = """
chat = session("chat")
for number in range(40):
    chat.message("user", f"question {number}")
    chat.delta(f"answer ")
    chat.message("assistant", f"answer {number}")
    ready(f"said {number}")
    time.sleep(0.01)
chat.delta("and the l")
ready("all")
forever()
"""


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes() if alive(pid) else b""


def everything() -> list[tuple[str, str | None]]:
    said: list[tuple[str, str | None]] = []
    for number in range(40):
        said += [("user", f"question {number}"), ("assistant", f"answer {number}")]
    return [*said, ("assistant", "and the l")]


def test_killing_every_process_that_stores_loses_and_doubles_nothing(world: World) -> None:
    agent = world.supervise(MANY, "--checkpoint=0.01")
    killed = 0
    for number in range(40):
        agent.wait_for(f"said {number}")
        # The oldest of our own forks is the standby, who is there for life.
        ours = [pid for pid in children(agent.pid) if command(pid) == command(agent.pid)]
        for pid in ours[1:]:
            os.kill(pid, signal.SIGKILL)
            killed += 1
    agent.wait_for("all")
    assert killed
    agent.kill_agent()
    agent.finish()
    assert rows(world) == everything()


@pytest.mark.parametrize("together", [False, True], ids=["supervisor", "all at once"])
def test_killed_in_the_middle_of_it_a_later_recovery_completes_it(
    world: World, together: bool
) -> None:
    agent = world.supervise(MANY, "--checkpoint=0.01")
    agent.wait_for("said 20")
    pid = agent.agent
    if together:
        agent.abandon()
        assert world.call("recover").returncode == 0
    else:
        kill(agent.pid)
        [successor] = until(world.successors, "a successor")
        agent.wait_for("all")
        child_of(successor)
        kill(pid)
        wait_dead(successor)
    stored = rows(world)
    said = everything()
    assert stored == said[: len(stored)] if together else stored == said
    assert len(stored) >= 40
    assert world.session("chat")["end_reason"] == "interrupted"  # type: ignore[index]


def test_committed_and_killed_before_it_could_be_written_down_it_is_not_stored_again(
    world: World,
) -> None:
    """Between the transaction and the file beside the journal, only the marker knows."""
    agent = started(
        world,
        """
chat = session("chat")
chat.message("user", "one")
step("one")
chat.message("user", "two")
step("two")
forever()
""",
        NOT_SOON,
    )
    agent.wait_for("one")
    wait_rows(world, [("user", "one")])
    [run] = world.runs()
    [beside] = until(lambda: list(run.glob("*.stored.log")))
    until(lambda: len(children(agent.pid)) == 2, "it is done: the agent and the standby")
    before = beside.read_bytes()
    beside.unlink()
    go_on(agent)
    agent.wait_for("two")
    wait_rows(world, [("user", "one"), ("user", "two")])
    until(lambda: len(children(agent.pid)) == 2, "it is done")
    assert beside.read_bytes() != before
    beside.write_bytes(before)
    agent.kill_agent()
    agent.finish()
    assert rows(world) == [("user", "one"), ("user", "two")]


def test_a_file_that_is_locked_holds_up_nobody_and_gets_it_later(world: World) -> None:
    make_tables(world, row=False)
    db = sqlite3.connect(world.db, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    agent = started(
        world,
        """
chat = session("chat")
chat.message("user", "one")
step("one")
chat.message("user", "two")
step("two")
forever()
""",
        SOON,
    )
    agent.wait_for("one")
    go_on(agent)
    agent.wait_for("two")
    db.execute("ROLLBACK")
    db.close()
    wait_rows(world, [("user", "one"), ("user", "two")])
    agent.kill_agent()
    agent.finish()
    assert rows(world) == [("user", "one"), ("user", "two")]
