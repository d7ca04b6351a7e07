"""What only the markers in state.db say about a stream.

Never writes. A database that cannot be read changes nothing.

A checkpoint notes what it stored first in the marker and then beside the journal. If the second
note cannot be written, or its writer is killed before it, and the records themselves were only in
the memory of that supervisor, the marker is all that is left of the session.
"""

from __future__ import annotations

import os

from ..model.stored import from_rows
from ..model.stream import Session
from ..statedb.writer import StateDb, StateDbError
from .gather import tombstone
from .reading import database_of
from .replay import bring_back, ends_after

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..storage.run_folder import Run
    from .reading import Reading


def add(
    run: Run,
    settings: dict[str, Any],
    dead: list[Reading],
    living: list[Reading],
    patience: float,
) -> None:
    """Add the sessions, and the rows of sessions, that only markers know. Those of a living process
    are not brought back: it may send more of them."""
    # A stream without files is finished; so is one with a tombstone.
    readings = [
        reading
        for reading in (*dead, *living)
        if reading.gathered.files and not os.path.exists(tombstone(run.folder, reading.stream))
    ]
    for path in sorted({path for reading in readings for path in _databases(reading, settings)}):
        if not os.path.exists(path):
            continue
        try:
            database = StateDb(path, patience, read_only=True)
        except StateDbError:
            continue
        try:
            for reading in readings:
                for id, marker in database.unfinished(reading.stream).items():
                    _add(reading, id, marker, path, settings)
        except StateDbError:
            continue
        finally:
            database.close()
    for reading in dead:
        bring_back(reading.replayed)


def _databases(reading: Reading, settings: dict[str, Any]) -> set[str]:
    """Where the sessions of a stream may be: in the databases that are known to its run."""
    replayed = reading.replayed
    known = [Session(""), *replayed.sessions.values()]
    return {database_of(session, replayed, settings) for session in known}


def _add(
    reading: Reading, id: str, marker: dict[str, Any], path: str, settings: dict[str, Any]
) -> None:
    replayed = reading.replayed
    rows = from_rows(marker.get("rows") or ())
    if not ends_after(replayed, rows):
        return  # its records are in the journal, or were dropped from it
    session = replayed.sessions.get(id) or replayed.dropped.setdefault(id, Session(id))
    session.stored |= rows
    known = marker.get("known")
    if isinstance(known, dict) and id not in replayed.sessions:
        session.noted = known
    if database_of(Session(""), replayed, settings) != path:
        about = session.noted.get("about")
        session.noted = {
            **session.noted,
            "about": {**(about if isinstance(about, dict) else {}), "db": path},
        }
