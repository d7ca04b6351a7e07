"""The messages of a session that the supervisor stored itself: which, in which row, in which form.

Never touches a file or a database: recovery/checkpoint.py and statedb do.

A message is identified by its uid, and by the numbers of the first and the last record that it came
from when it was stored. If it was sent again since, it has changed, and the row that we wrote is
updated. Rows that others wrote stay as they are.
"""

from __future__ import annotations

from .stream import Stored

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .stream import Item, Record, Session

# Messages that have left the journal and may still be sent again under their old uid.
KEPT = 1000
_MOST_IN_A_RECORD = 50_000


def uid_of_answer(call: str) -> str:
    """The uid of an answer that we wrote to a call that had none."""
    return f"answer-{call}"


def record_span(item: Item) -> tuple[int, int]:
    """The numbers of the first and the last record that a message comes from; 0, 0: of none."""
    return (item.records[0], max(item.records)) if item.records else (0, 0)


def as_rows(stored: dict[str, Stored]) -> list[list[object]]:
    return [[uid, known.row, known.first, known.last, known.ours] for uid, known in stored.items()]


def from_rows(rows: Iterable[object]) -> dict[str, Stored]:
    """Reads what `as_rows` made; malformed entries are skipped."""
    stored = {}
    for row in rows:
        if isinstance(row, list) and len(row) == 5 and isinstance(row[0], str):
            uid, at, first, last, ours = row
            if all(isinstance(number, int) for number in (at, first, last)):
                stored[uid] = Stored(at, first, last, bool(ours))
    return stored


def records_of(session: Session) -> list[Record]:
    """What to write beside the journal: every message that is still in the journal, and the last
    of the others."""
    present = {item.uid for item in session.all_items()}
    gone = [uid for uid in session.stored if uid not in present]
    forgotten = set(gone[:-KEPT])
    rows = as_rows({uid: known for uid, known in session.stored.items() if uid not in forgotten})
    about = {"kind": "stored", "session": session.id, "known": session.facts()}
    return [
        {**about, "rows": rows[start : start + _MOST_IN_A_RECORD]}
        for start in range(0, len(rows), _MOST_IN_A_RECORD)
    ]


def mark(session: Session) -> None:
    """Mark the session's messages that are in the database as they are now, and those that are
    there in an earlier form."""
    for item in session.all_items():
        known = session.stored.get(item.uid)
        if known is None and item.message["role"] == "tool":
            # The answer to a call that we had given up on.
            known = session.stored.get(uid_of_answer(str(item.message.get("tool_call_id"))))
        if known is not None:
            item.row = known.row
            item.settled = not known.ours or known.last >= record_span(item)[1]
            item.outdated = not item.settled
    rows = (known.row for known in session.stored.values())
    session.watermark = max(session.watermark, max(rows, default=0))
