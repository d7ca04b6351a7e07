"""Watching a process where no descriptor reports its death: `dead` has to be polled.

Never reaps the process: its status is its parent's. A platform says how it finds out.
"""

from __future__ import annotations

import time

_INTERVAL = 0.01


class PolledWatch:
    def __init__(self, pid: int, start: int | None) -> None:
        self.pid = pid
        self._start = start

    def fileno(self) -> None:
        return None

    def dead(self) -> bool:
        raise NotImplementedError

    def wait(self, seconds: float) -> bool:
        """Wait until the process is dead, for so long at most; True if it is dead."""
        end = time.monotonic() + seconds
        while not (dead := self.dead()) and time.monotonic() < end:
            time.sleep(_INTERVAL)
        return dead

    def status(self) -> int | None:
        """The wait status of the dead process; None where nobody knows it."""
        return None

    def close(self) -> None:
        pass
