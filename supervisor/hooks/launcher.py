"""Starts hook runners and waits for their first pass. The supervisor keeps this loaded.

Never waits for a retry, and never ends a runner. A runner is a process in its own session that
holds nothing of ours, and continues after we are gone.
"""

from __future__ import annotations

import os

from ..storage import run_folder as runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..process.loop import Loop

_TRIES = 3
# Runners of one supervisor at a time. Hooks that are queued meanwhile go to the next runner.
_MAX_RUNNERS = 2


def hooks_pending(run: str = "") -> bool:
    """Whether the queue has hooks, of one run or of any."""
    return any(name.startswith(run) for name in runs.with_queued_hooks())


def start_runner(run: str | None, prepare: Callable[[], None]) -> tuple[int, int]:
    """Fork a runner. Returns its pid, and a descriptor that is readable when its first pass is
    over. The descriptor also becomes readable, at its end, if the runner dies."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_runner(run, prepare, writing)
    os.close(writing)
    return pid, reading


def wait_for_first_pass(first_pass: int, seconds: float) -> bool:
    """Whether the first pass was over within this time. Closes the descriptor."""
    import select  # start-up: only where somebody waits

    poller = select.poll()
    poller.register(first_pass, select.POLLIN)
    over = bool(poller.poll(seconds * 1000))
    os.close(first_pass)
    return over


def _be_runner(run: str | None, prepare: Callable[[], None], first_pass: int) -> None:
    code = 1
    try:
        prepare()
        # The runner must not keep a lock, or the pipe by which a standby sees our death.
        os.closerange(3, first_pass)
        os.closerange(first_pass + 1, 65536)
        os.setsid()
        from .runner import work  # start-up: loads what only hooks need, in this process only

        def first_pass_over() -> None:
            os.write(first_pass, b"1")
            os.close(first_pass)

        work(run, first_pass_over)
        code = 0
    finally:
        os._exit(code)


def run_if_orphaned(supervisor: int, run: str) -> None:
    """In a process that has queued hooks: run them here if the supervisor has died meanwhile."""
    if os.getppid() != supervisor:
        from .runner import work  # start-up: rarely needed

        work(run, lambda: None)


class HookLauncher:
    """The runners of one supervisor."""

    def __init__(
        self, loop: Loop, run: str, prepare: Callable[[], None], patience: float | None
    ) -> None:
        self._loop = loop
        self._run = run
        self._prepare = prepare
        self._patience = patience
        """Seconds to wait for a first pass; None: until it is over."""
        self._tries: dict[int, int] = {}
        """Runners, each with how often it may still be replaced."""
        self._in_first_pass: set[int] = set()
        self._waited_for: set[int] = set()
        self._start_another = False

    @property
    def pids(self) -> set[int]:
        return set(self._tries)

    @property
    def busy(self) -> bool:
        """Whether the supervisor should still wait for hooks."""
        return bool(self._waited_for)

    def run(self, tries: int = _TRIES) -> None:
        """Start a runner, if this run has queued hooks."""
        if not hooks_pending(self._run):
            return
        if len(self._in_first_pass) >= _MAX_RUNNERS:
            self._start_another = True
            return
        try:
            pid, first_pass = start_runner(self._run, self._prepare)
        except OSError:
            return  # out of processes or descriptors; the next start runs the hooks
        self._tries[pid] = tries - 1
        self._in_first_pass.add(pid)
        self._waited_for.add(pid)

        def first_pass_over() -> None:
            written = os.read(first_pass, 1)
            self._loop.forget(first_pass)
            os.close(first_pass)
            if written:
                self._passed(pid)

        self._loop.when_readable(first_pass, first_pass_over)
        if self._patience is not None:
            self._loop.after(self._patience, lambda: self._waited_for.discard(pid))

    def _passed(self, pid: int) -> None:
        self._waited_for.discard(pid)
        self._in_first_pass.discard(pid)
        if self._start_another:
            self._start_another = False
            self.run()

    def reaped(self, pid: int, status: int) -> bool:
        """A child ended. True if it was a runner; one that was killed is replaced."""
        left = self._tries.pop(pid, None)
        if left is None:
            return False
        self._passed(pid)
        if status != 0 and left > 0:
            self.run(left)
        return True
