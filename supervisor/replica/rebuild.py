"""Rebuild: what was shipped of a run becomes streams that recovery can finish on any machine. Pure.

Never touches a file, a clock or a database. What is true only of the machine that is gone is left
out: row ids, paths, the interpreter. What was in its state.db before the run began, or was put
there in place of what was said, comes from the rows that were shipped, as messages of the stream
that asked for them. So everything is missing from the state.db here, and is written, but what is
here already: the session may have begun here, and gone on there.

Which row holds which message is known where the agent said so. A row that it stored and did not
live to report has the same words, and is not older than the session's first record in the run.
"""

from __future__ import annotations

from bisect import bisect_left
from difflib import SequenceMatcher

from ...ipc import frames, records
from ...ipc.lightweight import json
from ...ipc.lightweight.dataclass import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Record = dict[str, Any]
    Numbered = list[tuple[int, bytes]]

LOST = "lost"
# In place of a record's number: the rows were read because records had been dropped.
AGAIN = -1
# What a session was made of before its agent rewrote it.
_OF_THE_TRANSCRIPT = ("message", "delta", "tool", "history", "settled", "rewritten")
_CONTENT_AS_JSON = "\x00json:"
_LATE_RESULT = "[The result of this call arrived after the session had been recovered here:]"
_NO_ROWS = "what was said in this session before that run was not replicated"
_NOT_OF_A_MESSAGE = ("id", "session_id", "active")


@dataclass
class Before:
    """What was recovered here of a stream before it went on: its machine came back."""

    first: str = ""
    """The session that records without a name are about."""
    sessions: set[str] = field(default_factory=set)
    replies: dict[str, str] = field(default_factory=dict)
    """By session: the beginning of the reply in progress, which was stored."""
    answered: set[str] = field(default_factory=set)
    """Calls that were given an answer in place of the one that had not come yet."""


@dataclass
class Here:
    """What takes the place of the lost machine's own."""

    hello: Callable[[Record], Record] = dict
    """The hello of a process as it would be said here."""
    trouble: str = ""
    """What the report of every session is to say."""
    present: Callable[[str], list[Record]] = lambda session: []
    """The rows of a session that are here already: an earlier part of it, most often."""
    without: set[str] = field(default_factory=set)
    """Sessions that a later run went on with: they are rebuilt from that one."""
    before: dict[str, Before] = field(default_factory=dict)
    """By stream, if only what follows is to be rebuilt: what is here already."""


@dataclass
class _Rows:
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
class _Session:
    """What all streams of the run say of a session."""

    id: str
    row: Record = field(default_factory=dict)
    readings: list[_Rows] = field(default_factory=list)
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
    base: _Rows | None = None
    cut: dict[str, int] = field(default_factory=dict)
    """By stream: what was said up to this record is in the rows, in another form."""

    def rows_in(self, stream: str) -> list[Record]:
        """The rows that become messages of this stream."""
        placed = [rows for where in (self.before, self.behind) for (name, _), rows in where.items()
                  if name == stream]  # fmt: skip
        if self.base is not None and self.base.stream == stream:
            placed.append(self.first)
        return [row for rows in placed for row in rows]


def rebuild(shipped: dict[str, list[bytes]], here: Here) -> dict[str, Numbered]:
    """`shipped`: the frames of each stream of the run, by position. The streams to recover."""
    streams = {
        name: _Stream(name, frames_of, here.before.get(name)) for name, frames_of in shipped.items()
    }
    sessions: dict[str, _Session] = {}
    for stream in streams.values():
        stream.listen(sessions)
    for session in sessions.values():
        _place_rows(session, here)
    return {name: stream.rebuilt(sessions, here) for name, stream in streams.items()}


def without_records(shipped: Iterable[bytes]) -> list[bytes]:
    """Of a stream, what makes what follows understood: hello, peer and the sessions' own rows."""
    wanted = ("hello", "peer", "row")
    handshakes = (frame for frame in shipped if frames.number_of(frame) == frames.HANDSHAKE)
    return [f for f in handshakes if (_understood(f) or {}).get("kind") in wanted]


def first_session(shipped: Iterable[bytes]) -> str:
    """The session that the records of a stream without a name are about; empty: not known yet."""
    return next((name for *_, name in _Stream("", shipped, None).records() if name), "")


def hello_of(shipped: Iterable[bytes]) -> Record:
    """The hello of a stream; empty: there is none."""
    for frame in shipped:
        if frames.number_of(frame) == frames.HANDSHAKE:
            record = _understood(frame)
            if record is not None and record["kind"] == "hello":
                return record
    return {}


# -- what was shipped ----------------------------------------------------------------------------


class _Stream:
    def __init__(self, name: str, shipped: Iterable[bytes], before: Before | None) -> None:
        self.name = name
        self._before = before or Before()
        self._goes_on = before is not None
        self.handshakes: list[Record] = []
        numbered: dict[int, bytes] = {}
        for frame in shipped:
            seq = frames.number_of(frame)
            if seq != frames.HANDSHAKE:
                numbered.setdefault(seq, frame)
            elif (record := _understood(frame)) is not None:
                self.handshakes.append(record)
        self.numbered = sorted(numbered.items())

    def records(self) -> Iterable[tuple[int, bytes, Record, str]]:
        """Number, payload, record, and the session that it is about; empty: none."""
        first = self._before.first
        for seq, frame in self.numbered:
            record = _understood(frame) or {}
            named = record.get("session") or first
            name = named if isinstance(named, str) else ""
            first = first or name
            yield seq, frames.payload_of(frame), record, name

    def listen(self, sessions: dict[str, _Session]) -> None:
        for record in self.handshakes:
            name = record.get("session")
            if not isinstance(name, str):
                continue
            session = sessions.setdefault(name, _Session(name))
            if record["kind"] == "row" and isinstance(record.get("row"), dict):
                session.row = record["row"]
            elif record["kind"] == "rows":
                _add_rows(session, self.name, record)
        for seq, _, record, name in self.records():
            if name and record:
                self._hear(sessions.setdefault(name, _Session(name)), seq, record)

    def _hear(self, session: _Session, seq: int, record: Record) -> None:
        kind, at = record["kind"], _time(record.get("at"))
        session.began = min(session.began or at, at or session.began)
        if kind == "message" and isinstance(record.get("message"), dict):
            session.messages.append((self.name, seq, record))
        elif kind == "settled" and isinstance(record.get("uids"), list):
            for uid, row in zip(record["uids"], record.get("rows") or (), strict=False):
                if isinstance(row, int):
                    session.settled[self.name, str(uid)] = row
        elif kind == "rewritten":
            session.rewritten[self.name] = seq
        elif kind == "title":
            session.titled = True

    # -- what becomes of it --------------------------------------------------------------------

    def rebuilt(self, sessions: dict[str, _Session], here: Here) -> Numbered:
        made = _Made()
        hello = next((r for r in self.handshakes if r["kind"] == "hello"), None)
        if hello is not None:
            made.handshake(here.hello(hello))
        made.handshakes += [
            frames.encode(0, records.pack(r)) for r in self.handshakes if r["kind"] == "peer"
        ][-1:]
        met: set[str] = set()
        expected, last_at = 1, 0.0
        if self._goes_on and self.numbered:
            expected = self.numbered[0][0]
        for seq, payload, record, name in self.records():
            made.number += max(0, seq - expected)  # what was lost on the way is still a gap
            expected = seq + 1
            last_at = max(last_at, _time(record.get("at")))
            if name and name in here.without:
                continue
            session = sessions.get(name)
            if session is None or not record:
                made.payload(payload)
                continue
            if name not in met:
                met.add(name)
                self._begin(made, session, record, here)
            self._go_on(made, session, seq, payload, record)
        deaths = [r for r in self.handshakes if r["kind"] == "death"]
        made.handshake(deaths[-1] if deaths else {"kind": "death", "at": last_at, "unseen": LOST})
        return made.all()

    def _begin(self, made: _Made, session: _Session, record: Record, here: Here) -> None:
        """A session comes up in this stream: first what was known of it before."""
        row = session.row
        about = {
            name: row[column]
            for name, column in _ABOUT.items()
            if row.get(column) is not None
        }  # fmt: skip
        at = _time(record.get("at")) or session.began
        times = [_time(one.get("timestamp")) for one in session.rows_in(self.name)]
        at = min([at, *(one for one in times if one)])
        made.record({"kind": "session", "session": session.id, "at": at, **about})
        has_rows = session.base is not None or session.id in self._before.sessions
        for text in (here.trouble, "" if has_rows else _NO_ROWS):
            if text:
                made.record({"kind": "trouble", "session": session.id, "text": text})
        if row.get("title") and not session.titled:
            made.record({"kind": "title", "session": session.id, "title": row["title"], "at": at})
        if self._has_base(session) and not session.cut.get(self.name):
            self._rows(made, session, session.first)

    def _has_base(self, session: _Session) -> bool:
        return session.base is not None and session.base.stream == self.name

    def _go_on(
        self, made: _Made, session: _Session, seq: int, payload: bytes, record: Record
    ) -> None:
        kind, cut = record["kind"], session.cut.get(self.name, 0)
        if self._goes_on and kind in ("message", "tool"):
            changed = self._continued(session.id, record)
            if changed is None:
                return
            if changed is not record:
                record, payload = changed, records.fit(changed)
        dropped = kind in _OF_THE_TRANSCRIPT and seq < cut
        dropped |= kind == "history" and session.base is not None and bool(session.base.messages())
        if not dropped and kind == "message":
            self._rows(made, session, session.before.get((self.name, seq), []))
        if not dropped and kind not in ("settled", "rewritten"):
            if kind == "session":
                local = ("db", "settles", "transcript")
                record = {n: v for n, v in record.items() if n not in local}
                made.record({**record, "session": session.id})
            else:
                made.payload(payload)
        if seq == cut and self._has_base(session):
            self._rows(made, session, session.first)
        if not dropped and kind == "message":
            self._rows(made, session, session.behind.get((self.name, seq), []))

    def _continued(self, session: str, record: Record) -> Record | None:
        """A record behind what is here already, without what is in it: the beginning of a reply is
        stored, and so is an answer to a call that had none. None: nothing is left of it."""
        if record["kind"] == "tool":
            return None if record.get("call") in self._before.answered else record
        message = record.get("message")
        if not isinstance(message, dict):
            return record
        content = message.get("content")
        if message.get("role") == "tool" and message.get("tool_call_id") in self._before.answered:
            text = f"{_LATE_RESULT}\n{content if isinstance(content, str) else json.dumps(content)}"
            return {**record, "message": {"role": "assistant", "content": text}}
        begun = self._before.replies.pop(session, "")
        if message.get("role") != "assistant" or not isinstance(content, str) or not begun:
            return record
        rest = content.removeprefix(begun)
        if not rest.strip() and not message.get("tool_calls"):
            return None
        return {**record, "message": {**message, "content": rest}}

    def _rows(self, made: _Made, session: _Session, rows: list[Record]) -> None:
        for row in rows:
            made.record(
                {
                    "kind": "message",
                    "session": session.id,
                    "uid": f"row-{row.get('id')}",
                    "at": _time(row.get("timestamp")),
                    "message": _message(row),
                }
            )


class _Made:
    """The frames of a rebuilt stream."""

    def __init__(self) -> None:
        self.number = 0
        self.handshakes: list[bytes] = []
        self._numbered: Numbered = []

    def handshake(self, record: Record) -> None:
        self.handshakes.append(frames.encode(frames.HANDSHAKE, records.pack(record)))

    def record(self, record: Record) -> None:
        self.payload(records.fit(record))

    def payload(self, payload: bytes) -> None:
        self.number += 1
        self._numbered.append((self.number, frames.encode(self.number, payload)))

    def all(self) -> Numbered:
        return [(frames.HANDSHAKE, frame) for frame in self.handshakes] + self._numbered


# -- rows ----------------------------------------------------------------------------------------

_ABOUT = {
    "source": "source", "user_id": "user_id", "model": "model", "model_config": "model_config",
    "system_prompt": "system_prompt", "parent": "parent_session_id", "started": "started_at",
    "cwd": "cwd",
}  # fmt: skip


def _add_rows(session: _Session, stream: str, record: Record) -> None:
    after, part, of = record.get("after"), record.get("part"), record.get("of")
    messages = record.get("messages")
    if not all(isinstance(n, int) for n in (after, part, of)) or not isinstance(messages, list):
        return
    if part == 1:
        session.readings.append(_Rows(stream, int(after or 0), int(of or 0)))
    if session.readings and session.readings[-1].stream == stream:
        rows = [row for row in messages if isinstance(row, dict)]
        session.readings[-1].parts[int(part or 0)] = rows


def _place_rows(session: _Session, here: Here) -> None:
    """Decide which reading of the rows counts, and where among the messages its rows belong."""
    whole = [one for one in session.readings if one.complete]
    # Read again after the agent rewrote them, or after records were dropped: the last one counts.
    again = [one for one in whole if one.after in (AGAIN, session.rewritten.get(one.stream))]
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
        words = [_words(_message(rows[n])) for n in unmatched]
        present = [_words(_message(row)) for row in here.present(session.id)]
        there = {unmatched[mine] for mine, _ in _aligned(words, present)}
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
    session: _Session, rows: list[Record], said: list[tuple[str, int, Record]]
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
        (index, _words(_message(row)))
        for index, row in enumerate(rows)
        if index not in found and _time(row.get("timestamp")) >= session.began
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
    return [(one.a + n, one.b + n) for one in blocks for n in range(one.size)]


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


def _message(row: Record) -> Record:
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


def _understood(frame: bytes) -> Record | None:
    try:
        return records.unpack(frames.payload_of(frame))
    except records.BadRecord:
        return None


def _time(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e12 else 0.0
