"""The door: who is connected, and whose words go into which journal.

Never waits for anybody, and never interprets a record but the greeting. A stream outlives its
connections: it ends with its process, which is not known here.

What serves a connection is loaded when somebody knocks: most commands have nothing to say.
"""

from __future__ import annotations

import os

from ..ipc.endpoint import process_start
from . import run as runs
from .listener import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable

    from .client import Client, Stream
    from .listener import Listener
    from .loop import Loop

_SYNC_INTERVAL = 1.0
_UNTIL_RECOVERED = 0.02
_MOST_CLIENTS = 512
# Descriptors that journals and recovery need, whoever knocks.
_KEPT_FREE = 32


class Door:
    def __init__(self, loop: Loop, listener: Listener, folder: str, sync: str) -> None:
        self._loop = loop
        self._listener = listener
        self._folder = folder
        self._always_sync = sync == "always"
        self._sync_due = False
        self._lasts = False
        self._clients: dict[int, Client] = {}
        self.streams: dict[str, Stream] = {}
        self.strays: set[str] = set()
        """Streams that recovery was given; whether their processes live, it finds out itself. Who
        comes to the door meanwhile waits: what it says must not get into a stream that is being
        finished, nor its death be known to one of the two only."""
        self.is_recovering: Callable[[], bool] = lambda: False
        self._most = max(4, min(_MOST_CLIENTS, os.sysconf("SC_OPEN_MAX") - _KEPT_FREE))
        self.handed_on: str | None = None
        """The stream that one process may go on with after another: the watcher's."""
        self.whom: Callable[[], tuple[int, int | None]] = lambda: (0, None)
        """For whom the watcher speaks."""
        # Whoever supervises says what happens then.
        self.greeted: Callable[[int, object], int | None] = lambda pid, start: None
        self.is_part_of: Callable[[int, int], bool] = lambda pid, whole: False
        self.segment_closed: Callable[[Stream, int], None] = lambda stream, number: None
        self.spoke: Callable[[Stream], None] = lambda stream: None
        self.synced: Callable[[], None] = lambda: None
        self.warn: Callable[[str], None] = lambda text: None
        loop.when_readable(listener.fileno(), self.answer)

    def answer(self) -> None:
        """Let in whoever knocks."""
        while (accepted := self._listener.accept()) is not None:
            if len(self._clients) >= self._most:
                self._make_room()
            client = _served(*accepted)
            fd = client.fileno()
            self._clients[fd] = client
            self._loop.when_readable(fd, self._server_of(client))
            if process_start(client.pid) is None:
                self._drain(client)

    def is_visited(self) -> bool:
        """Whether anybody has come in, or stands outside now."""
        self.answer()
        return bool(self._clients or self.streams)

    def last_words(self, pid: int) -> None:
        """Read everything a process has sent to the end of it; for one that is dead."""
        self.answer()
        theirs = {stream.name for stream in self.streams_of(pid)}  # also said by others for it
        for client in list(self._clients.values()):
            if client.pid != pid and (client.stream is None or client.stream.name not in theirs):
                continue
            self._drain(client)
            self._drop(client)

    def hear_all(self) -> None:
        """Read once from everybody. Who has said by now that a session is its own, holds it."""
        for client in list(self._clients.values()):
            self._serve(client)

    def open_stream(self, name: str, pid: int, handshake: bytes, after: int = 0) -> Stream:
        from .client import Stream
        from .journal import Journal

        if not self._lasts:
            runs.make_last(self._folder)
            self._lasts = True
        journal = Journal(self._folder, name, handshake, after=after, ahead=self._always_sync)
        stream = self.streams[name] = Stream(name, pid, journal)
        return stream

    def close_stream(self, stream: Stream, last_frame: bytes) -> None:
        del self.streams[stream.name]
        try:
            stream.journal.append(last_frame)
            stream.journal.sync()
        except OSError as error:
            self.warn(f"the journal cannot be written: {error.strerror or error}")
        stream.journal.close()

    def streams_of(self, pid: int) -> list[Stream]:
        return [stream for stream in self.streams.values() if stream.pid == pid]

    def shut(self) -> None:
        """Let nobody in any more; who is in is sent away, and spools."""
        self._listener.close()
        for client in self._clients.values():
            client.close()

    def abandon(self) -> None:
        """Let go of every descriptor in a forked process; all of it is the parent's."""
        self._listener.abandon()
        for client in self._clients.values():
            client.close()

    # -- one connection ----------------------------------------------------------------------

    def _make_room(self) -> None:
        """Send away who came first of those that have not even greeted, else who was quiet."""
        self.warn("too many connections; some are turned away")
        silent = (client for client in self._clients.values() if client.stream is None)
        self._drop(next(silent, None) or next(iter(self._clients.values())))

    def _server_of(self, client: Client) -> Callable[[], None]:
        def serve() -> None:
            if self._serve(client) and client.streaming:
                self._loop.rest(client.fileno(), client.REST)

        return serve

    def _serve(self, client: Client) -> bool:
        """Read once and store; False when there is nothing more to read now."""
        try:
            came = client.receive()
            greeting = client.handshake()
            if greeting is not None and greeting[0]["stream"] in self.strays:
                if self.is_recovering():
                    client.take_back(greeting[1])
                    self._loop.rest(client.fileno(), _UNTIL_RECOVERED)
                    return False
                if self._is_settled(str(greeting[0]["stream"])):
                    self._drop(client)
                    return False
            if greeting is not None:
                self._admit(client, *greeting)
            client.store(always_sync=self._always_sync)
        except Refused as why:
            done = "refused" if client.stream is None else "ended"
            self.warn(f"a connection was {done}: {why}")
            came = False
        except OSError as error:
            # Not acknowledged, so the shim keeps it; it will come back and send it again.
            self.warn(f"the journal cannot be written: {error.strerror or error}")
            came = False
        if came is False:
            self._drop(client)
        if client.stream is not None:
            self.tend(client.stream)
        return came is True

    def _is_settled(self, name: str) -> bool:
        """Recovery had it, found its process dead and has taken its files away. All that still
        waits at the door was in its ring, too."""
        files = os.listdir(self._folder)
        return name not in self.streams and not any(file.startswith(name) for file in files)

    def _admit(self, client: Client, hello: dict[str, object], frame: bytes) -> None:
        name = str(hello["stream"])
        stream = self.streams.get(name)
        pid, told_start = self._whose(client, hello)
        if stream is None:
            from .client import seen_by_kernel

            who = (pid, self.greeted(pid, told_start))
            handshake = frame + seen_by_kernel(*(self.whom() if name == self.handed_on else who))
            stream = self.open_stream(name, pid, handshake)
            stream.stores_itself = hello.get("agent") == "hermes"
        elif name == self.handed_on:
            stream.pid = client.pid
        elif stream.pid != pid:
            raise Refused(f"process {pid} claims what process {stream.pid} says")
        client.welcome(stream)

    def _whose(self, client: Client, hello: dict[str, object]) -> tuple[int, object]:
        """Whose words these are: its own, or of a process that it is a part of; and when that
        one began, as told."""
        named = hello.get("for")
        if named is None:
            return client.pid, hello.get("start")
        if not isinstance(named, int) or not self.is_part_of(client.pid, named):
            raise Refused(f"process {client.pid} is no part of process {named!r:.20}")
        return named, None

    def _drop(self, client: Client) -> None:
        fd = client.fileno()
        if self._clients.pop(fd, None) is not None:
            self._loop.forget(fd)
            client.close()

    def _drain(self, client: Client) -> None:
        while client.fileno() in self._clients and self._serve(client):
            pass

    # -- the journals ------------------------------------------------------------------------

    def tend(self, stream: Stream) -> None:
        if stream.journal.full:
            try:
                closed = stream.journal.begin_next_segment()
            except OSError as error:
                self.warn(f"the journal cannot be written: {error.strerror or error}")
            else:
                self.segment_closed(stream, closed)
        if stream.news:
            self.spoke(stream)
        if (stream.journal.dirty or stream.looks) and not self._sync_due:
            self._sync_due = True
            self._loop.after(_SYNC_INTERVAL, self._sync)

    def _sync(self) -> None:
        self._sync_due = False
        self.synced()
        for stream in self.streams.values():
            try:
                if stream.looks:
                    self._look_into_ring(stream)
                stream.journal.sync()
            except OSError as error:
                self.warn(f"the journal cannot be written: {error.strerror or error}")
            self.tend(stream)

    def _look_into_ring(self, stream: Stream) -> None:
        """Write down what its process has said, and not sent yet because more is to follow."""
        from .ringview import RingView

        stream.looks -= 1
        stream.view = stream.view or RingView(self._folder, stream.name)
        try:
            found = stream.view.frames_after(stream.last)
        except OSError:
            stream.looks = 0  # it has none
            return
        # From the first gap on it has gone another way: into the spool, or onto the line.
        following = [pair for n, pair in enumerate(found, stream.last + 1) if pair[0] == n]
        if following:
            stream.append(following, always_sync=self._always_sync)
            stream.looks = stream.LOOKS
            for client in self._clients.values():
                if client.stream is stream:
                    client.acknowledge()


def take_over(door: Door, folder: str, name: str, who: tuple[int, int | None], last: int) -> None:
    """Go on with a stream that an earlier supervisor of this run was writing."""
    from .client import seen_by_kernel

    pid, start = who
    parts = [file.split(".") for file in os.listdir(folder) if _is_segment(file, name)]
    numbers = [int(part[1]) for part in parts if part[1].isdecimal()]
    said = seen_by_kernel(pid, start)
    stream = door.open_stream(name, pid, said, after=max(numbers, default=0))
    stream.last = last
    door.tend(stream)


def _served(line: _socket.socket, pid: int) -> Client:
    try:
        from .client import Client
    except BaseException:
        line.close()  # nobody will read it: its process has to know
        raise
    return Client(line, pid)


def _is_segment(file: str, stream: str) -> bool:
    return file.startswith(stream + ".") and file.endswith(".log")
