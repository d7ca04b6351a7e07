"""What becomes of what a living agent says: stored now and then, put together, its occasions seen.

Never does any of it itself. Loaded with the first word: a command that says nothing costs nothing.
"""

from __future__ import annotations

from .checkpoints import Checkpoints
from .compaction import Compaction
from .hooks.occasions import Occasions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .client import Stream
    from .loop import Loop
    from .options import Options
    from .run import Run
    from .workshop import Workshop


class Tending:
    def __init__(self, loop: Loop, workshop: Workshop, run: Run, options: Options) -> None:
        self._checkpoints = Checkpoints(loop, workshop, run, options.checkpoint)
        self._compaction = Compaction(workshop, run, self._checkpoints)
        self._occasions = Occasions(loop, workshop, run, options.idle_finalize)

    def spoke(self, stream: Stream) -> None:
        self._checkpoints.spoke(stream)
        self._occasions.spoke(stream)

    def segment_closed(self, stream: Stream, number: int) -> None:
        self._compaction.segment_closed(stream, number)

    def forget(self, stream: Stream) -> None:
        """Its process is dead, and what is left is for recovery."""
        self._checkpoints.forget(stream)
        self._occasions.forget(stream)

    def adopt(self, streams: dict[str, Stream]) -> None:
        """In an heir: whoever supervised them before may have died before it looked."""
        self._occasions.adopt(streams)
