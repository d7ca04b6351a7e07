"""The memory of processes, and which process is below which, as the kernel reports it.

Never signals a process. All sizes are in bytes; a size that is not known is left out.
"""

from __future__ import annotations

import os
import time

from .platform import below, group_memory, proportional, resident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from resource import struct_rusage

__all__ = ["MemoryUse", "any_child", "below", "proportional", "resident"]


def any_child(*, weighed: bool) -> tuple[int, int, struct_rusage | None]:
    """A child that ended, stopped or was continued: its pid (0: none), its wait status, and what it
    used. The last only where it matters: for that, Python loads a module, which takes longer than
    everything else at the end of a command that sent nothing."""
    flags = os.WNOHANG | os.WUNTRACED | os.WCONTINUED
    if weighed:
        try:
            import resource  # noqa: F401 - wait4 loads it when the child is gone already
        except ImportError:  # no descriptor left, or an upgrade replaced it
            weighed = False
    return os.wait4(-1, flags) if weighed else (*os.waitpid(-1, flags), None)


class MemoryUse:
    """The memory of the processes that matter, measured when that cost nothing."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, object]] = {}

    def look(self, pids: Iterable[int]) -> None:
        for pid in pids:
            weight = resident(pid)
            if weight is not None:
                self._seen.setdefault(pid, {}).update(last=weight, last_at=time.time())

    def reaped(self, pid: int, used: struct_rusage | None) -> None:
        """A child ended: the kernel says its peak, or the peak of the largest process that it
        waited for."""
        if used is None:
            return
        spent = round(used.ru_utime + used.ru_stime, 2)
        self._seen.setdefault(pid, {}).update(peak=used.ru_maxrss * 1024, cpu=spent)

    def forget(self, pid: int) -> None:
        self._seen.pop(pid, None)

    def take(self, pid: int) -> dict[str, object]:
        """Everything that is known about a dead process; it is forgotten here."""
        return {**self._seen.pop(pid, {}), **group_memory()}
