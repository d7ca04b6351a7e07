"""Other runs with the same session: a run that works in it, or one that is being finished.

Never changes a file, and never waits.
"""

from __future__ import annotations

from ...ipc.lightweight import json
from ..model.life import Life, life_of
from ..process.platform import boot_id
from ..storage import run_folder as runs
from ..storage import run_lock
from ..storage.run_notes import living_agent
from .gather import gather
from .reading import database_of, is_alive, settings_of
from .replay import bring_back, replay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..model.stream import ReplayedStream, Session


def open_in_another_run(own: str, session_id: str, path: str) -> runs.Run | None:
    """The other run whose living agent has this session of this state.db open."""
    for run in _others(own):
        if living_agent(run.folder) is None:
            continue
        for replayed, session in _sharing(run, session_id, path):
            if session.ended is None and is_alive(replayed):
                return run
    return None


def is_being_finished(own: str, session_id: str, path: str, life: Life) -> bool:
    """True if somebody is just finishing another run, and an earlier life of this session is in
    it: its rows have to be there before ours."""
    for run in _others(own):
        if living_agent(run.folder) is not None or run_lock.is_claimed_here(run.folder):
            continue
        if run_lock.holder_of(run.folder) is None:
            continue  # nobody is at it
        for replayed, session in _sharing(run, session_id, path):
            if life_of(replayed, session, session.heard_at).precedes(life, boot_id()):
                return True
    return False


def _others(own: str) -> Iterator[runs.Run]:
    for folder in runs.left_behind():
        run = runs.Run(folder, -1)
        if run.name != own:
            yield run


def _sharing(run: runs.Run, session_id: str, path: str) -> Iterator[tuple[ReplayedStream, Session]]:
    """The streams of a run that contain a session."""
    name = json.quoted(session_id)[1:-1].encode()
    try:
        settings = settings_of(run)
        for stream in run.streams():
            gathered = gather(run.folder, stream)
            # Most have nothing to do with it, and need not be replayed.
            if not any(name in frame for _, frame in gathered.frames):
                continue
            replayed = replay(gathered.frames)
            bring_back(replayed)  # its supervisor may have all records in memory
            session = replayed.sessions.get(session_id)
            if session is not None and database_of(session, replayed, settings) == path:
                yield replayed, session
    except OSError:
        return  # it has just been finished, or is being compacted
