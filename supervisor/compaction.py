"""When the closed segments of a living stream's journal are put together, in a process of its own.

Never reads one itself: recovery/compact.py does.
"""

from __future__ import annotations

import os

from .journal import SEGMENT_BYTES, segment_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .checkpoints import Checkpoints
    from .client import Stream
    from .run import Run
    from .workshop import Job, Workshop


class Compaction:
    def __init__(self, workshop: Workshop, run: Run, checkpoints: Checkpoints) -> None:
        self._workshop = workshop
        self._run = run
        self._checkpoints = checkpoints
        # What could not be dropped before may be in the database by now.
        checkpoints.stored = lambda stream: self._consider(stream, stream.journal.number - 1)
        self._job: Job | None = None

    def segment_closed(self, stream: Stream, closed: int) -> None:
        self._checkpoints.begin(stream)  # what is stored need not be kept
        self._consider(stream, closed)

    def _consider(self, stream: Stream, closed: int) -> None:
        """Once there is as much new as was kept of the old, so that all in all no byte is read
        more than a few times, however long the journal grows."""
        kept = self._run.path(segment_name(stream.name, stream.compacted))
        fresh = (closed - stream.compacted) * SEGMENT_BYTES
        few = os.path.exists(kept) and fresh < os.path.getsize(kept)
        if fresh <= 0 or few or self._workshop.waits(self._job):
            return
        stream.compacted = closed

        def work() -> None:
            from .recovery.checkpoint import PATIENCE, Databases
            from .recovery.compact import compact

            with Databases(self._run, PATIENCE) as databases:
                compact(self._run.folder, stream.name, closed, databases.have_the_end_of)

        failing = "a journal could not be compacted; it only grows"
        self._job = self._workshop.add(work, failing=failing)
