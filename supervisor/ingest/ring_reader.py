"""Reads a stream's ring, the file that the agent has mapped, once in every sync interval.

Never maps it: a process that truncates the file could kill us by that. Never reads again what was
known at the last read.
"""

from __future__ import annotations

import os

from ...ipc import ring

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class RingReader:
    def __init__(self, folder: str, stream: str) -> None:
        self._path = os.path.join(folder, ring.name_of(stream))
        self._file = (0, 0)
        self._halves: list[ring.Half] = []

    def frames_after(self, last: int) -> list[tuple[int, bytes]]:
        """The frames with numbers higher than `last`, in order. `last` never decreases. Raises
        OSError if there is no ring."""
        fd = os.open(self._path, _FLAGS)
        try:
            about = os.fstat(fd)
            file = (about.st_ino, min(about.st_size, ring.LARGEST))
            if file != self._file:
                # A new ring has replaced the old one; it holds all that is not acknowledged.
                self._file, self._halves = file, ring.halves(file[1])

            def read(place: int, size: int) -> bytes:
                return os.pread(fd, size, place)

            return sorted(pair for half in self._halves for pair in half.frames_after(last, read))
        finally:
            os.close(fd)
