"""The line from one process to its supervisor: send, remember until acknowledged, spool.

Never raises into the agent, never prints, never makes a call wait for the supervisor longer
than PATIENCE.

A record is handed over on the caller's thread, before the agent goes on: once its frame
lies in the ring, in the socket's buffer or in the spool file, no signal to this process can
take it back. What lies in the ring or the spool survives the supervisor's death as well.

    always, where there can be one    ring, until acknowledged; also kept in `_unacked`
    connected, room in the buffer     socket: at once, or what may lie for a moment
                                      (`send_soon`, by the chute) with what follows within QUIET
                                      or BATCH
    supervisor slow, stopped or gone  spool; everything unacknowledged goes there first,
                                      because what lies in a dead reader's buffer is lost
    neither works                     kept in memory up to KEPT bytes, oldest dropped first

So a number missing on the wire is in the ring or in the spool, and one missing in all was
dropped. The reader of the journal takes the union by sequence number: twice is once.

A signal handler may run between any two steps here. If it calls us, the call it interrupted
sends for it. If it raises, the exception is the agent's and passes through; the next call
finds `_cut_off` set, mends the numbering and begins on a new line.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from threading import RLock
from time import monotonic, sleep, time

from ..ipc import frames, records
from ..ipc.endpoint import process_start, working_folder
from ..ipc.handlers import is_the_agents
from . import chute
from .line import connected, let_go, wait
from .spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable

    from .chute import Chute
    from .ring import Ring

# The longest a call may wait for room in the buffer, in seconds.
PATIENCE = 0.004
KEPT = 4 * 1024 * 1024
# Acknowledgements are read when so many calls, or bytes, may have one.
ACKS_EVERY = 16
_MANY = 32 * 1024
# How long a record may lie in the ring alone. The supervisor looks into the ring for longer
# than this after it last heard from us (`Door`), so that it is on disk as soon as everything
# else is.
QUIET = 1.0
_FIRST_HALF = 128 * 1024
_A_MOMENT = 0.0001
RETRY_FIRST = 0.05
RETRY_LAST = 2.0
_ANSWERS = 16 * 1024
# The agent may have given SIGPIPE its deadly default back (Linux' MSG_NOSIGNAL).
_NO_SIGNAL = 0x4000 if sys.platform == "linux" else 0


class Link:
    # Slots, of which the next is on the same line of the processor's cache; a dict's are not.
    __slots__ = (
        "_about", "_address", "_answers", "_at_hand", "_busy", "_chute", "_cut_off", "_deadline",
        "_greeted", "_inode", "_intact", "_lock", "_lying", "_next", "_on_line", "_owed", "_pid",
        "_retry_at", "_retry_wait", "_ring", "_ring_fails", "_safe", "_since_acks", "_socket",
        "_speak_at", "_spool", "_spool_folder", "_stalled", "_unacked", "_unacked_bytes",
        "_waiting", "faults", "generation", "stream",
    )  # fmt: skip

    def __init__(self, address: str, spool_folder: str, about: dict[str, object]) -> None:
        self._address = address
        self._spool_folder = spool_folder
        self._about = about
        self.faults = 0
        self.generation = 0
        # Emptied in a forked child, and by C code: a signal may cut off all that comes behind it.
        self._intact: list[bool] = []
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._intact.clear)
            os.register_at_fork(after_in_child=self._forked)

    def _begin(self) -> None:
        """A new stream of records: at the start, and in a forked child."""
        self._pid = os.getpid()
        self.stream = os.urandom(16).hex()
        self._next = 1
        self._lock = RLock()
        self._busy = False
        self._cut_off = False
        self._chute: Chute | None = None
        # Each in a tuple of its own: two may be the same bytes, and are two records.
        self._waiting: deque[tuple[bytes]] = deque()
        self._at_hand = 0, (b"",)  # which of them is, or was last, being handed over
        self._socket: Socket | None = None
        self._inode = 0
        self._answers = frames.Decoder()
        self._on_line = 0  # the number of the last frame put on this line
        self._owed: bytes | memoryview = b""  # the rest of a frame the buffer took a part of
        self._deadline = 0.0
        self._stalled = False
        # Frames, which carry their numbers: pairs would have the agent's garbage collector come.
        self._unacked: deque[bytes] = deque()
        self._unacked_bytes = 0
        self._since_acks = 0
        self._safe = 0  # everything numbered up to this is acknowledged, or in the spool
        self._ring: Ring | None = None
        self._ring_fails = False
        self._lying = 0  # bytes that are in the ring and not on the line
        self._speak_at = 0.0
        self._spool = Spool(self._spool_folder, self.stream)
        self._retry_at = 0.0
        self._retry_wait = RETRY_FIRST
        self._greeted = False
        self._intact[:] = [True]

    # -- what the SDK and the adapters call ------------------------------------------------

    def send(self, *payloads: bytes) -> None:
        """Hand records over. When this returns they are out of the process, in order."""
        self._waiting.extend([(payload,) for payload in payloads])
        # Whoever holds the lock sends for everybody; we wait for it, also when ours is taken.
        while self._alone(self._hand_over_all) and self._waiting:
            pass

    def send_soon(self, payload: bytes) -> None:
        """`send`, for what nobody waits for and is most often followed by more: it may lie in
        the ring for a moment."""
        if not self._intact:
            self._forked()
        way, taken, thrown, generation = self._chute, False, None, self.generation
        if way is None and self._ring is not None and self._alone(self._open_chute):
            way = self._chute
        if way is not None:
            try:
                taken = way.send(payload)
            except (StopIteration, ValueError) as error:
                if is_the_agents(error):
                    raise
                # It has ended; or somebody is in it: another thread, or a call up our own stack.
                ended = error.value if isinstance(error, StopIteration) else None
                thrown = ended if isinstance(ended, BaseException) else None
        if thrown is not None:
            raise thrown
        if self.generation != generation:
            return  # a handler forked, and this is the child; it is for the parent to send it
        if not taken:
            self.send(payload)
        elif self._waiting:
            self.send()

    def acknowledged(self, timeout: float) -> bool:
        """Wait until the supervisor has acknowledged everything sent; False if it did not, or if a
        call that sends is further up this thread's own stack."""
        deadline = monotonic() + timeout
        while self._waiting or self._unacked:
            if not self._alone(self._say_the_rest):
                return False
            line, left = self._socket, deadline - monotonic()
            if self._unacked:
                if line is None or not left > 0:  # nor is a NaN
                    return False
                wait(line, reading=True, seconds=left)
                if not self._alone(self._read_acks):
                    return False
        return self._greeted and self._spool.lasts()

    def close(self) -> None:
        """Say that this interpreter ends in order; a hint, because `os._exit` skips it."""
        if self._greeted and self._pid == os.getpid():
            self.send(records.pack({"kind": "bye", "at": time()}))

    def _alone(self, work: Callable[[], None]) -> bool:
        """Do `work` while no other thread does any. False: it failed, or a call further up
        this thread's own stack is at it, was interrupted, and will see to the rest."""
        if not self._intact:
            self._forked()
        if chute.is_up_the_stack(self._chute):
            return False  # before the lock: whoever has it may wait until we are out of there
        with self._lock:
            if self._busy:
                return False
            try:
                self._busy = True
                self._shut_chute()
                if self._cut_off:
                    self._mend()
                self._cut_off = True
                work()
                self._cut_off = False
                return True
            except Exception as error:
                if is_the_agents(error):
                    raise
                self.faults += 1
                return False
            finally:
                self._busy = False

    def _open_chute(self) -> None:
        if self._ring is not None and self._socket is not None and monotonic() < self._speak_at:
            self._chute = chute.begin(self, self._ring)

    def _shut_chute(self) -> None:
        """Nobody is in it any more, and what it knows is known here."""
        while (way := self._chute) is not None:
            if chute.is_shut(way, self, self._ring):
                if self._unacked:
                    self._next = max(self._next, frames.number_of(self._unacked[-1]) + 1)
                self._chute = None
            else:
                sleep(_A_MOMENT)  # another thread is in it, which is out by then

    def _mend(self) -> None:
        """An exception cut the last call off, anywhere. Keep the records, renew the line."""
        self._hang_up()
        self._retry_at = 0.0
        seq, queued = self._at_hand
        if self._unacked and frames.number_of(self._unacked[-1]) == seq:
            self._next = seq + 1
            if self._waiting and self._waiting[0] is queued:
                self._waiting.popleft()
        self._unacked_bytes = sum(map(len, self._unacked))
        # Perhaps it was about to write there: the next call begins another, with all of these.
        self._drop_ring()

    # -- one frame on its way --------------------------------------------------------------

    def _hand_over_all(self) -> None:
        self._deadline = 0.0
        while self._waiting:
            seq, queued = self._at_hand = self._next, self._waiting[0]
            try:
                frame = frames.encode(seq, *queued)
            except frames.FrameTooLong:
                self.faults += 1
                self._waiting.popleft()
                continue
            # Remembered, counted, taken: if it is remembered, `_mend` sees to the rest.
            self._unacked.append(frame)
            self._next = seq + 1
            self._waiting.popleft()
            self._unacked_bytes += len(frame)
            if not self._keep(seq, frame):
                self._say_all()
                self._spill()
            else:
                self._say_all()

    def _say_the_rest(self) -> None:
        """What lies in the ring alone, and what a call that was cut off has left."""
        self._hand_over_all()
        if self._on_line < self._next - 1:
            self._say_all()

    def _keep(self, seq: int, frame: bytes) -> bool:
        """Put a frame into the ring. False: it is to go into the spool, there is no room.

        Where there can be no ring, the socket's buffer has to do.
        """
        ring = self._ring
        if ring is None:
            return self._ring_fails or self._begin_ring(_FIRST_HALF)
        if ring.put(seq, frame, self._safe):
            return True
        self._read_acks()
        if ring.put(seq, frame, self._safe):
            return True
        half = ring.half_for(len(frame))
        return half is not None and self._begin_ring(half)

    def _begin_ring(self, half: int) -> bool:
        """A new ring with all that is not acknowledged, in place of the one before."""
        try:
            # Loaded here: an unrelated Python child speaks to nobody.
            from .ring import Ring

            hello = frames.encode(frames.HANDSHAKE, self._hello())
            ring = Ring(self._spool_folder, self.stream, hello, half)
            for frame in self._unacked:
                if not ring.put(frames.number_of(frame), frame, self._safe):
                    ring.withdraw()
                    return False
            ring.publish()
        except Exception as error:
            if is_the_agents(error):
                raise
            self._ring_fails = self._ring is None
            return self._ring_fails
        self._drop_ring()
        self._ring = ring
        return True

    def _drop_ring(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.drop()

    def _say_all(self) -> None:
        """Put on the line what is not on it yet; what cannot be goes into the spool."""
        last = self._next - 1
        self._since_acks += 1
        if self._since_acks >= ACKS_EVERY or self._unacked_bytes >= _MANY:
            self._read_acks()
        if not self._unacked:  # the supervisor has looked into the ring meanwhile
            told, self._on_line = True, last
        elif self._socket is None and not self._connect():
            told = False
        elif self._on_line >= last:
            told = True
        elif self._on_line == last - 1:
            told = self._transmit(last, self._unacked[-1])
        else:
            # What lay in the ring, or all of it on a new line.
            owed = list(self._unacked)[self._on_line - last :]
            told = self._transmit(last, b"".join(owed))
        self._lying = 0
        self._speak_at = monotonic() + QUIET
        if not told or self._unacked_bytes > KEPT:
            self._spill()

    def _connect(self) -> bool:
        if monotonic() < self._retry_at:
            return False
        try:
            line = connected(self._address)
        except OSError as error:
            self._retry_later()
            if is_the_agents(error):
                raise
            return False
        self._answers = frames.Decoder()
        self._on_line = 0
        self._stalled = False
        self._inode = os.fstat(line.fileno()).st_ino
        self._socket = line
        self._greeted = True
        if self._transmit(frames.HANDSHAKE, frames.encode(frames.HANDSHAKE, self._hello())):
            return True
        self._hang_up()
        return False

    def _hello(self) -> bytes:
        about = {
            "kind": "hello",
            "version": records.VERSION,
            "oldest": records.OLDEST,
            "stream": self.stream,
            "pid": self._pid,
            "start": process_start(self._pid),
            "executable": sys.executable,
            "argv": list(getattr(sys, "argv", [])),
            "cwd": working_folder(),
        }
        return records.fit({**about, **self._about}, limit=1024 * 1024)

    def _transmit(self, seq: int, frame: bytes) -> bool:
        """Put a frame into the socket's buffer. False: the buffer is full or the line is dead.

        A frame the buffer took only a part of is finished first by the next call: half a
        frame followed by another would garble the stream.
        """
        if self._owed:
            done = self._push(self._owed)
            self._owed = self._owed[done:]
            if self._owed:
                return False
        done = self._push(frame)
        if self._socket is None:
            return False
        if done:
            self._on_line = seq
            self._owed = memoryview(frame)[done:] if done < len(frame) else b""
        return done == len(frame)

    def _push(self, data: bytes | memoryview) -> int:
        """Give the buffer what it takes before the call's patience ends; how much it took."""
        done = 0
        while (line := self._socket) is not None:
            try:
                # The agent may have closed our descriptor with all others, and have its
                # number in use for another socket by now. (Other files take no `send`.)
                if os.fstat(line.fileno()).st_ino != self._inode:
                    raise OSError("not ours any more")
                done += line.send(memoryview(data)[done:] if done else data, _NO_SIGNAL)
            except OSError as error:
                if is_the_agents(error):
                    raise
                if not isinstance(error, BlockingIOError):
                    self._hang_up()
                    break
            if done == len(data):
                self._stalled = False
                break
            if not self._wait_for_room(line):
                break
        return done

    def _wait_for_room(self, line: Socket) -> bool:
        """False: waited long enough, in this call or in an earlier one with the same outcome."""
        now = monotonic()
        self._deadline = self._deadline or now + PATIENCE
        self._stalled = self._stalled or now >= self._deadline
        if not self._stalled:
            wait(line, reading=False, seconds=self._deadline - now)
        return not self._stalled

    def _read_acks(self) -> None:
        self._since_acks = 0
        while (line := self._socket) is not None:
            try:
                if os.fstat(line.fileno()).st_ino != self._inode:
                    raise OSError("not ours any more")
                data = line.recv(_ANSWERS)
            except OSError as error:
                if is_the_agents(error):
                    raise
                if isinstance(error, BlockingIOError):
                    return
                data = b""
            answers = self._answers.feed(data)
            # An answer to what was never said is no answer.
            sound = self._answers.damage is None and all(seq < self._next for seq, _ in answers)
            if not data or not sound:
                self._hang_up()
                return
            for seq, _ in answers:
                self._retry_wait = RETRY_FIRST
                self._safe = max(self._safe, seq)
                self._forget_up_to(seq)
            if len(data) < _ANSWERS:
                return  # to ask once more would most often be to be told that there is nothing

    def _forget_up_to(self, seq: int) -> None:
        # They are numbered one after the other.
        known = seq + 1 - frames.number_of(self._unacked[0]) if self._unacked else 0
        for _ in range(min(known, len(self._unacked))):
            self._unacked_bytes -= len(self._unacked.popleft())

    def _hang_up(self) -> None:
        line, self._socket = self._socket, None
        self._on_line = 0
        self._owed = b""
        if line is not None:
            let_go(line, self._inode)
            self._retry_later()

    def _retry_later(self) -> None:
        self._retry_at = monotonic() + self._retry_wait
        self._retry_wait = min(2 * self._retry_wait, RETRY_LAST)

    # -- when there is nobody to take it ---------------------------------------------------

    def _spill(self) -> None:
        """Move everything unacknowledged into the spool file."""
        if not self._unacked:
            return
        try:
            if not self._spool.open:
                self._spool.begin(frames.encode(frames.HANDSHAKE, self._hello()))
                self._greeted = True
            self._spool.append(b"".join(self._unacked))
        except OSError as error:
            if is_the_agents(error):
                raise
            while self._unacked_bytes > KEPT:
                self._unacked_bytes -= len(self._unacked.popleft())
            return
        self._unacked.clear()
        self._unacked_bytes = 0
        self._on_line = self._safe = self._next - 1

    def _forked(self) -> None:
        """In a forked child: let go of the parent's line without a word, begin an own stream."""
        line, inode, ring, spool = self._socket, self._inode, self._ring, self._spool
        self.generation += 1
        self._begin()
        try:
            if ring is not None:
                ring.drop()
            if line is not None:
                let_go(line, inode)
            spool.let_go()
        except OSError:
            pass
