"""The watcher of one run, as its supervisor handles it: started, started again, asked to finish.

Never imports what the watcher needs. The watcher speaks for an agent that says nothing itself, so
its stream is the agent's: it outlives the watcher's process, and it ends with the agent.

    the watcher dies           another goes on with the same stream
    no agent is left           the watcher is asked to finish; its stream gets the agent's death
    the supervisor dies        so does the watcher; the heir starts another
"""

from __future__ import annotations

import os
import sys
import time

from .run import living_agent
from .signals import IGNORED_BY_PYTHON, PASSED_ON, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .client import Stream
    from .door import Door
    from .loop import Loop
    from .run import Run

_TRIES = 5
_WAIT = 0.2
# Who lived so long did not die of what it was started with.
_LONG = 60.0
# How long it may take to read what the agent has left. Then it hangs.
_PATIENCE = 60.0


class Watcher:
    """Of a run that has transcripts to read; of another it does nothing."""

    def __init__(self, loop: Loop, door: Door, run: Run, warn: Callable[[str], None]) -> None:
        self._loop = loop
        self._door = door
        self._run = run
        door.handed_on, door.whom = run.watcher, lambda: living_agent(run) or (0, None)
        self._warn = warn
        self._life: int | None = None
        self._tries = _TRIES
        self._finishing = False
        self._began = 0.0
        self.pid = 0

    def start(self) -> None:
        if self._run.watcher is None or self._finishing or self.pid:
            return
        self._began = time.monotonic()
        end, self._life = os.pipe()
        module = "hermes_supervise.supervisor"
        words = [sys.executable, "-P", "-m", module, "read-transcripts", self._run.folder]
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        given: dict[str, Any] = {
            "file_actions": [
                (os.POSIX_SPAWN_DUP2, fd, to) for to, fd in ((0, end), (1, null), (2, null))
            ],
            "setsigdef": [*PASSED_ON, *IGNORED_BY_PYTHON],
            "setsigmask": [],
        }
        try:
            try:
                # Of no terminal: what the user presses there is for the agent.
                self.pid = os.posix_spawn(sys.executable, words, os.environ, setsid=True, **given)
            except NotImplementedError:
                self.pid = os.posix_spawn(sys.executable, words, os.environ, setpgroup=0, **given)
        except OSError as error:
            self._warn(f"the agent's transcript cannot be watched: {error.strerror or error}")
            self._let_go()
        finally:
            os.close(end)
            os.close(null)

    def reaped(self, pid: int, status: int) -> bool:
        """A child ended: was it the watcher? If its time had not come, there will be another."""
        if pid == 0 or pid != self.pid:
            return False
        self.pid = 0
        self._let_go()
        self._door.last_words(pid)
        lived = time.monotonic() - self._began
        self._tries = (_TRIES if lived > _LONG else self._tries) - 1
        if self._finishing:
            # Killed while it read: `finished` starts another, if there are tries left.
            self._finishing = status == 0 or self._tries <= 0
        elif self._tries > 0:
            self._loop.after(_WAIT * 2 ** (_TRIES - 1 - self._tries), self.start)
        else:
            self._warn("the agent's transcript is read again only when the agent has ended")
        return True

    def finished(self, recover: Callable[[Stream], None]) -> bool:
        """No process of the agent is left: have the rest read, then what was told recovered.
        True when there is nothing more to do."""
        if self._run.watcher is None:
            return True
        self._finish()
        if self.pid:
            return False
        stream = self._door.streams.get(self._run.watcher)
        if stream is not None:
            recover(stream)
        return stream is None

    def _finish(self) -> None:
        if not self._finishing:
            if self.pid == 0:
                self.start()  # the one before died, and nobody took its place yet
            self._finishing = True
            if self._life is not None:
                try:
                    # Not only closed: a fork of ours may still have this end of it.
                    os.write(self._life, b".")
                except OSError:
                    pass
            self._let_go()
            self._loop.after(_PATIENCE, self._put_an_end)

    def abandon(self) -> None:
        """Let go of it in a forked process; it is the parent's."""
        self._let_go()

    def _put_an_end(self) -> None:
        if self.pid:
            self._warn("the agent's transcript could not be read to its end in time")
            os.kill(self.pid, signal.SIGKILL)

    def _let_go(self) -> None:
        if self._life is not None:
            os.close(self._life)
            self._life = None
