"""The agent's signals: forwarded once each, and its stops followed, as if a shell had started it.

Loaded before the agent starts, with everything it needs: it must work whatever fails later. Never
opens a file.

    a signal that only we got            forwarded; see Standby in process/signals.py
    SIGHUP of the kernel, because the    the kernel tells only the session leader: forwarded to the
    terminal is gone and we lead         whole group, once; SIGKILL after the grace period to the
                                         agent's processes that are still in the group
    SIGTERM, SIGHUP, and the agent is    SIGKILL after the grace period
    still there
    the agent stops                      we stop by the same signal, so that the shell, which waits
                                         for us, takes its terminal back
    we are continued alone               the agent is continued
"""

from __future__ import annotations

import os
import time

from ..process.signals import GROUP_DELAY, Standby, signal, signal_name, stop_by_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model.options import Options
    from ..process.loop import Loop
    from ..process.terminal import Terminal

_BY_TERMINAL = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)


def fork_standby(folder: str, options: Options) -> Standby | None:
    """Fork the standby of a run; None if there can be none. Without one, signals are forwarded
    without asking, and nobody takes over."""

    def become_supervisor() -> None:
        from .. import adoption  # late on purpose: an upgrade may have come in between

        adoption.become_supervisor(folder)

    try:
        return Standby(None if options.no_adopt else become_supervisor)
    except OSError:
        return None


class Forwarding:
    def __init__(
        self,
        loop: Loop,
        agent: Callable[[], set[int]],
        reap: Callable[[], None],
        terminal: Terminal | None,
        grace: float,
        warn: Callable[[str], None],
    ) -> None:
        """`agent`: the pids of the agent's processes now. `reap`: learn of children that exited,
        stopped or were continued."""
        self._loop = loop
        self._agent = agent
        self._reap = reap
        self._terminal = terminal
        self._grace = grace
        self._warn = warn
        self._standby: Standby | None = None
        self._agent_is_stopped = False
        self._hung_up = False
        self.received: dict[int, float] = {}
        """The signals that we got, and when we last got each."""

    @property
    def pids(self) -> set[int]:
        return {self._standby.pid} if self._standby is not None else set()

    def use(self, standby: Standby | None) -> None:
        """Ask this standby about signals. Without one, every signal is taken to be for us alone."""
        self._standby = standby
        if standby is not None:
            standby.start(self._loop, self.forward)

    def dismiss_standby(self) -> None:
        if self._standby is not None:
            self._standby.stop()

    def reaped(self, pid: int) -> bool:
        """A child exited; True if it was the standby."""
        if self._standby is None or pid != self._standby.pid:
            return False
        self._standby.reaped(pid)
        return True

    def note(self, number: int) -> None:
        """We got a signal that is the agent's business."""
        self.received[number] = time.time()

    def got(self, number: int) -> None:
        """Forward a signal that we got, unless the agent has it already."""
        if self._standby is None:
            self.forward(number)
        else:
            self._standby.check(number)

    def forward(self, number: int) -> None:
        if number == signal.SIGHUP and self._is_hung_up():
            if self._hung_up:
                return
            # The kernel tells the session leader alone, and the others once the leader is dead. In
            # an agent of several processes, the death of one would tell the others nothing.
            self._hung_up = True
            os.killpg(0, signal.SIGHUP)
            self._loop.after(self._grace, self._end_of_hangup)
            return
        asked = self._signal_agent(number)
        if number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.after(self._grace, lambda: self._end_of_grace(number, asked))

    def agent_stopped(self, number: int) -> None:
        """Stop as the agent did. A shell that started us waits for us, not for the agent.

        SIGSTOP is followed only in a foreground job: there, either the agent stops itself after
        Ctrl-Z, or the shell would see its job stop just as well without us. Elsewhere nobody may
        be there to continue us."""
        self._agent_is_stopped = True
        if self._terminal is None:
            return
        if number in _BY_TERMINAL or self._terminal.has_us_as_foreground_job():
            stop_by_signal(number)
            # Continued. Normally the whole group was; if it was only us, continue the agent.
            self._loop.after(GROUP_DELAY, self._continue_agent)

    def agent_continued(self) -> None:
        self._agent_is_stopped = False

    def _continue_agent(self) -> None:
        self._reap()
        if self._agent_is_stopped:
            self._signal_agent(signal.SIGCONT)

    def _is_hung_up(self) -> bool:
        leads = os.getsid(0) == os.getpid()
        return leads and self._terminal is not None and self._terminal.is_gone()

    def _end_of_grace(self, number: int, asked: set[int]) -> None:
        """Kill the processes that were asked to end and are still there. Processes that were not
        asked yet are asked now."""
        if asked.isdisjoint(self._agent()):
            self.forward(number)
        else:
            self._signal_agent(signal.SIGKILL)

    def _end_of_hangup(self) -> None:
        """Kill the agent's processes that were in our group and are still there, whether or not
        the command is. A process in another group was not asked: it may be a daemon."""
        ours = os.getpgrp()
        self._send(signal.SIGKILL, {pid for pid in self._agent() if _group_of(pid) == ours})

    def _signal_agent(self, number: int) -> set[int]:
        pids = self._agent()
        self._send(number, pids)
        return pids

    def _send(self, number: int, pids: set[int]) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
            except OSError as error:  # it runs as another user
                self._warn(f"cannot forward {signal_name(number)}: {error.strerror or error}")


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None
