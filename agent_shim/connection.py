"""The connection to the supervisor: a Unix socket on which no call waits longer than its limit.

Never touches a descriptor that has become the agent's: an agent may close every descriptor there
is, ours among them, and use its number for a file of its own.
"""

from __future__ import annotations

import os
import select
import sys
from time import monotonic

from ..ipc import frames
from ..ipc.endpoint import identity
from ..ipc.handlers import raised_by_signal_handler
from ..ipc.lightweight import socket
from .fork_mark import ForkedChild
from .standard_streams import numbers_kept_free

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .fork_mark import Mark

# The kernel gives twice this or what it allows, most often twice its default. So the agent does
# not notice a supervisor that reads in batches, or late.
_BUFFER = 1024 * 1024
_READ = 16 * 1024
# How long to poll for an answer before sleeping. Most often the answer is there by then, also with
# `--sync always` on an ordinary disk, and sooner than a processor wakes up.
_AWAKE = 0.0005
# The agent may have given SIGPIPE its deadly default back (Linux' MSG_NOSIGNAL).
_NO_SIGNAL = 0x4000 if sys.platform == "linux" else 0
_yield = getattr(os, "sched_yield", int)  # macOS has none


class Connection:
    """A connected socket. Whoever gets an exception out of it closes it and makes another."""

    __slots__ = ("_answers", "_inode", "_mark", "_rest", "_socket", "last_sent")

    def __init__(self, address: str, mark: Mark) -> None:
        """Raises OSError where nobody listens."""
        with numbers_kept_free():
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
            connected.connect(address)
            self._inode = os.fstat(connected.fileno()).st_ino
        except BaseException:
            connected.close()
            raise
        self._socket = connected
        self._mark = mark
        self._answers = frames.Decoder()
        self._rest: bytes | memoryview = b""  # of a frame that the buffer took a part of
        self.last_sent = 0
        """The number of the last frame that was sent, or that need not be."""

    def send(self, seq: int, data: bytes, deadline: float) -> bool:
        """Put frames, the last of them numbered `seq`, into the socket's buffer.

        False if the buffer had no room for all of them before the deadline. The next call first
        sends the rest of a frame that was cut: half a frame followed by another is garbage.
        Raises OSError if the connection is lost.
        """
        if self._rest:
            self._rest = self._rest[self._push(self._rest, deadline) :]
            if self._rest:
                return False
        done = self._push(data, deadline)
        if done:
            self.last_sent = seq
            self._rest = memoryview(data)[done:]
        return done == len(data)

    def _push(self, data: bytes | memoryview, deadline: float) -> int:
        """Give the buffer what it takes before the deadline; how many bytes it took."""
        done = 0
        while True:
            rest = memoryview(data)[done:]
            self._check_descriptor()
            if not self._mark[0]:
                raise ForkedChild
            try:
                done += self._socket.send(rest, _NO_SIGNAL)
            except BlockingIOError as error:
                if raised_by_signal_handler(error):
                    raise
            if done == len(data) or (left := deadline - monotonic()) <= 0:
                return done
            self._wait(select.POLLOUT, left)

    def receive(self) -> list[int]:
        """The numbers that the supervisor has acknowledged, as far as they came.

        Raises OSError if the connection is lost, or if what came makes no sense.
        """
        numbers: list[int] = []
        data = b""
        while not data or len(data) == _READ:  # less than that was all there is
            self._check_descriptor()
            if not self._mark[0]:
                raise ForkedChild
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError as error:
                if raised_by_signal_handler(error):
                    raise
                break
            if not data:
                raise OSError("the supervisor has closed the connection")
            numbers += [seq for seq, _ in self._answers.feed(data)]
            if self._answers.damage is not None:
                raise OSError(f"the supervisor answered {self._answers.damage}")
        return numbers

    def wait_for_answer(self, seconds: float) -> None:
        """Return when there may be something to receive, or after so long."""
        awake = monotonic() + min(seconds, _AWAKE)
        while not self._wait(select.POLLIN, 0):
            if monotonic() >= awake:
                self._wait(select.POLLIN, seconds)
                return
            _yield()

    def _wait(self, event: int, seconds: float) -> bool:
        """True if the event came. A wait of less than a millisecond takes a whole one."""
        milliseconds = max(1, int(min(seconds, 3600) * 1000)) if seconds else 0
        try:
            poller = select.poll()
            poller.register(self._socket, event)
            return bool(poller.poll(milliseconds))
        except (OSError, ValueError) as error:  # another thread has closed it
            if raised_by_signal_handler(error):
                raise
            return True

    def _check_descriptor(self) -> None:
        if os.fstat(self._socket.fileno()).st_ino != self._inode:
            raise OSError("the descriptor is not ours any more")

    def close(self) -> None:
        """Close our descriptor, but not a descriptor of the agent's that has its number now."""
        now = identity(self._socket.fileno())
        if now is not None and now[1] == self._inode:
            self._socket.close()
        else:
            self._socket.detach()
