"""Decides which records to report: each once, and a session before its messages. Pure.

A record is identified by a mark: a digest of its subject, and a digest of its contents. The marks
of acknowledged records are all that a process that replaces this one needs to know.

The lines of a transcript from before the agent was launched are its *history*: an earlier run may
have reported it or not. It is reported as one record, together with the first new message of the
session, and recovery stores it only if state.db has nothing of that session.
"""

from __future__ import annotations

import json
from hashlib import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..agents.protocol import Record

# The most that one record may hold of a history. A longer history is reported as missing.
HISTORY_LIMIT = 8 * 1024 * 1024
KEY = 8
Mark = bytes
"""2 * KEY bytes: digests of a record's subject and of its contents."""


class Known:
    """The marks of what was reported, by this process or by those before it."""

    def __init__(self, marks: bytes = b"") -> None:
        # A torn mark at the end is of a record that was not acknowledged: it is reported again.
        places = range(0, len(marks) - len(marks) % (2 * KEY), 2 * KEY)
        self._before = {marks[at : at + 2 * KEY] for at in places}
        self._latest = {mark[:KEY]: mark[KEY:] for mark in self._before}

    def has(self, mark: Mark) -> bool:
        """True if it repeats the latest report, or any report of an earlier process."""
        return mark in self._before or self._latest.get(mark[:KEY]) == mark[KEY:]

    def note(self, mark: Mark) -> None:
        self._latest[mark[:KEY]] = mark[KEY:]


class _Session:
    def __init__(self) -> None:
        self.about: Record = {}
        self.title: Record | None = None
        self.troubles: dict[str, Record] = {}
        self.history: dict[str, Record] = {}
        self.history_size = 0
        self.announced = False


class Deduplicator:
    def __init__(self, known: Known, cwd: str) -> None:
        self._known = known
        self._cwd = cwd
        self._sessions: dict[str, _Session] = {}

    def is_announced(self, session: str) -> bool:
        return session in self._sessions and self._sessions[session].announced

    def new(self, record: Record, key: str, now: float, *, live: bool) -> list[tuple[Mark, Record]]:
        """What to report now that `record` was read. `key` is the same whenever it is read again.
        `live`: it was written in this run."""
        session = self._sessions.setdefault(str(record["session"]), _Session())
        kind = record["kind"]
        if kind == "session":
            return self._about(session, record, now)
        if kind == "title":
            session.title = record
            return self._unreported("title", record, now) if session.announced else []
        if not live:
            if kind == "message":
                self._remember(session, record)
            return []
        if kind == "message":
            key = str(record["uid"])
        elif not session.announced:
            if kind == "trouble":
                session.troubles[key] = record
            return []
        announced = self._announce(session, record, now)
        return announced + self._unreported(f"{kind} {key}", record, now)

    def _about(self, session: _Session, record: Record, now: float) -> list[tuple[Mark, Record]]:
        # The first line says when the session began; later lines do not change it.
        news = {name: value for name, value in record.items() if name != "started"}
        if "started" in record and "started" not in session.about:
            news["started"] = record["started"]
        before = {name: value for name, value in session.about.items() if name != "at"}
        session.about |= news
        after = {name: value for name, value in session.about.items() if name != "at"}
        if not session.announced or before == after:
            return []
        return self._unreported("session", session.about, now)

    def _announce(self, session: _Session, record: Record, now: float) -> list[tuple[Mark, Record]]:
        """Before the first message of a session: what is known of it so far."""
        if session.announced:
            return []
        session.announced = True
        name = record["session"]
        # As of now: what another run reported in this session came before.
        about = {"kind": "session", "session": name, "cwd": self._cwd, **session.about}
        about["at"] = record.get("at") or now
        session.about = about
        fresh = self._unreported("session", about, now)
        if session.history:
            fresh += self._unreported("history", self._history(name, session), now)
        session.history = {}
        for key, trouble in session.troubles.items():
            fresh += self._unreported(f"trouble {key}", trouble, now)
        if session.title is not None:
            fresh += self._unreported("title", session.title, now)
        return fresh

    def _history(self, name: str, session: _Session) -> Record:
        if session.history_size > HISTORY_LIMIT:
            text = "the conversation from before this run is too long to be stored"
            return {"kind": "trouble", "session": name, "text": text}
        messages = [
            {**sent["message"], "uid": sent["uid"], "timestamp": sent.get("at")}
            for sent in session.history.values()
        ]
        return {"kind": "history", "session": name, "messages": messages}

    def _remember(self, session: _Session, record: Record) -> None:
        # If the file is written anew, this is not new.
        self._known.note(_mark(f"message {record['uid']}", record))
        if session.history_size <= HISTORY_LIMIT:
            session.history[str(record["uid"])] = record
            session.history_size += len(json.dumps(record["message"]))
        else:
            session.history = {"": record}  # only that there was one

    def _unreported(self, key: str, record: Record, now: float) -> list[tuple[Mark, Record]]:
        mark = _mark(key, record)
        if self._known.has(mark):
            return []
        self._known.note(mark)
        return [(mark, {"at": now, **record})]


def _mark(key: str, record: Record) -> Mark:
    """The time at which a record was read does not count."""
    timeless = {name: value for name, value in record.items() if name != "at"}
    text = json.dumps(timeless, sort_keys=True, default=repr)
    of = blake2b(f"{record['session']}\0{key}".encode("utf-8", "surrogatepass"), digest_size=KEY)
    says = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY)
    return of.digest() + says.digest()
