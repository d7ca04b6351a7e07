"""The rows that a session has in state.db, as frames that are shipped with its journal.

Never writes to state.db. The journal says what was said since the run began; what was said before,
and what an agent put in place of it when it rewrote its rows, is in state.db only.

    rows    {"kind": "rows", "session", "after", "part", "of", "messages"}
            the messages, in parts. `after` is the number of the record that gave rise to it
    row     {"kind": "row", "session", "row"}
            the session's own row, whenever it has changed
"""

from __future__ import annotations

import json
import os

from ...ipc import frames, records
from ..model import text
from ..statedb.markers import Ranges, owned
from ..statedb.schema import from_json
from ..statedb.writer import StateDb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_PART = 512 * 1024
# Of a session's row: what makes the row again. Counters are counted, the end is decided anew.
_KEPT = (
    "source", "user_id", "model", "model_config", "system_prompt", "parent_session_id",
    "started_at", "title", "cwd",
)  # fmt: skip


class Snapshot:
    """What was found of one session."""

    def __init__(self, row: dict[str, Any] | None, messages: list[dict[str, Any]]) -> None:
        self.row = row
        self.messages = messages


def take(path: str, session: str, streams: Iterable[str], patience: float = 2.0) -> Snapshot:
    """The rows of a session, without those that we stored for `streams`, whose frames are shipped.
    Raises StateDbError."""
    if not os.path.exists(path):
        return Snapshot(None, [])
    state_db = StateDb(path, patience, read_only=True)
    try:
        row, messages = state_db.reader.transcript(session)
        ours = _stored_for(state_db, session, streams) if messages else Ranges()
        return Snapshot(row, [message for message in messages if message["id"] not in ours])
    finally:
        state_db.close()


def row_of(path: str, session: str) -> dict[str, Any] | None:
    """What makes the session's own row. Raises StateDbError."""
    if not os.path.exists(path):
        return None
    state_db = StateDb(path, 2.0, read_only=True)
    try:
        with state_db.database.errors():
            found = state_db.database.dicts(
                "SELECT * FROM sessions WHERE id = ?", (text.storable(session),)
            )
    finally:
        state_db.close()
    return kept(found[0]) if found else None


def kept(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _KEPT if row.get(name) is not None}


def _stored_for(state_db: StateDb, session: str, streams: Iterable[str]) -> Ranges:
    ranges: list[list[int]] = []
    for stream in streams:
        marker = from_json(state_db.database.meta(f"hermes_supervise:{stream}:{session}"))
        if isinstance(marker, dict):
            ranges += owned(marker).as_list()
    return Ranges(ranges)


def as_frames(session: str, after: int, messages: list[dict[str, Any]]) -> list[bytes]:
    parts: list[list[dict[str, Any]]] = [[]]
    size = 0
    for message in messages:
        length = len(json.dumps(message, default=str))
        if parts[-1] and size + length > _PART:
            parts.append([])
            size = 0
        parts[-1].append(message)
        size += length
    return [
        _frame({"kind": "rows", "session": session, "after": after, "part": number,
                "of": len(parts), "messages": part})
        for number, part in enumerate(parts, 1)
    ]  # fmt: skip


def row_frame(session: str, row: dict[str, Any]) -> bytes:
    return _frame({"kind": "row", "session": session, "row": row})


def _frame(record: dict[str, Any]) -> bytes:
    plain = json.loads(json.dumps(record, default=str))
    return frames.encode(frames.HANDSHAKE, records.fit(plain))
