"""Starts the shipper of a target, if none is at work.

Never waits for it. It is a process in a session of its own, with a low priority and without a
terminal: it outlives whoever started it.
"""

from __future__ import annotations

import fcntl
import os

from ..process import own_program

# Behind the agent, but not last of all: on a busy machine the last gets a hundredth of a processor,
# and what is said must reach the replica there, too.
_NICENESS = 5


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
    return own_program.start(["ship", target], niceness=_NICENESS)
