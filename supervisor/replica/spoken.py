"""What the shipper has to know of the frames that it sends: which sessions, and when to look at
their rows. Pure."""

from __future__ import annotations

import os

from ...ipc import frames, records
from .placing import AGAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Look:
    """The rows of a session are to be read, and shipped behind record number `after`."""

    def __init__(self, session: str, stream: str, after: int) -> None:
        self.session = session
        self.stream = stream
        self.after = after


class Listener:
    """Listens to the streams of one run."""

    def __init__(self, db: str) -> None:
        self._db = db
        self._folders: dict[str, str] = {}
        self._first: dict[str, str] = {}
        self.shares: dict[str, dict[str, None]] = {}
        """The sessions of each stream."""
        self.paths: dict[str, str] = {}
        """The state.db of each session that names one."""
        self.transcripts: dict[str, tuple[str, str]] = {}
        """Files that agents resume sessions from: the session and its stream."""
        self.titles: dict[str, str] = {}
        self.heard: dict[str, str] = {}
        """Sessions in which something whole was said since somebody asked, each with a stream."""
        self.looked: set[str] = set()
        """Sessions whose rows were read when they began."""
        self.looks: list[Look] = []

    def hear(self, stream: str, seq: int, frame: bytes) -> None:
        try:
            record = records.unpack(frames.payload_of(frame))
        except records.BadRecord:
            return
        kind = record["kind"]
        if seq == frames.HANDSHAKE:
            folder = record.get("cwd")
            if kind == "hello" and isinstance(folder, str):
                self._folders[stream] = folder
            return
        name = record.get("session") or self._first.get(stream)
        if not isinstance(name, str):
            return
        self._first.setdefault(stream, name)
        self._meet(stream, name, seq)
        if kind == "session" and isinstance(record.get("db"), str):
            self.paths[name] = os.path.join(self._folders.get(stream, ""), str(record["db"]))
        path = record.get("transcript")
        if kind == "session" and isinstance(path, str) and os.path.isabs(path):
            self.transcripts.setdefault(path, (name, stream))
        if kind == "rewritten":
            self.looks.append(Look(name, stream, seq))
        elif kind == "rotated" and isinstance(record.get("new"), str):
            new = str(record["new"])
            self.paths.setdefault(new, self.path_of(name))
            self._meet(stream, new, seq)
        elif kind == "title" and isinstance(record.get("title"), str):
            self.titles[name] = str(record["title"])
        if kind != "delta":
            self.heard[name] = stream

    def _meet(self, stream: str, session: str, seq: int) -> None:
        self.shares.setdefault(stream, {}).setdefault(session)
        if session not in self.looked:
            self.looked.add(session)
            self.looks.append(Look(session, stream, seq))

    def path_of(self, session: str) -> str:
        return self.paths.get(session, self._db)

    def look_again(self) -> None:
        """Records were dropped: the rows of every session stand for them."""
        for stream, sessions in self.shares.items():
            for session in sessions:
                self.looks.append(Look(session, stream, AGAIN))

    def as_record(self) -> dict[str, Any]:
        return {
            "folders": self._folders,
            "first": self._first,
            "shares": {stream: list(sessions) for stream, sessions in self.shares.items()},
            "paths": self.paths,
            "looked": sorted(self.looked),
            "looks": [[look.session, look.stream, look.after] for look in self.looks],
        }

    def restore(self, record: dict[str, Any]) -> None:
        self._folders, self._first = dict(record["folders"]), dict(record["first"])
        self.shares = {stream: dict.fromkeys(all) for stream, all in record["shares"].items()}
        self.paths, self.looked = dict(record["paths"]), set(record["looked"])
        self.looks = [Look(*look) for look in record["looks"]]
