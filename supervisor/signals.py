"""Signals: each has one owner, and the agent hears each once.

    TERM HUP INT QUIT USR1 USR2   the agent's. If the whole process group got it, the agent
                                  has it already; if only we did, it is passed on
    TSTP                          the agent's: we stop when it has stopped, not before
    TTIN TTOU                     ignored: our last words must not stop us
    CHLD CONT                     ours

Whether the group got a signal cannot be read off the signal: kill(pid) and kill(-group)
arrive with the same code and sender. So a witness, a forked process that does nothing,
sits in the same group and says which signals reached it too.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal
    from collections.abc import Callable

    from .loop import Loop
else:
    import _signal as signal  # `signal` itself imports `enum`, a fifth of a launch

PASSED_ON = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
)  # fmt: skip
_OURS = (signal.SIGCHLD, signal.SIGCONT, signal.SIGTSTP)
_IGNORED = (signal.SIGTTIN, signal.SIGTTOU)
# No program expects to inherit that.
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

# linux/prctl.h
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

# A sender signals one member of a group after the other; in this time it has got to the last.
HEARSAY = 0.02
# How long a witness may take to answer (somebody may have stopped it), and how long its word
# counts.
_PATIENCE = 1.0
_MEMORY = 1.0


class Signals:
    """A descriptor that becomes readable when a signal came. Handlers only wake the loop."""

    def __init__(self) -> None:
        self._out, self._in = os.pipe()
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self.child_defaults = list(IGNORED_BY_PYTHON)
        # Blocked by whoever started us, it would never tell us that the agent is dead.
        self.child_mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        signal.set_wakeup_fd(self._in, warn_on_full_buffer=False)
        for number in (*PASSED_ON, *_OURS):
            # What we were started with ignored (nohup) stays so, for the agent too.
            if signal.getsignal(number) != signal.SIG_IGN or number == signal.SIGCHLD:
                signal.signal(number, _noted)
        for number in _IGNORED:
            if signal.signal(number, signal.SIG_IGN) != signal.SIG_IGN:
                self.child_defaults.append(number)

    def listen_anew(self) -> None:
        """In an heir, which was deaf until now. What came meanwhile the agent has got itself."""
        for number in PASSED_ON:
            if (before := signal.getsignal(number)) is not None:
                signal.signal(number, signal.SIG_IGN)  # also forgets what waits to be delivered
                signal.signal(number, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)

    def fileno(self) -> int:
        return self._out

    def take(self) -> bytes:
        """The numbers of the signals that came, in order."""
        try:
            return os.read(self._out, 512)
        except BlockingIOError:
            return b""

    def leave_to_recovery(self) -> None:
        """In a forked recoverer: nothing but SIGKILL may stop it half way."""
        signal.set_wakeup_fd(-1)
        for number in (*PASSED_ON, signal.SIGTSTP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._out)
        os.close(self._in)


class Witness:
    """A process in our group that hears what the group hears, and tells.

    It is asked, and not only listened to: a signal that it has got is handled before it can
    answer, so the answer is right however busy the machine is.

    Born right behind the agent. Before the agent, it would testify to what that cannot have
    heard, and a signal would be lost; much later, it would know nothing of what the agent has
    heard already, and would have it told twice.
    """

    def __init__(self, heir: Callable[[], None] | None = None) -> None:
        self._heard, told = os.pipe()
        end_of_life, self._life = os.pipe()
        for fd in (self._heard, told, self._life):
            os.set_blocking(fd, False)
        # What comes while it is born must not be told through our own pipe.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _bear_witness(told, end_of_life, mask, heir)
        except OSError:
            os.close(self._heard)
            os.close(self._life)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(told)
            os.close(end_of_life)
        self._testimony: list[tuple[int, float]] = []
        self._doubtful: list[int] = []
        self._asked: list[int] = []
        self._alive = True

    def attend(self, loop: Loop, pass_on: Callable[[int], None]) -> None:
        """From now on it is listened to, and signals can be considered."""
        self._loop = loop
        self._pass_on = pass_on
        loop.when_readable(self._heard, self._listen)

    def consider(self, number: int) -> None:
        """We got this signal: pass it on, unless the whole group got it."""
        if not self._alive:
            self._pass_on(number)
            return
        self._doubtful.append(number)
        if len(self._doubtful) == 1:
            self._loop.after(HEARSAY, self._ask)

    def dismiss(self) -> None:
        if self._alive:
            os.kill(self.pid, signal.SIGKILL)  # a stopped one would never see the end of its pipe
            self._buried()
            os.waitpid(self.pid, 0)

    def reaped(self, pid: int) -> None:
        """Somebody killed it: from now on every signal is taken for ours alone."""
        if self._alive and pid == self.pid:
            self._buried()
            self._asked += self._doubtful
            self._doubtful = []
            self._answer(self._asked)

    def _buried(self) -> None:
        self._alive = False
        self._loop.forget(self._heard)
        os.close(self._life)
        os.close(self._heard)

    def _ask(self) -> None:
        if not self._doubtful or not self._alive:
            return
        if self._asked:  # one question at a time
            self._loop.after(HEARSAY, self._ask)
            return
        asked, self._doubtful = self._doubtful, []
        self._asked = asked
        try:
            os.write(self._life, b"?")
        except OSError:
            pass  # dead or stopped: patience decides
        self._loop.after(_PATIENCE, lambda: self._answer(asked))

    def _listen(self) -> None:
        try:
            told = os.read(self._heard, 512)
        except BlockingIOError:
            return
        if not told:
            self._loop.forget(self._heard)  # dead; SIGCHLD says so, too
            return
        now = time.monotonic()
        # However long we were busy: what is in question is not forgotten.
        open_cases = {*self._doubtful, *self._asked}
        self._testimony = [
            (n, t) for n, t in self._testimony if n in open_cases or now - t < _MEMORY
        ]
        self._testimony += [(number, now) for number in told if number]
        if 0 in told:
            self._answer(self._asked)

    def _answer(self, asked: list[int]) -> None:
        """Of several of one kind in a row the kernel may have made one, for it or for us. So they
        count as one, also those that came while we were too busy to ask."""
        if asked is not self._asked:
            return
        self._asked = []
        heard = {number for number, _ in self._testimony}
        self._testimony = [(n, t) for n, t in self._testimony if n not in asked]
        for number in asked:
            if number not in heard:
                self._pass_on(number)


def _bear_witness(
    told: int,
    end_of_life: int,
    mask: set[signal.Signals | int],
    heir: Callable[[], None] | None,
) -> None:
    """The witness' whole life. It holds nothing of ours open. When we are dead it inherits."""
    try:
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        low, high = sorted((told, end_of_life))
        os.closerange(0, low)
        os.closerange(low + 1, high)
        os.closerange(high + 1, 65536)
        while os.read(end_of_life, 1):
            os.write(told, bytes(1))
        if heir is not None:
            signal.set_wakeup_fd(-1)
            heir()
    finally:
        os._exit(0)


def _noted(number: int, frame: object) -> None:
    """The number is in the pipe already; Python only wants a function."""


def stop_of(number: int) -> None:
    """Stop as the agent did, so that a shell that waits says the same; returns when continued."""
    if number == signal.SIGSTOP:
        os.kill(os.getpid(), number)
        return
    before = signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.signal(number, before)


def die_of(number: int) -> None:
    """End as the agent did, so that whoever waits sees the same signal; no second core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl(_PR_SET_DUMPABLE, 0)  # a collector of core files is not bound by the limit
    signal.set_wakeup_fd(-1)
    try:
        signal.signal(number, signal.SIG_DFL)
    except OSError:  # SIGKILL and SIGSTOP have no handler to reset
        pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    # Only process 1 of a pid namespace survives this.
    os._exit(128 + number)


def become_subreaper() -> None:
    """Have what a dead agent leaves behind handed to us, so that its death is seen."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def prctl(option: int, value: int) -> None:
    """`_ctypes` instead of `ctypes`: this is on the way to the agent's start."""
    try:
        import _ctypes

        call = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
        _ctypes.call_function(call, (option, value, 0, 0, 0))
    except (ImportError, OSError):
        pass  # not Linux: orphans go to init, and are seen by their connection alone


def name_of(number: int) -> str:
    names = [name for name, value in vars(signal).items() if value == number]
    # Of two names for one signal, the one that `signal.Signals` goes by.
    named = (name for name in names if name.startswith("SIG") and name[3] != "_")
    return min(named, default=f"signal {number}")
