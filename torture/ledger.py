"""Records which calls a process has begun and which have returned, outside of what is tested.

Never loses a note to a SIGKILL: the notes are in memory that is shared with the harness.
"""

from __future__ import annotations

import mmap
import os

SLOTS = 8
_WORDS = 16
_STREAM = 8  # where, in words, the stream's name begins
OPEN = 1 << 40
"""A gate so far away that no process reaches it."""

_PID, _GATE, _WAITING, _BEGUN, _RETURNED, _ACKED, _STARTED = range(7)


class Slot:
    """The notes about one process."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("q")
        self._bytes = memory

    def clear(self, gate: int) -> None:
        self._bytes[:] = bytes(len(self._bytes))
        self._words[_GATE] = gate

    # Written by the process itself.

    def born(self) -> None:
        self._words[_PID] = os.getpid()

    def begin(self, count: int) -> None:
        self._words[_BEGUN] = count

    def returned_from(self, count: int) -> None:
        self._words[_RETURNED] = count

    def acknowledged_up_to(self, count: int) -> None:
        self._words[_ACKED] = count

    def wait_at(self, count: int) -> None:
        self._words[_WAITING] = count + 1

    def speaks_as(self, stream: str) -> None:
        start = _STREAM * 8
        self._bytes[start : start + 32] = stream.encode()

    # Read by the harness, which also sets the gate.

    @property
    def pid(self) -> int:
        return self._words[_PID]

    @property
    def begun(self) -> int:
        return self._words[_BEGUN]

    @property
    def returned(self) -> int:
        return self._words[_RETURNED]

    @property
    def acked(self) -> int:
        return self._words[_ACKED]

    @property
    def waiting(self) -> int | None:
        """The operation that the process waits to begin; None if it does not wait."""
        return self._words[_WAITING] - 1 if self._words[_WAITING] else None

    @property
    def gate(self) -> int:
        return self._words[_GATE]

    def open_up_to(self, gate: int) -> None:
        self._words[_WAITING] = 0
        self._words[_GATE] = gate

    @property
    def stream(self) -> str:
        start = _STREAM * 8
        return bytes(self._bytes[start : start + 32]).strip(b"\0").decode()


class Ledger:
    """Slots for every process of a chapter, in a file that a separate interpreter can open.

    A worker uses one ledger all the time: freeing a mapping closes its descriptor, and in a forked
    process that descriptor number may belong to another file by then.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = 2 * SLOTS * _WORDS * 8
        os.ftruncate(fd, size)
        self._memory = mmap.mmap(fd, size)
        os.close(fd)
        whole = memoryview(self._memory)
        part = _WORDS * 8
        self._slots = [Slot(whole[n * part : (n + 1) * part]) for n in range(2 * SLOTS)]

    def slot(self, lane: int, process: int) -> Slot:
        return self._slots[lane * SLOTS + process]
