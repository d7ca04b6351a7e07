"""Frames: the unit of the wire, the journal, the ring and the spool, byte for byte the same.

Never touches a socket or a file, and never looks inside a payload.

    offset  size  field
         0     4  magic    F5 48 53 01; F5 never occurs in UTF-8, 01 is the frame format
         4     4  length   of the payload, little endian, at most LIMIT
         8     8  seq      little endian; 0 is the handshake, records count from 1
        16     4  check    CRC-32 of bytes 4..16 followed by the payload, little endian
        20     n  payload

A frame is valid if and only if the magic is there, the length is within LIMIT and the
check agrees. Bytes that end inside a frame are *torn*: the writer died, and what came
before is good. Anything else that is not a frame is *damage*.
"""

from __future__ import annotations

from struct import Struct
from zlib import crc32

MAGIC = b"\xf5HS\x01"
LIMIT = 16 * 1024 * 1024
HEADER = Struct("<4sIQI")

HANDSHAKE = 0


class FrameTooLong(ValueError):
    """`encode` was given a payload over LIMIT; `records.fit` shortens it beforehand."""


class Damage:
    """Where a sequence of bytes stops being frames, and why."""

    __slots__ = ("offset", "reason")

    def __init__(self, offset: int, reason: str) -> None:
        self.offset = offset
        self.reason = reason

    def __repr__(self) -> str:
        return f"{self.reason} at byte {self.offset}"


def encode(seq: int, payload: bytes) -> bytes:
    length = len(payload)
    if length > LIMIT:
        raise FrameTooLong(f"a payload of {length} bytes is over the limit of {LIMIT}")
    # Half as long as `Struct.pack` where the processor's caches are cold.
    covered = length.to_bytes(4, "little") + seq.to_bytes(8, "little")
    check = crc32(payload, crc32(covered))
    return MAGIC + covered + check.to_bytes(4, "little") + payload


def payload_of(frame: bytes) -> bytes:
    return frame[HEADER.size :]


def number_of(frame: bytes) -> int:
    return int.from_bytes(frame[8:16], "little")


class Decoder:
    """Turns bytes, however they were cut, into `(seq, frame)` pairs.

    `frame` is the whole frame as it came, so that it can be appended to a journal
    unchanged. After damage the decoder ignores everything: `damage` says why, and every
    frame before it has been returned.
    """

    def __init__(self) -> None:
        self.damage: Damage | None = None
        self._buffer = b""
        self._consumed = 0

    @property
    def pending(self) -> int:
        """How many bytes of an incomplete frame are buffered."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that these bytes complete."""
        if self.damage is not None:
            return []
        buffer = self._buffer + data if self._buffer else data
        frames: list[tuple[int, bytes]] = []
        position = 0
        end = len(buffer)
        header_size = HEADER.size
        unpack = HEADER.unpack_from
        while end - position >= header_size:
            magic, length, seq, check = unpack(buffer, position)
            if magic != MAGIC or length > LIMIT:
                reason = (
                    "no frame" if magic != MAGIC else f"a frame of {length} bytes, over the limit"
                )
                self.damage = Damage(self._consumed + position, reason)
                break
            start = position + header_size
            stop = start + length
            if stop > end:
                break
            if crc32(buffer[start:stop], crc32(buffer[position + 4 : position + 16])) != check:
                self.damage = Damage(self._consumed + position, "a frame whose check fails")
                break
            frames.append((seq, buffer[position:stop]))
            position = stop
        else:
            # Fewer bytes than a header: they must at least begin like one.
            if not MAGIC.startswith(buffer[position : position + 4]):
                self.damage = Damage(self._consumed + position, "no frame")
        self._consumed += position
        self._buffer = b"" if self.damage else buffer[position:]
        return frames


class Salvage:
    """What `salvage` found: valid frames, holes between them, a torn end."""

    __slots__ = ("frames", "holes", "torn")

    def __init__(self) -> None:
        self.frames: list[tuple[int, bytes]] = []
        self.holes: list[Damage] = []
        self.torn: Damage | None = None


def salvage(data: bytes) -> Salvage:
    """Every valid frame in a file, and each place that is none.

    A bad place with a valid frame somewhere after it is a hole: the file was damaged.
    A bad place with nothing valid after it is the torn end of a writer that died.
    """
    salvage = Salvage()
    position = 0
    while position < len(data):
        stop, reason = _frame_at(data, position)
        if stop:
            seq = HEADER.unpack_from(data, position)[2]
            salvage.frames.append((seq, data[position:stop]))
            position = stop
            continue
        resumed = _next_valid(data, position + 1)
        if resumed is None:
            salvage.torn = Damage(position, reason)
            break
        salvage.holes.append(Damage(position, f"{reason}, {resumed - position} bytes long,"))
        position = resumed
    return salvage


def _frame_at(data: bytes, position: int) -> tuple[int, str]:
    """Where the frame that begins here ends, or 0 and why there is none."""
    if not MAGIC.startswith(data[position : position + 4]):
        return 0, "no frame"
    if len(data) - position < HEADER.size:
        return 0, "an unfinished frame"
    _, length, _, check = HEADER.unpack_from(data, position)
    start = position + HEADER.size
    if length > LIMIT:
        return 0, f"a frame of {length} bytes, over the limit"
    if start + length > len(data):
        return 0, "an unfinished frame"
    covered = crc32(data[position + 4 : position + 16])
    if crc32(data[start : start + length], covered) != check:
        return 0, "a frame whose check fails"
    return start + length, ""


def _next_valid(data: bytes, start: int) -> int | None:
    position = data.find(MAGIC, start)
    while position != -1 and not _frame_at(data, position)[0]:
        position = data.find(MAGIC, position + 1)
    return None if position == -1 else position
