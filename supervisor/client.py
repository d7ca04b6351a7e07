"""One connection: check its frames, append them to its stream's journal, acknowledge.

Never interprets a record but the handshake, and never waits for the other end.
"""

from __future__ import annotations

import os
import time

from ..ipc import frames, records
from .journal import Journal
from .listener import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket

    from .ringview import RingView

_READ = 128 * 1024
_LONGEST_HANDSHAKE = 1024 * 1024
# What came on a stream since somebody last looked.
NOTHING, WORDS, QUESTION = range(3)


class Stream:
    """Everything one process says, across the connections it says it on."""

    # Pieces of a reply may lie in its ring alone for a second after it last spoke here, so for
    # longer than that it is looked into, once in every interval between two syncs.
    LOOKS = 3

    def __init__(self, name: str, pid: int, journal: Journal) -> None:
        self.name = name
        self.pid = pid
        self.journal = journal
        self.last = 0
        self.stores_itself = False
        """Its process writes into state.db what it says."""
        self.news = NOTHING
        self.turned_over = False
        """A new conversation may have taken the place of another."""
        self.looks = self.LOOKS
        """How often to look into its ring, if nothing new is there meanwhile."""
        self.view: RingView | None = None
        self.compacted = 0
        """The segment up to which older ones were last put together."""

    def append(self, numbered: list[tuple[int, bytes]], *, always_sync: bool) -> None:
        """Write down what is new of these frames. Raises OSError when that is not possible."""
        last = self.last
        fresh = []
        for seq, frame in numbered:
            if seq > last:
                if seq > last + 1:
                    self.journal.note_gap()
                fresh.append(frame)
                last = seq
        if fresh:
            data = b"".join(fresh)
            self.journal.append(data)
            if always_sync:
                self.journal.sync()
            self.last = last
            self.turned_over |= b'"reset"' in data
            self.news = max(self.news, QUESTION if any(map(_may_ask, fresh)) else WORDS)


class Client:
    # How long a stream of records may lie in the socket's buffer, where its sender's death cannot
    # harm it, before it is read in one go. The buffer holds some 500 deltas, or 90 messages of
    # 2 KB: no Python fills it in this time.
    REST = 0.001

    def __init__(self, line: _socket.socket, pid: int) -> None:
        self.line = line
        self.pid = pid
        self.stream: Stream | None = None
        self._version = records.VERSION
        self._decoder = frames.Decoder()
        self._waiting: list[tuple[int, bytes]] = []
        self._stored_at = 0.0
        self.streaming = False
        """More is likely to follow soon, and nobody waits for an answer to what came last."""

    def fileno(self) -> int:
        return self.line.fileno()

    def receive(self) -> bool | None:
        """Read once. True: something came; None: nothing there now; False: the end."""
        try:
            data = self.line.recv(_READ)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            return False
        if not data:
            return False
        self._waiting += self._decoder.feed(data)
        if self.stream is None and not self._waiting:
            if self._decoder.pending > _LONGEST_HANDSHAKE:
                raise Refused("a handshake that does not end")
            self._complain()
        return True

    def handshake(self) -> tuple[dict[str, object], bytes] | None:
        """The greeting, once it is there: as a record, and as the frame it came in."""
        if self.stream is not None or not self._waiting:
            return None
        seq, frame = self._waiting.pop(0)
        if seq != frames.HANDSHAKE:
            raise Refused("records before the handshake")
        try:
            hello = records.unpack(frames.payload_of(frame))
        except records.BadRecord as error:
            raise Refused(str(error)) from error
        if hello["kind"] != "hello" or not _is_stream_name(hello.get("stream")):
            raise Refused("the first record is not a hello")
        self._agree_on_version(hello)
        return hello, frame

    def take_back(self, greeting: bytes) -> None:
        """It is not its turn yet."""
        self._waiting.insert(0, (frames.HANDSHAKE, greeting))

    def _agree_on_version(self, hello: dict[str, object]) -> None:
        oldest, newest = hello.get("oldest"), hello.get("version")
        version = records.negotiate(oldest, newest)
        if version is None:
            ours = {"kind": "refused", "version": records.VERSION, "oldest": records.OLDEST}
            self._answer(frames.HANDSHAKE, records.pack(ours))
            raise Refused(f"no common version: it speaks {oldest!r:.20} to {newest!r:.20}")
        self._version = version

    def welcome(self, stream: Stream) -> None:
        answer = {"kind": "welcome", "version": self._version, "have": stream.last}
        self._answer(frames.HANDSHAKE, records.pack(answer))
        self.stream = stream

    def store(self, *, always_sync: bool) -> None:
        """Append what came and is new. Raises OSError when the journal cannot take it."""
        stream = self.stream
        if stream is not None and self._waiting:
            self._note_pace()
            waiting, self._waiting = self._waiting, []
            stream.looks = stream.LOOKS
            stream.append(waiting, always_sync=always_sync)
            self.acknowledge()
        self._complain()

    def acknowledge(self) -> None:
        if self.stream is not None:
            self._answer(self.stream.last, b"")

    def _note_pace(self) -> None:
        """A sender that waits for its acknowledgement sends one record, and not a delta."""
        now = time.monotonic()
        is_piece = self._waiting[-1][1][frames.HEADER.size : frames.HEADER.size + 1] in (b"t", b"r")
        quick = now - self._stored_at < 2 * self.REST
        self.streaming = quick and (is_piece or len(self._waiting) > 1)
        self._stored_at = now

    def close(self) -> None:
        self.line.close()

    def _answer(self, seq: int, payload: bytes) -> None:
        # Acknowledgements are cumulative: one that finds no room is made good by the next.
        try:
            self.line.send(frames.encode(seq, payload))
        except OSError:
            pass

    def _complain(self) -> None:
        if self._decoder.damage is not None:
            raise Refused(f"{self._decoder.damage!r} of the connection")


def _may_ask(frame: bytes) -> bool:
    """Whether a record may be a message of the user's. Nothing but haste depends on it."""
    is_record = frame[frames.HEADER.size : frames.HEADER.size + 1] == b"{"
    return is_record and b'"user"' in frame


def _is_stream_name(name: object) -> bool:
    return isinstance(name, str) and len(name) == 32 and not name.strip("0123456789abcdef")


def seen_by_kernel(pid: int, start: int | None) -> bytes:
    """The second handshake frame of every segment: who the kernel says is talking."""
    peer: dict[str, object] = {"kind": "peer", "pid": pid, "start": start, "by": os.getpid()}
    return frames.encode(frames.HANDSHAKE, records.pack(peer))
