"""Whose turn it is, and what each process has done: words in a file that everybody maps.

Never loses a note to a SIGKILL. Standard library only.
"""

from __future__ import annotations

import mmap
import os
import time

PROCESSES = 8
_TURN, _FIRST = 0, 8
_PID, _BEGUN, _RETURNED = range(3)
_EACH = 4


class Baton:
    def __init__(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, 8 * (_FIRST + PROCESSES * _EACH))
        self._memory = mmap.mmap(fd, 0)
        os.close(fd)
        self._words = memoryview(self._memory).cast("q")

    @property
    def turn(self) -> int:
        """The step that is to be performed."""
        return self._words[_TURN]

    @turn.setter
    def turn(self, step: int) -> None:
        self._words[_TURN] = step

    def wait_for(self, step: int) -> None:
        while self.turn != step:
            time.sleep(0.0002)

    # Written by a process.

    def born(self, process: int) -> None:
        self._put(process, _PID, os.getpid())

    def begin(self, process: int, step: int) -> None:
        self._put(process, _BEGUN, step + 1)

    def done(self, process: int, step: int) -> None:
        self._put(process, _RETURNED, step + 1)
        self.turn = step + 1

    # Read by the harness.

    def pid(self, process: int) -> int:
        return self._words[_FIRST + process * _EACH + _PID]

    def begun(self, process: int) -> int:
        """How many steps of the life were over when its last step had begun."""
        return self._words[_FIRST + process * _EACH + _BEGUN]

    def returned(self, process: int) -> int:
        return self._words[_FIRST + process * _EACH + _RETURNED]

    def _put(self, process: int, word: int, value: int) -> None:
        self._words[_FIRST + process * _EACH + word] = value
