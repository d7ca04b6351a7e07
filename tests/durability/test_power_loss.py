"""The power goes between any two file operations: what was acknowledged is recovered (G2).

Agent, supervisor and recovery are the real ones, in this process, so that every operation of
theirs is seen. What the disk may hold after each of them is put in its place, and then
`hermes-supervise recover` is run on it, as after a restart.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import math
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import apsw
import pytest
from hermes_supervise.agent_shim import spool, stream
from hermes_supervise.agent_shim.link import Link
from hermes_supervise.ipc import endpoint, frames, records
from hermes_supervise.supervisor.cli.commands import recover
from hermes_supervise.supervisor.hooks import process, queue, runner
from hermes_supervise.supervisor.ingest.connection import Connection, Stream
from hermes_supervise.supervisor.ingest.listener import Listener
from hermes_supervise.supervisor.ingest.observer import Observer
from hermes_supervise.supervisor.ingest.server import Server
from hermes_supervise.supervisor.process.cause import Cause
from hermes_supervise.supervisor.process.loop import Loop
from hermes_supervise.supervisor.recovery import compact, finish, report
from hermes_supervise.supervisor.recovery.reading import Reading
from hermes_supervise.supervisor.run.recover import finish_closed
from hermes_supervise.supervisor.statedb import connection, schema
from hermes_supervise.supervisor.statedb.missing import Missing
from hermes_supervise.supervisor.storage import journal, run_notes
from hermes_supervise.supervisor.storage import run_folder as runs
from hermes_supervise.supervisor.storage.journal import Journal
from power_loss import PLAIN, Recorder, losses, restore


@dataclass
class Model:
    """What was said, by number, and what must be in the database for it."""

    said: dict[int, dict[str, Any]] = field(default_factory=dict)

    def rows(self, upto: int) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        reply = ""
        for number, record in sorted(self.said.items()):
            if number <= upto and record["kind"] == "message":
                if reply and record["message"]["role"] == "user":
                    found.append(("assistant", reply))  # broken off, and it keeps its place
                found.append((record["message"]["role"], record["message"]["content"]))
                reply = ""
            elif number <= upto and record["kind"] == "delta":
                reply += record["text"]
        return [*found, ("assistant", reply)] if reply else found


class Compacting(Observer):
    """Compacts a journal as soon as a segment is closed."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def segment_closed(self, stream: Stream, number: int) -> None:
        self._scene.compact(stream, number)


class Scene:
    """An agent and its supervisor on a disk that is recorded."""

    def __init__(self, root: str, sync: str) -> None:
        self.root, self.sync = root, sync
        self.db = os.path.join(root, "home", "of the agent", "state.db")
        self.recorder = Recorder(root)
        self.model = Model()
        self.ends_as = "interrupted"
        self.hooks: list[str] = []
        self._number = 0

    def begin(self) -> None:
        self.recorder.mark(("begun", 0))
        self.run = runs.create({"db": self.db, "sync": self.sync, "grace": 5, "orphans": "report",
                                "on_session_end": self.hooks, "hook_timeout": 60})  # fmt: skip
        self._loop = Loop()
        self._listener = Listener(self.run.name)
        self.server = Server(
            self._loop, self._listener, self.run.folder, Compacting(self), sync=self.sync
        )
        self.link = Link(self._listener.path, self.run.folder, {})
        self.say({"kind": "session", "session": "chat", "source": "cli", "db": self.db})

    def say(self, *said: dict[str, Any]) -> None:
        """Say it, and wait for the acknowledgement."""
        self._send(*said)
        self.link._stream._exclusively(self.link._stream._flush)
        self._loop.run_until(self._heard)

    def _send(self, *said: dict[str, Any]) -> None:
        for record in said:
            self._number += 1
            self.model.said[self._number] = record
            self.link.send(records.pack({"session": "chat", "at": 1000.0 + self._number, **record}))

    def _heard(self) -> bool:
        sender = self.link._stream
        sender._exclusively(sender._read_acks)
        return not sender._unacked

    def message(self, role: str, content: str) -> None:
        self.say({"kind": "message", "message": {"role": role, "content": content}})

    def delta(self, text: str) -> None:
        self.say({"kind": "delta", "text": text})

    def into_spool(self, *said: dict[str, Any]) -> None:
        """The connection is lost, and for now nobody listens at the socket."""
        self.link._stream._disconnect()
        self.link._stream._retry_at = math.inf
        self._send(*said)
        assert not self.link._stream._unacked, "it is in the spool"
        self.link._stream._retry_at = 0.0

    def waits_for_acknowledgement(self) -> None:
        """The agent asks, with nobody there but its spool."""
        assert self.link.acknowledged(0)
        self.recorder.mark(("acknowledged", self._number))

    def interval_passed(self) -> None:
        self.server.streams._sync()
        self.recorder.mark(("synced", self.stream.last))

    @property
    def stream(self) -> Stream:
        [stream] = self.server.streams.served.values()
        return stream

    def next_segment(self) -> None:
        """The next record finds its segment full."""
        self.stream.journal._segment_bytes = self.stream.journal.size

    def compact(self, stream: Stream, closed: int) -> None:
        stream.journal._segment_bytes = 1 << 20
        compact.compact(self.run.folder, stream.name, closed)

    def die(self) -> None:
        self._listener.close()
        [name] = self.server.streams.served
        death = Cause(signal=signal.SIGKILL, at=2000.0).as_record()
        self.server.streams.close(self.stream, frames.encode(0, records.pack(death)))
        self.recorder.mark(("all", self._number))
        self.server.close_in_child()
        self.link._stream._disconnect()
        finish_closed(self.run, finish.Supervised([name], set(), {}, os.getppid()))
        runs.retire(self.run)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder that is as good as a disk of its own, in memory where there is such a place."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    root, runtime = tempfile.mkdtemp(dir=memory), tempfile.mkdtemp(prefix="hs")
    monkeypatch.setenv("XDG_STATE_HOME", os.path.join(root, "home", "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    monkeypatch.setenv("HERMES_HOME", os.path.join(root, "home", "default"))
    # Zeros by the hundred thousand would tell nothing more, and take their time.
    monkeypatch.setattr(stream, "_FIRST_HALF", 4096)
    monkeypatch.setattr(journal, "_PREALLOCATED", 4096)
    yield root
    shutil.rmtree(root)
    shutil.rmtree(runtime)


@contextlib.contextmanager
def acknowledgements(scene: Scene) -> Iterator[None]:
    """Each is marked when it leaves the supervisor."""
    real = Connection._send

    def answer(client: Connection, seq: int, payload: bytes) -> None:
        real(client, seq, payload)
        if not payload:
            scene.recorder.mark(("acknowledged", seq))

    Connection._send = answer  # type: ignore[method-assign]
    try:
        yield
    finally:
        Connection._send = real  # type: ignore[method-assign]


Play = Callable[[Scene], None]


def conversation(scene: Scene) -> None:
    """Everything that a journal goes through: a segment ends, one is compacted, the line is lost,
    a reply is streamed and replaced by its message, and the last one is not finished."""
    scene.begin()
    scene.message("user", "q0")
    scene.message("assistant", "a0 " + "x" * 700)
    scene.interval_passed()
    scene.next_segment()
    scene.message("user", "q1")
    scene.delta("half ")
    scene.delta("a reply")
    scene.message("assistant", "half a reply, whole")
    scene.interval_passed()
    scene.into_spool(
        {"kind": "message", "message": {"role": "user", "content": "spooled"}},
        {"kind": "delta", "text": "spooled, too, "},
    )
    scene.delta("and not")
    scene.message("user", "q2")
    scene.into_spool({"kind": "message", "message": {"role": "assistant", "content": "a2"}})
    scene.waits_for_acknowledgement()
    scene.message("user", "q3")
    scene.next_segment()
    scene.delta("unfinished ")
    scene.interval_passed()
    scene.delta("reply")
    scene.die()


def made_by_the_agent(scene: Scene, journal_mode: str) -> apsw.Connection:
    """A database that was there before, safe and sound, with another session in it."""
    os.makedirs(os.path.dirname(scene.db))
    db = apsw.Connection(scene.db)
    db.execute(f"PRAGMA journal_mode = {journal_mode}").fetchall()
    for statement in schema.statements():
        db.execute(statement)
    db.execute("INSERT INTO sessions (id, source, started_at) VALUES ('other', 'cli', 1)")
    folder = os.path.dirname(scene.db)
    while folder.startswith(scene.root):
        endpoint.sync_folder(folder)
        folder = os.path.dirname(folder)
    db.execute("PRAGMA synchronous = NORMAL")
    return db


def stored_by_the_agent(scene: Scene, said_at_the_end: bool = True) -> None:
    """An agent that writes its rows itself, says so, and does not sync them."""
    db = made_by_the_agent(scene, "wal")
    scene.begin()
    db.execute("INSERT INTO sessions (id, source, started_at) VALUES ('chat', 'cli', 1000)")
    for number, (role, content) in enumerate([("user", "q0"), ("assistant", "a0"), ("user", "q1")]):
        message = {"role": role, "content": content}
        scene.say({"kind": "message", "uid": f"u{number}", "message": message})
        db.execute(
            "INSERT INTO messages (session_id, role, content, timestamp) "
            "VALUES ('chat', ?, ?, 1000)", (role, content),
        )  # fmt: skip
        row = db.last_insert_rowid()
        scene.say({"kind": "settled", "uids": [f"u{number}"], "rows": [row]})
    if said_at_the_end:
        scene.delta("unfinished")
    else:
        db.execute("UPDATE sessions SET ended_at = 1009, end_reason = 'done' WHERE id = 'chat'")
        scene.say({"kind": "ended", "reason": "done", "at": 1009.0})
        scene.ends_as = "done"
    scene.die()
    db.close()


def all_stored_by_the_agent(scene: Scene) -> None:
    """Nothing is missing for recovery to write, so that nothing of its own is synced."""
    stored_by_the_agent(scene, said_at_the_end=False)


def rollback_journal(scene: Scene) -> None:
    made_by_the_agent(scene, "delete").close()
    scene.begin()
    scene.message("user", "q0")
    scene.delta("unfinished")
    scene.die()


def hooked(scene: Scene) -> None:
    """With a hook, which runs where no disk is: its effect stays, whatever is lost here."""
    scene.hooks = ["remember"]
    scene.begin()
    scene.message("user", "q0")
    scene.delta("unfinished")

    def ran(_words: object, event: dict[str, Any], *_: object) -> tuple[str, str]:
        scene.recorder.mark(("ran", event["extra"]["attempt"]))
        return "ok", ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "run", ran)
        scene.die()
        runner._run_due(None)
    scene.recorder.mark(("over", 0))


@dataclass
class Found:
    """What recovery made of one state of the disk."""

    answer: dict[str, Any]
    status: int
    rows: list[tuple[str, str]]
    ends: dict[str, str | None]
    reported: list[report.SessionReport]
    attempts: list[int]
    """Those of its hook, if it ran now."""


def recovered(scene: Scene) -> Found:
    out = io.StringIO()
    attempts: list[int] = []

    def ran(_words: object, event: dict[str, Any], *_: object) -> tuple[str, str]:
        attempts.append(event["extra"]["attempt"])
        return "ok", ""

    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "run", ran)
        patch.setattr(recover, "run_hooks", lambda: runner._run_due(None) is None)
        status = recover.main(["--json"])
    rows: list[tuple[str, str]] = []
    ends: dict[str, str | None] = {}
    if os.path.exists(scene.db):
        with contextlib.closing(sqlite3.connect(f"file:{scene.db}?mode=ro", uri=True)) as db:
            assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
            with contextlib.suppress(sqlite3.OperationalError):  # a file that is still empty
                query = "SELECT role, content FROM messages WHERE session_id = 'chat' ORDER BY id"
                rows = db.execute(query).fetchall()
                ends = dict(db.execute("SELECT id, end_reason FROM sessions").fetchall())
    return Found(json.loads(out.getvalue()), status, rows, ends, report.every(), attempts)


def complaint(scene: Scene, found: Found, safe: int, marks: set[str]) -> str | None:
    """What is wrong with it, where everything up to number `safe` had to last."""
    model, last = scene.model, max(scene.model.said, default=0)
    if found.status or found.answer["failed"]:
        return f"recovery refuses: {found.answer['failed'] or found.answer['settled']}"
    if os.path.exists(os.environ["HERMES_HOME"]):
        return "written into another database"
    if runs.runs_folder() and os.listdir(runs.runs_folder()):
        return "something is left behind"
    reports = [report for report in found.reported if report.session == "chat"]
    named = any(report.problems for report in reports)
    if found.rows not in [model.rows(number) for number in range(safe, last + 1)]:
        must, said = model.rows(safe), model.rows(last)
        whole = [row for row in must if row in said]
        if found.rows[: len(whole)] != whole or not named:
            return f"{_short(found.rows)} instead of what was said up to {safe}, or more of it"
        if any(row not in said and not _is_piece(row, model) for row in found.rows):
            return f"never said: {_short(found.rows)}"
    if found.ends.get("other", None) is not None:
        return "another session was ended"
    if safe and found.rows and found.ends["chat"] not in (scene.ends_as, "interrupted"):
        return f"not ended: {found.ends}"
    if safe == last and found.ends["chat"] != scene.ends_as:
        return f"ended otherwise: {found.ends}"
    if safe and found.rows and not reports:
        return "no report mentions it"
    if "over" in marks and found.attempts:
        return "the hook ran again"
    if "ran" in marks and found.attempts == [1]:
        return "the hook ran again without `repeated`"
    if scene.hooks and safe and found.rows and "ran" not in marks and len(found.attempts) != 1:
        return f"the hook ran {len(found.attempts)} times"
    return None


def _short(rows: list[tuple[str, str]]) -> list[str]:
    return [content[:24] for _, content in rows]


def _is_piece(row: tuple[str, str], model: Model) -> bool:
    pieces = [record["text"] for record in model.said.values() if record["kind"] == "delta"]
    return row[0] == "assistant" and row[1] in "".join(pieces)


def record(scene: Scene, play: Play) -> None:
    with scene.recorder, acknowledgements(scene):
        play(scene)


def sweep(scene: Scene, promised: str, wanted: Callable[[int, str], bool]) -> Iterator[str | None]:
    """Recover from each state that is wanted; what is wrong with what came of it."""
    log = scene.recorder.log
    done = safe = 0
    marks: set[str] = set()
    for number, how, tree in losses(scene.recorder, wanted):
        for op in log[done:number]:
            if op.kind == "mark":
                marks.add(op.mark[0])
                safe = max(safe, op.mark[1] if op.mark[0] in (promised, "all") else 0)
        done = number
        if not marks:
            continue
        restore(scene.root, tree)
        try:
            wrong = complaint(scene, recovered(scene), safe, marks)
        except Exception as fault:
            wrong = repr(fault)
        yield wrong and f"after {number} of {len(log)} operations, {how}: {wrong}"[:400]


PROMISES = {"always": "acknowledged", "interval": "synced"}
PLAYS = [conversation, stored_by_the_agent, all_stored_by_the_agent, rollback_journal, hooked]
# All of it takes minutes (`make test-slow`); every test run has what was not synced dropped at
# every boundary, and of all other states one in so many.
ONE_IN = 1 if os.environ.get("SLOW") == "all" else 40


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Call it, and it is another boot."""
    yield lambda: monkeypatch.setattr(run_notes, "boot_id", lambda: "another boot")
    gc.enable()  # which `recover` does without


@pytest.mark.parametrize("play", PLAYS)
@pytest.mark.parametrize("sync", ["always", "interval"])
def test_whenever_the_power_goes_what_was_promised_is_recovered(
    disk: str, restart: Callable[[], None], sync: str, play: Play
) -> None:
    scene = Scene(disk, sync)
    record(scene, play)
    restart()
    found = list(sweep(scene, PROMISES[sync], lambda n, how: how == PLAIN or n % ONE_IN == 0))
    faults = [wrong for wrong in found if wrong]
    print(f"{len(scene.recorder.log)} operations, {len(found)} states, {len(faults)} faults")
    assert not faults, "\n".join(faults[:9])
    assert len(found) > 15


# -- the tests tested ------------------------------------------------------------------------


def _without(*places: tuple[object, str]) -> Callable[[pytest.MonkeyPatch], None]:
    def spoil(patch: pytest.MonkeyPatch) -> None:
        for owner, name in places:
            patch.setattr(owner, name, lambda *_: None)

    return spoil


def _without_fsync(module: ModuleType) -> Callable[[pytest.MonkeyPatch], None]:
    class Os:
        def __getattr__(self, name: str) -> Any:
            return (lambda _: None) if name == "fsync" else getattr(os, name)

    return lambda patch: patch.setattr(module, "os", Os())


def _acknowledges_first(patch: pytest.MonkeyPatch) -> None:
    real = Connection.store

    def store(client: Connection, **options: Any) -> OSError | None:
        if client.stream is not None and client._waiting:
            client._send(client._waiting[-1][0], b"")
        return real(client, **options)

    patch.setattr(Connection, "store", store)


def _synchronous(level: str) -> Callable[[pytest.MonkeyPatch], None]:
    def spoil(patch: pytest.MonkeyPatch) -> None:
        real = connection.to_write

        def to_write(path: str, patience: connection.Patience) -> apsw.Connection:
            db = real(path, patience)
            db.execute(f"PRAGMA synchronous = {level}")
            return db

        patch.setattr(connection, "to_write", to_write)

    return spoil


def _removes_first(patch: pytest.MonkeyPatch) -> None:
    """The journal goes before what it holds is in the database."""
    finish_all = finish.Finisher.finish

    def early(
        finisher: finish.Finisher, dead: list[Reading], living: list[Reading]
    ) -> tuple[list[report.SessionReport], list[Exception]]:
        for reading in dead:
            finisher._retire(reading)
            reading.gathered.files = []
        return finish_all(finisher, dead, living)

    patch.setattr(finish.Finisher, "finish", early)
    patch.setattr(finish.Finisher, "_retire", _once(finish.Finisher._retire))


def _once(work: Callable[..., None]) -> Callable[..., None]:
    done: list[bool] = []

    def first(*what: Any) -> None:
        if not done:
            done.append(True)
            work(*what)

    return first


def _trusts_the_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Missing, "_as_far_as_it_lasted", lambda _, session: session)


MUTANTS: dict[str, tuple[Play, Callable[[pytest.MonkeyPatch], None]]] = {
    "no sync of the journal": (conversation, _without((Journal, "sync"))),
    "no sync of the folder of the journal": (conversation, _without((journal, "sync_folder"))),
    "no sync of the folders above it": (conversation, _without((runs, "make_durable"))),
    "acknowledged before it is synced": (conversation, _acknowledges_first),
    "no sync of the spool": (conversation, _without((Journal, "note_gap"))),
    "no sync of the spool by who is asked": (conversation, _without((spool, "sync_file"))),
    "no sync of a compacted segment": (conversation, _without_fsync(compact)),
    "removed before it is written": (conversation, _removes_first),
    "no sync of the database": (conversation, _synchronous("OFF")),
    "no sync of its commit": (conversation, _synchronous("NORMAL")),
    "no sync of its folder": (rollback_journal, _synchronous("FULL")),
    "no sync of the folders above": (conversation, _without((connection, "sync_folder"))),
    "no sync where nothing was missing": (
        all_stored_by_the_agent,
        _without((connection, "make_last")),
    ),
    "rows believed that are gone": (stored_by_the_agent, _trusts_the_rows),
    "no sync of what waits in the queue of hooks": (hooked, _without_fsync(queue)),
    "no sync of its names": (hooked, _without((queue, "sync_folder"))),
    "no sync of the report": (conversation, _without_fsync(report)),
}


IN_THE_READER = {"rows believed that are gone"}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_sync_that_is_left_out_does_not_go_unnoticed(
    disk: str, restart: Callable[[], None], monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    play, spoil = MUTANTS[mutant]
    scene = Scene(disk, "always")
    with monkeypatch.context() as patch:
        spoil(patch)
        record(scene, play)
    restart()
    if mutant in IN_THE_READER:
        spoil(monkeypatch)
    found = sweep(scene, "acknowledged", lambda n, how: how == PLAIN)
    assert any(found), "nothing of what may be lost then was missed"
