"""The ring: a file that the agent maps, where its records are kept until they are acknowledged.

Never touches a file. This is the layout of the file, and how to read it.

    offset        size       what
         0        HEAD       the hello, a frame: whose ring this is; in the last 20 bytes perhaps
                             an empty frame: its number is the last that was handed over when
                             there was room for it neither here nor in the spool
      HEAD        half       frames, one after the other
      HEAD + half half       the same

The writer fills one half, then the other, and returns to the first when everything in it is
acknowledged. So the frames at the beginning of a half, up to the first place that is none, are the
newest in it. What follows is left from an earlier round, and known already. A frame that is being
written has no valid check yet, and is not handed over yet.
"""

from __future__ import annotations

from zlib import crc32

from . import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = 16 * 1024
NOTE = HEAD - frames.HEADER.size
LARGEST_HALF = 2 * 1024 * 1024
LARGEST = HEAD + 2 * LARGEST_HALF


def name_of(stream: str) -> str:
    return stream + ".ring"


def hello_in(data: bytes) -> bytes | None:
    """The frame that says whose ring this is."""
    numbered, _, _ = _run(data[:HEAD], -1, -1)
    return numbered[0][1] if numbered and numbered[0][0] == frames.HANDSHAKE else None


def handed_over(data: bytes) -> int:
    """The number in the note of what found no room; 0 if there is none."""
    numbered, _, _ = _run(data[NOTE:HEAD], 0, 0)
    return numbered[0][0] if numbered else 0


def halves(size: int) -> list[Half]:
    """The halves of a file of this size. Nothing of them has been read yet."""
    half = (size - HEAD) // 2
    return [Half(HEAD, half), Half(HEAD + half, half)] if half > 0 else []


def frames_after(data: bytes, last: int) -> list[tuple[int, bytes]]:
    """The frames with a higher number than `last`, in order. The ring may be in use."""

    def read(place: int, size: int) -> bytes:
        return data[place : place + size]  # a loss of power may have taken its end

    return sorted(pair for half in halves(len(data)) for pair in half.frames_after(last, read))


class Half:
    """One half of a ring in use. Each look skips what was known at the one before."""

    __slots__ = ("_begins_with", "_end", "_newest", "_place", "_start")

    def __init__(self, start: int, size: int) -> None:
        self._start = self._place = start
        self._end = start + size
        self._begins_with = b""
        self._newest = -1

    def frames_after(self, last: int, read: Callable[[int, int], bytes]) -> list[tuple[int, bytes]]:
        """The frames in it with a higher number than `last`, which never decreases."""
        head = read(self._start, frames.HEADER.size)
        if head != self._begins_with:
            # Another frame than before: it is being filled again.
            self._begins_with = head
            self._place, self._newest = self._start, -1
        elif self._place > self._start:
            head = read(self._place, min(frames.HEADER.size, self._end - self._place))
        if not head.startswith(frames.MAGIC):
            return []
        data = read(self._place, self._end - self._place)
        numbered, known, self._newest = _run(data, last, self._newest)
        self._place += known
        return numbered


def _run(data: bytes, last: int, newest: int) -> tuple[list[tuple[int, bytes]], int, int]:
    """The frames that `data` begins with, each with a higher number than the one before.

    Returns the frames after `last`; where the others end; and the number of the last of these.
    """
    numbered: list[tuple[int, bytes]] = []
    size = frames.HEADER.size
    position, end = 0, len(data)
    known, newest_known = 0, newest
    while position + size <= end:
        magic, length, seq, check = frames.HEADER.unpack_from(data, position)
        stop = position + size + length
        if magic != frames.MAGIC or stop > end or seq <= newest:
            break
        if seq > last:
            covered = crc32(data[position + 4 : position + 16])
            if crc32(data[position + size : stop], covered) != check:
                break
            numbered.append((seq, data[position:stop]))
        else:
            # Known already: it need not be checked again.
            known, newest_known = stop, seq
        newest = seq
        position = stop
    return numbered, known, newest_known
