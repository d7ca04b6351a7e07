"""When a living agent's messages are stored: at intervals, and a message of the user's at once.

Never looks at a message: the job finds out what there is to store. A timer runs only while there
are records that no checkpoint has seen: an idle agent costs nothing.

If an agent stores its messages itself, nothing is stored here. But if it continues a session that
has our end mark, the mark has to be removed: one job for the sessions that it announced.
"""

from __future__ import annotations

import time

from ..ingest.connection import NOTHING, USER_MESSAGE
from ..model.job_result import JobResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..ingest.connection import Stream
    from ..model.unwritten import Unwritten
    from ..process.loop import Loop, Timer
    from ..storage.run_folder import Run
    from .jobs import Job, JobQueue

# The user's messages may come in a flood (a history that is sent one by one).
_MIN_INTERVAL = 0.5
_MAX_INTERVAL = 600.0


class Checkpoints:
    """The checkpoints of one run, every so many seconds; 0: none."""

    def __init__(
        self,
        loop: Loop,
        jobs: JobQueue,
        run: Run,
        every: float,
        streams: Callable[[], dict[str, Stream]] = dict,
        unwritten: Callable[[], dict[str, Unwritten]] = dict,
        stored: Callable[[Stream], None] = lambda stream: None,
    ) -> None:
        """`unwritten`: what is in no journal; a job gets it with the fork. `stored` is called when
        a checkpoint has stored something of a stream."""
        self._loop = loop
        self._unwritten = unwritten
        self._stored = stored
        self._streams = streams
        self._queue = jobs
        self._run = run
        self._every = every
        self._timers: dict[str, Timer] = {}
        self._jobs: dict[str, Job] = {}
        self._began: dict[str, float] = {}
        self._failed: dict[str, int] = {}

    def records_arrived(self, stream: Stream) -> None:
        """There is something new in its journal."""
        by_user, stream.news = stream.news == USER_MESSAGE, NOTHING
        if stream.stores_itself:
            if self._every and stream.taken_up:
                self._schedule(stream, self._every)
        elif self._every:
            # What is only in memory is nowhere else if we are killed.
            at_once = by_user or stream.unwritten.frames
            self._schedule(stream, 0.0 if at_once else self._every)

    def forget(self, stream: Stream) -> None:
        """Its process is dead: recovery does the rest."""
        if (timer := self._timers.pop(stream.name, None)) is not None:
            self._loop.cancel(timer)
        self._queue.cancel(self._jobs.pop(stream.name, None))
        self._began.pop(stream.name, None)
        self._failed.pop(stream.name, None)

    def begin(self, stream: Stream) -> None:
        """Store what is there now, unless a checkpoint is queued already."""
        if self._every and not stream.stores_itself:
            self._begin(stream)

    def _begin(self, stream: Stream) -> None:
        if self._queue.is_queued(self._jobs.get(stream.name)):
            return
        if (timer := self._timers.pop(stream.name, None)) is not None:
            self._loop.cancel(timer)
        self._began[stream.name] = time.monotonic()

        def work() -> JobResult:
            if stream.stores_itself:
                from ..recovery.reopen import reopen  # in the job: heavy

                return reopen(self._run, stream.name, stream.taken_up)
            from ..recovery.checkpoint import checkpoint  # in the job: heavy

            return checkpoint(self._run, stream.name, self._siblings(stream), self._unwritten())

        seen = list(stream.taken_up)
        self._jobs[stream.name] = self._queue.add(
            work, done=lambda result: self._done(stream, result, seen)
        )

    def _siblings(self, stream: Stream) -> Iterator[str]:
        """The other streams that may share a session with one: those of living processes that
        announced it, and those of dead ones that could not be finished yet.

        A generator: the checkpoint asks for them when it has fixed the moment up to which it
        stores. A process that announced the session before that moment must be among them.
        """
        served = self._streams()
        sessions = self._sessions_of(stream)
        for name, other in served.items():
            if name != stream.name and self._sessions_of(other) & sessions:
                yield name
        for name in self._run.streams():
            if name not in served and name != stream.name:
                yield name

    def _sessions_of(self, stream: Stream) -> set[str]:
        """The sessions that a stream announced, also in records that have not arrived here yet."""
        from ..ingest.connection import sessions_of  # start-up: only for a checkpoint
        from ..recovery.gather import files_of, gather

        try:
            files = files_of(self._run.folder, stream.name)
            waiting = [name for name in files if name.endswith((".ring", ".spool"))]
            found = gather(self._run.folder, stream.name, waiting).frames
        except OSError:
            return stream.sessions
        return stream.sessions | sessions_of([p for p in found if p[0] > stream.received])

    def _schedule(self, stream: Stream, wait: float) -> None:
        if self._queue.is_queued(self._jobs.get(stream.name)):
            return  # the queued job will see the new records as well
        now = time.monotonic()
        wait = max(wait, self._began.get(stream.name, 0.0) + _MIN_INTERVAL - now)
        timer = self._timers.get(stream.name)
        if timer is not None:
            if timer.due <= now + wait:
                return
            self._loop.cancel(timer)
        self._timers[stream.name] = self._loop.after(wait, lambda: self._begin(stream))

    def _done(self, stream: Stream, result: JobResult, taken_up: list[str]) -> None:
        if stream.name not in self._began:
            return  # its process has died meanwhile
        if result is JobResult.NOT_OURS:
            stream.stores_itself = True
            for session in taken_up:
                stream.taken_up.pop(session, None)
        elif result in (JobResult.DONE, JobResult.MORE):
            self._failed.pop(stream.name, None)
            self._stored(stream)
            if result is JobResult.MORE:
                self._schedule(stream, 0.0)
        else:
            # Nothing is lost: it is in the journal, or in memory. Try again, at growing intervals.
            failed = self._failed[stream.name] = self._failed.get(stream.name, 0) + 1
            every = _MIN_INTERVAL if stream.unwritten.frames else self._every
            self._schedule(stream, min(every * 2**failed, _MAX_INTERVAL))
