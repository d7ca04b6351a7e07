"""Reads state.db for people: a transcript, titles, the last turn.

Never writes, and never assumes a column.
"""

from __future__ import annotations

from ..model import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .database import Database

_AT_A_TIME = 500


class Reader:
    def __init__(self, database: Database) -> None:
        self._database = database

    def transcript(self, session_id: str) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """A session's row and its messages, as they are stored."""
        database, id = self._database, (text.storable(session_id),)
        with database.errors():
            rows = database.dicts("SELECT * FROM sessions WHERE id = ?", id)
            active = database.only_active
            query = f"SELECT * FROM messages WHERE session_id = ?{active} ORDER BY id"
            return (rows[0] if rows else None), database.dicts(query, id)

    def briefly(self, session_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Title, end and last message of each session that is there, by the id that was asked
        for."""
        database = self._database
        asked = {text.storable(id): id for id in session_ids}
        columns = sorted({"title", "end_reason", "ended_at"} & database.columns["sessions"])
        last = "NULL AS last"
        if "timestamp" in database.columns["messages"]:
            of_it = f"messages.session_id = sessions.id{database.only_active}"
            last = f"(SELECT max(timestamp) FROM messages WHERE {of_it}) AS last"
        ids = list(asked)
        sessions: dict[str, dict[str, Any]] = {}
        with database.errors():
            for start in range(0, len(ids), _AT_A_TIME):
                some = tuple(ids[start : start + _AT_A_TIME])
                places = ", ".join("?" * len(some))
                wanted = ", ".join(["id", *columns, last])
                select = f"SELECT {wanted} FROM sessions WHERE id IN ({places})"
                sessions |= {asked[row["id"]]: row for row in database.dicts(select, some)}
        return sessions

    def active_since(self, moment: float) -> list[str]:
        """The sessions in which something was stored since then."""
        with self._database.errors():
            rows = self._database.dicts(
                "SELECT DISTINCT session_id FROM messages WHERE timestamp >= ?", (moment,)
            )
        return [str(row["session_id"]) for row in rows]

    def empty_since(self, moment: float) -> list[str]:
        """The sessions that began since then, are open, and have no message."""
        with self._database.errors():
            rows = self._database.dicts(
                "SELECT id FROM sessions WHERE started_at >= ? AND ended_at IS NULL AND NOT EXISTS "
                "(SELECT 1 FROM messages WHERE session_id = sessions.id)",
                (moment,),
            )
        return [str(row["id"]) for row in rows]

    def last_turn(self, session_id: str) -> dict[str, Any]:
        """The turn since the user's last message: when that was, how many answers the model gave,
        how many results tools gave, and how many characters of text the user could read."""
        database, id = self._database, (text.storable(session_id),)
        when = "timestamp" if "timestamp" in database.columns["messages"] else "0"
        active = database.only_active
        with database.errors():
            asked = database.dicts(
                f"SELECT id, {when} AS at FROM messages "
                f"WHERE session_id = ?{active} AND role = 'user' ORDER BY id DESC LIMIT 1",
                id,
            )
            [since] = database.dicts(
                "SELECT coalesce(sum(role = 'assistant'), 0) AS answers, "
                "coalesce(sum(role = 'tool'), 0) AS tools, "
                "coalesce(sum(CASE WHEN role = 'assistant' "
                "THEN length(trim(coalesce(content, ''), ' \n\t\r')) END), 0) AS characters "
                f"FROM messages WHERE session_id = ?{active} AND id > ?",
                (*id, asked[0]["id"] if asked else 0),
            )
        return {"asked": asked[0]["at"] if asked else None, **since}
