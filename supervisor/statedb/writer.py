"""Writes a session into state.db, exactly once, from all the streams that have a share in it.

Never changes or removes a message that the agent wrote itself. How the file is opened and what it
commits made durable is connection.py's; what a marker says, and why it makes this exactly-once, is
markers.py's.

A session is written in steps, each a short transaction: because of the search index, a thousand
messages hold the write lock for most of a second.

    the first step     finds what is missing (missing.py)
    every step         inserts as many messages as it has time for, and notes them in the markers
    the last step      counters, title, end mark, and `done` in the markers of dead processes

If messages of a dead process have to wait for a living process, the stream cannot be closed yet: it
is left for the next recovery.
"""

from __future__ import annotations

import time

from ...ipc.lightweight import json
from ...ipc.lightweight.dataclass import dataclass, field
from ..model import life as lives
from ..model import text
from ..model.stored import as_rows, from_rows, mark
from ..model.stream import Stored
from . import connection
from .cjk_index import CjkIndex
from .connection import PATIENCE, Replaced, StateDbError
from .database import Database
from .markers import Markers, key_of
from .missing import Missing, Part, Share, counts_in
from .reader import Reader
from .reconcile import Counts, Insert
from .tables import Messages, Sessions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..model.life import Life
    from .markers import Marker
    from .tables import EndMark

__all__ = ["PATIENCE", "Applied", "Part", "Replaced", "StateDb", "StateDbError"]

# How long, and for how many messages, a step holds the write lock. Hermes gives up opening a file
# that is locked for longer than a second.
HOLD = 0.3
STEP = 2_000
# The reasons of end marks that come from the end of a process (recovery/outcome.py).
_ENDS_BY_DEATH = ("interrupted", "exited")


@dataclass
class Applied:
    """The result for one part, from now or from an earlier recovery that finished it."""

    counts: Counts
    ended_as: str | None
    """The end reason now in the row, None if it is open or there is no row."""
    ended_by_us: bool
    title_dropped: str | None = None
    at: float | None = None
    note: dict[str, Any] = field(default_factory=dict)


class StateDb:
    """A state.db: its tables, what is read from it for people, and how sessions get into it."""

    def __init__(self, path: str, patience: float = PATIENCE, *, read_only: bool = False) -> None:
        self.path = path
        self.database = Database(path, patience, read_only=read_only)
        self.reader = Reader(self.database)
        self.markers = Markers(self.database)
        self.messages = Messages(self.database)
        self.sessions = Sessions(self.database)
        self.cjk_index = CjkIndex(self.database)

    def close(self) -> None:
        self.database.close()

    def write(
        self,
        parts: list[Part],
        *,
        boot: str = "",
        upto: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> SessionWriter:
        """A writer of the session that these are the parts of, in order of preference.

        `boot` is the current boot of the machine. `upto`: messages of living processes after this
        place are left for the next recovery. `progress` is called with the number of messages just
        stored and left.
        """
        return SessionWriter(self, parts, boot, upto, progress)

    def closed_by_others(self, session_id: str, own: set[str]) -> list[tuple[dict[str, Any], Life]]:
        """The markers of other closed streams that had a share in a session, and the life of
        each."""
        keys = {key_of(stream, session_id) for stream in own}
        with self.database.errors():
            markers = self.markers.of_session(session_id)
        return [
            (marker, lives.from_record(marker.get("life"), marker.get("died")))
            for key, marker in markers.items()
            if key not in keys and marker.get("done")
        ]

    def unfinished(self, stream: str) -> dict[str, dict[str, Any]]:
        """The markers of a stream that is not closed, by session."""
        with self.database.errors():
            return self.markers.unfinished(stream)

    def is_ended_by_us(self, session_id: str) -> bool:
        """True if we set the end mark that a session has."""
        with self.database.errors():
            end = self.sessions.end_mark(session_id)
            if end is None or not self.database.columns_of("state_meta"):
                return False
            return _is_ours(end, self.markers.of_session(session_id))

    def is_ended(self, session_id: str) -> bool:
        with self.database.errors():
            return self.sessions.end_mark(session_id) is not None


class SessionWriter:
    """Writes one session. Each turn of `steps` is one transaction; `applied` has the results."""

    def __init__(
        self,
        state_db: StateDb,
        parts: list[Part],
        boot: str,
        upto: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._database = state_db.database
        self._markers = state_db.markers
        self._messages = state_db.messages
        self._sessions = state_db.sessions
        self._cjk_index = state_db.cjk_index
        self._parts = parts
        self._id = parts[0].session.id
        self._boot = boot
        self._upto = upto
        self._progress = progress
        self._shares: list[Share] = []
        self._queue: list[tuple[Share, Insert]] = []
        self._others: dict[str, Marker] = {}
        self._ids: list[int] = []
        self._floor = 0
        self._done_now = 0
        self.applied: dict[str, Applied | None] = {}
        """By stream, for closed streams. None: there was nothing to write."""

    def run(self) -> dict[str, Applied | None]:
        """Write everything; the results by stream."""
        for _ in self.steps():
            pass
        return self.applied

    def steps(self) -> Iterator[bool]:
        """Write in steps; says after each whether there are more."""
        with self._database.errors():
            with self._database.transaction():
                if not self._begin():
                    return
                more = self._step()
            self._committed()
            yield more
            while more:
                with self._database.transaction():
                    self._ids += self._messages.ids(self._id, max(self._ids, default=self._floor))
                    more = self._step()
                self._committed()
                yield more

    def reopen(self) -> bool:
        """Remove our end mark if the session continues in the first part; True if it was
        removed."""
        with self._database.errors(), self._database.transaction():
            self._others = self._markers.of_session(self._id)
            share = Share(self._parts[0], {})
            end = self._sessions.end_mark(self._id)
            if end is None or share.session.ended is not None:
                return False
            ours = _is_ours(end, self._others) and share.session.was_spoken_in
            if not ours or not self._goes_on_after(end, share):
                return False
            self._sessions.reopen(self._id, end)
            return True

    # -- the first step ------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Find out what is missing. False: nothing is to be done."""
        markers = self._markers.of_session(self._id)
        for part in self._parts:
            marker = markers.get(key_of(part.stream, self._id), {})
            if marker.get("done"):
                # Its writer may have been killed before it could sync.
                connection.make_last(self._database.connection)
                self.applied[part.stream] = _from_marker(marker)
            else:
                self._shares.append(Share(part, marker))
        ours = {share.key for share in self._shares}
        self._others = {key: marker for key, marker in markers.items() if key not in ours}
        if not self._is_left_to_us():
            self._shares = [share for share in self._shares if not share.part.living]
        if all(share.part.living and not _has_news(share) for share in self._shares):
            return False
        for share in self._shares:
            self._resume(share)
            part = share.part
            if part.pid is not None and not part.living:
                self._sessions.release(self._id, part.pid, part.pid_namespace, part.at)
        missing = Missing(self._messages, self._sessions, self._shares, self._others, self._upto)
        self._queue = missing.find()
        self._ids, self._floor = missing.ids, missing.floor
        if not self._sessions.exists(self._id):
            if not self._queue:
                self.applied |= {s.part.stream: None for s in self._shares if not s.part.living}
                return False
            self._sessions.create(self._queue[0][0].session, self._queue[0][0].part.at)
        return True

    def _is_left_to_us(self) -> bool:
        """False: somebody else created the session's row, and will write its messages."""
        known = any(share.marker or share.session.stored for share in self._shares)
        return known or bool(self._others) or not self._sessions.exists(self._id)

    def _resume(self, share: Share) -> None:
        """Continue after what was stored before, and update messages that were sent again since."""
        session, marker = share.session, share.marker
        listed = from_rows(_list(marker.get("rows")))
        # Only the marker knows this: its writer was killed before it could note it in the stream.
        unwritten = {uid: s for uid, s in listed.items() if session.stored.get(uid) != s}
        session.stored |= unwritten
        share.fresh |= unwritten  # the marker is about to be overwritten
        if session.stored:
            mark(session)
        for item in session.all_items():
            if item.outdated and item.row is not None:
                self._cjk_index.admit_messages()
                self._messages.update(item.row, session.id, item.message)
        ended = _end_mark(marker.get("ended"))
        if session.cut_short:
            ended = None  # who set it knew more than we do
        if ended is not None and ended != (session.ended_at, text.storable(session.ended or "")):
            self._sessions.reopen(session.id, ended)

    # -- every step ----------------------------------------------------------------------------

    def _step(self) -> bool:
        """Insert the next messages, and note that in the markers; whether there are more."""
        until = time.monotonic() + HOLD
        done = 0
        if self._queue:
            self._cjk_index.admit_messages()
        for share, insert in self._queue[:STEP]:
            row = self._messages.insert(self._id, insert)
            self._ids.append(row)
            share.fresh[insert.uid] = Stored(row, *insert.records, True)
            share.inserted += 1
            share.through = insert.uid
            if share.part.counted or not share.part.living:
                share.counts.add(insert)
            done += 1
            if time.monotonic() > until:
                break
        self._queue = self._queue[done:]
        self._done_now = done
        for share in self._shares:
            self._note_rows(share)
        if self._queue:
            for share in self._shares:
                if share.fresh:
                    self._set_marker(share)
        else:
            self._finish()
        return bool(self._queue)

    def _note_rows(self, share: Share) -> None:
        share.rows += [json.dumps(row) for row in as_rows(share.fresh)]
        share.owns.add([known.row for known in share.fresh.values()], self._ids, self._floor)
        ours = [known.row for known in share.fresh.values() if known.ours]
        share.steps.add(ours, self._ids, self._floor)

    def _set_marker(self, share: Share, **more: Any) -> None:
        """Write a marker between two steps. That of a dead process keeps fields of an older
        version."""
        marker = {} if share.part.living else dict(share.marker)
        marker.pop("rows", None)
        marker |= {"owns": share.owns.as_list(), "known": share.session.facts(), **more}
        if share.part.counted or not share.part.living:
            marker["counts"] = vars(share.counts)
        if not share.part.living:  # for 0.1, which does not know `rows` of dead processes
            marker |= {"through": share.through, "steps": share.steps.as_list()}
        else:
            marker = {"at": share.part.at, "told": None, **marker}
            marker.setdefault("title", share.marker.get("title"))
            marker.setdefault("ended", share.marker.get("ended"))
        self._markers.set(share.key, marker, share.rows)

    def _committed(self) -> None:
        for share in self._shares:
            share.session.stored |= share.fresh
            share.fresh.clear()
        if self._progress is not None:
            self._progress(self._done_now, len(self._queue))

    # -- the last step -------------------------------------------------------------------------

    def _finish(self) -> None:
        """With the last rows: counters, a pending title, the end mark, the last markers."""
        stored = any(share.inserted or share.counts.messages for share in self._shares)
        # For a dead process that is stored piece by piece, once everything is stored.
        if stored and not all(share.part.counted for share in self._shares):
            self._sessions.count(self._id)
        for share in self._shares:
            if share.part.living or share.session.stored:
                # The row is ours, and may be older than the last record.
                self._sessions.fill_in(share.session)
            if share.part.living:
                title = self._retitle(share)
                ended = self._as_the_agent_has_it(share)
                heard = None if share.waiting else share.session.heard
                self._set_marker(share, told=heard, title=title, ended=ended)
            elif not share.waiting:
                self._close(share)
            elif share.rows:
                self._set_marker(share)

    def _retitle(self, share: Share) -> str | None:
        """The title in the row, if we set it: a later title may replace it."""
        ours, before = share.marker.get("title"), self._sessions.title(self._id)
        self._sessions.set_title(share.session, ours)
        self._sessions.set_missing_title(self._id)
        now = self._sessions.title(self._id)
        return now if now != before or now == ours else None

    def _as_the_agent_has_it(self, share: Share) -> list[object] | None:
        """End the session if the agent has ended it, else reopen it; the end mark, if we set it."""
        session = share.session
        now = self._sessions.end_mark(self._id)
        earlier = now if now is not None and self._goes_on_after(now, share) else None
        if session.ended is not None:
            end = session.ended_at, text.storable(session.ended)
            if self._sessions.end(self._id, end, earlier):
                return list(end)
            return list(end) if _end_mark(share.marker.get("ended")) == end else None
        if share.inserted and earlier is not None:
            self._sessions.reopen(self._id, earlier)  # it goes on
        return None

    def _goes_on_after(self, end: EndMark | None, share: Share) -> bool:
        """Whether an end mark was set before something was said in this part.

        Then it is not the end of the session if it belongs to an earlier life, or if we set it: a
        process died, and another one continued. A session that the agent itself ended continues
        only with a new turn.
        """
        if end is None:
            return False
        known = [m for m in self._others.values() if _end_mark(m.get("end")) == end]
        for marker in known:
            life = lives.from_record(marker.get("life"), marker.get("died"))
            if life.precedes(share.part.life, self._boot):
                return True
            may_go_on = end[1] in _ENDS_BY_DEATH or share.session.takes_turns
            if marker.get("ended_by_us") and may_go_on:
                if life.boot and life.boot == share.part.life.boot and life.last:
                    return share.session.last_place > life.last
                return share.session.heard_at > end[0]
        return not known and end[0] < share.session.began

    def _close(self, share: Share) -> None:
        part, counts = share.part, share.counts
        dropped = self._sessions.set_title(share.session, share.marker.get("title"))
        ended_by_us = False
        if counts.messages:
            self._sessions.set_missing_title(self._id)
        if part.end is not None:
            now = self._sessions.end_mark(self._id)
            # Messages that an agent stored itself also show that it continued after our end mark.
            spoken = share.session.was_spoken_in
            stored = counts.messages > 0 or (spoken and _is_ours(now, self._others))
            goes_on = now is not None and stored
            earlier = now if goes_on and self._goes_on_after(now, share) else None
            ended_by_us = self._sessions.end(self._id, part.end, earlier)
        end = self._sessions.end_mark(self._id)
        reason = end[1] if end is not None else None
        applied = Applied(counts, reason, ended_by_us, dropped, time.time(), part.note)
        self.applied[part.stream] = applied
        if counts.messages or ended_by_us or share.marker:
            marker = {**vars(applied), "done": True, "died": part.at, "counts": vars(counts)}
            marker |= {"owns": share.owns.as_list(), "end": end, "life": part.life.as_record()}
            marker.pop("note")
            self._markers.set(share.key, {**part.note, **marker})
        else:
            # The agent wrote it all; whether it synced what it wrote is not known.
            connection.make_last(self._database.connection)


def _has_news(share: Share) -> bool:
    """True if a living session has new records since it was last stored."""
    ends = share.session.idle and share.marker.get("ended") is None
    return bool(share.marker.get("told") != share.session.heard or ends)


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _end_mark(value: object) -> EndMark | None:
    if isinstance(value, list | tuple) and len(value) == 2:
        at, reason = value
        if isinstance(at, int | float) and isinstance(reason, str):
            return at, reason
    return None


def _is_ours(end: EndMark | None, markers: dict[str, Marker]) -> bool:
    """True if recovery set this end mark."""
    return any(
        marker.get("ended_by_us") and _end_mark(marker.get("end")) == end
        for marker in markers.values()
    )


def _from_marker(marker: Marker) -> Applied:
    names = ("ended_as", "ended_by_us", "title_dropped", "at")
    known: list[Any] = [marker.get(name) for name in names]
    applied = Applied(Counts(**counts_in(marker)), *known)
    applied.note = marker
    return applied
