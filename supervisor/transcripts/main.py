"""The process that follows the transcripts of one run and reports to the run's supervisor.

Never outlives its supervisor, and never acts on the agent. Standard input says how long to run: a
byte on it, or its end, means that no process of the agent is left, or that the supervisor is dead.
Then everything is read to its end once more and reported if there is a supervisor.

    runs/<run>/watched    the marks of what was acknowledged (deduplicator.py)
    runs/<run>/owned      which files are of this run, and which are not (ownership.py)
    runs/<run>/goes_on    the command has ended, and a daemon goes on with its turn: this process
                          ends with the status IDLE when that turn has ended

A process that replaces this one reads both, so it reports nothing twice.
"""

from __future__ import annotations

import fcntl
import os
import select
import time
from io import FileIO

from ...ipc import endpoint, frames, records
from ..ingest.blocking_client import BlockingClient, NotDelivered
from ..storage.run_notes import GOES_ON
from .deduplicator import Deduplicator, Known
from .follow import Follower
from .ownership import Ownership
from .settings import IDLE, Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..agents.protocol import Record
    from .deduplicator import Mark

    Report = Callable[[list[tuple[Mark, Record]]], None]

# Seconds between two looks that no notice asked for: a folder that does not exist yet cannot be
# watched, and some file systems give no notices.
_SOON, _LATER = 0.5, 5.0
_AT_A_TIME = 256
# How long recovery waits for a transcript process that is still there, and how often it looks.
_PATIENCE, _BETWEEN_TRIES = 10.0, 0.02
_STANDARD_INPUT = 0


def watch(folder: str) -> int:
    """Follow the transcripts of a run until it is over; the exit status."""
    settings = Settings.read(folder)
    client = BlockingClient(
        endpoint.socket_path(os.path.basename(folder)),
        stream=settings.stream,
        about={"speaks_for": folder, "agent": settings.name},
    )
    ownership = Ownership(folder)
    with _open_marks(folder) as marks:
        # The process before us may still be reporting.
        fcntl.flock(marks, fcntl.LOCK_EX)

        def report(new: list[tuple[Mark, Record]]) -> None:
            for start in range(0, len(new), _AT_A_TIME):
                some = new[start : start + _AT_A_TIME]
                _deliver(client, [record for _, record in some])
                os.write(marks.fileno(), b"".join(mark for mark, _ in some))

        follower = _follower(settings, ownership, marks.read(), report)
        try:
            after = os.path.exists(os.path.join(folder, GOES_ON))
            idle = _follow(follower, until_idle=after)
            follower.look(final=True)
            if follower.unread:
                return 1  # the next process may be able to; who comes last says so
        except NotDelivered:
            return 1  # the next process continues behind what was acknowledged
        finally:
            client.close()
            ownership.close()
    return IDLE if idle else 0


def _open_marks(folder: str) -> FileIO:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    return FileIO(os.open(os.path.join(folder, "watched"), flags, 0o600), "r+")


def _follower(settings: Settings, ownership: Ownership, marks: bytes, report: Report) -> Follower:
    deduplicator = Deduplicator(Known(marks), settings.cwd)
    sources = settings.sources(ownership.claim, deduplicator.is_announced)
    return Follower(
        sources, settings.launched, settings.stood, ownership, deduplicator, report, time.time
    )


def _deliver(client: BlockingClient, new: list[Record]) -> None:
    """Report, however busy the supervisor is. Raises NotDelivered if it is gone."""
    while True:
        try:
            client.send(*new)
            return
        except NotDelivered:
            new = []  # the client keeps them, and sends them on the next connection
            if _is_over(_SOON):
                client.send()
                return


def _is_over(seconds: float) -> bool:
    return bool(select.select([_STANDARD_INPUT], [], [], seconds)[0])


def _follow(follower: Follower, *, until_idle: bool) -> bool:
    """Look whenever something has changed, until the run is over, or until nobody goes on with it
    in the background: then True."""
    follower.look()
    if _is_over(0):
        return False
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    from .changes import Changes  # watchdog is slow to import: what stands there is read first

    changes = Changes(lambda: _write(wake))
    looked, complete = 0.0, False
    while True:
        # Nobody gave a notice of what happened in a folder before it was watched.
        before, complete = complete, changes.watch(follower.folders())
        patience = _LATER if complete else _SOON
        if (now := time.monotonic()) - looked >= patience or not before:
            follower.look()
            looked = now
        if until_idle and follower.is_idle():
            return True
        patience = _SOON if until_idle else patience
        ready, _, _ = select.select([_STANDARD_INPUT, woken], [], [], patience)
        if _STANDARD_INPUT in ready:
            return False
        if woken in ready:
            os.read(woken, 65536)
            follower.look(changes.take())


def _write(wake: int) -> None:
    try:
        os.write(wake, b".")
    except OSError:
        pass  # the pipe is full, so the reader wakes up anyway


def catch_up(folder: str) -> list[str]:
    """For a run whose agent is dead, and that no transcript process could read to the end: append
    what the transcripts hold beyond the journal to the stream's spool, as if it had been sent in
    time. Returns what could not be read, and why.

    Raises StillRead if a transcript process is there: it ends with its supervisor, unless it is
    stopped."""
    from ..recovery.gather import gather  # only recovery needs these
    from ..recovery.replay import replay

    settings = Settings.read(folder)
    with _open_marks(folder) as marks:
        _wait_for_the_last(marks)
        known = marks.read()
    replayed = replay(gather(folder, settings.stream).frames)
    path = os.path.join(folder, settings.stream + ".spool")
    number = replayed.last

    def report(new: list[tuple[Mark, Record]]) -> None:
        nonlocal number
        hello: dict[str, Any] = {
            "kind": "hello", "version": records.VERSION, "oldest": records.OLDEST,
            "stream": settings.stream, "pid": 0, "cwd": settings.cwd,
            "speaks_for": folder, "agent": settings.name,
        }  # fmt: skip
        out = b"" if replayed.hello or number else frames.encode(0, records.pack(hello))
        for _, record in new:
            for payload in records.fit_all(record):
                number += 1
                out += frames.encode(number, payload)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        if new:
            with open(os.open(path, flags, 0o600), "ab") as file:
                file.write(out)

    ownership = Ownership(folder)
    try:
        follower = _follower(settings, ownership, known, report)
        follower.look(final=True)
    finally:
        ownership.close()
    return follower.unread


class StillRead(OSError):
    """Another process is reading the transcripts of this run."""


def _wait_for_the_last(marks: FileIO) -> None:
    """Wait until the process before us has marked here what was acknowledged to it."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(marks, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StillRead("a process is still reading the agent's transcripts") from None
            time.sleep(_BETWEEN_TRIES)
