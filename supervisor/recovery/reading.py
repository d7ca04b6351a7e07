"""state.db read for showing: a transcript, titles, what the last turn came to.

Never writes, and never assumes a column.
"""

from __future__ import annotations

from .. import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from typing import Any

    import apsw

_AT_A_TIME = 500


class Reading:
    """What a connection to state.db can be asked. `StateDb` has the connection."""

    _db: apsw.Connection
    _columns: dict[str, set[str]]

    def _plain_errors(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def transcript(self, session_id: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """A session's row and its messages, as they are stored."""
        with self._plain_errors():
            name = (text.storable(session_id),)
            found = self._dicts("SELECT * FROM sessions WHERE id = ?", name)
            order = f"SELECT * FROM messages WHERE session_id = ?{self._active()} ORDER BY id"
            return (found[0] if found else None), self._dicts(order, name)

    def briefly(self, session_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Title and end of each session that is there, by the id that was asked for."""
        asked = {text.storable(name): name for name in session_ids}
        wanted = sorted({"title", "end_reason", "ended_at"} & self._columns["sessions"])
        found: dict[str, dict[str, Any]] = {}
        names = list(asked)
        with self._plain_errors():
            for start in range(0, len(names), _AT_A_TIME):
                some = tuple(names[start : start + _AT_A_TIME])
                places = ", ".join("?" * len(some))
                select = f"SELECT {', '.join(['id', *wanted])} FROM sessions WHERE id IN ({places})"
                found |= {asked[row["id"]]: row for row in self._dicts(select, some)}
        return found

    def last_turn(self, session_id: str) -> dict[str, Any]:
        """What there is since the user spoke last: when that was, how often the model answered,
        how many tools did, and how many characters of text the user got to read."""
        columns = self._columns["messages"]
        when = "timestamp" if "timestamp" in columns else "0"
        name = (text.storable(session_id),)
        with self._plain_errors():
            asked = self._dicts(
                f"SELECT id, {when} AS at FROM messages "
                f"WHERE session_id = ?{self._active()} AND role = 'user' ORDER BY id DESC LIMIT 1",
                name,
            )
            [since] = self._dicts(
                "SELECT coalesce(sum(role = 'assistant'), 0) AS answers, "
                "coalesce(sum(role = 'tool'), 0) AS tools, "
                "coalesce(sum(CASE WHEN role = 'assistant' "
                "THEN length(trim(coalesce(content, ''), ' \n\t\r')) END), 0) AS characters "
                f"FROM messages WHERE session_id = ?{self._active()} AND id > ?",
                (*name, asked[0]["id"] if asked else 0),
            )
        return {"asked": asked[0]["at"] if asked else None, **since}

    def _active(self) -> str:
        return " AND active = 1" if "active" in self._columns["messages"] else ""

    def _dicts(self, sql: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
        cursor = self._db.execute(sql, values)
        found = []
        for row in cursor:
            names = [column[0] for column in cursor.get_description()]
            found.append(dict(zip(names, row, strict=True)))
        return found
