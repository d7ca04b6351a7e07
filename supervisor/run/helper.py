"""A command of ours that runs beside the agent: nobody waits for it, and it prints nothing.

Never competes with the agent: it has the lowest priority, no terminal, and no input or output.
"""

from __future__ import annotations

import os
import sys

from ..process.signals import FORWARDED, IGNORED_BY_PYTHON

_LOWEST_PRIORITY = 19


def start(arguments: list[str]) -> int:
    """Its pid, which is that of its process group as well."""
    words = [sys.executable, "-P", "-m", "hermes_supervise.supervisor", *arguments]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        pid = os.posix_spawn(
            sys.executable,
            words,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)],
            setsigdef=[*FORWARDED, *IGNORED_BY_PYTHON],
            setsigmask=[],
            setpgroup=0,
        )
    finally:
        os.close(null)
    try:
        os.setpriority(os.PRIO_PROCESS, pid, _LOWEST_PRIORITY)
    except OSError:
        pass  # it has ended already
    return pid
