"""The two tables of state.db that we write to: messages and sessions.

Never assumes a column, never changes or removes a message that somebody else wrote, and never
begins or ends a transaction: the caller's covers what is done here.
"""

from __future__ import annotations

import os

import apsw

from ..model import text
from . import rows
from .reconcile import Row, call_ids
from .schema import decoded, encoded, from_json, is_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model.stream import Message, Session
    from .database import Database
    from .reconcile import Insert

    EndMark = tuple[float, str]

# The columns of a message that may have changed when it is sent again.
_CHANGEABLE = ("content", "tool_calls", "tool_call_id", "finish_reason", "reasoning")

# Two messages of a session with the same time are the same if these columns agree.
_IDENTITY = ("role", "content", "tool_call_id", "tool_calls", "tool_name")
# Seconds: the resolution of the column.
_MOMENT = 1e-6


class Messages:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements: dict[tuple[str, ...], str] = {}
        self._moved: tuple[str, float, float] = "", 0.0, 0.0
        """The last time that was replaced by a later one: session, time, the later one."""
        self._identity = [name for name in _IDENTITY if name in database.columns["messages"]]
        self._same = "SELECT 1 FROM messages WHERE session_id = ? AND timestamp = ?" + "".join(
            f" AND {name} IS ?" for name in self._identity
        )

    def ids(self, session_id: str, above: int = 0) -> list[int]:
        """The rows of a session, those that the agent has put away included."""
        query = "SELECT id FROM messages WHERE session_id = ? AND id > ? ORDER BY id"
        return [row[0] for row in self._database.execute(query, (text.storable(session_id), above))]

    def rows(self, session_id: str, above: int = 0) -> list[Row]:
        cursor = self._database.execute(
            "SELECT id, role, content, tool_call_id, tool_calls, timestamp FROM messages "
            f"WHERE session_id = ? AND id > ?{self._database.only_active} ORDER BY id",
            (text.storable(session_id), above),
        )
        return [
            Row(id, role, decoded(content), call, call_ids(from_json(calls)), _time(timestamp))
            for id, role, content, call, calls, timestamp in cursor
        ]

    def insert(self, session_id: str, insert: Insert) -> int:
        """Insert a message; its row."""
        values = self._values(insert.message)
        values["session_id"] = text.storable(session_id)
        if not is_time(values.get("timestamp")):
            values["timestamp"] = insert.at
        values["timestamp"] = self._distinct(values)
        write(self._database, "messages", values, self._statements)
        return self._database.connection.last_insert_rowid()

    def update(self, row: int, session_id: str, message: Message) -> None:
        """Bring a row that we wrote up to date. What the message no longer has is removed."""
        columns = self._database.columns["messages"]
        empty = {name: None for name in _CHANGEABLE if name in columns}
        values = {**empty, **self._values(message)}
        changes = ", ".join(f'"{name}" = ?' for name in values)
        self._database.execute(
            f"UPDATE messages SET {changes} WHERE id = ? AND session_id = ?",
            (*values.values(), row, text.storable(session_id)),
        )

    def newest(self) -> int | None:
        """The highest row id that was ever used; None: the file does not record it."""
        try:
            row = self._database.execute(
                "SELECT seq FROM sqlite_sequence WHERE name = 'messages'"
            ).fetchone()
        except apsw.SQLError:
            return None
        return int(row[0]) if row else 0

    def _distinct(self, values: dict[str, Any]) -> float:
        """A time at which the session has no equal message. Hermes shows two messages that are
        equal in everything that it compares as one."""
        session, said = values["session_id"], values["timestamp"]
        at = said
        if self._moved[:2] == (session, said):
            at = self._moved[2]  # not before the message that precedes it
        same = [values.get(name) for name in self._identity]
        while self._database.execute(self._same, (session, at, *same)).fetchone() is not None:
            at += _MOMENT
        if at != said:
            self._moved = session, said, at
        return float(at)

    def _values(self, message: Message) -> dict[str, Any]:
        """The fields of a message that the table has columns for."""
        values: dict[str, Any] = {}
        for name, value in message.items():
            # For a value that is not there, the table has its own default.
            wanted = value is not None and name not in ("id", "session_id", "active")
            if wanted and name in self._database.columns["messages"]:
                values[name] = encoded(name, value)
        if not self._database.names_tools:
            values.pop("tool_name", None)
        return values


class Sessions:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._columns = database.columns["sessions"]
        self._needs_titles = database.schema_version < rows.FIRST_SCHEMA_WITH_UNTITLED_SESSIONS

    def exists(self, session_id: str) -> bool:
        query = "SELECT 1 FROM sessions WHERE id = ?"
        return self._database.execute(query, (text.storable(session_id),)).fetchone() is not None

    def create(self, session: Session, at: float) -> None:
        about = session.about
        values = {
            name: encoded(name, about[name])
            for name in ("model", "user_id", "system_prompt", "cwd", "model_config")
            if about.get(name) is not None
        }
        values["id"] = text.storable(session.id)
        values["source"] = text.storable(str(about.get("source") or "agent"))
        started = about.get("started")
        values["started_at"] = started if is_time(started) else session.began or at
        values["profile_name"] = _profile(self._database.path)
        for parent in (about.get("parent"), *session.ancestors):
            if isinstance(parent, str) and self.exists(parent):
                values["parent_session_id"] = text.storable(parent)
                break
        known = {name: value for name, value in values.items() if name in self._columns}
        write(self._database, "sessions", known, {})

    def fill_in(self, session: Session) -> None:
        """Set the model of a row that was made before it was known."""
        model = session.about.get("model")
        if isinstance(model, str) and "model" in self._columns:
            self._database.execute(
                "UPDATE sessions SET model = ? WHERE id = ? AND model IS NULL",
                (text.storable(model), text.storable(session.id)),
            )

    def count(self, session_id: str) -> None:
        """Make the counters match the rows."""
        active = self._database.only_active
        self._database.execute(
            "UPDATE sessions SET "
            f"message_count = (SELECT count(*) FROM messages WHERE session_id = ?1{active}), "
            "tool_call_count = (SELECT coalesce(sum(json_array_length(tool_calls)), 0) "
            f"FROM messages WHERE session_id = ?1{active} AND json_valid(tool_calls)) "
            "WHERE id = ?1",
            (text.storable(session_id),),
        )

    # -- the title -----------------------------------------------------------------------------

    def title(self, session_id: str) -> str | None:
        if "title" not in self._columns:
            return None
        query = "SELECT title FROM sessions WHERE id = ?"
        row = self._database.execute(query, (text.storable(session_id),)).fetchone()
        return row[0] if row else None

    def set_title(self, session: Session, ours: object = None) -> str | None:
        """Set a title that was still pending, or in place of one of `ours`. A title that another
        session has is dropped; it is returned then."""
        title = text.title(session.title) if session.title else None
        if title is None or "title" not in self._columns:
            return None
        try:
            with self._database.connection:
                self._database.execute(
                    "UPDATE sessions SET title = ? WHERE id = ? AND (title IS NULL OR title = ?)",
                    (title, text.storable(session.id), ours),
                )
        except apsw.ConstraintError:
            return title
        return None

    def set_missing_title(self, session_id: str) -> None:
        """For files of a release that hides untitled sessions."""
        if self._needs_titles:
            connection = self._database.connection
            rows.title_from_first_words(connection, text.storable(session_id))

    # -- the end -------------------------------------------------------------------------------

    def end_mark(self, session_id: str) -> EndMark | None:
        query = "SELECT ended_at, end_reason FROM sessions WHERE id = ?"
        row = self._database.execute(query, (text.storable(session_id),)).fetchone()
        return None if row is None or row[0] is None else (row[0], row[1] or "")

    def end(self, session_id: str, end: EndMark, instead_of: EndMark | None = None) -> bool:
        """Mark the end, where there is none yet, or `instead_of` one that is there."""
        if self.end_mark(session_id) not in (None, instead_of):
            return False
        at, reason = end
        self._database.execute(
            "UPDATE sessions SET ended_at = ?, end_reason = ? WHERE id = ?",
            (at, text.storable(reason), text.storable(session_id)),
        )
        return self._database.connection.changes() > 0

    def reopen(self, session_id: str, end: EndMark) -> None:
        """Remove an end mark, if the row still has it."""
        if self.end_mark(session_id) == end:
            self._database.execute(
                "UPDATE sessions SET ended_at = NULL, end_reason = NULL WHERE id = ?",
                (text.storable(session_id),),
            )

    def release(self, session_id: str, pid: int, namespace: str, died_at: float) -> None:
        """Release the locks and leases of a dead process on a session."""
        connection, id = self._database.connection, text.storable(session_id)
        if self._database.columns_of("compression_locks"):
            rows.unlock(connection, id, pid, died_at)
        if self._database.columns_of("session_turn_leases"):
            rows.end_turn_lease(connection, id, pid, namespace, died_at)


def write(
    database: Database, table: str, values: dict[str, Any], known: dict[tuple[str, ...], str]
) -> None:
    """Insert a row. `known` keeps the statements that were used before."""
    columns = (table, *values)
    if columns not in known:
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        known[columns] = f"INSERT INTO {table} ({names}) VALUES ({marks})"
    database.execute(known[columns], tuple(values.values()))


def _profile(path: str) -> str:
    """The name of a state.db's profile. Some front ends list only the sessions of one profile."""
    home = os.path.dirname(os.path.realpath(path))
    above, name = os.path.split(home)
    return name if os.path.basename(above) == "profiles" else "default"


def _time(timestamp: object) -> float:
    return float(timestamp) if isinstance(timestamp, int | float) else 0.0
