"""How a standby becomes the supervisor of its run: it executes this program anew.

Never imports anything of ours. A standby loads this module late, when its supervisor has died, and
an upgrade may have replaced all files by then. So the module keeps its path and the name
`become_supervisor`, which standbys of release 0.1.0 look for, and works beside modules of any
version (docs/stability.md).
"""

from __future__ import annotations

import os
import signal
import sys

# What a successor will pass on to its agent, once it can listen. Keep equal to `FORWARDED` in
# process/signals.py: this module must load after an upgrade and imports nothing of ours.
_HELD_BACK = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
)  # fmt: skip


def become_supervisor(run_folder: str) -> None:
    """Replace this process by a supervisor that takes over the run."""
    # Until it can listen, which may take as long as a recovery that is under way.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    # A standby holds nothing open, and a program needs its three streams: without them the next
    # files it opens, its locks, would get their numbers.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    module = "hermes_supervise.supervisor"
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, "adopt", run_folder])
