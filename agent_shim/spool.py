"""The spool: a file for a stream's frames while no supervisor takes them.

Never holds half a frame: a write that fails is undone. It holds the same frames as the connection
would carry and begins with the hello, because it may be all that is left of its process.
"""

from __future__ import annotations

import os

from ..ipc.endpoint import identity, sync_file
from ..ipc.handlers import raised_by_signal_handler
from .fork_mark import ForkedChild
from .standard_streams import numbers_kept_free

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .fork_mark import Mark

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Spool:
    def __init__(self, folder: str, stream: str, mark: Mark) -> None:
        self._path = os.path.join(folder, stream + ".spool")
        self._mark = mark
        self._fd: int | None = None
        self._file: tuple[int, int] | None = None
        self._unsynced = False

    @property
    def is_open(self) -> bool:
        """Whether there is a file, and its descriptor is still ours: an agent may close it."""
        return self._fd is not None and identity(self._fd) == self._file

    def begin(self, hello: bytes) -> None:
        """Open the file, and write the hello. Raises OSError if that fails."""
        if not self._mark[0]:
            raise ForkedChild
        with numbers_kept_free():
            fd = os.open(self._path, _FLAGS, 0o600)
        try:
            self._write(fd, hello)
        except OSError:
            os.close(fd)
            raise
        self._fd, self._file = fd, identity(fd)

    def append(self, data: bytes) -> None:
        """Write all of it, or leave the file as it was. Raises OSError."""
        assert self._fd is not None
        self._write(self._fd, data)
        self._unsynced = True

    def _write(self, fd: int, data: bytes) -> None:
        before = os.fstat(fd).st_size
        rest = memoryview(data)
        try:
            while rest:
                if not self._mark[0]:
                    raise ForkedChild
                rest = rest[os.write(fd, rest) :]
        except OSError:
            os.ftruncate(fd, before)
            raise

    def sync(self) -> bool:
        """Make what was written safe from a loss of power. False if that failed."""
        try:
            if self._unsynced:
                sync_file(self._path)
        except OSError as error:
            if raised_by_signal_handler(error):
                raise
            return False
        self._unsynced = False
        return True

    def close(self) -> None:
        if self._fd is not None and self.is_open:
            os.close(self._fd)
