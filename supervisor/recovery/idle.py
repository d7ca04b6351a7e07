"""Sessions that were finalised because they were idle for too long.

The search for idle sessions (hooks/idle.py) first writes a line into `idle.jsonl` of the run's
folder, with the number of the session's last record. Every reader of the journal then treats the
session as ended (`mark`), until a later record of it reopens it. So the end is written to the
session's row, and removed again, in the same way as an end that the agent reported.
"""

from __future__ import annotations

import os

from ...ipc.lightweight import json
from ...ipc.lightweight.dataclass import dataclass
from ..model.checked import SILENCE, checked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model.stream import ReplayedStream, Session
    from ..storage.run_folder import Run

REASON = "idle"


@dataclass
class Silence:
    stream: str
    session: str
    heard: int
    """The number of the session's last record."""
    at: float


def noted(run: Run, stream: str) -> list[Silence]:
    """The idle sessions of a stream that were noted, oldest first."""
    silences = []
    try:
        with open(run.path("idle.jsonl"), encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    silence = Silence(**checked(json.loads(line), SILENCE))
                except (ValueError, TypeError):
                    continue  # the line that was being written when its writer died
                if silence.stream == stream:
                    silences.append(silence)
    except FileNotFoundError:
        pass
    return silences


def note(run: Run, stream: str, session: Session, now: float) -> None:
    """Note that a session is idle. The line is on disk when this returns."""
    line = {"stream": stream, "session": session.id, "heard": session.heard, "at": now}
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(run.path("idle.jsonl"), flags, 0o600)
    with open(fd, "a", encoding="utf-8") as file:
        # Begins with a newline: a torn line before it must not swallow this one.
        file.write("\n" + json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def mark(run: Run, stream: str, replayed: ReplayedStream) -> None:
    """Treat sessions as ended that were noted as idle and have no record since."""
    for silence in noted(run, stream):
        session = replayed.sessions.get(silence.session)
        if session is not None and session.ended is None and session.heard <= silence.heard:
            session.ended, session.ended_at, session.idle = REASON, silence.at, True
