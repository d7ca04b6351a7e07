"""The bytes of a growing file, cut into lines. Pure.

Never hands out a line that has no end yet: its writer may be in the middle of it. Never holds
more than LONGEST of one: what is longer is no message, and is passed over to its end.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 64 * 1024 * 1024


class Lines:
    def __init__(self) -> None:
        self.offset = 0
        """Where the next byte belongs that `feed` is given."""
        self.skipped = 0
        """Lines that were too long."""
        self._torn = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The lines that these bytes complete, each with the place it begins at."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            piece = data[start:end]
            began = self.offset - len(self._torn)
            line = bytes(self._torn) + piece if self._torn else piece
            self._torn.clear()
            self.offset += end + 1 - start
            start = end + 1
            if self._skipping:
                self._skipping = False
            elif line.strip():
                yield began, line
        rest = data[start:]
        self.offset += len(rest)
        if not self._skipping:
            self._torn += rest
            if len(self._torn) > LONGEST:
                self._torn.clear()
                self._skipping = True
                self.skipped += 1

    def rest(self) -> tuple[int, bytes]:
        """What has no end yet. Of a dead writer it may be a whole line all the same."""
        return self.offset - len(self._torn), bytes(self._torn)
