"""The journal of one stream: append, sync, begin a new segment. Writing only.

Never looks inside a frame, and never changes a byte it has written.

    <stream>.<number>.log     segments, counted from 000001, each beginning with the
                              handshake frames (sequence 0): who speaks, as said by
                              itself and as seen by the kernel
    <stream>.spool            the same frames, written by the shim when nobody listened

I1  A frame is acknowledged only after `append` returned, and with `--sync always` only
    after `sync` did.
    What lies in the spool is acknowledged by any number behind it.
I2  A segment only grows. A write that failed half way is cut off again before the next
    one, so that what lies before the end is always whole frames.

With `--sync always` zeros are written ahead of the frames, and cut off when the segment is
closed: to sync a block that the file has already takes half as long as one that is new to it.
Who reads a segment that was never closed takes them for the torn end that they are.
"""

from __future__ import annotations

import os

from ..ipc.endpoint import sync_file, sync_folder

SEGMENT_BYTES = 8 * 1024 * 1024
_AHEAD = 256 * 1024
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def segment_name(stream: str, number: int) -> str:
    return f"{stream}.{number:06d}.log"


class Journal:
    def __init__(
        self,
        folder: str,
        stream: str,
        handshake: bytes,
        segment_bytes: int = SEGMENT_BYTES,
        after: int = 0,
        *,
        ahead: bool = False,
    ) -> None:
        self._folder = folder
        self._stream = stream
        self._handshake = handshake
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._ahead = ahead
        self._reserved = 0
        self.number = after
        self.size = 0
        self.dirty = False
        self._spooled = False
        self._begin_segment()

    def append(self, data: bytes) -> None:
        """Write whole frames. On an error nothing of `data` stays in the file."""
        if self._fd < 0:
            self._begin_segment()
        self._write(data)

    @property
    def full(self) -> bool:
        return self.size >= self._segment_bytes

    def begin_next_segment(self) -> int:
        """Close this segment for good and start the next; returns the closed one's number."""
        closed = self.number
        self.sync()
        self.close()
        self.size = 0  # if the next one cannot be begun now, the next frame tries again
        self._begin_segment()
        return closed

    def note_gap(self) -> None:
        """Numbers are missing here: the shim has put them into its spool. What comes behind them
        is acknowledged with them, so the next sync is theirs, too."""
        self._spooled = True

    def sync(self) -> None:
        if self._spooled:
            try:
                sync_file(os.path.join(self._folder, self._stream + ".spool"))
            except FileNotFoundError:
                pass  # the numbers were dropped
            self._spooled = False
        if self.dirty and self._fd >= 0:
            os.fdatasync(self._fd)
            self.dirty = False

    def close(self) -> None:
        if self._fd >= 0:
            if self._reserved > self.size:
                os.ftruncate(self._fd, self.size)
            os.close(self._fd)
            self._fd = -1

    def _begin_segment(self) -> None:
        self.number += 1
        path = os.path.join(self._folder, segment_name(self._stream, self.number))
        self._fd = os.open(path, _FLAGS, 0o600)
        self.size = self._reserved = 0
        try:
            sync_folder(self._folder)
            self._write(self._handshake)
        except OSError:
            # Nobody could tell whose it is, and its name would be taken for ever.
            self.close()
            os.unlink(path)
            self.number -= 1
            raise

    def _write(self, data: bytes) -> None:
        if self._ahead and self.size + len(data) > self._reserved:
            self._reserve(self.size + len(data) + _AHEAD)
        view = memoryview(data)
        place = self.size
        try:
            while view:
                done = os.pwrite(self._fd, view, place)
                view = view[done:]
                place += done
        except OSError:
            self._cut_back()
            raise
        self.size += len(data)
        self.dirty = True

    def _reserve(self, upto: int) -> None:
        start = max(self._reserved, self.size)  # never over a frame
        zeros = bytes(max(0, min(upto, self._segment_bytes) - start))
        try:
            self._reserved = start + os.pwrite(self._fd, zeros, start)
        except OSError:
            self._ahead = False  # too little room to be quick

    def _cut_back(self) -> None:
        self._reserved = self.size
        try:
            os.ftruncate(self._fd, self.size)
        except OSError:
            # Then this segment ends torn, and the next frame goes into a new one.
            os.close(self._fd)
            self._fd = -1
