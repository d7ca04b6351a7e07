"""Reconciliation: compares a session of a stream with its rows and finds what to insert. Pure.

Never touches the database. Rows that the agent wrote itself stay as they are; messages that it did
not write are inserted after them, in order; nothing is inserted twice.

Which rows can hold the messages of a stream? Not those that are known to be another stream's: the
caller has removed them. Of the rest, with a watermark (the agent said which rows it wrote), those
above it; else those that are not older than the session's first record in this process, because
an earlier conversation, of which nobody kept a note, may have held the same text. They are matched
in order: an agent writes in order, or not at all. Only the answers to parallel calls may be stored
in another order than they were said in.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import dataclass, field
from ..model.stored import record_span, uid_of_answer
from ..model.stream import Call, Item, Message, Session
from ..model.text import storable

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
# The agent is alive, and the conversation has continued.
NOT_REPORTED = (
    "[No result of this call was reported before the conversation went on, so whether it took "
    "effect is unknown. Check the current state before running it again.]"
)
# The agent's clock and the database's are the same, but a row may carry the time at which its
# message was made, a little before the session was announced.
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
    records: tuple[int, int] = (0, 0)
    """The numbers of the first and the last record that it comes from."""
    place: int = 0
    """Where it belongs among the inserts of other streams; never before one of its own stream."""


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
    """A message that should be in the database, and where it comes from."""

    item: Item
    kind: str  # "message", "partial", "unknown", "never started", "result"
    place: int = 0


@dataclass
class Compared:
    inserts: list[Insert] = field(default_factory=list)
    there: dict[str, int] = field(default_factory=dict)
    """The messages that the rows hold already, as far as that had to be found out: uid to row."""
    open_at: int = 0
    """The place from which on a living stream is not complete: a reply grows there, or a call
    waits for its answer. 0: there is no such place."""


def plan(session: Session, rows: list[Row], died_at: float) -> list[Insert]:
    """What is missing from `rows`."""
    return compare(session, rows, died_at, fresh=not rows).inserts


def compare(
    session: Session, rows: list[Row], at: float, *, fresh: bool, living: bool = False
) -> Compared:
    """What is missing from `rows`, and what is there. Of a living agent only what is complete.

    `fresh`: nothing was stored of the session before, so the history that it reported is wanted.
    """
    wanted, open_at = _wanted(session, at, fresh=fresh, living=living)
    items = [want.item for want in wanted]
    start = first_open(items)
    beside = _beside(session, items[:start], items[start:], rows)
    wanted, items = wanted[start:], items[start:]
    # Messages that are certainly stored are matched as well: a row can hold only one message.
    there = _matched(wanted, beside + _candidates(session, rows))
    last_there = max(there, default=-1)
    certain = _behind([item.settled for item in items], items)
    inserts: list[Insert] = []
    for index, want in enumerate(wanted):
        item = want.item
        late = index < last_there
        if index < certain or index in there or item.settled or item.outdated:
            continue
        # The agent continued without the message that we would make: it would be wrong there.
        if late and want.kind != "message":
            continue
        inserts.append(
            Insert(item.uid, item.message, item.at or at, want.kind, late, record_span(item),
                   want.place)
        )  # fmt: skip
    return Compared(inserts, {items[index].uid: row for index, row in there.items()}, open_at)


# -- what should be stored -----------------------------------------------------------------


def _wanted(
    session: Session, died_at: float, *, fresh: bool, living: bool
) -> tuple[list[_Wanted], int]:
    """The transcript: every message, every open call answered, the unfinished reply last; and the
    place where it is cut off (`Compared.open_at`).

    Of a living agent, the part that is complete: up to what follows a call that may yet be
    answered. Once the user has spoken again, nobody waits for that answer any more.
    """
    items = [item for item in session.items if item.live]
    if fresh:
        # Only where the agent has stored nothing at all is its history to be stored.
        history = _without_overlap([item for item in session.items if not item.live], items)
        items = [item for item in session.items if item.live or item in history]
    open_calls: dict[int, list[Call]] = {}
    for call in session.calls.values():
        open_calls.setdefault(id(call.item), []).append(call)
    wanted: list[_Wanted] = []
    waiting: list[Call] = []
    asked = max((n for n, item in enumerate(items) if item.message["role"] == "user"), default=-1)
    reply = session.reply.as_message() if session.reply is not None else None
    open_at = session.reply.place if session.reply is not None and reply is not None else 0
    for index, item in enumerate(items):
        if item.message["role"] != "tool" and waiting:
            if living and index > asked:
                open_at = item.place
                break
            wanted += [_answer(session, call, died_at, living=living) for call in waiting]
            waiting = []
        wanted.append(_Wanted(item, "partial" if item.partial else "message"))
        waiting += open_calls.pop(id(item), [])
    if not living:
        wanted += [_answer(session, call, died_at) for call in waiting]
        for calls in open_calls.values():  # made in a session that this one continues
            wanted += [_answer(session, call, died_at) for call in calls]
        if session.reply is not None and reply is not None:
            wanted.append(_Wanted(_made_up(session, "partial-reply", reply, died_at), "partial"))
            wanted[-1].item.place = session.reply.place
    place = 0
    for want in wanted:
        place = want.place = max(place, want.item.place)
    return wanted, open_at


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
    return _Wanted(_made_up(session, uid_of_answer(call.id), message, died_at), kind)


def _made_up(session: Session, uid: str, message: Message, at: float) -> Item:
    """A message that we make. It has no record, so only its uid shows that it is stored."""
    return Item(uid, message, at, settled=uid in session.stored)


def _without_overlap(history: list[Item], live: list[Item]) -> list[Item]:
    """History without its end where the live messages say the same again."""
    for size in range(min(len(history), len(live)), 0, -1):
        tail = history[-size:]
        if all(_same(a.message, b.message) for a, b in zip(tail, live, strict=False)):
            return history[:-size]
    return history


# -- what is stored ------------------------------------------------------------------------


def first_open(items: list[Item]) -> int:
    """The index of the first item of which it is not known that, and where, it is stored."""
    return _behind([item.anchored for item in items], items)


def _behind(known: list[bool], items: list[Item]) -> int:
    """The index behind the last item that is known.

    Answers to parallel calls are said as they come and stored as they were asked for: if the last
    known message is one, those beside it may still be missing.
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
        # The first record is not the earliest if the clock was set back since.
        said_at = [item.at for item in session.items if item.live and item.at]
        began = min([session.began, *said_at])
        rows = [row for row in rows if row.timestamp >= began - _CLOCK_SLACK]
    # Rows that the agent rewrote hold nothing that it said later, whatever their text.
    return [row for row in rows if row.timestamp > session.rewritten_at]


def _beside(session: Session, before: list[Item], items: list[Item], rows: list[Row]) -> list[Row]:
    """Answers to parallel calls that may be there below the watermark: the agent said where
    another one of them is, and nothing of these."""
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
    """Which of the wanted messages the rows hold: index to row id, both in order."""
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
    """The ids of tool calls; what is no call is passed over."""
    if not isinstance(calls, list):
        return ()
    return tuple(str(call.get("id")) for call in calls if isinstance(call, dict))


def plain(content: object) -> str:
    """Content as text, the way two stores of it can be compared."""
    if isinstance(content, list):
        parts = [
            str(part.get("text") or "") if isinstance(part, dict) else str(part) for part in content
        ]
        content = "\n".join(part for part in parts if part)
    text = content if isinstance(content, str) else "" if content is None else str(content)
    return storable(text).strip()
