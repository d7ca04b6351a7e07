"""A long stream is finished piece by piece, and nobody could tell from what is left of it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.recovery import digest, finish
from hermes_supervise.supervisor.recovery.checkpoint import Databases
from hermes_supervise.supervisor.run.recover import finish_left_behind
from hermes_supervise.supervisor.statedb.markers import Markers
from hermes_supervise.supervisor.statedb.writer import StateDb
from hermes_supervise.supervisor.storage import run_folder as runs
from hermes_supervise.supervisor.storage.journal import Journal
from streams import called
from support import World

STREAM = "7" * 32
STARTED = 1_700_000_000.0


def conversation() -> list[dict[str, Any]]:
    """Two sessions side by side: replies in pieces, calls with and without an answer, one ended."""
    sent: list[dict[str, Any]] = [{"kind": "session", "session": s} for s in ("a", "b")]
    for number in range(60):
        for name in ("a", "b") if number < 40 else ("a",):
            said = {"session": name, "kind": "message"}
            sent.append({**said, "uid": f"{name}u{number}", "message": _by("user", f"q{number}")})
            sent += [{"session": name, "kind": "delta", "text": f"piece {n} "} for n in range(3)]
            if number % 5 == 0:
                call = f"{name}c{number}"
                asks = {"role": "assistant", "content": None, "tool_calls": called(call)}
                sent.append({**said, "uid": f"{name}t{number}", "message": asks})
                if number % 10 == 0:
                    answer = {**_by("tool", "found"), "tool_call_id": call}
                    sent.append({**said, "uid": f"{name}r{number}", "message": answer})
                    sent.append(
                        {**said, "uid": f"{name}a{number}", "message": _by("assistant", "x")}
                    )
            else:
                reply = _by("assistant", "piece 0 piece 1 piece 2 ")
                sent.append({**said, "uid": f"{name}a{number}", "message": reply})
        if number == 40:
            sent.append({"kind": "ended", "session": "b", "reason": "done"})
    return [*sent, {"kind": "delta", "session": "a", "text": "cut off"}]


def _by(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def left_behind(world: World, boot: str | None = None, **process: int) -> Path:
    """A run whose agent is dead, with its journal in many small segments."""
    folder = world.state / "hermes-supervise" / "runs" / "20261116-000000-00000000"
    folder.mkdir(parents=True)
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o700)
    (folder / "run.json").write_text(json.dumps({"db": str(world.db), "boot": boot}))
    hello = {"kind": "hello", "stream": STREAM, "version": 1, "oldest": 1}
    hello |= process or {"pid": 1, "start": 1}
    journal = Journal(str(folder), STREAM, frames.encode(0, records.pack(hello)), 3000)
    for seq, record in enumerate(conversation(), 1):
        journal.append(frames.encode(seq, records.pack({"at": STARTED + seq, **record})))
        if journal.full:
            journal.begin_next_segment()
    death = {"kind": "death", "signal": 9, "at": STARTED + 10_000}
    journal.append(frames.encode(0, records.pack(death)))
    journal.close()
    assert len(list(folder.glob("*.log"))) > 10
    return folder


def whole(world: World) -> list[tuple[Any, ...]]:
    with world.database() as db:
        kept = "session_id, role, content, tool_call_id, tool_calls, finish_reason"
        rows = db.execute(f"SELECT {kept} FROM messages ORDER BY session_id, id").fetchall()
        ends = db.execute("SELECT id, end_reason, message_count FROM sessions ORDER BY id")
        return [*map(tuple, rows), *map(tuple, ends.fetchall())]


@pytest.fixture
def here(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("XDG_STATE_HOME", "XDG_RUNTIME_DIR", "HERMES_HOME", "HOME"):
        monkeypatch.setenv(name, world.env[name])
    return world


def finished(folder: Path) -> list[Any]:
    run = runs.claim(str(folder))
    assert run is not None
    settled = finish_left_behind(run).reports
    runs.retire(run)
    return settled


def test_piece_by_piece_gives_what_the_whole_gives(
    here: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as at_once:
        at_once.setattr(finish, "_LONG", 10_000)
        report = finished(left_behind(here))
        expected = whole(here)
    here.db.rename(tmp_path / "at-once.db")
    for beside in here.db.parent.glob("state.db-*"):
        beside.unlink()
    reports = finished(left_behind(here))
    # That the agent died while a call was running is not known of one that was talked over.
    assert [row[:2] for row in whole(here)] == [row[:2] for row in expected]
    assert [r for r in whole(here) if "[" not in str(r[2])] == [
        r for r in expected if "[" not in str(r[2])
    ]
    by_name = {report.session: report for report in reports}
    for session in report:
        if session.session in by_name:
            assert by_name[session.session].recovered.messages == session.recovered.messages
            assert by_name[session.session].outcome == session.outcome
    assert "a" in by_name and here.runs() == []


def test_in_a_file_with_a_rollback_journal_its_pieces_do_not_lock_out_the_end(here: World) -> None:
    """Two connections of one process: where there is no WAL, one that reads stops who commits."""
    StateDb(str(here.db)).close()
    made = sqlite3.connect(here.db)
    assert made.execute("PRAGMA journal_mode = DELETE").fetchone()[0] == "delete"
    made.close()
    run = runs.claim(str(left_behind(here)))
    assert run is not None
    settled = finish_left_behind(run, patience=1.0).reports
    assert [session.problems for session in settled if session.problems] == []
    runs.retire(run)
    assert ("a", "interrupted") in [row[:2] for row in whole(here)] and here.runs() == []
    with here.database() as db:
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "delete", "as it was"


def test_killed_after_any_step_of_it_the_rest_is_done_once(here: World) -> None:
    """Each time a fresh process goes on, and is killed a few steps later, until one is not."""
    folder = left_behind(here)
    killed = 0
    while True:
        child = os.fork()
        if child == 0:
            _die_after_transactions(5 + killed % 7)
            finished(folder)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            assert status == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
        killed += 1
        assert killed < 100, "it gets on"
    assert killed > 3
    rows = whole(here)
    assert len([row for row in rows if row[0] == "a" and row[1] == "user"]) == 60
    assert len([row for row in rows if row[0] == "b" and row[1] == "user"]) == 40
    said = [row[2] for row in rows if row[1] == "user"]
    assert said == [f"q{n}" for n in range(60)] + [f"q{n}" for n in range(40)], "in order, once"
    assert ("a", "interrupted") in [row[:2] for row in rows]
    assert here.runs() == []


def _die_after_transactions(most: int) -> None:
    done = 0
    mark = Markers.set

    def counted(self: Markers, *about: Any) -> None:
        nonlocal done
        done += 1
        if done > most:
            os.kill(os.getpid(), signal.SIGKILL)
        mark(self, *about)

    Markers.set = counted  # type: ignore[method-assign]


def test_what_an_agent_stores_itself_is_left_for_the_end(here: World) -> None:
    folder = left_behind(here)
    first = next(iter(sorted(folder.glob("*.log"))))
    settled = {"kind": "settled", "session": "a", "uids": ["au0"], "rows": [1], "at": STARTED}
    first.write_bytes(first.read_bytes() + frames.encode(10_000, records.pack(settled)))
    run = runs.claim(str(folder))
    assert run is not None
    with Databases(run, 1.0) as databases:
        digest.digest(run, STREAM, databases, restarted=False)
    assert not here.db.exists(), "nothing was written"
    run.release()


def test_after_a_restart_of_the_machine_whoever_has_the_pid_now_does_not_matter(
    here: World,
) -> None:
    """The hello names no start, so the pid alone would be taken for the process."""
    run = runs.claim(str(left_behind(here, boot="another", pid=os.getpid())))
    assert run is not None
    finisher = finish.Finisher(run, finish.Observer())
    finisher.digest(STREAM)
    finisher.close()
    run.release()
    stored = [row for row in whole(here) if row[1] == "user"]
    assert len(stored) > 80, "stored in pieces, before the whole stream is read"
