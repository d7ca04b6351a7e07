"""Waiting only: supervision has failed, and the agent goes on without it.

Loaded before the agent starts, with everything it needs: an upgrade may have replaced our files
since then, and there may be no descriptor left. So it imports nothing later and opens nothing. It
forwards signals, follows stops, reaps children, and returns the agent's status.
"""

from __future__ import annotations

import os

from ..process import launch
from ..process.loop import Loop
from ..process.signals import FORWARDED, signal
from .forwarding import Forwarding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model.options import Options
    from ..process.signals import Signals, Standby
    from ..process.terminal import Terminal


def wait_only(
    child: int, signals: Signals, standby: Standby | None, terminal: Terminal | None, grace: float
) -> int:
    """Wait for the agent; its wait status."""
    waiting = _Waiting(child)
    try:
        waiting.run(signals, standby, terminal, grace)
    except Exception:  # whatever it is: our parent waits for the agent's status
        pass
    return os.waitpid(child, 0)[1] if waiting.status is None else waiting.status


def say_why(fault: Exception, options: Options) -> None:
    if not options.quiet:
        launch.say(f"supervision failed; the agent continues without it: {launch.reason(fault)}")


class _Waiting:
    def __init__(self, child: int) -> None:
        self._child = child
        self.status: int | None = None

    def run(
        self, signals: Signals, standby: Standby | None, terminal: Terminal | None, grace: float
    ) -> None:
        loop = Loop()
        self._signals = signals
        self._forwarding = Forwarding(
            loop, lambda: {self._child}, self._reap, terminal, grace, launch.say
        )
        self._forwarding.use(standby)
        loop.when_readable(signals.fileno(), self._on_signals)
        self._reap()  # it may have exited before
        while self.status is None:
            loop.wait()
        self._forwarding.dismiss_standby()

    def _on_signals(self) -> None:
        for number in self._signals.take():
            if number == signal.SIGCHLD:
                self._reap()
            elif number in FORWARDED:
                self._forwarding.got(number)

    def _reap(self) -> None:
        while self.status is None:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if pid == 0:
                return
            if pid != self._child:
                self._forwarding.reaped(pid)
            elif os.WIFSTOPPED(status):
                self._forwarding.agent_stopped(os.WSTOPSIG(status))
            elif os.WIFCONTINUED(status):
                self._forwarding.agent_continued()
            else:
                self.status = status
