"""The socket that supervised processes connect to, and who is at the other end.

Never reads a frame. `_socket` instead of `socket`: the latter's imports would take longer
than everything else before the agent starts.
"""

from __future__ import annotations

import _socket
import errno
import os

from ..ipc import endpoint

_BACKLOG = 128


class Refused(Exception):
    """A connection cannot be served; the text says why."""


class Listener:
    def __init__(self, name: str, *, again: bool = False) -> None:
        """`again`: whoever held this run's lock before us may have left the path behind."""
        self.path = endpoint.socket_path(name)
        if len(os.fsencode(self.path)) > endpoint.LONGEST_PATH:
            raise OSError(f"the socket's path is too long: {self.path}")
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        if again and os.path.exists(self.path):
            os.unlink(self.path)
        before = os.umask(0o177)
        try:
            self._socket.bind(self.path)
        finally:
            os.umask(before)
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> tuple[_socket.socket, int] | None:
        """A connection and its process, if it is ours to serve; others are turned away."""
        try:
            fd, _ = self._socket._accept()  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._turn_one_away()
            return None
        line = _socket.socket(fileno=fd)
        line.setblocking(False)
        pid, uid, _ = _peer(line)
        if uid != os.getuid():
            line.close()
            return None
        return line, pid

    def _turn_one_away(self) -> None:
        """No descriptor is left for whoever knocks. Unanswered, it would knock for ever."""
        os.close(self._spare)
        try:
            os.close(self._socket._accept()[0])  # type: ignore[attr-defined]
        except OSError:
            pass
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Stop listening and take the path away."""
        self._socket.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            os.unlink(self.path)
        except OSError:
            pass

    def abandon(self) -> None:
        """Let go of the descriptor in a forked process; the path is the parent's."""
        self._socket.close()


def _peer(line: _socket.socket) -> tuple[int, int, int]:
    from struct import calcsize, unpack

    form = "iII"
    data = line.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, calcsize(form))
    return unpack(form, data)
