"""Work for living streams: checkpoints, compaction, and hooks that a living agent triggers.

Never does the work itself: each part queues jobs. Loaded with the first record: a command that
never connects costs nothing.
"""

from __future__ import annotations

from .checkpoints import Checkpoints
from .compaction import Compaction
from .hook_triggers import HookTriggers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ingest.connection import Stream
    from ..model.options import Options
    from ..model.unwritten import Unwritten
    from ..process.loop import Loop
    from ..storage.run_folder import Run
    from .jobs import JobQueue


class BackgroundWork:
    def __init__(
        self,
        loop: Loop,
        jobs: JobQueue,
        run: Run,
        options: Options,
        streams: Callable[[], dict[str, Stream]],
        unwritten: Callable[[], dict[str, Unwritten]],
    ) -> None:
        self._checkpoints = Checkpoints(
            loop, jobs, run, options.checkpoint, streams, unwritten, self._stored
        )
        self._compaction = Compaction(jobs, run)
        self._hook_triggers = HookTriggers(loop, jobs, run, options.idle_finalize)

    def records_arrived(self, stream: Stream) -> None:
        self._checkpoints.records_arrived(stream)
        self._hook_triggers.records_arrived(stream)

    def segment_closed(self, stream: Stream, number: int) -> None:
        self._checkpoints.begin(stream)  # stored messages need not be kept
        self._compaction.consider(stream, number)

    def _stored(self, stream: Stream) -> None:
        """What could not be dropped before may be in state.db by now."""
        self._compaction.consider(stream, stream.journal.number - 1)

    def forget(self, stream: Stream) -> None:
        """Its process is dead: recovery does the rest."""
        self._checkpoints.forget(stream)
        self._hook_triggers.forget(stream)

    def took_over(self, streams: dict[str, Stream]) -> None:
        """In a successor: the dead supervisor may not have checked these streams any more."""
        self._hook_triggers.took_over(streams)
