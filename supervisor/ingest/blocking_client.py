"""A blocking client of our own: sends records to a run's supervisor and waits until it has them.

Never used inside an agent: it blocks, and it raises. The shim's `link` does neither.

Records that were not acknowledged are kept and sent again on the next connection under the same
numbers, so the supervisor has each once, whatever happened to the first connection.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from ...ipc import frames, records
from ..process.platform import process_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_READ = 64 * 1024


class NotDelivered(OSError):
    """Nobody listens, or nobody answers in time; the text says which."""


class BlockingClient:
    def __init__(
        self,
        address: str,
        *,
        stream: str | None = None,
        about: dict[str, object] | None = None,
        timeout: float = 10.0,
    ) -> None:
        """`stream`: only to continue an existing stream. `about`: more fields for the hello."""
        self.address = address
        self.stream = stream or os.urandom(16).hex()
        self._about = about or {}
        self._timeout = timeout
        self._socket: socket.socket | None = None
        self._answers = frames.Decoder()
        self._welcomed_at: int | None = None  # the last number that the supervisor has received
        self._next = 1
        self._unnumbered: list[bytes] = []
        self._unacknowledged: list[tuple[int, bytes]] = []

    def send(self, *new: dict[str, object]) -> None:
        """Send these records, and return when the supervisor has stored them. If that fails they
        are kept, and go with the next ones."""
        # A message that goes in pieces needs a uid.
        for record in new:
            is_message = record.get("kind") == "message"
            named = {"uid": os.urandom(8).hex(), **record} if is_message else record
            self._unnumbered += records.fit_all(named)
        if self._socket is None:
            self.connect()
        # The next number is known only once we are connected.
        numbered = enumerate(self._unnumbered, self._next)
        fresh = [(seq, frames.encode(seq, payload)) for seq, payload in numbered]
        self._unnumbered = []
        self._next += len(fresh)
        self._unacknowledged += fresh
        self._write(b"".join(frame for _, frame in fresh))
        self._read_until(lambda: not self._unacknowledged)

    def connect(self) -> None:
        """Send the hello, and everything that was not acknowledged. `send` does this by itself."""
        self.close()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._timeout)
        try:
            connection.connect(self.address)
        except OSError as error:
            connection.close()
            raise NotDelivered(f"cannot connect to {self.address}: {error.strerror}") from error
        self._socket, self._answers, self._welcomed_at = connection, frames.Decoder(), None
        self._write(frames.encode(frames.HANDSHAKE, records.fit(self._hello())))
        self._read_until(lambda: self._welcomed_at is not None)
        if not self._unacknowledged:
            self._next = max(self._next, (self._welcomed_at or 0) + 1)
        self._write(b"".join(frame for _, frame in self._unacknowledged))

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _hello(self) -> dict[str, object]:
        return {
            "kind": "hello",
            "version": records.VERSION,
            "oldest": records.OLDEST,
            "stream": self.stream,
            "pid": os.getpid(),
            "start": process_start(os.getpid()),
            "executable": sys.executable,
            "argv": list(sys.argv),
            "cwd": os.getcwd(),
            **self._about,
        }

    def _write(self, data: bytes) -> None:
        try:
            if self._socket is not None and data:
                self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise NotDelivered(f"the supervisor closed the connection: {error}") from error

    def _read_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._timeout
        while not is_done():
            try:
                if self._socket is None or time.monotonic() > deadline:
                    raise TimeoutError("no answer")
                data = self._socket.recv(_READ)
                if not data:
                    raise ConnectionError("connection closed")
            except OSError as error:
                self.close()
                raise NotDelivered(f"the supervisor does not answer: {error}") from error
            for seq, frame in self._answers.feed(data):
                self._handle_answer(seq, frames.payload_of(frame))

    def _handle_answer(self, seq: int, payload: bytes) -> None:
        if seq == frames.HANDSHAKE and payload:
            answer = records.unpack(payload)
            if answer["kind"] == "refused":
                self.close()
                raise NotDelivered("the supervisor speaks another version of the protocol")
            # No acknowledgement: it may have them in memory alone.
            have = answer.get("have")
            self._welcomed_at = have if isinstance(have, int) else 0
        self._unacknowledged = [pair for pair in self._unacknowledged if pair[0] > seq]
