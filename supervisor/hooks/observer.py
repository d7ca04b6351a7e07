"""The observer that queues hooks for sessions that recovery has settled.

Never loads anything before the rows are written: messages come first.
"""

from __future__ import annotations

from ..recovery.finish import Observer, SettledStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .enqueue import Enqueuer
    from .entry import Entry


class QueueHooks(Observer):
    """Queues the hooks of one run."""

    def __init__(self) -> None:
        self._enqueuer: Enqueuer | None = None
        self._queued: dict[str, list[Entry]] = {}

    def settled(self, stream: SettledStream) -> None:
        enqueuer = self._enqueuer_of(stream)
        queued = enqueuer.for_running_agent(stream.stream, stream.replayed)
        for settled in stream.sessions:
            session, report = settled.session, settled.report
            if settled.owes_hooks:
                queued += enqueuer.for_death(session, stream.replayed, report, settled.cause)
            report.hooks = [entry.summary() for entry in queued if entry.session == session.id]
        self._queued[stream.stream] = queued

    def reported(self, stream: SettledStream) -> None:
        queued = self._queued.pop(stream.stream, [])
        self._enqueuer_of(stream).report_results(stream.stream, queued)

    def _enqueuer_of(self, stream: SettledStream) -> Enqueuer:
        if self._enqueuer is None:
            from .enqueue import Enqueuer  # start-up: loads what only hooks need, after the commit

            self._enqueuer = Enqueuer(stream.run, stream.settings)
        return self._enqueuer
