"""Background jobs: recovery, checkpoints and compaction, each in a forked child, one at a time.

Why fork: a job may block on a locked database or import heavy modules; neither may stall or bloat
the supervisor, which must keep serving agents. A job never shares state with the supervisor; it
reports back through its exit status (JobResult).
"""

from __future__ import annotations

import gc
import os

from ..model.job_result import JobResult, result_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Job:
    def __init__(
        self,
        work: Callable[[], JobResult | None],
        tries: int,
        failing: str,
        done: Callable[[JobResult], None] | None = None,
        tried: Callable[[JobResult], None] | None = None,
    ) -> None:
        self.work = work
        self.tried = tried
        self.tries = tries
        self.failing = failing
        self.done = done


class JobQueue:
    def __init__(self, prepare: Callable[[], None], warn: Callable[[str], None]) -> None:
        """`prepare`: what the forked child does before its work."""
        self._prepare = prepare
        self._warn = warn
        self._queue: list[Job] = []
        self._running: Job | None = None
        self.pid = 0
        """The process of the running job; 0 if none runs."""

    @property
    def busy(self) -> bool:
        return self._running is not None

    def add(
        self,
        work: Callable[[], JobResult | None],
        *,
        tries: int = 1,
        failing: str = "",
        done: Callable[[JobResult], None] | None = None,
        tried: Callable[[JobResult], None] | None = None,
    ) -> Job:
        """Run `work` in a forked process when its turn comes. It returns a JobResult; None means
        DONE. `done` gets the result; without `done`, a job that fails is tried again, and after
        the last try `failing` is said, if it is not empty. `tried` gets the result of every try."""
        job = Job(work, tries, failing, done, tried)
        self._queue.append(job)
        self._start_next()
        return job

    def is_queued(self, job: Job | None) -> bool:
        """True until the job's process has been forked."""
        return job in self._queue

    def cancel(self, job: Job | None) -> None:
        """Drop a queued job. A running job is left alone."""
        if job in self._queue:
            self._queue.remove(job)

    def reaped(self, pid: int, status: int) -> bool:
        """A child exited; True if it was the running job."""
        if self._running is None or pid != self.pid:
            return False
        job, self._running, self.pid = self._running, None, 0
        result = result_of(status)
        if job.tried is not None:
            job.tried(result)
        if job.done is not None:
            job.done(result)
        elif result not in (JobResult.DONE, JobResult.AGAIN):
            job.tries -= 1
            if job.tries > 0:
                self._queue.insert(0, job)
            elif job.failing:
                self._warn(job.failing)
        self._start_next()
        return True

    def _start_next(self) -> None:
        if self._running is None and self._queue:
            self._running = self._queue.pop(0)
            try:
                self.pid = os.fork()
            except OSError:  # too many processes; the agent is still served
                job, self._running = self._running, None
                if job.done is not None:
                    job.done(JobResult.FAILED)
                elif job.failing:
                    self._warn(job.failing)
                return
            if self.pid == 0:
                self._run(self._running)

    def _run(self, job: Job) -> None:
        result = JobResult.FAILED
        try:
            self._prepare()
            # The process is gone soon, and the collector would visit every message many times.
            gc.disable()
            result = job.work() or JobResult.DONE
        finally:
            os._exit(result.value)
