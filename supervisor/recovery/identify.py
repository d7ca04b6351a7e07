"""Which session of the database a stream is about, where only the database knows.

Never writes. A database that cannot be read changes nothing.

A conversation that was captured from the model's stream (the shim's floor) has no id. If its agent
stores its sessions itself, it is the session with the same questions and calls in which something
was stored since the process began; or, if there is none, the only session that began since then and
has no messages. If there are two, or none, it stays a session of its own, and its title says so.

An agent that continues under a new id in one transaction (Hermes from 0.20 on) announces that id
before. If it is killed inside, the database shows whether the session is the old or the new one.
"""

from __future__ import annotations

from ..statedb.reconcile import call_ids, plain
from ..statedb.writer import StateDbError
from .replay import go_on_as

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model.stream import Item, ReplayedStream, Session
    from ..statedb.writer import StateDb


_CAPTURED = "model stream"


def identify(replayed: ReplayedStream, database: Callable[[Session], StateDb]) -> None:
    for session in list(replayed.sessions.values()):
        if session.about.get("captured") == _CAPTURED and session.about.get("settles") is True:
            try:
                _find(replayed, session, database(session))
            except StateDbError:
                continue
        new = session.about.get("becoming")
        if not isinstance(new, str) or session.rotated or new in replayed.sessions:
            continue
        try:
            is_there = new in database(session).reader.briefly([new])
        except StateDbError:
            continue
        if is_there:
            go_on_as(replayed, session, new, at=session.heard_at)


def _find(replayed: ReplayedStream, session: Session, database: StateDb) -> None:
    since = session.about.get("since")
    since = float(since) if isinstance(since, int | float) else session.began
    found: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = []
    for name in database.reader.active_since(since):
        row, messages = database.reader.transcript(name)
        questions = _questions(session, messages)
        if row is not None and questions:
            found.append((row, questions))
    if not found:
        empty = [database.reader.transcript(name)[0] for name in database.reader.empty_since(since)]
        found = [(row, {}) for row in empty if row is not None]
    if len(found) != 1:
        return
    row, questions = found[0]
    new = str(row["id"])
    if new in replayed.sessions:
        return
    del replayed.sessions[session.id]
    session.id, session.title = new, None
    session.about["source"] = row.get("source")
    replayed.sessions[new] = session
    for item in session.items:
        if item.uid in questions:
            item.message["content"] = questions[item.uid]["content"]
            if item.live:  # it was stored before the request
                session.began = min(session.began, float(questions[item.uid]["timestamp"]))


def _questions(session: Session, rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """If the rows can be this conversation's: those of its questions, by uid.

    Compared from the end, as far as both go back: an agent need not send all that it has stored.
    The last question may not be stored yet.
    """
    calls = {id for item in session.items for id in call_ids(item.message.get("tool_calls"))}
    asked = [item for item in session.items if item.message["role"] == "user"]
    stored = [row for row in rows if row["role"] == "user"]
    behind = rows[rows.index(stored[-1]) :] if stored else []
    if any(row["role"] == "tool" and row.get("tool_call_id") not in calls for row in behind):
        return {}
    if len(asked) > 1 and stored and not _is_in(stored[-1]["content"], asked[-1]):
        asked.pop()
    found: dict[str, dict[str, Any]] = {}
    for row, item in zip(reversed(stored), reversed(asked), strict=False):
        if not _is_in(row["content"], item):
            return {}
        found[item.uid] = row
    # A single question may well be asked twice.
    return found if len(found) > 1 or len(stored) == len(asked) else {}


def _is_in(stored: object, item: Item) -> bool:
    """True if a question is in a row's text: an agent may have added text around it."""
    mine, its = plain(stored), plain(item.message.get("content"))
    return bool(mine) and mine in its
