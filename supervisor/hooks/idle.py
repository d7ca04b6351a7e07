"""Hooks that a living agent owes: for conversations that took another's place, and for sessions
in which nothing has been said for too long.

Never ends a session that somebody works in, nor one of an agent that sees to this itself.

A session that has been silent for too long is written down first, in idle.jsonl of the run's
folder, with the number of the last record that spoke of it. Whoever reads the journal takes it
for ended from then on (`mark`), until a later record speaks of it: that opens it again. So its
end goes into its row, and out of it again, by the same ways as one that the agent told of.
"""

from __future__ import annotations

import os
import time

from ...ipc import jsontext
from ..plain import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..recovery.told import Session, Told
    from ..run import Run

REASON = "idle"


@dataclass
class Silence:
    stream: str
    session: str
    heard: int
    """The number of the last record of it."""
    at: float


def noted(run: Run, stream: str) -> list[Silence]:
    """What has been written down, oldest first."""
    found = []
    try:
        with open(run.path("idle.jsonl"), encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    one = Silence(**jsontext.loads(line))
                    if one.stream == stream:
                        found.append(one)
                except (ValueError, TypeError):
                    continue  # the line that was being written when its writer died
    except FileNotFoundError:
        pass
    return found


def mark(run: Run, stream: str, told: Told) -> None:
    """Take for ended what was written down as silent and has not been heard of since."""
    for one in noted(run, stream):
        session = told.sessions.get(one.session)
        if session is not None and session.ended is None and session.heard <= one.heard:
            session.ended, session.ended_at, session.idle = REASON, one.at, True


def look(run: Run, stream: str, limit: float) -> int:
    """Queue what is owed; says whether there are sessions that may yet become silent."""
    from ..adapters import hermes
    from ..recovery.checkpoint import checkpoint
    from ..recovery.finish import settings_of
    from ..recovery.gather import gather
    from ..recovery.replay import replay
    from .due import Due
    from .occasions import AGAIN, DONE, LEAVE_IT

    told = replay(gather(run.folder, stream).frames)
    outcome = LEAVE_IT if hermes.is_hermes(told) else DONE
    if limit and outcome == DONE:
        mark(run, stream, told)
        for session in told.sessions.values():
            if session.ended is None:
                outcome = outcome if _fell_silent(run, stream, session, limit) else AGAIN
        checkpoint(run, stream)
    Due(run, settings_of(run)).while_it_lived(stream, told)
    return outcome


def _fell_silent(run: Run, stream: str, session: Session, limit: float) -> bool:
    now = time.time()
    if session.in_flight or session.calls or now - session.heard_at < limit:
        return False
    if session.items:
        line = {"stream": stream, "session": session.id, "heard": session.heard, "at": now}
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(run.path("idle.jsonl"), flags, 0o600)
        with open(fd, "a", encoding="utf-8") as file:
            # Begins with a newline: a torn line before it must not swallow this one.
            file.write("\n" + jsontext.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
    return True
