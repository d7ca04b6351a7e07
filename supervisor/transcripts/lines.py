"""Cuts the bytes of a growing file into lines. Pure.

Never returns a line without its newline: its writer may still be in the middle of it. Never holds
more than LONGEST bytes of a line: a longer one is no message and is skipped to its end.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 64 * 1024 * 1024


class Lines:
    def __init__(self) -> None:
        self.offset = 0
        """The place in the file of the next byte that `feed` expects."""
        self.skipped = 0
        """The number of lines that were too long."""
        self._torn = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The lines that these bytes complete, each with the place where it begins."""
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
        """The last line, which has no newline yet. If its writer is dead it may still be whole."""
        return self.offset - len(self._torn), bytes(self._torn)
