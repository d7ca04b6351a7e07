"""What the shipper takes in: everything new in the runs' files gets its position, in the outbox.

Never speaks to the database. Beside the journals it reads the rows of state.db that stand for what
was said before the run, and puts them before the records that need them.

    I1  A file that recovery put aside is removed only when the outbox has what is in it, synced.
    I2  Whoever has a session's records has its rows: they have the earlier positions.
"""

from __future__ import annotations

import os
import time

from ...ipc import frames, records
from ...ipc.lightweight import json
from ..statedb.connection import StateDbError
from . import numbering, raw, snapshot
from .follow import RunFiles
from .placing import AGAIN
from .raw import RawFile
from .spoken import Listener

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .numbering import Numbering
    from .outbox import Entry, Outbox
    from .spoken import Look

_ROW_INTERVAL = 5.0
_LOOK_AGAIN = 2.0
# No position: a note of ours in the outbox, of which run a stream is.
NOTE = 0
_NO_STREAM = "0" * 32
_MIB = 1024 * 1024
# Without a run to ask, how much disk, and for how long what was sent stays here.
DISK, KEEP = 1024, 600.0


class ShippedRun:
    """A run that is shipped."""

    def __init__(self, name: str, about: dict[str, Any], text: str, target: str) -> None:
        self.name = name
        self.text = text
        key = about.get("replica_key")
        self.key = key if isinstance(key, str) else None
        """The file with the key that its records are encrypted with."""
        folder = str(about.get("folder"))
        self.files = RunFiles(folder, os.path.join(target, "kept", name))
        self.listener = Listener(str(about.get("db")))
        self.streams: set[str] = set()
        self.due: dict[Look, float] = {}
        """When to try again to read rows."""
        self.rows: dict[str, dict[str, Any]] = {}
        self.rows_at: dict[str, float] = {}
        self.raw: dict[str, RawFile] = {}
        """Transcripts of its agent, by path."""
        self.raw_is_whole = True
        """What they hold is in the outbox, to the end if the run is over."""
        self.ended = False
        """The database knows that it is over."""

    def as_record(self) -> dict[str, Any]:
        raw = {path: file.as_record() for path, file in self.raw.items()}
        return {**self.listener.as_record(), "raw": raw}

    def restore(self, record: dict[str, Any]) -> None:
        self.listener.restore(record)
        known = record.get("raw") or {}
        self.raw = {path: raw.restored(path, about) for path, about in known.items()}


class Origin:
    """Of which run a stream is, and how its records are to be encrypted."""

    def __init__(self, run: str, key: str | None, segment: int) -> None:
        self.run = run
        self.key = key
        self.segment = segment
        """The last segment of the outbox that may hold something of it."""


class Intake:
    def __init__(self, target: str, outbox: Outbox, progress: dict[str, list[int]]) -> None:
        self._target = target
        self._outbox = outbox
        self._progress = progress
        self.runs: dict[str, ShippedRun] = {}
        self.numberings: dict[str, Numbering] = {}
        self.origins: dict[str, Origin] = {}
        """Of every stream that is in the outbox."""
        self.over: dict[str, str] = {}
        """Runs that are over, of which the outbox still holds something."""
        self._known: dict[str, Any] = {}
        self.disk, self.keep = DISK * _MIB, KEEP
        self.retention = 0.0
        """For how many days the server keeps runs that are over; 0: for ever."""
        self._restore()

    # -- going on where the last one was cut off -----------------------------------------------

    def _restore(self) -> None:
        state = self._outbox.state
        last = self._outbox.numbers[-1] if self._outbox.numbers else 0
        for stream, (run, key) in (state.get("origins") or {}).items():
            self.origins[stream] = Origin(run, key, last)
        for stream, record in (state.get("streams") or {}).items():
            self.numberings[stream] = numbering.from_record(record)
        self.over = dict(state.get("over") or {})
        self._known = dict(state.get("runs") or {})
        self.find_runs()
        read_rows: set[tuple[str, int]] = set()
        for stream, position, frame in self._outbox.rest:
            if position == NOTE:
                self._restore_note(stream, _record(frame))
                continue
            known = self.numberings.setdefault(stream, numbering.Numbering())
            seq = frames.number_of(frame)
            about = _rows_in(frame) if seq == frames.HANDSHAKE else None
            if about is not None:
                known.add()
                read_rows.add(about)
            else:
                known.take(seq, frame)
            known.last = position
            run = self.run_of(stream)
            if run is not None:
                run.listener.hear(stream, seq, frame)
                if about is not None:
                    self._restore_raw(run, stream, _record(frame))
        self._outbox.rest = []
        for run in self.runs.values():
            looks = [x for x in run.listener.looks if (x.session, x.after) not in read_rows]
            run.listener.looks = looks

    def _restore_raw(self, run: ShippedRun, stream: str, record: dict[str, Any]) -> None:
        if record["kind"] == "raw":
            path, session = str(record["path"]), str(record["session"])
            run.raw.setdefault(path, RawFile(path, session, stream)).restore(record)

    def _restore_note(self, stream: str, note: dict[str, Any]) -> None:
        if note.get("kind") == "over":
            self.over[str(note.get("run"))] = str(note.get("text"))
        else:
            key = note.get("key")
            self._meet(stream, str(note.get("run")), key if isinstance(key, str) else None)

    def state(self) -> dict[str, Any]:
        """What must be known to go on: the header of a segment."""
        first = self._outbox.numbers[0] if self._outbox.numbers else 0
        self.origins = {
            s: o for s, o in self.origins.items() if o.run in self.runs or o.segment >= first
        }
        runs = {origin.run for origin in self.origins.values()}
        self.over = {run: text for run, text in self.over.items() if run in runs}
        self.numberings = {s: n for s, n in self.numberings.items() if self.run_of(s) is not None}
        return {
            "streams": {s: n.as_record() for s, n in self.numberings.items()},
            "origins": {s: [origin.run, origin.key] for s, origin in self.origins.items()},
            "over": self.over,
            "runs": {name: run.as_record() for name, run in self.runs.items()},
        }

    def run_of(self, stream: str) -> ShippedRun | None:
        origin = self.origins.get(stream)
        return self.runs.get(origin.run) if origin is not None else None

    def finish(self, run: ShippedRun) -> None:
        """The database has all of a run. What of it is in the outbox may have to be sent again."""
        if self._outbox.numbers:
            self._note(_NO_STREAM, {"kind": "over", "run": run.name, "text": run.text})
            self._outbox.sync()
            self.over[run.name] = run.text
        os.unlink(os.path.join(self._target, "runs", run.name))
        del self.runs[run.name]

    def _note(self, stream: str, note: dict[str, Any]) -> None:
        self._append([(stream, NOTE, frames.encode(frames.HANDSHAKE, records.pack(note)))])

    def _append(self, entries: list[Entry]) -> None:
        self._outbox.make_room(self.state)
        self._outbox.append(entries)
        for stream in {stream for stream, _, _ in entries} & self.origins.keys():
            self.origins[stream].segment = self._outbox.numbers[-1]

    # -- reading -----------------------------------------------------------------------------

    def find_runs(self) -> None:
        folder = os.path.join(self._target, "runs")
        for name in sorted(os.listdir(folder)):
            if name in self.runs or name.endswith(".new"):
                continue
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text = file.read()
            try:
                about = json.loads(text)
            except ValueError:
                about = {}
            run = self.runs[name] = ShippedRun(name, about, text, self._target)
            if name in self._known:
                run.restore(self._known[name])
            run.streams |= {s for s, o in self.origins.items() if o.run == name}
            self.disk = int(about.get("replica_disk", DISK)) * _MIB
            self.keep = float(about.get("replica_keep", KEEP))
            self.retention = float(about.get("replica_retention", 0))

    def read(self, *, idle: bool, dropping: bool) -> None:
        """Everything new gets its position, on disk. `idle`: nobody has said anything for a while.
        `dropping`: there is no room."""
        for run in self.runs.values():
            self._read_run(run, idle=idle, dropping=dropping)
        if not dropping:
            self._outbox.sync()
        for run in self.runs.values():
            run.files.forget_kept()

    def heal(self) -> None:
        """Records were dropped, and there is room again: the sessions' rows stand for them."""
        for known in self.numberings.values():
            known.accept_gap()
        for run in self.runs.values():
            run.listener.look_again()

    def _read_run(self, run: ShippedRun, *, idle: bool, dropping: bool) -> None:
        over = run.files.gone
        for stream, found in [*run.files.read(), *(self._in_rings(run) if idle else ())]:
            if dropping or not found:
                continue
            if stream not in self.numberings:
                self._note(stream, {"kind": "stream", "run": run.name, "key": run.key})
                self._meet(stream, run.name, run.key)
            known = self.numberings[stream]
            for seq, frame in found:
                if known.is_new(seq, frame):
                    run.listener.hear(stream, seq, frame)
            # Before what is said now: whoever has a session's records has its rows.
            self._read_rows(run)
            entries: list[Entry] = []
            for seq, frame in found:
                position = known.take(seq, frame)
                if position is not None:
                    entries.append((stream, position, frame))
            self._append(entries)
            self._progress.setdefault(stream, [0, 0])[0] = known.highest
        if not dropping:
            self._read_rows(run)
            self._read_raw(run, over=over)

    def _in_rings(self, run: ShippedRun) -> list[tuple[str, list[tuple[int, bytes]]]]:
        """What the supervisor does not journal yet."""
        known = ((stream, self.numberings[stream]) for stream in run.streams)
        found = (
            (stream, numbers, run.files.read_ring(stream, numbers.upto))
            for stream, numbers in known
        )
        # Behind a gap they wait for what is on its way.
        return [
            (s, [pair for n, pair in enumerate(f, k.upto + 1) if pair[0] == n]) for s, k, f in found
        ]

    def _meet(self, stream: str, run: str, key: str | None) -> None:
        self.numberings.setdefault(stream, numbering.Numbering())
        segment = self._outbox.numbers[-1] if self._outbox.numbers else 0
        self.origins[stream] = Origin(run, key, segment)
        if run in self.runs:
            self.runs[run].streams.add(stream)

    def _read_rows(self, run: ShippedRun) -> None:
        now = time.monotonic()
        # They stay in the list until their rows are in the outbox: a segment may begin meanwhile.
        for look in list(run.listener.looks):
            if run.due.get(look, 0.0) > now:
                continue
            path = run.listener.path_of(look.session)
            try:
                ours = () if look.after == AGAIN else run.streams
                found = snapshot.take(path, look.session, ours)
            except StateDbError:
                run.due[look] = now + _LOOK_AGAIN
                if not os.path.isdir(run.files.folder):
                    run.listener.looks.remove(look)  # a rebuild says that it lacks these rows
                continue
            made = snapshot.as_frames(look.session, look.after, found.messages)
            if found.row is not None:
                made += self._row(run, look.session, snapshot.kept(found.row))
            self._add(look.stream, made)
            run.listener.looks.remove(look)
            run.due.pop(look, None)
        for session, stream in list(run.listener.heard.items()):
            if run.rows_at.get(session, 0.0) + _ROW_INTERVAL > now and os.path.isdir(
                run.files.folder
            ):
                continue
            del run.listener.heard[session]
            run.rows_at[session] = now
            try:
                row = snapshot.row_of(run.listener.path_of(session), session)
            except StateDbError:
                continue
            if row is not None:
                self._add(stream, self._row(run, session, row))

    def _read_raw(self, run: ShippedRun, *, over: bool) -> None:
        """`over`: the run was, before we looked: nobody writes to its transcripts any more."""
        for path, (session, stream) in run.listener.transcripts.items():
            if path not in run.raw and stream in self.numberings:
                run.raw[path] = RawFile(path, session, stream)
        for file in run.raw.values():
            self._add(file.stream, file.read(final=over))
        whole = all(file.is_whole for file in run.raw.values())
        run.raw_is_whole = not run.raw or (over and whole)

    def _row(self, run: ShippedRun, session: str, row: dict[str, Any]) -> list[bytes]:
        """The session's row as a frame, if it is another one than before."""
        if run.rows.get(session) == row:
            return []
        run.rows[session] = row
        if isinstance(row.get("title"), str):
            run.listener.titles[session] = row["title"]
        return [snapshot.row_frame(session, row)]

    def _add(self, stream: str, made: list[bytes]) -> None:
        for frame in made:
            self._append([(stream, self.numberings[stream].add(), frame)])


def _rows_in(frame: bytes) -> tuple[str, int] | None:
    """Session and record of the rows that a frame of ours holds; None: it is the agent's."""
    record = _record(frame)
    if record.get("kind") not in ("rows", "row", "raw"):
        return None
    after = record.get("after")
    return str(record.get("session")), after if isinstance(after, int) else 0


def _record(frame: bytes) -> dict[str, Any]:
    try:
        return records.unpack(frames.payload_of(frame))
    except records.BadRecord:
        return {}
