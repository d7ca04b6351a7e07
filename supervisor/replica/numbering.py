"""Which frames of a stream are to be shipped, and under which position. Pure.

A frame's own number is no position: every handshake frame has number 0, and what a spool holds is
read after later numbers. So each frame gets a position of its own when it is first read, counted
from 1 in each stream. A frame that was read before, from another file, gets none.
"""

from __future__ import annotations

from hashlib import sha256

from ...ipc import frames, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Notes about this machine's own files and rows.
_LOCAL = ("compacted", "stored")


class Numbering:
    def __init__(self) -> None:
        self.last = 0
        """The last position that was given out."""
        self.upto = 0
        """Every number up to here has a position."""
        self.beyond: set[int] = set()
        """So have these, behind numbers that are missing."""
        self.handshakes: set[str] = set()
        self._dropped = False

    def accept_gap(self) -> None:
        """Records were dropped here: what is missing before the next one will not come."""
        self._dropped = True

    @property
    def highest(self) -> int:
        return max(self.beyond, default=self.upto)

    def is_new(self, seq: int, frame: bytes) -> bool:
        """Whether it is to be shipped: it has no position yet, and is for others."""
        if seq == frames.HANDSHAKE:
            return _digest(frame) not in self.handshakes and not _is_local(frame)
        return seq > self.upto and seq not in self.beyond

    def take(self, seq: int, frame: bytes) -> int | None:
        """The frame's position; None: it is not new."""
        if not self.is_new(seq, frame):
            return None
        if seq == frames.HANDSHAKE:
            self.handshakes.add(_digest(frame))
        elif seq == self.upto + 1 or self._dropped:
            self.upto = seq
            self._dropped = False
            self.beyond = {number for number in self.beyond if number > seq}
            while self.upto + 1 in self.beyond:
                self.upto += 1
                self.beyond.remove(self.upto)
        else:
            self.beyond.add(seq)
        self.last += 1
        return self.last

    def add(self) -> int:
        """A position for a frame that is in no file of the stream."""
        self.last += 1
        return self.last

    def as_record(self) -> dict[str, Any]:
        return {
            "last": self.last,
            "upto": self.upto,
            "beyond": sorted(self.beyond),
            "handshakes": sorted(self.handshakes),
        }


def from_record(record: dict[str, Any]) -> Numbering:
    numbering = Numbering()
    numbering.last, numbering.upto = record["last"], record["upto"]
    numbering.beyond, numbering.handshakes = set(record["beyond"]), set(record["handshakes"])
    return numbering


def _digest(frame: bytes) -> str:
    return sha256(frame).hexdigest()[:16]


def _is_local(frame: bytes) -> bool:
    try:
        return records.unpack(frames.payload_of(frame))["kind"] in _LOCAL
    except records.BadRecord:
        return False
