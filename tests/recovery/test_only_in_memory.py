"""Records that only a supervisor had, in its memory, because no journal could be written: it stored
what was complete, and was killed. What is stored is finished like any other session."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.model.unwritten import Unwritten
from hermes_supervise.supervisor.recovery import checkpoint as checkpoints
from hermes_supervise.supervisor.recovery import idle
from hermes_supervise.supervisor.recovery.checkpoint import checkpoint
from hermes_supervise.supervisor.recovery.compact import essential
from hermes_supervise.supervisor.recovery.describe import CUT_SHORT
from hermes_supervise.supervisor.recovery.finish import (
    Observer,
    SettledStream,
    Supervised,
    finish,
)
from hermes_supervise.supervisor.recovery.gather import gather
from hermes_supervise.supervisor.recovery.reading import read
from hermes_supervise.supervisor.recovery.replay import bring_back, outlast, replay
from hermes_supervise.supervisor.recovery.report import SessionReport
from hermes_supervise.supervisor.storage import run_folder as runs
from streams import START, Frames, frame, stream

STREAM, OTHER = "7" * 32, "8" * 32
SESSION = {"kind": "session", "source": "cli", "model": "m-1"}
QUESTION = {"kind": "message", "uid": "u1", "message": {"role": "user", "content": "hello?"}}
GROWING = {"kind": "delta", "text": "I am gro"}
ENDED = {"kind": "ended", "reason": "completed"}


def said(*sent: dict[str, Any], first: int = 1) -> Frames:
    at = START + first
    return stream(*[{"session": "s", "at": at, **record} for record in sent], first=first)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[runs.Run]:
    """A run in which no record came into a journal."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    made = runs.create({"db": str(tmp_path / "state.db")})
    journal(made, STREAM, [frame(0, kind="hello")])
    yield made
    runs.retire(made)


def journal(run: runs.Run, name: str, numbered: Frames) -> None:
    Path(run.path(f"{name}.000001.log")).write_bytes(b"".join(frame for _, frame in numbered))


def store(run: runs.Run, numbered: Frames) -> None:
    """A checkpoint of what is in memory."""
    checkpoint(run, STREAM, unwritten={STREAM: Unwritten(numbered)})


def row_in(path: Path) -> tuple[Any, ...]:
    with closing(sqlite3.connect(path)) as db:
        [found] = db.execute(
            "SELECT end_reason, ended_at, (SELECT count(*) FROM messages) FROM sessions"
        )
    return tuple(found)


class SessionsWithHooks(Observer):
    """Notes the sessions that hooks are to run for, in place of the queue."""

    def __init__(self) -> None:
        self.sessions: list[str] = []

    def settled(self, stream: SettledStream) -> None:
        self.sessions += [settled.session.id for settled in stream.sessions if settled.owes_hooks]


def recovered(run: runs.Run) -> tuple[list[SessionReport], list[str]]:
    with_hooks = SessionsWithHooks()
    return finish(run, with_hooks).reports, with_hooks.sessions


def test_a_session_whose_records_died_with_the_supervisor_is_ended_and_reported(
    run: runs.Run, tmp_path: Path
) -> None:
    store(run, said(SESSION, QUESTION, GROWING))
    assert row_in(tmp_path / "state.db") == (None, None, 1)
    [report], with_hooks = recovered(run)
    assert (report.outcome, report.session, report.model) == ("interrupted", "s", "m-1")
    assert report.problems == [CUT_SHORT]
    assert report.reason is not None and report.reason["signal"] is None
    reason, ended_at, many = row_in(tmp_path / "state.db")
    assert (reason, many) == ("interrupted", 1)
    assert ended_at >= START + 1
    assert with_hooks == ["s"]
    assert run.streams() == []


def test_the_database_that_it_named_is_the_one_that_is_ended(run: runs.Run, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other" / "state.db"
    elsewhere.parent.mkdir()
    store(run, said({**SESSION, "db": str(elsewhere)}, QUESTION))
    [report], _ = recovered(run)
    assert report.db == str(elsewhere)
    assert row_in(elsewhere)[0] == "interrupted"
    assert not (tmp_path / "state.db").exists()


@pytest.mark.parametrize("noted", [True, False])
def test_what_the_agent_ended_itself_stays_as_it_ended_it(
    run: runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    """Also where the end came into the database, and could no longer be noted beside the
    journal."""
    store(run, said(SESSION, QUESTION))
    if not noted:

        def no_room(*_: object) -> None:
            raise OSError("no room")

        monkeypatch.setattr(checkpoints, "write_down", no_room)
    store(run, said(SESSION, QUESTION, ENDED))
    [report], with_hooks = recovered(run)
    assert (report.outcome, report.end_reason) == ("ended by the agent", "completed")
    assert report.problems == [CUT_SHORT]
    assert row_in(tmp_path / "state.db")[0] == "completed"
    assert with_hooks == []


@pytest.fixture
def unnoted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a checkpoint stores, only its marker in the database says so: there is no room for
    the note, or its writer is killed before it."""

    def no_room(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(checkpoints, "write_down", no_room)


@pytest.mark.usefixtures("unnoted")
@pytest.mark.parametrize("hello", [True, False])
def test_a_session_that_only_its_marker_knows_is_ended_and_reported(
    run: runs.Run, tmp_path: Path, hello: bool
) -> None:
    if not hello:  # the segment was made, and nothing could be written to it
        journal(run, STREAM, [])
    store(run, said(SESSION, QUESTION, GROWING))
    assert run.streams() == [STREAM] and not list(Path(run.folder).glob("*.stored.log"))
    [report], with_hooks = recovered(run)
    assert (report.outcome, report.session, report.model) == ("interrupted", "s", "m-1")
    assert report.problems == [CUT_SHORT]
    reason, ended_at, many = row_in(tmp_path / "state.db")
    assert (reason, many, with_hooks) == ("interrupted", 1, ["s"])
    assert ended_at >= START + 1
    assert run.streams() == []


@pytest.mark.usefixtures("unnoted")
def test_a_session_that_only_its_marker_knows_as_ended_stays_ended(
    run: runs.Run, tmp_path: Path
) -> None:
    store(run, said(SESSION, QUESTION, ENDED))
    [report], with_hooks = recovered(run)
    assert (report.outcome, report.end_reason) == ("ended by the agent", "completed")
    assert with_hooks == []
    assert row_in(tmp_path / "state.db")[0] == "completed"


@pytest.mark.usefixtures("unnoted")
def test_markers_are_looked_for_in_every_database_of_the_stream(
    run: runs.Run, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "other.db"
    numbered = said({**SESSION, "session": "known", "db": str(elsewhere)})
    journal(run, STREAM, [frame(0, kind="hello"), *numbered])
    store(run, said({**SESSION, "db": str(elsewhere)}, QUESTION, first=2))
    reports, with_hooks = recovered(run)
    assert [(r.session, r.db) for r in reports if r.session == "s"] == [("s", str(elsewhere))]
    assert (row_in(elsewhere)[0], with_hooks) == ("interrupted", ["s"])


@pytest.mark.usefixtures("unnoted")
def test_what_only_markers_know_of_a_session_in_the_journal_is_said(
    run: runs.Run, tmp_path: Path
) -> None:
    numbered = said(SESSION, QUESTION)
    journal(run, STREAM, [frame(0, kind="hello"), numbered[0]])
    store(run, numbered)
    [report], _ = recovered(run)
    assert (report.outcome, report.problems) == ("interrupted", [CUT_SHORT])


@pytest.mark.usefixtures("unnoted")
def test_what_only_markers_know_of_a_living_process_is_not_ended(
    run: runs.Run, tmp_path: Path
) -> None:
    store(run, said(SESSION, QUESTION))
    journal(run, OTHER, [frame(0, kind="hello"), *said(SESSION)])
    done = finish(run, Observer(), supervised=Supervised([OTHER], {STREAM}, {}, 1))
    assert [report.outcome for report in done.reports] == ["open elsewhere"]
    assert row_in(tmp_path / "state.db")[0] is None


def test_a_finished_stream_is_not_brought_back_by_its_marker(run: runs.Run, tmp_path: Path) -> None:
    """What compaction dropped, or the removal of the files, leaves a marker without `done`."""
    store(run, said(SESSION, QUESTION))
    Path(run.path(f"{STREAM}.settled")).touch()
    assert recovered(run) == ([], [])
    assert row_in(tmp_path / "state.db")[0] is None
    with_nothing = Supervised([STREAM], set(), {}, 1)
    assert finish(run, Observer(), supervised=with_nothing).reports == []
    assert row_in(tmp_path / "state.db")[0] is None


def test_a_file_that_is_no_database_keeps_no_run(run: runs.Run, tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"no database" * 100)
    assert recovered(run) == ([], [])
    assert run.streams() == []


def test_the_end_that_somebody_else_wrote_since_stays(run: runs.Run, tmp_path: Path) -> None:
    store(run, said(SESSION, QUESTION))
    with closing(sqlite3.connect(tmp_path / "state.db")) as db:
        db.execute("UPDATE sessions SET ended_at = 5.0, end_reason = 'user_exit'")
        db.commit()
    [report], with_hooks = recovered(run)
    assert row_in(tmp_path / "state.db")[:2] == ("user_exit", 5.0)
    assert (report.outcome, with_hooks) == ("ended by the agent", [])


@pytest.mark.parametrize(("dead", "living"), [(STREAM, OTHER), (OTHER, STREAM)])
def test_what_goes_on_in_a_living_process_is_not_ended(
    run: runs.Run, tmp_path: Path, dead: str, living: str
) -> None:
    """Also where the living one has its records in the memory of a supervisor that is not us."""
    store(run, said(SESSION, QUESTION))
    journal(run, OTHER, [frame(0, kind="hello"), *said(SESSION)])
    done = finish(run, Observer(), supervised=Supervised([dead], {living}, {}, 1))
    assert [report.outcome for report in done.reports] == ["open elsewhere"]
    assert row_in(tmp_path / "state.db")[0] is None


def test_of_a_session_that_is_partly_in_the_journal_the_report_says_the_same(
    run: runs.Run, tmp_path: Path
) -> None:
    numbered = said(SESSION, QUESTION)
    journal(run, STREAM, [frame(0, kind="hello"), numbered[0]])
    store(run, numbered[1:])
    [report], _ = recovered(run)
    assert (report.outcome, report.problems) == ("interrupted", [CUT_SHORT])
    assert row_in(tmp_path / "state.db")[0] == "interrupted"


def test_nothing_is_lost_if_the_recovery_had_it_all_and_was_only_cut_off(
    run: runs.Run, tmp_path: Path
) -> None:
    numbered = said(SESSION, QUESTION, GROWING)
    store(run, numbered)

    class CutOff(Observer):
        def settled(self, stream: SettledStream) -> None:
            raise OSError("cut off here")

    us = Supervised([STREAM], set(), {}, 1, {STREAM: Unwritten(numbered)})
    with pytest.raises(Exception, match="cut off here"):
        finish(run, CutOff(), supervised=us)
    assert row_in(tmp_path / "state.db")[0] == "interrupted"
    [report], with_hooks = recovered(run)
    assert (report.outcome, report.problems) == ("interrupted", [])
    assert report.recovered.messages == 1
    assert with_hooks == ["s"]


def test_one_that_was_idle_is_finalised_and_one_that_went_on_since_is_not(
    run: runs.Run, tmp_path: Path
) -> None:
    store(run, said(SESSION, QUESTION))
    [session] = outlast(replay(gather(run.folder, STREAM).frames))
    session.heard = 2
    idle.note(run, STREAM, session, START + 9)
    store(run, said(SESSION, QUESTION))
    assert row_in(tmp_path / "state.db")[0] == "idle"
    found = read(run, STREAM).replayed
    idle.mark(run, STREAM, found)
    assert found.sessions["s"].idle
    store(run, said(SESSION, QUESTION, {**QUESTION, "uid": "u2"}))
    assert row_in(tmp_path / "state.db")[0] is None
    [report], _ = recovered(run)
    assert (report.outcome, report.end_reason) == ("interrupted", "interrupted")


def test_what_compaction_dropped_does_not_come_back() -> None:
    stored = frame(0, kind="stored", session="s", rows=[["u1", 1, 2, 2, True]])
    numbered = said(SESSION, QUESTION, ENDED) + said({**SESSION, "session": "next"}, first=4)
    kept = essential([stored, *numbered], lambda _, session: session.id == "s")
    left = replay([stored, *kept])
    assert "s" in left.dropped and outlast(left) == []
    bring_back(left)
    assert list(left.sessions) == ["next"]
    assert not left.sessions["next"].cut_short


@pytest.mark.parametrize(
    "known", [None, 5, {"about": 5}, {"began": "x", "ended": 1, "ended_at": "x"}, {"about": {}}]
)
def test_a_note_that_is_malformed_or_of_an_older_version_does_not_matter(known: object) -> None:
    note = {"kind": "stored", "session": "s", "rows": [["u1", 1, 2, 2, True]], "known": known}
    found = replay([(0, frames.encode(0, records.pack(note)))])
    bring_back(found)
    assert found.sessions["s"].cut_short and found.sessions["s"].watermark == 1
