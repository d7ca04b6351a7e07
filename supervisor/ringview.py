"""A stream's ring, as the supervisor looks into it now and then.

Never maps it, which a process that cuts its file short could turn into our death, and never
reads again what was known when it last looked.
"""

from __future__ import annotations

import os

from ..ipc import ring

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class RingView:
    def __init__(self, folder: str, stream: str) -> None:
        self._path = os.path.join(folder, ring.name_of(stream))
        self._file = (0, 0)
        self._halves: list[ring.Half] = []

    def frames_after(self, last: int) -> list[tuple[int, bytes]]:
        """What is in it and numbered higher than `last`, which never goes back, in order. Raises
        OSError if there is no ring."""
        fd = os.open(self._path, _FLAGS)
        try:
            about = os.fstat(fd)
            file = (about.st_ino, min(about.st_size, ring.LARGEST))
            if file != self._file:
                # Another one has taken its place, which holds all that is not acknowledged.
                self._file, self._halves = file, ring.halves(file[1])

            def read(place: int, size: int) -> bytes:
                return os.pread(fd, size, place)

            return sorted(pair for half in self._halves for pair in half.frames_after(last, read))
        finally:
            os.close(fd)
