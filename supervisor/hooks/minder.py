"""Starts runners of the queue, and waits for them a moment. Light: the supervisor keeps it.

Never waits for a retry, and never ends a runner: it is a process of its own session that holds
nothing of ours, and goes on when we are gone.
"""

from __future__ import annotations

import os

from .. import run as runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..loop import Loop

_TRIES = 3
# At a time, of one supervisor: what is queued while these are at work is for the next.
_MOST = 2


def something_waits(own: str = "") -> bool:
    """Whether there are hooks in the queue, of a run or of any."""
    return any(name.startswith(own) for name in runs.owing_hooks())


def begin(own: str | None, prepare: Callable[[], None]) -> tuple[int, int]:
    """Start a runner; its pid, and a descriptor that says when its first pass is over, or ends
    with it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_the_runner(own, prepare, writing)
    os.close(writing)
    return pid, reading


def wait(first_pass: int, seconds: float) -> bool:
    """Whether the first pass was over within so many seconds."""
    import select

    poller = select.poll()
    poller.register(first_pass, select.POLLIN)
    over = bool(poller.poll(seconds * 1000))
    os.close(first_pass)
    return over


def _be_the_runner(own: str | None, prepare: Callable[[], None], over: int) -> None:
    code = 1
    try:
        prepare()
        # A lock, or the pipe by which a witness sees our death, must not outlive us through it.
        os.closerange(3, over)
        os.closerange(over + 1, 65536)
        os.setsid()
        from .runner import work

        def tell() -> None:
            os.write(over, b"1")
            os.close(over)

        work(own, tell)
        code = 0
    finally:
        os._exit(code)


def see_to_what_is_left(supervisor: int, own: str) -> None:
    """In a process that has queued hooks: if its supervisor is gone, it is for us to run them."""
    if os.getppid() != supervisor:
        from .runner import work

        work(own, lambda: None)


class Minder:
    """The runners of one supervisor."""

    def __init__(
        self, loop: Loop, own: str, prepare: Callable[[], None], patience: float | None
    ) -> None:
        self._loop = loop
        self._own = own
        self._prepare = prepare
        self._patience = patience
        """None: for as long as a first pass takes."""
        self._tries: dict[int, int] = {}
        self._passing: set[int] = set()
        self._waited_for: set[int] = set()
        self._again = False

    @property
    def pids(self) -> set[int]:
        return set(self._tries)

    @property
    def busy(self) -> bool:
        """Whether there are hooks whose end is worth waiting for."""
        return bool(self._waited_for)

    def run(self, tries: int = _TRIES) -> None:
        """See to what this run has put into the queue."""
        if not something_waits(self._own):
            return
        if len(self._passing) >= _MOST:
            self._again = True
            return
        try:
            pid, first_pass = begin(self._own, self._prepare)
        except OSError:
            return  # too many processes, or descriptors; the next start sees to it
        self._tries[pid] = tries - 1
        self._passing.add(pid)
        self._waited_for.add(pid)

        def over() -> None:
            said = os.read(first_pass, 1)
            self._loop.forget(first_pass)
            os.close(first_pass)
            if said:
                self._passed(pid)

        self._loop.when_readable(first_pass, over)
        if self._patience is not None:
            self._loop.after(self._patience, lambda: self._waited_for.discard(pid))

    def _passed(self, pid: int) -> None:
        self._waited_for.discard(pid)
        self._passing.discard(pid)
        if self._again:
            self._again = False
            self.run()

    def reaped(self, pid: int, status: int) -> bool:
        """A child ended: was it ours? One that was cut off is replaced."""
        left = self._tries.pop(pid, None)
        if left is None:
            return False
        self._passed(pid)
        if status != 0 and left > 0:
            self.run(left)
        return True
