"""The server: accepts connections, reads them, and gives what arrives to its stream.

Never blocks, and never interprets a record but the hello. What becomes of the records is the
business of streams.py.

The code that serves a connection is loaded with the first connection: most commands never connect.
"""

from __future__ import annotations

import os

from ..process.death import exists
from .listener import Refused
from .streams import Streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...ipc.lightweight import socket
    from ..process.loop import Loop
    from .connection import Connection, Stream
    from .listener import Listener
    from .observer import Observer

_RETRY_AFTER_RECOVERY = 0.02
_MAX_CONNECTIONS = 512
# Descriptors that journals and recovery need, however many processes connect.
_RESERVED_DESCRIPTORS = 32


class Server:
    def __init__(
        self,
        loop: Loop,
        listener: Listener,
        folder: str,
        observer: Observer,
        *,
        sync: str = "interval",
        transcript_stream: str | None = None,
        batch: float | None = None,
    ) -> None:
        """`transcript_stream`: the stream that one process may continue after another. It belongs
        to no process, and only `Streams.close` ends it: the transcript process of a dead supervisor
        may report here before its successor does. `batch`: the interval, in seconds, at
        which rings are read and `batch_journaled` is called."""
        self._loop = loop
        self._listener = listener
        self._observer = observer
        self._transcript_stream = transcript_stream
        self._connections: dict[int, Connection] = {}
        self.streams = Streams(
            loop, folder, observer, self._acknowledge,
            sync=sync, transcript_stream=transcript_stream, batch=batch,
        )  # fmt: skip
        limit = os.sysconf("SC_OPEN_MAX") - _RESERVED_DESCRIPTORS
        self._max_connections = max(4, min(_MAX_CONNECTIONS, limit))
        loop.when_readable(listener.fileno(), self.accept)

    def accept(self) -> None:
        """Accept every connection that is waiting."""
        for connection in self._accepted():
            if not exists(connection.pid):
                self._read_to_end(connection)

    def connected_streams(self) -> set[str]:
        """Accept every connection that is waiting; the streams that they belong to. None of them
        is answered yet: a stream that an earlier supervisor wrote has to be resumed first."""
        found = set()
        for connection in self._accepted():
            try:
                connection.receive()
                hello = connection.read_hello()
            except Refused:
                self._close(connection)
                continue
            if hello is not None:
                found.add(str(hello[0]["stream"]))
                connection.put_back(hello[1])
            self._loop.pause(connection.fileno(), 0)  # it is read again, whether more comes or not
        return found

    def _accepted(self) -> Iterator[Connection]:
        while (accepted := self._listener.accept()) is not None:
            if len(self._connections) >= self._max_connections:
                self._make_room()
            connection = _connection(*accepted)
            fd = connection.fileno()
            self._connections[fd] = connection
            self._loop.when_readable(fd, self._reader_of(connection))
            yield connection
        if self._listener.refused is not None:
            self._observer.user_refused(self._listener.refused)

    def was_used(self) -> bool:
        """True if any process has connected, or is waiting to be accepted."""
        self.accept()
        return bool(self._connections or self.streams.served)

    def drain(self, pid: int) -> None:
        """Read everything that a dead process has sent, then close its connections."""
        self.accept()
        names = {stream.name for stream in self.streams.of(pid)}  # others may speak for it
        for connection in list(self._connections.values()):
            stream = connection.stream
            if connection.pid == pid or (stream is not None and stream.name in names):
                self._read_to_end(connection)
                self._close(connection)

    def read_all(self) -> None:
        """Read once from every connection, so that we know of every session claimed by now."""
        for connection in list(self._connections.values()):
            self._read(connection)

    def close(self) -> None:
        """Stop serving. Shims that are connected go on with their spools."""
        self._listener.close()
        self._close_connections()

    def close_in_child(self) -> None:
        """Close every descriptor in a forked process; the parent goes on serving."""
        self._listener.close_in_child()
        self._close_connections()

    def _close_connections(self) -> None:
        for connection in self._connections.values():
            connection.close()

    # -- one connection ----------------------------------------------------------------------

    def _make_room(self) -> None:
        """Close the oldest connection that has not said hello, or else the oldest of all."""
        self._observer.warn("too many connections; some are turned away")
        silent = (c for c in self._connections.values() if c.stream is None)
        self._close(next(silent, None) or next(iter(self._connections.values())))

    def _acknowledge(self, stream: Stream) -> None:
        for connection in self._connections.values():
            if connection.stream is stream:
                connection.acknowledge()

    def _reader_of(self, connection: Connection) -> Callable[[], None]:
        def read() -> None:
            if self._read(connection) and connection.streaming:
                self._loop.pause(connection.fileno(), connection.BATCH_DELAY)

        return read

    def _read(self, connection: Connection) -> bool:
        """Read once and append; False if there is nothing more to read now."""
        try:
            received = connection.receive()
            hello = connection.read_hello()
            if hello is not None and self.streams.was_given_to_recovery(str(hello[0]["stream"])):
                if self._observer.is_recovering():
                    connection.put_back(hello[1])
                    self._loop.pause(connection.fileno(), _RETRY_AFTER_RECOVERY)
                    return False
                if self.streams.is_settled(str(hello[0]["stream"])):
                    self._close(connection)
                    return False
            if hello is not None:
                self._welcome(connection, *hello)
            failed = connection.store(always_sync=self.streams.always_sync, room=self.streams.room)
            if failed is not None:
                self.streams.warn_about_journal(failed)
        except Refused as why:
            done = "refused" if connection.stream is None else "ended"
            self._observer.warn(f"a connection was {done}: {why}")
            received = False
        except OSError as error:
            # There is no room in memory either. Nothing was acknowledged, so the shim keeps what
            # it can, connects again and sends it again.
            self.streams.warn_about_journal(error)
            received = False
        if received is False:
            self._close(connection)
        if connection.stream is not None:
            self.streams.appended(connection.stream)
            self.streams.report_batch()
        return received is True

    def _welcome(self, connection: Connection, hello: dict[str, object], frame: bytes) -> None:
        name = str(hello["stream"])
        stream = self.streams.served.get(name)
        if name == self._transcript_stream:
            # The agent's, whichever transcript process connects: its exit is nobody's death.
            if stream is None:
                stream = self.streams.begin(hello, frame, 0, self._observer.transcript_owner())
            connection.welcome(stream)
            return
        pid, claimed_start = self._owner_of(connection, hello)
        if stream is None:
            owner = (pid, self._observer.process_connected(pid, claimed_start))
            if pid == connection.pid and not exists(pid):
                status = connection.exit_status()
                if status is not None:
                    self._observer.process_exited(pid, status)
            stream = self.streams.begin(hello, frame, pid, owner)
        elif stream.pid != pid:
            raise Refused(f"process {pid} uses the stream of process {stream.pid}")
        connection.welcome(stream)

    def _owner_of(self, connection: Connection, hello: dict[str, object]) -> tuple[int, object]:
        """Pid and claimed start time of the process that a connection speaks for: the connected
        process, or one that it is a part of."""
        whole = hello.get("for")
        if whole is None:
            return connection.pid, hello.get("start")
        if not isinstance(whole, int) or not self._observer.is_part_of(connection.pid, whole):
            raise Refused(f"process {connection.pid} is no part of process {whole!r:.20}")
        return whole, None

    def _close(self, connection: Connection) -> None:
        fd = connection.fileno()
        if self._connections.pop(fd, None) is not None:
            self._loop.forget(fd)
            connection.close()

    def _read_to_end(self, connection: Connection) -> None:
        while connection.fileno() in self._connections and self._read(connection):
            pass


def _connection(peer: socket.socket, pid: int) -> Connection:
    try:
        from .connection import Connection  # start-up: only once a process connects
    except BaseException:
        peer.close()  # nobody will read it: the sender must notice
        raise
    return Connection(peer, pid)
