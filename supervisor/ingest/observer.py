"""What the server asks and reports about the run that it serves.

Never does anything: the run does (run/supervision.py).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .connection import Stream


class Observer:
    """What the server asks and reports; the run that it serves answers. These defaults are for a
    server that nobody observes."""

    def process_connected(self, pid: int, claimed_start: object) -> int | None:
        """A process said hello for the first time; its start time, if it is known."""

    def process_exited(self, pid: int, status: int) -> None:
        """A process was dead before it could be watched; how it exited, as the kernel says."""

    def user_refused(self, uid: int) -> None:
        """A process of another user tried to connect."""

    def is_part_of(self, pid: int, whole: int) -> bool:
        """True if `pid` may speak for the process `whole`."""
        return False

    def transcript_owner(self) -> tuple[int, int | None]:
        """Pid and start time of the agent whose transcripts are followed."""
        return 0, None

    def is_recovering(self) -> bool:
        """True while a recovery is under way."""
        return False

    def records_arrived(self, stream: Stream) -> None:
        """There is something new in a stream's journal."""

    def segment_closed(self, stream: Stream, number: int) -> None:
        """A segment of a stream's journal is complete."""

    def synced(self) -> None:
        """The journals are about to be synced: once in every interval in which records arrive."""

    def batch_journaled(self) -> None:
        """What came in the last batch interval is in the journals; only if there is one."""

    def warn(self, text: str) -> None:
        """Something failed that the user should know."""
