"""When what a living agent says is stored: now and then, and a question of the user's at once.

Never looks at a message: the process that does the work finds out what there is to store. A
timer runs only while something was said that has not been looked at: an idle agent costs nothing.
"""

from __future__ import annotations

import time

from .client import NOTHING, QUESTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .client import Stream
    from .loop import Loop, Timer
    from .run import Run
    from .workshop import Job, Workshop

# What the process that stores ends with. MORE: there is more than it takes on at a time; AGAIN:
# not all could be stored now; LEAVE_IT: this agent stores what it says itself.
DONE, MORE, AGAIN, LEAVE_IT = 0, 3, 4, 5
# Questions may come in a flood (a history told one by one): each is waited for so long at least.
_APART = 0.5
_LONGEST_WAIT = 600.0


class Checkpoints:
    """Those of one run, every so many seconds; 0: none."""

    def __init__(self, loop: Loop, workshop: Workshop, run: Run, every: float) -> None:
        self._loop = loop
        self._workshop = workshop
        self._run = run
        self._every = every
        self._timers: dict[str, Timer] = {}
        self._jobs: dict[str, Job] = {}
        self._began: dict[str, float] = {}
        self._failed: dict[str, int] = {}
        self.stored: Callable[[Stream], None] = lambda stream: None

    def spoke(self, stream: Stream) -> None:
        """Something new is in its journal."""
        asked, stream.news = stream.news == QUESTION, NOTHING
        if self._every and not stream.stores_itself:
            self._plan(stream, 0.0 if asked else self._every)

    def forget(self, stream: Stream) -> None:
        """Its process is dead, and what is left is for recovery."""
        if (timer := self._timers.pop(stream.name, None)) is not None:
            self._loop.cancel(timer)
        self._workshop.withdraw(self._jobs.pop(stream.name, None))
        self._began.pop(stream.name, None)
        self._failed.pop(stream.name, None)

    def begin(self, stream: Stream) -> None:
        """Store what is there now, unless that is about to be done."""
        job = self._jobs.get(stream.name)
        if not self._every or stream.stores_itself or self._workshop.waits(job):
            return
        if (timer := self._timers.pop(stream.name, None)) is not None:
            self._loop.cancel(timer)
        self._began[stream.name] = time.monotonic()

        def work() -> int:
            from .recovery.checkpoint import checkpoint

            return checkpoint(self._run, stream.name)

        self._jobs[stream.name] = self._workshop.add(
            work, done=lambda code: self._done(stream, code)
        )

    def _plan(self, stream: Stream, wait: float) -> None:
        if self._workshop.waits(self._jobs.get(stream.name)):
            return  # it will see this, too
        now = time.monotonic()
        wait = max(wait, self._began.get(stream.name, 0.0) + _APART - now)
        known = self._timers.get(stream.name)
        if known is not None:
            if known.due <= now + wait:
                return
            self._loop.cancel(known)
        self._timers[stream.name] = self._loop.after(wait, lambda: self.begin(stream))

    def _done(self, stream: Stream, code: int) -> None:
        if stream.name not in self._began:
            return  # dead meanwhile
        if code == LEAVE_IT:
            stream.stores_itself = True
        elif code in (DONE, MORE):
            self._failed.pop(stream.name, None)
            self.stored(stream)
            if code == MORE:
                self._plan(stream, 0.0)
        else:
            # Nothing is lost: it is in the journal, and will be tried again, if ever more rarely.
            failed = self._failed[stream.name] = self._failed.get(stream.name, 0) + 1
            self._plan(stream, min(self._every * 2**failed, _LONGEST_WAIT))
