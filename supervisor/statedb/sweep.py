"""The sessions in state.db that have no end, and ending those of them that are stale.

Never touches any other row, nor a session that has got an end meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .connection import PATIENCE
from .writer import StateDb

_NEEDED = {"api_call_count", "parent_session_id", "ended_at", "end_reason", "started_at", "source"}


class OpenSessions:
    """The sessions without an end. The connection is as careful as recovery's."""

    def __init__(self, path: str, patience: float = PATIENCE, *, read_only: bool = False) -> None:
        self._state_db = StateDb(path, patience, read_only=read_only)
        self._database = self._state_db.database

    def close(self) -> None:
        self._state_db.close()

    def rows(self) -> list[dict[str, Any]]:
        """Every session without an end, with the facts that decide whether it is stale."""
        with self._database.errors():
            if not self._database.columns["sessions"] >= _NEEDED:
                return []
            return self._database.dicts(
                "SELECT s.id, s.source, s.started_at, s.api_call_count, s.parent_session_id, "
                "p.end_reason AS parent_end_reason, p.ended_at AS parent_ended_at, "
                "(SELECT count(*) FROM messages m WHERE m.session_id = s.id) AS messages, "
                "(SELECT max(timestamp) FROM messages m WHERE m.session_id = s.id) AS last "
                "FROM sessions s LEFT JOIN sessions p ON p.id = s.parent_session_id "
                "WHERE s.ended_at IS NULL AND s.end_reason IS NULL ORDER BY s.started_at, s.id"
            )

    def end(
        self, judge: Callable[[list[dict[str, Any]]], list[tuple[str, float, str]]]
    ) -> list[str]:
        """End, in one transaction, what `judge` says is stale, at the time and for the reason
        that it gives. Returns the sessions that were ended."""
        sessions = self._state_db.sessions
        with self._database.errors(), self._database.transaction():
            stale = judge(self.rows())
            return [id for id, at, reason in stale if sessions.end(id, (at, reason))]
