"""Puts the hooks of one run into the queue, each once.

Never decides which hooks to run (planner.py) or how the queue is stored (queue.py). Loaded only
after the rows are written: messages come first.
"""

from __future__ import annotations

from ..recovery import idle, report
from ..recovery.reading import database_of
from . import planner, queue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model.stream import ReplayedStream, Session
    from ..process.cause import Cause
    from ..recovery.report import SessionReport
    from ..storage.run_folder import Run
    from .entry import Entry


class Enqueuer:
    """Queues the hooks of one run's streams."""

    def __init__(self, run: Run, settings: dict[str, Any]) -> None:
        self._run = run
        self._settings = settings
        self._log = queue.EnqueueLog(run.path("hooks.jsonl"))

    def for_running_agent(self, stream: str, replayed: ReplayedStream) -> list[Entry]:
        """Queue what was triggered while the agent runs, or ran."""

        def db_of(session: Session) -> str:
            return database_of(session, replayed, self._settings)

        silences = idle.noted(self._run, stream)
        planned = planner.for_running_agent(
            self._run.name, stream, replayed, silences, self._settings, db_of
        )
        return self._log.add(planned)

    def for_death(
        self, session: Session, replayed: ReplayedStream, settled: SessionReport, cause: Cause
    ) -> list[Entry]:
        """Queue what the death of its process triggers for an interrupted session."""
        return self._log.add(planner.for_death(session, replayed, settled, cause, self._settings))

    def report_results(self, stream: str, entries: list[Entry]) -> None:
        """Add results of hooks that ran before there was a report to write them to."""
        for entry in entries:
            current = queue.find(entry.id, entry.group)
            if current is not None and current.attempts != entry.attempts:
                report.note_hook(entry.run, stream, entry.session, current.summary())
