"""state.db: read a session's rows, apply a plan to it exactly once.

Never assumes a column, never changes or removes a row the agent wrote. How the file is opened
and made to last is connection.py's.

Exactly once: the row `hermes_supervise:<stream>:<session>` in state_meta is written in the
transaction whose work it speaks of. `through` is the last message in; `done` means that the
end mark is in, too. A recovery that is cut off anywhere finds either nothing of a step or
all of it, marker included, and goes on behind it.
"""

from __future__ import annotations

import time

import apsw

from ...ipc import jsontext
from .. import text
from ..adapters import hermes_rows
from ..plain import dataclass, replace
from . import connection, schema
from .connection import PATIENCE, Patience, Replaced, Trouble
from .reading import Reading
from .reconcile import Compared, Counts, Insert, Row, call_ids, compare
from .replay import Session
from .schema import decoded, encoded, from_json, is_time
from .stored import Stored, from_rows, mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["PATIENCE", "Applied", "Replaced", "StateDb", "Trouble"]

# How long, and for how many messages, a step holds the write lock. Because of the search index a
# thousand take most of a second, and Hermes gives up opening a file that is locked for longer.
HOLD = 0.3
STEP = 2_000
# Of a message, what may have changed when it is said again.
_SAID = ("content", "tool_calls", "tool_call_id", "finish_reason", "reasoning")
# Hermes 0.13 and 0.14 send this column to the provider, which refuses it.
_FIRST_SCHEMA_WITH_TOOL_NAMES = 13
# Written into a file we made: nobody else may ever checkpoint its WAL, so we do.
_OURS = "hermes_supervise:made"


@dataclass
class Applied:
    """What an application did, or an earlier one that it found finished."""

    counts: Counts
    ended_as: str | None
    """The end reason now in the row, None if it is open or there is no row."""
    ended_by_us: bool
    title_dropped: str | None = None
    at: float | None = None


class StateDb(Reading):
    def __init__(self, path: str, patience: float = PATIENCE, *, read_only: bool = False) -> None:
        self.path = path
        self.wrote: Callable[[int, int], None] | None = None
        self._patience = Patience(patience)
        self._statements: dict[tuple[str, ...], str] = {}
        with self._plain_errors():
            self._db = connection.to_read(path, self._patience) if read_only else self._open()
            self._columns = {t: self._columns_of(t) for t in ("sessions", "messages")}
            ours = self._meta(_OURS) is not None
            # A file that we made may yet be opened by any release, until one has left its mark.
            oldest = schema.VERSION + 1 if ours else _FIRST_SCHEMA_WITH_TOOL_NAMES
            version = self._schema_version()
            self._names_tools = version >= oldest
            self._needs_titles = version < hermes_rows.FIRST_SCHEMA_WITH_UNTITLED_SESSIONS
            if not ours:
                self._db.wal_autocheckpoint(0)

    def close(self) -> None:
        self._db.close()

    # -- applying ----------------------------------------------------------------------------

    def apply(
        self,
        stream: str,
        session: Session,
        died_at: float,
        end: tuple[float, str] | None,
        owner: int | None = None,
    ) -> Applied | None:
        """Insert what is missing and mark the end. None: there is nothing to be made of it.

        `owner` is the pid that the dead process knew itself by, where that is known.
        """
        key = key_of(stream, session.id)
        with self._plain_errors():
            with self._transaction():
                marker = self._marker(key)
                if marker.get("done"):
                    # Its writer may have been killed before it could sync.
                    connection.make_last(self._db)
                    return _from_marker(marker)
                self._go_on_from(session, marker)
                if owner is not None and self._columns_of("compression_locks"):
                    hermes_rows.unlock(self._db, text.storable(session.id), owner, died_at)
                inserts = self._missing(stream, session, died_at, marker)
                if not self._exists(session.id):
                    if not inserts:
                        return None
                    self._create(session, died_at)
                counts = Counts(**(marker.get("counts") or {}))
                steps = list(marker.get("steps") or [])
                rest = self._insert_some(key, session, inserts, counts, steps)
                if not rest:
                    return self._close(key, session, counts, died_at, end)
            while True:
                with self._transaction():
                    rest = self._insert_some(key, session, rest, counts, steps)
                    if not rest:
                        return self._close(key, session, counts, died_at, end)

    def _go_on_from(self, session: Session, marker: dict[str, Any]) -> dict[str, Stored]:
        """What was stored while the agent ran; and what it said since of the same: a message in
        another form, a session that goes on. Returns what only the marker knew: a call that was
        cut off has written it down nowhere else."""
        known = from_rows(marker.get("rows") or [])
        unwritten = {uid: one for uid, one in known.items() if session.stored.get(uid) != one}
        session.stored |= unwritten
        if session.stored:
            mark(session)
        for item in session.said_items():
            if item.outdated and item.row is not None:
                self._bring_up_to_date(item.row, session.id, item.message)
        ended = marker.get("ended")
        if ended and [session.ended_at, text.storable(session.ended or "")] != ended:
            self._db.execute(
                "UPDATE sessions SET ended_at = NULL, end_reason = NULL "
                "WHERE id = ? AND ended_at = ? AND end_reason = ?",
                (text.storable(session.id), *ended),
            )
        return unwritten

    def _bring_up_to_date(self, row: int, session_id: str, message: dict[str, Any]) -> None:
        """A row that we wrote: what the message does not carry any more goes, too."""
        named = {name: None for name in _SAID if name in self._columns["messages"]}
        values = {**named, **self._values(message)}
        changes = ", ".join(f'"{name}" = ?' for name in values)
        self._db.execute(
            f"UPDATE messages SET {changes} WHERE id = ? AND session_id = ?",
            (*values.values(), row, text.storable(session_id)),
        )

    def _missing(
        self, stream: str, session: Session, died_at: float, marker: dict[str, Any]
    ) -> list[Insert]:
        """The plan, or what is left of it if an earlier recovery got as far as the marker says.

        The plan is made anew against the rows as they were before that recovery: what it
        put in must not be taken for something the agent wrote, nor for all there was.
        """
        inserts = self._compared(stream, session, died_at, marker.get("steps") or []).inserts
        done = [index for index, one in enumerate(inserts) if one.uid == marker.get("through")]
        return inserts[done[-1] + 1 :] if done else inserts

    def _compared(
        self,
        stream: str,
        session: Session,
        at: float,
        steps: list[tuple[int, int]],
        *,
        living: bool = False,
    ) -> Compared:
        session = self._as_far_as_it_lasted(session)
        found, fresh = self._rows_of_others(session)
        rows = [row for row in found if not any(first <= row.id <= last for first, last in steps)]
        before = self._earlier_life(stream, session)
        known = max((row.id for row in rows if row.timestamp <= before), default=0)
        session = replace(session, watermark=max(session.watermark, known))
        return compare(session, rows, at, fresh=fresh and not rows, living=living)

    def _as_far_as_it_lasted(self, session: Session) -> Session:
        """The session without the rows that the agent had written and the file has lost.

        Numbers of rows are given out once. If one that the agent named was never given out, the
        file is as it was before: it was not synced when the power went, or is an older copy.
        """
        try:
            row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'messages'")
            newest = int((row.fetchone() or [0])[0])
        except apsw.SQLError:  # a table whose numbers may be given out again
            return session
        lost = [n for n, item in enumerate(session.items) if item.row and item.row > newest]
        if not lost:
            return session
        items = [
            item if n < lost[0] else replace(item, settled=False, row=None, outdated=False)
            for n, item in enumerate(session.items)
        ]
        return replace(session, items=items, watermark=min(session.watermark, newest))

    def _earlier_life(self, stream: str, session: Session) -> float:
        """When another process that had this session died, if that was before it went on here.

        The same words may well be said again right after a restart.
        """
        name = text.storable(session.id)
        ended = self._db.execute("SELECT ended_at FROM sessions WHERE id = ?", (name,)).fetchone()
        deaths = [ended[0]] if ended else []
        for key, value in self._markers_of(session.id):
            if key != key_of(stream, session.id):
                deaths.append((from_json(value) or {}).get("died"))
        return max(
            (at for at in deaths if isinstance(at, int | float) and at < session.began), default=0.0
        )

    def _markers_of(self, session_id: str) -> list[tuple[str, str]]:
        found = self._db.execute(
            "SELECT key, value FROM state_meta WHERE key GLOB 'hermes_supervise:*' "
            "AND substr(key, -length(?1) - 1) = ':' || ?1",
            (text.storable(session_id),),
        )
        return [(str(key), str(value)) for key, value in found]

    def _insert_some(
        self,
        key: str,
        session: Session,
        inserts: list[Insert],
        counts: Counts,
        steps: list[tuple[int, int]],
    ) -> list[Insert]:
        """The next few rows, with the marker moving along; returns those that remain."""
        rows = self._insert_first(session.id, inserts)
        done, rest = inserts[: len(rows)], inserts[len(rows) :]
        for insert in done:
            counts.add(insert)
        if rest:
            steps.append((rows[0], rows[-1]))
            through = done[-1].uid
            moved = {"through": through, "steps": steps, "counts": vars(counts)}
            self._mark(key, {**self._marker(key), **moved})
        if self.wrote is not None:
            self.wrote(len(rows), len(rest))
        return rest

    def _insert_first(self, session_id: str, inserts: list[Insert]) -> list[int]:
        """As many of these as a step takes; the rows that they are in now."""
        rows = []
        until = time.monotonic() + HOLD
        for insert in inserts[:STEP]:
            rows.append(self._insert(session_id, insert))
            if time.monotonic() > until:
                break
        return rows

    def _close(
        self,
        key: str,
        session: Session,
        counts: Counts,
        died_at: float,
        end: tuple[float, str] | None,
    ) -> Applied:
        """With the last rows: counters, a pending title, the end mark, and the marker's `done`."""
        if counts.messages:
            self._count(session.id)
        dropped = self._set_title(session, self._marker(key).get("title"))
        if counts.messages and self._needs_titles:
            hermes_rows.title_from_first_words(self._db, text.storable(session.id))
        went_on = session.began if counts.messages else 0.0
        ended_by_us = end is not None and self._end(session.id, *end, went_on)
        applied = Applied(counts, self._end_reason(session.id), ended_by_us, dropped, time.time())
        if counts.messages or ended_by_us or self._meta(key) is not None:
            done = {"done": True, "died": died_at, "counts": vars(counts)}
            self._mark(key, {**vars(applied), **done})
        else:
            # The agent wrote it all; whether it synced what it wrote is not known.
            connection.make_last(self._db)
        return applied

    # -- rows ----------------------------------------------------------------------------------

    def _rows(self, session_id: str, above: int = 0) -> list[Row]:
        where = " AND active = 1" if "active" in self._columns["messages"] else ""
        cursor = self._db.execute(
            "SELECT id, role, content, tool_call_id, tool_calls, timestamp FROM messages "
            f"WHERE session_id = ? AND id > ?{where} ORDER BY id",
            (text.storable(session_id), above),
        )
        return [
            Row(id, role, decoded(content), call, call_ids(from_json(calls)), timestamp or 0.0)
            for id, role, content, call, calls, timestamp in cursor
        ]

    def _rows_of_others(self, session: Session) -> tuple[list[Row], bool]:
        """Without those that we wrote while the agent ran: they are what they are; and whether
        there was none before them."""
        ours = {one.row for one in session.stored.values() if one.ours}
        if not ours:
            return self._rows(session.id), True
        rows = [row for row in self._rows(session.id, session.watermark) if row.id not in ours]
        query = "SELECT 1 FROM messages WHERE session_id = ? AND id < ? LIMIT 1"
        earlier = self._db.execute(query, (text.storable(session.id), min(ours))).fetchone()
        return rows, earlier is None

    def _insert(self, session_id: str, insert: Insert) -> int:
        values = self._values(insert.message)
        values["session_id"] = text.storable(session_id)
        if not is_time(values.get("timestamp")):
            values["timestamp"] = insert.at
        self._write("messages", values)
        return self._db.last_insert_rowid()

    def _values(self, message: dict[str, Any]) -> dict[str, Any]:
        """Of a message, what the table has columns for."""
        values: dict[str, Any] = {}
        for name, value in message.items():
            # Of a value that is not there the table knows best what to make.
            wanted = value is not None and name not in ("id", "session_id", "active")
            if wanted and name in self._columns["messages"]:
                values[name] = encoded(name, value)
        if not self._names_tools:
            values.pop("tool_name", None)
        return values

    def _create(self, session: Session, died_at: float) -> None:
        about = session.about
        values = {
            name: encoded(name, about[name])
            for name in ("model", "user_id", "system_prompt", "cwd", "model_config")
            if about.get(name) is not None
        }
        values["id"] = text.storable(session.id)
        values["source"] = text.storable(str(about.get("source") or "agent"))
        started = about.get("started")
        values["started_at"] = started if is_time(started) else session.began or died_at
        parent = about.get("parent")
        if isinstance(parent, str) and self._exists(parent):
            values["parent_session_id"] = text.storable(parent)
        self._write("sessions", {k: v for k, v in values.items() if k in self._columns["sessions"]})

    def _write(self, table: str, values: dict[str, Any]) -> None:
        columns = (table, *values)
        if columns not in self._statements:
            names = ", ".join(f'"{name}"' for name in values)
            marks = ", ".join("?" * len(values))
            self._statements[columns] = f"INSERT INTO {table} ({names}) VALUES ({marks})"
        self._db.execute(self._statements[columns], tuple(values.values()))

    def _count(self, session_id: str) -> None:
        """Counters that match the rows."""
        active = " AND active = 1" if "active" in self._columns["messages"] else ""
        name = text.storable(session_id)
        self._db.execute(
            "UPDATE sessions SET "
            f"message_count = (SELECT count(*) FROM messages WHERE session_id = ?1{active}), "
            "tool_call_count = (SELECT coalesce(sum(json_array_length(tool_calls)), 0) "
            f"FROM messages WHERE session_id = ?1{active} AND json_valid(tool_calls)) "
            "WHERE id = ?1",
            (name,),
        )

    def _set_title(self, session: Session, ours: str | None = None) -> str | None:
        """Set a title that was still pending, or in place of one of `ours`. One that is taken is
        dropped, and nothing else."""
        wanted = text.title(session.title) if session.title else None
        if wanted is None or "title" not in self._columns["sessions"]:
            return None
        try:
            with self._db:
                self._db.execute(
                    "UPDATE sessions SET title = ? WHERE id = ? AND (title IS NULL OR title = ?)",
                    (wanted, text.storable(session.id), ours),
                )
        except apsw.ConstraintError:
            return wanted
        return None

    def _end(self, session_id: str, at: float, reason: str, went_on: float) -> bool:
        """Mark the end, where there is none yet: the first reason wins.

        An end from before the session went on in this process is not the end of it.
        """
        self._db.execute(
            "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ? "
            "AND (ended_at IS NULL OR ended_at < ?)",
            (at, text.storable(reason), text.storable(session_id), went_on),
        )
        return self._db.changes() > 0

    def _end_reason(self, session_id: str) -> str | None:
        row = self._db.execute(
            "SELECT ended_at, end_reason FROM sessions WHERE id = ?", (text.storable(session_id),)
        ).fetchone()
        return None if row is None or row[0] is None else row[1] or ""

    def _exists(self, session_id: str) -> bool:
        query = "SELECT 1 FROM sessions WHERE id = ?"
        return self._db.execute(query, (text.storable(session_id),)).fetchone() is not None

    # -- the marker ----------------------------------------------------------------------------

    def _marker(self, key: str) -> dict[str, Any]:
        self._db.execute(schema.META)
        found = from_json(self._meta(key))
        return found if isinstance(found, dict) else {}

    def _meta(self, key: str) -> str | None:
        try:
            row = self._db.execute("SELECT value FROM state_meta WHERE key = ?", (key,)).fetchone()
        except apsw.SQLError:  # no such table yet
            return None
        return row[0] if row else None

    def _mark(self, key: str, value: dict[str, Any], rows: list[str] | None = None) -> None:
        """`rows` are JSON already: each step of many tells of those before it, too."""
        marker = jsontext.dumps(value)
        if rows:
            marker = f'{marker[:-1]}, "rows": [{", ".join(rows)}]}}'
        self._db.execute(
            "INSERT INTO state_meta (key, value) VALUES (?, ?) "
            "ON CONFLICT(key) DO UPDATE SET value = excluded.value",
            (key, marker),
        )

    # -- the connection ------------------------------------------------------------------------

    def _open(self) -> apsw.Connection:
        db = connection.to_write(self.path, self._patience)
        connection.insist(self._patience, lambda: _make_tables(db))
        return db

    def _transaction(self) -> connection.transaction:
        return connection.transaction(self._db)

    def _columns_of(self, table: str) -> set[str]:
        return {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}

    def _schema_version(self) -> int:
        try:
            row = self._db.execute("SELECT max(version) FROM schema_version").fetchone()
        except apsw.SQLError:
            return schema.VERSION
        return int(row[0]) if row and row[0] is not None else schema.VERSION

    def _plain_errors(self) -> connection.plain_errors:
        return connection.plain_errors(self.path, self._patience)


def key_of(stream: str, session_id: str) -> str:
    # Not as it is stored: two ids may differ in nothing but what cannot be.
    return f"hermes_supervise:{stream}:{session_id.encode('utf-8', 'backslashreplace').decode()}"


def _make_tables(db: apsw.Connection) -> None:
    if not _has_tables(db):
        # A new file is switched to WAL, as Hermes would have it.
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        with connection.transaction(db):
            if not _has_tables(db):
                for statement in schema.statements():
                    db.execute(statement)
                db.execute("INSERT INTO state_meta VALUES (?, ?)", (_OURS, str(time.time())))


def _has_tables(db: apsw.Connection) -> bool:
    query = "SELECT count(*) FROM sqlite_master WHERE name IN ('sessions', 'messages')"
    row = db.execute(query).fetchone()
    return bool(row and row[0] == 2)


def _from_marker(marker: dict[str, Any]) -> Applied:
    names = ("ended_as", "ended_by_us", "title_dropped", "at")
    known: list[Any] = [marker.get(name) for name in names]
    return Applied(Counts(**marker["counts"]), *known)
