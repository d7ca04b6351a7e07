"""What the supervisor itself stored of a living agent's messages: which, where, in which form.

Never touches a file or a database: checkpoint.py does.

A message is known by its uid, and by the numbers of the first and the last record that said it
when it was stored. Said again since, it is another one, and the row that we wrote is brought up
to date. Rows that others wrote stay as they are.
"""

from __future__ import annotations

from ..plain import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .told import Item, Record, Session

# Messages that the journal holds no more and that may yet be said again under their old uid.
KEPT = 1000
_MOST_IN_A_RECORD = 50_000


@dataclass
class Stored:
    row: int
    first: int
    last: int
    ours: bool
    """False: somebody else had written it, and we found it."""


def uid_of_answer(call: str) -> str:
    """The uid of an answer that we wrote to a call that had none."""
    return f"answer-{call}"


def said(item: Item) -> tuple[int, int]:
    """The numbers of the first and the last record that say this message; 0 if nobody did."""
    return (item.made_of[0], max(item.made_of)) if item.made_of else (0, 0)


def as_rows(stored: dict[str, Stored]) -> list[list[object]]:
    return [[uid, one.row, one.first, one.last, one.ours] for uid, one in stored.items()]


def from_rows(rows: Iterable[object]) -> dict[str, Stored]:
    found = {}
    for row in rows:
        if isinstance(row, list) and len(row) == 5 and isinstance(row[0], str):
            uid, at, first, last, ours = row
            found[uid] = Stored(int(at), int(first), int(last), bool(ours))
    return found


def records_of(session: Session) -> list[Record]:
    """What to write down beside the journal: for every message that is still in it, and for the
    last of the others."""
    there = {item.uid for item in session.said_items()}
    gone = [uid for uid in session.stored if uid not in there]
    dropped = set(gone[:-KEPT])
    rows = as_rows({uid: one for uid, one in session.stored.items() if uid not in dropped})
    return [
        {"kind": "stored", "session": session.id, "rows": rows[start : start + _MOST_IN_A_RECORD]}
        for start in range(0, len(rows), _MOST_IN_A_RECORD)
    ]


def mark(session: Session) -> None:
    """Tell the session's messages apart: those in the database as they are now, those that are
    there in an earlier form, and the rest."""
    for item in session.said_items():
        known = session.stored.get(item.uid)
        if known is None and item.message["role"] == "tool":
            # The answer to a call that we had given up on.
            known = session.stored.get(uid_of_answer(str(item.message.get("tool_call_id"))))
        if known is not None:
            item.row = known.row
            item.settled = not known.ours or known.last >= said(item)[1]
            item.outdated = not item.settled
    rows = (one.row for one in session.stored.values())
    session.watermark = max(session.watermark, max(rows, default=0))
