"""A long stream of a dead process, taken in piece by piece: memory stays that of a few segments.

Never ends a session, and never touches what is short, what its agent stored itself, or what is
damaged: that is finished as a whole.

Each piece is stored as it would have been while the agent lived (checkpoint.py), then what is in
the database is dropped from the journal (compact.py). Cut off anywhere, the next one to come goes
on from there; what is left in the end is little, and is finished like any other.
"""

from __future__ import annotations

import time

from .checkpoint import left_to_us, stores_itself, write_down
from .compact import closed_part, essential, put_in_place
from .finish import is_alive
from .gather import files_of
from .replay import Told, replay
from .stored import mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..run import Run
    from .checkpoint import Databases


def digest(run: Run, stream: str, databases: Databases) -> None:
    """Raises Trouble where the database cannot be written now; nothing is lost by that."""
    numbers = sorted(
        int(name.split(".")[1])
        for name in files_of(run.folder, stream)
        if name.endswith(".log") and name.split(".")[1].isdecimal()
    )
    for number in numbers[:-1]:
        names, found = closed_part(run.folder, stream, number)
        told = replay(found.frames)
        odd = told.gaps or told.bad_records or found.damaged
        if odd or stores_itself(told) or is_alive(told):
            return
        _store(run, stream, told, databases)
        kept = essential(found.frames, databases.have_the_end_of, told)
        put_in_place(run.folder, stream, names, found, kept)
        del found, told, kept


def _store(run: Run, stream: str, told: Told, databases: Databases) -> None:
    for session in left_to_us(told):
        steps = databases.of(told, session).store(stream, session, time.time(), recovers=True)
        if list(steps):
            mark(session)
            # Of this piece, and of those that it was too early to look at.
            write_down(run, stream, [*told.sessions.values(), *told.over.values()])
