"""The process that follows a run's transcripts: started, restarted, and asked to finish.

Never imports what that process needs. It speaks for an agent that does not connect itself, so its
stream is the agent's: the stream outlives the process, and ends with the agent.

    the process dies           another one continues the same stream
    no agent is left           it is asked to finish; its stream is closed with the agent's death
    the supervisor dies        the process exits; the successor starts another
"""

from __future__ import annotations

import os
import time

from ..process import own_program
from ..process.signals import signal
from ..transcripts.settings import IDLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..ingest.server import Server
    from ..process.loop import Loop
    from ..storage.run_folder import Run

_TRIES = 5
_WAIT = 0.2
# A process that ran for so long did not die because of its start.
_LONG = 60.0
# How long it may take to read what the agent has left. After that it counts as hung.
_FINISH_TIMEOUT = 60.0
# How far the transcripts of a dead agent were read.
READ, UNREAD, HANGING = range(3)


class TranscriptProcess:
    """The transcript process of one run. Does nothing for a run without transcripts."""

    def __init__(
        self,
        loop: Loop,
        server: Server,
        run: Run,
        warn: Callable[[str], None],
        on_idle: Callable[[], None],
    ) -> None:
        """`on_idle`: what to do when nobody goes on with the agent's turn any more."""
        self._loop = loop
        self._server = server
        self._run = run
        self._warn = warn
        self._on_idle = on_idle
        self._life: int | None = None
        self._tries = _TRIES
        self._finishing = False
        self._began = 0.0
        self.pid = 0
        self.result = READ
        """READ until the agent is dead and `finish` has failed. UNREAD: no transcript process
        could read to the end, so recovery has to."""

    def start(self) -> None:
        if self._run.transcript_stream is None or self._finishing or self.pid:
            return
        self._began = time.monotonic()
        try:
            end, self._life = os.pipe()
            try:
                self.pid = own_program.start(
                    ["read-transcripts", self._run.folder], stdin=end, niceness=0
                )
            finally:
                os.close(end)
        except OSError as error:
            self._warn(f"the agent's transcript cannot be watched: {error.strerror or error}")
            self._close()

    def reaped(self, pid: int, status: int) -> bool:
        """A child exited; True if it was this process. It is started again, unless it was done."""
        if pid == 0 or pid != self.pid:
            return False
        self.pid = 0
        self._close()
        self._server.drain(pid)
        lived = time.monotonic() - self._began
        self._tries = (_TRIES if lived > _LONG else self._tries) - 1
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == IDLE:
            self._finishing = True
            self._on_idle()
        elif self._finishing:
            # Killed while it read: `finish` starts another one, if there are tries left.
            self._finishing = status == 0 or self._tries <= 0
            self.result = READ if status == 0 else max(self.result, UNREAD)
        elif self._tries > 0:
            self._loop.after(_WAIT * 2 ** (_TRIES - 1 - self._tries), self.start)
        else:
            self._warn("the agent's transcript will be read when the agent ends")
        return True

    @property
    def finishing(self) -> bool:
        """True while it reads the rest of the dead agent's transcripts."""
        return self._finishing and self.pid != 0

    def finish(self) -> bool:
        """No process of the agent is left: have the rest of the transcripts read. True once that
        is done."""
        if self._run.transcript_stream is None:
            return True
        if not self._finishing:
            if self.pid == 0:
                self.start()  # the last one died, and the next was not started yet
            if self.pid == 0:
                self.result = UNREAD
            self._finishing = True
            if self._life is not None:
                try:
                    # Closing is not enough: a forked job may still have this end of the pipe.
                    os.write(self._life, b".")
                except OSError:
                    pass
            self._close()
            self._loop.after(_FINISH_TIMEOUT, self._kill)
        return self.pid == 0

    @property
    def unfinished(self) -> bool:
        """True while there are transcripts that nobody has tried to read to their end."""
        tried = self._finishing and self.pid == 0
        return self._run.transcript_stream is not None and not tried

    def close_in_child(self) -> None:
        """Close its pipe in a forked process; the process belongs to the parent."""
        self._close()

    def _kill(self) -> None:
        if self.pid:
            self._warn("the agent's transcript could not be read to its end in time")
            self.result = HANGING
            os.kill(self.pid, signal.SIGKILL)

    def _close(self) -> None:
        if self._life is not None:
            os.close(self._life)
            self._life = None
