"""Checkpoints: what a living agent has said and nobody else stores goes into state.db as it runs.

Never writes a message that is still growing, never ends a session that its agent did not end, and
never touches one whose agent stores it itself.

The same replay, comparison, transaction and marker as at a death, without the end mark, and
without taking the files away. What went in is known twice: by the marker, in the transaction
itself, and then by the stream's `stored` file, which replay reads as if the agent had settled
those messages. So the marker only has to hold what one checkpoint did, and the journal can be
compacted. Cut off between the two, the next one to come finds it in the marker.
"""

from __future__ import annotations

import os
import time

from ...ipc import frames, jsontext, records
from ...ipc.endpoint import sync_folder
from .. import text
from ..adapters import hermes, hermes_rows
from ..checkpoints import AGAIN, DONE, LEAVE_IT, MORE
from ..hooks import idle
from .finish import database_of, settings_of
from .gather import gather, stored_name
from .reconcile import Counts
from .replay import Session, Told, replay
from .statedb import StateDb, Trouble, key_of
from .stored import Stored, as_rows, records_of, said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from ..run import Run
    from .reconcile import Insert

# A death must not wait for long behind a checkpoint that cannot be written now, or that is long.
PATIENCE = 2.0
_LONGEST = 1.0


def checkpoint(run: Run, stream: str) -> int:
    """Store what is complete, or as much of it as can be done in a moment."""
    began = time.monotonic()
    told = replay(gather(run.folder, stream).frames)
    idle.mark(run, stream, told)
    if stores_itself(told):
        return LEAVE_IT
    if told.gaps:
        return AGAIN  # on its way: read from one file before it was there, and gone from another
    outcome = DONE
    now = time.monotonic()
    # Of a long journal the reading takes long, too: that is done for some gain only.
    deadline = now + max(_LONGEST, 3 * (now - began))
    with Databases(run, PATIENCE) as databases:
        for session in left_to_us(told):
            try:
                stored = False
                for more in databases.of(told, session).store(stream, session, time.time()):
                    stored = True
                    if more and time.monotonic() > deadline:
                        outcome = MORE
                        break
                if stored:
                    write_down(run, stream, told.sessions.values())
            except Trouble:
                outcome = AGAIN
    return outcome


def left_to_us(told: Told) -> list[Session]:
    """The sessions that nobody else stores. Of one without a word not even a file is made."""
    return [
        session
        for session in told.sessions.values()
        if session.about.get("settles") is not True and session.said_items()
    ]


def stores_itself(told: Told) -> bool:
    """One session that the agent stores speaks for all, unless it was announced as such."""
    return hermes.is_hermes(told) or any(
        session.settles and session.about.get("settles") is not True
        for session in (*told.sessions.values(), *told.over.values())
    )


class Databases:
    """Those that the sessions of a run are in, each opened when it is needed."""

    def __init__(self, run: Run, patience: float) -> None:
        self._settings = settings_of(run)
        self._patience = patience
        self._open: dict[str, RunningDb] = {}

    def __enter__(self) -> Databases:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for database in self._open.values():
            database.close()

    def of(self, told: Told, session: Session) -> RunningDb:
        path = database_of(session, told, self._settings)
        if path not in self._open:
            self._open[path] = RunningDb(path, self._patience)
        return self._open[path]

    def have_the_end_of(self, told: Told, session: Session) -> bool:
        """Whether the session has its end; what is over need not be remembered. It is not given
        one here: what tells that it goes on may be in a part of the journal that nobody has
        looked at."""
        if hermes.is_hermes(told):
            # Which tells of it when it has written it; its hooks may come behind that.
            return not hermes.died_closing(session, told)
        try:
            return self.of(told, session).has_ended(session)
        except Trouble:
            return False


def write_down(run: Run, stream: str, sessions: Iterable[Session]) -> None:
    """What is stored, beside the journal: the next call of `store` overwrites the marker."""
    known = [record for session in sessions for record in records_of(session)]
    if not known:
        return
    data = b"".join(frames.encode(frames.HANDSHAKE, records.pack(record)) for record in known)
    new = run.path(f"{stream}.storing")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, run.path(stored_name(stream)))
    sync_folder(run.folder)


class RunningDb(StateDb):
    """state.db, for sessions whose agent lives."""

    def store(
        self, stream: str, session: Session, now: float, *, recovers: bool = False
    ) -> Iterator[bool]:
        """Store what is complete and not there, in steps; says after each if there are more. The
        marker knows of all the steps of one call. If the agent is dead, what goes in is counted."""
        key = key_of(stream, session.id)
        fresh: dict[str, Stored] = {}
        rows: list[str] = []
        rest: list[Insert] | None = None
        before: dict[str, Any] = {}
        while rest is None or rest:
            with self._plain_errors(), self._transaction():
                if rest is None:
                    before = self._marker(key)
                    rest = self._to_store(stream, session, now, before, fresh)
                    if rest is None:
                        return
                made = self._insert_first(session.id, rest)
                inserts, rest = rest[: len(made)], rest[len(made) :]
                for insert, row in zip(inserts, made, strict=True):
                    fresh[insert.uid] = Stored(row, *insert.said, True)
                rows += [jsontext.dumps(row) for row in as_rows(fresh)]
                marker: dict[str, Any] = {
                    "at": now,
                    "told": None if rest else session.heard,
                    "title": self._retitle(session, before.get("title")),
                    "ended": self._as_the_agent_has_it(session, before, bool(inserts)),
                }
                if recovers:
                    counts = Counts(**(before.get("counts") or {}))
                    for insert in inserts:
                        counts.add(insert)
                    marker["counts"] = vars(counts)
                elif rows:
                    self._count(session.id)  # of a dead agent's, once all is there
                self._mark(key, marker, rows)
            before = marker
            session.stored |= fresh
            fresh.clear()
            yield bool(rest)

    def _to_store(
        self,
        stream: str,
        session: Session,
        now: float,
        marker: dict[str, Any],
        fresh: dict[str, Stored],
    ) -> list[Insert] | None:
        """What is to be inserted into the session's row, which is there then; None: nothing is to
        be done. What is in the file already, and not written down yet, goes into `fresh`."""
        ends = session.idle and marker.get("ended") is None
        if marker.get("done") or (marker.get("told") == session.heard and not ends):
            return None
        unwritten = self._go_on_from(session, marker)
        if not self._is_ours(session, marker):
            return None
        fresh |= unwritten  # for the marker is about to be overwritten
        found = self._compared(stream, session, now, [], living=True)
        if not self._exists(session.id):
            if not found.inserts:
                return None
            self._create(session, now)
        # Those that stand for a call without an answer are nobody's word.
        fresh |= {uid: Stored(row, 0, 0, False) for uid, row in found.there.items()}
        for item in session.said_items():
            if item.uid in found.there:
                fresh[item.uid] = Stored(found.there[item.uid], *said(item), False)
            if item.outdated and item.row is not None:
                first, last = said(item)
                known = session.stored.get(item.uid)
                first = known.first if known is not None else first
                fresh[item.uid] = Stored(item.row, first, last, True)
        return found.inserts

    def has_ended(self, session: Session) -> bool:
        with self._plain_errors():
            return self._end_reason(session.id) is not None

    def _is_ours(self, session: Session, marker: dict[str, Any]) -> bool:
        """Not a row that somebody else made: whoever did that will write what belongs there."""
        known = marker or session.stored or not self._exists(session.id)
        return bool(known) or bool(self._markers_of(session.id))

    def _retitle(self, session: Session, ours: str | None) -> str | None:
        """The title in the row, if it is from us: a later one may take its place."""
        before = self._title(session)
        self._set_title(session, ours)
        if self._needs_titles:
            hermes_rows.title_from_first_words(self._db, text.storable(session.id))
        now = self._title(session)
        return now if now != before or now == ours else None

    def _title(self, session: Session) -> str | None:
        if "title" not in self._columns["sessions"]:
            return None
        row = self._db.execute(
            "SELECT title FROM sessions WHERE id = ?", (text.storable(session.id),)
        ).fetchone()
        return row[0] if row else None

    def _as_the_agent_has_it(
        self, session: Session, marker: dict[str, Any], spoke: bool
    ) -> list[object] | None:
        """Ended where the agent has ended it, else open; what of that is from us."""
        if session.ended is not None:
            end = [session.ended_at, text.storable(session.ended)]
            if self._end(session.id, session.ended_at, session.ended, session.began):
                return end
            return end if marker.get("ended") == end else None
        if spoke:
            # It ended in an earlier life, and goes on.
            self._db.execute(
                "UPDATE sessions SET ended_at = NULL, end_reason = NULL "
                "WHERE id = ? AND ended_at < ?",
                (text.storable(session.id), session.began),
            )
        return None
