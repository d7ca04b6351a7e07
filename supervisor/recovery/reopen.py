"""Removes our end mark from a session when a process that stores its messages itself continues it.

Never removes an end mark that the agent set, and writes nothing else.

Such an agent may not know of our end mark: its host lived on while the process that we saw die was
only a worker of it. As long as the mark is there, Hermes takes the session for closed.
"""

from __future__ import annotations

import os
import time

from ..model.job_result import JobResult
from ..model.life import life_of
from ..model.stream import ReplayedStream, Session
from ..process.platform import boot_id
from ..statedb.writer import Part, StateDb, StateDbError
from .gather import gather
from .reading import database_of, settings_of
from .replay import replay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..storage.run_folder import Run

# A death must not wait for long behind it.
_PATIENCE = 2.0


def reopen(run: Run, stream: str, taken_up: Mapping[str, str]) -> JobResult:
    """Check the sessions that a process announced, each with its state.db if it was named."""
    default = str(settings_of(run)["db"])
    try:
        ended = [id for id, db in taken_up.items() if _is_ended_by_us(id, db or default)]
    except StateDbError:
        return JobResult.AGAIN
    if not ended:
        return JobResult.NOT_OURS  # as nearly always: the journal is not even read
    replayed = replay(gather(run.folder, stream).frames)
    sessions = [replayed.sessions[id] for id in ended if id in replayed.sessions]
    result = take_back_ends(run, stream, replayed, sessions)
    # A session without a message yet is checked again.
    return result if all(session.was_spoken_in for session in sessions) else JobResult.AGAIN


def take_back_ends(
    run: Run, stream: str, replayed: ReplayedStream, sessions: list[Session]
) -> JobResult:
    settings = settings_of(run)
    try:
        for session in sessions:
            path = database_of(session, replayed, settings)
            if _is_ended_by_us(session.id, path):
                life = life_of(replayed, session)
                _take_back(path, Part(stream, session, time.time(), life, living=True))
    except StateDbError:
        return JobResult.AGAIN
    return JobResult.NOT_OURS


def _is_ended_by_us(session_id: str, path: str) -> bool:
    if not os.path.exists(path):
        return False
    database = StateDb(path, _PATIENCE, read_only=True)
    try:
        return database.is_ended_by_us(session_id)
    finally:
        database.close()


def _take_back(path: str, part: Part) -> None:
    database = StateDb(path, _PATIENCE)
    try:
        database.write([part], boot=boot_id()).reopen()
    finally:
        database.close()
