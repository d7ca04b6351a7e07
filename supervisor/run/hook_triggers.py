"""Decides when to look for hooks that a running agent triggers: after a reset, and when idle.

Never looks at a record itself: a background job does (hooks/idle.py). A timer runs only if the
user set a limit, and only until every session has been idle for that long.
"""

from __future__ import annotations

from ..model.job_result import JobResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..ingest.connection import Stream
    from ..process.loop import Loop, Timer
    from ..storage.run_folder import Run
    from .jobs import Job, JobQueue

# After an idle time, look soon after the first message, but not after each one.
_SOON = 0.5


class HookTriggers:
    """The triggers of one run. `limit`: seconds until a session counts as idle; 0: never."""

    def __init__(self, loop: Loop, jobs: JobQueue, run: Run, limit: float) -> None:
        self._loop = loop
        self._queue = jobs
        self._run = run
        self._limit = limit
        self._timers: dict[str, Timer] = {}
        self._jobs: dict[str, Job] = {}
        self._idle: set[str] = set()
        self._exempt: set[str] = set()
        """Streams of agents that end idle sessions themselves."""

    def records_arrived(self, stream: Stream) -> None:
        """There is something new in its journal."""
        if stream.may_have_reset:
            stream.may_have_reset = False
            self.look(stream)
        if self._limit and stream.name not in self._exempt and stream.name not in self._timers:
            was_idle = stream.name in self._idle
            self._idle.discard(stream.name)
            self._look_after(stream, min(_SOON, self._limit) if was_idle else self._limit)

    def forget(self, stream: Stream) -> None:
        """Its process is dead; the rest is up to recovery."""
        if (timer := self._timers.pop(stream.name, None)) is not None:
            self._loop.cancel(timer)
        self._queue.cancel(self._jobs.pop(stream.name, None))
        self._idle.discard(stream.name)
        self._exempt.discard(stream.name)

    def took_over(self, streams: dict[str, Stream]) -> None:
        """In a successor: the previous supervisor may have died before it looked."""
        for stream in streams.values():
            self.look(stream)

    def look(self, stream: Stream) -> None:
        if self._queue.is_queued(self._jobs.get(stream.name)):
            return  # the queued job will see this record as well

        def work() -> JobResult:
            from ..hooks.idle import check  # start-up: loaded in the job's own process

            return check(self._run, stream.name, self._limit)

        self._jobs[stream.name] = self._queue.add(
            work, done=lambda result: self._looked(stream, result)
        )

    def _look_after(self, stream: Stream, seconds: float) -> None:
        self._timers[stream.name] = self._loop.after(seconds, lambda: self._timer_fired(stream))

    def _timer_fired(self, stream: Stream) -> None:
        del self._timers[stream.name]
        self.look(stream)

    def _looked(self, stream: Stream, result: JobResult) -> None:
        job = self._jobs.get(stream.name)
        if job is None or self._queue.is_queued(job) or not self._limit:
            return  # the process has died, or the next look is queued
        if stream.name in self._timers:
            return
        if result is JobResult.DONE:
            self._idle.add(stream.name)
        elif result is JobResult.NOT_OURS:
            self._exempt.add(stream.name)
        else:
            self._look_after(stream, self._limit / 2)
