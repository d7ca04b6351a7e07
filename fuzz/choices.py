"""Turns bytes into choices, so that a fuzzer that only knows bytes can explore structured data."""

from __future__ import annotations

import struct
from typing import Any, TypeVar

Chosen = TypeVar("Chosen")

_WORDS = (
    "",
    "ok",
    "chat",
    "other",
    "call-1",
    "call-2",
    "\ud800",
    "\x1b[2J",
    "a\0b",
    "../x",
    "ü" * 40,
)
_NUMBERS = (0, 1, -1, 1.5, 1e308, float("inf"), float("nan"), 2**63, -(2**70), 1_700_000_000)


class Choices:
    """Each method uses up some of the bytes and returns a choice made from them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._place

    def below(self, limit: int) -> int:
        """A number from 0 up to, not including, `limit`; 0 once the bytes are used up."""
        taken = self.bytes(1 if limit <= 256 else 4)
        return int.from_bytes(taken, "little") % limit if taken else 0

    def bytes(self, length: int) -> bytes:
        taken = self._data[self._place : self._place + length]
        self._place += length
        return taken

    def one_of(self, choices: tuple[Chosen, ...]) -> Chosen:
        return choices[self.below(len(choices))]

    def text(self) -> str:
        if self.below(4):
            return self.one_of(_WORDS)
        return self.bytes(self.below(40)).decode("utf-8", "surrogateescape")

    def number(self) -> float:
        if self.below(4):
            return self.one_of(_NUMBERS)
        return float(struct.unpack("<d", self.bytes(8).ljust(8, b"\0"))[0])

    def value(self, depth: int = 3) -> Any:
        """Anything that JSON can carry."""
        kind = self.below(7 if depth else 5)
        if kind == 5:
            return [self.value(depth - 1) for _ in range(self.below(4))]
        if kind == 6:
            return {self.text(): self.value(depth - 1) for _ in range(self.below(4))}
        return (None, True, self.number(), self.text(), self.text())[kind]
