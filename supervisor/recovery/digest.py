"""Stores a long stream of a dead process piece by piece, in the memory of a few segments.

Never ends a session, and never touches a stream that is short, that its agent stored itself, that
is damaged, or that shares a session with another stream: that is finished as a whole.

Each piece is stored as it would have been while the agent lived (checkpoint.py), then what is in
the database is dropped from the journal (compact.py). If it is killed, the next recovery continues
from there. The little that is left at the end is finished like any other stream.
"""

from __future__ import annotations

import time

from ...ipc import frames, records
from ..model.life import life_of
from ..model.stored import mark
from ..model.stream import ReplayedStream
from ..process.platform import boot_id
from ..statedb.writer import Part
from .checkpoint import left_to_us, stores_itself, write_down
from .compact import closed_part, essential, put_in_place
from .gather import files_of, gather
from .reading import is_alive
from .replay import replay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..storage.run_folder import Run
    from .checkpoint import Databases


def digest(run: Run, stream: str, databases: Databases, *, restarted: bool) -> None:
    """Raises StateDbError where the database cannot be written now; nothing is lost by that.

    `restarted`: the machine was restarted since, so whoever has the process's pid is another one.
    """
    if _shares_a_session(run, stream):
        return
    numbers = sorted(
        int(name.split(".")[1])
        for name in files_of(run.folder, stream)
        if name.endswith(".log") and name.split(".")[1].isdecimal()
    )
    for number in numbers[:-1]:
        names, gathered = closed_part(run.folder, stream, number)
        replayed = replay(gathered.frames)
        odd = replayed.gaps or replayed.bad_records or gathered.damaged
        if odd or stores_itself(replayed) or (is_alive(replayed) and not restarted):
            return
        _store(run, stream, replayed, databases)
        kept = essential(gathered.frames, databases.have_the_end_of, replayed)
        put_in_place(run.folder, stream, names, gathered, kept)
        del gathered, replayed, kept


def _store(run: Run, stream: str, replayed: ReplayedStream, databases: Databases) -> None:
    for session in left_to_us(replayed):
        life = life_of(replayed, session)
        part = Part(stream, session, time.time(), life, living=True, counted=True)
        database = databases.open(databases.path_of(replayed, session))
        if list(database.write([part], boot=boot_id()).steps()):
            mark(session)
            # The sessions of this piece, and those of earlier pieces that could not be stored yet.
            write_down(run, stream, [*replayed.sessions.values(), *replayed.dropped.values()])


def _shares_a_session(run: Run, stream: str) -> bool:
    others = [name for name in run.streams() if name != stream]
    if not others:
        return False
    own = _sessions_in(run, stream)
    return any(own & _sessions_in(run, name) for name in others)


def _sessions_in(run: Run, stream: str) -> set[str]:
    """The sessions that a stream announces, read file by file."""
    ids: set[str] = set()
    for name in files_of(run.folder, stream):
        for _, frame in gather(run.folder, stream, [name]).frames:
            if b'"session"' in frame:
                try:
                    record = records.unpack(frames.payload_of(frame))
                except records.BadRecord:
                    continue
                ids |= {id for id in (record.get("session"), record.get("new")) if type(id) is str}
    return ids
