"""The server: accepts connections, and appends what arrives on them to the streams' journals.

Never blocks, and never interprets a record but the hello. A stream outlives its connections: it
ends with its process, and only the run knows when that is.

The code that serves a connection is loaded with the first connection: most commands never connect.
"""

from __future__ import annotations

import os

from ..agents import registry
from ..process.death import exists
from ..storage import run_folder as runs
from .listener import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...ipc.lightweight import socket
    from ..model.unwritten import Unwritten
    from ..process.loop import Loop
    from .connection import Connection, Stream
    from .listener import Listener

_SYNC_INTERVAL = 1.0
_RETRY_AFTER_RECOVERY = 0.02
_MAX_CONNECTIONS = 512
# What the journals do not take stays in memory up to so many bytes, of all streams together.
_MOST_UNWRITTEN = 64 * 1024 * 1024
# Descriptors that journals and recovery need, however many processes connect.
_RESERVED_DESCRIPTORS = 32


class Observer:
    """What the server asks and reports; the run that it serves answers. These defaults are for a
    server that nobody observes."""

    def process_connected(self, pid: int, claimed_start: object) -> int | None:
        """A process said hello for the first time; its start time, if it is known."""

    def process_exited(self, pid: int, status: int) -> None:
        """A process was dead before it could be watched; how it exited, as the kernel says."""

    def user_refused(self, uid: int) -> None:
        """A process of another user tried to connect."""

    def is_part_of(self, pid: int, whole: int) -> bool:
        """True if `pid` may speak for the process `whole`."""
        return False

    def transcript_owner(self) -> tuple[int, int | None]:
        """Pid and start time of the agent whose transcripts are followed."""
        return 0, None

    def is_recovering(self) -> bool:
        """True while a recovery is under way."""
        return False

    def records_arrived(self, stream: Stream) -> None:
        """There is something new in a stream's journal."""

    def segment_closed(self, stream: Stream, number: int) -> None:
        """A segment of a stream's journal is complete."""

    def synced(self) -> None:
        """The journals are about to be synced: once in every interval in which records arrive."""

    def batch_journaled(self) -> None:
        """What came in the last batch interval is in the journals; only if there is one."""

    def warn(self, text: str) -> None:
        """Something failed that the user should know."""


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
        to no process, and only `close_stream` ends it: the transcript process of a dead supervisor
        may report here before its successor does. `batch`: the interval, in seconds, at
        which rings are read and `batch_journaled` is called."""
        self._loop = loop
        self._listener = listener
        self._folder = folder
        self._observer = observer
        self._always_sync = sync == "always"
        self._transcript_stream = transcript_stream
        self._sync_scheduled = False
        self._batch = batch
        self._batch_scheduled = False
        self._folder_is_durable = False
        self._connections: dict[int, Connection] = {}
        self.streams: dict[str, Stream] = {}
        self._closed: dict[str, Stream] = {}
        """Streams of dead processes whose journals did not take everything."""
        self._in_recovery: set[str] = set()
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
        return bool(self._connections or self.streams)

    def drain(self, pid: int) -> None:
        """Read everything that a dead process has sent, then close its connections."""
        self.accept()
        names = {stream.name for stream in self.streams_of(pid)}  # others may speak for it
        for connection in list(self._connections.values()):
            stream = connection.stream
            if connection.pid == pid or (stream is not None and stream.name in names):
                self._read_to_end(connection)
                self._close(connection)

    def read_all(self) -> None:
        """Read once from every connection, so that we know of every session claimed by now."""
        for connection in list(self._connections.values()):
            self._read(connection)

    def open_stream(self, name: str, pid: int, handshake: bytes, after: int = 0) -> Stream:
        # Start-up: only once a process connects.
        from ..storage.journal import Journal
        from .connection import Stream

        def journal(*, begin: bool) -> Journal:
            ahead = self._always_sync
            return Journal(self._folder, name, handshake, after=after, ahead=ahead, begin=begin)

        try:
            if not self._folder_is_durable:
                runs.make_durable(self._folder)
                self._folder_is_durable = True
            stream = Stream(name, pid, journal(begin=True))
        except OSError as error:
            self._warn_about_journal(error)
            stream = Stream(name, pid, journal(begin=False))
            stream.keep_handshake(handshake, error)
        self.streams[name] = stream
        return stream

    def resume_stream(self, name: str, owner: tuple[int, int | None], last: int) -> Stream:
        """Continue a stream that an earlier supervisor of this run was writing."""
        from .connection import peer_frame  # start-up: only once a process connects

        files = [file.split(".") for file in os.listdir(self._folder) if _is_segment(file, name)]
        numbers = [int(parts[1]) for parts in files if parts[1].isdecimal()]
        handshake = peer_frame(*owner)
        pid = 0 if name == self._transcript_stream else owner[0]
        stream = self.open_stream(name, pid, handshake, after=max(numbers, default=0))
        stream.last = stream.received = last
        self._after_append(stream)
        return stream

    def close_stream(self, stream: Stream, last_frame: bytes) -> None:
        del self.streams[stream.name]
        if (error := stream.close(last_frame)) is not None:
            self._warn_about_journal(error)
        if stream.unwritten.frames or stream.unwritten.refused:
            self._closed[stream.name] = stream

    def unwritten(self) -> dict[str, Unwritten]:
        """What is in no journal, by stream."""
        streams = {**self.streams, **self._closed}
        return {
            name: stream.unwritten
            for name, stream in streams.items()
            if stream.unwritten.frames or stream.unwritten.refused
        }

    def recovered(self, names: list[str]) -> None:
        """These streams are finished: nothing of them is needed any more."""
        for name in names:
            self._closed.pop(name, None)

    def write_what_is_left(self) -> int:
        """At the end: have the journals take what recovery could not finish, after all. Returns
        how many records they did not take."""
        lost = 0
        for stream in self._closed.values():
            try:
                stream.write_again(always_sync=True)
            except OSError:
                lost += sum(seq > 0 for seq, _ in stream.unwritten.frames)
            stream.journal.close()
        return lost

    def streams_of(self, pid: int) -> list[Stream]:
        return [stream for stream in self.streams.values() if stream.pid == pid]

    def give_to_recovery(self, names: list[str]) -> None:
        """Recovery works on these streams. A process that connects with one of them meanwhile has
        to wait: its records must not get into a stream that is being finished."""
        self._in_recovery.update(names)

    def was_given_to_recovery(self, name: str) -> bool:
        return name in self._in_recovery

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
            if hello is not None and hello[0]["stream"] in self._in_recovery:
                if self._observer.is_recovering():
                    connection.put_back(hello[1])
                    self._loop.pause(connection.fileno(), _RETRY_AFTER_RECOVERY)
                    return False
                if self._is_settled(str(hello[0]["stream"])):
                    self._close(connection)
                    return False
            if hello is not None:
                self._welcome(connection, *hello)
            failed = connection.store(always_sync=self._always_sync, room=self._room)
            if failed is not None:
                self._warn_about_journal(failed)
        except Refused as why:
            done = "refused" if connection.stream is None else "ended"
            self._observer.warn(f"a connection was {done}: {why}")
            received = False
        except OSError as error:
            # There is no room in memory either. Nothing was acknowledged, so the shim keeps what
            # it can, connects again and sends it again.
            self._warn_about_journal(error)
            received = False
        if received is False:
            self._close(connection)
        if connection.stream is not None:
            self._after_append(connection.stream)
        return received is True

    def _is_settled(self, name: str) -> bool:
        """True if recovery found the process dead and removed the stream's files. Everything that
        is still in the connection was in the ring as well."""
        files = os.listdir(self._folder)
        return name not in self.streams and not any(file.startswith(name) for file in files)

    def _welcome(self, connection: Connection, hello: dict[str, object], frame: bytes) -> None:
        name = str(hello["stream"])
        stream = self.streams.get(name)
        if name == self._transcript_stream:
            # The agent's, whichever transcript process connects: its exit is nobody's death.
            if stream is None:
                stream = self._begin(name, hello, frame, 0, self._observer.transcript_owner())
            connection.welcome(stream)
            return
        pid, claimed_start = self._owner_of(connection, hello)
        if stream is None:
            owner = (pid, self._observer.process_connected(pid, claimed_start))
            if pid == connection.pid and not exists(pid):
                status = connection.exit_status()
                if status is not None:
                    self._observer.process_exited(pid, status)
            stream = self._begin(name, hello, frame, pid, owner)
        elif stream.pid != pid:
            raise Refused(f"process {pid} uses the stream of process {stream.pid}")
        connection.welcome(stream)

    def _begin(
        self,
        name: str,
        hello: dict[str, object],
        frame: bytes,
        pid: int,
        owner: tuple[int, int | None],
    ) -> Stream:
        from .connection import peer_frame  # start-up: only once a process connects

        stream = self.open_stream(name, pid, frame + peer_frame(*owner))
        stream.stores_itself = registry.stores_itself(hello.get("agent"))
        return stream

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

    # -- the journals ------------------------------------------------------------------------

    def _after_append(self, stream: Stream) -> None:
        if stream.journal.full:
            try:
                closed = stream.journal.begin_next_segment()
            except OSError as error:
                self._warn_about_journal(error)
            else:
                self._observer.segment_closed(stream, closed)
        if stream.news:
            self._observer.records_arrived(stream)
        to_do = stream.journal.dirty or stream.ring_checks or stream.unwritten.frames
        if to_do and not self._sync_scheduled:
            self._sync_scheduled = True
            self._loop.after(_SYNC_INTERVAL, self._sync)
        waits = stream.journal.dirty or stream.ring_checks
        if self._batch is not None and waits and not self._batch_scheduled:
            self._batch_scheduled = True
            self._loop.after(self._batch, self._read_batch)

    def _read_batch(self) -> None:
        """As `_sync`, but more often, and nothing is synced."""
        self._batch_scheduled = False
        for stream in self.streams.values():
            try:
                if stream.ring_checks:
                    stream.ring_checks += 1  # only syncs count
                self._read_ring(stream)
            except OSError as error:
                self._warn_about_journal(error)
        self._observer.batch_journaled()
        for stream in self.streams.values():
            self._after_append(stream)

    def _sync(self) -> None:
        self._sync_scheduled = False
        self._observer.synced()
        for stream in self.streams.values():
            # Each on its own: the ring of an agent that streams is never empty, and what it holds
            # has to be kept also while the journal cannot be written.
            for step in (self._write_again, self._read_ring, _sync_journal):
                try:
                    step(stream)
                except OSError as error:
                    self._warn_about_journal(error)
            self._after_append(stream)

    def _write_again(self, stream: Stream) -> None:
        if stream.write_again(always_sync=self._always_sync):
            self._acknowledge(stream)

    def _read_ring(self, stream: Stream) -> None:
        """Append what is in the stream's ring and was not sent yet."""
        if not stream.ring_checks:
            return
        from .ring_reader import RingReader  # start-up: only once a process connects

        stream.ring_checks -= 1
        stream.ring = stream.ring or RingReader(self._folder, stream.name)
        try:
            frames = stream.ring.frames_after(stream.received)
        except OSError:
            stream.ring_checks = 0  # it has no ring
            return
        # Behind a gap, frames are in the spool or on the connection.
        following = [pair for n, pair in enumerate(frames, stream.received + 1) if pair[0] == n]
        if following:
            stream.ring_checks = stream.RING_CHECKS
            failed = stream.append(following, always_sync=self._always_sync, room=self._room)
            if failed is not None:
                raise failed
            self._acknowledge(stream)

    def _acknowledge(self, stream: Stream) -> None:
        for connection in self._connections.values():
            if connection.stream is stream:
                connection.acknowledge()

    def _room(self) -> int:
        """How many bytes may still be kept in memory."""
        return _MOST_UNWRITTEN - sum(one.size for one in self.unwritten().values())

    def _warn_about_journal(self, error: OSError) -> None:
        self._observer.warn(f"the journal cannot be written: {error.strerror or error}")


def _connection(peer: socket.socket, pid: int) -> Connection:
    try:
        from .connection import Connection  # start-up: only once a process connects
    except BaseException:
        peer.close()  # nobody will read it: the sender must notice
        raise
    return Connection(peer, pid)


def _sync_journal(stream: Stream) -> None:
    stream.journal.sync()


def _is_segment(file: str, stream: str) -> bool:
    return file.startswith(stream + ".") and file.endswith(".log")
