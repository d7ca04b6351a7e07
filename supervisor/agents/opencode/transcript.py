"""opencode: `$XDG_DATA_HOME/opencode/opencode.db`, a SQLite file in WAL mode, read only.

Never writes to it, never checkpoints, never takes its WAL away, and holds it open only while it
reads: opencode may be in the middle of anything.

    session   id, parent, folder, title
    message   the user's, or all that the assistant did in one go
    part      its pieces: text, reasoning, tool (pending, running, completed, error), …

A message of the assistant becomes as many messages as its tools need: text and calls, their
results, the text after them. The text of a part is empty until the part is complete; until then the
tap has it (tap.py).
"""

from __future__ import annotations

import glob
import json
import os

import apsw

from ...statedb import connection
from ..messages import about, answer, assistant, call, moment, name_in, said, text_of
from ..protocol import Database
from .tap import Tap, elsewhere

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..live import Live
    from ..protocol import Entry, Place, Read, Record

SOURCE = "opencode"
_UNTITLED = ("New session - ", "Child session - ")
_PATIENCE = 2.0
_GOES_ON = ("tool-calls", "unknown")


class OpencodeDatabase(Database):
    def __init__(self, place: Place) -> None:
        env, cwd = place.env, place.cwd
        home = env.get("HOME") or os.path.expanduser("~")
        base = env.get("XDG_DATA_HOME") or os.path.join(home, ".local", "share")
        self._folder = os.path.join(base, "opencode")
        # It uses PWD, which names another folder if it was not started by a shell.
        named = {cwd, *filter(None, [env.get("PWD") if cwd == place.started_in else None])}
        self._cwds = sorted(named | {os.path.realpath(folder) for folder in named})
        self._launched = place.launched
        self._claim, self._announced = place.claim, place.announced
        self._tap = None if place.tap is None else Tap(place.tap)
        self._runs = place.runs
        self._reported: dict[str, set[str]] = {}  # by message, the parts
        self._seen: dict[str, object] = {}
        self._done: set[str] = set()

    def folders(self) -> list[str]:
        return [self._folder, *([] if self._tap is None else [self._tap.folder])]

    def problem(self) -> str | None:
        path = os.path.join(self._folder, "opencode.db")
        if not os.path.exists(path):
            return None
        try:
            db = connection.to_read(path, connection.Patience(_PATIENCE))
            try:
                found = db.execute(
                    "SELECT count(*) FROM sqlite_master WHERE name IN ('session','message','part')"
                ).fetchone()
            finally:
                db.close()
        except apsw.Error as error:
            return f"{path} cannot be read: {error}"
        known = found is not None and found[0] == 3
        return None if known else f"{path} has unknown tables, so nothing is captured from it"

    def _files(self) -> list[str]:
        return sorted(glob.glob(os.path.join(glob.escape(self._folder), "opencode*.db")))

    def read(self, *, final: bool) -> Iterator[list[Read]]:
        # The tap first: what the database then lacks of it is still in progress.
        if self._tap is not None:
            self._tap.look()
        yield from self._databases(final=final)
        for id, live in [] if self._tap is None else self._tap.messages.items():
            if self._announced(live.session):  # a reply comes after its question
                pending = live.pending(self._reported.get(id, set()))
                if pending is not None:
                    yield [(pending[0], f"{id}.{pending[1]}", True)]

    def _databases(self, *, final: bool) -> Iterator[list[Read]]:
        for path in self._files():
            now = [_state(path), _state(path + "-wal")]
            if self._seen.get(path) == now and not final:
                continue
            self._seen[path] = now
            try:
                db = connection.to_read(path, connection.Patience(_PATIENCE))
                try:
                    yield from self._sessions(path, db, final=final)
                finally:
                    db.close()
            except (apsw.Error, ValueError):
                self._seen.pop(path)  # it is being made, or locked: later, then

    def _is_ours(self, id: str, *, final: bool) -> bool:
        """Two opencodes may work in one folder at a time. The tap says whose a session is. An
        opencode that has not loaded the tap, although it should, has not reported anything yet or
        never will: only its end shows which."""
        if self._tap is not None and self._tap.loaded:
            return id in self._tap.sessions
        if self._tap is not None and not final:
            return False
        return self._runs is None or id not in elsewhere(self._runs)

    def _sessions(self, path: str, db: apsw.Connection, *, final: bool) -> Iterator[list[Read]]:
        since = int(self._launched * 1000)
        marks = ", ".join("?" * len(self._cwds))
        found: list[Any] = db.execute(
            "SELECT id, parent_id, title, directory, time_created FROM session "
            f"WHERE directory IN ({marks}) AND EXISTS (SELECT 1 FROM message "
            "WHERE session_id = session.id AND message.time_created >= ?) ORDER BY time_created",
            (*self._cwds, since),
        ).fetchall()
        for id, parent, title, directory, created in found:
            if not self._is_ours(id, final=final) or not self._claim(f"{path}#{id}"):
                continue
            began = moment(created)
            known: dict[str, Any] = {"source": SOURCE, "cwd": directory, "started": began}
            if parent:
                known |= {"parent": parent, "subagent": True}
            else:
                known["resume"] = f"opencode --session {id}"
            if self._tap is not None and self._tap.loaded:
                known["tapped"] = True
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
                "SELECT id, data FROM part WHERE message_id = ? ORDER BY id", (id,)
            ).fetchall()
            live = None if self._tap is None else self._tap.messages.get(id)
            reported: set[str] = set()
            try:
                info = json.loads(data)
                pieces = [{**json.loads(part), "id": name} for name, part in parts]
                records, over, reported = records_of(
                    session, id, info, pieces, moment(created), live
                )
            except (ValueError, TypeError, AttributeError, LookupError):
                text = f"message {id} is not understood"
                trouble: Record = {"kind": "trouble", "session": session, "text": text}
                records, over = [trouble], True
            if over or created < since:
                self._done.add(id)
            self._reported[id] = reported
            yield [(record, f"{id}.{n}", created >= since) for n, record in enumerate(records)]
            if over and self._tap is not None:
                self._reported.pop(id)
                self._tap.forget(id)


def records_of(
    session: str,
    id: str,
    info: Entry,
    parts: list[Entry],
    at: float | None,
    live: Live | None = None,
) -> tuple[list[Record], bool, set[str]]:
    """The records of a message and its parts, whether the message is complete, and which parts of a
    reply are in the records. `live`: what the tap has of it. Pure."""
    reported: set[str] = set()
    if info.get("role") == "user":
        texts = [p for p in parts if p.get("type") == "text" and not p.get("synthetic")]
        names = [str(p.get("filename") or "file") for p in parts if p.get("type") == "file"]
        text = "\n".join([*filter(None, map(text_of, texts)), *(f"[{name}]" for name in names)])
        message = {"role": "user", "content": text}
        return ([said(session, id, message, at)] if text else []), False, reported
    model = name_in(info, "modelID")
    records = [about(session, at, model=model)] if model else []
    current = _Step(f"{id}:0")
    running = False
    for number, part in enumerate(parts):
        kind = part.get("type")
        if kind in ("text", "reasoning"):
            if current.calls or (kind == "reasoning" and current.text):
                records += current.said(session, at)
                reported.update(current.parts)
                current = _Step(f"{id}:{number}")
            text = text_of(part)
            current.parts += [str(part.get("id"))] if text else []
            if kind == "text":
                current.text = "\n\n".join(filter(None, (current.text, text)))
            else:
                current.reasoning = "\n\n".join(filter(None, (current.reasoning, text)))
        elif kind == "tool" and part.get("callID"):
            running |= current.call(part, {} if live is None else live.arguments)
    times = info.get("time")
    completed = isinstance(times, dict) and times.get("completed") is not None
    # Reasoning without text yet is one reply with the text that follows: the tap has both.
    if completed or live is None or current.text or current.calls:
        records += current.said(session, at)
        reported.update(current.parts)
    if completed and not running and info.get("finish") not in _GOES_ON:
        records.append({"kind": "turn", "session": session, "phase": "end"})
    return records, completed and not running, reported


class _Step:
    """Text, then calls, then their results."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.text = self.reasoning = ""
        self.parts: list[str] = []
        """The ids of the text and reasoning in it."""
        self.calls: list[dict[str, Any]] = []
        self._results: list[tuple[str, dict[str, Any]]] = []

    def call(self, part: Entry, known: dict[str, object]) -> bool:
        """Take a call in; whether it still runs. `known`: what calls that are about to run were
        given; the database has that a little later."""
        id, name = str(part["callID"]), part.get("tool")
        state = part.get("state")
        state = state if isinstance(state, dict) else {}
        self.calls.append(call(id, name, state.get("input") or known.get(id)))
        if state.get("status") not in ("completed", "error"):
            return True
        text = str(state.get("output") or state.get("error") or "")
        self._results.append((f"{id}:result", answer(id, name, text)))
        return False

    def said(self, session: str, at: float | None) -> list[Record]:
        if not self.text and not self.calls and not self.reasoning:
            return []
        message = assistant(self.text, self.calls, self.reasoning)
        records = [said(session, self.uid, message, at)]
        return records + [said(session, uid, result, at) for uid, result in self._results]


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
