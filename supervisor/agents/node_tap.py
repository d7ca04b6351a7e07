"""What the guest in a Node agent saw (agent_shim/node), joined with the agent's transcript.

Each process of the agent writes frames into a file of its own: what it asked a model, the pieces
of the reply, a reply that calls tools before they run, and which files of lines it writes.

    runs/<run>/tap/<stream>.frames

The transcript is authoritative for complete messages. A request belongs to the session that waits
for a reply to its question; a request that belongs to none (a title, a memory) is not reported.
Pieces are reported until the transcript has a reply that is younger than the request. A reply that
calls tools is reported under an id of ours. When the transcript has that reply, it gets the same
id, so that it replaces ours.
"""

from __future__ import annotations

import json
import os

from ...ipc import frames, records
from .messages import about, assistant, said
from .node_guest import own_session
from .protocol import Database, Fold, LineFiles

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .protocol import Entry, Read, Record

_SUFFIX = ".frames"
# The guest sends this many characters of what was said before (models.js).
_CUT = 500
_NO_ID = "call-"


class _Said:
    """A message of the transcript."""

    def __init__(self, role: str, text: str, calls: bool, at: float | None) -> None:
        self.role = role
        self.text = text
        self.calls = calls
        self.at = at


class _Exchange:
    """A request and what came of it."""

    def __init__(self, uid: str, about: Record) -> None:
        self.uid = uid
        self.at = float(about.get("at") or 0.0)
        self.model = about.get("model")
        self.tools = about.get("tools") is True
        self.question = str(about.get("question") or "")
        self.questions = [str(question).strip() for question in about.get("questions") or ()]
        self.session: str | None = None
        self.text = ""
        self.first = 0
        """The number of its first piece."""
        self.unread: list[tuple[int, Record]] = []
        self.calls: list[dict[str, Any]] = []
        self.known_as: str | None = None
        """The uid that the transcript has for it."""
        self.over = False

    def asks(self, text: str) -> bool:
        return bool(text.strip()) and text.strip()[:_CUT].strip() in (
            question[:_CUT].strip() for question in self.questions
        )


class _Process:
    """One process of the agent: one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = os.path.basename(path).removesuffix(_SUFFIX)
        self.pid = 0
        self.writes: set[str] = set()
        self.exchanges: dict[str, _Exchange] = {}
        self._decoder = frames.Decoder()
        self._offset = 0

    def take(self) -> bool:
        """Read what is new; True if anything is."""
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return False
        self._offset += len(data)
        for number, frame in self._decoder.feed(data):
            try:
                self._record(number, records.unpack(frames.payload_of(frame)))
            except (records.BadRecord, TypeError, ValueError):
                continue
        return bool(data)

    def _record(self, number: int, record: Record) -> None:
        kind, name = record["kind"], str(record.get("session"))
        if kind == "hello":
            self.pid = int(record["pid"])
        elif kind == "wrote":
            self.writes.add(os.path.realpath(str(record["path"])))
        elif kind == "asked":
            self.exchanges[name] = _Exchange(f"{self.name}.{name}", record)
        elif name in self.exchanges:
            exchange = self.exchanges[name]
            if kind == "delta":
                exchange.first = exchange.first or number
                exchange.text += str(record.get("text") or "")
                exchange.unread.append((number, record))
            elif kind == "message":
                for call in record["message"].get("tool_calls") or ():
                    id = str(call["id"])
                    if id.startswith(_NO_ID):  # made up by the guest, anew in every reply
                        id = f"call-{self.name[:8]}-{name}-{id.removeprefix(_NO_ID)}"
                    exchange.calls.append({**call, "id": id})
                exchange.unread.append((number, record))
            elif kind == "over":
                exchange.over = True


class NodeTap(Database):
    """`name`: the agent's; `source`: that of its sessions."""

    def __init__(
        self, folder: str, announced: Callable[[str], bool], name: str, source: str
    ) -> None:
        self._folder = folder
        self._announced = announced
        self._name, self._source = name, source
        self._processes: dict[str, _Process] = {}
        self._sessions: dict[str, list[_Said]] = {}
        self._paths: dict[str, str] = {}
        self._renamed: dict[tuple[str, str], str] = {}
        """By session and the transcript's id of a call: the id that we reported it under."""

    # -- what is read --------------------------------------------------------------------------

    def folders(self) -> list[str]:
        return [self._folder]

    def take(self) -> set[str]:
        """Read what the guests wrote; the files of lines that their processes write."""
        changed: set[str] = set()
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return changed
        for name in names:
            if name.endswith(_SUFFIX):
                process = self._processes.get(name)
                if process is None:
                    process = self._processes[name] = _Process(os.path.join(self._folder, name))
                if process.take():
                    changed |= process.writes
        return changed

    def look_first(self) -> set[str]:
        # The transcript has by now what a process wrote before its request.
        return self.take()

    def written(self) -> set[str]:
        """The files of lines that the guests' processes write."""
        return {path for process in self._processes.values() for path in process.writes}

    # -- what the transcript says --------------------------------------------------------------

    def joined(self, path: str, family: str, found: list[Record]) -> list[Record]:
        """The records of a line of the transcript, under the ids that we have reported."""
        self._paths[os.path.realpath(path)] = family
        if any(record["kind"] == "message" for record in found):
            self.take()  # a call is written here before it is there
        return [self._joined(record) if record["kind"] == "message" else record for record in found]

    def _joined(self, record: Record) -> Record:
        session, message = str(record["session"]), record["message"]
        text, calls = str(message.get("content") or ""), message.get("tool_calls") or []
        log = self._sessions.setdefault(session, [])
        if message["role"] == "tool":
            record = {**record, "message": self._answered(session, message)}
        elif message["role"] == "assistant":
            exchange = self._made(session, record, text, calls)
            if exchange is not None:
                exchange.known_as = exchange.known_as or _first_part(record["uid"])
                for theirs, ours in _pairs(calls, exchange.calls):
                    self._renamed[session, str(theirs["id"])] = str(ours["id"])
                calls = exchange.calls
                message = {**message, "content": text or exchange.text, "tool_calls": calls}
                message["finish_reason"] = "tool_calls"
                record = {**record, "uid": exchange.uid, "message": message}
        log.append(_Said(message["role"], text, bool(calls), record.get("at")))
        return record

    def _made(
        self, session: str, record: Record, text: str, calls: list[dict[str, Any]]
    ) -> _Exchange | None:
        """The request that a reply of the transcript belongs to, if the reply calls tools."""
        at = record.get("at")
        found = [
            exchange
            for process in self._processes.values()
            for exchange in process.exchanges.values()
            if exchange.calls and (at is None or exchange.at <= at + 0.001)
            and self._session_of(exchange, process) == session
        ]  # fmt: skip
        uid = _first_part(record["uid"])
        for same in (_same_calls, _same_names):
            for exchange in found:
                if calls and exchange.known_as in (None, uid) and same(exchange.calls, calls):
                    return exchange
        if not calls:
            for exchange in found:
                if exchange.known_as in (None, uid) and exchange.text.strip() == text.strip():
                    return exchange
        return None

    def _answered(self, session: str, message: dict[str, Any]) -> dict[str, Any]:
        id = self._renamed.get((session, str(message.get("tool_call_id"))))
        return message if id is None else {**message, "tool_call_id": id}

    # -- what is reported ----------------------------------------------------------------------

    def read(self, *, final: bool) -> Iterator[list[Read]]:
        if final:
            self.take()
        for process in list(self._processes.values()):
            for exchange in list(process.exchanges.values()):
                if exchange.unread:
                    yield list(self._news(process, exchange, final))

    def _news(self, process: _Process, exchange: _Exchange, final: bool) -> Iterator[Read]:
        session = self._session_of(exchange, process)
        if session is None and final and not self._candidates(process):
            yield from self._own_session(process, exchange)
            session = exchange.session
        if session is None or not (final or self._announced(session)):
            return
        unread, exchange.unread = exchange.unread, []
        yield {"kind": "session", "session": session, "tapped": True}, "tapped", True
        for number, record in unread:
            if record["kind"] == "message":
                if exchange.known_as is None:
                    message = assistant(exchange.text, exchange.calls)
                    yield said(session, exchange.uid, message, record.get("at")), "", True
            elif not exchange.calls and not self._has_reply(session, exchange):
                piece = {**record, "session": session}
                if number == exchange.first:
                    piece["restart"] = True
                yield piece, f"{exchange.uid}.{number}", True

    def _session_of(self, exchange: _Exchange, process: _Process) -> str | None:
        """The session that waits for the reply; None: not known, or none does."""
        if exchange.session is None:
            waiting = [
                candidate
                for candidate in self._candidates(process)
                if self._waits(candidate, exchange)
            ]
            asked = [
                session
                for session in waiting
                if exchange.asks(self._last_question(session, exchange))
            ]
            if not asked and len(waiting) == 1 and exchange.tools:
                asked = waiting
            if asked and not self._is_taken(asked[0], exchange, process):
                exchange.session = asked[0]
        return exchange.session

    def _candidates(self, process: _Process) -> list[str]:
        own = [self._paths[path] for path in process.writes if path in self._paths]
        return own or list(self._sessions)

    def _before(self, session: str, exchange: _Exchange) -> list[_Said]:
        log = self._sessions.get(session, ())
        return [logged for logged in log if logged.at is None or logged.at <= exchange.at]

    def _waits(self, session: str, exchange: _Exchange) -> bool:
        before = self._before(session, exchange)
        return bool(before) and (before[-1].role != "assistant" or before[-1].calls)

    def _last_question(self, session: str, exchange: _Exchange) -> str:
        texts = [logged.text for logged in self._before(session, exchange) if logged.role == "user"]
        return texts[-1] if texts else ""

    def _is_taken(self, session: str, exchange: _Exchange, process: _Process) -> bool:
        """True if an earlier request for this session is still being answered."""
        return any(
            other is not exchange and other.session == session and not other.over
            and other.at <= exchange.at and not self._has_reply(session, other)
            for other in process.exchanges.values()
        )  # fmt: skip

    def _has_reply(self, session: str, exchange: _Exchange) -> bool:
        """True if the transcript has the reply."""
        return any(
            logged.role == "assistant" and logged.at is not None and logged.at >= exchange.at
            for logged in self._sessions.get(session, ())
        )

    def _own_session(self, process: _Process, exchange: _Exchange) -> Iterator[Read]:
        """A dead agent has written no transcript: its requests are all that is known of its
        session."""
        exchange.session = own_session(self._name, process.name)
        first = about(
            exchange.session, exchange.at, source=self._source, model=exchange.model,
            started=exchange.at,
        )  # fmt: skip
        yield first, "own", True
        question = {"role": "user", "content": exchange.question}
        uid = f"{exchange.uid}.question"
        yield said(exchange.session, uid, question, exchange.at), uid, True


def _first_part(uid: object) -> str:
    """The id of a message that the transcript may have in several parts."""
    return str(uid).partition(":")[0]


def _pairs(
    theirs: list[dict[str, Any]], ours: list[dict[str, Any]]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Which call of the transcript is which of ours: the same name and arguments, or the same
    name, in order."""
    left = list(ours)
    for call in theirs:
        for same in (_content, _name):
            found = next((other for other in left if same(other) == same(call)), None)
            if found is not None:
                left.remove(found)
                yield call, found
                break


def _name(call: dict[str, Any]) -> object:
    return call["function"]["name"]


def _content(call: dict[str, Any]) -> object:
    try:
        return _name(call), json.loads(call["function"]["arguments"])
    except (ValueError, TypeError, RecursionError):
        return _name(call), call["function"]["arguments"]


def _same_calls(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    known = [_content(call) for call in ours]
    return all(_content(call) in known for call in theirs)


def _same_names(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    known = [_name(call) for call in ours]
    return all(_name(call) in known for call in theirs)


class _JoinedFold(Fold):
    """The parser of a transcript, with what the tap knows of it."""

    def __init__(self, parser: Fold, path: str, tap: NodeTap) -> None:
        self._parser, self._path, self._tap = parser, path, tap
        self.family = parser.family

    def line(self, entry: Entry, key: str) -> list[Record]:
        found = self._parser.line(entry, key)
        self.family = self._parser.family
        return self._tap.joined(self._path, self.family, found)


class TappedFiles(LineFiles):
    """Transcripts of an agent that may have the guest in it."""

    def __init__(self, tap: NodeTap | None) -> None:
        self._tap = tap

    def parser(self, path: str) -> Fold:
        raise NotImplementedError

    def fold(self, path: str) -> Fold:
        parser = self.parser(path)
        return parser if self._tap is None else _JoinedFold(parser, path, self._tap)

    def written_here(self, path: str) -> bool | None:
        if self._tap is None:
            return None
        self._tap.take()
        written = {file for file in self._tap.written() if self.accepts(file)}
        return os.path.realpath(path) in written if written else None
