"""The journal of one stream: append, sync, begin a new segment. Writing only.

Never looks inside a frame, and never changes a byte it has written.

    <stream>.<number>.log     segments, counted from 000001. Each begins with the handshake
                              frames (sequence 0): who the sender says it is, and who the
                              kernel says it is
    <stream>.spool            the same frames, written by the shim while nobody listened

I1  A frame is acknowledged only after `append` has returned, with `--sync always` only after
    `sync` has returned. A higher number also acknowledges what is in the spool before it.
I2  A segment only grows. A write that failed half way is truncated before the next write, so
    a segment always consists of whole frames, up to its torn end if it has one.

With `--sync always`, zeros are written ahead of the frames and truncated when the segment is
closed: syncing a block that the file already has takes half as long as syncing a new block. A
reader of a segment that was never closed treats the zeros as a torn end.
"""

from __future__ import annotations

import os

from ...ipc.endpoint import is_same_file, sync_file, sync_folder

SEGMENT_BYTES = 8 * 1024 * 1024
_PREALLOCATED = 256 * 1024
# Read only in `write_anew`.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


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
        begin: bool = True,
    ) -> None:
        """`begin`: with a file. Without one, the first frame begins it."""
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
        if begin:
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
        self.size = 0  # if the next segment cannot be begun now, the next frame tries again
        self._begin_segment()
        return closed

    def note_gap(self) -> None:
        """Numbers are missing here: the shim has written them to its spool. A later
        acknowledgement covers them, so the next sync must include the spool."""
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

    def write_anew(self) -> None:
        """If somebody has removed the file: its descriptor still has what was written. Put that
        into a new file of the same name, and go on there. Earlier segments are gone."""
        if self._fd < 0 or is_same_file(self._fd, self._path):
            return
        removed, size = self._fd, self.size
        self._fd = os.open(self._path, _FLAGS, 0o600)
        self.size = self._reserved = 0
        try:
            self._write(os.pread(removed, size, 0))
            os.fdatasync(self._fd)
            sync_folder(self._folder)
        except OSError:
            os.unlink(self._path)
            os.close(self._fd)
            self._fd, self.size = removed, size
            raise
        os.close(removed)

    def _begin_segment(self) -> None:
        self.number += 1
        self._fd = os.open(self._path, _FLAGS, 0o600)
        self.size = self._reserved = 0
        try:
            sync_folder(self._folder)
            self._write(self._handshake)
        except OSError:
            # Without its handshake nobody knows whose segment it is, and its name stays taken.
            self.close()
            os.unlink(self._path)
            self.number -= 1
            raise

    @property
    def _path(self) -> str:
        return os.path.join(self._folder, segment_name(self._stream, self.number))

    def _write(self, data: bytes) -> None:
        if self._ahead and self.size + len(data) > self._reserved:
            self._reserve(self.size + len(data) + _PREALLOCATED)
        view = memoryview(data)
        place = self.size
        try:
            while view:
                done = os.pwrite(self._fd, view, place)
                view = view[done:]
                place += done
        except OSError:
            self._truncate()
            raise
        self.size += len(data)
        self.dirty = True

    def _reserve(self, upto: int) -> None:
        start = max(self._reserved, self.size)  # never overwrite a frame
        zeros = bytes(max(0, min(upto, self._segment_bytes) - start))
        try:
            self._reserved = start + os.pwrite(self._fd, zeros, start)
        except OSError:
            self._ahead = False  # too little disk space; appending still works

    def _truncate(self) -> None:
        self._reserved = self.size
        try:
            os.ftruncate(self._fd, self.size)
        except OSError:
            # This segment stays torn at its end; the next frame goes into a new segment.
            os.close(self._fd)
            self._fd = -1
