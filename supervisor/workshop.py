"""Work done in forked processes, one at a time: recovery, compaction.

Never does anything in the supervisor's own process: what the work imports is gone with it,
and what it waits for keeps nobody from being served.
"""

from __future__ import annotations

import gc
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Job:
    def __init__(
        self,
        work: Callable[[], int | None],
        tries: int,
        failing: str,
        done: Callable[[int], None] | None = None,
    ) -> None:
        self.work = work
        self.tries = tries
        self.failing = failing
        self.done = done


class Workshop:
    def __init__(self, leave_behind: Callable[[], None], warn: Callable[[str], None]) -> None:
        self._leave_behind = leave_behind
        self._warn = warn
        self._waiting: list[Job] = []
        self._job: Job | None = None
        self.pid = 0

    @property
    def busy(self) -> bool:
        return self._job is not None

    def add(
        self,
        work: Callable[[], int | None],
        *,
        tries: int = 1,
        failing: str = "",
        done: Callable[[int], None] | None = None,
    ) -> Job:
        """Do `work` when its turn comes; a process that fails is tried again, then told of.
        What it returns is its exit code, which `done`, if there is one, is told instead."""
        job = Job(work, tries, failing, done)
        self._waiting.append(job)
        self._next()
        return job

    def waits(self, job: Job | None) -> bool:
        """Has its turn not come yet?"""
        return job in self._waiting

    def withdraw(self, job: Job | None) -> None:
        """Not wanted any more, if its turn has not come."""
        if job in self._waiting:
            self._waiting.remove(job)

    def reaped(self, pid: int, status: int) -> bool:
        """A child ended: was it ours?"""
        if self._job is None or pid != self.pid:
            return False
        job, self._job, self.pid = self._job, None, 0
        if job.done is not None:
            job.done(os.waitstatus_to_exitcode(status))
        elif status != 0:
            job.tries -= 1
            if job.tries > 0:
                self._waiting.insert(0, job)
            else:
                self._warn(job.failing)
        self._next()
        return True

    def _next(self) -> None:
        if self._job is None and self._waiting:
            self._job = self._waiting.pop(0)
            try:
                self.pid = os.fork()
            except OSError:  # too many processes; the agent is still served
                job, self._job = self._job, None
                if job.done is not None:
                    job.done(1)
                else:
                    self._warn(job.failing)
                return
            if self.pid == 0:
                self._do(self._job)

    def _do(self, job: Job) -> None:
        code = 1
        try:
            self._leave_behind()
            # It is gone soon, and a collector would look through every message again and again.
            gc.disable()
            code = job.work() or 0
        finally:
            os._exit(code)
