"""The death of a process that need not be our child.

Never signals a process. A pid alone identifies nobody: the identity is (pid, start time).
"""

from __future__ import annotations

import os

from .platform import Watch, is_another, process_start, watch

__all__ = ["Watch", "exists", "lives", "may_live", "watch"]


def exists(pid: int) -> bool:
    """True if any process has this pid, a zombie included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # it is there, and not ours to signal
    return True


def lives(pid: int, start: int | None) -> bool:
    """True if the process that began at `start` exists and is not a zombie. A zombie that nobody
    reaps keeps its pid for ever, but is dead. If the start time of the process with this pid cannot
    be read or compared, the process is not declared dead."""
    if is_another(pid, start) or not exists(pid):
        return False
    watched = watch(pid, start)
    if watched is None:
        return False
    try:
        return not watched.dead()
    finally:
        watched.close()


def may_live(pid: object, start: object) -> bool:
    """The same for a process that is known by what was written down of it. Without a start time,
    whoever has its pid is taken for it only where nobody's can be read: elsewhere it was dead
    when it was written down."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    if isinstance(start, int):
        return lives(pid, start)
    return start is None and process_start(os.getpid()) is None and lives(pid, None)
