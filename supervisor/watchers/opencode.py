"""opencode: `$XDG_DATA_HOME/opencode/opencode.db`, a SQLite file in WAL mode, read only.

Never writes to it, never checkpoints, never takes its WAL away, and holds it open only while it
reads: opencode may be in the middle of anything.

    session   id, parent, folder, title
    message   the user's, or all that the assistant did in one go
    part      its pieces: text, reasoning, tool (pending, running, completed, error), …

A message of the assistant's becomes as many as its tools need: text and calls, their results,
what it said next.
"""

from __future__ import annotations

import glob
import json
import os

from .messages import about, answer, assistant, call, moment, name_in, said, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    import apsw

    from .follow import Read
    from .messages import Entry, Record
    from .ours import Ours

SOURCE = "opencode"
_UNTITLED = ("New session - ", "Child session - ")
_PATIENCE = 2.0
_GOES_ON = ("tool-calls", "unknown")


class Opencode:
    source = SOURCE

    def __init__(self, env: Mapping[str, str], cwd: str, launched: float, ours: Ours) -> None:
        home = env.get("HOME") or os.path.expanduser("~")
        base = env.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
        self._folder = os.path.join(base, "opencode")
        self._cwds = sorted({cwd, os.path.realpath(cwd)})
        self._launched = launched
        self._ours = ours
        self._seen: dict[str, object] = {}
        self._done: set[str] = set()

    def folders(self) -> list[str]:
        return [self._folder]

    def _files(self) -> list[str]:
        return sorted(glob.glob(os.path.join(glob.escape(self._folder), "opencode*.db")))

    def read(self, *, final: bool) -> Iterator[list[Read]]:
        import apsw

        from ..recovery import connection

        for path in self._files():
            now = [_state(path), _state(path + "-wal")]
            if self._seen.get(path) == now and not final:
                continue
            self._seen[path] = now
            try:
                db = connection.to_read(path, connection.Patience(_PATIENCE))
                try:
                    yield from self._sessions(path, db)
                finally:
                    db.close()
            except (apsw.Error, ValueError):
                self._seen.pop(path)  # it is being made, or locked: later, then

    def _sessions(self, path: str, db: apsw.Connection) -> Iterator[list[Read]]:
        since = int(self._launched * 1000)
        marks = ", ".join("?" * len(self._cwds))
        found: list[Any] = db.execute(
            "SELECT id, parent_id, title, directory, time_created FROM session "
            f"WHERE directory IN ({marks}) AND EXISTS (SELECT 1 FROM message "
            "WHERE session_id = session.id AND message.time_created >= ?) ORDER BY time_created",
            (*self._cwds, since),
        ).fetchall()
        for id, parent, title, directory, created in found:
            if not self._ours.claim(f"{path}#{id}"):
                continue
            began = moment(created)
            known: dict[str, Any] = {"source": SOURCE, "cwd": directory, "started": began}
            if parent:
                known |= {"parent": parent, "subagent": True}
            else:
                known["resume"] = f"opencode --session {id}"
            read: list[Read] = [(about(id, began, **known), "about", True)]
            if isinstance(title, str) and title and not title.startswith(_UNTITLED):
                read.append(({"kind": "title", "session": id, "title": title}, "title", True))
            yield read
            yield from self._messages(db, id, since)

    def _messages(self, db: apsw.Connection, session: str, since: int) -> Iterator[list[Read]]:
        rows: list[Any] = db.execute(
            "SELECT id, time_created, data FROM message WHERE session_id = ? "
            "ORDER BY time_created, id",
            (session,),
        ).fetchall()
        for id, created, data in rows:
            if id in self._done:
                continue
            parts: list[Any] = db.execute(
                "SELECT data FROM part WHERE message_id = ? ORDER BY id", (id,)
            ).fetchall()
            try:
                info = json.loads(data)
                pieces = [json.loads(part) for (part,) in parts]
                records, over = told_by(session, id, info, pieces, moment(created))
            except (ValueError, TypeError, AttributeError, LookupError):
                text = f"message {id} is not understood"
                trouble: Record = {"kind": "trouble", "session": session, "text": text}
                records, over = [trouble], True
            if over or created < since:
                self._done.add(id)
            yield [(one, f"{id}.{n}", created >= since) for n, one in enumerate(records)]


def told_by(
    session: str, id: str, info: Entry, parts: list[Entry], at: float | None
) -> tuple[list[Record], bool]:
    """What a message and its parts say, and whether they will say no more. Pure."""
    if info.get("role") == "user":
        texts = [p for p in parts if p.get("type") == "text" and not p.get("synthetic")]
        names = [str(p.get("filename") or "file") for p in parts if p.get("type") == "file"]
        text = "\n".join([*filter(None, map(text_of, texts)), *(f"[{name}]" for name in names)])
        return ([said(session, id, {"role": "user", "content": text}, at)] if text else []), False
    model = name_in(info, "modelID")
    told = [about(session, at, model=model)] if model else []
    current = _Step(f"{id}:0")
    running = False
    for number, part in enumerate(parts):
        kind = part.get("type")
        if kind in ("text", "reasoning"):
            if current.calls or (kind == "reasoning" and current.text):
                told += current.said(session, at)
                current = _Step(f"{id}:{number}")
            text = text_of(part)
            if kind == "text":
                current.text = "\n\n".join(filter(None, (current.text, text)))
            else:
                current.reasoning = "\n\n".join(filter(None, (current.reasoning, text)))
        elif kind == "tool" and part.get("callID"):
            running |= current.call(part)
    told += current.said(session, at)
    times = info.get("time")
    completed = isinstance(times, dict) and times.get("completed") is not None
    if completed and not running and info.get("finish") not in _GOES_ON:
        told.append({"kind": "turn", "session": session, "phase": "end"})
    return told, completed and not running


class _Step:
    """Text, then calls, then their results."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.text = self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self._results: list[tuple[str, dict[str, Any]]] = []

    def call(self, part: Entry) -> bool:
        """Take a call in; whether it still runs."""
        id, name = str(part["callID"]), part.get("tool")
        state = part.get("state")
        state = state if isinstance(state, dict) else {}
        self.calls.append(call(id, name, state.get("input")))
        if state.get("status") not in ("completed", "error"):
            return True
        text = str(state.get("output") or state.get("error") or "")
        self._results.append((f"{id}:result", answer(id, name, text)))
        return False

    def said(self, session: str, at: float | None) -> list[Record]:
        if not self.text and not self.calls and not self.reasoning:
            return []
        message = assistant(self.text, self.calls, self.reasoning)
        told = [said(session, self.uid, message, at)]
        return told + [said(session, uid, result, at) for uid, result in self._results]


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
