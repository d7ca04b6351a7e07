"""Reconciliation: a session as it was told, against its rows, gives what to insert. Pure.

Never touches the database. What the agent wrote itself stays as it is; what it did not
write is inserted behind it, in order; nothing is inserted twice.

Which rows can be what was told? With a watermark (the agent said what it wrote), those
above it; else those that are not older than the session's first word in this process,
because an earlier conversation may well have held the same words. They are matched in
order: the agent writes in order, or not at all. Only the answers to parallel calls may
stand in another order than they were told in.
"""

from __future__ import annotations

from ..plain import dataclass
from ..text import storable
from .stored import said, uid_of_answer
from .told import Call, Item, Message, Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESULT_UNKNOWN = (
    "[Recovered after a crash: the agent died while this call was running, so whether it "
    "took effect is unknown. Check the current state before running it again.]"
)
NEVER_STARTED = (
    "[Recovered after a crash: the agent died before this call was started. It did not run.]"
)
# The agent lives, and the conversation has gone on.
NOT_REPORTED = (
    "[No result of this call was reported before the conversation went on, so whether it took "
    "effect is unknown. Check the current state before running it again.]"
)
# The agent's clock and the database's are one, but a row may carry the moment its message
# was made, a little before the session was announced.
_CLOCK_SLACK = 2.0


@dataclass
class Row:
    """A row of `messages`, with its content and calls as the agent held them."""

    id: int
    role: str
    content: Any
    tool_call_id: str | None
    call_ids: tuple[str, ...]
    timestamp: float


@dataclass
class Insert:
    uid: str
    message: Message
    at: float
    kind: str
    late: bool
    """A later message is in the database already: this one can only go behind it."""
    said: tuple[int, int] = (0, 0)
    """The numbers of the first and the last record that say it."""


@dataclass
class Counts:
    """What was inserted, for the report."""

    messages: int = 0
    partial_characters: int = 0
    calls_unknown: int = 0
    calls_never_started: int = 0
    out_of_order: int = 0

    def add(self, insert: Insert) -> None:
        self.messages += 1
        self.out_of_order += insert.late
        self.calls_unknown += insert.kind == "unknown"
        self.calls_never_started += insert.kind == "never started"
        if insert.kind == "partial":
            self.partial_characters += len(insert.message["content"])


@dataclass
class _Wanted:
    """A message that ought to be in the database, and how it came to be."""

    item: Item
    kind: str  # "told", "partial", "unknown", "never started", "result"


@dataclass
class Compared:
    inserts: list[Insert]
    there: dict[str, int]
    """Of the messages that the rows hold already, as far as that had to be found out: the uid,
    and the row."""


def plan(session: Session, rows: list[Row], died_at: float) -> list[Insert]:
    """What is missing from `rows`."""
    return compare(session, rows, died_at, fresh=not rows).inserts


def compare(
    session: Session, rows: list[Row], at: float, *, fresh: bool, living: bool = False
) -> Compared:
    """What is missing from `rows`, and what is there. Of a living agent only what is complete.

    `fresh`: nothing was stored of it before, so the history that it told of is wanted, too.
    """
    wanted = _wanted(session, at, fresh=fresh, living=living)
    items = [want.item for want in wanted]
    start = first_open(items)
    beside = _beside(session, items[:start], items[start:], rows)
    wanted, items = wanted[start:], items[start:]
    # What is there for certain is matched, too: a row can be only one message.
    there = _matched(wanted, beside + _candidates(session, rows))
    last_there = max(there, default=-1)
    certain = _behind([item.settled for item in items], items)
    inserts: list[Insert] = []
    for index, want in enumerate(wanted):
        item = want.item
        late = index < last_there
        if index < certain or index in there or item.settled or item.outdated:
            continue
        # What we would make up ourselves, the agent went on without: it would be wrong there.
        if late and want.kind != "told":
            continue
        inserts.append(Insert(item.uid, item.message, item.at or at, want.kind, late, said(item)))
    return Compared(inserts, {items[index].uid: row for index, row in there.items()})


# -- what ought to be there ----------------------------------------------------------------


def _wanted(
    session: Session, died_at: float, *, fresh: bool, living: bool = False
) -> list[_Wanted]:
    """The transcript: what was told, every open call answered, the unfinished reply last.

    Of a living agent, the part that is complete: up to what follows a call that may yet be
    answered. Once the user has spoken again, nobody waits for that answer any more.
    """
    told = [item for item in session.items if item.live]
    if fresh:
        # Only where the agent has stored nothing at all does its history have to be.
        history = _without_overlap([item for item in session.items if not item.live], told)
        told = [item for item in session.items if item.live or item in history]
    open_calls: dict[int, list[Call]] = {}
    for call in session.calls.values():
        open_calls.setdefault(id(call.item), []).append(call)
    wanted: list[_Wanted] = []
    waiting: list[Call] = []
    asked = max((n for n, item in enumerate(told) if item.message["role"] == "user"), default=-1)
    for index, item in enumerate(told):
        if item.message["role"] != "tool" and waiting:
            if living and index > asked:
                return wanted
            wanted += [_answer(session, call, died_at, living=living) for call in waiting]
            waiting = []
        wanted.append(_Wanted(item, "partial" if item.partial else "told"))
        waiting += open_calls.pop(id(item), [])
    if living:
        return wanted
    wanted += [_answer(session, call, died_at) for call in waiting]
    for calls in open_calls.values():  # made in a session that this one continues
        wanted += [_answer(session, call, died_at) for call in calls]
    message = session.reply.as_message() if session.reply is not None else None
    if message is not None:
        wanted.append(_Wanted(Item("partial-reply", message, died_at), "partial"))
    return wanted


def _answer(session: Session, call: Call, died_at: float, *, living: bool = False) -> _Wanted:
    """A tool message for a call that has none."""
    message: Message = {"role": "tool", "tool_call_id": call.id, "tool_name": call.name}
    if call.result is not None:
        kind, message["content"] = "result", call.result
    elif living:
        kind, message["content"] = "unknown", NOT_REPORTED
        message["effect_disposition"] = "unknown"
    elif session.announces_tools and not call.started:
        kind, message["content"] = "never started", NEVER_STARTED
        message["effect_disposition"] = "none"
    else:
        kind, message["content"] = "unknown", RESULT_UNKNOWN
        message["effect_disposition"] = "unknown"
    uid = uid_of_answer(call.id)
    return _Wanted(Item(uid, message, died_at, settled=uid in session.stored), kind)


def _without_overlap(history: list[Item], live: list[Item]) -> list[Item]:
    """History without its end where the live messages say the same again."""
    for size in range(min(len(history), len(live)), 0, -1):
        tail = history[-size:]
        if all(_same(a.message, b.message) for a, b in zip(tail, live, strict=False)):
            return history[:-size]
    return history


# -- what is there -------------------------------------------------------------------------


def first_open(items: list[Item]) -> int:
    """Where the part begins of which it is not known that the database holds it, and where."""
    return _behind([item.anchored for item in items], items)


def _behind(known: list[bool], items: list[Item]) -> int:
    """The place behind the last that is known.

    Answers to parallel calls are told as they come and stored as they were asked for: if the
    last known message is one, those beside it may still be missing.
    """
    last = max((index for index, is_known in enumerate(known) if is_known), default=-1)
    start = last + 1
    while start and items[start - 1].message["role"] == "tool":
        start -= 1
    return last + 1 if all(known[start : last + 1]) else start


def _candidates(session: Session, rows: list[Row]) -> list[Row]:
    if session.watermark:
        rows = [row for row in rows if row.id > session.watermark]
    else:
        # Not the first word if the clock was set back since.
        told = [item.at for item in session.items if item.live and item.at]
        began = min([session.began, *told])
        rows = [row for row in rows if row.timestamp >= began - _CLOCK_SLACK]
    # Rows that the agent rewrote hold nothing that it told later, whatever their words.
    return [row for row in rows if row.timestamp > session.rewritten_at]


def _beside(session: Session, before: list[Item], items: list[Item], rows: list[Row]) -> list[Row]:
    """Answers to parallel calls that may be there below the watermark, because the agent said
    where another one of them is, and of these nothing."""
    if not any(item.anchored for item in items):
        return []
    lowest = max((item.row or 0 for item in before), default=0)
    since = max(items[0].at - _CLOCK_SLACK, session.rewritten_at)
    return [
        row
        for row in rows
        if row.role == "tool" and lowest < row.id <= session.watermark and row.timestamp > since
    ]


def _matched(wanted: list[_Wanted], rows: list[Row]) -> dict[int, int]:
    """Which of the wanted messages the rows hold, and which row that is, both in order."""
    there: dict[int, int] = {}
    left: list[Row] = []
    position = 0
    for row in rows:
        for index in range(position, len(wanted)):
            if _is(wanted[index], row):
                there[index] = row.id
                position = index + 1
                break
        else:
            left.append(row)
    # What is there out of order is there all the same.
    for row in left:
        for index in range(position):
            if index not in there and _is(wanted[index], row):
                there[index] = row.id
                break
    return there


def _is(want: _Wanted, row: Row) -> bool:
    message = want.item.message
    if message["role"] != row.role:
        return False
    if row.role == "tool" and (message.get("tool_call_id") or row.tool_call_id):
        return message.get("tool_call_id") == row.tool_call_id
    ours, theirs = plain(message.get("content")), plain(row.content)
    if want.kind == "partial":
        # The agent may have stored the whole of it, or its own idea of the partial.
        return theirs.startswith(ours) or (theirs != "" and ours.startswith(theirs))
    calls = call_ids(message.get("tool_calls"))
    if calls or row.call_ids:
        return calls == row.call_ids
    return ours == theirs


def _same(a: Message, b: Message) -> bool:
    return (
        a.get("role") == b.get("role")
        and plain(a.get("content")) == plain(b.get("content"))
        and call_ids(a.get("tool_calls")) == call_ids(b.get("tool_calls"))
        and a.get("tool_call_id") == b.get("tool_call_id")
    )


def call_ids(calls: object) -> tuple[str, ...]:
    if not isinstance(calls, list):
        return ()
    return tuple(str(call.get("id")) for call in calls if isinstance(call, dict))


def plain(content: object) -> str:
    """Content as text, the way two stores of it can be compared."""
    if isinstance(content, list):
        parts = [
            part.get("text") or "" if isinstance(part, dict) else str(part) for part in content
        ]
        content = "\n".join(part for part in parts if part)
    text = content if isinstance(content, str) else "" if content is None else str(content)
    return storable(text).strip()
