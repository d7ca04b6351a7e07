"""Starts the shipper of a target, if none is at work.

Never waits for it. It is a process in a session of its own, with the lowest priority and without a
terminal: it outlives whoever started it.
"""

from __future__ import annotations

import fcntl
import os
import sys

from ..process.signals import FORWARDED, IGNORED_BY_PYTHON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOWEST_PRIORITY = 19


def is_at_work(target: str) -> bool:
    try:
        fd = os.open(os.path.join(target, "lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def start(target: str) -> int:
    """The pid of a new shipper; if another one is at work, it leaves at once."""
    words = [sys.executable, "-P", "-m", "hermes_supervise.supervisor", "ship", target]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    how: dict[str, Any] = {
        "file_actions": [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)],
        "setsigdef": [*FORWARDED, *IGNORED_BY_PYTHON],
        "setsigmask": [],
    }
    try:
        try:
            pid = os.posix_spawn(sys.executable, words, os.environ, setsid=True, **how)
        except NotImplementedError:
            pid = os.posix_spawn(sys.executable, words, os.environ, setpgroup=0, **how)
    finally:
        os.close(null)
    try:
        os.setpriority(os.PRIO_PROCESS, pid, _LOWEST_PRIORITY)
    except OSError:
        pass  # it has ended already
    return pid
