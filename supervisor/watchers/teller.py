"""From what adapters read to what is said: each record once, a session before its messages.

Pure; never forgets what was acknowledged, which is all that a watcher in its place has to know.

What stood in a transcript before the agent was started is its *history*: the earlier run may
have been ours or not. It is told as one record, with the first new message of the session, and
recovery stores it only where state.db has nothing of that session.
"""

from __future__ import annotations

import json
from hashlib import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .messages import Record

# What one record may hold of a history; a longer one is said to be missing instead.
HISTORY_LIMIT = 8 * 1024 * 1024
KEY = 8
Mark = bytes
"""2 × KEY bytes: of which thing a record speaks, and what it says of it."""


class Known:
    """What has been said and acknowledged, here or by a watcher before."""

    def __init__(self, marks: bytes = b"") -> None:
        # A torn end belongs to a record that is said again.
        places = range(0, len(marks) - len(marks) % (2 * KEY), 2 * KEY)
        self._before = {marks[at : at + 2 * KEY] for at in places}
        self._latest = {mark[:KEY]: mark[KEY:] for mark in self._before}

    def has(self, mark: Mark) -> bool:
        """Nothing new: it is the last word on this, or one that a watcher before us had said."""
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


class Teller:
    def __init__(self, known: Known, cwd: str) -> None:
        self._known = known
        self._cwd = cwd
        self._sessions: dict[str, _Session] = {}

    def tell(
        self, record: Record, key: str, now: float, *, live: bool
    ) -> list[tuple[Mark, Record]]:
        """What to say, now that this was read. `key` is the same whenever it is read again."""
        session = self._sessions.setdefault(str(record["session"]), _Session())
        kind = record["kind"]
        if kind == "session":
            return self._about(session, record, now)
        if kind == "title":
            session.title = record
            return self._new("title", record, now) if session.announced else []
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
        return self._announce(session, record, now) + self._new(f"{kind} {key}", record, now)

    def _about(self, session: _Session, record: Record, now: float) -> list[tuple[Mark, Record]]:
        # When it began is said once, by the first line.
        news = {name: value for name, value in record.items() if name != "started"}
        if "started" in record and "started" not in session.about:
            news["started"] = record["started"]
        before = {name: value for name, value in session.about.items() if name != "at"}
        session.about |= news
        after = {name: value for name, value in session.about.items() if name != "at"}
        if not session.announced or before == after:
            return []
        return self._new("session", session.about, now)

    def _announce(self, session: _Session, record: Record, now: float) -> list[tuple[Mark, Record]]:
        if session.announced:
            return []
        session.announced = True
        name = record["session"]
        # As of now: what another run said in this session was said before.
        about = {"kind": "session", "session": name, "cwd": self._cwd, **session.about}
        about["at"] = record.get("at") or now
        session.about = about
        told = self._new("session", about, now)
        if session.history:
            if session.history_size > HISTORY_LIMIT:
                text = "what was said before this run is too long to be taken over"
                trouble = {"kind": "trouble", "session": name, "text": text}
                told += self._new("history", trouble, now)
            else:
                messages = [
                    {**one["message"], "uid": one["uid"], "timestamp": one.get("at")}
                    for one in session.history.values()
                ]
                history = {"kind": "history", "session": name, "messages": messages}
                told += self._new("history", history, now)
        session.history = {}
        for key, trouble in session.troubles.items():
            told += self._new(f"trouble {key}", trouble, now)
        if session.title is not None:
            told += self._new("title", session.title, now)
        return told

    def _remember(self, session: _Session, record: Record) -> None:
        # Should the file be written anew, it is not new.
        self._known.note(_mark(f"message {record['uid']}", record))
        if session.history_size <= HISTORY_LIMIT:
            session.history[str(record["uid"])] = record
            session.history_size += len(json.dumps(record["message"]))
        else:
            session.history = {"": record}  # only that there was one

    def _new(self, key: str, record: Record, now: float) -> list[tuple[Mark, Record]]:
        mark = _mark(key, record)
        if self._known.has(mark):
            return []
        self._known.note(mark)
        return [(mark, {"at": now, **record})]


def _mark(key: str, record: Record) -> Mark:
    """When something was read is no part of what it says."""
    plain = {name: value for name, value in record.items() if name != "at"}
    text = json.dumps(plain, sort_keys=True, default=repr)
    of = blake2b(f"{record['session']}\0{key}".encode("utf-8", "surrogatepass"), digest_size=KEY)
    says = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY)
    return of.digest() + says.digest()
