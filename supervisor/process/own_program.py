"""Starts our own program as another process, beside the agent: nobody sees what it prints.

Never competes with the agent: it has no terminal and, unless asked otherwise, the lowest priority,
which on a busy machine is next to none.
"""

from __future__ import annotations

import os
import sys

from .signals import FORWARDED, IGNORED_BY_PYTHON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LOWEST = 19


def start(
    arguments: list[str],
    *,
    stdin: int | None = None,
    own_session: bool = True,
    niceness: int = _LOWEST,
) -> int:
    """Its pid, which is that of its process group as well. In a session of its own it outlives
    whoever started it, and gets no key that is pressed at the terminal. `niceness`: as nice(1) has
    it; 0 is our own priority."""
    words = [sys.executable, "-P", "-m", "hermes_supervise.supervisor", *arguments]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    streams = (null if stdin is None else stdin, null, null)
    how: dict[str, Any] = {
        "file_actions": [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate(streams)],
        "setsigdef": [*FORWARDED, *IGNORED_BY_PYTHON],
        "setsigmask": [],
    }
    try:
        pid = _spawn(words, how, own_session=own_session)
    finally:
        os.close(null)
    if niceness:
        try:
            os.setpriority(os.PRIO_PROCESS, pid, niceness)
        except OSError:
            pass  # it has ended already, or we are nicer ourselves
    return pid


def _spawn(words: list[str], how: dict[str, Any], *, own_session: bool) -> int:
    if own_session:
        try:
            return os.posix_spawn(words[0], words, os.environ, setsid=True, **how)
        except NotImplementedError:
            pass  # a system without it: at least a group of its own
    return os.posix_spawn(words[0], words, os.environ, setpgroup=0, **how)
