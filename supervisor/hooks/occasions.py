"""When a living agent may owe hooks: a conversation took another's place, or one fell silent.

Never looks at a record: the process that does the work finds out what is owed. A timer runs only
where the user set a limit, and only until everything has been silent for that long.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..client import Stream
    from ..loop import Loop, Timer
    from ..run import Run
    from ..workshop import Job, Workshop

# What the process that looks ends with. AGAIN: some session may yet become silent; LEAVE_IT: this
# agent sees to that itself.
DONE, AGAIN, LEAVE_IT = 0, 3, 4
# Who speaks after a silence is looked at soon, and not with every word.
_SOON = 0.5


class Occasions:
    """Those of one run. `limit`: after so many seconds a silent session is finalised; 0: never."""

    def __init__(self, loop: Loop, workshop: Workshop, run: Run, limit: float) -> None:
        self._loop = loop
        self._workshop = workshop
        self._run = run
        self._limit = limit
        self._timers: dict[str, Timer] = {}
        self._jobs: dict[str, Job] = {}
        self._silent: set[str] = set()
        self._exempt: set[str] = set()

    def spoke(self, stream: Stream) -> None:
        """Something new is in its journal."""
        if stream.turned_over:
            stream.turned_over = False
            self.look(stream)
        if self._limit and stream.name not in self._exempt and stream.name not in self._timers:
            was_silent = stream.name in self._silent
            self._silent.discard(stream.name)
            self._plan(stream, min(_SOON, self._limit) if was_silent else self._limit)

    def forget(self, stream: Stream) -> None:
        """Its process is dead, and what is left is for recovery."""
        if (timer := self._timers.pop(stream.name, None)) is not None:
            self._loop.cancel(timer)
        self._workshop.withdraw(self._jobs.pop(stream.name, None))
        self._silent.discard(stream.name)
        self._exempt.discard(stream.name)

    def adopt(self, streams: dict[str, Stream]) -> None:
        """Whoever supervised them before may have died before it looked."""
        for stream in streams.values():
            self.look(stream)

    def look(self, stream: Stream) -> None:
        if self._workshop.waits(self._jobs.get(stream.name)):
            return  # it will see this, too

        def work() -> int:
            from .idle import look

            return look(self._run, stream.name, self._limit)

        self._jobs[stream.name] = self._workshop.add(
            work, done=lambda code: self._done(stream, code)
        )

    def _plan(self, stream: Stream, wait: float) -> None:
        self._timers[stream.name] = self._loop.after(wait, lambda: self._due(stream))

    def _due(self, stream: Stream) -> None:
        del self._timers[stream.name]
        self.look(stream)

    def _done(self, stream: Stream, code: int) -> None:
        job = self._jobs.get(stream.name)
        if job is None or self._workshop.waits(job) or not self._limit:
            return  # dead meanwhile, or looked at again soon
        if stream.name in self._timers:
            return
        if code == DONE:
            self._silent.add(stream.name)
        elif code == LEAVE_IT:
            self._exempt.add(stream.name)
        else:
            self._plan(stream, self._limit / 2)
