"""From what a stream's sessions are owed to entries in the queue, each once.

Never decides what is owed (owed.py) or how an entry is kept (queue.py), and is not loaded before
the rows are in: nobody waits for a hook as for a word that was said.
"""

from __future__ import annotations

from ..recovery import report
from ..recovery.finish import database_of
from . import idle, owed, queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..cause import Cause
    from ..recovery.report import Settled
    from ..recovery.told import Session, Told
    from ..run import Run
    from .entry import Entry


class Due:
    """What one run's streams are owed."""

    def __init__(self, run: Run, settings: dict[str, Any]) -> None:
        self._run = run
        self._settings = settings
        self._queued = queue.Queued(run.path("hooks.jsonl"))

    def while_it_lived(self, stream: str, told: Told) -> list[Entry]:
        """Queue what a living agent owes, or owed before it died."""

        def db_of(session: Session) -> str:
            return database_of(session, told, self._settings)

        silent = idle.noted(self._run, stream)
        wanted = owed.while_it_lived(self._run.name, stream, told, silent, self._settings, db_of)
        return self._queued.add(wanted)

    def at_a_death(
        self, session: Session, told: Told, settled: Settled, cause: Cause
    ) -> list[Entry]:
        return self._queued.add(owed.at_a_death(session, told, settled, cause, self._settings))

    def note_what_ran(self, stream: str, entries: list[Entry]) -> None:
        """Whoever ran one before there was a report could not tell what came of it."""
        for entry in entries:
            now = queue.find(entry.id, entry.group)
            if now is not None and now.attempts != entry.attempts:
                report.note_hook(entry.run, stream, entry.session, now.as_ran())
