"""The socket that supervised processes connect to, and who is at the other end.

Never reads a frame.
"""

from __future__ import annotations

import errno
import os

from ...ipc import endpoint
from ...ipc.lightweight import socket
from ..process.platform import peer_of

_BACKLOG = 128


class Refused(Exception):
    """A connection cannot be served; the text says why."""


class Listener:
    def __init__(self, name: str, *, replace: bool = False) -> None:
        """`replace`: an earlier supervisor of this run may have left its socket behind."""
        self.path = endpoint.socket_path(name)
        if len(os.fsencode(self.path)) > endpoint.LONGEST_PATH:
            raise OSError(f"the socket's path is too long: {self.path}")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if replace and os.path.exists(self.path):
            os.unlink(self.path)
        before = os.umask(0o177)
        try:
            self._socket.bind(self.path)
        finally:
            os.umask(before)
        self._socket.listen(_BACKLOG)
        self._socket.setblocking(False)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.refused: int | None = None
        """The last other user whose process tried to connect."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def accept(self) -> tuple[socket.socket, int] | None:
        """The next connection and its pid, if there is one. Other users are refused, and whoever
        waits behind them is not."""
        while True:
            try:
                fd, _ = self._socket._accept()  # type: ignore[attr-defined]
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    self._refuse_one()
                return None
            peer = socket.socket(fileno=fd)
            peer.setblocking(False)
            pid, uid = peer_of(peer)
            if uid == os.getuid():
                return peer, pid
            peer.close()
            self.refused = uid

    def _refuse_one(self) -> None:
        """No descriptor is left. A connection that is never accepted would keep us awake."""
        os.close(self._spare)
        try:
            os.close(self._socket._accept()[0])  # type: ignore[attr-defined]
        except OSError:
            pass
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Stop listening and remove the path."""
        self._socket.close()
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        try:
            os.unlink(self.path)
        except OSError:
            pass

    def close_in_child(self) -> None:
        """Close the descriptor in a forked process; the path stays for the parent."""
        self._socket.close()
