"""Where the rows of a lost state.db belong among the messages that were shipped. Pure.

Which row holds which message is known where the agent said so. A row that it stored and did not
live to report has the same words, and is not older than the session's first record in the run.

The rows of a session are read when it begins, and again when its agent has rewritten them or
records were dropped. One of these readings counts: its rows that no message stands for are placed
between the messages.
"""

from __future__ import annotations

from bisect import bisect_left
from difflib import SequenceMatcher

from ...ipc.lightweight import json
from ...ipc.lightweight.dataclass import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Record = dict[str, Any]

# In place of a record's number: the rows were read because records had been dropped.
AGAIN = -1
_CONTENT_AS_JSON = "\x00json:"
_NOT_OF_A_MESSAGE = ("id", "session_id", "active")


@dataclass
class Rows:
    """The rows of a session as they were read once."""

    stream: str
    after: int
    of: int
    parts: dict[int, list[Record]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.parts) == self.of

    def messages(self) -> list[Record]:
        return [row for number in sorted(self.parts) for row in self.parts[number]]


@dataclass
class ShippedSession:
    """What all streams of the run say of a session."""

    id: str
    row: Record = field(default_factory=dict)
    readings: list[Rows] = field(default_factory=list)
    began: float = 0.0
    titled: bool = False
    rewritten: dict[str, int] = field(default_factory=dict)
    """By stream: the number of the last record that says so."""
    messages: list[tuple[str, int, Record]] = field(default_factory=list)
    settled: dict[tuple[str, str], int] = field(default_factory=dict)
    """Stream and uid to the row."""
    first: list[Record] = field(default_factory=list)
    before: dict[tuple[str, int], list[Record]] = field(default_factory=dict)
    behind: dict[tuple[str, int], list[Record]] = field(default_factory=dict)
    base: Rows | None = None
    cut: dict[str, int] = field(default_factory=dict)
    """By stream: what was said up to this record is in the rows, in another form."""

    def rows_in(self, stream: str) -> list[Record]:
        """The rows that become messages of this stream."""
        placed = [rows for where in (self.before, self.behind) for (name, _), rows in where.items()
                  if name == stream]  # fmt: skip
        if self.base is not None and self.base.stream == stream:
            placed.append(self.first)
        return [row for rows in placed for row in rows]


def add_rows(session: ShippedSession, stream: str, record: Record) -> None:
    after, part, of = record.get("after"), record.get("part"), record.get("of")
    messages = record.get("messages")
    if not all(isinstance(n, int) for n in (after, part, of)) or not isinstance(messages, list):
        return
    if part == 1:
        session.readings.append(Rows(stream, int(after or 0), int(of or 0)))
    if session.readings and session.readings[-1].stream == stream:
        rows = [row for row in messages if isinstance(row, dict)]
        session.readings[-1].parts[int(part or 0)] = rows


def place_rows(session: ShippedSession, present: Callable[[str], list[Record]]) -> None:
    """Decide which reading of the rows counts, and where among the messages its rows belong.
    `present`: the rows of a session that are here already."""
    whole = [reading for reading in session.readings if reading.complete]
    # Read again after the agent rewrote them, or after records were dropped: the last one counts.
    again = [
        reading
        for reading in whole
        if reading.after in (AGAIN, session.rewritten.get(reading.stream))
    ]
    base = again[-1] if again else whole[0] if whole else None
    if base is None:
        return
    session.base = base
    if again:
        session.cut[base.stream] = session.rewritten.get(base.stream, 0)
    cut = session.cut.get(base.stream, 0)
    said = [m for m in session.messages if m[0] != base.stream or m[1] > cut]
    rows = base.messages()
    matched = _matched(session, rows, said)
    unmatched = [n for n in range(len(rows)) if n not in matched]
    if unmatched:
        words = [_words(message_of(rows[n])) for n in unmatched]
        already = [_words(message_of(row)) for row in present(session.id)]
        there = {unmatched[mine] for mine, _ in _aligned(words, already)}
        rows = [row for n, row in enumerate(rows) if n not in there]
        matched = _shifted(matched, there)
    waiting: list[Record] = []
    last: tuple[str, int] | None = None
    for index, row in enumerate(rows):
        if index not in matched:
            waiting.append(row)
            continue
        last = matched[index]
        session.before.setdefault(last, []).extend(waiting)
        waiting = []
    if last is None:
        session.first = waiting
    else:
        session.behind[last] = waiting


def _matched(
    session: ShippedSession, rows: list[Record], said: list[tuple[str, int, Record]]
) -> dict[int, tuple[str, int]]:
    """Which rows are messages that the streams have as well: by the row that the agent named, else
    by their words."""
    by_row = {
        session.settled[stream, str(record.get("uid"))]: (stream, seq)
        for stream, seq, record in said
        if (stream, str(record.get("uid"))) in session.settled
    }
    found = {n: by_row[row["id"]] for n, row in enumerate(rows) if row.get("id") in by_row}
    taken = set(found.values())
    theirs = [
        ((stream, seq), _words(record["message"]))
        for stream, seq, record in said
        if (stream, seq) not in taken
    ]
    ours = [
        (index, _words(message_of(row)))
        for index, row in enumerate(rows)
        if index not in found and time_of(row.get("timestamp")) >= session.began
    ]
    again = session.base is not None and session.base.after == AGAIN
    pairs = _aligned if again else _overlap
    for mine, other in pairs([words for _, words in ours], [words for _, words in theirs]):
        found[ours[mine][0]] = theirs[other][0]
    return found


def _shifted(matched: dict[int, tuple[str, int]], removed: set[int]) -> dict[int, tuple[str, int]]:
    """The same with other indexes: some rows were removed from the list."""
    gone = sorted(removed)
    return {index - bisect_left(gone, index): place for index, place in matched.items()}


def _overlap(ours: list[str], theirs: list[str]) -> list[tuple[int, int]]:
    """The rows were read when a session began: at most the last of them are its first messages."""
    for size in range(min(len(ours), len(theirs)), 0, -1):
        if ours[-size:] == theirs[:size]:
            return [(len(ours) - size + n, n) for n in range(size)]
    return []


def _aligned(ours: list[str], theirs: list[str]) -> list[tuple[int, int]]:
    """What both have, in order."""
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return [(block.a + n, block.b + n) for block in blocks for n in range(block.size)]


def _words(message: Record) -> str:
    calls = message.get("tool_calls")
    ids = [
        str(call.get("id"))
        for call in (calls if isinstance(calls, list) else ())
        if isinstance(call, dict)
    ]
    content = message.get("content")
    return json.dumps(
        [message.get("role"), content or None, message.get("tool_call_id"), ids or None]
    )


def message_of(row: Record) -> Record:
    """A row as the message that it was."""
    message = {n: v for n, v in row.items() if n not in _NOT_OF_A_MESSAGE and v is not None}
    content = message.get("content")
    if isinstance(content, str) and content.startswith(_CONTENT_AS_JSON):
        message["content"] = _from_json(content[len(_CONTENT_AS_JSON) :], content)
    if isinstance(message.get("tool_calls"), str):
        message["tool_calls"] = _from_json(message["tool_calls"], None)
    return message


def _from_json(text: str, otherwise: object) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def time_of(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0.0
