"""The sessions in state.db that have no end, and ending those of them that leaked.

Never touches any other row, nor a session that has got an end meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .statedb import StateDb

_NEEDED = {"api_call_count", "parent_session_id", "ended_at", "end_reason", "started_at", "source"}


class Unended(StateDb):
    """A connection as careful as recovery's, for another question."""

    def rows(self) -> list[dict[str, Any]]:
        """Every session without an end, and what there is to judge by whether it leaked."""
        with self._plain_errors():
            if not self._columns["sessions"] >= _NEEDED:
                return []
            return self._dicts(
                "SELECT s.id, s.source, s.started_at, s.api_call_count, s.parent_session_id, "
                "p.end_reason AS parent_end_reason, p.ended_at AS parent_ended_at, "
                "(SELECT count(*) FROM messages m WHERE m.session_id = s.id) AS messages, "
                "(SELECT max(timestamp) FROM messages m WHERE m.session_id = s.id) AS last "
                "FROM sessions s LEFT JOIN sessions p ON p.id = s.parent_session_id "
                "WHERE s.ended_at IS NULL AND s.end_reason IS NULL ORDER BY s.started_at, s.id",
                (),
            )

    def end_those(
        self, judge: Callable[[list[dict[str, Any]]], list[tuple[str, float, str]]]
    ) -> list[str]:
        """End, in one transaction, what `judge` says has leaked, at the time and for the reason
        that it gives. Says which were."""
        with self._plain_errors(), self._transaction():
            ends = judge(self.rows())
            return [name for name, at, reason in ends if self._end(name, at, reason, 0.0)]
