"""Whatever an agent says, however often it is stored meanwhile, wherever that is cut off, and
whatever is compacted in between: in the end the same is in the file as after one recovery."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hermes_supervise.ipc import frames, records
from hermes_supervise.supervisor.model.stored import mark, records_of
from hermes_supervise.supervisor.model.stream import Session
from hermes_supervise.supervisor.recovery.checkpoint import checkpoint
from hermes_supervise.supervisor.recovery.compact import essential
from hermes_supervise.supervisor.recovery.gather import gather
from hermes_supervise.supervisor.recovery.replay import replay
from hermes_supervise.supervisor.statedb.markers import key_of
from hermes_supervise.supervisor.statedb.writer import Part, StateDb
from hermes_supervise.supervisor.storage import run_folder as runs
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from streams import Agent, Frames, Move, frame, moves, recover

STREAM = "5" * 32
SPOKEN = ("user", "piece", "reply", "call", "start", "finish", "turn", "announce", "again", "title")
UNRULY = (*SPOKEN, "rotate", "end", "foreign")
# At a point in its life: how many transactions of it are done, whether the last of them is
# written down, and how much of the journal is compacted afterwards.
Checkpoint = tuple[int, bool, int]
checkpoints = st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.integers(0, 60)), max_size=5)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateDb]:
    made = StateDb(str(tmp_path_factory.mktemp("lives") / "state.db"))
    made.database.execute("PRAGMA synchronous = OFF")
    yield made
    made.close()


class File:
    """state.db, emptied for one life."""

    def __init__(self, database: StateDb) -> None:
        self.db = database
        for table in ("messages", "sessions"):
            database.database.execute(f"DELETE FROM {table}")
        database.database.execute("DELETE FROM state_meta WHERE key LIKE '%:%:%'")

    def sessions(self) -> dict[str, Any]:
        # Not the title: of two that want the same, who is stored first has it.
        columns = "id, parent_session_id, message_count, tool_call_count, end_reason"
        found = self.db.database.execute(f"SELECT {columns} FROM sessions ORDER BY id").fetchall()
        return {str(row[0]): row[1:] for row in found}

    def rows(self, session: str) -> list[Any]:
        return self.db.database.execute(
            "SELECT role, content, tool_call_id, tool_calls, reasoning, finish_reason "
            "FROM messages WHERE session_id = ? ORDER BY id",
            (session,),
        ).fetchall()

    def recover(self, said: Frames, at: float) -> None:
        for session in replay(said).sessions.values():
            end = (session.ended_at, session.ended) if session.ended else (at, "interrupted")
            recover(self.db, session, at, end, STREAM)


def storing(db: StateDb, session: Session) -> Iterator[bool]:
    """The steps of a checkpoint."""
    return db.write([Part(STREAM, session, 1.0, living=True)]).steps()


def stored_meanwhile(file: File, said: Frames, points: list[Checkpoint]) -> Frames:
    """What is left of a journal, and beside it, when checkpoints have been at work."""
    beside: Frames = []
    position, kept = 0, said[:0]
    for at, written, compacted in sorted(points):
        upto = min(at, len(said))
        kept, position = kept + said[position:upto], max(position, upto)
        replayed = replay(beside + kept)
        for session in replayed.sessions.values():
            steps = storing(file.db, session)
            if written:
                if list(steps):
                    sessions = replayed.sessions.values()
                    beside = [frame(0, **r) for s in sessions for r in records_of(s)]
            elif list(itertools.islice(steps, 1 + compacted % 3)):
                break  # killed behind some transaction, before the file beside the journal
        closed = min(compacted, len(kept))
        notes = beside + kept[:closed]
        if written and closed == len(kept):
            for session in replayed.sessions.values():
                mark(session)
            assert essential(kept, stream=replayed) == essential(notes), "read once or twice"
        if (less := essential(notes, lambda _, session: file.db.is_ended(session.id))) is not notes:
            kept = less + kept[closed:]
    return beside + kept + said[position:]


@pytest.mark.parametrize("step", [1, 400])
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(life=moves(*SPOKEN, most=40), points=checkpoints)
def test_in_the_end_it_is_as_if_there_had_been_only_one_recovery(
    database: StateDb,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    life: list[Move],
    points: list[Checkpoint],
) -> None:
    monkeypatch.setattr("hermes_supervise.supervisor.statedb.writer.STEP", step)
    agent = Agent(orderly=True)
    for move in life:
        agent.play(move)
    once = File(database)
    once.recover(agent.frames, agent.clock)
    expected = once.sessions(), [once.rows(name) for name in once.sessions()]
    file = File(database)
    left = stored_meanwhile(file, agent.frames, points)
    file.recover(left, agent.clock)
    assert (file.sessions(), [file.rows(name) for name in file.sessions()]) == expected
    before = file.sessions()
    file.recover(left, agent.clock)
    assert file.sessions() == before


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(life=moves(*UNRULY, most=40), points=checkpoints, pace=st.sampled_from([0.1, 10.0]))
@example([("user", 0, 0, "ok"), ("end", 0, 0, "")], [(2, True, 0), (3, True, 4)], 10.0).via(
    "an end that only compaction has seen, and forgotten"
)
@example(
    [("user", 0, 0, "ok"), ("end", 0, 0, ""), ("piece", 0, 0, "ok")], [(3, True, 9)], 10.0
).via("a late word in a session that is over")
@example(
    [("user", 0, 0, "ok"), ("end", 0, 0, ""), ("user", 0, 0, "ok")],
    [(2, True, 0), (4, False, 4)],
    10.0,
).via("a session that goes on, of which compaction sees no more than its end")
@example(
    [("user", 0, 0, "ok"), ("end", 0, 0, ""), ("user", 0, 0, "ok")],
    [(2, True, 0), (3, True, 3)],
    0.1,
).via("the same words again, right after the end")
def test_even_of_an_unruly_life_nothing_is_lost_doubled_or_out_of_order(
    database: StateDb, life: list[Move], points: list[Checkpoint], pace: float
) -> None:
    """Calls that nobody waits for may be answered elsewhere; all that was said stands. So do
    ends, also of sessions that compaction has dropped, spoken of again or not."""
    agent = Agent()
    agent.pace = pace
    for move in life:
        agent.play(move)

    def spoken(file: File) -> dict[str, list[Any]]:
        return {
            name: [row[:2] + row[3:4] for row in file.rows(name) if row[0] != "tool"]
            for name in file.sessions()
        }

    def ends(file: File) -> dict[str, Any]:
        return {name: (row[0], row[-1]) for name, row in file.sessions().items()}

    once = File(database)
    once.recover(agent.frames, agent.clock)
    expected = spoken(once), ends(once)
    file = File(database)
    file.recover(stored_meanwhile(file, agent.frames, points), agent.clock)
    assert (spoken(file), ends(file)) == expected


def test_the_words_beside_the_journal_are_frames_like_any_other() -> None:
    replayed = replay([frame(0, kind="stored", session="s", rows=[["u", 7, 3, 3, True]])])
    assert replayed.dropped["s"].stored["u"].row == 7
    [record] = records_of(replayed.dropped["s"])
    assert replay([(0, frames.encode(0, records.pack(record)))]) == replayed


# -- killed at any of its operations -----------------------------------------------------------

OPERATIONS = {"execute", "open", "write", "flush", "fsync", "replace", "close", "mkdir", "fetchone"}
SAID = [("user", f"question {n // 2}") if n % 2 == 0 else ("assistant", f"answer {n // 2}")
        for n in range(12)]  # fmt: skip


def journal(folder: Path, many: int, *, again: bool) -> None:
    """What has come of SAID so far; the first answer may have been said anew since."""
    sent: list[dict[str, Any]] = [{"kind": "session"}, {"kind": "title", "title": "x"}]
    sent += [
        {"kind": "message", "uid": f"u{n}", "message": {"role": role, "content": content}}
        for n, (role, content) in enumerate(SAID[:many])
    ]
    if again:
        better = {"role": "assistant", "content": "a better answer"}
        sent.append({"kind": "message", "uid": "u1", "message": better})
    data = [frames.encode(0, records.pack({"kind": "hello"}))]
    for number, record in enumerate(sent, 1):
        stamped = {"session": "chat", "at": 1e9 + number, **record}
        data.append(frames.encode(number, records.pack(stamped)))
    (folder / f"{STREAM}.000001.log").write_bytes(b"".join(data))


def in_a_process(work: Any, last: int | None = None) -> bool:
    """Do it in a process that is killed before its operation number `last`; True: it was not."""
    pid = os.fork()
    if pid == 0:
        count = 0

        def watch(_frame: Any, event: str, function: Any) -> None:
            nonlocal count
            if event == "c_call" and function.__name__ in OPERATIONS:
                count += 1
                if count == last:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.setprofile(watch)
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == 0


@pytest.mark.parametrize("then", ["recovered", "stored again"])
def test_killed_at_any_of_its_operations_the_file_ends_up_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr("hermes_supervise.supervisor.statedb.writer.STEP", 3)
    # All of them take a minute; these are other ones in each of the two cases.
    for last in range(1 if then == "recovered" else 7, 1000, 12):
        folder = tmp_path / str(last)
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps({"db": str(folder / "state.db")}))
        (folder / "lock").touch()
        run = runs.claim(str(folder))
        assert run is not None
        journal(folder, 4, again=False)
        assert in_a_process(lambda run=run: checkpoint(run, STREAM))
        journal(folder, 12, again=False)
        whole = in_a_process(lambda run=run: checkpoint(run, STREAM), last)
        journal(folder, 12, again=True)
        if then == "stored again":
            assert in_a_process(lambda run=run: checkpoint(run, STREAM))
        db = StateDb(str(folder / "state.db"))
        replayed = replay(gather(str(folder), STREAM).frames)
        recover(db, replayed.sessions["chat"], 2e9, (2e9, "interrupted"), STREAM)
        row, stored = db.reader.transcript("chat")
        db.close()
        run.release()
        expected = [("assistant", "a better answer") if n == 1 else SAID[n] for n in range(12)]
        assert [(row["role"], row["content"]) for row in stored] == expected, f"operation {last}"
        assert row is not None
        assert (row["message_count"], row["title"], row["end_reason"]) == (12, "x", "interrupted")
        shutil.rmtree(folder)
        if whole:
            break
    assert last > 50, "it was killed at many"


def test_cut_off_twice_before_it_is_written_down_the_marker_still_knows_every_row(
    database: StateDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_supervise.supervisor.statedb.writer.STEP", 1)
    agent = Agent(orderly=True)
    for word in ("one", "two", "three"):
        agent.play(("user", 0, 0, word))
    file = File(database)
    for times in (1, 2):
        [session] = replay(agent.frames).sessions.values()
        next(storing(file.db, session))
        marker = file.db.markers.get(key_of(STREAM, session.id))
        known = {row for _, row, *_ in marker["rows"]}
        query = "SELECT id FROM messages WHERE session_id = ?"
        assert known == {row for (row,) in database.database.execute(query, (session.id,))}
        assert len(known) == times
