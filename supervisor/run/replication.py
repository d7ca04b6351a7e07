"""A run with a replica: keeps a shipper running, wakes it, and waits for it for a moment at the
end.

Never loads the shipper's own modules, and never delays the agent.
"""

from __future__ import annotations

import os
import sys
import time

from ..replica import places, starter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model.options import Options
    from ..process.loop import Loop
    from ..storage.run_folder import Run

_CHECK = 2.0
# How long the end of a run waits for the last records to be committed, if there is a connection.
_PATIENCE = 2.0
_LOOK = 0.02


def begin(run: Run, options: Options, about: dict[str, Any]) -> None:
    """Before the agent starts: from here on a shipper finds the run."""
    assert options.replica is not None
    if options.replica_key is not None:
        from ..replica import seal  # start-up: only with --replica-key

        seal.read_keys(options.replica_key)
        if not seal.is_installed():
            raise OSError(seal.INSTALL)
    names = ("db", "command", "cwd", "started", "boot")
    known: dict[str, Any] = {name: about[name] for name in names if name in about}
    known |= {
        "folder": run.folder,
        "replica_disk": options.replica_disk,
        "replica_keep": options.replica_keep,
        "replica_hooks": options.replica_hooks,
        "replica_key": options.replica_key,
        "replica_retention": options.replica_retention,
    }
    places.register(options.replica, run.name, run.folder, known)


def is_installed() -> bool:
    """Whether the shipper can speak to a database at all."""
    # As importlib.util.find_spec does, which would stay in the supervisor's memory.
    try:
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        return any(finder.find_spec("psycopg", None) is not None for finder in finders)
    except ImportError:
        return False


class Replication:
    """The replica of one run, as its supervisor sees it."""

    def __init__(self, loop: Loop, target: str, run: str, warn: Callable[[str], None]) -> None:
        self._loop = loop
        self._target = target
        self._run = run
        self._warn = warn
        self._wake = -1
        self.pids: set[int] = set()
        self._check()

    def _check(self) -> None:
        """Start a shipper if there is none, and tell what the user has to know."""
        try:
            if not starter.is_at_work(self._target) and not self.pids:
                self.pids.add(starter.start(self._target))
            known = places.status(self._target)
            warning, copied = known.get("warning"), known.get("copied") or {}
            if isinstance(warning, str):
                self._warn(f"the replica: {warning}")
            if self._run in copied:
                self._warn(
                    f"the replica: this machine was silent, and machine {copied[self._run]} has "
                    "recovered the sessions of this run; there are two of them now"
                )
        except OSError:
            pass  # no process or descriptor left; the next check tries again
        self._loop.after(_CHECK, self._check)

    def reaped(self, pid: int) -> bool:
        known = pid in self.pids
        self.pids.discard(pid)
        return known

    def wake(self) -> None:
        """There is something new in a journal."""
        try:
            if self._wake < 0:
                path = os.path.join(self._target, "wake")
                self._wake = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.write(self._wake, b".")
        except OSError:
            pass  # nobody listens yet, or the FIFO is full: it wakes up anyway

    def close_in_child(self) -> None:
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1


def wait_until_shipped(target: str, run: str) -> None:
    """The run is over: give the last records a moment, if they can go anywhere."""
    until = time.monotonic() + _PATIENCE
    registered = os.path.join(target, "runs", run)
    places.wake(target)
    while os.path.exists(registered) and time.monotonic() < until:
        if not places.status(target).get("connected"):
            return
        time.sleep(_LOOK)
