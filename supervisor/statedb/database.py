"""An open state.db: the connection, how long to wait for others, and what its tables are like.

Never reads or writes a session: the parts that are made of a `Database` do.
"""

from __future__ import annotations

import time

import apsw

from . import connection, new_files, schema
from .connection import PATIENCE, Patience

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Hermes 0.13 and 0.14 send this column to the provider, which refuses it.
_FIRST_SCHEMA_WITH_TOOL_NAMES = 13
# The state_meta key of a file that we made: nobody else may ever checkpoint its WAL, so we do.
_MADE_BY_US = "hermes_supervise:made"


class Database:
    def __init__(self, path: str, patience: float = PATIENCE, *, read_only: bool = False) -> None:
        self.path = path
        self._patience = Patience(patience)
        with self.errors():
            if read_only:
                self.connection = connection.to_read(path, self._patience)
            else:
                self.connection = connection.to_write(path, self._patience)
                connection.insist(self._patience, self._make_tables)
            self.columns = {table: self.columns_of(table) for table in ("sessions", "messages")}
            made_by_us = self.meta(_MADE_BY_US) is not None
            # A file that we made may yet be opened by any release, until one has left its mark.
            oldest = schema.VERSION + 1 if made_by_us else _FIRST_SCHEMA_WITH_TOOL_NAMES
            self.schema_version = self._schema_version()
            self.names_tools = self.schema_version >= oldest
            if not made_by_us:
                self.connection.wal_autocheckpoint(0)

    def close(self) -> None:
        self.connection.close()

    def transaction(self) -> connection.transaction:
        return connection.transaction(self.connection)

    def errors(self) -> connection.plain_errors:
        """Within it, every error of SQLite and of the system becomes a `StateDbError`."""
        return connection.plain_errors(self.path, self._patience)

    def execute(self, sql: str, values: tuple[Any, ...] = ()) -> apsw.Cursor:
        return self.connection.execute(sql, values)

    def dicts(self, sql: str, values: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        cursor = self.connection.execute(sql, values)
        rows = []
        for row in cursor:
            names = [column[0] for column in cursor.get_description()]
            rows.append(dict(zip(names, row, strict=True)))
        return rows

    def columns_of(self, table: str) -> set[str]:
        return {row[1] for row in self.connection.execute(f"PRAGMA table_info({table})")}

    @property
    def only_active(self) -> str:
        """The condition that leaves out messages that the agent has put away."""
        return " AND active = 1" if "active" in self.columns["messages"] else ""

    # -- state_meta ----------------------------------------------------------------------------

    def meta(self, key: str) -> str | None:
        try:
            row = self.execute("SELECT value FROM state_meta WHERE key = ?", (key,)).fetchone()
        except apsw.SQLError:  # no such table yet
            return None
        return row[0] if row else None

    def set_meta(self, key: str, value: str) -> None:
        self.execute(
            "INSERT INTO state_meta (key, value) VALUES (?, ?) "
            "ON CONFLICT(key) DO UPDATE SET value = excluded.value",
            (key, value),
        )

    # -- the tables ----------------------------------------------------------------------------

    def _make_tables(self) -> None:
        if self._has_tables():
            return
        mode = new_files.journal_mode(self.path)
        self.execute(f"PRAGMA journal_mode = {mode}").fetchall()
        with self.transaction():
            if not self._has_tables():
                for statement in schema.statements():
                    self.execute(statement)
                self.set_meta(_MADE_BY_US, str(time.time()))

    def _has_tables(self) -> bool:
        query = "SELECT count(*) FROM sqlite_master WHERE name IN ('sessions', 'messages')"
        row = self.execute(query).fetchone()
        return bool(row and row[0] == 2)

    def _schema_version(self) -> int:
        try:
            row = self.execute("SELECT max(version) FROM schema_version").fetchone()
        except apsw.SQLError:
            return schema.VERSION
        version = row[0] if row else None
        return version if isinstance(version, int) else schema.VERSION
