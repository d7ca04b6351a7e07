"""What a supervisor has received of a stream and could not write to its journal. Data only.

Never on disk: it passes to a background job with the fork.
"""

from __future__ import annotations

from ...ipc.lightweight.dataclass import dataclass, field


@dataclass
class Unwritten:
    frames: list[tuple[int, bytes]] = field(default_factory=list)
    """Numbered frames; number 0 are handshakes and our own records."""
    size: int = 0
    """Their bytes, handshakes aside."""
    refused: int = 0
    """The highest number that arrived when there was no room left, on disk or in memory."""
