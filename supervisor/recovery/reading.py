"""Reads the streams of a run: their contents, whether each process is alive, which database it
uses.

Never changes a file.
"""

from __future__ import annotations

import os
import time

from ...ipc.lightweight.dataclass import dataclass
from ..agents.state_db import default_db
from ..model.life import NANOSECONDS_A_TICK
from ..model.stream import ReplayedStream, Session
from ..process.death import lives, may_live
from ..process.platform import process_start
from ..storage import run_folder as runs
from ..storage import run_notes
from .gather import Gathered, gather
from .replay import bring_back, replay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model.unwritten import Unwritten

# A client may report any number of missing things, of any length.
_MOST_NAMES = 20
_LONGEST_NAME = 80


@dataclass
class Reading:
    """A stream as it was read."""

    stream: str
    gathered: Gathered
    replayed: ReplayedStream
    living: bool
    """Its process lived when the files were read."""


def read(run: runs.Run, stream: str, unwritten: Unwritten | None = None) -> Reading:
    """Read a stream. Of a dead process, everything that it ever will say.

    A process may send more and die while its files are read, so they are read again once it is
    known to be dead. Asking a second time whether it is alive would be too late.
    """
    gathered = gather(run.folder, stream, unwritten=unwritten)
    replayed = replay(gathered.frames)
    dead: object = None
    while replayed.death is None and dead != (process := replayed.peer or replayed.hello):
        if is_alive(replayed):
            return Reading(stream, gathered, replayed, living=True)
        dead = process
        again = gather(run.folder, stream, unwritten=unwritten)
        if again.frames != gathered.frames:
            replayed = replay(again.frames)
        gathered = again
    bring_back(replayed)
    if gathered.handed_over > replayed.last:
        replayed.gaps.append((replayed.last + 1, gathered.handed_over))
    return Reading(stream, gathered, replayed, living=False)


def is_alive(replayed: ReplayedStream) -> bool:
    """True if the process that a stream comes from is alive."""
    if replayed.death is not None:
        return False
    if isinstance(folder := replayed.hello.get("speaks_for"), str):
        # A transcript reader sends the agent's records.
        return run_notes.living_agent(folder) is not None
    if replayed.peer:
        return may_live(replayed.peer.get("pid"), replayed.peer.get("start"))
    pid, start = replayed.hello.get("pid"), replayed.hello.get("start")
    if start is not None or not isinstance(pid, int):
        return may_live(pid, start)
    # Nobody has read its hello but us, and it could not tell its start: it has no /proc.
    another_boot = run_notes.is_of_another_boot(replayed.hello.get("boot"))
    return not another_boot and lives(pid, None) and not _began_later(pid, replayed)


def _began_later(pid: int, replayed: ReplayedStream) -> bool:
    """True if whoever has the pid began after the stream's last record."""
    last = max((session.last_place for session in replayed.sessions.values()), default=0)
    return 0 < last < (process_start(pid) or 0) * NANOSECONDS_A_TICK


def last_sign_of_life(reading: Reading) -> float:
    """For a death that nobody saw. Writing to a ring does not change the file's time, but most
    records have a time; a time in the future is ignored."""
    sessions = reading.replayed.sessions.values()
    heard = max((session.heard_at for session in sessions), default=0.0)
    return max(reading.gathered.newest, min(heard, time.time()))


def settings_of(run: runs.Run) -> dict[str, Any]:
    """How the run wants its sessions finished; the defaults where that is not known."""
    return {"db": default_db(), **runs.settings(run)}


def database_of(session: Session, replayed: ReplayedStream, settings: dict[str, Any]) -> str:
    """The state.db of a session. A relative path is meant as the agent would have opened it."""
    path = str(session.about.get("db") or settings["db"])
    return os.path.abspath(os.path.join(str(replayed.hello.get("cwd") or ""), path))


def agent_of(replayed: ReplayedStream) -> str | None:
    """The name of the program that sent the stream, and its version if it is known."""
    hello = replayed.hello
    name, version = hello.get("agent"), hello.get("agent_version")
    if not isinstance(name, str) or not name:
        argv = hello.get("argv")
        first = argv[0] if isinstance(argv, list) and argv else hello.get("executable")
        return os.path.basename(first) or None if isinstance(first, str) else None
    return f"{name} {version}" if isinstance(version, str) else name


def open_calls(session: Session) -> list[dict[str, Any]]:
    """The calls without an answer. If the agent does not announce tools, each may have started."""
    return [
        {"name": call.name, "call": call.id, "since": call.began or None,
         "started": call.started or not session.announces_tools}
        for call in session.calls.values()
    ]  # fmt: skip


def not_captured(replayed: ReplayedStream) -> list[str]:
    """What the shim cannot see in this release of the agent, as its hello says."""
    missing = replayed.hello.get("missing")
    names = missing if isinstance(missing, list) else []
    return [str(name)[:_LONGEST_NAME] for name in names[:_MOST_NAMES]]
