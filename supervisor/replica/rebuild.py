"""Rebuild: what was shipped of a run becomes streams that recovery can finish on any machine. Pure.

Never touches a file, a clock or a database. What is true only of the machine that is gone is left
out: row ids, paths, the interpreter. What was in its state.db before the run began, or was put
there in place of what was said, comes from the rows that were shipped, as messages of the stream
that asked for them. So everything is missing from the state.db here, and is written, but what is
here already: the session may have begun here, and gone on there.
"""

from __future__ import annotations

from ...ipc import frames, records
from ...ipc.lightweight import json
from ...ipc.lightweight.dataclass import dataclass, field
from .placing import ShippedSession, add_rows, message_of, place_rows, time_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Record = dict[str, Any]
    Numbered = list[tuple[int, bytes]]

LOST = "lost"
# What a session was made of before its agent rewrote it.
_OF_THE_TRANSCRIPT = ("message", "delta", "tool", "history", "settled", "rewritten")
_LATE_RESULT = "[The result of this call arrived after the session had been recovered here:]"
_NO_ROWS = "what was said in this session before that run was not replicated"
# What is announced of a session, and the column that has it.
_ABOUT = {
    "source": "source", "user_id": "user_id", "model": "model", "model_config": "model_config",
    "system_prompt": "system_prompt", "parent": "parent_session_id", "started": "started_at",
    "cwd": "cwd",
}  # fmt: skip


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


def rebuild(shipped: dict[str, list[bytes]], here: Here) -> dict[str, Numbered]:
    """`shipped`: the frames of each stream of the run, by position. The streams to recover."""
    streams = {
        name: _Stream(name, frames_of, here.before.get(name)) for name, frames_of in shipped.items()
    }
    sessions: dict[str, ShippedSession] = {}
    for stream in streams.values():
        stream.listen(sessions)
    for session in sessions.values():
        place_rows(session, here.present)
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

    def listen(self, sessions: dict[str, ShippedSession]) -> None:
        for record in self.handshakes:
            name = record.get("session")
            if not isinstance(name, str):
                continue
            session = sessions.setdefault(name, ShippedSession(name))
            if record["kind"] == "row" and isinstance(record.get("row"), dict):
                session.row = record["row"]
            elif record["kind"] == "rows":
                add_rows(session, self.name, record)
        for seq, _, record, name in self.records():
            if name and record:
                self._hear(sessions.setdefault(name, ShippedSession(name)), seq, record)

    def _hear(self, session: ShippedSession, seq: int, record: Record) -> None:
        kind, at = record["kind"], time_of(record.get("at"))
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

    def rebuilt(self, sessions: dict[str, ShippedSession], here: Here) -> Numbered:
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
            last_at = max(last_at, time_of(record.get("at")))
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

    def _begin(self, made: _Made, session: ShippedSession, record: Record, here: Here) -> None:
        """A session comes up in this stream: first what was known of it before."""
        row = session.row
        about = {
            name: row[column]
            for name, column in _ABOUT.items()
            if row.get(column) is not None
        }  # fmt: skip
        at = time_of(record.get("at")) or session.began
        times = [time_of(row.get("timestamp")) for row in session.rows_in(self.name)]
        at = min([at, *(time for time in times if time)])
        made.record({"kind": "session", "session": session.id, "at": at, **about})
        has_rows = session.base is not None or session.id in self._before.sessions
        for text in (here.trouble, "" if has_rows else _NO_ROWS):
            if text:
                made.record({"kind": "trouble", "session": session.id, "text": text})
        if row.get("title") and not session.titled:
            made.record({"kind": "title", "session": session.id, "title": row["title"], "at": at})
        if self._has_base(session) and not session.cut.get(self.name):
            self._rows(made, session, session.first)

    def _has_base(self, session: ShippedSession) -> bool:
        return session.base is not None and session.base.stream == self.name

    def _go_on(
        self, made: _Made, session: ShippedSession, seq: int, payload: bytes, record: Record
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

    def _rows(self, made: _Made, session: ShippedSession, rows: list[Record]) -> None:
        for row in rows:
            made.record(
                {
                    "kind": "message",
                    "session": session.id,
                    "uid": f"row-{row.get('id')}",
                    "at": time_of(row.get("timestamp")),
                    "message": message_of(row),
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


def _understood(frame: bytes) -> Record | None:
    try:
        return records.unpack(frames.payload_of(frame))
    except records.BadRecord:
        return None
