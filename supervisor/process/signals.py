"""Signals: each has one owner, and the agent gets each once.

    TERM HUP INT QUIT USR1 USR2   the agent's. If the whole process group got the signal, the
                                  agent has it already; if only we got it, it is forwarded
    TSTP                          the agent's: we stop after it has stopped, not before
    TTIN TTOU                     ignored: writing our last lines must not stop us
    CHLD CONT                     ours

The signal itself does not say whether the whole group got it: kill(pid) and kill(-group) arrive
with the same code and sender. So a standby, a forked process that does nothing else, sits in the
same group and reports which signals it got.
"""

from __future__ import annotations

import os
import time

from ...ipc.lightweight import signal as signal
from .platform import forbid_core_dump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from .loop import Loop

FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
)  # fmt: skip
_OURS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP)
_IGNORED = (signal.SIGTTIN, signal.SIGTTOU)
# Python ignores these; no program expects to inherit that.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

# A sender signals the members of a group one after the other; within this time all have it.
GROUP_DELAY = 0.02
# How long the standby may take to answer (somebody may have stopped it), and how long its reports
# count.
_ANSWER_TIMEOUT = 1.0
_REPORT_LIFETIME = 1.0


class Signals:
    """A descriptor that becomes readable when a signal arrives. Handlers only wake the loop."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self.child_defaults = list(IGNORED_BY_PYTHON)
        # If our parent blocked SIGCHLD, we would never learn that the agent has exited.
        self.child_mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        for number in (*FORWARDED, *_OURS):
            # A signal that was ignored when we started (nohup) stays ignored, for the agent also.
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, _do_nothing)
        for number in _IGNORED:
            if signal.signal(number, signal.SIG_IGN) != signal.SIG_IGN:
                self.child_defaults.append(number)

    def discard_pending(self) -> None:
        """In a successor, which blocked signals until now: the agent got them itself."""
        for number in FORWARDED:
            if (before := signal.getsignal(number)) is not None:
                signal.signal(number, signal.SIG_IGN)  # also discards pending ones
                signal.signal(number, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    def fileno(self) -> int:
        return self._out

    def take(self) -> bytes:
        """The numbers of the signals that arrived, in order."""
        try:
            return os.read(self._out, 512)
        except BlockingIOError:
            return b""

    def ignore_in_job(self) -> None:
        """In a forked job: only SIGKILL may end or stop it half way."""
        signal.set_wakeup_fd(-1)
        for number in (*FORWARDED, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._out)
        os.close(self._in)


class Standby:
    """A forked process in our group: it reports the signals that the group gets, and takes the
    run over when we die.

    It is asked, not only listened to: it handles a signal it has got before it can answer, so the
    answer is right however busy the machine is.

    It is forked right after the agent is started. Earlier, it would report signals that the agent
    cannot have got, and a signal would be lost. Much later, it would miss signals that the agent
    has got, and the agent would get them twice.
    """

    def __init__(self, take_over: Callable[[], None] | None = None) -> None:
        self._reports, reporting = os.pipe()
        questions, self._questions = os.pipe()
        for fd in (self._reports, reporting, self._questions):
            os.set_blocking(fd, False)
        # A signal that arrives during the fork must not be reported through our own pipe.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _run_standby(reporting, questions, mask, take_over)
        except OSError:
            os.close(self._reports)
            os.close(self._questions)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(reporting)
            os.close(questions)
        self._reported: list[tuple[int, float]] = []
        self._unasked: list[int] = []
        self._asked: list[int] = []
        self._alive = True

    @property
    def alive(self) -> bool:
        return self._alive

    def start(self, loop: Loop, forward: Callable[[int], None]) -> None:
        """Listen to its reports from now on; `forward` gets each signal that only we got."""
        self._loop = loop
        self._forward = forward
        loop.when_readable(self._reports, self._read_reports)

    def check(self, number: int) -> None:
        """We got this signal: forward it, unless the whole group got it."""
        if not self._alive:
            self._forward(number)
            return
        self._unasked.append(number)
        if len(self._unasked) == 1:
            self._loop.after(GROUP_DELAY, self._ask)

    def stop(self) -> None:
        if self._alive:
            os.kill(self.pid, signal.SIGKILL)  # a stopped process would never see its pipe close
            self._close()
            os.waitpid(self.pid, 0)

    def reaped(self, pid: int) -> None:
        """If the standby was killed, every signal is forwarded from now on."""
        if self._alive and pid == self.pid:
            self._close()
            self._asked += self._unasked
            self._unasked = []
            self._decide(self._asked)

    def _close(self) -> None:
        self._alive = False
        self._loop.forget(self._reports)
        os.close(self._questions)
        os.close(self._reports)

    def _ask(self) -> None:
        if not self._unasked or not self._alive:
            return
        if self._asked:  # one question at a time
            self._loop.after(GROUP_DELAY, self._ask)
            return
        asked, self._unasked = self._unasked, []
        self._asked = asked
        try:
            os.write(self._questions, b"?")
        except OSError:
            pass  # dead or stopped: the timeout decides
        self._loop.after(_ANSWER_TIMEOUT, lambda: self._decide(asked))

    def _read_reports(self) -> None:
        try:
            numbers = os.read(self._reports, 512)
        except BlockingIOError:
            return
        if not numbers:
            self._loop.forget(self._reports)  # dead; SIGCHLD will say so as well
            return
        now = time.monotonic()
        # However long we were busy: a report about an open question is kept.
        open_questions = {*self._unasked, *self._asked}
        self._reported = [
            (n, t) for n, t in self._reported if n in open_questions or now - t < _REPORT_LIFETIME
        ]
        self._reported += [(number, now) for number in numbers if number]
        if 0 in numbers:
            self._decide(self._asked)

    def _decide(self, asked: list[int]) -> None:
        """Forward the signals that the standby did not report. The kernel may merge several of one
        kind into one, for the standby or for us, so those count as one."""
        if asked is not self._asked:
            return
        self._asked = []
        reported = {number for number, _ in self._reported}
        self._reported = [(n, t) for n, t in self._reported if n not in asked]
        for number in asked:
            if number not in reported:
                self._forward(number)


def _run_standby(
    reporting: int,
    questions: int,
    mask: set[signal.Signals | int],
    take_over: Callable[[], None] | None,
) -> None:
    """The whole life of the standby. It holds nothing of ours open but its two pipes."""
    try:
        signal.set_wakeup_fd(reporting, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        low, high = sorted((reporting, questions))
        os.closerange(0, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, 65536)
        while os.read(questions, 1):  # ends when the supervisor is dead
            os.write(reporting, bytes(1))
        if take_over is not None:
            signal.set_wakeup_fd(-1)
            take_over()
    finally:
        os._exit(0)


def _do_nothing(number: int, frame: object) -> None:
    """The wake-up pipe has the number already; Python only needs a handler."""


def stop_by_signal(number: int) -> None:
    """Stop as the agent did, so that a waiting shell reports the same; returns when continued."""
    if number == signal.SIGSTOP:
        os.kill(os.getpid(), number)
        return
    before = signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, before)


def die_by_signal(number: int) -> NoReturn:
    """Die as the agent did, so that our parent sees the same signal; without a second core file."""
    try:
        import resource  # start-up: only for an agent that was killed

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        forbid_core_dump()
    except Exception:
        pass  # a second core file does less harm than another exit status
    signal.set_wakeup_fd(-1)
    try:
        signal.signal(number, signal.SIG_DFL)
    except OSError:  # SIGKILL and SIGSTOP have no handler to reset
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    # Only process 1 of a pid namespace survives this.
    os._exit(128 + number)


def signal_name(number: int) -> str:
    names = [name for name, value in vars(signal).items() if value == number]
    # Of two names for one signal, the one that `signal.Signals` goes by.
    named = (name for name in names if name.startswith("SIG") and name[3] != "_")
    return min(named, default=f"signal {number}")
