"""The spool: what a process says when nobody takes it, in a file of its own.

Never holds half a frame: a write that the disk refuses is taken back. The same frames as on the
line, beginning with the hello: it may have to speak for itself.
"""

from __future__ import annotations

import os

from ..ipc.endpoint import identity, sync_file
from ..ipc.handlers import is_the_agents

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Spool:
    def __init__(self, folder: str, stream: str) -> None:
        self._path = os.path.join(folder, stream + ".spool")
        self._fd: int | None = None
        self._file: tuple[int, int] | None = None
        self._unsynced = False

    @property
    def open(self) -> bool:
        """Whether there is one, and its descriptor is still ours: an agent may close them all."""
        return self._fd is not None and identity(self._fd) == self._file

    def begin(self, hello: bytes) -> None:
        """Raises OSError where there can be none."""
        fd = os.open(self._path, _FLAGS, 0o600)
        try:
            _append(fd, hello)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._file = fd, identity(fd)

    def append(self, data: bytes) -> None:
        """Write all of it, or leave the file as it was. Raises OSError."""
        assert self._fd is not None
        _append(self._fd, data)
        self._unsynced = True

    def lasts(self) -> bool:
        """Make it safe from a loss of power, too."""
        try:
            if self._unsynced:
                sync_file(self._path)
        except OSError as error:
            if is_the_agents(error):
                raise
            return False
        self._unsynced = False
        return True

    def let_go(self) -> None:
        if self._fd is not None and self.open:
            os.close(self._fd)


def _append(fd: int, data: bytes) -> None:
    before = os.fstat(fd).st_size
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        os.ftruncate(fd, before)
        raise
