"""The outbox: every frame with its position, on disk before it is sent, and for a while after.

Never looks inside a frame. One file for all streams, in segments, so that a batch is one write and
one sync, however many processes speak.

    <number>.out    a header, then entries
    header          a frame with what must be known to go on, as JSON: the state before it
    entry           stream (16 bytes), position (8), length (4), the frame

O1  What the database has was in the outbox, synced, before it was sent.
O2  An outbox that is cut off anywhere goes on with the next position: a torn end was not sent.
"""

from __future__ import annotations

import os
import time
from struct import Struct

from ...ipc import frames
from ...ipc.endpoint import sync_folder
from ...ipc.lightweight import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Entry = tuple[str, int, bytes]
    """Stream, position, frame."""
    Cursor = tuple[int, int]
    """Segment, and the place in it; 0: behind the header."""

SEGMENT_BYTES = 8 * 1024 * 1024
_HEAD = Struct("<16sQI")
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Outbox:
    def __init__(self, folder: str, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._size = 0
        self._synced = True
        self.numbers = sorted(
            int(name[:-4]) for name in os.listdir(folder) if name.endswith(".out")
        )
        self.state: dict[str, Any] = {}
        """The last segment's header."""
        self.rest: list[Entry] = []
        """What followed it."""
        while self.numbers and not self._reopen(self.numbers[-1]):
            os.unlink(self._path(self.numbers.pop()))  # cut off before it was begun

    def _reopen(self, number: int) -> bool:
        """Go on with a segment. False: it has no header."""
        with open(self._path(number), "rb") as file:
            data = file.read()
        stop = _header_end(data)
        if stop is None:
            return False
        self.state = json.loads(frames.payload_of(data[:stop]).decode())
        self.rest = []
        for entry, end in _entries(data, stop):
            self.rest.append(entry)
            stop = end
        self._fd = os.open(self._path(number), _FLAGS, 0o600)
        os.ftruncate(self._fd, stop)
        self._size = stop
        return True

    def make_room(self, state: Callable[[], dict[str, Any]]) -> None:
        """Begin a segment if one is due, with what must be known before what follows."""
        if self._fd < 0 or self._size >= self._segment_bytes:
            self._begin(state())

    def roll(self, state: Callable[[], dict[str, Any]]) -> None:
        """Begin a segment now, so that the last one can be dropped."""
        if self._fd >= 0:
            self._begin(state())

    def append(self, entries: list[Entry]) -> None:
        data = b"".join(
            _HEAD.pack(bytes.fromhex(stream), position, len(frame)) + frame
            for stream, position, frame in entries
        )
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._fd, data[done:], self._size + done)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)
        self._synced = False

    def sync(self) -> None:
        if not self._synced:
            os.fdatasync(self._fd)
            self._synced = True

    def _begin(self, state: dict[str, Any]) -> None:
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
        number = self.numbers[-1] + 1 if self.numbers else 1
        self._fd = os.open(self._path(number), _FLAGS | os.O_TRUNC, 0o600)
        header = frames.encode(frames.HANDSHAKE, json.dumps(state).encode())
        os.pwrite(self._fd, header, 0)
        os.fsync(self._fd)
        sync_folder(self._folder)
        self._size = len(header)
        self.numbers.append(number)

    # -- reading -----------------------------------------------------------------------------

    def start(self) -> Cursor:
        return (self.numbers[0] if self.numbers else 1), 0

    def end(self) -> Cursor:
        return (self.numbers[-1], self._size) if self.numbers else self.start()

    def read(self, cursor: Cursor, most: int) -> tuple[list[Entry], Cursor]:
        """Entries from a place on, about `most` bytes of them, and the place behind them."""
        number, place = cursor
        while number in self.numbers:
            with open(self._path(number), "rb") as file:
                if place == 0:
                    place = _header_end(file.read(frames.HEADER.size), whole=False) or 0
                file.seek(place)
                found: list[Entry] = []
                taken = 0
                while taken < most and len(head := file.read(_HEAD.size)) == _HEAD.size:
                    stream, position, length = _HEAD.unpack(head)
                    frame = file.read(length)
                    if len(frame) < length:
                        break
                    found.append((stream.hex(), position, frame))
                    taken += _HEAD.size + length
            place += taken
            if found or number == self.numbers[-1]:
                return found, (number, place)
            number, place = number + 1, 0
        return [], self.start()

    def is_read(self, cursor: Cursor) -> bool:
        return not self.numbers or (cursor[0] == self.numbers[-1] and cursor[1] >= self._size)

    # -- how much there is -------------------------------------------------------------------

    def size(self) -> int:
        return sum(os.path.getsize(self._path(number)) for number in self.numbers)

    def drop(self, cursor: Cursor, keep: float) -> None:
        """Remove segments that are read, and older than so many seconds. Not the last."""
        for number in [each for each in self.numbers[:-1] if each < cursor[0]]:
            if time.time() - os.path.getmtime(self._path(number)) < keep:
                return
            os.unlink(self._path(number))
            self.numbers.remove(number)

    def close(self) -> None:
        if self._fd >= 0:
            self.sync()
            os.close(self._fd)
            self._fd = -1

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:08d}.out")


def _header_end(data: bytes, *, whole: bool = True) -> int | None:
    """Where the header ends; None: there is none. `whole`: it has to be all there."""
    if len(data) < frames.HEADER.size or data[:4] != frames.MAGIC:
        return None
    stop = frames.HEADER.size + int(frames.HEADER.unpack_from(data)[1])
    if not whole:
        return stop
    return stop if len(frames.salvage(data[:stop]).frames) == 1 else None


def _entries(data: bytes, start: int) -> Iterator[tuple[Entry, int]]:
    """The whole entries, each with where it ends."""
    while start + _HEAD.size <= len(data):
        stream, position, length = _HEAD.unpack_from(data, start)
        begin, stop = start + _HEAD.size, start + _HEAD.size + length
        frame = data[begin:stop]
        if stop > len(data) or not frames.Decoder().feed(frame):
            return
        yield (stream.hex(), position, frame), stop
        start = stop
