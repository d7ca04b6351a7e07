"""When the closed segments of a living stream's journal are compacted, as a background job.

Never reads a segment itself: recovery/compact.py does, in the job.
"""

from __future__ import annotations

import os

from ..storage.journal import SEGMENT_BYTES, segment_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ingest.connection import Stream
    from ..storage.run_folder import Run
    from .jobs import Job, JobQueue


class Compaction:
    def __init__(self, jobs: JobQueue, run: Run) -> None:
        self._jobs = jobs
        self._run = run
        self._job: Job | None = None

    def consider(self, stream: Stream, closed: int) -> None:
        """Segments up to this number are closed. Compact once the new ones are as long as what the
        last compaction kept: so each byte is read only a few times, however long the journal
        grows."""
        kept = self._run.path(segment_name(stream.name, stream.compacted))
        fresh = (closed - stream.compacted) * SEGMENT_BYTES
        few = os.path.exists(kept) and fresh < os.path.getsize(kept)
        if fresh <= 0 or few or self._jobs.is_queued(self._job):
            return
        stream.compacted = closed

        def work() -> None:
            # In the job: heavy.
            from ..recovery.checkpoint import PATIENCE, Databases
            from ..recovery.compact import compact

            with Databases(self._run, PATIENCE) as databases:
                compact(self._run.folder, stream.name, closed, databases.have_the_end_of)

        failing = "a journal could not be compacted and keeps growing; nothing is lost"
        self._job = self._jobs.add(work, failing=failing)
