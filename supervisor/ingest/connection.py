"""One connection: check its frames, append them to its stream's journal, acknowledge.

Never interprets a record but the hello, and never waits for the other end.
"""

from __future__ import annotations

import os
import time

from ...ipc import frames, records
from ..model.checked import HELLO, checked, is_stream
from ..model.unwritten import Unwritten
from ..process.platform import peer_exit_status
from ..storage.journal import Journal
from .listener import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...ipc.lightweight import socket
    from .ring_reader import RingReader

_READ = 128 * 1024
_LONGEST_HANDSHAKE = 1024 * 1024
# What arrived on a stream since the last checkpoint. A guess: a miss only delays a checkpoint.
NOTHING, RECORDS, USER_MESSAGE = range(3)


class Stream:
    """Everything one process sends, across its connections."""

    # Deltas may be in the ring alone for a second after the last record arrived here, so the ring
    # is read for longer than that, once in every sync interval.
    RING_CHECKS = 3

    def __init__(self, name: str, pid: int, journal: Journal) -> None:
        self.name = name
        self.pid = pid
        """The process whose death ends it. 0: no process."""
        self.journal = journal
        self.last = 0
        """The last number in the journal: what we acknowledge."""
        self.received = 0
        """The last number that we have, in the journal or in memory."""
        self.unwritten = Unwritten()
        """Records that could not be written to the journal yet. They are not acknowledged."""
        self._failed: OSError | None = None
        """Why it did not."""
        self.stores_itself = False
        """Its process writes its messages to state.db itself."""
        self.news = NOTHING
        self.may_have_reset = False
        """A new conversation may have replaced the current one."""
        self.sessions: set[str] = set()
        """The sessions that it announced. Other streams may have a share in them."""
        self.taken_up: dict[str, str] = {}
        """If it stores itself: the sessions that it announced since somebody asked, each with its
        state.db where it says one."""
        self.ring_checks = self.RING_CHECKS
        """How often to read the ring again, if nothing new arrives meanwhile."""
        self.ring: RingReader | None = None
        self.compacted = 0
        """The segment up to which the journal was last compacted."""

    def append(
        self,
        numbered: list[tuple[int, bytes]],
        *,
        always_sync: bool,
        room: Callable[[], int] = int,
    ) -> OSError | None:
        """Append those of these frames that are new.

        If the journal cannot be written, keep them in memory, if they are no more than `room()`
        bytes, and return the error. Raise it if there is no room.
        """
        last = self.received
        fresh = []
        for pair in numbered:
            if pair[0] > last:
                if pair[0] > last + 1:
                    self.journal.note_gap()
                fresh.append(pair)
                last = pair[0]
        if not fresh:
            return None
        data = b"".join([frame for _, frame in fresh])
        if self._failed is None:
            try:
                self._write(data, always_sync=always_sync)
                self.last = last
            except OSError as error:
                self._failed = error.with_traceback(None)  # it would hold what was read
        # From now on only `write_again` tries: what is in memory may be long.
        if self._failed is not None:
            self._keep(fresh, len(data), self._failed, room)
        self.received = last
        self.may_have_reset |= b'"reset"' in data
        if b"session" in data:
            if self.stores_itself:
                for session, db in filter(None, (announced(frame) for _, frame in fresh)):
                    self.taken_up[session] = db
            else:
                self.sessions |= sessions_of(fresh)
        by_user = any(_may_be_user_message(frame) for _, frame in fresh)
        self.news = max(self.news, USER_MESSAGE if by_user else RECORDS)
        return self._failed

    def _keep(
        self, fresh: list[tuple[int, bytes]], size: int, failed: OSError, room: Callable[[], int]
    ) -> None:
        if size > room():
            self.unwritten.refused = max(self.unwritten.refused, fresh[-1][0])
            raise failed
        self.unwritten.frames += fresh
        self.unwritten.size += size

    def write_again(self, last_frame: bytes = b"", *, always_sync: bool) -> bool:
        """Write what is in memory. True if there was anything, and it is in the journal now."""
        had = bool(self.unwritten.frames)
        kept = b"".join([frame for _, frame in self.unwritten.frames])
        if kept or last_frame:
            self._write(kept + last_frame, always_sync=always_sync)
        self.unwritten.frames, self.unwritten.size = [], 0
        self.last, self._failed = self.received, None
        return had

    def _write(self, data: bytes, *, always_sync: bool) -> None:
        self.journal.append(data)
        if always_sync:
            self.journal.sync()

    def keep_handshake(self, handshake: bytes, failed: OSError) -> None:
        """The journal could not be begun."""
        self._failed = failed
        self.unwritten.frames = frames.Decoder().feed(handshake)

    def close(self, last_frame: bytes) -> OSError | None:
        """Write the last frame and close the journal; the error, if it does not take all."""
        failed = None
        try:
            self.write_again(last_frame, always_sync=True)
        except OSError as error:
            failed = error
            try:
                # It is short: there may be room for it alone.
                self.journal.append(last_frame)
                self.journal.sync()
            except OSError:
                self.unwritten.frames.append((frames.HANDSHAKE, last_frame))
        self.journal.close()
        return failed


class Connection:
    # How long a stream of records may wait in the socket's buffer before it is read in one batch.
    # The sender's death cannot harm it there. The buffer holds some 500 deltas, or 90 messages of
    # 2 KB: no Python fills it in this time.
    BATCH_DELAY = 0.001

    def __init__(self, peer: socket.socket, pid: int) -> None:
        self._peer = peer
        self.pid = pid
        self.stream: Stream | None = None
        self._version = records.VERSION
        self._decoder = frames.Decoder()
        self._waiting: list[tuple[int, bytes]] = []
        self._stored_at = 0.0
        self.streaming = False
        """More is likely to follow soon, and the sender does not wait for an acknowledgement."""

    def fileno(self) -> int:
        return self._peer.fileno()

    def exit_status(self) -> int | None:
        """The wait status of the process, if it is dead and the kernel still knows it."""
        return peer_exit_status(self._peer)

    def receive(self) -> bool | None:
        """Read once. True: something arrived; None: nothing is there now; False: the end."""
        try:
            data = self._peer.recv(_READ)
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
            self._check_damage()
        return True

    def read_hello(self) -> tuple[dict[str, object], bytes] | None:
        """The hello, once it has arrived: the record, and the frame that holds it."""
        if self.stream is not None or not self._waiting:
            return None
        seq, frame = self._waiting.pop(0)
        if seq != frames.HANDSHAKE:
            raise Refused("records before the handshake")
        try:
            hello = records.unpack(frames.payload_of(frame))
        except records.BadRecord as error:
            raise Refused(str(error)) from error
        if hello["kind"] != "hello" or not is_stream(hello.get("stream")):
            raise Refused("the first record is not a hello")
        self._agree_on_version(hello)
        return checked(hello, HELLO), frame

    def put_back(self, hello: bytes) -> None:
        """The hello cannot be answered yet; `read_hello` returns it again."""
        self._waiting.insert(0, (frames.HANDSHAKE, hello))

    def _agree_on_version(self, hello: dict[str, object]) -> None:
        oldest, newest = hello.get("oldest"), hello.get("version")
        version = records.negotiate(oldest, newest)
        if version is None:
            ours = {"kind": "refused", "version": records.VERSION, "oldest": records.OLDEST}
            self._send(frames.HANDSHAKE, records.pack(ours))
            raise Refused(f"no common version: it speaks {oldest!r:.20} to {newest!r:.20}")
        self._version = version

    def welcome(self, stream: Stream) -> None:
        welcome = {"kind": "welcome", "version": self._version, "have": stream.received}
        self._send(frames.HANDSHAKE, records.pack(welcome))
        self.stream = stream

    def store(self, *, always_sync: bool, room: Callable[[], int] = int) -> OSError | None:
        """Append what is new; see `Stream.append`."""
        stream, failed = self.stream, None
        if stream is not None and self._waiting:
            self._note_pace()
            waiting, self._waiting = self._waiting, []
            stream.ring_checks = stream.RING_CHECKS
            failed = stream.append(waiting, always_sync=always_sync, room=room)
            if failed is None:
                self.acknowledge()
        self._check_damage()
        return failed

    def acknowledge(self) -> None:
        if self.stream is not None:
            self._send(self.stream.last, b"")

    def _note_pace(self) -> None:
        """A sender that waits for its acknowledgement sends a single record, and no delta."""
        now = time.monotonic()
        is_delta = self._waiting[-1][1][frames.HEADER.size : frames.HEADER.size + 1] in (b"t", b"r")
        quick = now - self._stored_at < 2 * self.BATCH_DELAY
        self.streaming = quick and (is_delta or len(self._waiting) > 1)
        self._stored_at = now

    def close(self) -> None:
        self._peer.close()

    def _send(self, seq: int, payload: bytes) -> None:
        # Acknowledgements are cumulative: if the buffer is full, the next one covers this one.
        try:
            self._peer.send(frames.encode(seq, payload))
        except OSError:
            pass

    def _check_damage(self) -> None:
        if self._decoder.damage is not None:
            raise Refused(f"{self._decoder.damage!r} of the connection")


def announced(frame: bytes) -> tuple[str, str] | None:
    """The session that a frame announces, if any, and its state.db if it is named."""
    if frame.count(b'"session"') < 2:  # once as a name, once as the kind
        return None
    record = _unpacked(frame)
    session, db = record.get("session"), record.get("db")
    if record.get("kind") != "session" or not isinstance(session, str):
        return None
    return session, db if isinstance(db, str) else ""


def sessions_of(numbered: list[tuple[int, bytes]]) -> set[str]:
    """The sessions that these frames announce, or that a conversation continues in."""
    found = {said[0] for _, frame in numbered if (said := announced(frame)) is not None}
    for _, frame in numbered:
        if b'"rotated"' in frame or b'"reset"' in frame:
            new = _unpacked(frame).get("new")
            found |= {new} if isinstance(new, str) else set()
    return found


def _unpacked(frame: bytes) -> dict[str, object]:
    try:
        return records.unpack(frames.payload_of(frame))
    except records.BadRecord:
        return {}


def _may_be_user_message(frame: bytes) -> bool:
    """A guess: a miss only delays the checkpoint."""
    start = frames.HEADER.size
    form, size = frame[start : start + 1], frame[start + 1 : start + 5]
    # A long text follows the JSON, and need not be searched.
    stop = start + 5 + int.from_bytes(size, "little") if form == b"m" else len(frame)
    return form in (b"{", b"m") and frame.find(b'"user"', start, stop) >= 0


def peer_frame(pid: int, start: int | None) -> bytes:
    """The second handshake frame of every segment: who the kernel says has connected."""
    peer: dict[str, object] = {"kind": "peer", "pid": pid, "start": start, "by": os.getpid()}
    return frames.encode(frames.HANDSHAKE, records.pack(peer))
