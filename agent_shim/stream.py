"""A stream: the numbered records of one process, each kept until the supervisor has it.

Never raises into the agent, never prints, and never makes a call wait for the supervisor longer
than PATIENCE.

A record is handed over on the caller's thread, before the agent goes on. Once its frame is in the
ring, in the socket's buffer or in the spool file, no signal to this process can take it back; in
the ring or the spool it also survives the supervisor's death. Records that are not acknowledged
are kept in memory as well, up to KEPT bytes, to be sent again on another connection.

Where a record goes depends on the state of the stream:

    state         meaning                                   a record goes into
    NEW           nothing was handed over yet               (the first record connects)
    CONNECTED     the supervisor's socket takes frames      the ring and the socket, at once; or
                                                            the ring alone, for at most QUIET
                                                            seconds or BATCH bytes (`send_soon`)
    STALLED       connected, but the buffer is full         the same, with the spool in place of
                                                            the socket; it tries the socket again
                                                            each time, without waiting
    SPOOLING      nobody to connect to, or connection lost  the ring and the spool; a call after a
                                                            pause tries to connect again
    FORKED_CHILD  this is a fork of the stream's process    nowhere: the child has its own stream

    NEW, SPOOLING ─ connected ─> CONNECTED          CONNECTED ─ buffer full ─> STALLED
    NEW, SPOOLING ─ nobody there ─> SPOOLING        STALLED ─ room again ─> CONNECTED
    CONNECTED, STALLED ─ lost ─> SPOOLING           any ─ fork, in the child ─> FORKED_CHILD

Before a record goes into the spool, everything unacknowledged goes there: what is in the buffer of
a supervisor that died is lost. Where there can be neither ring nor spool, the socket's buffer and
the memory have to do. A number that is missing on the connection is in the ring or in the spool.
Whoever reads the journal takes all three together, by number.

The lock. One reentrant lock guards all of this, and a call is in one of three phases:

    IDLE ─ call begins ─> RUNNING ─ done ─> IDLE
    RUNNING ─ exception ─> INTERRUPTED ─ the next call repairs ─> RUNNING

A signal handler runs on the thread that it interrupts, between any two steps. If it hands over a
record while that thread is in a call, it gets the lock again (with a plain lock it would wait for
itself), finds the call RUNNING, and leaves the record in the queue. The interrupted call looks
into the queue after it is no longer RUNNING, so it delivers the record before it returns. If the
handler raises, the exception is the agent's and passes through. The call is then INTERRUPTED
anywhere, and the next one trusts only what is remembered (`_repair`). A forked child never takes
the lock: the fork mark is looked at right before, with no step in between where a handler runs.
Nothing is written anywhere without another look at it.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from itertools import islice
from threading import RLock
from time import monotonic

from ..ipc import clock, frames, records
from ..ipc.endpoint import process_start, working_folder
from ..ipc.handlers import raised_by_signal_handler
from .connection import Connection
from .fork_mark import ForkedChild, fork_mark
from .ring import Ring
from .spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Where records go.
NEW, CONNECTED, STALLED, SPOOLING = "new", "connected", "stalled", "spooling"
FORKED_CHILD = "forked child"
# What the call under way is doing.
IDLE, RUNNING, INTERRUPTED = "idle", "running", "interrupted"

# The longest a call may wait for room in the buffer, in seconds.
PATIENCE = 0.004
KEPT = 4 * 1024 * 1024
# How many bytes, and for how long, may be in the ring alone. The supervisor looks into the ring
# for longer than this after it last heard from us, so that these records are on disk as soon as
# all others.
BATCH = 16 * 1024
QUIET = 1.0
# Acknowledgements are read after so many calls, or when so many bytes wait for one.
ACKS_EVERY = 16
ACKS_BYTES = 32 * 1024
RETRY_FIRST = 0.05
RETRY_LAST = 2.0
_FIRST_HALF = 128 * 1024
_LONGEST_HELLO = 1024 * 1024


class Stream:
    __slots__ = (
        "_about", "_address", "_calls_since_acks", "_connection", "_current", "_deadline",
        "_lock", "_next", "_only_in_ring", "_phase", "_queue", "_retry_at", "_retry_wait", "_ring",
        "_ring_fails", "_safe", "_send_by", "_spool", "_spool_folder", "_unacked",
        "_unacked_bytes", "faults", "generation", "mark", "name", "state",
    )  # fmt: skip

    def __init__(
        self, address: str, spool_folder: str, about: dict[str, object], generation: int = 0
    ) -> None:
        self._address = address
        self._spool_folder = spool_folder
        self._about = about
        self.generation = generation
        self.faults = 0
        self.mark = fork_mark()
        self.name = os.urandom(16).hex()
        self.state = NEW

        self._lock = RLock()
        self._phase = IDLE
        # Records to be numbered, each with whether it may stay in the ring for a moment. Each is
        # a tuple of its own: two may hold the same bytes, and are two records.
        self._queue: deque[tuple[bytes, bool]] = deque()
        self._current: tuple[int, tuple[bytes, bool] | None] = (0, None)  # numbered last
        self._next = 1

        # Frames, which carry their numbers: pairs would bring the agent's garbage collector.
        self._unacked: deque[bytes] = deque()
        self._unacked_bytes = 0
        self._calls_since_acks = 0
        self._safe = 0  # everything numbered up to this is acknowledged, or in the spool

        self._connection: Connection | None = None
        self._deadline = 0.0  # of this call's patience
        self._retry_at = 0.0
        self._retry_wait = RETRY_FIRST

        self._ring: Ring | None = None
        self._ring_fails = False
        self._only_in_ring = 0  # bytes
        self._send_by = 0.0
        self._spool = Spool(spool_folder, self.name, self.mark)

    # -- what the link calls ---------------------------------------------------------------

    def send(self, *payloads: bytes) -> None:
        self._queue.extend([(payload, False) for payload in payloads])
        self._deliver_all()

    def send_soon(self, payload: bytes) -> None:
        self._queue.append((payload, True))
        self._deliver_all()

    def _deliver_all(self) -> None:
        """Return when the queue is empty and no call is delivering a record of it; or when a fault
        of our own occurred twice."""
        for _ in range(2):
            faults = self.faults
            while self._exclusively(self._deliver):
                if not self._queue:  # looked at after the call, for what a handler has put there
                    return
            if self.faults == faults:
                return

    def acknowledged(self, timeout: float) -> bool:
        deadline = monotonic() + timeout
        while self._queue or self._unacked:
            if not self._exclusively(self._send_the_rest):
                return False
            connection, left = self._connection, deadline - monotonic()
            if self._unacked:
                if connection is None or not left > 0:  # nor is a NaN
                    return False
                connection.wait_for_answer(left)
                if not self._exclusively(self._read_acks):
                    return False
        return self.state is not NEW and self._spool.sync()

    def abandon(self) -> None:
        """In a forked child: close the parent's descriptors, and send nothing."""
        self.state = FORKED_CHILD
        try:
            self._release_for_missing_thread()
            if self._ring is not None:
                self._ring.drop()
            if self._connection is not None:
                self._connection.close()
            self._spool.close()
        except Exception as error:
            if raised_by_signal_handler(error):
                raise

    def _release_for_missing_thread(self) -> None:
        """In a forked child: a thread of the parent that had the lock does not exist here. If a
        signal handler forked while this thread waited for the lock, it still waits.

        Only what `threading.Condition` uses releases a lock for another thread. Python 3.14 refuses
        that, too.
        """
        lock: Any = self._lock
        if not lock._is_owned():
            try:
                lock._release_save()
            except RuntimeError as error:  # nobody had it
                if raised_by_signal_handler(error):
                    raise

    def _exclusively(self, work: Callable[[], None]) -> bool:
        """Do `work` while no other call does any.

        False: it failed; or a call further up this thread's own stack was interrupted, and will
        deliver the queue; or this is a forked child, and only the parent may send.
        """
        if not self.mark[0]:
            return False
        with self._lock:
            if self._phase is RUNNING:
                return False
            interrupted, done = self._phase is INTERRUPTED, False
            try:
                self._phase = RUNNING
                if interrupted:
                    self._repair()
                work()
                done = True
                return True
            except ForkedChild:
                return False
            except Exception as error:
                if raised_by_signal_handler(error):
                    raise
                self.faults += 1
                return False
            finally:
                self._phase = IDLE if done else INTERRUPTED

    def _repair(self) -> None:
        """An exception ended the last call, anywhere. Keep the records, and begin again with
        another connection and another ring."""
        self._disconnect()
        self._retry_at = 0.0
        seq, queued = self._current
        if self._unacked and frames.number_of(self._unacked[-1]) == seq:
            self._next = seq + 1
            if self._queue and self._queue[0] is queued:
                self._queue.popleft()
        self._unacked_bytes = sum(map(len, self._unacked))
        # The call may have been about to write there. The next record begins another ring, with
        # everything that is remembered.
        self._drop_ring()

    # -- one record on its way -------------------------------------------------------------

    def _deliver(self) -> None:
        """Number what is in the queue, and hand it over."""
        self._deadline = 0.0
        while self._queue:
            seq, queued = self._current = self._next, self._queue[0]
            payload, may_wait = queued
            try:
                frame = frames.encode(seq, payload)
            except frames.FrameTooLong:
                self.faults += 1
                self._queue.popleft()
                continue
            # Remembered, counted, taken: once it is remembered, `_repair` sees to the rest.
            self._unacked.append(frame)
            self._next = seq + 1
            self._queue.popleft()
            self._unacked_bytes += len(frame)
            kept = self._keep_in_ring(seq, frame)
            if kept and may_wait and self._may_wait():
                self._only_in_ring += len(frame)
                continue
            self._flush()
            if not kept:
                self._spill()

    def _may_wait(self) -> bool:
        """True if the ring alone is enough for now."""
        return (
            self._connection is not None
            and self._ring is not None
            and self._only_in_ring < BATCH
            and monotonic() < self._send_by
        )

    def _send_the_rest(self) -> None:
        """Send what is in the ring alone, and what an interrupted call has left."""
        self._deliver()
        connection = self._connection
        if self._unacked and (connection is None or connection.last_sent < self._next - 1):
            self._flush()

    def _flush(self) -> None:
        """Send what was not sent yet. What cannot be sent goes into the spool."""
        self._calls_since_acks += 1
        if self._calls_since_acks >= ACKS_EVERY or self._unacked_bytes >= ACKS_BYTES:
            self._read_acks()
        sent = self._send_unsent()
        self._only_in_ring = 0
        self._send_by = monotonic() + QUIET
        if not sent or self._unacked_bytes > KEPT:
            self._spill()

    def _send_unsent(self) -> bool:
        last = self._next - 1
        if not self._unacked:  # the supervisor has read the ring meanwhile
            if self._connection is not None:
                self._connection.last_sent = last
            return True
        connection = self._connection or self._connect()
        if connection is None:
            return False
        unsent = last - connection.last_sent
        if unsent <= 0:
            return True
        if unsent == 1:
            return self._transmit(connection, last, self._unacked[-1])
        # What was in the ring alone; or everything, on a new connection.
        return self._transmit(connection, last, b"".join(list(self._unacked)[-unsent:]))

    # -- the connection --------------------------------------------------------------------

    def _connect(self) -> Connection | None:
        if monotonic() < self._retry_at:
            return None
        try:
            connection = Connection(self._address, self.mark)
        except OSError as error:
            self.state = SPOOLING
            self._retry_later()
            if raised_by_signal_handler(error):
                raise
            return None
        self._connection, self.state = connection, CONNECTED
        if self._transmit(connection, frames.HANDSHAKE, self._hello()):
            return connection
        self._disconnect()
        return None

    def _transmit(self, connection: Connection, seq: int, data: bytes) -> bool:
        """Put frames into the socket's buffer. False: there is no room, or the connection is lost.

        A call waits once. While the stream is STALLED an earlier one has, and it does not.
        """
        if self.state is not STALLED and not self._deadline:
            self._deadline = monotonic() + PATIENCE
        try:
            sent = connection.send(seq, data, 0.0 if self.state is STALLED else self._deadline)
        except OSError as error:
            if raised_by_signal_handler(error):
                raise
            self._disconnect()
            return False
        self.state = CONNECTED if sent else STALLED
        return sent

    def _read_acks(self) -> None:
        self._calls_since_acks = 0
        if self._connection is None:
            return
        try:
            numbers = self._connection.receive()
        except OSError as error:
            if raised_by_signal_handler(error):
                raise
            self._disconnect()
            return
        if not numbers:
            return
        newest = max(numbers)
        if newest >= self._next:  # an answer to what was never sent
            self._disconnect()
            return
        self._retry_wait = RETRY_FIRST
        self._safe = max(self._safe, newest)
        # They are numbered one after the other.
        known = newest + 1 - frames.number_of(self._unacked[0]) if self._unacked else 0
        self._forget(min(known, len(self._unacked)))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self.state = SPOOLING
            connection.close()
            self._retry_later()

    def _retry_later(self) -> None:
        self._retry_at = monotonic() + self._retry_wait
        self._retry_wait = min(2 * self._retry_wait, RETRY_LAST)

    def _hello(self) -> bytes:
        """The frame that identifies this process."""
        pid = os.getpid()
        identity = {
            "kind": "hello",
            "version": records.VERSION,
            "oldest": records.OLDEST,
            "stream": self.name,
            "pid": pid,
            "start": process_start(pid),
            "boot": clock.boot(),
            "executable": sys.executable,
            "argv": list(getattr(sys, "argv", [])),
            "cwd": working_folder(),
        }
        payload = records.fit({**identity, **self._about}, limit=_LONGEST_HELLO)
        return frames.encode(frames.HANDSHAKE, payload)

    # -- ring and spool --------------------------------------------------------------------

    def _keep_in_ring(self, seq: int, frame: bytes) -> bool:
        """Put a frame into the ring. False: there is no room, and it has to go into the spool.

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
        if half is None or self._unacked_bytes > 2 * half:
            return False
        return self._begin_ring(half)

    def _begin_ring(self, half: int) -> bool:
        """A new ring with everything that is not acknowledged, in place of the one before."""
        try:
            ring = Ring(self._spool_folder, self.name, self._hello(), half, self.mark)
            for frame in self._unacked:
                if not ring.put(frames.number_of(frame), frame, self._safe):
                    ring.withdraw()
                    return False
            ring.publish()
        except ForkedChild:
            raise
        except Exception as error:
            if raised_by_signal_handler(error):
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

    def _spill(self) -> None:
        """Move everything unacknowledged into the spool file; on a full disk, what fits.

        One frame first, then twice as many each time: where there is no room, a call writes one
        frame in vain, and not all that waits.
        """
        count = 1
        try:
            if self._unacked and not self._spool.is_open:
                self._spool.begin(self._hello())
            while self._unacked:
                spooled = list(islice(self._unacked, count))
                self._spool.append(b"".join(spooled))
                self._forget(len(spooled))
                self._safe = max(self._safe, frames.number_of(spooled[-1]))
                if self._connection is not None:
                    self._connection.last_sent = max(self._connection.last_sent, self._safe)
                count *= 2
        except OSError as error:
            if raised_by_signal_handler(error):
                raise
            if self._ring is not None:
                self._ring.note(self._next - 1)
            while self._unacked_bytes > KEPT:
                self._forget(1)

    def _forget(self, count: int) -> None:
        """Remember the first frames no longer."""
        for _ in range(count):
            self._unacked_bytes -= len(self._unacked.popleft())
