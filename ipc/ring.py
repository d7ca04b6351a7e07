"""The ring: a file that the agent maps, where what it says lies until it is acknowledged.

Never touches a file; this is its layout, and how to read it.

    offset        size       what
         0        HEAD       the hello, a frame: who speaks
      HEAD        half       frames, one behind the other
      HEAD + half half       the same

The writer fills one half, then the other, and comes back to the first when all that it holds
is acknowledged. So the frames at the beginning of a half, up to the first place that is none,
are the newest in it; what lies behind them is left from an earlier round, and known already.
A frame that is being written has no valid check yet, and is not handed over yet.
"""

from __future__ import annotations

from zlib import crc32

from . import frames

HEAD = 16 * 1024
LARGEST_HALF = 2 * 1024 * 1024
LARGEST = HEAD + 2 * LARGEST_HALF


def name_of(stream: str) -> str:
    return stream + ".ring"


def hello_in(data: bytes) -> bytes | None:
    """The frame that says who speaks."""
    found = _frames_from(data, 0, HEAD, -1)
    return found[0][1] if found and found[0][0] == frames.HANDSHAKE else None


def frames_after(data: bytes, last: int) -> list[tuple[int, bytes]]:
    """The frames with a higher number than `last`, in order, of a ring that may be in use."""
    half = (len(data) - HEAD) // 2
    if half <= 0:
        return []
    found = _frames_from(data, HEAD, HEAD + half, last)
    found += _frames_from(data, HEAD + half, HEAD + 2 * half, last)
    found.sort()
    return found


def _frames_from(data: bytes, position: int, end: int, last: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    size = frames.HEADER.size
    newest = -1
    end = min(end, len(data))  # whose end a loss of power may have taken
    while position + size <= end:
        magic, length, seq, check = frames.HEADER.unpack_from(data, position)
        stop = position + size + length
        if magic != frames.MAGIC or stop > end or seq <= newest:
            break
        if seq > last:
            # What is known already need not be checked again.
            covered = crc32(data[position + 4 : position + 16])
            if crc32(data[position + size : stop], covered) != check:
                break
            found.append((seq, data[position:stop]))
        newest = seq
        position = stop
    return found
