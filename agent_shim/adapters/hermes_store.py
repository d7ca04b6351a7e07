"""Taps on what Hermes stores, its SessionDB, and on the hooks that it fires.

Never opens the database. A row counts as written only when the call that writes it has returned.

Until 0.19 a message is a call of `append_message`, which returns the row's id. From 0.20 on a
turn's messages go in together, by `append_messages_batch`. It notes a row's id in the row that
it was given (`_row_id`) or in a list (`row_ids_out`); 0.20.0 in neither, so that the rows are
counted back from the last that the transaction put in.
"""

from __future__ import annotations

import sys

from . import hermes_conversation as conversations
from .taps import argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .taps import Arguments, Leave, Named

_HOOKS = ("on_session_end", "on_session_finalize")

_batches: list[_Batch] = []


class _Batch:
    """A call of `append_messages_batch` under way. A long one calls itself with parts of its
    list: the rows are the same objects then."""

    def __init__(self, rows: list[Named], ids: object) -> None:
        self.rows = rows
        # One that has an id already is there, and is only changed.
        self.fresh = {id(row) for row in rows if row.get("_row_id") is None}
        self.listed = ids if isinstance(ids, list) else None
        self.counted: dict[int, int] = {}

    def row_ids(self) -> list[object]:
        found: list[object] = [row.get("_row_id") for row in self.rows]
        if not any(found) and self.listed is not None and len(self.listed) == len(found):
            found = list(self.listed)
        if not any(found):
            found = [self.counted.get(id(row)) for row in self.rows]
        return found


def rows_appended(db: Any, args: Arguments, named: Named) -> Leave | None:
    conversation = conversations.known(argument(args, named, 0, "session_id"))
    rows = argument(args, named, 1, "messages")
    if conversation is None or not isinstance(rows, list):
        return None
    batch = _Batch([row for row in rows if isinstance(row, dict)], named.get("row_ids_out"))
    _batches.append(batch)

    def leave(result: object, error: BaseException | None) -> None:
        _batches.remove(batch)
        if error is None:
            ids = batch.row_ids()
            written = [(row, ids[place]) for place, row in enumerate(batch.rows)]
            conversation.stored([pair for pair in written if id(pair[0]) in batch.fresh])
            for other in list(_batches):
                other.fresh -= batch.fresh

    return leave


def rows_inserted(db: Any, args: Arguments, named: Named, result: object) -> None:
    """Called within the transaction of a batch, of which the last row has the highest id."""
    connection, rows = argument(args, named, 0, "conn"), argument(args, named, 2, "messages")
    inserted = result[0] if isinstance(result, tuple) and result else None
    if not isinstance(rows, list) or not rows or inserted != len(rows):
        return
    sqlite: Any = sys.modules.get("sqlite3")
    if sqlite is None or not isinstance(connection, sqlite.Connection):
        return
    for batch in list(_batches):
        if rows[0].get("_row_id") is None and any(rows[0] is row for row in batch.rows):
            [last] = connection.execute("SELECT max(id) FROM messages").fetchone()
            first = last - len(rows) + 1
            batch.counted.update((id(row), first + place) for place, row in enumerate(rows))


def row_appended(db: Any, args: Arguments, named: Named, row: object) -> None:
    conversation = conversations.known(argument(args, named, 0, "session_id"))
    if conversation is not None:
        message = {
            "role": argument(args, named, 1, "role"),
            "content": argument(args, named, 2, "content"),
            "tool_calls": argument(args, named, 4, "tool_calls"),
            "tool_call_id": argument(args, named, 5, "tool_call_id"),
        }
        conversation.stored([(message, row)])


def session_created(db: Any, args: Arguments, named: Named, result: object) -> None:
    name, source = argument(args, named, 0, "session_id"), argument(args, named, 1, "source")
    if isinstance(name, str) and isinstance(source, str):
        older = conversations.known(named.get("parent_session_id"))
        if older is not None and older.is_rotating:
            # Until the shorter list is stored, what it was made from is all there is.
            older.rotate(name, older.to_be_compressed)
            older.closed = None
        conversation = conversations.known(name)
        if conversation is None:
            conversations.sources[name] = source
        else:
            conversation.session._say("session", source=source, cwd=named.get("cwd"))


def child_published(db: Any, args: Arguments, named: Named) -> Leave | None:
    """Closing the parent and creating the child with its messages is one transaction. If it is
    interrupted, only the database knows which of the two is current, so the child is announced
    before."""
    parent, child = named.get("parent_session_id"), named.get("child_session_id")
    conversation = conversations.known(parent)
    if conversation is None or conversation.session.id != parent or not isinstance(child, str):
        return None
    conversation.session._say("session", becoming=child)

    def leave(result: object, error: BaseException | None) -> None:
        if error is not None:
            conversation.session._say("session", becoming=None)
        else:
            conversations.sources[child] = str(named.get("source"))
            conversation.rotate(child, list(named.get("messages") or ()))

    return leave


def rows_rewritten(db: Any, args: Arguments, named: Named, result: object) -> None:
    conversation = conversations.known(argument(args, named, 0, "session_id"))
    if conversation is not None:
        conversation.rewritten()


def session_ended(db: Any, args: Arguments, named: Named, result: object) -> None:
    conversation = conversations.known(argument(args, named, 0, "session_id"))
    if conversation is not None:
        ended = argument(args, named, 0, "session_id")
        conversation.ended(ended, argument(args, named, 1, "end_reason"))


def session_reopened(db: Any, args: Arguments, named: Named, result: object) -> None:
    conversation = conversations.known(argument(args, named, 0, "session_id"))
    if conversation is not None:
        conversation.session._announce()


def hook_fires(manager: Any, args: Arguments, named: Named) -> Leave | None:
    """A signal's handler may raise in the middle of it, and the process be killed: then it has
    begun and not ended."""
    name = argument(args, named, 0, "hook_name")
    conversation = conversations.known(named.get("session_id"))
    # on_session_end also closes every ordinary turn; that one is not the session's end.
    ends_it = name != "on_session_end" or named.get("interrupted")
    if conversation is None or name not in _HOOKS or not ends_it:
        return None
    conversation.hook_begins(name)

    def leave(result: object, error: BaseException | None) -> None:
        if error is None:
            conversation.hook_fired(name)

    return leave
