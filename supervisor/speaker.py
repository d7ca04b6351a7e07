"""A client of our own: says records to a run's supervisor, and waits until it has them.

Never used inside an agent: it blocks, and it raises. The shim's `link` does neither.

What was not acknowledged is kept and said again on the next line, under the same numbers, so
that the other end has it once whatever happened to the first line.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from ..ipc import frames, records
from ..ipc.endpoint import process_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_READ = 64 * 1024


class Unheard(OSError):
    """Nobody listens, or nobody answers in time; the text says which."""


class Speaker:
    def __init__(
        self,
        address: str,
        *,
        stream: str | None = None,
        about: dict[str, object] | None = None,
        patience: float = 10.0,
    ) -> None:
        """`stream` is to be given only by who goes on with one; `about` is added to the hello."""
        self.address = address
        self.stream = stream or os.urandom(16).hex()
        self._about = about or {}
        self._patience = patience
        self._line: socket.socket | None = None
        self._answers = frames.Decoder()
        self._welcome: int | None = None  # the last number that the other end has
        self._next = 1
        self._waiting: list[bytes] = []
        self._unheard: list[tuple[int, bytes]] = []

    def say(self, *said: dict[str, object]) -> None:
        """Say these records, and return when the supervisor has stored them. If that fails they
        are kept, and go with the next."""
        self._waiting += [records.fit(record) for record in said]
        if self._line is None:
            self.connect()
        # Which number comes next is known only on a line.
        numbered = enumerate(self._waiting, self._next)
        fresh = [(seq, frames.encode(seq, payload)) for seq, payload in numbered]
        self._waiting = []
        self._next += len(fresh)
        self._unheard += fresh
        self._send(b"".join(frame for _, frame in fresh))
        self._await(lambda: not self._unheard)

    def connect(self) -> None:
        """Greet, and say again what was not acknowledged. `say` does this by itself."""
        self.close()
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(self._patience)
        try:
            line.connect(self.address)
        except OSError as error:
            line.close()
            raise Unheard(f"nobody listens at {self.address}: {error.strerror}") from error
        self._line, self._answers, self._welcome = line, frames.Decoder(), None
        self._send(frames.encode(frames.HANDSHAKE, records.fit(self._hello())))
        self._await(lambda: self._welcome is not None)
        if not self._unheard:
            self._next = max(self._next, (self._welcome or 0) + 1)
        self._send(b"".join(frame for _, frame in self._unheard))

    def close(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

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

    def _send(self, data: bytes) -> None:
        try:
            if self._line is not None and data:
                self._line.sendall(data)
        except OSError as error:
            self.close()
            raise Unheard(f"the supervisor does not listen any more: {error}") from error

    def _await(self, answered: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._patience
        while not answered():
            try:
                if self._line is None or time.monotonic() > deadline:
                    raise TimeoutError("no answer")
                data = self._line.recv(_READ)
                if not data:
                    raise ConnectionError("the line was closed")
            except OSError as error:
                self.close()
                raise Unheard(f"the supervisor does not answer: {error}") from error
            for seq, frame in self._answers.feed(data):
                self._answered(seq, frames.payload_of(frame))

    def _answered(self, seq: int, payload: bytes) -> None:
        if seq == frames.HANDSHAKE and payload:
            said = records.unpack(payload)
            if said["kind"] == "refused":
                self.close()
                raise Unheard("the supervisor speaks another version of the protocol")
            have = said.get("have")
            self._welcome = seq = have if isinstance(have, int) else 0
        self._unheard = [one for one in self._unheard if one[0] > seq]
